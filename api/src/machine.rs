//! TalosMachine: one box, and what the agent knows and does about it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{Condition, DrainOptions};
use crate::names;

/// What a machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MachineRole {
    /// Runs etcd and the control plane.
    ControlPlane,
    /// Runs workloads.
    Worker,
}

impl MachineRole {
    /// The word as it stands in `spec.role`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ControlPlane => "controlplane",
            Self::Worker => "worker",
        }
    }
}

impl std::fmt::Display for MachineRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ControlPlane => "control plane",
            Self::Worker => "worker",
        })
    }
}

/// Names the TalosCluster of a machine, in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterReference {
    /// Name of the TalosCluster, in this object's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A machine running Talos Linux, as a person declares it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "ichor.maesh.dev",
    version = "v1alpha1",
    kind = "TalosMachine",
    plural = "talosmachines",
    singular = "talosmachine",
    shortname = "tm",
    category = "ichor",
    namespaced,
    status = "TalosMachineStatus",
    doc = "A machine running Talos Linux that belongs to a TalosCluster. Deleting an approved one drains it, takes it out of etcd, wipes it and confirms that, in this order and under the cluster's lock.",
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".spec.clusterRef.name"
    ),
    printcolumn(name = "Role", type_ = "string", json_path = ".spec.role"),
    printcolumn(name = "Approved", type_ = "boolean", json_path = ".spec.approved"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Removal",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Removal')].reason"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Address",
        type_ = "string",
        json_path = ".spec.address",
        priority = 1
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".status.identity.nodeName",
        priority = 1
    ),
    printcolumn(
        name = "Member",
        type_ = "string",
        json_path = ".status.identity.etcdMemberID",
        priority = 1
    ),
    printcolumn(
        name = "Talos",
        type_ = "string",
        json_path = ".status.talosVersion",
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
        priority = 1
    ),
    selectable = ".spec.role",
    selectable = ".spec.clusterRef.name"
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!(self.approved && self.rejected)", "a machine is approved or rejected, not both"))]
#[x_kube(validation = ("!(oldSelf.role == 'controlplane' && oldSelf.approved && !self.approved)", "the approval of a control plane is not taken back: delete the TalosMachine instead, so that it leaves etcd in order"))]
pub struct TalosMachineSpec {
    /// The TalosCluster that this machine belongs to. It never changes.
    #[x_kube(validation = ("self.name == oldSelf.name", "clusterRef is immutable: delete this TalosMachine and create one for the other cluster"))]
    pub cluster_ref: ClusterReference,
    /// `controlplane` or `worker`. It never changes.
    #[x_kube(validation = ("self == oldSelf", "role is immutable: delete this TalosMachine and create one with the other role"))]
    pub role: MachineRole,
    /// Whether a person has accepted this machine into the cluster. Ichor does nothing to a machine that is not approved.
    #[serde(default)]
    pub approved: bool,
    /// Whether a person has turned this machine down.
    #[serde(default)]
    pub rejected: bool,
    /// Where its Talos API answers: an IP address or a host name, with a port where it is not 50000. It may be corrected at any time: every step compares identities.
    #[schemars(
        length(min = 1, max = 260),
        regex(
            pattern = r"^(\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?)$"
        )
    )]
    pub address: String,
    /// Name of its Kubernetes Node. Without it, the name that Talos reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub node_name: Option<String>,
    /// How its Node is drained, where it differs from the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainOptions>,
}

/// What tells this machine from every other one. Recorded by the agent; the hardware
/// UUID once, the rest following it while no removal runs (spec section 5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineIdentity {
    /// SMBIOS UUID of the box. Never overwritten, except by annotation `ichor.maesh.dev/accept-hardware`.
    #[serde(
        default,
        rename = "hardwareUUID",
        skip_serializing_if = "Option::is_none"
    )]
    pub hardware_uuid: Option<String>,
    /// Talos' node identity; it lies on STATE and is new after a wipe.
    #[serde(default, rename = "nodeID", skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// ID of its etcd member, 16 hex digits.
    #[serde(
        default,
        rename = "etcdMemberID",
        skip_serializing_if = "Option::is_none"
    )]
    pub etcd_member_id: Option<String>,
    /// ID of the etcd cluster, 16 hex digits.
    #[serde(
        default,
        rename = "etcdClusterID",
        skip_serializing_if = "Option::is_none"
    )]
    pub etcd_cluster_id: Option<String>,
    /// Name of its etcd member: the host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_member_name: Option<String>,
    /// Peer URLs of its etcd member.
    #[serde(
        default,
        rename = "etcdPeerURLs",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub etcd_peer_urls: Vec<String>,
    /// UID of its Kubernetes Node.
    #[serde(default, rename = "nodeUID", skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// Name of its Kubernetes Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Machine type that Talos reports: `controlplane`, `worker`, `init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// UID of the TalosCluster that it was adopted into.
    #[serde(
        default,
        rename = "clusterUID",
        skip_serializing_if = "Option::is_none"
    )]
    pub cluster_uid: Option<String>,
}

