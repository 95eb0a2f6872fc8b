//! Changing one's mind: before the leave, too late, half-heartedly, and for too long.

use ichor_api::conditions::HEALTHY;
use ichor_api::{ConditionStatus, names};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::BED;
use crate::common::on_stage;

#[test]
fn cancelled_before_the_leave_the_node_is_as_it_was() {
    on_stage(&BED, async |stage| {
        let name = stage.voters[0].as_str();
        stage.join_spare().await;
        stage.blocked_pod(name).await;
        let before = stage.machine(name).await.identity();
        let boot = stage.box_of(name).now().boot_id;
        stage.delete(name).await;
        stage.stands(name, "DrainFailed").await;
        stage.until_cordoned(name, true).await;

        let cancelled = stage.kubectl(&["ichor", "remove", name, "--cancel"]).await;
        assert_eq!(cancelled.code, 0, "{cancelled:?}");
        stage.gone(name).await;
        stage.until_unlocked().await;
        stage.until_cordoned(name, false).await;
        let node = stage.nodes().get(name).await.unwrap();
        let marks = node.metadata.annotations.unwrap_or_default();
        assert!(!marks.contains_key(names::CORDONED_BY), "{marks:?}");
        assert_eq!(stage.changing_calls(), [""; 0]);
        assert_eq!(stage.box_of(name).now().boot_id, boot);
        assert!(stage.etcd_voters().await.contains(&name.to_owned()));

        // Nobody answers for its member now; the same object applied again does.
        let message = stage
            .until_cluster(HEALTHY, ConditionStatus::False, "UnknownMember")
            .await;
        assert!(message.contains(name), "{message}");
        stage.create(stage.object(name, true)).await;
        stage
            .until_cluster(HEALTHY, ConditionStatus::True, "AllHealthy")
            .await;
        let adopted = stage
            .until_machine(name, "be adopted", |m| {
                if m.identity().etcd_member_id.is_some() {
                    Ok(m.clone())
                } else {
                    Err("not yet".to_owned())
                }
            })
            .await;
        assert!(adopted.has_finalizer());
        assert_eq!(adopted.identity(), before);
        assert_eq!(stage.changing_calls(), [""; 0]);
    });
}

#[test]
fn a_cordon_of_somebody_else_stays_when_a_removal_is_taken_back() {
    on_stage(&BED, async |stage| {
        stage.blocked_pod("worker-1").await;
        let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
        stage
            .nodes()
            .patch("worker-1", &PatchParams::default(), &cordon)
            .await
            .unwrap();
        stage.delete("worker-1").await;
        stage.stands("worker-1", "DrainFailed").await;
        stage
            .annotate("worker-1", names::CANCEL_REMOVAL, Some("true"))
            .await;
        stage.gone("worker-1").await;
        let node = stage.nodes().get("worker-1").await.unwrap();
        assert_eq!(node.spec.unwrap().unschedulable, Some(true));
    });
}

#[test]
fn once_the_machine_is_out_of_etcd_a_cancellation_comes_too_late() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[0].as_str();
        stage.stop_at("after-leave-confirmed", name).await;
        let refused = stage.kubectl(&["ichor", "remove", name, "--cancel"]).await;
        assert_eq!(refused.code, 3, "{refused:?}");
        // The annotation itself is nobody's to refuse: the agent goes on all the same. The
        // webhook went with the agent, so it is written when that is back.
        let agents = stage.bed.agents().unwrap();
        stage.box_of(name).lock_next_reset();
        agents.start_again(None).await.unwrap();
        let cancel = json!({"metadata": {"annotations": {names::CANCEL_REMOVAL: "true", names::ALLOW_DELETE: null}}});
        stage
            .wait("the annotation to be written", async || {
                match stage.try_patch(name, cancel.clone()).await {
                    Ok(_) => Ok(()),
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                    Err(error) => Err(error.to_string()),
                }
            })
            .await;
        stage.gone(name).await;
        assert_eq!(stage.calls_of("EtcdLeaveCluster").len(), 1);
        assert_eq!(
            stage.box_of(name).now().stage,
            ichor_talos::Stage::Maintenance
        );
    });
}

