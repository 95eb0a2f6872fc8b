//! The simulated machines behave as Talos does, traps included (facts: talos.md 1), seen with the
//! client that the agent uses.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

mod conformance;
mod etcd;
mod line;
mod removal;
mod support;
mod traps;
mod who;
