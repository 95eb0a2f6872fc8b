//! The one clock that decides anything (spec section 3, last paragraph).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock that also counts the time in which the machine was suspended.
///
/// Its zero means nothing; only differences of one process' readings do.
pub trait Clock: Send + Sync {
    /// Time since some fixed point of this process' past.
    fn now(&self) -> Duration;
}

/// The kernel's `CLOCK_BOOTTIME`.
///
/// `std::time::Instant` stands still while a machine is suspended (a paused virtual machine, a
/// laptop), so a holder would believe that its Lease is fresh while others have watched it expire.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

/// Elsewhere than on Linux the nearest there is, so that the tests run on a developer's machine.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        let time = clock_gettime(CLOCK);
        // The kernel never answers before zero or with more than a second of nanoseconds.
        Duration::new(
            u64::try_from(time.tv_sec).unwrap_or(0),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_runs_forwards() {
        let first = BootClock.now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(BootClock.now() >= first + Duration::from_millis(5));
    }
}
