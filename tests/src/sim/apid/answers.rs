//! What the calls of `MachineService` answer and refuse.

use std::sync::Arc;

use ichor_talos::proto::common::Data;
use ichor_talos::proto::machine::{
    ApplyConfiguration, ApplyConfigurationRequest, ApplyConfigurationResponse, EtcdMember,
    EtcdMemberAlarm, EtcdMemberStatus, ResetRequest, ServiceEvent, ServiceEvents, ServiceHealth,
    ServiceInfo, apply_configuration_request::Mode, etcd_member_alarm::AlarmType,
    reset_request::WipeMode,
};
use tonic::Status;

use super::{Answers, Caller};
use crate::sim::etcd::{Alarm, EtcdError, Member, MemberStatus};
use crate::sim::lock;
use crate::sim::node::{Node, Role};
use crate::sim::options::TalosVersion;

/// etcd's own errors pass through Talos without their codes (facts: talos.md 4.1).
pub(super) fn etcd_status(error: EtcdError) -> Status {
    match error {
        EtcdError::Refused(text) => Status::unknown(text),
        EtcdError::Silent(_) => Status::unknown("context deadline exceeded"),
    }
}

pub(super) fn over() -> Status {
    Status::unavailable("the simulation is over")
}

/// Chunks of the size that Talos sends.
pub(super) fn chunks(bytes: &[u8]) -> Answers<Data> {
    let chunks: Vec<_> = bytes
        .chunks(1024)
        .map(|chunk| {
            Ok(Data {
                metadata: None,
                bytes: chunk.to_vec(),
            })
        })
        .collect();
    Box::pin(futures::stream::iter(chunks))
}

/// The members, by this node's own etcd or by any with a leader.
pub(super) async fn member_list(node: &Arc<Node>, local: bool) -> Result<Vec<Member>, EtcdError> {
    let cluster = node
        .cluster()
        .ok_or_else(|| EtcdError::Silent("the simulation is over".to_owned()))?;
    if local {
        return cluster.etcd.members(&node.client_url(), false).await;
    }
    let url = cluster.etcd_with_leader(node, None).await?;
    cluster.etcd.members(&url, true).await
}

pub(super) fn member(member: Member) -> EtcdMember {
    EtcdMember {
        id: member.number,
        hostname: member.name,
        peer_urls: member.peer_urls,
        client_urls: member.client_urls,
        is_learner: member.learner,
    }
}

pub(super) fn alarms(raised: Vec<Alarm>) -> Vec<EtcdMemberAlarm> {
    let alarm = |alarm: Alarm| EtcdMemberAlarm {
        member_id: alarm.member_id,
        alarm: match alarm.alarm.as_str() {
            "NOSPACE" => AlarmType::Nospace,
            "CORRUPT" => AlarmType::Corrupt,
            _ => AlarmType::None,
        }
        .into(),
    };
    raised.into_iter().map(alarm).collect()
}

pub(super) fn member_status(status: MemberStatus) -> EtcdMemberStatus {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    EtcdMemberStatus {
        protocol_version: status.version,
        db_size: signed(status.db_size),
        db_size_in_use: signed(status.db_size_in_use),
        leader: status.leader,
        raft_index: status.raft_index,
        raft_term: status.raft_term,
        raft_applied_index: status.raft_applied_index,
        errors: status.errors,
        is_learner: status.learner,
        member_id: status.member_id,
        storage_version: status.storage_version,
    }
}

/// Moves leadership to the first other member of the list, learners included: so Talos does it,
/// and fails where that is one. The new leader's name; empty where this node does not lead.
pub(super) async fn forfeit(node: &Arc<Node>) -> Result<String, Status> {
    let cluster = node.cluster().ok_or_else(over)?;
    let url = node.client_url();
    let status = cluster.etcd.status(&url).await.map_err(etcd_status)?;
    if status.leader != status.member_id {
        return Ok(String::new());
    }
    let members = cluster
        .etcd
        .members(&url, true)
        .await
        .map_err(etcd_status)?;
    let other = members
        .into_iter()
        .find(|member| member.number != status.member_id)
        .ok_or_else(|| Status::unknown("can't forfeit leadership, only one member"))?;
    cluster
        .etcd
        .move_leader(&url, other.number)
        .await
        .map_err(etcd_status)?;
    Ok(other.name)
}

