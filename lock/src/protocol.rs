//! The lock's decisions as pure functions of what was read and of this process' own clock.
//!
//! Shipping code and the model checker (`tests/model.rs`) both go through these. The rules
//! (spec section 4, rust-stack.md 1.4), each with a model run that fails without it:
//!
//! 1. Every write carries the resourceVersion of the very record that was judged.
//! 2. Taken only when free, one's own, handed over, or expired; renewed and released only when
//!    the record judged is one's own.
//! 3. Expired means: watched standing unchanged for its full duration by one's own clock.
//! 4. A call is sent within seconds of a renewal that followed its intent.
//! 5. After a lost answer the Lease is read again, and only what one wrote oneself is believed.
//! 6. Every acquisition counts `leaseTransitions` up: with the UID that is the fencing token.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lease::annotations::{RENEWAL, STEP, STEP_DETAIL, STEP_OPERATION};
use crate::{Durations, HANDED_OVER, Holder, LeaseRecord, LeaseWrite, Operation};

/// A record, and since when this process has seen it so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// The record last seen.
    pub record: LeaseRecord,
    /// By this process' clock, when it was first seen so.
    pub since: Duration,
}

/// Folds a sight of the Lease into what was seen before: any change starts the wait anew.
#[must_use]
pub fn observe(
    before: Option<Observation>,
    seen: Option<&LeaseRecord>,
    now: Duration,
) -> Option<Observation> {
    let seen = seen?;
    match before {
        Some(before) if before.record == *seen => Some(before),
        _ => Some(Observation {
            record: seen.clone(),
            since: now,
        }),
    }
}

/// For how long another holder's `record` must stand unchanged: its own duration, and
/// [`Durations::longest`] where that is missing, unreadable (zero included) or larger.
#[must_use]
pub fn waits_for(record: &LeaseRecord, durations: &Durations) -> Duration {
    record
        .duration
        .filter(|duration| !duration.is_zero())
        .map_or(durations.longest, |duration| {
            duration.min(durations.longest)
        })
}

/// Time until the observed record counts as expired; zero when it does. `None` when nobody
/// holds it.
#[must_use]
pub fn expires_in(
    observation: &Observation,
    now: Duration,
    durations: &Durations,
) -> Option<Duration> {
    observation.record.held_by()?;
    let watched = now.saturating_sub(observation.since);
    Some(waits_for(&observation.record, durations).saturating_sub(watched))
}

/// What an operation that wants the lock may do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// There is no Lease: make it.
    Create,
    /// Write over this record.
    Take(Basis),
    /// Another holds it: nothing is written.
    Held {
        /// Who, as the Lease says.
        holder: String,
        /// The operation that this names; `None` when it is nobody of ours.
        operation: Option<Operation>,
        /// When it counts as expired if it stays unchanged.
        expires_in: Duration,
    },
}

/// Why a record may be written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Basis {
    /// Nobody holds it.
    Free,
    /// This operation held it in this very pod: its container was restarted, or its guard dropped.
    Resumed,
    /// This operation held it, and its agent left it to whoever leads next.
    HandedOver,
    /// It stood unchanged for its full duration while this process watched.
    Expired,
}

/// Decides what `me` may do about `record`, read just now, given what was observed before.
///
/// The write must then be sent on that record's resourceVersion ([`acquisition`]).
#[must_use]
pub fn decide(
    record: Option<&LeaseRecord>,
    me: &Holder,
    observation: Option<&Observation>,
    now: Duration,
    durations: &Durations,
) -> Decision {
    let Some(record) = record else {
        return Decision::Create;
    };
    let Some(holder) = record.held_by() else {
        return Decision::Take(Basis::Free);
    };
    if holder == me.to_string() {
        return Decision::Take(Basis::Resumed);
    }
    if holder == me.handed_over().to_string() {
        return Decision::Take(Basis::HandedOver);
    }
    // An observation of another record says nothing about this one.
    let expires_in = observation
        .filter(|observation| observation.record == *record)
        .and_then(|observation| expires_in(observation, now, durations))
        .unwrap_or_else(|| waits_for(record, durations));
    if expires_in.is_zero() {
        return Decision::Take(Basis::Expired);
    }
    Decision::Held {
        holder: holder.to_owned(),
        operation: Holder::parse(holder, &me.operation.namespace).map(|holder| holder.operation),
        expires_in,
    }
}

/// The write that makes `me` the holder, of nothing or on top of the judged `record`.
///
/// A step that another operation left on the Lease stays there: it is all that is left of a
/// removal that was given up half-way, until somebody has taken note of it.
#[must_use]
pub fn acquisition(
    record: Option<&LeaseRecord>,
    me: &Holder,
    nonce: &str,
    durations: &Durations,
) -> LeaseWrite {
    LeaseWrite {
        holder: Some(me.to_string()),
        duration_seconds: whole_seconds(durations.lease),
        transitions: record.map_or(0, |record| next_transition(record.transitions)),
        acquired: true,
        annotations: stamp(nonce),
    }
}

