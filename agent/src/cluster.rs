//! The TalosCluster controller: how etcd stands, who holds the lock, what was left
//! behind, and the cluster's own end.

use std::collections::BTreeSet;
use std::time::Duration;

use ichor_api::cluster::{
    AbandonedRemoval, EtcdMemberStatus, EtcdStatus, LockStatus, NotWiped, RoleCounts,
    TalosClusterStatus,
};
use ichor_api::common::set_condition;
use ichor_api::conditions::{ClusterReason, HEALTHY, READY, TRANSITIONING, TransitioningReason};
use ichor_api::{ConditionStatus, TalosCluster, TalosMachine, names};
use ichor_lock::Holder;
use ichor_lock::{LeaseRecord, LeaseStore};
use ichor_rules::count::counts_as_approved;
use ichor_rules::etcd::{Health, LiveEtcd, Members};
use ichor_rules::transition::transitioning;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::context::Context;
use crate::etcd::{self, Observation};
use crate::removal::gather::{GatherError, Gathered, ever_listed};
use crate::removal::perform::PassError;
use crate::status::write_cluster;
use crate::teardown;

/// One look at one cluster; answers when to look again.
pub async fn reconcile(ctx: &Context, seen: &TalosCluster) -> Result<Option<Duration>, PassError> {
    if let Some(wait) = ctx.look_may_wait(seen) {
        return Ok(Some(wait));
    }
    let namespace = seen.metadata.namespace.clone().unwrap_or_default();
    let name = seen.metadata.name.clone().unwrap_or_default();
    let Some(cluster) = ctx
        .reader
        .get::<TalosCluster>(&namespace, &name)
        .await
        .map_err(GatherError::from)?
    else {
        return Ok(None);
    };
    if cluster.is_being_deleted() {
        if !cluster.has_finalizer() {
            return Ok(None);
        }
        return teardown::reconcile(ctx, cluster).await;
    }
    let cluster = if cluster.has_finalizer() {
        cluster
    } else {
        add_finalizer(ctx, &cluster).await?
    };
    let machines = ctx
        .reader
        .machines_of(&namespace, &name)
        .await
        .map_err(GatherError::from)?;
    let (observation, credentials) = look(ctx, &cluster, &machines).await;
    let lease = ctx.lease(&namespace, &name).get().await.ok().flatten();
    let vanished = sweep(ctx, &cluster, &machines, lease.as_ref()).await;
    let duplicate = duplicate_of(ctx, &cluster, observation.as_ref()).await;
    let seen_boxes = not_wiped_boxes(ctx, &cluster, &machines).await;
    let written = write_cluster(&ctx.client, &cluster, |status| {
        fill(
            status,
            &Facts {
                cluster: &cluster,
                machines: &machines,
                observation: observation.as_ref(),
                credentials: credentials.as_deref(),
                lease: lease.as_ref(),
                vanished: &vanished,
                duplicate: duplicate.as_deref(),
                seen_boxes: &seen_boxes,
            },
        );
    })
    .await?;
    // What was left behind is on record now, so its lock may go.
    clear_vanished(ctx, &cluster, &machines, lease.as_ref()).await;
    let changed = |of: &TalosCluster| {
        of.status.as_ref().and_then(|s| {
            ichor_api::common::find_condition(&s.conditions, TRANSITIONING).map(|c| c.status)
        })
    };
    if changed(&written) != changed(&cluster) {
        ctx.wake_removals(&namespace, &name);
    }
    Ok(Some(ctx.settings.observe))
}

async fn add_finalizer(ctx: &Context, cluster: &TalosCluster) -> Result<TalosCluster, kube::Error> {
    let mut finalizers = cluster.metadata.finalizers.clone().unwrap_or_default();
    finalizers.push(names::CLUSTER_FINALIZER.to_owned());
    set_finalizers(ctx, cluster, &finalizers).await
}

/// Writes the finalizers, on the version that was read.
pub async fn set_finalizers(
    ctx: &Context,
    cluster: &TalosCluster,
    finalizers: &[String],
) -> Result<TalosCluster, kube::Error> {
    let api: Api<TalosCluster> = Api::namespaced(
        ctx.client.clone(),
        cluster.metadata.namespace.as_deref().unwrap_or_default(),
    );
    let patch = Patch::Merge(json!({"metadata": {
        "resourceVersion": cluster.metadata.resource_version,
        "finalizers": finalizers,
    }}));
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    api.patch(
        cluster.metadata.name.as_deref().unwrap_or_default(),
        &params,
        &patch,
    )
    .await
}

