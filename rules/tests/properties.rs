//! Random clusters: machines, etcd members, owners and what nodes report, faults
//! included, against the oracle; and what must hold whatever the rules look like.

#![allow(clippy::unwrap_used)] // clippy.toml lets tests unwrap, but not the functions they call

// Each test binary uses its own part of these.
#[allow(dead_code)]
mod oracle;
#[allow(dead_code)]
mod support;

use std::collections::{BTreeMap, BTreeSet};

use ichor_rules::deletion::{TargetHealth, adopted, allow_delete, declared_count, quorum};
use ichor_rules::etcd::{
    APPLIED_LAG_LIMIT, ListedMember, Members, NodeReport, away, live_etcd, member_owners,
};
use ichor_rules::transition::transitioning;
use ichor_rules::workers::{last_worker, turning_unschedulable};
use ichor_rules::{Check, Verdict};
use oracle::{Answer, Etcd, Mem, Place, Record, Said, Worker};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use support::{answer, control_planes, count, etcd, says_its_numbers, says_what_to_do};

// ---- random clusters ----

fn record(name: String) -> impl Strategy<Value = Record> {
    let reasons = select(vec![
        None,
        None,
        None,
        Some("NeverVoter"),
        Some("MemberGone"),
        Some("NameTaken"),
        Some("NotSeen"),
    ]);
    (
        prop::bool::weighted(0.85),
        prop::bool::weighted(0.8),
        any::<bool>(),
        prop::bool::weighted(0.25),
        prop::bool::weighted(0.15),
        reasons,
    )
        .prop_map(
            move |(control_plane, approved, finalizer, deleting, leave_confirmed, not_joined)| {
                Record {
                    name: name.clone(),
                    control_plane,
                    approved,
                    // The API server keeps an object that is being deleted only for a finalizer.
                    finalizer: finalizer || deleting,
                    deleting,
                    leave_confirmed,
                    not_joined,
                }
            },
        )
}

fn records(upto: usize) -> impl Strategy<Value = Vec<Record>> {
    (0..=upto).prop_flat_map(|n| {
        (1..=n)
            .map(|i| record(format!("cp-{i}")))
            .collect::<Vec<_>>()
    })
}

/// A member of any kind; started voters, healthy ones first, are the most frequent.
fn mem(id: u64) -> impl Strategy<Value = Mem> {
    let kind = prop_oneof![
        8 => Just(etcd::voter(id, true)),
        3 => Just(etcd::voter(id, false)),
        1 => Just(etcd::learner(id)),
        1 => Just(etcd::unstarted(id)),
        1 => Just(Mem { started: false, ..etcd::learner(id) }),
    ];
    (
        kind,
        prop_oneof![20 => Just(1_usize), 1 => Just(0), 1 => Just(2)],
    )
        .prop_map(|(mem, owners)| Mem { owners, ..mem })
}

fn list() -> impl Strategy<Value = Vec<Mem>> {
    (0..=8_u64).prop_flat_map(|n| (1..=n).map(mem).collect::<Vec<_>>())
}

/// A list, the target's member ID (it may be none of the listed), whether it has been
/// ill for five minutes, and the declared count.
fn question() -> impl Strategy<Value = (Vec<Mem>, Option<u64>, bool, i32)> {
    let id = prop_oneof![9 => Just(Some(1)), 1 => Just(None), 1 => Just(Some(99))];
    (list(), id, any::<bool>(), select(vec![1, 3, 5]))
}

/// The same of a cluster in which little is wrong, so that removals do pass.
fn mild_question() -> impl Strategy<Value = (Vec<Mem>, Option<u64>, bool, i32)> {
    let ill = prop_oneof![
        30 => Just(None),
        8 => Just(Some(0_u8)),
        1 => Just(Some(1)),
        1 => Just(Some(2)),
    ];
    (
        prop::collection::vec(ill, 1..9),
        any::<bool>(),
        select(vec![1, 3, 5]),
    )
        .prop_map(|(ills, long, declared)| {
            let list = (1..)
                .zip(ills)
                .map(|(id, ill)| match ill {
                    None => etcd::voter(id, true),
                    Some(0) => etcd::voter(id, false),
                    Some(1) => etcd::unstarted(id),
                    Some(_) => etcd::learner(id),
                })
                .collect();
            (list, Some(1), long, declared)
        })
}

