//! Taking a removal back, in time and too late.

use super::*;

#[test]
fn until_the_intent_of_the_leave_is_written_taking_allow_delete_off_holds_the_removal() {
    for phase in [Phase::Deleted, Phase::Locked, Phase::Drained] {
        for s in [at(phase), worker_at(phase)] {
            let name = s.machine.name.clone();
            let s = with(s, |s| s.machine.consent.allow_delete = false);
            gives(
                &s,
                Step::Stand {
                    reason: StandstillReason::Held,
                    message: format!(
                        "the object is being deleted without annotation ichor.maesh.dev/allow-delete: \"true\". Set it to let the removal go on, or take the removal back: kubectl ichor remove {name} --cancel"
                    ),
                    keep_lock: false,
                    // The cordon stays.
                    undo_cordon: false,
                },
            );
        }
    }
}

#[test]
fn past_the_leave_taking_allow_delete_off_changes_nothing() {
    for phase in [
        Phase::LeaveSent,
        Phase::Left,
        Phase::ResetSent,
        Phase::Wiped,
    ] {
        let s = with(at(phase), |s| s.machine.consent.allow_delete = false);
        assert_eq!(next(&s), next(&at(phase)), "{phase:?}");
    }
    let s = with(worker_at(Phase::ResetSent), |s| {
        s.machine.consent.allow_delete = false;
    });
    assert_eq!(next(&s), next(&worker_at(Phase::ResetSent)));
}

#[test]
fn until_the_intent_of_the_leave_is_written_cancel_lets_the_machine_go_untouched() {
    for phase in [Phase::Deleted, Phase::Locked, Phase::Drained] {
        for s in [at(phase), worker_at(phase), dead(at(phase))] {
            let s = with(s, |s| {
                s.machine.consent.cancel = true;
                // Whatever else is so: a refusal, a hold, no annotation, another box.
                s.machine.consent.allow_delete = false;
                s.machine.hold = Some("cafe".into());
                s.checks = vec![refusal(StandstillReason::QuorumLost)];
                s.etcd = None;
            });
            gives(&s, Step::LetGo(LetGo::Cancelled));
        }
    }
}

#[test]
fn past_the_leave_cancel_comes_too_late() {
    for phase in [
        Phase::LeaveSent,
        Phase::Left,
        Phase::ResetSent,
        Phase::Wiped,
    ] {
        let s = with(at(phase), |s| s.machine.consent.cancel = true);
        assert_eq!(next(&s), next(&at(phase)), "{phase:?}");
    }
    // A worker's reset was sent: it is wiped, whoever regrets it.
    let s = with(worker_at(Phase::ResetSent), |s| {
        s.machine.consent.cancel = true;
        s.target = maintenance(Some(BOX));
    });
    gives(&s, wiped(true, false));
}

#[test]
fn a_leave_that_verifiably_did_not_happen_can_be_taken_back_again() {
    let settled = with(at(Phase::Drained), |s| {
        s.machine.leave_by_id = true;
        s.machine.consent.cancel = true;
    });
    gives(&settled, Step::LetGo(LetGo::Cancelled));
}

#[test]
fn a_machine_that_joined_again_is_before_its_leave_again_and_may_be_refused() {
    // As the performer leaves it after RejoinedAs.
    let rejoined = with(at(Phase::Locked), |s| {
        s.checks = vec![refusal(StandstillReason::EtcdUnhealthy)];
    });
    stands(&rejoined, StandstillReason::EtcdUnhealthy, &[]);
}
