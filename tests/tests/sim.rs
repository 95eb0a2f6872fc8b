//! The simulated machines behave as Talos does, traps included (facts: talos.md 1), seen with the
//! client that the agent uses.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ichor_lock::testing::MemoryStore;
use ichor_lock::{
    BootClock, DisruptiveLock, Durations, LockManager, Operation, Permit, UnsettledIntent, View,
    ViewError,
};
use ichor_talos::events::ResetProgress;
use ichor_talos::irreversible::RebootMode;
use ichor_talos::maintenance::ProbeError;
use ichor_talos::model::PlatformConfig;
use ichor_talos::proto::machine;
use ichor_talos::proto::machine::machine_service_client::MachineServiceClient;
use ichor_talos::{
    CallError, ConfigError, MachineType, MemberId, Partitions, ResetRequest, ResetStart,
    ResetWatch, Stage, TalosClient, TalosConfig, maintenance,
};
use ichor_tests::assets::ControlPlanePrograms;
use ichor_tests::process::Supervisor;
use ichor_tests::sim::{Call, Member, Node, SimCluster, SimOptions, TalosVersion};
use ichor_tests::wait::until;
use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

const SOON: Duration = Duration::from_secs(60);
const CALL: Duration = Duration::from_secs(30);

/// A simulated cluster in a folder of its own.
struct Sim {
    cluster: SimCluster,
    config: TalosConfig,
    gate: Gate,
    _dir: TempDir,
}

impl Sim {
    async fn start(change: impl FnOnce(&mut SimOptions)) -> Self {
        let programs = ControlPlanePrograms::find(|line| eprintln!("{line}"))
            .await
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let state: PathBuf = dir.path().join("sim");
        let supervisor = Supervisor::new(&state, &[]).unwrap();
        let mut options = SimOptions::new(state.join("nodes"), supervisor, programs.etcd());
        options.workers = 0;
        options.spare = false;
        change(&mut options);
        let cluster = SimCluster::start(options).await.unwrap();
        let config = TalosConfig::parse(&cluster.talosconfig().unwrap(), Timestamp::now()).unwrap();
        Self {
            cluster,
            config,
            gate: Gate::open().await,
            _dir: dir,
        }
    }

    fn node(&self, name: &str) -> &Arc<Node> {
        self.cluster.node(name).unwrap()
    }

    fn client(&self, name: &str) -> TalosClient {
        TalosClient::connect(&self.config, &self.node(name).address().to_string()).unwrap()
    }

    /// Talos' calls without our client's care.
    async fn raw(&self, name: &str) -> MachineServiceClient<Channel> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.config.ca_pem))
            .identity(Identity::from_pem(
                &self.config.cert_pem,
                &self.config.key_pem,
            ));
        let endpoint =
            Endpoint::from_shared(format!("https://{}:50000", self.node(name).address())).unwrap();
        MachineServiceClient::new(endpoint.tls_config(tls).unwrap().connect().await.unwrap())
    }

    /// What a member list with a leader says.
    async fn members(&self) -> Vec<Member> {
        until(SOON, "a member list", async || {
            self.cluster.etcd_members().await.map_err(|e| e.to_string())
        })
        .await
        .unwrap()
    }

    async fn member_id(&self, name: &str) -> MemberId {
        let members = self.members().await;
        members
            .iter()
            .find(|member| member.name == name)
            .unwrap()
            .id
            .parse()
            .unwrap()
    }

    fn calls(&self, method: &str) -> Vec<Call> {
        self.cluster
            .calls()
            .into_iter()
            .filter(|call| call.method == method)
            .collect()
    }

    async fn until_stage(&self, name: &str, stage: Stage) {
        let node = self.node(name);
        until(SOON, &format!("{name} to be {stage}"), async || {
            let now = node.now().stage;
            if now == stage {
                Ok(())
            } else {
                Err(format!("it is {now}"))
            }
        })
        .await
        .unwrap();
    }

    async fn until_voters(&self, count: usize) {
        until(SOON, &format!("{count} started voters"), async || {
            let members = self
                .cluster
                .etcd_members()
                .await
                .map_err(|e| e.to_string())?;
            let good = members.len() == count
                && members
                    .iter()
                    .all(|member| member.started && !member.learner);
            if good {
                Ok(())
            } else {
                Err(format!("{members:?}"))
            }
        })
        .await
        .unwrap();
    }

    /// etcd refuses every removal until its members have been connected for five seconds.
    async fn until_removals_pass(&self) {
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
}

