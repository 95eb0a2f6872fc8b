//! A removal from its beginning to its end, and what stands in its way at its beginning.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]
#![allow(clippy::panic, reason = "a test that cannot go on fails there")]

mod common;

#[path = "removal/order.rs"]
mod order;
#[path = "removal/refusals.rs"]
mod refusals;

use ichor_tests::shared::SharedBed;

static BED: SharedBed = SharedBed::new(common::options);