async fn look(
    ctx: &Context,
    cluster: &TalosCluster,
    machines: &[TalosMachine],
) -> (Option<Observation>, Option<String>) {
    let config = match ctx.credentials.talos(cluster).await {
        Ok(config) => config,
        Err(error) => return (None, Some(error.to_string())),
    };
    let mut observation = etcd::observe(
        &config,
        machines,
        ever_listed(Some(cluster)),
        None,
        ctx.settings.etcd_deadline,
    )
    .await;
    let uid = cluster.metadata.uid.clone().unwrap_or_default();
    ctx.etcd.note(&uid, &mut observation, ctx.clock.now()).await;
    let refused = observation.credentials_refused.clone();
    if refused.is_some() {
        ctx.credentials.forget_talos(cluster).await;
    }
    (Some(observation), refused)
}

struct Facts<'f> {
    cluster: &'f TalosCluster,
    machines: &'f [TalosMachine],
    observation: Option<&'f Observation>,
    credentials: Option<&'f str>,
    lease: Option<&'f LeaseRecord>,
    vanished: &'f [AbandonedRemoval],
    duplicate: Option<&'f str>,
    seen_boxes: &'f [(String, SeenBox)],
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

fn is_ready(machine: &TalosMachine) -> bool {
    machine
        .condition(READY)
        .is_some_and(|c| c.status == ConditionStatus::True)
}

fn fill(status: &mut TalosClusterStatus, facts: &Facts<'_>) {
    let generation = facts.cluster.metadata.generation;
    let now = Timestamp::now();
    let control_planes: Vec<_> = facts
        .machines
        .iter()
        .filter(|m| counts_as_approved(m))
        .collect();
    let workers: Vec<_> = facts
        .machines
        .iter()
        .filter(|m| !m.is_control_plane() && m.spec.approved)
        .collect();
    status.control_planes = Some(RoleCounts {
        declared: Some(facts.cluster.spec.control_plane.count),
        approved: count(control_planes.len()),
        healthy: count(control_planes.iter().filter(|m| is_ready(m)).count()),
    });
    status.workers = Some(RoleCounts {
        declared: None,
        approved: count(workers.len()),
        healthy: count(workers.iter().filter(|m| is_ready(m)).count()),
    });
    if let Some(observation) = facts.observation {
        status.etcd = Some(etcd_status(observation, status.etcd.as_ref(), now));
    }
    status.lock = facts
        .lease
        .and_then(|lease| lock_status(lease, facts.cluster));
    leftovers(status, facts, now);

    let members = facts.observation.and_then(Observation::members);
    let stable = crate::view::stable_count(facts.machines);
    let (transition, reason, message) = match transitioning(stable, members) {
        Some((reason, message)) => (ConditionStatus::True, reason, message),
        None => (
            ConditionStatus::False,
            TransitioningReason::StableControlPlaneCount,
            format!("{stable} control planes are approved"),
        ),
    };
    set_condition(
        &mut status.conditions,
        TRANSITIONING,
        transition,
        reason.as_str(),
        &message,
        generation,
        now,
    );

    let (healthy, reason, message) = health(status, facts, members);
    set_condition(
        &mut status.conditions,
        HEALTHY,
        healthy,
        reason.as_str(),
        &message,
        generation,
        now,
    );
    let (ready, reason, message) = if let Some(why) = facts.credentials {
        (
            ConditionStatus::False,
            ClusterReason::CredentialsInvalid,
            why.to_owned(),
        )
    } else if control_planes.is_empty() {
        (
            ConditionStatus::False,
            ClusterReason::NoMachines,
            "no control plane is approved yet".to_owned(),
        )
    } else if members.is_none() {
        (
            ConditionStatus::False,
            ClusterReason::EtcdUnreachable,
            status
                .etcd
                .as_ref()
                .map(|e| e.message.clone())
                .unwrap_or_default(),
        )
    } else {
        (
            ConditionStatus::True,
            ClusterReason::AllHealthy,
            "etcd answers".to_owned(),
        )
    };
    set_condition(
        &mut status.conditions,
        READY,
        ready,
        reason.as_str(),
        &message,
        generation,
        now,
    );
}

