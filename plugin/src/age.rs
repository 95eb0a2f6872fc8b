//! Ages as kubectl prints them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// How long a span of `seconds` is, by the rules of kubectl's `HumanDuration`: two
/// units while they matter, one once they do not (`119s`, `2m`, `9m59s`, `3h`, `7d23h`).
pub fn human(seconds: i64) -> String {
    // A little in the future is two clocks disagreeing, more is nonsense.
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let s = seconds.max(0);
    match s {
        _ if s < 2 * MINUTE => format!("{s}s"),
        _ if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        _ if s < 3 * HOUR => format!("{}m", s / MINUTE),
        _ if s < 8 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        _ if s < 2 * DAY => format!("{}h", s / HOUR),
        _ if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        _ if s < 2 * YEAR => format!("{}d", s / DAY),
        _ if s < 8 * YEAR => two(s / YEAR, "y", s % YEAR / DAY, "d"),
        _ => format!("{}y", s / YEAR),
    }
}

fn two(big: i64, big_unit: &str, small: i64, small_unit: &str) -> String {
    if small == 0 {
        format!("{big}{big_unit}")
    } else {
        format!("{big}{big_unit}{small}{small_unit}")
    }
}

/// Seconds from `then` to `now`; negative where `then` is still to come.
pub fn seconds_between(then: &Time, now: Timestamp) -> i64 {
    now.as_second() - then.0.as_second()
}

/// What time it is for whoever reads the output, and how spans are told.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Now, by the API server's clock where it told it.
    pub now: Timestamp,
    /// Points in time instead of ages: a line on a pipe is read later, and must not
    /// differ from the one before it only because time has passed.
    pub absolute: bool,
}

impl Clock {
    /// Ages relative to `now`.
    pub fn relative(now: Timestamp) -> Self {
        Self {
            now,
            absolute: false,
        }
    }

    /// The same moment, told in points of time.
    #[must_use]
    pub fn for_lines(self) -> Self {
        Self {
            absolute: true,
            ..self
        }
    }

    /// The age of `then`, alone in a table's cell: `5m`, or the point in time.
    pub fn age(&self, then: Option<&Time>) -> String {
        match then {
            None => "<unknown>".to_owned(),
            Some(then) if self.absolute => point(then),
            Some(then) => human(seconds_between(then, self.now)),
        }
    }

    /// `for 5m`, or `since 2026-01-02T03:04:05Z`; empty where it is not known.
    pub fn lasting(&self, since: Option<&Time>) -> String {
        match since {
            None => String::new(),
            Some(since) if self.absolute => format!(" since {}", point(since)),
            Some(since) => format!(" for {}", human(seconds_between(since, self.now))),
        }
    }

    /// `5m ago`, or the point in time.
    pub fn ago(&self, then: &Time) -> String {
        if self.absolute {
            point(then)
        } else {
            format!("{} ago", human(seconds_between(then, self.now)))
        }
    }
}

/// A point in time, to the second, in UTC.
pub fn point(time: &Time) -> String {
    time.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_kubectl_prints_them() {
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 5 * MINUTE, "3h5m"),
            (8 * HOUR, "8h"),
            (48 * HOUR - 1, "47h"),
            (48 * HOUR, "2d"),
            (8 * DAY - HOUR, "7d23h"),
            (8 * DAY, "8d"),
            (2 * YEAR - DAY, "729d"),
            (2 * YEAR + DAY, "2y1d"),
            (9 * YEAR, "9y"),
        ] {
            assert_eq!(human(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn on_a_pipe_a_span_does_not_change_with_the_time_of_day() {
        let then = Time(Timestamp::from_second(1_000).unwrap());
        let at = |second| Clock::relative(Timestamp::from_second(second).unwrap());
        assert_eq!(at(1_005).lasting(Some(&then)), " for 5s");
        assert_eq!(
            at(1_005).for_lines().lasting(Some(&then)),
            at(9_999).for_lines().lasting(Some(&then))
        );
        assert_eq!(at(1_005).for_lines().ago(&then), "1970-01-01T00:16:40Z");
    }
}
