//! What budgets let go, and what is said where they do not.

use ichor_agent::drain::{DrainOutcome, Uncordon, uncordon};
use ichor_tests::kubelet::{NodeRole, READY};
use ichor_tests::wait::until;
use ichor_tests::workload::{Workload, annotated, set};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::{BED, Drain, SOON, blocked, delete, is_blocked, reasons, relax};

#[test]
fn two_hundred_pods_under_one_budget_are_each_evicted_once() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "two-hundred").await.unwrap();
        let pods = (0..200).map(|i| workload.pod(&format!("web-{i:03}"), "web"));
        workload.run(pods).await.unwrap();
        workload.budget("web", "web", 0, 200).await.unwrap();
        let mut drain = Drain::through(bed, &workload, bed.proxy().url()).await;
        let pass = drain.drained().await;
        assert_eq!((pass.status.total, pass.status.evicted), (200, 200));
        assert_eq!(workload.pods().await.unwrap(), Vec::<String>::new());

        let mine = bed.proxy().log().all().into_iter().filter(|r| {
            r.path.contains("two-hundred")
                && !r.path.contains("poddisruptionbudgets")
                && !r.verb.contains("watch")
        });
        let mut admitted = BTreeMap::new();
        let mut others = 0;
        for request in mine {
            if request.resource == "pods/eviction" && request.code == 201 {
                *admitted.entry(request.path).or_insert(0) += 1;
            } else if request.resource != "pods/eviction" {
                others += 1;
            }
        }
        assert_eq!(admitted.len(), 200);
        assert!(admitted.values().all(|n| *n == 1), "{admitted:?}");
        // Node, cordon and a pair of pod lists for each pass that was needed: mostly one.
        assert!(others <= 40, "{others} other calls");
    });
}

#[test]
fn a_blocked_pod_is_named_with_its_budget_and_goes_when_that_is_relaxed() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "one-blocked").await.unwrap();
        let pods = [
            workload.pod("a-web", "web"),
            workload.pod("b-free", "free"),
            workload.pod("c-web", "web"),
        ];
        workload.run(pods).await.unwrap();
        workload.budget("web", "web", 2, 2).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;

        // The very first round evicts what may go, whatever stands before it.
        let first = drain.pass().await;
        assert_eq!(reasons(&first), BTreeMap::from([("a-web", "Budget"), ("c-web", "Budget")]));
        let second = drain.pass().await;
        assert!(
            blocked(&second).contains("one-blocked/a-web, one-blocked/c-web: blocked by budget one-blocked/web (allows 0 disruptions; 2 healthy, 2 needed), which asks for all of its 2 pods"),
            "{}",
            blocked(&second)
        );
        let budget = second.status.pods[0].budget.clone().unwrap();
        assert_eq!((budget.name.as_str(), budget.allowed, budget.current, budget.desired), ("web", 0, 2, 2));
        assert_eq!(second.status.pods[0].since, first.status.pods[0].since);
        for _ in 0..5 {
            blocked(&drain.pass().await);
            assert!(drain.unschedulable().await);
        }
        relax(&workload, "web", 0).await;
        let pass = drain.drained().await;
        assert_eq!((pass.status.total, pass.status.evicted), (3, 3));

        let operation = drain.operation();
        let limit = drain.limits.read;
        let undo = async |operation: &str| {
            uncordon(&drain.client, "one-blocked", pass.node_uid.as_deref(), operation, limit)
                .await
                .unwrap()
        };
        assert_eq!(undo("op-another").await, Uncordon::NotOurs);
        assert!(drain.unschedulable().await);
        assert_eq!(undo(&operation).await, Uncordon::Undone);
        assert!(!drain.unschedulable().await);
        assert_eq!(undo(&operation).await, Uncordon::NotOurs);
    });
}

#[test]
fn two_budgets_on_one_pod_are_named_and_the_other_pods_go() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "two-budgets").await.unwrap();
        let pods = [workload.pod("web", "web"), workload.pod("x", "x")];
        workload.run(pods).await.unwrap();
        workload.budget("one", "web", 0, 1).await.unwrap();
        workload.budget("two", "web", 0, 1).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        let pass = drain.until(is_blocked).await;
        assert_eq!(reasons(&pass), BTreeMap::from([("web", "SeveralBudgets")]));
        assert!(
            blocked(&pass).contains("(two-budgets/one, two-budgets/two)"),
            "{}",
            blocked(&pass)
        );
        let budgets = workload.api::<PodDisruptionBudget>();
        budgets
            .delete("two", &DeleteParams::default())
            .await
            .unwrap();
        drain.drained().await;
    });
}

#[test]
fn an_unready_pod_goes_while_its_workload_is_healthy() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "unready").await.unwrap();
        let pods = [
            workload.pod("a-ready", "web"),
            annotated(workload.pod("b-unready", "web"), READY, "false"),
        ];
        workload.run(pods).await.unwrap();
        workload.budget("web", "web", 1, 1).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        let pass = drain.until(is_blocked).await;
        assert_eq!(reasons(&pass), BTreeMap::from([("a-ready", "Budget")]));
    });
}

