//! The lock of one cluster: who may disrupt it, one operation at a time (spec section 4).
//!
//! The lock is a Lease object, held by an *operation* (a removal, a reset, …) that one agent
//! instance carries out. This crate is its protocol over the small [`LeaseStore`] trait and
//! knows neither Kubernetes clients nor Talos:
//!
//! - [`protocol`] decides, as pure functions: who may take, renew, release. The shipping code
//!   and the model checker (`tests/model.rs`) call the same ones.
//! - [`acquire_disruptive`] is the only maker of a [`DisruptiveLock`], the witness that every
//!   disruptive call demands. It asks the [`View`] before and after the Lease write.
//! - [`DisruptiveLock::permit`] is the only maker of a [`Permit`], which one irreversible call
//!   consumes; it renews the Lease and is good for seconds.
//! - [`LockManager`] is what a process knows: what it has watched, by its own clock, and which
//!   locks its own tasks hold.
//!
//! No decision asks the wall clock or a time written in a Lease: expiry is what this process
//! watched stand still, by a monotonic clock that counts suspended time ([`clock`]).

mod abandoned;
mod acquire;
pub mod clock;
mod durations;
mod guard;
mod lease;
mod manager;
mod operation;
mod permit;
pub mod protocol;
mod store_call;
pub mod testing;
mod view;

pub use abandoned::clear_abandoned;
pub use acquire::{AcquireError, acquire_disruptive};
pub use clock::{BootClock, Clock};
pub use durations::{Durations, DurationsError};
pub use guard::{DisruptiveLock, RenewError};
pub use lease::{LeaseError, LeaseKey, LeaseRecord, LeaseStore, LeaseWrite, annotations};
pub use manager::LockManager;
pub use operation::{HANDED_OVER, Holder, Operation};
pub use permit::{CallGuard, IntentWritten, Permit, PermitError, PermitStale, Sending};
pub use protocol::Lost;
pub use view::{UnsettledIntent, View, ViewError};
