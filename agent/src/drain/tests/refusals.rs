//! What the API server's answers mean.

use http::Method;
use serde_json::json;

use super::fake::{Fake, budget, budget_refusal, pod, set, status, uid_conflict};
use super::{Ask, blocked, reasons, run};
use crate::drain::DrainOutcome;

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

#[tokio::test]
async fn a_blocked_pod_is_named_with_its_budget_and_the_numbers_in_one_pass() {
    let fake = Fake::with([pod("web-1", "web"), pod("web-2", "web")])
        .budgets([budget("web", "web", 0, 2, 2)]);
    let pass = run(&fake).await;
    assert_eq!(reasons(&pass), [("web-1", "Budget"), ("web-2", "Budget")]);
    let entry = pass.status.pods[1].budget.clone().unwrap();
    assert_eq!(
        (
            entry.name.as_str(),
            entry.allowed,
            entry.current,
            entry.desired
        ),
        ("web", 0, 2, 2)
    );
    assert!(
        blocked(&pass).starts_with(
            "2 of 2 pods are left on Node worker-1. default/web-1, default/web-2: blocked by budget default/web (allows 0 disruptions; 2 healthy, 2 needed)"
        ),
        "{}",
        blocked(&pass)
    );
    // A budget that allows none is asked with one pod, not with all of them.
    assert_eq!(fake.evicted(), ["web-1"]);
    assert_eq!(fake.count(&Method::GET, BUDGETS), 1);
    assert_eq!(pass.again, std::time::Duration::from_secs(15));
}

#[tokio::test]
async fn the_first_pod_blocked_the_second_is_evicted_in_the_same_pass() {
    let fake = Fake::with([
        pod("a-blocked", "web"),
        pod("b-free", "free"),
        pod("c-other", "other"),
    ])
    .budgets([
        budget("web", "web", 0, 1, 1),
        budget("other", "other", 1, 2, 1),
    ]);
    let pass = run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Progressing);
    assert_eq!(reasons(&pass), [("a-blocked", "Budget")]);
    assert_eq!(pass.status.evicted, 2);
}

#[tokio::test]
async fn a_budget_is_charged_no_more_than_it_allows_and_its_numbers_are_fresh() {
    let pods = (0..10).map(|i| pod(&format!("web-{i}"), "web"));
    let fake = Fake::with(pods).budgets([budget("web", "web", 3, 10, 7)]);
    let pass = run(&fake).await;
    assert_eq!((pass.status.evicted, pass.status.remaining), (3, 7));
    assert_eq!(pass.outcome, DrainOutcome::Progressing);
    // Three in flight, then refusals end it: never all ten.
    assert!(fake.evicted().len() <= 6, "{:?}", fake.evicted());
    // The list from before said 3; what is reported is what refused.
    assert_eq!(pass.status.pods[0].budget.clone().unwrap().allowed, 0);
    assert_eq!(fake.count(&Method::GET, BUDGETS), 2);
}

#[tokio::test]
async fn retry_after_is_not_obeyed_and_nothing_is_repeated_within_a_pass() {
    // The fake sends Retry-After: 1000 with each 429.
    let fake = Fake::with([pod("web", "web")])
        .budgets([budget("web", "web", 0, 1, 1)])
        .answer("web", [budget_refusal("web"), budget_refusal("web")]);
    let pass = run(&fake).await;
    blocked(&pass);
    assert_eq!(fake.evicted().len(), 1);
    assert_eq!(pass.again, std::time::Duration::from_secs(15));
    fake.world().budgets.clear();
    blocked(&Ask::after(&pass).run(&fake).await);
    assert_eq!(
        Ask::after(&pass).run(&fake).await.outcome,
        DrainOutcome::Drained
    );
}

#[tokio::test]
async fn a_429_that_no_budget_caused_is_throttling_and_does_not_stop_the_others() {
    let throttled = status(
        429,
        "TooManyRequests",
        "too many requests, please try again later",
        json!([]),
    );
    let fake = Fake::with([pod("web-1", "web"), pod("web-2", "web")])
        .budgets([budget("web", "web", 1, 2, 1)])
        .answer("web-1", [throttled]);
    let pass = run(&fake).await;
    assert_eq!(reasons(&pass), [("web-1", "Throttled")]);
    assert_eq!(pass.status.pods[0].budget, None);
    assert_eq!(fake.evicted(), ["web-1", "web-2"]);
}

#[tokio::test]
async fn a_budget_that_appeared_meanwhile_is_named_by_the_api_servers_words() {
    let fake = Fake::with([pod("web", "web")]).answer("web", [budget_refusal("brand-new")]);
    let pass = run(&fake).await;
    assert!(blocked(&pass).contains("brand-new needs 2 healthy pods and has 2 currently"));
    assert_eq!(reasons(&pass), [("web", "Budget")]);
}

#[tokio::test]
async fn a_budget_that_is_still_worked_out_does_not_speak_for_its_other_unready_pods() {
    let unready = |name| {
        set(
            pod(name, "web"),
            "/status/conditions/0/status",
            json!("False"),
        )
    };
    let unsettled = status(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        json!([{ "reason": "DisruptionBudget", "message": "The disruption budget web is still being processed by the server." }]),
    );
    let fake = Fake::with([unready("web-1"), unready("web-2")])
        .budgets([budget("web", "web", 1, 0, 2)])
        .answer("web-1", [unsettled]);
    let pass = run(&fake).await;
    assert_eq!(fake.evicted(), ["web-1", "web-2"]);
    assert_eq!(reasons(&pass), [("web-1", "Budget")]);
}