#[test]
fn a_deployment_moves_to_another_node_a_few_pods_at_a_time() {
    BED.run(async |bed| {
        let workload = Workload::with_role(bed, "rolling-1", NodeRole::Worker)
            .await
            .unwrap();
        let second = Workload::with_role(bed, "rolling-2", NodeRole::Worker)
            .await
            .unwrap();
        let nodes: Api<Node> = Api::all(workload.client().clone());
        let cordon = |on: bool| {
            Patch::Merge(json!({
                "metadata": { "labels": { "group": "rolling" } },
                "spec": { "unschedulable": on },
            }))
        };
        nodes
            .patch(workload.name(), &PatchParams::default(), &cordon(false))
            .await
            .unwrap();
        nodes
            .patch(second.name(), &PatchParams::default(), &cordon(true))
            .await
            .unwrap();
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": { "name": "web" },
            "spec": {
                "replicas": 6,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": {
                        "nodeSelector": { "group": "rolling" },
                        "terminationGracePeriodSeconds": 1,
                        "containers": [{ "name": "main", "image": "none" }],
                    },
                },
            },
        }))
        .unwrap();
        let deployments = workload.api::<Deployment>();
        deployments
            .create(&PostParams::default(), &deployment)
            .await
            .unwrap();
        workload.budget("web", "web", 4, 6).await.unwrap();
        nodes
            .patch(second.name(), &PatchParams::default(), &cordon(false))
            .await
            .unwrap();

        let mut drain = Drain::of(bed, &workload).await;
        let first = drain.pass().await;
        assert!(first.status.remaining >= 4, "{:?}", first.status);
        let pass = drain.drained().await;
        assert_eq!((pass.status.total, pass.status.evicted), (6, 6));
        let moved = workload
            .api::<Pod>()
            .list(&ListParams::default())
            .await
            .unwrap();
        assert_eq!(moved.items.len(), 6);
        assert!(
            moved
                .iter()
                .all(|p| p.spec.as_ref().unwrap().node_name.as_deref() != Some("rolling-1"))
        );
    });
}

#[test]
fn a_budget_that_can_never_allow_says_so_and_time_is_no_way_past_it() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "never").await.unwrap();
        workload.run([workload.pod("web", "web")]).await.unwrap();
        // maxUnavailable needs a controller that can be scaled; these pods have none.
        let budgets = workload.api::<PodDisruptionBudget>();
        let budget = serde_json::from_value(json!({
            "metadata": { "name": "web" },
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": "web" } } },
        }))
        .unwrap();
        budgets
            .create(&PostParams::default(), &budget)
            .await
            .unwrap();
        until(SOON, "the budget to fail", async || {
            let status = budgets.get("web").await.map_err(|e| e.to_string())?.status;
            match &status {
                Some(s)
                    if s.conditions
                        .iter()
                        .flatten()
                        .any(|c| c.reason == "SyncFailed") =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
        let mut drain = Drain::of(bed, &workload)
            .await
            .options(json!({ "timeout": 60 }));
        assert!(
            blocked(&drain.pass().await)
                .contains("which the disruption controller cannot work out")
        );
        drain.elapsed = Duration::from_secs(61);
        let pass = drain.pass().await;
        assert!(
            matches!(&pass.outcome, DrainOutcome::TimedOut { message } if message.contains("60 s"))
        );
        assert_eq!(workload.pods().await.unwrap(), ["web"]);
        assert!(drain.unschedulable().await);
    });
}

#[test]
fn pods_of_a_dead_node_that_are_marked_deleted_count_as_gone_and_budgets_hold() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "dead").await.unwrap();
        let pods = [
            set(
                workload.pod("gone", "x"),
                "/spec/terminationGracePeriodSeconds",
                json!(30),
            ),
            annotated(workload.pod("unready", "web"), READY, "false"),
        ];
        workload.run(pods).await.unwrap();
        workload.budget("web", "web", 1, 0).await.unwrap();
        bed.kubelets().stop("dead");
        bed.kubelets()
            .wait_ready("dead", "Unknown", SOON)
            .await
            .unwrap();
        delete(&workload, "gone").await;
        let mut drain = Drain::of(bed, &workload).await;
        drain.dead = true;
        let pass = drain.pass().await;
        assert_eq!(reasons(&pass), BTreeMap::from([("unready", "Budget")]));
        let message = blocked(&pass);
        assert!(message.contains("0 healthy, 1 needed"), "{message}");
        assert!(
            message.contains("The node is unreachable and the budget counts no healthy pod"),
            "{message}"
        );
        // The way out that the message names.
        let budgets = workload.api::<PodDisruptionBudget>();
        let always =
            Patch::Merge(json!({ "spec": { "unhealthyPodEvictionPolicy": "AlwaysAllow" } }));
        budgets
            .patch("web", &PatchParams::default(), &always)
            .await
            .unwrap();
        drain.drained().await;
        assert_eq!(
            workload.pods().await.unwrap().len(),
            1,
            "the one that nobody can end"
        );
    });
}
