//! What a machine does by itself, step by step: boot, reset, reboot, shutdown (facts: talos.md 3).

use std::future::Future;
use std::sync::Arc;

use ichor_talos::proto::common::Code;
use ichor_talos::proto::machine::{self, reset_request::WipeMode, sequence_event::Action};
use ichor_talos::proto::specs::MachineStage;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::etcd_service::{Start, State};
use super::events::{phase, sequence, task};
use super::lock;
use super::node::{Node, Role, Running, node_id, now_seconds, uuid};

/// Why a sequence ended early.
pub(super) enum End {
    Canceled,
    Failed(String),
}

/// A sequence and what it may interrupt (facts: talos.md 3.4).
fn may_start(running: Option<&str>, asked: &str, force: bool) -> Verdict {
    match (running, asked) {
        (None, _) => Verdict::Run,
        (Some("boot"), _)
        | (Some(_), "shutdown")
        | (Some("reset" | "reboot" | "initialize"), "reboot") => Verdict::TakeOver,
        (Some(_), "reboot") if force => Verdict::TakeOver,
        _ => Verdict::Locked,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Run,
    TakeOver,
    Locked,
}

/// A sequence under way on a machine.
pub(super) struct Run {
    node: Arc<Node>,
    actor: String,
    cancel: CancellationToken,
}

impl Run {
    /// One phase with one task. Stops where another sequence takes over.
    async fn phase(
        &self,
        name: &str,
        step: &str,
        work: impl Future<Output = Result<(), String>>,
    ) -> Result<(), End> {
        if self.cancel.is_cancelled() {
            return Err(End::Canceled);
        }
        self.node.publish(&self.actor, &phase(name, true));
        self.node.publish(&self.actor, &task(step, true));
        let done = async {
            sleep(self.node.timings().phase).await;
            work.await
        };
        let result = tokio::select! {
            result = done => result,
            () = self.cancel.cancelled() => return Err(End::Canceled),
        };
        self.node.publish(&self.actor, &task(step, false));
        self.node.publish(&self.actor, &phase(name, false));
        result.map_err(|why| {
            End::Failed(format!(
                "error running phase {name}: task {step}: failed, {why}"
            ))
        })
    }

    async fn tolerant(
        &self,
        name: &str,
        step: &str,
        work: impl Future<Output = Result<(), String>>,
    ) -> Result<(), End> {
        match self.phase(name, step, work).await {
            Err(End::Failed(_)) => Ok(()),
            other => other,
        }
    }
}

impl Node {
    // --- Power

    /// Starts the machine from what its disk holds.
    pub(super) fn boot(self: &Arc<Self>) {
        let life = CancellationToken::new();
        self.update(|inner| {
            inner.powered = true;
            inner.wanted = true;
            inner.boot_id = uuid();
            inner.boot_time = now_seconds();
            inner.stage = MachineStage::Booting;
            inner.ready = false;
            inner.reset_signal = false;
            inner.sequence = None;
            inner.events = super::events::EventBus::default();
            inner.life = life.clone();
        });
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let begun = async {
                sleep(node.timings().boot).await;
                node.wake_up().await;
            };
            tokio::select! {
                () = begun => {}
                () = life.cancelled() => {}
            }
        });
    }

    async fn wake_up(self: &Arc<Self>) {
        let ok = self.update(|inner| {
            if inner.disk.broken || !inner.disk.os {
                return false;
            }
            if inner.disk.node_id.is_none() && inner.platform_config {
                inner.disk.node_id = Some(node_id());
                inner.start = Start::Join;
            }
            true
        });
        if !ok {
            // Power and nothing to boot: it never answers.
            return;
        }
        if self.is_configured() {
            self.run_configured().await;
        } else {
            self.update(|inner| {
                inner.sequence = Some(Running {
                    name: "initialize",
                    cancel: CancellationToken::new(),
                    done: CancellationToken::new(),
                });
            });
            self.set_stage(MachineStage::Maintenance, true);
            self.report(self.open_api().await);
        }
    }

    /// The boot of a machine with a configuration: its API at once, RUNNING when its services are up.
    async fn run_configured(self: &Arc<Self>) {
        let (done, cancel) = (CancellationToken::new(), CancellationToken::new());
        self.update(|inner| {
            inner.disk.ephemeral = true;
            inner.sequence = Some(Running {
                name: "boot",
                cancel: cancel.clone(),
                done: done.clone(),
            });
        });
        self.set_stage(MachineStage::Booting, false);
        self.publish("", &sequence("boot", Action::Start, None));
        self.report(self.open_api().await);
        self.update(|inner| inner.kubelet = true);
        if self.role == Role::ControlPlane {
            let start = lock(&self.inner).start.clone();
            // Whatever it starts as now, without data it can only join the next time.
            if !matches!(start, Start::Await) {
                lock(&self.inner).start = Start::Join;
            }
            self.etcd.start(self, start);
        }
        let up = async {
            loop {
                sleep(self.timings().phase).await;
                if self.role == Role::Worker || self.etcd.is_healthy() {
                    return;
                }
            }
        };
        tokio::select! {
            () = up => {
                self.update(|inner| inner.sequence = None);
                self.publish("", &sequence("boot", Action::Stop, None));
                self.set_stage(MachineStage::Running, true);
            }
            () = cancel.cancelled() => {}
        }
        done.cancel();
    }

    /// Gives a machine in maintenance its configuration; it goes on booting without a restart.
    pub(super) fn configure(self: &Arc<Self>) {
        let life = self.update(|inner| {
            inner.disk.node_id = Some(node_id());
            inner.start = Start::Join;
            inner.life.clone()
        });
        let node = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                () = node.run_configured() => {}
                () = life.cancelled() => {}
            }
        });
    }

    /// Everything on the machine ends. The caller holds `power`.
    pub(super) async fn go_down(self: &Arc<Self>, orderly: bool) {
        let life = self.update(|inner| {
            inner.kubelet = false;
            inner.sequence = None;
            inner.life.clone()
        });
        life.cancel();
        self.etcd.stop(orderly, State::Initialized).await;
        self.update(|inner| {
            inner.powered = false;
            inner.ready = false;
            inner.stage = MachineStage::Unknown;
        });
    }

    /// Restarts the machine, unless somebody has taken its power meanwhile.
    pub(super) fn restart(self: &Arc<Self>, orderly: bool) {
        let node = Arc::clone(self);
        // Detached: the sequence that asks for it ends with the boot that it ends.
        tokio::spawn(async move {
            let _power = node.power.lock().await;
            if !lock(&node.inner).wanted {
                return;
            }
            node.go_down(orderly).await;
            node.boot();
        });
    }

    /// Switches the machine off by itself.
    fn halt(self: &Arc<Self>) {
        let node = Arc::clone(self);
        tokio::spawn(async move {
            lock(&node.inner).wanted = false;
            let _power = node.power.lock().await;
            node.go_down(true).await;
        });
    }

    fn report(&self, result: crate::Result<()>) {
        if let Err(error) = result {
            tracing::error!(node = %self.name, %error, "the simulated API cannot be opened");
        }
    }

    // --- Sequences

    /// Starts a sequence that a call asked for, after its answer. Where another one holds the
    /// machine a notice without the caller's ID is all that anybody ever sees.
    pub(super) fn start_sequence<F, W>(
        self: &Arc<Self>,
        name: &'static str,
        actor: &str,
        force: bool,
        stage: MachineStage,
        work: W,
    ) where
        W: FnOnce(Run) -> F + Send + 'static,
        F: Future<Output = Result<(), End>> + Send,
    {
        let (node, actor) = (Arc::clone(self), actor.to_owned());
        let life = lock(&self.inner).life.clone();
        let over = life.clone();
        let run = async move {
            let (cancel, done) = (life.child_token(), CancellationToken::new());
            let before = {
                let mut inner = lock(&node.inner);
                let locked = name == "reset" && std::mem::take(&mut inner.lock_next_reset);
                let verdict = may_start(
                    inner.sequence.as_ref().map(|running| running.name),
                    name,
                    force,
                );
                if locked || verdict == Verdict::Locked {
                    let notice = sequence(
                        name,
                        Action::Noop,
                        Some((Code::Locked, "sequence is locked".to_owned())),
                    );
                    inner.events.publish("", &notice);
                    return;
                }
                inner.sequence.replace(Running {
                    name,
                    cancel: cancel.clone(),
                    done: done.clone(),
                })
            };
            if let Some(before) = before {
                before.cancel.cancel();
                // In maintenance nothing runs that could end.
                if before.name != "initialize"
                    && timeout(node.timings().takeover, before.done.cancelled())
                        .await
                        .is_err()
                {
                    return;
                }
            }
            node.set_stage(stage, false);
            node.publish(&actor, &sequence(name, Action::Start, None));
            let run = Run {
                node: Arc::clone(&node),
                actor: actor.clone(),
                cancel,
            };
            let result = work(run).await;
            done.cancel();
            match result {
                Ok(()) => {}
                Err(End::Canceled) => {
                    node.publish(&actor, &sequence(name, Action::Stop, None));
                    node.publish(
                        &actor,
                        &sequence(
                            name,
                            Action::Noop,
                            Some((Code::Canceled, "context canceled".to_owned())),
                        ),
                    );
                }
                Err(End::Failed(why)) => node.fatal(name, &actor, why).await,
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = run => {}
                () = over.cancelled() => {}
            }
        });
    }

    /// A failed sequence: Talos reboots the machine as it is.
    async fn fatal(self: &Arc<Self>, name: &str, actor: &str, why: String) {
        self.publish(actor, &sequence(name, Action::Stop, None));
        self.publish(
            actor,
            &sequence(name, Action::Noop, Some((Code::Fatal, why))),
        );
        self.set_stage(MachineStage::Rebooting, false);
        sleep(self.timings().fatal_reboot).await;
        self.restart(true);
    }

    pub(super) async fn reset(run: Run, request: machine::ResetRequest) -> Result<(), End> {
        let node = Arc::clone(&run.node);
        let nothing = || async { Ok(()) };
        if request.graceful {
            run.tolerant("drain", "cordonAndDrainNode", nothing())
                .await?;
            run.tolerant("cleanup", "removeAllPods", nothing()).await?;
        } else {
            run.tolerant("cleanup", "stopAllPods", nothing()).await?;
        }
        run.tolerant("dbus", "stopDBus", nothing()).await?;
        if request.graceful && node.role == Role::ControlPlane {
            run.phase("leave", "leaveEtcd", node.etcd.leave_in_reset(&node))
                .await?;
        }
        run.phase("preReset", "sendResetSignal", async {
            if std::mem::replace(&mut lock(&node.inner).reset_signal, true) {
                return Err("resource already exists".to_owned());
            }
            Ok(())
        })
        .await?;
        run.tolerant("stopServices", "stopServicesEphemeral", async {
            node.update(|inner| inner.kubelet = false);
            node.etcd.stop(true, State::Finished).await;
            Ok(())
        })
        .await?;
        // The API goes in the middle of this task: its beginning is the last thing to be seen.
        run.tolerant("stopEverything", "stopAllServices", async {
            node.close_api();
            Ok(())
        })
        .await?;
        if node.disk_is_broken() {
            return Err(End::Failed(
                "error running phase reset: input/output error".to_owned(),
            ));
        }
        node.wipe(&request);
        sleep(node.timings().phase).await;
        if request.reboot {
            node.restart(true);
        } else {
            node.halt();
        }
        Ok(())
    }

    /// What a reset with these options leaves of the disk.
    fn wipe(&self, request: &machine::ResetRequest) {
        if request.mode() == WipeMode::UserDisks {
            return;
        }
        let named = &request.system_partitions_to_wipe;
        let wiped = |label: &str| {
            named
                .iter()
                .any(|partition| partition.wipe && partition.label == label)
        };
        let (whole, dedicated) = (named.is_empty(), self.has_etcd_partition());
        self.update(|inner| {
            if whole {
                inner.disk.os = false;
            }
            if whole || wiped("STATE") {
                inner.disk.node_id = None;
            }
            if whole || wiped("EPHEMERAL") {
                inner.disk.ephemeral = false;
            }
            inner.start = Start::Join;
        });
        if whole || (dedicated && wiped("ETCD")) || (!dedicated && wiped("EPHEMERAL")) {
            self.etcd.wipe();
        }
    }

    pub(super) async fn reboot(run: Run, power_cycle: bool) -> Result<(), End> {
        let node = Arc::clone(&run.node);
        run.tolerant("cleanup", "stopAllPods", async { Ok(()) })
            .await?;
        run.tolerant("stopEverything", "stopAllServices", async {
            node.update(|inner| inner.kubelet = false);
            node.etcd.stop(true, State::Finished).await;
            Ok(())
        })
        .await?;
        node.publish(
            &run.actor,
            &sequence(
                "reboot",
                Action::Noop,
                Some((
                    Code::Fatal,
                    format!(
                        "unix.Reboot({})",
                        if power_cycle { "1234567" } else { "45584344" }
                    ),
                )),
            ),
        );
        node.restart(true);
        Ok(())
    }

    pub(super) async fn shutdown(run: Run) -> Result<(), End> {
        let node = Arc::clone(&run.node);
        run.tolerant("cleanup", "stopAllPods", async { Ok(()) })
            .await?;
        run.tolerant("stopEverything", "stopAllServices", async {
            node.update(|inner| inner.kubelet = false);
            node.etcd.stop(true, State::Finished).await;
            Ok(())
        })
        .await?;
        node.halt();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_locked_out_by_whatever_runs_but_a_boot() {
        assert_eq!(may_start(None, "reset", false), Verdict::Run);
        assert_eq!(may_start(Some("boot"), "reset", false), Verdict::TakeOver);
        for running in ["reset", "reboot", "initialize", "shutdown", "upgrade"] {
            assert_eq!(
                may_start(Some(running), "reset", false),
                Verdict::Locked,
                "{running}"
            );
            assert_eq!(
                may_start(Some(running), "shutdown", false),
                Verdict::TakeOver,
                "{running}"
            );
        }
        assert_eq!(may_start(Some("reset"), "reboot", false), Verdict::TakeOver);
        assert_eq!(
            may_start(Some("shutdown"), "reboot", false),
            Verdict::Locked
        );
        assert_eq!(
            may_start(Some("shutdown"), "reboot", true),
            Verdict::TakeOver
        );
    }
}
