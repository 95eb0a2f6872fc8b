//! The drain against a real API server, with live budgets, under the agent's own
//! ServiceAccount and exactly the shipped rights.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ichor_agent::drain::{
    self, DrainLimits, DrainOutcome, DrainPass, DrainRequest, Uncordon, announce_blocked,
    blocked_note, uncordon,
};
use ichor_api::common::DrainOptions;
use ichor_api::machine::DrainStatus;
use ichor_api::{TalosMachine, names};
use ichor_lock::testing::{MemoryStore, ScriptedView};
use ichor_lock::{
    BootClock, DisruptiveLock, Durations, LockManager, Operation, acquire_disruptive,
};
use ichor_tests::bed::{Bed, BedOptions};
use ichor_tests::kubelet::{ENDS, NodeRole, READY};
use ichor_tests::shared::SharedBed;
use ichor_tests::wait::until;
use ichor_tests::workload::{Workload, agent_client, annotated, set};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

static BED: SharedBed = SharedBed::new(|| BedOptions {
    control_planes: 1,
    workers: 0,
    agents: 0,
    ..BedOptions::default()
});

const SOON: Duration = Duration::from_secs(120);

/// A drain of a workload's node, as the agent makes it.
struct Drain {
    client: Client,
    lock: DisruptiveLock,
    node: String,
    options: DrainOptions,
    dead: bool,
    elapsed: Duration,
    status: Option<DrainStatus>,
    began: Instant,
    limits: DrainLimits,
}

impl Drain {
    async fn of(bed: &Bed, workload: &Workload) -> Self {
        Self::through(bed, workload, bed.control_plane().url()).await
    }

    async fn through(bed: &Bed, workload: &Workload, url: &str) -> Self {
        Self {
            client: agent_client(bed, url).await.unwrap(),
            lock: held(workload.name()).await,
            node: workload.name().to_owned(),
            options: DrainOptions::default(),
            dead: false,
            elapsed: Duration::ZERO,
            status: None,
            began: Instant::now(),
            limits: DrainLimits::default(),
        }
    }

    fn options(mut self, options: Value) -> Self {
        self.options = serde_json::from_value(options).unwrap();
        self
    }

    fn operation(&self) -> String {
        format!("op-{}", self.node)
    }

    async fn pass(&mut self) -> DrainPass {
        let operation = self.operation();
        let request = DrainRequest {
            node: &self.node,
            operation_uid: &operation,
            options: &self.options,
            dead: self.dead,
            agent_namespace: names::AGENT_NAMESPACE,
            previous: self.status.as_ref(),
            elapsed: self.elapsed,
            now: Timestamp::now(),
            limits: self.limits.clone(),
        };
        let pass = drain::pass(&self.lock, &self.client, request)
            .await
            .unwrap();
        self.status = Some(pass.status.clone());
        pass
    }

    /// Passes until one ends as `wanted`; what else it may come by is `Progressing`, or
    /// a budget that is still being worked out.
    async fn until(&mut self, wanted: fn(&DrainOutcome) -> bool) -> DrainPass {
        loop {
            let pass = self.pass().await;
            if wanted(&pass.outcome) {
                return pass;
            }
            assert!(self.began.elapsed() < SOON, "{:?}", pass.outcome);
            drain::settle(&self.client, &self.node, &pass, &self.limits).await;
        }
    }

    async fn to_the_end(&mut self) -> DrainPass {
        self.limits.retry = Duration::from_millis(300);
        self.until(|o| *o == DrainOutcome::Drained).await
    }

    async fn unschedulable(&self) -> bool {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(&self.node).await.unwrap();
        node.spec.and_then(|s| s.unschedulable).unwrap_or(false)
    }
}

async fn held(name: &str) -> DisruptiveLock {
    let manager = LockManager::new("test", Arc::new(BootClock), Durations::default());
    let operation = Operation {
        kind: "TalosMachine".to_owned(),
        name: name.to_owned(),
        namespace: "default".to_owned(),
        uid: format!("op-{name}"),
        purpose: "removal".to_owned(),
    };
    let store = MemoryStore::new();
    let view = ScriptedView::default();
    acquire_disruptive(&manager, Arc::new(store), &view, &operation, true)
        .await
        .unwrap()
}

fn blocked(pass: &DrainPass) -> &str {
    match &pass.outcome {
        DrainOutcome::Blocked { message } => message,
        other => panic!("not blocked: {other:?}"),
    }
}

