//! The faults that the rules alone decide, one test each, named by what they prove.
//! Field reports (`docs/field-reports.md`) point here by these names.

#![allow(clippy::unwrap_used)] // clippy.toml lets tests unwrap, but not the functions they call

// Each test binary uses its own part of these.
#[allow(dead_code)]
mod oracle;
#[allow(dead_code)]
mod support;

use std::collections::{BTreeMap, BTreeSet};

use ichor_rules::count::{Basis, count_approved};
use ichor_rules::deletion::{TargetHealth, declared_count, quorum};
use ichor_rules::etcd::{
    Health, ListedMember, LiveEtcd, Members, NodeReport, Target, away, live_etcd, member_owners,
};
use ichor_rules::transition::{may_disrupt, transitioning};
use ichor_rules::{Check, DirectReader, Verdict};
use oracle::{Answer, Etcd, Mem, Place};
use support::{answer, control_plane, control_planes, count, etcd};

/// The removal of member 1 by live etcd, with 3 declared.
fn removal(list: &[Mem], unhealthy_long: bool) -> Check {
    let live = etcd::live(&Etcd::Listed(list.to_vec()));
    live_etcd(&live, etcd::target(Some(1), unhealthy_long), 3)
}

/// `healthy` and then `dead` voters, from ID `from` on.
fn voters(from: u64, healthy: u64, dead: u64) -> Vec<Mem> {
    (0..healthy + dead)
        .map(|i| etcd::voter(from + i, i < healthy))
        .collect()
}

/// Member 1 in this state, and the others.
fn with_target(target: Mem, others: Vec<Mem>) -> Vec<Mem> {
    [vec![target], others].concat()
}

fn says(check: &Check, words: &[&str]) {
    for word in words {
        assert!(check.message.contains(word), "{word:?} is not in: {check}");
    }
}

// ---- counts ----

#[test]
fn four_approved_with_three_voters_is_three_to_two_and_waits() {
    // By the count it is 4 to 3; by etcd, where the fourth never joined, 3 to 2.
    let counted = count(&control_planes(4), "cp-1", Place::Admission);
    assert!(quorum(&counted, "cp-1").passes());
    assert!(declared_count(&counted, "cp-1", 3, TargetHealth::Healthy).passes());

    let check = removal(&voters(1, 3, 0), false);
    assert_eq!(answer(&check), Answer::Wait("BelowDeclaredCount"));
    says(&check, &["3 voters", "would have 2", "Join and approve"]);

    // And the count under the lock sees it too.
    let listed: BTreeSet<String> = (1..=3).map(|i| format!("cp-{i}")).collect();
    let counted = count(&control_planes(4), "cp-1", Place::Lock(Some(&listed)));
    assert_eq!(counted.n(), 3);
    let check = declared_count(&counted, "cp-1", 3, TargetHealth::Healthy);
    assert_eq!(answer(&check), Answer::Wait("BelowDeclaredCount"));
}

#[test]
fn three_to_two_waits_and_four_to_three_goes() {
    for (n, expected) in [
        (3, Answer::Wait("BelowDeclaredCount")),
        (4, Answer::Proceed),
    ] {
        let counted = count(&control_planes(n), "cp-2", Place::Admission);
        let check = declared_count(&counted, "cp-2", 3, TargetHealth::Healthy);
        assert_eq!(answer(&check), expected, "{check}");
    }
}

#[test]
fn of_two_deletes_in_a_cluster_of_three_the_second_is_refused_at_admission() {
    // Q9: two destroyed one second apart.
    let mut all = control_planes(3);
    assert!(quorum(&count(&all, "cp-1", Place::Admission), "cp-1").passes());
    all[0].deleting = true;
    let check = quorum(&count(&all, "cp-2", Place::Admission), "cp-2");
    assert_eq!(answer(&check), Answer::Refuse("QuorumWouldBreak"));
    says(
        &check,
        &[
            "1 of 2 control planes",
            "cp-2, cp-3",
            "already being deleted",
        ],
    );
}

#[test]
fn the_last_control_plane_is_refused_by_that_name() {
    // Q1.
    let check = quorum(&count(&control_planes(1), "cp-1", Place::Admission), "cp-1");
    assert_eq!(answer(&check), Answer::Refuse("LastControlPlane"));
    says(
        &check,
        &[
            "last control plane",
            "1 now, 0 after",
            "delete its TalosCluster",
        ],
    );
}

