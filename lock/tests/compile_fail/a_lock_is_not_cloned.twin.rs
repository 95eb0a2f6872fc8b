//! One hold, one witness.
use ichor_lock::{DisruptiveLock, Operation};

fn two<T: Clone>(of: &T) -> (T, T) {
    (of.clone(), of.clone())
}

fn main() {
    let _ = two::<Operation>;
    let _ = (size_of::<DisruptiveLock>(), size_of::<Operation>());
}
