//! What may be done to a TalosMachine (spec sections 3 and 7).

use ichor_api::conditions::TRANSITIONING;
use ichor_api::{ConditionStatus, MachineRole, TalosCluster, TalosMachine, names};
use ichor_rules::belonging::{Belonging, belonging};
use ichor_rules::count::{Basis, count, counts_as_approved};
use ichor_rules::deletion::{self, TargetHealth};
use ichor_rules::{unique, workers};
use k8s_openapi::api::coordination::v1::Lease;

use crate::answer::{Admitted, Refusal, require};
use crate::judge::Judge;
use crate::objects;
use crate::record::{Crossing, annotation_pointer};
use crate::review::{Operation, Request};

/// Name of the rule that no two machines share an address or a Node.
pub const UNIQUE: &str = "unique";
/// Name of the rule that the Node's name stands still during a removal.
pub const FROZEN: &str = "frozen";
/// Name of the rule on the second control plane of a cluster of one.
pub const SINGLE_CONTROL_PLANE: &str = "single-control-plane";
/// Name of the rule on annotations that waive a rule.
pub const NEEDS_OVERRIDE: &str = "needs-override";

/// Judges a write to a TalosMachine.
pub async fn judge(judge: &Judge, request: &Request) -> Result<Admitted, Refusal> {
    if judge.users.is_agent(&request.user_info.username) {
        return Ok(Admitted::exempt("agent"));
    }
    match request.operation {
        Operation::Create => write(judge, request, None, &request.wanted()?).await,
        Operation::Update => {
            write(judge, request, Some(&request.stored()?), &request.wanted()?).await
        }
        Operation::Delete => {
            let machine: TalosMachine = request.stored()?;
            if machine.is_being_deleted() {
                return Ok(Admitted::default());
            }
            let cascade = judge.users.is_cascade(&request.user_info.username);
            deletion(judge, request, &machine, cascade).await
        }
        Operation::Other => Ok(Admitted::default()),
    }
}

/// What a deletion asks, and what gaining an owner asks too. `cascade`: the annotation
/// is not asked for; quorum is.
async fn deletion(
    judge: &Judge,
    request: &Request,
    machine: &TalosMachine,
    cascade: bool,
) -> Result<Admitted, Refusal> {
    let (namespace, name) = (&request.namespace, request.name());
    let reads = async {
        tokio::join!(
            judge.is_terminating(namespace),
            judge
                .reader
                .get::<TalosCluster>(namespace, &machine.spec.cluster_ref.name)
        )
    };
    let (terminating, cluster) = reads.await;
    let (terminating, cluster) = (terminating?, cluster?);
    if terminating {
        return Ok(Admitted::exempt("terminating-namespace"));
    }
    let allow_delete = deletion::allow_delete(
        "TalosMachine",
        name,
        cascade || machine.consents(names::ALLOW_DELETE),
    );
    let cluster = match (belonging(machine, cluster.as_ref()), cluster) {
        (Belonging::TearingDown, _) => return Ok(Admitted::exempt("teardown")),
        (Belonging::Governed, Some(cluster)) => cluster,
        // Nothing will be done to the node, so nothing but the annotation is asked for.
        (Belonging::Missing | Belonging::Replaced { .. } | Belonging::Governed, _) => {
            require(&allow_delete)?;
            return Ok(Admitted::default());
        }
    };
    require(&allow_delete)?;
    if machine.is_control_plane() {
        require(&deletion::adopted(
            name,
            machine.spec.approved,
            machine.has_finalizer(),
        ))?;
    }
    let cluster_name = &machine.spec.cluster_ref.name;
    let machines = judge.reader.machines_of(namespace, cluster_name).await?;
    let counted = count(&machines, name, Basis::Admission);
    if machine.is_control_plane() {
        require(&deletion::quorum(&counted, name))?;
    }
    let mut admitted = Admitted::default();
    let waived = machine.consents(names::ALLOW_LAST_WORKER)
        || machine
            .status
            .as_ref()
            .and_then(|s| s.removal.as_ref())
            .is_some_and(|r| r.last_worker_waived_by.is_some());
    let last = workers::last_worker(&machines, machine, cluster.spec.schedulable, waived);
    if let Err(refusal) = require(&last) {
        judge.require_override(request, refusal).await?;
        admitted.crossing = Some(Crossing {
            waives_last_worker: request.operation == Operation::Delete,
            ..Crossing::update(
                last.rule.as_str(),
                cluster_name,
                &["/metadata/ownerReferences"],
            )
        });
    }
    let declared = deletion::declared_count(
        &counted,
        name,
        cluster.spec.control_plane.count,
        health(&cluster, name),
    );
    if machine.is_control_plane() && !declared.passes() {
        admitted.warnings.push(will_wait(name, &declared.message));
    }
    admitted
        .warnings
        .extend(transition_warning(&cluster, machine, name));
    admitted
        .warnings
        .extend(lock_warning(judge, namespace, cluster_name, machine, name).await);
    Ok(admitted)
}

