//! What keeps a removal from beginning, at admission and under the lock: nothing is sent,
//! nothing stays cordoned, nobody holds the lock, and it goes on by itself where it can.

use ichor_api::conditions::{HEALTHY, TRANSITIONING};
use ichor_api::{ConditionStatus, TalosCluster, TalosMachine, names};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::BED;
use crate::common::{Stage, denied, on_stage};

/// It stands still without having touched anything.
async fn nothing_is_begun(stage: &Stage, name: &str) {
    stage.until_unlocked().await;
    stage.until_cordoned(name, false).await;
    assert_eq!(stage.changing_calls(), [""; 0]);
}

#[test]
fn without_the_annotation_no_machine_is_deleted_by_anybody() {
    on_stage(&BED, async |stage| {
        let name = stage.voters[0].as_str();
        let editor: Api<TalosMachine> =
            Api::default_namespaced(stage.bed.client("editor").await.unwrap());
        let refused = denied(editor.delete(name, &DeleteParams::default()).await);
        assert!(
            refused.contains(&format!(
                "kubectl annotate tm {name} {}=true",
                names::ALLOW_DELETE
            )),
            "{refused}"
        );
        assert_eq!(stage.refused_delete(name).await, refused.clone());
        assert!(!stage.machine(name).await.is_being_deleted());
    });
}

#[test]
fn three_to_two_stands_at_the_declared_count_and_goes_on_when_a_fourth_is_approved() {
    on_stage(&BED, async |stage| {
        let name = stage.voters[0].as_str();
        stage.delete(name).await;
        let message = stage.stands(name, "BelowDeclaredCount").await;
        assert!(
            message.contains("it would have 2, fewer than the 3"),
            "{message}"
        );
        nothing_is_begun(stage, name).await;

        // A second one at the same time is refused at once: it would leave one of three.
        stage.allow_delete(&stage.voters[1]).await;
        let refused = stage.refused_delete(&stage.voters[1]).await;
        assert!(refused.contains("leave 1 of 2"), "{refused}");

        stage.join_spare().await;
        stage.gone(name).await;
        stage
            .until_voters(&[&stage.voters[1], &stage.voters[2], &stage.spare])
            .await;
    });
}

#[test]
fn four_approved_with_three_voters_is_three_to_two() {
    on_stage(&BED, async |stage| {
        // Approved, and still in maintenance.
        stage
            .patch(&stage.spare, json!({"spec": {"approved": true}}))
            .await;
        let name = stage.voters[1].as_str();
        stage.delete(name).await;
        let message = stage.stands(name, "BelowDeclaredCount").await;
        assert!(message.contains("fewer than the 3"), "{message}");
        nothing_is_begun(stage, name).await;
        stage.join(&stage.spare).await;
        stage.gone(name).await;
        assert_eq!(stage.calls_of("Reset").len(), 1);
    });
}

#[test]
fn a_healthy_control_plane_stands_until_the_dead_one_has_gone() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let [healthy, dead, _] = &stage.voters;
        stage.box_of(dead).etcd_stop();
        stage.delete(healthy).await;
        let message = stage.stands(healthy, "EtcdUnhealthy").await;
        assert!(
            message.contains(&format!("another voter is unhealthy ({dead} ")),
            "{message}"
        );
        nothing_is_begun(stage, healthy).await;
        stage
            .until_cluster(HEALTHY, ConditionStatus::False, "EtcdUnhealthy")
            .await;

        stage.delete(dead).await;
        stage.gone(dead).await;
        assert_eq!(stage.calls_of("EtcdLeaveCluster").len(), 0);
        assert_eq!(stage.calls_of("EtcdRemoveMemberByID").len(), 1);

        // Now three are left, and the healthy one would be the third.
        stage.stands(healthy, "BelowDeclaredCount").await;
        stage
            .annotate(healthy, names::CANCEL_REMOVAL, Some("true"))
            .await;
        stage.gone(healthy).await;
        assert_eq!(stage.calls_of("Reset").len(), 1);
    });
}

#[test]
fn with_two_of_four_dead_it_says_restore_and_removes_nothing() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let [one, two, three] = &stage.voters;
        stage.box_of(one).etcd_stop();
        stage.box_of(two).etcd_stop();
        stage.delete(one).await;
        // First only that no list can be had, naming who was asked and what it said.
        let message = stage.stands(one, "EtcdUnreachable").await;
        for name in [three, &stage.spare] {
            let address = stage.box_of(name).address().to_string();
            assert!(message.contains(&address), "{message}");
        }
        let message = stage.stands(one, "QuorumLost").await;
        assert!(
            message.contains("restore etcd from a snapshot"),
            "{message}"
        );
        nothing_is_begun(stage, one).await;

        // They come back: the removal goes on by itself.
        stage.box_of(one).etcd_start();
        stage.box_of(two).etcd_start();
        stage.gone(one).await;
    });
}

