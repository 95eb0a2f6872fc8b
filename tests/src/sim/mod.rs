//! Simulated Talos machines over a real etcd.
//!
//! Each machine has an address of its own in 127.0.0.0/8: Talos' API on port 50000 over mTLS with
//! certificates made like Talos', and behind each control plane a real etcd process on ports 2379
//! and 2380. What a machine does when it is told to leave, to reset or to reboot, and what it does
//! when its power goes or comes, follows Talos' own code (facts: talos.md), traps included; only
//! the times are shorter ([`Timings`]).
//!
//! ```no_run
//! # async fn example() -> ichor_tests::Result<()> {
//! use ichor_tests::sim::{SimCluster, SimOptions};
//! # let (dir, supervisor, etcd): (std::path::PathBuf, _, std::path::PathBuf) = todo!();
//! let cluster = SimCluster::start(SimOptions::new(dir, supervisor, etcd)).await?;
//! let target = cluster.node("cp-2")?;
//! target.power_off().await;
//! println!("{}", cluster.talosconfig()?);
//! # Ok(()) }
//! ```

mod apid;
mod calls;
mod certs;
mod etcd;
mod etcd_service;
mod events;
mod node;
mod options;
mod sequence;
mod wire;

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use jiff::{SignedDuration, Timestamp};

pub use calls::Call;
pub use etcd::{EtcdClient, EtcdError, Member, MemberStatus};
pub use node::{Fault, Node, NodeState, Role};
pub use options::{SimOptions, TalosVersion, Timings};

use self::calls::CallLog;
use self::certs::TalosCa;
use self::etcd_service::Start;
use self::node::Plan;
use crate::error::{BedError, Result};
use crate::wait;

/// The port of Talos' API.
pub const TALOS_PORT: u16 = 50000;

/// Most machines that fit into one cluster's addresses.
const MOST: usize = 200;

/// What all machines of a cluster share.
struct Shared {
    options: SimOptions,
    ca: TalosCa,
    calls: CallLog,
    etcd: EtcdClient,
    /// Keeps members of different simulated clusters apart.
    token: String,
    nodes: Vec<Arc<Node>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// A simulated cluster. Dropping it ends everything in it.
#[derive(Debug)]
pub struct SimCluster {
    shared: Arc<Shared>,
    subnet: [u8; 2],
}

impl SimCluster {
    /// Starts the machines, all at once, and waits until they run: the control planes as one etcd
    /// with a leader. Errors: no addresses are free, etcd does not come up.
    pub async fn start(options: SimOptions) -> Result<Self> {
        let control_planes = options.control_planes + usize::from(options.spare);
        let count = control_planes + options.workers;
        if count > MOST {
            return Err(BedError::Refused(format!(
                "{count} simulated machines are more than {MOST}"
            )));
        }
        let subnet = free_subnet(count)?;
        let address = |index: usize| {
            let last = u8::try_from(index + 1).unwrap_or(u8::MAX);
            Ipv4Addr::new(127, subnet[0], subnet[1], last)
        };
        let initial: Vec<(String, String)> = (0..options.control_planes)
            .map(|index| {
                (
                    format!("cp-{}", index + 1),
                    format!("http://{}:2380", address(index)),
                )
            })
            .collect();
        let plan = |index: usize| {
            let (name, role) = if index < control_planes {
                (format!("cp-{}", index + 1), Role::ControlPlane)
            } else {
                (
                    format!("worker-{}", index - control_planes + 1),
                    Role::Worker,
                )
            };
            let configured = index < options.control_planes || role == Role::Worker;
            Plan {
                dir: options.dir.join(&name),
                name,
                role,
                address: address(index),
                configured,
                start: match (configured, options.bootstrapped) {
                    (true, true) => Start::New(initial.clone()),
                    (true, false) => Start::Await,
                    (false, _) => Start::Join,
                },
                timings: options.timings,
                version: options.version,
                etcd_partition: options.etcd_partition,
            }
        };
        let plans: Vec<Plan> = (0..count).map(plan).collect();
        let ca = TalosCa::new()?;
        let shared = Arc::new_cyclic(|shared| Shared {
            ca,
            calls: CallLog::default(),
            etcd: EtcdClient::new(),
            token: node::uuid(),
            nodes: plans
                .into_iter()
                .map(|plan| Node::new(shared, plan))
                .collect(),
            options,
        });
        let cluster = Self { shared, subnet };
        for node in cluster.nodes() {
            // What an earlier simulation left on the disk is not this one's.
            node.etcd.wipe();
            node.power_on().await;
        }
        if cluster.shared.options.bootstrapped {
            cluster.until_settled(Duration::from_mins(1)).await?;
        }
        Ok(cluster)
    }

    /// Waits until every machine that has power is what it is meant to be: in maintenance or
    /// running, its etcd voting.
    pub async fn until_settled(&self, limit: Duration) -> Result<()> {
        for node in self.nodes() {
            wait::until(limit, &format!("{} to be up", node.name), async || {
                let state = node.now();
                if !state.powered || state.stage == ichor_talos::Stage::Maintenance {
                    return Ok(());
                }
                node.joined().await
            })
            .await?;
        }
        Ok(())
    }

    /// All machines: control planes, the spare, workers.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.shared.nodes
    }

    /// The machine of this name (`cp-1`, `worker-1`, …).
    pub fn node(&self, name: &str) -> Result<&Arc<Node>> {
        self.nodes()
            .iter()
            .find(|node| node.name == name)
            .ok_or_else(|| {
                let known: Vec<&str> = self.nodes().iter().map(|node| node.name.as_str()).collect();
                BedError::Unknown {
                    kind: "node",
                    name: name.to_owned(),
                    known: known.join(", "),
                }
            })
    }

