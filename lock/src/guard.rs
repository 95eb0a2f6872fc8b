//! The witness that the lock is held, and the task that keeps it so.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use crate::manager::{Claim, Process};
use crate::protocol::{self, Lost, StepNote, Tenure};
use crate::store_call::{self, Written};
use crate::{
    Durations, LeaseError, LeaseKey, LeaseRecord, LeaseStore, LeaseWrite, LockManager, Operation,
};

/// How often one renewal or release is tried on what another read shows, where somebody changes
/// the Lease (a label, say) without taking it.
const TRIES: usize = 4;

/// The cluster's lock, held: what everything disruptive demands (spec section 4).
///
/// Only [`acquire_disruptive`](crate::acquire_disruptive) makes one. A task renews the Lease for
/// as long as this lives; when that fails for good the lock is *lost*, and never comes back.
///
/// Dropping it stops the renewals and gives nothing back: the Lease stands until it expires, or
/// until the same operation resumes it in the same pod. Use [`release`](Self::release).
#[must_use = "dropped, the lock is neither renewed nor given back"]
pub struct DisruptiveLock {
    hold: Arc<Hold>,
    renewer: JoinHandle<()>,
    predecessor: Option<LeaseRecord>,
    /// Last: other tasks of this process may not take the lock before the renewals have ended.
    _claim: Claim,
}

