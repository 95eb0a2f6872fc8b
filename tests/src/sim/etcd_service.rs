//! The service `etcd` of a simulated control plane: a real etcd process, started, joined,
//! promoted, restarted and left as Talos does it (facts: talos.md 4).

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::etcd::{EtcdError, Member};
use super::lock;
use super::node::Node;
use crate::process::Process;

/// What the service is doing, in Talos' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Initialized,
    /// Joining: no member yet.
    Preparing,
    Running,
    /// Crashed, to be started again.
    Waiting,
    Stopping,
    Finished,
    Failed,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Initialized => "Initialized",
            Self::Preparing => "Preparing",
            Self::Running => "Running",
            Self::Waiting => "Waiting",
            Self::Stopping => "Stopping",
            Self::Finished => "Finished",
            Self::Failed => "Failed",
        }
    }
}

/// What a control plane says while there is no etcd to join.
const AWAITS: &str = "etcd is waiting to join the cluster, if this node is the first node in the \
     cluster, please run `talosctl bootstrap`";

/// How an etcd without data gets some.
#[derive(Clone, Debug)]
pub(super) enum Start {
    /// Together with these (name and peer URL), as a new cluster.
    New(Vec<(String, String)>),
    /// As a learner of the cluster that is there.
    Join,
    /// As a learner too, once somebody has called Bootstrap on another node.
    Await,
}

#[derive(Debug)]
struct Inner {
    state: State,
    message: String,
    healthy: bool,
    member_id: Option<u64>,
    process: Option<Arc<Process>>,
    /// It ended because its member is no longer in the cluster.
    removed: bool,
    /// Somebody stopped it from outside.
    held: bool,
    frozen: bool,
    cut: bool,
    /// Learners stay learners.
    hold_learner: bool,
    runner: Option<(CancellationToken, JoinHandle<()>)>,
}

/// The service on one node.
#[derive(Debug)]
pub(super) struct EtcdService {
    data: PathBuf,
    inner: std::sync::Mutex<Inner>,
    changed: Notify,
}

impl EtcdService {
    pub(super) fn new(data: PathBuf) -> Self {
        Self {
            data,
            inner: std::sync::Mutex::new(Inner {
                state: State::Initialized,
                message: String::new(),
                healthy: false,
                member_id: None,
                process: None,
                removed: false,
                held: false,
                frozen: false,
                cut: false,
                hold_learner: false,
                runner: None,
            }),
            changed: Notify::new(),
        }
    }

    /// State, health (none while it does not run) and the last message.
    pub(super) fn view(&self) -> (State, Option<bool>, String) {
        let inner = lock(&self.inner);
        let healthy = (inner.state == State::Running).then_some(inner.healthy);
        (inner.state, healthy, inner.message.clone())
    }

    pub(super) fn is_healthy(&self) -> bool {
        let inner = lock(&self.inner);
        inner.state == State::Running && inner.healthy
    }

    /// Its member's ID, while it is healthy: what the resource `EtcdMembers/local` shows.
    pub(super) fn member_id(&self) -> Option<u64> {
        let inner = lock(&self.inner);
        inner
            .member_id
            .filter(|_| inner.state == State::Running && inner.healthy)
    }

    /// Could others reach it now?
    pub(super) fn is_reachable(&self) -> bool {
        let inner = lock(&self.inner);
        !inner.frozen && !inner.cut && inner.process.as_ref().is_some_and(|p| p.is_running())
    }

    pub(super) fn has_data(&self) -> bool {
        self.data.join("member").exists()
    }

    pub(super) fn wipe(&self) {
        let _ = std::fs::remove_dir_all(&self.data);
    }

    fn set(&self, state: State, message: impl Into<String>) {
        let mut inner = lock(&self.inner);
        inner.state = state;
        inner.message = message.into();
        if state != State::Running {
            inner.healthy = false;
        }
    }

    pub(super) fn freeze(&self, frozen: bool) {
        lock(&self.inner).frozen = frozen;
        self.apply_freeze();
    }

    /// A machine that is cut off from the others: its etcd too can say nothing.
    pub(super) fn cut(&self, cut: bool) {
        lock(&self.inner).cut = cut;
        self.apply_freeze();
    }

    fn apply_freeze(&self) {
        let inner = lock(&self.inner);
        if let Some(process) = &inner.process {
            let signal = if inner.frozen || inner.cut {
                Signal::STOP
            } else {
                Signal::CONT
            };
            let _ = process.signal(signal);
        }
    }