#[tokio::test]
async fn a_budget_that_nobody_works_out_is_asked_with_one_ready_pod_a_pass() {
    let mut stale = budget("web", "web", 5, 5, 0);
    stale["metadata"]["generation"] = json!(2);
    let unsettled = status(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        json!([{ "reason": "DisruptionBudget", "message": "The disruption budget web is still being processed by the server." }]),
    );
    let fake = Fake::with((0..50).map(|i| pod(&format!("web-{i:02}"), "web")))
        .budgets([stale])
        .answer("web-00", [unsettled]);
    let pass = run(&fake).await;
    assert_eq!(fake.evicted(), ["web-00"]);
    assert!(blocked(&pass).contains("has not worked out yet"));
}

#[tokio::test]
async fn a_pod_that_is_gone_or_is_another_one_by_now_is_no_failure() {
    let gone = status(404, "NotFound", "not found", json!([]));
    for answer in [gone, uid_conflict()] {
        let fake = Fake::with([pod("web", "web")]).answer("web", [answer]);
        let seen = fake.clone();
        // It leaves the list as its eviction comes in: what is listed afterwards decides.
        let leaves = tokio::spawn(async move {
            while seen.evicted().is_empty() {
                tokio::task::yield_now().await;
            }
            seen.world().pods.clear();
        });
        let pass = run(&fake).await;
        leaves.await.unwrap();
        assert_eq!(pass.outcome, DrainOutcome::Drained);
        assert_eq!((pass.status.total, pass.status.evicted), (1, 1));
    }
}

#[tokio::test]
async fn a_namespace_on_its_way_out_is_waited_for_by_its_own_reason() {
    let terminating = status(
        403,
        "Forbidden",
        "unable to create new content in namespace default because it is being terminated",
        json!([{ "reason": "NamespaceTerminating", "message": "namespace default is being terminated", "field": "metadata.namespace" }]),
    );
    let fake = Fake::with([pod("web", "web"), pod("x", "x")]).answer("web", [terminating]);
    let pass = run(&fake).await;
    assert_eq!(reasons(&pass), [("web", "NamespaceTerminating")]);
    assert_eq!(fake.evicted().len(), 2);
}

#[tokio::test]
async fn a_403_for_any_other_cause_is_that_pods_error_alone() {
    let forbidden = status(403, "Forbidden", "pods \"web\" is forbidden: no", json!([]));
    let fake = Fake::with([pod("web", "web"), pod("x", "x")]).answer("web", [forbidden]);
    let pass = run(&fake).await;
    assert_eq!(reasons(&pass), [("web", "Error")]);
    assert!(
        pass.status.pods[0]
            .message
            .contains("default/web: not evicted: pods \"web\" is forbidden")
    );
    assert_eq!(pass.status.evicted, 1);
}

#[tokio::test]
async fn two_budgets_on_one_pod_are_both_named_and_no_eviction_is_sent() {
    let fake = Fake::with([pod("web", "web"), pod("x", "x")])
        .budgets([budget("one", "web", 1, 1, 0), budget("two", "web", 1, 1, 0)]);
    let pass = run(&fake).await;
    assert_eq!(reasons(&pass), [("web", "SeveralBudgets")]);
    assert!(
        pass.status.pods[0]
            .message
            .contains("more than one PodDisruptionBudget (default/one, default/two)"),
        "{}",
        pass.status.pods[0].message
    );
    assert_eq!(fake.evicted(), ["x"]);
}

#[tokio::test]
async fn a_failure_in_the_body_of_a_201_is_a_failure() {
    // So the API server tells of two budgets that the list did not show yet.
    let (_, mut body) = status(
        500,
        "",
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        json!([]),
    );
    body["code"] = json!(500);
    let fake = Fake::with([pod("web", "web")]).answer("web", [(201, body.clone()), (500, body)]);
    for _ in 0..2 {
        let pass = run(&fake).await;
        assert_eq!(reasons(&pass), [("web", "SeveralBudgets")]);
        blocked(&pass);
    }
}

#[tokio::test]
async fn on_an_unreachable_node_a_budget_at_zero_healthy_is_explained_not_bypassed() {
    let unready = set(
        pod("web", "web"),
        "/status/conditions/0/status",
        json!("False"),
    );
    let fake = Fake::with([unready]).budgets([budget("web", "web", 0, 0, 1)]);
    let ask = Ask {
        dead: true,
        ..Ask::default()
    };
    let pass = ask.run(&fake).await;
    let message = blocked(&pass);
    assert!(
        message.contains("The node is unreachable and the budget counts no healthy pod"),
        "{message}"
    );
    assert!(message.contains("kubectl delete pod --force"), "{message}");
    let deletes = fake
        .calls()
        .iter()
        .filter(|c| c.method == Method::DELETE)
        .count();
    assert_eq!(deletes, 0);
    // Reachable: the ordinary words.
    assert!(!blocked(&run(&fake).await).contains("unreachable"));
}
