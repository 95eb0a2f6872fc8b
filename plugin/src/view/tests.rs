//! Renderings of fixed objects at a fixed time.

use ichor_api::cluster::{AbandonedRemoval, LockStatus, NotWiped, RoleCounts};
use ichor_api::common::set_condition;
use ichor_api::conditions::{HEALTHY, READY, TRANSITIONING};
use ichor_api::machine::{BudgetStatus, DrainPodStatus, DrainStatus, RemovalStepStatus};
use ichor_api::{ConditionStatus, TalosCluster, TalosMachine};

use super::{drain, removal, status};
use crate::testing::{ago, clock, cluster, control_plane, deleted, removal_condition, worker};

fn joined(lines: &[String]) -> String {
    lines.join("\n")
}

/// A cluster in the middle of things: cp-1 being drained, cp-4 joined, worker-2 away.
fn busy() -> (TalosCluster, Vec<TalosMachine>) {
    let names = ["cp-2", "cp-1", "cp-3", "cp-4"];
    let mut cluster = cluster(&names);
    let status = cluster.status.as_mut().unwrap();
    status.workers = Some(RoleCounts {
        declared: None,
        approved: 2,
        healthy: 1,
    });
    status.lock = Some(LockStatus {
        holder: "0f7d".into(),
        operation: "removal of TalosMachine cp-1".into(),
        since: Some(ago(185)),
        until: None,
    });
    let set = |conditions: &mut Vec<_>, type_, state, reason: &str, message: &str| {
        set_condition(conditions, type_, state, reason, message, None, ago(240).0);
    };
    set(
        &mut status.conditions,
        TRANSITIONING,
        ConditionStatus::True,
        "EvenControlPlaneCount",
        "4 control planes are approved, an even number",
    );
    set(
        &mut status.conditions,
        HEALTHY,
        ConditionStatus::False,
        "AbandonedRemoval",
        "the removal of cp-0 was broken off by force",
    );
    status.not_wiped.push(NotWiped {
        machine: "worker-9".into(),
        hardware_uuid: "4c4c4544-0051".into(),
        address: "192.0.2.9".into(),
        since: Some(ago(90_000)),
        seen_again_at: Some(ago(60)),
    });
    status.abandoned.push(AbandonedRemoval {
        machine: "cp-0".into(),
        step: "Drain".into(),
        node: Some("cp-0".into()),
        hardware_uuid: Some("4c4c4544-0052".into()),
        since: Some(ago(7200)),
        message: "see whether it is still a member".into(),
        ..AbandonedRemoval::default()
    });
    let mut leaving = deleted(control_plane("cp-1"));
    removal_condition(
        &mut leaving,
        ConditionStatus::False,
        "DrainFailed",
        "pod default/web-1 is held by budget web (allows 0; 3 healthy, 3 needed)",
    );
    let mut away = worker("worker-2");
    set(
        &mut away.status.as_mut().unwrap().conditions,
        READY,
        ConditionStatus::False,
        "NodeUnreachable",
        "its Talos API does not answer at 192.0.2.1:50000",
    );
    let mut machines = vec![worker("worker-10"), away, leaving];
    machines.extend(["cp-2", "cp-3", "cp-4"].map(control_plane));
    (cluster, machines)
}

#[test]
fn a_busy_cluster_at_a_glance() {
    let (cluster, machines) = busy();
    let clusters = [cluster];
    let groups = status::group(&clusters, &machines, None);
    insta::assert_snapshot!(joined(&status::lines(&groups, clock(), false)));
}

#[test]
fn a_quiet_cluster_at_a_glance_and_wide() {
    let names = ["cp-1", "cp-2", "cp-3"];
    let clusters = [cluster(&names)];
    let machines = names.map(control_plane);
    let groups = status::group(&clusters, &machines, Some("demo"));
    insta::assert_snapshot!(joined(&status::lines(&groups, clock(), true)));
}

#[test]
fn a_cluster_whose_etcd_is_in_trouble() {
    let names = ["cp-1", "cp-2", "cp-3"];
    let mut cluster = cluster(&names);
    let etcd = cluster.status.as_mut().unwrap().etcd.as_mut().unwrap();
    etcd.leader = None;
    etcd.healthy = 1;
    etcd.learners = 1;
    etcd.alarms = vec!["cp-2: NOSPACE".into()];
    etcd.message = "no node reports a leader".into();
    etcd.observed_at = Some(ago(200));
    etcd.members[0].learner = true;
    etcd.members[1].healthy = false;
    etcd.members[2].started = false;
    let clusters = [cluster];
    let machines = names.map(control_plane);
    let groups = status::group(&clusters, &machines, None);
    insta::assert_snapshot!(joined(&status::lines(&groups, clock(), false)));
}

#[test]
fn machines_of_a_cluster_that_is_not_there_are_shown_too() {
    let machines = [control_plane("cp-1")];
    let groups = status::group(&[], &machines, None);
    insta::assert_snapshot!(joined(&status::lines(&groups, clock(), false)));
}

