//! Plans over fixed objects at a fixed time.

use std::collections::BTreeMap;

use ichor_api::cluster::{LockStatus, Schedulable};
use ichor_api::common::{DrainOptions, set_condition};
use ichor_api::conditions::{HEALTHY, JOINED};
use ichor_api::{ConditionStatus, TalosCluster, TalosMachine, names};
use ichor_rules::Verdict;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::json;

use super::judge::{Facts, Lock, checks};
use super::pods::{Seen, Tried, judge, worth_trying};
use super::{Plan, PlanCheck, render};
use crate::testing::{
    ago, clock, cluster, control_plane, counted, deleted, member, now, removal_condition, worker,
};

/// Four control planes of which three are declared: the stable way to shrink by one.
fn four() -> (TalosCluster, Vec<TalosMachine>) {
    let names = ["cp-1", "cp-2", "cp-3", "cp-4"];
    (cluster(&names), names.map(control_plane).to_vec())
}

struct Scene {
    cluster: Option<TalosCluster>,
    machines: Vec<TalosMachine>,
    lock: Lock,
    may_override: bool,
}

impl Scene {
    fn of((cluster, machines): (TalosCluster, Vec<TalosMachine>)) -> Self {
        Self {
            cluster: Some(cluster),
            machines,
            lock: Lock::Lease(None),
            may_override: false,
        }
    }

    fn cluster(&mut self) -> &mut TalosCluster {
        self.cluster.as_mut().unwrap()
    }

    fn etcd(&mut self) -> &mut ichor_api::cluster::EtcdStatus {
        self.cluster()
            .status
            .as_mut()
            .unwrap()
            .etcd
            .as_mut()
            .unwrap()
    }

    fn machine(&mut self, name: &str) -> &mut TalosMachine {
        self.machines
            .iter_mut()
            .find(|m| m.metadata.name.as_deref() == Some(name))
            .unwrap()
    }

    fn plan(&self, target: &str) -> Plan {
        let machine = self
            .machines
            .iter()
            .find(|m| m.metadata.name.as_deref() == Some(target))
            .unwrap();
        let counted = counted(&self.machines, target);
        let checks = checks(&Facts {
            machine,
            cluster: self.cluster.as_ref(),
            machines: &self.machines,
            counted: &counted,
            lock: &self.lock,
            may_override: self.may_override,
            clock: clock(),
        });
        Plan::new(target, checks, Vec::new(), Vec::new())
    }
}

fn check<'p>(plan: &'p Plan, rule: &str) -> &'p PlanCheck {
    plan.checks
        .iter()
        .find(|c| c.rule == rule)
        .unwrap_or_else(|| panic!("{rule} is not among {:?}", plan.checks))
}

fn verdict(plan: &Plan, rule: &str) -> Verdict {
    check(plan, rule).verdict
}

#[test]
fn the_fourth_of_four_with_three_declared_may_go() {
    let plan = Scene::of(four()).plan("cp-1");
    assert_eq!(plan.verdict, Verdict::Proceed, "{plan:#?}");
    assert_eq!(plan.exit_code(), 0);
    let rules: Vec<_> = plan.checks.iter().map(|c| c.rule).collect();
    assert_eq!(
        rules,
        [
            "adopted",
            "allow-delete",
            "quorum",
            "declared-count",
            "live-etcd",
            "member-owners",
            "transitioning",
            "lock"
        ]
    );
    assert_eq!(check(&plan, "quorum").before, Some(4));
    assert_eq!(check(&plan, "quorum").after, Some(3));
    assert!(
        check(&plan, "live-etcd")
            .message
            .ends_with("(as of 12s ago)")
    );
}

#[test]
fn three_of_three_declared_wait_for_a_fourth() {
    let names = ["cp-1", "cp-2", "cp-3"];
    let plan = Scene::of((cluster(&names), names.map(control_plane).to_vec())).plan("cp-1");
    assert_eq!(verdict(&plan, "declared-count"), Verdict::Wait);
    assert_eq!(verdict(&plan, "quorum"), Verdict::Proceed);
    assert_eq!(plan.exit_code(), 4);
}

