//! The namespace guard: a Namespace labelled `ichor.maesh.dev/guard: "true"` is not
//! deleted while it holds TalosMachines (spec section 3; field report F5).

use ichor_api::{TalosMachine, names};
use ichor_rules::deletion::list;
use ichor_rules::reader::ReadError;

use crate::answer::{Admitted, Refusal};
use crate::judge::Judge;
use crate::objects;
use crate::review::{Operation, Request};

/// The rule's name.
pub const NAMESPACE_GUARD: &str = "namespace-guard";

/// Judges the deletion of a Namespace.
pub async fn judge(judge: &Judge, request: &Request) -> Result<Admitted, Refusal> {
    if request.operation != Operation::Delete {
        return Ok(Admitted::default());
    }
    let namespace: serde_json::Value = request.stored()?;
    let guarded = namespace
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(names::GUARD_LABEL))
        .is_some_and(|value| value == "true");
    if !guarded || objects::is_being_deleted(&namespace) {
        return Ok(Admitted::default());
    }
    let name = request.name();
    let machines = match judge.reader.list::<TalosMachine>(name, None).await {
        // Without the definitions there are no machines: Ichor was uninstalled.
        Err(ReadError::Api { source, .. }) if is_not_found(&source) => Vec::new(),
        other => other?,
    };
    if machines.is_empty() {
        return Ok(Admitted::default());
    }
    let mut held: Vec<String> = machines
        .into_iter()
        .filter_map(|machine| machine.metadata.name)
        .collect();
    held.sort();
    Err(Refusal::rule(
        NAMESPACE_GUARD,
        format!(
            "Namespace {name} is guarded and still holds {} TalosMachine{} ({}): with the Namespace they would go unfinished, neither drained, nor out of etcd, nor wiped. \
             Delete the TalosCluster or the machines first; to delete the Namespace all the same, take label {} off it",
            held.len(),
            if held.len() == 1 { "" } else { "s" },
            list(&held),
            names::GUARD_LABEL
        ),
    ))
}

/// By the code: for a resource that is not defined the API server sends plain text,
/// which has no reason (and kube's `is_not_found` looks at nothing else).
fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
