//! The last worker (spec section 3).

use ichor_api::cluster::Schedulable;
use ichor_api::conditions::StandstillReason;
use ichor_api::{MachineRole, TalosMachine, names};

use crate::verdict::{Check, Rule};

/// Approved workers that are not being deleted, the target included whatever its state.
fn remaining<'m>(machines: &'m [TalosMachine], target: &str) -> Vec<&'m TalosMachine> {
    machines
        .iter()
        .filter(|m| m.spec.role == MachineRole::Worker)
        .filter(|m| m.spec.approved)
        .filter(|m| m.metadata.name.as_deref() == Some(target) || !m.is_being_deleted())
        .collect()
}

/// Where `schedulable` is `"false"`, the last approved worker is not removed.
///
/// `waived`: by `override`, recorded in `status.removal.lastWorkerWaivedBy` or by
/// annotation `ichor.maesh.dev/allow-last-worker`.
pub fn last_worker(
    machines: &[TalosMachine],
    target: &TalosMachine,
    schedulable: Schedulable,
    waived: bool,
) -> Check {
    let name = target.metadata.name.as_deref().unwrap_or_default();
    if target.spec.role != MachineRole::Worker || !target.spec.approved {
        return Check::proceed(
            Rule::LastWorker,
            None,
            format!("{name} is no approved worker"),
        );
    }
    let n = i64::try_from(remaining(machines, name).len()).unwrap_or(i64::MAX);
    let numbers = Some((n, n - 1));
    if schedulable != Schedulable::False {
        return Check::proceed(
            Rule::LastWorker,
            numbers,
            "control planes may run workloads too",
        );
    }
    if n > 1 {
        return Check::proceed(
            Rule::LastWorker,
            numbers,
            format!("{n} approved workers now, {} after", n - 1),
        );
    }
    if waived {
        return Check::proceed(
            Rule::LastWorker,
            numbers,
            format!(
                "{name} is the last worker; the rule was waived by a holder of the verb override"
            ),
        );
    }
    Check::refuse(
        Rule::LastWorker,
        StandstillReason::LastWorker,
        numbers,
        format!(
            "{name} is the last approved worker and spec.schedulable is \"false\": nothing would be left to run workloads (1 now, 0 after). \
             Approve another worker, set spec.schedulable to \"auto\", or let somebody who holds the verb override set annotation {}: \"true\" on it",
            names::ALLOW_LAST_WORKER
        ),
    )
}

/// Turning `schedulable` to `"false"` with no approved worker is refused.
pub fn turning_unschedulable(
    machines: &[TalosMachine],
    from: Schedulable,
    to: Schedulable,
) -> Check {
    let workers = machines
        .iter()
        .filter(|m| m.spec.role == MachineRole::Worker && m.spec.approved && !m.is_being_deleted())
        .count();
    let numbers = i64::try_from(workers).ok().map(|n| (n, n));
    if to == Schedulable::False && from != Schedulable::False && workers == 0 {
        return Check::refuse(
            Rule::LastWorker,
            StandstillReason::LastWorker,
            numbers,
            "spec.schedulable cannot become \"false\": the cluster has no approved worker, so nothing could run workloads. Approve a worker first",
        );
    }
    Check::proceed(
        Rule::LastWorker,
        numbers,
        format!("{workers} approved workers"),
    )
}
