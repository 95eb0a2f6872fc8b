//! What a bed is made of.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::controlplane::users::User;
use crate::kubelet::KubeletOptions;

/// Where the API server stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum EtcdMode {
    /// In an etcd of its own: the simulated cluster may lose its quorum, the API stays.
    #[default]
    Separate,
    /// In the very etcd that the simulated control planes run.
    Shared,
}

/// On which nodes the agent's pods are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AgentPlacement {
    /// On a Node of the bed's own, which no machine is: a removal never meets them.
    #[default]
    Aside,
    /// Where the scheduler puts them: on the cluster's own nodes, as in production.
    Nodes,
}

/// Takes each line of progress.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// What a bed is made of, and how fast its stand-ins are.
#[derive(Clone)]
pub struct BedOptions {
    /// Approved control planes, 1 or more; a spare one is always there besides.
    pub control_planes: usize,
    /// Workers.
    pub workers: usize,
    /// The Talos release that the nodes behave like: `1.13` or `1.14`.
    pub talos: String,
    /// Where the API server stores.
    pub etcd: EtcdMode,
    /// How many agents run: 0 to 2. With none there is no webhook either.
    pub agents: usize,
    /// Further arguments of the agent (`--lease-duration=3s`, `--divide-durations=60`).
    pub agent_args: Vec<String>,
    /// Features that the agent is built with, besides `failpoints`.
    pub agent_features: Vec<String>,
    /// On which nodes the agent's pods are.
    pub agent_placement: AgentPlacement,
    /// How long a Node may go without a sign of life until it is `Unknown`.
    pub node_monitor_grace: Duration,
    /// How the kubelet stand-in behaves.
    pub kubelet: KubeletOptions,
    /// How long things take on the simulated machines.
    pub timings: crate::sim::Timings,
    /// Users besides `admin`, `editor` and `viewer`.
    pub users: Vec<User>,
    /// The folder that the bed lives in; without it a temporary one, which goes with the bed.
    pub state: Option<PathBuf>,
    /// Whether to wait at the start until the agent has adopted every approved machine.
    pub wait_for_adoption: bool,
    /// Takes each line of progress.
    pub progress: Progress,
}

impl Default for BedOptions {
    fn default() -> Self {
        Self {
            control_planes: 3,
            workers: 2,
            talos: "1.14".to_owned(),
            etcd: EtcdMode::Separate,
            agents: 1,
            agent_args: Vec::new(),
            agent_features: Vec::new(),
            agent_placement: AgentPlacement::Aside,
            node_monitor_grace: Duration::from_secs(5),
            kubelet: KubeletOptions::default(),
            timings: crate::sim::Timings::default(),
            users: Vec::new(),
            state: None,
            wait_for_adoption: true,
            progress: Arc::new(|line| tracing::info!("{line}")),
        }
    }
}

impl BedOptions {
    /// `spec.controlPlane.count` of the cluster: the largest of 1, 3 and 5 that is not
    /// above the number of control planes; 3 for two, which is a cluster on its way.
    pub fn declared_count(&self) -> i32 {
        match self.control_planes {
            0 | 1 => 1,
            2..=4 => 3,
            _ => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_declared_count_is_the_largest_odd_one_that_there_is() {
        let of = |control_planes| {
            BedOptions {
                control_planes,
                ..BedOptions::default()
            }
            .declared_count()
        };
        let counts: Vec<i32> = (1..=7).map(of).collect();
        assert_eq!(counts, [1, 3, 3, 3, 5, 5, 5]);
    }
}