#[test]
fn while_a_learner_is_listed_no_voter_goes() {
    on_stage(&BED, async |stage| {
        let spare = stage.box_of(&stage.spare);
        spare.hold_learner(true);
        let joining = tokio::spawn(async move { spare.join().await });
        stage
            .wait("the spare to be a started learner", async || {
                let members = stage.bed.etcd_members().await.map_err(|e| e.to_string())?;
                let learner = members.iter().any(|m| m.learner && m.started);
                if learner {
                    Ok(())
                } else {
                    Err(format!("{members:?}"))
                }
            })
            .await;
        stage
            .patch(&stage.spare, json!({"spec": {"approved": true}}))
            .await;
        let name = stage.voters[2].as_str();
        stage.delete(name).await;
        let message = stage.stands(name, "LearnerPresent").await;
        assert!(message.contains(&stage.spare), "{message}");
        stage
            .until_cluster(
                TRANSITIONING,
                ConditionStatus::True,
                "EvenControlPlaneCount",
            )
            .await;
        nothing_is_begun(stage, name).await;
        spare.hold_learner(false);
        joining.await.unwrap().unwrap();
        stage.gone(name).await;
    });
}

#[test]
fn while_a_member_belongs_to_no_machine_no_control_plane_goes_and_it_can_be_assigned() {
    on_stage(&BED, async |stage| {
        stage.join(&stage.spare).await;
        let name = stage.voters[0].as_str();
        stage.delete(name).await;
        let members = stage.bed.etcd_members().await.unwrap();
        let unknown = members.iter().find(|m| m.name == stage.spare).unwrap();
        for message in [
            stage.stands(name, "UnknownMember").await,
            stage
                .until_cluster(HEALTHY, ConditionStatus::False, "UnknownMember")
                .await,
        ] {
            assert!(message.contains(&unknown.id), "{message}");
            assert!(message.contains(&stage.spare), "{message}");
            assert!(message.contains(names::ETCD_MEMBER_ID), "{message}");
        }
        nothing_is_begun(stage, name).await;

        // Assigned to a machine that is not approved: known, and still no fourth.
        stage
            .annotate(&stage.spare, names::ETCD_MEMBER_ID, Some(&unknown.id))
            .await;
        stage.stands(name, "BelowDeclaredCount").await;
        stage.approve(&stage.spare).await;
        stage.gone(name).await;
    });
}

#[test]
fn the_last_worker_goes_only_under_override() {
    on_stage(&BED, async |stage| {
        stage.delete("worker-1").await;
        stage.gone("worker-1").await;
        stage
            .patch_cluster(json!({"spec": {"schedulable": "false"}}))
            .await;
        let editor: Api<TalosMachine> =
            Api::default_namespaced(stage.bed.client("editor").await.unwrap());
        stage.allow_delete("worker-2").await;
        let refused = denied(editor.delete("worker-2", &DeleteParams::default()).await);
        assert!(refused.contains("last approved worker"), "{refused}");

        // A holder of the verb simply deletes it, and that is on record.
        stage.try_delete("worker-2").await.unwrap();
        stage.gone("worker-2").await;
        let overrides = stage.cluster().await.status.unwrap().overrides;
        assert!(
            overrides
                .iter()
                .any(|o| o.name == "worker-2" && o.user == "admin"),
            "{overrides:?}"
        );
    });
}

#[test]
fn a_last_worker_under_removal_stands_until_a_holder_of_override_waives_the_rule() {
    on_stage(&BED, async |stage| {
        stage.delete("worker-1").await;
        stage.gone("worker-1").await;
        stage.blocked_pod("worker-2").await;
        stage.delete("worker-2").await;
        stage.stands("worker-2", "DrainFailed").await;
        // From now on control planes take no workloads.
        stage
            .patch_cluster(json!({"spec": {"schedulable": "false"}}))
            .await;
        let message = stage.stands("worker-2", "LastWorker").await;
        assert!(message.contains(names::ALLOW_LAST_WORKER), "{message}");
        stage.until_unlocked().await;
        stage.until_cordoned("worker-2", false).await;
        stage.free("worker-2").await;

        let waive = json!({"metadata": {"annotations": {names::ALLOW_LAST_WORKER: "true"}}});
        let editor: Api<TalosMachine> =
            Api::default_namespaced(stage.bed.client("editor").await.unwrap());
        let refused = denied(
            editor
                .patch("worker-2", &PatchParams::default(), &Patch::Merge(&waive))
                .await,
        );
        assert!(refused.contains("override"), "{refused}");
        stage.patch("worker-2", waive).await;
        stage.gone("worker-2").await;
    });
}

