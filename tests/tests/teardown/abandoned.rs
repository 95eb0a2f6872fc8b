//! Removals that somebody broke off by force, or that nobody asked for.

use ichor_api::conditions::HEALTHY;
use ichor_api::{ConditionStatus, TalosMachine, names};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::BED;
use crate::common::{denied, on_stage};

#[test]
fn a_stripped_finalizer_leaves_a_record_that_names_the_node() {
    on_stage(&BED, async |stage| {
        stage.blocked_pod("worker-1").await;
        stage.delete("worker-1").await;
        stage.stands("worker-1", "DrainFailed").await;
        let strip = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let editor: Api<TalosMachine> =
            Api::default_namespaced(stage.bed.client("editor").await.unwrap());
        let refused = denied(
            editor
                .patch("worker-1", &PatchParams::default(), &strip)
                .await,
        );
        assert!(refused.contains("override"), "{refused}");

        stage
            .machines()
            .patch("worker-1", &PatchParams::default(), &strip)
            .await
            .unwrap();
        stage.gone("worker-1").await;
        let message = stage
            .until_cluster(HEALTHY, ConditionStatus::False, "AbandonedRemoval")
            .await;
        assert!(
            message.contains("Node worker-1 is still cordoned"),
            "{message}"
        );
        let abandoned = stage.cluster().await.status.unwrap().abandoned;
        assert_eq!(abandoned.len(), 1, "{abandoned:?}");
        assert_eq!(abandoned[0].node.as_deref(), Some("worker-1"));
        assert_eq!(
            abandoned[0].hardware_uuid.as_ref(),
            Some(&stage.box_of("worker-1").hardware_uuid)
        );
        assert_eq!(abandoned[0].step, "Drain");
        stage.until_unlocked().await;
        stage.until_cordoned("worker-1", true).await;
        assert_eq!(stage.changing_calls(), [""; 0]);

        // A new object that adopts the box ends it.
        stage.create(stage.object("worker-1", true)).await;
        stage
            .until_cluster(HEALTHY, ConditionStatus::True, "AllHealthy")
            .await;
    });
}

#[test]
fn a_cascade_without_the_annotation_is_held() {
    on_stage(&BED, async |stage| {
        // An owner can be added only where a deletion would be allowed.
        let owners: Api<ConfigMap> = Api::default_namespaced(stage.admin.clone());
        let owner = json!({"metadata": {"name": "owner"}});
        let owner = owners
            .create(
                &PostParams::default(),
                &serde_json::from_value(owner).unwrap(),
            )
            .await
            .unwrap();
        let owned = json!({"metadata": {"ownerReferences": [{
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "owner",
            "uid": owner.metadata.uid,
        }]}});
        let refused = denied(stage.try_patch("worker-1", owned.clone()).await);
        assert!(refused.contains(names::ALLOW_DELETE), "{refused}");
        stage.allow_delete("worker-1").await;
        stage.patch("worker-1", owned).await;
        stage.annotate("worker-1", names::ALLOW_DELETE, None).await;

        // The garbage collector is let through, and the agent holds what it began.
        owners
            .delete("owner", &DeleteParams::default())
            .await
            .unwrap();
        let message = stage.stands("worker-1", "Held").await;
        assert!(message.contains(names::ALLOW_DELETE), "{message}");
        stage.until_unlocked().await;
        stage.until_cordoned("worker-1", false).await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        stage.allow_delete("worker-1").await;
        stage.gone("worker-1").await;
    });
}