/// One hold of the lock, from its acquisition on. Two holds never have the same UID and
/// transitions, so that nobody takes another's hold, or an earlier one of his own, for his.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tenure {
    /// The Lease's UID.
    pub uid: String,
    /// Its `leaseTransitions` since the acquisition.
    pub transitions: i64,
    /// Who holds it.
    pub holder: Holder,
}

impl Tenure {
    /// The hold that `stored`, the answer to an [`acquisition`], shows; `None` if it does not
    /// say that `me` holds it.
    #[must_use]
    pub fn begun(stored: &LeaseRecord, me: &Holder) -> Option<Self> {
        (stored.held_by() == Some(me.to_string().as_str())).then(|| Self {
            uid: stored.uid.clone(),
            transitions: stored.transitions,
            holder: me.clone(),
        })
    }
}

/// Why a lock is no longer held; it never comes back, it can only be acquired again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Lost {
    /// The Lease is gone.
    #[error("the Lease was deleted")]
    Deleted,
    /// The Lease has another UID.
    #[error("the Lease was deleted and made anew")]
    Replaced,
    /// The Lease names nobody.
    #[error("somebody took the holder out of the Lease")]
    Cleared,
    /// The Lease names another.
    #[error("the Lease is now held by {holder}")]
    Taken {
        /// Who, as the Lease says.
        holder: String,
    },
    /// The Lease names us, but not from the acquisition that this hold began with.
    #[error("the Lease was acquired again (leaseTransitions is {found}, was {ours})")]
    AcquiredAgain {
        /// Ours.
        ours: i64,
        /// What the Lease says.
        found: i64,
    },
    /// No renewal succeeded in time (an API server that did not answer, or this process was
    /// frozen): others may have taken the Lease without our seeing it.
    #[error(
        "no renewal succeeded for {silent:?}; others may take the Lease soon, so it is given up after {limit:?}"
    )]
    NotRenewed {
        /// Since the last renewal was sent, by our clock.
        silent: Duration,
        /// How long a hold is believed in without one.
        limit: Duration,
    },
}

/// Whether `record`, the very one whose resourceVersion the next write carries, is this hold's.
///
/// Compare-and-swap alone is not enough: a holder that was overtaken reads the fresh version and
/// would renew over the new one.
///
/// # Errors
/// [`Lost`] with what is there instead.
pub fn still_held(record: Option<&LeaseRecord>, tenure: &Tenure) -> Result<(), Lost> {
    let record = record.ok_or(Lost::Deleted)?;
    if record.uid != tenure.uid {
        return Err(Lost::Replaced);
    }
    match record.held_by() {
        None => Err(Lost::Cleared),
        Some(holder) if holder != tenure.holder.to_string() => Err(Lost::Taken {
            holder: holder.to_owned(),
        }),
        Some(_) if record.transitions != tenure.transitions => Err(Lost::AcquiredAgain {
            ours: tenure.transitions,
            found: record.transitions,
        }),
        Some(_) => Ok(()),
    }
}

/// Whether a hold whose last successful renewal was *sent* at `renewed_at` may be believed in.
///
/// Others start to wait when they see that renewal, so no earlier than it was sent, and wait its
/// full duration; the margin is for clocks that run at different speeds.
///
/// # Errors
/// [`Lost::NotRenewed`].
pub fn in_force(renewed_at: Duration, now: Duration, durations: &Durations) -> Result<(), Lost> {
    let silent = now.saturating_sub(renewed_at);
    let limit = durations.believed();
    if silent < limit {
        return Ok(());
    }
    Err(Lost::NotRenewed { silent, limit })
}

/// An irreversible step as a renewal writes it to the Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepNote {
    /// The call: `LeaveEtcd`, `Reset`, …
    pub step: String,
    /// Details; each key is written as `ichor.maesh.dev/step-<key>`.
    pub details: BTreeMap<String, String>,
}

/// The write that renews a hold on `record`, for which [`still_held`] must have said yes, and
/// notes the `step` that it is for.
#[must_use]
pub fn renewal(
    record: &LeaseRecord,
    tenure: &Tenure,
    nonce: &str,
    step: Option<&StepNote>,
    durations: &Durations,
) -> LeaseWrite {
    let mut annotations = BTreeMap::new();
    if let Some(note) = step {
        annotations = step_annotations(record)
            .map(|key| (key.clone(), None))
            .collect();
        for (key, value) in &note.details {
            annotations.insert(format!("{STEP_DETAIL}{key}"), Some(value.clone()));
        }
        annotations.insert(STEP.to_owned(), Some(note.step.clone()));
        annotations.insert(
            STEP_OPERATION.to_owned(),
            Some(tenure.holder.operation.to_string()),
        );
    }
    annotations.extend(stamp(nonce));
    LeaseWrite {
        holder: Some(tenure.holder.to_string()),
        duration_seconds: whole_seconds(durations.lease),
        transitions: unchanged(record),
        acquired: false,
        annotations,
    }
}

