//! What may be done to a TalosCluster, and to a guarded Namespace.
#![allow(clippy::expect_used)] // helpers of tests are no tests to clippy

mod support;

use serde_json::{Value, json};
use support::*;

const CLUSTER: &str = "/validate-ichor-maesh-dev-v1alpha1-taloscluster";
const NAMESPACE: &str = "/validate-ichor-maesh-dev-namespace";

async fn ask(
    api: &FakeApi,
    operation: &str,
    user: &str,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Value {
    api.ask(CLUSTER, &review(operation, "talosclusters", user, old, new))
        .await
}

fn schedulable(value: &str) -> Value {
    let mut cluster = cluster("demo");
    cluster["spec"]["schedulable"] = json!(value);
    cluster
}

fn owned(mut object: Value) -> Value {
    object["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "owner"}]);
    object
}

#[tokio::test]
async fn a_cluster_is_deleted_with_the_annotation_or_by_a_cascade() {
    let api = FakeApi::demo();
    let plain = cluster("demo");
    let texts = [
        "TalosCluster demo is protected against deletion",
        "kubectl annotate tcl demo ichor.maesh.dev/allow-delete=true",
        "[rule: allow-delete]",
    ];
    for user in [
        EVE,
        OTTO,
        ARGOCD,
        "system:serviceaccount:kube-system:job-controller",
    ] {
        assert_refused(
            user,
            &ask(&api, "DELETE", user, Some(&plain), None).await,
            403,
            &texts,
        );
    }
    for user in [
        AGENT,
        GARBAGE_COLLECTOR,
        NAMESPACE_CONTROLLER,
        CONTROLLER_MANAGER,
    ] {
        assert_allowed(user, &ask(&api, "DELETE", user, Some(&plain), None).await);
    }
    assert_allowed(
        "annotated",
        &ask(&api, "DELETE", EVE, Some(&deletable(plain.clone())), None).await,
    );
    assert_allowed(
        "deleted",
        &ask(
            &api,
            "DELETE",
            EVE,
            Some(&being_deleted(plain.clone())),
            None,
        )
        .await,
    );
    api.change("/api/v1/namespaces/default", |n| {
        n["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    assert_allowed(
        "terminating",
        &ask(&api, "DELETE", EVE, Some(&plain), None).await,
    );
    api.fault("/api/v1/namespaces/default", Fault::Hang);
    assert_refused(
        "unknown",
        &ask(&api, "DELETE", EVE, Some(&plain), None).await,
        503,
        &["Namespace default"],
    );
}

#[tokio::test]
async fn deleting_a_cluster_whose_machines_will_be_wiped_says_so() {
    let api = FakeApi::demo();
    let mut reset = deletable(cluster("demo"));
    reset["spec"]["deletionPolicy"] = json!("Reset");
    let response = ask(&api, "DELETE", EVE, Some(&reset), None).await;
    assert_eq!(
        response["warnings"],
        json!(["deletionPolicy of TalosCluster demo is Reset: its machines will be wiped"])
    );
    let response = ask(&api, "DELETE", EVE, Some(&deletable(cluster("demo"))), None).await;
    assert_eq!(response["warnings"], Value::Null);
}

#[tokio::test]
async fn control_planes_are_not_closed_to_workloads_with_no_worker_to_take_them() {
    let api = FakeApi::demo();
    let (auto, no) = (schedulable("auto"), schedulable("false"));
    assert_allowed(
        "a worker is there",
        &ask(&api, "UPDATE", EVE, Some(&auto), Some(&no)).await,
    );
    let texts = [
        "spec.schedulable cannot become \"false\"",
        "no approved worker",
        "[rule: last-worker]",
    ];
    for gone in [
        (|api: &FakeApi| api.remove_machine("worker-1")) as fn(&FakeApi),
        |api| api.change_machine("worker-1", |m| m["spec"]["approved"] = json!(false)),
        |api| api.machine(being_deleted(worker("worker-1", 21))),
    ] {
        let api = FakeApi::demo();
        gone(&api);
        assert_refused(
            "none",
            &ask(&api, "UPDATE", EVE, Some(&auto), Some(&no)).await,
            403,
            &texts,
        );
        assert_refused(
            "from true",
            &ask(&api, "UPDATE", EVE, Some(&schedulable("true")), Some(&no)).await,
            403,
            &texts,
        );
        let response = ask(&api, "UPDATE", OTTO, Some(&auto), Some(&no)).await;
        assert_allowed("a holder", &response);
        assert_eq!(
            response["auditAnnotations"]["rule"],
            "override of last-worker"
        );
        assert_allowed(
            "closed already",
            &ask(&api, "UPDATE", EVE, Some(&no), Some(&no)).await,
        );
        assert_allowed(
            "opened",
            &ask(&api, "UPDATE", EVE, Some(&no), Some(&auto)).await,
        );
        assert_allowed(
            "agent",
            &ask(&api, "UPDATE", AGENT, Some(&auto), Some(&no)).await,
        );
    }
    let (going, closing) = (being_deleted(auto.clone()), being_deleted(no.clone()));
    let empty = FakeApi::demo();
    empty.remove_machine("worker-1");
    assert_allowed(
        "going away anyway",
        &ask(&empty, "UPDATE", EVE, Some(&going), Some(&closing)).await,
    );
    api.fault("/talosmachines", Fault::Status(500));
    assert_refused(
        "unknown",
        &ask(&api, "UPDATE", EVE, Some(&auto), Some(&no)).await,
        503,
        &["talosmachines in default"],
    );
}

#[tokio::test]
async fn a_cluster_gains_an_owner_only_where_it_may_be_deleted() {
    let api = FakeApi::demo();
    let plain = cluster("demo");
    let texts = [
        "an ownerReference lets the garbage collector delete",
        "TalosCluster demo is protected",
    ];
    assert_refused(
        "update",
        &ask(
            &api,
            "UPDATE",
            EVE,
            Some(&plain),
            Some(&owned(plain.clone())),
        )
        .await,
        403,
        &texts,
    );
    assert_refused(
        "a cascade",
        &ask(
            &api,
            "UPDATE",
            GARBAGE_COLLECTOR,
            Some(&plain),
            Some(&owned(plain.clone())),
        )
        .await,
        403,
        &texts,
    );
    assert_refused(
        "create",
        &ask(&api, "CREATE", EVE, None, Some(&owned(plain.clone()))).await,
        403,
        &texts,
    );
    assert_allowed(
        "annotated",
        &ask(
            &api,
            "UPDATE",
            EVE,
            Some(&plain),
            Some(&owned(deletable(plain.clone()))),
        )
        .await,
    );
    assert_allowed("plain", &ask(&api, "CREATE", EVE, None, Some(&plain)).await);
    assert_eq!(api.calls(), []);
}

fn namespace(guard: Option<&str>) -> Value {
    json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default", "uid": "ns",
        "labels": guard.map(|g| json!({"ichor.maesh.dev/guard": g}))}})
}

#[tokio::test]
async fn a_guarded_namespace_that_holds_machines_is_not_deleted() {
    let api = FakeApi::demo();
    let delete = |object: Value, user: &str| {
        let (api, request) = (
            api.clone(),
            review("DELETE", "namespaces", user, Some(&object), None),
        );
        async move { api.ask(NAMESPACE, &request).await }
    };
    let texts = [
        "Namespace default is guarded and still holds 4 TalosMachines (cp-1, cp-2, cp-3, worker-1)",
        "take label ichor.maesh.dev/guard off it",
        "[rule: namespace-guard]",
    ];
    for user in [EVE, OTTO, AGENT, NAMESPACE_CONTROLLER] {
        assert_refused(
            user,
            &delete(namespace(Some("true")), user).await,
            403,
            &texts,
        );
    }
    for n in 4..=9 {
        api.machine(control_plane(&format!("cp-{n}"), n));
    }
    assert_refused(
        "many",
        &delete(namespace(Some("true")), EVE).await,
        403,
        &["10 TalosMachines (cp-1, cp-2, cp-3, cp-4, cp-5 and 5 more)"],
    );
    assert_allowed(
        "another label",
        &delete(namespace(Some("false")), EVE).await,
    );
    assert_allowed("no label", &delete(namespace(None), EVE).await);
    assert_allowed(
        "terminating",
        &delete(being_deleted(namespace(Some("true"))), EVE).await,
    );
    api.fault("/talosmachines", Fault::Status(500));
    assert_refused(
        "unknown",
        &delete(namespace(Some("true")), EVE).await,
        503,
        &["talosmachines in default"],
    );
    api.heal();
    api.fault("/talosmachines", Fault::Status(404));
    let response = delete(namespace(Some("true")), EVE).await;
    assert_allowed("the definitions are gone", &response);
}

#[tokio::test]
async fn an_empty_guarded_namespace_is_deleted() {
    let api = FakeApi::default();
    let request = review(
        "DELETE",
        "namespaces",
        EVE,
        Some(&namespace(Some("true"))),
        None,
    );
    assert_allowed("empty", &api.ask(NAMESPACE, &request).await);
}