#[test]
fn two_to_one_is_refused_even_where_one_is_declared() {
    // Q8, and a count of 3 that became 1: no field and no count gets past quorum.
    let counted = count(&control_planes(2), "cp-1", Place::Admission);
    assert!(declared_count(&counted, "cp-1", 1, TargetHealth::Healthy).passes());
    assert_eq!(
        answer(&quorum(&counted, "cp-1")),
        Answer::Refuse("QuorumWouldBreak")
    );
}

#[test]
fn under_count_one_a_second_approved_control_plane_makes_the_cluster_transition() {
    // The webhook does not let it be approved; where it is (the webhook was down),
    // nothing disruptive runs until it is gone, and it may go while it has not joined.
    assert!(transitioning(2, None).is_some());
    let check = may_disrupt(2, None, false);
    assert_eq!(answer(&check), Answer::Wait("ClusterTransitioning"));

    let mut all = control_planes(2);
    all[1].not_joined = Some("NeverVoter");
    assert!(quorum(&count(&all, "cp-2", Place::Admission), "cp-2").passes());
    let check = quorum(&count(&all, "cp-1", Place::Admission), "cp-1");
    assert_eq!(answer(&check), Answer::Refuse("LastControlPlane"));
}

#[test]
fn a_machine_that_never_joined_may_go_at_any_time() {
    for recorded in ["NeverVoter", "MemberGone"] {
        let mut all = control_planes(3);
        all[2].not_joined = Some(recorded);
        let counted = count(&all, "cp-3", Place::Admission);
        assert!(quorum(&counted, "cp-3").passes());
        assert!(declared_count(&counted, "cp-3", 3, TargetHealth::Healthy).passes());
    }
    // Nor does etcd hold it: it lists no member of it, whatever the others' state.
    for list in [voters(2, 3, 0), voters(2, 2, 1), voters(2, 1, 2)] {
        let live = etcd::live(&Etcd::Listed(list));
        assert!(live_etcd(&live, etcd::target(None, false), 3).passes());
    }
}

#[test]
fn a_machine_recorded_as_no_voter_that_votes_after_all_meets_every_rule_under_the_lock() {
    let mut all = control_planes(2);
    all[0].not_joined = Some("NeverVoter");
    assert!(quorum(&count(&all, "cp-1", Place::Admission), "cp-1").passes());
    let listed: BTreeSet<String> = ["cp-1".to_owned(), "cp-2".to_owned()].into();
    let check = quorum(&count(&all, "cp-1", Place::Lock(Some(&listed))), "cp-1");
    assert_eq!(answer(&check), Answer::Refuse("QuorumWouldBreak"));
}

#[test]
fn a_pending_control_plane_does_not_make_up_for_one_that_goes() {
    let mut all = control_planes(3);
    all[2].approved = false;
    all[2].finalizer = false;
    let check = quorum(&count(&all, "cp-1", Place::Admission), "cp-1");
    assert_eq!(answer(&check), Answer::Refuse("QuorumWouldBreak"));
}

#[test]
fn three_replacements_at_once_admit_deletes_down_to_two_and_remove_only_above_the_count() {
    // Six approved, three old ones deleted one after the other.
    let mut all = control_planes(6);
    for i in 0..3 {
        let target = format!("cp-{}", i + 1);
        let counted = count(&all, &target, Place::Admission);
        assert!(
            quorum(&counted, &target).passes(),
            "{target} of {}",
            counted.n()
        );
        all[i].deleting = true;
    }
    // Under the lock, each in turn, as its forerunner has left etcd.
    let mut listed: BTreeSet<String> = all.iter().map(|r| r.name.clone()).collect();
    for (i, n) in [(1, 6), (2, 5), (3, 4)] {
        let target = format!("cp-{i}");
        let counted = count(&all, &target, Place::Lock(Some(&listed)));
        assert_eq!(counted.n(), n);
        assert!(declared_count(&counted, &target, 3, TargetHealth::Healthy).passes());
        let live = etcd::live(&Etcd::Listed(voters(i, u64::try_from(n).unwrap(), 0)));
        assert!(live_etcd(&live, etcd::target(Some(i), false), 3).passes());
        listed.remove(&target);
    }
    // A fourth would be 3 to 2.
    let counted = count(&all, "cp-4", Place::Lock(Some(&listed)));
    let check = declared_count(&counted, "cp-4", 3, TargetHealth::Healthy);
    assert_eq!(answer(&check), Answer::Wait("BelowDeclaredCount"));
}

