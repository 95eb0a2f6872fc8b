//! A removal whose drain takes its time, and people who change their minds meanwhile.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]
#![allow(clippy::panic, reason = "a test that cannot go on fails there")]

mod common;

#[path = "removal_drain/blocked.rs"]
mod blocked;
#[path = "removal_drain/mind.rs"]
mod mind;

use ichor_tests::bed::BedOptions;
use ichor_tests::shared::SharedBed;

static BED: SharedBed = SharedBed::new(|| {
    let mut options: BedOptions = common::options();
    // An hour is worth waiting for here.
    options.agent_args.push("--hold-after=12s".to_owned());
    options
});
