//! Reads everything that one pass decides by: the machines and the cluster from the API
//! server, the target from its own Talos API, etcd through the others.

use std::sync::Arc;
use std::time::Duration;

use ichor_api::conditions::{REMOVAL, RemovalStep, StandstillReason};
use ichor_api::machine::DrainPodStatus;
use ichor_api::{ConditionStatus, TalosCluster, TalosMachine, names};
use ichor_rules::Check;
use ichor_rules::count::{Basis, count};
use ichor_rules::deletion::{self, TargetHealth};
use ichor_rules::etcd::{LiveEtcd, Target, live_etcd, member_owners};
use ichor_rules::reader::{FreshMachines, ReadError};
use ichor_rules::{count::leave_confirmed, workers};
use ichor_talos::config::TalosConfig;
use ichor_talos::{CallError, TalosClient, maintenance};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;

use super::facts::{
    Answer, Consent, DrainFact, Governing, IntentCall, IntentFacts, Limits, MachineFacts, NodeFact,
    Snapshot, TargetFact, Waits,
};
use super::memory::{Lasting, Memory};
use crate::context::Context;
use crate::credentials::CredentialsError;
use crate::etcd::{self, Observation, member_id_of};

/// A pass that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// The machine's object is gone.
    #[error("the TalosMachine is gone")]
    Gone,
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// One pass' facts, and what the performer needs to act on them.
pub struct Gathered {
    /// What is decided by.
    pub snapshot: Snapshot,
    /// The machine as just read.
    pub machine: TalosMachine,
    /// Its cluster as just read.
    pub cluster: Option<TalosCluster>,
    /// All machines of the cluster, as just read.
    pub machines: FreshMachines,
    /// The Talos credentials, where they can be used.
    pub config: Option<Arc<TalosConfig>>,
    /// The cluster whose Node this machine is.
    pub kubernetes: Option<Client>,
}

/// Which machine is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Name of its cluster; immutable.
    pub cluster: String,
}

impl Key {
    /// The key of `machine`.
    pub fn of(machine: &TalosMachine) -> Self {
        Self {
            namespace: machine.metadata.namespace.clone().unwrap_or_default(),
            name: machine.metadata.name.clone().unwrap_or_default(),
            uid: machine.metadata.uid.clone().unwrap_or_default(),
            cluster: machine.spec.cluster_ref.name.clone(),
        }
    }

