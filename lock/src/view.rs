//! What the lock asks about the cluster behind it; the agent answers by direct reads.

use async_trait::async_trait;

use crate::Operation;

/// An irreversible call of some operation whose outcome is not known yet (spec section 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsettledIntent {
    /// The machine in whose status it stands.
    pub machine: String,
    /// The call: `LeaveEtcd`, `Reset`, …
    pub step: String,
    /// The operation that sent it, as [`Operation`] displays itself.
    pub operation: String,
    /// What is known of it, and what it waits for, for people.
    pub message: String,
}

/// The view could not answer; nothing disruptive may begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ViewError(pub String);

/// The cluster as [`acquire_disruptive`](crate::acquire_disruptive) asks about it, before and
/// after it writes the Lease, so that no caller can leave that out.
#[async_trait]
pub trait View: Send + Sync {
    /// Why the cluster is transitioning (spec section 3), or `None` when it is not.
    ///
    /// # Errors
    /// [`ViewError`] where that cannot be told.
    async fn transitioning(&self) -> Result<Option<String>, ViewError>;

    /// The unsettled intents of *other* operations that `operation` must not overtake.
    ///
    /// With `settle`, what can be settled is settled first and its result recorded; only ever
    /// asked so under the lock. Intents that block nobody (a worker's, or of a machine
    /// verifiably out of etcd) are left out, for restore also others' leaves and resets.
    ///
    /// # Errors
    /// [`ViewError`] where the machines cannot be listed.
    async fn unsettled_intents(
        &self,
        operation: &Operation,
        settle: bool,
    ) -> Result<Vec<UnsettledIntent>, ViewError>;

    /// Every unsettled intent of `operation` itself, blocking or not; settles nothing.
    ///
    /// # Errors
    /// [`ViewError`] where the machines cannot be listed.
    async fn intents_of(&self, operation: &Operation) -> Result<Vec<UnsettledIntent>, ViewError>;
}