#[test]
fn the_last_but_one_and_the_last_are_refused() {
    for names in [&["cp-1", "cp-2"][..], &["cp-1"]] {
        let machines = names.iter().map(|n| control_plane(n)).collect();
        let plan = Scene::of((cluster(names), machines)).plan("cp-1");
        assert_eq!(verdict(&plan, "quorum"), Verdict::Refuse, "{names:?}");
        assert_eq!(plan.exit_code(), 3);
    }
}

#[test]
fn a_sibling_that_is_being_deleted_counts_as_gone() {
    let mut scene = Scene::of(four());
    *scene.machine("cp-2") = deleted(control_plane("cp-2"));
    *scene.machine("cp-3") = deleted(control_plane("cp-3"));
    assert_eq!(verdict(&scene.plan("cp-1"), "quorum"), Verdict::Refuse);
}

#[test]
fn a_missing_annotation_is_no_refusal_because_remove_sets_it() {
    let mut scene = Scene::of(four());
    let plan = scene.plan("cp-1");
    assert_eq!(verdict(&plan, "allow-delete"), Verdict::Proceed);
    assert!(
        check(&plan, "allow-delete")
            .message
            .contains("kubectl ichor remove cp-1 sets it")
    );
    scene.machine("cp-1").metadata.annotations =
        Some([(names::ALLOW_DELETE.to_owned(), "true".to_owned())].into());
    assert!(
        !check(&scene.plan("cp-1"), "allow-delete")
            .message
            .contains("sets it")
    );
}

#[test]
fn a_control_plane_without_its_finalizer_is_refused() {
    let mut scene = Scene::of(four());
    scene.machine("cp-1").metadata.finalizers = None;
    assert_eq!(verdict(&scene.plan("cp-1"), "adopted"), Verdict::Refuse);
}

#[test]
fn one_that_was_never_approved_may_go_at_any_time() {
    let mut scene = Scene::of(four());
    let machine = scene.machine("cp-4");
    machine.metadata.finalizers = None;
    machine.spec.approved = false;
    scene.cluster().status = None;
    let plan = scene.plan("cp-4");
    assert_eq!(plan.verdict, Verdict::Proceed, "{plan:#?}");
    assert_eq!(plan.checks.len(), 2);
}

#[test]
fn what_is_known_of_etcd_is_relied_on_for_two_minutes() {
    let mut scene = Scene::of(four());
    scene.etcd().observed_at = Some(ago(120));
    assert_eq!(scene.plan("cp-1").verdict, Verdict::Proceed);
    scene.etcd().observed_at = Some(ago(121));
    let plan = scene.plan("cp-1");
    assert_eq!(verdict(&plan, "live-etcd"), Verdict::Wait);
    assert!(
        check(&plan, "live-etcd").message.contains("2m1s old"),
        "{plan:#?}"
    );
    scene.etcd().observed_at = None;
    assert_eq!(verdict(&scene.plan("cp-1"), "live-etcd"), Verdict::Wait);
    scene.cluster().status = None;
    assert_eq!(verdict(&scene.plan("cp-1"), "live-etcd"), Verdict::Wait);
}

#[test]
fn a_workers_removal_waits_where_etcd_was_not_seen_lately() {
    let mut scene = Scene::of(four());
    scene.machines = vec![
        control_plane("cp-1"),
        worker("worker-1"),
        worker("worker-2"),
    ];
    assert_eq!(
        scene.plan("worker-1").verdict,
        Verdict::Wait,
        "four voters are transitioning"
    );
    let names = ["cp-1", "cp-2", "cp-3"];
    scene.cluster = Some(cluster(&names));
    scene.machines.extend(["cp-2", "cp-3"].map(control_plane));
    assert_eq!(scene.plan("worker-1").verdict, Verdict::Proceed);
    scene.etcd().observed_at = Some(ago(600));
    assert_eq!(
        verdict(&scene.plan("worker-1"), "transitioning"),
        Verdict::Wait
    );
}

