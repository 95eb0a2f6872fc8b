//! The namespace of a cluster is deleted.

use ichor_api::{TalosCluster, TalosMachine, names};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::BED;
use crate::common::{Stage, denied, on_stage};

/// A namespace with a cluster of three whose machines were never seen.
async fn doomed(stage: &Stage, name: &str, guarded: bool) {
    let namespaces: Api<Namespace> = Api::all(stage.admin.clone());
    let labels = if guarded {
        json!({names::GUARD_LABEL: "true"})
    } else {
        json!({})
    };
    let namespace = json!({"metadata": {"name": name, "labels": labels}});
    let post = PostParams::default();
    namespaces
        .create(&post, &serde_json::from_value(namespace).unwrap())
        .await
        .unwrap();
    let clusters: Api<TalosCluster> = Api::namespaced(stage.admin.clone(), name);
    let machines: Api<TalosMachine> = Api::namespaced(stage.admin.clone(), name);
    let cluster = json!({
        "metadata": {"name": "doomed"},
        "spec": {"controlPlane": {"count": 3}, "talos": {"credentialsSecretRef": {"name": "none"}}},
    });
    clusters
        .create(&post, &serde_json::from_value(cluster).unwrap())
        .await
        .unwrap();
    for number in 1..=3 {
        let machine = json!({
            "metadata": {"name": format!("cp-{number}")},
            "spec": {
                "clusterRef": {"name": "doomed"},
                "role": "controlplane",
                "approved": true,
                "address": format!("192.0.2.{number}"),
            },
        });
        machines
            .create(&post, &serde_json::from_value(machine).unwrap())
            .await
            .unwrap();
    }
    stage
        .wait("all to have their finalizers", async || {
            let list = machines.list(&ListParams::default()).await.unwrap();
            let cluster = clusters.get("doomed").await.unwrap();
            if cluster.has_finalizer() && list.iter().all(TalosMachine::has_finalizer) {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        })
        .await;
}

async fn gone(stage: &Stage, name: &str) {
    let namespaces: Api<Namespace> = Api::all(stage.admin.clone());
    stage
        .wait(
            &format!("namespace {name} to be gone"),
            async || match namespaces.get_opt(name).await.unwrap() {
                None => Ok(()),
                Some(namespace) => Err(format!("{:?}", namespace.status)),
            },
        )
        .await;
}

#[test]
fn in_a_terminating_namespace_all_machines_are_let_go() {
    on_stage(&BED, async |stage| {
        doomed(stage, "doomed", false).await;
        let namespaces: Api<Namespace> = Api::all(stage.admin.clone());
        namespaces
            .delete("doomed", &DeleteParams::default())
            .await
            .unwrap();
        gone(stage, "doomed").await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        let events: Api<Event> = Api::default_namespaced(stage.admin.clone());
        let told: Vec<Event> = events
            .list(&ListParams::default())
            .await
            .unwrap()
            .into_iter()
            .filter(|e| e.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some("doomed"))
            .collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].type_.as_deref(), Some("Warning"));
        let note = told[0].note.as_deref().unwrap();
        for name in ["cp-1", "cp-2", "cp-3"] {
            assert!(note.contains(name), "{note}");
        }
    });
}

#[test]
fn a_guarded_namespace_goes_only_when_its_guard_is_taken_off() {
    on_stage(&BED, async |stage| {
        doomed(stage, "guarded", true).await;
        let namespaces: Api<Namespace> = Api::all(stage.admin.clone());
        let delete = DeleteParams::default();
        let refused = denied(namespaces.delete("guarded", &delete).await);
        assert!(refused.contains('3'), "{refused}");
        let off = Patch::Merge(json!({"metadata": {"labels": {names::GUARD_LABEL: null}}}));
        namespaces
            .patch("guarded", &PatchParams::default(), &off)
            .await
            .unwrap();
        namespaces.delete("guarded", &delete).await.unwrap();
        gone(stage, "guarded").await;
    });
}