#[test]
fn a_rejoined_machine_counts_again_under_the_lock() {
    let mut all = control_planes(3);
    all[0].deleting = true;
    all[0].leave_confirmed = true;
    let without: BTreeSet<String> = ["cp-2".to_owned(), "cp-3".to_owned()].into();
    assert_eq!(count(&all, "cp-2", Place::Lock(Some(&without))).n(), 2);
    let rejoined: BTreeSet<String> = (1..=3).map(|i| format!("cp-{i}")).collect();
    assert_eq!(count(&all, "cp-2", Place::Lock(Some(&rejoined))).n(), 3);
}

#[test]
fn a_finalizer_makes_an_unapproved_control_plane_count() {
    let mut machine = control_plane("cp-1");
    machine.approved = false;
    assert_eq!(count(&[machine], "cp-1", Place::Admission).n(), 1);
}

// ---- reading ----

#[test]
fn a_count_is_a_consistent_read_of_every_page_and_of_one_cluster_only() {
    // The server answers 400 to a list at a resourceVersion, which a cache could have
    // given, and to one that does not name its cluster; it has two machines to a page.
    for n in [0, 1, 2, 3, 5] {
        let counted = count(&control_planes(n), "cp-1", Place::Admission);
        let expected: Vec<String> = (1..=n).map(|i| format!("cp-{i}")).collect();
        assert_eq!(counted.names(), expected);
    }
}

#[test]
fn a_list_that_fails_half_way_or_not_at_all_is_no_count() {
    // C1, C2: what is not known is an error; never a smaller or an older count.
    let failing = |good_pages: usize| {
        let (service, mut handle) = tower_test::mock::pair::<
            http::Request<kube::client::Body>,
            http::Response<kube::client::Body>,
        >();
        tokio::spawn(async move {
            let mut page = 0;
            while let Some((_, reply)) = handle.next_request().await {
                let machine =
                    support::machine(&control_plane(&format!("cp-{page}")), support::CLUSTER);
                let (code, body) = if page < good_pages {
                    (
                        200,
                        serde_json::json!({"kind": "TalosMachineList", "apiVersion": "ichor.maesh.dev/v1alpha1",
                        "metadata": {"continue": "more"}, "items": [machine]}),
                    )
                } else {
                    (
                        410,
                        serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "code": 410, "reason": "Expired", "message": "the continue token is too old"}),
                    )
                };
                page += 1;
                let body = kube::client::Body::from(serde_json::to_vec(&body).unwrap());
                reply.send_response(http::Response::builder().status(code).body(body).unwrap());
            }
        });
        DirectReader::new(kube::Client::new(service, support::NAMESPACE))
    };
    for good_pages in [0, 1, 2] {
        let error = support::wait(async {
            let reader = failing(good_pages);
            count_approved(&reader, "default", "demo", "cp-1", Basis::Admission).await
        })
        .unwrap_err();
        assert!(error.to_string().contains("too old"), "{error}");
    }
}

#[test]
fn an_api_server_that_does_not_answer_is_no_count() {
    let error = support::wait(async {
        // The handle is kept, so that the request waits and is never answered.
        let (service, _handle) = tower_test::mock::pair::<
            http::Request<kube::client::Body>,
            http::Response<kube::client::Body>,
        >();
        let client = kube::Client::new(service, support::NAMESPACE);
        let reader = DirectReader::with_deadline(client, std::time::Duration::from_millis(50));
        count_approved(&reader, "default", "demo", "cp-1", Basis::Admission).await
    })
    .unwrap_err();
    assert!(error.to_string().contains("did not answer"), "{error}");
}

// ---- etcd ----

#[test]
fn a_dead_voter_goes_before_a_healthy_one_and_is_named() {
    // Four voters, one dead: etcd itself would let the healthy one go.
    let check = removal(&with_target(etcd::voter(1, true), voters(2, 2, 1)), false);
    assert_eq!(answer(&check), Answer::Wait("EtcdUnhealthy"));
    says(
        &check,
        &[
            "cp-4 (0000000000000004): its node did not answer",
            "remove it first",
        ],
    );
    // The dead one itself.
    let check = removal(&with_target(etcd::voter(1, false), voters(2, 3, 0)), true);
    assert!(check.passes(), "{check}");
}

