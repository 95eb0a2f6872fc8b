//! The test bed keeps its own promises: what the other tests rely on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use ichor_api::TalosMachine;
use ichor_tests::bed::BedOptions;
use ichor_tests::kubelet::ENDS;
use ichor_tests::process::Supervisor;
use ichor_tests::proxy::faults::{Fault, Matcher};
use ichor_tests::shared::SharedBed;
use ichor_tests::wait::until;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::policy::v1::{Eviction, PodDisruptionBudget};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client};
use serde_json::json;

static BED: SharedBed = SharedBed::new(|| BedOptions {
    agents: 0,
    workers: 1,
    ..BedOptions::default()
});

const SOON: Duration = Duration::from_mins(1);

fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn config_map(name: &str) -> ConfigMap {
    read(json!({"metadata": {"name": name}}))
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "default")
}

/// Creates `count` pods on `node` with the label `app: <app>` and waits until all are ready.
async fn run_pods(
    client: &Client,
    app: &str,
    node: &str,
    count: usize,
    annotations: BTreeMap<&str, &str>,
) {
    let api = pods(client);
    let creations = (0..count).map(|number| {
        let pod: Pod = read(json!({
            "metadata": {"name": format!("{app}-{number}"), "labels": {"app": app}, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
        }));
        let api = api.clone();
        async move { api.create(&PostParams::default(), &pod).await }
    });
    for created in futures::future::join_all(creations).await {
        created.unwrap();
    }
    until(SOON, "the pods to be ready", async || {
        let list = api
            .list(&ListParams::default().labels(&format!("app={app}")))
            .await
            .map_err(|e| e.to_string())?;
        let ready = list.iter().filter(|p| is_ready(p)).count();
        if ready == count {
            Ok(())
        } else {
            Err(format!("{ready} of {count}"))
        }
    })
    .await
    .unwrap();
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions
        .clone()
        .any(|c| c.type_ == "Ready" && c.status == "True")
}

async fn is_gone(api: &Api<Pod>, name: &str) {
    until(SOON, "the pod to be gone", async || {
        match api.get_opt(name).await {
            Ok(None) => Ok(()),
            other => Err(format!(
                "{:?}",
                other.map(|p| p.map(|p| p.metadata.deletion_timestamp))
            )),
        }
    })
    .await
    .unwrap();
}

#[test]
fn every_node_is_ready_and_says_what_it_is() {
    BED.run(async |bed| {
        let api: Api<Node> = Api::all(bed.client("admin").await.unwrap());
        let nodes = api.list(&ListParams::default()).await.unwrap();
        let names: Vec<_> = nodes
            .iter()
            .filter_map(|n| n.metadata.name.as_deref())
            .collect();
        assert_eq!(names, ["cp-1", "cp-2", "cp-3", "worker-1"]);
        for node in &nodes {
            let info = node.status.as_ref().unwrap().node_info.as_ref().unwrap();
            assert_eq!(info.system_uuid.len(), 36, "{info:?}");
            assert_eq!(info.boot_id.len(), 36, "{info:?}");
        }
    });
}

#[test]
fn a_node_without_power_is_unknown_and_boots_anew() {
    BED.run(async |bed| {
        let api: Api<Node> = Api::all(bed.client("admin").await.unwrap());
        let boot_id = async || {
            let node = api.get("cp-3").await.unwrap();
            node.status.unwrap().node_info.unwrap().boot_id
        };
        let before = boot_id().await;
        assert_eq!(before, bed.node("cp-3").unwrap().now().boot_id);
        bed.node("cp-3").unwrap().power_off().await;
        bed.kubelets()
            .wait_ready("cp-3", "Unknown", SOON)
            .await
            .unwrap();
        bed.node("cp-3").unwrap().power_on().await;
        bed.kubelets()
            .wait_ready("cp-3", "True", SOON)
            .await
            .unwrap();
        assert_ne!(boot_id().await, before);
        // A line that is cut is as bad as no power, and heals.
        bed.node("cp-3").unwrap().cut();
        bed.kubelets()
            .wait_ready("cp-3", "Unknown", SOON)
            .await
            .unwrap();
        bed.node("cp-3").unwrap().heal();
        bed.kubelets()
            .wait_ready("cp-3", "True", SOON)
            .await
            .unwrap();
    });
}

#[test]
fn the_machines_are_declared_and_the_spare_waits_for_approval() {
    BED.run(async |bed| {
        let api: Api<TalosMachine> =
            Api::namespaced(bed.client("viewer").await.unwrap(), "default");
        let machines = api.list(&ListParams::default()).await.unwrap();
        let approved: Vec<_> = machines
            .iter()
            .map(|m| (m.metadata.name.as_deref().unwrap(), m.spec.approved))
            .collect();
        let expected = [
            ("cp-1", true),
            ("cp-2", true),
            ("cp-3", true),
            ("cp-4", false),
            ("worker-1", true),
        ];
        assert_eq!(approved, expected);
        assert!(
            bed.kubelets()
                .nodes()
                .get(&ObjectRef::new("cp-4"))
                .is_none()
        );
        let voters = bed.etcd_members().await.unwrap();
        assert_eq!(
            voters.iter().filter(|m| m.started && !m.learner).count(),
            3,
            "{voters:?}"
        );
    });
}

#[test]
fn the_editor_may_edit_ichors_resources_and_no_more() {
    BED.run(async |bed| {
        let may = async |user: &str, args: &[&str]| {
            let output = tokio::process::Command::from(bed.kubectl())
                .args(["--context", user, "auth", "can-i"])
                .args(args)
                .output()
                .await
                .unwrap();
            String::from_utf8_lossy(&output.stdout).trim() == "yes"
        };
        assert!(may("editor", &["delete", "talosmachines"]).await);
        assert!(may("viewer", &["get", "talosmachines"]).await);
        assert!(may("admin", &["override", "talosmachines"]).await);
        assert!(!may("viewer", &["delete", "talosmachines"]).await);
        for verb in ["override", "deletecollection"] {
            assert!(!may("editor", &[verb, "talosmachines"]).await, "{verb}");
        }
        for resource in ["secrets", "nodes", "pods", "leases.coordination.k8s.io"] {
            assert!(!may("editor", &["get", resource]).await, "{resource}");
        }
        assert!(
            !may(
                "editor",
                &["update", "talosmachines", "--subresource=status"]
            )
            .await
        );
    });
}

#[test]
fn a_budget_refuses_an_eviction_with_429() {
    BED.run(async |bed| {
        let client = bed.client("admin").await.unwrap();
        run_pods(&client, "budget", "worker-1", 1, BTreeMap::new()).await;
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), "default");
        let budget: PodDisruptionBudget = read(json!({
            "metadata": {"name": "budget"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "budget"}}},
        }));
        budgets
            .create(&PostParams::default(), &budget)
            .await
            .unwrap();
        until(SOON, "the budget to be computed", async || {
            let status = budgets
                .get("budget")
                .await
                .map_err(|e| e.to_string())?
                .status;
            match status {
                Some(s) if s.current_healthy == 1 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
        let eviction: Eviction = read(json!({"metadata": {"name": "budget-0"}}));
        let answer = pods(&client)
            .create_subresource::<_, serde_json::Value>(
                "eviction",
                "budget-0",
                &PostParams::default(),
                &eviction,
            )
            .await;
        let Err(kube::Error::Api(status)) = answer else {
            panic!("evicted: {answer:?}");
        };
        assert_eq!(status.code, 429, "{status:?}");
        let causes = status.details.unwrap().causes;
        assert_eq!(causes[0].reason, "DisruptionBudget", "{causes:?}");
    });
}

