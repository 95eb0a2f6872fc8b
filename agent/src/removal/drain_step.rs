//! The removal's third step: one drain pass, what it means, and the wait for volumes.

use std::time::Duration;

use futures::FutureExt as _;
use ichor_api::conditions::{REMOVAL, RemovalStep, StandstillReason};
use ichor_api::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::facts::{DrainFact, NodeFact};
use super::gather::{Gathered, Key, drain_key, node_name};
use super::memory::Memory;
use super::perform::{Outcome, PassError};
use crate::context::Context;
use crate::drain::{self, AgentPod, DrainLimits, DrainOutcome, DrainPass, DrainRequest};
use crate::failpoint;
use crate::status::{begin, finish, moving, standing, write_machine};

/// Makes drain passes for as long as pods go, and records where the drain stands.
pub async fn drain(
    ctx: &Context,
    key: &Key,
    memory: &mut Memory,
    gathered: &Gathered,
) -> Result<Outcome, PassError> {
    let Some(client) = &gathered.kubernetes else {
        return blocked(
            ctx,
            memory,
            gathered,
            None,
            "the kubeconfig of the cluster whose Node this is cannot be used",
            Duration::ZERO,
        )
        .await;
    };
    let name = match &gathered.snapshot.node {
        NodeFact::Present { name, .. } => name.clone(),
        // The decision has settled that a missing Node is a drained one here.
        _ => match node_name(&gathered.machine, None) {
            Some(name) => name,
            None => return done(ctx, memory, gathered, None).await,
        },
    };
    let began = *memory.drain_started.get_or_insert_with(|| ctx.clock.now());
    let options = gathered
        .cluster
        .as_ref()
        .map(|c| c.drain_options(&gathered.machine))
        .unwrap_or_default();
    let mut previous = gathered
        .machine
        .status
        .as_ref()
        .and_then(|s| s.drain.clone());
    let mut machine = gathered.machine.clone();
    // While pods go, pass follows pass without another look at everything else: the
    // checks are made again before the leave anyway.
    loop {
        let Some(lock) = &memory.lock else {
            return Ok(Outcome::Again);
        };
        let request = DrainRequest {
            node: &name,
            operation_uid: &key.uid,
            options: &options,
            dead: gathered.snapshot.dead,
            agent_namespace: own_namespace(ctx, gathered),
            previous: previous.as_ref(),
            elapsed: ctx.clock.now().saturating_sub(began),
            now: Timestamp::now(),
            limits: limits(ctx),
        };
        let pass = drain::pass(lock, client, request).boxed().await?;
        failpoint::hit("after-cordon");
        match &pass.outcome {
            DrainOutcome::Drained | DrainOutcome::NodeMissing => {
                memory.drain = DrainFact::Open;
                return volumes(ctx, memory, gathered, &machine, &name, client, Some(pass)).await;
            }
            DrainOutcome::Progressing => {
                memory.drain = DrainFact::Open;
                let generation = machine.metadata.generation;
                machine = write_machine(&ctx.client, &machine, |status| {
                    finish(status, RemovalStep::Check);
                    begin(status, RemovalStep::Drain);
                    status.drain = Some(pass.status.clone());
                    moving(status, generation, RemovalStep::Drain, &progress(&pass));
                })
                .await?;
                previous = Some(pass.status.clone());
                if ctx.stopping.is_cancelled()
                    || memory
                        .lock
                        .as_ref()
                        .is_some_and(ichor_lock::DisruptiveLock::is_lost)
                {
                    return Ok(Outcome::Again);
                }
                drain::settle(client, &name, &pass, &limits(ctx))
                    .boxed()
                    .await;
                if ctx.clock.now().saturating_sub(began) > ctx.settings.retry {
                    // Long drains look at everything again now and then: a person may
                    // have taken the removal back.
                    if taken_back(ctx, key).await {
                        return Ok(Outcome::Again);
                    }
                }
            }
            DrainOutcome::Blocked { message } | DrainOutcome::Refused { message } => {
                let message = message.clone();
                memory.drain = DrainFact::Blocked {
                    message: message.clone(),
                };
                return blocked(ctx, memory, gathered, Some(&pass), &message, pass.again).await;
            }
            DrainOutcome::TimedOut { message } => {
                memory.drain = DrainFact::TimedOut {
                    message: message.clone(),
                };
                memory.drain_key = Some(drain_key(
                    &machine,
                    gathered.cluster.as_ref(),
                    &pass.status.pods,
                ));
                return blocked(ctx, memory, gathered, Some(&pass), message, pass.again).await;
            }
            DrainOutcome::OnlyAgentPods { pods } => {
                return own_pods(ctx, memory, gathered, &name, pods, &pass).await;
            }
        }
    }
}

