//! A permit borrows the lock that it was renewed for.
#![allow(unused_variables)]

use std::collections::BTreeMap;

use ichor_lock::{DisruptiveLock, IntentWritten};

async fn call(mut lock: DisruptiveLock, other: DisruptiveLock, intent: IntentWritten) {
    if let Ok(permit) = lock.permit("Reset", &BTreeMap::new(), intent).await {
        drop(lock);
        let _ = permit.begin();
    }
}

fn main() {
    let _ = call;
}