/// An irreversible call that is about to be sent, or was sent and is not settled
/// (spec section 4, Fencing). Written before the call, taken away when its outcome is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// The call: `LeaveEtcd`, `RemoveMember`, `Reset`, …
    pub step: String,
    /// The operation that it belongs to: kind, name, UID and purpose.
    pub operation: String,
    /// The agent instance that sends it: its pod's UID.
    pub instance: String,
    /// When the call ends at the latest, on the sender's wall clock; for people.
    pub deadline: Time,
    /// How long the call may take, in seconds: waits count from here on the judge's own clock.
    #[serde(default)]
    pub deadline_seconds: i64,
    /// Talos node identity that the call is meant for.
    #[serde(default, rename = "nodeID", skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// Boot that the call is meant for.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Box that the call is meant for.
    #[serde(
        default,
        rename = "hardwareUUID",
        skip_serializing_if = "Option::is_none"
    )]
    pub hardware_uuid: Option<String>,
    /// etcd member that the call removes, 16 hex digits.
    #[serde(default, rename = "memberID", skip_serializing_if = "Option::is_none")]
    pub member_id: Option<String>,
    /// UID of the Lease under which it was written.
    #[serde(default, rename = "leaseUID", skip_serializing_if = "Option::is_none")]
    pub lease_uid: Option<String>,
    /// `leaseTransitions` under which it was written: with the UID, the fencing token.
    #[serde(default)]
    pub lease_transitions: i64,
    /// Partitions that a reset wipes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wipe: Vec<String>,
    /// Whether a reset reboots the machine afterwards.
    #[serde(default)]
    pub reboot: bool,
}

/// One step of a removal with its times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemovalStepStatus {
    /// Name of the step: Lock, Check, Drain, LeaveEtcd, Reset, Confirm, Finish.
    pub name: String,
    /// When it first began.
    pub started_at: Time,
    /// When it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

/// How far the removal of this machine has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemovalStatus {
    /// The step that the removal is in: Lock, Check, Drain, LeaveEtcd, Reset, Confirm, Finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Every step so far, with its times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["name".into()]))]
    pub steps: Vec<RemovalStepStatus>,
    /// Partitions that the reset was told to wipe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wiped: Vec<String>,
    /// Whether the box was seen in maintenance mode after the reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
    /// Boot in which it left etcd; on another one it joins again by itself.
    #[serde(
        default,
        rename = "leaveBootID",
        skip_serializing_if = "Option::is_none"
    )]
    pub leave_boot_id: Option<String>,
    /// ID of the member that left, 16 hex digits.
    #[serde(
        default,
        rename = "leftMemberID",
        skip_serializing_if = "Option::is_none"
    )]
    pub left_member_id: Option<String>,
    /// Set where a leave was tried and did not happen: it is repeated by member ID, through a survivor.
    #[serde(
        default,
        rename = "leaveByID",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub leave_by_id: bool,
    /// Set where the machine was let go without being wiped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_wiped: bool,
    /// Set while the removal is held for a person: the token that annotation `ichor.maesh.dev/continue-removal` must equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// Who waived the last-worker rule with the verb `override`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_worker_waived_by: Option<String>,
}

/// A PodDisruptionBudget that keeps a pod where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetStatus {
    /// Its name, in the pod's namespace.
    pub name: String,
    /// Disruptions it allows now.
    #[serde(default)]
    pub allowed: i32,
    /// Healthy pods it counts now.
    #[serde(default)]
    pub current: i32,
    /// Healthy pods it asks for.
    #[serde(default)]
    pub desired: i32,
}

/// A pod that is left on a Node that is being drained, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPodStatus {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Since when it has been waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Why it is left: `Budget`, `Terminating`, `Finalizer`, `Unmanaged`, `EmptyDir`, `Throttled`, `Error`, …
    pub reason: String,
    /// The budget that blocks its eviction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetStatus>,
    /// The same for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How far the drain of this machine's Node has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// Pods that had to go when the drain began.
    #[serde(default)]
    pub total: i32,
    /// Pods that are gone.
    #[serde(default)]
    pub evicted: i32,
    /// Pods that are left.
    #[serde(default)]
    pub remaining: i32,
    /// When the drain began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the last pass was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_pass_at: Option<Time>,
    /// The first 20 of those left, by namespace and name, and why each is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<DrainPodStatus>,
}

/// What the agent has seen and done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TalosMachineStatus {
    /// `Ready`, `Joined`, `Removal`, `ConfigApplied`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The `metadata.generation` that this status was written for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What tells this machine from every other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<MachineIdentity>,
    /// An irreversible call that is about to be sent, or was sent and is not settled yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<Intent>,
    /// How far the removal has come: the step it is in and the times of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<RemovalStatus>,
    /// How far the drain has come: totals, and the first pods that are left with the reason for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
    /// Talos version that the machine reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub talos_version: Option<String>,
    /// Kubernetes version that its Node reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
}

impl TalosMachine {
    /// Whether the object is being deleted.
    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it carries Ichor's finalizer.
    pub fn has_finalizer(&self) -> bool {
        self.metadata
            .finalizers
            .as_deref()
            .is_some_and(|f| f.iter().any(|f| f == names::MACHINE_FINALIZER))
    }

    /// Whether it is a control plane.
    pub fn is_control_plane(&self) -> bool {
        self.spec.role == MachineRole::ControlPlane
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(key))
            .map(String::as_str)
    }

    /// Whether an annotation is `"true"`.
    pub fn consents(&self, key: &str) -> bool {
        self.annotation(key) == Some("true")
    }

    /// The recorded identity, or an empty one.
    pub fn identity(&self) -> MachineIdentity {
        self.status
            .as_ref()
            .and_then(|s| s.identity.clone())
            .unwrap_or_default()
    }

    /// The condition of `type_`.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status
            .as_ref()
            .and_then(|s| crate::common::find_condition(&s.conditions, type_))
    }
}
