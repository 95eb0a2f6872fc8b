//! The right to send one irreversible call (spec section 4, Fencing).
//!
//! The order that the types leave: take an [`IntentWritten`] mark and write the intent to the
//! machine's status; [`DisruptiveLock::permit`] renews the Lease; read once more all that the
//! step relies on; [`Permit::begin`]; send; [`Sending::finish`].

use std::collections::BTreeMap;
use std::time::Duration;

use crate::protocol::{self, StepNote};
use crate::{DisruptiveLock, LeaseError, Lost, Operation, RenewError};

/// When an intent was written, at the earliest, and under which hold of the lock.
///
/// Taken with [`DisruptiveLock::mark_intent`] before the intent's write is sent, and used up by
/// one permit: a second call needs an intent of its own.
#[derive(Debug)]
pub struct IntentWritten {
    at: Duration,
    lease_uid: String,
    transitions: i64,
}

/// Why no permit was given. The intent that was written for it must be withdrawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermitError {
    /// The lock is lost.
    #[error("no call of {step} is sent: the cluster lock is lost: {lost}")]
    Lost {
        /// The step asked for.
        step: String,
        /// Why.
        lost: Lost,
    },
    /// The renewal came too late after the intent.
    #[error(
        "no call of {step} is sent: its intent was written {age:?} before the renewal of the cluster lock, more than {limit:?}; it is withdrawn and the step begins anew"
    )]
    IntentTooOld {
        /// The step asked for.
        step: String,
        /// Of the intent when the renewal was done.
        age: Duration,
        /// [`Durations::intent_to_renew`](crate::Durations::intent_to_renew).
        limit: Duration,
    },
    /// The intent was written under another hold of the lock, so that whoever held it in between
    /// may have settled it.
    #[error(
        "no call of {step} is sent: its intent was written under an earlier hold of the cluster lock"
    )]
    IntentOfAnotherHold {
        /// The step asked for.
        step: String,
    },
    /// The renewal failed, or nobody knows whether it did.
    #[error(
        "no call of {step} is sent: the renewal of the cluster lock before it failed: {source}"
    )]
    Store {
        /// The step asked for.
        step: String,
        /// What the API server said.
        source: LeaseError,
    },
}

/// A permit that may not be used any more. The intent must be withdrawn: nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermitStale {
    /// The call was not sent in time.
    #[error(
        "{step} was not sent: {age:?} passed since the cluster lock was renewed for it, more than {limit:?}"
    )]
    TooLate {
        /// The step.
        step: String,
        /// Since the renewal was sent, by our clock.
        age: Duration,
        /// [`Durations::send_within`](crate::Durations::send_within).
        limit: Duration,
    },
    /// The lock is lost.
    #[error("{step} was not sent: the cluster lock is lost: {lost}")]
    Lost {
        /// The step.
        step: String,
        /// Why.
        lost: Lost,
    },
}

/// The right to send one irreversible call, within seconds ([`DisruptiveLock::permit`] makes it).
///
/// Whoever sends the call takes it by value; it can be used once and not outlive its lock.
#[derive(Debug)]
#[must_use = "a permit stands for a call that is about to be sent"]
pub struct Permit<'l> {
    lock: &'l mut DisruptiveLock,
    renewed_at: Duration,
    step: String,
}

/// An irreversible call under way. The lock is renewed in the background meanwhile.
#[derive(Debug)]
#[must_use = "say when the call has ended, and hear whether the lock was held until then"]
pub struct Sending<'l> {
    lock: &'l mut DisruptiveLock,
    step: String,
}

/// How the lock fared during a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "without the lock the call's outcome is unknown, whatever it answered"]
pub struct CallGuard {
    /// Whether the lock was held from the renewal to the call's end. If not, the outcome counts
    /// as unknown, whatever the call answered, and nothing else is begun.
    pub lock_held: bool,
    /// Why not.
    pub lost: Option<Lost>,
}

