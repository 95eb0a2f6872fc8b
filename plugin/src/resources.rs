//! Reading Ichor's resources: light on the way in, the same types afterwards.

use std::collections::BTreeMap;

use ichor_api::{
    TalosCluster, TalosClusterSpec, TalosClusterStatus, TalosMachine, TalosMachineSpec,
    TalosMachineStatus, names,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use serde::Deserialize;

use crate::error::{Error, Request};
use crate::session::{Session, encode};

/// RBAC's name of the machines.
pub const MACHINES: &str = "talosmachines.ichor.maesh.dev";
/// RBAC's name of the clusters.
pub const CLUSTERS: &str = "talosclusters.ichor.maesh.dev";

/// Of the metadata, what a person is shown or a rule asks. `managedFields` above all,
/// often half of an object, is passed over while decoding.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct LightMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    annotations: Option<BTreeMap<String, String>>,
    finalizers: Option<Vec<String>>,
}

impl From<LightMeta> for ObjectMeta {
    fn from(light: LightMeta) -> Self {
        Self {
            name: light.name,
            namespace: light.namespace,
            uid: light.uid,
            resource_version: light.resource_version,
            creation_timestamp: light.creation_timestamp,
            deletion_timestamp: light.deletion_timestamp,
            annotations: light.annotations,
            finalizers: light.finalizers,
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
struct Light<S, T> {
    #[serde(default)]
    metadata: LightMeta,
    spec: S,
    #[serde(default = "none")]
    status: Option<T>,
}

fn none<T>() -> Option<T> {
    None
}

impl From<Light<TalosMachineSpec, TalosMachineStatus>> for TalosMachine {
    fn from(light: Light<TalosMachineSpec, TalosMachineStatus>) -> Self {
        Self {
            metadata: light.metadata.into(),
            spec: light.spec,
            status: light.status,
        }
    }
}

impl From<Light<TalosClusterSpec, TalosClusterStatus>> for TalosCluster {
    fn from(light: Light<TalosClusterSpec, TalosClusterStatus>) -> Self {
        Self {
            metadata: light.metadata.into(),
            spec: light.spec,
            status: light.status,
        }
    }
}

/// Path of a resource of Ichor's, in one namespace or in all.
pub fn path(plural: &str, namespace: Option<&str>) -> String {
    let (group, version) = (names::GROUP, names::VERSION);
    match namespace {
        Some(namespace) => format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}"),
        None => format!("/apis/{group}/{version}/{plural}"),
    }
}

fn selecting(field: &str, value: Option<&str>) -> String {
    value.map_or_else(String::new, |value| {
        format!("&fieldSelector={}", encode(&format!("{field}={value}")))
    })
}

/// Clusters of a namespace or of all, or the one of that name.
pub async fn clusters(
    session: &Session,
    namespace: Option<&str>,
    name: Option<&str>,
) -> Result<Vec<TalosCluster>, Error> {
    let found: Vec<Light<TalosClusterSpec, TalosClusterStatus>> = session
        .list(
            Request::many("list", CLUSTERS, namespace),
            &path("talosclusters", namespace),
            &selecting("metadata.name", name),
        )
        .await?;
    Ok(found.into_iter().map(Into::into).collect())
}

/// Machines of a namespace or of all, or those of one cluster.
pub async fn machines(
    session: &Session,
    namespace: Option<&str>,
    cluster: Option<&str>,
) -> Result<Vec<TalosMachine>, Error> {
    let found: Vec<Light<TalosMachineSpec, TalosMachineStatus>> = session
        .list(
            Request::many("list", MACHINES, namespace),
            &path("talosmachines", namespace),
            &selecting("spec.clusterRef.name", cluster),
        )
        .await?;
    Ok(found.into_iter().map(Into::into).collect())
}

/// The machine of that name.
pub async fn machine(session: &Session, name: &str) -> Result<TalosMachine, Error> {
    let namespace = session.namespace.clone();
    let request = Request::one("get", MACHINES, &namespace, name);
    let path = format!("{}/{name}", path("talosmachines", Some(&namespace)));
    let found: Result<Light<TalosMachineSpec, TalosMachineStatus>, Error> =
        session.get(request, &path).await;
    match found {
        Ok(light) => Ok(light.into()),
        Err(error) if is_object_missing(&error, name) => Err(Error::NotFound {
            what: format!("TalosMachine {name}"),
            namespace,
            hint: None,
        }),
        Err(error) => Err(error),
    }
}

/// A 404 that names the object, as against one that says the resource is not served.
fn is_object_missing(error: &Error, name: &str) -> bool {
    match error {
        Error::Api { source, .. } => match source.as_ref() {
            kube::Error::Api(status) => {
                status.code == 404
                    && status
                        .details
                        .as_ref()
                        .is_some_and(|details| details.name == name)
            }
            _ => false,
        },
        _ => false,
    }
}

/// The Node of a machine: as the agent recorded it, else as the spec names it.
pub fn node_of(machine: &TalosMachine) -> Option<String> {
    machine
        .status
        .as_ref()
        .and_then(|s| s.identity.as_ref())
        .and_then(|i| i.node_name.clone())
        .or_else(|| machine.spec.node_name.clone())
}

/// Its name, or an empty one.
pub fn name_of(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// Its namespace, or an empty one.
pub fn namespace_of(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_lightly_keeps_what_rules_ask() {
        let object = serde_json::json!({
            "apiVersion": "ichor.maesh.dev/v1alpha1", "kind": "TalosMachine",
            "metadata": {
                "name": "cp-1", "namespace": "default", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "annotations": {"ichor.maesh.dev/allow-delete": "true"},
                "finalizers": ["ichor.maesh.dev/machine-removal"],
                "managedFields": [{"manager": "x", "fieldsV1": {"f:a": {}}}],
            },
            "spec": {"clusterRef": {"name": "demo"}, "role": "controlplane", "approved": true, "address": "192.0.2.1"},
        });
        let full: TalosMachine = serde_json::from_value(object.clone()).unwrap();
        let light: Light<TalosMachineSpec, TalosMachineStatus> =
            serde_json::from_value(object).unwrap();
        let mut expected = full;
        expected.metadata.managed_fields = None;
        let machine = TalosMachine::from(light);
        assert_eq!(machine.metadata, expected.metadata);
        assert_eq!(machine.spec, expected.spec);
        assert!(machine.has_finalizer() && machine.is_being_deleted());
    }
}