#[test]
fn a_dead_voter_goes_below_the_declared_count_once_it_is_dead_for_five_minutes() {
    // Q5: three voters, one dead; etcd admits no replacement before it is gone.
    let list = with_target(etcd::voter(1, false), voters(2, 2, 0));
    let check = removal(&list, true);
    assert!(check.passes(), "{check}");
    let counted = count(&control_planes(3), "cp-1", Place::Lock(None));
    assert!(declared_count(&counted, "cp-1", 3, TargetHealth::UnhealthyLong).passes());
    assert!(quorum(&counted, "cp-1").passes());
    // Not before: a node that only restarts is not taken for a dead one.
    assert_eq!(
        answer(&removal(&list, false)),
        Answer::Wait("BelowDeclaredCount")
    );
}

#[test]
fn a_voter_that_has_recovered_is_not_let_go_as_an_ill_one() {
    let list = with_target(etcd::voter(1, true), voters(2, 2, 0));
    assert_eq!(
        answer(&removal(&list, true)),
        Answer::Wait("BelowDeclaredCount")
    );
}

#[test]
fn with_four_voters_and_two_dead_the_answer_is_restore_not_remove() {
    for target in [etcd::voter(1, true), etcd::voter(1, false)] {
        let healthy = 2 - u64::from(target.healthy);
        let list = with_target(target, voters(2, healthy, 3 - healthy));
        for long in [false, true] {
            let check = removal(&list, long);
            assert_eq!(answer(&check), Answer::Wait("EtcdUnhealthy"));
            says(
                &check,
                &["2 of 4", "3 are needed", "restore etcd", "cannot repair"],
            );
        }
    }
}

#[test]
fn with_two_voters_and_one_dead_neither_goes_and_neither_is_rebooted() {
    for (target, other) in [(true, false), (false, true)] {
        let list = [etcd::voter(1, target), etcd::voter(2, other)];
        let check = removal(&list, true);
        assert_eq!(answer(&check), Answer::Wait("EtcdUnhealthy"));
        says(&check, &["1 of 2", "2 are needed", "restore etcd"]);
        let reboot = away(
            &etcd::live(&Etcd::Listed(list.to_vec())),
            etcd::target(Some(1), true),
        );
        assert_eq!(answer(&reboot), Answer::Wait("EtcdUnhealthy"));
    }
}

#[test]
fn of_five_voters_with_two_dead_a_dead_one_goes_and_a_live_one_does_not() {
    // Q2. With the numbers, in both answers.
    let dead = removal(&with_target(etcd::voter(1, false), voters(2, 3, 1)), true);
    assert!(dead.passes(), "{dead}");
    says(
        &dead,
        &["5 voters now, 4 after", "3 healthy without cp-1, 3 needed"],
    );
    let live = removal(&with_target(etcd::voter(1, true), voters(2, 2, 2)), false);
    assert_eq!(answer(&live), Answer::Wait("EtcdUnhealthy"));
    says(
        &live,
        &[
            "3 of 5",
            "2 healthy ones would be left of 4",
            "3 are needed",
        ],
    );
}

#[test]
fn while_a_learner_is_listed_no_voter_goes_and_the_cluster_is_transitioning() {
    // Q10: two voters and the replacement, still a learner.
    let list = vec![etcd::voter(1, true), etcd::voter(2, true), etcd::learner(3)];
    for declared in [1, 3] {
        let live = etcd::live(&Etcd::Listed(list.clone()));
        let check = live_etcd(&live, etcd::target(Some(1), false), declared);
        assert_eq!(answer(&check), Answer::Wait("LearnerPresent"));
        says(&check, &["cp-3 (0000000000000003), a learner", "promoted"]);
    }
    let odd = [voters(1, 3, 0), vec![etcd::learner(4)]].concat();
    let (reason, message) = transitioning(3, Some(&etcd::members(&odd))).unwrap();
    assert_eq!(reason.as_str(), "LearnerPresent");
    assert!(message.contains("a learner"), "{message}");
    // A learner is no voter: it is itself free to go.
    let list = [vec![etcd::learner(1)], voters(2, 3, 0)].concat();
    assert!(removal(&list, false).passes());
}

