//! What blocks a drain is named, and nothing is forced.

use ichor_api::ConditionStatus;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::BED;
use crate::common::{Stage, WORK, on_stage};

/// Warnings on this very object.
async fn warnings(stage: &Stage, uid: &str) -> Vec<Event> {
    let api: Api<Event> = Api::namespaced(stage.admin.clone(), "default");
    let all = api.list(&ListParams::default()).await.unwrap();
    all.into_iter()
        .filter(|e| e.type_.as_deref() == Some("Warning"))
        .filter(|e| e.regarding.as_ref().and_then(|r| r.uid.as_deref()) == Some(uid))
        .collect()
}

#[test]
fn while_a_budget_blocks_nothing_is_sent_to_talos() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[0].as_str();
        stage.blocked_pod(name).await;
        stage.run(stage.pod("free", "free", name).await).await;
        stage.delete(name).await;
        let message = stage.stands(name, "DrainFailed").await;
        let budget = format!("budget-{name}");
        for word in [WORK, &format!("on-{name}"), &budget] {
            assert!(message.contains(word), "{word}: {message}");
        }
        // The pod that may go does; the other one is named with the numbers.
        let drain = stage
            .until_machine(name, "have one pod left", |machine| {
                let drain = machine.status.clone().unwrap().drain.unwrap_or_default();
                if drain.remaining == 1 {
                    Ok(drain)
                } else {
                    Err(format!("{drain:?}"))
                }
            })
            .await;
        assert_eq!((drain.total, drain.evicted), (2, 1));
        let left = &drain.pods[0];
        assert_eq!(
            (left.namespace.as_str(), &left.name),
            (WORK, &format!("on-{name}"))
        );
        let blocking = left.budget.as_ref().unwrap();
        assert_eq!(
            (
                &blocking.name,
                blocking.allowed,
                blocking.current,
                blocking.desired
            ),
            (&budget, 0, 1, 1)
        );

        let uid = stage.machine(name).await.metadata.uid.unwrap();
        stage
            .stays("it waits, and holds the lock", async || {
                let holder = stage.lock_holder().await;
                if !holder.as_ref().is_some_and(|h| h.contains(&uid)) {
                    return Err(format!("the lock is held by {holder:?}"));
                }
                let node = stage.nodes().get(name).await.map_err(|e| e.to_string())?;
                if node.spec.unwrap().unschedulable != Some(true) {
                    return Err("the Node is not cordoned".to_owned());
                }
                match stage.changing_calls().as_slice() {
                    [] => Ok(()),
                    calls => Err(format!("{calls:?}")),
                }
            })
            .await;
        let told = warnings(stage, &uid).await;
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].note.as_ref().unwrap().contains(&budget), "{told:?}");

        // The plugin says the same, from status alone.
        let status = stage.kubectl(&["ichor", "drain", "status", name]).await;
        assert_eq!(status.code, 0, "{status:?}");
        for word in [&format!("{WORK}/on-{name}"), &budget] {
            assert!(status.stdout.contains(word), "{status:?}");
        }

        stage.free(name).await;
        stage.gone(name).await;
        assert_eq!(warnings(stage, &uid).await.len(), 1);
    });
}

#[test]
fn at_the_drains_time_limit_the_lock_goes_the_cordon_stays_and_a_freed_budget_wakes_it() {
    on_stage(&BED, async |stage| {
        stage
            .patch_cluster(json!({"spec": {"drain": {"timeout": 1}}}))
            .await;
        stage.blocked_pod("worker-1").await;
        stage.delete("worker-1").await;
        stage
            .until_machine("worker-1", "be at its limit", |machine| {
                let condition = machine.condition("Removal").ok_or("nothing yet")?;
                if condition.message.contains("spec.drain.timeout") {
                    Ok(())
                } else {
                    Err(condition.message.clone())
                }
            })
            .await;
        stage.stands("worker-1", "DrainFailed").await;
        stage.until_unlocked().await;
        stage
            .stays("it stands still", async || {
                if let Some(holder) = stage.lock_holder().await {
                    return Err(format!("{holder} holds the lock"));
                }
                let node = stage.nodes().get("worker-1").await.unwrap();
                if node.spec.unwrap().unschedulable != Some(true) {
                    return Err("the Node is not cordoned".to_owned());
                }
                Ok(())
            })
            .await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        assert!(stage.pods().get_opt("on-worker-1").await.unwrap().is_some());
        stage.free("worker-1").await;
        stage.gone("worker-1").await;
    });
}

