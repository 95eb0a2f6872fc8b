//! The server around the rules: what is sent to it may be anything.
#![allow(clippy::expect_used)] // helpers of tests are no tests to clippy

mod support;

use std::time::Duration;

use http::StatusCode;
use ichor_webhook::Limits;
use ichor_webhook::paths::Concern;
use serde_json::{Value, json};
use support::*;

const MACHINE: &str = "/validate-ichor-maesh-dev-v1alpha1-talosmachine";

#[tokio::test]
async fn what_is_no_review_is_answered_with_400_and_says_why() {
    let judge = FakeApi::demo().judge();
    for (body, part) in [
        ("", "is no admission.k8s.io/v1 AdmissionReview"),
        ("{", "is no admission.k8s.io/v1 AdmissionReview"),
        ("[]", "has no request"),
        ("{\"request\": null}", "has no request"),
        ("{\"request\": {\"operation\": \"DELETE\"}}", "has no uid"),
    ] {
        for concern in Concern::ALL {
            let (code, answer) = post(&judge, concern.path(), body).await;
            assert_eq!(code, StatusCode::BAD_REQUEST, "{body}");
            let text = String::from_utf8(answer).expect("text");
            assert!(text.contains(part), "{body}: {text}");
        }
    }
}

#[tokio::test]
async fn a_broken_request_with_a_uid_is_refused_under_that_uid() {
    let judge = FakeApi::demo().judge();
    let body = json!({"request": {"uid": "u-7", "operation": 5}});
    let (code, answer) = post(&judge, MACHINE, body.to_string()).await;
    assert_eq!(code, StatusCode::OK);
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!(answer["response"]["uid"], "u-7");
    assert_refused(
        "broken",
        &answer["response"],
        400,
        &["is no admission.k8s.io/v1 AdmissionReview"],
    );
}

#[tokio::test]
async fn a_request_is_read_leniently() {
    let api = FakeApi::demo();
    let mut request = review(
        "DELETE",
        "talosmachines",
        EVE,
        Some(&deletable(control_plane("cp-1", 1))),
        None,
    );
    request["request"]["somethingNew"] = json!({"a": [1]});
    for absent in ["kind", "requestKind", "options", "dryRun", "object"] {
        request["request"]
            .as_object_mut()
            .expect("map")
            .remove(absent);
    }
    request["request"]["subResource"] = Value::Null;
    request["request"]["userInfo"]["groups"] = Value::Null;
    assert_allowed("lenient", &api.ask(MACHINE, &request).await);
}

#[tokio::test]
async fn an_operation_or_subresource_that_no_rule_speaks_of_passes() {
    let api = FakeApi::demo();
    let machine = control_plane("cp-1", 1);
    let connect = review(
        "CONNECT",
        "talosmachines",
        EVE,
        Some(&machine),
        Some(&machine),
    );
    assert_allowed("connect", &api.ask(MACHINE, &connect).await);
    let mut status = review("UPDATE", "talosmachines", EVE, Some(&machine), None);
    status["request"]["subResource"] = json!("status");
    assert_allowed("status", &api.ask(MACHINE, &status).await);
    assert_eq!(api.calls(), []);
}

#[tokio::test]
async fn a_resource_on_the_wrong_path_is_refused_not_waved_through() {
    let api = FakeApi::demo();
    let machine = control_plane("cp-1", 1);
    for concern in [Concern::Cluster, Concern::Namespace] {
        let request = review("DELETE", "talosmachines", EVE, Some(&machine), None);
        let response = api.ask(concern.path(), &request).await;
        assert_refused(
            "wrong path",
            &response,
            400,
            &[
                "the webhook configuration sends talosmachines.ichor.maesh.dev to",
                concern.path(),
            ],
        );
    }
    let mut pods = review("DELETE", "talosmachines", EVE, Some(&machine), None);
    pods["request"]["resource"] = json!({"group": "", "version": "v1", "resource": "pods"});
    for concern in Concern::ALL {
        assert_eq!(api.ask(concern.path(), &pods).await["allowed"], false);
    }
}