fn reasons(pass: &DrainPass) -> BTreeMap<&str, &str> {
    let pods = pass.status.pods.iter();
    pods.map(|p| (p.name.as_str(), p.reason.as_str())).collect()
}

fn is_blocked(outcome: &DrainOutcome) -> bool {
    matches!(outcome, DrainOutcome::Blocked { .. })
}

async fn relax(workload: &Workload, budget: &str, min_available: i32) {
    let api = workload.api::<PodDisruptionBudget>();
    let patch = Patch::Merge(json!({ "spec": { "minAvailable": min_available } }));
    api.patch(budget, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn delete(workload: &Workload, pod: &str) {
    let api = workload.api::<Pod>();
    api.delete(pod, &DeleteParams::default()).await.unwrap();
}

#[test]
fn two_hundred_pods_under_one_budget_are_each_evicted_once() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "two-hundred").await.unwrap();
        let pods = (0..200).map(|i| workload.pod(&format!("web-{i:03}"), "web"));
        workload.run(pods).await.unwrap();
        workload.budget("web", "web", 0, 200).await.unwrap();
        let mut drain = Drain::through(bed, &workload, bed.proxy().url()).await;
        let pass = drain.to_the_end().await;
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
        let pass = drain.to_the_end().await;
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
fn a_cordon_that_somebody_else_made_stays() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "foreign-cordon").await.unwrap();
        let nodes: Api<Node> = Api::all(workload.client().clone());
        let patch = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
        nodes
            .patch("foreign-cordon", &PatchParams::default(), &patch)
            .await
            .unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        assert_eq!(drain.pass().await.outcome, DrainOutcome::Drained);
        let node = nodes.get("foreign-cordon").await.unwrap();
        assert!(!node.annotations().contains_key(names::CORDONED_BY));
        let operation = drain.operation();
        let undone = uncordon(
            &drain.client,
            "foreign-cordon",
            None,
            &operation,
            drain.limits.read,
        );
        assert_eq!(undone.await.unwrap(), Uncordon::NotOurs);
        assert!(drain.unschedulable().await);
    });
}

#[test]
fn a_bare_pod_stops_the_drain_and_a_finished_one_does_not() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "bare").await.unwrap();
        let bare = |name| {
            set(
                workload.pod(name, "bare"),
                "/metadata/ownerReferences",
                json!([]),
            )
        };
        let pods = [workload.pod("web", "web"), bare("bare"), bare("finished")];
        workload.run(pods).await.unwrap();
        let api = workload.api::<Pod>();
        let done = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
        api.patch_status("finished", &PatchParams::default(), &done)
            .await
            .unwrap();

        let mut drain = Drain::of(bed, &workload).await;
        let pass = drain.pass().await;
        let DrainOutcome::Refused { message } = &pass.outcome else {
            panic!("{:?}", pass.outcome);
        };
        assert!(
            message.contains("bare/bare: has no controller"),
            "{message}"
        );
        assert_eq!(
            reasons(&pass),
            BTreeMap::from([("bare", "Unmanaged"), ("web", "Waiting")])
        );
        assert_eq!(workload.pods().await.unwrap().len(), 3);

        let mut drain = drain.options(json!({ "unmanaged": "Evict" }));
        drain.to_the_end().await;
        assert_eq!(workload.pods().await.unwrap(), ["finished"]);
    });
}

#[test]
fn an_empty_dir_is_evicted_by_default_and_refused_where_the_option_says_so() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "empty-dir").await.unwrap();
        let volumes = json!([{ "name": "tmp", "emptyDir": {} }]);
        let pod = set(workload.pod("cache", "cache"), "/spec/volumes", volumes);
        workload.run([pod]).await.unwrap();
        let mut drain = Drain::of(bed, &workload)
            .await
            .options(json!({ "emptyDir": "Refuse" }));
        let pass = drain.pass().await;
        assert!(matches!(pass.outcome, DrainOutcome::Refused { .. }));
        assert_eq!(reasons(&pass), BTreeMap::from([("cache", "EmptyDir")]));
        drain.options(json!({})).to_the_end().await;
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
        drain.to_the_end().await;
    });
}

