//! What may be done to a TalosCluster (spec sections 3 and 7): allow-delete, also for
//! gaining an owner, and the last worker.

use ichor_api::cluster::DeletionPolicy;
use ichor_api::{TalosCluster, names};
use ichor_rules::{deletion, workers};
use k8s_openapi::api::core::v1::Namespace;

use crate::answer::{Admitted, Refusal, require};
use crate::judge::Judge;
use crate::objects;
use crate::record::Crossing;
use crate::review::{Operation, Request};

/// Judges a write to a TalosCluster.
pub async fn judge(judge: &Judge, request: &Request) -> Result<Admitted, Refusal> {
    if judge.users.is_agent(&request.user_info.username) {
        return Ok(Admitted::exempt("agent"));
    }
    match request.operation {
        Operation::Create => gains_an_owner(request).map(|()| Admitted::default()),
        Operation::Update => update(judge, request).await,
        Operation::Delete => delete(judge, request).await,
        Operation::Other => Ok(Admitted::default()),
    }
}

async fn delete(judge: &Judge, request: &Request) -> Result<Admitted, Refusal> {
    let cluster: TalosCluster = request.stored()?;
    if cluster.is_being_deleted() {
        return Ok(Admitted::default());
    }
    let allowed = deletion::allow_delete(
        "TalosCluster",
        request.name(),
        cluster.consents(names::ALLOW_DELETE)
            || judge.users.is_cascade(&request.user_info.username),
    );
    if !allowed.passes() && !judge.is_terminating(&request.namespace).await? {
        require(&allowed)?;
    }
    let mut admitted = Admitted::default();
    if cluster.spec.deletion_policy == DeletionPolicy::Reset {
        admitted.warnings.push(format!(
            "deletionPolicy of TalosCluster {} is Reset: its machines will be wiped",
            request.name()
        ));
    }
    Ok(admitted)
}

async fn update(judge: &Judge, request: &Request) -> Result<Admitted, Refusal> {
    let old: TalosCluster = request.stored()?;
    let new: TalosCluster = request.wanted()?;
    if !old.is_being_deleted() {
        gains_an_owner(request)?;
    }
    let (from, to) = (old.spec.schedulable, new.spec.schedulable);
    // Asked with no worker at all first: where even that passes, nothing need be read.
    if old.is_being_deleted() || workers::turning_unschedulable(&[], from, to).passes() {
        return Ok(Admitted::default());
    }
    let machines = judge
        .reader
        .machines_of(&request.namespace, request.name())
        .await?;
    let check = workers::turning_unschedulable(&machines, from, to);
    let Err(refusal) = require(&check) else {
        return Ok(Admitted::default());
    };
    judge.require_override(request, refusal).await?;
    Ok(Admitted {
        crossing: Some(Crossing::update(
            check.rule.as_str(),
            request.name(),
            &["/spec/schedulable"],
        )),
        ..Admitted::default()
    })
}

/// An owner that is gone, or goes, takes the object along: gaining one asks what a
/// deletion would.
fn gains_an_owner(request: &Request) -> Result<(), Refusal> {
    let new: TalosCluster = request.wanted()?;
    let wanted = request.object.as_ref();
    if !wanted.is_some_and(|o| objects::gains_an_owner(request.old_object.as_ref(), o)) {
        return Ok(());
    }
    require(&deletion::allow_delete(
        "TalosCluster",
        request.name(),
        new.consents(names::ALLOW_DELETE),
    ))
    .map_err(Refusal::of_an_owner)
}

impl Judge {
    /// Whether `namespace` is being deleted: then nothing in it is held back.
    ///
    /// Errors: the Namespace could not be read.
    pub(crate) async fn is_terminating(&self, namespace: &str) -> Result<bool, Refusal> {
        let namespace = self.reader.get_cluster::<Namespace>(namespace).await?;
        Ok(namespace.is_some_and(|n| n.metadata.deletion_timestamp.is_some()))
    }
}

impl Refusal {
    /// The refusal of a deletion, told of an ownerReference.
    pub(crate) fn of_an_owner(self) -> Self {
        match self {
            Self::Rule { rule, message } => Self::Rule {
                rule,
                message: format!(
                    "an ownerReference lets the garbage collector delete the object, so it is refused like a deletion: {message}"
                ),
            },
            other => other,
        }
    }
}
