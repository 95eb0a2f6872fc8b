//! The wait between two passes.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::fake::{Fake, budget, pod, terminating};
use super::run;
use crate::drain::{DrainLimits, DrainPass, settle};

/// Longer than any test: what ends, ends for its own reason.
const NEVER: Duration = Duration::from_hours(1);
const BOUND: Duration = Duration::from_secs(20);

fn limits(poll: Duration) -> DrainLimits {
    DrainLimits {
        poll,
        retry: NEVER,
        ..DrainLimits::default()
    }
}

fn event(kind: &str, uid: &str) -> Value {
    json!({ "type": kind, "object": { "kind": "Pod", "apiVersion": "v1", "metadata": { "name": uid, "uid": uid } } })
}

async fn two_leaving() -> (Fake, DrainPass) {
    let fake = Fake::with(["a", "b"].map(|name| terminating(pod(name, "x"), 600)));
    let pass = run(&fake).await;
    assert_eq!(pass.status.remaining, 2);
    (fake, pass)
}

#[tokio::test]
async fn it_ends_when_the_last_pod_has_gone_and_watches_only_this_node() {
    let (fake, pass) = two_leaving().await;
    fake.world().watch = Some(vec![
        event("MODIFIED", "uid-a"),
        event("DELETED", "uid-b"),
        event("DELETED", "uid-a"),
    ]);
    let limits = limits(NEVER);
    timeout(BOUND, settle(&fake.client(), "worker-1", &pass, &limits))
        .await
        .unwrap();
    let calls = fake.calls();
    let watch = calls.last().unwrap();
    assert_eq!(
        (watch.method.clone(), watch.path.as_str()),
        (Method::GET, "/api/v1/pods")
    );
    assert!(
        watch.query.contains("spec.nodeName%3Dworker-1"),
        "{}",
        watch.query
    );
    assert!(watch.query.contains("resourceVersion=7"), "{}", watch.query);
}

#[tokio::test]
async fn a_pod_that_only_changes_or_is_none_of_ours_does_not_end_it() {
    let (fake, pass) = two_leaving().await;
    fake.world().watch = Some(vec![
        event("MODIFIED", "uid-a"),
        event("DELETED", "uid-daemon"),
    ]);
    let limits = limits(NEVER);
    timeout(
        Duration::from_millis(300),
        settle(&fake.client(), "worker-1", &pass, &limits),
    )
    .await
    .unwrap_err();
}

#[tokio::test]
async fn without_a_watch_it_polls() {
    let (fake, pass) = two_leaving().await;
    let limits = limits(Duration::from_millis(10));
    timeout(BOUND, settle(&fake.client(), "worker-1", &pass, &limits))
        .await
        .unwrap();
}

#[tokio::test]
async fn with_nothing_on_its_way_out_it_watches_nothing() {
    let fake = Fake::with([pod("web", "web")]).budgets([budget("web", "web", 0, 1, 1)]);
    let limits = limits(NEVER);
    let mut pass = run(&fake).await;
    pass.again = Duration::from_millis(10);
    timeout(BOUND, settle(&fake.client(), "worker-1", &pass, &limits))
        .await
        .unwrap();
    assert!(!fake.calls().iter().any(|c| c.query.contains("watch=true")));
}
