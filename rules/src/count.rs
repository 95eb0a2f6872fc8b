//! Who counts (spec section 3).
//!
//! A stale count errs high, and high is the side that loses quorum. So the count that
//! the rules take is a type of its own, made here alone, from a direct read.

use std::collections::BTreeSet;

use ichor_api::conditions::{JOINED, NotJoinedReason};
use ichor_api::{ConditionStatus, TalosMachine};

use crate::reader::{DirectReader, FreshMachines, ReadError};

/// What is known about who votes, where the count is taken.
#[derive(Clone, Copy, Debug)]
pub enum Basis<'a> {
    /// At admission: the agent's record (`Joined=False` with `NeverVoter` or
    /// `MemberGone`), and siblings already being deleted count as gone.
    Admission,
    /// Under the lock: etcd's live list. The names of the machines whose member is a
    /// listed started voter; `None` where no bootstrap was ever begun or the list is
    /// not to be had (then only the agent's record speaks, and a sibling being deleted
    /// is gone).
    UnderLock {
        /// Names of the TalosMachines whose member is a listed, started voter.
        voters: Option<&'a BTreeSet<String>>,
    },
}

/// The approved control planes of one cluster, counted by a direct read a moment ago.
///
/// There is no other way to make one than [`count_approved`].
///
/// ```compile_fail,E0451
/// let forged = ichor_rules::ApprovedControlPlanes { counted: vec![], target_counts: true };
/// ```
#[derive(Debug)]
pub struct ApprovedControlPlanes {
    counted: Vec<String>,
    target_counts: bool,
}

impl ApprovedControlPlanes {
    /// `n`: how many there are, the target included where it counts.
    pub fn n(&self) -> usize {
        self.counted.len()
    }

    /// Whether the machine to be removed is one of them. One that is no voter (or was
    /// never approved) is not, and may go at any time.
    pub fn target_counts(&self) -> bool {
        self.target_counts
    }

    /// Their names, sorted.
    pub fn names(&self) -> &[String] {
        &self.counted
    }
}

/// Whether a control plane counts as approved: `spec.approved`, or Ichor's finalizer,
/// whatever the field says.
pub fn counts_as_approved(machine: &TalosMachine) -> bool {
    machine.is_control_plane() && (machine.spec.approved || machine.has_finalizer())
}

/// Whether the agent has recorded that the machine is no voter.
pub fn recorded_as_no_voter(machine: &TalosMachine) -> bool {
    machine.condition(JOINED).is_some_and(|joined| {
        joined.status == ConditionStatus::False
            && [NotJoinedReason::NeverVoter, NotJoinedReason::MemberGone]
                .iter()
                .any(|reason| joined.reason == reason.as_str())
    })
}

/// Whether the machine's leave is confirmed: it is out of etcd for good.
pub fn leave_confirmed(machine: &TalosMachine) -> bool {
    use ichor_api::conditions::RemovalStep;
    machine
        .status
        .as_ref()
        .and_then(|s| s.removal.as_ref())
        .is_some_and(|removal| {
            removal
                .steps
                .iter()
                .any(|s| s.name == RemovalStep::LeaveEtcd.as_str() && s.finished_at.is_some())
        })
}

/// Counts the approved control planes of `cluster` for the removal of `target`.
///
/// Reads the API server directly; see [`Basis`] for who is left out.
/// Errors: the list could not be had; then nothing is known and nothing may be done.
pub async fn count_approved(
    reader: &DirectReader,
    namespace: &str,
    cluster: &str,
    target: &str,
    basis: Basis<'_>,
) -> Result<ApprovedControlPlanes, ReadError> {
    let machines = reader.machines_of(namespace, cluster).await?;
    Ok(count(&machines, target, basis))
}

/// Counts in a list that a direct read has just given; see [`count_approved`].
pub fn count(machines: &FreshMachines, target: &str, basis: Basis<'_>) -> ApprovedControlPlanes {
    let mut counted = Vec::new();
    for machine in machines.iter().filter(|m| counts_as_approved(m)) {
        let name = machine.metadata.name.clone().unwrap_or_default();
        if is_counted(machine, &name, name == target, basis) {
            counted.push(name);
        }
    }
    counted.sort();
    let target_counts = counted.iter().any(|name| name == target);
    ApprovedControlPlanes {
        counted,
        target_counts,
    }
}

fn is_counted(machine: &TalosMachine, name: &str, is_target: bool, basis: Basis<'_>) -> bool {
    match basis {
        // The live list is the truth, whatever the record says: one that is a voter
        // after all counts, rejoined or not.
        Basis::UnderLock {
            voters: Some(voters),
        } => voters.contains(name),
        // Without a list too, nothing shows a sibling being deleted to be a voter, so it
        // is none: the low side is the safe one.
        Basis::Admission | Basis::UnderLock { voters: None } => {
            !recorded_as_no_voter(machine)
                && !leave_confirmed(machine)
                && (is_target || !machine.is_being_deleted())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{control_plane, with_joined_false};

    fn counted(all: &[TalosMachine], target: &str, basis: Basis<'_>) -> ApprovedControlPlanes {
        count(&FreshMachines::of(all), target, basis)
    }

    fn names(counted: &ApprovedControlPlanes) -> Vec<&str> {
        counted.names().iter().map(String::as_str).collect()
    }

    #[test]
    fn a_pending_machine_never_counts() {
        let mut pending = control_plane("cp-4");
        pending.spec.approved = false;
        let all = [control_plane("cp-1"), control_plane("cp-2"), pending];
        assert_eq!(
            names(&counted(&all, "cp-1", Basis::Admission)),
            ["cp-1", "cp-2"]
        );
    }

    #[test]
    fn a_machine_with_our_finalizer_counts_whatever_approved_says() {
        let mut machine = control_plane("cp-1");
        machine.spec.approved = false;
        machine.metadata.finalizers = Some(vec![ichor_api::names::MACHINE_FINALIZER.into()]);
        assert_eq!(names(&counted(&[machine], "x", Basis::Admission)), ["cp-1"]);
    }

    #[test]
    fn at_admission_a_sibling_being_deleted_is_gone_but_the_target_is_not() {
        let mut one = control_plane("cp-1");
        one.metadata.deletion_timestamp = Some(crate::testing::time());
        let all = [one, control_plane("cp-2"), control_plane("cp-3")];
        assert_eq!(
            names(&counted(&all, "cp-2", Basis::Admission)),
            ["cp-2", "cp-3"]
        );
        assert_eq!(counted(&all, "cp-1", Basis::Admission).n(), 3);
    }

    #[test]
    fn under_the_lock_only_listed_started_voters_count() {
        let voters: BTreeSet<String> = ["cp-1".to_owned(), "cp-3".to_owned()].into();
        let all = [
            with_joined_false(control_plane("cp-1"), "NeverVoter"),
            control_plane("cp-2"),
            control_plane("cp-3"),
        ];
        let counted = counted(
            &all,
            "cp-2",
            Basis::UnderLock {
                voters: Some(&voters),
            },
        );
        assert_eq!(names(&counted), ["cp-1", "cp-3"]);
        assert!(!counted.target_counts());
    }

    #[test]
    fn a_machine_recorded_as_no_voter_does_not_count_at_admission() {
        let all = [
            with_joined_false(control_plane("cp-1"), "NeverVoter"),
            with_joined_false(control_plane("cp-2"), "NameTaken"),
        ];
        assert_eq!(names(&counted(&all, "cp-1", Basis::Admission)), ["cp-2"]);
    }
}
