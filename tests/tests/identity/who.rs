//! Which box answers, and what for.

use ichor_api::conditions::READY;
use ichor_api::{ConditionStatus, names};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::BED;
use crate::common::on_stage;

#[test]
fn an_address_that_answers_as_another_machine_stops_the_removal_until_it_is_corrected() {
    on_stage(&BED, async |stage| {
        // DHCP gave worker-1 another address, and its old one to worker-2.
        let (one, two) = (stage.box_of("worker-1"), stage.box_of("worker-2"));
        let old = one.address();
        one.change_address(stage.bed.sim().spare_address())
            .await
            .unwrap();
        two.change_address(old).await.unwrap();
        let message = stage
            .until_condition(
                "worker-1",
                READY,
                ConditionStatus::False,
                "IdentityMismatch",
            )
            .await;
        assert!(message.contains(&two.hardware_uuid), "{message}");
        assert!(message.contains(&one.hardware_uuid), "{message}");

        stage.delete("worker-1").await;
        let message = stage.stands("worker-1", "IdentityMismatch").await;
        assert!(message.contains(&two.hardware_uuid), "{message}");
        assert!(message.contains("spec.address"), "{message}");
        stage.until_unlocked().await;
        stage.until_cordoned("worker-1", false).await;
        assert_eq!(stage.changing_calls(), [""; 0]);

        // Nothing was written over: the record is still the box that was adopted.
        let recorded = stage.machine("worker-1").await.identity().hardware_uuid;
        assert_eq!(recorded.as_ref(), Some(&one.hardware_uuid));

        // Corrected, even while it is being deleted, it goes on with the right box.
        let moved = one.address().to_string();
        stage
            .patch("worker-1", json!({"spec": {"address": moved}}))
            .await;
        stage.gone("worker-1").await;
        assert_eq!(stage.changing_calls(), ["Reset of worker-1"]);
        stage
            .patch("worker-2", json!({"spec": {"address": old.to_string()}}))
            .await;
        stage
            .until_condition("worker-2", READY, ConditionStatus::True, "Healthy")
            .await;
    });
}

#[test]
fn a_machine_of_another_role_than_declared_is_never_adopted_and_let_go_untouched() {
    on_stage(&BED, async |stage| {
        // The object goes, its box stays as it is.
        stage
            .annotate("worker-2", names::CANCEL_REMOVAL, Some("true"))
            .await;
        stage.delete("worker-2").await;
        stage.gone("worker-2").await;
        let mut object = stage.object("worker-2", true);
        object["spec"]["role"] = json!("controlplane");
        stage.create(object).await;
        let message = stage
            .until_condition("worker-2", READY, ConditionStatus::False, "RoleMismatch")
            .await;
        assert!(message.contains("worker"), "{message}");
        stage.delete("worker-2").await;
        stage.gone("worker-2").await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        assert_eq!(
            stage.box_of("worker-2").now().stage,
            ichor_talos::Stage::Running
        );
    });
}

#[test]
fn where_two_machines_have_one_hardware_uuid_neither_is_reset() {
    on_stage(&BED, async |stage| {
        let uuid = &stage.box_of("worker-1").hardware_uuid;
        // Somebody with the rights of a cluster administrator wrote into the status.
        let forged = Patch::Merge(json!({"status": {"identity": {"hardwareUUID": uuid}}}));
        stage
            .machines()
            .patch_status("worker-2", &PatchParams::default(), &forged)
            .await
            .unwrap();
        stage
            .until_condition(
                "worker-2",
                READY,
                ConditionStatus::False,
                "IdentityMismatch",
            )
            .await;
        stage.delete("worker-1").await;
        let message = stage.stands("worker-1", "IdentityMismatch").await;
        assert!(message.contains("worker-2"), "{message}");
        stage.until_unlocked().await;
        assert_eq!(stage.changing_calls(), [""; 0]);

        // The way out that the message names: this box is worker-2 from now on.
        let own = stage.box_of("worker-2").hardware_uuid.clone();
        stage
            .annotate("worker-2", names::ACCEPT_HARDWARE, Some(&own))
            .await;
        stage.gone("worker-1").await;
        assert_eq!(stage.changing_calls(), ["Reset of worker-1"]);
    });
}
