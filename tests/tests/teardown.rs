//! The end of a cluster, of its namespace, and of a removal that somebody broke off.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]
#![allow(clippy::panic, reason = "a test that cannot go on fails there")]

mod common;

#[path = "teardown/abandoned.rs"]
mod abandoned;
#[path = "teardown/cluster.rs"]
mod cluster;
#[path = "teardown/namespace.rs"]
mod namespace;
#[path = "teardown/replaced.rs"]
mod replaced;

use ichor_tests::shared::SharedBed;

static BED: SharedBed = SharedBed::new(common::options);
