//! What is left behind after a gate was crossed by the verb `override`.
#![allow(clippy::expect_used)] // helpers of tests are no tests to clippy

mod support;

use std::sync::Arc;
use std::time::Duration;

use ichor_webhook::{Judge, Limits};
use serde_json::{Value, json};
use support::*;

const MACHINE: &str = "/validate-ichor-maesh-dev-v1alpha1-talosmachine";
const CLUSTER: &str = "/validate-ichor-maesh-dev-v1alpha1-taloscluster";
const GATE: &str = "/validate-ichor-maesh-dev-v1alpha1-override";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events/";

fn patient(api: &FakeApi) -> Arc<Judge> {
    api.judge_within(Limits {
        persisted_within: Duration::from_secs(30),
        ..Limits::default()
    })
}

fn last_worker() -> (FakeApi, Value) {
    let api = FakeApi::demo();
    api.change_cluster(|c| c["spec"]["schedulable"] = json!("false"));
    let worker = deletable(api.get_machine("worker-1"));
    (api, worker)
}

async fn settled(judge: &Arc<Judge>) {
    tokio::time::timeout(Duration::from_mins(1), judge.settled())
        .await
        .expect("the recording ends");
}

fn delete_in_store(api: &FakeApi) {
    api.change_machine("worker-1", |m| {
        m["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
}

#[tokio::test]
async fn a_waived_deletion_is_recorded_for_the_agent_and_for_people() {
    let (api, worker) = last_worker();
    let judge = patient(&api);
    let request = review("DELETE", "talosmachines", OTTO, Some(&worker), None);
    assert_allowed("waived", &ask(&judge, MACHINE, &request).await);
    assert_eq!(api.under(EVENTS).len(), 0, "not before it has persisted");
    delete_in_store(&api);
    settled(&judge).await;

    let machine = api.get_machine("worker-1");
    assert_eq!(machine["status"]["removal"]["lastWorkerWaivedBy"], "otto");
    assert_eq!(
        machine["status"]["identity"]["clusterUID"], "cluster-uid",
        "nothing else is touched"
    );
    let events = api.under(EVENTS);
    assert_eq!(events.len(), 1);
    let event = &events[0];
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "Override");
    assert_eq!(event["action"], "delete");
    assert_eq!(event["note"], "delete worker-1 by otto under override");
    assert_eq!(event["regarding"]["kind"], "TalosMachine");
    assert_eq!(event["regarding"]["uid"], "uid-worker-1");
    assert_eq!(event["reportingController"], "ichor.maesh.dev/webhook");
    assert_eq!(event["reportingInstance"], "ichor-agent-0");
    assert!(event["eventTime"].is_string());
    let entries = api.get_cluster()["status"]["overrides"].clone();
    assert_eq!(entries.as_array().map(Vec::len), Some(1));
    for (key, value) in [
        ("verb", "delete"),
        ("kind", "TalosMachine"),
        ("name", "worker-1"),
        ("user", "otto"),
    ] {
        assert_eq!(entries[0][key], value);
    }
    assert!(entries[0]["time"].is_string());
}

#[tokio::test]
async fn a_dry_run_is_judged_and_leaves_no_event() {
    let (api, worker) = last_worker();
    let judge = patient(&api);
    let mut request = review("DELETE", "talosmachines", OTTO, Some(&worker), None);
    request["request"]["dryRun"] = json!(true);
    assert_allowed("dry", &ask(&judge, MACHINE, &request).await);
    let mut refused = review("DELETE", "talosmachines", EVE, Some(&worker), None);
    refused["request"]["dryRun"] = json!(true);
    assert_refused(
        "dry",
        &ask(&judge, MACHINE, &refused).await,
        403,
        &["last-worker"],
    );
    delete_in_store(&api);
    settled(&judge).await;
    assert_eq!(api.under(EVENTS).len(), 0);
    assert_eq!(
        api.get_machine("worker-1")["status"]["removal"],
        Value::Null
    );
}

#[tokio::test]
async fn a_write_that_never_persists_records_nothing() {
    let (api, worker) = last_worker();
    let judge = api.judge_within(Limits {
        persisted_within: Duration::from_millis(200),
        ..Limits::default()
    });
    let request = review("DELETE", "talosmachines", OTTO, Some(&worker), None);
    assert_allowed("waived", &ask(&judge, MACHINE, &request).await);
    settled(&judge).await;
    assert_eq!(api.under(EVENTS).len(), 0);
    assert_eq!(api.get_cluster()["status"], Value::Null);
}

#[tokio::test]
async fn a_waiver_is_not_written_on_a_successor_of_the_same_name() {
    let (api, worker) = last_worker();
    let judge = patient(&api);
    let request = review("DELETE", "talosmachines", OTTO, Some(&worker), None);
    assert_allowed("waived", &ask(&judge, MACHINE, &request).await);
    api.change_machine("worker-1", |m| m["metadata"]["uid"] = json!("another"));
    settled(&judge).await;
    assert_eq!(
        api.get_machine("worker-1")["status"]["removal"],
        Value::Null
    );
    assert_eq!(api.under(EVENTS)[0]["regarding"]["uid"], "uid-worker-1");
}

#[tokio::test]
async fn an_update_is_recorded_once_it_shows_and_by_its_own_verb() {
    let (api, _) = last_worker();
    let judge = patient(&api);
    let old = api.get_machine("worker-1");
    let mut new = old.clone();
    new["spec"]["approved"] = json!(false);
    let request = review("UPDATE", "talosmachines", OTTO, Some(&old), Some(&new));
    assert_allowed("waived", &ask(&judge, MACHINE, &request).await);
    // Somebody else's write is not the one that was admitted.
    api.change_machine("worker-1", |m| m["metadata"]["labels"] = json!({"a": "b"}));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(api.under(EVENTS).len(), 0);
    api.change_machine("worker-1", |m| m["spec"]["approved"] = json!(false));
    settled(&judge).await;
    assert_eq!(
        api.under(EVENTS)[0]["note"],
        "update worker-1 by otto under override"
    );
    assert_eq!(
        api.get_machine("worker-1")["status"]["removal"],
        Value::Null,
        "no removal was waived"
    );
}

#[tokio::test]
async fn a_stripped_finalizer_is_recorded_though_the_object_is_gone() {
    let api = FakeApi::demo();
    let judge = patient(&api);
    api.machine(being_deleted(control_plane("cp-1", 1)));
    let old = api.get_machine("cp-1");
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!([]);
    let request = review("UPDATE", "talosmachines", OTTO, Some(&old), Some(&new));
    assert_allowed("forced", &ask(&judge, GATE, &request).await);
    api.remove_machine("cp-1");
    settled(&judge).await;
    let event = &api.under(EVENTS)[0];
    assert_eq!(event["note"], "update cp-1 by otto under override");
    assert_eq!(event["regarding"]["uid"], "uid-cp-1");
    assert_eq!(api.get_cluster()["status"]["overrides"][0]["name"], "cp-1");
}

#[tokio::test]
async fn a_created_object_is_recorded_under_the_uid_it_got() {
    let api = FakeApi::demo();
    let judge = patient(&api);
    let mut new = annotated(worker("worker-2", 22), &[("allow-last-worker", "true")]);
    new["metadata"].as_object_mut().expect("map").remove("uid");
    let request = review("CREATE", "talosmachines", OTTO, None, Some(&new));
    assert_allowed("forced", &ask(&judge, MACHINE, &request).await);
    let mut stored = new.clone();
    stored["metadata"]["uid"] = json!("given");
    api.machine(stored);
    settled(&judge).await;
    assert_eq!(api.under(EVENTS)[0]["regarding"]["uid"], "given");
}

#[tokio::test]
async fn one_write_that_two_paths_let_through_is_one_event() {
    let (api, _) = last_worker();
    let judge = patient(&api);
    let old = api.get_machine("worker-1");
    let mut new = old.clone();
    new["spec"]["approved"] = json!(false);
    new["metadata"]["finalizers"] = json!([]);
    let request = review("UPDATE", "talosmachines", OTTO, Some(&old), Some(&new));
    assert_allowed("machine", &ask(&judge, MACHINE, &request).await);
    assert_allowed("gate", &ask(&judge, GATE, &request).await);
    api.change_machine("worker-1", |m| {
        m["spec"]["approved"] = json!(false);
        m["metadata"]["finalizers"] = json!([]);
    });
    settled(&judge).await;
    assert_eq!(api.under(EVENTS).len(), 1);
    assert_eq!(
        api.get_cluster()["status"]["overrides"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
}

#[tokio::test]
async fn a_cluster_remembers_the_last_fifty() {
    let api = FakeApi::demo();
    api.remove_machine("worker-1");
    let entry = |n: usize| json!({"verb": "update", "kind": "TalosMachine", "name": format!("m-{n}"), "user": "x", "time": "2026-01-01T00:00:00Z"});
    api.change_cluster(|c| c["status"]["overrides"] = (0..50).map(entry).collect());
    let judge = patient(&api);
    let old = api.get_cluster();
    let mut new = old.clone();
    new["spec"]["schedulable"] = json!("false");
    let request = review("UPDATE", "talosclusters", OTTO, Some(&old), Some(&new));
    assert_allowed("waived", &ask(&judge, CLUSTER, &request).await);
    api.change_cluster(|c| c["spec"]["schedulable"] = json!("false"));
    settled(&judge).await;
    let list = api.get_cluster()["status"]["overrides"]
        .as_array()
        .cloned()
        .expect("a list");
    assert_eq!(list.len(), 50);
    assert_eq!(list[0]["name"], "m-1");
    assert_eq!(list[49]["name"], "demo");
    assert_eq!(list[49]["kind"], "TalosCluster");
}

#[tokio::test]
async fn a_failing_event_still_leaves_the_agent_its_waiver() {
    let (api, worker) = last_worker();
    let judge = patient(&api);
    api.fault("/events", Fault::Status(403));
    let request = review("DELETE", "talosmachines", OTTO, Some(&worker), None);
    assert_allowed("waived", &ask(&judge, MACHINE, &request).await);
    delete_in_store(&api);
    settled(&judge).await;
    assert_eq!(
        api.get_machine("worker-1")["status"]["removal"]["lastWorkerWaivedBy"],
        "otto"
    );
}
