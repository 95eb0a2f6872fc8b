//! Whether a cluster is between two stable sizes (spec section 3, "transitioning").

use ichor_api::conditions::{StandstillReason, TransitioningReason};

use crate::etcd::Members;
use crate::verdict::{Check, Rule};

/// Judges it from the live count of approved control planes and, where one could be
/// had, etcd's member list. `None`: stable.
///
/// An even count of approved control planes or of voters (none at all is not), or a
/// listed learner or unstarted member. Where several hold, the reason is the first in
/// this order and the message names them all.
pub fn transitioning(
    approved: usize,
    members: Option<&Members>,
) -> Option<(TransitioningReason, String)> {
    let even = |n: usize| n > 0 && n.is_multiple_of(2);
    let mut causes = Vec::new();
    if even(approved) {
        causes.push((
            TransitioningReason::EvenControlPlaneCount,
            format!("{approved} control planes are approved, an even number"),
        ));
    }
    if let Some(members) = members {
        let voters = members.voters().count();
        if even(voters) {
            causes.push((
                TransitioningReason::EvenVoterCount,
                format!(
                    "etcd has {voters} voters, an even number: it survives no more failures than {} would",
                    voters - 1
                ),
            ));
        }
        if let Some(joining) = members.joining().next() {
            causes.push((
                TransitioningReason::LearnerPresent,
                format!("etcd lists a member that does not vote yet: {joining}"),
            ));
        }
    }
    let reason = causes.first()?.0;
    let message = causes
        .into_iter()
        .map(|(_, text)| text)
        .collect::<Vec<_>>()
        .join("; ");
    Some((reason, message))
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
            format!(
                "the cluster is transitioning ({reason}): {message}. Add or remove a control plane until their number is odd and every member votes: this goes on by itself then"
            ),
        ),
        Some((reason, _)) => Check::proceed(
            Rule::Transitioning,
            None,
            format!("the cluster is transitioning ({reason}); this may end it"),
        ),
        None => Check::proceed(Rule::Transitioning, None, "the cluster is stable"),
    }
}
