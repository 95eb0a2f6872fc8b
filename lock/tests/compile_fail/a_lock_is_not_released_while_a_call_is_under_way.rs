//! A call under way borrows the lock, so that a shutdown can neither release it nor hand it over.
#![allow(unused_variables)]

use std::collections::BTreeMap;

use ichor_lock::{DisruptiveLock, IntentWritten};

async fn call(mut lock: DisruptiveLock, other: DisruptiveLock, intent: IntentWritten) {
    let Ok(permit) = lock.permit("Reset", &BTreeMap::new(), intent).await else {
        return;
    };
    if let Ok(sending) = permit.begin() {
        let _ = lock.release().await;
        let _ = sending.finish();
    }
}

fn main() {
    let _ = call;
}
