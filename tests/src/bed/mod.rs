//! Everything together: control plane, nodes, kubelets, proxy, the cluster `demo`, agents.

mod nodes;
pub mod objects;
mod options;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ichor_api::conditions::JOINED;
use ichor_api::{ConditionStatus, TalosMachine};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde::Serialize;
use tokio_util::task::AbortOnDropHandle;

use crate::agents::{AgentOptions, Agents, is_agent};
use crate::assets::{ControlPlanePrograms, own_program};
use crate::controlplane::users::Context;
use crate::controlplane::{ControlPlane, ControlPlaneOptions, Storage};
use crate::egress::Egress;
use crate::error::{BedError, Result};
use crate::kubelet::{Kubelets, NodeIdentity, NodeRole};
use crate::process::Supervisor;
use crate::proxy::ApiProxy;
use crate::scheduler;
use crate::sim::{SimCluster, SimOptions, TalosVersion};
use crate::wait::until;

use objects::Machine;
pub use options::{AgentPlacement, BedOptions, EtcdMode, Progress};

/// The Node that the agent's pods are on, unless they are among the cluster's.
pub const AGENT_NODE: &str = "agents";

/// The version that the kubelets report: that of the control plane.
const KUBERNETES: &str = "v1.36.3";

/// A running bed. Dropping it ends everything that it started.
///
/// It lives on the tokio runtime that it was started on, and so do its clients: make a
/// client where it is used ([`client`](Self::client)).
pub struct Bed {
    // In the order in which they are to go.
    agents: Option<Agents>,
    tasks: Vec<AbortOnDropHandle<()>>,
    kubelets: Arc<Kubelets>,
    proxy: ApiProxy,
    egress: Egress,
    plane: ControlPlane,
    sim: SimCluster,
    nodes: Vec<NodeInfo>,
    spare: Option<NodeInfo>,
    sockets: PathBuf,
    kubeconfig: PathBuf,
    state: PathBuf,
    options: BedOptions,
    supervisor: Arc<Supervisor>,
}

/// A node of the bed, as it was when the bed was put up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeInfo {
    /// Name of the machine, its TalosMachine and its Node.
    pub name: String,
    /// `controlplane` or `worker`.
    pub role: &'static str,
    /// Where its Talos API answers.
    pub address: String,
}

impl Bed {
    /// Puts a bed up and waits until it is ready, saying on `options.progress` what is
    /// waited for.
    pub async fn start(options: BedOptions) -> Result<Self> {
        if options.control_planes == 0 {
            return Err(BedError::Refused(
                "a cluster has at least one control plane".to_owned(),
            ));
        }
        if options.agents > 2 {
            return Err(BedError::Refused(format!(
                "{} agents: the Deployment ships two replicas, more are not tried",
                options.agents
            )));
        }
        let version = TalosVersion::parse(&options.talos).ok_or_else(|| {
            BedError::Refused(format!(
                "no Talos {}: 1.13 and 1.14 are simulated",
                options.talos
            ))
        })?;
        // Somebody may have chosen one already; both are fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let say = Arc::clone(&options.progress);
        let programs = ControlPlanePrograms::find(|line| say(line)).await?;
        let agent_program = match options.agents {
            0 => None,
            _ => Some(agent_program(&options).await?),
        };

        // A short folder: the paths of Unix sockets are limited to some 100 bytes.
        let sockets = temporary("ichor-bed-")?;
        let (state, supervisor) = if let Some(state) = &options.state {
            fs::create_dir_all(state).map_err(|e| BedError::file(state, e))?;
            let state = fs::canonicalize(state).map_err(|e| BedError::file(state, e))?;
            let supervisor = Supervisor::new(&state, &[&sockets])?;
            (state, supervisor)
        } else {
            let state = temporary("ichor-state-")?;
            let supervisor = Supervisor::new(&state, &[&sockets, &state])?;
            (state, supervisor)
        };

        let egress = Egress::start(&sockets.join("egress.sock"))?;
        let start_sim = async {
            let mut sim = SimOptions::new(
                state.join("machines"),
                Arc::clone(&supervisor),
                programs.etcd(),
            );
            sim.control_planes = options.control_planes;
            sim.workers = options.workers;
            sim.version = version;
            sim.timings = options.timings;
            SimCluster::start(sim).await
        };
        let start_plane = async |storage| {
            let plane = ControlPlaneOptions {
                storage,
                node_monitor_grace: options.node_monitor_grace,
                egress: Some(egress.socket().to_owned()),
                users: options.users.clone(),
            };
            ControlPlane::start(&programs, &supervisor, &state, plane).await
        };
        say("starting the machines and the control plane");
        let (sim, plane) = match options.etcd {
            EtcdMode::Separate => tokio::try_join!(start_sim, start_plane(Storage::Own))?,
            EtcdMode::Shared => {
                let sim = start_sim.await?;
                let urls = sim.etcd_client_urls();
                (sim, start_plane(Storage::Shared(urls)).await?)
            }
        };
        let proxy = ApiProxy::start(plane.url(), plane.authority()).await?;
        let kubeconfig = objects::write_kubeconfig(&state, &kubeconfig(&plane, &proxy)?)?;
        let client = plane.client("bed").await?;

        say("applying the manifests of deploy/");
        objects::apply_manifests(plane.kubectl(), &kubeconfig).await?;
        objects::scale_agent(&client, options.agents).await?;
        objects::bind_users(&client).await?;
        if options.agents == 0 {
            say("no agents: the webhook configuration is taken away, or nothing could be written");
            objects::remove_webhooks(&client).await?;
        }

        let kubelets =
            Arc::new(Kubelets::start(client.clone(), options.kubelet.clone(), is_agent).await?);
        let placed_aside = options.agent_placement == AgentPlacement::Aside;
        let scheduler = scheduler::start(
            client.clone(),
            kubelets.pods().clone(),
            kubelets.nodes().clone(),
            Box::new(move |pod| (placed_aside && is_agent(pod)).then(|| AGENT_NODE.to_owned())),
        );

        let spare_name = format!("cp-{}", options.control_planes + 1);
        let (spare, nodes): (Vec<_>, Vec<_>) = sim
            .nodes()
            .iter()
            .map(|node| nodes::info(node))
            .partition(|node| node.name == spare_name);
        let mut bed = Self {
            agents: None,
            tasks: vec![scheduler],
            kubelets,
            proxy,
            egress,
            plane,
            sim,
            nodes,
            spare: spare.into_iter().next(),
            sockets,
            kubeconfig,
            state,
            options,
            supervisor,
        };
        bed.start_nodes(version).await?;
        if let Some(program) = agent_program {
            bed.start_agents(&client, program).await?;
        }
        bed.declare(&client).await?;
        bed.wait_until_ready(&client).await?;
        Ok(bed)
    }

