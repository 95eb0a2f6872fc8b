//! What belongs to a drain besides evictions: cordon, own pods, Event, volumes.

use ichor_agent::drain::{self, DrainOutcome, Uncordon, announce_blocked, blocked_note, uncordon};
use ichor_api::common::DrainOptions;
use ichor_api::{TalosMachine, names};
use ichor_tests::workload::{Workload, set};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use std::time::Duration;

use crate::{BED, Drain, blocked};

#[test]
fn a_cordon_that_somebody_else_made_stays() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "foreign-cordon").await.unwrap();
        let nodes: Api<Node> = Api::all(workload.client().clone());
        let patch = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
        nodes
            .patch("foreign-cordon", &PatchParams::default(), &patch)
            .await
            .unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        assert_eq!(drain.pass().await.outcome, DrainOutcome::Drained);
        let node = nodes.get("foreign-cordon").await.unwrap();
        assert!(!node.annotations().contains_key(names::CORDONED_BY));
        let operation = drain.operation();
        let undone = uncordon(
            &drain.client,
            "foreign-cordon",
            None,
            &operation,
            drain.limits.read,
        );
        assert_eq!(undone.await.unwrap(), Uncordon::NotOurs);
        assert!(drain.unschedulable().await);
    });
}

#[test]
fn the_agents_own_pod_is_left_to_the_end_and_deleted_by_uid() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "own-pod").await.unwrap();
        workload.run([workload.pod("web", "web")]).await.unwrap();
        let own: Api<Pod> = Api::namespaced(workload.client().clone(), names::AGENT_NAMESPACE);
        let pod = serde_json::from_value(json!({
            "metadata": { "name": "own-pod", "labels": { "app.kubernetes.io/name": names::AGENT_APP } },
            "spec": {
                "nodeName": "own-pod",
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" },
                },
                "containers": [{
                    "name": "main", "image": "none",
                    "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                }],
            },
        }))
        .unwrap();
        own.create(&PostParams::default(), &pod).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        drain.limits.retry = Duration::from_millis(300);
        let pass = drain.until(|o| matches!(o, DrainOutcome::OnlyAgentPods { .. })).await;
        let DrainOutcome::OnlyAgentPods { pods } = pass.outcome else {
            unreachable!()
        };
        assert_eq!(pods.len(), 1);
        drain::delete_agent_pod(&drain.lock, &drain.client, &pods[0], &drain.limits).await.unwrap();
        drain.drained().await;
    });
}

#[test]
fn the_event_of_a_drain_of_200_blocked_pods_is_accepted_once() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "telling").await.unwrap();
        let long = "x".repeat(200);
        let pods = (0..30).map(|i| workload.pod(&format!("web-{i:02}-{long}"), "web"));
        workload.run(pods).await.unwrap();
        workload.budget("web", "web", 30, 30).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        let pass = drain.pass().await;
        blocked(&pass);
        let note = blocked_note("telling", &pass.status);
        assert!(note.len() <= 1024 && note.contains(" more"), "{note}");
        let machine: TalosMachine = serde_json::from_value(json!({
            "apiVersion": "ichor.maesh.dev/v1alpha1", "kind": "TalosMachine",
            "metadata": { "name": "telling", "namespace": "telling", "uid": "m-1" },
            "spec": { "clusterRef": { "name": "demo" }, "role": "worker", "address": "192.0.2.1" },
        }))
        .unwrap();
        for instance in ["agent-1", "agent-1", "agent-2"] {
            announce_blocked(
                &drain.client,
                &machine,
                "noon",
                &note,
                instance,
                Timestamp::now(),
                &drain.limits,
            )
            .await
            .unwrap();
        }
        let events = workload
            .api::<Event>()
            .list(&ListParams::default())
            .await
            .unwrap();
        let told: Vec<_> = events
            .iter()
            .filter(|e| e.reason.as_deref() == Some("DrainBlocked"))
            .collect();
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].note.as_deref(), Some(note.as_str()));
    });
}

#[test]
fn volumes_are_looked_for_with_the_shipped_rights() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "volumes").await.unwrap();
        let attachments: Api<k8s_openapi::api::storage::v1::VolumeAttachment> =
            Api::all(workload.client().clone());
        for (name, node) in [("volumes-here", "volumes"), ("volumes-elsewhere", "another")] {
            let attachment = serde_json::from_value(json!({
                "metadata": { "name": name },
                "spec": { "attacher": "csi.example.com", "nodeName": node, "source": { "persistentVolumeName": name } },
            }))
            .unwrap();
            attachments.create(&PostParams::default(), &attachment).await.unwrap();
        }
        let claim = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }]);
        let kept = set(workload.pod("kept", "keep"), "/spec/volumes", claim);
        workload.run([kept]).await.unwrap();
        let options: DrainOptions = serde_json::from_value(json!({ "skipSelector": "app=keep" })).unwrap();
        let drain = Drain::of(bed, &workload).await;
        let left = async || {
            drain::volume_attachments(&drain.client, "volumes", &options, &drain.limits).await.unwrap()
        };
        assert_eq!(left().await, ["volumes-here"]);
        let claims = workload.api::<k8s_openapi::api::core::v1::PersistentVolumeClaim>();
        let claim = serde_json::from_value(json!({
            "metadata": { "name": "data" },
            "spec": {
                "volumeName": "volumes-here", "storageClassName": "",
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
            },
        }))
        .unwrap();
        claims.create(&PostParams::default(), &claim).await.unwrap();
        assert_eq!(left().await, Vec::<String>::new());
    });
}
