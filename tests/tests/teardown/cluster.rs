//! The TalosCluster is deleted.

use ichor_api::conditions::READY;
use ichor_api::{ConditionStatus, names};
use ichor_talos::Stage as At;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::BED;
use crate::common::{Stage, denied, on_stage};

/// Deletes the cluster, with the annotation.
async fn delete_cluster(stage: &Stage) {
    stage
        .patch_cluster(json!({"metadata": {"annotations": {names::ALLOW_DELETE: "true"}}}))
        .await;
    stage
        .clusters()
        .delete("demo", &DeleteParams::default())
        .await
        .unwrap();
}

/// Waits until the cluster and every machine of it are gone.
async fn all_gone(stage: &Stage) {
    stage
        .wait("the cluster and its machines to be gone", async || {
            let cluster = stage.clusters().get_opt("demo").await.unwrap();
            let machines = stage.machines().list(&ListParams::default()).await.unwrap();
            let left: Vec<_> = machines.iter().map(|m| m.metadata.name.clone()).collect();
            if cluster.is_none() && left.is_empty() {
                Ok(())
            } else {
                Err(format!("{:?}, {left:?}", cluster.map(|c| c.status)))
            }
        })
        .await;
}

#[test]
fn a_cluster_that_is_deleted_lets_all_its_machines_go() {
    on_stage(&BED, async |stage| {
        let refused = denied(
            stage
                .clusters()
                .delete("demo", &DeleteParams::default())
                .await,
        );
        assert!(
            refused.contains(&format!(
                "kubectl annotate tcl demo {}=true",
                names::ALLOW_DELETE
            )),
            "{refused}"
        );
        delete_cluster(stage).await;
        all_gone(stage).await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        for name in stage
            .voters
            .iter()
            .map(String::as_str)
            .chain(["worker-1", "worker-2"])
        {
            assert_eq!(stage.box_of(name).now().stage, At::Running);
            stage.until_cordoned(name, false).await;
        }
        assert_eq!(stage.etcd_voters().await, stage.voters);
    });
}

#[test]
fn a_cluster_deleted_during_a_removal_is_torn_down() {
    on_stage(&BED, async |stage| {
        stage.blocked_pod("worker-1").await;
        stage.delete("worker-1").await;
        stage.stands("worker-1", "DrainFailed").await;
        stage.until_cordoned("worker-1", true).await;
        delete_cluster(stage).await;
        all_gone(stage).await;
        // The removal goes no further, and leaves nothing behind.
        stage.until_cordoned("worker-1", false).await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        assert!(stage.pods().get_opt("on-worker-1").await.unwrap().is_some());
    });
}

#[test]
fn a_removal_past_its_leave_is_finished_before_the_cluster_goes() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[0].as_str();
        stage.stop_at("after-leave-confirmed", name).await;
        // The box answers too slowly to be reset yet.
        stage.box_of(name).slow(std::time::Duration::from_mins(5));
        let agents = stage.bed.agents().unwrap();
        agents.start_again(None).await.unwrap();
        agents.wait_ready(1, crate::common::SOON).await.unwrap();
        stage.stands(name, "NodeUnreachable").await;
        delete_cluster(stage).await;
        // Workers go at once; the survivors stay to be asked about the member that left.
        stage.gone("worker-1").await;
        stage.gone("worker-2").await;
        stage
            .stays("the control planes are there", async || {
                for name in stage.voters.iter().chain([&stage.spare]) {
                    if stage.machines().get_opt(name).await.unwrap().is_none() {
                        return Err(format!("{name} is gone"));
                    }
                }
                Ok(())
            })
            .await;
        stage.box_of(name).slow(std::time::Duration::ZERO);
        all_gone(stage).await;
        let resets = stage.calls_of("Reset");
        assert_eq!(resets.len(), 1);
        assert_eq!(resets[0].node, name);
        assert_eq!(stage.box_of(name).now().stage, At::Maintenance);
    });
}

#[test]
fn the_agents_own_cluster_is_never_reset() {
    on_stage(&BED, async |stage| {
        // Without a kubeconfig of its own the policy is not even taken.
        let reset = kube::api::Patch::Merge(json!({"spec": {"deletionPolicy": "Reset"}}));
        let params = kube::api::PatchParams::default();
        let answer = stage.clusters().patch("demo", &params, &reset).await;
        let refused = answer.expect_err("no kubeconfig").to_string();
        assert!(refused.contains("credentialsSecretRef"), "{refused}");

        let kubeconfig = std::fs::read_to_string(stage.bed.kubeconfig()).unwrap();
        let secrets: Api<Secret> = Api::default_namespaced(stage.admin.clone());
        let secret =
            json!({"metadata": {"name": "own-cluster"}, "stringData": {"kubeconfig": kubeconfig}});
        secrets
            .create(
                &PostParams::default(),
                &serde_json::from_value(secret).unwrap(),
            )
            .await
            .unwrap();
        stage
            .patch_cluster(json!({"spec": {
                "deletionPolicy": "Reset",
                "kubernetes": {"credentialsSecretRef": {"name": "own-cluster"}},
            }}))
            .await;
        delete_cluster(stage).await;
        let message = stage
            .until_cluster(READY, ConditionStatus::False, "OwnCluster")
            .await;
        assert!(message.contains("Orphan"), "{message}");
        stage
            .stays("nothing is reset", async || {
                let machines = stage.machines().list(&ListParams::default()).await.unwrap();
                if machines
                    .iter()
                    .any(ichor_api::TalosMachine::is_being_deleted)
                {
                    return Err("a machine is being deleted".to_owned());
                }
                match stage.changing_calls().as_slice() {
                    [] => Ok(()),
                    calls => Err(format!("{calls:?}")),
                }
            })
            .await;
        // The way out that it names.
        stage
            .patch_cluster(json!({"spec": {"deletionPolicy": "Orphan"}}))
            .await;
        all_gone(stage).await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        secrets
            .delete("own-cluster", &DeleteParams::default())
            .await
            .unwrap();
    });
}
