//! Giving the lock back uses the witness up.
use ichor_lock::DisruptiveLock;

async fn call(mut lock: DisruptiveLock) {
    let _ = lock.renew().await;
    let _ = lock.renew().await;
    let _ = lock.is_lost();
}

fn main() {
    let _ = call;
}
