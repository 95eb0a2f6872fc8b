//! Credentials that do not fit, machines that are not who they should be, and objects
//! that a person wrote by hand: each is told with its cause and the next step, and
//! nothing irreversible is done.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]
#![allow(clippy::panic, reason = "a test that cannot go on fails there")]

mod common;

#[path = "identity/credentials.rs"]
mod credentials;
#[path = "identity/members.rs"]
mod members;
#[path = "identity/objects.rs"]
mod objects;
#[path = "identity/who.rs"]
mod who;

use ichor_tests::shared::SharedBed;

static BED: SharedBed = SharedBed::new(common::options);
