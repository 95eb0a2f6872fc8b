//! Fencing (spec section 4): intent, permit, one more look, call. In this order, and
//! never twice without having looked at what became of the first.

use std::collections::BTreeMap;
use std::time::Duration;

use ichor_api::conditions::{RemovalStep, StandstillReason};
use ichor_api::machine::Intent;
use ichor_api::{TalosMachine, names};
use ichor_lock::DisruptiveLock;
use ichor_talos::{
    CallError, MemberId, Partitions, ResetRequest, ResetStart, ResetWatch, TalosClient,
};

use super::facts::{Answer, Call, TargetFact};
use super::gather::{Gathered, Key, gather, intent_key};
use super::memory::Memory;
use super::next::{Step, next};
use super::perform::{Outcome, PassError, call_begins, deadline};
use crate::context::Context;
use crate::etcd;
use crate::failpoint;
use crate::status::{begin, finish, moving, standing, write_machine};

/// Asks the target to give up leadership; a failure is recorded and the leave follows:
/// etcd elects by itself.
pub async fn forfeit(ctx: &Context, key: &Key, memory: &mut Memory, gathered: &Gathered) {
    memory.forfeit_tried = true;
    let (Some(lock), Some(config)) = (&memory.lock, &gathered.config) else {
        return;
    };
    let within = ctx.settings.forfeit_deadline;
    let options = etcd::options(ctx.settings.etcd_deadline);
    let result = match TalosClient::connect_with(config, &gathered.machine.spec.address, options) {
        Ok(client) => client.forfeit_leadership(lock, within).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(leader) => tracing::info!(machine = key.name, ?leader, "gave up etcd's leadership"),
        Err(error) => {
            tracing::warn!(machine = key.name, error = %error, "did not give up etcd's leadership; etcd elects by itself");
        }
    }
}

/// Sends an irreversible call.
pub async fn send(
    ctx: &Context,
    key: &Key,
    memory: &mut Memory,
    gathered: &Gathered,
    call: Call,
) -> Result<Outcome, PassError> {
    let Some(mut lock) = memory.lock.take() else {
        return Ok(Outcome::Again);
    };
    let result = fenced(ctx, key, memory, gathered, &call, &mut lock).await;
    if matches!(result, Ok(Outcome::After(_))) {
        // It stands still, and that never holds the lock.
        if let Err(error) = lock.release().await {
            tracing::warn!(error = %error, "failed to release the cluster lock");
        }
    } else {
        memory.lock = Some(lock);
    }
    result
}

fn lasts(ctx: &Context, call: &Call) -> Duration {
    match call {
        Call::LeaveEtcd { .. } | Call::RemoveMember { .. } => ctx.settings.leave_deadline,
        Call::Reset { .. } => ctx.settings.reset_deadline,
    }
}

fn intent(
    ctx: &Context,
    key: &Key,
    gathered: &Gathered,
    call: &Call,
    lock: &DisruptiveLock,
) -> Intent {
    let answer: Option<&Answer> = match &gathered.snapshot.target {
        TargetFact::Answers(answer) => Some(answer),
        _ => None,
    };
    let (lease_uid, lease_transitions) = lock.fencing();
    let within = lasts(ctx, call);
    Intent {
        step: call.word().to_owned(),
        operation: key.operation().to_string(),
        instance: ctx.instance.pod_uid.clone(),
        deadline: deadline(within),
        // Rounded up: a settling time counted from it must not come early.
        deadline_seconds: i64::try_from(within.as_millis().div_ceil(1000)).unwrap_or(i64::MAX),
        node_id: answer.map(|a| a.node_id.clone()),
        boot_id: answer.map(|a| a.boot_id.clone()),
        hardware_uuid: gathered.snapshot.machine.identity.hardware_uuid.clone(),
        member_id: match call {
            Call::LeaveEtcd { member_id } | Call::RemoveMember { member_id } => {
                Some(names::format_etcd_id(*member_id))
            }
            Call::Reset { .. } => None,
        },
        lease_uid: Some(lease_uid.to_owned()),
        lease_transitions,
        wipe: match call {
            Call::Reset { wipe, .. } => wipe.clone(),
            _ => Vec::new(),
        },
        reboot: matches!(call, Call::Reset { reboot: true, .. }),
    }
}

