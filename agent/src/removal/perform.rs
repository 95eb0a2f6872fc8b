//! Does the one thing that a pass decided, and writes down that it did.

use std::sync::Arc;
use std::time::Duration;

use ichor_api::conditions::{REMOVAL, RemovalStep, StandstillReason};
use ichor_api::machine::{RemovalStatus, TalosMachineStatus};
use ichor_api::{ConditionStatus, names};
use ichor_lock::{
    AcquireError, HANDED_OVER, Holder, LeaseStore as _, acquire_disruptive, clear_abandoned,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;

use super::drain_step;
use super::facts::{Call, DrainFact, NodeFact, TargetFact};
use super::gather::{GatherError, Gathered, Key, gather};
use super::memory::Memory;
use super::next::{LetGo, Step, next};
use super::send;
use crate::context::Context;
use crate::failpoint;
use crate::status::{again, begin, finish, moving, standing, write_machine};
use crate::view::ClusterView;

/// What comes after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Look again at once.
    Again,
    /// Look again after this long, or when something changes.
    After(Duration),
    /// The object is gone.
    Gone,
}

/// A pass that broke off. Nothing is assumed of a write whose answer was lost: the next
/// pass reads anew.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// Something could not be read.
    #[error(transparent)]
    Gather(#[from] GatherError),
    /// The API server did not take a write.
    #[error("failed to write to the API server: {0}")]
    Write(#[source] Box<kube::Error>),
    /// The drain could not be made.
    #[error(transparent)]
    Drain(#[from] crate::drain::DrainError),
}

impl From<kube::Error> for PassError {
    fn from(error: kube::Error) -> Self {
        Self::Write(Box::new(error))
    }
}

/// Steps that are done again whenever a removal begins anew.
const BEFORE_LEAVE: [RemovalStep; 3] = [RemovalStep::Lock, RemovalStep::Check, RemovalStep::Drain];

/// Runs passes of one machine's removal until it has to wait for something.
pub async fn run(ctx: &Context, key: &Key) -> Result<Outcome, PassError> {
    let memory = ctx.removal(&key.uid).await;
    let mut memory = memory.lock().await;
    // A removal that finds no end within this many steps waits like any other.
    for _ in 0..64 {
        if ctx.stopping.is_cancelled() {
            return Ok(Outcome::After(ctx.settings.retry));
        }
        if memory
            .lock
            .as_ref()
            .is_some_and(ichor_lock::DisruptiveLock::is_lost)
        {
            tracing::warn!(
                machine = key.name,
                "lost the cluster lock: starting again at its first step"
            );
            ctx.metrics.locks_lost.inc();
            memory.lock = None;
        }
        let gathered = match Box::pin(gather(ctx, key, &mut memory)).await {
            Err(GatherError::Gone) => {
                // Somebody stripped the finalizer: the cluster's next look records what is
                // left on the Lease, then the lock goes.
                ctx.wake_cluster(&key.namespace, &key.cluster);
                return Ok(Outcome::After(ctx.settings.retry));
            }
            other => other?,
        };
        let step = next(&gathered.snapshot);
        tracing::debug!(machine = key.name, ?step, "removal");
        match Box::pin(perform(ctx, key, &mut memory, gathered, step)).await {
            Ok(Outcome::Again) => {}
            Ok(other) => return Ok(other),
            // Somebody wrote in between: decide again by what stands there now.
            Err(PassError::Write(error)) if crate::errors::is_conflict(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Outcome::After(ctx.settings.retry))
}

/// Gives the lock back, if this operation holds it, in this process or by the one before
/// that it goes on for.
async fn release(ctx: &Context, key: &Key, memory: &mut Memory) {
    if let Some(lock) = memory.lock.take() {
        if let Err(error) = lock.release().await {
            // It expires by itself.
            tracing::warn!(error = %error, "failed to release the cluster lock");
        }
    } else if memory.lease_is_ours {
        match leave_lease(ctx, key).await {
            Ok(()) => memory.lease_is_ours = false,
            // A call of ours is not settled yet: the Lease stands for it until then.
            Err(AcquireError::Unsettled(_)) => {}
            Err(error) => {
                tracing::warn!(machine = key.name, error = %error, "failed to give back the cluster lock of the process before");
            }
        }
    }
}

/// Takes this operation's name off the Lease, where a process of this pod that has ended,
/// or one that handed over, left it there.
async fn leave_lease(ctx: &Context, key: &Key) -> Result<(), AcquireError> {
    let store = ctx.lease(&key.namespace, &key.cluster);
    let operation = key.operation();
    let Some(seen) = store.get().await? else {
        return Ok(());
    };
    let left = seen
        .held_by()
        .and_then(|holder| Holder::parse(holder, &key.namespace))
        .is_some_and(|holder| {
            holder.operation.same(&operation)
                && (holder.instance == ctx.instance.pod_uid || holder.instance == HANDED_OVER)
        });
    if !left {
        return Ok(());
    }
    let view = ClusterView::new(ctx, &key.namespace, &key.cluster);
    clear_abandoned(&ctx.locks, &store, &view, &seen, &operation).await
}

async fn perform(
    ctx: &Context,
    key: &Key,
    memory: &mut Memory,
    gathered: Gathered,
    step: Step,
) -> Result<Outcome, PassError> {
    let generation = gathered.machine.metadata.generation;
    match step {
        Step::Stand {
            reason,
            message,
            keep_lock,
            undo_cordon,
        } => {
            stand(
                ctx,
                key,
                memory,
                &gathered,
                reason,
                &message,
                keep_lock,
                undo_cordon,
            )
            .await
        }
        Step::BeginHold => {
            let token = format!(
                "{:08x}",
                fingerprint(&format!("{}{}", key.uid, Timestamp::now()))
            );
            write_machine(&ctx.client, &gathered.machine, |status| {
                status.removal.get_or_insert_default().hold = Some(token);
            })
            .await?;
            Ok(Outcome::Again)
        }
        Step::AcquireLock => acquire(ctx, key, memory, &gathered).await,
        Step::Drain => Box::pin(drain_step::drain(ctx, key, memory, &gathered)).await,
        Step::Forfeit => {
            failpoint::hit("before-forfeit");
            send::forfeit(ctx, key, memory, &gathered).await;
            Ok(Outcome::Again)
        }
        Step::Send(call) => Box::pin(send::send(ctx, key, memory, &gathered, call)).await,
        Step::LeaveConfirmed { boot_id } => {
            let member = gathered
                .snapshot
                .intent
                .as_ref()
                .and_then(|i| i.member_id)
                .or_else(|| gathered.snapshot.machine.member_id());
            write_machine(&ctx.client, &gathered.machine, |status| {
                record_left(status, boot_id, member);
                begin(status, RemovalStep::Reset);
                moving(
                    status,
                    generation,
                    RemovalStep::Reset,
                    "the machine is out of etcd; it is wiped next",
                );
            })
            .await?;
            ctx.metrics.members_left.inc();
            ctx.wake_cluster(&key.namespace, &key.cluster);
            failpoint::hit("after-leave-confirmed");
            Ok(Outcome::Again)
        }
        Step::RejoinedAs { member_id } => {
            tracing::warn!(
                machine = key.name,
                member = names::format_etcd_id(member_id),
                "the machine joined etcd again: it leaves once more"
            );
            write_machine(&ctx.client, &gathered.machine, |status| {
                let identity = status.identity.get_or_insert_default();
                identity.etcd_member_id = Some(names::format_etcd_id(member_id));
                status.intent = None;
                if let Some(removal) = &mut status.removal {
                    removal.leave_boot_id = None;
                    removal.leave_by_id = false;
                }
                again(
                    status,
                    &[
                        RemovalStep::Check,
                        RemovalStep::Drain,
                        RemovalStep::LeaveEtcd,
                        RemovalStep::Reset,
                        RemovalStep::Confirm,
                    ],
                );
            })
            .await?;
            memory.forfeit_tried = false;
            Ok(Outcome::Again)
        }
        Step::WithdrawIntent { leave_by_id, why } => {
            tracing::info!(machine = key.name, why, "took an intent back");
            write_machine(&ctx.client, &gathered.machine, |status| {
                status.intent = None;
                if let Some(removal) = &mut status.removal {
                    removal.leave_by_id = leave_by_id;
                    removal.wiped.clear();
                }
                again(status, &[RemovalStep::Reset, RemovalStep::Confirm]);
            })
            .await?;
            memory.never_sent = None;
            memory.accepted = None;
            memory.locked_out = None;
            Ok(Outcome::Again)
        }
        Step::Wiped {
            confirmed,
            not_wiped,
        } => {
            if not_wiped && !gathered.snapshot.machine.not_wiped {
                crate::cluster::record_not_wiped(ctx, &gathered).await?;
            }
            write_machine(&ctx.client, &gathered.machine, |status| {
                status.intent = None;
                finish(status, RemovalStep::Reset);
                finish(status, RemovalStep::Confirm);
                begin(status, RemovalStep::Finish);
                let removal = status.removal.get_or_insert_default();
                removal.confirmed = Some(confirmed);
                removal.not_wiped = not_wiped;
                moving(
                    status,
                    generation,
                    RemovalStep::Finish,
                    if confirmed {
                        "the box was seen in maintenance mode: it is wiped"
                    } else if not_wiped {
                        "let go without being wiped, by consent"
                    } else {
                        "the reset was seen to run; the box itself was not seen again"
                    },
                );
            })
            .await?;
            failpoint::hit("after-wipe-seen");
            Ok(Outcome::Again)
        }
        Step::Wait { step, message } => wait(ctx, key, memory, &gathered, step, &message).await,
        Step::Finish => finish_removal(ctx, key, memory, &gathered).await,
        Step::LetGo(why) => let_go(ctx, key, memory, &gathered, why).await,
    }
}

/// Records that the machine is out of etcd: the leave is settled.
pub fn record_left(status: &mut TalosMachineStatus, boot_id: Option<String>, member: Option<u64>) {
    status.intent = None;
    finish(status, RemovalStep::LeaveEtcd);
    let removal = status.removal.get_or_insert_default();
    removal.leave_boot_id = boot_id;
    removal.left_member_id = member.map(names::format_etcd_id);
}

fn fingerprint(text: &str) -> u32 {
    use sha2::Digest;
    let digest = sha2::Sha256::digest(text.as_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

#[allow(clippy::too_many_arguments)] // one call site; a struct would only name them twice
async fn stand(
    ctx: &Context,
    key: &Key,
    memory: &mut Memory,
    gathered: &Gathered,
    reason: StandstillReason,
    message: &str,
    keep_lock: bool,
    undo_cordon: bool,
) -> Result<Outcome, PassError> {
    let generation = gathered.machine.metadata.generation;
    if undo_cordon {
        uncordon(key, gathered).await?;
    }
    let past_leave = gathered.snapshot.machine.did(RemovalStep::LeaveEtcd);
    let starts_again = !keep_lock && !past_leave && gathered.snapshot.intent.is_none();
    write_machine(&ctx.client, &gathered.machine, |status| {
        standing(status, generation, reason.as_str(), message);
        if starts_again {
            again(status, &BEFORE_LEAVE);
        }
    })
    .await?;
    if !keep_lock {
        if starts_again && undo_cordon {
            memory.drain_started = None;
            memory.drain = DrainFact::Open;
        }
        if reason == StandstillReason::Yielded {
            memory.drain = DrainFact::Open;
        }
        release(ctx, key, memory).await;
    }
    ctx.metrics.standing(reason.as_str());
    Ok(Outcome::After(match reason {
        StandstillReason::DrainFailed => ctx.settings.drain_retry,
        // Settling is a matter of looking again; a person's answer wakes us by itself.
        StandstillReason::OutcomeUnknown | StandstillReason::Rejoining => {
            ctx.settings.retry.min(ctx.settings.wipe_poll * 4)
        }
        _ => ctx.settings.retry,
    }))
}

async fn uncordon(key: &Key, gathered: &Gathered) -> Result<(), PassError> {
    let Some(client) = &gathered.kubernetes else {
        return Ok(());
    };
    let name = match &gathered.snapshot.node {
        NodeFact::Present { name, .. } => Some(name.clone()),
        _ => super::gather::node_name(&gathered.machine, None),
    };
    if let Some(name) = name {
        crate::drain::uncordon(client, &name, None, &key.uid, Duration::from_secs(10)).await?;
    }
    Ok(())
}

async fn acquire(
    ctx: &Context,
    key: &Key,
    memory: &mut Memory,
    gathered: &Gathered,
) -> Result<Outcome, PassError> {
    let generation = gathered.machine.metadata.generation;
    let operation = key.operation();
    let view = ClusterView::new(ctx, &key.namespace, &key.cluster);
    let store = Arc::new(ctx.lease(&key.namespace, &key.cluster));
    // A control plane's removal and a teardown may end a transition (spec section 4).
    let completes = gathered.snapshot.machine.is_control_plane()
        || !matches!(
            gathered.snapshot.governing,
            super::facts::Governing::Cluster
        );
    let refusal = match acquire_disruptive(&ctx.locks, store, &view, &operation, completes).await {
        Ok(lock) => {
            if let (Some(before), Some(cluster)) = (lock.predecessor(), &gathered.cluster) {
                crate::cluster::record_predecessor(ctx, cluster, &gathered.machines, before)
                    .await?;
            }
            memory.lock = Some(lock);
            memory.lease_is_ours = false;
            ctx.metrics.locks_taken.inc();
            failpoint::hit("after-acquire");
            if !gathered.snapshot.machine.did(RemovalStep::Lock) {
                write_machine(&ctx.client, &gathered.machine, |status| {
                    finish(status, RemovalStep::Lock);
                    begin(status, RemovalStep::Check);
                    moving(
                        status,
                        generation,
                        RemovalStep::Check,
                        "the cluster lock is held; counting again under it",
                    );
                })
                .await?;
            }
            return Ok(Outcome::Again);
        }
        Err(refusal) => refusal,
    };
    let (reason, message) = match &refusal {
        AcquireError::Held { .. } => (StandstillReason::ClusterLockHeld, refusal.to_string()),
        AcquireError::Transitioning(why) => (
            StandstillReason::ClusterTransitioning,
            format!(
                "the cluster is transitioning ({why}); this goes on by itself when that has ended"
            ),
        ),
        AcquireError::Unsettled(intents) => (
            StandstillReason::ClusterLockHeld,
            format!(
                "the lock is free, but a call of another operation is not settled: {}. This goes on by itself when it is",
                intents
                    .iter()
                    .map(|i| i.message.clone())
                    .collect::<Vec<_>>()
                    .join("; ")
            ),
        ),
        AcquireError::View(_) | AcquireError::Store(_) => {
            tracing::warn!(machine = key.name, error = %refusal, "could not take the cluster lock");
            return Ok(Outcome::After(
                ctx.settings.retry.min(Duration::from_secs(5)),
            ));
        }
    };
    let wait = match &refusal {
        AcquireError::Held { .. } => ctx
            .locks
            .expires_in(&ichor_lock::LeaseKey::new(
                &key.namespace,
                names::lease_name(&key.cluster),
            ))
            .unwrap_or(ctx.settings.retry)
            .min(ctx.settings.retry),
        _ => ctx.settings.retry,
    };
    stand(ctx, key, memory, gathered, reason, &message, false, false).await?;
    Ok(Outcome::After(wait.max(Duration::from_millis(200))))
}

/// Waits, with the lock held, for what the box does: its API is asked, the API server is not.
async fn wait(
    ctx: &Context,
    key: &Key,
    memory: &mut Memory,
    gathered: &Gathered,
    step: RemovalStep,
    message: &str,
) -> Result<Outcome, PassError> {
    let generation = gathered.machine.metadata.generation;
    let said = gathered
        .machine
        .condition(REMOVAL)
        .is_some_and(|c| c.status == ConditionStatus::True && c.reason == step.as_str());
    if !said {
        write_machine(&ctx.client, &gathered.machine, |status| {
            begin(status, step);
            moving(status, generation, step, message);
        })
        .await?;
    }
    if !memory.holds_lock() && step != RemovalStep::Lock {
        // Work that goes on is worked on under the lock.
        if let Outcome::After(wait) = acquire(ctx, key, memory, gathered).await? {
            return Ok(Outcome::After(wait));
        }
    }
    if step != RemovalStep::Confirm {
        tokio::time::sleep(ctx.settings.wipe_poll.min(Duration::from_secs(1))).await;
        return Ok(Outcome::Again);
    }
    let began = ctx.clock.now();
    let kind = std::mem::discriminant(&gathered.snapshot.target);
    let stage = stage_of(&gathered.snapshot.target);
    while ctx.clock.now().saturating_sub(began) < ctx.settings.retry {
        tokio::select! {
            () = ctx.stopping.cancelled() => break,
            () = tokio::time::sleep(ctx.settings.wipe_poll) => {}
        }
        let Some(config) = &gathered.config else {
            break;
        };
        let target = super::gather::look(ctx, &gathered.machine, Some(config), None, false).await;
        let changed = std::mem::discriminant(&target) != kind || stage_of(&target) != stage;
        memory.note_wait(&target, ctx.clock.now());
        if changed {
            break;
        }
    }
    Ok(Outcome::Again)
}

fn stage_of(target: &TargetFact) -> Option<(&str, &str)> {
    match target {
        TargetFact::Answers(answer) => Some((&answer.stage, &answer.boot_id)),
        _ => None,
    }
}

async fn finish_removal(
    ctx: &Context,
    key: &Key,
    memory: &mut Memory,
    gathered: &Gathered,
) -> Result<Outcome, PassError> {
    let accepted_rejoin = gathered.snapshot.machine.consent.accept_rejoin
        && matches!(gathered.snapshot.target, TargetFact::Answers(_));
    if accepted_rejoin {
        // The box lives on under its name: it keeps its Node.
        uncordon(key, gathered).await?;
    } else if let (Some(client), NodeFact::Present { name, uid, .. }) =
        (&gathered.kubernetes, &gathered.snapshot.node)
    {
        let nodes: Api<Node> = Api::all(client.clone());
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match nodes.delete(name, &params).await {
            Ok(_) => {}
            Err(error)
                if crate::errors::is_not_found(&error) || crate::errors::is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
        failpoint::hit("after-node-deleted");
    }
    clear_finalizer(ctx, gathered).await?;
    failpoint::hit("after-finalizer-cleared");
    release(ctx, key, memory).await;
    failpoint::hit("after-release");
    ctx.metrics.removals_finished.inc();
    tracing::info!(machine = key.name, confirmed = ?gathered.snapshot.machine.confirmed, "removal finished");
    Ok(Outcome::Gone)
}

/// Takes our finalizer off, and no other, on the version that was read.
pub async fn clear_finalizer(ctx: &Context, gathered: &Gathered) -> Result<(), PassError> {
    let machine = &gathered.machine;
    let kept: Vec<&String> = machine
        .metadata
        .finalizers
        .iter()
        .flatten()
        .filter(|f| *f != names::MACHINE_FINALIZER)
        .collect();
    let api: Api<ichor_api::TalosMachine> = Api::namespaced(
        ctx.client.clone(),
        machine.metadata.namespace.as_deref().unwrap_or_default(),
    );
    let patch = Patch::Merge(json!({
        "metadata": {
            "resourceVersion": machine.metadata.resource_version,
            "finalizers": kept,
        }
    }));
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    match api
        .patch(
            machine.metadata.name.as_deref().unwrap_or_default(),
            &params,
            &patch,
        )
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if crate::errors::is_not_found(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn let_go(
    ctx: &Context,
    key: &Key,
    memory: &mut Memory,
    gathered: &Gathered,
    why: LetGo,
) -> Result<Outcome, PassError> {
    tracing::info!(
        machine = key.name,
        ?why,
        "letting the machine go without work on it"
    );
    if let Err(error) = uncordon(key, gathered).await {
        // A cordon that stays is marked with our operation; the object must not stay for it.
        tracing::warn!(machine = key.name, error = %error, "failed to undo the cordon");
        if why == LetGo::Cancelled {
            return Err(error);
        }
    }
    if why == LetGo::NamespaceTerminating {
        crate::events::namespace_let_go(ctx, gathered).await;
    }
    let past_leave = gathered.snapshot.machine.did(RemovalStep::LeaveEtcd);
    if past_leave && why == LetGo::Orphaned {
        crate::cluster::record_not_wiped(ctx, gathered).await?;
    }
    clear_finalizer(ctx, gathered).await?;
    release(ctx, key, memory).await;
    Ok(Outcome::Gone)
}

/// The condition while a call is on its way, and the steps around it, in one write.
pub fn call_begins(status: &mut TalosMachineStatus, generation: Option<i64>, call: &Call) {
    let step = match call {
        Call::LeaveEtcd { .. } | Call::RemoveMember { .. } => RemovalStep::LeaveEtcd,
        Call::Reset { .. } => RemovalStep::Reset,
    };
    begin(status, step);
    let removal: &mut RemovalStatus = status.removal.get_or_insert_default();
    if let Call::Reset { wipe, .. } = call {
        removal.wiped.clone_from(wipe);
    }
    let message = match call {
        Call::LeaveEtcd { member_id } => format!(
            "leaving etcd (member {})",
            names::format_etcd_id(*member_id)
        ),
        Call::RemoveMember { member_id } => format!(
            "removing member {} through another node",
            names::format_etcd_id(*member_id)
        ),
        Call::Reset { wipe, .. } => format!("wiping {}", wipe.join(", ")),
    };
    moving(status, generation, step, &message);
}

/// A wall-clock time `after` from now, for people: in whole seconds, which is all that
/// the API server keeps. What is written must read back as it was.
pub fn deadline(after: Duration) -> Time {
    let span = jiff::SignedDuration::try_from(after).unwrap_or(jiff::SignedDuration::ZERO);
    let at = Timestamp::now().checked_add(span).unwrap_or(Timestamp::MAX);
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_that_is_read_back_is_known_again() {
        let intent = ichor_api::machine::Intent {
            step: "Reset".into(),
            operation: "removal/TalosMachine/cp-1/1".into(),
            instance: "pod".into(),
            deadline: deadline(Duration::from_millis(30_400)),
            deadline_seconds: 31,
            node_id: None,
            boot_id: None,
            hardware_uuid: None,
            member_id: None,
            lease_uid: Some("lease".into()),
            lease_transitions: 7,
            wipe: vec!["STATE".into()],
            reboot: true,
        };
        let stored = serde_json::to_string(&intent).unwrap();
        let read = serde_json::from_str(&stored).unwrap();
        let key = crate::removal::gather::intent_key;
        assert_eq!(key(&intent), key(&read));
    }
}
