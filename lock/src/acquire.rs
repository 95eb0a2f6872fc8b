//! Taking the lock.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use crate::protocol::{self, Basis, Decision, Tenure};
use crate::store_call::{self, Written};
use crate::{
    DisruptiveLock, LeaseError, LeaseKey, LeaseStore, LockManager, Operation, UnsettledIntent,
    View, ViewError,
};

/// How often a write that another one overtook is decided anew before giving up for now.
const TRIES: usize = 4;

/// Why the lock was not taken. Nothing is held then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Another operation, or this one in another agent, holds it (`ClusterLockHeld`).
    #[error("ClusterLockHeld: the cluster lock {lease} is held by {}{}{}", who(.operation.as_ref(), .holder), since_text(.since.as_deref()), until_text(*.until_hint))]
    Held {
        /// The lock's Lease.
        lease: LeaseKey,
        /// Who, as the Lease says.
        holder: String,
        /// The operation that this names; `None` when it is nobody of ours.
        operation: Option<Operation>,
        /// `acquireTime`, as the Lease says.
        since: Option<String>,
        /// When this process will count it as expired, if it stays unchanged; `None` where it
        /// is held in this very process.
        until_hint: Option<Duration>,
    },
    /// The cluster is transitioning, and this operation is not one that may end that.
    #[error("ClusterTransitioning: {0}")]
    Transitioning(String),
    /// Another operation's irreversible call has an unknown outcome that cannot be settled yet.
    #[error("the outcome of another operation's call is not known yet: {}", unsettled_text(.0))]
    Unsettled(Vec<UnsettledIntent>),
    /// The cluster could not be looked at.
    #[error("the cluster could not be read, so nothing disruptive is begun: {0}")]
    View(#[from] ViewError),
    /// The Lease could not be read or written.
    #[error("the cluster lock could not be taken: {0}")]
    Store(#[from] LeaseError),
}

fn who(operation: Option<&Operation>, holder: &str) -> String {
    match operation {
        Some(Operation {
            kind,
            name,
            purpose,
            ..
        }) => format!("the {purpose} of {kind} {name} ({holder})"),
        None => format!("{holder:?}, which is no operation of Ichor"),
    }
}

fn since_text(since: Option<&str>) -> String {
    since.map_or_else(String::new, |since| format!(" since {since}"))
}

fn until_text(until: Option<Duration>) -> String {
    until.map_or_else(
        || "; it goes on when that one releases it".to_owned(),
        |until| {
            format!(
                "; it goes on when that one releases it, or has not renewed it for {} s more",
                until.as_secs() + u64::from(until.subsec_nanos() > 0)
            )
        },
    )
}

fn unsettled_text(intents: &[UnsettledIntent]) -> String {
    intents
        .iter()
        .map(|intent| {
            let UnsettledIntent {
                machine,
                step,
                operation,
                message,
            } = intent;
            format!("{step} of {machine} by {operation} ({message})")
        })
        .collect::<Vec<_>>()
        .join("; ")
}

/// Takes the cluster's lock for `operation`: the only maker of a [`DisruptiveLock`].
///
/// Asks the `view` before the Lease is touched whether the cluster is transitioning (unless the
/// operation `completes_transition`: removal, joining and bootstrap of a control plane, restore,
/// teardown), and again under the lock, after the unsettled intents of others were settled as
/// far as they can be. What stands against it gives the lock back.
///
/// # Errors
/// [`AcquireError`]; nothing is held then. (Where giving back failed too, the Lease still names
/// the operation; it resumes it next time, and to others it expires.)
pub async fn acquire_disruptive(
    manager: &LockManager,
    store: Arc<dyn LeaseStore>,
    view: &dyn View,
    operation: &Operation,
    completes_transition: bool,
) -> Result<DisruptiveLock, AcquireError> {
    stable(view, completes_transition).await?;
    let lock = take(manager, store, operation).await?;
    let verdict = match under_lock(view, operation, completes_transition).await {
        // The questions may have taken long.
        Ok(()) if lock.is_lost() => Err(LeaseError::Conflict.into()),
        verdict => verdict,
    };
    let Err(error) = verdict else {
        return Ok(lock);
    };
    let key = lock.key();
    if let Err(release) = lock.release().await {
        warn!(lease = %key, %operation, error = %release, "giving the cluster lock back failed; it expires");
    }
    Err(error)
}

async fn stable(view: &dyn View, completes_transition: bool) -> Result<(), AcquireError> {
    if completes_transition {
        return Ok(());
    }
    match view.transitioning().await? {
        Some(reason) => Err(AcquireError::Transitioning(reason)),
        None => Ok(()),
    }
}

async fn under_lock(
    view: &dyn View,
    operation: &Operation,
    completes_transition: bool,
) -> Result<(), AcquireError> {
    // Settling comes before any rule is asked: it can change what the rules see.
    let mut unsettled = view.unsettled_intents(operation, true).await?;
    let own = operation.to_string();
    unsettled.retain(|intent| intent.operation != own);
    if !unsettled.is_empty() {
        return Err(AcquireError::Unsettled(unsettled));
    }
    stable(view, completes_transition).await
}

/// Takes the Lease itself.
async fn take(
    manager: &LockManager,
    store: Arc<dyn LeaseStore>,
    operation: &Operation,
) -> Result<DisruptiveLock, AcquireError> {
    let key = store.key();
    let me = manager.holder(operation);
    let process = manager.process();
    let durations = &process.durations;
    let slot = manager.slot(&key);
    let _one_at_a_time = slot.acquiring.lock().await;
    if let Some(live) = slot.live() {
        return Err(AcquireError::Held {
            lease: key,
            holder: manager.holder(&live).to_string(),
            operation: Some(live),
            since: None,
            until_hint: None,
        });
    }

    let mut seen = store_call::get(&*store, durations.answer).await?;
    let mut last = LeaseError::Conflict;
    for _ in 0..TRIES {
        let now = process.clock.now();
        let observation = slot.observe(seen.as_ref(), now);
        let basis = match protocol::decide(seen.as_ref(), &me, observation.as_ref(), now, durations)
        {
            Decision::Create => None,
            Decision::Take(basis) => Some(basis),
            Decision::Held {
                holder,
                operation,
                expires_in,
            } => {
                return Err(AcquireError::Held {
                    lease: key,
                    holder,
                    operation,
                    since: seen.and_then(|record| record.acquire_time),
                    until_hint: Some(expires_in),
                });
            }
        };
        let write = protocol::acquisition(seen.as_ref(), &me, &process.nonce(), durations);
        let sent = process.clock.now();
        match store_call::write(&*store, seen.as_ref(), &write, durations.answer).await? {
            Written::Stored(stored) => {
                slot.observe(Some(&stored), process.clock.now());
                // A store that keeps something else than was written holds nothing for us.
                let Some(tenure) = Tenure::begun(&stored, &me) else {
                    return Err(LeaseError::Conflict.into());
                };
                info!(lease = %key, holder = %me, ?basis, transitions = tenure.transitions, "cluster lock taken");
                let predecessor = seen.filter(|_| basis == Some(Basis::Expired));
                let claim = slot.claim(operation);
                return Ok(DisruptiveLock::begin(
                    manager,
                    store,
                    tenure,
                    stored,
                    sent,
                    predecessor,
                    claim,
                ));
            }
            Written::Not(now_there, error) => {
                seen = now_there;
                last = error;
            }
        }
    }
    Err(last.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_holder_and_what_happens_next() {
        let operation = Operation::parse("removal/TalosMachine/cp-1/uid-1", "prod");
        let text = AcquireError::Held {
            lease: LeaseKey::new("prod", "ichor-demo"),
            holder: "removal/TalosMachine/cp-1/uid-1@pod-a".into(),
            operation,
            since: Some("2026-01-01T00:00:00Z".into()),
            until_hint: Some(Duration::from_millis(239_500)),
        }
        .to_string();
        assert_eq!(
            text,
            "ClusterLockHeld: the cluster lock prod/ichor-demo is held by the removal of TalosMachine cp-1 \
             (removal/TalosMachine/cp-1/uid-1@pod-a) since 2026-01-01T00:00:00Z; it goes on when that one \
             releases it, or has not renewed it for 240 s more"
        );
    }
}
