//! Talos' resources on a simulated machine (facts: talos.md 2.7).

use ichor_talos::proto::cosi::state_server::State;
use ichor_talos::proto::cosi::{
    GetRequest, GetResponse, ListRequest, ListResponse, Metadata, Resource, Spec, WatchRequest,
    WatchResponse,
};
use ichor_talos::proto::specs::{self, VolumePhase, VolumeType};
use prost::Message;
use tonic::{Request, Response, Status, async_trait};

use super::{Access, Answers, Apid, Caller, requests};
use crate::sim::lock;
use crate::sim::node::{Node, Role};
use crate::sim::options::TalosVersion;

#[async_trait]
impl State for Apid {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let wanted = request.get_ref().clone();
        let written = requests::get(&wanted);
        self.call(
            "Get",
            Access::Read,
            &request,
            written,
            |caller| async move {
                let resource = resources(&caller, &wanted.namespace, &wanted.r#type)?
                    .into_iter()
                    .find(|resource| {
                        resource
                            .metadata
                            .as_ref()
                            .is_some_and(|metadata| metadata.id == wanted.id)
                    });
                match resource {
                    Some(resource) => Ok(GetResponse {
                        resource: Some(resource),
                    }),
                    None => Err(Status::not_found(format!(
                        "resource {}({}/{}) doesn't exist",
                        wanted.r#type, wanted.namespace, wanted.id
                    ))),
                }
            },
        )
        .await
    }

    type ListStream = Answers<ListResponse>;

    async fn list(
        &self,
        request: Request<ListRequest>,
    ) -> Result<Response<Self::ListStream>, Status> {
        let wanted = request.get_ref().clone();
        let written = requests::list(&wanted);
        self.call(
            "List",
            Access::Read,
            &request,
            written,
            |caller| async move {
                let answers = resources(&caller, &wanted.namespace, &wanted.r#type)?
                    .into_iter()
                    .map(|resource| {
                        Ok(ListResponse {
                            resource: Some(resource),
                        })
                    });
                let stream: Self::ListStream =
                    Box::pin(futures::stream::iter(answers.collect::<Vec<_>>()));
                Ok(stream)
            },
        )
        .await
    }

    type WatchStream = Answers<WatchResponse>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let written = requests::watch(request.get_ref());
        self.call("Watch", Access::Read, &request, written, |_| async {
            Err(Status::unimplemented(
                "the simulation has no watches of resources",
            ))
        })
        .await
    }
}

