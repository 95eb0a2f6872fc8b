//! Every case there is, small enough to list them all (spec section 3): each rule's
//! verdict and reason against the oracle, and that each refusal says its numbers.

#![allow(clippy::unwrap_used)] // clippy.toml lets tests unwrap, but not the functions they call

// Each test binary uses its own part of these.
#[allow(dead_code)]
mod oracle;
#[allow(dead_code)]
mod support;

use ichor_rules::deletion::{TargetHealth, declared_count, quorum};
use ichor_rules::etcd::{away, live_etcd};
use ichor_rules::transition::{may_disrupt, transitioning};
use oracle::{Answer, Etcd, Mem, Place};
use support::{answer, control_planes, count, etcd, says_its_numbers, says_what_to_do};

#[test]
fn quorum_for_every_n_from_0_to_9_with_a_target_that_counts_and_one_that_does_not() {
    let mut passed = Vec::new();
    for n in 0..=9 {
        for target in ["cp-1", "no-voter"] {
            let counted = count(&control_planes(n), target, Place::Admission);
            assert_eq!(counted.n(), n);
            assert_eq!(counted.target_counts(), n > 0 && target == "cp-1");
            let check = quorum(&counted, target);
            let expected = oracle::quorum(n, counted.target_counts());
            assert_eq!(answer(&check), expected, "n = {n}, {target}: {check}");
            if expected != Answer::Proceed {
                assert_eq!(check.before, Some(i64::try_from(n).unwrap()));
                assert_eq!(check.after, Some(i64::try_from(n).unwrap() - 1));
                says_its_numbers(&check);
                says_what_to_do(&check);
            } else if counted.target_counts() {
                passed.push(n);
            }
        }
    }
    assert_eq!(
        passed,
        [3, 4, 5, 6, 7, 8, 9],
        "n = 1 and 2 are refused, and no other"
    );
}

#[test]
fn declared_count_for_every_n_from_0_to_9_and_every_count() {
    for n in 0..=9 {
        for declared in [1, 3, 5] {
            for target in ["cp-1", "no-voter"] {
                for health in [TargetHealth::Healthy, TargetHealth::UnhealthyLong] {
                    let counted = count(&control_planes(n), target, Place::Lock(None));
                    let check = declared_count(&counted, target, declared, health);
                    let expected = oracle::declared_count(
                        n,
                        counted.target_counts(),
                        i64::from(declared),
                        health == TargetHealth::UnhealthyLong,
                    );
                    assert_eq!(
                        answer(&check),
                        expected,
                        "n = {n}, declared {declared}, {target}, {health:?}: {check}"
                    );
                    if expected != Answer::Proceed {
                        says_its_numbers(&check);
                        says_what_to_do(&check);
                        assert!(check.message.contains(&declared.to_string()));
                    }
                }
            }
        }
    }
}

/// How the target stands in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Healthy,
    UnhealthyShort,
    UnhealthyLong,
    Learner,
    Unstarted,
    NotListed,
}

const STATES: [State; 6] = [
    State::Healthy,
    State::UnhealthyShort,
    State::UnhealthyLong,
    State::Learner,
    State::Unstarted,
    State::NotListed,
];

/// One row: the list, the target's ID, and whether it has been ill for five minutes.
struct Row {
    list: Vec<Mem>,
    id: Option<u64>,
    long: bool,
    text: String,
}

/// Every (voters, healthy, learner, unstarted, target state) up to 7 voters. The target
/// is one of the voters where it votes; an unstarted member comes on top of them.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for voters in 0..=7_u64 {
        for healthy in 0..=voters {
            for with_learner in [false, true] {
                for with_unstarted in [false, true] {
                    for state in STATES {
                        rows.extend(row(voters, healthy, with_learner, with_unstarted, state));
                    }
                }
            }
        }
    }
    rows
}

