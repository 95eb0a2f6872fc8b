//! One simulated machine: its disk, its power, its line, its services, and what can be done to it
//! from outside.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ichor_talos::proto::{machine, specs};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::apid;
use super::etcd::Member;
use super::etcd_service::{EtcdService, Start};
use super::events::{EventBus, Payload};
use super::options::{TalosVersion, Timings};
use super::{Shared, lock};
use crate::error::{BedError, Result};
use crate::wait;

/// What a machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs etcd.
    ControlPlane,
    /// Does not.
    Worker,
}

/// A machine as its surroundings see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Its host name, and that of its Kubernetes node.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Where it answers.
    pub address: Ipv4Addr,
    /// It has power.
    pub powered: bool,
    /// Nobody reaches it, and it reaches nobody.
    pub cut: bool,
    /// What it is doing.
    pub stage: ichor_talos::Stage,
    /// It has a configuration of this cluster.
    pub configured: bool,
    /// Its kubelet runs and can reach the API server.
    pub in_cluster: bool,
    /// The kernel's ID of this boot.
    pub boot_id: String,
    /// Talos' ID of this installation; none without a configuration.
    pub node_id: Option<String>,
}

/// What a call is made to suffer, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is carried out, and answered only when the caller has given up.
    AnswerLate,
    /// It is carried out this much later, whether or not the caller still waits.
    ActLate(Duration),
    /// It is not carried out, and answered in etcd's words when it loses connections:
    /// `etcdserver: unhealthy cluster`.
    UnhealthyCluster,
}

/// A sequence under way.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) name: &'static str,
    pub(super) cancel: CancellationToken,
    pub(super) done: CancellationToken,
}

#[derive(Debug)]
pub(super) struct Disk {
    /// It gives errors.
    pub(super) broken: bool,
    /// An operating system is on it.
    pub(super) os: bool,
    /// STATE: the installation's ID, where it is configured.
    pub(super) node_id: Option<String>,
    /// EPHEMERAL is there.
    pub(super) ephemeral: bool,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) address: Ipv4Addr,
    pub(super) powered: bool,
    pub(super) boot_id: String,
    pub(super) boot_time: u64,
    pub(super) stage: specs::MachineStage,
    pub(super) ready: bool,
    pub(super) kubelet: bool,
    pub(super) sequence: Option<Running>,
    pub(super) reset_signal: bool,
    pub(super) disk: Disk,
    pub(super) events: EventBus,
    pub(super) slow: Duration,
    pub(super) platform_config: bool,
    pub(super) lying_list: Option<Vec<machine::EtcdMember>>,
    pub(super) lock_next_reset: bool,
    pub(super) faults: BTreeMap<String, Fault>,
    /// Ends with this boot.
    pub(super) life: CancellationToken,
    /// Ends with this listener.
    pub(super) api: CancellationToken,
    /// The last order from outside was "on".
    pub(super) wanted: bool,
    /// etcd, at the next start without data.
    pub(super) start: Start,
}

/// A simulated machine.
#[derive(Debug)]
pub struct Node {
    /// Its host name, etcd member name, and that of its Kubernetes node.
    pub name: String,
    /// What it is, or is to become.
    pub role: Role,
    /// The board's number.
    pub hardware_uuid: String,
    pub(super) inner: Mutex<Inner>,
    pub(super) etcd: Arc<EtcdService>,
    pub(super) cut: watch::Sender<bool>,
    /// Held while the machine starts or stops.
    pub(super) power: tokio::sync::Mutex<()>,
    etcd_address: Ipv4Addr,
    shared: Weak<Shared>,
    state: watch::Sender<NodeState>,
    timings: Timings,
    version: TalosVersion,
    etcd_partition: bool,
}

impl Node {
    pub(super) fn new(shared: &Weak<Shared>, plan: Plan) -> Arc<Self> {
        let inner = Inner {
            address: plan.address,
            powered: false,
            boot_id: String::new(),
            boot_time: 0,
            stage: specs::MachineStage::Unknown,
            ready: false,
            kubelet: false,
            sequence: None,
            reset_signal: false,
            disk: Disk {
                broken: false,
                os: true,
                node_id: plan.configured.then(node_id),
                ephemeral: plan.configured,
            },
            events: EventBus::default(),
            slow: Duration::ZERO,
            platform_config: false,
            lying_list: None,
            lock_next_reset: false,
            faults: BTreeMap::new(),
            life: CancellationToken::new(),
            api: CancellationToken::new(),
            wanted: false,
            start: plan.start,
        };
        let state = NodeState {
            name: plan.name.clone(),
            role: plan.role,
            address: plan.address,
            powered: false,
            cut: false,
            stage: ichor_talos::Stage::Unknown,
            configured: plan.configured,
            in_cluster: false,
            boot_id: String::new(),
            node_id: inner.disk.node_id.clone(),
        };
        let etcd = Arc::new(EtcdService::new(plan.dir.join("etcd")));
        Arc::new(Self {
            name: plan.name,
            role: plan.role,
            hardware_uuid: uuid(),
            inner: Mutex::new(inner),
            etcd,
            cut: watch::Sender::new(false),
            power: tokio::sync::Mutex::new(()),
            etcd_address: plan.address,
            shared: shared.clone(),
            state: watch::Sender::new(state),
            timings: plan.timings,
            version: plan.version,
            etcd_partition: plan.etcd_partition,
        })
    }