/// The write that gives a hold back, for which [`still_held`] must have said yes.
///
/// The operation's own step goes from the Lease; another's stays (see [`acquisition`]).
#[must_use]
pub fn release(
    record: &LeaseRecord,
    tenure: &Tenure,
    nonce: &str,
    durations: &Durations,
) -> LeaseWrite {
    clearing(record, &tenure.holder.operation, nonce, durations)
}

/// The write that leaves a hold to whichever agent leads next, for which [`still_held`] must
/// have said yes. Its step stays on the Lease.
#[must_use]
pub fn hand_over(
    record: &LeaseRecord,
    tenure: &Tenure,
    nonce: &str,
    durations: &Durations,
) -> LeaseWrite {
    LeaseWrite {
        holder: Some(tenure.holder.handed_over().to_string()),
        ..renewal(record, tenure, nonce, None, durations)
    }
}

/// The write that takes the holder, `operation`, off `record`, and its step with it.
#[must_use]
pub fn clearing(
    record: &LeaseRecord,
    operation: &Operation,
    nonce: &str,
    durations: &Durations,
) -> LeaseWrite {
    let own = record.step_of(operation).is_some();
    let mut annotations: BTreeMap<_, _> = step_annotations(record)
        .filter(|_| own)
        .map(|key| (key.clone(), None))
        .collect();
    annotations.extend(stamp(nonce));
    LeaseWrite {
        holder: None,
        duration_seconds: whole_seconds(durations.lease),
        transitions: unchanged(record),
        acquired: false,
        annotations,
    }
}

/// Whether the Lease, read again after an answer was lost, shows that `write` was applied:
/// the holder is the one written, under the nonce that only this write has.
#[must_use]
pub fn applied(record: Option<&LeaseRecord>, write: &LeaseWrite) -> bool {
    record.is_some_and(|record| {
        let nonce = write.annotations.get(RENEWAL).and_then(Option::as_deref);
        record.held_by() == write.holder.as_deref()
            && record.transitions == i64::from(write.transitions)
            && nonce.is_some()
            && record.annotations.get(RENEWAL).map(String::as_str) == nonce
    })
}

/// Whether a renewal done at `now` still belongs to an intent written at `intent`.
#[must_use]
pub fn intent_in_time(intent: Duration, now: Duration, durations: &Durations) -> bool {
    now.saturating_sub(intent) <= durations.intent_to_renew
}

/// Whether a call may still be sent at `now` under a renewal that was sent at `renewed_at`.
#[must_use]
pub fn may_send(renewed_at: Duration, now: Duration, durations: &Durations) -> bool {
    now.saturating_sub(renewed_at) <= durations.send_within
}

/// Whether a Lease whose holder's object is gone may be cleared without waiting for its expiry.
///
/// Not while another live instance holds it with a step noted: the intent of a call in flight
/// went with the object, so only the renewals' end tells that the call has ended.
#[must_use]
pub fn may_clear(
    record: &LeaseRecord,
    holder: &Holder,
    instance: &str,
    observation: Option<&Observation>,
    now: Duration,
    durations: &Durations,
) -> bool {
    holder.instance == instance
        || holder.instance == HANDED_OVER
        || record.step_of(&holder.operation).is_none()
        || observation
            .filter(|observation| observation.record == *record)
            .and_then(|observation| expires_in(observation, now, durations))
            .is_some_and(|left| left.is_zero())
}

fn stamp(nonce: &str) -> BTreeMap<String, Option<String>> {
    BTreeMap::from([(RENEWAL.to_owned(), Some(nonce.to_owned()))])
}

fn step_annotations(record: &LeaseRecord) -> impl Iterator<Item = &String> {
    record
        .annotations
        .keys()
        .filter(|key| *key == STEP || key.starts_with(STEP_DETAIL))
}

/// Kubernetes wants whole seconds, more than none. Rounded up: too long only makes others wait.
fn whole_seconds(duration: Duration) -> i32 {
    let up = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i32::try_from(up).unwrap_or(i32::MAX).max(1)
}

/// The next value of a field that holds 0 to `i32::MAX`; anything else was written by hand.
fn next_transition(transitions: i64) -> i32 {
    i32::try_from(transitions)
        .ok()
        .filter(|transitions| *transitions >= 0)
        .and_then(|transitions| transitions.checked_add(1))
        .unwrap_or(0)
}

fn unchanged(record: &LeaseRecord) -> i32 {
    i32::try_from(record.transitions).unwrap_or(0)
}
