//! `MachineService` on a simulated machine.

use std::sync::Arc;

use futures::StreamExt as _;
use ichor_talos::proto::common::Data;
use ichor_talos::proto::machine::machine_service_server::MachineService;
use ichor_talos::proto::machine::*;
use ichor_talos::proto::specs::MachineStage;
use serde_json::json;
use tokio_stream::wrappers::BroadcastStream;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{Access, Answers, Apid, Caller, requests};
use crate::sim::etcd::{EtcdError, Member, MemberStatus};
use crate::sim::etcd_service::Start;
use crate::sim::lock;
use crate::sim::node::{Node, Role, uuid};
use crate::sim::options::TalosVersion;

/// etcd's own errors pass through Talos without their codes (facts: talos.md 4.1).
fn etcd_status(error: EtcdError) -> Status {
    match error {
        EtcdError::Refused(text) => Status::unknown(text),
        EtcdError::Silent(_) => Status::unknown("context deadline exceeded"),
    }
}

fn over() -> Status {
    Status::unavailable("the simulation is over")
}

/// Chunks of the size that Talos sends.
fn chunks(bytes: &[u8]) -> Answers<Data> {
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

#[async_trait]
impl MachineService for Apid {
    async fn version(&self, request: Request<()>) -> Result<Response<VersionResponse>, Status> {
        self.call(
            "Version",
            Access::Read,
            &request,
            json!({}),
            |caller| async move {
                Ok(VersionResponse {
                    messages: vec![Version {
                        metadata: None,
                        version: Some(VersionInfo {
                            tag: caller.node.version().tag().to_owned(),
                            sha: "simulated".to_owned(),
                            os: "linux".to_owned(),
                            arch: "amd64".to_owned(),
                            ..VersionInfo::default()
                        }),
                        platform: Some(PlatformInfo {
                            name: "metal".to_owned(),
                            mode: "metal".to_owned(),
                        }),
                        features: caller.configured.then_some(FeaturesInfo { rbac: true }),
                    }],
                })
            },
        )
        .await
    }

    async fn hostname(&self, request: Request<()>) -> Result<Response<HostnameResponse>, Status> {
        self.call(
            "Hostname",
            Access::Read,
            &request,
            json!({}),
            |caller| async move {
                Ok(HostnameResponse {
                    messages: vec![Hostname {
                        metadata: None,
                        hostname: caller.node.name.clone(),
                    }],
                })
            },
        )
        .await
    }

    async fn system_stat(
        &self,
        request: Request<()>,
    ) -> Result<Response<SystemStatResponse>, Status> {
        self.call(
            "SystemStat",
            Access::Read,
            &request,
            json!({}),
            |caller| async move {
                let boot_time = lock(&caller.node.inner).boot_time;
                Ok(SystemStatResponse {
                    messages: vec![SystemStat {
                        metadata: None,
                        boot_time,
                    }],
                })
            },
        )
        .await
    }

    async fn service_list(
        &self,
        request: Request<()>,
    ) -> Result<Response<ServiceListResponse>, Status> {
        self.call(
            "ServiceList",
            Access::Read,
            &request,
            json!({}),
            |caller| async move {
                Ok(ServiceListResponse {
                    messages: vec![ServiceList {
                        metadata: None,
                        services: services(&caller.node, caller.configured),
                    }],
                })
            },
        )
        .await
    }

    type EventsStream = Answers<Event>;

    async fn events(
        &self,
        request: Request<EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        let wanted = request.get_ref().clone();
        let written = requests::events(&wanted);
        self.call(
            "Events",
            Access::Read,
            &request,
            written,
            |caller| async move {
                let (past, coming) = lock(&caller.node.inner).events.subscribe(&wanted);
                // An empty event first: the stream stands, and nothing after it is missed.
                let hello = futures::stream::iter([Ok(Event::default())]);
                let past = futures::stream::iter(past.into_iter().map(Ok));
                // Who reads too slowly is cut off without a word.
                let coming = BroadcastStream::new(coming)
                    .take_while(|event| std::future::ready(event.is_ok()))
                    .filter_map(|event| std::future::ready(event.ok().map(Ok)));
                let actor = wanted.with_actor_id;
                let stream = hello.chain(past.chain(coming).filter(
                    move |event: &Result<Event, Status>| {
                        let wanted = actor.is_empty()
                            || event.as_ref().is_ok_and(|event| event.actor_id == actor);
                        std::future::ready(wanted)
                    },
                ));
                let stream: Self::EventsStream = Box::pin(stream);
                Ok(stream)
            },
        )
        .await
    }

    type ReadStream = Answers<Data>;

    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let path = request.get_ref().path.clone();
        let written = requests::read(request.get_ref());
        self.call(
            "Read",
            Access::Admin,
            &request,
            written,
            |caller| async move {
                if path != "/proc/sys/kernel/random/boot_id" {
                    return Err(Status::unknown(format!(
                        "stat {path}: no such file or directory"
                    )));
                }
                let boot_id = lock(&caller.node.inner).boot_id.clone();
                Ok(chunks(format!("{boot_id}\n").as_bytes()))
            },
        )
        .await
    }

    async fn etcd_member_list(
        &self,
        request: Request<EtcdMemberListRequest>,
    ) -> Result<Response<EtcdMemberListResponse>, Status> {
        let local = request.get_ref().query_local;
        let written = requests::member_list(*request.get_ref());
        self.call(
            "EtcdMemberList",
            Access::EtcdRead,
            &request,
            written,
            move |caller| async move {
                let node = caller.control_plane()?;
                let lie = lock(&node.inner).lying_list.clone();
                let members = match lie {
                    Some(members) => members,
                    None => member_list(node, local)
                        .await
                        .map_err(etcd_status)?
                        .into_iter()
                        .map(member)
                        .collect(),
                };
                Ok(EtcdMemberListResponse {
                    messages: vec![EtcdMembers {
                        metadata: None,
                        legacy_members: Vec::new(),
                        members,
                    }],
                })
            },
        )
        .await
    }

    async fn etcd_status(
        &self,
        request: Request<()>,
    ) -> Result<Response<EtcdStatusResponse>, Status> {
        self.call(
            "EtcdStatus",
            Access::EtcdRead,
            &request,
            json!({}),
            |caller| async move {
                let node = caller.control_plane()?;
                let cluster = node.cluster().ok_or_else(over)?;
                let status = cluster
                    .etcd
                    .status(&node.client_url())
                    .await
                    .map_err(etcd_status)?;
                Ok(EtcdStatusResponse {
                    messages: vec![EtcdStatus {
                        metadata: None,
                        member_status: Some(member_status(status)),
                    }],
                })
            },
        )
        .await
    }

    async fn etcd_alarm_list(
        &self,
        request: Request<()>,
    ) -> Result<Response<EtcdAlarmListResponse>, Status> {
        use etcd_member_alarm::AlarmType;
        self.call(
            "EtcdAlarmList",
            Access::EtcdRead,
            &request,
            json!({}),
            |caller| async move {
                let node = caller.control_plane()?;
                let cluster = node.cluster().ok_or_else(over)?;
                let alarms = cluster
                    .etcd
                    .alarms(&node.client_url())
                    .await
                    .map_err(etcd_status)?;
                let member_alarms = alarms
                    .into_iter()
                    .map(|alarm| EtcdMemberAlarm {
                        member_id: alarm.member_id,
                        alarm: match alarm.alarm.as_str() {
                            "NOSPACE" => AlarmType::Nospace,
                            "CORRUPT" => AlarmType::Corrupt,
                            _ => AlarmType::None,
                        }
                        .into(),
                    })
                    .collect();
                Ok(EtcdAlarmListResponse {
                    messages: vec![EtcdAlarm {
                        metadata: None,
                        member_alarms,
                    }],
                })
            },
        )
        .await
    }

    type EtcdSnapshotStream = Answers<Data>;

    async fn etcd_snapshot(
        &self,
        request: Request<EtcdSnapshotRequest>,
    ) -> Result<Response<Self::EtcdSnapshotStream>, Status> {
        self.call(
            "EtcdSnapshot",
            Access::Snapshot,
            &request,
            json!({}),
            |caller| async move {
                let node = caller.control_plane()?;
                let cluster = node.cluster().ok_or_else(over)?;
                let database = cluster
                    .etcd
                    .snapshot(&node.client_url())
                    .await
                    .map_err(etcd_status)?;
                Ok(chunks(&database))
            },
        )
        .await
    }

    async fn etcd_recover(
        &self,
        request: Request<Streaming<Data>>,
    ) -> Result<Response<EtcdRecoverResponse>, Status> {
        self.call(
            "EtcdRecover",
            Access::Admin,
            &request,
            json!({}),
            |caller| async move {
                caller.control_plane()?;
                Err(Status::unimplemented(
                    "the simulation restores no snapshots",
                ))
            },
        )
        .await
    }

    async fn etcd_remove_member_by_id(
        &self,
        request: Request<EtcdRemoveMemberByIdRequest>,
    ) -> Result<Response<EtcdRemoveMemberByIdResponse>, Status> {
        let id = request.get_ref().member_id;
        let written = requests::remove_member(*request.get_ref());
        self.call(
            "EtcdRemoveMemberByID",
            Access::Admin,
            &request,
            written,
            move |caller| async move {
                let node = caller.control_plane()?;
                let cluster = node.cluster().ok_or_else(over)?;
                let url = cluster
                    .etcd_with_leader(node, Some(id))
                    .await
                    .map_err(etcd_status)?;
                match cluster.etcd.remove(&url, id).await {
                    Ok(()) => Ok(EtcdRemoveMemberByIdResponse {
                        messages: vec![EtcdRemoveMemberById { metadata: None }],
                    }),
                    Err(error) if error.is_member_not_found() => {
                        Err(Status::not_found(error.to_string()))
                    }
                    Err(error) => Err(etcd_status(error)),
                }
            },
        )
        .await
    }

    async fn etcd_leave_cluster(
        &self,
        request: Request<EtcdLeaveClusterRequest>,
    ) -> Result<Response<EtcdLeaveClusterResponse>, Status> {
        self.call(
            "EtcdLeaveCluster",
            Access::Admin,
            &request,
            json!({}),
            |caller| async move {
                let node = caller.control_plane()?;
                node.etcd.leave(node).await.map_err(Status::unknown)?;
                Ok(EtcdLeaveClusterResponse {
                    messages: vec![EtcdLeaveCluster { metadata: None }],
                })
            },
        )
        .await
    }

    async fn etcd_forfeit_leadership(
        &self,
        request: Request<EtcdForfeitLeadershipRequest>,
    ) -> Result<Response<EtcdForfeitLeadershipResponse>, Status> {
        self.call(
            "EtcdForfeitLeadership",
            Access::Admin,
            &request,
            json!({}),
            |caller| async move {
                let node = caller.control_plane()?;
                let member = forfeit(node).await?;
                Ok(EtcdForfeitLeadershipResponse {
                    messages: vec![EtcdForfeitLeadership {
                        metadata: None,
                        member,
                    }],
                })
            },
        )
        .await
    }

    async fn apply_configuration(
        &self,
        request: Request<ApplyConfigurationRequest>,
    ) -> Result<Response<ApplyConfigurationResponse>, Status> {
        let wanted = request.get_ref().clone();
        let written = requests::apply(&wanted);
        self.call(
            "ApplyConfiguration",
            Access::Apply,
            &request,
            written,
            |caller| async move { apply(&caller, &wanted) },
        )
        .await
    }

    async fn bootstrap(
        &self,
        request: Request<BootstrapRequest>,
    ) -> Result<Response<BootstrapResponse>, Status> {
        let wanted = *request.get_ref();
        let written = requests::bootstrap(wanted);
        self.call(
            "Bootstrap",
            Access::Admin,
            &request,
            written,
            move |caller| async move {
                let node = caller.control_plane()?;
                if wanted.recover_etcd {
                    return Err(Status::unimplemented(
                        "the simulation restores no snapshots",
                    ));
                }
                if node.etcd.has_data() {
                    return Err(Status::already_exists("etcd data directory is not empty"));
                }
                let start = Start::New(vec![(node.name.clone(), node.peer_url())]);
                node.etcd.start(node, start);
                Ok(BootstrapResponse {
                    messages: vec![Bootstrap { metadata: None }],
                })
            },
        )
        .await
    }

    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        let wanted = request.get_ref().clone();
        let written = requests::reset(&wanted);
        self.call(
            "Reset",
            Access::Admin,
            &request,
            written,
            |caller| async move {
                check_reset(&caller.node, &wanted)?;
                let actor_id = uuid();
                caller.node.start_sequence(
                    "reset",
                    &actor_id,
                    false,
                    MachineStage::Resetting,
                    |run| Node::reset(run, wanted),
                );
                Ok(ResetResponse {
                    messages: vec![Reset {
                        metadata: None,
                        actor_id,
                    }],
                })
            },
        )
        .await
    }

    async fn reboot(
        &self,
        request: Request<RebootRequest>,
    ) -> Result<Response<RebootResponse>, Status> {
        let wanted = *request.get_ref();
        let written = requests::reboot(wanted);
        self.call(
            "Reboot",
            Access::Operate,
            &request,
            written,
            move |caller| async move {
                let actor_id = uuid();
                let power_cycle = wanted.mode() == reboot_request::Mode::Powercycle;
                caller.node.start_sequence(
                    "reboot",
                    &actor_id,
                    false,
                    MachineStage::Rebooting,
                    move |run| Node::reboot(run, power_cycle),
                );
                Ok(RebootResponse {
                    messages: vec![Reboot {
                        metadata: None,
                        actor_id,
                    }],
                })
            },
        )
        .await
    }

    async fn shutdown(
        &self,
        request: Request<ShutdownRequest>,
    ) -> Result<Response<ShutdownResponse>, Status> {
        let written = requests::shutdown(*request.get_ref());
        self.call(
            "Shutdown",
            Access::Operate,
            &request,
            written,
            |caller| async move {
                let actor_id = uuid();
                caller.node.start_sequence(
                    "shutdown",
                    &actor_id,
                    true,
                    MachineStage::ShuttingDown,
                    Node::shutdown,
                );
                Ok(ShutdownResponse {
                    messages: vec![Shutdown {
                        metadata: None,
                        actor_id,
                    }],
                })
            },
        )
        .await
    }

    async fn rollback(
        &self,
        request: Request<RollbackRequest>,
    ) -> Result<Response<RollbackResponse>, Status> {
        self.call("Rollback", Access::Admin, &request, json!({}), |_| async {
            Err(Status::unknown("no boot entry to roll back to"))
        })
        .await
    }

    async fn upgrade(
        &self,
        request: Request<UpgradeRequest>,
    ) -> Result<Response<UpgradeResponse>, Status> {
        let written = requests::upgrade(request.get_ref());
        self.call("Upgrade", Access::Admin, &request, written, |_| async {
            Err(Status::failed_precondition(
                "the simulated machine is not installed from an image",
            ))
        })
        .await
    }
}

/// The members, by this node's own etcd or by any with a leader.
async fn member_list(node: &Arc<Node>, local: bool) -> Result<Vec<Member>, EtcdError> {
    let cluster = node
        .cluster()
        .ok_or_else(|| EtcdError::Silent("the simulation is over".to_owned()))?;
    if local {
        return cluster.etcd.members(&node.client_url(), false).await;
    }
    let url = cluster.etcd_with_leader(node, None).await?;
    cluster.etcd.members(&url, true).await
}

fn member(member: Member) -> EtcdMember {
    EtcdMember {
        id: member.number,
        hostname: member.name,
        peer_urls: member.peer_urls,
        client_urls: member.client_urls,
        is_learner: member.learner,
    }
}

fn member_status(status: MemberStatus) -> EtcdMemberStatus {
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
async fn forfeit(node: &Arc<Node>) -> Result<String, Status> {
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
fn apply(
    caller: &Caller,
    wanted: &ApplyConfigurationRequest,
) -> Result<ApplyConfigurationResponse, Status> {
    use apply_configuration_request::Mode;
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
fn check_reset(node: &Node, request: &ResetRequest) -> Result<(), Status> {
    use reset_request::WipeMode;
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
