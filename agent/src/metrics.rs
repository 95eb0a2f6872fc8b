//! What Prometheus reads.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// A reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    reason: String,
}

/// Counters and gauges of the agent.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Locks taken.
    pub locks_taken: Counter,
    /// Locks lost while they were held.
    pub locks_lost: Counter,
    /// Irreversible calls sent.
    pub calls_sent: Counter,
    /// Irreversible calls whose outcome was not known.
    pub outcomes_unknown: Counter,
    /// Members that left etcd.
    pub members_left: Counter,
    /// Removals that came to their end.
    pub removals_finished: Counter,
    /// Passes that broke off with an error.
    pub reconcile_errors: Counter,
    /// 1 while this replica leads.
    pub leader: Gauge,
    standstills: Family<ReasonLabel, Counter>,
}

impl Metrics {
    /// Registers everything in `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let sub = registry.sub_registry_with_prefix("ichor");
        sub.register(
            "locks_taken",
            "Cluster locks taken",
            self.locks_taken.clone(),
        );
        sub.register(
            "locks_lost",
            "Cluster locks lost while held",
            self.locks_lost.clone(),
        );
        sub.register(
            "irreversible_calls_sent",
            "Irreversible calls sent",
            self.calls_sent.clone(),
        );
        sub.register(
            "outcomes_unknown",
            "Irreversible calls whose outcome was not known",
            self.outcomes_unknown.clone(),
        );
        sub.register(
            "members_left",
            "Members that left etcd",
            self.members_left.clone(),
        );
        sub.register(
            "removals_finished",
            "Removals that came to their end",
            self.removals_finished.clone(),
        );
        sub.register(
            "reconcile_errors",
            "Passes that broke off with an error",
            self.reconcile_errors.clone(),
        );
        sub.register("leader", "1 while this replica leads", self.leader.clone());
        sub.register(
            "standstills",
            "Times that a removal stood still, by reason",
            self.standstills.clone(),
        );
    }

    /// Counts a standstill.
    pub fn standing(&self, reason: &str) {
        self.standstills
            .get_or_create(&ReasonLabel {
                reason: reason.to_owned(),
            })
            .inc();
    }
}