#[test]
fn another_unhealthy_voter_goes_first() {
    let mut scene = Scene::of(four());
    let sick = &mut scene.etcd().members[3];
    sick.healthy = false;
    sick.message = "its node did not answer".into();
    sick.unhealthy_since = Some(ago(600));
    let plan = scene.plan("cp-1");
    assert_eq!(verdict(&plan, "live-etcd"), Verdict::Wait);
    assert!(check(&plan, "live-etcd").message.contains("cp-4"));
    // That one itself may go: removing it is how the cluster heals.
    assert_eq!(verdict(&scene.plan("cp-4"), "live-etcd"), Verdict::Proceed);
    assert_eq!(
        verdict(&scene.plan("cp-4"), "declared-count"),
        Verdict::Proceed
    );
}

#[test]
fn a_voter_heals_the_count_only_after_five_minutes() {
    let names = ["cp-1", "cp-2", "cp-3"];
    let mut scene = Scene::of((cluster(&names), names.map(control_plane).to_vec()));
    let sick = &mut scene.etcd().members[2];
    sick.healthy = false;
    sick.unhealthy_since = Some(ago(299));
    assert_eq!(
        verdict(&scene.plan("cp-3"), "declared-count"),
        Verdict::Wait
    );
    scene.etcd().members[2].unhealthy_since = Some(ago(300));
    assert_eq!(
        verdict(&scene.plan("cp-3"), "declared-count"),
        Verdict::Proceed
    );
}

#[test]
fn without_a_leader_it_waits_and_with_quorum_lost_it_is_refused() {
    let mut scene = Scene::of(four());
    scene.etcd().leader = None;
    assert_eq!(verdict(&scene.plan("cp-1"), "live-etcd"), Verdict::Wait);
    for member in &mut scene.etcd().members[1..] {
        member.healthy = false;
        member.unhealthy_since = Some(ago(299));
    }
    assert_eq!(verdict(&scene.plan("cp-1"), "live-etcd"), Verdict::Wait);
    for member in &mut scene.etcd().members[1..] {
        member.unhealthy_since = Some(ago(300));
    }
    let plan = scene.plan("cp-1");
    assert_eq!(verdict(&plan, "live-etcd"), Verdict::Refuse);
    assert!(check(&plan, "live-etcd").message.contains("restore"));
}

#[test]
fn the_agents_own_word_that_quorum_is_lost_is_taken() {
    let mut scene = Scene::of(four());
    scene.etcd().leader = None;
    scene.etcd().message = "no member list with a leader could be had: 192.0.2.1: silent".into();
    let plan = scene.plan("cp-1");
    assert_eq!(verdict(&plan, "live-etcd"), Verdict::Wait);
    assert!(
        check(&plan, "live-etcd")
            .message
            .contains("192.0.2.1: silent")
    );
    scene.etcd().message = "quorum is lost; no member list with a leader could be had".into();
    assert_eq!(verdict(&scene.plan("cp-1"), "live-etcd"), Verdict::Refuse);
    scene.etcd().message = String::new();
    let status = scene.cluster().status.as_mut().unwrap();
    set_condition(
        &mut status.conditions,
        HEALTHY,
        ConditionStatus::False,
        "QuorumLost",
        "",
        None,
        now(),
    );
    assert_eq!(verdict(&scene.plan("cp-1"), "live-etcd"), Verdict::Refuse);
}

