//! The Lease object as the lock sees it, and the few calls the lock makes on it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

/// Annotations that the lock keeps on its Lease.
pub mod annotations {
    /// A value that no other write has: proves that a write whose answer was lost was applied.
    pub const RENEWAL: &str = "ichor.maesh.dev/renewal";
    /// The last irreversible step that was permitted under the lock.
    pub const STEP: &str = "ichor.maesh.dev/step";
    /// Every detail of that step has a key that starts so, for example `…/step-machine`.
    pub const STEP_DETAIL: &str = "ichor.maesh.dev/step-";
    /// The operation whose step it is, since the step outlives the operation's hold.
    pub const STEP_OPERATION: &str = "ichor.maesh.dev/step-operation";
}

/// Which Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseKey {
    /// The cluster's namespace.
    pub namespace: String,
    /// The Lease's name in it.
    pub name: String,
}

impl LeaseKey {
    /// The Lease `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// `<namespace>/<name>`.
impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Lease as read. Whatever it says, it is only ever data: a person can have written it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseRecord {
    /// `metadata.uid`: a Lease that was deleted and made anew is another lock.
    pub uid: String,
    /// `metadata.resourceVersion`, which every write on this record carries.
    pub resource_version: String,
    /// `spec.holderIdentity`; `None` and the empty text both mean that nobody holds it.
    pub holder: Option<String>,
    /// `spec.leaseDurationSeconds`; `None` where it is missing or unreadable.
    pub duration: Option<Duration>,
    /// `spec.acquireTime` as written. For people; nothing is decided by it.
    pub acquire_time: Option<String>,
    /// `spec.renewTime` as written. Nothing is decided by it (only that it changed).
    pub renew_time: Option<String>,
    /// `spec.leaseTransitions`: with the UID, the fencing token.
    pub transitions: i64,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
}

impl LeaseRecord {
    /// Who holds it, as written; `None` when nobody does.
    #[must_use]
    pub fn held_by(&self) -> Option<&str> {
        self.holder.as_deref().filter(|holder| !holder.is_empty())
    }

    /// The last irreversible step permitted under this Lease and its details (`machine`, …),
    /// when it is `operation`'s.
    ///
    /// For an operation that was given up half-way this is what remains to be told.
    #[must_use]
    pub fn step_of(&self, operation: &crate::Operation) -> Option<(&str, BTreeMap<&str, &str>)> {
        if self.annotations.get(annotations::STEP_OPERATION)? != &operation.to_string() {
            return None;
        }
        let step = self.annotations.get(annotations::STEP)?;
        let details = self
            .annotations
            .iter()
            .filter(|(key, _)| *key != annotations::STEP_OPERATION)
            .filter_map(|(key, value)| {
                Some((key.strip_prefix(annotations::STEP_DETAIL)?, value.as_str()))
            })
            .collect();
        Some((step, details))
    }
}

/// What a write makes of a Lease; the store turns it into a create or a merge patch.
///
/// Beside what stands here, the store writes its own wall clock to `spec.renewTime` (and to
/// `spec.acquireTime` when [`acquired`](Self::acquired)), for people to read. Labels, owner
/// references and annotations that are not named here stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseWrite {
    /// `spec.holderIdentity`; `None` takes it away (`null` in the patch).
    pub holder: Option<String>,
    /// `spec.leaseDurationSeconds`: whole seconds, at least 1.
    pub duration_seconds: i32,
    /// `spec.leaseTransitions`.
    pub transitions: i32,
    /// Whether this begins a new hold, so that `spec.acquireTime` is written too.
    pub acquired: bool,
    /// Annotations to set, and to take away (`None`, `null` in the patch).
    pub annotations: BTreeMap<String, Option<String>>,
}

/// Why a call to the store gave no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The write was refused because the Lease is not the one that was read: 409, also
    /// `AlreadyExists` on a create, and 404 on a replace.
    #[error("the Lease was changed by somebody else since it was read")]
    Conflict,
    /// The write may or may not have been applied, or may yet be: a timeout, a lost connection,
    /// 500 or 504 from the API server.
    #[error(
        "the API server's answer was lost, so that the Lease may or may not have been written: {0}"
    )]
    Unknown(String),
    /// The call was certainly not applied: refused (403, 422, 429), or never sent.
    #[error("the Lease could not be read or written: {0}")]
    Other(String),
}

/// One Lease on an API server.
///
/// Rules for who implements it (rust-stack.md 1.4):
/// - [`get`](Self::get) is a direct read of the newest state, never a cache or `resourceVersion=0`.
/// - Nothing is retried below: the protocol itself knows what a second try may do.
/// - [`replace`](Self::replace) sends `resource_version` as `metadata.resourceVersion` in a
///   merge patch, so that a Lease changed since is refused with 409.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Which Lease this is.
    fn key(&self) -> LeaseKey;

    /// The Lease now, or `None` when there is none.
    ///
    /// # Errors
    /// [`LeaseError::Other`] or [`LeaseError::Unknown`]; a read changes nothing either way.
    async fn get(&self) -> Result<Option<LeaseRecord>, LeaseError>;

    /// Makes the Lease where there is none, and answers what is stored now.
    ///
    /// # Errors
    /// [`LeaseError::Conflict`] where it exists.
    async fn create(&self, write: &LeaseWrite) -> Result<LeaseRecord, LeaseError>;

    /// Changes the Lease if it still has `resource_version`, and answers what is stored now.
    ///
    /// # Errors
    /// [`LeaseError::Conflict`] where it has another, or is gone.
    async fn replace(
        &self,
        resource_version: &str,
        write: &LeaseWrite,
    ) -> Result<LeaseRecord, LeaseError>;
}