#[test]
fn an_unstarted_member_counts_as_a_voter_and_not_as_a_healthy_one() {
    // Q18: a second member added that never started: quorum is 2 and nothing works.
    let check = removal(&[etcd::voter(1, true), etcd::unstarted(2)], false);
    assert_eq!(answer(&check), Answer::Wait("EtcdUnhealthy"));
    says(&check, &["1 of 2", "unstarted"]);
    let (reason, _) = transitioning(
        1,
        Some(&etcd::members(&[etcd::voter(1, true), etcd::unstarted(2)])),
    )
    .unwrap();
    assert_eq!(reason.as_str(), "EvenVoterCount");
    // Where there is a majority without it, no healthy voter goes before it does.
    let list = [voters(1, 4, 0), vec![etcd::unstarted(5)]].concat();
    let check = removal(&list, false);
    assert_eq!(answer(&check), Answer::Wait("LearnerPresent"));
    says(
        &check,
        &["0000000000000005 (unstarted, https://192.0.2.5:2380)"],
    );
    // It itself may, below the declared count too: it never was a vote.
    let list = [vec![etcd::unstarted(1)], voters(2, 2, 0)].concat();
    assert!(removal(&list, false).passes());
}

#[test]
fn with_two_control_planes_neither_is_rebooted() {
    // Q19.
    let live = etcd::live(&Etcd::Listed(voters(1, 2, 0)));
    let check = away(&live, etcd::target(Some(1), false));
    assert_eq!(answer(&check), Answer::Wait("EtcdUnhealthy"));
    says(
        &check,
        &["1 healthy of 2", "2 are needed", "Join and approve"],
    );
    let check = may_disrupt(2, Some(&etcd::members(&voters(1, 2, 0))), false);
    assert_eq!(answer(&check), Answer::Wait("ClusterTransitioning"));
    says(&check, &["2 control planes are approved", "2 voters"]);
}

#[test]
fn a_sole_control_plane_is_told_that_only_override_reboots_it() {
    // C8.
    let live = etcd::live(&Etcd::Listed(voters(1, 1, 0)));
    let check = away(&live, etcd::target(Some(1), false));
    assert_eq!(answer(&check), Answer::Wait("EtcdUnhealthy"));
    says(&check, &["0 healthy of 1", "override"]);
}

#[test]
fn the_only_voter_is_refused_as_the_last_however_many_machines_are_approved() {
    let check = removal(&voters(1, 1, 0), false);
    assert_eq!(answer(&check), Answer::Refuse("LastControlPlane"));
    says(&check, &["1 now, 0 after"]);
}

#[test]
fn without_a_leader_for_five_minutes_it_says_restore() {
    let lost = etcd::live(&Etcd::Silent {
        no_leader_for_five_minutes: true,
    });
    let check = live_etcd(&lost, etcd::target(Some(1), true), 3);
    assert_eq!(answer(&check), Answer::Refuse("QuorumLost"));
    says(
        &check,
        &["no leader for 5 minutes", "restore etcd", "192.0.2.1:50000"],
    );
}

#[test]
fn a_full_disk_alarm_is_named_with_what_ends_it() {
    let list = vec![listed(1), listed(2), listed(3)];
    let mut reports = reports(&[1, 2, 3]);
    for report in reports.values_mut().flatten() {
        report.alarms = vec!["NOSPACE".to_owned()];
    }
    let members = Members::assess(&list, &owners(&[1, 2, 3]), &reports);
    let check = live_etcd(&LiveEtcd::Listed(members), etcd::target(Some(1), false), 3);
    assert_eq!(answer(&check), Answer::Wait("EtcdUnhealthy"));
    says(
        &check,
        &["alarm NOSPACE", "talosctl etcd defrag", "alarm disarm"],
    );
}

// ---- who is who ----

fn listed(id: u64) -> ListedMember {
    ListedMember {
        id,
        name: format!("cp-{id}"),
        peer_urls: vec![format!("https://192.0.2.{id}:2380")],
        learner: false,
    }
}

fn owners(ids: &[u64]) -> BTreeMap<u64, String> {
    ids.iter().map(|id| (*id, format!("cp-{id}"))).collect()
}

fn reports(ids: &[u64]) -> BTreeMap<String, Result<NodeReport, String>> {
    let report = |id: u64| NodeReport {
        member_id: id,
        leader: 3,
        term: 2,
        applied_index: 100,
        learner: false,
        errors: vec![],
        alarms: vec![],
    };
    ids.iter()
        .map(|id| (format!("cp-{id}"), Ok(report(*id))))
        .collect()
}

