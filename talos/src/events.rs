//! A node's events, and by them what became of a reset.
//!
//! A reset's answer only says that the request was accepted: the work runs afterwards, and where
//! another sequence holds the node it never starts (facts: talos.md 1.3 and 3.4). So the stream is
//! opened, and confirmed by the node, before the reset is sent.

use std::time::Duration;

use prost::Message as _;
use tokio::time::{Instant, timeout_at};
use tonic::Streaming;

use crate::client::TalosClient;
use crate::error::{CallError, Kind, classify};
use crate::model::{MachineStatus, Service, Stage};
use crate::proto::common;
use crate::proto::machine::{self, sequence_event, task_event};

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct TalosEvent {
    /// Orders events in time.
    pub id: String,
    /// Which call caused it; empty for what no call caused, and for the notice that one was locked out.
    pub actor: String,
    /// What happened.
    pub what: What,
}

/// What an event tells.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A sequence (`reset`, `reboot`, …) began, ended, or was not run.
    Sequence {
        /// Its name.
        name: String,
        /// What of it.
        action: SequenceAction,
    },
    /// A part of a sequence began (`true`) or ended.
    Phase(String, bool),
    /// A step of a phase began (`true`) or ended.
    Task(String, bool),
    /// A service changed.
    Service(Service),
    /// The machine's stage or readiness changed.
    Machine(MachineStatus),
    /// One that Ichor does not read, by its type.
    Other(String),
}

/// What happened to a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SequenceAction {
    /// It began.
    Start,
    /// It is at its end; whether well or not, only a `Failed` that follows can tell.
    Stop,
    /// It was not run: another one holds the node.
    Locked(String),
    /// Another one took over.
    Canceled(String),
    /// It failed; the node will reboot. A sequence that *ended well* in a reboot says so too: see [`is_reboot`].
    Failed(String),
    /// Nothing of note.
    Noop,
}

/// Talos ends a reset, a reboot and a shutdown that went well by this same "failure" (facts: talos.md 2.6).
pub fn is_reboot(message: &str) -> bool {
    message.contains("unix.Reboot(")
}

impl From<machine::Event> for TalosEvent {
    fn from(event: machine::Event) -> Self {
        let data = event.data.unwrap_or_default();
        let what = decode(&data.type_url, &data.value)
            .unwrap_or_else(|| What::Other(data.type_url.clone()));
        Self {
            id: event.id,
            actor: event.actor_id,
            what,
        }
    }
}

/// Reads an event's payload. Talos' type URLs begin with `talos/runtime/`, not with a host.
fn decode(type_url: &str, value: &[u8]) -> Option<What> {
    match type_url.rsplit('/').next()? {
        "machine.SequenceEvent" => {
            let event = machine::SequenceEvent::decode(value).ok()?;
            let action = match (event.action(), event.error) {
                (sequence_event::Action::Start, _) => SequenceAction::Start,
                (sequence_event::Action::Stop, _) => SequenceAction::Stop,
                (sequence_event::Action::Noop, Some(error)) => match error.code() {
                    common::Code::Locked => SequenceAction::Locked(error.message),
                    common::Code::Canceled => SequenceAction::Canceled(error.message),
                    common::Code::Fatal => SequenceAction::Failed(error.message),
                },
                (sequence_event::Action::Noop, None) => SequenceAction::Noop,
            };
            Some(What::Sequence {
                name: event.sequence,
                action,
            })
        }
        "machine.PhaseEvent" => {
            let event = machine::PhaseEvent::decode(value).ok()?;
            let start = event.action() == machine::phase_event::Action::Start;
            Some(What::Phase(event.phase, start))
        }
        "machine.TaskEvent" => {
            let event = machine::TaskEvent::decode(value).ok()?;
            let start = event.action() == task_event::Action::Start;
            Some(What::Task(event.task, start))
        }
        "machine.ServiceStateEvent" => {
            let event = machine::ServiceStateEvent::decode(value).ok()?;
            let state = service_state(event.action());
            let health = event.health.unwrap_or_default();
            Some(What::Service(Service {
                id: event.service,
                state: state.to_owned(),
                healthy: (!health.unknown).then_some(health.healthy),
                message: event.message,
            }))
        }
        "machine.MachineStatusEvent" => {
            let event = machine::MachineStatusEvent::decode(value).ok()?;
            let stage = Stage::from(event.stage);
            let status = event.status.unwrap_or_default();
            Some(What::Machine(MachineStatus {
                stage,
                ready: status.ready,
                unmet: status
                    .unmet_conditions
                    .into_iter()
                    .map(|unmet| (unmet.name, unmet.reason))
                    .collect(),
            }))
        }
        _ => None,
    }
}

