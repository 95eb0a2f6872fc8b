//! The override path (spec section 7; ADR 0065, decisions 6 and 8), in this order:
//! exempt by exact name; a holder of `override`; the finalizer rule; consent.

use ichor_api::names;

use crate::answer::{Admitted, Refusal};
use crate::judge::Judge;
use crate::objects::{self, Kind};
use crate::record::Crossing;
use crate::review::{Operation, Request};

/// The rule's name.
pub const FINALIZER_REMOVAL: &str = "finalizer-removal";

/// Judges a write to any of Ichor's resources.
pub async fn judge(judge: &Judge, request: &Request) -> Result<Admitted, Refusal> {
    let (Operation::Update, Some(old), Some(new)) =
        (request.operation, &request.old_object, &request.object)
    else {
        return Ok(Admitted::default());
    };
    if judge.users.is_exempt(&request.user_info.username) {
        return Ok(Admitted::exempt("exempt-user"));
    }
    // The access review is asked where its answer matters: what no rule here refuses
    // does not hang on it.
    if let Some(refusal) = finalizer_removal(request, old, new) {
        judge.require_override(request, refusal).await?;
        return Ok(Admitted {
            crossing: Some(Crossing::update(
                FINALIZER_REMOVAL,
                cluster_of(request, old),
                &["/metadata/finalizers"],
            )),
            ..Admitted::default()
        });
    }
    if objects::is_being_deleted(old) && objects::changes_only_consent(old, new) {
        return Ok(Admitted::exempt("consent"));
    }
    Ok(Admitted::default())
}

fn cluster_of<'r>(request: &'r Request, object: &'r serde_json::Value) -> &'r str {
    match Kind::of_resource(&request.resource.resource) {
        Some(Kind::Cluster) => request.name(),
        _ => objects::text(object, "/spec/clusterRef/name"),
    }
}

/// Taking an `ichor.maesh.dev/*` finalizer off an approved machine, or off any object
/// that is being deleted (spec section 3). Judged on what is stored.
fn finalizer_removal(
    request: &Request,
    old: &serde_json::Value,
    new: &serde_json::Value,
) -> Option<Refusal> {
    let (before, after) = (objects::our_finalizers(old), objects::our_finalizers(new));
    let taken: Vec<&str> = before.difference(&after).copied().collect();
    if taken.is_empty() {
        return None;
    }
    let kind = Kind::of_resource(&request.resource.resource)?;
    let deleted = objects::is_being_deleted(old);
    // A control plane with the finalizer counts as approved whatever the field says.
    let approved = kind == Kind::Machine
        && (old.pointer("/spec/approved") == Some(&true.into())
            || objects::text(old, "/spec/role") == "controlplane");
    if !deleted && !approved {
        return None;
    }
    let name = request.name();
    let consequence = match kind {
        Kind::Machine if deleted => format!(
            "its removal would break off where it stands and leave what is cordoned, in etcd or not wiped as it is. \
             See what it waits for: kubectl ichor removal status {name}. To take the removal back: kubectl ichor remove {name} --cancel"
        ),
        Kind::Machine => format!(
            "deleting it would then leave the node in the cluster: neither drained, nor out of etcd, nor wiped. \
             To remove the machine in order: kubectl ichor remove {name}"
        ),
        Kind::Cluster => "its machines would be left behind with nobody to see to them. \
             See what it waits for: kubectl ichor status"
            .to_owned(),
    };
    Some(Refusal::rule(
        FINALIZER_REMOVAL,
        format!(
            "finalizer {} is not taken off {} {name}, which is {}: {consequence}. \
             By force it takes the verb {} on {} {name}",
            taken.join(", "),
            kind.as_str(),
            if deleted { "being deleted" } else { "approved" },
            names::OVERRIDE_VERB,
            request.resource.resource,
        ),
    ))
}