    async fn start_nodes(&mut self, version: TalosVersion) -> Result<()> {
        if self.options.agents > 0 && self.options.agent_placement == AgentPlacement::Aside {
            self.kubelets
                .run(NodeIdentity {
                    name: AGENT_NODE.to_owned(),
                    role: NodeRole::Bed,
                    address: std::net::Ipv4Addr::LOCALHOST.into(),
                    system_uuid: uuid(),
                    boot_id: uuid(),
                    kubelet_version: KUBERNETES.to_owned(),
                    os_image: "the test bed".to_owned(),
                })
                .await?;
        }
        (self.options.progress)("waiting for the Nodes to be Ready");
        for node in self.sim.nodes() {
            self.tasks.push(nodes::follow(
                Arc::clone(node),
                Arc::clone(&self.kubelets),
                self.options.workers == 0,
                version.tag(),
            ));
        }
        for node in &self.nodes {
            self.kubelets
                .wait_ready(&node.name, "True", Duration::from_secs(30))
                .await?;
        }
        Ok(())
    }

    async fn start_agents(&mut self, client: &Client, program: PathBuf) -> Result<()> {
        let dir = self.state.join("agents");
        fs::create_dir_all(&dir).map_err(|e| BedError::file(&dir, e))?;
        let copy = dir.join("ichor-agent");
        copy_program(&program, &copy)?;
        let agents = Agents::start(
            client.clone(),
            Arc::clone(&self.supervisor),
            Arc::clone(&self.kubelets),
            self.egress.endpoints(),
            AgentOptions {
                program: copy,
                args: self.options.agent_args.clone(),
                api_server: self.proxy.url().to_owned(),
                authority: self.plane.authority().pem(),
                dir,
                webhook_service: objects::webhook_service(client).await?,
            },
        );
        (self.options.progress)("waiting for the agent to be ready");
        let ready = agents
            .wait_ready(self.options.agents, Duration::from_mins(1))
            .await;
        self.agents = Some(agents);
        ready
    }

    /// Declares the cluster and its machines.
    async fn declare(&self, client: &Client) -> Result<()> {
        objects::create_talosconfig(client, &self.sim.talosconfig()?).await?;
        let machine = |node: &NodeInfo, approved| Machine {
            name: node.name.clone(),
            role: node.role,
            address: node.address.clone(),
            approved,
        };
        let approved = self.nodes.iter().map(|node| machine(node, true));
        let pending = self.spare.iter().map(|node| machine(node, false));
        let machines: Vec<Machine> = approved.chain(pending).collect();
        (self.options.progress)("declaring the cluster and its machines");
        objects::create_cluster(client, self.options.declared_count(), &machines).await
    }

