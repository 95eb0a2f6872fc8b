//! Many evictions at once.
//!
//! Evictions under one budget are conflicting writes to one object, so each budget has its
//! own small number in flight; evictions that charge no budget do not wait for those.
//! Every pod has its turn in every pass, whatever became of the one before it. The one
//! exception: once a budget has refused by its numbers, its other pods would get the very
//! same answer, and are not sent; whatever the budget does not decide about goes on.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use ichor_rules::drain::{Forecast, forecast, is_ready};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::DrainLimits;
use super::evict::{Answer, evict};
use super::pass::Held;

/// What became of one pod in a wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Asked, and answered.
    Answered(Answer),
    /// Not asked: its budget has just refused another pod of its own by its numbers.
    SameBudget(String),
    /// Not asked: the API would answer with a server error. Names of the budgets.
    SeveralBudgets(Vec<String>),
    /// Not asked: the pass had run long enough, or the lock was lost.
    NotYet,
}

/// A budget as a key: namespace and name.
type BudgetKey = (String, String);

fn key(budget: &PodDisruptionBudget) -> BudgetKey {
    (
        budget.metadata.namespace.clone().unwrap_or_default(),
        budget.metadata.name.clone().unwrap_or_default(),
    )
}

/// Pods that share one limit.
struct Group<'p> {
    pods: Vec<(usize, &'p Pod)>,
    limit: usize,
    /// Whether a refusal of one is a refusal of all.
    shared: bool,
}

/// Asks for the eviction of `pods`, in their order within each group; answers in the
/// order of `pods`.
pub(super) async fn send(
    held: Held<'_>,
    client: &Client,
    pods: &[&Pod],
    budgets: &[PodDisruptionBudget],
    grace_period_seconds: Option<i64>,
    limits: &DrainLimits,
) -> Vec<Sent> {
    let mut sent: Vec<Sent> = vec![Sent::NotYet; pods.len()];
    let mut free = Group {
        pods: Vec::new(),
        limit: limits.unbudgeted.max(1),
        shared: false,
    };
    let mut budgeted: BTreeMap<BudgetKey, Group<'_>> = BTreeMap::new();
    for (index, pod) in pods.iter().enumerate() {
        match forecast(pod, budgets) {
            Forecast::Free => free.pods.push((index, pod)),
            Forecast::SeveralBudgets(found) => {
                sent[index] = Sent::SeveralBudgets(found.iter().map(|b| key(b).1).collect());
            }
            Forecast::Allowed(budget) => {
                let allowed = budget.status.as_ref().map_or(1, |s| s.disruptions_allowed);
                let allowed = usize::try_from(allowed).unwrap_or(1).max(1);
                let group = budgeted.entry(key(budget)).or_insert_with(Group::one);
                group.join(index, pod, limits.per_budget.min(allowed));
            }
            Forecast::Blocked(budget) => {
                let group = budgeted.entry(key(budget)).or_insert_with(Group::one);
                group.join(index, pod, 1);
            }
        }
    }
    let wave = Wave {
        held,
        client,
        grace_period_seconds,
        limits,
        room: Semaphore::new(limits.in_flight.max(1)),
        until: Instant::now() + limits.begin_within,
    };
    let mut sending = Vec::new();
    for group in std::iter::once(free).chain(budgeted.into_values()) {
        sending.push(group.send(&wave));
    }
    let answers = join_all(sending).await;
    for (index, answer) in answers.into_iter().flatten() {
        sent[index] = answer;
    }
    sent
}

impl<'p> Group<'p> {
    /// Of one budget.
    fn one() -> Self {
        Self {
            pods: Vec::new(),
            limit: 1,
            shared: true,
        }
    }

    fn join(&mut self, index: usize, pod: &'p Pod, limit: usize) {
        self.pods.push((index, pod));
        self.limit = self.limit.max(limit);
    }

    async fn send(self, wave: &Wave<'_>) -> Vec<(usize, Sent)> {
        let refusal = OnceLock::new();
        let (refusal, shared) = (&refusal, self.shared);
        let pace = shared.then(|| {
            // An interval of nothing is none.
            let mut pace = interval(wave.limits.pace.max(Duration::from_micros(1)));
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            Mutex::new(pace)
        });
        let pace = pace.as_ref();
        // Futures made in a loop: a closure over borrowed pods is not general enough for a
        // task that may move between threads.
        let mut evictions = Vec::with_capacity(self.pods.len());
        for (index, pod) in self.pods {
            evictions.push(async move {
                let needless = || match refusal.get() {
                    Some(text) if shared => Some(Sent::SameBudget(String::clone(text))),
                    _ if !wave.may_begin() => Some(Sent::NotYet),
                    _ => None,
                };
                // Asked before the wait for its turn, and after it.
                if let Some(sent) = needless() {
                    return (index, sent);
                }
                if let Some(pace) = pace {
                    pace.lock().await.tick().await;
                }
                let _room = wave.room.acquire().await;
                if let Some(sent) = needless() {
                    return (index, sent);
                }
                let answer = wave.evict(pod).await;
                if let Answer::Budget { text, settled } = &answer {
                    // "Not worked out yet" is the budget's own word only for a ready pod; an
                    // unready one is told so too if it changed just now.
                    if *settled || is_ready(pod) {
                        let _ = refusal.set(text.clone());
                    }
                }
                (index, Sent::Answered(answer))
            });
        }
        stream::iter(evictions)
            .buffer_unordered(self.limit)
            .collect()
            .await
    }
}

/// What all groups of one wave share.
struct Wave<'a> {
    held: Held<'a>,
    client: &'a Client,
    grace_period_seconds: Option<i64>,
    limits: &'a DrainLimits,
    room: Semaphore,
    until: Instant,
}

impl Wave<'_> {
    fn may_begin(&self) -> bool {
        Instant::now() < self.until && (self.held)()
    }

    async fn evict(&self, pod: &Pod) -> Answer {
        let grace = self.grace_period_seconds;
        evict(self.client, pod, grace, self.limits.evict).await
    }
}
