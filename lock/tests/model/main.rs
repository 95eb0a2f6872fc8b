//! The lock's protocol, model-checked: every order in which two agents, a slow API server, late
//! messages, crashes and meddling hands can do things, within some ticks of time.
//!
//! The model calls the very functions of [`ichor_lock::protocol`] that the shipping code calls;
//! what stands here is the world around them. An agent that does nothing while time passes is one
//! that was frozen, so freezing and thawing need no words of their own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod agents;
mod canon;
mod world;

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Property};
use world::{Action, Setup, Sight, World};

impl Model for Setup {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        actions.extend(world.possible(self));
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        world.after(self, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONE_CALL, |_, world: &World| world.calls.len() <= 1),
            Property::always(ONCE, |_, world: &World| {
                world.machines.iter().all(|machine| machine.done <= 1)
            }),
            Property::always(TAKEABLE, |_, world: &World| {
                world.takeable_by_a_fresh_process()
            }),
        ];
        // After a deletion nobody waits; until the old holder renews, the intents alone protect.
        if !self.meddling {
            properties.push(Property::always(HOLDER, |_, world: &World| {
                !world.sent_without_holding
            }));
            properties.push(Property::always(BELIEF, |_, world: &World| {
                world.believers() <= 1
            }));
        }
        properties
    }
}

const ONE_CALL: &str = "at most one irreversible call is under way";
const ONCE: &str = "no machine is hit twice";
const TAKEABLE: &str = "a process that watches the lock long enough gets it";
const HOLDER: &str = "whoever sends under a fresh permit holds the lock";
const BELIEF: &str = "no two believe at once that they hold the lock";

/// Every world that can come about is sound, and the `sights` are among what happens on the way,
/// so that the run is no empty one.
fn check(setup: Setup, sights: &[Sight]) {
    let start = Instant::now();
    let checker = setup.clone().checker().threads(2).spawn_bfs().join();
    println!(
        "{setup:?}: {} states in {:?}",
        checker.unique_state_count(),
        start.elapsed()
    );
    checker.assert_properties();
    for sight in sights {
        assert!(setup.has_seen(*sight), "{sight:?} never happened");
    }
}

/// What time and a dead or frozen agent bring about, with no other fault.
const ALWAYS: [Sight; 6] = [
    Sight::Expiry,
    Sight::GaveBack,
    Sight::NotHappened,
    Sight::Stale,
    Sight::Lost,
    Sight::OrphanCall,
];

/// Without one rule the world goes wrong in the way `expected`.
fn breaks(setup: Setup, expected: &'static str) {
    let start = Instant::now();
    let checker = setup
        .clone()
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AllOf([expected].into()))
        .timeout(Duration::from_mins(2))
        .spawn_bfs()
        .join();
    println!(
        "{setup:?}: {} states in {:?}",
        checker.unique_state_count(),
        start.elapsed()
    );
    let path = checker.discovery(expected);
    let path =
        path.unwrap_or_else(|| panic!("without the rule, {expected:?} still holds: {setup:?}"));
    println!("counterexample: {:?}", path.into_actions());
}

#[test]
fn two_operations_in_two_agents_never_overlap() {
    let sights = [
        &ALWAYS[..],
        &[Sight::LookedUp, Sight::LateWrite, Sight::BothDone],
    ]
    .concat();
    check(Setup::default(), &sights);
}

#[test]
fn one_operation_in_two_agents_that_both_believe_they_lead_is_carried_out_once() {
    let setup = Setup {
        operations: [0, 0],
        ..Setup::default()
    };
    let sights = [
        &ALWAYS[..],
        &[Sight::LookedUp, Sight::LateWrite, Sight::HandedOver],
    ]
    .concat();
    check(setup, &sights);
}

#[test]
fn a_lease_deleted_while_held_lets_no_two_calls_overlap() {
    let setup = Setup {
        mishaps: false,
        meddling: true,
        ..Setup::default()
    };
    check(
        setup,
        &[&ALWAYS[..], &[Sight::Deleted, Sight::BothDone]].concat(),
    );
}

#[test]
#[ignore = "minutes: every pair of faults"]
fn two_faults_of_any_kind_let_no_two_calls_overlap() {
    for operations in [[0, 1], [0, 0]] {
        for meddling in [false, true] {
            let setup = Setup {
                operations,
                faults: 2,
                meddling,
                ..Setup::default()
            };
            check(
                setup,
                &[&ALWAYS[..], &[Sight::LookedUp, Sight::LateWrite]].concat(),
            );
        }
    }
}

#[test]
fn without_compare_and_swap_calls_overlap() {
    let mut setup = Setup::default();
    setup.rules.compare_and_swap = false;
    breaks(setup, ONE_CALL);
}

#[test]
fn without_the_holder_check_in_the_object_read_calls_overlap() {
    let mut setup = Setup {
        mishaps: false,
        meddling: true,
        ..Setup::default()
    };
    setup.rules.holder_check = false;
    breaks(setup, ONE_CALL);
}

#[test]
fn where_another_clock_tells_expiry_a_holder_is_overtaken() {
    let mut setup = Setup::default();
    setup.rules.own_clock = false;
    breaks(setup, HOLDER);
}

#[test]
fn without_the_look_at_intents_after_the_acquisition_calls_overlap() {
    let mut setup = Setup::default();
    setup.rules.intents_after_acquisition = false;
    breaks(setup, ONE_CALL);
}

#[test]
fn without_the_time_limit_from_renewal_to_send_calls_overlap() {
    let mut setup = Setup::default();
    setup.rules.send_limit = false;
    breaks(setup, ONE_CALL);
}

#[test]
fn without_the_second_read_after_a_lost_answer_two_believe_to_hold_the_lock() {
    let mut setup = Setup::default();
    setup.rules.lost_answers_looked_up = false;
    breaks(setup, BELIEF);
}

#[test]
fn with_the_intent_after_the_renewal_calls_overlap() {
    let mut setup = Setup {
        mishaps: false,
        meddling: true,
        ..Setup::default()
    };
    setup.rules.intent_first = false;
    breaks(setup, ONE_CALL);
}
