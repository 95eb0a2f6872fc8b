//! Two irreversible calls are never under way under one lock.
#![allow(unused_variables)]

use std::collections::BTreeMap;

use ichor_lock::DisruptiveLock;

async fn call(mut lock: DisruptiveLock) {
    let note = BTreeMap::new();
    let (first, second) = (lock.mark_intent(), lock.mark_intent());
    let one = lock.permit("LeaveEtcd", &note, first).await;
    let two = lock.permit("Reset", &note, second).await;
    drop(two);
}

fn main() {
    let _ = call;
}