/// Where the agent's own pods are, on this Node's cluster: nowhere on another one.
fn own_namespace<'c>(ctx: &'c Context, gathered: &Gathered) -> &'c str {
    let elsewhere = gathered.cluster.as_ref().is_some_and(|c| {
        c.spec
            .kubernetes
            .as_ref()
            .is_some_and(|k| k.credentials_secret_ref.is_some())
    });
    if elsewhere {
        ""
    } else {
        &ctx.instance.pod_namespace
    }
}

fn limits(ctx: &Context) -> DrainLimits {
    DrainLimits {
        retry: ctx.settings.drain_retry,
        ..DrainLimits::default()
    }
}

async fn taken_back(ctx: &Context, key: &Key) -> bool {
    let read = ctx
        .reader
        .get::<ichor_api::TalosMachine>(&key.namespace, &key.name)
        .await;
    let Ok(Some(machine)) = read else {
        return false;
    };
    machine.consents(names::CANCEL_REMOVAL) || !machine.consents(names::ALLOW_DELETE)
}

fn progress(pass: &DrainPass) -> String {
    format!(
        "{} of {} pods are gone, {} left",
        pass.status.evicted, pass.status.total, pass.status.remaining
    )
}

/// One Event for an episode of blocking: it is named after the moment the removal came to
/// stand, so that neither the next pass nor a restarted agent tells it again.
async fn announce(
    ctx: &Context,
    memory: &mut Memory,
    machine: &ichor_api::TalosMachine,
    pass: &DrainPass,
) {
    let Some(since) = machine.condition(REMOVAL).map(|c| c.last_transition_time.0) else {
        return;
    };
    let episode = since.to_string();
    if memory.announced.as_ref() == Some(&episode) {
        return;
    }
    let node = node_name(machine, None).unwrap_or_default();
    let note = drain::blocked_note(&node, &pass.status);
    let told = drain::announce_blocked(
        &ctx.client,
        machine,
        &episode,
        &note,
        &ctx.instance.pod_name,
        Timestamp::now(),
        &limits(ctx),
    )
    .boxed()
    .await;
    if let Err(error) = told {
        tracing::warn!(error = %error, "failed to record an Event");
    }
    memory.announced = Some(episode);
}

async fn blocked(
    ctx: &Context,
    memory: &mut Memory,
    gathered: &Gathered,
    pass: Option<&DrainPass>,
    message: &str,
    again: Duration,
) -> Result<Outcome, PassError> {
    let generation = gathered.machine.metadata.generation;
    let drain = pass.map(|p| p.status.clone());
    // On what stands there now: an earlier pass of this call may have written.
    let current = ctx
        .reader
        .get::<ichor_api::TalosMachine>(
            gathered
                .machine
                .metadata
                .namespace
                .as_deref()
                .unwrap_or_default(),
            gathered
                .machine
                .metadata
                .name
                .as_deref()
                .unwrap_or_default(),
        )
        .await
        .map_err(super::gather::GatherError::from)?
        .ok_or(super::gather::GatherError::Gone)?;
    let written = write_machine(&ctx.client, &current, |status| {
        finish(status, RemovalStep::Check);
        begin(status, RemovalStep::Drain);
        if drain.is_some() {
            status.drain = drain;
        }
        standing(
            status,
            generation,
            StandstillReason::DrainFailed.as_str(),
            message,
        );
    })
    .await?;
    if let Some(pass) = pass
        && matches!(memory.drain, DrainFact::Blocked { .. })
    {
        announce(ctx, memory, &written, pass).await;
    }
    ctx.metrics.standing(StandstillReason::DrainFailed.as_str());
    if memory.lock.is_some()
        && gathered.snapshot.urgent_waiter.is_some()
        && matches!(memory.drain, DrainFact::Blocked { .. })
    {
        // The next pass yields.
        return Ok(Outcome::Again);
    }
    Ok(Outcome::After(if again.is_zero() {
        ctx.settings.drain_retry
    } else {
        again
    }))
}