#[test]
fn two_hundred_pods_get_ready_and_deleted_ones_are_finished() {
    BED.run(async |bed| {
        let client = bed.client("admin").await.unwrap();
        run_pods(&client, "many", "worker-1", 200, BTreeMap::new()).await;
        let api = pods(&client);
        // With the grace period of 30 s that every pod has by itself.
        api.delete("many-7", &DeleteParams::default())
            .await
            .unwrap();
        is_gone(&api, "many-7").await;
    });
}

#[test]
fn a_pod_that_never_ends_stays_until_somebody_forces_it() {
    BED.run(async |bed| {
        let client = bed.client("admin").await.unwrap();
        run_pods(
            &client,
            "stays",
            "worker-1",
            2,
            BTreeMap::from([(ENDS, "never")]),
        )
        .await;
        let api = pods(&client);
        run_pods(&client, "ends", "worker-1", 1, BTreeMap::new()).await;
        api.delete("stays-0", &DeleteParams::default())
            .await
            .unwrap();
        api.delete("ends-0", &DeleteParams::default())
            .await
            .unwrap();
        is_gone(&api, "ends-0").await;
        let stays = api.get("stays-0").await.unwrap();
        assert!(stays.metadata.deletion_timestamp.is_some());
        let force = DeleteParams::default().grace_period(0);
        api.delete("stays-0", &force).await.unwrap();
        is_gone(&api, "stays-0").await;
    });
}