fn etcd_status(
    observation: &Observation,
    before: Option<&EtcdStatus>,
    now: Timestamp,
) -> EtcdStatus {
    match &observation.live {
        LiveEtcd::Listed(members) => EtcdStatus {
            cluster_id: None,
            members: members
                .all
                .iter()
                .map(|m| {
                    let id = names::format_etcd_id(m.listed.id);
                    let healthy = m.healthy_voter();
                    let since = before
                        .and_then(|b| b.members.iter().find(|b| b.id == id))
                        .and_then(|b| b.unhealthy_since.clone());
                    EtcdMemberStatus {
                        name: m.listed.name.clone(),
                        peer_urls: m.listed.peer_urls.clone(),
                        machine: m.machine.clone(),
                        learner: m.listed.learner,
                        started: m.listed.started(),
                        healthy,
                        unhealthy_since: if healthy {
                            None
                        } else {
                            since.or(Some(Time(now)))
                        },
                        message: match &m.health {
                            Health::Healthy => String::new(),
                            Health::Unhealthy(why) => why.clone(),
                        },
                        id,
                    }
                })
                .collect(),
            leader: members
                .leader
                .and_then(|id| members.by_id(id))
                .map(|m| m.listed.name.clone()),
            voters: count(members.voters().count()),
            healthy: count(members.voters().filter(|m| m.healthy_voter()).count()),
            learners: count(members.joining().count()),
            alarms: members
                .all
                .iter()
                .filter_map(|m| match &m.health {
                    Health::Unhealthy(why) if why.starts_with("alarm") => {
                        Some(format!("{}: {why}", m.listed.name))
                    }
                    _ => None,
                })
                .collect(),
            message: String::new(),
            observed_at: Some(Time(now)),
        },
        LiveEtcd::NoList {
            endpoints,
            no_leader_for_long,
        } => {
            let mut status = before.cloned().unwrap_or_default();
            for member in &mut status.members {
                member.healthy = false;
                member.unhealthy_since.get_or_insert(Time(now));
            }
            status.healthy = 0;
            status.leader = None;
            status.message = format!(
                "{}no member list with a leader could be had: {}",
                if *no_leader_for_long {
                    "quorum is lost; "
                } else {
                    ""
                },
                endpoints
                    .iter()
                    .map(|(endpoint, said)| format!("{endpoint}: {said}"))
                    .collect::<Vec<_>>()
                    .join("; ")
            );
            status.observed_at = Some(Time(now));
            status
        }
    }
}

fn lock_status(lease: &LeaseRecord, cluster: &TalosCluster) -> Option<LockStatus> {
    let held = lease.held_by()?;
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let time = |text: &Option<String>| text.as_deref().and_then(|t| t.parse::<Timestamp>().ok());
    let (holder, operation) = match Holder::parse(held, namespace) {
        Some(holder) => (
            holder.instance,
            format!(
                "{} of {} {}",
                holder.operation.purpose, holder.operation.kind, holder.operation.name
            ),
        ),
        None => (String::new(), held.to_owned()),
    };
    Some(LockStatus {
        holder,
        operation,
        since: time(&lease.acquire_time).map(Time),
        until: time(&lease.renew_time)
            .zip(lease.duration)
            .and_then(|(renewed, lasts)| {
                renewed
                    .checked_add(jiff::SignedDuration::try_from(lasts).ok()?)
                    .ok()
            })
            .map(Time),
    })
}

/// Keeps `notWiped` and `abandoned`: new entries in, done ones out.
fn leftovers(status: &mut TalosClusterStatus, facts: &Facts<'_>, now: Timestamp) {
    let forgotten = facts.cluster.annotation(names::FORGET);
    let adopted: BTreeSet<String> = facts
        .machines
        .iter()
        .filter(|m| !m.is_being_deleted())
        .filter_map(|m| m.identity().hardware_uuid)
        .collect();
    for vanished in facts.vanished {
        if !status.abandoned.iter().any(|a| a.uid == vanished.uid) {
            status.abandoned.push(vanished.clone());
        }
    }
    let in_maintenance = |uuid: &str| {
        facts
            .seen_boxes
            .iter()
            .any(|(u, s)| u == uuid && *s == SeenBox::Maintenance)
    };
    let gone =
        |uuid: &str| forgotten == Some(uuid) || adopted.contains(uuid) || in_maintenance(uuid);
    status.abandoned.retain(|a| {
        let known = a.hardware_uuid.as_deref().is_some_and(gone);
        !known && forgotten != Some(a.uid.as_str())
    });
    status.not_wiped.retain(|n| !gone(&n.hardware_uuid));
    for entry in &mut status.not_wiped {
        let answers = facts
            .seen_boxes
            .iter()
            .any(|(u, s)| *u == entry.hardware_uuid && *s == SeenBox::Configured);
        if answers && entry.seen_again_at.is_none() {
            entry.seen_again_at = Some(Time(now));
        } else if !answers {
            entry.seen_again_at = None;
        }
    }
}

