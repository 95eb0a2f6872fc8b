//! What a pass does, in which order, and at what cost.

use std::time::Duration;

use http::Method;
use serde_json::json;

use super::fake::{Fake, budget, pod, set, terminating};
use super::{Ask, blocked, limits, reasons, run};
use crate::drain::{AgentPod, DrainError, DrainLimits, DrainOutcome};

#[tokio::test]
async fn two_hundred_pods_under_one_budget_go_in_one_pass_of_205_calls() {
    let pods = (0..200).map(|i| pod(&format!("web-{i:03}"), "web"));
    let fake = Fake::with(pods).budgets([budget("web", "web", 200, 200, 0)]);
    let pass = run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Drained);
    assert_eq!(
        (
            pass.status.total,
            pass.status.evicted,
            pass.status.remaining
        ),
        (200, 200, 0)
    );
    // Node, cordon, pods, budgets, 200 evictions, pods.
    assert_eq!(fake.calls().len(), 205);
    let world = fake.world();
    assert!(
        (2..=24).contains(&world.most_in_flight),
        "{} in flight",
        world.most_in_flight
    );
}

#[tokio::test]
async fn pods_under_no_budget_do_not_wait_for_those_of_a_budget() {
    let pods = (0..100).map(|i| pod(&format!("web-{i:03}"), "web"));
    let free = (0..100).map(|i| pod(&format!("free-{i:03}"), "free"));
    let fake = Fake::with(pods.chain(free)).budgets([budget("web", "web", 200, 200, 0)]);
    let limits = DrainLimits {
        in_flight: 70,
        ..limits()
    };
    let ask = Ask {
        limits,
        ..Ask::default()
    };
    assert_eq!(ask.run(&fake).await.outcome, DrainOutcome::Drained);
    let most = fake.world().most_in_flight;
    assert!((25..=70).contains(&most), "{most} in flight");
}

#[tokio::test]
async fn evictions_of_one_group_are_sent_by_namespace_and_name() {
    let limits = DrainLimits {
        unbudgeted: 1,
        ..limits()
    };
    let elsewhere = set(pod("a", "x"), "/metadata/namespace", json!("zoo"));
    let fake = Fake::with([elsewhere, pod("c", "x"), pod("b", "x")]);
    let ask = Ask {
        limits,
        ..Ask::default()
    };
    assert_eq!(ask.run(&fake).await.outcome, DrainOutcome::Drained);
    assert_eq!(fake.evicted(), ["b", "c", "a"]);
    // Two namespaces: all budgets in one list, not one list each.
    let all = "/apis/policy/v1/poddisruptionbudgets";
    assert_eq!(fake.count(&Method::GET, all), 1);
}

#[tokio::test]
async fn a_pod_list_of_several_pages_is_read_to_its_end() {
    let fake = Fake::with((0..7).map(|i| pod(&format!("web-{i}"), "web")));
    fake.world().page = Some(3);
    assert_eq!(run(&fake).await.status.total, 7);
    assert_eq!(fake.evicted().len(), 7);
}

#[tokio::test]
async fn an_eviction_names_the_very_pod_and_the_grace_period() {
    let fake = Fake::with([pod("web", "web")]);
    Ask::options(json!({ "gracePeriodSeconds": 7 }))
        .run(&fake)
        .await;
    let calls = fake.calls();
    let eviction = calls
        .iter()
        .find(|c| c.path.ends_with("/eviction"))
        .unwrap();
    assert_eq!(eviction.body["apiVersion"], "policy/v1");
    assert_eq!(eviction.body["kind"], "Eviction");
    assert_eq!(
        eviction.body["deleteOptions"],
        json!({ "gracePeriodSeconds": 7, "preconditions": { "uid": "uid-web" } })
    );
    let fake = Fake::with([pod("web", "web")]);
    run(&fake).await;
    let calls = fake.calls();
    let eviction = calls
        .iter()
        .find(|c| c.path.ends_with("/eviction"))
        .unwrap();
    assert!(eviction.body["deleteOptions"]["gracePeriodSeconds"].is_null());
}

