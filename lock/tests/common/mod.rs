//! Agents over one Lease in memory, on tokio's paused clock.
#![allow(dead_code)] // Each test file uses its part.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ichor_lock::testing::{ManualClock, MemoryStore, ScriptedView};
use ichor_lock::{
    AcquireError, DisruptiveLock, Durations, LockManager, Operation, Permit, PermitError,
    acquire_disruptive,
};

/// One agent process.
pub struct Agent {
    pub manager: LockManager,
    pub clock: ManualClock,
    pub store: MemoryStore,
}

impl Agent {
    pub fn new(instance: &str, store: &MemoryStore) -> Self {
        Self::with(instance, store, Durations::default())
    }

    pub fn with(instance: &str, store: &MemoryStore, durations: Durations) -> Self {
        let clock = ManualClock::following_tokio();
        Self {
            manager: LockManager::new(instance, Arc::new(clock.clone()), durations),
            clock,
            store: store.clone(),
        }
    }

    pub async fn acquire(&self, operation: &Operation) -> Result<DisruptiveLock, AcquireError> {
        self.acquire_with(operation, &ScriptedView::default(), true)
            .await
    }

    pub async fn acquire_with(
        &self,
        operation: &Operation,
        view: &ScriptedView,
        completes_transition: bool,
    ) -> Result<DisruptiveLock, AcquireError> {
        acquire_disruptive(
            &self.manager,
            Arc::new(self.store.clone()),
            view,
            operation,
            completes_transition,
        )
        .await
    }

    /// The process stands still for `by`: its clock goes on, its timers do not.
    pub fn freeze(&self, by: Duration) {
        self.clock.advance(by);
    }
}

pub fn removal(machine: &str) -> Operation {
    Operation {
        kind: "TalosMachine".into(),
        name: machine.into(),
        namespace: "default".into(),
        uid: format!("uid-{machine}"),
        purpose: "removal".into(),
    }
}

pub async fn permit<'l>(
    lock: &'l mut DisruptiveLock,
    step: &str,
) -> Result<Permit<'l>, PermitError> {
    let intent = lock.mark_intent();
    let note = BTreeMap::from([("machine".to_owned(), lock.operation().name.clone())]);
    lock.permit(step, &note, intent).await
}

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Lets time pass; what is due in it runs.
pub async fn pass(seconds: u64) {
    tokio::time::sleep(secs(seconds)).await;
}

/// Who holds a lock that could not be taken.
pub fn held_by(result: &Result<DisruptiveLock, AcquireError>) -> Option<&str> {
    match result {
        Err(AcquireError::Held { holder, .. }) => Some(holder),
        _ => None,
    }
}
