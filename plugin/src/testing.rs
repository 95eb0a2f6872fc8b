//! Objects for tests, at a fixed time.

use ichor_api::cluster::{EtcdMemberStatus, EtcdStatus, RoleCounts};
use ichor_api::common::set_condition;
use ichor_api::conditions::{READY, REMOVAL};
use ichor_api::machine::MachineIdentity;
use ichor_api::{ConditionStatus, MachineRole, TalosCluster, TalosMachine, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::age::Clock;

/// The time that every test runs at.
pub(crate) fn now() -> Timestamp {
    "2026-06-01T12:00:00Z".parse().unwrap()
}

/// So many seconds before [`now`].
pub(crate) fn ago(seconds: i64) -> Time {
    Time(now() - SignedDuration::from_secs(seconds))
}

pub(crate) fn clock() -> Clock {
    Clock::relative(now())
}

fn machine(name: &str, role: MachineRole, node: &str) -> TalosMachine {
    let mut machine = TalosMachine::new(
        name,
        serde_json::from_value(serde_json::json!({
            "clusterRef": {"name": "demo"}, "role": role, "approved": true, "address": "192.0.2.1",
        }))
        .unwrap(),
    );
    machine.metadata.namespace = Some("default".into());
    machine.metadata.uid = Some(format!("uid-{name}"));
    machine.metadata.resource_version = Some("1".into());
    machine.metadata.creation_timestamp = Some(ago(86_400));
    machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.into()]);
    let status = machine.status.get_or_insert_default();
    status.identity = Some(MachineIdentity {
        node_name: Some(node.into()),
        cluster_uid: Some("uid-demo".into()),
        ..MachineIdentity::default()
    });
    set_condition(
        &mut status.conditions,
        READY,
        ConditionStatus::True,
        "Healthy",
        "",
        None,
        ago(3600).0,
    );
    machine
}

/// ID of the member of `cp-N`.
pub(crate) fn member_id(name: &str) -> String {
    let n: u64 = name.rsplit('-').next().unwrap().parse().unwrap();
    names::format_etcd_id(0xa000 + n)
}

/// A healthy control plane with its member.
pub(crate) fn control_plane(name: &str) -> TalosMachine {
    let mut machine = machine(name, MachineRole::ControlPlane, name);
    let identity = machine
        .status
        .get_or_insert_default()
        .identity
        .get_or_insert_default();
    identity.etcd_member_id = Some(member_id(name));
    machine
}

/// A healthy worker.
pub(crate) fn worker(name: &str) -> TalosMachine {
    machine(name, MachineRole::Worker, name)
}

/// The same, with its deletion begun.
pub(crate) fn deleted(mut machine: TalosMachine) -> TalosMachine {
    machine.metadata.deletion_timestamp = Some(ago(300));
    machine
}

/// Sets the `Removal` condition, as of two minutes ago.
pub(crate) fn removal_condition(
    machine: &mut TalosMachine,
    status: ConditionStatus,
    reason: &str,
    message: &str,
) {
    set_condition(
        &mut machine.status.get_or_insert_default().conditions,
        REMOVAL,
        status,
        reason,
        message,
        None,
        ago(120).0,
    );
}

/// A cluster that declares three control planes, and etcd with these healthy voters, the
/// first leading, seen 12 s ago.
pub(crate) fn cluster(voters: &[&str]) -> TalosCluster {
    let mut cluster = TalosCluster::new(
        "demo",
        serde_json::from_value(serde_json::json!({
            "controlPlane": {"count": 3}, "talos": {"credentialsSecretRef": {"name": "talos"}},
        }))
        .unwrap(),
    );
    cluster.metadata.namespace = Some("default".into());
    cluster.metadata.uid = Some("uid-demo".into());
    cluster.metadata.creation_timestamp = Some(ago(86_400));
    let count = i32::try_from(voters.len()).unwrap();
    let status = cluster.status.get_or_insert_default();
    status.control_planes = Some(RoleCounts {
        declared: Some(3),
        approved: count,
        healthy: count,
    });
    status.etcd = Some(EtcdStatus {
        cluster_id: Some("0000000000000e7c".into()),
        members: voters.iter().map(|name| member(name)).collect(),
        leader: voters.first().map(|name| (*name).to_owned()),
        voters: count,
        healthy: count,
        observed_at: Some(ago(12)),
        ..EtcdStatus::default()
    });
    cluster
}

/// A healthy voter.
pub(crate) fn member(name: &str) -> EtcdMemberStatus {
    EtcdMemberStatus {
        id: member_id(name),
        name: name.into(),
        peer_urls: vec!["https://192.0.2.1:2380".into()],
        machine: Some(name.into()),
        started: true,
        healthy: true,
        ..EtcdMemberStatus::default()
    }
}

/// The machines as a direct read gives them, and the count for the removal of `target`.
pub(crate) fn counted(
    machines: &[TalosMachine],
    target: &str,
) -> ichor_rules::ApprovedControlPlanes {
    let list = serde_json::json!({
        "apiVersion": "ichor.maesh.dev/v1alpha1", "kind": "TalosMachineList",
        "metadata": {"resourceVersion": "1"}, "items": machines,
    });
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        let body = kube::client::Body::from(list.to_string().into_bytes());
        async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
    });
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async {
            let client = kube::Client::new(service, "default");
            ichor_rules::count_approved(
                &ichor_rules::DirectReader::new(client),
                "default",
                "demo",
                target,
                ichor_rules::count::Basis::Admission,
            )
            .await
            .unwrap()
        })
}
