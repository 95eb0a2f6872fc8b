//! The order of the steps, and what is left of the machine at the end.

use ichor_api::{ConditionStatus, names};
use ichor_talos::Stage as At;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::BED;
use crate::common::{Stage, on_stage};

#[test]
fn drain_comes_before_leave_and_leave_before_reset() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let target = &stage.voters[0];
        stage.run(stage.pod("web", "web", target).await).await;
        let node = stage.nodes().get(target).await.unwrap();

        stage.delete(target).await;
        stage.gone(target).await;

        // One leave, then one reset, and nothing else that changes anything.
        let mut calls = stage.changing_calls();
        calls.retain(|call| !call.starts_with("EtcdForfeitLeadership"));
        let leave = format!("EtcdLeaveCluster of {target}");
        assert_eq!(calls, [leave, format!("Reset of {target}")]);

        // The Node was empty before the leave was sent.
        let leave = &stage.calls_of("EtcdLeaveCluster")[0];
        let evicted = stage
            .requests()
            .into_iter()
            .find(|r| r.resource == "pods/eviction" && r.path.contains("/web/") && r.code == 201);
        let evicted = evicted.expect("the pod was evicted");
        assert!(evicted.time < leave.time, "{evicted:?} {leave:?}");
        assert_eq!(stage.pods().get_opt("web").await.unwrap(), None);

        // The reset is not graceful, names what it wipes, and wipes it.
        let reset = stage.calls_of("Reset").remove(0);
        assert_eq!(reset.code, "OK");
        assert_eq!(reset.request["graceful"], false, "{}", reset.request);
        assert_eq!(reset.request["reboot"], true, "{}", reset.request);
        let partitions = reset.request["system_partitions_to_wipe"]
            .as_array()
            .unwrap();
        let mut labels: Vec<&str> = partitions
            .iter()
            .map(|p| {
                assert_eq!(p["wipe"], true, "{p}");
                p["label"].as_str().unwrap()
            })
            .collect();
        labels.sort_unstable();
        assert_eq!(labels, ["EPHEMERAL", "STATE"]);

        // What is left: a wiped box, no Node, three voters, no lock.
        assert_eq!(stage.box_of(target).now().stage, At::Maintenance);
        let left = stage.nodes().get_opt(target).await.unwrap();
        assert_ne!(
            left.map(|n| n.metadata.uid),
            Some(node.metadata.uid),
            "its Node is still there"
        );
        let mut three = vec![stage.voters[1].as_str(), &stage.voters[2], &stage.spare];
        three.sort_unstable();
        stage.until_voters(&three).await;
        stage.until_unlocked().await;
        let transitioning = stage
            .until_cluster(
                "Transitioning",
                ConditionStatus::False,
                "StableControlPlaneCount",
            )
            .await;
        assert!(transitioning.contains('3'), "{transitioning}");
    });
}

#[test]
fn a_leader_gives_up_its_leadership_before_it_leaves() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let leader = stage.leader().await;
        stage.delete(&leader).await;
        stage.gone(&leader).await;
        let of = |method: &str| format!("{method} of {leader}");
        assert_eq!(
            stage.changing_calls(),
            [
                of("EtcdForfeitLeadership"),
                of("EtcdLeaveCluster"),
                of("Reset")
            ]
        );
    });
}

#[test]
fn a_worker_is_drained_and_reset_and_never_asked_to_leave() {
    on_stage(&BED, async |stage| {
        stage.run(stage.pod("web", "web", "worker-2").await).await;
        stage.delete("worker-2").await;
        stage.gone("worker-2").await;
        assert_eq!(stage.changing_calls(), ["Reset of worker-2"]);
        assert_eq!(stage.pods().get_opt("web").await.unwrap(), None);
        let reset = &stage.calls_of("Reset")[0];
        let evicted = stage
            .requests()
            .into_iter()
            .find(|r| r.resource == "pods/eviction" && r.code == 201)
            .expect("the pod was evicted");
        assert!(evicted.time < reset.time, "{evicted:?} {reset:?}");
        assert_eq!(reset.request["graceful"], false);
        assert_eq!(stage.box_of("worker-2").now().stage, At::Maintenance);
        stage.until_unlocked().await;
    });
}

#[test]
fn each_step_is_recorded_with_its_times_and_the_wipe_is_confirmed() {
    on_stage(&BED, async |stage| {
        // A finalizer of somebody else keeps the object readable to its end.
        let target = "worker-1";
        stage
            .patch(
                target,
                json!({"metadata": {"finalizers": [names::MACHINE_FINALIZER, "example.org/reader"]}}),
            )
            .await;
        stage.delete(target).await;
        let machine = stage
            .until_machine(target, "lose our finalizer", |machine| {
                if machine.has_finalizer() {
                    Err("it has it".to_owned())
                } else {
                    Ok(machine.clone())
                }
            })
            .await;
        assert_eq!(
            machine.metadata.finalizers.as_deref(),
            Some(["example.org/reader".to_owned()].as_slice())
        );
        let removal = machine.status.unwrap().removal.unwrap();
        let finished: Vec<&str> = removal
            .steps
            .iter()
            .filter(|s| s.finished_at.is_some())
            .map(|s| s.name.as_str())
            .collect();
        assert_eq!(finished, ["Lock", "Check", "Drain", "Reset", "Confirm"]);
        assert_eq!(removal.confirmed, Some(true));
        assert_eq!(removal.wiped, ["STATE", "EPHEMERAL"]);
        assert!(!removal.not_wiped);
        stage
            .patch(target, json!({"metadata": {"finalizers": null}}))
            .await;
        stage.gone(target).await;
    });
}

/// Sends admission reviews to this port of the webhook's Service.
async fn webhook_port(stage: &Stage, port: i32) {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(stage.admin.clone());
    let mut configuration = api.get("ichor").await.unwrap();
    for webhook in configuration.webhooks.iter_mut().flatten() {
        webhook.client_config.service.as_mut().unwrap().port = Some(port);
    }
    api.replace("ichor", &PostParams::default(), &configuration)
        .await
        .unwrap();
}

#[test]
fn the_agents_own_writes_pass_with_the_webhook_down() {
    on_stage(&BED, async |stage| {
        stage.blocked_pod("worker-1").await;
        stage.delete("worker-1").await;
        stage.stands("worker-1", "DrainFailed").await;
        // Nothing serves at this port, and the webhook fails closed: for everybody else.
        webhook_port(stage, 444).await;
        let refused = stage
            .wait("a person's write to be refused", async || {
                let nothing = json!({"metadata": {"annotations": {"example.org/note": "x"}}});
                match stage.try_patch("worker-2", nothing).await {
                    Err(kube::Error::Api(status)) => Ok(status.message),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        assert!(refused.contains("failed calling webhook"), "{refused}");
        stage.free("worker-1").await;
        stage.gone("worker-1").await;
        webhook_port(stage, 443).await;
        assert_eq!(stage.changing_calls(), ["Reset of worker-1"]);
    });
}
