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
use tokio::sync::Semaphore;
use tokio::time::Instant;

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
    let room = Semaphore::new(limits.in_flight.max(1));
    let until = Instant::now() + limits.begin_within;
    let groups = std::iter::once(free).chain(budgeted.into_values());
    let mut sending = Vec::new();
    for group in groups {
        sending.push(group.send(
            held,
            client,
            grace_period_seconds,
            &room,
            until,
            limits.evict,
        ));
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

    async fn send(
        self,
        held: Held<'_>,
        client: &Client,
        grace_period_seconds: Option<i64>,
        room: &Semaphore,
        until: Instant,
        limit: Duration,
    ) -> Vec<(usize, Sent)> {
        let refusal = OnceLock::new();
        let (refusal, shared) = (&refusal, self.shared);
        // Futures made in a loop: a closure over borrowed pods is not general enough for a
        // task that may move between threads.
        let mut evictions = Vec::with_capacity(self.pods.len());
        for (index, pod) in self.pods {
            evictions.push(async move {
                let _room = room.acquire().await;
                if let Some(text) = refusal.get().filter(|_| shared) {
                    return (index, Sent::SameBudget(String::clone(text)));
                }
                if Instant::now() >= until || !held() {
                    return (index, Sent::NotYet);
                }
                let answer = evict(client, pod, grace_period_seconds, limit).await;
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
