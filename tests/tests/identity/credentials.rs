//! The talosconfig.

use ichor_api::ConditionStatus;
use ichor_api::conditions::READY;
use ichor_tests::bed::objects::TALOSCONFIG;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::BED;
use crate::common::{SOON, Stage, on_stage};

/// Replaces the Secret, and the agent's memory of it.
async fn put(stage: &Stage, data: Option<serde_json::Value>) {
    let secrets: Api<Secret> = Api::default_namespaced(stage.admin.clone());
    let _ = secrets.delete(TALOSCONFIG, &DeleteParams::default()).await;
    if let Some(data) = data {
        let secret = json!({"metadata": {"name": TALOSCONFIG}, "stringData": data});
        secrets
            .create(
                &PostParams::default(),
                &serde_json::from_value(secret).unwrap(),
            )
            .await
            .unwrap();
    }
    // It is read once a minute; a fresh agent reads it at once.
    let agents = stage.bed.agents().unwrap();
    agents.kill(None).await.unwrap();
    agents.start_again(None).await.unwrap();
    agents.wait_ready(1, SOON).await.unwrap();
}

#[test]
fn credentials_that_do_not_fit_are_told_with_their_cause_and_nothing_is_done() {
    on_stage(&BED, async |stage| {
        let sim = stage.bed.sim();
        let yesterday = Timestamp::now() - SignedDuration::from_hours(24);
        let expired = sim.talosconfig_for("os:admin", yesterday).unwrap();
        let cases = [
            (None, "there is no Secret default/demo-talosconfig"),
            (Some(json!({"other": "x"})), "has no key talosconfig"),
            (
                Some(json!({"talosconfig": "context: [nonsense"})),
                "demo-talosconfig",
            ),
            (Some(json!({"talosconfig": expired})), "expired"),
            (
                Some(json!({"talosconfig": sim.foreign_talosconfig().unwrap()})),
                "does not accept",
            ),
        ];
        let mut deleted = false;
        for (data, cause) in cases {
            put(stage, data).await;
            stage
                .until_cluster(READY, ConditionStatus::False, "CredentialsInvalid")
                .await;
            if !deleted {
                stage.delete("worker-1").await;
                deleted = true;
            }
            let name = stage.voters[0].as_str();
            stage
                .wait("the machine to say so", async || {
                    let machine = stage.machine(name).await;
                    let ready = machine.condition(READY).cloned().ok_or("nothing yet")?;
                    if ready.reason == "CredentialsInvalid" && ready.message.contains(cause) {
                        Ok(())
                    } else {
                        Err(format!("{ready:?}"))
                    }
                })
                .await;
            stage
                .wait("the removal to say so", async || {
                    let machine = stage.machine("worker-1").await;
                    let removal = machine.condition("Removal").cloned().ok_or("nothing yet")?;
                    let fits = removal.reason == "CredentialsInvalid"
                        && (cause == "does not accept" || removal.message.contains(cause));
                    if fits {
                        Ok(removal.message)
                    } else {
                        Err(format!("{removal:?}"))
                    }
                })
                .await;
            assert_eq!(stage.changing_calls(), [""; 0]);
            stage.until_unlocked().await;
        }
        // With the right ones it goes on by itself.
        put(
            stage,
            Some(json!({"talosconfig": sim.talosconfig().unwrap()})),
        )
        .await;
        stage.gone("worker-1").await;
        assert_eq!(stage.changing_calls(), ["Reset of worker-1"]);
    });
}
