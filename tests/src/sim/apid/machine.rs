//! `MachineService` on a simulated machine.

use futures::StreamExt as _;
use ichor_talos::proto::common::Data;
use ichor_talos::proto::machine::machine_service_server::MachineService;
#[allow(
    clippy::wildcard_imports,
    reason = "the service's trait names nearly all of them"
)]
use ichor_talos::proto::machine::*;
use ichor_talos::proto::specs::MachineStage;
use serde_json::json;
use tokio_stream::wrappers::BroadcastStream;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::answers::{
    alarms, apply, check_reset, chunks, etcd_status, forfeit, member, member_list, member_status,
    over, services,
};
use super::{Access, Answers, Apid, requests};
use crate::sim::etcd_service::Start;
use crate::sim::lock;
use crate::sim::node::{Node, uuid};

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
        self.call(
            "EtcdAlarmList",
            Access::EtcdRead,
            &request,
            json!({}),
            |caller| async move {
                let node = caller.control_plane()?;
                let cluster = node.cluster().ok_or_else(over)?;
                let raised = cluster
                    .etcd
                    .alarms(&node.client_url())
                    .await
                    .map_err(etcd_status)?;
                let member_alarms = alarms(raised);
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
