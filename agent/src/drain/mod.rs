//! Emptying a Node before its machine goes (spec section 6): the semantics of
//! `kubectl drain`, as passes that never wait long.
//!
//! [`pass()`] looks once, cordons, evicts what may go and says what is left and why. The
//! caller writes the status, waits with [`settle`] and calls again. Nothing here is ever
//! forced: the eviction API decides about every pod but the agent's own
//! ([`delete_agent_pod`]).
//!
//! | module | holds |
//! |---|---|
//! | `cordon` | our mark on the Node, and undoing only what is so marked |
//! | `calls` | bounded calls: Node, pods, budgets |
//! | `evict` | one eviction, and what the API's answers mean |
//! | `wave` | many evictions at once, no budget fought over by more than it bears |
//! | `pass` | one pass |
//! | `report` | `status.drain` and the sentences for people |
//! | `settle` | the wait between two passes |
//! | `volumes` | attachments that are still there after a drain |
//! | `event` | one Warning Event per episode of blocking |

mod calls;
mod cordon;
mod event;
mod evict;
mod pass;
mod report;
mod settle;
#[cfg(test)]
mod tests;
mod volumes;
mod wave;

use std::time::Duration;

use ichor_api::common::DrainOptions;
use ichor_api::machine::DrainStatus;
use ichor_rules::drain::SelectorError;
use k8s_openapi::jiff::Timestamp;

pub use cordon::{Uncordon, cordon, uncordon};
pub use event::{announce_blocked, blocked_note};
pub use pass::{delete_agent_pod, pass};
pub use settle::settle;
pub use volumes::volume_attachments;

/// A pass that could not be made. What became of single pods is no error: it stands in
/// the status.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The options cannot be used.
    #[error(
        "spec.drain.skipSelector cannot be used, so nothing was cordoned or evicted: {0}. Correct it on the TalosCluster or the TalosMachine"
    )]
    Selector(#[from] SelectorError),
    /// The cluster lock is lost: somebody else may be at work.
    #[error(
        "the cluster lock was lost while the Node was being drained: no further pod was evicted, and the drain goes on once the lock is held again"
    )]
    LockLost,
    /// The API server refused a call.
    #[error("failed to {what}: {source}")]
    Api {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("the API server did not answer within {} s when asked to {what}", .after.as_secs())]
    Timeout {
        /// What was tried.
        what: String,
        /// How long was waited.
        after: Duration,
    },
    /// Somebody else wrote the Node each time that we were about to.
    #[error("failed to {what}: the Node changed under each of {tries} tries")]
    Contended {
        /// What was tried.
        what: String,
        /// How often.
        tries: u32,
    },
}

/// What bounds a pass. The defaults are measured: `bench drain` has options to try others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainLimits {
    /// Evictions in flight under one budget. The API server resolves their conflicts over the
    /// budget's status in steps of half a second: one at a time is the slowest, since each
    /// meets the disruption controller's write, and all at once is slow again.
    pub per_budget: usize,
    /// Time between the beginnings of two of them: spread out, they meet each other a third
    /// less often and are done no later.
    pub pace: Duration,
    /// Evictions in flight that no budget is charged for.
    pub unbudgeted: usize,
    /// Evictions in flight in all.
    pub in_flight: usize,
    /// How long a read or a patch may take.
    pub read: Duration,
    /// How long one eviction may take. The API server itself tries for 10 s.
    pub evict: Duration,
    /// No eviction is begun later than this after the first one of the pass.
    pub begin_within: Duration,
    /// How soon to look again while pods are moving.
    pub poll: Duration,
    /// How soon to try again while nothing moves, and at the latest otherwise.
    pub retry: Duration,
}

impl Default for DrainLimits {
    fn default() -> Self {
        Self {
            per_budget: 24,
            pace: Duration::from_millis(20),
            unbudgeted: 64,
            in_flight: 128,
            read: Duration::from_secs(10),
            evict: Duration::from_secs(30),
            begin_within: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            retry: Duration::from_secs(15),
        }
    }
}

/// What to drain, and how.
#[derive(Clone, Debug)]
pub struct DrainRequest<'a> {
    /// Name of the Node.
    pub node: &'a str,
    /// UID of the operation that drains: the mark on our cordon.
    pub operation_uid: &'a str,
    /// `spec.drain`, the machine's over the cluster's.
    pub options: &'a DrainOptions,
    /// The machine is dead (spec section 5): pods already marked deleted count as gone.
    pub dead: bool,
    /// Namespace that the agent runs in; empty where the Node is another cluster's, in which
    /// no pod is the agent's own.
    pub agent_namespace: &'a str,
    /// `status.drain` as the last pass left it.
    pub previous: Option<&'a DrainStatus>,
    /// How long the drain has run, by the caller's monotonic clock.
    pub elapsed: Duration,
    /// The time of day, for people only.
    pub now: Timestamp,
    /// What bounds the pass.
    pub limits: DrainLimits,
}

/// One of the agent's own pods on the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: the precondition of its deletion.
    pub uid: String,
}

/// How a pass ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    /// No pod that must go is left.
    Drained,
    /// Pods are on their way out; look again soon.
    Progressing,
    /// Nothing moves until a budget, a finalizer or a person does.
    Blocked {
        /// Which pods, why, the numbers, what to do: for the condition `Removal`.
        message: String,
    },
    /// Pods that `spec.drain` says stop a drain: nothing was evicted.
    Refused {
        /// Which pods, why, what to do.
        message: String,
    },
    /// Only the agent's own pods are left (spec section 5, step 3).
    OnlyAgentPods {
        /// Those that nobody has deleted yet.
        pods: Vec<AgentPod>,
    },
    /// There is no such Node; the caller decides what that means.
    NodeMissing,
    /// `spec.drain.timeout` is over and pods are left. Nothing was forced.
    TimedOut {
        /// Which pods, why, the limit.
        message: String,
    },
}

/// What a pass found and did.
#[derive(Clone, Debug, PartialEq)]
pub struct DrainPass {
    /// The new `status.drain`.
    pub status: DrainStatus,
    /// How it ended.
    pub outcome: DrainOutcome,
    /// UID of the Node, where there is one.
    pub node_uid: Option<String>,
    /// When to make the next pass at the latest; [`settle`] ends sooner where pods go.
    pub again: Duration,
    /// UIDs of pods that are on their way out.
    pub(crate) leaving: Vec<String>,
    /// The pod list's resourceVersion, from which [`settle`] watches.
    pub(crate) resource_version: Option<String>,
}

/// Field manager of the drain's writes.
pub(crate) const FIELD_MANAGER: &str = ichor_api::names::FIELD_MANAGER;
