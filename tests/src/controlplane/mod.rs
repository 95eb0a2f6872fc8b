//! A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager.
//!
//! There is no kubelet and no scheduler in it; see [`crate::kubelet`].

pub mod certs;
pub mod users;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::assets::ControlPlanePrograms;
use crate::error::{BedError, Result};
use crate::net::free_port;
use crate::process::{Process, Supervisor};
use crate::wait::Deadline;

use certs::Authority;
use users::{Context, User};

/// The controllers that run: what budgets, replacement pods, deleted namespaces,
/// garbage collection and unreachable nodes need.
const CONTROLLERS: &[&str] = &[
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "disruption-controller",
    "replicaset-controller",
    "deployment-controller",
    "statefulset-controller",
    "daemonset-controller",
    "job-controller",
    "pod-garbage-collector-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
];

/// Where the API server stores.
#[derive(Clone, Debug, Default)]
pub enum Storage {
    /// In an etcd of its own, which nothing in the tests touches.
    #[default]
    Own,
    /// In the etcd whose client URLs these are.
    Shared(Vec<String>),
}

/// How the control plane is started.
#[derive(Clone, Debug)]
pub struct ControlPlaneOptions {
    /// Where the API server stores.
    pub storage: Storage,
    /// How long a Node may go without a sign of life until it is `Unknown`.
    pub node_monitor_grace: Duration,
    /// A Unix socket with an HTTP CONNECT proxy by which the API server reaches
    /// Services (webhooks).
    pub egress: Option<PathBuf>,
    /// Users besides the bed's own.
    pub users: Vec<User>,
}

impl Default for ControlPlaneOptions {
    fn default() -> Self {
        Self {
            storage: Storage::Own,
            node_monitor_grace: Duration::from_secs(5),
            egress: None,
            users: Vec::new(),
        }
    }
}

/// A running control plane. Dropping it kills it.
#[derive(Debug)]
pub struct ControlPlane {
    url: String,
    authority: Authority,
    users: Vec<User>,
    kubectl: PathBuf,
    etcd: Option<Process>,
    etcd_url: Option<String>,
    api_server: Process,
    controller_manager: Process,
}

impl ControlPlane {
    /// Starts it in `state` and waits until it is ready.
    pub async fn start(
        programs: &ControlPlanePrograms,
        supervisor: &Arc<Supervisor>,
        state: &Path,
        options: ControlPlaneOptions,
    ) -> Result<Self> {
        let dir = state.join("control-plane");
        fs::create_dir_all(&dir).map_err(|e| BedError::file(&dir, e))?;
        let write = |name: &str, text: &str| -> Result<PathBuf> {
            let path = dir.join(name);
            fs::write(&path, text).map_err(|e| BedError::file(&path, e))?;
            Ok(path)
        };

        let (etcd, etcd_url) = match &options.storage {
            Storage::Own => {
                let (process, url) = start_etcd(programs, supervisor, &dir)?;
                (Some(process), Some(url))
            }
            Storage::Shared(_) => (None, None),
        };
        let etcd_servers = match &options.storage {
            Storage::Own => etcd_url.clone().unwrap_or_default(),
            Storage::Shared(urls) => urls.join(","),
        };

        let authority = Authority::new("ichor-bed")?;
        let ca = write("ca.crt", &authority.pem())?;
        let serving = authority.server(&["127.0.0.1", "localhost", "kubernetes.default.svc"])?;
        let (signing_key, verifying_key) = certs::signing_key()?;
        let signing_key = write("service-account.key", &signing_key)?;
        let mut users = users::own();
        users.extend(options.users);

        let port = free_port()?;
        let url = format!("https://127.0.0.1:{port}");
        let mut command = Command::new(programs.api_server());
        command
            .arg(format!("--etcd-servers={etcd_servers}"))
            .arg(format!("--secure-port={port}"))
            .args([
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                // An Endpoints object may not hold a loopback address.
                "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--authorization-mode=RBAC,Node",
                "--allow-privileged=true",
                "--profiling=false",
                "--shutdown-delay-duration=0s",
            ])
            .arg(flag("--cert-dir", &dir))
            .arg(flag("--client-ca-file", &ca))
            .arg(flag(
                "--tls-cert-file",
                &write("server.crt", &serving.certificate)?,
            ))
            .arg(flag(
                "--tls-private-key-file",
                &write("server.key", &serving.key)?,
            ))
            .arg(flag("--service-account-signing-key-file", &signing_key))
            .arg(flag(
                "--service-account-key-file",
                &write("service-account.pub", &verifying_key)?,
            ))
            .arg(flag(
                "--token-auth-file",
                &write("tokens.csv", &users::token_file(&users))?,
            ));
        if let Some(socket) = &options.egress {
            let config = write("egress.yaml", &egress_config(socket))?;
            command.arg(flag("--egress-selector-config-file", &config));
        }
        let api_server = supervisor.spawn("kube-apiserver", command)?;

        let contexts = [Context::new(
            "controller-manager",
            "system:kube-controller-manager",
            &url,
        )];
        let kubeconfig = write(
            "controller-manager.kubeconfig",
            &users::kubeconfig(&contexts, &users, &authority.pem())?,
        )?;
        let admin = client_of(&url, "admin", &users, &authority.pem()).await?;
        wait_ready(&admin, &api_server, etcd.as_ref()).await?;

        let mut command = Command::new(programs.controller_manager());
        command
            .arg(flag("--kubeconfig", &kubeconfig))
            .arg(flag("--root-ca-file", &ca))
            .arg(flag("--service-account-private-key-file", &signing_key))
            .arg(format!("--controllers={}", CONTROLLERS.join(",")))
            .arg(format!(
                "--node-monitor-grace-period={}ms",
                options.node_monitor_grace.as_millis()
            ))
            .args([
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                "--secure-port=0",
                "--node-monitor-period=500ms",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
            ]);
        let controller_manager = supervisor.spawn("kube-controller-manager", command)?;

        let plane = Self {
            url,
            authority,
            users,
            kubectl: programs.kubectl(),
            etcd,
            etcd_url,
            api_server,
            controller_manager,
        };
        plane.wait_controllers(&admin).await?;
        Ok(plane)
    }