#[tokio::test]
async fn a_terminating_pod_is_waited_for_and_never_evicted_again() {
    let fake =
        Fake::with([terminating(pod("web", "web"), 600)]).budgets([budget("web", "web", 0, 1, 1)]);
    let pass = run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Progressing);
    assert_eq!(reasons(&pass), [("web", "GracePeriod")]);
    assert_eq!(pass.status.pods[0].budget, None);
    assert!(pass.status.pods[0].message.contains("600 s"));
    assert_eq!(fake.evicted(), Vec::<String>::new());
    // Nor is a budget asked about it: Node, cordon, pods.
    assert_eq!(fake.calls().len(), 3);
    let pass = Ask::after(&pass).run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Progressing);
    assert_eq!(fake.evicted(), Vec::<String>::new());
}

#[tokio::test]
async fn an_evicted_pod_is_evicted_once_however_many_passes_it_takes() {
    let slow = set(
        pod("web", "web"),
        "/spec/terminationGracePeriodSeconds",
        json!(30),
    );
    let fake = Fake::with([slow]);
    let pass = run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Progressing);
    assert_eq!(reasons(&pass), [("web", "Terminating")]);
    let pass = Ask::after(&pass).run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Progressing);
    fake.world().pods.clear();
    let pass = Ask::after(&pass).run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Drained);
    assert_eq!((pass.status.total, pass.status.evicted), (1, 1));
    assert_eq!(fake.evicted(), ["web"]);
}

#[tokio::test]
async fn a_pod_held_by_a_finalizer_is_named_with_it_and_blocks_once_it_is_overdue() {
    let held = set(
        terminating(pod("web", "web"), 30),
        "/metadata/finalizers",
        json!(["example.com/hold"]),
    );
    let fake = Fake::with([held.clone()]);
    let pass = run(&fake).await;
    assert_eq!(reasons(&pass), [("web", "Finalizer")]);
    assert!(pass.status.pods[0].message.contains("example.com/hold"));
    assert_eq!(pass.outcome, DrainOutcome::Progressing);

    let overdue = set(
        held,
        "/metadata/deletionTimestamp",
        json!("2026-06-01T11:00:00Z"),
    );
    let fake = Fake::with([overdue]);
    let pass = run(&fake).await;
    assert!(
        blocked(&pass).contains("default/web: deleted, and kept by finalizer example.com/hold")
    );
}

#[tokio::test]
async fn a_pod_whose_kubelet_is_silent_blocks_a_live_node_and_is_gone_on_a_dead_one() {
    let stuck = set(
        terminating(pod("web", "web"), 30),
        "/metadata/deletionTimestamp",
        json!("2026-06-01T11:00:00Z"),
    );
    let fake = Fake::with([stuck]);
    let pass = run(&fake).await;
    assert!(blocked(&pass).contains("the kubelet has not confirmed"));
    let ask = Ask {
        dead: true,
        ..Ask::default()
    };
    let pass = ask.run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Drained);
    assert_eq!(pass.status.remaining, 0);
}

#[tokio::test]
async fn on_a_dead_node_an_eviction_that_is_admitted_is_enough() {
    let slow = set(
        pod("web", "web"),
        "/spec/terminationGracePeriodSeconds",
        json!(30),
    );
    let fake = Fake::with([slow]);
    let ask = Ask {
        dead: true,
        ..Ask::default()
    };
    assert_eq!(ask.run(&fake).await.outcome, DrainOutcome::Drained);
    assert_eq!(fake.evicted(), ["web"]);
}

