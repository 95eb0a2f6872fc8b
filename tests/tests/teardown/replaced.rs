//! A cluster that is missing, another one of its name, or a second one of its etcd.

use ichor_api::conditions::{HEALTHY, READY};
use ichor_api::{ConditionStatus, TalosCluster, names};
use ichor_tests::bed::objects::{CLUSTER, create_cluster};
use ichor_tests::proxy::faults::{Fault, Matcher};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::BED;
use crate::common::on_stage;

#[test]
fn a_cluster_made_again_is_known_by_its_etcd_and_what_has_none_waits_to_be_told() {
    on_stage(&BED, async |stage| {
        let first = stage.cluster().await.metadata.uid.unwrap();
        // The object goes by force, its machines stay: no machine can be deleted meanwhile.
        stage.bed.proxy().faults().set(
            Fault::Status {
                code: 500,
                after: false,
            },
            Matcher::parse("DELETE /talosmachines/").unwrap(),
            None,
        );
        stage
            .patch_cluster(json!({"metadata": {"annotations": {names::ALLOW_DELETE: "true"}}}))
            .await;
        stage
            .clusters()
            .delete(CLUSTER, &DeleteParams::default())
            .await
            .unwrap();
        let strip = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        stage
            .clusters()
            .patch(CLUSTER, &PatchParams::default(), &strip)
            .await
            .unwrap();
        stage
            .wait("the cluster to be gone", async || {
                match stage.clusters().get_opt(CLUSTER).await.unwrap() {
                    None => Ok(()),
                    Some(cluster) => Err(format!("{:?}", cluster.metadata)),
                }
            })
            .await;
        stage.bed.proxy().faults().clear();

        // Missing: nothing is done to a node, and cancel is the way out.
        stage.delete("worker-2").await;
        let message = stage.stands("worker-2", "ClusterMissing").await;
        assert!(message.contains("--cancel"), "{message}");
        stage
            .annotate("worker-2", names::CANCEL_REMOVAL, Some("true"))
            .await;
        stage.gone("worker-2").await;

        // Another object of that name.
        create_cluster(&stage.admin, 3, &[]).await.unwrap();
        let second = stage.cluster().await.metadata.uid.unwrap();
        assert_ne!(first, second);
        for name in &stage.voters {
            stage
                .until_machine(name, "be of the new one", |machine| {
                    let uid = machine.identity().cluster_uid;
                    if uid.as_deref() == Some(&second) {
                        Ok(())
                    } else {
                        Err(format!("{uid:?}"))
                    }
                })
                .await;
        }
        let message = stage
            .until_condition("worker-1", READY, ConditionStatus::False, "ClusterReplaced")
            .await;
        assert!(
            message.contains(&format!("{}: \"{second}\"", names::ADOPT_CLUSTER)),
            "{message}"
        );
        stage.delete("worker-1").await;
        stage.stands("worker-1", "ClusterReplaced").await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        stage
            .annotate("worker-1", names::ADOPT_CLUSTER, Some(&second))
            .await;
        stage.gone("worker-1").await;
        assert_eq!(stage.changing_calls(), ["Reset of worker-1"]);
    });
}

#[test]
fn under_a_second_cluster_of_the_same_etcd_nothing_disruptive_runs() {
    on_stage(&BED, async |stage| {
        let twin: TalosCluster = serde_json::from_value(json!({
            "metadata": {"name": "twin", "annotations": {names::ALLOW_DELETE: "true"}},
            "spec": {
                "controlPlane": {"count": 3},
                "talos": {"credentialsSecretRef": {"name": "demo-talosconfig"}},
            },
        }))
        .unwrap();
        stage
            .clusters()
            .create(&PostParams::default(), &twin)
            .await
            .unwrap();
        for name in stage.voters.iter().map(String::as_str).chain(["worker-1"]) {
            let mut object = stage.object(name, true);
            object["metadata"]["name"] = json!(format!("twin-{name}"));
            object["spec"]["clusterRef"]["name"] = json!("twin");
            stage.create(object).await;
        }
        stage
            .wait("the younger one to be called a duplicate", async || {
                let twin = stage.clusters().get("twin").await.unwrap();
                let status = twin.status.unwrap_or_default();
                let healthy = status.conditions.iter().find(|c| c.type_ == HEALTHY);
                match healthy {
                    Some(c) if c.reason == "DuplicateCluster" => {
                        assert!(c.message.contains("default/demo"), "{}", c.message);
                        Ok(())
                    }
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        stage
            .until_cluster(HEALTHY, ConditionStatus::True, "AllHealthy")
            .await;
        stage
            .until_machine("twin-worker-1", "be adopted", |m| {
                if m.identity().node_id.is_some() {
                    Ok(())
                } else {
                    Err("not yet".to_owned())
                }
            })
            .await;
        stage.delete("twin-worker-1").await;
        let message = stage.stands("twin-worker-1", "Held").await;
        assert!(message.contains("default/demo"), "{message}");
        assert_eq!(stage.changing_calls(), [""; 0]);

        stage
            .clusters()
            .delete("twin", &DeleteParams::default())
            .await
            .unwrap();
        stage
            .wait("the twin to be gone", async || {
                match stage.clusters().get_opt("twin").await.unwrap() {
                    None => Ok(()),
                    Some(twin) => Err(format!("{:?}", twin.status)),
                }
            })
            .await;
        stage.gone("twin-worker-1").await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        stage
            .until_cluster(HEALTHY, ConditionStatus::True, "AllHealthy")
            .await;
    });
}
