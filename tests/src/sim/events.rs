//! A machine's events: kept in memory, lost at its restart.

use std::collections::VecDeque;

use ichor_talos::proto::{common, machine};
use prost::Message;
use prost_types::Any;
use tokio::sync::broadcast;

/// As many as Talos keeps.
const KEPT: usize = 990;

/// The events of one boot.
#[derive(Debug)]
pub(super) struct EventBus {
    kept: VecDeque<machine::Event>,
    sender: broadcast::Sender<machine::Event>,
    next: u64,
}

impl Default for EventBus {
    fn default() -> Self {
        Self {
            kept: VecDeque::new(),
            sender: broadcast::channel(KEPT).0,
            next: 0,
        }
    }
}

/// A message that can be an event's payload.
pub(super) trait Payload: Message {
    const NAME: &'static str;
}

impl Payload for machine::SequenceEvent {
    const NAME: &'static str = "SequenceEvent";
}
impl Payload for machine::PhaseEvent {
    const NAME: &'static str = "PhaseEvent";
}
impl Payload for machine::TaskEvent {
    const NAME: &'static str = "TaskEvent";
}
impl Payload for machine::MachineStatusEvent {
    const NAME: &'static str = "MachineStatusEvent";
}
impl Payload for machine::ServiceStateEvent {
    const NAME: &'static str = "ServiceStateEvent";
}

impl EventBus {
    pub(super) fn publish<P: Payload>(&mut self, actor: &str, payload: &P) {
        self.next += 1;
        let event = machine::Event {
            metadata: None,
            data: Some(Any {
                // Not the prefix of the well-known types: Talos makes up its own.
                type_url: format!("talos/runtime/machine.{}", P::NAME),
                value: payload.encode_to_vec(),
            }),
            id: format!("{:020x}", self.next),
            actor_id: actor.to_owned(),
        };
        self.kept.push_back(event.clone());
        if self.kept.len() > KEPT {
            self.kept.pop_front();
        }
        let _ = self.sender.send(event);
    }

    /// What a caller asked to see of the past, and what comes from now on.
    pub(super) fn subscribe(
        &self,
        request: &machine::EventsRequest,
    ) -> (Vec<machine::Event>, broadcast::Receiver<machine::Event>) {
        let past: Vec<_> = if request.tail_events < 0 {
            self.kept.iter().cloned().collect()
        } else if request.tail_events > 0 {
            let count = usize::try_from(request.tail_events).unwrap_or(KEPT);
            let skip = self.kept.len().saturating_sub(count);
            self.kept.iter().skip(skip).cloned().collect()
        } else if !request.tail_id.is_empty() {
            self.kept
                .iter()
                .filter(|event| event.id > request.tail_id)
                .cloned()
                .collect()
        } else {
            Vec::new()
        };
        (past, self.sender.subscribe())
    }
}

/// Payloads of a sequence's life.
pub(super) fn sequence(
    name: &str,
    action: machine::sequence_event::Action,
    error: Option<(common::Code, String)>,
) -> machine::SequenceEvent {
    machine::SequenceEvent {
        sequence: name.to_owned(),
        action: action.into(),
        error: error.map(|(code, message)| common::Error {
            code: code.into(),
            message,
            details: Vec::new(),
        }),
    }
}

pub(super) fn phase(name: &str, start: bool) -> machine::PhaseEvent {
    use machine::phase_event::Action;
    machine::PhaseEvent {
        phase: name.to_owned(),
        action: if start { Action::Start } else { Action::Stop }.into(),
    }
}

pub(super) fn task(name: &str, start: bool) -> machine::TaskEvent {
    use machine::task_event::Action;
    machine::TaskEvent {
        task: name.to_owned(),
        action: if start { Action::Start } else { Action::Stop }.into(),
    }
}
