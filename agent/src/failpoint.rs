//! Named points between two writes at which the test bed kills the agent.
//!
//! Built only with feature `failpoints`; without it [`hit`] is nothing at all.

/// Every point there is, in the order of a removal.
pub const POINTS: &[&str] = &[
    "after-finalizer",
    "after-acquire",
    "after-cordon",
    "after-drain",
    "before-forfeit",
    "leave-after-intent",
    "leave-after-permit",
    "leave-after-call",
    "after-leave-confirmed",
    "reset-after-intent",
    "reset-after-permit",
    "reset-after-call",
    "after-wipe-seen",
    "after-node-deleted",
    "after-finalizer-cleared",
    "after-release",
];

/// Ends the process, as a kill would, if `ICHOR_FAILPOINT` names this point.
#[cfg(feature = "failpoints")]
pub fn hit(point: &str) {
    debug_assert!(POINTS.contains(&point), "{point} is not listed in POINTS");
    if std::env::var("ICHOR_FAILPOINT").is_ok_and(|wanted| wanted == point) {
        tracing::warn!(point, "killed at a fail point");
        std::process::abort();
    }
}

/// Nothing: fail points are not built in.
#[cfg(not(feature = "failpoints"))]
pub fn hit(_point: &str) {}