/// Permits without a cluster around them.
struct Gate {
    lock: DisruptiveLock,
}

struct Calm;

#[async_trait]
impl View for Calm {
    async fn transitioning(&self) -> Result<Option<String>, ViewError> {
        Ok(None)
    }
    async fn unsettled_intents(
        &self,
        _: &Operation,
        _: bool,
    ) -> Result<Vec<UnsettledIntent>, ViewError> {
        Ok(Vec::new())
    }
    async fn intents_of(&self, _: &Operation) -> Result<Vec<UnsettledIntent>, ViewError> {
        Ok(Vec::new())
    }
}

impl Gate {
    async fn open() -> Self {
        let operation = Operation {
            kind: "TalosMachine".to_owned(),
            name: "test".to_owned(),
            namespace: "default".to_owned(),
            uid: "1".to_owned(),
            purpose: "removal".to_owned(),
        };
        let manager = LockManager::new("test", Arc::new(BootClock), Durations::default());
        let store = Arc::new(MemoryStore::new());
        let lock = ichor_lock::acquire_disruptive(&manager, store, &Calm, &operation, true)
            .await
            .unwrap();
        Self { lock }
    }

    async fn permit(&mut self) -> Permit<'_> {
        let intent = self.lock.mark_intent();
        self.lock
            .permit("test", &BTreeMap::new(), intent)
            .await
            .unwrap()
    }
}

