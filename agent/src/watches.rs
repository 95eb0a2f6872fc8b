//! Waits that a judgement stands on, counted on this process's own clock.
//!
//! Spec section 3: every wait counts from this process's first sight of a thing and
//! starts anew in a fresh process, so that clock skew between nodes cannot matter.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// How long each of some things has been so, without a break that was seen.
#[derive(Debug)]
pub struct Watches<K> {
    since: HashMap<K, Seen>,
    /// A look longer ago than this says nothing about the time between.
    gap: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    first: Duration,
    last: Duration,
}

impl<K: Eq + Hash + Clone> Watches<K> {
    /// Counts only across looks that are at most `gap` apart.
    pub fn new(gap: Duration) -> Self {
        Self {
            since: HashMap::new(),
            gap,
        }
    }

    /// Notes that `key` is (or is not) so at `now`, and answers how long it has been.
    pub fn note(&mut self, key: &K, is_so: bool, now: Duration) -> Option<Duration> {
        if !is_so {
            self.since.remove(key);
            return None;
        }
        let seen = self
            .since
            .entry(key.clone())
            .and_modify(|seen| {
                if now.saturating_sub(seen.last) > self.gap {
                    seen.first = now;
                }
                seen.last = now;
            })
            .or_insert(Seen {
                first: now,
                last: now,
            });
        Some(now.saturating_sub(seen.first))
    }

    /// How long `key` had been so when last looked at; `None` where it was not.
    pub fn lasted(&self, key: &K) -> Option<Duration> {
        self.since.get(key).map(|s| s.last.saturating_sub(s.first))
    }

    /// Drops every key that `keep` says no to.
    pub fn retain(&mut self, mut keep: impl FnMut(&K) -> bool) {
        self.since.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_wait_starts_anew_after_a_break() {
        let mut watches = Watches::new(S(60));
        assert_eq!(watches.note(&"a", true, S(0)), Some(S(0)));
        assert_eq!(watches.note(&"a", true, S(50)), Some(S(50)));
        assert_eq!(watches.note(&"a", false, S(60)), None);
        assert_eq!(watches.note(&"a", true, S(70)), Some(S(0)));
    }

    #[test]
    fn time_in_which_nobody_looked_does_not_count() {
        let mut watches = Watches::new(S(60));
        watches.note(&"a", true, S(0));
        assert_eq!(watches.note(&"a", true, S(100)), Some(S(0)));
        assert_eq!(watches.note(&"a", true, S(150)), Some(S(50)));
    }
}
