//! One Lease on the API server, for the lock: every write a merge patch that carries the
//! resourceVersion of the read it stands on (409 otherwise, tried on a real server).

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use ichor_api::names::FIELD_MANAGER;
use ichor_lock::{LeaseError, LeaseKey, LeaseRecord, LeaseStore, LeaseWrite};
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// Label on every Lease that is a cluster's lock: its value is the cluster's name, cut
/// to a label's length. The agent watches Leases by it.
pub const LOCK_LABEL: &str = "ichor.maesh.dev/lock";

/// A Lease. Read as untyped data, since a person may have written it.
#[derive(Clone)]
pub struct KubeLease {
    api: Api<DynamicObject>,
    key: LeaseKey,
    cluster: Option<String>,
}

impl KubeLease {
    /// The Lease `name` in `namespace` of an election: it locks no cluster.
    pub fn election(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced_with(client, namespace, &resource()),
            key: LeaseKey::new(namespace, name),
            cluster: None,
        }
    }

    /// The Lease `name` in `namespace`, lock of `cluster`.
    pub fn new(client: Client, namespace: &str, name: &str, cluster: &str) -> Self {
        Self {
            api: Api::namespaced_with(client, namespace, &resource()),
            key: LeaseKey::new(namespace, name),
            cluster: Some(cluster.to_owned()),
        }
    }
}

/// `coordination.k8s.io/v1` Lease.
pub fn resource() -> ApiResource {
    ApiResource {
        group: "coordination.k8s.io".into(),
        version: "v1".into(),
        api_version: "coordination.k8s.io/v1".into(),
        kind: "Lease".into(),
        plural: "leases".into(),
    }
}

/// What stands in a Lease, whatever it is.
pub fn record(object: &DynamicObject) -> LeaseRecord {
    let spec = &object.data["spec"];
    let text = |field: &str| spec[field].as_str().map(str::to_owned);
    LeaseRecord {
        uid: object.metadata.uid.clone().unwrap_or_default(),
        resource_version: object.metadata.resource_version.clone().unwrap_or_default(),
        holder: text("holderIdentity"),
        duration: spec["leaseDurationSeconds"]
            .as_u64()
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
        acquire_time: text("acquireTime"),
        renew_time: text("renewTime"),
        transitions: spec["leaseTransitions"].as_i64().unwrap_or_default(),
        annotations: object.metadata.annotations.clone().unwrap_or_default(),
    }
}

fn lease_error(error: kube::Error) -> LeaseError {
    match &error {
        kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => {
            LeaseError::Conflict
        }
        // 500 and 504 may come after the write was applied; so may a cut connection.
        kube::Error::Api(status) if status.code >= 500 => {
            LeaseError::Unknown(status.message.clone())
        }
        kube::Error::Api(status) => LeaseError::Other(status.message.clone()),
        _ => LeaseError::Unknown(crate::errors::chain(&error)),
    }
}

fn body(write: &LeaseWrite, cluster: Option<&str>, resource_version: Option<&str>) -> Value {
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(Timestamp::now());
    let annotations: BTreeMap<&String, Option<&String>> = write
        .annotations
        .iter()
        .filter(|(_, value)| resource_version.is_some() || value.is_some())
        .map(|(key, value)| (key, value.as_ref()))
        .collect();
    let mut metadata = json!({ "annotations": annotations });
    if let Some(cluster) = cluster {
        let label: String = cluster.chars().take(63).collect();
        metadata["labels"] = json!({ LOCK_LABEL: label.trim_end_matches(['-', '.', '_']) });
    }
    let mut spec = json!({
        "holderIdentity": write.holder,
        "leaseDurationSeconds": write.duration_seconds,
        "leaseTransitions": write.transitions,
        "renewTime": now,
    });
    if write.acquired {
        spec["acquireTime"] = json!(now);
    }
    if let Some(version) = resource_version {
        metadata["resourceVersion"] = json!(version);
    }
    json!({ "metadata": metadata, "spec": spec })
}

#[async_trait]
impl LeaseStore for KubeLease {
    fn key(&self) -> LeaseKey {
        self.key.clone()
    }

    async fn get(&self) -> Result<Option<LeaseRecord>, LeaseError> {
        let found = self
            .api
            .get_opt(&self.key.name)
            .await
            .map_err(lease_error)?;
        Ok(found.as_ref().map(record))
    }

    async fn create(&self, write: &LeaseWrite) -> Result<LeaseRecord, LeaseError> {
        let mut object = DynamicObject::new(&self.key.name, &resource());
        let body = body(write, self.cluster.as_deref(), None);
        object.metadata.annotations =
            serde_json::from_value(body["metadata"]["annotations"].clone()).unwrap_or_default();
        object.metadata.labels =
            serde_json::from_value(body["metadata"]["labels"].clone()).unwrap_or_default();
        object.data = json!({ "spec": body["spec"] });
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PostParams::default()
        };
        let made = self
            .api
            .create(&params, &object)
            .await
            .map_err(lease_error)?;
        Ok(record(&made))
    }

    async fn replace(
        &self,
        resource_version: &str,
        write: &LeaseWrite,
    ) -> Result<LeaseRecord, LeaseError> {
        let patch = Patch::Merge(body(write, self.cluster.as_deref(), Some(resource_version)));
        match self.api.patch(&self.key.name, &params(), &patch).await {
            Ok(object) => Ok(record(&object)),
            // Gone since it was read: it is not the one that was read.
            Err(error) if crate::errors::is_not_found(&error) => Err(LeaseError::Conflict),
            Err(error) => Err(lease_error(error)),
        }
    }
}

fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PatchParams::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(spec: Value) -> LeaseRecord {
        let mut object = DynamicObject::new("ichor-demo", &resource());
        object.data = json!({ "spec": spec });
        record(&object)
    }

    #[test]
    fn a_lease_that_a_person_wrote_is_read_as_far_as_it_goes() {
        let odd = lease(
            json!({"holderIdentity": 5, "leaseDurationSeconds": "long", "renewTime": "yesterday"}),
        );
        assert_eq!(odd.holder, None);
        assert_eq!(odd.duration, None);
        assert_eq!(odd.renew_time.as_deref(), Some("yesterday"));
        assert_eq!(lease(json!({"leaseDurationSeconds": 0})).duration, None);
        assert_eq!(lease(Value::Null), LeaseRecord::default());
    }

    #[test]
    fn a_replace_carries_the_version_it_stands_on_and_takes_the_holder_away() {
        let write = LeaseWrite {
            holder: None,
            duration_seconds: 300,
            transitions: 3,
            acquired: false,
            annotations: BTreeMap::from([("a".into(), None), ("b".into(), Some("1".into()))]),
        };
        let body = body(&write, Some("demo"), Some("42"));
        assert_eq!(body["metadata"]["resourceVersion"], "42");
        assert_eq!(body["spec"]["holderIdentity"], Value::Null);
        assert!(
            body["metadata"]["annotations"]
                .as_object()
                .is_some_and(|a| a["a"].is_null())
        );
    }
}
