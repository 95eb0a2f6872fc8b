//! Creating and changing a TalosMachine.
#![allow(clippy::expect_used)] // helpers of tests are no tests to clippy

mod support;

use serde_json::{Value, json};
use support::*;

const PATH: &str = "/validate-ichor-maesh-dev-v1alpha1-talosmachine";

async fn create(api: &FakeApi, user: &str, new: &Value) -> Value {
    api.ask(
        PATH,
        &review("CREATE", "talosmachines", user, None, Some(new)),
    )
    .await
}

async fn update(api: &FakeApi, user: &str, old: &Value, new: &Value) -> Value {
    api.ask(
        PATH,
        &review("UPDATE", "talosmachines", user, Some(old), Some(new)),
    )
    .await
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    object.pointer_mut(parent).expect("the parent")[key] = value;
    object
}

fn owned(object: Value) -> Value {
    with(
        object,
        "/metadata/ownerReferences",
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "owner"}]),
    )
}

fn new_worker() -> Value {
    let mut machine = worker("worker-2", 22);
    machine["metadata"]
        .as_object_mut()
        .expect("map")
        .remove("finalizers");
    machine.as_object_mut().expect("map").remove("status");
    machine
}

#[tokio::test]
async fn an_address_or_node_name_that_another_machine_has_is_refused() {
    let api = FakeApi::demo();
    assert_allowed("its own", &create(&api, EVE, &new_worker()).await);
    for (spelling, taken_by) in [
        ("192.0.2.1", "cp-1"),
        ("192.0.2.1:50000", "cp-1"),
        ("192.0.2.21", "worker-1"),
    ] {
        let new = with(new_worker(), "/spec/address", json!(spelling));
        let text =
            format!("spec.address \"{spelling}\" belongs to TalosMachine {taken_by} already");
        assert_refused(
            spelling,
            &create(&api, EVE, &new).await,
            403,
            &[&text, "[rule: unique]"],
        );
        let corrected = update(&api, EVE, &new_worker(), &new).await;
        assert_refused(spelling, &corrected, 403, &[&text]);
    }
    let other_port = with(new_worker(), "/spec/address", json!("192.0.2.1:50001"));
    assert_allowed("another port", &create(&api, EVE, &other_port).await);

    api.change_machine("cp-1", |m| m["spec"]["nodeName"] = json!("node-1"));
    let new = with(new_worker(), "/spec/nodeName", json!("node-1"));
    let text = "spec.nodeName \"node-1\" belongs to TalosMachine cp-1 already";
    assert_refused("node name", &create(&api, EVE, &new).await, 403, &[text]);
    let other_cluster = with(new, "/spec/clusterRef/name", json!("other"));
    assert_allowed(
        "in another cluster",
        &create(&api, EVE, &other_cluster).await,
    );
}

#[tokio::test]
async fn a_holder_of_override_cannot_take_an_address_either() {
    let api = FakeApi::demo();
    let new = with(new_worker(), "/spec/address", json!("192.0.2.1"));
    assert_refused(
        "holder",
        &create(&api, OTTO, &new).await,
        403,
        &["[rule: unique]"],
    );
}

#[tokio::test]
async fn an_address_may_be_corrected_at_any_time_but_the_node_name_is_frozen_in_a_removal() {
    let api = FakeApi::demo();
    let old = being_deleted(with(
        control_plane("cp-1", 1),
        "/spec/nodeName",
        json!("node-1"),
    ));
    let moved = with(old.clone(), "/spec/address", json!("192.0.2.99"));
    assert_allowed("address", &update(&api, EVE, &old, &moved).await);
    for other in [json!("node-9"), Value::Null] {
        let renamed = with(old.clone(), "/spec/nodeName", other);
        for user in [EVE, OTTO] {
            let response = update(&api, user, &old, &renamed).await;
            assert_refused(
                user,
                &response,
                403,
                &[
                    "spec.nodeName of TalosMachine cp-1 stands still",
                    "(node-1 stays)",
                    "[rule: frozen]",
                ],
            );
        }
    }
    let alive = with(control_plane("cp-1", 1), "/spec/nodeName", json!("node-1"));
    let renamed = with(alive.clone(), "/spec/nodeName", json!("node-9"));
    assert_allowed(
        "not being deleted",
        &update(&api, EVE, &alive, &renamed).await,
    );
}

