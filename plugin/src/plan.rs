//! `plan remove`: what would come of a removal, rule by rule and pod by pod, before
//! anything is done (spec section 11; shapes in `interfaces.md`, "The plugin").
//!
//! [`gather`] reads, [`judge`] and [`pods`] decide without I/O, [`render`] shows.

pub mod gather;
pub mod judge;
pub mod pods;
pub mod render;
#[cfg(test)]
mod tests;

use ichor_rules::{Check, Verdict};
use serde::Serialize;

use crate::error::exit;

/// The name of the plan's own check of the Node's pods.
pub const DRAIN: &str = "drain";
/// The name of the check that a removal under way is told by.
pub const REMOVAL: &str = "removal";
/// The name of the check of the TalosCluster itself.
pub const CLUSTER: &str = "cluster";

/// One answer, as it stands in `plan -o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanCheck {
    /// The rule's name; `drain`, `removal` and `cluster` are the plan's own.
    pub rule: &'static str,
    /// The answer.
    pub verdict: Verdict,
    /// The number that the rule is about, now.
    pub before: Option<i64>,
    /// The same after the removal.
    pub after: Option<i64>,
    /// What, with the numbers, and what to do.
    pub message: String,
}

impl From<Check> for PlanCheck {
    fn from(check: Check) -> Self {
        Self {
            rule: check.rule.as_str(),
            verdict: check.verdict,
            before: check.before,
            after: check.after,
            message: check.message,
        }
    }
}

impl PlanCheck {
    /// An answer of the plan's own, without numbers.
    pub fn own(rule: &'static str, verdict: Verdict, message: impl Into<String>) -> Self {
        Self {
            rule,
            verdict,
            before: None,
            after: None,
            message: message.into(),
        }
    }
}

/// A pod of the Node, and what a drain does with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `Evict`, `Skip`, `Refuse` (it stops the drain) or `Wait` (it ends already).
    pub action: &'static str,
    /// What stands in the way: the name of a budget, or why the drain stops at it.
    pub blocked_by: Option<String>,
    /// The same for a person, with the numbers.
    #[serde(skip)]
    pub detail: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The machine.
    pub machine: String,
    /// The highest of the checks' verdicts.
    pub verdict: Verdict,
    /// Each rule's answer, in the order in which they are asked.
    pub checks: Vec<PlanCheck>,
    /// The pods of its Node.
    pub pods: Vec<PlanPod>,
    /// What could not be seen, for want of rights or otherwise.
    #[serde(skip)]
    pub unseen: Vec<String>,
}

impl Plan {
    /// Puts a plan together; its verdict is the highest of its checks'.
    pub fn new(
        machine: &str,
        checks: Vec<PlanCheck>,
        pods: Vec<PlanPod>,
        unseen: Vec<String>,
    ) -> Self {
        let verdict = checks
            .iter()
            .map(|c| c.verdict)
            .max()
            .unwrap_or(Verdict::Proceed);
        Self {
            machine: machine.to_owned(),
            verdict,
            checks,
            pods,
            unseen,
        }
    }

    /// The exit code that tells the verdict.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            Verdict::Proceed => exit::DONE,
            Verdict::Wait => exit::WAIT,
            Verdict::Refuse => exit::REFUSED,
        }
    }
}
