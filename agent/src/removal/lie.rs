//! The control of the control: with this feature the live-etcd rule is told that all is
//! well, and the end-to-end test of the rule must then see the API lost.

use ichor_rules::etcd::{Health, LiveEtcd};

use crate::etcd::Observation;

/// Says of every started voter that it is healthy.
pub(super) fn about(observation: &mut Observation) {
    if let LiveEtcd::Listed(members) = &mut observation.live {
        for member in &mut members.all {
            if member.listed.started() && !member.listed.learner {
                member.health = Health::Healthy;
            }
        }
    }
}
