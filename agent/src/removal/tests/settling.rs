//! Section 4, Settling: what became of a call whose outcome is not recorded.

use super::*;

fn leave(change: impl FnOnce(&mut IntentFacts)) -> Snapshot {
    let mut intent = leave_intent();
    change(&mut intent);
    with(at(Phase::LeaveSent), |s| s.intent = Some(intent))
}

fn reset(change: impl FnOnce(&mut IntentFacts)) -> Snapshot {
    let mut intent = reset_intent();
    change(&mut intent);
    with(at(Phase::ResetSent), |s| s.intent = Some(intent))
}

#[test]
fn settling_comes_before_any_rule_refused_and_held_machines_included() {
    for (s, step) in [
        (
            with(leave(|_| {}), |s| s.etcd = three()),
            Step::LeaveConfirmed {
                boot_id: Some(BOOT.into()),
            },
        ),
        (
            with(reset(|_| {}), |s| s.target = maintenance(Some(BOX))),
            wiped(true, false),
        ),
    ] {
        let s = with(s, |s| {
            s.checks = vec![refusal(StandstillReason::QuorumLost)];
            s.machine.hold = Some("cafe".into());
            s.machine.consent = Consent::default();
            s.hardware_shared_with = Some("cp-9".into());
            s.lock_held = false;
        });
        gives(&s, step);
    }
}

#[test]
fn a_leave_is_done_when_its_id_is_gone_from_a_survivors_list() {
    for target in [answers(|_| {}), silent(), maintenance(Some(BOX))] {
        let s = with(leave(|_| {}), |s| {
            s.etcd = three();
            s.target = target;
        });
        gives(
            &s,
            Step::LeaveConfirmed {
                boot_id: Some(BOOT.into()),
            },
        );
    }
}

#[test]
fn the_boot_of_a_leave_is_the_one_it_was_sent_to_whatever_runs_now() {
    let s = with(leave(|_| {}), |s| {
        s.etcd = three();
        s.target = answers(|a| {
            a.boot_id = "boot-2".into();
            a.member_id = None;
        });
    });
    gives(
        &s,
        Step::LeaveConfirmed {
            boot_id: Some(BOOT.into()),
        },
    );
}

#[test]
fn a_leave_is_not_done_while_another_member_has_its_name_or_address() {
    for member in [
        joined_again(),
        Member {
            listed: listed(NEW_ID, "", 1),
            ..joined_again()
        },
        Member {
            listed: listed(NEW_ID, "cp-1", 77),
            ..joined_again()
        },
    ] {
        let s = with(leave(|_| {}), |s| s.etcd = three_and(member));
        let answers_as = |member_id| {
            with(s.clone(), |s| {
                s.target = answers(|a| a.member_id = member_id);
            })
        };
        gives(&answers_as(None), Step::RejoinedAs { member_id: NEW_ID });
        gives(
            &answers_as(Some(NEW_ID)),
            Step::RejoinedAs { member_id: NEW_ID },
        );
        stands(
            &answers_as(Some(0x77)),
            StandstillReason::IdentityMismatch,
            &["ichor.maesh.dev/etcd-member-id"],
        );
        let quiet = with(s, |s| s.target = silent());
        stands(&quiet, StandstillReason::IdentityMismatch, &[]);
    }
}

#[test]
fn only_the_recorded_box_and_node_is_the_target_joined_again() {
    for target in [
        answers(|a| {
            a.hardware_uuid = OTHER_BOX.into();
            a.member_id = Some(NEW_ID);
        }),
        answers(|a| {
            a.node_id = "node-b".into();
            a.member_id = Some(NEW_ID);
        }),
    ] {
        let s = with(leave(|_| {}), |s| {
            s.etcd = three_and(joined_again());
            s.target = target;
        });
        stands(&s, StandstillReason::IdentityMismatch, &[]);
    }
    let owned = with(leave(|_| {}), |s| {
        s.etcd = three_and(Member {
            machine: Some("cp-9".into()),
            ..joined_again()
        });
        s.target = answers(|a| a.member_id = None);
    });
    stands(&owned, StandstillReason::IdentityMismatch, &["cp-9"]);
}

#[test]
fn a_leave_whose_outcome_is_unknown_stops_everything_after_it() {
    for lock_held in [true, false] {
        let s = with(leave(|_| {}), |s| s.lock_held = lock_held);
        stands(&s, StandstillReason::OutcomeUnknown, &["by itself"]);
    }
}

#[test]
fn a_leave_that_was_answered_is_waited_for_until_the_survivors_drop_the_member() {
    assert!(matches!(
        next(&leave(|i| i.accepted = true)),
        Step::Wait {
            step: RemovalStep::LeaveEtcd,
            ..
        }
    ));
}

#[test]
fn a_leave_has_not_happened_when_its_member_is_still_listed_after_deadline_and_settling_time() {
    assert_eq!(withdraws(&leave(|i| i.settle_due = true)), Some(true));
    assert_eq!(
        withdraws(&leave(|i| {
            i.settle_due = true;
            i.accepted = true;
        })),
        Some(true)
    );
}