#[tokio::test]
async fn skipped_pods_are_neither_evicted_nor_waited_for() {
    let daemon = set(
        pod("daemon", "d"),
        "/metadata/ownerReferences/0/kind",
        json!("DaemonSet"),
    );
    let mirror = set(
        pod("etcd", "m"),
        "/metadata/annotations",
        json!({ "kubernetes.io/config.mirror": "x" }),
    );
    let finished = set(pod("job", "j"), "/status/phase", json!("Succeeded"));
    let finished = set(finished, "/metadata/ownerReferences", json!([]));
    let fake = Fake::with([daemon, mirror, finished, pod("storage", "skip")]);
    let pass = Ask::options(json!({ "skipSelector": "app=skip" }))
        .run(&fake)
        .await;
    assert_eq!(pass.outcome, DrainOutcome::Drained);
    assert_eq!(pass.status.total, 0);
    assert_eq!(fake.evicted(), Vec::<String>::new());
}

#[tokio::test]
async fn a_bare_pod_stops_the_whole_drain_and_every_one_of_them_is_named() {
    let bare = |name: &str| set(pod(name, "b"), "/metadata/ownerReferences", json!([]));
    let fake = Fake::with([bare("one"), bare("two"), pod("web", "web")]);
    let pass = run(&fake).await;
    let DrainOutcome::Refused { message } = &pass.outcome else {
        panic!("{:?}", pass.outcome);
    };
    assert!(
        message.contains("default/one, default/two: has no controller"),
        "{message}"
    );
    assert!(message.contains("spec.drain.unmanaged"), "{message}");
    assert_eq!(
        reasons(&pass),
        [
            ("one", "Unmanaged"),
            ("two", "Unmanaged"),
            ("web", "Waiting")
        ]
    );
    assert_eq!(fake.evicted(), Vec::<String>::new());

    let pass = Ask::options(json!({ "unmanaged": "Evict" }))
        .run(&fake)
        .await;
    assert_eq!(pass.outcome, DrainOutcome::Drained);
}

#[tokio::test]
async fn an_empty_dir_stops_the_drain_only_where_the_option_says_so() {
    let data = set(
        pod("cache", "c"),
        "/spec/volumes",
        json!([{ "name": "tmp", "emptyDir": {} }]),
    );
    let fake = Fake::with([data, pod("web", "web")]);
    let pass = Ask::options(json!({ "emptyDir": "Refuse" }))
        .run(&fake)
        .await;
    assert!(matches!(pass.outcome, DrainOutcome::Refused { .. }));
    assert_eq!(reasons(&pass)[0], ("cache", "EmptyDir"));
    assert_eq!(fake.evicted(), Vec::<String>::new());
    assert_eq!(run(&fake).await.outcome, DrainOutcome::Drained);
}

#[tokio::test]
async fn an_unreadable_skip_selector_touches_nothing() {
    let fake = Fake::with([pod("web", "web")]);
    let error = Ask::options(json!({ "skipSelector": "a in b" }))
        .try_run(&fake)
        .await
        .unwrap_err();
    assert!(matches!(error, DrainError::Selector(_)));
    assert!(error.to_string().contains("spec.drain.skipSelector"));
    assert_eq!(fake.calls().len(), 0);
}

