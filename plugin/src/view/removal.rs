//! `removal status`: which step, since when, what it waits for, what to do.

use ichor_api::conditions::{REMOVAL, RemovalStep, StandstillReason};
use ichor_api::machine::{Intent, RemovalStatus};
use ichor_api::{Condition, ConditionStatus, TalosMachine};
use serde::Serialize;

use crate::age::{Clock, human, point, seconds_between};
use crate::resources::{name_of, namespace_of, node_of};
use crate::table::Table;
use crate::view::{advice, drain};

/// What a person can do now.
pub fn next_step(machine: &TalosMachine) -> String {
    let name = name_of(&machine.metadata);
    let condition = machine.condition(REMOVAL);
    if !machine.is_being_deleted() {
        return format!("To remove it: kubectl ichor remove {name}");
    }
    match condition {
        Some(c) if c.status != ConditionStatus::True => StandstillReason::parse(&c.reason)
            .map_or_else(
                || "See the message above.".to_owned(),
                |reason| advice::next(reason, machine),
            ),
        Some(_) if past_return(machine) => {
            "Nothing: it goes on by itself, and can no longer be taken back.".to_owned()
        }
        Some(_) => format!(
            "Nothing: it goes on by itself. To take it back: kubectl ichor remove {name} --cancel"
        ),
        None => "Wait a moment; if nothing follows, see whether the agent runs: kubectl -n ichor-system get pods"
            .to_owned(),
    }
}

/// Whether the removal can no longer be taken back: the intent of the leave (a worker's:
/// of the reset) has been written (spec section 5, "Changing one's mind").
pub fn past_return(machine: &TalosMachine) -> bool {
    let Some(status) = machine.status.as_ref() else {
        return false;
    };
    let point_of_no_return = if machine.is_control_plane() {
        RemovalStep::LeaveEtcd
    } else {
        RemovalStep::Reset
    };
    let intended = status.intent.as_ref().is_some_and(|intent| {
        let of_leave = matches!(intent.step.as_str(), "LeaveEtcd" | "RemoveMember");
        intent.step == "Reset" || (of_leave && machine.is_control_plane())
    });
    let done = status.removal.as_ref().is_some_and(|removal| {
        removal.left_member_id.is_some()
            || removal.leave_boot_id.is_some()
            || !removal.wiped.is_empty()
            || removal.steps.iter().any(|s| {
                s.finished_at.is_some()
                    && RemovalStep::parse(&s.name).is_some_and(|s| s >= point_of_no_return)
            })
            || removal
                .step
                .as_deref()
                .and_then(RemovalStep::parse)
                .is_some_and(|s| s > point_of_no_return)
    });
    intended || done
}

fn headline(machine: &TalosMachine, clock: Clock) -> String {
    let name = name_of(&machine.metadata);
    let condition = machine.condition(REMOVAL);
    if !machine.is_being_deleted() {
        return format!("{name} is not being removed");
    }
    match condition {
        None => format!("{name} is being deleted; the agent has not begun"),
        Some(c) if c.status == ConditionStatus::True => format!(
            "{name} is being removed: {}{}",
            c.reason,
            clock.lasting(Some(&c.last_transition_time))
        ),
        Some(c) => format!(
            "{name} stands still: {}{}",
            c.reason,
            clock.lasting(Some(&c.last_transition_time))
        ),
    }
}

fn steps(removal: &RemovalStatus, clock: Clock) -> Vec<String> {
    if removal.steps.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(["STEP", "STARTED", "FINISHED", "TOOK"]);
    for step in &removal.steps {
        let (finished, took) = match &step.finished_at {
            Some(at) => (point(at), human(seconds_between(&step.started_at, at.0))),
            // Still running: on a pipe the line must not change with the time of day.
            None if clock.absolute => (String::new(), String::new()),
            None => (
                String::new(),
                format!(
                    "{} so far",
                    human(seconds_between(&step.started_at, clock.now))
                ),
            ),
        };
        table.row([step.name.clone(), point(&step.started_at), finished, took]);
    }
    table.lines()
}

fn intent_line(intent: &Intent, clock: Clock) -> String {
    let over = seconds_between(&intent.deadline, clock.now);
    let deadline = if clock.absolute {
        format!("its deadline is {}", point(&intent.deadline))
    } else if over >= 0 {
        format!("its deadline passed {} ago", human(over))
    } else {
        format!("its deadline is in {}", human(-over))
    };
    let member = intent
        .member_id
        .as_deref()
        .map_or_else(String::new, |id| format!(" of member {id}"));
    format!(
        "Not settled: {}{member}, sent or about to be by agent {}; {deadline}. Nothing that counts on it is begun before its outcome is known.",
        intent.step, intent.instance
    )
}

/// Everything about the removal of `machine`, as lines.
pub fn lines(machine: &TalosMachine, clock: Clock) -> Vec<String> {
    let mut lines = vec![
        format!(
            "TalosMachine {} (namespace {}), {} of {}, Node {}",
            name_of(&machine.metadata),
            namespace_of(&machine.metadata),
            machine.spec.role,
            machine.spec.cluster_ref.name,
            node_of(machine).as_deref().unwrap_or("unknown")
        ),
        headline(machine, clock),
    ];
    let status = machine.status.as_ref();
    if machine.is_being_deleted() {
        if let Some(message) = machine
            .condition(REMOVAL)
            .map(|c| c.message.as_str())
            .filter(|m| !m.is_empty())
        {
            lines.push(format!("  {message}"));
        }
        if let Some(removal) = status.and_then(|s| s.removal.as_ref()) {
            let table = steps(removal, clock);
            if !table.is_empty() {
                lines.push(String::new());
                lines.extend(table);
            }
            if let Some(by) = &removal.last_worker_waived_by {
                lines.push(format!("The last-worker rule was waived by {by}."));
            }
            if !removal.wiped.is_empty() {
                lines.push(format!(
                    "Told to wipe: {}{}",
                    removal.wiped.join(", "),
                    match removal.confirmed {
                        Some(true) => " (confirmed: the box is in maintenance)",
                        Some(false) => " (not confirmed: the box was not seen since)",
                        None => "",
                    }
                ));
            }
        }
        if let Some(found) = status
            .and_then(|s| s.drain.as_ref())
            .filter(|d| d.remaining > 0)
        {
            lines.push(format!(
                "Drain: {}; kubectl ichor drain status {} names them",
                drain::totals(found),
                name_of(&machine.metadata)
            ));
        }
        if let Some(intent) = status.and_then(|s| s.intent.as_ref()) {
            lines.push(intent_line(intent, clock));
        }
    }
    lines.push(format!("Next: {}", next_step(machine)));
    lines
}

/// `-o json` and `-o yaml`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report<'a> {
    machine: &'a str,
    namespace: &'a str,
    deleting: bool,
    condition: Option<&'a Condition>,
    removal: Option<&'a RemovalStatus>,
    intent: Option<&'a Intent>,
    can_be_cancelled: bool,
    next: String,
}

/// The report that `-o json` prints.
pub fn report(machine: &TalosMachine) -> Report<'_> {
    let status = machine.status.as_ref();
    Report {
        machine: name_of(&machine.metadata),
        namespace: namespace_of(&machine.metadata),
        deleting: machine.is_being_deleted(),
        condition: machine.condition(REMOVAL),
        removal: status.and_then(|s| s.removal.as_ref()),
        intent: status.and_then(|s| s.intent.as_ref()),
        can_be_cancelled: machine.is_being_deleted() && !past_return(machine),
        next: next_step(machine),
    }
}