#[test]
fn of_two_members_with_one_name_only_the_recorded_id_is_the_machines_own() {
    // Q12: a second "cp-1" that no machine has recorded.
    let stranger = ListedMember { id: 9, ..listed(1) };
    let list = vec![listed(1), listed(2), listed(3), stranger];
    let members = Members::assess(&list, &owners(&[1, 2, 3]), &reports(&[1, 2, 3]));
    assert_eq!(members.by_id(9).unwrap().machine, None);
    assert_eq!(members.voting_machines().len(), 3);
    let check = member_owners(&members, target("cp-1", 1), &[]);
    assert_eq!(answer(&check), Answer::Wait("UnknownMember"));
    says(
        &check,
        &[
            "0000000000000009",
            "cp-1",
            "192.0.2.1",
            "ichor.maesh.dev/etcd-member-id",
        ],
    );
}

#[test]
fn a_member_that_two_machines_claim_keeps_healthy_ones_from_going() {
    let list = vec![listed(1), listed(2), listed(3)];
    let members = Members::assess(&list, &owners(&[1, 2, 3]), &reports(&[1, 2, 3]));
    assert!(member_owners(&members, target("cp-1", 1), &[]).passes());
    let twice = ["cp-2 (0000000000000002), claimed by cp-2 and cp-8".to_owned()];
    let check = member_owners(&members, target("cp-1", 1), &twice);
    assert_eq!(answer(&check), Answer::Wait("UnknownMember"));
    says(&check, &["cp-2 and cp-8"]);
}

#[test]
fn a_machine_whose_own_member_may_be_the_unknown_one_does_not_go_as_a_non_voter() {
    // cp-1 votes as member 1, and nobody has recorded that. To live etcd it looks as if
    // it had no member, to a watcher as if it had been ill for long: the owners rule is
    // what keeps a healthy voter from leaving past all the others.
    let list = vec![listed(1), listed(2), listed(3)];
    let members = Members::assess(&list, &owners(&[2, 3]), &reports(&[1, 2, 3]));
    for unhealthy_long in [false, true] {
        let target = Target {
            machine: "cp-1",
            member_id: None,
            unhealthy_long,
        };
        let check = member_owners(&members, target, &[]);
        assert_eq!(answer(&check), Answer::Wait("UnknownMember"));
    }
}

#[test]
fn an_address_that_answers_as_another_member_makes_its_own_member_unhealthy() {
    // DHCP gave cp-1's address to cp-2: both names are answered by member 2.
    let list = vec![listed(1), listed(2), listed(3)];
    let mut reports = reports(&[1, 2, 3]);
    let two = reports["cp-2"].clone();
    reports.insert("cp-1".to_owned(), two);
    let members = Members::assess(&list, &owners(&[1, 2, 3]), &reports);
    let Health::Unhealthy(why) = &members.by_id(1).unwrap().health else {
        panic!("member 1 is taken for healthy by member 2's word");
    };
    assert!(why.contains("another member ID, 0000000000000002"), "{why}");
    assert!(members.by_id(2).unwrap().healthy_voter());
    // And member 2 has not voted twice for its leader: with cp-3 silent there is none.
    reports.insert("cp-3".to_owned(), Err("timed out".to_owned()));
    let members = Members::assess(&list, &owners(&[1, 2, 3]), &reports);
    assert_eq!(members.leader, None);
}

fn target(machine: &str, id: u64) -> Target<'_> {
    Target {
        machine,
        member_id: Some(id),
        unhealthy_long: false,
    }
}

/// Makes a good report a bad one.
type Spoil = fn(&mut NodeReport);

#[test]
fn an_etcd_that_lags_or_errs_or_follows_another_leader_is_no_healthy_voter() {
    let list = vec![listed(1), listed(2), listed(3)];
    let spoil: [(&str, Spoil); 5] = [
        ("entries behind", |r| r.applied_index = 0),
        ("etcd reports", |r| r.errors.push("no space".to_owned())),
        ("follows", |r| r.leader = 2),
        ("sees no leader", |r| r.leader = 0),
        ("is a learner", |r| r.learner = true),
    ];
    for (why, spoil) in spoil {
        let mut reports = reports(&[1, 2, 3]);
        for report in reports.values_mut().flatten() {
            report.applied_index = 1_000_000;
        }
        spoil(reports.get_mut("cp-1").unwrap().as_mut().unwrap());
        let members = Members::assess(&list, &owners(&[1, 2, 3]), &reports);
        let healthy = members.all.iter().filter(|m| m.healthy_voter()).count();
        assert_eq!(healthy, 2, "{why}");
        let check = live_etcd(&LiveEtcd::Listed(members), target("cp-2", 2), 1);
        assert_ne!(check.verdict, Verdict::Proceed);
        says(&check, &[why, "cp-1 (0000000000000001)"]);
    }
}