#[test]
fn a_bare_pod_stops_a_removal_until_it_is_taken_away() {
    on_stage(&BED, async |stage| {
        let mut bare = stage.pod("bare", "bare", "worker-1").await;
        bare["metadata"]["ownerReferences"] = json!([]);
        stage.run(bare).await;
        stage.run(stage.pod("web", "web", "worker-1").await).await;
        stage.delete("worker-1").await;
        let message = stage.stands("worker-1", "DrainFailed").await;
        assert!(message.contains("work/bare"), "{message}");
        // Refused is refused as a whole: the other pod stays too.
        assert!(stage.pods().get_opt("web").await.unwrap().is_some());
        stage
            .pods()
            .delete("bare", &DeleteParams::default())
            .await
            .unwrap();
        stage.gone("worker-1").await;
        assert_eq!(stage.changing_calls(), ["Reset of worker-1"]);
    });
}

#[test]
fn a_blocked_drain_makes_way_for_a_control_plane_that_died_meanwhile() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let [alive, dead, _] = &stage.voters;
        stage.blocked_pod(alive).await;
        stage.delete(alive).await;
        stage.stands(alive, "DrainFailed").await;
        stage.box_of(dead).etcd_stop();
        stage.delete(dead).await;
        // The dead one goes first, and the blocked one says that it made way.
        stage.gone(dead).await;
        assert_eq!(
            stage.changing_calls(),
            [
                format!("EtcdRemoveMemberByID of {}", removed_through(stage)),
                format!("Reset of {dead}")
            ]
        );
        // Three are left: the healthy one would be a third.
        stage.stands(alive, "BelowDeclaredCount").await;
        stage.until_unlocked().await;
        stage.until_cordoned(alive, false).await;
    });
}

/// The node that a member was removed through.
fn removed_through(stage: &Stage) -> String {
    stage.calls_of("EtcdRemoveMemberByID")[0].node.clone()
}

#[test]
fn a_workers_blocked_drain_makes_way_for_a_control_plane_and_goes_on_afterwards() {
    on_stage(&BED, async |stage| {
        stage.blocked_pod("worker-1").await;
        stage.delete("worker-1").await;
        stage.stands("worker-1", "DrainFailed").await;
        stage.join_spare().await;
        let name = stage.voters[0].as_str();
        // Blocked too, so that the worker can be seen to stand back.
        stage.blocked_pod(name).await;
        stage.delete(name).await;
        stage.stands(name, "DrainFailed").await;
        let uid = stage.machine(name).await.metadata.uid.unwrap();
        let holder = stage.lock_holder().await.unwrap();
        assert!(holder.contains(&uid), "{holder}");
        stage.until_cordoned("worker-1", true).await;
        stage.free("worker-1").await;
        stage.free(name).await;
        stage.gone(name).await;
        stage.gone("worker-1").await;
        let resets: Vec<String> = stage
            .calls_of("Reset")
            .into_iter()
            .map(|c| c.node)
            .collect();
        assert_eq!(resets, [name, "worker-1"]);
    });
}

#[test]
fn a_second_removal_says_who_holds_the_lock() {
    on_stage(&BED, async |stage| {
        stage.blocked_pod("worker-1").await;
        stage.delete("worker-1").await;
        stage.stands("worker-1", "DrainFailed").await;
        stage.delete("worker-2").await;
        let message = stage.stands("worker-2", "ClusterLockHeld").await;
        assert!(message.contains("worker-1"), "{message}");
        stage.free("worker-1").await;
        stage.gone("worker-1").await;
        stage.gone("worker-2").await;
        stage
            .until_cluster(
                "Transitioning",
                ConditionStatus::False,
                "StableControlPlaneCount",
            )
            .await;
    });
}