fn health(
    status: &TalosClusterStatus,
    facts: &Facts<'_>,
    members: Option<&Members>,
) -> (ConditionStatus, ClusterReason, String) {
    let bad = |reason, message: String| (ConditionStatus::False, reason, message);
    if let Some(other) = facts.duplicate {
        return bad(
            ClusterReason::DuplicateCluster,
            format!(
                "{other} reports the same etcd members and is older: nothing disruptive runs under this object. Delete one of the two (deletionPolicy Orphan leaves the machines as they are)"
            ),
        );
    }
    if let Some(abandoned) = status.abandoned.first() {
        return bad(ClusterReason::AbandonedRemoval, abandoned.message.clone());
    }
    if let Some(again) = status.not_wiped.iter().find(|n| n.seen_again_at.is_some()) {
        return bad(
            ClusterReason::NotWipedSeenAgain,
            format!(
                "machine {} was let go without being wiped and answers again at {}: reset it by hand (talosctl reset), or let a TalosMachine adopt it",
                again.machine, again.address
            ),
        );
    }
    let Some(members) = members else {
        if facts.credentials.is_some() || facts.observation.is_none() {
            return (
                ConditionStatus::Unknown,
                ClusterReason::CredentialsInvalid,
                facts.credentials.unwrap_or("etcd was not asked").to_owned(),
            );
        }
        let lost = matches!(
            facts.observation.map(|o| &o.live),
            Some(LiveEtcd::NoList {
                no_leader_for_long: true,
                ..
            })
        );
        return bad(
            if lost {
                ClusterReason::QuorumLost
            } else {
                ClusterReason::EtcdUnreachable
            },
            status
                .etcd
                .as_ref()
                .map(|e| e.message.clone())
                .unwrap_or_default(),
        );
    };
    let unknown: Vec<String> = members
        .all
        .iter()
        .filter(|m| m.machine.is_none())
        .map(|m| {
            let hint = facts.machines.iter().find(|machine| {
                !machine.spec.approved
                    && m.listed
                        .peer_urls
                        .iter()
                        .any(|url| url.contains(host(&machine.spec.address)))
            });
            match hint.and_then(|m| m.metadata.name.as_deref()) {
                Some(name) => format!(
                    "{} at the address of TalosMachine {name}, which is not approved",
                    m.listed
                ),
                None => format!("{} ({})", m.listed, m.listed.peer_urls.join(" ")),
            }
        })
        .chain(
            facts
                .observation
                .into_iter()
                .flat_map(|o| o.duplicates.clone()),
        )
        .collect();
    if !unknown.is_empty() {
        return bad(
            ClusterReason::UnknownMember,
            format!(
                "etcd lists members that belong to no machine, or to two: {}. Approve its machine, remove the member (talosctl etcd remove-member), or assign it with annotation {} on its machine; no healthy control plane is removed until then",
                unknown.join("; "),
                names::ETCD_MEMBER_ID
            ),
        );
    }
    let unhealthy: Vec<String> = members
        .voters()
        .filter_map(|m| match &m.health {
            Health::Unhealthy(why) => Some(format!("{}: {why}", m.listed)),
            Health::Healthy => None,
        })
        .collect();
    if !unhealthy.is_empty() {
        return bad(ClusterReason::EtcdUnhealthy, unhealthy.join("; "));
    }
    (
        ConditionStatus::True,
        ClusterReason::AllHealthy,
        format!("{} voters, all healthy", members.voters().count()),
    )
}

fn host(address: &str) -> &str {
    if address.matches(':').count() == 1 {
        address.split(':').next().unwrap_or(address)
    } else {
        address
            .trim_start_matches('[')
            .split(']')
            .next()
            .unwrap_or(address)
    }
}

