//! How a simulated cluster is made.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::process::Supervisor;

/// A release of Talos, as far as the simulation tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TalosVersion {
    /// v1.13: no boot ID among the resources.
    V1_13,
    /// v1.14: boot ID, and services' folders as volumes.
    V1_14,
}

impl TalosVersion {
    /// By `1.13` or `1.14`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "1.13" => Some(Self::V1_13),
            "1.14" => Some(Self::V1_14),
            _ => None,
        }
    }

    /// The full tag.
    pub fn tag(self) -> &'static str {
        match self {
            Self::V1_13 => "v1.13.9",
            Self::V1_14 => "v1.14.1",
        }
    }
}

/// How long things take in the simulation. Talos' own times stand beside them.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// Each phase of a sequence (seconds).
    pub phase: Duration,
    /// From power to the API (a minute).
    pub boot: Duration,
    /// From a failed sequence to the reboot that follows it (10 s).
    pub fatal_reboot: Duration,
    /// How long a leave waits to learn its own member ID (3 min).
    pub member_id_wait: Duration,
    /// Between a leave's attempts, and for how long in all (10 s, 5 min).
    pub leave_retry: Duration,
    /// See `leave_retry`.
    pub leave_retry_for: Duration,
    /// Between looks at etcd's health, attempts to join and to be promoted (some seconds).
    pub etcd_check: Duration,
    /// Between a crash of etcd and its next start (5 s).
    pub etcd_restart: Duration,
    /// How long a sequence that takes over waits for the one before (1 min).
    pub takeover: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            phase: Duration::from_millis(100),
            boot: Duration::from_millis(300),
            fatal_reboot: Duration::from_millis(500),
            member_id_wait: Duration::from_secs(3),
            leave_retry: Duration::from_millis(500),
            leave_retry_for: Duration::from_mins(1),
            etcd_check: Duration::from_millis(250),
            etcd_restart: Duration::from_secs(1),
            takeover: Duration::from_secs(10),
        }
    }
}

/// What to simulate.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Where the machines' disks lie.
    pub dir: PathBuf,
    /// Who starts the etcd processes and sees to their end.
    pub supervisor: Arc<Supervisor>,
    /// The etcd program.
    pub etcd: PathBuf,
    /// How many configured control planes, `cp-1` and up.
    pub control_planes: usize,
    /// How many configured workers, `worker-1` and up.
    pub workers: usize,
    /// One control plane more, in maintenance, with the next number.
    pub spare: bool,
    /// etcd runs from the start; else the control planes wait for a bootstrap.
    pub bootstrapped: bool,
    /// The release that all run.
    pub version: TalosVersion,
    /// etcd's data on a partition of its own, as 1.14 can.
    pub etcd_partition: bool,
    /// How long things take.
    pub timings: Timings,
}

impl SimOptions {
    /// Three control planes, one worker, a spare, Talos 1.14.
    pub fn new(
        dir: impl Into<PathBuf>,
        supervisor: Arc<Supervisor>,
        etcd: impl Into<PathBuf>,
    ) -> Self {
        Self {
            dir: dir.into(),
            supervisor,
            etcd: etcd.into(),
            control_planes: 3,
            workers: 1,
            spare: true,
            bootstrapped: true,
            version: TalosVersion::V1_14,
            etcd_partition: false,
            timings: Timings::default(),
        }
    }
}