fn row(
    voters: u64,
    healthy: u64,
    with_learner: bool,
    with_unstarted: bool,
    state: State,
) -> Option<Row> {
    let mut list = Vec::new();
    let (others, healthy_others) = match state {
        State::Healthy => (voters.checked_sub(1)?, healthy.checked_sub(1)?),
        State::UnhealthyShort | State::UnhealthyLong => (voters.checked_sub(1)?, healthy),
        State::Learner | State::Unstarted | State::NotListed => (voters, healthy),
    };
    if healthy_others > others {
        return None;
    }
    match state {
        State::Healthy => list.push(etcd::voter(1, true)),
        State::UnhealthyShort | State::UnhealthyLong => list.push(etcd::voter(1, false)),
        State::Learner => list.push(etcd::learner(1)),
        State::Unstarted => list.push(etcd::unstarted(1)),
        State::NotListed => {}
    }
    list.extend((0..others).map(|i| etcd::voter(2 + i, i < healthy_others)));
    if with_learner {
        list.push(etcd::learner(20));
    }
    if with_unstarted {
        list.push(etcd::unstarted(21));
    }
    Some(Row {
        list,
        id: (state != State::NotListed).then_some(1),
        long: state == State::UnhealthyLong,
        text: format!(
            "{voters} voters, {healthy} healthy, learner {with_learner}, unstarted {with_unstarted}, target {state:?}"
        ),
    })
}

#[test]
fn live_etcd_for_every_list_up_to_seven_voters() {
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    for row in rows() {
        for declared in [1, 3, 5] {
            let etcd = Etcd::Listed(row.list.clone());
            let check = live_etcd(&etcd::live(&etcd), etcd::target(row.id, row.long), declared);
            let expected = oracle::live_etcd(&etcd, row.id, row.long, i64::from(declared));
            assert_eq!(
                answer(&check),
                expected,
                "{}, declared {declared}: {check}",
                row.text
            );
            if expected != Answer::Proceed {
                says_its_numbers(&check);
                says_what_to_do(&check);
            }
            *seen.entry(format!("{expected:?}")).or_default() += 1;
        }
    }
    // The table reaches every answer that a list can give.
    for reason in [
        "EtcdUnhealthy",
        "LearnerPresent",
        "BelowDeclaredCount",
        "LastControlPlane",
        "Proceed",
    ] {
        assert!(
            seen.keys().any(|k| k.contains(reason)),
            "{reason} never came up: {seen:?}"
        );
    }
}

#[test]
fn away_for_every_list_up_to_seven_voters() {
    for row in rows() {
        let etcd = Etcd::Listed(row.list.clone());
        let check = away(&etcd::live(&etcd), etcd::target(row.id, row.long));
        assert_eq!(
            answer(&check),
            oracle::away(&etcd, row.id),
            "{}: {check}",
            row.text
        );
        says_its_numbers(&check);
        if !check.passes() {
            says_what_to_do(&check);
        }
    }
}

#[test]
fn without_a_list_nothing_is_removed_and_nothing_goes_away() {
    for no_leader_for_five_minutes in [false, true] {
        let etcd = Etcd::Silent {
            no_leader_for_five_minutes,
        };
        for id in [None, Some(1)] {
            for long in [false, true] {
                let removal = live_etcd(&etcd::live(&etcd), etcd::target(id, long), 3);
                assert_eq!(answer(&removal), oracle::live_etcd(&etcd, id, long, 3));
                let reboot = away(&etcd::live(&etcd), etcd::target(id, long));
                assert_eq!(answer(&reboot), oracle::away(&etcd, id));
                for check in [removal, reboot] {
                    assert!(
                        check
                            .message
                            .contains("192.0.2.1:50000: connection refused"),
                        "the endpoints are not named: {check}"
                    );
                    says_what_to_do(&check);
                }
            }
        }
    }
}

#[test]
fn transitioning_for_every_count_up_to_nine_and_every_list_up_to_seven_voters() {
    for approved in 0..=9 {
        assert_transition(approved, None, "no list");
        for row in rows() {
            assert_transition(approved, Some(&row.list), &row.text);
        }
    }
}

fn assert_transition(approved: usize, list: Option<&[Mem]>, text: &str) {
    let members = list.map(etcd::members);
    let expected = oracle::transitioning(approved, list);
    let actual = transitioning(approved, members.as_ref());
    assert_eq!(
        actual.as_ref().map(|(reason, _)| reason.as_str()),
        expected,
        "{approved} approved, {text}"
    );
    for ends_it in [false, true] {
        let check = may_disrupt(approved, members.as_ref(), ends_it);
        let stands = expected.is_some() && !ends_it;
        let expected = if stands {
            Answer::Wait("ClusterTransitioning")
        } else {
            Answer::Proceed
        };
        assert_eq!(
            answer(&check),
            expected,
            "{approved} approved, {text}, ends it {ends_it}"
        );
        if stands {
            says_what_to_do(&check);
        }
    }
}