#[tokio::test]
async fn a_second_control_plane_is_not_approved_where_one_is_declared() {
    let pending = with(control_plane("cp-2", 2), "/spec/approved", json!(false));
    let approved = control_plane("cp-2", 2);
    let single = || {
        let api = FakeApi::demo();
        api.change_cluster(|c| c["spec"]["controlPlane"]["count"] = json!(1));
        api.remove_machine("cp-2");
        api.remove_machine("cp-3");
        api
    };
    let api = single();
    let texts = [
        "control plane cp-2 is not approved",
        "count is 1 and cp-1 is approved already (1 now, 2 after)",
        "[rule: single-control-plane]",
    ];
    assert_refused(
        "approve",
        &update(&api, EVE, &pending, &approved).await,
        403,
        &texts,
    );
    assert_refused(
        "create approved",
        &create(&api, EVE, &approved).await,
        403,
        &texts,
    );
    assert_refused(
        "a holder",
        &update(&api, OTTO, &pending, &approved).await,
        403,
        &texts,
    );
    assert_allowed("pending", &create(&api, EVE, &pending).await);
    assert_allowed("a worker", &create(&api, EVE, &new_worker()).await);

    let api = single();
    api.change_cluster(|c| c["spec"]["controlPlane"]["count"] = json!(3));
    assert_allowed(
        "three declared",
        &update(&api, EVE, &pending, &approved).await,
    );
    let api = single();
    api.remove_machine("cp-1");
    api.machine(pending.clone());
    assert_allowed(
        "the first one",
        &update(&api, EVE, &pending, &approved).await,
    );
    let api = single();
    api.remove_cluster();
    assert_allowed(
        "no cluster yet",
        &update(&api, EVE, &pending, &approved).await,
    );
}

#[tokio::test]
async fn the_last_worker_is_not_unapproved_except_under_override() {
    let old = worker("worker-1", 21);
    let new = with(old.clone(), "/spec/approved", json!(false));
    let api = FakeApi::demo();
    assert_allowed(
        "control planes take workloads",
        &update(&api, EVE, &old, &new).await,
    );
    api.change_cluster(|c| c["spec"]["schedulable"] = json!("false"));
    let texts = [
        "worker-1 is the last approved worker",
        "(1 now, 0 after)",
        "[rule: last-worker]",
    ];
    assert_refused("last", &update(&api, EVE, &old, &new).await, 403, &texts);
    let response = update(&api, OTTO, &old, &new).await;
    assert_allowed("a holder", &response);
    assert_eq!(
        response["auditAnnotations"]["rule"],
        "override of last-worker"
    );
    // The waiver of a removal is none of this.
    let waived = annotated(old.clone(), &[("allow-last-worker", "true")]);
    let still = with(waived.clone(), "/spec/approved", json!(false));
    assert_refused(
        "annotated",
        &update(&api, EVE, &waived, &still).await,
        403,
        &texts,
    );
    // Un-approving one that is being deleted would take it past the rule under the lock.
    let deleted = being_deleted(old.clone());
    let given_up = with(deleted.clone(), "/spec/approved", json!(false));
    assert_refused(
        "deleted",
        &update(&api, EVE, &deleted, &given_up).await,
        403,
        &texts,
    );
    api.machine(worker("worker-2", 22));
    assert_allowed("two", &update(&api, EVE, &old, &new).await);
}

#[tokio::test]
async fn annotations_that_waive_a_rule_need_the_verb() {
    for (annotation, value) in [
        ("allow-last-worker", "true"),
        ("adopt-cluster", "another-uid"),
    ] {
        let api = FakeApi::demo();
        let plain = worker("worker-1", 21);
        let marked = annotated(plain.clone(), &[(annotation, value)]);
        let created = annotated(new_worker(), &[(annotation, value)]);
        let text = format!(
            "setting annotation ichor.maesh.dev/{annotation} on TalosMachine worker-1 needs the verb override"
        );
        assert_refused(
            annotation,
            &update(&api, EVE, &plain, &marked).await,
            403,
            &[&text, "which eve does not hold", "ichor-override-role"],
        );
        assert_refused(
            annotation,
            &create(&api, EVE, &created).await,
            403,
            &["needs the verb override on talosmachines worker-2"],
        );
        assert_allowed(annotation, &update(&api, OTTO, &plain, &marked).await);
        assert_allowed(annotation, &create(&api, OTTO, &created).await);
        // Standing already, or taken off: no new waiver.
        let relabelled = with(marked.clone(), "/metadata/labels", json!({"a": "b"}));
        assert_allowed("standing", &update(&api, EVE, &marked, &relabelled).await);
        assert_allowed("taken off", &update(&api, EVE, &marked, &plain).await);
        api.fault("subjectaccessreviews", Fault::Status(500));
        assert_refused(
            "cannot tell",
            &update(&api, OTTO, &plain, &marked).await,
            503,
            &["holds the verb override"],
        );
    }
    let api = FakeApi::demo();
    let plain = worker("worker-1", 21);
    let no = annotated(plain.clone(), &[("allow-last-worker", "false")]);
    assert_allowed("waives nothing", &update(&api, EVE, &plain, &no).await);
    let adopted = annotated(plain.clone(), &[("adopt-cluster", "a")]);
    let other = annotated(plain, &[("adopt-cluster", "b")]);
    assert_refused(
        "changed",
        &update(&api, EVE, &adopted, &other).await,
        403,
        &["needs-override"],
    );
}

