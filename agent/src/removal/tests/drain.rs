//! Step 3: which Node is drained, and when a blocked drain makes way.

use super::*;

fn blocked() -> DrainFact {
    DrainFact::Blocked {
        message: "pod web-1 is blocked by budget web (allowed 0)".into(),
    }
}

#[test]
fn a_blocked_drain_is_tried_again_under_the_lock_for_as_long_as_it_takes() {
    let s = with(at(Phase::Locked), |s| s.drain = blocked());
    gives(&s, Step::Drain);
}

#[test]
fn a_blocked_drain_yields_to_what_is_more_urgent_and_stays_cordoned() {
    let s = with(at(Phase::Locked), |s| {
        s.drain = blocked();
        s.urgent_waiter = Some("the removal of the unhealthy control plane cp-3".into());
    });
    match next(&s) {
        Step::Stand {
            reason,
            message,
            keep_lock,
            undo_cordon,
        } => {
            assert_eq!(reason, StandstillReason::Yielded);
            assert!(!keep_lock && !undo_cordon);
            assert!(message.contains("cp-3") && message.contains("budget web"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_drain_that_is_not_blocked_yields_to_nobody() {
    let s = with(at(Phase::Locked), |s| {
        s.urgent_waiter = Some("the cluster's teardown".into());
    });
    gives(&s, Step::Drain);
}

#[test]
fn a_drain_that_timed_out_stands_without_the_lock_and_without_taking_it_again() {
    let message = "pod web-1 was blocked for 2h by budget web; tried again by itself";
    for lock_held in [true, false] {
        let s = with(at(Phase::Locked), |s| {
            s.drain = DrainFact::TimedOut {
                message: message.into(),
            };
            s.lock_held = lock_held;
        });
        gives(
            &s,
            Step::Stand {
                reason: StandstillReason::DrainFailed,
                message: message.into(),
                keep_lock: false,
                undo_cordon: false,
            },
        );
    }
}

#[test]
fn a_missing_node_counts_as_drained_only_where_talos_confirms_its_name_or_the_machine_is_dead() {
    let missing = |target| {
        with(at(Phase::Locked), |s| {
            s.node = NodeFact::Missing {
                name: "cp-1".into(),
            };
            s.target = target;
        })
    };
    gives(&missing(answers(|_| {})), Step::Drain);
    for target in [
        answers(|a| a.node_name = Some("another".into())),
        answers(|a| a.node_name = None),
        silent(),
    ] {
        stands(
            &missing(target),
            StandstillReason::NodeUnknown,
            &["cp-1", "spec.nodeName"],
        );
    }
    let gone = with(missing(silent()), |s| s.dead = true);
    gives(&gone, Step::Drain);
}

#[test]
fn a_node_that_cannot_be_told_stops_it() {
    let why = "Node cp-1 is another box. Correct spec.nodeName";
    for dead in [false, true] {
        let s = with(at(Phase::Locked), |s| {
            s.node = NodeFact::Unknown { why: why.into() };
            s.dead = dead;
        });
        stands(&s, StandstillReason::NodeUnknown, &["spec.nodeName"]);
    }
}

#[test]
fn what_stops_the_drain_is_said_before_the_lock_is_taken() {
    let s = with(at(Phase::Deleted), |s| {
        s.node = NodeFact::Unknown {
            why: "Correct spec.nodeName".into(),
        };
    });
    stands(&s, StandstillReason::NodeUnknown, &[]);
}

#[test]
fn the_budgets_of_a_dead_machine_still_hold() {
    gives(&dead(at(Phase::Locked)), Step::Drain);
}