/// All resources of a type that there are now; an unknown type is refused, as Talos does.
fn resources(caller: &Caller, namespace: &str, kind: &str) -> Result<Vec<Resource>, Status> {
    let node = &caller.node;
    let make = |id: &str, proto: Vec<u8>, yaml: String| resource(namespace, kind, id, proto, yaml);
    let one = |id: &str, proto: Vec<u8>, yaml: String| Ok(vec![make(id, proto, yaml)]);
    let none = || Ok(Vec::new());
    match (namespace, kind) {
        ("hardware", "SystemInformations.hardware.talos.dev") => {
            let spec = specs::SystemInformation {
                manufacturer: "Simulated".to_owned(),
                product_name: "Machine".to_owned(),
                serial_number: node.name.clone(),
                uuid: node.hardware_uuid.clone(),
                ..specs::SystemInformation::default()
            };
            let yaml = format!(
                "manufacturer: Simulated\nproductName: Machine\nserialnumber: {}\nuuid: {}\n",
                spec.serial_number, spec.uuid
            );
            one("systeminformation", spec.encode_to_vec(), yaml)
        }
        ("runtime", "MachineStatuses.runtime.talos.dev") => {
            let (stage, ready) = {
                let inner = lock(&node.inner);
                (inner.stage, inner.ready)
            };
            let etcd_down = caller.configured && node.is_control_plane() && !node.etcd.is_healthy();
            let unmet = if etcd_down {
                vec![specs::UnmetCondition {
                    name: "services".to_owned(),
                    reason: "etcd not healthy".to_owned(),
                }]
            } else {
                Vec::new()
            };
            let ready = ready && unmet.is_empty();
            let spec = specs::MachineStatus {
                stage: stage.into(),
                status: Some(specs::MachineReadiness {
                    ready,
                    unmet_conditions: unmet,
                }),
            };
            let yaml = format!(
                "stage: {}\nstatus:\n    ready: {ready}\n    unmetConditions: []\n",
                ichor_talos::Stage::from(i32::from(stage))
            );
            one("machine", spec.encode_to_vec(), yaml)
        }
        ("runtime", "Versions.runtime.talos.dev") => {
            let version = node.version().tag();
            let spec = specs::Version {
                version: version.to_owned(),
                name: "Talos".to_owned(),
            };
            one(
                "version",
                spec.encode_to_vec(),
                format!("version: {version}\nname: Talos\n"),
            )
        }
        ("runtime", "BootIDs.runtime.talos.dev") if node.version() >= TalosVersion::V1_14 => {
            let boot_id = lock(&node.inner).boot_id.clone();
            let yaml = format!("bootID: {boot_id}\n");
            one("boot-id", specs::BootId { boot_id }.encode_to_vec(), yaml)
        }
        ("runtime", "KernelCmdlines.runtime.talos.dev") => {
            let mut cmdline = "talos.platform=metal console=ttyS0 init_on_alloc=1".to_owned();
            if lock(&node.inner).platform_config {
                cmdline.push_str(" talos.config=https://boot.invalid/config.yaml");
            }
            let yaml = format!("cmdline: {cmdline}\n");
            one(
                "cmdline",
                specs::KernelCmdline { cmdline }.encode_to_vec(),
                yaml,
            )
        }
        ("runtime", "PlatformMetadatas.talos.dev") => {
            let spec = specs::PlatformMetadata {
                platform: "metal".to_owned(),
                hostname: node.name.clone(),
                ..specs::PlatformMetadata::default()
            };
            let yaml = format!("platform: metal\nhostname: {}\n", node.name);
            one("platformmetadata", spec.encode_to_vec(), yaml)
        }
        ("runtime", "SystemDisks.block.talos.dev") => {
            if lock(&node.inner).disk.broken {
                return none();
            }
            let spec = specs::SystemDisk {
                disk_id: "sda".to_owned(),
                dev_path: "/dev/sda".to_owned(),
            };
            one(
                "system-disk",
                spec.encode_to_vec(),
                "diskID: sda\ndevPath: /dev/sda\n".to_owned(),
            )
        }
        ("runtime", "VolumeStatuses.block.talos.dev") => Ok(volumes(node)
            .into_iter()
            .map(|volume| {
                let yaml = format!(
                    "phase: {}\ntype: {}\nlocation: {}\nparentID: {}\n",
                    volume.spec.phase().as_str_name().to_lowercase(),
                    volume.spec.r#type().as_str_name().to_lowercase(),
                    volume.spec.location,
                    volume.spec.parent_id
                );
                make(volume.id, volume.spec.encode_to_vec(), yaml)
            })
            .collect()),
        ("runtime", "Services.v1alpha1.talos.dev") => {
            Ok(super::answers::services(node, caller.configured)
                .into_iter()
                .filter(|service| service.state == "Running")
                .map(|service| {
                    let health = service.health.unwrap_or_default();
                    let spec = specs::Service {
                        running: true,
                        healthy: health.healthy,
                        unknown: health.unknown,
                    };
                    let yaml = format!(
                        "running: true\nhealthy: {}\nunknown: {}\n",
                        spec.healthy, spec.unknown
                    );
                    make(&service.id, spec.encode_to_vec(), yaml)
                })
                .collect())
        }
        ("network", "HostnameStatuses.net.talos.dev") => {
            let spec = specs::HostnameStatus {
                hostname: node.name.clone(),
                domainname: String::new(),
            };
            one(
                "hostname",
                spec.encode_to_vec(),
                format!("hostname: {}\ndomainname: \"\"\n", node.name),
            )
        }
        ("config", "MachineTypes.config.talos.dev") => {
            if !caller.configured {
                return none();
            }
            let (role, yaml) = match node.role {
                Role::ControlPlane => (specs::MachineRole::ControlPlane, "controlplane"),
                Role::Worker => (specs::MachineRole::Worker, "worker"),
            };
            let spec = specs::MachineType {
                machine_type: role.into(),
            };
            one("machine-type", spec.encode_to_vec(), format!("{yaml}\n"))
        }
        ("cluster", "Identities.cluster.talos.dev") => {
            let Some(node_id) = lock(&node.inner).disk.node_id.clone() else {
                return none();
            };
            let yaml = format!("nodeId: {node_id}\n");
            one("local", specs::Identity { node_id }.encode_to_vec(), yaml)
        }
        ("k8s", "Nodenames.kubernetes.talos.dev") => {
            if !caller.configured {
                return none();
            }
            let spec = specs::Nodename {
                nodename: node.name.clone(),
                hostname_version: "1".to_owned(),
                skip_node_registration: false,
            };
            let yaml = format!(
                "nodename: {}\nhostnameVersion: \"1\"\nskipNodeRegistration: false\n",
                node.name
            );
            one("nodename", spec.encode_to_vec(), yaml)
        }
        // Only while the local etcd is healthy: the source of the worst trap of a graceful reset.
        ("etcd", "EtcdMembers.etcd.talos.dev") => match node.etcd.member_id() {
            Some(id) if caller.configured => {
                let member_id = format!("{id:016x}");
                let yaml = format!("memberID: {member_id}\n");
                one(
                    "local",
                    specs::EtcdMember { member_id }.encode_to_vec(),
                    yaml,
                )
            }
            _ => none(),
        },
        ("config", "MachineConfigs.config.talos.dev") if caller.admin => none(),
        _ => Err(Status::permission_denied(format!(
            "no access is permitted to resource {kind} in namespace {namespace}"
        ))),
    }
}

