//! What is told: the status, the Event, the volumes that are left.

use ichor_api::TalosMachine;
use ichor_api::machine::{BudgetStatus, DrainPodStatus, DrainStatus};
use serde_json::{Value, json};

use super::fake::{Fake, budget, pod, set};
use super::{Ask, blocked, now, run};
use crate::drain::{DrainLimits, announce_blocked, blocked_note, volume_attachments};

#[tokio::test]
async fn the_status_lists_twenty_pods_and_counts_them_all() {
    let pods = (0..30).map(|i| pod(&format!("web-{i:02}"), "web"));
    let fake = Fake::with(pods).budgets([budget("web", "web", 0, 30, 30)]);
    let pass = run(&fake).await;
    assert_eq!(pass.status.pods.len(), 20);
    assert_eq!(pass.status.pods[19].name, "web-19");
    assert_eq!((pass.status.total, pass.status.remaining), (30, 30));
    assert!(
        blocked(&pass)
            .contains("default/web-00, default/web-01, default/web-02 and 27 more: blocked by"),
        "{}",
        blocked(&pass)
    );
}

#[tokio::test]
async fn pods_that_somebody_must_see_to_are_listed_before_those_that_go_by_themselves() {
    let slow = |i| {
        set(
            pod(&format!("a-{i:02}"), "a"),
            "/spec/terminationGracePeriodSeconds",
            json!(30),
        )
    };
    let fake = Fake::with((0..30).map(slow).chain([pod("web", "web")]))
        .budgets([budget("web", "web", 0, 1, 1)]);
    let pass = run(&fake).await;
    assert_eq!(pass.status.pods[0].name, "web");
    assert_eq!(pass.status.pods[0].reason, "Budget");
    assert_eq!(pass.status.remaining, 31);
}

#[tokio::test]
async fn since_is_kept_from_pass_to_pass_and_the_total_never_shrinks() {
    let fake =
        Fake::with([pod("web", "web"), pod("x", "x")]).budgets([budget("web", "web", 0, 1, 1)]);
    let first = run(&fake).await;
    let mut earlier = first.status.clone();
    let noon = earlier.started_at.clone();
    earlier.pods[0].since = serde_json::from_value(json!("2026-06-01T08:00:00Z")).unwrap();
    let kept = earlier.pods[0].since.clone();
    let ask = Ask {
        previous: Some(earlier),
        ..Ask::default()
    };
    let second = ask.run(&fake).await;
    assert_eq!(second.status.pods[0].since, kept);
    assert_eq!(second.status.started_at, noon);
    assert_eq!(
        (
            second.status.total,
            second.status.evicted,
            second.status.remaining
        ),
        (2, 1, 1)
    );
    // One more pod comes, whose node name is set by hand.
    fake.world().budgets[0]["status"]["disruptionsAllowed"] = json!(0);
    fake.world().pods.push(pod("web-2", "web"));
    let third = Ask::after(&second).run(&fake).await;
    assert_eq!(
        (
            third.status.total,
            third.status.evicted,
            third.status.remaining
        ),
        (3, 1, 2)
    );
}

fn machine() -> TalosMachine {
    let mut machine: TalosMachine = serde_json::from_value(json!({
        "apiVersion": "ichor.maesh.dev/v1alpha1", "kind": "TalosMachine",
        "metadata": { "name": "worker-1", "namespace": "default", "uid": "m-1", "resourceVersion": "5" },
        "spec": { "clusterRef": { "name": "demo" }, "role": "worker", "approved": true, "address": "192.0.2.1" },
    }))
    .unwrap();
    machine.metadata.name = Some("worker-1".into());
    machine
}

fn long_status(pods: usize) -> DrainStatus {
    let entry = |i| DrainPodStatus {
        namespace: "a-rather-long-namespace-name".into(),
        name: format!("a-rather-long-pod-name-of-a-deployment-{i:03}"),
        reason: "Budget".into(),
        budget: Some(BudgetStatus {
            name: "a-rather-long-budget-name".into(),
            allowed: 0,
            current: 200,
            desired: 200,
        }),
        ..DrainPodStatus::default()
    };
    DrainStatus {
        total: i32::try_from(pods).unwrap(),
        remaining: i32::try_from(pods).unwrap(),
        pods: (0..pods.min(20)).map(entry).collect(),
        ..DrainStatus::default()
    }
}

