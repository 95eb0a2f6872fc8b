//! The simulated machines as the rest of the bed sees them: kubelets that follow them,
//! and what can be done to them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::error::Result;
use crate::kubelet::{Kubelets, NodeIdentity, NodeRole};
use crate::playground::command::NodeAction;
use crate::sim::{Call, Member, Node, Role};

use super::{Bed, KUBERNETES, NodeInfo};

/// Follows a machine: its kubelet runs while the machine runs, is configured and can be
/// reached, and starts anew with each boot.
pub(super) fn follow(
    node: Arc<Node>,
    kubelets: Arc<Kubelets>,
    schedulable: bool,
    talos: &str,
) -> AbortOnDropHandle<()> {
    let os_image = format!("Talos ({talos})");
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut states = node.state();
        let mut boot = None;
        loop {
            let state = states.borrow_and_update().clone();
            if state.in_cluster && boot.as_ref() != Some(&state.boot_id) {
                let identity = NodeIdentity {
                    name: state.name.clone(),
                    role: match state.role {
                        Role::ControlPlane => NodeRole::ControlPlane { schedulable },
                        Role::Worker => NodeRole::Worker,
                    },
                    address: IpAddr::V4(state.address),
                    system_uuid: node.hardware_uuid.clone(),
                    boot_id: state.boot_id.clone(),
                    kubelet_version: KUBERNETES.to_owned(),
                    os_image: os_image.clone(),
                };
                match kubelets.run(identity).await {
                    Ok(()) => boot = Some(state.boot_id.clone()),
                    Err(error) => {
                        // The API server may be away (its etcd without quorum, say).
                        tracing::debug!(node = state.name, %error, "the kubelet does not come up yet");
                        let _ =
                            tokio::time::timeout(Duration::from_secs(1), states.changed()).await;
                        continue;
                    }
                }
            } else if !state.in_cluster && boot.take().is_some() {
                kubelets.stop(&state.name);
            }
            if states.changed().await.is_err() {
                return;
            }
        }
    }))
}

/// The address to write into `spec.address`.
pub(super) fn info(node: &Node) -> NodeInfo {
    NodeInfo {
        name: node.name.clone(),
        role: match node.role {
            Role::ControlPlane => "controlplane",
            Role::Worker => "worker",
        },
        address: node.address().to_string(),
    }
}

impl Bed {
    /// A simulated machine, by its name.
    pub fn node(&self, name: &str) -> Result<&Arc<Node>> {
        self.sim.node(name)
    }

    /// The simulated machines.
    pub fn sim(&self) -> &crate::sim::SimCluster {
        &self.sim
    }

    /// Does something to a machine; what is to be said of it.
    pub async fn node_action(&self, name: &str, action: NodeAction) -> Result<String> {
        let node = self.node(name)?;
        match action {
            NodeAction::PowerOff => node.power_off().await,
            NodeAction::PowerOn => node.power_on().await,
            NodeAction::Cut => node.cut(),
            NodeAction::Heal => {
                node.slow(Duration::ZERO);
                node.heal();
            }
            NodeAction::Slow { ms } => node.slow(Duration::from_millis(ms)),
            NodeAction::EtcdStop => node.etcd_stop(),
            NodeAction::EtcdStart => node.etcd_start(),
            NodeAction::EtcdFreeze => node.etcd_freeze(),
            NodeAction::EtcdThaw => node.etcd_thaw(),
            NodeAction::DiskGone => node.disk_gone(),
            NodeAction::Join => {
                node.join().await?;
                self.kubelets
                    .wait_ready(name, "True", Duration::from_secs(30))
                    .await?;
            }
        }
        Ok(String::new())
    }

    /// Every Talos call that reached a machine, or this one.
    pub fn calls(&self, node: Option<&str>) -> Result<Vec<Call>> {
        let mut calls = self.sim.calls();
        if let Some(name) = node {
            self.node(name)?;
            calls.retain(|call| call.node == name);
        }
        Ok(calls)
    }

    /// The members of the machines' etcd, asked of etcd itself.
    pub async fn etcd_members(&self) -> Result<Vec<Member>> {
        self.sim.etcd_members().await
    }
}
