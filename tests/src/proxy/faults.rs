//! The weather between a client and the API server.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use regex::Regex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{BedError, Result};

/// What happens to a request that a fault is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It reaches the API server this much later, even where its sender has given up by then.
    Delay(Duration),
    /// It is applied, then the connection is cut without an answer.
    DropAnswer,
    /// It is answered with this code: without being applied, or `after` it was.
    Status {
        /// The HTTP status code.
        code: u16,
        /// Whether the API server applies the request first.
        after: bool,
    },
}

/// Which requests a fault is meant for.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    method: Option<Method>,
    path: Option<Regex>,
}

impl Matcher {
    /// Reads `METHOD PATH-REGEX`, `METHOD` or `PATH-REGEX`. The method is HTTP's, `*`
    /// is any; the expression is looked for anywhere in the path with its query.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let (method, path) = match text.split_once(char::is_whitespace) {
            Some((method, path)) => (Some(method), Some(path.trim())),
            None if text.starts_with(|c: char| c.is_ascii_uppercase() || c == '*') => {
                (Some(text), None)
            }
            None => (None, Some(text)),
        };
        let method = match method {
            None | Some("*") => None,
            Some(name) => {
                let known = [
                    Method::GET,
                    Method::POST,
                    Method::PUT,
                    Method::PATCH,
                    Method::DELETE,
                    Method::HEAD,
                    Method::OPTIONS,
                ];
                let found = known
                    .iter()
                    .find(|m| m.as_str().eq_ignore_ascii_case(name))
                    .cloned();
                Some(found.ok_or_else(|| {
                    BedError::Refused(format!(
                        "{name} is no HTTP method: --match takes 'METHOD PATH-REGEX', such as 'PATCH /talosmachines/'"
                    ))
                })?)
            }
        };
        let path = path
            .filter(|p| !p.is_empty())
            .map(Regex::new)
            .transpose()
            .map_err(|e| BedError::Refused(format!("--match has no valid expression: {e}")))?;
        Ok(Self { method, path })
    }

    fn matches(&self, method: &Method, path: &str) -> bool {
        self.method.as_ref().is_none_or(|m| m == method)
            && self.path.as_ref().is_none_or(|p| p.is_match(path))
    }
}

#[derive(Debug)]
struct Rule {
    fault: Fault,
    matcher: Matcher,
    times: Option<u64>,
}

/// What is to be done with one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub delay: Option<Duration>,
    pub end: Option<Fault>,
}

/// The faults that are set, in the order in which they were.
#[derive(Debug)]
pub struct Faults {
    rules: Mutex<Vec<Rule>>,
    outage: watch::Sender<Option<Instant>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            rules: Mutex::default(),
            outage: watch::Sender::new(None),
        }
    }
}

impl Faults {
    /// Sets `fault` for the requests that `matcher` takes, for so many of them, or until
    /// [`clear`](Self::clear).
    pub fn set(&self, fault: Fault, matcher: Matcher, times: Option<u64>) {
        self.rules().push(Rule {
            fault,
            matcher,
            times,
        });
    }

    /// Cuts every connection, watches too, and takes no other for `time`.
    pub fn outage(&self, time: Duration) {
        self.outage.send_replace(Some(Instant::now() + time));
    }

    /// Fair weather again.
    pub fn clear(&self) {
        self.rules().clear();
        self.outage.send_replace(None);
    }

    /// Whether no fault that was set with a number of times is left.
    pub fn spent(&self) -> bool {
        self.rules().iter().all(|rule| rule.times.is_none())
    }

    /// Takes what is meant for one request: every delay, and the first that ends it.
    pub(super) fn take(&self, method: &Method, path: &str) -> Plan {
        let mut plan = Plan::default();
        let mut rules = self.rules();
        for rule in rules.iter_mut() {
            if !rule.matcher.matches(method, path) {
                continue;
            }
            match rule.fault {
                Fault::Delay(time) => {
                    plan.delay = Some(plan.delay.unwrap_or_default() + time);
                }
                end if plan.end.is_none() => plan.end = Some(end),
                _ => continue,
            }
            if let Some(times) = &mut rule.times {
                *times = times.saturating_sub(1);
            }
        }
        rules.retain(|rule| rule.times != Some(0));
        plan
    }

    /// Whether there is an outage now.
    pub(super) fn is_out(&self) -> bool {
        self.outage.borrow().is_some_and(|end| end > Instant::now())
    }

    /// Waits until an outage begins.
    pub(super) async fn outage_begins(&self) {
        let mut outage = self.outage.subscribe();
        let _ = outage
            .wait_for(|end| end.is_some_and(|end| end > Instant::now()))
            .await;
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_takes_only_what_it_is_meant_for_and_only_so_often() {
        let faults = Faults::default();
        let matcher = Matcher::parse("patch /talosmachines/[^/]+/status$").unwrap();
        faults.set(Fault::DropAnswer, matcher, Some(2));
        let path = "/apis/ichor.maesh.dev/v1alpha1/namespaces/default/talosmachines/cp-1/status";
        assert_eq!(faults.take(&Method::GET, path), Plan::default());
        assert_eq!(
            faults.take(&Method::PATCH, "/api/v1/nodes/cp-1/status"),
            Plan::default()
        );
        assert!(!faults.spent());
        for _ in 0..2 {
            assert_eq!(
                faults.take(&Method::PATCH, path).end,
                Some(Fault::DropAnswer)
            );
        }
        assert_eq!(faults.take(&Method::PATCH, path), Plan::default());
        assert!(faults.spent());
    }

    #[test]
    fn delays_add_up_and_the_first_end_wins() {
        let faults = Faults::default();
        let any = Matcher::default;
        faults.set(Fault::Delay(Duration::from_millis(5)), any(), None);
        let status = Fault::Status {
            code: 409,
            after: false,
        };
        faults.set(status, any(), Some(1));
        faults.set(Fault::DropAnswer, any(), Some(1));
        faults.set(Fault::Delay(Duration::from_millis(7)), any(), None);
        let first = faults.take(&Method::GET, "/");
        assert_eq!(first.delay, Some(Duration::from_millis(12)));
        assert_eq!(first.end, Some(status));
        assert_eq!(faults.take(&Method::GET, "/").end, Some(Fault::DropAnswer));
        faults.clear();
        assert_eq!(faults.take(&Method::GET, "/"), Plan::default());
    }

    #[test]
    fn a_matcher_names_what_it_cannot_read() {
        assert!(
            Matcher::parse("FETCH /api")
                .unwrap_err()
                .to_string()
                .contains("FETCH")
        );
        assert!(
            Matcher::parse("GET (")
                .unwrap_err()
                .to_string()
                .contains("expression")
        );
        let any = Matcher::parse("/leases/").unwrap();
        assert!(any.matches(&Method::PUT, "/apis/x/leases/y"));
        assert!(
            !Matcher::parse("DELETE")
                .unwrap()
                .matches(&Method::PUT, "/x")
        );
    }
}