#[tokio::test]
async fn gaining_an_owner_asks_what_a_deletion_would() {
    let api = FakeApi::demo();
    let plain = control_plane("cp-1", 1);
    let annotated = deletable(plain.clone());
    let texts = [
        "an ownerReference lets the garbage collector delete the object",
        "TalosMachine cp-1 is protected against deletion",
        "[rule: allow-delete]",
    ];
    for user in [EVE, OTTO, ARGOCD, GARBAGE_COLLECTOR] {
        let response = update(&api, user, &plain, &owned(plain.clone())).await;
        assert_refused(user, &response, 403, &texts);
    }
    assert_allowed(
        "annotated",
        &update(&api, EVE, &annotated, &owned(annotated.clone())).await,
    );
    assert_allowed(
        "losing one",
        &update(&api, EVE, &owned(plain.clone()), &plain).await,
    );
    let deleted = being_deleted(plain.clone());
    assert_allowed(
        "deleted",
        &update(&api, EVE, &deleted, &owned(deleted.clone())).await,
    );

    api.remove_machine("cp-3");
    let response = update(&api, EVE, &annotated, &owned(annotated.clone())).await;
    assert_refused(
        "quorum",
        &response,
        403,
        &[
            "an ownerReference",
            "would leave 1 of 2 control planes",
            "[rule: quorum]",
        ],
    );

    let response = create(&api, EVE, &owned(new_worker())).await;
    assert_refused(
        "created with one",
        &response,
        403,
        &["an ownerReference", "TalosMachine worker-2"],
    );
    assert_allowed(
        "created, annotated",
        &create(&api, EVE, &owned(deletable(new_worker()))).await,
    );
}

#[tokio::test]
async fn what_changes_nothing_of_concern_is_not_looked_into() {
    let api = FakeApi::demo();
    let plain = control_plane("cp-1", 1);
    let relabelled = with(plain.clone(), "/metadata/labels", json!({"a": "b"}));
    assert_allowed("label", &update(&api, EVE, &plain, &relabelled).await);
    let stripped = with(plain.clone(), "/metadata/finalizers", json!([]));
    assert_allowed(
        "agent",
        &update(&api, AGENT, &plain, &owned(stripped)).await,
    );
    assert_allowed(
        "agent creates",
        &create(
            &api,
            AGENT,
            &with(new_worker(), "/spec/address", json!("192.0.2.1")),
        )
        .await,
    );
    assert_eq!(api.calls(), []);
}

#[tokio::test]
async fn a_machine_of_a_cluster_that_is_not_there_yet_may_be_created() {
    let api = FakeApi::demo();
    api.remove_cluster();
    assert_allowed(
        "machine first",
        &create(&api, EVE, &control_plane("cp-9", 9)).await,
    );
    let response = create(&api, EVE, &control_plane("cp-9", 1)).await;
    assert_refused("still unique", &response, 403, &["[rule: unique]"]);
}

#[tokio::test]
async fn what_cannot_be_read_or_understood_is_refused_and_nothing_crashes() {
    let api = FakeApi::demo();
    let machine = new_worker();
    let unknown_role = with(machine.clone(), "/spec/role", json!("gateway"));
    assert_refused(
        "role",
        &create(&api, EVE, &unknown_role).await,
        400,
        &["talosmachines worker-2 cannot be judged", "gateway"],
    );
    let no_spec = json!({"metadata": {"name": "x"}});
    assert_refused(
        "no spec",
        &create(&api, EVE, &no_spec).await,
        400,
        &["spec"],
    );
    let odd = with(machine.clone(), "/spec/approved", json!("yes"));
    assert_refused(
        "odd",
        &update(&api, EVE, &machine, &odd).await,
        400,
        &["cannot be judged"],
    );
    let long = with(machine.clone(), "/metadata/name", json!("x".repeat(300)));
    assert_allowed("long", &create(&api, EVE, &long).await);
    let mut nameless = with(machine.clone(), "/metadata/name", Value::Null);
    nameless["metadata"]["generateName"] = json!("worker-");
    assert_allowed("generated", &create(&api, EVE, &nameless).await);
    for part in ["/talosclusters/demo", "/talosmachines"] {
        api.heal();
        api.fault(part, Fault::Hang);
        assert_refused(
            part,
            &create(&api, EVE, &machine).await,
            503,
            &["cannot tell"],
        );
    }
}
