//! Ichor's agent: controllers, lock renewal, drains and all Talos calls, with the
//! admission webhook linked in.

pub mod cluster;
pub mod context;
pub mod controllers;
pub mod credentials;
pub mod drain;
pub mod election;
pub mod errors;
pub mod etcd;
pub mod events;
pub mod failpoint;
pub mod http;
pub mod instance;
pub mod lease;
pub mod machine;
pub mod metrics;
pub mod removal;
pub mod run;
pub mod settings;
pub mod status;
pub mod teardown;
pub mod view;
pub mod watches;

pub use run::{Args, run};
