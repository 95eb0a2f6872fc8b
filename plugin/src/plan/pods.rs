//! The Node's pods: what a drain would do with each, and what would block it. Pure.

use std::collections::BTreeMap;

use ichor_api::common::DrainOptions;
use ichor_rules::Verdict;
use ichor_rules::drain::{
    Disposition, DrainContext, DrainPolicy, Forecast, blocked_by, budgets_of, classify, explain,
    forecast, is_agent_pod,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::plan::{DRAIN, PlanCheck, PlanPod};

/// `namespace/name` of a budget.
pub type BudgetKey = (String, String);

/// What the API server itself said of a budget, by one dry-run eviction under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tried {
    /// The eviction would be admitted.
    Allowed,
    /// It would not, and why.
    Refused(String),
}

/// What could be seen of the Node.
#[derive(Debug, Default)]
pub struct Seen {
    /// Its pods; `None`: they could not be seen.
    pub pods: Option<Vec<Pod>>,
    /// The budgets of all namespaces; `None`: they could not be seen.
    pub budgets: Option<Vec<PodDisruptionBudget>>,
    /// Dry runs, by budget.
    pub tried: BTreeMap<BudgetKey, Tried>,
}

fn key(budget: &PodDisruptionBudget) -> BudgetKey {
    (
        budget.metadata.namespace.clone().unwrap_or_default(),
        budget.metadata.name.clone().unwrap_or_default(),
    )
}

/// For each budget that seems to refuse, one pod to try: the budget's status may be
/// behind, and the API server knows better.
pub fn worth_trying<'p>(
    pods: &'p [Pod],
    budgets: &[PodDisruptionBudget],
    policy: &DrainPolicy,
) -> BTreeMap<BudgetKey, &'p Pod> {
    let mut found = BTreeMap::new();
    for pod in pods {
        if classify(pod, policy, DrainContext::default()) != Disposition::Evict {
            continue;
        }
        if let Forecast::Blocked(budget) = forecast(pod, budgets) {
            found.entry(key(budget)).or_insert(pod);
        }
    }
    found
}

/// Judges every pod of the Node, those in the way first, and the drain as a whole.
pub fn judge(seen: &Seen, options: &DrainOptions) -> (PlanCheck, Vec<PlanPod>) {
    let policy = match DrainPolicy::new(options) {
        Ok(policy) => policy,
        Err(error) => {
            return (
                PlanCheck::own(
                    DRAIN,
                    Verdict::Wait,
                    format!(
                        "spec.drain.skipSelector: {error}. No drain begins with it: correct it first"
                    ),
                ),
                Vec::new(),
            );
        }
    };
    let Some(pods) = &seen.pods else {
        return (
            PlanCheck::own(
                DRAIN,
                Verdict::Proceed,
                "the Node's pods could not be seen from here: a drain may be held up all the same",
            ),
            Vec::new(),
        );
    };
    let budgets = seen.budgets.as_deref().unwrap_or_default();
    let mut judged: Vec<PlanPod> = pods
        .iter()
        .map(|pod| judge_pod(pod, budgets, &seen.tried, &policy))
        .collect();
    judged.sort_by(|a, b| {
        (
            a.blocked_by.is_none(),
            a.action == "Skip",
            &a.namespace,
            &a.name,
        )
            .cmp(&(
                b.blocked_by.is_none(),
                b.action == "Skip",
                &b.namespace,
                &b.name,
            ))
    });
    (summary(&judged, seen.budgets.is_some()), judged)
}

fn judge_pod(
    pod: &Pod,
    budgets: &[PodDisruptionBudget],
    tried: &BTreeMap<BudgetKey, Tried>,
    policy: &DrainPolicy,
) -> PlanPod {
    let (action, blocked_by_name, detail) = match classify(pod, policy, DrainContext::default()) {
        Disposition::Skip(why) => ("Skip", None, format!("stays: {}", why.as_str())),
        Disposition::Gone => ("Skip", None, "is gone".to_owned()),
        Disposition::Terminating => ("Wait", None, "ends already".to_owned()),
        Disposition::Refuse(why) => (
            "Refuse",
            Some(why.as_str().to_owned()),
            why.explain().to_owned(),
        ),
        Disposition::Evict => {
            let (blocked, detail) = eviction(pod, budgets, tried);
            ("Evict", blocked, detail)
        }
    };
    let agent = is_agent_pod(pod, ichor_api::names::AGENT_NAMESPACE);
    PlanPod {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        action,
        blocked_by: blocked_by_name,
        detail: match (agent, detail.is_empty()) {
            (false, _) => detail,
            (true, true) => "the agent's own: goes last, after it has handed over".to_owned(),
            (true, false) => format!("the agent's own, goes last; {detail}"),
        },
    }
}

fn eviction(
    pod: &Pod,
    budgets: &[PodDisruptionBudget],
    tried: &BTreeMap<BudgetKey, Tried>,
) -> (Option<String>, String) {
    match forecast(pod, budgets) {
        Forecast::Free => (None, String::new()),
        Forecast::Allowed(budget) => {
            let numbers = blocked_by(budget);
            (
                None,
                format!(
                    "under budget {} (allows {}; {} healthy, {} needed)",
                    numbers.name, numbers.allowed, numbers.current, numbers.desired
                ),
            )
        }
        Forecast::Blocked(budget) => match tried.get(&key(budget)) {
            Some(Tried::Allowed) => (None, String::new()),
            Some(Tried::Refused(said)) if !said.is_empty() => (
                Some(key(budget).1),
                format!(
                    "blocked by {}; the API server says: {said}",
                    explain(budget)
                ),
            ),
            _ => (
                Some(key(budget).1),
                format!("blocked by {}", explain(budget)),
            ),
        },
        Forecast::SeveralBudgets(covering) => {
            let names = covering
                .iter()
                .map(|b| key(b).1)
                .collect::<Vec<_>>()
                .join(", ");
            let detail = format!(
                "covered by {} budgets at once ({names}), which the eviction API always refuses: leave it one",
                budgets_of(pod, budgets).len()
            );
            (Some(names), detail)
        }
    }
}

fn summary(pods: &[PlanPod], budgets_seen: bool) -> PlanCheck {
    let count = |wanted: &dyn Fn(&PlanPod) -> bool| {
        i64::try_from(pods.iter().filter(|p| wanted(p)).count()).unwrap_or(i64::MAX)
    };
    let must_go = count(&|p| p.action != "Skip");
    let blocked = count(&|p| p.blocked_by.is_some());
    let mut check = PlanCheck::own(DRAIN, Verdict::Proceed, String::new());
    // Before: pods that must go. After: those that nothing moves as things stand.
    check.before = Some(must_go);
    check.after = Some(blocked);
    if blocked == 0 {
        check.message = format!("{must_go} pods move, none is blocked");
        if !budgets_seen {
            check
                .message
                .push_str(" as far as can be seen without the budgets");
        }
        return check;
    }
    check.verdict = Verdict::Wait;
    let named = pods
        .iter()
        .filter(|p| p.blocked_by.is_some())
        .take(3)
        .map(|p| {
            format!(
                "{}/{} by {}",
                p.namespace,
                p.name,
                p.blocked_by.as_deref().unwrap_or_default()
            )
        })
        .collect::<Vec<_>>()
        .join(", ");
    let more = match blocked - 3 {
        more @ 1.. => format!(" and {more} more"),
        _ => String::new(),
    };
    check.message = format!(
        "{blocked} of {must_go} pods that must go are blocked now: {named}{more}. The drain waits for them, holding the cluster lock; free them first, or begin with --wait"
    );
    check
}
