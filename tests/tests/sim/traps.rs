//! The traps of talos.md section 1.

use std::time::Duration;

use ichor_talos::events::ResetProgress;
use ichor_talos::irreversible::RebootMode;
use ichor_talos::maintenance::ProbeError;
use ichor_talos::proto::machine;
use ichor_talos::{CallError, ResetRequest, ResetStart, ResetWatch, Stage, maintenance};
use ichor_tests::wait::until;

use crate::support::{CALL, SOON, Sim, keep_os};

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_reset_after_removal_by_id_reboots_the_node_unwiped() {
    let mut sim = Sim::start(|_| {}).await;
    sim.until_removals_pass().await;
    let before = sim.client("cp-3").snapshot().await.unwrap();
    let id = sim.member_id("cp-3").await;
    sim.client("cp-1")
        .remove_member(sim.gate.permit().await, id, CALL)
        .await
        .unwrap();
    sim.until_voters(2).await;
    let client = sim.client("cp-3");
    until(SOON, "cp-3's etcd to notice", async || {
        match client.etcd_member_id_local().await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();

    let graceful = machine::ResetRequest {
        graceful: true,
        ..machine::ResetRequest::from(&ResetRequest {
            partitions: keep_os(),
            reboot: true,
        })
    };
    let mut watch = ResetWatch::open(&client).await.unwrap();
    let answer = sim
        .raw("cp-3")
        .await
        .reset(graceful)
        .await
        .unwrap()
        .into_inner();
    let actor = answer.messages[0].actor_id.clone();
    assert_eq!(watch.started(Some(&actor), CALL).await, ResetStart::Started);
    let progress = watch.services_stopping(&actor, CALL).await;
    assert!(
        matches!(&progress, ResetProgress::Failed(why) if why.contains("leaveEtcd")),
        "{progress:?}"
    );

    // It is back with the configuration it had, and no member of etcd.
    until(SOON, "cp-3 to be back", async || {
        match client.boot_id().await {
            Ok(boot) if boot != before.boot_id => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert_eq!(client.identity().await.unwrap(), before.node_id);
    let probed = maintenance::probe(&sim.node("cp-3").address().to_string()).await;
    assert!(
        matches!(probed, Err(ProbeError::NotMaintenance(_))),
        "{probed:?}"
    );
    assert_eq!(sim.members().await.len(), 2);

    // The recipe that works: without grace.
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    sim.until_stage("cp-3", Stage::Maintenance).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_partition_list_leaves_nothing_to_boot() {
    let sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    let mut watch = ResetWatch::open(&client).await.unwrap();
    let request = machine::ResetRequest {
        reboot: true,
        ..machine::ResetRequest::default()
    };
    let answer = sim
        .raw("worker-1")
        .await
        .reset(request)
        .await
        .unwrap()
        .into_inner();
    let actor = answer.messages[0].actor_id.clone();
    assert_eq!(
        watch.services_stopping(&actor, CALL).await,
        ResetProgress::ServicesStopping
    );
    // Powered, and nobody there.
    let before = sim.node("worker-1").now().boot_id;
    let node = sim.node("worker-1");
    until(SOON, "worker-1 to restart", async || {
        let now = node.now();
        if now.powered && now.boot_id != before {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let probed = maintenance::probe(&node.address().to_string()).await;
    assert!(
        matches!(probed, Err(ProbeError::Unreachable(_))),
        "{probed:?}"
    );
    assert!(matches!(
        client.version().await,
        Err(CallError::Unreachable(_))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_named_without_wipe_wipe_nothing() {
    let sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    let before = client.snapshot().await.unwrap();
    let label = |label: &str| machine::ResetPartitionSpec {
        label: label.to_owned(),
        wipe: false,
    };
    let request = machine::ResetRequest {
        reboot: true,
        system_partitions_to_wipe: vec![label("STATE"), label("EPHEMERAL")],
        ..machine::ResetRequest::default()
    };
    sim.raw("worker-1").await.reset(request).await.unwrap();
    until(SOON, "worker-1 to be back", async || {
        match client.boot_id().await {
            Ok(boot) if boot != before.boot_id => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert_eq!(client.identity().await.unwrap(), before.node_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_reset_may_be_locked_out_and_only_the_watch_tells() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    let before = client.snapshot().await.unwrap();
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };

    sim.node("worker-1").lock_next_reset();
    let mut watch = ResetWatch::open(&client).await.unwrap();
    let actor = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    assert!(!actor.is_empty(), "the answer looks like any other");
    let start = watch.started(Some(&actor), CALL).await;
    assert!(matches!(start, ResetStart::Locked(_)), "{start:?}");
    assert_eq!(client.snapshot().await.unwrap(), before);

    let mut watch = ResetWatch::open(&client).await.unwrap();
    let actor = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    assert_eq!(watch.started(Some(&actor), CALL).await, ResetStart::Started);
    assert_eq!(
        watch.services_stopping(&actor, CALL).await,
        ResetProgress::ServicesStopping
    );
    sim.until_stage("worker-1", Stage::Maintenance).await;

    let codes: Vec<_> = sim
        .calls("Reset")
        .into_iter()
        .map(|call| (call.code, call.request))
        .collect();
    let written = serde_json::json!({
        "graceful": false,
        "reboot": true,
        "system_partitions_to_wipe": [{"label": "STATE", "wipe": true}, {"label": "EPHEMERAL", "wipe": true}],
        "user_disks_to_wipe": [],
        "mode": "ALL",
    });
    assert_eq!(
        codes,
        [
            ("OK".to_owned(), written.clone()),
            ("OK".to_owned(), written)
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_reset_is_locked_out_while_the_first_runs() {
    let mut sim = Sim::start(|options| {
        options.workers = 1;
        options.timings.phase = Duration::from_millis(600);
    })
    .await;
    let client = sim.client("worker-1");
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    let mut watch = ResetWatch::open(&client).await.unwrap();
    let first = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    assert_eq!(watch.started(Some(&first), CALL).await, ResetStart::Started);
    let mut second_watch = ResetWatch::open(&client).await.unwrap();
    let second = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap();
    let start = second_watch.started(Some(&second), CALL).await;
    assert!(matches!(start, ResetStart::Locked(_)), "{start:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_after_the_leave_rejoins_under_a_new_member_id() {
    let mut sim = Sim::start(|_| {}).await;
    sim.until_removals_pass().await;
    let old = sim.member_id("cp-2").await;
    let client = sim.client("cp-2");
    client
        .leave_etcd(sim.gate.permit().await, CALL)
        .await
        .unwrap();
    sim.until_voters(2).await;
    let etcd = client.service("etcd").await.unwrap().unwrap();
    assert!(etcd.is_down(), "{etcd:?}");

    client
        .reboot(sim.gate.permit().await, RebootMode::Default, CALL)
        .await
        .unwrap();
    sim.until_voters(3).await;
    let new = sim.member_id("cp-2").await;
    assert_ne!(new, old);
    sim.until_stage("cp-2", Stage::Running).await;
    assert_eq!(client.etcd_member_id_local().await.unwrap(), Some(new));
}
