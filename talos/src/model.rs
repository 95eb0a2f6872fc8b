//! What nodes say of themselves, in types of our own.

use std::fmt;
use std::str::FromStr;

use crate::proto::{machine, specs};

/// An etcd member's ID. Written as etcd and Talos write it: 16 lower-case hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A text that is no member ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no etcd member ID (up to 16 hex digits)")]
pub struct BadMemberId(pub String);

impl FromStr for MemberId {
    type Err = BadMemberId;

    /// Reads hex digits; leading zeros may be missing, as etcd's own tools leave them out.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = !text.is_empty()
            && text.len() <= 16
            && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u64::from_str_radix(text, 16) {
            Ok(id) if hex && id != 0 => Ok(Self(id)),
            _ => Err(BadMemberId(text.to_owned())),
        }
    }
}

/// What a machine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Not said.
    Unknown,
    /// Starting.
    Booting,
    /// Being installed.
    Installing,
    /// Without configuration, waiting for one.
    Maintenance,
    /// Up.
    Running,
    /// About to restart.
    Rebooting,
    /// About to power off.
    ShuttingDown,
    /// Being wiped.
    Resetting,
    /// Installing another release.
    Upgrading,
}

impl From<i32> for Stage {
    fn from(stage: i32) -> Self {
        use specs::MachineStage as S;
        match S::try_from(stage).unwrap_or(S::Unknown) {
            S::Unknown => Self::Unknown,
            S::Booting => Self::Booting,
            S::Installing => Self::Installing,
            S::Maintenance => Self::Maintenance,
            S::Running => Self::Running,
            S::Rebooting => Self::Rebooting,
            S::ShuttingDown => Self::ShuttingDown,
            S::Resetting => Self::Resetting,
            S::Upgrading => Self::Upgrading,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Booting => "booting",
            Self::Installing => "installing",
            Self::Maintenance => "maintenance",
            Self::Running => "running",
            Self::Rebooting => "rebooting",
            Self::ShuttingDown => "shutting down",
            Self::Resetting => "resetting",
            Self::Upgrading => "upgrading",
        })
    }
}

/// A machine's stage and whether all that the stage needs is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineStatus {
    /// What it is doing.
    pub stage: Stage,
    /// Nothing is missing.
    pub ready: bool,
    /// What is missing: name and reason.
    pub unmet: Vec<(String, String)>,
}

/// What a machine is configured as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MachineType {
    /// Not configured.
    Unknown,
    /// Runs etcd and the Kubernetes control plane. (Talos' older `init` counts as this.)
    ControlPlane,
    /// Runs workloads only.
    Worker,
}

impl From<i32> for MachineType {
    fn from(kind: i32) -> Self {
        use specs::MachineRole as R;
        match R::try_from(kind).unwrap_or(R::MachineUnknown) {
            R::MachineUnknown => Self::Unknown,
            R::Init | R::ControlPlane => Self::ControlPlane,
            R::Worker => Self::Worker,
        }
    }
}

/// A release of Talos and the platform it runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Such as `v1.14.1`.
    pub tag: String,
    /// Such as `metal`, `nocloud`, `aws`; empty where not said.
    pub platform: String,
    /// `metal`, `cloud`, `container`, `metal-agent`; empty where not said.
    pub mode: String,
}

impl Version {
    /// Major and minor number, where the tag has that form.
    pub fn minor(&self) -> Option<(u32, u32)> {
        let mut parts = self.tag.strip_prefix('v').unwrap_or(&self.tag).split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// Does the machine get a configuration from outside by itself when its own is wiped? Then it does
/// not stop in maintenance but joins its cluster again (facts: talos.md 3.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlatformConfig {
    /// Yes: this kernel argument names its source.
    Present(String),
    /// The platform (named) may hand one out; that cannot be seen from the machine.
    Possible(String),
    /// No: bare metal, and the kernel command line names none.
    Absent,
    /// The machine does not say.
    Untold,
}

/// What a machine tells of its platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// Such as `metal`, `nocloud`, `aws`.
    pub name: String,
    /// `metal`, `cloud`, `container` or `metal-agent`.
    pub mode: String,
    /// Whether a configuration comes from it.
    pub config: PlatformConfig,
}

/// One line of an etcd member list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdMember {
    /// Its ID.
    pub id: MemberId,
    /// Its name, which is the host name; empty until it has started once.
    pub name: String,
    /// Where other members reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it; empty until it has started once.
    pub client_urls: Vec<String>,
    /// It does not vote yet.
    pub learner: bool,
}

impl EtcdMember {
    /// Has it ever started?
    pub fn started(&self) -> bool {
        !self.name.is_empty()
    }
}

impl From<machine::EtcdMember> for EtcdMember {
    fn from(member: machine::EtcdMember) -> Self {
        Self {
            id: MemberId(member.id),
            name: member.hostname,
            peer_urls: member.peer_urls,
            client_urls: member.client_urls,
            learner: member.is_learner,
        }
    }
}

