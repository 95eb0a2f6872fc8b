//! The release before: no boot ID among its resources, and the same removal.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]
#![allow(clippy::panic, reason = "a test that cannot go on fails there")]

mod common;

use common::on_stage;
use ichor_talos::Stage as At;
use ichor_tests::bed::BedOptions;
use ichor_tests::shared::SharedBed;

static BED: SharedBed = SharedBed::new(|| BedOptions {
    talos: "1.13".to_owned(),
    ..common::options()
});

#[test]
fn machines_of_talos_1_13_are_removed_alike() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[0].as_str();
        for target in [name, "worker-1"] {
            let version = stage.machine(target).await.status.unwrap().talos_version;
            assert!(
                version.as_deref().unwrap().starts_with("v1.13"),
                "{version:?}"
            );
            stage.delete(target).await;
            stage.gone(target).await;
            assert_eq!(stage.box_of(target).now().stage, At::Maintenance);
        }
        let mut calls = stage.changing_calls();
        calls.retain(|call| !call.starts_with("EtcdForfeit"));
        assert_eq!(
            calls,
            [
                format!("EtcdLeaveCluster of {name}"),
                format!("Reset of {name}"),
                "Reset of worker-1".to_owned()
            ]
        );
        stage
            .until_voters(&[&stage.voters[1], &stage.voters[2], &stage.spare])
            .await;
    });
}

#[test]
fn on_talos_1_13_too_a_box_that_rebooted_after_its_leave_leaves_again() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[0].as_str();
        stage.stop_at("after-leave-confirmed", name).await;
        stage.box_of(name).power_cycle().await;
        stage.bed.agents().unwrap().start_again(None).await.unwrap();
        stage.gone(name).await;
        assert_eq!(stage.calls_of("Reset").len(), 1);
        stage
            .until_voters(&[&stage.voters[1], &stage.voters[2], &stage.spare])
            .await;
    });
}