// ---- who counts ----

proptest! {
    #[test]
    fn the_count_and_the_rules_on_it_agree_with_the_oracle(
        all in records(9),
        target in any::<Index>(),
        place in 0..3_u8,
        voting in any::<u16>(),
        declared in select(vec![1, 3, 5]),
        long in any::<bool>(),
    ) {
        let target = all.get(target.index(all.len() + 1)).map_or("absent", |r| r.name.as_str());
        let voters: BTreeSet<String> = all
            .iter()
            .enumerate()
            .filter(|(i, _)| voting >> i & 1 == 1)
            .map(|(_, r)| r.name.clone())
            .collect();
        let place = [Place::Admission, Place::Lock(None), Place::Lock(Some(&voters))][usize::from(place)];
        let counted = count(&all, target, place);
        let expected = oracle::counted(&all, target, place);
        prop_assert_eq!(counted.names().iter().cloned().collect::<BTreeSet<_>>(), expected.clone());
        prop_assert_eq!(counted.n(), expected.len());
        prop_assert_eq!(counted.target_counts(), expected.contains(target));

        let check = quorum(&counted, target);
        prop_assert_eq!(answer(&check), oracle::quorum(expected.len(), expected.contains(target)));
        let health = if long { TargetHealth::UnhealthyLong } else { TargetHealth::Healthy };
        let check = declared_count(&counted, target, declared, health);
        prop_assert_eq!(
            answer(&check),
            oracle::declared_count(expected.len(), expected.contains(target), i64::from(declared), long)
        );
    }

    #[test]
    fn whoever_is_deleted_in_whatever_order_two_control_planes_are_never_passed_at_admission(
        all in records(9),
        order in any::<Vec<Index>>(),
    ) {
        let mut all = all;
        if all.is_empty() {
            return Ok(());
        }
        // What counts when nobody is the target: "absent" is none of them.
        let before = oracle::counted(&all, "absent", Place::Admission).len();
        for index in order.iter().take(12) {
            let i = index.index(all.len());
            let target = all[i].name.clone();
            if !all[i].deleting && quorum(&count(&all, &target, Place::Admission), &target).passes() {
                all[i].deleting = true;
                all[i].finalizer = true;
            }
        }
        let after = oracle::counted(&all, "absent", Place::Admission).len();
        prop_assert!(after >= before.min(2), "{} of {} are left", after, before);
    }

    #[test]
    fn a_count_under_the_lock_never_holds_a_machine_that_the_list_does_not_show_voting(
        all in records(7),
        list in list(),
        target in any::<Index>(),
    ) {
        // The voters as the rules make them out of the list itself.
        let voters = etcd::members(&list).voting_machines();
        let expected: BTreeSet<String> = list
            .iter()
            .filter(|m| m.started && !m.learner && m.owners == 1)
            .map(|m| format!("cp-{}", m.id))
            .collect();
        prop_assert_eq!(&voters, &expected);
        let target = all.get(target.index(all.len() + 1)).map_or("absent", |r| r.name.as_str());
        let counted = count(&all, target, Place::Lock(Some(&voters)));
        prop_assert!(counted.names().iter().all(|name| expected.contains(name)));
    }
}

// ---- etcd ----