/// Two TalosClusters of one etcd: the younger is the duplicate. Talos reports no etcd
/// cluster ID; member IDs are as unique, so a shared one tells the same.
async fn duplicate_of(
    ctx: &Context,
    cluster: &TalosCluster,
    observation: Option<&Observation>,
) -> Option<String> {
    let members = observation?.members()?;
    let own: BTreeSet<String> = members
        .all
        .iter()
        .map(|m| names::format_etcd_id(m.listed.id))
        .collect();
    if own.is_empty() {
        return None;
    }
    let age = |c: &TalosCluster| {
        (
            c.metadata.creation_timestamp.as_ref().map(|t| t.0),
            c.metadata.uid.clone(),
        )
    };
    let all = ctx.reader.list_all::<TalosCluster>().await.ok()?;
    all.iter()
        .filter(|other| other.metadata.uid != cluster.metadata.uid && age(other) < age(cluster))
        .find(|other| {
            other
                .status
                .as_ref()
                .and_then(|s| s.etcd.as_ref())
                .is_some_and(|e| e.members.iter().any(|m| own.contains(&m.id)))
        })
        .map(|other| {
            format!(
                "TalosCluster {}/{}",
                other.metadata.namespace.as_deref().unwrap_or_default(),
                other.metadata.name.as_deref().unwrap_or_default()
            )
        })
}

/// How a box that was let go is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeenBox {
    Maintenance,
    Configured,
}

/// Looks for the boxes of `notWiped` and `abandoned` at their old addresses.
async fn not_wiped_boxes(
    ctx: &Context,
    cluster: &TalosCluster,
    machines: &[TalosMachine],
) -> Vec<(String, SeenBox)> {
    let Some(status) = &cluster.status else {
        return Vec::new();
    };
    let mut seen = Vec::new();
    let config = ctx.credentials.talos(cluster).await.ok();
    for entry in &status.not_wiped {
        if machines.iter().any(|m| m.spec.address == entry.address) {
            continue;
        }
        let deadline = ctx.settings.etcd_deadline;
        if let Ok(found) = ichor_talos::maintenance::probe_within(&entry.address, deadline).await {
            if found.hardware_uuid.as_deref() == Some(entry.hardware_uuid.as_str()) {
                seen.push((entry.hardware_uuid.clone(), SeenBox::Maintenance));
            }
            continue;
        }
        let Some(config) = &config else { continue };
        if let Ok(client) =
            ichor_talos::TalosClient::connect_with(config, &entry.address, etcd::options(deadline))
            && let Ok(Some(uuid)) = client.hardware_uuid().await
            && uuid == entry.hardware_uuid
        {
            seen.push((uuid, SeenBox::Configured));
        }
    }
    seen
}

/// The removal that `lease` is held for, where its machine is gone.
fn vanished_holder(
    cluster: &TalosCluster,
    machines: &[TalosMachine],
    lease: &LeaseRecord,
) -> Option<Holder> {
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let holder = Holder::parse(lease.held_by()?, namespace)?;
    let gone = holder.operation.kind == "TalosMachine"
        && !machines
            .iter()
            .any(|m| m.metadata.uid.as_deref() == Some(holder.operation.uid.as_str()));
    gone.then_some(holder)
}

/// Removals whose object vanished in the middle: somebody stripped the finalizer.
async fn sweep(
    ctx: &Context,
    cluster: &TalosCluster,
    machines: &[TalosMachine],
    lease: Option<&LeaseRecord>,
) -> Vec<AbandonedRemoval> {
    let Some(lease) = lease else {
        return Vec::new();
    };
    let Some(holder) = vanished_holder(cluster, machines, lease) else {
        return Vec::new();
    };
    let step = lease.step_of(&holder.operation);
    let detail = |key: &str| {
        step.as_ref()
            .and_then(|(_, details)| details.get(key))
            .map(|v| (*v).to_owned())
    };
    let name = holder.operation.name.clone();
    let uid = holder.operation.uid.clone();
    let node = detail("node").unwrap_or_else(|| name.clone());
    let at = step.as_ref().map_or("Drain", |(step, _)| *step).to_owned();
    let (cordoned, found_uuid) = cordoned_by(ctx, cluster, &node, &uid).await;
    let hardware_uuid = detail("hardware").or(found_uuid);
    let message = format!(
        "the removal of {name} was broken off at {at}: its finalizer was taken off by force. {}. \
         See whether etcd still lists it and whether it was wiped; when that is done: kubectl annotate tcl {} {}={} --overwrite",
        match &cordoned {
            Some(node) => format!("Its Node {node} is still cordoned"),
            None => "Its Node is not cordoned by it".to_owned(),
        },
        cluster.metadata.name.as_deref().unwrap_or_default(),
        names::FORGET,
        // A box that never said which it is goes by its object's UID.
        hardware_uuid.as_ref().unwrap_or(&uid),
    );
    vec![AbandonedRemoval {
        machine: name,
        uid,
        node: cordoned,
        hardware_uuid,
        step: at,
        since: Some(Time(Timestamp::now())),
        message,
    }]
}

