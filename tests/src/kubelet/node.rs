//! A Node and its signs of life.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::error::{BedError, Result};
use crate::wait::bounded;

/// What a node is for, as far as Kubernetes sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// A control plane. Tainted against ordinary pods, unless `schedulable`.
    ControlPlane {
        /// Whether ordinary pods may run on it.
        schedulable: bool,
    },
    /// A worker.
    Worker,
    /// A node of the bed's own, which nothing is scheduled to by itself.
    Bed,
}

/// What a kubelet says about its node.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// Name of the Node: the host name.
    pub name: String,
    /// What it is for.
    pub role: NodeRole,
    /// Its address.
    pub address: IpAddr,
    /// SMBIOS UUID.
    pub system_uuid: String,
    /// The kernel's boot ID.
    pub boot_id: String,
    /// `v1.36.3`.
    pub kubelet_version: String,
    /// `Talos (v1.14.1)`.
    pub os_image: String,
}

/// Taint that keeps every pod away that is not put there by name.
const BED_TAINT: &str = "ichor-bed/reserved";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

impl NodeIdentity {
    fn labels(&self) -> BTreeMap<&str, &str> {
        let mut labels = BTreeMap::from([
            ("kubernetes.io/hostname", self.name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
        ]);
        if matches!(self.role, NodeRole::ControlPlane { .. }) {
            labels.insert(CONTROL_PLANE, "");
        }
        labels
    }

    fn taints(&self) -> Value {
        match self.role {
            NodeRole::ControlPlane { schedulable: false } => {
                json!([{"key": CONTROL_PLANE, "effect": "NoSchedule"}])
            }
            NodeRole::Bed => json!([{"key": BED_TAINT, "effect": "NoSchedule"}]),
            _ => json!([]),
        }
    }

    fn status(&self) -> Value {
        let now = Timestamp::now();
        let condition = |type_: &str, status: &str, reason: &str, message: &str| {
            json!({
                "type": type_, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            })
        };
        let room =
            json!({"cpu": "8", "memory": "16Gi", "pods": "500", "ephemeral-storage": "100Gi"});
        json!({
            "capacity": room,
            "allocatable": room,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ],
            "addresses": [
                {"type": "InternalIP", "address": self.address},
                {"type": "Hostname", "address": self.name},
            ],
            "nodeInfo": {
                "machineID": self.system_uuid.replace('-', ""),
                "systemUUID": self.system_uuid,
                "bootID": self.boot_id,
                "kernelVersion": "6.18.0-talos",
                "osImage": self.os_image,
                "containerRuntimeVersion": "containerd://2.2.0",
                "kubeletVersion": self.kubelet_version,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        })
    }
}

/// Registers the Node where there is none, and says that it is Ready.
pub(super) async fn register(client: &Client, identity: &NodeIdentity) -> Result<()> {
    let name = &identity.name;
    let api: Api<Node> = Api::all(client.clone());
    let object: Node = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": identity.labels()},
        "spec": {"taints": identity.taints()},
    }))
    .map_err(|e| BedError::Refused(format!("failed to describe Node {name}: {e}")))?;
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        Err(error) => {
            return Err(BedError::api(
                format!("failed to register Node {name}"),
                error,
            ));
        }
    }
    say_ready(client, identity)
        .await
        .map_err(|e| BedError::api(format!("failed to write the status of Node {name}"), e))
}

/// Gives signs of life for ever.
pub(super) async fn beat(
    client: Client,
    identity: NodeIdentity,
    nodes: Store<Node>,
    every: Duration,
) {
    // Tried again at once: another try may reach a member of etcd that answers.
    let limit = every;
    let mut every = tokio::time::interval(every);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        while let Err(error) = bounded(limit, renew(&client, &identity.name)).await {
            tracing::debug!(node = identity.name, error, "no sign of life");
            tokio::time::sleep(limit / 10).await;
        }
        // As a kubelet that finds its Node marked Unknown. One whose Node was deleted
        // does not register it anew until it is restarted.
        let stale = nodes
            .get(&ObjectRef::new(&identity.name))
            .is_some_and(|node| {
                ready_status(&node) != Some("True")
                    || boot_id(&node) != Some(identity.boot_id.as_str())
            });
        if stale && let Err(error) = bounded(limit, say_ready(&client, &identity)).await {
            tracing::debug!(node = identity.name, error, "status not written");
        }
    }
}

/// Status of the condition Ready.
pub(super) fn ready_status(node: &Node) -> Option<&str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|c| c.type_ == "Ready")
        .map(|c| c.status.as_str())
}

fn boot_id(node: &Node) -> Option<&str> {
    Some(node.status.as_ref()?.node_info.as_ref()?.boot_id.as_str())
}

async fn say_ready(client: &Client, identity: &NodeIdentity) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let patch = Patch::Strategic(json!({"status": identity.status()}));
    api.patch_status(&identity.name, &PatchParams::default(), &patch)
        .await
        .map(drop)
}

async fn renew(client: &Client, node: &str) -> Result<(), kube::Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let spec = json!({
        "holderIdentity": node,
        "leaseDurationSeconds": 40,
        "renewTime": format!("{:.6}", Timestamp::now()),
    });
    let patch = Patch::Merge(json!({"spec": spec}));
    match api.patch(node, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        done => return done.map(drop),
    }
    let lease = serde_json::from_value(json!({"metadata": {"name": node}, "spec": spec}))
        .map_err(kube::Error::SerdeError)?;
    api.create(&PostParams::default(), &lease).await.map(drop)
}
