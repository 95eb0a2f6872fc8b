#![allow(clippy::duplicated_attributes)] // printcolumn(..) repeats its own keys, by kube-derive's design
//! Ichor's nouns: the custom resources, their names, conditions and annotations.
//!
//! This crate does no I/O and decides nothing; see `ichor-rules` for decisions.
//! Shapes follow spec section 2 and `interfaces.md`.

pub mod cluster;
pub mod common;
pub mod conditions;
pub mod crd;
pub mod machine;
pub mod names;

pub use cluster::{TalosCluster, TalosClusterSpec, TalosClusterStatus};
pub use common::{Condition, ConditionStatus, SecretReference};
pub use machine::{MachineRole, TalosMachine, TalosMachineSpec, TalosMachineStatus};