fn will_wait(name: &str, why: &str) -> String {
    format!("the removal of {name} will wait: {why}")
}

/// How the target stands by the agent's last report: good enough for a warning.
fn health(cluster: &TalosCluster, name: &str) -> TargetHealth {
    let reported_unhealthy = cluster
        .status
        .as_ref()
        .and_then(|s| s.etcd.as_ref())
        .is_some_and(|etcd| {
            etcd.members
                .iter()
                .any(|m| m.machine.as_deref() == Some(name) && m.unhealthy_since.is_some())
        });
    if reported_unhealthy {
        TargetHealth::UnhealthyLong
    } else {
        TargetHealth::Healthy
    }
}

/// A worker waits while the cluster is transitioning; a control plane may end that.
fn transition_warning(
    cluster: &TalosCluster,
    machine: &TalosMachine,
    name: &str,
) -> Option<String> {
    if machine.is_control_plane() {
        return None;
    }
    let conditions = &cluster.status.as_ref()?.conditions;
    let condition = ichor_api::common::find_condition(conditions, TRANSITIONING)?;
    (condition.status == ConditionStatus::True).then(|| {
        will_wait(
            name,
            &format!(
                "the cluster is transitioning ({}): {}",
                condition.reason, condition.message
            ),
        )
    })
}

/// Best effort: where the lock cannot be read, there is nothing to warn of.
async fn lock_warning(
    judge: &Judge,
    namespace: &str,
    cluster: &str,
    machine: &TalosMachine,
    name: &str,
) -> Option<String> {
    let lease = judge
        .reader
        .get::<Lease>(namespace, &names::lease_name(cluster))
        .await
        .ok()??;
    let spec = lease.spec?;
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty())?;
    let (holder, held_for) = operation_of(&holder);
    if held_for.is_some() && held_for == machine.metadata.uid.as_deref() {
        return None;
    }
    let since = spec
        .acquire_time
        .map(|time| format!(" since {}", time.0.strftime("%H:%M:%S UTC")))
        .unwrap_or_default();
    Some(will_wait(
        name,
        &format!("the lock of cluster {cluster} is held{since} by {holder}"),
    ))
}

/// A holder identity, `<purpose>/<kind>/<name>/<uid>@<instance>`, for a person, and the
/// UID of the object that it names; another's identity as it stands.
fn operation_of(holder: &str) -> (String, Option<&str>) {
    let operation = holder
        .rsplit_once('@')
        .map_or(holder, |(operation, _)| operation);
    match operation.split('/').collect::<Vec<_>>()[..] {
        [purpose, kind, name, uid] => (format!("the {purpose} of {kind} {name}"), Some(uid)),
        _ => (holder.to_owned(), None),
    }
}

