//! Deleting a TalosMachine: verbs, people, states.
#![allow(clippy::expect_used)] // helpers of tests are no tests to clippy

mod support;

use serde_json::{Value, json};
use support::*;

const PATH: &str = "/validate-ichor-maesh-dev-v1alpha1-talosmachine";

async fn delete(api: &FakeApi, user: &str, machine: &Value) -> Value {
    api.ask(
        PATH,
        &review("DELETE", "talosmachines", user, Some(machine), None),
    )
    .await
}

type Setup = fn(&FakeApi);

struct Case {
    name: &'static str,
    user: &'static str,
    setup: Setup,
    machine: fn() -> Value,
    /// None: allowed.
    refused: Option<&'static [&'static str]>,
}

fn grow(api: &FakeApi) {
    api.machine(control_plane("cp-4", 4));
}

fn unschedulable(api: &FakeApi) {
    api.change_cluster(|c| c["spec"]["schedulable"] = json!("false"));
}

fn terminating_namespace(api: &FakeApi) {
    api.change("/api/v1/namespaces/default", |n| {
        n["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
}

fn teardown(api: &FakeApi) {
    api.change_cluster(|c| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
}

fn only_two(api: &FakeApi) {
    api.remove_machine("cp-3");
}

fn only_one(api: &FakeApi) {
    api.remove_machine("cp-2");
    api.remove_machine("cp-3");
}

fn cp1() -> Value {
    deletable(control_plane("cp-1", 1))
}

fn unannotated() -> Value {
    control_plane("cp-1", 1)
}

fn last_worker() -> Value {
    deletable(worker("worker-1", 21))
}

fn never_recorded() -> Value {
    let mut machine = cp1();
    machine.as_object_mut().expect("map").remove("status");
    machine
}

const ANNOTATION: &[&str] = &[
    "TalosMachine cp-1 is protected against deletion",
    "kubectl annotate tm cp-1 ichor.maesh.dev/allow-delete=true",
    "[rule: allow-delete]",
];
const TWO: &[&str] = &[
    "removing cp-1 would leave 1 of 2 control planes",
    "fewer than the 2 that are a majority of 2",
    "[rule: quorum]",
];
const LAST: &[&str] = &[
    "cp-1 is the last control plane",
    "(1 now, 0 after)",
    "[rule: quorum]",
];
const LAST_WORKER: &[&str] = &[
    "worker-1 is the last approved worker",
    "(1 now, 0 after)",
    "ichor.maesh.dev/allow-last-worker",
    "[rule: last-worker]",
];

fn cases() -> Vec<Case> {
    let case = |name, user, setup: Setup, machine: fn() -> Value, refused| Case {
        name,
        user,
        setup,
        machine,
        refused,
    };
    let none: Setup = |_| {};
    vec![
        // allow-delete
        case("annotated, three control planes", EVE, none, cp1, None),
        case(
            "without the annotation",
            EVE,
            none,
            unannotated,
            Some(ANNOTATION),
        ),
        case(
            "a holder of override needs the annotation too",
            OTTO,
            none,
            unannotated,
            Some(ANNOTATION),
        ),
        case(
            "Argo CD needs the annotation too",
            ARGOCD,
            none,
            unannotated,
            Some(ANNOTATION),
        ),
        case(
            "the annotation says something else",
            EVE,
            none,
            || annotated(unannotated(), &[("allow-delete", "yes")]),
            Some(ANNOTATION),
        ),
        case(
            "the garbage collector needs none",
            GARBAGE_COLLECTOR,
            none,
            unannotated,
            None,
        ),
        case(
            "the namespace controller needs none",
            NAMESPACE_CONTROLLER,
            none,
            unannotated,
            None,
        ),
        case(
            "the controller manager needs none",
            CONTROLLER_MANAGER,
            none,
            unannotated,
            None,
        ),
        case(
            "the agent passes by its name",
            AGENT,
            only_one,
            unannotated,
            None,
        ),
        case(
            "an account of its name elsewhere does not",
            "system:serviceaccount:default:ichor-agent",
            none,
            unannotated,
            Some(ANNOTATION),
        ),
        // quorum
        case("two control planes", EVE, only_two, cp1, Some(TWO)),
        case(
            "quorum holds for a holder of override",
            OTTO,
            only_two,
            cp1,
            Some(TWO),
        ),
        case(
            "quorum holds for the garbage collector",
            GARBAGE_COLLECTOR,
            only_two,
            unannotated,
            Some(TWO),
        ),
        case(
            "quorum holds for the namespace controller outside a terminating namespace",
            NAMESPACE_CONTROLLER,
            only_two,
            unannotated,
            Some(TWO),
        ),
        case(
            "quorum holds for the controller manager",
            CONTROLLER_MANAGER,
            only_one,
            unannotated,
            Some(LAST),
        ),
        case("the last control plane", EVE, only_one, cp1, Some(LAST)),
        case("four control planes", EVE, grow, cp1, None),
        case(
            "a sibling being deleted is gone already",
            EVE,
            |api| api.machine(being_deleted(control_plane("cp-3", 3))),
            cp1,
            Some(TWO),
        ),
        case(
            "a pending sibling does not count",
            EVE,
            |api| {
                api.change_machine("cp-3", |m| {
                    m["spec"]["approved"] = json!(false);
                    m["metadata"]["finalizers"] = json!([]);
                });
            },
            cp1,
            Some(TWO),
        ),
        case(
            "a sibling with the finalizer counts whatever approved says",
            EVE,
            |api| api.change_machine("cp-3", |m| m["spec"]["approved"] = json!(false)),
            cp1,
            None,
        ),
        case(
            "a sibling of another cluster does not count",
            EVE,
            |api| api.change_machine("cp-3", |m| m["spec"]["clusterRef"]["name"] = json!("other")),
            cp1,
            Some(TWO),
        ),
        case(
            "a sibling that never voted does not count",
            EVE,
            |api| {
                api.change_machine("cp-3", |m| {
                    m["status"]["conditions"] = not_joined("NeverVoter");
                });
            },
            cp1,
            Some(TWO),
        ),
        case(
            "a sibling whose name is taken is no record of a vote",
            EVE,
            |api| {
                api.change_machine("cp-3", |m| {
                    m["status"]["conditions"] = not_joined("NameTaken");
                });
            },
            cp1,
            None,
        ),
        case(
            "a target that never voted may go at any time",
            EVE,
            |api| {
                only_two(api);
                api.change_machine("cp-1", |m| {
                    m["status"]["conditions"] = not_joined("MemberGone");
                });
            },
            cp1,
            None,
        ),
        case(
            "being deleted already",
            EVE,
            only_one,
            || being_deleted(unannotated()),
            None,
        ),
        // adopted
        case(
            "an approved control plane without the finalizer",
            EVE,
            none,
            || {
                let mut machine = cp1();
                machine["metadata"]["finalizers"] = json!([]);
                machine
            },
            Some(&[
                "control plane cp-1 is not adopted yet",
                "Try again",
                "[rule: adopted]",
            ]),
        ),
        case(
            "an unapproved control plane without the finalizer",
            EVE,
            |api| {
                api.change_machine("cp-1", |m| {
                    m["spec"]["approved"] = json!(false);
                    m["metadata"]["finalizers"] = json!([]);
                });
            },
            || {
                let mut machine = cp1();
                machine["spec"]["approved"] = json!(false);
                machine["metadata"]["finalizers"] = json!([]);
                machine
            },
            None,
        ),
        case(
            "an approved worker without the finalizer",
            EVE,
            none,
            || {
                let mut machine = last_worker();
                machine["metadata"]["finalizers"] = json!([]);
                machine
            },
            None,
        ),
        // last worker
        case(
            "the last worker where control planes take workloads",
            EVE,
            none,
            last_worker,
            None,
        ),
        case(
            "the last worker where they do not",
            EVE,
            unschedulable,
            last_worker,
            Some(LAST_WORKER),
        ),
        case(
            "a holder of override waives it",
            OTTO,
            unschedulable,
            last_worker,
            None,
        ),
        case(
            "so does the annotation",
            EVE,
            unschedulable,
            || annotated(last_worker(), &[("allow-last-worker", "true")]),
            None,
        ),
        case(
            "the annotation is no consent to the deletion",
            EVE,
            unschedulable,
            || annotated(worker("worker-1", 21), &[("allow-last-worker", "true")]),
            Some(&["TalosMachine worker-1 is protected"]),
        ),
        case(
            "the garbage collector does not waive it",
            GARBAGE_COLLECTOR,
            unschedulable,
            last_worker,
            Some(LAST_WORKER),
        ),
        case(
            "another worker is there",
            EVE,
            |api| {
                unschedulable(api);
                api.machine(worker("worker-2", 22));
            },
            last_worker,
            None,
        ),
        case(
            "another one being deleted does not count",
            EVE,
            |api| {
                unschedulable(api);
                api.machine(being_deleted(worker("worker-2", 22)));
            },
            last_worker,
            Some(LAST_WORKER),
        ),
        case(
            "an unapproved worker is never the last one",
            EVE,
            unschedulable,
            || {
                let mut machine = last_worker();
                machine["spec"]["approved"] = json!(false);
                machine
            },
            None,
        ),
        // teardown and its look-alikes
        case(
            "the cluster is being torn down",
            EVE,
            |api| {
                teardown(api);
                only_one(api);
            },
            unannotated,
            None,
        ),
        case(
            "another cluster of that name is being torn down: allow-delete alone",
            EVE,
            |api| {
                teardown(api);
                only_one(api);
                api.change_cluster(|c| c["metadata"]["uid"] = json!("another"));
            },
            unannotated,
            Some(ANNOTATION),
        ),
        case(
            "a machine that recorded no cluster is not let go by a teardown",
            EVE,
            |api| {
                teardown(api);
                only_one(api);
            },
            never_recorded,
            Some(LAST),
        ),
        case(
            "the cluster is gone: allow-delete alone",
            EVE,
            |api| {
                api.remove_cluster();
                only_one(api);
            },
            cp1,
            None,
        ),
        case(
            "the cluster is gone, no annotation",
            EVE,
            FakeApi::remove_cluster,
            unannotated,
            Some(ANNOTATION),
        ),
        case(
            "the cluster was replaced: allow-delete alone",
            EVE,
            |api| {
                only_one(api);
                api.change_cluster(|c| c["metadata"]["uid"] = json!("another"));
            },
            cp1,
            None,
        ),
        case(
            "a cluster re-created over the same etcd is the same one",
            EVE,
            |api| {
                only_one(api);
                api.change_cluster(|c| {
                    c["metadata"]["uid"] = json!("another");
                    c["status"]["etcd"]["clusterID"] = json!("0000000000000abc");
                });
            },
            || {
                let mut machine = cp1();
                machine["status"]["identity"]["etcdClusterID"] = json!("0000000000000abc");
                machine
            },
            Some(LAST),
        ),
        case(
            "the namespace is terminating",
            EVE,
            |api| {
                terminating_namespace(api);
                only_one(api);
                unschedulable(api);
            },
            unannotated,
            None,
        ),
    ]
}

fn not_joined(reason: &str) -> Value {
    json!([{"type": "Joined", "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
}

#[tokio::test]
async fn a_deletion_is_judged_by_who_asks_and_how_the_cluster_stands() {
    for case in cases() {
        let api = FakeApi::demo();
        (case.setup)(&api);
        let response = delete(&api, case.user, &(case.machine)()).await;
        match case.refused {
            None => assert_allowed(case.name, &response),
            Some(parts) => assert_refused(case.name, &response, 403, parts),
        }
        assert_eq!(
            response["auditAnnotations"]["user"], case.user,
            "{}",
            case.name
        );
    }
}

#[tokio::test]
async fn the_agent_and_what_is_being_deleted_pass_without_a_read() {
    let api = FakeApi::demo();
    assert_allowed("agent", &delete(&api, AGENT, &unannotated()).await);
    assert_allowed(
        "deleted",
        &delete(&api, EVE, &being_deleted(unannotated())).await,
    );
    assert_eq!(api.calls(), []);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_503_and_the_cause() {
    for (part, cause) in [
        (
            "/namespaces/default/talosmachines",
            "talosmachines in default",
        ),
        ("/talosclusters/demo", "TalosCluster default/demo"),
        ("/api/v1/namespaces/default", "Namespace default"),
    ] {
        for fault in [Fault::Status(500), Fault::Status(403), Fault::Hang] {
            let api = FakeApi::demo();
            api.fault(part, fault.clone());
            let response = delete(&api, EVE, &cp1()).await;
            let name = format!("{part} {fault:?}");
            assert_refused(&name, &response, 503, &["cannot tell", cause]);
            assert_eq!(response["auditAnnotations"]["rule"], "cannot-tell");
        }
    }
}

#[tokio::test]
async fn a_failing_access_review_waives_nothing() {
    for fault in [Fault::Status(500), Fault::Hang] {
        let api = FakeApi::demo();
        unschedulable(&api);
        api.fault("subjectaccessreviews", fault);
        let response = delete(&api, OTTO, &last_worker()).await;
        assert_refused(
            "review fails",
            &response,
            503,
            &["whether otto holds the verb override on talosmachines worker-1"],
        );
    }
}

#[tokio::test]
async fn the_access_review_asks_about_the_very_caller() {
    let api = FakeApi::demo();
    unschedulable(&api);
    delete(&api, EVE, &last_worker()).await;
    let calls = api.calls();
    let asked = calls
        .iter()
        .find(|c| c.path.ends_with("subjectaccessreviews"))
        .expect("asked");
    assert_eq!(
        asked.body["spec"],
        json!({
            "user": "eve", "uid": "u-1", "groups": ["people", "system:authenticated"],
            "extra": {"scopes.example/x": ["a", "b"]},
            "resourceAttributes": {
                "verb": "override", "group": "ichor.maesh.dev", "version": "v1alpha1",
                "resource": "talosmachines", "name": "worker-1", "namespace": "default",
            },
        })
    );
}

#[tokio::test]
async fn nobody_is_asked_about_where_no_rule_refuses() {
    let api = FakeApi::demo();
    assert_allowed("plain", &delete(&api, OTTO, &cp1()).await);
    assert!(
        api.calls().iter().all(|c| c.method == http::Method::GET),
        "{:?}",
        api.calls()
    );
}

#[tokio::test]
async fn deleting_a_collection_judges_each_by_its_own_name() {
    let api = FakeApi::demo();
    let mut request = review("DELETE", "talosmachines", EVE, Some(&unannotated()), None);
    request["request"]["name"] = json!("");
    let response = api.ask(PATH, &request).await;
    assert_refused("collection", &response, 403, ANNOTATION);
}

#[tokio::test]
async fn what_is_admitted_but_will_wait_is_warned_of() {
    let warnings = |response: &Value| {
        let list = response["warnings"].as_array().cloned().unwrap_or_default();
        list.iter()
            .map(|w| w.as_str().expect("text").to_owned())
            .collect::<Vec<_>>()
    };
    // Three now, two after, three declared.
    let api = FakeApi::demo();
    let three = warnings(&delete(&api, EVE, &cp1()).await);
    assert_eq!(three.len(), 1, "{three:?}");
    assert!(three[0].starts_with("the removal of cp-1 will wait: removing cp-1 would leave 2 control planes, fewer than the 3 "), "{three:?}");

    // A voter that is known to be unhealthy need not wait for a fourth.
    api.change_cluster(|c| {
        c["status"]["etcd"]["members"] =
            json!([{"id": "1", "machine": "cp-1", "unhealthySince": "2026-01-01T00:00:00Z"}]);
    });
    assert_eq!(
        warnings(&delete(&api, EVE, &cp1()).await),
        Vec::<String>::new()
    );

    // Four now: nothing to wait for, unless the lock is taken.
    let api = FakeApi::demo();
    grow(&api);
    assert_eq!(
        warnings(&delete(&api, EVE, &cp1()).await),
        Vec::<String>::new()
    );
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/ichor-demo";
    api.put(lease, json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "ichor-demo"},
        "spec": {"holderIdentity": "removal/TalosMachine/cp-2/uid-cp-2@pod-1", "acquireTime": "2026-01-01T08:15:00.000000Z"}}));
    assert_eq!(
        warnings(&delete(&api, EVE, &cp1()).await),
        [
            "the removal of cp-1 will wait: the lock of cluster demo is held since 08:15:00 UTC by the removal of TalosMachine cp-2"
        ]
    );
    // Held under an identity that is no operation of ours: told as it stands.
    api.change(lease, |l| {
        l["spec"]["holderIdentity"] = json!("somebody/else");
    });
    let foreign = warnings(&delete(&api, EVE, &cp1()).await);
    assert!(foreign[0].ends_with("by somebody/else"), "{foreign:?}");
    // Held by its own removal, given back, or not to be read: nothing to say.
    api.change(lease, |l| {
        l["spec"]["holderIdentity"] = json!("removal/TalosMachine/cp-1/uid-cp-1@pod-1");
    });
    assert_eq!(
        warnings(&delete(&api, EVE, &cp1()).await),
        Vec::<String>::new()
    );
    api.change(lease, |l| l["spec"]["holderIdentity"] = json!(""));
    assert_eq!(
        warnings(&delete(&api, EVE, &cp1()).await),
        Vec::<String>::new()
    );
    api.fault("/leases/", Fault::Status(403));
    let response = delete(&api, EVE, &cp1()).await;
    assert_allowed("no lease to be read", &response);

    // A worker waits for a transition to end; a control plane may end it.
    let api = FakeApi::demo();
    grow(&api);
    api.change_cluster(|c| c["status"]["conditions"] = json!([{"type": "Transitioning", "status": "True", "reason": "EvenControlPlaneCount",
        "message": "4 control planes are approved, an even number", "lastTransitionTime": "2026-01-01T00:00:00Z"}]));
    assert_eq!(
        warnings(&delete(&api, EVE, &last_worker()).await),
        [
            "the removal of worker-1 will wait: the cluster is transitioning (EvenControlPlaneCount): 4 control planes are approved, an even number"
        ]
    );
    assert_eq!(
        warnings(&delete(&api, EVE, &cp1()).await),
        Vec::<String>::new()
    );
}