impl DisruptiveLock {
    /// A mark to take right before an intent's write is sent.
    ///
    /// Before, not after: the write may lie applied for a while before its answer comes.
    #[must_use]
    pub fn mark_intent(&self) -> IntentWritten {
        let (uid, transitions) = self.fencing();
        IntentWritten {
            at: self.now(),
            lease_uid: uid.to_owned(),
            transitions,
        }
    }

    /// Renews the Lease for one irreversible call, and notes on it the step and what `note` says
    /// of it (key `machine` becomes annotation `ichor.maesh.dev/step-machine`).
    ///
    /// After this, and before [`Permit::begin`], everything that the step relies on is read once
    /// more.
    ///
    /// # Errors
    /// [`PermitError`]; the intent that `intent` stands for must then be withdrawn.
    pub async fn permit(
        &mut self,
        step: &str,
        note: &BTreeMap<String, String>,
        intent: IntentWritten,
    ) -> Result<Permit<'_>, PermitError> {
        let limit = self.durations().intent_to_renew;
        if self.fencing() != (intent.lease_uid.as_str(), intent.transitions) {
            return Err(PermitError::IntentOfAnotherHold {
                step: step.to_owned(),
            });
        }
        let in_time = |now: Duration, lock: &Self| {
            if protocol::intent_in_time(intent.at, now, lock.durations()) {
                return Ok(());
            }
            Err(PermitError::IntentTooOld {
                step: step.to_owned(),
                age: now.saturating_sub(intent.at),
                limit,
            })
        };
        in_time(self.now(), self)?;
        let note = StepNote {
            step: step.to_owned(),
            details: note.clone(),
        };
        let renewed_at = self.renew_for(&note).await.map_err(|error| match error {
            RenewError::Lost(lost) => PermitError::Lost {
                step: step.to_owned(),
                lost,
            },
            RenewError::Store(source) => PermitError::Store {
                step: step.to_owned(),
                source,
            },
        })?;
        // The renewal itself may have taken long.
        in_time(self.now(), self)?;
        Ok(Permit {
            renewed_at,
            step: step.to_owned(),
            lock: self,
        })
    }
}

impl<'l> Permit<'l> {
    /// The step that it is for.
    #[must_use]
    pub fn step(&self) -> &str {
        &self.step
    }

    /// The operation that it is for.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        self.lock.operation()
    }

    /// The fencing token of its lock.
    #[must_use]
    pub fn fencing(&self) -> (&str, i64) {
        self.lock.fencing()
    }

    /// Whether the call may still be sent now.
    ///
    /// # Errors
    /// [`PermitStale`].
    pub fn check(&self) -> Result<(), PermitStale> {
        if let Some(lost) = self.lock.verdict() {
            return Err(PermitStale::Lost {
                step: self.step.clone(),
                lost,
            });
        }
        let (now, durations) = (self.lock.now(), self.lock.durations());
        if !protocol::may_send(self.renewed_at, now, durations) {
            return Err(PermitStale::TooLate {
                step: self.step.clone(),
                age: now.saturating_sub(self.renewed_at),
                limit: durations.send_within,
            });
        }
        Ok(())
    }

    /// Checks a last time, right before the send, and uses the permit up.
    ///
    /// # Errors
    /// [`PermitStale`]: nothing may be sent.
    pub fn begin(self) -> Result<Sending<'l>, PermitStale> {
        self.check()?;
        Ok(Sending {
            lock: self.lock,
            step: self.step,
        })
    }
}

impl Sending<'_> {
    /// The step that is under way.
    #[must_use]
    pub fn step(&self) -> &str {
        &self.step
    }

    /// Waits until the lock is lost, to log it while the call is still awaited: a call that was
    /// sent is never abandoned. Cancel-safe.
    pub async fn lost(&self) -> Lost {
        self.lock.lost().await
    }

    /// The call has ended, in whatever way: was the lock held all the time?
    pub fn finish(self) -> CallGuard {
        let lost = self.lock.verdict();
        CallGuard {
            lock_held: lost.is_none(),
            lost,
        }
    }
}