    /// An address of this cluster's range that no machine has.
    pub fn spare_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, self.subnet[0], self.subnet[1], 250)
    }

    /// A talosconfig for administrators (`os:admin`), good for a year.
    pub fn talosconfig(&self) -> Result<String> {
        self.talosconfig_for(
            "os:admin",
            Timestamp::now() + SignedDuration::from_hours(24 * 365),
        )
    }

    /// A talosconfig with another role, or whose certificate ends at another time.
    pub fn talosconfig_for(&self, role: &str, until: Timestamp) -> Result<String> {
        let endpoints: Vec<String> = self
            .nodes()
            .iter()
            .filter(|node| node.is_control_plane())
            .map(|node| node.address().to_string())
            .collect();
        self.shared
            .ca
            .talosconfig("simulated", role, &endpoints, until)
    }

    /// A talosconfig in every way right, but of another cluster with the same addresses.
    pub fn foreign_talosconfig(&self) -> Result<String> {
        let endpoints: Vec<String> = self
            .nodes()
            .iter()
            .map(|node| node.address().to_string())
            .collect();
        TalosCa::new()?.talosconfig(
            "foreign",
            "os:admin",
            &endpoints,
            Timestamp::now() + SignedDuration::from_hours(24),
        )
    }

    /// Every call that reached a machine, in the order of arrival.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.all()
    }

    /// etcd's members, asked from etcd itself through any member that has a leader.
    pub async fn etcd_members(&self) -> Result<Vec<Member>> {
        let urls = self.shared.reachable_etcds(None);
        let asked = urls
            .iter()
            .map(|(_, url)| self.shared.etcd.members(url, true).boxed());
        first_ok(asked).await.map_err(|error| {
            BedError::Refused(format!("no etcd member with a leader answers: {error}"))
        })
    }

    /// What each etcd that can be reached says of itself, by node name.
    pub async fn etcd_statuses(&self) -> Vec<(String, MemberStatus)> {
        let asked = self
            .shared
            .reachable_etcds(None)
            .into_iter()
            .map(|(name, url)| async move {
                let status = self.shared.etcd.status(&url).await.ok()?;
                Some((name, status))
            });
        futures::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect()
    }

    /// Where clients reach etcd, the spare's included: a list that is right from the start and stays so.
    pub fn etcd_client_urls(&self) -> Vec<String> {
        self.nodes()
            .iter()
            .filter(|node| node.role == Role::ControlPlane)
            .map(|node| node.client_url())
            .collect()
    }
}

impl Drop for SimCluster {
    fn drop(&mut self) {
        for node in &self.shared.nodes {
            lock(&node.inner).life.cancel();
            node.etcd.abandon();
        }
    }
}

impl Shared {
    /// The etcds that can be reached from `from` (or from outside), by node name and URL.
    fn reachable_etcds(&self, from: Option<&Node>) -> Vec<(String, String)> {
        let alone = from.is_some_and(Node::is_cut);
        self.nodes
            .iter()
            .filter(|node| node.role == Role::ControlPlane && node.etcd.is_reachable())
            .filter(|node| !alone || from.is_some_and(|from| from.name == node.name))
            .map(|node| (node.name.clone(), node.client_url()))
            .collect()
    }

    /// A voter that has a leader, seen from `from`; if possible not the member `but`, nor `from` itself.
    async fn etcd_with_leader(&self, from: &Node, but: Option<u64>) -> Result<String, EtcdError> {
        let asked = self
            .reachable_etcds(Some(from))
            .into_iter()
            .map(|(name, url)| async move {
                let status = self.etcd.status(&url).await.ok()?;
                let good = !status.learner && status.leader != 0;
                good.then_some((name == from.name || Some(status.member_id) == but, url))
            });
        let mut found: Vec<_> = futures::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect();
        found.sort();
        found
            .into_iter()
            .next()
            .map(|(_, url)| url)
            .ok_or_else(|| EtcdError::Silent("etcdserver: no leader".to_owned()))
    }
}

/// The first success among questions asked at once; else the last failure.
async fn first_ok<T, E: From<EtcdError>>(
    asked: impl IntoIterator<Item = futures::future::BoxFuture<'_, Result<T, E>>>,
) -> Result<T, E> {
    let asked: Vec<_> = asked.into_iter().collect();
    if asked.is_empty() {
        return Err(EtcdError::Silent("no etcd runs".to_owned()).into());
    }
    futures::future::select_ok(asked)
        .await
        .map(|(value, _)| value)
}

/// The two middle bytes of a range in 127.0.0.0/8 whose first `count` addresses are free.
fn free_subnet(count: usize) -> Result<[u8; 2]> {
    for _ in 0..200 {
        let subnet = [rand::random_range(1..=254), rand::random_range(0..=255)];
        let free = (0..count).all(|index| {
            let last = u8::try_from(index + 1).unwrap_or(u8::MAX);
            wire::free(
                Ipv4Addr::new(127, subnet[0], subnet[1], last),
                &[TALOS_PORT, 2379, 2380],
            )
        });
        if free {
            return Ok(subnet);
        }
    }
    Err(BedError::Refused(
        "no free range of addresses in 127.0.0.0/8; is loopback up with its /8?".to_owned(),
    ))
}

/// A lock whose holder panicked is taken as it is: the panic has failed the test already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
