//! Whose cordon it is.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::fake::{Fake, budget, pod};
use super::{Ask, blocked, run};
use crate::drain::cordon::{Uncordon, uncordon};
use crate::drain::{DrainError, DrainOutcome};

const NODE: &str = "/api/v1/nodes/worker-1";
const MARK: &str = "/metadata/annotations/ichor.maesh.dev~1cordoned-by";
const LIMIT: Duration = Duration::from_secs(10);

fn node(fake: &Fake) -> Value {
    fake.world().node.clone().unwrap()
}

async fn undo(fake: &Fake, operation: &str) -> Uncordon {
    uncordon(&fake.client(), "worker-1", Some("node-1"), operation, LIMIT)
        .await
        .unwrap()
}

#[tokio::test]
async fn our_cordon_carries_the_operation_and_is_made_once() {
    let fake = Fake::new();
    let pass = run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Drained);
    assert_eq!(pass.node_uid.as_deref(), Some("node-1"));
    assert_eq!(node(&fake)["spec"]["unschedulable"], true);
    assert_eq!(node(&fake).pointer(MARK), Some(&json!("op-1")));
    run(&fake).await;
    assert_eq!(fake.count(&Method::PATCH, NODE), 1);
}

#[tokio::test]
async fn it_stays_cordoned_through_five_blocked_passes_even_if_somebody_uncordons() {
    let fake = Fake::with([pod("web", "web")]).budgets([budget("web", "web", 0, 1, 1)]);
    let mut pass = run(&fake).await;
    for _ in 0..4 {
        blocked(&pass);
        assert_eq!(node(&fake)["spec"]["unschedulable"], true);
        pass = Ask::after(&pass).run(&fake).await;
    }
    assert_eq!(fake.count(&Method::PATCH, NODE), 1);
    fake.world().node.as_mut().unwrap()["spec"] = json!({});
    Ask::after(&pass).run(&fake).await;
    assert_eq!(node(&fake)["spec"]["unschedulable"], true);
}

#[tokio::test]
async fn a_foreign_cordon_stays_foreign_and_stays() {
    let fake = Fake::new();
    fake.world().node.as_mut().unwrap()["spec"] = json!({ "unschedulable": true });
    assert_eq!(run(&fake).await.outcome, DrainOutcome::Drained);
    assert_eq!(fake.count(&Method::PATCH, NODE), 0);
    assert_eq!(undo(&fake, "op-1").await, Uncordon::NotOurs);
    assert_eq!(node(&fake)["spec"]["unschedulable"], true);
}

#[tokio::test]
async fn another_operations_cordon_is_not_ours_to_undo() {
    let fake = Fake::new();
    run(&fake).await;
    assert_eq!(undo(&fake, "op-2").await, Uncordon::NotOurs);
    assert_eq!(node(&fake)["spec"]["unschedulable"], true);
}

#[tokio::test]
async fn our_cordon_is_undone_once_and_asking_again_does_no_harm() {
    let fake = Fake::new();
    run(&fake).await;
    assert_eq!(undo(&fake, "op-1").await, Uncordon::Undone);
    assert_eq!(node(&fake)["spec"]["unschedulable"], Value::Null);
    assert_eq!(node(&fake).pointer(MARK), None);
    // Somebody cordons it afterwards: that is theirs.
    fake.world().node.as_mut().unwrap()["spec"] = json!({ "unschedulable": true });
    assert_eq!(undo(&fake, "op-1").await, Uncordon::NotOurs);
    assert_eq!(node(&fake)["spec"]["unschedulable"], true);
    fake.world().node = None;
    assert_eq!(undo(&fake, "op-1").await, Uncordon::NodeMissing);
}

#[tokio::test]
async fn a_node_of_that_name_with_another_uid_is_left_alone() {
    let fake = Fake::new();
    run(&fake).await;
    fake.world().node.as_mut().unwrap()["metadata"]["uid"] = json!("node-2");
    assert_eq!(undo(&fake, "op-1").await, Uncordon::NotOurs);
    assert_eq!(node(&fake)["spec"]["unschedulable"], true);
}

#[tokio::test]
async fn a_node_that_changes_under_the_write_is_read_again() {
    let fake = Fake::new();
    fake.world().conflicts = 3;
    assert_eq!(run(&fake).await.outcome, DrainOutcome::Drained);
    assert_eq!(fake.count(&Method::GET, NODE), 4);
    fake.world().conflicts = 3;
    assert_eq!(undo(&fake, "op-1").await, Uncordon::Undone);

    fake.world().conflicts = usize::MAX;
    let error = Ask::default().try_run(&fake).await.unwrap_err();
    assert!(matches!(error, DrainError::Contended { .. }), "{error}");
}
