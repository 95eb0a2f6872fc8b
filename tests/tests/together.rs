//! Several removals at once, in the mode in which the API server lives in the very etcd
//! that is worked on: if quorum broke, the API would be gone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]
#![allow(clippy::panic, reason = "a test that cannot go on fails there")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::SOON;
use ichor_api::conditions::REMOVAL;
use ichor_api::{TalosMachine, names};
use ichor_tests::bed::objects::NAMESPACE;
use ichor_tests::bed::{Bed, BedOptions, EtcdMode};
use ichor_tests::wait;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

fn options(control_planes: usize, agents: usize) -> BedOptions {
    let mut options = BedOptions {
        etcd: EtcdMode::Shared,
        control_planes,
        workers: 1,
        agents,
        ..common::options()
    };
    if agents > 1 {
        // Both believe that they lead: the lock alone keeps them apart.
        options.agent_args.push("--no-election".to_owned());
    }
    options
}

fn on_bed(options: BedOptions, test: impl AsyncFnOnce(&Bed)) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bed = Bed::start(options).await.unwrap();
        test(&bed).await;
        bed.stop().await.unwrap();
    });
}

/// Writes to the API every 20 ms, and counts those that failed twice in a row: the first
/// failure may be of the very connection to the member that leaves.
struct Writes {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Writes {
    async fn start(bed: &Bed) -> Self {
        let api: Api<ConfigMap> = Api::namespaced(bed.client("admin").await.unwrap(), NAMESPACE);
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some("written".into()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        api.create(&PostParams::default(), &map).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let [failed, done] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let task = tokio::spawn({
            let (stop, failed, done) = (stop.clone(), failed.clone(), done.clone());
            async move {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let patch = Patch::Merge(json!({"data": {"n": format!("{n}")}}));
                    let params = PatchParams::default();
                    let write = async || {
                        let one = api.patch("written", &params, &patch);
                        matches!(
                            tokio::time::timeout(Duration::from_secs(5), one).await,
                            Ok(Ok(_))
                        )
                    };
                    if write().await || write().await {
                        done.fetch_add(1, Ordering::Relaxed);
                    } else {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
        Self {
            stop,
            failed,
            done,
            task,
        }
    }

    async fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        (
            self.done.load(Ordering::Relaxed),
            self.failed.load(Ordering::Relaxed),
        )
    }
}

fn machines(client: &kube::Client) -> Api<TalosMachine> {
    Api::namespaced(client.clone(), NAMESPACE)
}

/// Marks and deletes machines all at the same moment; the names of those admitted.
async fn delete_all(client: &kube::Client, names: &[&str]) -> Vec<String> {
    let api = machines(client);
    for name in names {
        let patch = json!({"metadata": {"annotations": {names::ALLOW_DELETE: "true"}}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }
    let params = DeleteParams::default();
    let answers =
        futures::future::join_all(names.iter().map(|name| api.delete(name, &params))).await;
    names
        .iter()
        .zip(answers)
        .filter(|(_, answer)| answer.is_ok())
        .map(|(name, _)| (*name).to_owned())
        .collect()
}

async fn reasons(client: &kube::Client) -> Vec<(String, String)> {
    machines(client)
        .list(&kube::api::ListParams::default())
        .await
        .unwrap()
        .into_iter()
        .filter(TalosMachine::is_being_deleted)
        .map(|m| {
            let reason = m
                .condition(REMOVAL)
                .map(|c| c.reason.clone())
                .unwrap_or_default();
            (m.metadata.name.unwrap_or_default(), reason)
        })
        .collect()
}

async fn until(client: &kube::Client, what: &str, holds: impl Fn(&[(String, String)]) -> bool) {
    wait::until(SOON, what, || async {
        let now = reasons(client).await;
        if holds(&now) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await
    .unwrap_or_else(|error| panic!("{error}"));
}

async fn voters(bed: &Bed) -> usize {
    bed.etcd_members()
        .await
        .unwrap()
        .iter()
        .filter(|m| m.started && !m.learner)
        .count()
}

/// At most one accepted reset and one successful member removal for each machine.
fn once_each(bed: &Bed) {
    for node in bed.sim().nodes() {
        let calls = bed.calls(Some(&node.name)).unwrap();
        let accepted = |method: &str| {
            calls
                .iter()
                .filter(|c| c.method == method && c.code == "OK")
                .count()
        };
        assert!(
            accepted("Reset") <= 1,
            "{}: {} resets",
            node.name,
            accepted("Reset")
        );
        assert!(accepted("EtcdLeaveCluster") <= 1, "{}", node.name);
    }
}

async fn several(bed: &Bed, targets: &[&str], stays: usize, left: usize) {
    let client = bed.client("admin").await.unwrap();
    let writes = Writes::start(bed).await;
    let admitted = delete_all(&client, targets).await;
    assert!(admitted.len() > stays, "{admitted:?}");
    // All but so many go; those stand, and say why.
    until(&client, "the end of those that may go", |now| {
        now.len() <= stays
            && now.iter().all(|(_, reason)| {
                reason == "BelowDeclaredCount"
                    || reason == "QuorumWouldBreak"
                    || reason == "EtcdUnhealthy"
            })
    })
    .await;
    let (done, failed) = writes.end().await;
    assert!(done > 20, "only {done} writes were made");
    assert_eq!(
        failed, 0,
        "{failed} of {done} writes failed: quorum was lost on the way"
    );
    assert_eq!(voters(bed).await, left);
    once_each(bed);
}

#[test]
#[ignore = "make proof: a bed of its own in shared mode"]
fn two_removals_at_once_go_one_after_the_other_and_the_api_never_stops() {
    on_bed(options(5, 1), async |bed| {
        // 5 declared: one joins, then two are removed; the second would be 5 to 4.
        bed.node("cp-6").unwrap().join().await.unwrap();
        let client = bed.client("admin").await.unwrap();
        let approve = Patch::Merge(json!({"spec": {"approved": true}}));
        machines(&client)
            .patch("cp-6", &PatchParams::default(), &approve)
            .await
            .unwrap();
        wait_adopted(&client, "cp-6").await;
        several(bed, &["cp-1", "cp-2"], 1, 5).await;
    });
}

#[test]
#[ignore = "make proof: a bed of its own in shared mode"]
fn three_removals_at_once_with_two_agents_that_both_lead_keep_quorum() {
    on_bed(options(5, 2), async |bed| {
        let client = bed.client("admin").await.unwrap();
        let cluster: Api<ichor_api::TalosCluster> = Api::namespaced(client.clone(), NAMESPACE);
        let three = Patch::Merge(json!({"spec": {"controlPlane": {"count": 3}}}));
        cluster
            .patch("demo", &PatchParams::default(), &three)
            .await
            .unwrap();
        several(bed, &["cp-1", "cp-2", "cp-3"], 1, 3).await;
    });
}

#[test]
#[ignore = "make proof: five at once, with one agent and with two"]
fn five_removals_at_once_keep_quorum() {
    for agents in [1, 2] {
        on_bed(options(5, agents), async |bed| {
            let client = bed.client("admin").await.unwrap();
            let cluster: Api<ichor_api::TalosCluster> = Api::namespaced(client.clone(), NAMESPACE);
            let three = Patch::Merge(json!({"spec": {"controlPlane": {"count": 3}}}));
            cluster
                .patch("demo", &PatchParams::default(), &three)
                .await
                .unwrap();
            several(bed, &["cp-1", "cp-2", "cp-3", "cp-4", "cp-5"], 3, 3).await;
        });
    }
}

async fn wait_adopted(client: &kube::Client, name: &str) {
    let api = machines(client);
    wait::until(SOON, "its adoption", || async {
        let machine = api.get(name).await.map_err(|e| e.to_string())?;
        let ready = machine
            .condition("Ready")
            .is_some_and(|c| c.status == ichor_api::ConditionStatus::True);
        if ready {
            Ok(())
        } else {
            Err(format!("{:?}", machine.status))
        }
    })
    .await
    .unwrap();
}

/// Five voters, and two of them are frozen (not stopped: etcd itself would refuse) just
/// before the last live check of a removal: three of five are a quorum, but without the
/// target two of four are none. Answers whether the API still takes writes afterwards.
async fn frozen_before_the_last_check(bed: &Bed) -> bool {
    let client = bed.client("admin").await.unwrap();
    let cluster: Api<ichor_api::TalosCluster> = Api::namespaced(client.clone(), NAMESPACE);
    let three = Patch::Merge(json!({"spec": {"controlPlane": {"count": 3}}}));
    cluster
        .patch("demo", &PatchParams::default(), &three)
        .await
        .unwrap();
    let leader = leader(bed).await;
    let mut others = ["cp-1", "cp-2", "cp-3", "cp-4", "cp-5"]
        .into_iter()
        .filter(|name| *name != leader);
    let (target, frozen) = (
        others.next().unwrap(),
        [others.next().unwrap(), others.next().unwrap()],
    );

    // The agent dies with the Node drained; what it looks at next is frozen by then.
    let agents = bed.agents().unwrap();
    agents.failpoint("after-drain", None).await.unwrap();
    agents.wait_ready(1, SOON).await.unwrap();
    assert_eq!(delete_all(&client, &[target]).await, [target]);
    wait::until(SOON, "the agent's death", || async {
        if agents.status().await.iter().all(|a| a.state == "Stopped") {
            Ok(())
        } else {
            Err("it lives".to_owned())
        }
    })
    .await
    .unwrap();
    for name in frozen {
        bed.node(name).unwrap().etcd_freeze();
    }
    agents.start_again(None).await.unwrap();
    wait::until(SOON, "what becomes of it", || async {
        let left = bed
            .calls(Some(target))
            .unwrap()
            .iter()
            .any(|c| c.method == "EtcdLeaveCluster" && c.code == "OK");
        if left {
            return Ok(());
        }
        let now = tokio::time::timeout(Duration::from_secs(5), reasons(&client))
            .await
            .map_err(|e| e.to_string())?;
        if now.iter().any(|(_, reason)| reason == "EtcdUnhealthy") {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await
    .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some("after".into()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    let written = tokio::time::timeout(
        Duration::from_secs(8),
        maps.create(&PostParams::default(), &map),
    )
    .await;
    for name in frozen {
        bed.node(name).unwrap().etcd_thaw();
    }
    matches!(written, Ok(Ok(_)))
}

async fn leader(bed: &Bed) -> String {
    let statuses = bed.sim().etcd_statuses().await;
    let members = bed.etcd_members().await.unwrap();
    let leader = statuses
        .iter()
        .map(|(_, s)| s.leader)
        .find(|l| *l != 0)
        .unwrap();
    members
        .into_iter()
        .find(|m| m.id == names::format_etcd_id(leader))
        .unwrap()
        .name
}

/// Frozen members are waited for; the permit must not go stale meanwhile, nor etcd notice.
fn quick(mut options: BedOptions) -> BedOptions {
    options
        .agent_args
        .extend(["--etcd-deadline=500ms", "--send-within=3s"].map(str::to_owned));
    options
}

#[test]
#[ignore = "make proof: a bed of its own in shared mode"]
fn a_member_frozen_before_the_last_check_stops_the_removal_and_the_api_lives() {
    on_bed(quick(options(5, 1)), async |bed| {
        assert!(
            frozen_before_the_last_check(bed).await,
            "the API is gone although the rules were on"
        );
        for node in bed.sim().nodes() {
            let calls = bed.calls(Some(&node.name)).unwrap();
            assert!(
                !calls
                    .iter()
                    .any(|c| c.method == "Reset" || c.method == "EtcdLeaveCluster"),
                "{calls:?}"
            );
        }
    });
}

#[test]
#[ignore = "make proof: a bed of its own in shared mode"]
fn with_the_live_etcd_rule_answering_yes_the_same_scenario_loses_the_api() {
    let mut options = quick(options(5, 1));
    options.agent_features = vec!["lying-etcd-rule".to_owned()];
    on_bed(options, async |bed| {
        assert!(
            !frozen_before_the_last_check(bed).await,
            "the API lives although the rule lied: then the test beside this one shows nothing"
        );
    });
}