proptest! {
    #[test]
    fn live_etcd_away_owners_and_transition_agree_with_the_oracle(
        (list, id, long, declared) in question(),
        silent in prop::option::weighted(0.1, any::<bool>()),
        approved in 0..10_usize,
    ) {
        let etcd = match silent {
            Some(long) => Etcd::Silent { no_leader_for_five_minutes: long },
            None => Etcd::Listed(list.clone()),
        };
        let (live, target) = (etcd::live(&etcd), etcd::target(id, long));
        prop_assert_eq!(
            answer(&live_etcd(&live, target, declared)),
            oracle::live_etcd(&etcd, id, long, i64::from(declared))
        );
        prop_assert_eq!(answer(&away(&live, target)), oracle::away(&etcd, id));
        let members = etcd::members(&list);
        prop_assert_eq!(
            answer(&member_owners(&members, target, &etcd::duplicates(&list))),
            oracle::member_owners(&list, id, long)
        );
        prop_assert_eq!(
            transitioning(approved, Some(&members)).map(|(reason, _)| reason.as_str()),
            oracle::transitioning(approved, Some(&list))
        );
    }

    #[test]
    fn a_removal_that_live_etcd_passes_leaves_a_healthy_majority_of_what_is_left(
        (list, id, long, declared) in mild_question(),
    ) {
        let passed = live_etcd(&etcd::live(&Etcd::Listed(list.clone())), etcd::target(id, long), declared);
        prop_assume!(passed.passes() && list.iter().any(|m| Some(m.id) == id));
        let left: Vec<&Mem> = list.iter().filter(|m| Some(m.id) != id && !m.learner).collect();
        let healthy = left.iter().filter(|m| m.healthy).count();
        prop_assert!(healthy > left.len() / 2, "{} healthy of {}: {}", healthy, left.len(), passed);
    }

    #[test]
    fn a_healthy_voter_passes_live_etcd_if_and_only_if_all_are_healthy_and_one_more_than_declared(
        (list, _, long, declared) in mild_question(),
    ) {
        let mut list = list;
        list[0] = etcd::voter(1, true);
        let check = live_etcd(&etcd::live(&Etcd::Listed(list.clone())), etcd::target(Some(1), long), declared);
        let declared = usize::try_from(declared).unwrap();
        let may_go = list.iter().all(|m| m.healthy) && list.len() > declared;
        prop_assert_eq!(check.passes(), may_go, "{}", check);
    }

    #[test]
    fn an_unhealthy_member_more_never_lets_a_removal_or_a_reboot_pass_that_did_not_before(
        (list, id, long, declared) in question(),
        kind in 0..3_u8,
    ) {
        prop_assume!(!list.is_empty());
        let more = [etcd::voter(50, false), etcd::unstarted(50), etcd::learner(50)][usize::from(kind)];
        let mut longer = list.clone();
        longer.push(more);
        let target = etcd::target(id, long);
        let ask = |list: Vec<Mem>| {
            let etcd = etcd::live(&Etcd::Listed(list));
            [live_etcd(&etcd, target, declared), away(&etcd, target)]
        };
        for (before, after) in ask(list).iter().zip(&ask(longer)) {
            // A list without a voter is none; the first voter makes it one.
            let none = before.before == Some(0);
            prop_assert!(before.passes() || !after.passes() || none, "{before}, then {after}");
        }
    }

    #[test]
    fn a_member_that_recovers_never_gets_a_removal_refused(
        (list, id, long, declared) in question(),
        which in any::<Index>(),
    ) {
        prop_assume!(!list.is_empty());
        let mut better = list.clone();
        let i = which.index(better.len());
        // A target that recovers is no longer the one that may go as an ill one.
        prop_assume!(!better[i].learner && better[i].started && Some(better[i].id) != id);
        better[i].healthy = true;
        let target = etcd::target(id, long);
        let before = live_etcd(&etcd::live(&Etcd::Listed(list)), target, declared);
        let after = live_etcd(&etcd::live(&Etcd::Listed(better)), target, declared);
        prop_assert!(!before.passes() || after.passes(), "{before}, then {after}");
    }

    #[test]
    fn only_lost_quorum_and_the_only_voter_are_refused_all_else_waits(
        (list, id, long, declared) in question(),
    ) {
        let check = live_etcd(&etcd::live(&Etcd::Listed(list.clone())), etcd::target(id, long), declared);
        let voters = list.iter().filter(|m| !m.learner).count();
        prop_assert!(check.verdict != Verdict::Refuse || voters == 1, "{}", check);
    }
}

// ---- what nodes report ----

/// What a node says, and what is wrong with it.
#[derive(Clone, Debug)]
enum Report {
    Fine,
    Silent,
    OtherMember,
    NoLeader,
    OtherLeader(u64),
    SaysLearner,
    Errors,
    Alarm,
    Behind(u64),
}