#[test]
fn daemon_set_and_mirror_pods_stay_and_nobody_waits_for_them() {
    BED.run(async |bed| {
        let workload = Workload::with_role(bed, "skips", NodeRole::Worker)
            .await
            .unwrap();
        let daemons = workload.api::<DaemonSet>();
        let daemon: DaemonSet = serde_json::from_value(json!({
            "metadata": { "name": "agent" },
            "spec": {
                "selector": { "matchLabels": { "app": "daemon" } },
                "template": {
                    "metadata": { "labels": { "app": "daemon" } },
                    "spec": {
                        "nodeSelector": { "kubernetes.io/hostname": "skips" },
                        "containers": [{ "name": "main", "image": "none" }],
                    },
                },
            },
        }))
        .unwrap();
        daemons
            .create(&PostParams::default(), &daemon)
            .await
            .unwrap();
        until(SOON, "the DaemonSet's pod to run", async || match workload
            .pods()
            .await
            .map_err(|e| e.to_string())?
            .as_slice()
        {
            [_] => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        let mirror = set(
            workload.pod("etcd-skips", "etcd"),
            "/metadata/ownerReferences",
            json!([]),
        );
        let mirror = annotated(mirror, "kubernetes.io/config.mirror", "hash");
        let kept = set(
            workload.pod("kept", "storage"),
            "/metadata/ownerReferences",
            json!([]),
        );
        workload
            .run([mirror, kept, workload.pod("web", "web")])
            .await
            .unwrap();
        let mut drain = Drain::of(bed, &workload)
            .await
            .options(json!({ "skipSelector": "app in (storage)" }));
        let pass = drain.to_the_end().await;
        assert_eq!((pass.status.total, pass.status.evicted), (1, 1));
        assert_eq!(workload.pods().await.unwrap().len(), 3);
    });
}

#[test]
fn a_pod_in_a_long_grace_period_is_waited_for_and_not_called_blocked() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "long-grace").await.unwrap();
        let slow = set(
            workload.pod("slow", "web"),
            "/spec/terminationGracePeriodSeconds",
            json!(600),
        );
        workload
            .run([annotated(slow, ENDS, "never")])
            .await
            .unwrap();
        workload.budget("web", "web", 1, 1).await.unwrap();
        delete(&workload, "slow").await;
        let mut drain = Drain::of(bed, &workload).await;
        let pass = drain.pass().await;
        assert_eq!(pass.outcome, DrainOutcome::Progressing);
        assert_eq!(reasons(&pass), BTreeMap::from([("slow", "GracePeriod")]));
        assert!(
            pass.status.pods[0]
                .message
                .contains("grace period is 600 s")
        );
        // The wait ends when it goes, not by a poll.
        drain.limits.retry = Duration::from_secs(3600);
        let (client, limits) = (drain.client.clone(), drain.limits.clone());
        let settled = drain::settle(&client, "long-grace", &pass, &limits);
        let force = async {
            let api = workload.api::<Pod>();
            let params = DeleteParams::default().grace_period(0);
            api.delete("slow", &params).await.unwrap();
        };
        let both = futures::future::join(settled, force);
        tokio::time::timeout(SOON, both).await.unwrap();
        assert_eq!(drain.pass().await.outcome, DrainOutcome::Drained);
    });
}

#[test]
fn an_evicted_pod_with_a_finalizer_is_named_with_it() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "finalizer").await.unwrap();
        let pod = set(
            workload.pod("web", "web"),
            "/metadata/finalizers",
            json!(["example.com/hold"]),
        );
        workload.run([pod]).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        let pass = drain.pass().await;
        assert_eq!(reasons(&pass), BTreeMap::from([("web", "Finalizer")]));
        assert!(pass.status.pods[0].message.contains("example.com/hold"));
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        let api = workload.api::<Pod>();
        api.patch("web", &PatchParams::default(), &free)
            .await
            .unwrap();
        drain.to_the_end().await;
    });
}