/// Judges a CREATE (`old` is none) or an UPDATE.
async fn write(
    judge: &Judge,
    request: &Request,
    old: Option<&TalosMachine>,
    new: &TalosMachine,
) -> Result<Admitted, Refusal> {
    let name = request.name();
    let deleted = old.is_some_and(TalosMachine::is_being_deleted);
    if let Some(old) = old.filter(|old| deleted && old.spec.node_name != new.spec.node_name) {
        return Err(Refusal::rule(
            FROZEN,
            format!(
                "spec.nodeName of TalosMachine {name} stands still while it is being deleted ({} stays): the removal works on that Node",
                old.spec.node_name.as_deref().unwrap_or("none")
            ),
        ));
    }
    let mut admitted = waiving_annotations(judge, request, old, new).await?;
    if !deleted
        && let Some(object) = &request.object
        && objects::gains_an_owner(request.old_object.as_ref(), object)
    {
        let asked = deletion(judge, request, new, false)
            .await
            .map_err(Refusal::of_an_owner)?;
        admitted.crossing = admitted.crossing.or(asked.crossing);
    }
    let placed = old.is_none_or(|old| {
        old.spec.address != new.spec.address || old.spec.node_name != new.spec.node_name
    });
    let was_approved = old.is_some_and(|old| old.spec.approved);
    let approves = new.is_control_plane() && new.spec.approved && !was_approved;
    let gives_up = new.spec.role == MachineRole::Worker && was_approved && !new.spec.approved;
    if !placed && !approves && !gives_up {
        return Ok(admitted);
    }
    let (namespace, cluster_name) = (&request.namespace, &new.spec.cluster_ref.name);
    let (machines, cluster) = tokio::join!(
        judge.reader.machines_of(namespace, cluster_name),
        judge.reader.get::<TalosCluster>(namespace, cluster_name)
    );
    let (machines, cluster) = (machines?, cluster?);
    if placed && let Some(clash) = unique::clash(&machines, new) {
        return Err(Refusal::rule(UNIQUE, clash.to_string()));
    }
    let Some(cluster) = cluster else {
        return Ok(admitted);
    };
    if approves {
        second_control_plane(&cluster, &machines, name)?;
    }
    if let Some(old) = old.filter(|_| gives_up)
        && belonging(old, Some(&cluster)) == Belonging::Governed
    {
        // Neither annotation nor record of a waiver counts: they speak of a removal.
        let last = workers::last_worker(&machines, old, cluster.spec.schedulable, false);
        if let Err(refusal) = require(&last) {
            judge.require_override(request, refusal).await?;
            admitted.crossing = Some(Crossing::update(
                last.rule.as_str(),
                cluster_name,
                &["/spec/approved"],
            ));
        }
    }
    Ok(admitted)
}

/// A second control plane is not approved where one is declared.
fn second_control_plane(
    cluster: &TalosCluster,
    machines: &[TalosMachine],
    name: &str,
) -> Result<(), Refusal> {
    if cluster.spec.control_plane.count != 1 {
        return Ok(());
    }
    let others: Vec<String> = machines
        .iter()
        .filter(|m| counts_as_approved(m))
        .filter_map(|m| m.metadata.name.clone())
        .filter(|other| other != name)
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(Refusal::rule(
        SINGLE_CONTROL_PLANE,
        format!(
            "control plane {name} is not approved: spec.controlPlane.count is 1 and {} is approved already ({} now, {} after). \
             Two control planes have no quorum once one is away, and neither could be removed again. To grow the cluster, set count to 3 first",
            deletion::list(&others),
            others.len(),
            others.len() + 1
        ),
    ))
}

/// `allow-last-worker` waives a rule and `adopt-cluster` names another cluster: setting
/// either needs the verb.
async fn waiving_annotations(
    judge: &Judge,
    request: &Request,
    old: Option<&TalosMachine>,
    new: &TalosMachine,
) -> Result<Admitted, Refusal> {
    let name = request.name();
    let set: Vec<&'static str> = [names::ALLOW_LAST_WORKER, names::ADOPT_CLUSTER]
        .into_iter()
        .filter(|key| {
            let before = old.and_then(|old| old.annotation(key));
            let after = new.annotation(key).unwrap_or_default();
            // Whatever else stands in `allow-last-worker` waives nothing.
            let waives = *key != names::ALLOW_LAST_WORKER || after == "true";
            waives && !after.is_empty() && Some(after) != before
        })
        .collect();
    if set.is_empty() {
        return Ok(Admitted::default());
    }
    let refusal = Refusal::rule(
        NEEDS_OVERRIDE,
        format!(
            "setting annotation {} on TalosMachine {name} needs the verb {} on talosmachines {name}, which {} does not hold. \
             Ask somebody who holds it (ClusterRole ichor-override-role)",
            set.join(" and "),
            names::OVERRIDE_VERB,
            request.user_info.username
        ),
    );
    judge.require_override(request, refusal).await?;
    let fields: Vec<String> = set.iter().map(|key| annotation_pointer(key)).collect();
    Ok(Admitted {
        crossing: Some(Crossing {
            fields,
            ..Crossing::update(NEEDS_OVERRIDE, &new.spec.cluster_ref.name, &[])
        }),
        ..Admitted::default()
    })
}
