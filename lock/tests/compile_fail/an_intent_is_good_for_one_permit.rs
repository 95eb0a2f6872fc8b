//! A second call needs an intent of its own.
#![allow(unused_variables)]

use std::collections::BTreeMap;

use ichor_lock::{DisruptiveLock, IntentWritten};

async fn call(mut lock: DisruptiveLock, first: IntentWritten, second: IntentWritten) {
    let note = BTreeMap::new();
    let _ = lock.permit("Reset", &note, first).await;
    let _ = lock.permit("Reset", &note, first).await;
}

fn main() {
    let _ = call;
}