#[test]
fn members_without_an_owner_and_members_with_two_are_named() {
    let mut scene = Scene::of(four());
    let mut stray = member("cp-9");
    stray.machine = None;
    scene.etcd().members.push(stray);
    let plan = scene.plan("cp-1");
    assert_eq!(verdict(&plan, "member-owners"), Verdict::Wait);
    assert!(check(&plan, "member-owners").message.contains("cp-9"));

    let mut scene = Scene::of(four());
    let twice = scene.machine("cp-2").identity();
    scene.machine("cp-3").status.as_mut().unwrap().identity = Some(twice);
    let plan = scene.plan("cp-1");
    assert!(
        check(&plan, "member-owners")
            .message
            .contains("cp-2 and cp-3"),
        "{plan:#?}"
    );
}

#[test]
fn a_machine_that_never_joined_takes_nothing_from_etcd() {
    let mut scene = Scene::of((cluster(&[]), vec![control_plane("cp-1")]));
    scene.etcd().leader = None;
    let machine = scene.machine("cp-1");
    let status = machine.status.as_mut().unwrap();
    status.identity.as_mut().unwrap().etcd_member_id = None;
    set_condition(
        &mut status.conditions,
        JOINED,
        ConditionStatus::False,
        "NeverVoter",
        "",
        None,
        now(),
    );
    let plan = scene.plan("cp-1");
    assert_eq!(plan.verdict, Verdict::Proceed, "{plan:#?}");
}

fn lease(holder: &str) -> Lock {
    Lock::Lease(Some(Box::new(Lease {
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.into()),
            acquire_time: Some(MicroTime(ago(90).0)),
            renew_time: Some(MicroTime(ago(30).0)),
            ..LeaseSpec::default()
        }),
        ..Lease::default()
    })))
}

#[test]
fn a_held_lock_is_waited_for_by_name_and_since_when() {
    let mut scene = Scene::of(four());
    scene.lock = lease("removal/TalosMachine/cp-4/uid-cp-4@pod-1");
    let plan = scene.plan("cp-1");
    let check = check(&plan, "lock");
    assert_eq!(check.verdict, Verdict::Wait);
    assert!(
        check.message.contains("removal of TalosMachine cp-4")
            && check.message.contains("agent pod-1")
            && check.message.contains("for 90s")
            && check.message.contains("renewed 30s ago"),
        "{}",
        check.message
    );
    // Somebody unknown holds it all the same.
    scene.lock = lease("somebody");
    assert!(
        super::tests::check(&scene.plan("cp-1"), "lock")
            .message
            .contains("held by somebody")
    );
    scene.lock = lease("removal/TalosMachine/cp-4/uid-cp-4@pod-1");
    // Its own removal's lock stands in nobody's way.
    assert_eq!(verdict(&scene.plan("cp-4"), "lock"), Verdict::Proceed);
    scene.lock = lease("");
    assert_eq!(verdict(&scene.plan("cp-1"), "lock"), Verdict::Proceed);
}

#[test]
fn where_the_lease_may_not_be_read_the_agents_report_speaks() {
    let mut scene = Scene::of(four());
    scene.lock = Lock::Reported;
    assert_eq!(verdict(&scene.plan("cp-1"), "lock"), Verdict::Proceed);
    scene.cluster().status.as_mut().unwrap().lock = Some(LockStatus {
        holder: "pod-1".into(),
        operation: "removal of TalosMachine cp-4".into(),
        since: Some(ago(60)),
        until: None,
    });
    let plan = scene.plan("cp-1");
    assert_eq!(verdict(&plan, "lock"), Verdict::Wait);
    assert!(
        check(&plan, "lock")
            .message
            .contains("removal of TalosMachine cp-4")
    );
    *scene.machine("cp-4") = deleted(control_plane("cp-4"));
    assert_eq!(verdict(&scene.plan("cp-4"), "lock"), Verdict::Proceed);
}

