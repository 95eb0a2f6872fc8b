//! `status.drain`, and the sentences for people: which pods are left, why, with what
//! numbers, and what to do.

use std::collections::HashMap;
use std::error::Error;

use ichor_api::machine::{BudgetStatus, DrainPodStatus, DrainStatus};
use ichor_rules::drain::{RefuseReason, blocked_by, budgets_of, explain, pod_name};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::DrainRequest;
use super::evict::Answer;
use super::wave::Sent;

/// Pods named in `status.drain`.
const LISTED: usize = 20;
/// Groups of pods, and names in each, in one sentence.
const GROUPS: usize = 5;
const NAMES: usize = 3;
/// A grace period beyond this, in seconds, is worth telling.
const LONG_GRACE: i64 = 60;
/// A pod this long past the end of its grace period does not go by itself: the kubelet
/// or a finalizer holds it. By the time of day, since it only words the report.
const OVERDUE: SignedDuration = SignedDuration::from_secs(30);

/// A pod that is left, and why.
#[derive(Clone, Debug)]
pub(super) struct Left<'p> {
    pub(super) pod: &'p Pod,
    /// The word in `status.drain.pods[].reason`.
    pub(super) reason: &'static str,
    /// It leaves, or will be tried, without anybody's doing.
    pub(super) moves: bool,
    budget: Option<BudgetStatus>,
    /// Completes "<pod>: …".
    why: String,
}

impl<'p> Left<'p> {
    fn new(pod: &'p Pod, reason: &'static str, why: impl Into<String>) -> Self {
        Self {
            pod,
            reason,
            moves: false,
            budget: None,
            why: why.into(),
        }
    }

    fn moving(mut self) -> Self {
        self.moves = true;
        self
    }

    /// A pod that stops the drain.
    pub(super) fn refused(pod: &'p Pod, reason: RefuseReason) -> Self {
        Self::new(pod, reason.as_str(), reason.explain())
    }

    /// A pod that could go, were it not for a refused one.
    pub(super) fn held_back(pod: &'p Pod) -> Self {
        Self::new(
            pod,
            "Waiting",
            "waits: nothing is evicted while another pod stops the drain",
        )
    }

    /// One of the agent's own.
    pub(super) fn agent(pod: &'p Pod) -> Self {
        Self::new(
            pod,
            "Agent",
            "one of the agent's own pods, which go last: its replica on another Node takes over and deletes it",
        )
        .moving()
    }

    /// A pod that is on its way out.
    pub(super) fn terminating(pod: &'p Pod, now: Timestamp) -> Self {
        let ends = pod
            .metadata
            .deletion_timestamp
            .as_ref()
            .map_or(now, |t| t.0);
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let overdue = now.duration_since(ends) > OVERDUE;
        let finalizers = pod.metadata.finalizers.as_deref().unwrap_or_default();
        let left = if !finalizers.is_empty() {
            Self::new(
                pod,
                "Finalizer",
                format!(
                    "deleted, and kept by finalizer {}: whoever set it must take it off",
                    finalizers.join(", ")
                ),
            )
        } else if overdue {
            Self::new(
                pod,
                "Terminating",
                format!("should have ended at {ends}, and the kubelet has not confirmed that"),
            )
        } else if grace > LONG_GRACE {
            Self::new(
                pod,
                "GracePeriod",
                format!("ends by {ends}: its grace period is {grace} s"),
            )
        } else {
            Self::new(
                pod,
                "Terminating",
                format!("ends by {ends} (grace period {grace} s)"),
            )
        };
        if overdue { left } else { left.moving() }
    }

    /// A pod that was to be evicted, after what became of that.
    pub(super) fn unevicted(
        pod: &'p Pod,
        sent: Option<&Sent>,
        budgets: &[PodDisruptionBudget],
        node_dead: bool,
    ) -> Self {
        let answer = match sent {
            None | Some(Sent::NotYet | Sent::Answered(Answer::Admitted | Answer::Gone)) => {
                return Self::new(pod, "Waiting", "its turn comes in the next pass").moving();
            }
            Some(Sent::SeveralBudgets(names)) => return Self::several_budgets(pod, names),
            Some(Sent::SameBudget(text)) => return Self::budget(pod, text, budgets, node_dead),
            Some(Sent::Answered(answer)) => answer,
        };
        match answer {
            Answer::Admitted | Answer::Gone => {
                Self::new(pod, "Waiting", "its turn comes in the next pass").moving()
            }
            Answer::Budget { text, .. } => Self::budget(pod, text, budgets, node_dead),
            Answer::SeveralBudgets => {
                let names: Vec<_> = budgets_of(pod, budgets)
                    .iter()
                    .filter_map(|b| b.metadata.name.clone())
                    .collect();
                Self::several_budgets(pod, &names)
            }
            Answer::Throttled(text) => Self::new(
                pod,
                "Throttled",
                format!("the API server put the eviction off, and no budget did: {text}"),
            ),
            Answer::NamespaceTerminating => Self::new(
                pod,
                "NamespaceTerminating",
                "its namespace is being deleted, and kube-controller-manager must delete the pod with it",
            ),
            Answer::Failed(text) => Self::new(pod, "Error", format!("not evicted: {text}")),
        }
    }

