//! Objects for unit tests.

use ichor_api::common::set_condition;
use ichor_api::conditions::JOINED;
use ichor_api::machine::ClusterReference;
use ichor_api::{ConditionStatus, MachineRole, TalosMachine, TalosMachineSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// A fixed time.
pub(crate) fn time() -> Time {
    Time(Timestamp::UNIX_EPOCH)
}

/// An approved control plane of cluster `demo`.
pub(crate) fn control_plane(name: &str) -> TalosMachine {
    TalosMachine::new(
        name,
        TalosMachineSpec {
            cluster_ref: ClusterReference {
                name: "demo".into(),
            },
            role: MachineRole::ControlPlane,
            approved: true,
            rejected: false,
            address: "192.0.2.1".into(),
            node_name: None,
            drain: None,
        },
    )
}

/// `machine` with `Joined=False` for `reason`.
pub(crate) fn with_joined_false(mut machine: TalosMachine, reason: &str) -> TalosMachine {
    let status = machine.status.get_or_insert_default();
    set_condition(
        &mut status.conditions,
        JOINED,
        ConditionStatus::False,
        reason,
        "",
        None,
        Timestamp::UNIX_EPOCH,
    );
    machine
}
