//! Running the checker, and the one question that it cannot be asked.

use std::collections::HashMap;

use stateright::{Checker, HasDiscoveries, Model};

use super::steps::Removals;
use super::world::{Broken, World};

const SAFE: &str = "nothing that must not happen happens";

/// Explores every state and expects every property to hold.
#[track_caller]
pub fn safe(model: &Removals) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "{:?}: {} states, {} steps deep",
        model.budget,
        checker.unique_state_count(),
        checker.max_depth()
    );
    for (name, path) in checker.discoveries() {
        assert_eq!(name, "a removal comes to its end", "{:#?}", trace(path));
    }
    checker.assert_properties();
}

/// Expects that a sentence left out breaks exactly what it is there for.
#[track_caller]
pub fn violated(model: &Removals, broken: Broken) {
    let checker = model
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf([SAFE].into()))
        .spawn_bfs()
        .join();
    let Some(path) = checker.discovery(SAFE) else {
        panic!("the sentence that was left out is not needed, says the model");
    };
    assert_eq!(path.last_state().broken, Some(broken));
    println!(
        "{} states; {:#?}",
        checker.unique_state_count(),
        trace(path)
    );
}

/// A counterexample as a list of what happened and where it led.
fn trace(path: stateright::Path<World, super::steps::Action>) -> Vec<String> {
    path.into_vec()
        .iter()
        .map(|(world, action)| {
            let action = action
                .map(|action| format!("{action:?}"))
                .unwrap_or_default();
            format!("{world} {action}")
        })
        .collect()
}

/// Expects that from every reachable state there is a way to one in which `goal` holds
/// (`AG EF goal`, which the checker's own `eventually` does not say).
#[track_caller]
pub fn every_state_reaches(model: &Removals, goal: fn(&Removals, &World) -> bool) {
    let mut numbers: HashMap<World, usize> = HashMap::new();
    let mut states: Vec<World> = Vec::new();
    let mut before: Vec<Vec<usize>> = Vec::new();
    for state in model.init_states() {
        numbers.insert(state.clone(), states.len());
        states.push(state);
        before.push(Vec::new());
    }
    let mut looked_at = 0;
    while looked_at < states.len() {
        for state in model.next_states(&states[looked_at].clone()) {
            let number = *numbers.entry(state.clone()).or_insert_with(|| {
                states.push(state);
                before.push(Vec::new());
                states.len() - 1
            });
            before[number].push(looked_at);
        }
        looked_at += 1;
    }
    let mut reaches: Vec<bool> = states.iter().map(|state| goal(model, state)).collect();
    let mut queue: Vec<usize> = (0..states.len()).filter(|n| reaches[*n]).collect();
    println!("{} states, {} of them at rest", states.len(), queue.len());
    while let Some(number) = queue.pop() {
        for &earlier in &before[number] {
            if !reaches[earlier] {
                reaches[earlier] = true;
                queue.push(earlier);
            }
        }
    }
    if let Some(stuck) = reaches.iter().position(|reaches| !reaches) {
        panic!("no way out of {:#?}", states[stuck]);
    }
}
