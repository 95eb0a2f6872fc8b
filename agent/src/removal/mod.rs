//! Removing a machine (spec section 5): read, decide, do one thing, write it down.

pub mod drain_step;
pub mod facts;
pub mod gather;
#[cfg(feature = "lying-etcd-rule")]
mod lie;
pub mod memory;
pub mod next;
pub mod perform;
pub mod send;
#[cfg(test)]
mod tests;

pub use gather::Key;
pub use perform::{Outcome, run};
