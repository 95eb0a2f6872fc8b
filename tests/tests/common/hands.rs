//! What a person does: with kubectl, with talosctl, and at the machines.

use ichor_talos::proto::machine as wire;
use ichor_talos::proto::machine::machine_service_client::MachineServiceClient;
use ichor_talos::{Partitions, ResetRequest, TalosConfig};
use ichor_tests::bed::Bed;
use ichor_tests::playground::command::NodeAction;
use jiff::Timestamp;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::{SOON, Stage};

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Stage {
    /// `kubectl` as the administrator, or as whom `--context` names.
    pub async fn kubectl(&self, args: &[&str]) -> Ran {
        let mut command = self.bed.kubectl();
        // Beside this test binary's folder: `kubectl ichor` finds the plugin there.
        let own = std::env::current_exe().unwrap();
        let mut path = own.ancestors().nth(2).unwrap().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        command.env("PATH", path);
        let output = tokio::process::Command::from(command)
            .args(args)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Configures a box in maintenance, as a person would with talosctl, and waits until
    /// it votes (a worker: until it runs).
    pub async fn join(&self, name: &str) {
        if let Err(error) = self.bed.node_action(name, NodeAction::Join).await {
            panic!("{name} did not join: {error}\n{}", self.picture().await);
        }
    }

    /// Joins the spare and approves it: four that vote.
    pub async fn join_spare(&self) {
        self.join(&self.spare).await;
        self.approve(&self.spare).await;
    }

    /// Deletes `name` with the agent set to end itself at `point`, and waits until it has.
    pub async fn stop_at(&self, point: &str, name: &str) {
        let agents = self.bed.agents().unwrap();
        agents.failpoint(point, None).await.unwrap();
        agents.wait_ready(1, SOON).await.unwrap();
        self.delete(name).await;
        self.wait(&format!("the agent to end at {point}"), async || {
            let all = agents.status().await;
            if all.iter().all(|a| a.state == "Stopped") {
                Ok(())
            } else {
                Err(format!("{all:?}"))
            }
        })
        .await;
    }

    /// etcd's leader, by name.
    pub async fn leader(&self) -> String {
        self.wait("etcd to have a leader", async || {
            let statuses = self.bed.sim().etcd_statuses().await;
            statuses
                .iter()
                .find(|(_, status)| status.leader == status.member_id && status.leader != 0)
                .map(|(name, _)| name.clone())
                .ok_or_else(|| format!("{statuses:?}"))
        })
        .await
    }
}

/// Talos' API of a machine, as talosctl uses it.
pub async fn talosctl(bed: &Bed, name: &str) -> MachineServiceClient<Channel> {
    let config = TalosConfig::parse(&bed.sim().talosconfig().unwrap(), Timestamp::now()).unwrap();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&config.ca_pem))
        .identity(Identity::from_pem(&config.cert_pem, &config.key_pem));
    let address = bed.node(name).unwrap().address();
    let endpoint = Endpoint::from_shared(format!("https://{address}:50000")).unwrap();
    MachineServiceClient::new(endpoint.tls_config(tls).unwrap().connect().await.unwrap())
}

/// `talosctl reset --graceful=false --reboot --system-labels-to-wipe STATE,EPHEMERAL`.
pub async fn reset(bed: &Bed, name: &str) {
    let request = wire::ResetRequest::from(&ResetRequest {
        partitions: Partitions::new(["STATE", "EPHEMERAL"]).unwrap(),
        reboot: true,
    });
    talosctl(bed, name).await.reset(request).await.unwrap();
}

/// `talosctl etcd leave`.
pub async fn leave(bed: &Bed, name: &str) -> Result<(), tonic::Status> {
    talosctl(bed, name)
        .await
        .etcd_leave_cluster(wire::EtcdLeaveClusterRequest::default())
        .await
        .map(drop)
}
