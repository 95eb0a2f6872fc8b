//! `drain status`: how far, and what holds it up.

use ichor_api::TalosMachine;
use ichor_api::machine::{BudgetStatus, DrainPodStatus, DrainStatus};
use serde::Serialize;

use crate::age::Clock;
use crate::resources::{name_of, node_of};
use crate::table::Table;

/// A budget with its numbers, as a person reads them.
pub fn budget(budget: &BudgetStatus) -> String {
    format!(
        "{} (allows {}; {} healthy, {} needed)",
        budget.name, budget.allowed, budget.current, budget.desired
    )
}

/// What is left of the drain, for one line.
pub fn totals(drain: &DrainStatus) -> String {
    format!(
        "{} of {} pods gone, {} left",
        drain.evicted, drain.total, drain.remaining
    )
}

/// Those that a budget or a refusal holds before those that merely end.
fn urgency(pod: &DrainPodStatus) -> u8 {
    if pod.budget.is_some() {
        0
    } else if pod.reason == "Terminating" {
        2
    } else {
        1
    }
}

/// Everything about the drain of `machine`, as lines.
pub fn lines(machine: &TalosMachine, clock: Clock) -> Vec<String> {
    let name = name_of(&machine.metadata);
    let node = node_of(machine).unwrap_or_else(|| "unknown".to_owned());
    let Some(drain) = machine.status.as_ref().and_then(|s| s.drain.as_ref()) else {
        return vec![format!(
            "{name} (Node {node}) is not being drained{}",
            if machine.is_being_deleted() {
                format!(" yet: see kubectl ichor removal status {name}")
            } else {
                String::new()
            }
        )];
    };
    let mut head = format!("{name} (Node {node}): {}", totals(drain));
    if let Some(at) = &drain.started_at {
        head = format!("{head}; begun {}", clock.ago(at));
    }
    if let Some(at) = drain.last_pass_at.as_ref().filter(|_| !clock.absolute) {
        head = format!("{head}, looked {}", clock.ago(at));
    }
    let mut lines = vec![head];
    if drain.pods.is_empty() {
        return lines;
    }
    let mut pods: Vec<&DrainPodStatus> = drain.pods.iter().collect();
    pods.sort_by_key(|pod| urgency(pod));
    let mut table = Table::new(["NAMESPACE", "POD", "WHY", "BUDGET", "SINCE", "MESSAGE"]);
    for pod in pods {
        table.row([
            pod.namespace.clone(),
            pod.name.clone(),
            pod.reason.clone(),
            pod.budget.as_ref().map(budget).unwrap_or_default(),
            clock.age(pod.since.as_ref()),
            pod.message.clone(),
        ]);
    }
    lines.push(String::new());
    lines.extend(table.lines());
    let shown = i32::try_from(drain.pods.len()).unwrap_or(i32::MAX);
    if let more @ 1.. = drain.remaining - shown {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// `-o json` and `-o yaml`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report<'a> {
    machine: &'a str,
    node: Option<String>,
    draining: bool,
    #[serde(flatten)]
    drain: DrainStatus,
}

/// The report that `-o json` prints.
pub fn report(machine: &TalosMachine) -> Report<'_> {
    let drain = machine.status.as_ref().and_then(|s| s.drain.clone());
    Report {
        machine: name_of(&machine.metadata),
        node: node_of(machine),
        draining: drain.is_some(),
        drain: drain.unwrap_or_default(),
    }
}