async fn volumes(
    ctx: &Context,
    memory: &mut Memory,
    gathered: &Gathered,
    machine: &ichor_api::TalosMachine,
    name: &str,
    client: &kube::Client,
    pass: Option<DrainPass>,
) -> Result<Outcome, PassError> {
    let since = *memory.volumes_since.get_or_insert_with(|| ctx.clock.now());
    let attached = if gathered.snapshot.dead {
        Vec::new()
    } else {
        let options = gathered
            .cluster
            .as_ref()
            .map(|c| c.drain_options(machine))
            .unwrap_or_default();
        drain::volume_attachments(client, name, &options, &limits(ctx)).await?
    };
    let waited = ctx.clock.now().saturating_sub(since);
    if !attached.is_empty() && waited < ctx.settings.volume_wait {
        let generation = machine.metadata.generation;
        write_machine(&ctx.client, machine, |status| {
            begin(status, RemovalStep::Drain);
            if let Some(pass) = &pass {
                status.drain = Some(pass.status.clone());
            }
            moving(
                status,
                generation,
                RemovalStep::Drain,
                &format!(
                    "no pods are left; waiting for volumes to be detached: {}",
                    attached.join(", ")
                ),
            );
        })
        .await?;
        // Ever more rarely: each look is two reads, and detaching takes its time.
        let pause = (waited / 2).clamp(Duration::from_secs(1), Duration::from_secs(10));
        tokio::time::sleep(pause.min(ctx.settings.volume_wait)).await;
        return Ok(Outcome::Again);
    }
    if !attached.is_empty() {
        tracing::warn!(
            node = name,
            volumes = attached.join(", "),
            "volumes are still attached after the wait; going on"
        );
    }
    done_on(ctx, memory, machine, pass).await
}

async fn done(
    ctx: &Context,
    memory: &mut Memory,
    gathered: &Gathered,
    pass: Option<DrainPass>,
) -> Result<Outcome, PassError> {
    done_on(ctx, memory, &gathered.machine, pass).await
}

async fn done_on(
    ctx: &Context,
    memory: &mut Memory,
    machine: &ichor_api::TalosMachine,
    pass: Option<DrainPass>,
) -> Result<Outcome, PassError> {
    let generation = machine.metadata.generation;
    let next = if machine.is_control_plane() {
        RemovalStep::LeaveEtcd
    } else {
        RemovalStep::Reset
    };
    write_machine(&ctx.client, machine, |status| {
        finish(status, RemovalStep::Check);
        finish(status, RemovalStep::Drain);
        begin(status, next);
        if let Some(pass) = pass {
            status.drain = Some(pass.status);
        }
        moving(status, generation, next, "the Node is drained");
    })
    .await?;
    memory.volumes_since = None;
    failpoint::hit("after-drain");
    Ok(Outcome::Again)
}

/// Only the agent's own pods are left: the one on this Node hands over, and the replica
/// that took over deletes it (spec section 5, step 3).
async fn own_pods(
    ctx: &Context,
    memory: &mut Memory,
    gathered: &Gathered,
    node: &str,
    pods: &[AgentPod],
    pass: &DrainPass,
) -> Result<Outcome, PassError> {
    let own = pods.iter().find(|p| p.uid == ctx.instance.pod_uid);
    if own.is_none() {
        let (Some(client), Some(lock)) = (&gathered.kubernetes, &memory.lock) else {
            return Ok(Outcome::After(ctx.settings.retry));
        };
        for pod in pods {
            drain::delete_agent_pod(lock, client, pod, &limits(ctx)).await?;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        return Ok(Outcome::Again);
    }
    let others = ctx
        .reader
        .list::<Pod>(&ctx.instance.pod_namespace, None)
        .await
        .map_err(super::gather::GatherError::from)?;
    let ready_elsewhere = others.iter().any(|p| {
        let is_agent = p
            .metadata
            .labels
            .as_ref()
            .and_then(|l| l.get("app.kubernetes.io/name"))
            .is_some_and(|n| n == names::AGENT_APP);
        let elsewhere = p
            .spec
            .as_ref()
            .and_then(|s| s.node_name.as_deref())
            .is_some_and(|n| n != node);
        let ready = p
            .status
            .as_ref()
            .and_then(|s| s.conditions.as_ref())
            .is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
        is_agent && elsewhere && ready && p.metadata.deletion_timestamp.is_none()
    });
    if ready_elsewhere {
        tracing::info!(
            node,
            "the agent runs on the Node that is drained: handing over to another replica"
        );
        ctx.step_down.notify_one();
        memory.drain = DrainFact::Open;
        return Ok(Outcome::After(ctx.settings.retry));
    }
    let message = format!(
        "the agent itself runs on Node {node} (pod {}), and no other replica is Ready on another Node to take over. Scale the Deployment {} in {} up, or let a replica run elsewhere",
        ctx.instance.pod_name,
        names::AGENT_APP,
        ctx.instance.pod_namespace
    );
    memory.drain = DrainFact::Blocked {
        message: message.clone(),
    };
    blocked(
        ctx,
        memory,
        gathered,
        Some(pass),
        &message,
        ctx.settings.drain_retry,
    )
    .await
}
