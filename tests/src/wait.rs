//! Waiting with a bound, and saying what was waited for.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{BedError, Result};

/// The end of one wait.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
    pause: Duration,
}

impl Deadline {
    /// `limit` from now, looking about 20 times a second.
    pub fn after(limit: Duration) -> Self {
        Self {
            at: Instant::now() + limit,
            limit,
            pause: Duration::from_millis(50),
        }
    }

    /// Waits a moment before the next look.
    ///
    /// Errors: the time is over; the error names `what` was waited for and `detail`,
    /// what stood in the way.
    pub async fn pause(&self, what: &str, detail: &str) -> Result<()> {
        if Instant::now() >= self.at {
            return Err(BedError::Timeout {
                what: what.to_owned(),
                seconds: self.limit.as_secs(),
                detail: detail.to_owned(),
            });
        }
        tokio::time::sleep(self.pause).await;
        Ok(())
    }
}

/// Calls `look` until it gives a value, at most for `limit`. `look` says in the `Err`
/// case what stands in the way.
pub async fn until<T, F>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = std::result::Result<T, String>>,
{
    let deadline = Deadline::after(limit);
    loop {
        match look().await {
            Ok(value) => return Ok(value),
            Err(detail) => deadline.pause(what, &detail).await?,
        }
    }
}

/// A request with a bound: in shared mode the API server's own etcd may be frozen, and
/// what hangs there hangs for good.
pub(crate) async fn bounded<T>(
    limit: Duration,
    request: impl Future<Output = std::result::Result<T, kube::Error>>,
) -> std::result::Result<T, String> {
    match tokio::time::timeout(limit, request).await {
        Ok(answer) => answer.map_err(|e| e.to_string()),
        Err(_) => Err(format!("no answer within {} ms", limit.as_millis())),
    }
}
