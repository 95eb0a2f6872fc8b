//! Pods: brought to Running and Ready, and ended when they are deleted.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::Semaphore;

use super::{ENDS, READY};
use crate::wait::bounded;

/// How many requests are in flight at once: 200 pods are ready in a few seconds, and
/// the API server still has room for others.
const AT_ONCE: usize = 32;

/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct Work {
    client: Client,
    stop_time: Duration,
    // The pods (UID) that something is being done about.
    busy: Arc<Mutex<HashSet<(String, bool)>>>,
    room: Arc<Semaphore>,
}

impl Work {
    pub fn new(client: Client, stop_time: Duration) -> Self {
        Self {
            client,
            stop_time,
            busy: Arc::default(),
            room: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Does what this pod needs, in the background, where that is not under way already.
    pub fn look_at(&self, pod: &Pod) {
        let Some(uid) = pod.uid() else { return };
        let ending = pod.metadata.deletion_timestamp.is_some();
        if ending {
            if pod.annotations().get(ENDS).is_some_and(|v| v == "never") {
                return;
            }
        } else if is_as_it_should_be(pod) {
            return;
        }
        let key = (uid.clone(), ending);
        if !self.busy().insert(key.clone()) {
            return;
        }
        let work = self.clone();
        let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let patch = (!ending).then(|| running(pod));
        tokio::spawn(async move {
            let api: Api<Pod> = Api::namespaced(work.client.clone(), &namespace);
            let result = if let Some(patch) = patch {
                let _room = work.room.acquire().await;
                let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
                bounded(LIMIT, api.patch_status(&name, &params, &patch))
                    .await
                    .map(drop)
            } else {
                let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
                tokio::time::sleep(grace.min(work.stop_time)).await;
                let _room = work.room.acquire().await;
                bounded(LIMIT, finish(&api, &name, &uid)).await
            };
            if let Err(error) = result {
                tracing::debug!(
                    namespace,
                    name,
                    error,
                    "the kubelet stand-in will try again"
                );
            }
            work.busy().remove(&key);
        });
    }

    fn busy(&self) -> std::sync::MutexGuard<'_, HashSet<(String, bool)>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a pod that is being deleted, as a kubelet does when its containers have ended.
pub(crate) async fn finish(api: &Api<Pod>, name: &str, uid: &str) -> Result<(), kube::Error> {
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        done => done.map(drop),
    }
}

fn wants_ready(pod: &Pod) -> bool {
    pod.annotations().get(READY).is_none_or(|v| v != "false")
}

fn is_as_it_should_be(pod: &Pod) -> bool {
    let Some(status) = &pod.status else {
        return false;
    };
    let phase = status.phase.as_deref().unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        return true;
    }
    let ready = status
        .conditions
        .iter()
        .flatten()
        .any(|c| c.type_ == "Ready" && c.status == "True");
    phase == "Running" && ready == wants_ready(pod)
}

/// The status of a pod whose containers run.
fn running(pod: &Pod) -> serde_json::Value {
    status(pod, wants_ready(pod), 0)
}

/// Writes that a pod's containers run, `ready` or not, after so many restarts.
pub(crate) async fn report(
    api: &Api<Pod>,
    pod: &Pod,
    ready: bool,
    restarts: i32,
) -> Result<(), kube::Error> {
    let patch = Patch::Strategic(status(pod, ready, restarts));
    api.patch_status(&pod.name_any(), &PatchParams::default(), &patch)
        .await
        .map(drop)
}

fn status(pod: &Pod, ready: bool, restarts: i32) -> serde_json::Value {
    let now = Timestamp::now();
    let (word, reason) = if ready {
        ("True", "")
    } else {
        ("False", "ContainersNotReady")
    };
    let condition = |type_: &str, status: &str, reason: &str| {
        let mut condition = json!({"type": type_, "status": status, "lastTransitionTime": now});
        if !reason.is_empty() {
            condition["reason"] = json!(reason);
        }
        condition
    };
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    let containers: Vec<_> = containers
        .map(|c| {
            json!({
                "name": c.name, "image": c.image, "imageID": "", "ready": ready, "started": true,
                "restartCount": restarts, "state": {"running": {"startedAt": now}},
            })
        })
        .collect();
    json!({"status": {
        "phase": "Running",
        "startTime": now,
        "conditions": [
            condition("PodScheduled", "True", ""),
            condition("Initialized", "True", ""),
            condition("ContainersReady", word, reason),
            condition("Ready", word, reason),
        ],
        "containerStatuses": containers,
    }})
}
