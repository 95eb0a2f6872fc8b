//! Whether a cluster is between two stable sizes (spec section 3, "transitioning").

use ichor_api::conditions::{StandstillReason, TransitioningReason};

use crate::etcd::Members;
use crate::verdict::{Check, Rule};

/// Judges it from the live count of approved control planes and, where one could be
/// had, etcd's member list. `None`: stable.
///
/// An even count of approved control planes or of voters (none at all is not), or a
/// listed learner or unstarted member.
pub fn transitioning(
    approved: usize,
    members: Option<&Members>,
) -> Option<(TransitioningReason, String)> {
    if let Some(members) = members {
        if let Some(joining) = members.joining().next() {
            return Some((
                TransitioningReason::LearnerPresent,
                format!("etcd lists a member that does not vote yet: {joining}"),
            ));
        }
        let voters = members.voters().count();
        if voters > 0 && voters.is_multiple_of(2) {
            return Some((
                TransitioningReason::EvenVoterCount,
                format!(
                    "etcd has {voters} voters, an even number: it tolerates no more failures than {} would",
                    voters - 1
                ),
            ));
        }
    }
    if approved > 0 && approved.is_multiple_of(2) {
        return Some((
            TransitioningReason::EvenControlPlaneCount,
            format!(
                "{approved} control planes are approved, an even number: add one, or remove one"
            ),
        ));
    }
    None
}

/// The rule: a disruptive operation that does not end the transition waits for its end.
pub fn may_disrupt(
    approved: usize,
    members: Option<&Members>,
    completes_transition: bool,
) -> Check {
    match transitioning(approved, members) {
        Some((reason, message)) if !completes_transition => Check::wait(
            Rule::Transitioning,
            StandstillReason::ClusterTransitioning,
            None,
            format!("the cluster is transitioning ({reason}): {message}. It goes on by itself when that has ended"),
        ),
        Some((reason, _)) => Check::proceed(
            Rule::Transitioning,
            None,
            format!("the cluster is transitioning ({reason}); this may end it"),
        ),
        None => Check::proceed(Rule::Transitioning, None, "the cluster is stable"),
    }
}
