//! The agent.

pub mod drain;