/// The Node that carries the operation's cordon, whatever its name, and the hardware UUID
/// of that one, else of the Node `name`.
async fn cordoned_by(
    ctx: &Context,
    cluster: &TalosCluster,
    name: &str,
    operation_uid: &str,
) -> (Option<String>, Option<String>) {
    let Ok(client) = ctx.credentials.kubernetes(cluster).await else {
        return (None, None);
    };
    let reader = ichor_rules::DirectReader::new(client);
    let nodes: Vec<Node> = reader.list_all().await.unwrap_or_default();
    let is_cordoned = |node: &&Node| {
        let marks = node.metadata.annotations.as_ref();
        marks
            .and_then(|a| a.get(names::CORDONED_BY))
            .is_some_and(|by| by == operation_uid)
    };
    let cordoned = nodes.iter().find(is_cordoned);
    let named = || {
        nodes
            .iter()
            .find(|n| n.metadata.name.as_deref() == Some(name))
    };
    let uuid = cordoned
        .or_else(named)
        .and_then(|node| node.status.as_ref()?.node_info.as_ref())
        .map(|info| info.system_uuid.to_lowercase())
        .filter(|uuid| !uuid.is_empty());
    (cordoned.and_then(|node| node.metadata.name.clone()), uuid)
}

async fn clear_vanished(
    ctx: &Context,
    cluster: &TalosCluster,
    machines: &[TalosMachine],
    lease: Option<&LeaseRecord>,
) {
    let Some(holder) = lease.and_then(|lease| vanished_holder(cluster, machines, lease)) else {
        return;
    };
    let memory = ctx.removal(&holder.operation.uid).await;
    if let Ok(mut memory) = memory.try_lock()
        && let Some(lock) = memory.lock.take()
    {
        let _ = lock.release().await;
    }
    ctx.forget_removal(&holder.operation.uid).await;
    let Some(seen) = lease else { return };
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let store = ctx.lease(namespace, name);
    let view = crate::view::ClusterView::new(ctx, namespace, name);
    match ichor_lock::clear_abandoned(&ctx.locks, &store, &view, seen, &holder.operation).await {
        Ok(()) => ctx.wake_removals(namespace, name),
        Err(error) => {
            tracing::warn!(cluster = name, error = %error, "failed to clear the lock of a removal whose machine is gone");
        }
    }
}

/// The lock was taken over from a removal whose machine is gone: what it left is put on
/// record before the first permit writes over it.
pub async fn record_predecessor(
    ctx: &Context,
    cluster: &TalosCluster,
    machines: &[TalosMachine],
    lease: &LeaseRecord,
) -> Result<(), kube::Error> {
    let vanished = sweep(ctx, cluster, machines, Some(lease)).await;
    if vanished.is_empty() {
        return Ok(());
    }
    write_cluster(&ctx.client, cluster, |status| {
        for entry in vanished {
            if !status.abandoned.iter().any(|a| a.uid == entry.uid) {
                status.abandoned.push(entry);
            }
        }
    })
    .await?;
    Ok(())
}

/// Notes in the cluster's status that a machine is let go without being wiped.
pub async fn record_not_wiped(ctx: &Context, gathered: &Gathered) -> Result<(), PassError> {
    let Some(cluster) = &gathered.cluster else {
        return Ok(());
    };
    let machine = &gathered.snapshot.machine;
    let Some(uuid) = machine.identity.hardware_uuid.clone() else {
        return Ok(());
    };
    let entry = NotWiped {
        machine: machine.name.clone(),
        hardware_uuid: uuid.clone(),
        address: gathered.machine.spec.address.clone(),
        since: Some(Time(Timestamp::now())),
        seen_again_at: None,
    };
    write_cluster(&ctx.client, cluster, |status| {
        if !status.not_wiped.iter().any(|n| n.hardware_uuid == uuid) {
            status.not_wiped.push(entry);
        }
    })
    .await?;
    Ok(())
}
