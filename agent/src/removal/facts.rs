//! What a pass of a removal knows: read freshly, judged once, thrown away.

use std::time::Duration;

use ichor_api::machine::MachineIdentity;
use ichor_api::{MachineRole, conditions::RemovalStep};
use ichor_rules::Check;
use ichor_rules::etcd::LiveEtcd;

/// The machine as its object stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFacts {
    /// Name of the TalosMachine.
    pub name: String,
    /// What it is for.
    pub role: MachineRole,
    /// The recorded identity; it stands still during a removal.
    pub identity: MachineIdentity,
    /// Annotations by which a person answers.
    pub consent: Consent,
    /// Steps that are done.
    pub done: Vec<RemovalStep>,
    /// Boot in which the machine left etcd.
    pub leave_boot_id: Option<String>,
    /// Whether a leave was tried and did not happen.
    pub leave_by_id: bool,
    /// `status.removal.hold`: the token a person has to repeat.
    pub hold: Option<String>,
    /// Whether the machine was let go un-wiped already.
    pub not_wiped: bool,
    /// What is known of the wipe once it was seen.
    pub confirmed: Option<bool>,
}

impl MachineFacts {
    /// Whether `step` is done.
    pub fn did(&self, step: RemovalStep) -> bool {
        self.done.contains(&step)
    }

    /// Whether it is a control plane.
    pub fn is_control_plane(&self) -> bool {
        self.role == MachineRole::ControlPlane
    }

    /// The recorded member ID as a number.
    pub fn member_id(&self) -> Option<u64> {
        self.identity
            .etcd_member_id
            .as_deref()
            .and_then(ichor_api::names::parse_etcd_id)
    }
}

/// Annotations that a person sets on a machine that is being deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consent {
    /// `allow-delete: "true"`, or nobody asks for it (teardown).
    pub allow_delete: bool,
    /// `cancel-removal: "true"`.
    pub cancel: bool,
    /// `skip-reset: "true"`.
    pub skip_reset: bool,
    /// `accept-rejoin: "true"`.
    pub accept_rejoin: bool,
    /// `continue-removal`.
    pub continue_token: Option<String>,
}

/// What the machine's removal stands under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Governing {
    /// Its TalosCluster, alive.
    Cluster,
    /// Its TalosCluster is being deleted and orphans its machines.
    TeardownOrphan {
        /// Whether what is past its leave may still be finished.
        may_finish: bool,
    },
    /// Its TalosCluster is being deleted and resets its machines.
    TeardownReset {
        /// Whether this machine's turn has come (workers first).
        turn: bool,
    },
    /// There is no TalosCluster of that name.
    Missing,
    /// There is one with another UID.
    Replaced {
        /// Its UID.
        uid: String,
    },
    /// The namespace is terminating: nothing is finished.
    NamespaceTerminating,
}

/// The Kubernetes Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeFact {
    /// Not looked at in this pass.
    NotAsked,
    /// There is none of that name.
    Missing {
        /// The name.
        name: String,
    },
    /// Which Node belongs to the machine could not be told.
    Unknown {
        /// Why.
        why: String,
    },
    /// It is there.
    Present {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// Whether its Ready condition is True.
        ready: bool,
    },
}

/// What answered at the machine's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetFact {
    /// A Talos node that accepted our credentials.
    Answers(Box<Answer>),
    /// A box in maintenance mode.
    Maintenance {
        /// Its SMBIOS UUID.
        hardware_uuid: Option<String>,
    },
    /// Nothing, or nothing that could be understood.
    Silent {
        /// What came back.
        why: String,
    },
    /// Our credentials cannot be used.
    Credentials {
        /// Why.
        why: String,
    },
}

/// Who a Talos node says that it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// SMBIOS UUID.
    pub hardware_uuid: String,
    /// Talos node identity.
    pub node_id: String,
    /// Boot.
    pub boot_id: String,
    /// Machine type: `controlplane`, `worker`, `init`.
    pub machine_type: String,
    /// Node name, where it has one.
    pub node_name: Option<String>,
    /// Its own etcd member ID, where its etcd is up.
    pub member_id: Option<u64>,
    /// Whether its own etcd leads.
    pub leads: bool,
    /// Whether its stage is RUNNING.
    pub running: bool,
    /// Its stage, in Talos' word.
    pub stage: String,
    /// State of its etcd service: `Running`, `Waiting`, `Failed`, …; empty without one.
    pub etcd_service: String,
    /// Partitions that a reset names: STATE, EPHEMERAL and what else holds data.
    pub partitions: Vec<String>,
    /// Whether its configuration comes from its platform: then it never stops in
    /// maintenance mode but joins again.
    pub platform_config: bool,
}