#[tokio::test]
async fn the_agents_own_pods_go_last_and_are_never_evicted() {
    let own = |name: &str| {
        let own = set(pod(name, "x"), "/metadata/namespace", json!("ichor-system"));
        set(
            own,
            "/metadata/labels",
            json!({ "app.kubernetes.io/name": "ichor-agent" }),
        )
    };
    let fake = Fake::with([own("ichor-agent-1"), pod("web", "web")])
        .budgets([budget("web", "web", 0, 1, 1)]);
    let pass = run(&fake).await;
    assert!(blocked(&pass).contains("default/web: blocked by budget default/web"));
    assert_eq!(
        reasons(&pass),
        [("web", "Budget"), ("ichor-agent-1", "Agent")]
    );

    fake.world().budgets.clear();
    let pass = Ask::after(&pass).run(&fake).await;
    let agent = AgentPod {
        namespace: "ichor-system".into(),
        name: "ichor-agent-1".into(),
        uid: "uid-ichor-agent-1".into(),
    };
    assert_eq!(
        pass.outcome,
        DrainOutcome::OnlyAgentPods {
            pods: vec![agent.clone()]
        }
    );
    assert!(!fake.evicted().contains(&"ichor-agent-1".to_owned()));

    // Another pod of that name is not ours to delete.
    let limits = DrainLimits::default();
    let other = AgentPod {
        uid: "another".into(),
        ..agent.clone()
    };
    let client = fake.client();
    crate::drain::pass::delete(&client, &other, &limits)
        .await
        .unwrap();
    assert_eq!(fake.world().pods.len(), 1);
    crate::drain::pass::delete(&client, &agent, &limits)
        .await
        .unwrap();
    assert_eq!(fake.world().pods.len(), 0);
    crate::drain::pass::delete(&client, &agent, &limits)
        .await
        .unwrap();
    assert_eq!(
        Ask::after(&pass).run(&fake).await.outcome,
        DrainOutcome::Drained
    );
}

#[tokio::test]
async fn a_missing_node_is_said_and_nothing_is_asked() {
    let fake = Fake::new();
    fake.world().node = None;
    let pass = run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::NodeMissing);
    assert_eq!(pass.node_uid, None);
    assert_eq!(fake.calls().len(), 1);
}

#[tokio::test]
async fn at_the_time_limit_it_stands_still_and_forces_nothing() {
    let fake = Fake::with([pod("web", "web")]).budgets([budget("web", "web", 0, 1, 1)]);
    let mut ask = Ask::options(json!({ "timeout": 60 }));
    ask.elapsed = Duration::from_secs(59);
    blocked(&ask.run(&fake).await);
    ask.elapsed = Duration::from_mins(1);
    let pass = ask.run(&fake).await;
    let DrainOutcome::TimedOut { message } = &pass.outcome else {
        panic!("{:?}", pass.outcome);
    };
    assert!(message.contains("spec.drain.timeout (60 s)"), "{message}");
    assert!(
        message.contains("default/web: blocked by budget"),
        "{message}"
    );
    assert_eq!(fake.world().pods.len(), 1);
    let deletes = fake
        .calls()
        .iter()
        .filter(|c| c.method == Method::DELETE)
        .count();
    assert_eq!(deletes, 0);

    // 0 is never.
    let mut ask = Ask::options(json!({ "timeout": 0 }));
    ask.elapsed = Duration::from_secs(1_000_000);
    blocked(&ask.run(&fake).await);
}

#[tokio::test]
async fn a_pod_that_hangs_does_not_keep_the_others_from_their_turn() {
    let limits = DrainLimits {
        unbudgeted: 1,
        evict: Duration::from_millis(50),
        ..limits()
    };
    let fake = Fake::with([pod("a", "x"), pod("b", "x")]);
    fake.world().silent.insert("a".into());
    let ask = Ask {
        limits: limits.clone(),
        ..Ask::default()
    };
    let pass = ask.run(&fake).await;
    assert_eq!(reasons(&pass), [("a", "Error")]);
    assert!(pass.status.pods[0].message.contains("did not answer"));
    assert_eq!(fake.evicted(), ["a", "b"]);

    // In the next pass it comes after the others.
    fake.world().pods.push(pod("c", "x"));
    let ask = Ask {
        limits,
        previous: Some(pass.status),
        ..Ask::default()
    };
    let pass = ask.run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Progressing);
    assert_eq!(fake.evicted(), ["a", "b", "c", "a"]);
}

