//! The agent's pods, run as real processes.
//!
//! The shipped Deployment makes the pods, the bed's scheduler places them, and this
//! module is their kubelet: one process per pod, with the environment that the manifest
//! gives it and a token of its ServiceAccount, behind the fault proxy.
//!
//! Their tokens are not bound to the pod: the API server would refuse a deleted pod's
//! token, which hides whether the agent's own fencing holds.

mod replica;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ichor_agent::failpoint::POINTS;
use ichor_api::names;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use rustix::process::Signal;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::egress::Endpoints;
use crate::error::{BedError, Result};
use crate::kubelet::Kubelets;
use crate::process::Supervisor;
use crate::wait::until;

use replica::Replica;

/// Whether a pod is one of the agent's.
pub fn is_agent(pod: &Pod) -> bool {
    pod.namespace().as_deref() == Some(names::AGENT_NAMESPACE)
        && pod
            .labels()
            .get("app.kubernetes.io/name")
            .is_some_and(|name| name == names::AGENT_APP)
}

/// How the agent's processes are started.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The program.
    pub program: PathBuf,
    /// Further arguments of `ichor-agent run`.
    pub args: Vec<String>,
    /// URL of the API server, as the agent sees it: the fault proxy.
    pub api_server: String,
    /// Its authority, in PEM.
    pub authority: String,
    /// Folder for kubeconfigs.
    pub dir: PathBuf,
    /// `ClusterIP:port` of the webhook's Service.
    pub webhook_service: String,
}

/// How one agent stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// Its pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// Node of the pod.
    pub node: String,
    /// `Running`, `Frozen`, `Stopped` (by command, or at a fail point).
    pub state: &'static str,
    /// Whether its pod object is gone: another one has taken its place.
    pub replaced: bool,
    /// Whether it answers `/readyz`.
    pub ready: bool,
    /// Process ID, while it runs.
    pub pid: Option<i32>,
    /// How often its container was started again, for whatever reason.
    pub restarts: u32,
    /// How often it ended by itself, fail points aside.
    pub crashes: u32,
    /// The fail point that is set.
    pub failpoint: Option<String>,
    /// How it ended last.
    pub last_exit: Option<String>,
    /// Where it serves `/metrics`, `/livez` and `/readyz`.
    pub http: SocketAddr,
}

