//! What one process knows of the locks: what it has watched, and what its own tasks hold.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::protocol::{self, Observation};
use crate::{Clock, Durations, Holder, LeaseKey, LeaseRecord, Operation};

/// One per process, shared by everything in it that takes locks.
///
/// A fresh one knows nothing: every wait for an expiry starts anew (spec section 3, last
/// paragraph).
pub struct LockManager {
    instance: String,
    process: Arc<Process>,
    slots: Mutex<HashMap<LeaseKey, Arc<Slot>>>,
}

/// What a hold needs of its manager for as long as it lives.
pub(crate) struct Process {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) durations: Durations,
    /// Random, so that no two processes of one pod write the same nonce.
    id: u64,
    writes: AtomicU64,
}

impl Process {
    /// A text that no other write, of this process or another, carries.
    pub(crate) fn nonce(&self) -> String {
        let write = self.writes.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}-{write}", self.id)
    }
}

/// What is known of one Lease.
#[derive(Default)]
pub(crate) struct Slot {
    /// Held from the read to the write's answer, so that two tasks of one process do not both
    /// resume what looks like their own Lease.
    pub(crate) acquiring: tokio::sync::Mutex<()>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    observation: Option<Observation>,
    live: Option<Operation>,
}

/// The mark that a task of this process holds the lock; gone with the guard that owns it.
pub(crate) struct Claim(Arc<Slot>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.known().live = None;
    }
}

impl Slot {
    fn known(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while it is held; what is inside is whole in any case.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn live(&self) -> Option<Operation> {
        self.known().live.clone()
    }

    /// Only under `acquiring`, when there is no live one.
    pub(crate) fn claim(self: &Arc<Self>, operation: &Operation) -> Claim {
        self.known().live = Some(operation.clone());
        Claim(Arc::clone(self))
    }

    pub(crate) fn observe(&self, seen: Option<&LeaseRecord>, now: Duration) -> Option<Observation> {
        let mut known = self.known();
        known.observation = protocol::observe(known.observation.take(), seen, now);
        known.observation.clone()
    }
}

impl LockManager {
    /// For the agent `instance`: its pod's UID, the same after a restart of its container.
    pub fn new(instance: impl Into<String>, clock: Arc<dyn Clock>, durations: Durations) -> Self {
        Self {
            instance: instance.into(),
            process: Arc::new(Process {
                clock,
                durations,
                id: RandomState::new().build_hasher().finish(),
                writes: AtomicU64::new(0),
            }),
            slots: Mutex::default(),
        }
    }

    /// This agent's pod UID.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The clock that everything here is judged by.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.process.clock
    }

    /// The lock's times.
    #[must_use]
    pub fn durations(&self) -> &Durations {
        &self.process.durations
    }

    /// Takes note of a sight of the Lease, from a watch or a read; `None` when it is gone.
    ///
    /// Feeding a watch in lets the wait for an expiry run on without reads. A sight that is late
    /// or out of order is harmless: it can only start the wait anew, and a take-over compares
    /// with a direct read besides.
    pub fn observe(&self, key: &LeaseKey, seen: Option<&LeaseRecord>) {
        self.slot(key).observe(seen, self.process.clock.now());
    }

    /// When the holder last seen counts as expired, if it does not stir: when a waiter should
    /// try again at the latest. `None` while no holder has been seen.
    #[must_use]
    pub fn expires_in(&self, key: &LeaseKey) -> Option<Duration> {
        let slot = self.slot(key);
        let known = slot.known();
        protocol::expires_in(
            known.observation.as_ref()?,
            self.process.clock.now(),
            &self.process.durations,
        )
    }

    /// The operation for which a task of this process holds the lock right now.
    #[must_use]
    pub fn live(&self, key: &LeaseKey) -> Option<Operation> {
        self.slot(key).live()
    }

    /// `operation` as this agent would hold it.
    #[must_use]
    pub fn holder(&self, operation: &Operation) -> Holder {
        Holder {
            operation: operation.clone(),
            instance: self.instance.clone(),
        }
    }

    pub(crate) fn slot(&self, key: &LeaseKey) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(key.clone()).or_default())
    }

    pub(crate) fn process(&self) -> &Arc<Process> {
        &self.process
    }
}