#[test]
fn a_pod_without_a_node_gets_one() {
    BED.run(async |bed| {
        let api = pods(&bed.client("admin").await.unwrap());
        let pod: Pod = read(json!({
            "metadata": {"name": "homeless"},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }));
        api.create(&PostParams::default(), &pod).await.unwrap();
        let node = until(SOON, "the pod to run", async || {
            let pod = api.get("homeless").await.map_err(|e| e.to_string())?;
            if is_ready(&pod) {
                Ok(pod.spec.and_then(|s| s.node_name))
            } else {
                Err(format!("{:?}", pod.status))
            }
        })
        .await
        .unwrap();
        // The control planes are tainted.
        assert_eq!(node.as_deref(), Some("worker-1"));
    });
}

#[test]
fn a_dropped_answer_leaves_the_write_applied() {
    BED.run(async |bed| {
        let _weather = BED.lock().await;
        let proxied: Api<ConfigMap> =
            Api::namespaced(bed.proxied_client().await.unwrap(), "default");
        let direct: Api<ConfigMap> = Api::namespaced(bed.client("admin").await.unwrap(), "default");
        let matcher = Matcher::parse("POST /configmaps").unwrap();
        bed.proxy()
            .faults()
            .set(Fault::DropAnswer, matcher, Some(1));
        let answer = proxied
            .create(&PostParams::default(), &config_map("dropped"))
            .await;
        assert!(
            !matches!(answer, Ok(_) | Err(kube::Error::Api(_))),
            "there was an answer: {answer:?}"
        );
        assert!(direct.get_opt("dropped").await.unwrap().is_some());
        // Once was asked for.
        proxied
            .create(&PostParams::default(), &config_map("kept"))
            .await
            .unwrap();
    });
}

#[test]
fn a_status_stands_in_for_the_write_or_comes_after_it() {
    BED.run(async |bed| {
        let _weather = BED.lock().await;
        let proxied: Api<ConfigMap> =
            Api::namespaced(bed.proxied_client().await.unwrap(), "default");
        let direct: Api<ConfigMap> = Api::namespaced(bed.client("admin").await.unwrap(), "default");
        for (name, code, after) in [("before", 409, false), ("after", 504, true)] {
            let fault = Fault::Status { code, after };
            bed.proxy()
                .faults()
                .set(fault, Matcher::parse("POST").unwrap(), Some(1));
            let answer = proxied
                .create(&PostParams::default(), &config_map(name))
                .await;
            let Err(kube::Error::Api(status)) = answer else {
                panic!("{name}: {answer:?}");
            };
            assert_eq!(status.code, code, "{status:?}");
            assert_eq!(
                direct.get_opt(name).await.unwrap().is_some(),
                after,
                "{name}"
            );
        }
    });
}

