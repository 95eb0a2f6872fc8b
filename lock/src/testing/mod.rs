//! Stand-ins for the tests of this crate and of those that stand on it: a clock that is moved by
//! hand, a Lease store in memory that fails on demand, and a view that answers as it is told.

mod clock;
mod store;
mod view;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use clock::ManualClock;
pub use store::{Fault, MemoryStore};
pub use view::{Asked, ScriptedView};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