    /// The operation that the machine's removal is, in the lock's words.
    pub fn operation(&self) -> ichor_lock::Operation {
        ichor_lock::Operation {
            kind: "TalosMachine".into(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            purpose: "removal".into(),
        }
    }
}

/// Reads everything for one pass.
pub async fn gather(
    ctx: &Context,
    key: &Key,
    memory: &mut Memory,
) -> Result<Gathered, GatherError> {
    let machines = ctx.reader.machines_of(&key.namespace, &key.cluster).await?;
    let machine = machines
        .iter()
        .find(|m| m.metadata.uid.as_deref() == Some(key.uid.as_str()))
        .cloned()
        .ok_or(GatherError::Gone)?;
    let cluster = ctx
        .reader
        .get::<TalosCluster>(&key.namespace, &key.cluster)
        .await?;
    let facts = machine_facts(&machine);
    if facts.hold.is_some()
        && facts.hold == facts.consent.continue_token
        && memory.continued != facts.hold
    {
        // A person lets it go on: the hour begins anew.
        memory.continued.clone_from(&facts.hold);
        memory
            .lasting
            .note(&Lasting::Refused, false, ctx.clock.now());
    }
    let governing = governing(ctx, key, &machine, cluster.as_ref(), &machines, &facts).await?;
    let now = ctx.clock.now();

    let (config, credentials_error) = match &cluster {
        Some(cluster) => match ctx.credentials.talos(cluster).await {
            Ok(config) => (Some(config), None),
            Err(error) => (None, Some(error)),
        },
        None => (None, None),
    };
    let kubernetes = match &cluster {
        Some(cluster) => ctx.credentials.kubernetes(cluster).await,
        None => Ok(ctx.client.clone()),
    };

    let talked_to = facts.identity.hardware_uuid.is_some();
    let after_drain =
        facts.did(RemovalStep::Drain) || matches!(governing, Governing::TeardownReset { .. });
    let asks_etcd = !matches!(
        governing,
        Governing::NamespaceTerminating | Governing::Missing | Governing::Replaced { .. }
    ) && (facts.is_control_plane() || after_drain)
        // A cancellation asks nobody, unless it comes too late.
        && (!facts.consent.cancel || irreversible(&machine, &facts));
    let (target, observation) = tokio::join!(
        async {
            if talked_to {
                look(
                    ctx,
                    &machine,
                    config.as_deref(),
                    credentials_error.as_ref(),
                    after_drain,
                )
                .await
            } else {
                TargetFact::Silent {
                    why: "it has never answered, so it is not asked".into(),
                }
            }
        },
        async {
            match (&config, asks_etcd) {
                (Some(config), true) => Some(
                    etcd::observe(
                        config,
                        &machines,
                        ever_listed(cluster.as_ref()),
                        Some(&key.name),
                        ctx.settings.etcd_deadline,
                    )
                    .await,
                ),
                _ => None,
            }
        }
    );
    let now_after = ctx.clock.now();
    let mut observation = observation;
    let cluster_uid = cluster
        .as_ref()
        .and_then(|c| c.metadata.uid.clone())
        .unwrap_or_default();
    if let Some(observation) = &mut observation {
        ctx.etcd.note(&cluster_uid, observation, now_after).await;
        #[cfg(feature = "lying-etcd-rule")]
        super::lie::about(observation);
    }
    if matches!(&target, TargetFact::Credentials { .. })
        && let Some(cluster) = &cluster
    {
        // A renewed certificate may be in the Secret already.
        ctx.credentials.forget_talos(cluster).await;
    }
    let target = complete(target, observation.as_ref());

    let node = match &kubernetes {
        Ok(client) => node_fact(client, &machine, &facts, &target).await,
        Err(error) => NodeFact::Unknown {
            why: error.to_string(),
        },
    };
    let node_down = match &node {
        NodeFact::Present { ready, .. } => !ready,
        NodeFact::Missing { .. } => true,
        NodeFact::NotAsked | NodeFact::Unknown { .. } => false,
    };
    let silent = matches!(target, TargetFact::Silent { .. }) && talked_to;
    let node_down_for = memory
        .lasting
        .note(&Lasting::NodeDown, node_down, now_after);
    let silent_for = memory
        .lasting
        .note(&Lasting::TargetSilent, silent, now_after);
    let dead_after = ctx.settings.dead_after;
    let dead = node_down_for.is_some_and(|d| d >= dead_after)
        && silent_for.is_some_and(|d| d >= dead_after);

    let intent = intent_facts(ctx, key, &machine, memory, now).await?;
    let resetting = intent.as_ref().is_some_and(|i| i.call == IntentCall::Reset);
    let still_running = memory.lasting.note(
        &Lasting::StillRunning,
        resetting && matches!(&target, TargetFact::Answers(a) if a.running),
        now_after,
    );
    let silent_since_reset = memory.lasting.note(
        &Lasting::SilentSinceReset,
        resetting
            && !matches!(
                &target,
                TargetFact::Answers(_) | TargetFact::Maintenance { .. }
            ),
        now_after,
    );

    let checks = match (&governing, &cluster) {
        (Governing::Cluster, Some(cluster)) => {
            checks(
                ctx,
                key,
                &machine,
                &machines,
                cluster,
                &cluster_uid,
                observation.as_ref(),
            )
            .await
        }
        _ => Vec::new(),
    };
    let refused = memory.lasting.note(
        &Lasting::Refused,
        checks.iter().any(|c| !c.passes()),
        now_after,
    );
    if matches!(memory.drain, DrainFact::TimedOut { .. })
        && drain_moved(kubernetes.as_ref().ok(), &machine, cluster.as_ref(), memory).await
    {
        memory.drain = DrainFact::Open;
        memory.drain_started = None;
    }
    let urgent_waiter =
        urgent_waiter(ctx, &machine, &machines, cluster.as_ref(), &cluster_uid).await;
    let shared = shared_hardware(&machine, &machines);

    let snapshot = Snapshot {
        machine: facts,
        governing,
        lock_held: memory.holds_lock(),
        node,
        target,
        dead,
        hardware_shared_with: shared,
        etcd: observation.map(|o| o.live),
        checks,
        intent,
        drain: memory.drain.clone(),
        urgent_waiter,
        forfeit_tried: memory.forfeit_tried,
        waits: Waits {
            still_running,
            silent: silent_since_reset,
            refused,
        },
        limits: Limits {
            reset_not_started: ctx.settings.reset_not_started,
            wipe_wait: ctx.settings.wipe_wait,
            power_off_wait: ctx.settings.power_off_wait,
            hold_after: ctx.settings.hold_after,
        },
    };
    Ok(Gathered {
        snapshot,
        machine,
        cluster,
        machines,
        config,
        kubernetes: kubernetes.ok(),
    })
}

/// Whether something that cannot be taken back was sent or is about to be.
fn irreversible(machine: &TalosMachine, facts: &MachineFacts) -> bool {
    facts.did(RemovalStep::LeaveEtcd)
        || facts.did(RemovalStep::Reset)
        || machine.status.as_ref().is_some_and(|s| s.intent.is_some())
}

/// Whether members of this cluster's etcd were ever recorded.
pub fn ever_listed(cluster: Option<&TalosCluster>) -> bool {
    cluster
        .and_then(|c| c.status.as_ref())
        .and_then(|s| s.etcd.as_ref())
        .is_some_and(|etcd| !etcd.members.is_empty())
}

fn machine_facts(machine: &TalosMachine) -> MachineFacts {
    let removal = machine
        .status
        .as_ref()
        .and_then(|s| s.removal.clone())
        .unwrap_or_default();
    let mut identity = machine.identity();
    if let Some(assigned) = machine
        .annotation(names::ETCD_MEMBER_ID)
        .and_then(names::parse_etcd_id)
    {
        identity.etcd_member_id = Some(names::format_etcd_id(assigned));
    }
    if machine.is_control_plane() && identity.etcd_peer_urls.is_empty() {
        // It was never seen as a member: one that listens at its address is its own.
        identity.etcd_peer_urls = peer_urls_at(&machine.spec.address);
    }
    MachineFacts {
        name: machine.metadata.name.clone().unwrap_or_default(),
        role: machine.spec.role,
        identity,
        consent: Consent {
            allow_delete: machine.consents(names::ALLOW_DELETE),
            cancel: machine.consents(names::CANCEL_REMOVAL),
            skip_reset: machine.consents(names::SKIP_RESET),
            accept_rejoin: machine.consents(names::ACCEPT_REJOIN),
            continue_token: machine
                .annotation(names::CONTINUE_REMOVAL)
                .map(str::to_owned),
        },
        done: removal
            .steps
            .iter()
            .filter(|s| s.finished_at.is_some())
            .filter_map(|s| RemovalStep::parse(&s.name))
            .collect(),
        leave_boot_id: removal.leave_boot_id,
        leave_by_id: removal.leave_by_id,
        hold: removal.hold,
        not_wiped: removal.not_wiped,
        confirmed: removal.confirmed,
    }
}

/// Peer URLs that a member at `address` (`host[:port]`) has by default.
fn peer_urls_at(address: &str) -> Vec<String> {
    let Ok(address) = ichor_talos::address::NodeAddress::parse(address) else {
        return Vec::new();
    };
    let host = if address.host.contains(':') {
        format!("[{}]", address.host)
    } else {
        address.host
    };
    ["https", "http"]
        .iter()
        .map(|scheme| format!("{scheme}://{host}:2380"))
        .collect()
}

async fn governing(
    ctx: &Context,
    key: &Key,
    machine: &TalosMachine,
    cluster: Option<&TalosCluster>,
    machines: &[TalosMachine],
    facts: &MachineFacts,
) -> Result<Governing, ReadError> {
    let odd = cluster.is_none_or(TalosCluster::is_being_deleted) || !facts.consent.allow_delete;
    if odd {
        let namespace = ctx.reader.get_cluster::<Namespace>(&key.namespace).await?;
        if namespace.is_none_or(|n| n.metadata.deletion_timestamp.is_some()) {
            return Ok(Governing::NamespaceTerminating);
        }
    }
    let Some(cluster) = cluster else {
        return Ok(Governing::Missing);
    };
    let uid = cluster.metadata.uid.clone().unwrap_or_default();
    let recorded = facts.identity.cluster_uid.as_deref();
    let adopted = machine.annotation(names::ADOPT_CLUSTER) == Some(uid.as_str());
    if recorded.is_some_and(|recorded| recorded != uid) && !adopted && !same_etcd(machine, cluster)
    {
        return Ok(Governing::Replaced { uid });
    }
    if !cluster.is_being_deleted() {
        return Ok(Governing::Cluster);
    }
    let teardown = cluster.status.as_ref().and_then(|s| s.teardown.as_ref());
    let policy = teardown.map_or(cluster.spec.deletion_policy, |t| t.policy);
    Ok(match policy {
        ichor_api::cluster::DeletionPolicy::Orphan => Governing::TeardownOrphan {
            may_finish: teardown.is_none_or(|t| t.may_finish),
        },
        ichor_api::cluster::DeletionPolicy::Reset => Governing::TeardownReset {
            turn: !facts.is_control_plane()
                || !machines
                    .iter()
                    .any(|m| !m.is_control_plane() && m.has_finalizer()),
        },
    })
}

/// Whether `cluster` lists the machine's recorded etcd member: then it is the same etcd,
/// whatever its object's UID.
pub fn same_etcd(machine: &TalosMachine, cluster: &TalosCluster) -> bool {
    let Some(id) = machine.identity().etcd_member_id else {
        return false;
    };
    cluster
        .status
        .as_ref()
        .and_then(|s| s.etcd.as_ref())
        .is_some_and(|etcd| etcd.members.iter().any(|m| m.id == id))
}

/// What answers at the machine's address.
pub(super) async fn look(
    ctx: &Context,
    machine: &TalosMachine,
    config: Option<&TalosConfig>,
    credentials: Option<&CredentialsError>,
    in_depth: bool,
) -> TargetFact {
    let address = &machine.spec.address;
    let Some(config) = config else {
        return TargetFact::Credentials {
            why: credentials.map_or_else(
                || "there is no TalosCluster to take them from".to_owned(),
                ToString::to_string,
            ),
        };
    };
    let deadline = ctx.settings.etcd_deadline;
    let client = match TalosClient::connect_with(config, address, etcd::options(deadline)) {
        Ok(client) => client,
        Err(error) => {
            return TargetFact::Silent {
                why: error.to_string(),
            };
        }
    };
    match answer(&client, in_depth).await {
        Ok(answer) => TargetFact::Answers(Box::new(answer)),
        Err(error) => match maintenance::probe_within(address, deadline).await {
            Ok(found) => TargetFact::Maintenance {
                hardware_uuid: found.hardware_uuid,
            },
            Err(_) => match error {
                CallError::Credentials(why) => TargetFact::Credentials { why },
                other => TargetFact::Silent {
                    why: other.to_string(),
                },
            },
        },
    }
}

/// Asks a node who it is; `in_depth` also what a reset needs to know.
pub async fn answer(client: &TalosClient, in_depth: bool) -> Result<Answer, CallError> {
    let identity = Box::pin(client.snapshot()).await?;
    let mut answer = Answer {
        hardware_uuid: identity.hardware_uuid.unwrap_or_default(),
        node_id: identity.node_id,
        boot_id: identity.boot_id,
        machine_type: match identity.machine_type {
            ichor_talos::MachineType::ControlPlane => "controlplane",
            ichor_talos::MachineType::Worker => "worker",
            ichor_talos::MachineType::Unknown => "unknown",
        }
        .to_owned(),
        node_name: identity.node_name,
        member_id: identity.member_id.map(|id| id.0),
        leads: false,
        running: identity.status.stage == ichor_talos::Stage::Running,
        stage: identity.status.stage.to_string(),
        etcd_service: String::new(),
        partitions: Vec::new(),
        platform_config: false,
    };
    if !in_depth {
        return Ok(answer);
    }
    let (volumes, platform, service, status) = tokio::join!(
        client.volume_statuses(),
        client.platform(),
        client.service("etcd"),
        client.etcd_status()
    );
    let volumes = volumes?;
    answer.partitions = ichor_talos::Partitions::for_maintenance(&volumes)
        .map(|partitions| partitions.names().to_vec())
        .unwrap_or_default();
    answer.platform_config = matches!(
        platform?.config,
        ichor_talos::model::PlatformConfig::Present(_)
            | ichor_talos::model::PlatformConfig::Possible(_)
    );
    if let Ok(Some(service)) = service {
        answer.etcd_service = service.state;
    }
    if let Ok(status) = status {
        answer.leads = status.leader == Some(status.member_id);
    }
    Ok(answer)
}

/// What only the others' list tells of the target.
fn complete(target: TargetFact, observation: Option<&Observation>) -> TargetFact {
    match (target, observation.and_then(Observation::members)) {
        (TargetFact::Answers(mut answer), Some(members)) => {
            answer.leads |= answer.member_id.is_some() && members.leader == answer.member_id;
            TargetFact::Answers(answer)
        }
        (target, _) => target,
    }
}

/// The name of the machine's Node, as far as it can be told.
pub fn node_name(machine: &TalosMachine, answered: Option<&str>) -> Option<String> {
    machine
        .spec
        .node_name
        .clone()
        .or_else(|| machine.identity().node_name)
        .or_else(|| answered.map(str::to_owned))
}

async fn node_fact(
    client: &Client,
    machine: &TalosMachine,
    facts: &MachineFacts,
    target: &TargetFact,
) -> NodeFact {
    let answers = matches!(target, TargetFact::Answers(_));
    let needed = !answers || !facts.did(RemovalStep::Drain) || facts.did(RemovalStep::Confirm);
    if !needed {
        return NodeFact::NotAsked;
    }
    let answered = match target {
        TargetFact::Answers(answer) => answer.node_name.as_deref(),
        _ => None,
    };
    let Some(name) = node_name(machine, answered) else {
        return NodeFact::Unknown {
            why: "neither spec.nodeName nor Talos says which Node the machine is".into(),
        };
    };
    let reader = ichor_rules::DirectReader::with_deadline(client.clone(), Duration::from_secs(10));
    match reader.get_cluster::<Node>(&name).await {
        Ok(None) => NodeFact::Missing { name },
        Ok(Some(node)) => {
            let uid = node.metadata.uid.unwrap_or_default();
            let recorded = machine.identity().node_uid;
            let system_uuid = node
                .status
                .as_ref()
                .and_then(|s| s.node_info.as_ref())
                .map(|i| i.system_uuid.to_lowercase());
            let ready = node
                .status
                .and_then(|s| s.conditions)
                .unwrap_or_default()
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True");
            let other_box = matches!((&system_uuid, &facts.identity.hardware_uuid),
                (Some(node), Some(own)) if !node.is_empty() && *node != own.to_lowercase());
            if other_box && recorded.is_some_and(|recorded| recorded != uid) {
                return NodeFact::Unknown {
                    why: format!(
                        "Node {name} is another box: its systemUUID is {}, the machine's is {}. Correct spec.nodeName",
                        system_uuid.unwrap_or_default(),
                        facts.identity.hardware_uuid.as_deref().unwrap_or_default()
                    ),
                };
            }
            NodeFact::Present { name, uid, ready }
        }
        Err(error) => {
            tracing::warn!(node = name, error = %error, "failed to read the Node");
            NodeFact::Unknown {
                why: crate::errors::chain(&error),
            }
        }
    }
}

/// What tells one intent from another.
pub fn intent_key(intent: &ichor_api::machine::Intent) -> String {
    format!(
        "{}/{}/{}/{}/{}",
        intent.step,
        intent.operation,
        intent.lease_uid.as_deref().unwrap_or_default(),
        intent.lease_transitions,
        intent.deadline.0
    )
}

async fn intent_facts(
    ctx: &Context,
    key: &Key,
    machine: &TalosMachine,
    memory: &mut Memory,
    now: Duration,
) -> Result<Option<IntentFacts>, ReadError> {
    let Some(intent) = machine.status.as_ref().and_then(|s| s.intent.as_ref()) else {
        memory.intent_seen = None;
        return Ok(None);
    };
    let this = intent_key(intent);
    let seen = match &memory.intent_seen {
        Some((seen, at)) if *seen == this => *at,
        _ => {
            memory.intent_seen = Some((this.clone(), now));
            now
        }
    };
    let wait = Duration::from_secs(u64::try_from(intent.deadline_seconds).unwrap_or_default())
        + ctx.settings.settle_after;
    let settle_due = now.saturating_sub(seen) >= wait;
    let is = |what: &Option<String>| what.as_deref() == Some(this.as_str());
    let call = match intent.step.as_str() {
        "LeaveEtcd" | "RemoveMember" => IntentCall::Leave,
        "Reset" => IntentCall::Reset,
        _ => IntentCall::Other,
    };
    let mine = intent.operation == key.operation().to_string();
    let sender_may_live = settle_due
        && intent.instance != ctx.instance.pod_uid
        && sender_lives(ctx, &intent.instance).await?;
    Ok(Some(IntentFacts {
        call: if mine || call != IntentCall::Other {
            call
        } else {
            IntentCall::Other
        },
        member_id: intent.member_id.as_deref().and_then(names::parse_etcd_id),
        node_id: intent.node_id.clone(),
        boot_id: intent.boot_id.clone(),
        never_sent: is(&memory.never_sent),
        accepted: is(&memory.accepted),
        locked: is(&memory.locked_out),
        seen_stopping: is(&memory.seen_stopping),
        reboots: intent.reboot,
        settle_due,
        sender_may_live,
    }))
}

/// Whether the pod that sent a call still exists.
async fn sender_lives(ctx: &Context, pod_uid: &str) -> Result<bool, ReadError> {
    let pods = ctx
        .reader
        .list::<Pod>(&ctx.instance.pod_namespace, None)
        .await?;
    Ok(pods
        .iter()
        .any(|p| p.metadata.uid.as_deref() == Some(pod_uid)))
}

async fn checks(
    ctx: &Context,
    key: &Key,
    machine: &TalosMachine,
    machines: &FreshMachines,
    cluster: &TalosCluster,
    cluster_uid: &str,
    observation: Option<&Observation>,
) -> Vec<Check> {
    if !machine.is_control_plane() {
        let waived = machine.consents(names::ALLOW_LAST_WORKER)
            || machine
                .status
                .as_ref()
                .and_then(|s| s.removal.as_ref())
                .is_some_and(|r| r.last_worker_waived_by.is_some());
        let last = workers::last_worker(machines, machine, cluster.spec.schedulable, waived);
        return std::iter::once(last)
            .chain(duplicate_cluster(cluster))
            .collect();
    }
    let no_list = LiveEtcd::NoList {
        endpoints: vec![("Talos".into(), "the credentials cannot be used".into())],
        no_leader_for_long: false,
    };
    let (live, duplicates) = match observation {
        Some(observation) => (&observation.live, observation.duplicates.as_slice()),
        None => (&no_list, [].as_slice()),
    };
    let member_id = member_id_of(machine);
    let unhealthy_long = match member_id {
        Some(id) => ctx
            .etcd
            .unhealthy_for(cluster_uid, id)
            .await
            .is_some_and(|d| d >= ctx.settings.unhealthy_after),
        None => false,
    };
    let voters = match live {
        LiveEtcd::Listed(members) => Some(members.voting_machines()),
        LiveEtcd::NoList { .. } => None,
    };
    let counted = count(
        machines,
        &key.name,
        Basis::UnderLock {
            voters: voters.as_ref(),
        },
    );
    let declared = cluster.spec.control_plane.count;
    let target = Target {
        machine: &key.name,
        member_id,
        unhealthy_long,
    };
    let health = if unhealthy_long {
        TargetHealth::UnhealthyLong
    } else {
        TargetHealth::Healthy
    };
    let mut checks = vec![deletion::quorum(&counted, &key.name)];
    // Before live etcd: nobody can be asked about a member that belongs to no machine, so
    // that rule would call it unhealthy, and its remedies are not this one's.
    if let LiveEtcd::Listed(members) = live {
        checks.push(member_owners(members, target, duplicates));
    }
    checks.extend([
        live_etcd(live, target, declared),
        deletion::declared_count(&counted, &key.name, declared, health),
    ]);
    checks.extend(duplicate_cluster(cluster));
    checks
}

/// Nothing disruptive runs under a cluster whose etcd another TalosCluster reports too.
fn duplicate_cluster(cluster: &TalosCluster) -> Option<Check> {
    use ichor_api::conditions::{ClusterReason, HEALTHY};
    let status = cluster.status.as_ref()?;
    let healthy = ichor_api::common::find_condition(&status.conditions, HEALTHY)?;
    (healthy.status == ConditionStatus::False
        && healthy.reason == ClusterReason::DuplicateCluster.as_str())
    .then(|| {
        Check::refuse(
            ichor_rules::Rule::MemberOwners,
            StandstillReason::Held,
            None,
            healthy.message.clone(),
        )
    })
}

/// What a drain that timed out waits for: its options, and the pods and budgets that
/// were in its way.
pub fn drain_key(
    machine: &TalosMachine,
    cluster: Option<&TalosCluster>,
    pods: &[DrainPodStatus],
) -> String {
    let options = cluster.map(|c| c.drain_options(machine));
    let pods: Vec<_> = pods
        .iter()
        .map(|p| (&p.namespace, &p.name, &p.budget))
        .collect();
    format!("{options:?} {pods:?}")
}

/// Whether any of that has changed since: then the drain is tried again.
async fn drain_moved(
    client: Option<&Client>,
    machine: &TalosMachine,
    cluster: Option<&TalosCluster>,
    memory: &Memory,
) -> bool {
    let Some(client) = client else { return false };
    let reader = ichor_rules::DirectReader::new(client.clone());
    let mut pods = machine
        .status
        .as_ref()
        .and_then(|s| s.drain.as_ref())
        .map(|d| d.pods.clone())
        .unwrap_or_default();
    for pod in &mut pods {
        match reader.get::<Pod>(&pod.namespace, &pod.name).await {
            Ok(None) => return true,
            Ok(Some(_)) => {}
            Err(_) => return false,
        }
        if let Some(budget) = &mut pod.budget {
            match reader
                .get::<PodDisruptionBudget>(&pod.namespace, &budget.name)
                .await
            {
                Ok(None) => return true,
                Ok(Some(found)) => {
                    let status = found.status.unwrap_or_default();
                    budget.allowed = status.disruptions_allowed;
                    budget.current = status.current_healthy;
                    budget.desired = status.desired_healthy;
                }
                Err(_) => return false,
            }
        }
    }
    memory.drain_key.as_deref() != Some(drain_key(machine, cluster, &pods).as_str())
}

/// A more urgent operation that waits for the lock, in words.
async fn urgent_waiter(
    ctx: &Context,
    machine: &TalosMachine,
    machines: &[TalosMachine],
    cluster: Option<&TalosCluster>,
    cluster_uid: &str,
) -> Option<String> {
    if cluster.is_some_and(TalosCluster::is_being_deleted) {
        return Some("the cluster's teardown".into());
    }
    for other in machines {
        if !other.is_being_deleted() || other.metadata.uid == machine.metadata.uid {
            continue;
        }
        let waits = other
            .condition(REMOVAL)
            .is_some_and(|c| c.reason == StandstillReason::ClusterLockHeld.as_str());
        if !waits {
            continue;
        }
        let name = other.metadata.name.as_deref().unwrap_or_default();
        if leave_confirmed(other) {
            return Some(format!(
                "the removal of {name}, which is out of etcd already,"
            ));
        }
        if !other.is_control_plane() {
            continue;
        }
        if !machine.is_control_plane() {
            return Some(format!("the removal of control plane {name}"));
        }
        if let Some(id) = member_id_of(other)
            && ctx
                .etcd
                .unhealthy_for(cluster_uid, id)
                .await
                .is_some_and(|d| d >= ctx.settings.unhealthy_after)
        {
            return Some(format!("the removal of the unhealthy control plane {name}"));
        }
    }
    None
}

fn shared_hardware(machine: &TalosMachine, machines: &[TalosMachine]) -> Option<String> {
    let own = machine.identity().hardware_uuid?;
    machines
        .iter()
        .filter(|m| m.metadata.uid != machine.metadata.uid)
        .find(|m| m.identity().hardware_uuid.as_deref() == Some(own.as_str()))
        .and_then(|m| m.metadata.name.clone())
}
