//! No witness comes from nothing.
use ichor_lock::{DisruptiveLock, Durations};

fn main() {
    let _ = <DisruptiveLock as Default>::default;
    let _ = (size_of::<DisruptiveLock>(), size_of::<Durations>());
}