    /// Stops the process and keeps it stopped, or lets it run again.
    pub(super) fn hold(&self, held: bool) {
        let mut inner = lock(&self.inner);
        inner.held = held;
        if held && let Some(process) = &inner.process {
            let _ = process.signal(Signal::KILL);
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    pub(super) fn hold_learner(&self, hold: bool) {
        lock(&self.inner).hold_learner = hold;
    }

    /// Starts the service; it runs until [`EtcdService::stop`].
    pub(super) fn start(self: &Arc<Self>, node: &Arc<Node>, start: Start) {
        let stop = CancellationToken::new();
        let runner = tokio::spawn(Arc::clone(self).run(Arc::clone(node), stop.clone(), start));
        let before = lock(&self.inner).runner.replace((stop, runner));
        if let Some((stop, _)) = before {
            stop.cancel();
        }
    }

    /// Stops the service; `orderly` lets etcd hand over its leadership first.
    pub(super) async fn stop(&self, orderly: bool, state: State) {
        let (runner, process) = {
            let mut inner = lock(&self.inner);
            (inner.runner.take(), inner.process.clone())
        };
        if let Some((stop, runner)) = runner {
            self.set(State::Stopping, "stopping");
            stop.cancel();
            if let Some(process) = process {
                let frozen = {
                    let inner = lock(&self.inner);
                    inner.frozen || inner.cut
                };
                if orderly && !frozen {
                    let _ = process.terminate(Duration::from_secs(5)).await;
                } else {
                    let _ = process.kill().await;
                }
            }
            let _ = runner.await;
        }
        let mut inner = lock(&self.inner);
        inner.process = None;
        inner.member_id = None;
        inner.removed = false;
        drop(inner);
        self.set(state, "");
    }

    /// Without waiting: for the end of the whole simulation.
    pub(super) fn abandon(&self) {
        let mut inner = lock(&self.inner);
        if let Some((stop, runner)) = inner.runner.take() {
            stop.cancel();
            runner.abort();
        }
        inner.process = None;
    }

    async fn run(self: Arc<Self>, node: Arc<Node>, stop: CancellationToken, start: Start) {
        let until_stopped = stop.clone();
        let work = async {
            loop {
                while lock(&self.inner).held {
                    self.set(State::Waiting, "stopped from outside");
                    let changed = self.changed.notified();
                    if lock(&self.inner).held {
                        // A timer beside it: a notice between the two looks would be lost.
                        let _ = timeout(Duration::from_millis(200), changed).await;
                    }
                }
                if node.disk_is_broken() {
                    self.set(State::Failed, "open /var/lib/etcd: input/output error");
                    sleep(node.timings().etcd_restart).await;
                    continue;
                }
                let cluster = match self.prepare(&node, &start).await {
                    Ok(cluster) => cluster,
                    Err(why) => {
                        self.set(State::Preparing, why);
                        sleep(node.timings().etcd_check).await;
                        continue;
                    }
                };
                match self.spawn(&node, &cluster) {
                    Ok(process) => self.watch(&node, process).await,
                    Err(why) => self.set(State::Failed, why),
                }
                sleep(node.timings().etcd_restart).await;
            }
        };
        tokio::select! {
            () = work => {}
            () = until_stopped.cancelled() => {}
        }
    }

    /// The members to start with; joins where there is no data yet.
    async fn prepare(&self, node: &Arc<Node>, start: &Start) -> Result<Initial, String> {
        if self.has_data() {
            // etcd reads the members from its data then.
            return Ok(Initial::default());
        }
        match start {
            Start::New(members) => Ok(Initial {
                members: members.clone(),
                existing: false,
            }),
            Start::Await => self.join(node).await.map_err(|_| AWAITS.to_owned()),
            Start::Join => self
                .join(node)
                .await
                .map_err(|error| format!("joining: {error}")),
        }
    }

    /// Takes whatever member has this node's name out, and adds this node as a learner.
    async fn join(&self, node: &Arc<Node>) -> Result<Initial, EtcdError> {
        self.set(State::Preparing, "joining etcd");
        let cluster = node
            .cluster()
            .ok_or_else(|| EtcdError::Silent("the simulation is over".to_owned()))?;
        let url = cluster.etcd_with_leader(node, None).await?;
        let peer_url = node.peer_url();
        let client = &cluster.etcd;
        for member in client.members(&url, true).await? {
            // By name; and our own unstarted entry of an attempt that broke off.
            if member.name == node.name || (!member.started && member.peer_urls.contains(&peer_url))
            {
                client.remove(&url, member.number).await?;
            }
        }
        let (id, members) = client.add_learner(&url, &peer_url).await?;
        let members = members
            .into_iter()
            .flat_map(|member: Member| {
                let name = if member.number == id {
                    node.name.clone()
                } else {
                    member.name.clone()
                };
                member
                    .peer_urls
                    .into_iter()
                    .map(move |url| (name.clone(), url))
            })
            .filter(|(name, _)| !name.is_empty())
            .collect();
        Ok(Initial {
            members,
            existing: true,
        })
    }

    fn spawn(&self, node: &Arc<Node>, initial: &Initial) -> Result<Arc<Process>, String> {
        let cluster = node.cluster().ok_or("the simulation is over")?;
        let (peer, client) = (node.peer_url(), node.client_url());
        std::fs::create_dir_all(&self.data).map_err(|e| e.to_string())?;
        let mut command = Command::new(&cluster.options.etcd);
        command
            .args(["--name", &node.name, "--data-dir"])
            .arg(&self.data)
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args(["--initial-cluster-token", &cluster.token])
            // Calm enough for two busy cores, quick enough for tests.
            .args(["--heartbeat-interval", "150", "--election-timeout", "1500"])
            .args(["--unsafe-no-fsync", "--log-level", "warn"]);
        if !initial.members.is_empty() {
            let members: Vec<String> = initial
                .members
                .iter()
                .map(|(name, url)| format!("{name}={url}"))
                .collect();
            command
                .args(["--initial-cluster", &members.join(",")])
                .args([
                    "--initial-cluster-state",
                    if initial.existing { "existing" } else { "new" },
                ]);
        }
        let process = cluster
            .options
            .supervisor
            .spawn(&format!("etcd-{}", node.name), command)
            .map_err(|e| e.to_string())?;
        let process = Arc::new(process);
        {
            let mut inner = lock(&self.inner);
            inner.process = Some(Arc::clone(&process));
            inner.removed = false;
        }
        self.set(State::Running, "started");
        self.apply_freeze();
        Ok(process)
    }

    /// Looks after a running process until it ends.
    async fn watch(&self, node: &Arc<Node>, process: Arc<Process>) {
        let started = Instant::now();
        loop {
            tokio::select! {
                _ = process.wait() => break,
                () = sleep(node.timings().etcd_check) => self.check(node).await,
            }
        }
        let log = process.log_tail(30);
        let removed =
            log.contains("permanently removed") || log.contains("the member has been removed");
        let last = log.lines().last().unwrap_or_default().to_owned();
        {
            let mut inner = lock(&self.inner);
            inner.process = None;
            inner.removed |= removed;
        }
        tracing::debug!(node = %node.name, after = ?started.elapsed(), removed, "etcd ended");
        self.set(State::Waiting, format!("etcd ended: {last}"));
    }

    async fn check(&self, node: &Arc<Node>) {
        let Some(cluster) = node.cluster() else {
            return;
        };
        let url = node.client_url();
        let status = cluster.etcd.status(&url).await;
        let (member_id, healthy) = match &status {
            Ok(status) if status.learner => {
                // A learner answers no quorum reads; Talos takes it as it is.
                (Some(status.member_id), true)
            }
            Ok(status) => (
                Some(status.member_id),
                cluster.etcd.quorum_read(&url).await.is_ok(),
            ),
            Err(_) => (None, false),
        };
        let promote = {
            let mut inner = lock(&self.inner);
            inner.healthy = healthy;
            if member_id.is_some() {
                inner.member_id = member_id;
            }
            if inner.state == State::Running {
                let message = if healthy {
                    "Health check successful"
                } else {
                    "context deadline exceeded"
                };
                message.clone_into(&mut inner.message);
            }
            matches!(&status, Ok(status) if status.learner) && !inner.hold_learner
        };
        if promote
            && let Some(id) = member_id
            && let Ok(url) = cluster.etcd_with_leader(node, Some(id)).await
        {
            // Refused until it has caught up; asked again at the next look.
            let _ = cluster.etcd.promote(&url, id).await;
        }
        node.touch();
    }

    /// Takes this node's member out, stops etcd and empties its data (facts: talos.md 4.1).
    pub(super) async fn leave(&self, node: &Arc<Node>) -> Result<(), String> {
        let id = self.local_member_id(node).await?;
        let cluster = node.cluster().ok_or("the simulation is over")?;
        let timings = node.timings();
        let end = Instant::now() + timings.leave_retry_for;
        loop {
            let answer = match cluster.etcd_with_leader(node, None).await {
                Ok(url) => cluster.etcd.remove(&url, id).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(()) => break,
                Err(error) if error.is_member_not_found() => break,
                Err(error) if error.is_transient() && Instant::now() < end => {
                    sleep(timings.leave_retry).await;
                }
                Err(error) => return Err(format!("failed to remove member: {error}")),
            }
        }
        self.stop(false, State::Finished).await;
        self.wipe();
        node.touch();
        Ok(())
    }

    /// Only a healthy etcd knows its own ID: one whose member was removed never gets there.
    async fn local_member_id(&self, node: &Arc<Node>) -> Result<u64, String> {
        let end = Instant::now() + node.timings().member_id_wait;
        loop {
            if let Some(id) = self.member_id() {
                return Ok(id);
            }
            if Instant::now() >= end {
                return Err("failed to get local member ID: context deadline exceeded".to_owned());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The step `leaveEtcd` of a graceful reset (facts: talos.md 4.2): without data there is
    /// nothing to leave; a service in any state but these is passed over in silence.
    pub(super) async fn leave_in_reset(&self, node: &Arc<Node>) -> Result<(), String> {
        if !self.has_data() {
            return Ok(());
        }
        let (state, removed) = {
            let inner = lock(&self.inner);
            (inner.state, inner.removed)
        };
        match state {
            State::Running | State::Stopping | State::Failed => self.leave(node).await,
            // A member that was removed crashes again and again: a second up, five down. A real
            // node may be met in either; here it is always met up, where it hurts.
            State::Waiting if removed => self.leave(node).await,
            _ => Ok(()),
        }
    }
}

/// What a new process is told of the members.
#[derive(Debug, Default)]
struct Initial {
    members: Vec<(String, String)>,
    existing: bool,
}