fn service_state(action: machine::service_state_event::Action) -> &'static str {
    use machine::service_state_event::Action as A;
    match action {
        A::Initialized => "Initialized",
        A::Preparing => "Preparing",
        A::Waiting => "Waiting",
        A::Running => "Running",
        A::Stopping => "Stopping",
        A::Finished => "Finished",
        A::Failed => "Failed",
        A::Skipped => "Skipped",
        A::Starting => "Starting",
    }
}

/// A node's events from the moment that the stream was confirmed.
#[derive(Debug)]
pub struct EventStream {
    label: String,
    stream: Streaming<machine::Event>,
}

impl EventStream {
    pub(crate) fn new(label: String, stream: Streaming<machine::Event>) -> Self {
        Self { label, stream }
    }

    /// The next event; none when the node has ended the stream (it also does so when it was read too slowly).
    pub async fn next(&mut self) -> Result<Option<TalosEvent>, CallError> {
        match self.stream.message().await {
            Ok(event) => Ok(event.map(TalosEvent::from)),
            Err(status) => Err(classify(Kind::Read, &self.label, &status)),
        }
    }
}

/// What became of a reset that Talos accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetStart {
    /// It runs.
    Started,
    /// Another sequence holds the node (the notice, in Talos' words): nothing was done, and nothing will be.
    Locked(String),
    /// It ran and failed; the node reboots by itself with the configuration it had.
    Failed(String),
    /// Nothing was seen in time, or the stream ended: look at the node itself.
    NotSeen,
}

/// How far a started reset was seen to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetProgress {
    /// The node began to stop its services, its API among them: the last thing that can be seen before the wipe.
    ServicesStopping,
    /// It failed; the node reboots by itself with the configuration it had.
    Failed(String),
    /// The stream ended or the time was up before either.
    NotSeen,
}

/// Watches one node for what becomes of one reset. Made before the reset is sent.
#[derive(Debug)]
pub struct ResetWatch {
    events: EventStream,
    services_stopping: bool,
}

impl ResetWatch {
    /// Opens the node's events; returns once the node has confirmed.
    pub async fn open(client: &TalosClient) -> Result<Self, CallError> {
        Ok(Self {
            events: client.events().await?,
            services_stopping: false,
        })
    }

    /// Waits, `within` at most, until the reset that `actor` names was seen to start or not to.
    /// `actor` is what the reset's answer gave; without it (no answer came) only a notice of being
    /// locked out can be seen, and that only says that *a* reset was.
    pub async fn started(&mut self, actor: Option<&str>, within: Duration) -> ResetStart {
        let end = Instant::now() + within;
        loop {
            let Ok(Ok(Some(event))) = timeout_at(end, self.events.next()).await else {
                return ResetStart::NotSeen;
            };
            let ours = actor.is_some_and(|actor| event.actor == actor);
            match event.what {
                What::Sequence { name, action } if name == "reset" => match action {
                    SequenceAction::Start if ours => return ResetStart::Started,
                    // The notice carries no actor: Talos publishes it outside the call.
                    SequenceAction::Locked(message) if event.actor.is_empty() || ours => {
                        return ResetStart::Locked(message);
                    }
                    SequenceAction::Failed(message) | SequenceAction::Canceled(message)
                        if ours && !is_reboot(&message) =>
                    {
                        return ResetStart::Failed(message);
                    }
                    _ => {}
                },
                What::Task(_, _) | What::Phase(_, _) if ours => {
                    self.services_stopping |= is_stop_all_services(&event.what);
                    return ResetStart::Started;
                }
                _ => {}
            }
        }
    }

    /// Follows a started reset until the node stops its services, `within` at most.
    pub async fn services_stopping(&mut self, actor: &str, within: Duration) -> ResetProgress {
        let end = Instant::now() + within;
        while !self.services_stopping {
            let Ok(Ok(Some(event))) = timeout_at(end, self.events.next()).await else {
                return ResetProgress::NotSeen;
            };
            if event.actor != actor {
                continue;
            }
            match event.what {
                What::Sequence {
                    action: SequenceAction::Failed(message) | SequenceAction::Canceled(message),
                    ..
                } if !is_reboot(&message) => {
                    return ResetProgress::Failed(message);
                }
                what => self.services_stopping = is_stop_all_services(&what),
            }
        }
        ResetProgress::ServicesStopping
    }
}

fn is_stop_all_services(what: &What) -> bool {
    matches!(what, What::Task(task, true) if task == "stopAllServices")
}