/// Takes back the very intent that was just written, on the version of that write.
async fn withdraw(
    ctx: &Context,
    memory: &mut Memory,
    written: &TalosMachine,
    why: &str,
) -> Result<Outcome, PassError> {
    tracing::info!(
        machine = written.metadata.name,
        why,
        "not sent; the intent is taken back"
    );
    write_machine(&ctx.client, written, |status| status.intent = None).await?;
    memory.never_sent = None;
    Ok(Outcome::Again)
}

async fn fenced(
    ctx: &Context,
    key: &Key,
    memory: &mut Memory,
    gathered: &Gathered,
    call: &Call,
    lock: &mut DisruptiveLock,
) -> Result<Outcome, PassError> {
    let generation = gathered.machine.metadata.generation;
    let reset = matches!(call, Call::Reset { .. });
    let (after_intent, after_permit, after_call) = if reset {
        (
            "reset-after-intent",
            "reset-after-permit",
            "reset-after-call",
        )
    } else {
        (
            "leave-after-intent",
            "leave-after-permit",
            "leave-after-call",
        )
    };

    let intent = intent(ctx, key, gathered, call, lock);
    let this = intent_key(&intent);
    memory.never_sent = Some(this.clone());
    let mark = lock.mark_intent();
    let written = write_machine(&ctx.client, &gathered.machine, |status| {
        status.intent = Some(intent.clone());
        call_begins(status, generation, call);
    })
    .await?;
    failpoint::hit(after_intent);

    let notes = notes(key, gathered);
    let permit = match lock.permit(call.word(), &notes, mark).await {
        Ok(permit) => permit,
        Err(error) => return withdraw(ctx, memory, &written, &error.to_string()).await,
    };
    failpoint::hit(after_permit);

    // After the renewal, once more all that the step relies on. The same decision must
    // come of it, or nothing is sent.
    let mut now = match Box::pin(gather(ctx, key, memory)).await {
        Ok(now) => now,
        Err(error) => {
            drop(permit);
            withdraw(ctx, memory, &written, &error.to_string()).await?;
            return Err(error.into());
        }
    };
    let before = now.machine.clone();
    now.snapshot.lock_held = true;
    now.snapshot.intent = None;
    now.snapshot.forfeit_tried = true;
    let decision = next(&now.snapshot);
    if decision != Step::Send(call.clone()) {
        drop(permit);
        return withdraw(
            ctx,
            memory,
            &before,
            &format!("a last look gave {decision:?}"),
        )
        .await;
    }
    let Some(config) = &now.config else {
        drop(permit);
        return withdraw(ctx, memory, &before, "the credentials are gone").await;
    };
    let options = etcd::options(ctx.settings.etcd_deadline);
    let address = match call {
        Call::RemoveMember { .. } => survivor(&now, key),
        _ => Some(now.machine.spec.address.clone()),
    };
    let client = address
        .ok_or_else(|| CallError::Unreachable("no other control plane to send it through".into()))
        .and_then(|address| TalosClient::connect_with(config, &address, options));
    let client = match client {
        Ok(client) => client,
        Err(error) => {
            drop(permit);
            return withdraw(ctx, memory, &before, &error.to_string()).await;
        }
    };
    let within = lasts(ctx, call);
    tracing::info!(machine = key.name, call = call.word(), address = %client.address(), "sending");
    let outcome = match call {
        Call::LeaveEtcd { .. } => {
            memory.never_sent = None;
            client.leave_etcd(permit, within).await.map(|()| None)
        }
        Call::RemoveMember { member_id } => {
            memory.never_sent = None;
            client
                .remove_member(permit, MemberId(*member_id), within)
                .await
                .map(|()| None)
        }
        Call::Reset { wipe, reboot } => {
            let Ok(partitions) = Partitions::new(wipe.clone()) else {
                drop(permit);
                return withdraw(
                    ctx,
                    memory,
                    &before,
                    "the partitions to wipe are not usable",
                )
                .await;
            };
            let request = ResetRequest {
                partitions,
                reboot: *reboot,
            };
            // Opened before the call, so that a notice that it did not start is seen.
            let watch = ResetWatch::open(&client).await.ok();
            memory.never_sent = None;
            match client.reset(permit, &request, within).await {
                Ok(actor) => Ok(Some((actor, watch))),
                Err(error) => Err(error),
            }
        }
    };
    failpoint::hit(after_call);
    ctx.metrics.calls_sent.inc();
    match outcome {
        Ok(None) => {
            memory.accepted = Some(this);
            Ok(Outcome::Again)
        }
        Ok(Some((actor, watch))) => {
            memory.accepted = Some(this.clone());
            write_machine(&ctx.client, &before, |status| {
                finish(status, RemovalStep::Reset);
                begin(status, RemovalStep::Confirm);
                moving(
                    status,
                    generation,
                    RemovalStep::Confirm,
                    "the reset was accepted; waiting for the box to come back in maintenance mode",
                );
            })
            .await?;
            if let Some(watch) = watch {
                follow_reset(ctx, memory, watch, &actor, &this, call).await;
            }
            Ok(Outcome::Again)
        }
        Err(error) => refused(ctx, memory, &before, call, error, this).await,
    }
}

