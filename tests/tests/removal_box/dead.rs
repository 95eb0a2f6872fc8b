//! A machine that is dead, or whose Talos API or etcd is.

use std::time::Duration;

use ichor_api::conditions::HEALTHY;
use ichor_api::{ConditionStatus, names};
use ichor_tests::sim::Fault;
use serde_json::json;

use crate::BED;
use crate::common::on_stage;

#[test]
fn a_dead_node_leaves_through_a_peer_and_waits_for_skip_reset() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[0].as_str();
        let node = stage.box_of(name);
        stage.run(stage.pod("web", "web", name).await).await;
        node.power_off().await;
        stage.delete(name).await;

        let message = stage.stands(name, "SkipResetNeeded").await;
        assert!(message.contains(names::SKIP_RESET), "{message}");
        stage.until_unlocked().await;
        let calls = stage.calls_of("EtcdRemoveMemberByID");
        assert_eq!(calls.len(), 1, "{calls:?}");
        assert_ne!(calls[0].node, name);
        assert_eq!(stage.changing_calls().len(), 1);
        // Its pod is marked deleted: nobody is there to finish it, and nobody waits for it.
        let pod = stage.pods().get_opt("web").await.unwrap();
        assert!(pod.is_none_or(|p| p.metadata.deletion_timestamp.is_some()));
        stage
            .until_voters(&[&stage.voters[1], &stage.voters[2], &stage.spare])
            .await;

        // By consent it is let go, and stays on record.
        stage.annotate(name, names::SKIP_RESET, Some("true")).await;
        stage.gone(name).await;
        assert_eq!(stage.calls_of("Reset").len(), 0);
        assert_eq!(stage.nodes().get_opt(name).await.unwrap(), None);
        let left = stage.cluster().await.status.unwrap().not_wiped;
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0].machine, name);
        assert_eq!(left[0].hardware_uuid, node.hardware_uuid);

        // Seen again it is an alarm, until somebody says that it is dealt with.
        node.power_on().await;
        let message = stage
            .until_cluster(HEALTHY, ConditionStatus::False, "NotWipedSeenAgain")
            .await;
        assert!(message.contains(name), "{message}");
        stage
            .patch_cluster(
                json!({"metadata": {"annotations": {names::FORGET: node.hardware_uuid}}}),
            )
            .await;
        stage
            .wait("the entry to be gone", async || {
                let left = stage.cluster().await.status.unwrap().not_wiped;
                if left.is_empty() {
                    Ok(())
                } else {
                    Err(format!("{left:?}"))
                }
            })
            .await;
        assert_eq!(stage.calls_of("Reset").len(), 0);
    });
}

#[test]
fn a_dead_worker_that_comes_back_is_wiped_after_all() {
    on_stage(&BED, async |stage| {
        let node = stage.box_of("worker-1");
        node.power_off().await;
        stage.delete("worker-1").await;
        stage.stands("worker-1", "SkipResetNeeded").await;
        stage.until_unlocked().await;
        node.power_on().await;
        stage.gone("worker-1").await;
        assert_eq!(stage.changing_calls(), ["Reset of worker-1"]);
        assert_eq!(node.now().stage, ichor_talos::Stage::Maintenance);
        assert_eq!(stage.cluster().await.status.unwrap().not_wiped, []);
    });
}

#[test]
fn skip_reset_is_ignored_while_the_box_answers() {
    on_stage(&BED, async |stage| {
        stage
            .annotate("worker-1", names::SKIP_RESET, Some("true"))
            .await;
        stage.delete("worker-1").await;
        stage.gone("worker-1").await;
        assert_eq!(stage.changing_calls(), ["Reset of worker-1"]);
        assert_eq!(stage.cluster().await.status.unwrap().not_wiped, []);
    });
}

#[test]
fn a_target_whose_etcd_is_down_leaves_by_id_through_a_survivor() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[1].as_str();
        stage.box_of(name).etcd_stop();
        stage.delete(name).await;
        stage.gone(name).await;
        assert_eq!(stage.calls_of("EtcdLeaveCluster").len(), 0);
        let removed = stage.calls_of("EtcdRemoveMemberByID");
        assert_eq!(removed.len(), 1);
        assert_ne!(removed[0].node, name);
        let resets = stage.calls_of("Reset");
        assert_eq!(resets.len(), 1);
        assert_eq!(resets[0].node, name);
    });
}

#[test]
fn a_leave_that_etcd_refuses_three_times_goes_on_and_no_reset_comes_before_it() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[1].as_str();
        stage.box_of(name).etcd_stop();
        let others = [&stage.voters[0], &stage.voters[2], &stage.spare];
        for refusals in 1..=3 {
            for other in others {
                stage
                    .box_of(other)
                    .fault("EtcdRemoveMemberByID", Fault::UnhealthyCluster);
            }
            if refusals == 1 {
                stage.delete(name).await;
            }
            stage
                .wait(&format!("refusal {refusals}"), async || {
                    let calls = stage.calls_of("EtcdRemoveMemberByID");
                    if calls.len() >= refusals {
                        Ok(())
                    } else {
                        Err(format!("{calls:?}"))
                    }
                })
                .await;
            let message = stage.stands(name, "LeaveFailed").await;
            assert!(message.contains("unhealthy cluster"), "{message}");
            assert_eq!(stage.calls_of("Reset").len(), 0);
        }
        stage.gone(name).await;
        let removed = stage.calls_of("EtcdRemoveMemberByID");
        assert!(removed.len() > 3, "{removed:?}");
        let resets = stage.calls_of("Reset");
        assert_eq!(resets.len(), 1);
        assert!(resets[0].time > removed.last().unwrap().time);
    });
}

#[test]
fn a_silent_talos_api_of_a_ready_node_stops_the_removal_and_holds_no_lock() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[2].as_str();
        stage.box_of(name).slow(Duration::from_mins(5));
        stage.delete(name).await;
        let message = stage.stands(name, "NodeUnreachable").await;
        assert!(message.contains("--cancel"), "{message}");
        stage.until_unlocked().await;
        stage
            .stays("nothing is sent", async || {
                let node = stage.nodes().get(name).await.unwrap();
                let ready = node.status.unwrap().conditions.unwrap_or_default();
                assert!(
                    ready
                        .iter()
                        .any(|c| c.type_ == "Ready" && c.status == "True")
                );
                match stage.changing_calls().as_slice() {
                    [] => Ok(()),
                    calls => Err(format!("{calls:?}")),
                }
            })
            .await;
        stage.box_of(name).slow(Duration::ZERO);
        stage.gone(name).await;
    });
}