#[tokio::test]
async fn a_deletion_whose_old_object_is_missing_is_refused() {
    let api = FakeApi::demo();
    let mut request = review(
        "DELETE",
        "talosmachines",
        EVE,
        Some(&control_plane("cp-1", 1)),
        None,
    );
    request["request"]["oldObject"] = Value::Null;
    let response = api.ask(MACHINE, &request).await;
    assert_refused(
        "none",
        &response,
        400,
        &["talosmachines cp-1 cannot be judged: the request's oldObject is missing"],
    );
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_not_read() {
    let api = FakeApi::demo();
    let judge = api.judge_within(Limits {
        body: 1024,
        ..Limits::default()
    });
    let (code, _) = post(&judge, MACHINE, vec![b' '; 4096]).await;
    assert_eq!(code, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn an_object_of_the_largest_size_is_judged() {
    let api = FakeApi::demo();
    let mut old = deletable(control_plane("cp-1", 1));
    old["metadata"]["annotations"]["note"] = json!("x".repeat(1_500_000));
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"a": "b"});
    assert_allowed(
        "large",
        &api.ask(
            MACHINE,
            &review("UPDATE", "talosmachines", EVE, Some(&old), Some(&new)),
        )
        .await,
    );
}

#[tokio::test]
async fn a_review_that_takes_too_long_is_answered_before_the_api_server_gives_up() {
    let api = FakeApi::demo();
    api.fault("/talosmachines", Fault::Hang);
    let judge = api.judge_within(Limits {
        review: Duration::from_millis(100),
        ..Limits::default()
    });
    let request = review(
        "DELETE",
        "talosmachines",
        EVE,
        Some(&deletable(control_plane("cp-1", 1))),
        None,
    );
    assert_refused(
        "slow",
        &ask(&judge, MACHINE, &request).await,
        503,
        &["it took longer than 100 ms"],
    );
    assert!(
        Limits::default().review < Duration::from_secs(3),
        "timeoutSeconds of the webhook"
    );
}

#[tokio::test]
async fn a_panic_is_a_refusal_and_the_next_request_is_judged() {
    let api = FakeApi::demo();
    let judge = api.judge();
    api.fault("/talosmachines", Fault::Panic);
    let request = review(
        "DELETE",
        "talosmachines",
        EVE,
        Some(&deletable(control_plane("cp-1", 1))),
        None,
    );
    assert_refused(
        "panic",
        &ask(&judge, MACHINE, &request).await,
        503,
        &["a defect"],
    );
    api.heal();
    // The pooled client is the judge's own: a new one stands for the next connection.
    assert_allowed("after", &api.ask(MACHINE, &request).await);
}

#[tokio::test]
async fn more_than_may_be_judged_at_once_wait_for_the_others() {
    let api = FakeApi::demo();
    api.fault("/talosmachines", Fault::Hang);
    let judge = api.judge_within(Limits {
        in_flight: 1,
        lookup: Duration::from_mins(1),
        review: Duration::from_mins(1),
        ..Limits::default()
    });
    let request = review(
        "DELETE",
        "talosmachines",
        EVE,
        Some(&deletable(control_plane("cp-1", 1))),
        None,
    );
    let exempt = review(
        "DELETE",
        "talosmachines",
        AGENT,
        Some(&control_plane("cp-1", 1)),
        None,
    );
    let first = {
        let (judge, request) = (judge.clone(), request.clone());
        tokio::spawn(async move { ask(&judge, MACHINE, &request).await })
    };
    while api.calls().is_empty() {
        tokio::task::yield_now().await;
    }
    let mut second = std::pin::pin!(ask(&judge, MACHINE, &exempt));
    for _ in 0..50 {
        assert!(futures::poll!(&mut second).is_pending(), "it waits");
        tokio::task::yield_now().await;
    }
    // Its caller went away: the permit comes back.
    first.abort();
    assert_allowed("second", &second.await);
}

#[tokio::test]
async fn answers_are_counted_by_path_and_rule() {
    use ichor_webhook::metrics::Metrics;
    use ichor_webhook::{Judge, Users, WebhookConfig};
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    let api = FakeApi::demo();
    let metrics = Metrics::default();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let users = Users::new("ichor-system", "ichor-agent", "", "");
    let judge = Judge::new(
        &WebhookConfig::new("ichor-system", "pod", users),
        api.client(),
        metrics,
    );
    let plain = control_plane("cp-1", 1);
    for object in [&plain, &deletable(plain.clone())] {
        ask(
            &judge,
            MACHINE,
            &review("DELETE", "talosmachines", EVE, Some(object), None),
        )
        .await;
    }
    let mut text = String::new();
    encode(&mut text, &registry).expect("text");
    for line in [
        r#"ichor_webhook_reviews_total{path="talosmachine",answer="allow-delete"} 1"#,
        r#"ichor_webhook_reviews_total{path="talosmachine",answer="allowed"} 1"#,
        r#"ichor_webhook_review_duration_seconds_count{path="talosmachine"} 2"#,
        "ichor_webhook_certificate_expiry_timestamp_seconds 0.0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