#[test]
fn the_last_worker_is_refused_except_to_a_holder_of_override() {
    let names = ["cp-1", "cp-2", "cp-3"];
    let mut machines = names.map(control_plane).to_vec();
    machines.push(worker("worker-1"));
    let mut scene = Scene::of((cluster(&names), machines));
    scene.cluster().spec.schedulable = Schedulable::False;
    assert_eq!(
        verdict(&scene.plan("worker-1"), "last-worker"),
        Verdict::Refuse
    );
    scene.may_override = true;
    let plan = scene.plan("worker-1");
    assert_eq!(verdict(&plan, "last-worker"), Verdict::Proceed);
    assert!(check(&plan, "last-worker").message.contains("you hold"));
}

#[test]
fn nothing_is_done_under_a_cluster_that_is_missing_or_another() {
    let mut scene = Scene::of(four());
    scene.cluster().metadata.uid = Some("another".into());
    scene
        .machine("cp-1")
        .status
        .as_mut()
        .unwrap()
        .identity
        .as_mut()
        .unwrap()
        .etcd_cluster_id = None;
    let plan = scene.plan("cp-1");
    assert_eq!(verdict(&plan, "cluster"), Verdict::Wait);
    assert!(check(&plan, "cluster").message.contains("ClusterReplaced"));
    scene.cluster = None;
    let plan = scene.plan("cp-1");
    assert!(check(&plan, "cluster").message.contains("ClusterMissing"));
}

#[test]
fn a_cluster_that_is_torn_down_takes_its_machines_with_it() {
    let names = ["cp-1"];
    let mut scene = Scene::of((cluster(&names), names.map(control_plane).to_vec()));
    scene.cluster().metadata.deletion_timestamp = Some(ago(5));
    let plan = scene.plan("cp-1");
    assert_eq!(plan.verdict, Verdict::Proceed, "{plan:#?}");
}

#[test]
fn a_removal_under_way_is_told_with_its_reason() {
    let mut scene = Scene::of(four());
    *scene.machine("cp-1") = deleted(control_plane("cp-1"));
    removal_condition(
        scene.machine("cp-1"),
        ConditionStatus::False,
        "Held",
        "for a person",
    );
    let plan = scene.plan("cp-1");
    assert_eq!(verdict(&plan, "removal"), Verdict::Wait);
    assert!(check(&plan, "removal").message.contains("Held"));
}

// --- pods -------------------------------------------------------------------------

fn pod(name: &str, over: serde_json::Value) -> k8s_openapi::api::core::v1::Pod {
    let mut pod = json!({
        "metadata": {
            "namespace": "default", "name": name, "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}],
        },
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    for (key, value) in over.as_object().unwrap() {
        pod["metadata"][key] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

fn budget(name: &str, allowed: i32) -> k8s_openapi::api::policy::v1::PodDisruptionBudget {
    serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": name, "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 3},
        "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 3 + allowed, "desiredHealthy": 3, "expectedPods": 5},
    }))
    .unwrap()
}

fn seen(budgets: Vec<k8s_openapi::api::policy::v1::PodDisruptionBudget>) -> Seen {
    let daemon = json!({"labels": {}, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true}]});
    Seen {
        pods: Some(vec![
            pod("cni", daemon),
            pod("bare", json!({"labels": {}, "ownerReferences": []})),
            pod("web-2", json!({})),
            pod("web-1", json!({})),
        ]),
        budgets: Some(budgets),
        tried: BTreeMap::new(),
    }
}

#[test]
fn a_budget_that_allows_nothing_makes_the_removal_wait_and_is_named() {
    let (check, pods) = judge(&seen(vec![budget("web", 0)]), &DrainOptions::default());
    assert_eq!(check.verdict, Verdict::Wait);
    assert_eq!((check.before, check.after), (Some(3), Some(3)));
    let found: Vec<_> = pods
        .iter()
        .map(|p| (p.name.as_str(), p.action, p.blocked_by.as_deref()))
        .collect();
    assert_eq!(
        found,
        [
            ("bare", "Refuse", Some("Unmanaged")),
            ("web-1", "Evict", Some("web")),
            ("web-2", "Evict", Some("web")),
            ("cni", "Skip", None),
        ]
    );
    assert!(
        pods[1].detail.contains("3 healthy, 3 needed"),
        "{}",
        pods[1].detail
    );
}

