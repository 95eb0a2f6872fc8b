//! The commands: each reads, decides by pure functions, and shows or writes.

pub mod completion;
pub mod drain;
pub mod plan;
pub mod removal;
pub mod remove;
pub mod status;
pub mod version;
