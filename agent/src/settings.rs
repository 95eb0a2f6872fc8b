//! Every duration the agent waits by, each a flag (spec sections 3 to 6). The defaults
//! are the specification's; the tests divide them.

use std::time::Duration;

use clap::Args;

/// Reads `300s`, `5m`, `1h30m`, `250ms` or a bare number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let span: jiff::SignedDuration = text
        .parse()
        .map_err(|_| format!("{text:?} is no duration: write it as 300s, 5m or 250ms"))?;
    Duration::try_from(span).map_err(|_| format!("{text:?} is negative"))
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $field:ident: $default:literal,)+) => {
        /// How long the agent waits for what.
        #[derive(Clone, Debug, PartialEq, Eq, Args)]
        pub struct Settings {
            /// Divides every duration below that is not given by itself; for tests.
            #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), hide = true)]
            pub divide_durations: u32,
            $($(#[doc = $doc])+
            #[arg(long, value_parser = duration, default_value = $default, help_heading = "Durations")]
            pub $field: Duration,)+
        }

        impl Settings {
            /// The settings with every duration that stands at its default divided by
            /// `divide_durations`.
            #[must_use]
            pub fn divided(mut self) -> Self {
                let by = self.divide_durations;
                if by > 1 {
                    $(if duration($default) == Ok(self.$field) { self.$field /= by; })+
                    // What is bounded by how fast a machine works does not shrink at will.
                    for (field, floor) in [
                        (&mut self.send_within, 2),
                        (&mut self.intent_to_renew, 2),
                        (&mut self.etcd_deadline, 2),
                        (&mut self.reset_deadline, 5),
                        (&mut self.forfeit_deadline, 3),
                        (&mut self.leave_deadline, 10),
                    ] {
                        *field = (*field).max(Duration::from_secs(floor));
                    }
                }
                self
            }
        }

        impl Settings {
            /// The lock's share of them.
            pub fn lock(&self) -> ichor_lock::Durations {
                ichor_lock::Durations {
                    lease: self.lease_duration,
                    renew: self.lease_renew,
                    intent_to_renew: self.intent_to_renew,
                    send_within: self.send_within,
                    margin: self.lease_duration / 10,
                    longest: self.lease_duration,
                    answer: Duration::from_secs(10).min(self.lease_duration / 3),
                }
            }
        }

        impl Default for Settings {
            fn default() -> Self {
                Self {
                    divide_durations: 1,
                    $($field: duration($default).unwrap_or_default(),)+
                }
            }
        }
    };
}

settings! {
    /// How long a lock is held without renewal.
    lease_duration: "300s",
    /// How often a held lock is renewed.
    lease_renew: "60s",
    /// How long after its intent was written an irreversible call may get its permit.
    intent_to_renew: "60s",
    /// How long after the renewal an irreversible call may be sent.
    send_within: "10s",
    /// How long after its deadline a leave is waited for before it counts as not having happened.
    settle_after: "300s",
    /// Deadline of a leave.
    leave_deadline: "600s",
    /// How long handing over etcd's leadership is tried.
    forfeit_deadline: "30s",
    /// Deadline of a reset's answer.
    reset_deadline: "30s",
    /// How long a node has to answer when it is asked about its etcd.
    etcd_deadline: "5s",
    /// How long Node and Talos API are both gone before a machine is dead.
    dead_after: "300s",
    /// How long a voter is unhealthy before the rules treat it so.
    unhealthy_after: "300s",
    /// How long no leader is seen before quorum counts as lost.
    quorum_lost_after: "300s",
    /// How often what stands still is tried again.
    retry: "30s",
    /// How often a blocked drain is tried again.
    drain_retry: "15s",
    /// How long detached volumes are waited for after a drain.
    volume_wait: "300s",
    /// How long a removal is refused before it is held for a person.
    hold_after: "3600s",
    /// How long a machine runs on at the same boot before its reset counts as not started.
    reset_not_started: "600s",
    /// How long a reset machine may be silent while the lock is held.
    wipe_wait: "1200s",
    /// How often a reset machine is looked for.
    wipe_poll: "2s",
    /// How long a machine that reset without rebooting is silent before it is done.
    power_off_wait: "300s",
    /// How long a teardown finishes removals that are past their leave.
    teardown_wait: "1200s",
    /// How often the cluster and its etcd are looked at.
    observe: "30s",
    /// How often a worker is looked at.
    observe_worker: "300s",
    /// Lease of the agent's leader election.
    election_duration: "15s",
    /// How often the leader renews it.
    election_renew: "5s",
    /// How long running work is waited for at shutdown.
    shutdown_wait: "630s",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_kubernetes_people_write_them() {
        assert_eq!(duration("300s"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        assert!(duration("soon").is_err());
        assert!(duration("-3s").is_err());
    }

    #[test]
    fn only_defaults_are_divided() {
        let settings = Settings {
            divide_durations: 10,
            retry: Duration::from_secs(7),
            ..Settings::default()
        }
        .divided();
        assert_eq!(settings.lease_duration, Duration::from_secs(30));
        assert_eq!(settings.retry, Duration::from_secs(7));
    }
}
