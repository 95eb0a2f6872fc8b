//! A plan as a person reads it.

use ichor_rules::Verdict;

use crate::plan::Plan;
use crate::table::Table;

/// How many pods that nothing holds up are listed.
const QUIET_PODS: usize = 20;

fn number(number: Option<i64>) -> String {
    number.map_or_else(|| "-".to_owned(), |n| n.to_string())
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Proceed => "Proceed",
        Verdict::Wait => "Wait",
        Verdict::Refuse => "Refuse",
    }
}

/// The plan as lines. `wide`: every pod.
pub fn lines(plan: &Plan, wide: bool) -> Vec<String> {
    let mut table = Table::new(["RULE", "VERDICT", "BEFORE", "AFTER", "MESSAGE"]);
    for check in &plan.checks {
        table.row([
            check.rule.to_owned(),
            verdict(check.verdict).to_owned(),
            number(check.before),
            number(check.after),
            check.message.clone(),
        ]);
    }
    let mut lines = table.lines();
    let shown: Vec<_> = plan
        .pods
        .iter()
        .filter(|pod| wide || pod.action != "Skip")
        .collect();
    if !shown.is_empty() {
        lines.push(String::new());
        let mut table = Table::new(["NAMESPACE", "POD", "ACTION", "BLOCKED BY", "WHY"]);
        let mut quiet = 0;
        for pod in &shown {
            quiet += usize::from(pod.blocked_by.is_none());
            if !wide && pod.blocked_by.is_none() && quiet > QUIET_PODS {
                continue;
            }
            table.row([
                pod.namespace.clone(),
                pod.name.clone(),
                pod.action.to_owned(),
                pod.blocked_by.clone().unwrap_or_default(),
                pod.detail.clone(),
            ]);
        }
        lines.extend(table.lines());
        if let more @ 1.. = quiet.saturating_sub(QUIET_PODS)
            && !wide
        {
            lines.push(format!(
                "and {more} more that nothing blocks (-o wide lists them)"
            ));
        }
    }
    for unseen in &plan.unseen {
        lines.push(format!("Not seen: {unseen}"));
    }
    lines.push(String::new());
    lines.push(conclusion(plan));
    lines
}

/// The verdict in a sentence.
pub fn conclusion(plan: &Plan) -> String {
    let name = &plan.machine;
    let why = plan
        .checks
        .iter()
        .filter(|c| c.verdict == plan.verdict)
        .map(|c| c.rule)
        .collect::<Vec<_>>()
        .join(", ");
    match plan.verdict {
        Verdict::Proceed => format!("Proceed: the removal of {name} would complete."),
        Verdict::Wait => {
            format!("Wait: the removal of {name} would be admitted, and stand still at: {why}.")
        }
        Verdict::Refuse => format!("Refuse: {name} is not removed, by: {why}."),
    }
}