/// A volume of a machine.
pub(super) struct Volume {
    pub(super) id: &'static str,
    pub(super) spec: specs::VolumeStatus,
}

/// What lies on the machine's disk now.
pub(super) fn volumes(node: &Node) -> Vec<Volume> {
    let (state, ephemeral, broken) = {
        let inner = lock(&node.inner);
        (
            inner.disk.node_id.is_some(),
            inner.disk.ephemeral,
            inner.disk.broken,
        )
    };
    let partition = |id: &'static str, index: i64, there: bool| {
        let phase = match (broken, there) {
            (true, _) => VolumePhase::Failed,
            (false, true) => VolumePhase::Ready,
            (false, false) => VolumePhase::Missing,
        };
        let located = phase == VolumePhase::Ready;
        Volume {
            id,
            spec: specs::VolumeStatus {
                phase: phase.into(),
                location: if located {
                    format!("/dev/sda{index}")
                } else {
                    String::new()
                },
                parent_location: if located {
                    "/dev/sda".to_owned()
                } else {
                    String::new()
                },
                partition_index: if located { index } else { 0 },
                r#type: VolumeType::Partition.into(),
                ..specs::VolumeStatus::default()
            },
        }
    };
    let mut volumes = vec![
        partition("META", 3, true),
        partition("STATE", 4, state),
        partition("EPHEMERAL", 5, ephemeral),
    ];
    if node.version() >= TalosVersion::V1_14 {
        for id in ["ETCD", "CRI", "KUBELET", "LOG"] {
            if id == "ETCD" && node.has_etcd_partition() {
                volumes.push(partition(id, 6, ephemeral || node.etcd.has_data()));
                continue;
            }
            volumes.push(Volume {
                id,
                spec: specs::VolumeStatus {
                    phase: if ephemeral {
                        VolumePhase::Ready
                    } else {
                        VolumePhase::Waiting
                    }
                    .into(),
                    r#type: VolumeType::Directory.into(),
                    parent_id: "EPHEMERAL".to_owned(),
                    ..specs::VolumeStatus::default()
                },
            });
        }
    }
    volumes
}

fn resource(
    namespace: &str,
    kind: &str,
    id: &str,
    proto_spec: Vec<u8>,
    yaml_spec: String,
) -> Resource {
    let now = prost_types::Timestamp {
        seconds: jiff::Timestamp::now().as_second(),
        nanos: 0,
    };
    Resource {
        metadata: Some(Metadata {
            namespace: namespace.to_owned(),
            r#type: kind.to_owned(),
            id: id.to_owned(),
            version: "1".to_owned(),
            phase: "running".to_owned(),
            created: Some(now),
            updated: Some(now),
            ..Metadata::default()
        }),
        spec: Some(Spec {
            proto_spec,
            yaml_spec,
        }),
    }
}
