//! What this process remembers of a removal between its passes. Nothing of it is
//! needed to go on: a fresh process starts with none of it, and waits anew.

use std::time::Duration;

use ichor_lock::DisruptiveLock;

use super::facts::DrainFact;
use crate::watches::Watches;

/// Things whose duration counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lasting {
    /// The Node is not Ready, or is missing.
    NodeDown,
    /// The Talos API does not answer.
    TargetSilent,
    /// The rules refuse.
    Refused,
    /// A reset intent stands and the box runs on.
    StillRunning,
    /// A reset intent stands and the box is silent.
    SilentSinceReset,
}

/// One removal, as this process has seen it.
#[derive(Debug)]
pub struct Memory {
    /// The lock, while this operation holds it.
    pub lock: Option<DisruptiveLock>,
    /// Whether the Lease may still name this operation without this process having taken
    /// it: by the process before, that this one goes on for.
    pub lease_is_ours: bool,
    /// How long things have been so.
    pub lasting: Watches<Lasting>,
    /// The intent that was seen first and when; a changed one is seen anew.
    pub intent_seen: Option<(String, Duration)>,
    /// Key of an intent that this process wrote and whose call it never sent.
    pub never_sent: Option<String>,
    /// Key of an intent whose call the node accepted.
    pub accepted: Option<String>,
    /// Key of a reset intent that Talos locked out.
    pub locked_out: Option<String>,
    /// Key of a reset intent that was seen to stop all services.
    pub seen_stopping: Option<String>,
    /// Whether giving up leadership was tried.
    pub forfeit_tried: bool,
    /// When this process first drained.
    pub drain_started: Option<Duration>,
    /// When the drain had emptied the node and volumes were first waited for.
    pub volumes_since: Option<Duration>,
    /// Where the drain stands.
    pub drain: DrainFact,
    /// What a drain that timed out waits for: a change of this ends the standstill.
    pub drain_key: Option<String>,
    /// The episode of blocking that an Event has told of.
    pub announced: Option<String>,
    /// The hold that a person has let go on.
    pub continued: Option<String>,
}

impl Memory {
    /// Of a removal that this process has not seen yet. `gap`: looks further apart than
    /// this say nothing about the time between.
    pub fn new(gap: Duration) -> Self {
        Self {
            lock: None,
            lease_is_ours: true,
            lasting: Watches::new(gap),
            intent_seen: None,
            never_sent: None,
            accepted: None,
            locked_out: None,
            seen_stopping: None,
            forfeit_tried: false,
            drain_started: None,
            volumes_since: None,
            drain: DrainFact::Open,
            drain_key: None,
            announced: None,
            continued: None,
        }
    }

    /// Notes a look at the box between two passes, so that its silence counts on.
    pub fn note_wait(&mut self, target: &super::facts::TargetFact, now: Duration) {
        use super::facts::TargetFact;
        let seen = matches!(
            target,
            TargetFact::Answers(_) | TargetFact::Maintenance { .. }
        );
        self.lasting.note(&Lasting::SilentSinceReset, !seen, now);
        self.lasting.note(
            &Lasting::StillRunning,
            matches!(target, TargetFact::Answers(a) if a.running),
            now,
        );
    }

    /// Whether the lock is held, as far as this process can tell.
    pub fn holds_lock(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| !lock.is_lost())
    }
}
