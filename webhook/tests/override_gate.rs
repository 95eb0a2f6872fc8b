//! The override path: finalizers and consent.
#![allow(clippy::expect_used)] // helpers of tests are no tests to clippy

mod support;

use serde_json::{Value, json};
use support::*;

const PATH: &str = "/validate-ichor-maesh-dev-v1alpha1-override";
const EXEMPT: [&str; 5] = [
    AGENT,
    ARGOCD,
    GARBAGE_COLLECTOR,
    NAMESPACE_CONTROLLER,
    CONTROLLER_MANAGER,
];

async fn update(api: &FakeApi, resource: &str, user: &str, old: &Value, new: &Value) -> Value {
    api.ask(
        PATH,
        &review("UPDATE", resource, user, Some(old), Some(new)),
    )
    .await
}

fn stripped(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"]["finalizers"] = json!(["example.org/other"]);
    object
}

fn unapproved(mut machine: Value) -> Value {
    machine["spec"]["approved"] = json!(false);
    machine
}

#[tokio::test]
async fn a_finalizer_of_ours_comes_off_only_by_the_verb_or_an_exempt_name() {
    let api = FakeApi::demo();
    let removal = "finalizer ichor.maesh.dev/machine-removal is not taken off TalosMachine";
    let cases: [(&str, &str, Value, Option<&[&str]>); 8] = [
        (
            "approved control plane",
            "talosmachines",
            control_plane("cp-1", 1),
            Some(&[removal, "which is approved", "kubectl ichor remove cp-1"]),
        ),
        (
            "approved worker",
            "talosmachines",
            worker("worker-1", 21),
            Some(&[removal, "which is approved"]),
        ),
        (
            "control plane whose field says otherwise",
            "talosmachines",
            unapproved(control_plane("cp-1", 1)),
            Some(&[removal]),
        ),
        (
            "unapproved worker",
            "talosmachines",
            unapproved(worker("worker-1", 21)),
            None,
        ),
        (
            "machine being deleted",
            "talosmachines",
            being_deleted(control_plane("cp-1", 1)),
            Some(&[
                removal,
                "which is being deleted",
                "kubectl ichor removal status cp-1",
                "--cancel",
            ]),
        ),
        (
            "unapproved worker being deleted",
            "talosmachines",
            being_deleted(unapproved(worker("worker-1", 21))),
            Some(&[removal, "being deleted"]),
        ),
        (
            "cluster being deleted",
            "talosclusters",
            being_deleted(cluster("demo")),
            Some(&[
                "finalizer ichor.maesh.dev/cluster-teardown is not taken off TalosCluster demo",
                "override on talosclusters demo",
            ]),
        ),
        ("cluster that stays", "talosclusters", cluster("demo"), None),
    ];
    for (name, resource, old, refused) in cases {
        let new = stripped(&old);
        let response = update(&api, resource, EVE, &old, &new).await;
        match refused {
            None => assert_allowed(name, &response),
            Some(parts) => {
                assert_refused(name, &response, 403, parts);
                assert_refused(
                    name,
                    &response,
                    403,
                    &["[rule: finalizer-removal]", "takes the verb override on"],
                );
                let response = update(&api, resource, OTTO, &old, &new).await;
                assert_allowed("a holder", &response);
                assert_eq!(
                    response["auditAnnotations"]["rule"],
                    "override of finalizer-removal"
                );
            }
        }
        for user in EXEMPT {
            assert_allowed(user, &update(&api, resource, user, &old, &new).await);
        }
    }
}

#[tokio::test]
async fn others_finalizers_and_gained_ones_are_nobodys_business() {
    let api = FakeApi::demo();
    let both = {
        let mut machine = being_deleted(control_plane("cp-1", 1));
        machine["metadata"]["finalizers"] =
            json!(["example.org/other", "ichor.maesh.dev/machine-removal"]);
        machine
    };
    let ours = being_deleted(control_plane("cp-1", 1));
    assert_allowed(
        "another's",
        &update(&api, "talosmachines", EVE, &both, &ours).await,
    );
    assert_allowed(
        "gained",
        &update(&api, "talosmachines", EVE, &stripped(&ours), &ours).await,
    );
    assert_eq!(api.calls(), [], "nothing need be asked");
    let all = {
        let mut machine = both.clone();
        machine["metadata"]
            .as_object_mut()
            .expect("map")
            .remove("finalizers");
        machine
    };
    assert_refused(
        "all at once",
        &update(&api, "talosmachines", EVE, &both, &all).await,
        403,
        &["machine-removal is not"],
    );
}

#[tokio::test]
async fn unapproving_and_stripping_in_one_write_is_judged_by_what_is_stored() {
    let api = FakeApi::demo();
    let old = worker("worker-1", 21);
    let response = update(
        &api,
        "talosmachines",
        EVE,
        &old,
        &unapproved(stripped(&old)),
    )
    .await;
    assert_refused("both", &response, 403, &["which is approved"]);
}

#[tokio::test]
async fn exempt_names_pass_with_nothing_read_and_a_failing_review_refuses() {
    let api = FakeApi::demo();
    let old = being_deleted(control_plane("cp-1", 1));
    api.fault("/", Fault::Status(500));
    for user in EXEMPT {
        assert_allowed(
            user,
            &update(&api, "talosmachines", user, &old, &stripped(&old)).await,
        );
    }
    assert_eq!(api.calls(), []);
    for fault in [Fault::Status(500), Fault::Hang] {
        api.heal();
        api.fault("subjectaccessreviews", fault);
        let response = update(&api, "talosmachines", OTTO, &old, &stripped(&old)).await;
        assert_refused(
            "no review",
            &response,
            503,
            &["whether otto holds the verb override"],
        );
    }
}

#[tokio::test]
async fn consent_on_an_object_being_deleted_is_no_write_that_git_could_have_made() {
    let api = FakeApi::demo();
    let old = being_deleted(control_plane("cp-1", 1));
    for annotation in [
        "allow-delete",
        "cancel-removal",
        "skip-reset",
        "continue-removal",
        "accept-rejoin",
        "etcd-member-id",
    ] {
        let response = update(
            &api,
            "talosmachines",
            EVE,
            &old,
            &annotated(old.clone(), &[(annotation, "true")]),
        )
        .await;
        assert_allowed(annotation, &response);
        assert_eq!(
            response["auditAnnotations"]["rule"], "consent",
            "{annotation}"
        );
    }
    // Consent does not carry a stripped finalizer with it.
    let both = annotated(stripped(&old), &[("skip-reset", "true")]);
    assert_refused(
        "both",
        &update(&api, "talosmachines", EVE, &old, &both).await,
        403,
        &["finalizer"],
    );
}

#[tokio::test]
async fn creating_and_deleting_are_not_this_paths_concern() {
    let api = FakeApi::demo();
    let machine = control_plane("cp-1", 1);
    for request in [
        review("CREATE", "talosmachines", EVE, None, Some(&machine)),
        review("DELETE", "talosmachines", EVE, Some(&machine), None),
        review("DELETE", "talosclusters", EVE, Some(&cluster("demo")), None),
    ] {
        assert_allowed("not ours", &api.ask(PATH, &request).await);
    }
    assert_eq!(api.calls(), []);
}
