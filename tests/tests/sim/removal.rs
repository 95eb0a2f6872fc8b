//! The way that a removal goes.

use ichor_talos::events::ResetProgress;
use ichor_talos::model::PlatformConfig;
use ichor_talos::proto::machine;
use ichor_talos::{CallError, Partitions, ResetRequest, ResetWatch, Stage, maintenance};
use ichor_tests::wait::until;

use crate::support::{CALL, SOON, Sim, keep_os};

#[tokio::test(flavor = "multi_thread")]
async fn left_then_reset_a_control_plane_waits_in_maintenance_and_can_join_again() {
    let mut sim = Sim::start(|options| options.spare = true).await;
    sim.until_removals_pass().await;
    sim.node("cp-4").join().await.unwrap();
    sim.until_voters(4).await;

    let client = sim.client("cp-1");
    let before = client.snapshot().await.unwrap();
    let led = client.etcd_status().await.unwrap().leader == before.member_id;
    let new_leader = client
        .forfeit_leadership(&sim.gate.lock, CALL)
        .await
        .unwrap();
    assert_eq!(new_leader.is_some(), led);
    client
        .leave_etcd(sim.gate.permit().await, CALL)
        .await
        .unwrap();
    sim.until_voters(3).await;
    let listed = sim.client("cp-2").etcd_members(false).await.unwrap();
    assert!(
        listed
            .iter()
            .all(|member| Some(member.id) != before.member_id && member.name != "cp-1")
    );

    let volumes = client.volume_statuses().await.unwrap();
    let partitions = Partitions::for_maintenance(&volumes).unwrap();
    let request = ResetRequest {
        partitions,
        reboot: true,
    };
    client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    let address = sim.node("cp-1").address().to_string();
    let found = until(SOON, "cp-1 in maintenance", async || {
        maintenance::probe(&address)
            .await
            .map_err(|e| e.to_string())
    })
    .await
    .unwrap();
    assert_eq!(
        (found.hardware_uuid, found.stage),
        (before.hardware_uuid, Stage::Maintenance)
    );
    assert_eq!(found.talos_version, "v1.14.1");
    // It is nobody's any more: our certificate is not asked for, and its own is not of our authority.
    let stranger = client.version().await.unwrap_err();
    assert!(
        matches!(stranger, CallError::Credentials(_)),
        "{stranger:?}"
    );

    sim.node("cp-1").join().await.unwrap();
    sim.until_voters(4).await;
    let after = client.snapshot().await.unwrap();
    assert_eq!(after.status.stage, Stage::Running);
    assert_ne!(after.node_id, before.node_id);
    assert_ne!(after.member_id, before.member_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_etcd_on_a_partition_of_its_own_survives_unless_that_is_named() {
    let sim = Sim::start(|options| {
        options.control_planes = 1;
        options.etcd_partition = true;
    })
    .await;
    let volumes = sim.client("cp-1").volume_statuses().await.unwrap();
    let partitions = Partitions::for_maintenance(&volumes).unwrap();
    assert_eq!(partitions.names(), ["STATE", "EPHEMERAL", "ETCD"]);
    let id = sim.member_id("cp-1").await;
    let only = machine::ResetRequest::from(&ResetRequest {
        partitions: Partitions::new(["EPHEMERAL"]).unwrap(),
        reboot: true,
    });
    let boot = sim.node("cp-1").now().boot_id;
    sim.raw("cp-1").await.reset(only).await.unwrap();
    let node = sim.node("cp-1");
    until(SOON, "cp-1 to be back", async || {
        let now = node.now();
        if now.boot_id != boot && now.stage == Stage::Running {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await
    .unwrap();
    assert_eq!(sim.member_id("cp-1").await, id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_platform_configures_it_is_back_as_another_installation() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    assert_eq!(
        client.platform().await.unwrap().config,
        PlatformConfig::Absent
    );
    sim.node("worker-1").set_platform_config(true);
    assert_eq!(
        client.platform().await.unwrap().config,
        PlatformConfig::Present("talos.config".to_owned())
    );
    let before = client.snapshot().await.unwrap();
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    let after = until(SOON, "worker-1 to be back", async || {
        match client.snapshot().await {
            Ok(after) if after.boot_id != before.boot_id => Ok(after),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert_ne!(after.node_id, before.node_id);
    assert_eq!(after.hardware_uuid, before.hardware_uuid);

    let request = ResetRequest {
        reboot: false,
        ..request
    };
    let mut watch = ResetWatch::open(&client).await.unwrap();
    let actor = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    assert_eq!(
        watch.services_stopping(&actor, CALL).await,
        ResetProgress::ServicesStopping
    );
    let node = sim.node("worker-1");
    until(SOON, "worker-1 to be off", async || {
        if node.now().powered {
            Err(String::new())
        } else {
            Ok(())
        }
    })
    .await
    .unwrap();
}