    pub(super) fn cluster(&self) -> Option<Arc<Shared>> {
        self.shared.upgrade()
    }

    pub(super) fn timings(&self) -> Timings {
        self.timings
    }

    pub(super) fn version(&self) -> TalosVersion {
        self.version
    }

    /// etcd's data lies on a partition of its own.
    pub(super) fn has_etcd_partition(&self) -> bool {
        self.etcd_partition && self.role == Role::ControlPlane
    }

    pub(super) fn peer_url(&self) -> String {
        format!("http://{}:2380", self.etcd_address)
    }

    /// Where clients reach its etcd, while that runs.
    pub fn client_url(&self) -> String {
        format!("http://{}:2379", self.etcd_address)
    }

    pub(super) fn disk_is_broken(&self) -> bool {
        lock(&self.inner).disk.broken
    }

    pub(super) fn is_configured(&self) -> bool {
        lock(&self.inner).disk.node_id.is_some()
    }

    /// It takes part in the cluster's etcd, as far as its configuration goes.
    pub(super) fn is_control_plane(&self) -> bool {
        self.role == Role::ControlPlane && self.is_configured()
    }

    pub(super) fn is_cut(&self) -> bool {
        *self.cut.borrow()
    }

    /// Changes the machine, and tells those who follow it.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let result = change(&mut lock(&self.inner));
        self.touch();
        result
    }

    /// Tells those who follow the machine what it looks like now.
    pub(super) fn touch(&self) {
        let state = {
            let inner = lock(&self.inner);
            let configured = inner.disk.node_id.is_some();
            NodeState {
                name: self.name.clone(),
                role: self.role,
                address: inner.address,
                powered: inner.powered,
                cut: self.is_cut(),
                stage: ichor_talos::Stage::from(i32::from(inner.stage)),
                configured,
                in_cluster: inner.powered && configured && inner.kubelet && !self.is_cut(),
                boot_id: inner.boot_id.clone(),
                node_id: inner.disk.node_id.clone(),
            }
        };
        self.state.send_if_modified(|before| {
            let changed = *before != state;
            *before = state;
            changed
        });
    }

    pub(super) fn publish<P: Payload>(&self, actor: &str, payload: &P) {
        lock(&self.inner).events.publish(actor, payload);
    }

    pub(super) fn set_stage(&self, stage: specs::MachineStage, ready: bool) {
        self.update(|inner| {
            inner.stage = stage;
            inner.ready = ready;
        });
        self.publish(
            "",
            &machine::MachineStatusEvent {
                stage: stage.into(),
                status: Some(machine::machine_status_event::MachineStatus {
                    ready,
                    unmet_conditions: Vec::new(),
                }),
            },
        );
    }

    /// Opens the API as the machine is now: for members of its cluster, or in maintenance.
    pub(super) async fn open_api(self: &Arc<Self>) -> Result<()> {
        let Some(cluster) = self.cluster() else {
            return Ok(());
        };
        let (address, configured, token) = {
            let mut inner = lock(&self.inner);
            inner.api.cancel();
            inner.api = inner.life.child_token();
            (
                inner.address,
                inner.disk.node_id.is_some(),
                inner.api.clone(),
            )
        };
        let tls = if configured {
            cluster.ca.configured(&self.name, address)?
        } else {
            super::certs::TalosCa::maintenance(&self.name, address)?
        };
        apid::serve(self, address, tls, configured, token).await
    }

    pub(super) fn close_api(&self) {
        lock(&self.inner).api.cancel();
    }

    // --- From outside

    /// Follows the machine.
    pub fn state(&self) -> watch::Receiver<NodeState> {
        self.state.subscribe()
    }

    /// The machine as it is now.
    pub fn now(&self) -> NodeState {
        self.state.borrow().clone()
    }

    /// Where it answers.
    pub fn address(&self) -> Ipv4Addr {
        lock(&self.inner).address
    }

    /// Takes the power away.
    pub async fn power_off(self: &Arc<Self>) {
        lock(&self.inner).wanted = false;
        let _power = self.power.lock().await;
        self.go_down(false).await;
    }

    /// Gives it power; it boots from what its disk holds. Returns at once.
    pub async fn power_on(self: &Arc<Self>) {
        lock(&self.inner).wanted = true;
        let _power = self.power.lock().await;
        if !lock(&self.inner).powered {
            self.boot();
        }
    }

    /// Takes the power away and gives it again, whatever it was doing.
    pub async fn power_cycle(self: &Arc<Self>) {
        self.power_off().await;
        self.power_on().await;
    }

    /// Cuts its line: connections stay, and nothing passes. Its etcd can say nothing either.
    pub fn cut(&self) {
        self.cut.send_replace(true);
        self.etcd.cut(true);
        self.touch();
    }

    /// Heals its line; what was on its way arrives.
    pub fn heal(&self) {
        self.cut.send_replace(false);
        self.etcd.cut(false);
        self.touch();
    }

    /// Every call takes this much longer.
    pub fn slow(&self, by: Duration) {
        lock(&self.inner).slow = by;
    }

    /// Kills its etcd and keeps it from being started again.
    pub fn etcd_stop(&self) {
        self.etcd.hold(true);
    }

    /// Lets its etcd start again.
    pub fn etcd_start(&self) {
        self.etcd.hold(false);
    }

    /// Stops its etcd in the middle of what it does (SIGSTOP): unlike a dead one it keeps its
    /// connections, so that the others take it for alive for a while.
    pub fn etcd_freeze(&self) {
        self.etcd.freeze(true);
    }

    /// Lets a frozen etcd go on.
    pub fn etcd_thaw(&self) {
        self.etcd.freeze(false);
    }

    /// A member that joins stays a learner while this is set.
    pub fn hold_learner(&self, hold: bool) {
        self.etcd.hold_learner(hold);
    }

    /// The disk fails: its etcd dies, nothing can be wiped, and it does not boot again.
    pub fn disk_gone(&self) {
        self.update(|inner| inner.disk.broken = true);
        self.etcd.hold(true);
        self.etcd.hold(false);
        self.etcd.wipe();
    }

    /// Whether a configuration comes from its platform, so that it does not stop in maintenance
    /// when its own is wiped.
    pub fn set_platform_config(&self, present: bool) {
        lock(&self.inner).platform_config = present;
    }

    /// From now on it answers at another address, as after a new DHCP lease. Its etcd stays where
    /// it was: that address is in the member list. Errors: something listens there.
    pub async fn change_address(self: &Arc<Self>, address: Ipv4Addr) -> Result<()> {
        let open = self.update(|inner| {
            inner.address = address;
            !inner.api.is_cancelled()
        });
        if open { self.open_api().await } else { Ok(()) }
    }

    /// Its answers to EtcdMemberList are these from now on; none: the truth again.
    pub fn lie_member_list(&self, members: Option<Vec<Member>>) {
        let members = members.map(|members| {
            members
                .into_iter()
                .map(|member| machine::EtcdMember {
                    id: member.number,
                    hostname: member.name,
                    peer_urls: member.peer_urls,
                    client_urls: member.client_urls,
                    is_learner: member.learner,
                })
                .collect()
        });
        lock(&self.inner).lying_list = members;
    }

    /// The next reset is accepted and then locked out, as by a sequence that runs.
    pub fn lock_next_reset(&self) {
        lock(&self.inner).lock_next_reset = true;
    }

    /// The next call of `method` suffers this.
    pub fn fault(&self, method: &str, fault: Fault) {
        lock(&self.inner).faults.insert(method.to_owned(), fault);
    }

    /// The next call of `method` is carried out, and answered when the caller has given up.
    pub fn answer_after_deadline(&self, method: &str) {
        self.fault(method, Fault::AnswerLate);
    }

    /// Does what a person does with talosctl on a machine in maintenance: gives it its
    /// configuration, and waits until it runs and, as a control plane, votes.
    pub async fn join(self: &Arc<Self>) -> Result<()> {
        let stage = self.now().stage;
        if stage != ichor_talos::Stage::Maintenance {
            return Err(BedError::Refused(format!(
                "{} is not in maintenance but at stage {stage}; only a machine without configuration can join",
                self.name
            )));
        }
        self.configure();
        wait::until(
            Duration::from_secs(90),
            &format!("{} to join the cluster", self.name),
            async || self.joined().await,
        )
        .await
    }

    pub(super) async fn joined(&self) -> Result<(), String> {
        let state = self.now();
        if state.stage != ichor_talos::Stage::Running {
            let (etcd, _, message) = self.etcd.view();
            return Err(format!(
                "stage {}, etcd {}: {message}",
                state.stage,
                etcd.name()
            ));
        }
        if self.role == Role::Worker {
            return Ok(());
        }
        let Some(cluster) = self.cluster() else {
            return Err("the simulation is over".to_owned());
        };
        match cluster.etcd.status(&self.client_url()).await {
            Ok(status) if status.learner => Err("its etcd is still a learner".to_owned()),
            Ok(status) if status.leader == 0 => Err("its etcd knows no leader".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What a machine starts as.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) address: Ipv4Addr,
    pub(super) configured: bool,
    pub(super) start: Start,
    pub(super) dir: PathBuf,
    pub(super) timings: Timings,
    pub(super) version: TalosVersion,
    pub(super) etcd_partition: bool,
}

/// A random UUID.
pub(super) fn uuid() -> String {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = bytes.map(|byte| format!("{byte:02x}")).concat();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// An installation's ID in Talos' form.
pub(super) fn node_id() -> String {
    const DIGITS: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    (0..44)
        .map(|_| char::from(DIGITS[rand::random_range(0..DIGITS.len())]))
        .collect()
}

pub(super) fn now_seconds() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or_default()
}
