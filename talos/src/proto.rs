//! Talos' messages, clients and (for the tests) server stubs, generated from `talos/proto`.
//!
//! The protocol files are our own text, written after the wire facts: only what Ichor needs,
//! with the original field numbers and package names.

#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    unreachable_pub,
    rust_2018_idioms
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/talos.rs"));
}

pub use generated::cosi::resource as cosi;
pub use generated::google::rpc;
pub use generated::{common, machine, specs, storage};

/// The messages and services above as a serialized `FileDescriptorSet`: what the tests hold
/// against Talos' own.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/talos.fds"));
