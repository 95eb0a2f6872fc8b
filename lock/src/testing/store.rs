//! A Lease in memory that fails on demand.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::lock;
use crate::{LeaseError, LeaseKey, LeaseRecord, LeaseStore, LeaseWrite};

/// What goes wrong with one call to a [`MemoryStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 409, whatever the resourceVersion.
    Conflict,
    /// Applied, but the answer is lost.
    LostAfter,
    /// Not applied, and the answer is lost.
    LostBefore,
    /// The answer is lost at once; the write arrives after this long, and is applied if its
    /// resourceVersion still fits then.
    Late(Duration),
    /// Refused with this text; a read fails with it.
    Refused(String),
    /// Answered after this long, applied only then.
    Slow(Duration),
    /// Never answered nor applied.
    Hangs,
}

#[derive(Debug, Default)]
struct Inner {
    record: Option<LeaseRecord>,
    version: u64,
    made: u64,
    writes: Vec<LeaseWrite>,
    reads: usize,
    read_faults: VecDeque<Fault>,
    write_faults: VecDeque<Fault>,
    down: Option<String>,
}

/// A Lease in memory with an API server's rules. Clones share the Lease; each has its own wall
/// clock, which is whatever text it was given.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    key: LeaseKey,
    inner: Arc<Mutex<Inner>>,
    wall_clock: String,
}

impl MemoryStore {
    /// No Lease yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            key: LeaseKey::new("default", "ichor-demo"),
            inner: Arc::default(),
            wall_clock: "2026-01-01T00:00:00.000000Z".to_owned(),
        }
    }

    /// The same Lease, through a client whose wall clock says `now`, garbage included.
    #[must_use]
    pub fn with_wall_clock(&self, now: &str) -> Self {
        Self {
            wall_clock: now.to_owned(),
            ..self.clone()
        }
    }

    /// The Lease as stored.
    #[must_use]
    pub fn record(&self) -> Option<LeaseRecord> {
        lock(&self.inner).record.clone()
    }

    /// Who holds it, as stored.
    #[must_use]
    pub fn holder(&self) -> Option<String> {
        self.record()
            .and_then(|record| record.held_by().map(str::to_owned))
    }

    /// Every write that was applied, in order.
    #[must_use]
    pub fn writes(&self) -> Vec<LeaseWrite> {
        lock(&self.inner).writes.clone()
    }

    /// How many reads were answered.
    #[must_use]
    pub fn reads(&self) -> usize {
        lock(&self.inner).reads
    }

    /// Somebody deletes the Lease.
    pub fn delete(&self) {
        lock(&self.inner).record = None;
    }

    /// Somebody writes to the Lease (made if there is none) with `kubectl edit`.
    pub fn edit(&self, change: impl FnOnce(&mut LeaseRecord)) {
        let mut inner = lock(&self.inner);
        let mut record = inner.record.take().unwrap_or_else(|| inner.fresh());
        change(&mut record);
        inner.store(record);
    }

    /// The next read that has no fault queued before it goes wrong so.
    pub fn fail_read(&self, fault: Fault) {
        lock(&self.inner).read_faults.push_back(fault);
    }

    /// The next write that has no fault queued before it goes wrong so.
    pub fn fail_write(&self, fault: Fault) {
        lock(&self.inner).write_faults.push_back(fault);
    }

    /// Until [`up`](Self::up), every call fails with this text and is not applied.
    pub fn down(&self, why: &str) {
        lock(&self.inner).down = Some(why.to_owned());
    }

    /// Ends [`down`](Self::down).
    pub fn up(&self) {
        lock(&self.inner).down = None;
    }

    async fn write(&self, on: Option<&str>, write: &LeaseWrite) -> Result<LeaseRecord, LeaseError> {
        let fault = {
            let mut inner = lock(&self.inner);
            if let Some(why) = &inner.down {
                return Err(LeaseError::Other(why.clone()));
            }
            inner.write_faults.pop_front()
        };
        let apply = || lock(&self.inner).apply(on, write, &self.wall_clock);
        let lost = || LeaseError::Unknown("the answer was lost".to_owned());
        match fault {
            None => apply(),
            Some(Fault::Conflict) => Err(LeaseError::Conflict),
            Some(Fault::LostAfter) => apply().and_then(|_| Err(lost())),
            Some(Fault::LostBefore) => Err(lost()),
            Some(Fault::Refused(why)) => Err(LeaseError::Other(why)),
            Some(Fault::Slow(delay)) => {
                tokio::time::sleep(delay).await;
                apply()
            }
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::Late(delay)) => {
                let (inner, on, write) = (
                    Arc::clone(&self.inner),
                    on.map(str::to_owned),
                    write.clone(),
                );
                let wall_clock = self.wall_clock.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    // Too late to tell anybody how it went.
                    let _ = lock(&inner).apply(on.as_deref(), &write, &wall_clock);
                });
                Err(lost())
            }
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Inner {
    fn fresh(&mut self) -> LeaseRecord {
        self.made += 1;
        LeaseRecord {
            uid: format!("lease-{}", self.made),
            ..LeaseRecord::default()
        }
    }

    fn store(&mut self, mut record: LeaseRecord) -> LeaseRecord {
        self.version += 1;
        record.resource_version = self.version.to_string();
        self.record = Some(record.clone());
        record
    }

    fn apply(
        &mut self,
        on: Option<&str>,
        write: &LeaseWrite,
        wall_clock: &str,
    ) -> Result<LeaseRecord, LeaseError> {
        let mut record = match (self.record.clone(), on) {
            (None, None) => self.fresh(),
            (Some(record), Some(on)) if record.resource_version == on => record,
            _ => return Err(LeaseError::Conflict),
        };
        record.holder.clone_from(&write.holder);
        record.duration = Some(Duration::from_secs(u64::from(
            write.duration_seconds.unsigned_abs(),
        )));
        record.transitions = write.transitions.into();
        record.renew_time = Some(wall_clock.to_owned());
        if write.acquired {
            record.acquire_time = Some(wall_clock.to_owned());
        }
        for (key, value) in &write.annotations {
            match value {
                Some(value) => record.annotations.insert(key.clone(), value.clone()),
                None => record.annotations.remove(key),
            };
        }
        self.writes.push(write.clone());
        Ok(self.store(record))
    }
}

#[async_trait]
impl LeaseStore for MemoryStore {
    fn key(&self) -> LeaseKey {
        self.key.clone()
    }

    async fn get(&self) -> Result<Option<LeaseRecord>, LeaseError> {
        let fault = {
            let mut inner = lock(&self.inner);
            if let Some(why) = &inner.down {
                return Err(LeaseError::Other(why.clone()));
            }
            inner.read_faults.pop_front()
        };
        match fault {
            None => {}
            Some(Fault::Slow(delay)) => tokio::time::sleep(delay).await,
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::Refused(why)) => return Err(LeaseError::Other(why)),
            Some(fault) => return Err(LeaseError::Other(format!("the read failed: {fault:?}"))),
        }
        let mut inner = lock(&self.inner);
        inner.reads += 1;
        Ok(inner.record.clone())
    }

    async fn create(&self, write: &LeaseWrite) -> Result<LeaseRecord, LeaseError> {
        self.write(None, write).await
    }

    async fn replace(
        &self,
        resource_version: &str,
        write: &LeaseWrite,
    ) -> Result<LeaseRecord, LeaseError> {
        self.write(Some(resource_version), write).await
    }
}
