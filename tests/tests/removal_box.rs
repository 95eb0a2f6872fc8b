//! A removal whose box does not play along: dead, silent, rebooted, configured again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]
#![allow(clippy::panic, reason = "a test that cannot go on fails there")]

mod common;

#[path = "removal_box/dead.rs"]
mod dead;
#[path = "removal_box/reset.rs"]
mod reset;

use ichor_tests::bed::BedOptions;
use ichor_tests::shared::SharedBed;

static BED: SharedBed = SharedBed::new(|| {
    let mut options: BedOptions = common::options();
    options.agent_args.push("--wipe-wait=6s".to_owned());
    options
});
