//! The agent killed at every named point between two writes of a removal, plain and
//! crossed with a fault: it resumes to the same end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]
#![allow(clippy::panic, reason = "a test that cannot go on fails there")]

mod common;

use std::time::Duration;

use common::{SOON, Stage, on_stage};
use ichor_agent::failpoint::POINTS;
use ichor_api::names;
use ichor_tests::bed::BedOptions;
use ichor_tests::bed::objects::{CLUSTER, NAMESPACE};
use ichor_tests::proxy::faults::{Fault as ApiFault, Matcher};
use ichor_tests::shared::SharedBed;
use ichor_tests::sim::Role;
use ichor_tests::wait;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

/// Other pods wait for the Lease to expire, so it is short here.
fn options() -> BedOptions {
    let mut options = common::options();
    options.agent_args.retain(|a| !a.starts_with("--lease"));
    options
        .agent_args
        .extend(["--lease-duration=8s", "--lease-renew=2s"].map(str::to_owned));
    options
}

static BED: SharedBed = SharedBed::new(options);

/// What happens while the agent is dead, or as it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossed {
    /// Nothing else.
    Plain,
    /// The API server is unreachable for a while.
    ApiOutage,
    /// Writes to the machine are answered 409.
    Conflict,
    /// Writes to the machine are applied, and answered 504.
    AppliedThen504,
    /// The target's Talos API is silent for a while.
    ApidSilent,
    /// etcd's leader is frozen for a while.
    LeaderGone,
    /// Somebody else has taken the lock.
    LockStolen,
    /// The target is power-cycled.
    Rebooted,
}

const FAULTS: [Crossed; 7] = [
    Crossed::ApiOutage,
    Crossed::Conflict,
    Crossed::AppliedThen504,
    Crossed::ApidSilent,
    Crossed::LeaderGone,
    Crossed::LockStolen,
    Crossed::Rebooted,
];

/// Who goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resumed {
    BySamePod,
    ByAnotherPod,
}

/// Points that a removal of this role passes. Adoption has its own test.
fn points(role: Role) -> Vec<&'static str> {
    POINTS
        .iter()
        .copied()
        .filter(|p| *p != "after-finalizer")
        .filter(|p| role == Role::ControlPlane || !(p.contains("leave") || p.contains("forfeit")))
        .collect()
}

async fn until_dead(stage: &Stage, point: &str) {
    let agents = stage.bed.agents().unwrap();
    wait::until(SOON, &format!("the agent's death at {point}"), || async {
        let all = agents.status().await;
        if all
            .iter()
            .filter(|a| !a.replaced)
            .all(|a| a.state == "Stopped")
        {
            Ok(())
        } else {
            Err(format!("{all:?}"))
        }
    })
    .await
    .unwrap_or_else(|error| panic!("{error}"));
}

async fn begin(stage: &Stage, target: &str, crossed: Crossed) {
    let faults = stage.bed.proxy().faults();
    match crossed {
        Crossed::Plain => {}
        Crossed::ApiOutage => faults.outage(Duration::from_secs(4)),
        Crossed::Conflict | Crossed::AppliedThen504 => {
            let fault = if crossed == Crossed::Conflict {
                ApiFault::Status {
                    code: 409,
                    after: false,
                }
            } else {
                ApiFault::Status {
                    code: 504,
                    after: true,
                }
            };
            let writes = format!("/talosmachines/{target}");
            for method in ["PUT", "PATCH"] {
                let matcher = Matcher::parse(&format!("{method} {writes}")).unwrap();
                faults.set(fault, matcher, Some(2));
            }
        }
        Crossed::ApidSilent => stage.box_of(target).cut(),
        Crossed::LeaderGone => {
            let leader = stage.leader().await;
            if leader != target {
                stage.box_of(&leader).etcd_freeze();
            }
        }
        Crossed::LockStolen => {
            let leases: Api<Lease> = Api::namespaced(stage.admin.clone(), NAMESPACE);
            let name = names::lease_name(CLUSTER);
            if leases.get_opt(&name).await.unwrap().is_some() {
                let stolen = json!({"spec": {"holderIdentity": "somebody-else"}});
                leases
                    .patch(&name, &PatchParams::default(), &Patch::Merge(stolen))
                    .await
                    .unwrap();
            }
        }
        Crossed::Rebooted => stage.box_of(target).power_cycle().await,
    }
}

async fn end(stage: &Stage, target: &str, crossed: Crossed) {
    match crossed {
        Crossed::ApidSilent => {
            tokio::time::sleep(Duration::from_secs(3)).await;
            stage.box_of(target).heal();
        }
        Crossed::LeaderGone => {
            tokio::time::sleep(Duration::from_secs(3)).await;
            for node in stage.bed.sim().nodes() {
                node.etcd_thaw();
            }
        }
        _ => {}
    }
}

