//! The Talos API as Ichor uses it: messages, one client per node, and what the answers mean.
//!
//! - [`config`]: a talosconfig and the credentials in it.
//! - [`client`]: one node's API over mTLS. Reads, each with a deadline of its own.
//! - [`irreversible`]: the calls that cannot be taken back. Each takes an
//!   [`ichor_lock::Permit`] by value, is sent at most once, and says so when its outcome is unknown.
//! - [`events`]: a node's event stream, and what became of a reset.
//! - [`maintenance`]: is a machine without configuration there, and which one is it.
//! - [`proto`]: the messages, with server stubs for the tests.
//!
//! Ichor talks to each node directly and to one node per client: it never sends the `node` or
//! `nodes` metadata by which Talos forwards calls, so no call can reach another node than the
//! one that was dialled.

pub mod address;
pub mod client;
pub mod config;
pub mod error;
pub mod events;
pub mod irreversible;
pub mod maintenance;
pub mod model;
pub mod proto;
mod transport;

pub use client::{ClientOptions, TalosClient};
pub use config::{ConfigError, TalosConfig};
pub use error::CallError;
pub use events::{ResetStart, ResetWatch};
pub use irreversible::{Partitions, ResetRequest};
pub use model::{MachineType, MemberId, Snapshot, Stage};
