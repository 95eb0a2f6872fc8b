//! Ichor's decisions: pure functions, one implementation each, used by webhook, agent
//! and plugin alike (spec section 3).
//!
//! Only [`reader`] and [`connect`] do I/O; [`count::count_approved`] is the only maker of
//! the count that the quorum rule takes, so that no cached number can reach it.

pub mod belonging;
pub mod connect;
pub mod count;
pub mod deletion;
pub mod drain;
pub mod etcd;
pub mod reader;
#[cfg(test)]
pub(crate) mod testing;
pub mod transition;
pub mod unique;
pub mod verdict;
pub mod workers;

pub use count::{ApprovedControlPlanes, count_approved};
pub use reader::DirectReader;
pub use verdict::{Check, Rule, Verdict};