/// One removal: killed at `point`, crossed with a fault, resumed, and what came of it.
async fn case(stage: &Stage, role: Role, point: &str, crossed: Crossed, resumed: Resumed) {
    let what = format!("{point}, {crossed:?}, {resumed:?}");
    println!("-- {role:?}: {what}");
    let target = if role == Role::ControlPlane {
        stage.join_spare().await;
        // Leadership is given up only by a leader.
        if point == "before-forfeit" {
            stage.leader().await
        } else {
            stage.voters[0].clone()
        }
    } else {
        "worker-2".to_owned()
    };
    let agents = stage.bed.agents().unwrap();
    agents.failpoint(point, None).await.unwrap();
    agents.wait_ready(1, SOON).await.unwrap();
    stage.delete(&target).await;
    until_dead(stage, point).await;
    begin(stage, &target, crossed).await;
    match resumed {
        Resumed::BySamePod => agents.start_again(None).await.unwrap(),
        Resumed::ByAnotherPod => agents.start_new_pods(None, SOON).await.unwrap(),
    };
    end(stage, &target, crossed).await;

    stage.gone(&target).await;
    stage.until_unlocked().await;
    let resets: Vec<_> = stage
        .calls_of("Reset")
        .into_iter()
        .filter(|c| c.node == target && c.code == "OK")
        .collect();
    // A box that was power-cycled may need another one: it was not wiped.
    let allowed = if crossed == Crossed::Rebooted { 2 } else { 1 };
    assert!(
        !resets.is_empty() && resets.len() <= allowed,
        "{what}: {} resets were accepted",
        resets.len()
    );
    for reset in &resets {
        assert_eq!(reset.request["graceful"], false, "{what}");
        assert!(
            !reset.request["system_partitions_to_wipe"]
                .as_array()
                .unwrap()
                .is_empty(),
            "{what}"
        );
    }
    let removed = stage
        .calls_of("EtcdLeaveCluster")
        .into_iter()
        .chain(stage.calls_of("EtcdRemoveMemberByID"))
        .filter(|c| c.code == "OK")
        .count();
    if role == Role::ControlPlane {
        assert!(
            (1..=allowed).contains(&removed),
            "{what}: {removed} member removals succeeded"
        );
        let voters = stage.etcd_voters().await;
        assert_eq!(voters.len(), 3, "{what}: {voters:?}");
        assert!(!voters.contains(&target), "{what}: {voters:?}");
    } else {
        assert_eq!(removed, 0, "{what}");
    }
    assert_eq!(
        stage.box_of(&target).now().stage,
        ichor_talos::Stage::Maintenance,
        "{what}"
    );
}

fn each(role: Role, crossed: impl Fn(usize) -> Crossed, resumed: Resumed) {
    for (index, point) in points(role).into_iter().enumerate() {
        on_stage(&BED, async |stage| {
            case(stage, role, point, crossed(index), resumed).await;
        });
    }
}

/// `Rebooted` is for boxes that are still there to be rebooted, before their reset.
fn one_fault(index: usize, points: &[&str]) -> Crossed {
    let fault = FAULTS[index % FAULTS.len()];
    let point = points[index];
    let before_reset = !(point.starts_with("reset-after-call")
        || point.starts_with("after-wipe")
        || point.starts_with("after-node")
        || point.starts_with("after-finalizer")
        || point.starts_with("after-release"));
    if fault == Crossed::Rebooted && !before_reset {
        Crossed::ApiOutage
    } else {
        fault
    }
}

#[test]
fn killed_around_an_irreversible_call_it_resumes_to_the_same_end() {
    for point in ["leave-after-call", "reset-after-call"] {
        on_stage(&BED, async |stage| {
            case(
                stage,
                Role::ControlPlane,
                point,
                Crossed::Plain,
                Resumed::BySamePod,
            )
            .await;
        });
    }
}

#[test]
#[ignore = "make proof: each point takes a removal"]
fn killed_at_every_named_point_it_resumes_to_the_same_end() {
    each(Role::ControlPlane, |_| Crossed::Plain, Resumed::BySamePod);
}

#[test]
#[ignore = "make proof: each point takes a removal"]
fn killed_at_every_named_point_of_a_workers_removal_it_resumes_to_the_same_end() {
    each(Role::Worker, |_| Crossed::Plain, Resumed::BySamePod);
}

#[test]
#[ignore = "make proof: each point takes a removal"]
fn killed_at_every_named_point_and_crossed_with_a_fault_another_pod_resumes_to_the_same_end() {
    let points = points(Role::ControlPlane);
    each(
        Role::ControlPlane,
        |index| one_fault(index, &points),
        Resumed::ByAnotherPod,
    );
}

#[test]
fn killed_after_the_finalizer_was_set_it_adopts_the_machine() {
    on_stage(&BED, async |stage| {
        stage.join(&stage.spare).await;
        let agents = stage.bed.agents().unwrap();
        agents.failpoint("after-finalizer", None).await.unwrap();
        agents.wait_ready(1, SOON).await.unwrap();
        stage
            .patch(&stage.spare, json!({"spec": {"approved": true}}))
            .await;
        until_dead(stage, "after-finalizer").await;
        assert!(stage.machine(&stage.spare).await.has_finalizer());
        agents.start_again(None).await.unwrap();
        stage
            .until_condition(
                &stage.spare,
                "Ready",
                ichor_api::ConditionStatus::True,
                "Healthy",
            )
            .await;
    });
}

#[test]
#[ignore = "make proof: every point crossed with every fault, both roles, both ways of resuming"]
fn the_whole_matrix_of_points_and_faults_ends_the_same() {
    for role in [Role::ControlPlane, Role::Worker] {
        let points = points(role);
        for resumed in [Resumed::BySamePod, Resumed::ByAnotherPod] {
            for fault in 0..FAULTS.len() {
                each(
                    role,
                    |index| {
                        let crossed = one_fault(fault, &vec![points[index]; FAULTS.len()]);
                        if role == Role::Worker && crossed == Crossed::LeaderGone {
                            Crossed::Conflict
                        } else {
                            crossed
                        }
                    },
                    resumed,
                );
            }
        }
    }
}
