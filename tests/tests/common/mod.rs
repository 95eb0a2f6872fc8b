//! The stage of the end-to-end tests: a whole bed, and hands for a person's part in it.
//!
//! The tests of one binary share a bed and run one after another. Each begins on the same
//! stage: three approved control planes that vote, one in maintenance with an unapproved
//! TalosMachine, the workers approved, nothing cordoned, the lock free. Which box is the
//! one in maintenance differs from test to test: a removed box is the next one's spare.

#![allow(dead_code, unused_imports, reason = "each binary uses what it needs")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]
#![allow(clippy::panic, reason = "a test that cannot go on fails there")]

mod hands;
mod objects;
mod pods;
mod restore;
mod waits;

use std::time::Duration;

use ichor_api::{TalosCluster, TalosMachine, names};
use ichor_tests::bed::objects::{CLUSTER, NAMESPACE};
use ichor_tests::bed::{Bed, BedOptions};
use ichor_tests::shared::SharedBed;
use ichor_tests::sim::{Call, Node as Machine, Role};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};

pub use hands::{Ran, leave as leave_by_hand, reset as reset_by_hand};
pub use objects::denied;
pub use pods::WORK;

/// The bound of a wait whose end is a matter of seconds on an idle machine.
pub const SOON: Duration = Duration::from_secs(120);

/// Calls that change a machine or its etcd.
pub const CHANGING: [&str; 9] = [
    "EtcdForfeitLeadership",
    "EtcdLeaveCluster",
    "EtcdRemoveMemberByID",
    "EtcdRecover",
    "Bootstrap",
    "Reset",
    "Reboot",
    "Shutdown",
    "ApplyConfiguration",
];

/// A bed whose agent waits a sixtieth of what it does in production.
///
/// Times that are bounded by how fast this machine works (the lock's and the election's
/// Lease, the looks that a wait is counted by) shrink less.
pub fn options() -> BedOptions {
    let args = [
        "--divide-durations=60",
        "--lease-duration=20s",
        "--lease-renew=4s",
        "--election-duration=10s",
        "--election-renew=2s",
        "--observe=2s",
    ];
    BedOptions {
        agent_args: args.map(str::to_owned).to_vec(),
        // Kept where somebody wants to look at the logs afterwards.
        state: std::env::var_os("ICHOR_BED_STATE").map(Into::into),
        ..BedOptions::default()
    }
}

/// Runs a test on the stage.
pub fn on_stage(shared: &'static SharedBed, test: impl AsyncFnOnce(&Stage)) {
    shared.run(async |bed| {
        let _one_at_a_time = shared.lock().await;
        let stage = Stage::set(bed).await;
        test(&stage).await;
    });
}

/// The bed, and who is who on it as the test begins.
pub struct Stage {
    pub bed: &'static Bed,
    /// An administrator: holds `override`.
    pub admin: Client,
    /// The three control planes that vote.
    pub voters: [String; 3],
    /// The one in maintenance.
    pub spare: String,
    calls_before: usize,
    requests_before: usize,
}

impl Stage {
    async fn set(bed: &'static Bed) -> Self {
        let admin = bed.client("admin").await.unwrap();
        let (voters, spare) = restore::restore(bed, &admin).await;
        Self {
            bed,
            admin,
            voters,
            spare,
            calls_before: bed.sim().calls().len(),
            requests_before: bed.proxy().log().len(),
        }
    }

    pub fn machines(&self) -> Api<TalosMachine> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub fn clusters(&self) -> Api<TalosCluster> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.admin.clone())
    }

    /// A simulated machine.
    pub fn box_of(&self, name: &str) -> &'static std::sync::Arc<Machine> {
        self.bed.node(name).unwrap()
    }

    pub async fn machine(&self, name: &str) -> TalosMachine {
        self.machines().get(name).await.unwrap()
    }

    pub async fn cluster(&self) -> TalosCluster {
        self.clusters().get(CLUSTER).await.unwrap()
    }

    /// Who holds the cluster lock; none where nobody does.
    pub async fn lock_holder(&self) -> Option<String> {
        let leases: Api<Lease> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let lease = leases.get_opt(&names::lease_name(CLUSTER)).await.unwrap();
        lease?
            .spec?
            .holder_identity
            .filter(|holder| !holder.is_empty())
    }

    /// Every Talos call since the test began.
    pub fn calls(&self) -> Vec<Call> {
        self.bed.sim().calls().split_off(self.calls_before)
    }

    /// Those that changed something, or were meant to, as `METHOD of NODE`, in the order
    /// of their arrival.
    pub fn changing_calls(&self) -> Vec<String> {
        self.calls()
            .iter()
            .filter(|call| CHANGING.contains(&call.method.as_str()))
            .map(|call| format!("{} of {}", call.method, call.node))
            .collect()
    }

    /// Every call of a method since the test began.
    pub fn calls_of(&self, method: &str) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|call| call.method == method);
        calls
    }

    /// Requests to the API server through the proxy (the agent's) since the test began.
    pub fn requests(&self) -> Vec<ichor_tests::proxy::log::ApiRequest> {
        self.bed.proxy().log().since(self.requests_before)
    }

    /// Names of etcd's voters that have started, sorted.
    pub async fn etcd_voters(&self) -> Vec<String> {
        voters_of(self.bed).await
    }
}

pub(crate) async fn voters_of(bed: &Bed) -> Vec<String> {
    let members = ichor_tests::wait::until(SOON, "a member list with a leader", async || {
        bed.etcd_members().await.map_err(|e| e.to_string())
    })
    .await
    .unwrap();
    let mut names: Vec<String> = members
        .into_iter()
        .filter(|m| m.started && !m.learner)
        .map(|m| m.name)
        .collect();
    names.sort();
    names
}

pub(crate) fn control_planes(bed: &'static Bed) -> Vec<&'static std::sync::Arc<Machine>> {
    let all = bed.sim().nodes().iter();
    all.filter(|n| n.role == Role::ControlPlane).collect()
}