fn report() -> impl Strategy<Value = Report> {
    prop_oneof![
        24 => Just(Report::Fine),
        2 => Just(Report::Silent),
        1 => Just(Report::OtherMember),
        1 => Just(Report::NoLeader),
        2 => (1..10_u64).prop_map(Report::OtherLeader),
        1 => Just(Report::SaysLearner),
        1 => Just(Report::Errors),
        1 => Just(Report::Alarm),
        2 => (APPLIED_LAG_LIMIT - 1..=APPLIED_LAG_LIMIT + 1).prop_map(Report::Behind),
    ]
}

const APPLIED: u64 = 1_000_000;

impl Report {
    /// As the oracle takes it, for the member `id` under `leader`.
    fn said(&self, id: u64, leader: u64) -> Option<Said> {
        let fine = Said {
            member: id,
            leader,
            applied: APPLIED,
            learner: false,
            errors: 0,
            alarms: 0,
        };
        match *self {
            Self::Fine => Some(fine),
            Self::Silent => None,
            Self::OtherMember => Some(Said {
                member: id % 3 + 1,
                ..fine
            }),
            Self::NoLeader => Some(Said { leader: 0, ..fine }),
            Self::OtherLeader(leader) => Some(Said { leader, ..fine }),
            Self::SaysLearner => Some(Said {
                learner: true,
                ..fine
            }),
            Self::Errors => Some(Said { errors: 1, ..fine }),
            Self::Alarm => Some(Said { alarms: 1, ..fine }),
            Self::Behind(entries) => Some(Said {
                applied: APPLIED - entries,
                ..fine
            }),
        }
    }
}

/// The same as the rules take it.
fn node_report(said: &Said) -> NodeReport {
    NodeReport {
        member_id: said.member,
        leader: said.leader,
        term: 4,
        applied_index: said.applied,
        learner: said.learner,
        errors: vec!["etcdserver: no leader".to_owned(); said.errors],
        alarms: vec!["NOSPACE".to_owned(); said.alarms],
    }
}

proptest! {
    #[test]
    fn who_is_a_healthy_voter_agrees_with_the_oracle(
        kinds in prop::collection::vec((report(), prop::bool::weighted(0.07), prop::bool::weighted(0.07), prop::bool::weighted(0.05)), 0..8),
        leader in 1..9_u64,
    ) {
        let mut listed = Vec::new();
        let mut owners = BTreeMap::new();
        let mut said = BTreeMap::new();
        for (id, (report, learner, unstarted, unowned)) in (1_u64..).zip(&kinds) {
            listed.push((id, !unstarted, *learner));
            if !unowned {
                owners.insert(id, format!("cp-{id}"));
            }
            said.insert(format!("cp-{id}"), report.said(id, leader));
        }
        let expected = oracle::healthy_voters(&listed, &owners, &said, APPLIED_LAG_LIMIT);

        let list: Vec<ListedMember> = listed
            .iter()
            .map(|(id, started, learner)| ListedMember {
                id: *id,
                name: if *started { format!("cp-{id}") } else { String::new() },
                peer_urls: vec![],
                learner: *learner,
            })
            .collect();
        let reports = said
            .into_iter()
            .map(|(machine, said)| {
                let report = said.as_ref().map(node_report).ok_or_else(|| "timed out".to_owned());
                (machine, report)
            })
            .collect();
        let members = Members::assess(&list, &owners, &reports);
        let actual: BTreeSet<u64> =
            members.all.iter().filter(|m| m.healthy_voter()).map(|m| m.listed.id).collect();
        prop_assert_eq!(actual, expected);
    }
}

// ---- workers ----

