//! What etcd says, and what its silence means.

use std::sync::Arc;
use std::time::Duration;

use ichor_talos::CallError;
use ichor_talos::irreversible::BootstrapFrom;
use ichor_tests::wait::until;

use crate::support::{CALL, SOON, Sim};

#[tokio::test(flavor = "multi_thread")]
async fn etcd_refuses_to_lose_a_healthy_member_while_another_is_down() {
    let mut sim = Sim::start(|_| {}).await;
    sim.until_removals_pass().await;
    let (healthy, down) = (sim.member_id("cp-2").await, sim.member_id("cp-3").await);
    sim.node("cp-3").etcd_stop();
    let client = sim.client("cp-1");
    // The loss is noticed by the next heartbeat, not before.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let refused = client
        .remove_member(sim.gate.permit().await, healthy, CALL)
        .await
        .unwrap_err();
    assert!(refused.is_unhealthy_cluster(), "{refused:?}");
    client
        .remove_member(sim.gate.permit().await, down, CALL)
        .await
        .unwrap();
    let again = client
        .remove_member(sim.gate.permit().await, down, CALL)
        .await
        .unwrap_err();
    assert!(
        again.is_member_not_found() && again.nothing_done(),
        "{again:?}"
    );
    sim.until_voters(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_member_is_not_healthy_and_comes_back_when_thawed() {
    let sim = Sim::start(|_| {}).await;
    let client = sim.client("cp-3");
    assert!(client.etcd_member_id_local().await.unwrap().is_some());
    sim.node("cp-3").etcd_freeze();
    until(SOON, "cp-3's etcd to be unhealthy", async || {
        match client.etcd_member_id_local().await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert!(client.etcd_status().await.is_err());
    sim.node("cp-3").etcd_thaw();
    until(SOON, "cp-3's etcd to be healthy", async || {
        match client.etcd_status().await {
            Ok(status) if status.leader.is_some() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_stays_one_until_it_is_promoted() {
    let sim = Sim::start(|options| {
        options.control_planes = 1;
        options.spare = true;
    })
    .await;
    let spare = sim.node("cp-2");
    spare.hold_learner(true);
    let joining = tokio::spawn({
        let spare = Arc::clone(spare);
        async move { spare.join().await }
    });
    let client = sim.client("cp-2");
    until(SOON, "cp-2 to be a learner", async || {
        match client.etcd_status().await {
            Ok(status) if status.learner => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    let members = sim.client("cp-1").etcd_members(false).await.unwrap();
    assert_eq!(
        members
            .iter()
            .filter(|member| member.learner && member.started())
            .count(),
        1
    );
    spare.hold_learner(false);
    joining.await.unwrap().unwrap();
    sim.until_voters(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_waits_for_a_bootstrap_and_the_others_join_the_one_that_had_it() {
    let mut sim = Sim::start(|options| {
        options.control_planes = 2;
        options.bootstrapped = false;
    })
    .await;
    let client = sim.client("cp-1");
    until(SOON, "cp-1 to wait", async || {
        match client.service("etcd").await {
            Ok(Some(etcd)) if etcd.message.contains("bootstrap") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert!(client.etcd_members(false).await.is_err());
    client
        .bootstrap(sim.gate.permit().await, BootstrapFrom::Nothing, CALL)
        .await
        .unwrap();
    sim.until_voters(2).await;
    let again = client
        .bootstrap(sim.gate.permit().await, BootstrapFrom::Nothing, CALL)
        .await
        .unwrap_err();
    assert!(
        matches!(&again, CallError::Refused { code, .. } if *code == tonic::Code::AlreadyExists),
        "{again:?}"
    );
}
