//! Our own cordon: marked with the operation that made it, so that nobody else's is
//! ever undone (spec section 6). kube's `cordon` leaves no mark and has no precondition.

use std::time::Duration;

use ichor_api::names::CORDONED_BY;
use ichor_lock::DisruptiveLock;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use super::calls::{bounded, is_not_found, node};
use super::pass::Held;
use super::{DrainError, FIELD_MANAGER};

/// How often a patch is tried against a Node that changes under it. The kubelet writes a
/// Node's status every few seconds, so a conflict is ordinary.
const TRIES: u32 = 8;

/// What became of our cordon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncordon {
    /// It was undone.
    Undone,
    /// The Node carries no mark of this operation: nothing of ours to undo.
    NotOurs,
    /// There is no such Node any more.
    NodeMissing,
}

fn unschedulable(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|s| s.unschedulable)
        .unwrap_or(false)
}

fn mark(node: &Node) -> Option<&str> {
    node.annotations().get(CORDONED_BY).map(String::as_str)
}

/// Makes Node `node_name` unschedulable and marks that as `operation_uid`'s doing.
/// A Node that is unschedulable already is left as it is: that cordon is somebody else's,
/// or ours of an earlier pass. Returns the Node's UID, `None` where there is no such Node.
pub async fn cordon(
    lock: &DisruptiveLock,
    client: &Client,
    node_name: &str,
    operation_uid: &str,
    limit: Duration,
) -> Result<Option<String>, DrainError> {
    ensure(&|| !lock.is_lost(), client, node_name, operation_uid, limit).await
}

pub(super) async fn ensure(
    held: Held<'_>,
    client: &Client,
    node_name: &str,
    operation_uid: &str,
    limit: Duration,
) -> Result<Option<String>, DrainError> {
    let what = || format!("cordon Node {node_name}");
    for _ in 0..TRIES {
        let Some(found) = node(client, node_name, limit).await? else {
            return Ok(None);
        };
        if unschedulable(&found) {
            return Ok(found.uid());
        }
        if !held() {
            return Err(DrainError::LockLost);
        }
        let patch = json!({
            "metadata": {
                "resourceVersion": found.resource_version(),
                "annotations": { CORDONED_BY: operation_uid },
            },
            "spec": { "unschedulable": true },
        });
        if patched(client, node_name, &patch, what, limit).await? {
            return Ok(found.uid());
        }
    }
    Err(DrainError::Contended {
        what: what(),
        tries: TRIES,
    })
}

/// Undoes the cordon that `operation_uid` made on Node `node_name`, and nothing else: a
/// Node without its mark, or with another UID than `node_uid` where that is known, is left
/// as it is. Safe to call again at any time.
///
/// A Node that somebody made schedulable meanwhile only loses the mark. Whoever wants to
/// keep a Node of ours cordoned takes the annotation `ichor.maesh.dev/cordoned-by` off.
pub async fn uncordon(
    client: &Client,
    node_name: &str,
    node_uid: Option<&str>,
    operation_uid: &str,
    limit: Duration,
) -> Result<Uncordon, DrainError> {
    let what = || format!("undo the cordon of Node {node_name}");
    for _ in 0..TRIES {
        let Some(found) = node(client, node_name, limit).await? else {
            return Ok(Uncordon::NodeMissing);
        };
        let another = node_uid.is_some() && found.uid().as_deref() != node_uid;
        if another || mark(&found) != Some(operation_uid) {
            return Ok(Uncordon::NotOurs);
        }
        let mut patch = json!({
            "metadata": {
                "resourceVersion": found.resource_version(),
                "annotations": { CORDONED_BY: null },
            },
        });
        if unschedulable(&found) {
            patch["spec"] = json!({ "unschedulable": null });
        }
        match patched(client, node_name, &patch, what, limit).await {
            Ok(true) => return Ok(Uncordon::Undone),
            Ok(false) => {}
            Err(DrainError::Api { source, .. }) if is_not_found(&source) => {
                return Ok(Uncordon::NodeMissing);
            }
            Err(error) => return Err(error),
        }
    }
    Err(DrainError::Contended {
        what: what(),
        tries: TRIES,
    })
}

/// Whether the patch was taken; `false` where the Node has changed since it was read.
async fn patched(
    client: &Client,
    name: &str,
    patch: &Value,
    what: impl FnOnce() -> String,
    limit: Duration,
) -> Result<bool, DrainError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(patch);
    let call = nodes.patch_metadata(name, &params, &patch);
    match bounded(what, limit, call).await {
        Ok(_) => Ok(true),
        Err(DrainError::Api { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.is_conflict()) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