fn workers() -> impl Strategy<Value = Vec<Worker>> {
    let one = (
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.7),
        prop::bool::weighted(0.3),
    );
    prop::collection::vec(one, 1..6).prop_map(|all| {
        (1..)
            .zip(all)
            .map(|(i, (works, approved, deleting))| Worker {
                name: format!("worker-{i}"),
                works,
                approved,
                deleting,
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn the_last_worker_agrees_with_the_oracle(
        all in workers(),
        target in any::<Index>(),
        word in select(vec!["true", "false", "auto"]),
        waived in any::<bool>(),
    ) {
        let target = &all[target.index(all.len())];
        let machines: Vec<_> = all.iter().map(support::worker).collect();
        let check = last_worker(&machines, &support::worker(target), support::schedulable(word), waived);
        let expected = oracle::last_worker(&all, &target.name, word, waived);
        prop_assert_eq!(answer(&check), expected, "{}", check);
        if expected != Answer::Proceed {
            says_its_numbers(&check);
            says_what_to_do(&check);
        }
    }

    #[test]
    fn schedulable_does_not_become_false_without_a_worker_that_stays(
        all in workers(),
        from in select(vec!["true", "false", "auto"]),
        to in select(vec!["true", "false", "auto"]),
    ) {
        let machines: Vec<_> = all.iter().map(support::worker).collect();
        let check = turning_unschedulable(&machines, support::schedulable(from), support::schedulable(to));
        let stays = all.iter().any(|w| w.works && w.approved && !w.deleting);
        let refused = to == "false" && from != "false" && !stays;
        prop_assert_eq!(!check.passes(), refused, "{}", check);
        if refused {
            prop_assert_eq!(answer(&check), Answer::Refuse("LastWorker"));
            says_what_to_do(&check);
        }
    }
}

// ---- refusals as texts ----

/// Every refusal that a question can meet.
fn all_checks(list: &[Mem], id: Option<u64>, long: bool, declared: i32, n: usize) -> Vec<Check> {
    let live = etcd::live(&Etcd::Listed(list.to_vec()));
    let target = etcd::target(id, long);
    let counted = count(&control_planes(n), "cp-1", Place::Admission);
    vec![
        live_etcd(&live, target, declared),
        away(&live, target),
        member_owners(&etcd::members(list), target, &etcd::duplicates(list)),
        quorum(&counted, "cp-1"),
        declared_count(&counted, "cp-1", declared, TargetHealth::Healthy),
    ]
}

proptest! {
    #[test]
    fn every_refusal_says_the_numbers_before_and_after_who_is_ill_and_what_to_do(
        (list, id, long, declared) in question(),
        n in 0..8_usize,
    ) {
        for check in all_checks(&list, id, long, declared, n).iter().filter(|c| !c.passes()) {
            says_its_numbers(check);
            says_what_to_do(check);
            if check.reason.is_some_and(|r| r.as_str() == "EtcdUnhealthy") {
                // One of those that are ill is named, where there is one.
                let ill: Vec<String> = list
                    .iter()
                    .filter(|m| !m.learner && !m.healthy)
                    .filter(|m| check.rule.as_str() == "live-etcd" || Some(m.id) != id)
                    .map(|m| format!("{:016x}", m.id))
                    .collect();
                prop_assert!(
                    ill.is_empty() || ill.iter().any(|id| check.message.contains(id)),
                    "{}", check
                );
            }
        }
    }

    #[test]
    fn the_annotation_and_the_finalizer_are_each_asked_for_and_nothing_else_stands_in_for_them(
        annotated in any::<bool>(),
        approved in any::<bool>(),
        finalizer in any::<bool>(),
        kind in select(vec!["TalosMachine", "TalosCluster"]),
    ) {
        let asked = allow_delete(kind, "cp-1", annotated);
        prop_assert_eq!(asked.passes(), annotated);
        if !annotated {
            prop_assert_eq!(asked.verdict, Verdict::Refuse);
            says_what_to_do(&asked);
        }
        let asked = adopted("cp-1", approved, finalizer);
        prop_assert_eq!(asked.passes(), finalizer || !approved);
        if !asked.passes() {
            prop_assert_eq!(asked.verdict, Verdict::Refuse);
            says_what_to_do(&asked);
        }
    }

    #[test]
    fn of_any_deletes_at_once_in_a_cluster_of_three_one_passes_admission(
        order in subsequence(vec![1_usize, 2, 3], 3).prop_shuffle(),
    ) {
        let mut all = control_planes(3);
        let mut passed = 0;
        for i in order {
            let target = format!("cp-{i}");
            let check = quorum(&count(&all, &target, Place::Admission), &target);
            if check.passes() {
                passed += 1;
                all[i - 1].deleting = true;
            } else {
                prop_assert_eq!(answer(&check), Answer::Refuse("QuorumWouldBreak"));
            }
        }
        prop_assert_eq!(passed, 1);
    }
}