    /// URL of the API server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The authority that the API server trusts, and that signed its certificate.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Every user of the token file.
    pub fn users(&self) -> &[User] {
        &self.users
    }

    /// Path of kubectl.
    pub fn kubectl(&self) -> &Path {
        &self.kubectl
    }

    /// Client URL of the API server's own etcd; `None` where it stores in a shared one.
    pub fn etcd_url(&self) -> Option<&str> {
        self.etcd_url.as_deref()
    }

    /// A new client of `user`, one of the token file. A client lives on the runtime
    /// that it is used on: make one for each.
    pub async fn client(&self, user: &str) -> Result<Client> {
        client_of(&self.url, user, &self.users, &self.authority.pem()).await
    }

    /// A kubeconfig with `contexts`, the first being the current one.
    pub fn kubeconfig(&self, contexts: &[Context]) -> Result<String> {
        users::kubeconfig(contexts, &self.users, &self.authority.pem())
    }

    /// A client's certificate of `user` in `group`, for a user whom the token file does not have.
    pub fn certificate(&self, user: &str, group: &str) -> Result<certs::KeyAndCertificate> {
        self.authority.client(user, &[group])
    }

    /// An error if a part of it has ended by itself.
    pub fn check(&self) -> Result<()> {
        let parts = [&self.api_server, &self.controller_manager];
        match parts
            .into_iter()
            .chain(self.etcd.as_ref())
            .find(|p| !p.is_running())
        {
            Some(process) => Err(process.ended()),
            None => Ok(()),
        }
    }

    /// Stops everything, the API server before its etcd.
    pub async fn stop(&self) -> Result<()> {
        self.controller_manager.kill().await?;
        self.api_server.kill().await?;
        if let Some(etcd) = &self.etcd {
            etcd.kill().await?;
        }
        Ok(())
    }

    /// The controllers run once the ServiceAccount of `default` is there: pods can be created.
    async fn wait_controllers(&self, admin: &Client) -> Result<()> {
        use k8s_openapi::api::core::v1::ServiceAccount;
        let accounts: kube::Api<ServiceAccount> = kube::Api::namespaced(admin.clone(), "default");
        let deadline = Deadline::after(Duration::from_mins(1));
        loop {
            self.check()?;
            match accounts.get_opt("default").await {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => deadline.pause("the controller manager to work", "").await?,
                Err(error) => {
                    let detail = error.to_string();
                    deadline
                        .pause("the controller manager to work", &detail)
                        .await?;
                }
            }
        }
    }
}

/// A new client of one of `users` for the server at `url`.
pub(crate) async fn client_of(url: &str, user: &str, users: &[User], ca: &str) -> Result<Client> {
    let contexts = [Context::new("it", user, url)];
    let text = users::kubeconfig(&contexts, users, ca)?;
    Ok(ichor_rules::connect::client(config_of(&text).await?)?)
}

/// The configuration that the current context of a kubeconfig's text names.
pub(crate) async fn config_of(kubeconfig: &str) -> Result<Config> {
    let bad = |e: kube::config::KubeconfigError| {
        BedError::Refused(format!("a kubeconfig of the bed's own is unusable: {e}"))
    };
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).map_err(bad)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(bad)
}

fn start_etcd(
    programs: &ControlPlanePrograms,
    supervisor: &Arc<Supervisor>,
    dir: &Path,
) -> Result<(Process, String)> {
    let data = dir.join("etcd");
    // What an earlier bed stored in this folder is not this one's.
    match fs::remove_dir_all(&data) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(BedError::file(&data, e)),
        _ => {}
    }
    let client = format!("http://127.0.0.1:{}", free_port()?);
    let peer = format!("http://127.0.0.1:{}", free_port()?);
    let mut command = Command::new(programs.etcd());
    command
        .args(["--name=bed", "--unsafe-no-fsync", "--log-level=warn"])
        .arg(flag("--data-dir", &data))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=bed={peer}"));
    Ok((supervisor.spawn("etcd", command)?, client))
}

async fn wait_ready(admin: &Client, api_server: &Process, etcd: Option<&Process>) -> Result<()> {
    let deadline = Deadline::after(Duration::from_mins(2));
    loop {
        for process in [Some(api_server), etcd].into_iter().flatten() {
            if !process.is_running() {
                return Err(process.ended());
            }
        }
        let request = http::Request::get("/readyz")
            .body(Vec::new())
            .map_err(|e| BedError::Refused(e.to_string()))?;
        match admin.request_text(request).await {
            Ok(_) => return Ok(()),
            Err(error) => {
                let detail = error.to_string();
                deadline
                    .pause("the API server to be ready", &detail)
                    .await?;
            }
        }
    }
}

fn egress_config(socket: &Path) -> String {
    format!(
        "apiVersion: apiserver.k8s.io/v1beta1\n\
         kind: EgressSelectorConfiguration\n\
         egressSelections:\n\
         - name: cluster\n\
         \x20 connection:\n\
         \x20   proxyProtocol: HTTPConnect\n\
         \x20   transport:\n\
         \x20     uds:\n\
         \x20       udsName: {}\n",
        socket.display()
    )
}

fn flag(name: &str, path: &Path) -> std::ffi::OsString {
    let mut flag = std::ffi::OsString::from(name);
    flag.push("=");
    flag.push(path);
    flag
}
