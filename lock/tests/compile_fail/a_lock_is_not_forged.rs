//! The witness' fields are private.
use ichor_lock::{DisruptiveLock, LeaseRecord};

struct Own {
    predecessor: Option<LeaseRecord>,
}

fn main() {
    let _ = DisruptiveLock { predecessor: None };
    let _ = (
        Own { predecessor: None }.predecessor,
        size_of::<DisruptiveLock>(),
    );
}