#[test]
fn a_budget_that_allows_one_blocks_nothing() {
    let options = DrainOptions {
        unmanaged: Some(ichor_api::common::UnmanagedPolicy::Evict),
        ..DrainOptions::default()
    };
    let (check, _) = judge(&seen(vec![budget("web", 1)]), &options);
    assert_eq!(check.verdict, Verdict::Proceed, "{}", check.message);
}

#[test]
fn each_budget_is_tried_once_and_the_api_servers_answer_wins() {
    let mut seen = seen(vec![budget("web", 0)]);
    let policy = ichor_rules::drain::DrainPolicy::default();
    let tries = worth_trying(
        seen.pods.as_ref().unwrap(),
        seen.budgets.as_ref().unwrap(),
        &policy,
    );
    assert_eq!(tries.len(), 1);
    let key = ("default".to_owned(), "web".to_owned());
    seen.tried = [(key.clone(), Tried::Allowed)].into();
    let (_, pods) = judge(&seen, &DrainOptions::default());
    assert!(pods.iter().all(|p| p.blocked_by.as_deref() != Some("web")));
    seen.tried = [(key, Tried::Refused("needs 3 healthy pods".into()))].into();
    let (_, pods) = judge(&seen, &DrainOptions::default());
    assert!(pods[1].detail.contains("needs 3 healthy pods"));
}

#[test]
fn two_budgets_over_one_pod_are_both_named() {
    let (check, pods) = judge(
        &seen(vec![budget("a", 1), budget("b", 1)]),
        &DrainOptions::default(),
    );
    assert_eq!(check.verdict, Verdict::Wait);
    assert_eq!(pods[1].blocked_by.as_deref(), Some("a, b"));
}

#[test]
fn what_may_not_be_seen_is_said_and_does_not_fail_the_plan() {
    let (check, pods) = judge(&Seen::default(), &DrainOptions::default());
    assert_eq!(check.verdict, Verdict::Proceed);
    assert!(check.message.contains("could not be seen"));
    assert!(pods.is_empty());
}

#[test]
fn an_unreadable_skip_selector_stops_every_drain() {
    let options = DrainOptions {
        skip_selector: Some("a in b".into()),
        ..DrainOptions::default()
    };
    assert_eq!(judge(&seen(vec![]), &options).0.verdict, Verdict::Wait);
}

#[test]
fn the_document_has_exactly_the_agreed_keys() {
    let (check, pods) = judge(&seen(vec![budget("web", 0)]), &DrainOptions::default());
    let plan = Plan::new("cp-1", vec![check], pods, vec!["x".into()]);
    let value = serde_json::to_value(&plan).unwrap();
    let keys = |value: &serde_json::Value| {
        let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys.join(" ")
    };
    assert_eq!(keys(&value), "checks machine pods verdict");
    assert_eq!(
        keys(&value["checks"][0]),
        "after before message rule verdict"
    );
    assert_eq!(keys(&value["pods"][0]), "action blockedBy name namespace");
    assert_eq!(value["verdict"], "Wait");
    assert_eq!(value["pods"][3]["blockedBy"], serde_json::Value::Null);
}

#[test]
fn a_plan_reads_well() {
    let mut plan = Scene::of(four()).plan("cp-1");
    let (check, pods) = judge(&seen(vec![budget("web", 0)]), &DrainOptions::default());
    plan.checks.push(check);
    let plan = Plan::new(
        "cp-1",
        plan.checks,
        pods,
        vec!["budgets of other namespaces".into()],
    );
    insta::assert_snapshot!(render::lines(&plan, false).join("\n"));
}
