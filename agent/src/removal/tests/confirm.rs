//! Step 6: seeing the box wiped.

use super::*;

fn configured_again() -> Snapshot {
    with(at(Phase::ResetSent), |s| {
        s.target = answers(|a| {
            a.node_id = "node-b".into();
            a.boot_id = "boot-9".into();
            a.member_id = None;
        });
    })
}

#[test]
fn the_recorded_box_in_maintenance_mode_is_wiped() {
    let s = with(at(Phase::ResetSent), |s| s.target = maintenance(Some(BOX)));
    gives(&s, wiped(true, false));
}

#[test]
fn another_box_in_its_place_proves_nothing_and_holds_no_lock() {
    for target in [
        maintenance(Some(OTHER_BOX)),
        maintenance(None),
        answers(|a| a.hardware_uuid = OTHER_BOX.into()),
    ] {
        let s = with(at(Phase::ResetSent), |s| s.target = target);
        stands(
            &s,
            StandstillReason::IdentityMismatch,
            &[BOX, "spec.address"],
        );
        // Whoever knows that the box is gone may say so.
        let s = with(s, |s| s.machine.consent.skip_reset = true);
        gives(&s, wiped(false, true));
    }
}

#[test]
fn a_box_that_answers_with_another_node_id_was_configured_again() {
    stands(
        &configured_again(),
        StandstillReason::Rejoined,
        &[
            "node-b",
            "Reset it by hand",
            "kubectl annotate tm cp-1 ichor.maesh.dev/accept-rejoin=true",
        ],
    );
}

#[test]
fn accept_rejoin_finishes_only_while_no_member_of_it_is_listed() {
    let accepted = with(configured_again(), |s| {
        s.machine.consent.accept_rejoin = true;
    });
    gives(&accepted, wiped(false, false));
    let listed = with(accepted.clone(), |s| s.etcd = three_and(joined_again()));
    stands(&listed, StandstillReason::Rejoined, &["etcd lists cp-1"]);
    for unknown in [None, no_list()] {
        let s = with(accepted.clone(), |s| s.etcd = unknown);
        stands(&s, StandstillReason::Rejoined, &[]);
    }
    // A worker has no member to look for.
    let worker = with(worker_at(Phase::ResetSent), |s| {
        s.target = configured_again().target;
        s.machine.consent.accept_rejoin = true;
        s.etcd = None;
    });
    gives(&worker, wiped(false, false));
}

#[test]
fn skip_reset_does_not_pass_for_accept_rejoin() {
    let s = with(configured_again(), |s| s.machine.consent.skip_reset = true);
    stands(&s, StandstillReason::Rejoined, &["skip-reset"]);
}

#[test]
fn a_silent_box_is_waited_for_under_the_lock_for_twenty_minutes_and_then_without() {
    let silent_for = |time: Duration| {
        with(at(Phase::ResetSent), |s| {
            s.target = silent();
            s.waits.silent = Some(time);
        })
    };
    for time in [Duration::ZERO, 5 * MINUTE, Duration::from_secs(20 * 60 - 1)] {
        assert!(matches!(
            next(&silent_for(time)),
            Step::Wait {
                step: RemovalStep::Confirm,
                ..
            }
        ));
    }
    stands(
        &silent_for(20 * MINUTE),
        StandstillReason::AwaitingWipe,
        &[
            "Power it on",
            "kubectl annotate tm cp-1 ichor.maesh.dev/skip-reset=true",
        ],
    );
    let consented = with(silent_for(20 * MINUTE), |s| {
        s.machine.consent.skip_reset = true;
    });
    gives(&consented, wiped(false, true));
}

#[test]
fn silence_is_never_gone_for_good() {
    let s = with(dead(at(Phase::ResetSent)), |s| {
        s.waits.silent = Some(30 * 24 * 60 * MINUTE);
    });
    stands(&s, StandstillReason::AwaitingWipe, &[]);
}

#[test]
fn a_box_that_stays_off_is_done_when_its_reset_was_seen_running_and_it_has_been_dead() {
    let off = |seen_stopping, time: Duration| {
        with(dead(at(Phase::ResetSent)), |s| {
            s.intent = Some(IntentFacts {
                reboots: false,
                seen_stopping,
                ..reset_intent()
            });
            s.waits.silent = Some(time);
        })
    };
    gives(&off(true, 5 * MINUTE), wiped(false, false));
    for (seen, time) in [(true, 4 * MINUTE), (false, 5 * MINUTE)] {
        assert!(matches!(next(&off(seen, time)), Step::Wait { .. }));
    }
    stands(
        &off(false, 20 * MINUTE),
        StandstillReason::AwaitingWipe,
        &[],
    );
    // One that reboots is waited for, however far its reset was seen.
    let reboots = with(off(true, 5 * MINUTE), |s| {
        s.intent = Some(IntentFacts {
            seen_stopping: true,
            ..reset_intent()
        });
    });
    assert!(matches!(next(&reboots), Step::Wait { .. }));
}
