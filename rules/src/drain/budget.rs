//! What the eviction API would say of a pod, from its PodDisruptionBudgets
//! (facts/drain.md 4.2: the order is the API server's own).

use ichor_api::machine::BudgetStatus;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};

/// Whether the pod's condition `Ready` is true: what a budget calls healthy.
pub fn is_ready(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|s| s.conditions.as_ref())
        .is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Whether the eviction API asks no budget about this pod: it is finished, has not
/// started, or is on its way out already.
pub fn ignores_budgets(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        || matches!(
            pod.status.as_ref().and_then(|s| s.phase.as_deref()),
            Some("Succeeded" | "Failed" | "Pending")
        )
}

/// policy/v1: an empty selector matches every pod of the namespace, a missing one none,
/// one that cannot be read none.
fn selects(selector: Option<&LabelSelector>, pod: &Pod) -> bool {
    let Some(selector) = selector else {
        return false;
    };
    let readable = selector.match_expressions.iter().flatten().all(|e| {
        let values = e.values.as_ref().is_some_and(|v| !v.is_empty());
        match e.operator.as_str() {
            "In" | "NotIn" => values,
            _ => !values,
        }
    });
    let Ok(query) = Selector::try_from(selector.clone()) else {
        return false;
    };
    let none = std::collections::BTreeMap::new();
    readable && query.matches(pod.metadata.labels.as_ref().unwrap_or(&none))
}

/// The budgets that cover `pod`, in the order given.
pub fn budgets_of<'b>(
    pod: &Pod,
    budgets: &'b [PodDisruptionBudget],
) -> Vec<&'b PodDisruptionBudget> {
    budgets
        .iter()
        .filter(|b| b.metadata.namespace == pod.metadata.namespace)
        .filter(|b| selects(b.spec.as_ref().and_then(|s| s.selector.as_ref()), pod))
        .collect()
}

/// The budget's numbers, as they stand in `status.drain`.
pub fn blocked_by(budget: &PodDisruptionBudget) -> BudgetStatus {
    let status = budget.status.clone().unwrap_or_default();
    BudgetStatus {
        name: budget.metadata.name.clone().unwrap_or_default(),
        allowed: status.disruptions_allowed,
        current: status.current_healthy,
        desired: status.desired_healthy,
    }
}

/// Whether the budget's status was written for the budget as it is now.
fn is_settled(budget: &PodDisruptionBudget) -> bool {
    let observed = budget
        .status
        .as_ref()
        .and_then(|s| s.observed_generation)
        .unwrap_or(0);
    observed >= budget.metadata.generation.unwrap_or(0)
}

/// What the eviction API would answer now.
#[derive(Clone, Debug, PartialEq)]
pub enum Forecast<'b> {
    /// No budget stands in the way and none is charged.
    Free,
    /// Its budget allows it, and is charged one disruption.
    Allowed(&'b PodDisruptionBudget),
    /// Its budget refuses.
    Blocked(&'b PodDisruptionBudget),
    /// More than one budget covers it: the API answers 500 whatever they say.
    SeveralBudgets(Vec<&'b PodDisruptionBudget>),
}

/// What the eviction API would answer for `pod`, judged by the budgets' last status.
/// It costs no call: a plan asks this, and a drain sends no eviction that is sure to
/// end in a server error.
pub fn forecast<'b>(pod: &Pod, budgets: &'b [PodDisruptionBudget]) -> Forecast<'b> {
    if ignores_budgets(pod) {
        return Forecast::Free;
    }
    let covering = budgets_of(pod, budgets);
    let budget = match covering.as_slice() {
        [] => return Forecast::Free,
        [one] => *one,
        _ => return Forecast::SeveralBudgets(covering),
    };
    let status = budget.status.clone().unwrap_or_default();
    if !is_ready(pod) {
        let policy = budget
            .spec
            .as_ref()
            .and_then(|s| s.unhealthy_pod_eviction_policy.as_deref());
        let healthy =
            status.current_healthy >= status.desired_healthy && status.desired_healthy > 0;
        if policy == Some("AlwaysAllow") || healthy {
            return Forecast::Free;
        }
    }
    if is_settled(budget) && status.disruptions_allowed > 0 {
        Forecast::Allowed(budget)
    } else {
        Forecast::Blocked(budget)
    }
}