#[test]
fn a_pod_of_a_namespace_on_its_way_out_goes_with_it() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "leaving").await.unwrap();
        let slow = |i| {
            set(
                workload.pod(&format!("web-{i:02}"), "web"),
                "/spec/terminationGracePeriodSeconds",
                json!(2),
            )
        };
        workload.run((0..20).map(slow)).await.unwrap();
        workload.budget("web", "web", 20, 20).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        blocked(&drain.pass().await);
        let namespaces: Api<Namespace> = Api::all(workload.client().clone());
        namespaces
            .delete("leaving", &DeleteParams::default())
            .await
            .unwrap();
        let pass = drain.to_the_end().await;
        assert_eq!(pass.status.evicted, 20);
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
        drain.to_the_end().await;
        assert_eq!(
            workload.pods().await.unwrap().len(),
            1,
            "the one that nobody can end"
        );
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
        let pass = drain.to_the_end().await;
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
fn the_agents_own_pod_is_left_to_the_end_and_deleted_by_uid() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "own-pod").await.unwrap();
        workload.run([workload.pod("web", "web")]).await.unwrap();
        let own: Api<Pod> = Api::namespaced(workload.client().clone(), names::AGENT_NAMESPACE);
        let pod = serde_json::from_value(json!({
            "metadata": { "name": "own-pod", "labels": { "app.kubernetes.io/name": names::AGENT_APP } },
            "spec": {
                "nodeName": "own-pod",
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" },
                },
                "containers": [{
                    "name": "main", "image": "none",
                    "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                }],
            },
        }))
        .unwrap();
        own.create(&PostParams::default(), &pod).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        drain.limits.retry = Duration::from_millis(300);
        let pass = drain.until(|o| matches!(o, DrainOutcome::OnlyAgentPods { .. })).await;
        let DrainOutcome::OnlyAgentPods { pods } = pass.outcome else {
            unreachable!()
        };
        assert_eq!(pods.len(), 1);
        drain::delete_agent_pod(&drain.lock, &drain.client, &pods[0], &drain.limits).await.unwrap();
        drain.to_the_end().await;
    });
}

#[test]
fn the_event_of_a_drain_of_200_blocked_pods_is_accepted_once() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "telling").await.unwrap();
        let long = "x".repeat(200);
        let pods = (0..30).map(|i| workload.pod(&format!("web-{i:02}-{long}"), "web"));
        workload.run(pods).await.unwrap();
        workload.budget("web", "web", 30, 30).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        let pass = drain.pass().await;
        blocked(&pass);
        let note = blocked_note("telling", &pass.status);
        assert!(note.len() <= 1024 && note.contains(" more"), "{note}");
        let machine: TalosMachine = serde_json::from_value(json!({
            "apiVersion": "ichor.maesh.dev/v1alpha1", "kind": "TalosMachine",
            "metadata": { "name": "telling", "namespace": "telling", "uid": "m-1" },
            "spec": { "clusterRef": { "name": "demo" }, "role": "worker", "address": "192.0.2.1" },
        }))
        .unwrap();
        for instance in ["agent-1", "agent-1", "agent-2"] {
            announce_blocked(
                &drain.client,
                &machine,
                "noon",
                &note,
                instance,
                Timestamp::now(),
                &drain.limits,
            )
            .await
            .unwrap();
        }
        let events = workload
            .api::<Event>()
            .list(&ListParams::default())
            .await
            .unwrap();
        let told: Vec<_> = events
            .iter()
            .filter(|e| e.reason.as_deref() == Some("DrainBlocked"))
            .collect();
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].note.as_deref(), Some(note.as_str()));
    });
}

#[test]
fn volumes_are_looked_for_with_the_shipped_rights() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "volumes").await.unwrap();
        let attachments: Api<k8s_openapi::api::storage::v1::VolumeAttachment> =
            Api::all(workload.client().clone());
        for (name, node) in [("volumes-here", "volumes"), ("volumes-elsewhere", "another")] {
            let attachment = serde_json::from_value(json!({
                "metadata": { "name": name },
                "spec": { "attacher": "csi.example.com", "nodeName": node, "source": { "persistentVolumeName": name } },
            }))
            .unwrap();
            attachments.create(&PostParams::default(), &attachment).await.unwrap();
        }
        let claim = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }]);
        let kept = set(workload.pod("kept", "keep"), "/spec/volumes", claim);
        workload.run([kept]).await.unwrap();
        let options: DrainOptions = serde_json::from_value(json!({ "skipSelector": "app=keep" })).unwrap();
        let drain = Drain::of(bed, &workload).await;
        let left = async || {
            drain::volume_attachments(&drain.client, "volumes", &options, &drain.limits).await.unwrap()
        };
        assert_eq!(left().await, ["volumes-here"]);
        let claims = workload.api::<k8s_openapi::api::core::v1::PersistentVolumeClaim>();
        let claim = serde_json::from_value(json!({
            "metadata": { "name": "data" },
            "spec": {
                "volumeName": "volumes-here", "storageClassName": "",
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
            },
        }))
        .unwrap();
        claims.create(&PostParams::default(), &claim).await.unwrap();
        assert_eq!(left().await, Vec::<String>::new());
    });
}
