//! Which replica leads: the lock's own protocol over a Lease of the agent's, so that a
//! lease is judged by this process's clock alone here too.
//!
//! Leading is an economy, not a safety: two leaders exclude each other by the cluster lock.

use std::sync::Arc;
use std::time::Duration;

use ichor_lock::clock::Clock;
use ichor_lock::protocol::{self, Observation};
use ichor_lock::{LeaseError, LeaseRecord, LeaseStore, LeaseWrite};
use tokio_util::sync::CancellationToken;

use crate::lease::KubeLease;

/// Name of the agent's election Lease.
pub const LEASE: &str = "ichor-agent";

/// Campaigns for, holds and gives up leadership.
pub struct Election {
    lease: KubeLease,
    me: String,
    duration: Duration,
    renew: Duration,
    clock: Arc<dyn Clock>,
    seen: Option<Observation>,
}

impl Election {
    /// Of instance `me`.
    pub fn new(
        lease: KubeLease,
        me: &str,
        duration: Duration,
        renew: Duration,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            lease,
            me: me.to_owned(),
            duration,
            renew,
            clock,
            seen: None,
        }
    }

    fn write(&self, holder: Option<&str>, transitions: i64, acquired: bool) -> LeaseWrite {
        LeaseWrite {
            holder: holder.map(str::to_owned),
            duration_seconds: i32::try_from(self.duration.as_millis().div_ceil(1000))
                .unwrap_or(i32::MAX)
                .max(1),
            transitions: i32::try_from(transitions).unwrap_or(i32::MAX),
            acquired,
            annotations: std::collections::BTreeMap::default(),
        }
    }

    fn expired(&mut self, record: &LeaseRecord) -> bool {
        let now = self.clock.now();
        self.seen = protocol::observe(self.seen.take(), Some(record), now);
        // Its own duration, up to ours: a Lease that a person wrote does not end elections for ever.
        let lasts = record
            .duration
            .unwrap_or(self.duration)
            .min(self.duration.max(Duration::from_mins(1)));
        self.seen
            .as_ref()
            .is_some_and(|seen| now.saturating_sub(seen.since) >= lasts)
    }

    /// Tries once to lead.
    async fn try_lead(&mut self) -> Result<bool, LeaseError> {
        let Some(record) = self.lease.get().await? else {
            self.lease
                .create(&self.write(Some(&self.me), 0, true))
                .await?;
            return Ok(true);
        };
        let free = record.held_by().is_none_or(|holder| holder == self.me) || self.expired(&record);
        if !free {
            return Ok(false);
        }
        let write = self.write(Some(&self.me), record.transitions + 1, true);
        self.lease.replace(&record.resource_version, &write).await?;
        Ok(true)
    }

    /// Waits until this replica leads; `false` where `stop` came first.
    pub async fn campaign(&mut self, stop: &CancellationToken) -> bool {
        loop {
            match self.try_lead().await {
                Ok(true) => return true,
                Ok(false) | Err(LeaseError::Conflict) => {}
                Err(error) => tracing::warn!(error = %error, "could not campaign for leadership"),
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                () = tokio::time::sleep(self.renew) => {}
            }
        }
    }

    /// Renews until leadership is lost or `stop` comes.
    pub async fn hold(&mut self, stop: &CancellationToken) {
        let mut renewed = self.clock.now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.renew) => {}
            }
            match self.renew_once().await {
                Ok(true) => renewed = self.clock.now(),
                Ok(false) => {
                    tracing::warn!("another replica leads now");
                    return;
                }
                Err(error) => tracing::warn!(error = %error, "failed to renew leadership"),
            }
            if self.clock.now().saturating_sub(renewed) >= self.duration.mul_f64(0.8) {
                tracing::warn!("leadership could not be renewed in time");
                return;
            }
        }
    }

    async fn renew_once(&self) -> Result<bool, LeaseError> {
        let Some(record) = self.lease.get().await? else {
            return Ok(false);
        };
        if record.held_by() != Some(self.me.as_str()) {
            return Ok(false);
        }
        match self
            .lease
            .replace(
                &record.resource_version,
                &self.write(Some(&self.me), record.transitions, false),
            )
            .await
        {
            Ok(_) => Ok(true),
            Err(LeaseError::Conflict) => Ok(self
                .lease
                .get()
                .await?
                .is_some_and(|r| r.held_by() == Some(self.me.as_str()))),
            Err(error) => Err(error),
        }
    }

    /// Gives leadership up, so that another replica need not wait.
    pub async fn resign(&mut self) {
        let Ok(Some(record)) = self.lease.get().await else {
            return;
        };
        if record.held_by() == Some(self.me.as_str()) {
            let _ = self
                .lease
                .replace(
                    &record.resource_version,
                    &self.write(None, record.transitions, false),
                )
                .await;
        }
    }
}