/// A renewal that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenewError {
    /// The lock is lost: begin nothing, count what is under way as unknown, acquire again.
    #[error("the cluster lock is lost: {0}; nothing more is begun under it")]
    Lost(#[from] Lost),
    /// This renewal failed; the lock is still held until its margin is used up.
    #[error("the cluster lock could not be renewed: {0}")]
    Store(#[from] LeaseError),
}

/// The hold itself, shared by the guard and its renewing task.
pub(crate) struct Hold {
    process: Arc<Process>,
    store: Arc<dyn LeaseStore>,
    tenure: Tenure,
    /// The record last seen; held across a write, so that a process never has two under way.
    record: tokio::sync::Mutex<LeaseRecord>,
    /// When the last renewal that succeeded was sent, by our clock.
    renewed_at: Mutex<Duration>,
    lost: watch::Sender<Option<Lost>>,
}

impl Hold {
    fn now(&self) -> Duration {
        self.process.clock.now()
    }

    fn renewed_at(&self) -> Duration {
        *self
            .renewed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn renewed(&self, sent: Duration) {
        let mut at = self
            .renewed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *at = sent.max(*at);
    }

    /// The verdict that is final once it is given; asked of the clock each time, so that a
    /// process that was frozen knows at once, before its renewing task has run.
    fn lost(&self) -> Option<Lost> {
        if let Some(lost) = self.lost.borrow().clone() {
            return Some(lost);
        }
        protocol::in_force(self.renewed_at(), self.now(), &self.process.durations)
            .err()
            .map(|lost| self.lose(lost))
    }

    fn lose(&self, lost: Lost) -> Lost {
        let mut verdict = lost;
        self.lost.send_if_modified(|known| {
            if let Some(known) = known {
                verdict = known.clone();
                return false;
            }
            warn!(lease = %self.store.key(), holder = %self.tenure.holder, reason = %verdict, "cluster lock lost");
            *known = Some(verdict.clone());
            true
        });
        verdict
    }

    fn nonce(&self) -> String {
        self.process.nonce()
    }

    /// Renews once, and notes `step`; answers when the renewal that succeeded was sent.
    async fn renew(&self, step: Option<&StepNote>) -> Result<Duration, RenewError> {
        let durations = &self.process.durations;
        let mut record = self.record.lock().await;
        let mut last = LeaseError::Conflict;
        for _ in 0..TRIES {
            // Asked each time round: the tries may have taken long.
            if let Some(lost) = self.lost() {
                return Err(lost.into());
            }
            if let Err(lost) = protocol::still_held(Some(&record), &self.tenure) {
                return Err(self.lose(lost).into());
            }
            let write = protocol::renewal(&record, &self.tenure, &self.nonce(), step, durations);
            let sent = self.now();
            match store_call::write(&*self.store, Some(&record), &write, durations.answer).await? {
                Written::Stored(stored) => {
                    // What is stored is judged, not what was sent: it may have been mutated.
                    if let Err(lost) = protocol::still_held(Some(&stored), &self.tenure) {
                        return Err(self.lose(lost).into());
                    }
                    *record = stored;
                    self.renewed(sent);
                    debug!(lease = %self.store.key(), holder = %self.tenure.holder, "cluster lock renewed");
                    return self.lost().map_or(Ok(sent), |lost| Err(lost.into()));
                }
                Written::Not(seen, error) => {
                    if let Err(lost) = protocol::still_held(seen.as_ref(), &self.tenure) {
                        return Err(self.lose(lost).into());
                    }
                    if let Some(seen) = seen {
                        *record = seen;
                    }
                    last = error;
                }
            }
        }
        Err(RenewError::Store(last))
    }

    /// Renews until the lock is lost.
    async fn keep(&self) {
        let durations = &self.process.durations;
        let mut failing = false;
        loop {
            let pause = if failing {
                durations.retry()
            } else {
                // From the last renewal, whoever asked for it.
                durations
                    .renew
                    .saturating_sub(self.now().saturating_sub(self.renewed_at()))
            };
            tokio::time::sleep(pause).await;
            if !failing && self.now().saturating_sub(self.renewed_at()) < durations.renew {
                // A permit renewed meanwhile, or the sleep ended a little early.
                continue;
            }
            match self.renew(None).await {
                Ok(_) => failing = false,
                Err(RenewError::Lost(_)) => return,
                Err(RenewError::Store(error)) => {
                    failing = true;
                    warn!(lease = %self.store.key(), holder = %self.tenure.holder, %error, "renewing the cluster lock failed, trying again");
                }
            }
        }
    }
}

impl DisruptiveLock {
    /// Of an acquisition that was sent at `sent` and stored as `record`.
    pub(crate) fn begin(
        manager: &LockManager,
        store: Arc<dyn LeaseStore>,
        tenure: Tenure,
        record: LeaseRecord,
        sent: Duration,
        predecessor: Option<LeaseRecord>,
        claim: Claim,
    ) -> Self {
        let hold = Arc::new(Hold {
            process: Arc::clone(manager.process()),
            store,
            tenure,
            record: tokio::sync::Mutex::new(record),
            renewed_at: Mutex::new(sent),
            lost: watch::Sender::new(None),
        });
        let keeper = Arc::clone(&hold);
        Self {
            hold,
            renewer: tokio::spawn(async move { keeper.keep().await }),
            predecessor,
            _claim: claim,
        }
    }

    /// The operation that holds it.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.hold.tenure.holder.operation
    }

    /// The agent instance that holds it.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.hold.tenure.holder.instance
    }

    /// Which Lease.
    #[must_use]
    pub fn key(&self) -> LeaseKey {
        self.hold.store.key()
    }

    /// The fencing token: the Lease's UID and `leaseTransitions`. Both go into an intent, and no
    /// two acquisitions have the same.
    #[must_use]
    pub fn fencing(&self) -> (&str, i64) {
        (&self.hold.tenure.uid, self.hold.tenure.transitions)
    }

    /// The Lease as another operation left it, if this acquisition took an expired one.
    ///
    /// Its step ([`LeaseRecord::step_of`]) stays on the Lease until the first permit under this
    /// lock: whoever holds it looks here first, whether that operation's object still exists.
    #[must_use]
    pub fn predecessor(&self) -> Option<&LeaseRecord> {
        self.predecessor.as_ref()
    }

    /// Whether the lock is lost. Asks the clock, so a thawed process knows at once.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.hold.lost().is_some()
    }

    /// Waits until the lock is lost and says why. Cancel-safe.
    pub async fn lost(&self) -> Lost {
        if let Some(lost) = self.hold.lost() {
            return lost;
        }
        let mut news = self.hold.lost.subscribe();
        let verdict = news
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|lost| lost.clone());
        // The sender lives in `self.hold`, so the wait cannot end without a verdict.
        verdict.unwrap_or(Lost::Cleared)
    }

    /// Renews now, beside the task that does so by itself.
    ///
    /// # Errors
    /// [`RenewError`]: lost, or not renewed this time.
    pub async fn renew(&mut self) -> Result<(), RenewError> {
        self.hold.renew(None).await.map(|_| ())
    }

    /// Gives the lock back: the holder goes from the Lease, and this operation's step with it.
    ///
    /// A lock that is lost to another is not touched.
    ///
    /// # Errors
    /// [`LeaseError`]: the Lease may still name this operation; it resumes it or it expires.
    pub async fn release(self) -> Result<(), LeaseError> {
        self.end(protocol::release).await
    }

    /// Leaves the lock to whichever agent leads next, which resumes this operation at once.
    ///
    /// For a graceful shutdown with no call in flight (a call borrows the lock).
    ///
    /// # Errors
    /// [`LeaseError`]: the Lease may still name this instance; another waits for its expiry.
    pub async fn hand_over(self) -> Result<(), LeaseError> {
        self.end(protocol::hand_over).await
    }

    /// Writes the last word on this hold, lost or not: a frozen holder that was not overtaken need
    /// not let others wait, and one that was is refused by the resourceVersion.
    async fn end(
        self,
        ending: fn(&LeaseRecord, &Tenure, &str, &Durations) -> LeaseWrite,
    ) -> Result<(), LeaseError> {
        let hold = &*self.hold;
        let (store, limit) = (&*hold.store, hold.process.durations.answer);
        // A renewal under way ends first; none begins after.
        let mut record = hold.record.lock().await;
        self.renewer.abort();
        let mut last = LeaseError::Conflict;
        for _ in 0..TRIES {
            if let Err(lost) = protocol::still_held(Some(&record), &hold.tenure) {
                info!(lease = %store.key(), holder = %hold.tenure.holder, reason = %lost, "cluster lock was gone already");
                return Ok(());
            }
            let write = ending(
                &record,
                &hold.tenure,
                &hold.nonce(),
                &hold.process.durations,
            );
            match store_call::write(store, Some(&record), &write, limit).await? {
                Written::Stored(stored) => {
                    info!(lease = %store.key(), holder = %hold.tenure.holder, now = stored.held_by(), "cluster lock given back");
                    return Ok(());
                }
                Written::Not(None, _) => return Ok(()),
                Written::Not(Some(seen), error) => {
                    *record = seen;
                    last = error;
                }
            }
        }
        Err(last)
    }

    pub(crate) fn now(&self) -> Duration {
        self.hold.now()
    }

    pub(crate) fn durations(&self) -> &Durations {
        &self.hold.process.durations
    }

    pub(crate) fn verdict(&self) -> Option<Lost> {
        self.hold.lost()
    }

    pub(crate) async fn renew_for(&mut self, step: &StepNote) -> Result<Duration, RenewError> {
        self.hold.renew(Some(step)).await
    }
}

impl Drop for DisruptiveLock {
    fn drop(&mut self) {
        self.renewer.abort();
    }
}

impl std::fmt::Debug for DisruptiveLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DisruptiveLock")
            .field("lease", &self.key())
            .field("holder", &self.hold.tenure.holder)
            .field("transitions", &self.hold.tenure.transitions)
            .field("lost", &*self.hold.lost.borrow())
            .finish_non_exhaustive()
    }
}