/// Why `budget` holds its pods and what to do about it, with its numbers: one sentence
/// that follows "blocked by", without a full stop.
pub fn explain(budget: &PodDisruptionBudget) -> String {
    let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
    let status = budget.status.clone().unwrap_or_default();
    let numbers = blocked_by(budget);
    let head = format!(
        "budget {namespace}/{} (allows {} disruptions; {} healthy, {} needed)",
        numbers.name, numbers.allowed, numbers.current, numbers.desired
    );
    // Told first: a budget that cannot be worked out is never settled either.
    let failed = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "DisruptionAllowed" && c.reason == "SyncFailed");
    if let Some(failed) = failed {
        return format!(
            "{head}, which the disruption controller cannot work out: {}",
            failed.message.trim_end_matches('.')
        );
    }
    if !is_settled(budget) {
        return format!("{head}, which the disruption controller has not worked out yet");
    }
    if status.expected_pods > 0 && numbers.desired >= status.expected_pods {
        return format!(
            "{head}, which asks for all of its {} pods and so never lets one go: scale the workload up or relax the budget",
            status.expected_pods
        );
    }
    if numbers.current < numbers.desired {
        return format!("{head}: bring its unhealthy pods up or relax the budget");
    }
    head
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::drain::tests::pod;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
    use serde_json::json;

    pub(crate) fn budget(
        name: &str,
        selector: serde_json::Value,
        (allowed, current, desired): (i32, i32, i32),
    ) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": { "namespace": "default", "name": name, "generation": 1 },
            "spec": { "selector": selector },
            "status": {
                "disruptionsAllowed": allowed,
                "currentHealthy": current,
                "desiredHealthy": desired,
                "expectedPods": current + 1,
                "observedGeneration": 1,
            },
        }))
        .unwrap()
    }

    fn running(labels: serde_json::Value, ready: bool) -> Pod {
        let mut pod = pod(json!({ "status": { "phase": "Running", "conditions": [
            { "type": "Ready", "status": if ready { "True" } else { "False" } }
        ] } }));
        pod.metadata.labels = serde_json::from_value(labels).unwrap();
        pod
    }

    fn names(found: &[&PodDisruptionBudget]) -> Vec<String> {
        found
            .iter()
            .map(|b| b.metadata.name.clone().unwrap())
            .collect()
    }

    #[test]
    fn budgets_cover_pods_by_policy_v1_rules() {
        let web = running(json!({ "app": "web" }), true);
        let bare = running(json!(null), true);
        let mut elsewhere = budget("elsewhere", json!({}), (1, 1, 0));
        elsewhere.metadata.namespace = Some("other".into());
        let budgets = [
            budget("all", json!({}), (1, 1, 0)),
            budget("none", json!(null), (1, 1, 0)),
            budget("web", json!({ "matchLabels": { "app": "web" } }), (1, 1, 0)),
            budget("db", json!({ "matchLabels": { "app": "db" } }), (1, 1, 0)),
            budget(
                "not-db",
                json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["db"] }] }),
                (1, 1, 0),
            ),
            budget(
                "unreadable",
                json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": [] }] }),
                (1, 1, 0),
            ),
            budget(
                "unknown-operator",
                json!({ "matchExpressions": [{ "key": "app", "operator": "Like" }] }),
                (1, 1, 0),
            ),
            elsewhere,
        ];
        assert_eq!(names(&budgets_of(&web, &budgets)), ["all", "web", "not-db"]);
        assert_eq!(names(&budgets_of(&bare, &budgets)), ["all", "not-db"]);
    }

    #[test]
    fn a_ready_pod_goes_while_its_budget_allows_a_disruption() {
        let pod = running(json!({}), true);
        let allowing = [budget("b", json!({}), (1, 3, 2))];
        assert!(matches!(forecast(&pod, &allowing), Forecast::Allowed(_)));
        let blocking = [budget("b", json!({}), (0, 2, 2))];
        assert!(matches!(forecast(&pod, &blocking), Forecast::Blocked(_)));
    }

    #[test]
    fn an_unready_pod_goes_while_the_workload_is_healthy_or_the_policy_says_always() {
        let pod = running(json!({}), false);
        let healthy = [budget("b", json!({}), (0, 2, 2))];
        assert_eq!(forecast(&pod, &healthy), Forecast::Free);
        let unhealthy = [budget("b", json!({}), (0, 1, 2))];
        assert!(matches!(forecast(&pod, &unhealthy), Forecast::Blocked(_)));
        let none_wanted = [budget("b", json!({}), (0, 0, 0))];
        assert!(matches!(forecast(&pod, &none_wanted), Forecast::Blocked(_)));
        let mut always = budget("b", json!({}), (0, 0, 2));
        always.spec.as_mut().unwrap().unhealthy_pod_eviction_policy = Some("AlwaysAllow".into());
        assert_eq!(forecast(&pod, &[always]), Forecast::Free);
    }

    #[test]
    fn a_budget_whose_status_is_older_than_its_spec_blocks() {
        let pod = running(json!({}), true);
        let mut stale = budget("b", json!({}), (5, 5, 0));
        stale.metadata.generation = Some(2);
        assert!(matches!(
            forecast(&pod, std::slice::from_ref(&stale)),
            Forecast::Blocked(_)
        ));
        assert!(explain(&stale).contains("has not worked out yet"));
    }

    #[test]
    fn two_budgets_on_one_pod_are_told_before_anything_is_sent() {
        let budgets = [
            budget("one", json!({}), (9, 9, 0)),
            budget("two", json!({}), (9, 9, 0)),
        ];
        let running_pod = running(json!({}), true);
        match forecast(&running_pod, &budgets) {
            Forecast::SeveralBudgets(found) => assert_eq!(names(&found), ["one", "two"]),
            other => panic!("{other:?}"),
        }
        // The API asks no budget about a pod that has not started, nor about how many.
        let pending = pod(json!({ "status": { "phase": "Pending" } }));
        assert_eq!(forecast(&pending, &budgets), Forecast::Free);
    }

    #[test]
    fn the_explanation_has_the_numbers_and_the_remedy() {
        let mut all = budget("web", json!({}), (0, 1, 1));
        all.status.as_mut().unwrap().expected_pods = 1;
        assert_eq!(
            explain(&all),
            "budget default/web (allows 0 disruptions; 1 healthy, 1 needed), which asks for all of its 1 pods and so never lets one go: scale the workload up or relax the budget"
        );
        let mut failed = budget("web", json!({}), (0, 0, 0));
        failed.status.as_mut().unwrap().conditions = Some(vec![Condition {
            type_: "DisruptionAllowed".into(),
            status: "False".into(),
            reason: "SyncFailed".into(),
            message: "found no controllers for pod".into(),
            ..serde_json::from_value(json!({
                "type": "", "status": "", "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"
            }))
            .unwrap()
        }]);
        // The controller leaves the generation as it was when it fails.
        failed.status.as_mut().unwrap().observed_generation = None;
        assert!(explain(&failed).ends_with("cannot work out: found no controllers for pod"));
    }
}