#[test]
fn a_worker_waits_for_the_end_of_a_transition_and_a_control_plane_ends_it() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        stage.delete("worker-1").await;
        let message = stage.stands("worker-1", "ClusterTransitioning").await;
        assert!(message.contains("EvenControlPlaneCount"), "{message}");
        nothing_is_begun(stage, "worker-1").await;
        stage.delete(&stage.spare).await;
        stage.gone(&stage.spare).await;
        stage.gone("worker-1").await;
    });
}

#[test]
fn the_last_control_plane_is_not_deleted_nor_a_second_one_approved_where_one_is_declared() {
    on_stage(&BED, async |stage| {
        let namespace = "single";
        let namespaces: Api<Namespace> = Api::all(stage.admin.clone());
        let made = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        namespaces
            .create(&PostParams::default(), &made)
            .await
            .unwrap();
        let clusters: Api<TalosCluster> = Api::namespaced(stage.admin.clone(), namespace);
        let machines: Api<TalosMachine> = Api::namespaced(stage.admin.clone(), namespace);
        let cluster = json!({
            "metadata": {"name": "one"},
            "spec": {
                "controlPlane": {"count": 1},
                "talos": {"credentialsSecretRef": {"name": "none"}},
            },
        });
        clusters
            .create(
                &PostParams::default(),
                &serde_json::from_value(cluster).unwrap(),
            )
            .await
            .unwrap();
        let machine = |name: &str, host: u8, approved: bool| -> TalosMachine {
            serde_json::from_value(json!({
                "metadata": {"name": name, "annotations": {names::ALLOW_DELETE: "true"}},
                "spec": {
                    "clusterRef": {"name": "one"},
                    "role": "controlplane",
                    "approved": approved,
                    "address": format!("192.0.2.{host}"),
                },
            }))
            .unwrap()
        };
        let post = PostParams::default();
        machines
            .create(&post, &machine("first", 1, true))
            .await
            .unwrap();
        let refused = denied(machines.create(&post, &machine("second", 2, true)).await);
        assert!(refused.contains("count is 1"), "{refused}");
        machines
            .create(&post, &machine("second", 2, false))
            .await
            .unwrap();
        let approve = Patch::Merge(json!({"spec": {"approved": true}}));
        let refused = denied(
            machines
                .patch("second", &PatchParams::default(), &approve)
                .await,
        );
        assert!(refused.contains("first"), "{refused}");

        stage
            .wait("the first one to be adopted", async || {
                let first = machines.get("first").await.map_err(|e| e.to_string())?;
                if first.has_finalizer() {
                    Ok(())
                } else {
                    Err("no finalizer".to_owned())
                }
            })
            .await;
        let refused = denied(machines.delete("first", &DeleteParams::default()).await);
        assert!(refused.contains("last control plane"), "{refused}");

        // The whole cluster may go, for nothing was ever seen of it.
        let allow =
            Patch::Merge(json!({"metadata": {"annotations": {names::ALLOW_DELETE: "true"}}}));
        clusters
            .patch("one", &PatchParams::default(), &allow)
            .await
            .unwrap();
        clusters
            .delete("one", &DeleteParams::default())
            .await
            .unwrap();
        stage
            .wait("the cluster to be gone", async || {
                match clusters.get_opt("one").await {
                    Ok(None) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        namespaces
            .delete(namespace, &DeleteParams::default())
            .await
            .unwrap();
    });
}

#[test]
fn the_declared_count_does_not_go_to_one_and_an_approval_is_not_taken_back() {
    on_stage(&BED, async |stage| {
        let count = Patch::Merge(json!({"spec": {"controlPlane": {"count": 1}}}));
        let answer = stage
            .clusters()
            .patch("demo", &PatchParams::default(), &count)
            .await;
        let refused = answer.expect_err("three to one").to_string();
        assert!(refused.contains("never lowered to 1"), "{refused}");
        let answer = stage
            .try_patch(&stage.voters[0], json!({"spec": {"approved": false}}))
            .await;
        let refused = answer.expect_err("un-approved").to_string();
        assert!(refused.contains("delet"), "{refused}");
        let answer = stage
            .try_patch(&stage.voters[0], json!({"spec": {"role": "worker"}}))
            .await;
        assert!(answer.is_err(), "{answer:?}");
    });
}