/// In maintenance: the machine takes the configuration and goes on booting. Later: taken and kept,
/// with no effect here.
pub(super) fn apply(
    caller: &Caller,
    wanted: &ApplyConfigurationRequest,
) -> Result<ApplyConfigurationResponse, Status> {
    if wanted.data.is_empty() {
        return Err(Status::invalid_argument("the configuration is empty"));
    }
    let recent = caller.node.version() >= TalosVersion::V1_14;
    let mode = match wanted.mode() {
        Mode::Reboot if recent && caller.configured => {
            return Err(Status::unimplemented(
                "apply configuration with reboot is not supported",
            ));
        }
        Mode::Auto | Mode::Reboot if recent || !caller.configured => Mode::NoReboot,
        mode => mode,
    };
    if !caller.configured && !wanted.dry_run {
        caller.node.configure();
    }
    Ok(ApplyConfigurationResponse {
        messages: vec![ApplyConfiguration {
            metadata: None,
            warnings: Vec::new(),
            mode: mode.into(),
            mode_details: "Applied configuration without a reboot".to_owned(),
        }],
    })
}

/// What the handler of a reset refuses by itself (facts: talos.md 3.1).
pub(super) fn check_reset(node: &Node, request: &ResetRequest) -> Result<(), Status> {
    if !request.user_disks_to_wipe.is_empty() {
        if request.mode() == WipeMode::SystemDisk {
            return Err(Status::unknown(
                "reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter",
            ));
        }
        return Err(Status::unknown(format!(
            "block device {} is not found",
            request.user_disks_to_wipe[0]
        )));
    }
    if request.mode() == WipeMode::UserDisks && !request.system_partitions_to_wipe.is_empty() {
        return Err(Status::unknown(
            "reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter",
        ));
    }
    let volumes = super::cosi::volumes(node);
    for partition in &request.system_partitions_to_wipe {
        let Some(volume) = volumes.iter().find(|volume| volume.id == partition.label) else {
            return Err(Status::unknown(format!(
                "failed to get volume status with label {:?}: resource VolumeStatuses.block.talos.dev(runtime/{}) doesn't exist",
                partition.label, partition.label
            )));
        };
        let with_parent = request.system_partitions_to_wipe.iter().any(|other| {
            other.wipe && !volume.spec.parent_id.is_empty() && other.label == volume.spec.parent_id
        });
        if volume.spec.location.is_empty() && !with_parent {
            return Err(Status::unknown(format!(
                "failed to reset: volume {:?} is not located",
                partition.label
            )));
        }
    }
    Ok(())
}

/// The services of a machine.
pub(super) fn services(node: &Node, configured: bool) -> Vec<ServiceInfo> {
    let service = |id: &str, state: &str, healthy: Option<bool>, message: &str| ServiceInfo {
        id: id.to_owned(),
        state: state.to_owned(),
        events: Some(ServiceEvents {
            events: vec![ServiceEvent {
                msg: message.to_owned(),
                state: state.to_owned(),
                ts: None,
            }],
        }),
        health: Some(ServiceHealth {
            unknown: healthy.is_none(),
            healthy: healthy.unwrap_or_default(),
            last_message: if healthy.is_some() {
                message.to_owned()
            } else {
                String::new()
            },
            last_change: None,
        }),
    };
    let running = |id: &str| service(id, "Running", Some(true), "Health check successful");
    let mut services = vec![
        running("apid"),
        running("containerd"),
        running("machined"),
        running("udevd"),
    ];
    if !configured {
        return services;
    }
    services.push(running("cri"));
    let kubelet = lock(&node.inner).kubelet;
    services.push(if kubelet {
        running("kubelet")
    } else {
        service("kubelet", "Finished", None, "Service finished successfully")
    });
    if node.role == Role::ControlPlane {
        services.push(running("trustd"));
        let (state, healthy, message) = node.etcd.view();
        services.push(service("etcd", state.name(), healthy, &message));
    }
    services.sort_by(|a, b| a.id.cmp(&b.id));
    services
}