/// The running agents. Dropping it kills them.
pub struct Agents {
    shared: Arc<Shared>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

struct Shared {
    client: Client,
    supervisor: Arc<Supervisor>,
    kubelets: Arc<Kubelets>,
    endpoints: Arc<Endpoints>,
    options: AgentOptions,
    // By pod UID.
    replicas: Mutex<BTreeMap<String, Replica>>,
}

impl Agents {
    /// Runs the agent's pods from now on, those that are there and those that come.
    pub fn start(
        client: Client,
        supervisor: Arc<Supervisor>,
        kubelets: Arc<Kubelets>,
        endpoints: Arc<Endpoints>,
        options: AgentOptions,
    ) -> Self {
        let shared = Arc::new(Shared {
            client,
            supervisor,
            kubelets,
            endpoints,
            options,
            replicas: Mutex::default(),
        });
        let tend = {
            let shared = Arc::clone(&shared);
            async move {
                loop {
                    shared.tend().await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        };
        let probe = {
            let shared = Arc::clone(&shared);
            async move {
                loop {
                    shared.probe().await;
                    tokio::time::sleep(Duration::from_millis(250)).await;
                }
            }
        };
        Self {
            shared,
            _tasks: vec![
                AbortOnDropHandle::new(tokio::spawn(tend)),
                AbortOnDropHandle::new(tokio::spawn(probe)),
            ],
        }
    }

    /// How each stands.
    pub async fn status(&self) -> Vec<AgentStatus> {
        let replicas = self.shared.replicas.lock().await;
        replicas.values().map(Replica::status).collect()
    }

    /// Waits until `count` of them run and answer that they are ready.
    pub async fn wait_ready(&self, count: usize, limit: Duration) -> Result<()> {
        let what = format!("{count} agents to be ready");
        until(limit, &what, async || {
            let all = self.status().await;
            let ready = all.iter().filter(|a| a.ready && !a.replaced).count();
            if ready >= count {
                return Ok(());
            }
            let exits: Vec<_> = all.iter().filter_map(|a| a.last_exit.as_deref()).collect();
            Err(format!("{ready} are; {}", exits.join("; ")))
        })
        .await
    }

    /// Waits until those that run are ready, one has ended, or `limit` is over: an agent
    /// may have good reason not to get ready.
    pub async fn settle(&self, limit: Duration) {
        let settled = until(limit, "the agents to be ready", async || {
            let all = self.status().await;
            let waiting = all
                .iter()
                .any(|a| a.state == "Running" && !a.replaced && !a.ready);
            if waiting { Err(String::new()) } else { Ok(()) }
        });
        let _ = settled.await;
    }

    /// Ends them in good order (SIGTERM); each stays stopped until [`start_again`](Self::start_again).
    /// `pod` names one of them, `None` means all.
    pub async fn stop(&self, pod: Option<&str>, limit: Duration) -> Result<usize> {
        let ended = {
            let mut replicas = self.shared.replicas.lock().await;
            let chosen = choose(&mut replicas, pod)?;
            let mut ended = Vec::new();
            for replica in chosen {
                replica.wanted = false;
                if let Some(process) = &replica.process {
                    process.signal(Signal::TERM)?;
                    ended.push(process.exit());
                }
            }
            ended
        };
        let count = ended.len();
        let all = futures::future::join_all(ended);
        if tokio::time::timeout(limit, all).await.is_err() {
            return Err(BedError::Refused(format!(
                "the agent has been told to stop and has not ended after {} s: it waits for a call that is in flight, or it is frozen",
                limit.as_secs()
            )));
        }
        Ok(count)
    }

    /// Kills them (SIGKILL); each stays stopped until [`start_again`](Self::start_again).
    pub async fn kill(&self, pod: Option<&str>) -> Result<usize> {
        let mut replicas = self.shared.replicas.lock().await;
        let mut count = 0;
        for replica in choose(&mut replicas, pod)? {
            replica.wanted = false;
            count += usize::from(replica.kill().await?);
        }
        Ok(count)
    }

    /// Starts those that were stopped, killed, or ended at a fail point: the same pods,
    /// their containers restarted. No fail point is set any more.
    pub async fn start_again(&self, pod: Option<&str>) -> Result<usize> {
        let mut replicas = self.shared.replicas.lock().await;
        let mut count = 0;
        for replica in choose(&mut replicas, pod)? {
            if replica.replaced || replica.is_running() {
                continue;
            }
            replica.wanted = true;
            replica.failpoint = None;
            self.shared.launch(replica).await?;
            count += 1;
        }
        Ok(count)
    }

    /// Replaces the pods: the Deployment makes others, with UIDs of their own. A process
    /// that still runs (frozen, say) is left to itself: it believes what it believed.
    pub async fn start_new_pods(&self, pod: Option<&str>, limit: Duration) -> Result<usize> {
        let replaced: Vec<(String, String)> = {
            let mut replicas = self.shared.replicas.lock().await;
            let mut replaced = Vec::new();
            for replica in choose(&mut replicas, pod)? {
                if !replica.replaced {
                    replica.replaced = true;
                    replica.wanted = false;
                    replaced.push((replica.name.clone(), replica.uid.clone()));
                }
            }
            replaced
        };
        let api: Api<Pod> = Api::namespaced(self.shared.client.clone(), names::AGENT_NAMESPACE);
        for (name, uid) in &replaced {
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match api.delete(name, &params).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => {
                    return Err(BedError::api(
                        format!("failed to replace pod {name}"),
                        error,
                    ));
                }
                Ok(_) => {}
            }
        }
        until(limit, "the new pods to run", async || {
            let all = self.status().await;
            let new = all
                .iter()
                .filter(|a| !a.replaced && a.state == "Running")
                .count();
            if new >= replaced.len() {
                Ok(())
            } else {
                Err(format!("{new} of {} do", replaced.len()))
            }
        })
        .await?;
        Ok(replaced.len())
    }

    /// Stops their clocks (SIGSTOP), or lets them go on.
    pub async fn freeze(&self, pod: Option<&str>, freeze: bool) -> Result<usize> {
        let signal = if freeze { Signal::STOP } else { Signal::CONT };
        let mut replicas = self.shared.replicas.lock().await;
        let mut count = 0;
        for replica in choose(&mut replicas, pod)? {
            if let Some(process) = replica.process.as_ref().filter(|p| p.is_running())
                && replica.frozen != freeze
            {
                process.signal(signal)?;
                replica.frozen = freeze;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Restarts one agent with a fail point set: it ends itself there, once, and stays
    /// down until [`start_again`](Self::start_again) or [`start_new_pods`](Self::start_new_pods).
    /// Without `pod`: the one that leads, as far as the election's Lease tells.
    pub async fn failpoint(&self, point: &str, pod: Option<&str>) -> Result<String> {
        if !POINTS.contains(&point) {
            return Err(BedError::Unknown {
                kind: "fail point",
                name: point.to_owned(),
                known: POINTS.join(", "),
            });
        }
        let leader = match pod {
            Some(pod) => Some(pod.to_owned()),
            None => self.leader().await,
        };
        let mut replicas = self.shared.replicas.lock().await;
        let replica = choose(&mut replicas, leader.as_deref())?
            .into_iter()
            .find(|r| !r.replaced)
            .ok_or_else(|| BedError::Refused("no agent runs in this bed".to_owned()))?;
        replica.wanted = false;
        replica.kill().await?;
        replica.wanted = true;
        replica.failpoint = Some(point.to_owned());
        self.shared.launch(replica).await?;
        Ok(replica.name.clone())
    }

    /// The pod that holds the election's Lease.
    async fn leader(&self) -> Option<String> {
        let api: Api<Lease> = Api::namespaced(self.shared.client.clone(), names::AGENT_NAMESPACE);
        let leases = api.list(&ListParams::default()).await.ok()?;
        let holders: Vec<String> = leases
            .into_iter()
            .filter_map(|l| l.spec?.holder_identity)
            .collect();
        let replicas = self.shared.replicas.lock().await;
        let leads = |r: &&Replica| {
            !r.replaced
                && holders
                    .iter()
                    .any(|h| h.contains(&r.uid) || h.contains(&r.name))
        };
        replicas.values().find(leads).map(|r| r.name.clone())
    }
}

/// The replicas that `pod` names: that one, or all where there is no name.
fn choose<'a>(
    replicas: &'a mut BTreeMap<String, Replica>,
    pod: Option<&str>,
) -> Result<Vec<&'a mut Replica>> {
    let known: Vec<String> = replicas.values().map(|r| r.name.clone()).collect();
    let chosen: Vec<_> = replicas
        .values_mut()
        .filter(|r| pod.is_none_or(|pod| r.name == pod))
        .collect();
    match pod {
        Some(pod) if chosen.is_empty() => Err(BedError::Unknown {
            kind: "agent pod",
            name: pod.to_owned(),
            known: known.join(", "),
        }),
        None if chosen.is_empty() => Err(BedError::Refused(
            "no agent runs in this bed: it was put up with --agents 0".to_owned(),
        )),
        _ => Ok(chosen),
    }
}

impl Shared {
    /// One round of what a kubelet does for these pods.
    async fn tend(&self) {
        let pods: Vec<_> = self
            .kubelets
            .pods()
            .state()
            .into_iter()
            .filter(|p| is_agent(p))
            .collect();
        let mut replicas = self.replicas.lock().await;
        for pod in &pods {
            let (Some(uid), Some(node)) = (
                pod.uid(),
                pod.spec.as_ref().and_then(|s| s.node_name.clone()),
            ) else {
                continue;
            };
            if !self.kubelets.runs(&node) {
                // Its node has no power: nothing runs on it, and nobody finishes its pods.
                if let Some(replica) = replicas.get_mut(&uid)
                    && !replica.replaced
                {
                    let _ = replica.kill().await;
                    replica.ready = false;
                }
                continue;
            }
            if pod.metadata.deletion_timestamp.is_some() {
                self.end(pod, replicas.get_mut(&uid)).await;
                continue;
            }
            if !replicas.contains_key(&uid) {
                match Replica::new(pod, node) {
                    Ok(replica) => {
                        replicas.insert(uid.clone(), replica);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "no port for the agent");
                        continue;
                    }
                }
            }
            if let Some(replica) = replicas.get_mut(&uid)
                && replica.note_exit()
                && let Err(error) = self.launch(replica).await
            {
                tracing::warn!(%error, pod = replica.name, "the agent could not be started");
            }
        }
        // Pods that are gone, and were not replaced by command, take their process along.
        let mut forgotten = Vec::new();
        for replica in replicas.values_mut() {
            let there = pods
                .iter()
                .any(|p| p.metadata.uid.as_deref() == Some(&replica.uid));
            if !there && !replica.replaced && replica.seen {
                let _ = replica.kill().await;
            }
            if !there && replica.seen && !replica.is_running() {
                forgotten.push(replica.uid.clone());
            }
            replica.seen |= there;
        }
        replicas.retain(|uid, _| !forgotten.contains(uid));
    }

    /// Ends a pod that is being deleted: SIGTERM, its grace period, SIGKILL.
    async fn end(&self, pod: &Pod, replica: Option<&mut Replica>) {
        if let Some(replica) = replica {
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
            let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
            replica.wanted = false;
            replica.ready = false;
            if replica.is_running() {
                let told = replica.tell_to_end();
                if told.elapsed() < grace {
                    return;
                }
                let _ = replica.kill().await;
            }
        }
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let api: Api<Pod> = Api::namespaced(self.client.clone(), names::AGENT_NAMESPACE);
        if let Err(error) = crate::kubelet::finish(&api, &name, &uid).await {
            tracing::debug!(%error, name, "the agent's pod is not finished yet");
        }
    }

    /// Starts the process of a replica.
    async fn launch(&self, replica: &mut Replica) -> Result<()> {
        let kubeconfig = self.kubeconfig(&replica.name).await?;
        replica.launch(&self.supervisor, &self.options, &kubeconfig)
    }

    /// A kubeconfig with a fresh token of the agent's ServiceAccount.
    async fn kubeconfig(&self, pod: &str) -> Result<PathBuf> {
        let token = service_account_token(
            &self.client,
            names::AGENT_NAMESPACE,
            names::AGENT_SERVICE_ACCOUNT,
        )
        .await?;
        let text = crate::controlplane::users::kubeconfig_with_token(
            &self.options.api_server,
            &self.options.authority,
            &token,
            names::AGENT_NAMESPACE,
        );
        let path = self.options.dir.join(format!("{pod}.kubeconfig"));
        write_private(&path, &text)?;
        Ok(path)
    }

    /// Asks each whether it is ready, and tells that to its pod and to the webhook's Service.
    async fn probe(&self) {
        let asked: Vec<(String, SocketAddr)> = {
            let replicas = self.replicas.lock().await;
            let alive = replicas.values().filter(|r| r.is_running());
            alive.map(|r| (r.uid.clone(), r.http)).collect()
        };
        let answers = asked
            .into_iter()
            .map(|(uid, address)| async move { (uid, replica::answers(address, "/readyz").await) });
        let answers: BTreeMap<_, _> = futures::future::join_all(answers)
            .await
            .into_iter()
            .collect();

        let mut changed = Vec::new();
        let mut serving = Vec::new();
        {
            let mut replicas = self.replicas.lock().await;
            for replica in replicas.values_mut() {
                let ready = answers.get(&replica.uid).copied().unwrap_or(false);
                if replica.note_readiness(ready) && !replica.replaced {
                    changed.push((replica.name.clone(), replica.ready, replica.restarts));
                }
                if replica.ready && !replica.replaced {
                    serving.push(SocketAddr::from((Ipv4Addr::LOCALHOST, replica.webhook)));
                }
            }
        }
        self.endpoints.set(&self.options.webhook_service, serving);
        for (name, ready, restarts) in changed {
            if let Err(error) = self.report(&name, ready, restarts).await {
                tracing::debug!(%error, name, "the agent's pod status is not written");
            }
        }
    }

    async fn report(&self, name: &str, ready: bool, restarts: u32) -> Result<(), kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), names::AGENT_NAMESPACE);
        let Some(pod) = api.get_opt(name).await? else {
            return Ok(());
        };
        crate::kubelet::report(
            &api,
            &pod,
            ready,
            i32::try_from(restarts).unwrap_or(i32::MAX),
        )
        .await
    }
}

/// A token of a ServiceAccount, good for a week.
pub async fn service_account_token(
    client: &Client,
    namespace: &str,
    account: &str,
) -> Result<String> {
    use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
    use k8s_openapi::api::core::v1::ServiceAccount;
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            expiration_seconds: Some(7 * 24 * 3600),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let what = || format!("failed to get a token of ServiceAccount {namespace}/{account}");
    let answer = api
        .create_token_request(account, &kube::api::PostParams::default(), &request)
        .await
        .map_err(|e| BedError::api(what(), e))?;
    let status = answer.status.ok_or_else(|| BedError::Refused(what()))?;
    Ok(status.token)
}

pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| BedError::file(path, e))?;
    file.write_all(text.as_bytes())
        .map_err(|e| BedError::file(path, e))
}
