//! How long everything may take (spec section 4).

use std::time::Duration;

/// The lock's times. The defaults are the specification's; tests divide them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Durations {
    /// How long a Lease that is not renewed keeps others out. Written to the Lease in whole
    /// seconds, rounded up. 300 s.
    pub lease: Duration,
    /// How often the holder renews. 60 s.
    pub renew: Duration,
    /// How long after the intent was written the renewal of a [`Permit`](crate::Permit) must be
    /// done. 60 s.
    pub intent_to_renew: Duration,
    /// How long after that renewal the call must be sent. 10 s.
    pub send_within: Duration,
    /// The holder stops believing in its Lease this long before others may take it. 30 s.
    pub margin: Duration,
    /// What is waited for at most before another holder's unchanged Lease counts as expired,
    /// and always where the Lease says no duration, an unreadable or a longer one. 300 s.
    pub longest: Duration,
    /// A call to the store that has not answered by then has an unknown outcome. 10 s.
    pub answer: Duration,
}

impl Default for Durations {
    fn default() -> Self {
        Self {
            lease: Duration::from_mins(5),
            renew: Duration::from_mins(1),
            intent_to_renew: Duration::from_mins(1),
            send_within: Duration::from_secs(10),
            margin: Duration::from_secs(30),
            longest: Duration::from_mins(5),
            answer: Duration::from_secs(10),
        }
    }
}

/// Durations that cannot keep a lock safe or alive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DurationsError(String);

impl Durations {
    /// All of them divided by `by` (0 counts as 1), for tests that do not wait minutes.
    #[must_use]
    pub fn divided(self, by: u32) -> Self {
        let by = by.max(1);
        Self {
            lease: self.lease / by,
            renew: self.renew / by,
            intent_to_renew: self.intent_to_renew / by,
            send_within: self.send_within / by,
            margin: self.margin / by,
            longest: self.longest / by,
            answer: self.answer / by,
        }
    }

    /// Refuses values under which the lock would be lost in normal running, or a permit would
    /// outlive its Lease. To be asked of flags before a process starts.
    ///
    /// # Errors
    /// [`DurationsError`] with both numbers.
    pub fn validate(&self) -> Result<(), DurationsError> {
        let believed = self.believed();
        let checks = [
            ("renewal interval", self.renew),
            ("time from a renewal to the call", self.send_within),
            ("time that the API server may take to answer", self.answer),
        ];
        for (name, value) in checks {
            if value.is_zero() || value >= believed {
                return Err(DurationsError(format!(
                    "the {name} is {value:?}; it must be more than nothing and less than {believed:?}, \
                     which is the lease duration ({:?}, at most {:?}) less the margin ({:?})",
                    self.lease, self.longest, self.margin
                )));
            }
        }
        if self.intent_to_renew.is_zero() {
            return Err(DurationsError(
                "the time from an intent to the renewal is nothing, so that no call could ever be sent"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// How long after its last renewal was sent a holder believes that it holds the lock.
    pub(crate) fn believed(&self) -> Duration {
        // Others wait for `longest` at most, so a longer duration of ours would be believed in vain.
        self.lease.min(self.longest).saturating_sub(self.margin)
    }

    /// The pause before a failed renewal is tried again: twelve tries fit between two renewals.
    pub(crate) fn retry(&self) -> Duration {
        self.renew / 12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_specifications_and_valid() {
        let durations = Durations::default();
        assert_eq!(durations.validate(), Ok(()));
        assert_eq!(durations.lease, Duration::from_mins(5));
        assert_eq!(durations.divided(100).lease, Duration::from_secs(3));
        assert_eq!(durations.divided(100).validate(), Ok(()));
        assert_eq!(durations.divided(0), durations);
    }

    #[test]
    fn a_renewal_interval_beyond_the_lease_is_refused_with_both_numbers() {
        let durations = Durations {
            renew: Duration::from_secs(270),
            ..Durations::default()
        };
        let message = durations.validate().unwrap_err().to_string();
        assert!(
            message.contains("270s") && message.contains("300s"),
            "{message}"
        );
    }

    #[test]
    fn a_lease_longer_than_others_wait_is_believed_only_as_long_as_they_wait() {
        let durations = Durations {
            lease: Duration::from_hours(1),
            ..Durations::default()
        };
        assert_eq!(durations.believed(), Duration::from_secs(270));
    }
}
