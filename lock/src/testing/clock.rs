//! A clock that is moved by hand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::lock;
use crate::Clock;

/// A clock that a test moves; one per simulated process. Clones share the time.
///
/// A frozen process is one whose clock was advanced while none of its timers ran.
#[derive(Clone, Debug)]
pub struct ManualClock {
    ahead: Arc<Mutex<Duration>>,
    follows: Option<tokio::time::Instant>,
}

impl ManualClock {
    /// Stands still until it is advanced.
    #[must_use]
    pub fn new() -> Self {
        Self {
            ahead: Arc::default(),
            follows: None,
        }
    }

    /// Goes with tokio's clock, which a test may have paused, and can be advanced beyond it.
    #[must_use]
    pub fn following_tokio() -> Self {
        Self {
            follows: Some(tokio::time::Instant::now()),
            ..Self::new()
        }
    }

    /// Moves it forwards, and nothing else: no timer fires by it.
    pub fn advance(&self, by: Duration) {
        *lock(&self.ahead) += by;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        let followed = self.follows.map_or(Duration::ZERO, |start| start.elapsed());
        // Never near zero, where a subtraction could hide a mistake.
        Duration::from_secs(1_000_000) + followed + *lock(&self.ahead)
    }
}
