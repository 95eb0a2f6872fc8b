//! The removal under the checker: two machines being removed from four control planes, by one
//! agent or by two that both believe they lead, while agents die, stand still, lose answers,
//! and boxes reboot, join again, lose power or fail.
//!
//! # What is real
//!
//! Every decision is the shipping code: `removal::next::next` for each pass and for the look
//! after the permit, `ichor_lock::protocol` (`decide`, `acquisition`, `still_held`,
//! `in_force`, `intent_in_time`, `may_send`, `renewal`, `release`) for the lock, and
//! `ichor_rules::etcd` (`live_etcd`, `member_owners`) for the rules. What is modelled is what
//! surrounds them: the performer's small steps (`perform.rs`, `send.rs`), the lock's view
//! (`view.rs`), the API server, the boxes and their etcd.
//!
//! # What a step is
//!
//! A pass that sends nothing is one step: what it reads and the one status write that comes of
//! it. A pass that sends is one step for each of: read and write the intent; renew the lock and
//! read again; check the permit and send; the call takes effect; its answer arrives or is lost.
//! Asking the rules without the lock is one step; taking the Lease and then looking at the
//! others' intents is another. Where two things are one step, whatever could come between them
//! could as well come before or after both; each place says why.
//!
//! Between any two steps anything else may happen, for any time: a process that is frozen is
//! one that takes no step, and thaws by taking one. Writes to a machine are compare-and-swap:
//! one that was overtaken does nothing. Calls take effect at any time before their deadline, or
//! never, whatever became of their sender; a call to a box dies with the boot it was sent to.
//! Worlds that differ only in which agent or which removal is called the first are one.
//!
//! # What is assumed
//!
//! - **Nobody is frozen between the permit's last check and the send itself.** Talos takes no
//!   fencing token, so that hole cannot be closed from outside (spec section 5, end).
//!   [`Rules::no_freeze_before_the_send`] is this assumption, and
//!   [`a_process_frozen_right_before_the_send_is_the_hole_that_is_known`] shows what happens
//!   without it: a freeze as long as a box takes to reboot and to join again is enough.
//! - All monotonic clocks run at the same rate (the lock's margin is for the rest), a box needs
//!   a tick to boot, and a call is sent in the tick of its permit (10 s against minutes).
//! - A member that joins votes at once: the learner between is left out. A member that was
//!   removed by ID while its data stayed does not come back by itself, and its etcd says that
//!   it failed. etcd commits a removal only with a quorum, at the moment it takes effect.
//! - The drain succeeds at once. Rules on objects (who is approved, `n`) are not asked, since
//!   their count can only be made from the API server; the same numbers are asked of etcd.
//! - A machine counts as dead and as unhealthy for long by the time it really was silent, which
//!   is the earliest that any process could think so.
//!
//! Ordinary tests bound how much goes wrong; `make proof` runs more of it at once.

mod explore;
mod facts;
mod steps;
mod world;

use explore::{every_state_reaches, safe, violated};
use steps::{Removals, Rules};
use world::{Broken, Budget, Timing};

fn model(agents: usize, removals: usize, budget: Budget) -> Removals {
    Removals {
        agents,
        machines: removals,
        budget,
        timing: Timing::new(0),
        rules: Rules::default(),
    }
}

#[test]
fn two_removals_at_once_never_go_below_the_declared_count_while_agents_die_and_answers_are_lost() {
    safe(&model(
        1,
        2,
        Budget {
            crashes: 1,
            lost: 1,
            ..Budget::default()
        },
    ));
}

#[test]
fn two_agents_that_both_believe_they_lead_never_remove_two_of_four() {
    safe(&model(2, 2, Budget::default()));
}

#[test]
fn one_removal_survives_a_box_that_power_cycles_and_joins_again() {
    safe(&model(
        1,
        1,
        Budget {
            cycles: 2,
            crashes: 1,
            resets: 1,
            ..Budget::default()
        },
    ));
}

#[test]
fn two_agents_at_one_removal_send_no_second_reset() {
    safe(&model(
        2,
        1,
        Budget {
            cycles: 1,
            resets: 1,
            ..Budget::default()
        },
    ));
}