#[test]
fn a_delayed_write_arrives_after_its_sender_has_given_up() {
    BED.run(async |bed| {
        let _weather = BED.lock().await;
        let proxied: Api<ConfigMap> =
            Api::namespaced(bed.proxied_client().await.unwrap(), "default");
        let direct: Api<ConfigMap> = Api::namespaced(bed.client("admin").await.unwrap(), "default");
        let delay = Fault::Delay(Duration::from_millis(1500));
        bed.proxy()
            .faults()
            .set(delay, Matcher::parse("POST /configmaps").unwrap(), Some(1));
        let (params, late) = (PostParams::default(), config_map("late"));
        let sent = proxied.create(&params, &late);
        assert!(
            tokio::time::timeout(Duration::from_millis(500), sent)
                .await
                .is_err()
        );
        assert!(direct.get_opt("late").await.unwrap().is_none());
        until(SOON, "the late write", async || {
            let found = direct.get_opt("late").await.map_err(|e| e.to_string())?;
            found.map(drop).ok_or_else(String::new)
        })
        .await
        .unwrap();
    });
}

#[test]
fn an_outage_cuts_watches_and_ends() {
    BED.run(async |bed| {
        let _weather = BED.lock().await;
        let proxied: Api<ConfigMap> =
            Api::namespaced(bed.proxied_client().await.unwrap(), "default");
        let watch = kube::api::WatchParams::default();
        let events = proxied.watch(&watch, "0").await.unwrap();
        bed.proxy().faults().outage(Duration::from_mins(10));
        // The stream ends, where an idle watch would stay open for minutes.
        let drained = futures::StreamExt::count(events);
        tokio::time::timeout(SOON, drained).await.unwrap();
        assert!(proxied.get_opt("any").await.is_err());
        bed.proxy().faults().clear();
        assert!(proxied.get_opt("any").await.is_ok());
    });
}

#[test]
fn the_proxy_counts_what_went_through_it() {
    BED.run(async |bed| {
        let proxied: Api<ConfigMap> =
            Api::namespaced(bed.proxied_client().await.unwrap(), "kube-public");
        proxied.get_opt("counted").await.unwrap();
        let log = bed.proxy().log().all();
        let path = "/api/v1/namespaces/kube-public/configmaps/counted";
        let seen = log.iter().find(|r| r.path.starts_with(path)).unwrap();
        assert_eq!(
            (seen.verb.as_str(), seen.resource.as_str(), seen.code),
            ("get", "configmaps", 404)
        );
    });
}

#[test]
fn a_child_that_an_earlier_bed_left_is_killed() {
    use std::os::unix::process::CommandExt as _;
    let state = tempfile::tempdir().unwrap();
    let pids = state.path().join("pids");
    std::fs::create_dir(&pids).unwrap();
    let sleep = || {
        std::process::Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap()
    };
    let (mut left, mut other) = (sleep(), sleep());
    let started = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after = stat.rsplit(')').next().unwrap();
        after.split_whitespace().nth(19).unwrap().to_owned()
    };
    std::fs::write(
        pids.join("left.pid"),
        format!("{} {}\n", left.id(), started(left.id())),
    )
    .unwrap();
    // The number of one that ended long ago, which another process has now.
    std::fs::write(pids.join("other.pid"), format!("{} 1\n", other.id())).unwrap();
    let supervisor = Supervisor::new(state.path(), &[]).unwrap();
    assert!(!left.wait().unwrap().success());
    assert!(
        other.try_wait().unwrap().is_none(),
        "a process that is not ours was killed"
    );
    other.kill().unwrap();
    other.wait().unwrap();
    let again = Supervisor::new(state.path(), &[]).unwrap_err();
    assert!(again.to_string().contains("lives in"), "{again}");
    drop(supervisor);
    Supervisor::new(state.path(), &[]).unwrap();
}