/// What a node's own etcd says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdStatus {
    /// Its own ID.
    pub member_id: MemberId,
    /// Which member it takes for the leader; none: it knows of no leader.
    pub leader: Option<MemberId>,
    /// Raft's term.
    pub term: u64,
    /// The last entry that it has committed.
    pub raft_index: u64,
    /// The last entry that it has applied.
    pub applied_index: u64,
    /// It does not vote yet.
    pub learner: bool,
    /// What it complains of (alarms, corruption, no leader).
    pub errors: Vec<String>,
    /// Bytes on disk.
    pub db_size: i64,
    /// etcd's version.
    pub version: String,
}

impl From<machine::EtcdMemberStatus> for EtcdStatus {
    fn from(status: machine::EtcdMemberStatus) -> Self {
        Self {
            member_id: MemberId(status.member_id),
            leader: Some(status.leader)
                .filter(|leader| *leader != 0)
                .map(MemberId),
            term: status.raft_term,
            raft_index: status.raft_index,
            applied_index: status.raft_applied_index,
            learner: status.is_learner,
            errors: status.errors,
            db_size: status.db_size,
            version: status.protocol_version,
        }
    }
}

/// An alarm that etcd has raised; the whole cluster stops writing until it is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtcdAlarm {
    /// Whose alarm.
    pub member_id: MemberId,
    /// What is wrong.
    pub kind: AlarmKind,
}

/// What an alarm is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmKind {
    /// The database has reached its quota.
    NoSpace,
    /// The data of this member differs from the others'.
    Corrupt,
    /// One that this release does not know, by its number.
    Other(i32),
}

/// A service of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Such as `etcd`, `kubelet`.
    pub id: String,
    /// `Initialized`, `Starting`, `Preparing`, `Waiting`, `Running`, `Stopping`, `Finished`, `Failed` or `Skipped`.
    pub state: String,
    /// Whether its health check passes; none where it has none or it has not run yet.
    pub healthy: Option<bool>,
    /// The last message: of the health check if there is one, else of its last event.
    pub message: String,
}

impl Service {
    /// Is it a service that does not run and is not on its way to?
    pub fn is_down(&self) -> bool {
        matches!(
            self.state.as_str(),
            "Failed" | "Finished" | "Waiting" | "Skipped"
        )
    }
}

impl From<machine::ServiceInfo> for Service {
    fn from(service: machine::ServiceInfo) -> Self {
        let health = service.health.unwrap_or_default();
        let last_event = service
            .events
            .and_then(|events| events.events.into_iter().next_back());
        let message = match (health.last_message.is_empty(), last_event) {
            (true, Some(event)) => event.msg,
            _ => health.last_message,
        };
        Self {
            id: service.id,
            state: service.state,
            healthy: (!health.unknown).then_some(health.healthy),
            message,
        }
    }
}

/// One volume of a node, by the name that a reset takes (`STATE`, `EPHEMERAL`, `ETCD`, …).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub id: String,
    /// How far it has come.
    pub phase: specs::VolumePhase,
    /// What it lies on.
    pub kind: specs::VolumeType,
    /// The device; empty where there is none.
    pub location: String,
    /// The volume that it is a folder of; empty for partitions and disks.
    pub parent: String,
}

impl Volume {
    /// Is there a partition of its own behind it?
    pub fn is_partition(&self) -> bool {
        self.kind == specs::VolumeType::Partition
            && !matches!(
                self.phase,
                specs::VolumePhase::Missing
                    | specs::VolumePhase::Waiting
                    | specs::VolumePhase::Failed
            )
    }
}

/// Everything that tells which machine answers and how far it is, read in one go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The board's own number, lower case; none where the firmware gives none.
    pub hardware_uuid: Option<String>,
    /// Talos' own ID of this installation: new after STATE was wiped.
    pub node_id: String,
    /// The kernel's ID of this boot.
    pub boot_id: String,
    /// Stage and readiness.
    pub status: MachineStatus,
    /// What it is configured as.
    pub machine_type: MachineType,
    /// The Kubernetes node's name, once it is known.
    pub node_name: Option<String>,
    /// Its host name, which is also its etcd member's name.
    pub hostname: String,
    /// The ID of its own etcd member, while that is healthy.
    pub member_id: Option<MemberId>,
    /// Release and platform.
    pub version: Version,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_ids_are_sixteen_hex_digits_both_ways() {
        let id: MemberId = "8e9e05c52164694d".parse().expect("an ID");
        assert_eq!(id, MemberId(10_276_657_743_932_975_437));
        assert_eq!(MemberId(0xab).to_string(), "00000000000000ab");
        assert_eq!("ab".parse(), Ok(MemberId(0xab)));
        for text in ["", "0", "0x1", "+1", "8e9e05c52164694d0", "zz"] {
            assert!(
                text.parse::<MemberId>().is_err(),
                "{text:?} was taken for an ID"
            );
        }
    }

    #[test]
    fn a_release_is_told_by_its_tag() {
        let version = |tag: &str| Version {
            tag: tag.to_owned(),
            platform: String::new(),
            mode: String::new(),
        };
        assert_eq!(version("v1.14.1").minor(), Some((1, 14)));
        assert_eq!(version("v1.15.0-alpha.0-12-gabcdef").minor(), Some((1, 15)));
        assert_eq!(version("unknown").minor(), None);
    }
}