#[test]
fn control_planes_come_first_and_names_are_counted_through() {
    let machines = ["cp-10", "cp-9", "cp-1"].map(control_plane);
    let mut all = vec![worker("a-1")];
    all.extend(machines);
    let groups = status::group(&[], &all, None);
    let names: Vec<_> = groups[0]
        .machines
        .iter()
        .map(|m| m.metadata.name.clone().unwrap())
        .collect();
    assert_eq!(names, ["cp-1", "cp-9", "cp-10", "a-1"]);
}

#[test]
fn a_line_on_a_pipe_does_not_change_because_time_passes() {
    let (cluster, machines) = busy();
    let clusters = [cluster];
    let groups = status::group(&clusters, &machines, None);
    let at = |seconds| {
        let later = crate::testing::now() + k8s_openapi::jiff::SignedDuration::from_secs(seconds);
        status::lines(
            &groups,
            crate::age::Clock::relative(later).for_lines(),
            false,
        )
    };
    assert_eq!(at(0), at(3600));
}

#[test]
fn the_status_document() {
    let (cluster, machines) = busy();
    let clusters = [cluster];
    let groups = status::group(&clusters, &machines, None);
    let text = serde_json::to_string_pretty(&status::report(&groups)).unwrap();
    insta::assert_snapshot!(text);
}

fn draining() -> TalosMachine {
    let mut machine = deleted(control_plane("cp-1"));
    removal_condition(
        &mut machine,
        ConditionStatus::True,
        "Drain",
        "emptying Node cp-1",
    );
    let pod =
        |name: &str, reason: &str, budget: Option<BudgetStatus>, message: &str| DrainPodStatus {
            namespace: "default".into(),
            name: name.into(),
            since: Some(ago(75)),
            reason: reason.into(),
            budget,
            message: message.into(),
        };
    machine.status.as_mut().unwrap().drain = Some(DrainStatus {
        total: 40,
        evicted: 12,
        remaining: 28,
        started_at: Some(ago(180)),
        last_pass_at: Some(ago(4)),
        pods: vec![
            pod(
                "batch-1",
                "Terminating",
                None,
                "ends within its grace period of 300 s",
            ),
            pod(
                "web-1",
                "Budget",
                Some(BudgetStatus {
                    name: "web".into(),
                    allowed: 0,
                    current: 3,
                    desired: 3,
                }),
                "",
            ),
        ],
    });
    machine
}

#[test]
fn a_blocked_drain_names_pod_budget_and_numbers_first() {
    insta::assert_snapshot!(joined(&drain::lines(&draining(), clock())));
}

#[test]
fn a_machine_that_is_not_drained_says_so() {
    assert_eq!(
        drain::lines(&control_plane("cp-1"), clock()),
        ["cp-1 (Node cp-1) is not being drained"]
    );
}

fn resetting() -> TalosMachine {
    let mut machine = draining();
    removal_condition(
        &mut machine,
        ConditionStatus::False,
        "OutcomeUnknown",
        "the answer to the reset was lost",
    );
    let status = machine.status.as_mut().unwrap();
    status.drain.as_mut().unwrap().remaining = 0;
    let removal = status.removal.get_or_insert_default();
    removal.step = Some("Reset".into());
    let step = |name: &str, started: i64, finished: Option<i64>| RemovalStepStatus {
        name: name.into(),
        started_at: ago(started),
        finished_at: finished.map(ago),
    };
    removal.steps = vec![
        step("Lock", 300, Some(299)),
        step("Drain", 299, Some(119)),
        step("LeaveEtcd", 119, Some(110)),
        step("Reset", 110, None),
    ];
    removal.wiped = vec!["STATE".into(), "EPHEMERAL".into()];
    status.intent = serde_json::from_value(serde_json::json!({
        "step": "Reset", "operation": "removal", "instance": "0f7d",
        "deadline": ago(50), "deadlineSeconds": 60,
    }))
    .unwrap();
    machine
}

#[test]
fn a_removal_shows_its_steps_what_it_waits_for_and_what_to_do() {
    insta::assert_snapshot!(joined(&removal::lines(&resetting(), clock())));
    insta::assert_snapshot!(joined(&removal::lines(&draining(), clock())));
    insta::assert_snapshot!(joined(&removal::lines(&control_plane("cp-1"), clock())));
}

#[test]
fn there_is_a_way_back_until_the_leave_is_intended_and_none_after() {
    assert!(!removal::past_return(&draining()));
    assert!(removal::past_return(&resetting()));
    let mut machine = draining();
    let status = machine.status.as_mut().unwrap();
    status.removal.get_or_insert_default().step = Some("LeaveEtcd".into());
    assert!(
        !removal::past_return(&machine),
        "the step alone, without its intent"
    );
    let mut intent = resetting().status.unwrap().intent.unwrap();
    intent.step = "LeaveEtcd".into();
    machine.status.as_mut().unwrap().intent = Some(intent);
    assert!(removal::past_return(&machine));
    // A worker has no leave: its reset is the point of no return.
    let mut machine = deleted(worker("worker-1"));
    machine
        .status
        .as_mut()
        .unwrap()
        .removal
        .get_or_insert_default()
        .step = Some("Reset".into());
    assert!(!removal::past_return(&machine));
    machine.status.as_mut().unwrap().intent = resetting().status.unwrap().intent;
    assert!(removal::past_return(&machine));
}
