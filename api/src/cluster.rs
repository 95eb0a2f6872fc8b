//! TalosCluster: what a set of machines has in common, and how etcd stands.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{Condition, DrainOptions, SecretReference};
use crate::names;

/// The control planes that a cluster is meant to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct ControlPlaneSpec {
    /// How many control planes the cluster is meant to have: 1, 3 or 5. A removal that would leave fewer waits. It is never lowered to 1.
    #[x_kube(validation = ("self in [1, 3, 5]", "count is 1, 3 or 5: an even number tolerates no more failures than the odd one below it"))]
    #[x_kube(validation = ("self != 1 || oldSelf == 1", "count is never lowered to 1: going from several control planes to one leaves no quorum on the way"))]
    pub count: i32,
}

/// How workers are treated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkersSpec {
    /// How many workers may be away at once: a number or a percentage. Default 1.
    #[serde(default = "default_max_unavailable")]
    #[x_kube(validation = ("type(self) == int ? self >= 0 : self.matches('^(100|[1-9]?[0-9])%$')", "maxUnavailable is a number from 0, or a percentage from 0% to 100%"))]
    pub max_unavailable: IntOrString,
}

fn default_max_unavailable() -> IntOrString {
    IntOrString::Int(1)
}

/// May ordinary workloads run on control planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Schedulable {
    /// They may.
    #[serde(rename = "true")]
    True,
    /// They may not: the last worker is guarded.
    #[serde(rename = "false")]
    False,
    /// As the cluster's nodes are.
    #[default]
    #[serde(rename = "auto")]
    Auto,
}

/// How machines are approved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// Written directly where nothing tracks the object.
    #[default]
    Relaxed,
    /// Always through a pull request.
    Strict,
}

/// What kind of Git host the repository is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GitProvider {
    /// GitHub, also Enterprise.
    Github,
    /// GitLab.
    Gitlab,
    /// Gitea.
    Gitea,
    /// Forgejo.
    Forgejo,
}

/// Where Git keeps this cluster's objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitOpsSpec {
    /// URL of the repository.
    #[schemars(length(min = 1, max = 2048))]
    pub repository: String,
    /// Branch that is deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub branch: Option<String>,
    /// Folder in the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
    /// Kind of Git host; without it, told from the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<GitProvider>,
    /// Secret with a token for the Git host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretReference>,
}

/// The Kubernetes cluster whose Nodes these machines are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesSpec {
    /// Secret with a kubeconfig (key `kubeconfig`, else `value`). Without it: the cluster that the agent runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretReference>,
}

/// How to reach Talos.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TalosSpec {
    /// Secret with a talosconfig (key `talosconfig`, else `config`), role `os:admin`.
    pub credentials_secret_ref: SecretReference,
    /// Secret with the base machine configurations (keys `controlplane.yaml`, `worker.yaml`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_secret_ref: Option<SecretReference>,
}

/// What becomes of the machines when the TalosCluster is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// They are left as they are; only the objects go.
    #[default]
    Orphan,
    /// They are reset: workers first, then control planes.
    Reset,
}

impl DeletionPolicy {
    /// The word as it stands in the object.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Orphan => "Orphan",
            Self::Reset => "Reset",
        }
    }
}

/// A Talos Linux cluster, as a person declares it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "ichor.maesh.dev",
    version = "v1alpha1",
    kind = "TalosCluster",
    plural = "talosclusters",
    singular = "taloscluster",
    shortname = "tcl",
    category = "ichor",
    namespaced,
    status = "TalosClusterStatus",
    doc = "A Kubernetes cluster on Talos Linux: how many control planes it is meant to have, how to reach Talos, and what the agent sees of its etcd.",
    printcolumn(
        name = "Declared",
        type_ = "integer",
        json_path = ".spec.controlPlane.count"
    ),
    printcolumn(
        name = "Approved",
        type_ = "integer",
        json_path = ".status.controlPlanes.approved"
    ),
    printcolumn(name = "Voters", type_ = "integer", json_path = ".status.etcd.voters"),
    printcolumn(
        name = "Healthy",
        type_ = "integer",
        json_path = ".status.etcd.healthy"
    ),
    printcolumn(
        name = "Workers",
        type_ = "integer",
        json_path = ".status.workers.approved"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Transitioning",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Transitioning')].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Lock",
        type_ = "string",
        json_path = ".status.lock.operation",
        priority = 1
    ),
    printcolumn(
        name = "Leader",
        type_ = "string",
        json_path = ".status.etcd.leader",
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Healthy')].reason",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.deletionPolicy) || self.deletionPolicy != 'Reset' || (has(self.kubernetes) && has(self.kubernetes.credentialsSecretRef))", "deletionPolicy Reset needs spec.kubernetes.credentialsSecretRef: a cluster cannot wipe the machines that it runs on"))]
pub struct TalosClusterSpec {
    /// The control planes that the cluster is meant to have.
    pub control_plane: ControlPlaneSpec,
    /// How workers are treated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersSpec>,
    /// May ordinary workloads run on control planes: `"true"`, `"false"` (then the last worker is guarded), `"auto"` (default).
    #[serde(default)]
    pub schedulable: Schedulable,
    /// `relaxed` (default), or `strict`: approving a machine goes through a pull request even where nothing tracks it.
    #[serde(default)]
    pub approval: Approval,
    /// Where Git keeps this cluster's objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gitops: Option<GitOpsSpec>,
    /// The Kubernetes cluster whose Nodes these machines are. Without it: the cluster that the agent runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesSpec>,
    /// How to reach Talos.
    pub talos: TalosSpec,
    /// What becomes of the machines when this object is deleted: `Orphan` (default) leaves them as they are, `Reset` wipes them. Read when the deletion is first seen.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// How nodes are drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainOptions>,
}

/// Machines of one role, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoleCounts {
    /// How many the spec declares (control planes only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<i32>,
    /// How many are approved.
    #[serde(default)]
    pub approved: i32,
    /// How many of those are Ready.
    #[serde(default)]
    pub healthy: i32,
}

