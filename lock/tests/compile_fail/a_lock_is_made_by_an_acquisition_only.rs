//! What makes a lock from a record is not to be had outside the crate.
use ichor_lock::DisruptiveLock;

fn main() {
    let _ = DisruptiveLock::begin;
}