    fn several_budgets(pod: &'p Pod, names: &[String]) -> Self {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let names: Vec<_> = names.iter().map(|n| format!("{namespace}/{n}")).collect();
        Self::new(
            pod,
            "SeveralBudgets",
            format!(
                "covered by more than one PodDisruptionBudget ({}), which the eviction API does not support: leave it one",
                names.join(", ")
            ),
        )
    }

    fn budget(pod: &'p Pod, text: &str, budgets: &[PodDisruptionBudget], node_dead: bool) -> Self {
        let covering = budgets_of(pod, budgets);
        let Some(budget) = covering.first() else {
            return Self::new(pod, "Budget", format!("blocked by its budget: {text}"));
        };
        let numbers = blocked_by(budget);
        let mut why = format!("blocked by {}", explain(budget));
        if node_dead && numbers.current == 0 {
            why.push_str(
                ". The node is unreachable and the budget counts no healthy pod, so it will not let this one go by itself: bring replicas up elsewhere, or set the budget's unhealthyPodEvictionPolicy to AlwaysAllow, or delete the pod yourself (kubectl delete pod --force)",
            );
        }
        Self {
            budget: Some(numbers),
            ..Self::new(pod, "Budget", why)
        }
    }
}

/// The new `status.drain`. `before`: pods that had to go when the pass began.
pub(super) fn status(request: &DrainRequest<'_>, before: usize, left: &[Left<'_>]) -> DrainStatus {
    let none = DrainStatus::default();
    let previous = request.previous.unwrap_or(&none);
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let remaining = count(left.len());
    // Pods that came meanwhile (a Node that is cordoned still takes those that name it)
    // raise the total; they never make "evicted" go back.
    let total = previous
        .total
        .max(previous.evicted.saturating_add(count(before)))
        .max(remaining);
    let started_at = previous.started_at.clone().unwrap_or(Time(request.now));
    let since: HashMap<(&str, &str), &Time> = previous
        .pods
        .iter()
        .filter_map(|p| Some(((p.namespace.as_str(), p.name.as_str()), p.since.as_ref()?)))
        .collect();
    let mut listed: Vec<&Left<'_>> = left.iter().collect();
    // Those that need somebody first, then those that go by themselves.
    listed.sort_by_key(|l| l.moves);
    let pods = listed
        .into_iter()
        .take(LISTED)
        .map(|l| {
            let namespace = l.pod.metadata.namespace.clone().unwrap_or_default();
            let name = l.pod.metadata.name.clone().unwrap_or_default();
            let known = since.get(&(namespace.as_str(), name.as_str())).copied();
            DrainPodStatus {
                since: Some(
                    known
                        .cloned()
                        .unwrap_or_else(|| first_seen(l.pod, &started_at)),
                ),
                reason: l.reason.to_owned(),
                budget: l.budget.clone(),
                message: format!("{namespace}/{name}: {}", l.why),
                namespace,
                name,
            }
        })
        .collect();
    DrainStatus {
        total,
        evicted: total - remaining,
        remaining,
        started_at: Some(started_at),
        last_pass_at: Some(Time(request.now)),
        pods,
    }
}

/// Since when a pod that the status did not list yet has been waited for: since the drain
/// began, or since it came.
fn first_seen(pod: &Pod, started_at: &Time) -> Time {
    match &pod.metadata.creation_timestamp {
        Some(created) if created.0 > started_at.0 => created.clone(),
        _ => started_at.clone(),
    }
}

/// `left` in one sentence each reason: names, why, and how many more.
pub(super) fn sentence(node: &str, total: i32, left: &[Left<'_>]) -> String {
    let mut groups: Vec<(&str, bool, Vec<String>)> = Vec::new();
    let mut at: HashMap<&str, usize> = HashMap::new();
    for l in left {
        let index = *at.entry(l.why.as_str()).or_insert_with(|| {
            groups.push((&l.why, l.moves, Vec::new()));
            groups.len() - 1
        });
        groups[index].2.push(pod_name(l.pod));
    }
    groups.sort_by_key(|g| g.1);
    let beyond: usize = groups.iter().skip(GROUPS).map(|g| g.2.len()).sum();
    let mut parts: Vec<String> = groups
        .iter()
        .take(GROUPS)
        .map(|(why, _, names)| format!("{}: {why}", some_of(names)))
        .collect();
    if beyond > 0 {
        parts.push(format!("{beyond} more for other reasons"));
    }
    format!(
        "{} of {total} pods are left on Node {node}. {}",
        left.len(),
        parts.join("; ")
    )
}

fn some_of(names: &[String]) -> String {
    let shown = names.iter().take(NAMES).cloned().collect::<Vec<_>>();
    match names.len().saturating_sub(NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// `error` with its causes, none told twice.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let told = cause.to_string();
        if !text.contains(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        source = cause.source();
    }
    text
}
