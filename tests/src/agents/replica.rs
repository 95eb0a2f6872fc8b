//! One pod of the agent and its process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::error::Result;
use crate::net::free_port;
use crate::process::{Process, Supervisor};

use super::{AgentOptions, AgentStatus};

/// Unanswered probes in a row until it counts as not ready.
const PATIENCE: u32 = 4;

#[derive(Debug)]
pub(super) struct Replica {
    pub name: String,
    pub uid: String,
    pub process: Option<Process>,
    /// Whether it is to run: not after a stop, a kill or a fail point.
    pub wanted: bool,
    pub frozen: bool,
    pub failpoint: Option<String>,
    /// How often its container was started again, for whatever reason.
    pub restarts: u32,
    /// How often it ended by itself, fail points aside.
    pub crashes: u32,
    pub ready: bool,
    /// Its pod was replaced by command; its process is left to itself.
    pub replaced: bool,
    /// Its pod has been seen in the watch.
    pub seen: bool,
    pub http: SocketAddr,
    pub webhook: u16,
    node: String,
    namespace: String,
    account: String,
    launched: bool,
    misses: u32,
    told: Option<Instant>,
    ended_at: Option<Instant>,
    last_exit: Option<String>,
}

impl Replica {
    pub fn new(pod: &Pod, node: String) -> Result<Self> {
        let account = pod
            .spec
            .as_ref()
            .and_then(|s| s.service_account_name.clone());
        Ok(Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            process: None,
            wanted: true,
            frozen: false,
            failpoint: None,
            restarts: 0,
            crashes: 0,
            ready: false,
            replaced: false,
            seen: false,
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)),
            webhook: free_port()?,
            node,
            namespace: pod.namespace().unwrap_or_default(),
            account: account.unwrap_or_default(),
            launched: false,
            misses: 0,
            told: None,
            ended_at: None,
            last_exit: None,
        })
    }

    pub fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_running)
    }

    pub fn launch(
        &mut self,
        supervisor: &Arc<Supervisor>,
        options: &AgentOptions,
        kubeconfig: &Path,
    ) -> Result<()> {
        let mut command = Command::new(&options.program);
        command
            .arg("run")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg(format!("--http-bind={}", self.http))
            .arg(format!("--webhook-bind=127.0.0.1:{}", self.webhook))
            .args(&options.args)
            .env_remove("KUBECONFIG")
            .env("POD_NAME", &self.name)
            .env("POD_NAMESPACE", &self.namespace)
            .env("POD_UID", &self.uid)
            .env("POD_SERVICE_ACCOUNT", &self.account)
            .env("NODE_NAME", &self.node)
            .env_remove("ICHOR_FAILPOINT");
        if let Some(point) = &self.failpoint {
            command.env("ICHOR_FAILPOINT", point);
        }
        self.process = Some(supervisor.spawn(&self.name, command)?);
        self.restarts += u32::from(self.launched);
        self.launched = true;
        self.frozen = false;
        self.ready = false;
        self.misses = PATIENCE;
        self.told = None;
        self.ended_at = None;
        Ok(())
    }

    /// Kills the process. Whether there was one.
    pub async fn kill(&mut self) -> Result<bool> {
        let Some(process) = self.process.take() else {
            return Ok(false);
        };
        let ran = process.is_running();
        process.kill().await?;
        self.frozen = false;
        if ran {
            self.last_exit = Some("killed by the bed".to_owned());
        }
        Ok(ran)
    }

    /// Sends SIGTERM, once; when that was.
    pub fn tell_to_end(&mut self) -> Instant {
        if let Some(told) = self.told {
            return told;
        }
        if let Some(process) = &self.process
            && let Err(error) = process.signal(Signal::TERM)
        {
            tracing::warn!(%error, "the agent could not be told to end");
        }
        *self.told.insert(Instant::now())
    }

    /// Takes note of a process that ended by itself. Whether it is to be started now:
    /// after a pause that grows with every restart, as a kubelet's does; never after a
    /// fail point, whose purpose is that somebody looks.
    pub fn note_exit(&mut self) -> bool {
        if self.is_running() {
            return false;
        }
        if let Some(process) = self.process.take() {
            let exit = process.exit_text();
            tracing::warn!(pod = self.name, exit, log = %process.log().display(), "the agent has ended");
            self.last_exit = Some(exit);
            self.ended_at = Some(Instant::now());
            if self.wanted
                && let Some(point) = &self.failpoint
            {
                tracing::warn!(
                    pod = self.name,
                    point,
                    "it was set to end there; `agent start` starts it again"
                );
                self.wanted = false;
            }
            if self.wanted {
                self.crashes += 1;
            }
        }
        let pause = Duration::from_millis(500 * u64::from(self.crashes.min(10)));
        self.wanted && self.ended_at.is_none_or(|at| at.elapsed() >= pause)
    }

    /// Takes note of a probe's answer. Whether the readiness has changed.
    pub fn note_readiness(&mut self, answered: bool) -> bool {
        let before = self.ready;
        if answered {
            self.misses = 0;
            self.ready = true;
        } else {
            self.misses = self.misses.saturating_add(1);
            if self.misses >= PATIENCE || !self.is_running() {
                self.ready = false;
            }
        }
        self.ready != before
    }

    pub fn status(&self) -> AgentStatus {
        let running = self.is_running();
        AgentStatus {
            pod: self.name.clone(),
            uid: self.uid.clone(),
            node: self.node.clone(),
            state: match (running, self.frozen) {
                (false, _) => "Stopped",
                (true, true) => "Frozen",
                (true, false) => "Running",
            },
            replaced: self.replaced,
            ready: running && self.ready,
            pid: self.process.as_ref().filter(|_| running).map(Process::id),
            restarts: self.restarts,
            crashes: self.crashes,
            failpoint: self.failpoint.clone(),
            last_exit: self.last_exit.clone(),
            http: self.http,
        }
    }
}

/// Whether `GET path` at `address` is answered 200 within half a second.
pub(super) async fn answers(address: SocketAddr, path: &str) -> bool {
    let ask = async {
        let stream = TcpStream::connect(address).await.ok()?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .ok()?;
        let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
        let request = http::Request::get(path)
            .header(http::header::HOST, address.to_string())
            .header(http::header::USER_AGENT, "kube-probe/bed")
            .body(Empty::<bytes::Bytes>::new())
            .ok()?;
        let response = sender.send_request(request).await.ok()?;
        let ok = response.status().is_success();
        response.into_body().collect().await.ok()?;
        drop(connection);
        Some(ok)
    };
    tokio::time::timeout(Duration::from_millis(500), ask)
        .await
        .ok()
        .flatten()
        .unwrap_or(false)
}
