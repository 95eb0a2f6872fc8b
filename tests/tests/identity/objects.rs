//! Objects that a person can write by hand.

use ichor_api::conditions::READY;
use ichor_api::{ConditionStatus, TalosMachine, names};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::BED;
use crate::common::{denied, on_stage};

fn worker(name: &str, cluster: &str, address: &str) -> Value {
    json!({
        "apiVersion": "ichor.maesh.dev/v1alpha1",
        "kind": "TalosMachine",
        "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": cluster},
            "role": "worker",
            "approved": true,
            "address": address,
        },
    })
}

#[test]
fn a_machine_without_its_cluster_stands_and_is_let_go_when_that_is_cancelled() {
    on_stage(&BED, async |stage| {
        // Both names as long as names can be.
        let (name, cluster) = ("m".repeat(253), "c".repeat(253));
        stage.create(worker(&name, &cluster, "192.0.2.1")).await;
        let message = stage
            .until_condition(&name, READY, ConditionStatus::False, "ClusterMissing")
            .await;
        assert!(message.contains(&cluster), "{message}");
        stage.delete(&name).await;
        let message = stage.stands(&name, "ClusterMissing").await;
        assert!(message.contains("--cancel"), "{message}");
        stage
            .annotate(&name, names::CANCEL_REMOVAL, Some("true"))
            .await;
        stage.gone(&name).await;
        assert_eq!(stage.changing_calls(), [""; 0]);
    });
}

#[test]
fn what_no_machine_can_be_is_refused_by_the_api_server() {
    on_stage(&BED, async |stage| {
        let good = worker("odd", "demo", "192.0.2.1");
        let cases: [(&str, Value); 9] = [
            ("/metadata/name", json!("n".repeat(300))),
            ("/spec/clusterRef/name", json!("c".repeat(300))),
            ("/spec/clusterRef/name", json!("")),
            ("/spec/role", json!("overseer")),
            ("/spec/address", json!("a".repeat(300))),
            ("/spec/address", json!("")),
            ("/spec/address", json!("http://192.0.2.1/")),
            ("/spec/rejected", json!(true)),
            ("/spec/nodeName", json!("n".repeat(300))),
        ];
        for (pointer, value) in cases {
            let mut object = good.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[key] = value;
            // Past our own types, as any client would send it.
            let resource = kube::core::ApiResource::erase::<TalosMachine>(&());
            let api: Api<kube::core::DynamicObject> =
                Api::default_namespaced_with(stage.admin.clone(), &resource);
            let dynamic = serde_json::from_value(object).unwrap();
            match api
                .create(&kube::api::PostParams::default(), &dynamic)
                .await
            {
                Err(kube::Error::Api(status)) if status.code == 422 || status.code == 400 => {}
                other => panic!("{pointer}: {other:?}"),
            }
        }
    });
}

#[test]
fn an_address_that_another_machine_has_is_refused() {
    on_stage(&BED, async |stage| {
        let taken = stage.box_of("worker-1").address().to_string();
        let refused = denied(stage.try_create(worker("twin", "demo", &taken)).await);
        assert!(refused.contains("worker-1"), "{refused}");
    });
}

#[test]
fn a_status_that_somebody_else_wrote_moves_no_step_of_a_removal() {
    on_stage(&BED, async |stage| {
        let editor: Api<TalosMachine> =
            Api::default_namespaced(stage.bed.client("editor").await.unwrap());
        let wild = Patch::Merge(json!({"status": {
            "removal": {"step": "Dance", "steps": [
                {"name": "Dance", "startedAt": "2001-01-01T00:00:00Z", "finishedAt": "2001-01-01T00:00:00Z"},
            ]},
            "drain": {"total": -5, "remaining": 99, "pods": []},
            "conditions": [{
                "type": "Removal", "status": "True", "reason": "Finish", "message": "done",
                "lastTransitionTime": "2001-01-01T00:00:00Z",
            }],
        }}));
        let params = PatchParams::default();
        denied(editor.patch_status("worker-1", &params, &wild).await);
        stage
            .machines()
            .patch_status("worker-1", &params, &wild)
            .await
            .unwrap();
        stage.delete("worker-1").await;
        stage.gone("worker-1").await;
        // All of it was done.
        assert_eq!(stage.changing_calls(), ["Reset of worker-1"]);
        assert_eq!(
            stage.box_of("worker-1").now().stage,
            ichor_talos::Stage::Maintenance
        );
    });
}

#[test]
fn an_intent_that_nobody_of_ours_wrote_holds_the_removal_until_it_is_settled() {
    on_stage(&BED, async |stage| {
        let forged = Patch::Merge(json!({"status": {"intent": {
            "step": "Reset",
            "operation": "nobody knows",
            "instance": "",
            "deadline": "2001-01-01T00:00:00Z",
            "deadlineSeconds": 1,
            "nodeID": stage.machine("worker-1").await.identity().node_id,
            "bootID": stage.box_of("worker-1").now().boot_id,
        }}}));
        stage
            .machines()
            .patch_status("worker-1", &PatchParams::default(), &forged)
            .await
            .unwrap();
        stage.delete("worker-1").await;
        // A reset may be under way: none is sent until it is known that it did not start.
        stage.gone("worker-1").await;
        assert_eq!(stage.calls_of("Reset").len(), 1);
    });
}
