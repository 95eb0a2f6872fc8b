//! A simulated cluster for one test, and permits without a cluster around them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ichor_lock::testing::MemoryStore;
use ichor_lock::{
    BootClock, DisruptiveLock, Durations, LeaseStore, LockManager, Operation, Permit,
    UnsettledIntent, View, ViewError,
};
use ichor_talos::proto::machine::machine_service_client::MachineServiceClient;
use ichor_talos::{MemberId, Partitions, Stage, TalosClient, TalosConfig};
use ichor_tests::assets::ControlPlanePrograms;
use ichor_tests::process::Supervisor;
use ichor_tests::sim::{Call, Member, Node, SimCluster, SimOptions};
use ichor_tests::wait::until;
use jiff::Timestamp;
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

pub const SOON: Duration = Duration::from_mins(1);
pub const CALL: Duration = Duration::from_secs(30);

/// A simulated cluster in a folder of its own.
pub struct Sim {
    pub cluster: SimCluster,
    pub config: TalosConfig,
    pub gate: Gate,
    pub dir: TempDir,
}

impl Sim {
    pub async fn start(change: impl FnOnce(&mut SimOptions)) -> Self {
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
            dir,
        }
    }

    pub fn node(&self, name: &str) -> &Arc<Node> {
        self.cluster.node(name).unwrap()
    }

    pub fn client(&self, name: &str) -> TalosClient {
        TalosClient::connect(&self.config, &self.node(name).address().to_string()).unwrap()
    }

    /// Talos' calls without our client's care.
    pub async fn raw(&self, name: &str) -> MachineServiceClient<Channel> {
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
    pub async fn members(&self) -> Vec<Member> {
        until(SOON, "a member list", async || {
            self.cluster.etcd_members().await.map_err(|e| e.to_string())
        })
        .await
        .unwrap()
    }

    pub async fn member_id(&self, name: &str) -> MemberId {
        let members = self.members().await;
        members
            .iter()
            .find(|member| member.name == name)
            .unwrap()
            .id
            .parse()
            .unwrap()
    }

    pub fn calls(&self, method: &str) -> Vec<Call> {
        self.cluster
            .calls()
            .into_iter()
            .filter(|call| call.method == method)
            .collect()
    }

    pub async fn until_stage(&self, name: &str, stage: Stage) {
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

    pub async fn until_voters(&self, count: usize) {
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
    pub async fn until_removals_pass(&self) {
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
}

/// Permits without a cluster around them.
pub struct Gate {
    pub lock: DisruptiveLock,
    pub store: Arc<MemoryStore>,
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
    pub async fn open() -> Self {
        let operation = Operation {
            kind: "TalosMachine".to_owned(),
            name: "test".to_owned(),
            namespace: "default".to_owned(),
            uid: "1".to_owned(),
            purpose: "removal".to_owned(),
        };
        // Looks after its Lease often, so that a loss is noticed at once.
        let durations = Durations {
            renew: Duration::from_millis(300),
            ..Durations::default()
        };
        let manager = LockManager::new("test", Arc::new(BootClock), durations);
        let store = Arc::new(MemoryStore::new());
        let lease: Arc<dyn LeaseStore> = store.clone();
        let lock = ichor_lock::acquire_disruptive(&manager, lease, &Calm, &operation, true)
            .await
            .unwrap();
        Self { lock, store }
    }

    pub async fn permit(&mut self) -> Permit<'_> {
        let intent = self.lock.mark_intent();
        self.lock
            .permit("test", &BTreeMap::new(), intent)
            .await
            .unwrap()
    }
}

pub fn keep_os() -> Partitions {
    Partitions::new(["STATE", "EPHEMERAL"]).unwrap()
}