/// Learns from the box's events whether the reset started, and where it stays off
/// afterwards, how far it got.
async fn follow_reset(
    ctx: &Context,
    memory: &mut Memory,
    mut watch: ResetWatch,
    actor: &str,
    this: &str,
    call: &Call,
) {
    let within = ctx.settings.reset_deadline;
    match watch.started(Some(actor), within).await {
        ResetStart::Locked(notice) => {
            tracing::warn!(notice, "Talos did not start the reset");
            memory.locked_out = Some(this.to_owned());
        }
        ResetStart::Started if matches!(call, Call::Reset { reboot: false, .. }) => {
            use ichor_talos::events::ResetProgress;
            if watch.services_stopping(actor, ctx.settings.wipe_wait).await
                == ResetProgress::ServicesStopping
            {
                memory.seen_stopping = Some(this.to_owned());
            }
        }
        ResetStart::Started | ResetStart::NotSeen => {}
        ResetStart::Failed(why) => {
            tracing::warn!(why, "the reset failed; the box reboots un-wiped");
        }
    }
}

async fn refused(
    ctx: &Context,
    memory: &mut Memory,
    written: &TalosMachine,
    call: &Call,
    error: CallError,
    this: String,
) -> Result<Outcome, PassError> {
    let leave = !matches!(call, Call::Reset { .. });
    if leave && error.is_member_not_found() {
        // Gone already; the survivors' list decides.
        memory.accepted = Some(this);
        return Ok(Outcome::Again);
    }
    // One member removal is one proposal: etcd's refusal of it is final. A leave that
    // fails half-way answers the same code, so there the list decides.
    let nothing_done = error.nothing_done()
        || (matches!(call, Call::RemoveMember { .. })
            && matches!(error, CallError::Refused { .. }))
        || matches!(
            (call, &error),
            (Call::Reset { .. }, CallError::Refused { .. })
        );
    if matches!(error, CallError::PermitStale(_)) {
        return withdraw(ctx, memory, written, &error.to_string()).await;
    }
    if nothing_done {
        let reason = if leave {
            StandstillReason::LeaveFailed
        } else {
            StandstillReason::NodeUnreachable
        };
        let message = format!("{} was refused: {error}. It is tried again", call.word());
        write_machine(&ctx.client, written, |status| {
            status.intent = None;
            standing(
                status,
                written.metadata.generation,
                reason.as_str(),
                &message,
            );
        })
        .await?;
        return Ok(Outcome::After(ctx.settings.retry));
    }
    tracing::warn!(call = call.word(), error = %error, "the outcome is not known");
    ctx.metrics.outcomes_unknown.inc();
    Ok(Outcome::Again)
}

/// Another control plane that is a healthy voter, to act through.
fn survivor(gathered: &Gathered, key: &Key) -> Option<String> {
    let healthy: Vec<&str> = match &gathered.snapshot.etcd {
        Some(ichor_rules::etcd::LiveEtcd::Listed(members)) => members
            .all
            .iter()
            .filter(|m| m.healthy_voter())
            .filter_map(|m| m.machine.as_deref())
            .collect(),
        _ => Vec::new(),
    };
    gathered
        .machines
        .iter()
        .filter(|m| m.metadata.name.as_deref() != Some(key.name.as_str()))
        .find(|m| healthy.contains(&m.metadata.name.as_deref().unwrap_or_default()))
        .map(|m| m.spec.address.clone())
}

/// What the Lease keeps of a step, should its object vanish.
fn notes(key: &Key, gathered: &Gathered) -> BTreeMap<String, String> {
    let mut notes = BTreeMap::from([
        ("machine".to_owned(), key.name.clone()),
        ("uid".to_owned(), key.uid.clone()),
    ]);
    let identity = &gathered.snapshot.machine.identity;
    if let Some(uuid) = &identity.hardware_uuid {
        notes.insert("hardware".to_owned(), uuid.clone());
    }
    if let Some(node) = super::gather::node_name(&gathered.machine, None) {
        notes.insert("node".to_owned(), node);
    }
    notes
}