    async fn wait_until_ready(&self, client: &Client) -> Result<()> {
        if self.options.agents == 0 || !self.options.wait_for_adoption {
            return Ok(());
        }
        (self.options.progress)("waiting for the agent to adopt the machines");
        let api: Api<TalosMachine> = Api::namespaced(client.clone(), objects::NAMESPACE);
        until(
            Duration::from_mins(2),
            "the machines to be adopted",
            async || {
                let machines = api
                    .list(&ListParams::default())
                    .await
                    .map_err(|e| e.to_string())?;
                let mut missing = Vec::new();
                for machine in machines.iter().filter(|m| m.spec.approved) {
                    let conditions = machine.status.iter().flat_map(|s| &s.conditions);
                    let joined = conditions.clone().find(|c| c.type_ == JOINED);
                    match joined {
                        Some(c) if c.status == ConditionStatus::True => {}
                        Some(c) => missing.push(format!(
                            "{} ({}: {})",
                            machine.name_any(),
                            c.reason,
                            c.message
                        )),
                        None => missing.push(machine.name_any()),
                    }
                }
                if missing.is_empty() {
                    Ok(())
                } else {
                    Err(format!("not yet: {}", missing.join(", ")))
                }
            },
        )
        .await
    }

    /// The folder that the bed lives in.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The kubeconfig with the contexts `admin`, `editor`, `viewer` and `proxied`.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The control plane.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// The proxy that the agent and the context `proxied` go through.
    pub fn proxy(&self) -> &ApiProxy {
        &self.proxy
    }

    /// The kubelets.
    pub fn kubelets(&self) -> &Kubelets {
        &self.kubelets
    }

    /// The agents; an error in a bed without.
    pub fn agents(&self) -> Result<&Agents> {
        self.agents.as_ref().ok_or_else(|| {
            BedError::Refused("no agent runs in this bed: it was put up with --agents 0".to_owned())
        })
    }

    /// The nodes that were there at the start, the spare control plane left out.
    pub fn nodes(&self) -> &[NodeInfo] {
        &self.nodes
    }

    /// The spare control plane, as it was at the start: in maintenance.
    pub fn spare(&self) -> Option<&NodeInfo> {
        self.spare.as_ref()
    }

    /// A folder with a short path, for Unix sockets; it goes with the bed.
    pub(crate) fn sockets(&self) -> &Path {
        &self.sockets
    }

    /// A new client of `user` (`admin`, `editor`, `viewer`, or one of the options'), for
    /// the runtime that it is made on.
    pub async fn client(&self, user: &str) -> Result<Client> {
        self.plane.client(user).await
    }

    /// A new client of `admin` through the fault proxy.
    pub async fn proxied_client(&self) -> Result<Client> {
        crate::controlplane::client_of(
            self.proxy.url(),
            "admin",
            self.plane.users(),
            &self.plane.authority().pem(),
        )
        .await
    }

    /// kubectl with this bed's kubeconfig, the arguments to follow.
    pub fn kubectl(&self) -> std::process::Command {
        let mut command = std::process::Command::new(self.plane.kubectl());
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// Ends everything in order and waits for it.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(agents) = self.agents.take()
            && let Err(error) = agents.kill(None).await
        {
            tracing::debug!(%error, "no agent to kill");
        }
        self.tasks.clear();
        self.plane.stop().await
    }
}

fn kubeconfig(plane: &ControlPlane, proxy: &ApiProxy) -> Result<String> {
    let direct = plane.url();
    plane.kubeconfig(&[
        Context::new("admin", "admin", direct),
        Context::new("editor", "editor", direct),
        Context::new("viewer", "viewer", direct),
        Context::new("proxied", "admin", proxy.url()),
    ])
}

async fn agent_program(options: &BedOptions) -> Result<PathBuf> {
    let mut features = vec!["failpoints"];
    features.extend(options.agent_features.iter().map(String::as_str));
    own_program("ichor-agent", &features, "ICHOR_AGENT", |line| {
        (options.progress)(line);
    })
    .await
}

/// A random UUID, version 4.
fn uuid() -> String {
    let bits: u128 = rand::random();
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

fn temporary(prefix: &str) -> Result<PathBuf> {
    tempfile::Builder::new()
        .prefix(prefix)
        .tempdir()
        .map(tempfile::TempDir::keep)
        .map_err(|e| BedError::io("failed to make a temporary folder", e))
}

/// Copies a program: what a later build does to the original changes nothing here.
pub(crate) fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let _ = fs::remove_file(to);
    fs::copy(from, to)
        .map(drop)
        .map_err(|e| BedError::file(from, e))
}

/// Writes a script.
pub(crate) fn write_program(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text).map_err(|e| BedError::file(path, e))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .map_err(|e| BedError::file(path, e))
}
