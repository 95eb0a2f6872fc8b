//! The rules that a deletion meets before etcd is asked (spec section 3):
//! allow-delete, quorum, declared count, adopted.

use ichor_api::conditions::StandstillReason;
use ichor_api::names;

use crate::count::ApprovedControlPlanes;
use crate::verdict::{Check, Rule};

fn number(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Deleting a TalosMachine or TalosCluster needs annotation
/// `ichor.maesh.dev/allow-delete: "true"`. It never overrides another rule.
pub fn allow_delete(kind: &str, name: &str, annotated: bool) -> Check {
    let key = names::ALLOW_DELETE;
    if annotated {
        return Check::proceed(Rule::AllowDelete, None, format!("{key} is set"));
    }
    let resource = if kind == "TalosCluster" { "tcl" } else { "tm" };
    Check::refuse(
        Rule::AllowDelete,
        StandstillReason::Held,
        None,
        format!(
            "{kind} {name} is protected against deletion: it has no annotation {key}: \"true\". \
             If it really shall go, run: kubectl annotate {resource} {name} {key}=true"
        ),
    )
}

/// Removing one of `n` control planes is refused when `n-1 < n/2+1`, and when it would
/// leave none. No override, no annotation and no flag gets past it.
///
/// A target that is not counted (no voter) passes: nothing is taken from the quorum.
pub fn quorum(counted: &ApprovedControlPlanes, target: &str) -> Check {
    let n = counted.n();
    if !counted.target_counts() {
        return Check::proceed(
            Rule::Quorum,
            Some((number(n), number(n))),
            format!(
                "{target} is no voting control plane: removing it takes nothing from the {n} that are"
            ),
        );
    }
    let left = n - 1;
    let numbers = Some((number(n), number(left)));
    if left == 0 {
        return Check::refuse(
            Rule::Quorum,
            StandstillReason::LastControlPlane,
            numbers,
            format!(
                "{target} is the last control plane: removing it would leave none (1 now, 0 after). \
                 Join and approve another two control planes first; to give up the whole cluster, delete its TalosCluster"
            ),
        );
    }
    let needed = n / 2 + 1;
    if left < needed {
        return Check::refuse(
            Rule::Quorum,
            StandstillReason::QuorumWouldBreak,
            numbers,
            format!(
                "removing {target} would leave {left} of {n} control planes, fewer than the {needed} that are a majority of {n}. \
                 Join and approve another control plane first. Those that count are {}: machines already being deleted, pending ones and ones that have no vote do not",
                list(counted.names())
            ),
        );
    }
    Check::proceed(
        Rule::Quorum,
        numbers,
        format!("{n} control planes now, {left} after; {needed} are a majority of {n}"),
    )
}

/// How the target stands as a voter, by the judging process's own watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetHealth {
    /// A healthy voter, or one that has not been unhealthy for five minutes.
    Healthy,
    /// Not a healthy voter for five minutes on end.
    UnhealthyLong,
}

/// Refused while `n-1 < spec.controlPlane.count`, unless the target has not been a
/// healthy voter for five minutes: then quorum and live etcd alone decide.
///
/// It never refuses at admission, so its verdict is `Wait`.
pub fn declared_count(
    counted: &ApprovedControlPlanes,
    target: &str,
    declared: i32,
    health: TargetHealth,
) -> Check {
    let n = counted.n();
    if !counted.target_counts() {
        return Check::proceed(
            Rule::DeclaredCount,
            Some((number(n), number(n))),
            format!("{target} is no voting control plane"),
        );
    }
    let left = n.saturating_sub(1);
    let numbers = Some((number(n), number(left)));
    if number(left) >= i64::from(declared) {
        return Check::proceed(
            Rule::DeclaredCount,
            numbers,
            format!("{left} control planes after, {declared} declared"),
        );
    }
    if health == TargetHealth::UnhealthyLong {
        return Check::proceed(
            Rule::DeclaredCount,
            numbers,
            format!(
                "{left} after are fewer than the {declared} declared, but {target} has not been a healthy voter for 5 minutes: removing it is how the cluster heals"
            ),
        );
    }
    Check::wait(
        Rule::DeclaredCount,
        StandstillReason::BelowDeclaredCount,
        numbers,
        format!(
            "removing {target} would leave {left} control planes, fewer than the {declared} that spec.controlPlane.count declares. \
             Join and approve another control plane ({n} now, {} needed){}",
            declared + 1,
            // Lowering it helps only where what is left meets the next size down.
            if declared > 3 && left >= 3 {
                ", or lower spec.controlPlane.count"
            } else {
                ""
            }
        ),
    )
}

/// Deleting an approved control plane that has no finalizer yet is refused: it would
/// go without a removal.
pub fn adopted(name: &str, approved: bool, has_finalizer: bool) -> Check {
    if approved && !has_finalizer {
        return Check::refuse(
            Rule::Adopted,
            StandstillReason::Held,
            None,
            format!(
                "control plane {name} is not adopted yet: it has no finalizer, so it would go without leaving etcd. \
                 Try again in a few seconds; if that lasts, see whether the agent runs (kubectl -n {} get pods)",
                names::AGENT_NAMESPACE
            ),
        );
    }
    Check::proceed(Rule::Adopted, None, "the finalizer is set")
}

/// Names in a sentence: at most five, then how many more.
pub fn list(names: &[String]) -> String {
    const SHOWN: usize = 5;
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown = names
        .iter()
        .take(SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