#[test]
fn a_leave_of_another_instance_is_settled_only_once_its_pod_is_gone_or_the_target_rebooted() {
    let alive = |i: &mut IntentFacts| {
        i.settle_due = true;
        i.sender_may_live = true;
    };
    stands(&leave(alive), StandstillReason::OutcomeUnknown, &[]);
    let quiet = with(leave(alive), |s| s.target = silent());
    stands(&quiet, StandstillReason::OutcomeUnknown, &[]);
    let rebooted = with(leave(alive), |s| {
        s.target = answers(|a| a.boot_id = "boot-2".into());
    });
    assert_eq!(withdraws(&rebooted), Some(true));
    // Another box's boot says nothing of the target's.
    let other = with(leave(alive), |s| {
        s.target = answers(|a| {
            a.boot_id = "boot-2".into();
            a.hardware_uuid = OTHER_BOX.into();
        });
    });
    stands(&other, StandstillReason::OutcomeUnknown, &[]);
    // A new boot alone does not shorten the wait.
    let early = with(leave(|i| i.sender_may_live = true), |s| {
        s.target = answers(|a| a.boot_id = "boot-2".into());
    });
    stands(&early, StandstillReason::OutcomeUnknown, &[]);
}

#[test]
fn an_unsettled_leave_needs_a_list() {
    for (etcd, reason) in [
        (no_list(), StandstillReason::EtcdUnreachable),
        (quorum_lost(), StandstillReason::QuorumLost),
        (None, StandstillReason::EtcdUnreachable),
    ] {
        let s = with(leave(|i| i.settle_due = true), |s| s.etcd = etcd);
        stands(&s, reason, &[]);
    }
}

#[test]
fn ones_own_intent_that_was_never_sent_is_taken_back_and_changes_nothing() {
    for by_id in [false, true] {
        for s in [
            leave(|i| i.never_sent = true),
            reset(|i| i.never_sent = true),
        ] {
            let s = with(s, |s| s.machine.leave_by_id = by_id);
            assert_eq!(withdraws(&s), Some(by_id));
        }
    }
}

#[test]
fn a_reset_has_failed_when_the_same_node_runs_a_new_boot() {
    for by_id in [false, true] {
        let s = with(reset(|_| {}), |s| {
            s.machine.leave_by_id = by_id;
            s.target = answers(|a| {
                a.boot_id = "boot-2".into();
                a.running = false;
                a.stage = "BOOTING".into();
            });
        });
        assert_eq!(withdraws(&s), Some(by_id));
    }
}

#[test]
fn a_reset_did_not_start_when_the_same_boot_runs_on_for_ten_minutes() {
    let running = |running, time: Option<Duration>| {
        with(reset(|i| i.accepted = true), |s| {
            s.target = answers(|a| a.running = running);
            s.waits.still_running = time;
        })
    };
    for (runs, time) in [
        (true, None),
        (true, Some(Duration::from_secs(10 * 60 - 1))),
        // It is resetting, however long that takes.
        (false, Some(10 * MINUTE)),
    ] {
        assert!(
            matches!(
                next(&running(runs, time)),
                Step::Wait {
                    step: RemovalStep::Confirm,
                    ..
                }
            ),
            "{runs} {time:?}"
        );
    }
    assert_eq!(withdraws(&running(true, Some(10 * MINUTE))), Some(false));
}

#[test]
fn a_locked_notice_says_that_the_reset_did_not_start() {
    assert_eq!(withdraws(&reset(|i| i.locked = true)), Some(false));
    // Not where the box was wiped after all.
    let s = with(reset(|i| i.locked = true), |s| {
        s.target = maintenance(Some(BOX));
    });
    gives(&s, wiped(true, false));
    // Nor while nothing answers: somebody may have reset it by hand.
    let s = with(reset(|i| i.locked = true), |s| s.target = silent());
    assert!(matches!(next(&s), Step::Wait { .. }));
}

#[test]
fn a_reset_of_a_silent_box_is_settled_by_consent() {
    let s = with(reset(|_| {}), |s| {
        s.target = silent();
        s.waits.silent = Some(20 * MINUTE);
        s.machine.consent.skip_reset = true;
    });
    gives(&s, wiped(false, true));
}

#[test]
fn a_call_of_another_kind_that_this_removal_took_over_ends_with_its_settling_time() {
    let other = |settle_due, sender_may_live| {
        with(at(Phase::Locked), |s| {
            s.intent = Some(IntentFacts {
                call: IntentCall::Other,
                settle_due,
                sender_may_live,
                ..leave_intent()
            });
        })
    };
    stands(
        &other(false, false),
        StandstillReason::OutcomeUnknown,
        &["by itself"],
    );
    stands(&other(true, true), StandstillReason::OutcomeUnknown, &[]);
    assert_eq!(withdraws(&other(true, false)), Some(false));
}

#[test]
fn nothing_is_ever_sent_on_top_of_an_unsettled_call() {
    for phase in PHASES {
        for intent in [leave_intent(), reset_intent()] {
            let s = with(at(phase), |s| s.intent = Some(intent));
            assert!(!matches!(next(&s), Step::Send(_)), "{:?}", next(&s));
        }
    }
}