#[test]
fn a_note_of_200_pods_fits_and_says_how_many_it_leaves_out() {
    let note = blocked_note("worker-1", &long_status(200));
    assert!(note.len() <= 1024, "{}", note.len());
    let shown = note.matches("Budget a-rather").count();
    assert!(shown > 3, "{note}");
    assert!(
        note.ends_with(&format!("; +{} more", 200 - shown)),
        "{note}"
    );
    assert!(note.contains("(0 allowed, 200 healthy, 200 needed)"));
    let note = blocked_note("worker-1", &long_status(1));
    assert!(!note.contains("more"), "{note}");
}

#[tokio::test]
async fn one_episode_is_one_event_however_often_it_is_told() {
    let fake = Fake::new();
    let tell = async |episode: &str, instance: &str| {
        announce_blocked(
            &fake.client(),
            &machine(),
            episode,
            "web is blocked",
            instance,
            now(),
            &DrainLimits::default(),
        )
        .await
        .unwrap();
    };
    for _ in 0..30 {
        tell("2026-06-01T12:00:00Z", "agent-1").await;
    }
    // Another instance, after a restart, tells the same episode.
    tell("2026-06-01T12:00:00Z", "agent-2").await;
    assert_eq!(fake.world().events.len(), 1);
    tell("2026-06-01T13:00:00Z", "agent-2").await;
    assert_eq!(fake.world().events.len(), 2);

    let event = fake.world().events[0].clone();
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "DrainBlocked");
    assert_eq!(event["metadata"]["namespace"], "default");
    assert_eq!(event["regarding"]["kind"], "TalosMachine");
    assert_eq!(event["regarding"]["uid"], "m-1");
    assert!(event["action"].as_str().is_some_and(|a| !a.is_empty()));
}

fn attachment(name: &str, node: &str, volume: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "attacher": "csi", "nodeName": node, "source": { "persistentVolumeName": volume } },
    })
}

#[tokio::test]
async fn volumes_of_pods_that_stay_are_not_waited_for() {
    let uses = |pod: Value, claim: &str| {
        set(
            pod,
            "/spec/volumes",
            json!([{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }]),
        )
    };
    let daemon = set(
        uses(pod("daemon", "d"), "of-daemon"),
        "/metadata/ownerReferences/0/kind",
        json!("DaemonSet"),
    );
    let skipped = set(
        pod("skipped", "skip"),
        "/spec/volumes",
        json!([{ "name": "scratch", "ephemeral": {} }]),
    );
    let finished = set(
        uses(pod("job", "j"), "of-job"),
        "/status/phase",
        json!("Succeeded"),
    );
    let fake = Fake::with([daemon, skipped, finished]);
    {
        let mut world = fake.world();
        world.attachments = vec![
            attachment("of-daemon", "worker-1", "pv-daemon"),
            attachment("of-skipped", "worker-1", "pv-skipped"),
            attachment("of-job", "worker-1", "pv-job"),
            attachment("of-gone", "worker-1", "pv-gone"),
            attachment("elsewhere", "worker-2", "pv-gone"),
        ];
        for (claim, volume) in [
            ("default/of-daemon", "pv-daemon"),
            ("default/skipped-scratch", "pv-skipped"),
            ("default/of-job", "pv-job"),
        ] {
            world.claims.insert(
                claim.into(),
                json!({ "metadata": {}, "spec": { "volumeName": volume } }),
            );
        }
    }
    let options = serde_json::from_value(json!({ "skipSelector": "app=skip" })).unwrap();
    let limits = DrainLimits::default();
    let left = volume_attachments(&fake.client(), "worker-1", &options, &limits)
        .await
        .unwrap();
    assert_eq!(left, ["of-gone", "of-job"]);

    fake.world().attachments.clear();
    let left = volume_attachments(&fake.client(), "worker-1", &options, &limits)
        .await
        .unwrap();
    assert_eq!(left, Vec::<String>::new());
}