#[test]
fn allow_delete_taken_off_in_the_middle_holds_the_removal_and_put_back_lets_it_go_on() {
    on_stage(&BED, async |stage| {
        stage.blocked_pod("worker-1").await;
        stage.delete("worker-1").await;
        stage.stands("worker-1", "DrainFailed").await;
        stage.annotate("worker-1", names::ALLOW_DELETE, None).await;
        let message = stage.stands("worker-1", "Held").await;
        assert!(message.contains(names::ALLOW_DELETE), "{message}");
        stage.until_unlocked().await;
        stage.free("worker-1").await;
        stage
            .stays("it is held, its Node cordoned", async || {
                let node = stage.nodes().get("worker-1").await.unwrap();
                if node.spec.unwrap().unschedulable != Some(true) {
                    return Err("not cordoned".to_owned());
                }
                match stage.changing_calls().as_slice() {
                    [] => Ok(()),
                    calls => Err(format!("{calls:?}")),
                }
            })
            .await;
        stage.allow_delete("worker-1").await;
        stage.gone("worker-1").await;
    });
}

#[test]
fn a_removal_that_was_refused_for_an_hour_goes_on_only_when_it_is_asked_for_again() {
    on_stage(&BED, async |stage| {
        let name = stage.voters[0].as_str();
        stage.delete(name).await;
        stage.stands(name, "BelowDeclaredCount").await;
        let message = stage.stands(name, "Held").await;
        assert!(message.contains(names::CONTINUE_REMOVAL), "{message}");
        // Somebody adds a sibling: that alone wipes nothing.
        stage.join_spare().await;
        stage
            .stays("it is held", async || {
                match stage.changing_calls().as_slice() {
                    [] => Ok(()),
                    calls => Err(format!("{calls:?}")),
                }
            })
            .await;
        // Any other token is none.
        stage
            .annotate(name, names::CONTINUE_REMOVAL, Some("true"))
            .await;
        stage.stands(name, "Held").await;
        let again = stage.kubectl(&["ichor", "remove", name, "--yes"]).await;
        assert_eq!(again.code, 0, "{again:?}");
        stage.gone(name).await;
    });
}

#[test]
fn the_plugin_writes_nothing_where_a_removal_would_wait_unless_told_to() {
    on_stage(&BED, async |stage| {
        let name = stage.voters[0].as_str();
        let untouched = async || {
            let machine = stage.machine(name).await;
            assert!(!machine.is_being_deleted() && !machine.consents(names::ALLOW_DELETE));
        };
        // No terminal to ask on.
        let asked = stage.kubectl(&["ichor", "remove", name]).await;
        assert_eq!(asked.code, 2, "{asked:?}");
        untouched().await;
        let plan = stage.kubectl(&["ichor", "plan", "remove", name]).await;
        assert_eq!(plan.code, 4, "{plan:?}");
        assert!(plan.stdout.contains("fewer than the 3"), "{plan:?}");
        let waits = stage.kubectl(&["ichor", "remove", name, "--yes"]).await;
        assert_eq!(waits.code, 4, "{waits:?}");
        untouched().await;

        let begun = stage
            .kubectl(&["ichor", "remove", name, "--yes", "--wait"])
            .await;
        assert_eq!(begun.code, 0, "{begun:?}");
        stage.stands(name, "BelowDeclaredCount").await;
        let plan = stage
            .kubectl(&["ichor", "plan", "remove", &stage.voters[1], "-o", "json"])
            .await;
        assert_eq!(plan.code, 3, "{plan:?}");
        let plan: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
        assert_eq!(plan["verdict"], "Refuse");

        let followed = async {
            stage
                .kubectl(&["ichor", "removal", "status", name, "-w"])
                .await
        };
        let joined = async { stage.join_spare().await };
        let (followed, ()) = tokio::join!(followed, joined);
        assert_eq!(followed.code, 0, "{followed:?}");
        stage.gone(name).await;
    });
}