fn keep_os() -> Partitions {
    Partitions::new(["STATE", "EPHEMERAL"]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_control_plane_tells_who_it_is() {
    for (version, tag) in [
        (TalosVersion::V1_13, "v1.13.9"),
        (TalosVersion::V1_14, "v1.14.1"),
    ] {
        let sim = Sim::start(|options| {
            options.control_planes = 1;
            options.workers = 1;
            options.version = version;
        })
        .await;
        let cp = sim.client("cp-1").snapshot().await.unwrap();
        assert_eq!(
            cp.hardware_uuid.as_deref(),
            Some(sim.node("cp-1").hardware_uuid.as_str())
        );
        assert_eq!(cp.node_id, sim.node("cp-1").now().node_id.unwrap());
        assert_eq!(cp.boot_id, sim.node("cp-1").now().boot_id);
        assert_eq!((cp.status.stage, cp.status.ready), (Stage::Running, true));
        assert_eq!(cp.machine_type, MachineType::ControlPlane);
        assert_eq!(
            (cp.hostname.as_str(), cp.node_name.as_deref()),
            ("cp-1", Some("cp-1"))
        );
        assert_eq!(cp.member_id, Some(sim.member_id("cp-1").await));
        assert_eq!(cp.version.tag, tag);
        let worker = sim.client("worker-1").snapshot().await.unwrap();
        assert_eq!(
            (worker.machine_type, worker.member_id),
            (MachineType::Worker, None)
        );
        let refused = sim.client("worker-1").etcd_status().await.unwrap_err();
        assert!(matches!(refused, CallError::NotSupported(_)), "{refused:?}");
    }
}

// --- The traps of talos.md section 1

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_reset_after_removal_by_id_reboots_the_node_unwiped() {
    let mut sim = Sim::start(|_| {}).await;
    sim.until_removals_pass().await;
    let before = sim.client("cp-3").snapshot().await.unwrap();
    let id = sim.member_id("cp-3").await;
    sim.client("cp-1")
        .remove_member(sim.gate.permit().await, id, CALL)
        .await
        .unwrap();
    sim.until_voters(2).await;
    let client = sim.client("cp-3");
    until(SOON, "cp-3's etcd to notice", async || {
        match client.etcd_member_id_local().await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();

    let graceful = machine::ResetRequest {
        graceful: true,
        ..machine::ResetRequest::from(&ResetRequest {
            partitions: keep_os(),
            reboot: true,
        })
    };
    let mut watch = ResetWatch::open(&client).await.unwrap();
    let answer = sim
        .raw("cp-3")
        .await
        .reset(graceful)
        .await
        .unwrap()
        .into_inner();
    let actor = answer.messages[0].actor_id.clone();
    assert_eq!(watch.started(Some(&actor), CALL).await, ResetStart::Started);
    let progress = watch.services_stopping(&actor, CALL).await;
    assert!(
        matches!(&progress, ResetProgress::Failed(why) if why.contains("leaveEtcd")),
        "{progress:?}"
    );

    // It is back with the configuration it had, and no member of etcd.
    until(SOON, "cp-3 to be back", async || {
        match client.boot_id().await {
            Ok(boot) if boot != before.boot_id => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert_eq!(client.identity().await.unwrap(), before.node_id);
    let probed = maintenance::probe(&sim.node("cp-3").address().to_string()).await;
    assert!(
        matches!(probed, Err(ProbeError::NotMaintenance(_))),
        "{probed:?}"
    );
    assert_eq!(sim.members().await.len(), 2);

    // The recipe that works: without grace.
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    sim.until_stage("cp-3", Stage::Maintenance).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_partition_list_leaves_nothing_to_boot() {
    let sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    let mut watch = ResetWatch::open(&client).await.unwrap();
    let request = machine::ResetRequest {
        reboot: true,
        ..machine::ResetRequest::default()
    };
    let answer = sim
        .raw("worker-1")
        .await
        .reset(request)
        .await
        .unwrap()
        .into_inner();
    let actor = answer.messages[0].actor_id.clone();
    assert_eq!(
        watch.services_stopping(&actor, CALL).await,
        ResetProgress::ServicesStopping
    );
    // Powered, and nobody there.
    let before = sim.node("worker-1").now().boot_id;
    let node = sim.node("worker-1");
    until(SOON, "worker-1 to restart", async || {
        let now = node.now();
        if now.powered && now.boot_id != before {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let probed = maintenance::probe(&node.address().to_string()).await;
    assert!(
        matches!(probed, Err(ProbeError::Unreachable(_))),
        "{probed:?}"
    );
    assert!(matches!(
        client.version().await,
        Err(CallError::Unreachable(_))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_named_without_wipe_wipe_nothing() {
    let sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    let before = client.snapshot().await.unwrap();
    let label = |label: &str| machine::ResetPartitionSpec {
        label: label.to_owned(),
        wipe: false,
    };
    let request = machine::ResetRequest {
        reboot: true,
        system_partitions_to_wipe: vec![label("STATE"), label("EPHEMERAL")],
        ..machine::ResetRequest::default()
    };
    sim.raw("worker-1").await.reset(request).await.unwrap();
    until(SOON, "worker-1 to be back", async || {
        match client.boot_id().await {
            Ok(boot) if boot != before.boot_id => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert_eq!(client.identity().await.unwrap(), before.node_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_reset_may_be_locked_out_and_only_the_watch_tells() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    let before = client.snapshot().await.unwrap();
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };

    sim.node("worker-1").lock_next_reset();
    let mut watch = ResetWatch::open(&client).await.unwrap();
    let actor = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    assert!(!actor.is_empty(), "the answer looks like any other");
    let start = watch.started(Some(&actor), CALL).await;
    assert!(matches!(start, ResetStart::Locked(_)), "{start:?}");
    assert_eq!(client.snapshot().await.unwrap(), before);

    let mut watch = ResetWatch::open(&client).await.unwrap();
    let actor = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    assert_eq!(watch.started(Some(&actor), CALL).await, ResetStart::Started);
    assert_eq!(
        watch.services_stopping(&actor, CALL).await,
        ResetProgress::ServicesStopping
    );
    sim.until_stage("worker-1", Stage::Maintenance).await;

    let codes: Vec<_> = sim
        .calls("Reset")
        .into_iter()
        .map(|call| (call.code, call.request))
        .collect();
    let written = serde_json::json!({
        "graceful": false,
        "reboot": true,
        "system_partitions_to_wipe": [{"label": "STATE", "wipe": true}, {"label": "EPHEMERAL", "wipe": true}],
        "user_disks_to_wipe": [],
        "mode": "ALL",
    });
    assert_eq!(
        codes,
        [
            ("OK".to_owned(), written.clone()),
            ("OK".to_owned(), written)
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_reset_is_locked_out_while_the_first_runs() {
    let mut sim = Sim::start(|options| {
        options.workers = 1;
        options.timings.phase = Duration::from_millis(600);
    })
    .await;
    let client = sim.client("worker-1");
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    let mut watch = ResetWatch::open(&client).await.unwrap();
    let first = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    assert_eq!(watch.started(Some(&first), CALL).await, ResetStart::Started);
    let mut second_watch = ResetWatch::open(&client).await.unwrap();
    let second = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    let start = second_watch.started(Some(&second), CALL).await;
    assert!(matches!(start, ResetStart::Locked(_)), "{start:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_after_the_leave_rejoins_under_a_new_member_id() {
    let mut sim = Sim::start(|_| {}).await;
    sim.until_removals_pass().await;
    let old = sim.member_id("cp-2").await;
    let client = sim.client("cp-2");
    client
        .leave_etcd(sim.gate.permit().await, CALL)
        .await
        .unwrap();
    sim.until_voters(2).await;
    let etcd = client.service("etcd").await.unwrap().unwrap();
    assert!(etcd.is_down(), "{etcd:?}");

    client
        .reboot(sim.gate.permit().await, RebootMode::Default, CALL)
        .await
        .unwrap();
    sim.until_voters(3).await;
    let new = sim.member_id("cp-2").await;
    assert_ne!(new, old);
    sim.until_stage("cp-2", Stage::Running).await;
    assert_eq!(client.etcd_member_id_local().await.unwrap(), Some(new));
}

// --- The way that a removal goes

#[tokio::test(flavor = "multi_thread")]
async fn left_then_reset_a_control_plane_waits_in_maintenance_and_can_join_again() {
    let mut sim = Sim::start(|options| options.spare = true).await;
    sim.until_removals_pass().await;
    sim.node("cp-4").join().await.unwrap();
    sim.until_voters(4).await;

    let client = sim.client("cp-1");
    let before = client.snapshot().await.unwrap();
    let led = client.etcd_status().await.unwrap().leader == before.member_id;
    let new_leader = client
        .forfeit_leadership(&sim.gate.lock, CALL)
        .await
        .unwrap();
    assert_eq!(new_leader.is_some(), led);
    client
        .leave_etcd(sim.gate.permit().await, CALL)
        .await
        .unwrap();
    sim.until_voters(3).await;
    let listed = sim.client("cp-2").etcd_members(false).await.unwrap();
    assert!(
        listed
            .iter()
            .all(|member| Some(member.id) != before.member_id && member.name != "cp-1")
    );

    let volumes = client.volume_statuses().await.unwrap();
    let partitions = Partitions::for_maintenance(&volumes).unwrap();
    let request = ResetRequest {
        partitions,
        reboot: true,
    };
    client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    let address = sim.node("cp-1").address().to_string();
    let found = until(SOON, "cp-1 in maintenance", async || {
        maintenance::probe(&address)
            .await
            .map_err(|e| e.to_string())
    })
    .await
    .unwrap();
    assert_eq!(
        (found.hardware_uuid, found.stage),
        (before.hardware_uuid, Stage::Maintenance)
    );
    assert_eq!(found.talos_version, "v1.14.1");
    // It is nobody's any more: our certificate is not asked for, and its own is not of our authority.
    let stranger = client.version().await.unwrap_err();
    assert!(
        matches!(stranger, CallError::Credentials(_)),
        "{stranger:?}"
    );

    sim.node("cp-1").join().await.unwrap();
    sim.until_voters(4).await;
    let after = client.snapshot().await.unwrap();
    assert_eq!(after.status.stage, Stage::Running);
    assert_ne!(after.node_id, before.node_id);
    assert_ne!(after.member_id, before.member_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_etcd_on_a_partition_of_its_own_survives_unless_that_is_named() {
    let sim = Sim::start(|options| {
        options.control_planes = 1;
        options.etcd_partition = true;
    })
    .await;
    let volumes = sim.client("cp-1").volume_statuses().await.unwrap();
    let partitions = Partitions::for_maintenance(&volumes).unwrap();
    assert_eq!(partitions.names(), ["STATE", "EPHEMERAL", "ETCD"]);
    let id = sim.member_id("cp-1").await;
    let only = machine::ResetRequest::from(&ResetRequest {
        partitions: Partitions::new(["EPHEMERAL"]).unwrap(),
        reboot: true,
    });
    let boot = sim.node("cp-1").now().boot_id;
    sim.raw("cp-1").await.reset(only).await.unwrap();
    let node = sim.node("cp-1");
    until(SOON, "cp-1 to be back", async || {
        let now = node.now();
        if now.boot_id != boot && now.stage == Stage::Running {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await
    .unwrap();
    assert_eq!(sim.member_id("cp-1").await, id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_platform_configures_it_is_back_as_another_installation() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    assert_eq!(
        client.platform().await.unwrap().config,
        PlatformConfig::Absent
    );
    sim.node("worker-1").set_platform_config(true);
    assert_eq!(
        client.platform().await.unwrap().config,
        PlatformConfig::Present("talos.config".to_owned())
    );
    let before = client.snapshot().await.unwrap();
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    let after = until(SOON, "worker-1 to be back", async || {
        match client.snapshot().await {
            Ok(after) if after.boot_id != before.boot_id => Ok(after),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert_ne!(after.node_id, before.node_id);
    assert_eq!(after.hardware_uuid, before.hardware_uuid);

    let request = ResetRequest {
        reboot: false,
        ..request
    };
    let mut watch = ResetWatch::open(&client).await.unwrap();
    let actor = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    assert_eq!(
        watch.services_stopping(&actor, CALL).await,
        ResetProgress::ServicesStopping
    );
    let node = sim.node("worker-1");
    until(SOON, "worker-1 to be off", async || {
        if node.now().powered {
            Err(String::new())
        } else {
            Ok(())
        }
    })
    .await
    .unwrap();
}

// --- What etcd says, and what its silence means

#[tokio::test(flavor = "multi_thread")]
async fn etcd_refuses_to_lose_a_healthy_member_while_another_is_down() {
    let mut sim = Sim::start(|_| {}).await;
    sim.until_removals_pass().await;
    let (healthy, down) = (sim.member_id("cp-2").await, sim.member_id("cp-3").await);
    sim.node("cp-3").etcd_stop();
    let client = sim.client("cp-1");
    // The loss is noticed by the next heartbeat, not before.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let refused = client
        .remove_member(sim.gate.permit().await, healthy, CALL)
        .await
        .unwrap_err();
    assert!(refused.is_unhealthy_cluster(), "{refused:?}");
    client
        .remove_member(sim.gate.permit().await, down, CALL)
        .await
        .unwrap();
    let again = client
        .remove_member(sim.gate.permit().await, down, CALL)
        .await
        .unwrap_err();
    assert!(
        again.is_member_not_found() && again.nothing_done(),
        "{again:?}"
    );
    sim.until_voters(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_member_is_not_healthy_and_comes_back_when_thawed() {
    let sim = Sim::start(|_| {}).await;
    let client = sim.client("cp-3");
    assert!(client.etcd_member_id_local().await.unwrap().is_some());
    sim.node("cp-3").etcd_freeze();
    until(SOON, "cp-3's etcd to be unhealthy", async || {
        match client.etcd_member_id_local().await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert!(client.etcd_status().await.is_err());
    sim.node("cp-3").etcd_thaw();
    until(SOON, "cp-3's etcd to be healthy", async || {
        match client.etcd_status().await {
            Ok(status) if status.leader.is_some() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_stays_one_until_it_is_promoted() {
    let sim = Sim::start(|options| {
        options.control_planes = 1;
        options.spare = true;
    })
    .await;
    let spare = sim.node("cp-2");
    spare.hold_learner(true);
    let joining = tokio::spawn({
        let spare = Arc::clone(spare);
        async move { spare.join().await }
    });
    let client = sim.client("cp-2");
    until(SOON, "cp-2 to be a learner", async || {
        match client.etcd_status().await {
            Ok(status) if status.learner => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    let members = sim.client("cp-1").etcd_members(false).await.unwrap();
    assert_eq!(
        members
            .iter()
            .filter(|member| member.learner && member.started())
            .count(),
        1
    );
    spare.hold_learner(false);
    joining.await.unwrap().unwrap();
    sim.until_voters(2).await;
}

// --- The line and the answers

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_the_deadline_is_an_unknown_outcome_of_something_done() {
    let mut sim = Sim::start(|_| {}).await;
    sim.until_removals_pass().await;
    sim.node("cp-3").answer_after_deadline("EtcdLeaveCluster");
    let short = Duration::from_secs(8);
    let outcome = sim
        .client("cp-3")
        .leave_etcd(sim.gate.permit().await, short)
        .await
        .unwrap_err();
    assert!(
        matches!(outcome, CallError::UnknownOutcome(_)),
        "{outcome:?}"
    );
    sim.until_voters(2).await;
    let calls = sim.calls("EtcdLeaveCluster");
    assert_eq!(calls.len(), 1, "sent once: {calls:?}");
    assert_eq!(calls[0].code, "OK");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_line_is_silence_for_reads_and_an_unknown_outcome_for_the_rest() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    client.version().await.unwrap();
    sim.node("worker-1").cut();
    let silent = client.version().await.unwrap_err();
    assert!(matches!(silent, CallError::Unreachable(_)), "{silent:?}");
    let fresh = sim.client("worker-1").version().await.unwrap_err();
    assert!(matches!(fresh, CallError::Unreachable(_)), "{fresh:?}");
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    let outcome = client
        .reset(sim.gate.permit().await, &request, Duration::from_secs(2))
        .await
        .unwrap_err();
    assert!(
        !outcome.nothing_done() || matches!(outcome, CallError::Unreachable(_)),
        "{outcome:?}"
    );
    assert!(sim.calls("Reset").is_empty(), "nothing passed");
    sim.node("worker-1").heal();
    until(SOON, "worker-1 to answer", async || {
        client.version().await.map_err(|e| e.to_string())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_power_was_sent_nothing() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    client.version().await.unwrap();
    sim.node("worker-1").power_off().await;
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    // A call on the broken connection itself might have been sent; a new connection cannot be had.
    until(SOON, "worker-1 to be gone", async || {
        match client.version().await {
            Err(CallError::Unreachable(why)) if why.contains("cannot connect") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    let outcome = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap_err();
    assert!(
        matches!(outcome, CallError::Unreachable(_)) && outcome.nothing_done(),
        "{outcome:?}"
    );
    let probed = maintenance::probe(&sim.node("worker-1").address().to_string()).await;
    assert!(
        matches!(probed, Err(ProbeError::Unreachable(_))),
        "{probed:?}"
    );
    sim.node("worker-1").power_on().await;
    sim.until_stage("worker-1", Stage::Running).await;
    client.version().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_do_not_fit_are_told_from_a_silent_machine() {
    let mut sim = Sim::start(|options| {
        options.control_planes = 1;
        options.workers = 1;
    })
    .await;
    let now = Timestamp::now();
    let address = sim.node("cp-1").address().to_string();
    let foreign = TalosConfig::parse(&sim.cluster.foreign_talosconfig().unwrap(), now).unwrap();
    let refused = TalosClient::connect(&foreign, &address)
        .unwrap()
        .version()
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, CallError::Credentials(why) if why.contains("certificate")),
        "{refused:?}"
    );

    let ended = now - SignedDuration::from_hours(1);
    let text = sim.cluster.talosconfig_for("os:admin", ended).unwrap();
    assert!(matches!(
        TalosConfig::parse(&text, now),
        Err(ConfigError::Expired(_))
    ));
    // Its clock says otherwise: the node's does not.
    let believed = TalosConfig::parse(&text, ended - SignedDuration::from_hours(1)).unwrap();
    let refused = TalosClient::connect(&believed, &address)
        .unwrap()
        .version()
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, CallError::Credentials(why) if why.contains("Expired")),
        "{refused:?}"
    );

    let text = sim
        .cluster
        .talosconfig_for("os:reader", now + SignedDuration::from_hours(1))
        .unwrap();
    let reader = TalosConfig::parse(&text, now).unwrap();
    let reader = TalosClient::connect(&reader, &address).unwrap();
    reader.snapshot().await.unwrap();
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    let refused = reader
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, CallError::Credentials(why) if why.contains("not authorized")),
        "{refused:?}"
    );

    let probed = maintenance::probe(&address).await;
    assert!(
        matches!(probed, Err(ProbeError::NotMaintenance(_))),
        "{probed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_moved_answers_at_its_new_address_only() {
    let sim = Sim::start(|options| options.workers = 1).await;
    let node = sim.node("worker-1");
    let (old, new) = (node.address(), sim.cluster.spare_address());
    node.change_address(new).await.unwrap();
    let client = TalosClient::connect(&sim.config, &new.to_string()).unwrap();
    assert_eq!(
        client.hardware_uuid().await.unwrap().as_deref(),
        Some(node.hardware_uuid.as_str())
    );
    let gone = TalosClient::connect(&sim.config, &old.to_string())
        .unwrap()
        .version()
        .await;
    assert!(matches!(gone, Err(CallError::Unreachable(_))), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lying_member_list_is_told_by_the_node_that_lies_only() {
    let sim = Sim::start(|_| {}).await;
    let truth = sim.members().await;
    sim.node("cp-1").lie_member_list(Some(truth[..1].to_vec()));
    assert_eq!(
        sim.client("cp-1").etcd_members(false).await.unwrap().len(),
        1
    );
    assert_eq!(
        sim.client("cp-2").etcd_members(false).await.unwrap().len(),
        3
    );
    sim.node("cp-1").lie_member_list(None);
    assert_eq!(
        sim.client("cp-1").etcd_members(false).await.unwrap().len(),
        3
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gone_disk_cannot_be_wiped_and_does_not_boot() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    sim.node("worker-1").disk_gone();
    assert!(Partitions::for_maintenance(&client.volume_statuses().await.unwrap()).is_err());
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    let refused = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap_err();
    assert!(matches!(refused, CallError::Refused { .. }), "{refused:?}");
    sim.node("worker-1").power_cycle().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(
        client.version().await,
        Err(CallError::Unreachable(_))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_etcd_outlives_its_simulation() {
    let sim = Sim::start(|_| {}).await;
    let data = sim._dir.path().to_string_lossy().into_owned();
    let running = |data: &str| {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let with = |path: PathBuf| {
            std::fs::read(path.join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(data))
        };
        processes.filter(|entry| with(entry.path())).count()
    };
    assert!(running(&data) >= 3);
    drop(sim);
    until(SOON, "the etcd processes to end", async || {
        match running(&data) {
            0 => Ok(()),
            count => Err(format!("{count} still run")),
        }
    })
    .await
    .unwrap();
}
