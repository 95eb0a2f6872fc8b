//! What is counted, for the agent's `/metrics`.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// One kind of answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReviewLabels {
    /// Which path: `talosmachine`, `taloscluster`, `override`, `namespace`.
    pub path: &'static str,
    /// `allowed`, or the name of the rule that refused.
    pub answer: &'static str,
}

/// One path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PathLabels {
    /// Which path.
    pub path: &'static str,
}

/// How a look at the certificate ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CertificateLabels {
    /// `swapped`, or `failed`.
    pub result: &'static str,
}

/// The webhook's metrics; clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Reviews answered.
    pub reviews: Family<ReviewLabels, Counter>,
    /// How long they took, in seconds.
    pub durations: Family<PathLabels, Histogram, fn() -> Histogram>,
    /// When the served certificate expires, in seconds since 1970; 0 while there is none.
    pub certificate_expiry: Gauge<f64, AtomicU64>,
    /// Certificates swapped, and looks at them that failed.
    pub certificate_loads: Family<CertificateLabels, Counter>,
    /// Gates crossed by the verb `override`, and what was left unrecorded of them.
    pub overrides: Family<CertificateLabels, Counter>,
}

fn histogram() -> Histogram {
    Histogram::new([0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5])
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            reviews: Family::default(),
            durations: Family::new_with_constructor(histogram),
            certificate_expiry: Gauge::default(),
            certificate_loads: Family::default(),
            overrides: Family::default(),
        }
    }
}

impl Metrics {
    /// Adds them to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "ichor_webhook_reviews",
            "Admission reviews by path and answer (the rule's name where one refused)",
            self.reviews.clone(),
        );
        registry.register_with_unit(
            "ichor_webhook_review_duration",
            "How long admission reviews took",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register(
            "ichor_webhook_certificate_expiry_timestamp_seconds",
            "When the served certificate expires; 0 while there is none",
            self.certificate_expiry.clone(),
        );
        registry.register(
            "ichor_webhook_certificate_loads",
            "Serving certificates swapped, and attempts that failed",
            self.certificate_loads.clone(),
        );
        registry.register(
            "ichor_webhook_overrides",
            "Gates crossed by the verb override, by whether that was recorded",
            self.overrides.clone(),
        );
    }
}