#[test]
fn a_dead_box_is_removed_by_its_id_and_comes_back_to_no_harm() {
    safe(&model(
        1,
        2,
        Budget {
            off: 1,
            on: 1,
            consents: 1,
            ..Budget::default()
        },
    ));
}

#[test]
fn another_voter_that_fails_at_any_moment_is_not_followed_by_a_lost_quorum() {
    safe(&model(
        1,
        2,
        Budget {
            failures: 1,
            crashes: 1,
            lost: 1,
            ..Budget::default()
        },
    ));
}

#[test]
fn from_everywhere_there_is_a_way_to_the_end_or_to_a_standstill_that_names_its_reason() {
    every_state_reaches(
        &model(
            1,
            1,
            Budget {
                cycles: 1,
                crashes: 1,
                resets: 1,
                off: 1,
                ..Budget::default()
            },
        ),
        Removals::at_rest,
    );
    every_state_reaches(&model(2, 2, Budget::default()), Removals::at_rest);
}

#[test]
#[ignore = "make proof"]
fn proof_two_agents_two_removals_and_more_trouble_at_once() {
    let some = |deadline: u8, change: fn(&mut Budget)| {
        let mut budget = Budget::default();
        change(&mut budget);
        safe(&Removals {
            timing: Timing::new(deadline),
            ..model(2, 2, budget)
        });
    };
    // Calls that outlive the Lease under which they were sent.
    some(2, |_| {});
    some(1, |b| b.failures = 1);
    some(0, |b| {
        b.replaced = 1;
        b.lost = 1;
    });
    some(0, |b| b.cycles = 1);
    some(0, |b| {
        b.off = 1;
        b.on = 1;
    });
}

#[test]
#[ignore = "make proof"]
fn proof_one_removal_and_everything_at_once() {
    let all = Budget {
        crashes: 1,
        replaced: 1,
        lost: 1,
        cycles: 1,
        off: 1,
        on: 1,
        failures: 0,
        resets: 1,
        consents: 1,
    };
    safe(&model(1, 1, all));
    let no_answer_lost = Budget { lost: 0, ..all };
    every_state_reaches(&model(1, 1, no_answer_lost), Removals::at_rest);
}

// Each sentence is there because leaving it out gives a counterexample.

#[test]
fn without_the_look_after_the_permit_a_box_that_joined_again_is_wiped() {
    let mut model = model(
        1,
        1,
        Budget {
            cycles: 1,
            ..Budget::default()
        },
    );
    model.rules.look_after_the_permit = false;
    violated(&model, Broken::ResetOfMember);
}

#[test]
fn without_a_look_at_unsettled_intents_an_acquirer_overtakes_a_call_that_is_still_on_its_way() {
    let mut model = model(
        1,
        2,
        Budget {
            lost: 1,
            ..Budget::default()
        },
    );
    model.rules.unsettled_intents_hold_up_an_acquirer = false;
    violated(&model, Broken::DeclaredCount);
}

#[test]
fn without_the_recount_under_the_lock_a_second_removal_counts_on_the_first_one_not_having_happened()
{
    let mut model = model(1, 2, Budget::default());
    model.rules.recount_under_the_lock = false;
    violated(&model, Broken::DeclaredCount);
}

#[test]
fn with_a_settling_time_shorter_than_a_call_may_take_a_late_call_strikes_after_it_was_settled() {
    let mut model = model(
        1,
        2,
        Budget {
            lost: 1,
            ..Budget::default()
        },
    );
    model.timing = Timing::new(3);
    model.rules.settling_waits_for_late_calls = false;
    violated(&model, Broken::DeclaredCount);
}

#[test]
fn a_process_frozen_right_before_the_send_is_the_hole_that_is_known() {
    let mut model = model(
        2,
        1,
        Budget {
            cycles: 1,
            ..Budget::default()
        },
    );
    model.rules.no_freeze_before_the_send = false;
    violated(&model, Broken::ResetOfMember);
}