#[tokio::test]
async fn a_pass_that_has_run_long_enough_leaves_the_rest_to_the_next_one() {
    let fake = Fake::with([pod("a", "x"), pod("b", "x")]);
    let ask = Ask {
        limits: DrainLimits {
            begin_within: Duration::ZERO,
            ..limits()
        },
        ..Ask::default()
    };
    let pass = ask.run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Progressing);
    assert_eq!(reasons(&pass), [("a", "Waiting"), ("b", "Waiting")]);
    assert_eq!(fake.evicted(), Vec::<String>::new());
}

#[tokio::test]
async fn with_the_lock_lost_nothing_more_is_begun() {
    let fake = Fake::with([pod("web", "web")]);
    let error = Ask::default()
        .run_while(&fake, &|| false)
        .await
        .unwrap_err();
    assert!(matches!(error, DrainError::LockLost));
    // The Node was read; it was not cordoned.
    assert_eq!(fake.calls().len(), 1);

    let fake = Fake::with((0..200).map(|i| pod(&format!("web-{i:03}"), "web")));
    let seen = fake.clone();
    let held = move || seen.evicted().len() < 40;
    let error = Ask::default().run_while(&fake, &held).await.unwrap_err();
    assert!(matches!(error, DrainError::LockLost));
    // Those in flight when it was lost are answered; no other is sent.
    assert!(
        (40..=64).contains(&fake.evicted().len()),
        "{}",
        fake.evicted().len()
    );
}

/// A controller runs passes on a runtime of several threads.
#[test]
fn a_pass_may_move_between_threads() {
    fn may_move<F: Send>(_: impl Fn() -> F) {}
    let (client, ask): (fn() -> kube::Client, Ask) = (|| unreachable!(), Ask::default());
    may_move(|| async {
        let client = client();
        crate::drain::pass::run(&|| true, &client, &ask.request()).await
    });
}

#[tokio::test]
async fn evictions_under_one_budget_are_spread_out_and_others_do_not_wait() {
    let pods = ["web-1", "web-2", "web-3"].map(|name| pod(name, "web"));
    let free = ["free-1", "free-2"].map(|name| pod(name, "free"));
    let fake = Fake::with(pods.into_iter().chain(free)).budgets([budget("web", "web", 3, 3, 0)]);
    let ask = Ask {
        limits: DrainLimits {
            pace: Duration::from_hours(1),
            ..limits()
        },
        ..Ask::default()
    };
    let seen = fake.clone();
    let three = async {
        while seen.evicted().len() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    tokio::select! {
        pass = ask.run(&fake) => panic!("ended: {:?}", pass.outcome),
        () = three => {}
        () = tokio::time::sleep(Duration::from_mins(1)) => panic!("{:?}", fake.evicted()),
    }
    let mut evicted = fake.evicted();
    evicted.sort();
    assert_eq!(evicted, ["free-1", "free-2", "web-1"]);
}

#[tokio::test]
async fn a_budget_that_refuses_ends_the_spread_at_once() {
    let pods = (0..200).map(|i| pod(&format!("web-{i:03}"), "web"));
    let fake = Fake::with(pods).budgets([budget("web", "web", 0, 200, 200)]);
    let ask = Ask {
        limits: DrainLimits {
            pace: Duration::from_hours(1),
            ..limits()
        },
        ..Ask::default()
    };
    let pass = tokio::time::timeout(Duration::from_mins(1), ask.run(&fake));
    blocked(&pass.await.unwrap());
    assert_eq!(fake.evicted(), ["web-000"]);
}

#[tokio::test]
async fn while_pods_leave_those_that_are_blocked_are_asked_less_often() {
    let leaving = terminating(pod("slow", "slow"), 30);
    let fake = Fake::with([leaving.clone()]);
    assert_eq!(run(&fake).await.again, Duration::from_secs(1));
    let fake = Fake::with([leaving, pod("web", "web")]).budgets([budget("web", "web", 0, 1, 1)]);
    let pass = run(&fake).await;
    assert_eq!(pass.outcome, DrainOutcome::Progressing);
    assert_eq!(pass.again, Duration::from_secs(5));
}