/// One etcd member as the agent last saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdMemberStatus {
    /// Member ID, 16 hex digits.
    pub id: String,
    /// Member name (the host name); empty while it has not started.
    #[serde(default)]
    pub name: String,
    /// Peer URLs.
    #[serde(default, rename = "peerURLs", skip_serializing_if = "Vec::is_empty")]
    pub peer_urls: Vec<String>,
    /// The TalosMachine that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Whether it is a learner: it has no vote.
    #[serde(default)]
    pub learner: bool,
    /// Whether it has started.
    #[serde(default)]
    pub started: bool,
    /// Whether it is a healthy voter.
    #[serde(default)]
    pub healthy: bool,
    /// Since when it has not been a healthy voter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_since: Option<Time>,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// etcd as the agent last saw it, asked of several nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdStatus {
    /// ID of the etcd cluster, 16 hex digits.
    #[serde(default, rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Every listed member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["id".into()]))]
    pub members: Vec<EtcdMemberStatus>,
    /// Name of the member that leads, as a majority agrees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// How many members vote.
    #[serde(default)]
    pub voters: i32,
    /// How many voters are healthy.
    #[serde(default)]
    pub healthy: i32,
    /// How many members are learners or have not started.
    #[serde(default)]
    pub learners: i32,
    /// Alarms, each with its member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<String>,
    /// Why no member list with a leader could be had, where that is so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When this was asked. Older than two minutes, it is not relied on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Time>,
}

/// Who holds the cluster lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LockStatus {
    /// The agent instance (pod UID).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub holder: String,
    /// The operation: purpose, kind and name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Until when, unless it is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// A machine that was let go without being wiped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotWiped {
    /// Name of the TalosMachine that it was.
    pub machine: String,
    /// SMBIOS UUID of the box.
    #[serde(rename = "hardwareUUID")]
    pub hardware_uuid: String,
    /// Where it answered.
    #[serde(default)]
    pub address: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Set where the box was seen again in this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_again_at: Option<Time>,
}

/// A removal that was broken off by force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AbandonedRemoval {
    /// Name of the TalosMachine that it was.
    pub machine: String,
    /// UID of the TalosMachine.
    #[serde(default)]
    pub uid: String,
    /// The Node that is still cordoned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// SMBIOS UUID of the box, where known.
    #[serde(
        default,
        rename = "hardwareUUID",
        skip_serializing_if = "Option::is_none"
    )]
    pub hardware_uuid: Option<String>,
    /// The last step that was recorded.
    #[serde(default)]
    pub step: String,
    /// When it was noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// What to do.
    #[serde(default)]
    pub message: String,
}

/// An override that has persisted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OverrideRecord {
    /// `approve`, `reject`, `update` or `delete`.
    pub verb: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Who wrote it, as the API server knows them.
    pub user: String,
    /// When.
    pub time: Time,
}

/// How the deletion of the cluster goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TeardownStatus {
    /// `deletionPolicy` as it stood when the deletion was first seen.
    #[serde(default)]
    pub policy: DeletionPolicy,
    /// When the deletion was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Whether removals that are past their leave may still be finished. They may for a
    /// while; then they are let go un-wiped.
    #[serde(default)]
    pub may_finish: bool,
    /// Machines that are left.
    #[serde(default)]
    pub remaining: i32,
    /// What is going on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What the agent sees of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TalosClusterStatus {
    /// `Ready`, `Transitioning`, `Healthy`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The `metadata.generation` that this status was written for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Control planes: declared, approved, healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_planes: Option<RoleCounts>,
    /// Workers: approved, healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<RoleCounts>,
    /// etcd as last seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdStatus>,
    /// Who holds the cluster lock; absent while nobody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockStatus>,
    /// Machines that were let go without being wiped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_wiped: Vec<NotWiped>,
    /// Removals that were broken off by force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<AbandonedRemoval>,
    /// The last 50 overrides, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideRecord>,
    /// How the deletion of the cluster goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teardown: Option<TeardownStatus>,
}

impl TalosCluster {
    /// Whether the object is being deleted.
    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it carries Ichor's finalizer.
    pub fn has_finalizer(&self) -> bool {
        self.metadata
            .finalizers
            .as_deref()
            .is_some_and(|f| f.iter().any(|f| f == names::CLUSTER_FINALIZER))
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

    /// The drain options for `machine`: the cluster's, with the machine's own over them.
    pub fn drain_options(&self, machine: &crate::TalosMachine) -> DrainOptions {
        self.spec
            .drain
            .clone()
            .unwrap_or_default()
            .overridden_by(machine.spec.drain.as_ref())
    }
}