/// An irreversible call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `EtcdLeaveCluster` on the target.
    LeaveEtcd {
        /// The member that leaves.
        member_id: u64,
    },
    /// `EtcdRemoveMemberByID` through a survivor.
    RemoveMember {
        /// The member that is removed.
        member_id: u64,
    },
    /// `Reset` on the target.
    Reset {
        /// Partitions to wipe; never empty.
        wipe: Vec<String>,
        /// Whether it reboots afterwards.
        reboot: bool,
    },
}

impl Call {
    /// The word in `status.intent.step`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::LeaveEtcd { .. } => "LeaveEtcd",
            Self::RemoveMember { .. } => "RemoveMember",
            Self::Reset { .. } => "Reset",
        }
    }
}

/// What kind of call an intent is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntentCall {
    /// Leaving etcd, by itself or by ID.
    Leave,
    /// A reset.
    Reset,
    /// A call of another operation or of a later version.
    Other,
}

/// An unsettled intent on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentFacts {
    /// What it is for.
    pub call: IntentCall,
    /// The member that it removes.
    pub member_id: Option<u64>,
    /// The node it was meant for.
    pub node_id: Option<String>,
    /// The boot it was meant for.
    pub boot_id: Option<String>,
    /// This process wrote it and knows that the call was never sent.
    pub never_sent: bool,
    /// The call was answered: the node accepted it.
    pub accepted: bool,
    /// The node said that the reset did not start, since another sequence runs.
    pub locked: bool,
    /// The reset was seen running as far as `stopAllServices`.
    pub seen_stopping: bool,
    /// Whether the reset reboots the node afterwards.
    pub reboots: bool,
    /// Its deadline and the settling time have passed on this process's clock.
    pub settle_due: bool,
    /// Another pod sent it, and that pod may still be alive.
    pub sender_may_live: bool,
}

/// How long things have been so, on this process's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The box has run on at the intent's boot, at stage RUNNING.
    pub still_running: Option<Duration>,
    /// The box has been silent since the reset.
    pub silent: Option<Duration>,
    /// The removal has been refused.
    pub refused: Option<Duration>,
}

/// Limits that the waits are held against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// When a reset that does not begin counts as not started.
    pub reset_not_started: Duration,
    /// When a silent box becomes `AwaitingWipe`.
    pub wipe_wait: Duration,
    /// When a box that powered off is done.
    pub power_off_wait: Duration,
    /// When a refused removal is held.
    pub hold_after: Duration,
}

/// Where the drain stands, as far as this process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DrainFact {
    /// Not begun by this process, or going on.
    #[default]
    Open,
    /// Blocked, and why.
    Blocked {
        /// For a person.
        message: String,
    },
    /// `spec.drain.timeout` is over; nothing it waits for has changed since.
    TimedOut {
        /// For a person.
        message: String,
    },
}

/// Everything one pass decides by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The machine.
    pub machine: MachineFacts,
    /// What it stands under.
    pub governing: Governing,
    /// Whether this operation holds the cluster lock.
    pub lock_held: bool,
    /// Its Node.
    pub node: NodeFact,
    /// What answers at its address.
    pub target: TargetFact,
    /// Node and Talos API have both been gone for long enough.
    pub dead: bool,
    /// Two machines with this hardware UUID.
    pub hardware_shared_with: Option<String>,
    /// etcd, where it was asked.
    pub etcd: Option<LiveEtcd>,
    /// The rules' answers, in order.
    pub checks: Vec<Check>,
    /// Its unsettled intent.
    pub intent: Option<IntentFacts>,
    /// Where the drain stands.
    pub drain: DrainFact,
    /// An operation that a blocked drain makes way for.
    pub urgent_waiter: Option<String>,
    /// Whether giving up leadership was tried in this process.
    pub forfeit_tried: bool,
    /// How long things have been so.
    pub waits: Waits,
    /// What the waits are held against.
    pub limits: Limits,
}
