//! One node's API over mTLS: the reads.

use std::future::Future;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use prost::Message;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::address::NodeAddress;
use crate::config::TalosConfig;
use crate::error::{CallError, Kind, classify, late};
use crate::events::EventStream;
use crate::model::{
    AlarmKind, EtcdAlarm, EtcdMember, EtcdStatus, MachineStatus, MachineType, MemberId, Platform,
    PlatformConfig, Service, Snapshot, Stage, Version, Volume,
};
use crate::proto::cosi::state_client::StateClient;
use crate::proto::cosi::{GetRequest, ListRequest};
use crate::proto::machine::machine_service_client::MachineServiceClient;
use crate::proto::{cosi, machine, specs};
use crate::transport::{self, MAX_MESSAGE};

/// How long things may take. The irreversible calls have deadlines of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientOptions {
    /// To connect, TLS included. Shorter than `read_deadline`, so that an error can say which of the two it was.
    pub connect_timeout: Duration,
    /// For each read, connecting included. Spec section 3, live etcd: a node that does not answer
    /// within 5 s is not healthy.
    pub read_deadline: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(4),
            read_deadline: Duration::from_secs(5),
        }
    }
}

/// The API of one node. Cheap to clone; connects at the first call and again after the connection was lost.
#[derive(Debug, Clone)]
pub struct TalosClient {
    address: NodeAddress,
    channel: Channel,
    options: ClientOptions,
}

/// A resource's coordinates in Talos' state.
struct Coordinates {
    namespace: &'static str,
    kind: &'static str,
    id: &'static str,
}

const fn at(namespace: &'static str, kind: &'static str, id: &'static str) -> Coordinates {
    Coordinates {
        namespace,
        kind,
        id,
    }
}

impl TalosClient {
    /// A client of the node at `address` (`host[:port]`, port 50000 if none is given). Nothing is
    /// sent yet. Its certificate must carry the very host that is given here.
    pub fn connect(config: &TalosConfig, address: &str) -> Result<Self, CallError> {
        Self::connect_with(config, address, ClientOptions::default())
    }

    /// The same with other times.
    pub fn connect_with(
        config: &TalosConfig,
        address: &str,
        options: ClientOptions,
    ) -> Result<Self, CallError> {
        let address = NodeAddress::parse(address)
            .map_err(|error| CallError::Unreachable(error.to_string()))?;
        let channel = transport::channel(&address, config.tls(), options.connect_timeout)?;
        Ok(Self {
            address,
            channel,
            options,
        })
    }

    /// Where this client's node is.
    pub fn address(&self) -> &NodeAddress {
        &self.address
    }

    pub(crate) fn machine(&self) -> MachineServiceClient<Channel> {
        MachineServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    fn state(&self) -> StateClient<Channel> {
        StateClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// A call's name and node, for error texts.
    pub(crate) fn label(&self, method: &str) -> String {
        format!("{method} on {}", self.address)
    }

    /// A read under its deadline, its gRPC status kept.
    async fn raw<T>(
        &self,
        method: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Result<T, Status>, CallError> {
        match timeout(self.options.read_deadline, call).await {
            Ok(answer) => Ok(answer.map(Response::into_inner)),
            Err(_) => Err(late(
                Kind::Read,
                &self.label(method),
                self.options.read_deadline,
            )),
        }
    }

    /// A read under its deadline.
    async fn read<T>(
        &self,
        method: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        self.raw(method, call)
            .await?
            .map_err(|status| classify(Kind::Read, &self.label(method), &status))
    }

    /// A resource's spec, with the status of a failure kept.
    async fn get_raw<M: Message + Default>(
        &self,
        coordinates: &Coordinates,
    ) -> Result<Result<M, Status>, CallError> {
        let request = GetRequest {
            namespace: coordinates.namespace.to_owned(),
            r#type: coordinates.kind.to_owned(),
            id: coordinates.id.to_owned(),
            options: None,
        };
        let mut state = self.state();
        let answer = self.raw(coordinates.kind, state.get(request)).await?;
        match answer {
            Ok(answer) => self.decode(coordinates.kind, answer.resource).map(Ok),
            Err(status) => Ok(Err(status)),
        }
    }

    /// A resource's spec; none where there is no such resource now.
    async fn get<M: Message + Default>(
        &self,
        coordinates: &Coordinates,
    ) -> Result<Option<M>, CallError> {
        match self.get_raw(coordinates).await? {
            Ok(spec) => Ok(Some(spec)),
            Err(status) if status.source_is_none() && status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(classify(Kind::Read, &self.label(coordinates.kind), &status)),
        }
    }

    fn decode<M: Message + Default>(
        &self,
        kind: &str,
        resource: Option<cosi::Resource>,
    ) -> Result<M, CallError> {
        let spec = resource
            .and_then(|resource| resource.spec)
            .unwrap_or_default();
        M::decode(spec.proto_spec.as_slice())
            .map_err(|error| self.odd(kind, &format!("its spec cannot be decoded: {error}")))
    }

    /// An answer that makes no sense: it answered, and we may not act on it.
    fn odd(&self, method: &str, why: &str) -> CallError {
        CallError::Refused {
            code: Code::DataLoss,
            message: format!("{}: {why}", self.label(method)),
        }
    }

    /// The one element of an answer that Talos shapes as a list.
    fn one<T>(&self, method: &str, mut messages: Vec<T>) -> Result<T, CallError> {
        match (messages.pop(), messages.is_empty()) {
            (Some(message), true) => Ok(message),
            (Some(_), false) => Err(self.odd(method, "several nodes answered where one was asked")),
            (None, _) => Err(self.odd(method, "the answer is empty")),
        }
    }

    /// Release and platform.
    pub async fn version(&self) -> Result<Version, CallError> {
        let mut machine = self.machine();
        let answer = self.read("Version", machine.version(())).await?;
        let answer = self.one("Version", answer.messages)?;
        let platform = answer.platform.unwrap_or_default();
        Ok(Version {
            tag: answer.version.unwrap_or_default().tag,
            platform: platform.name,
            mode: platform.mode,
        })
    }

    /// Talos' own ID of this installation. It lies on STATE: wiped and configured again, a machine has another.
    pub async fn identity(&self) -> Result<String, CallError> {
        let coordinates = at("cluster", "Identities.cluster.talos.dev", "local");
        let identity: specs::Identity = self.get(&coordinates).await?.unwrap_or_default();
        if identity.node_id.is_empty() {
            Err(self.odd("Identity", "the node has no identity yet"))
        } else {
            Ok(identity.node_id)
        }
    }

    /// The kernel's ID of this boot. From 1.14 a resource; before, a file that needs `os:admin`.
    pub async fn boot_id(&self) -> Result<String, CallError> {
        let coordinates = at("runtime", "BootIDs.runtime.talos.dev", "boot-id");
        let id = match self.get_raw::<specs::BootId>(&coordinates).await? {
            Ok(boot) => boot.boot_id,
            // Releases without the type answer so, whatever the caller's roles.
            Err(status)
                if status.source_is_none()
                    && matches!(status.code(), Code::NotFound | Code::PermissionDenied) =>
            {
                String::from_utf8_lossy(&self.read_file("/proc/sys/kernel/random/boot_id").await?)
                    .trim()
                    .to_owned()
            }
            Err(status) => return Err(classify(Kind::Read, &self.label("BootID"), &status)),
        };
        if id.is_empty() {
            Err(self.odd("BootID", "the boot ID is empty"))
        } else {
            Ok(id)
        }
    }

    /// A small file of the node, whole. Needs `os:admin`.
    async fn read_file(&self, path: &str) -> Result<Vec<u8>, CallError> {
        let request = machine::ReadRequest {
            path: path.to_owned(),
        };
        let label = self.label("Read");
        let mut machine = self.machine();
        let read = async {
            let mut chunks = machine.read(request).await?.into_inner();
            let mut content = Vec::new();
            while let Some(chunk) = chunks.message().await? {
                content.extend_from_slice(&chunk.bytes);
            }
            Ok(content)
        };
        match timeout(self.options.read_deadline, read).await {
            Ok(content) => content.map_err(|status| classify(Kind::Read, &label, &status)),
            Err(_) => Err(late(Kind::Read, &label, self.options.read_deadline)),
        }
    }

    /// The board's own number, lower case; none where its firmware gives none.
    pub async fn hardware_uuid(&self) -> Result<Option<String>, CallError> {
        let coordinates = at(
            "hardware",
            "SystemInformations.hardware.talos.dev",
            "systeminformation",
        );
        let information: Option<specs::SystemInformation> = self.get(&coordinates).await?;
        Ok(information
            .map(|information| information.uuid.to_lowercase())
            .filter(|uuid| !uuid.is_empty()))
    }

    /// Stage and readiness.
    pub async fn machine_status(&self) -> Result<MachineStatus, CallError> {
        let coordinates = at("runtime", "MachineStatuses.runtime.talos.dev", "machine");
        let status: specs::MachineStatus = self.get(&coordinates).await?.unwrap_or_default();
        let readiness = status.status.unwrap_or_default();
        Ok(MachineStatus {
            stage: Stage::from(status.stage),
            ready: readiness.ready,
            unmet: readiness
                .unmet_conditions
                .into_iter()
                .map(|unmet| (unmet.name, unmet.reason))
                .collect(),
        })
    }

    /// What the machine is configured as.
    pub async fn machine_type(&self) -> Result<MachineType, CallError> {
        let coordinates = at("config", "MachineTypes.config.talos.dev", "machine-type");
        let kind: specs::MachineType = self.get(&coordinates).await?.unwrap_or_default();
        Ok(MachineType::from(kind.machine_type))
    }

    /// The Kubernetes node's name; none while Talos does not know it (or registers none).
    pub async fn node_name(&self) -> Result<Option<String>, CallError> {
        let coordinates = at("k8s", "Nodenames.kubernetes.talos.dev", "nodename");
        let name: Option<specs::Nodename> = self.get(&coordinates).await?;
        Ok(name
            .map(|name| name.nodename)
            .filter(|name| !name.is_empty()))
    }

    /// The host name, which is also the name of its etcd member.
    pub async fn hostname(&self) -> Result<String, CallError> {
        let mut machine = self.machine();
        let answer = self.read("Hostname", machine.hostname(())).await?;
        Ok(self.one("Hostname", answer.messages)?.hostname)
    }

    /// The ID of the node's own etcd member, as Talos has it: only while that etcd is healthy.
    pub async fn etcd_member_id_local(&self) -> Result<Option<MemberId>, CallError> {
        let coordinates = at("etcd", "EtcdMembers.etcd.talos.dev", "local");
        let Some(member) = self.get::<specs::EtcdMember>(&coordinates).await? else {
            return Ok(None);
        };
        let id = member
            .member_id
            .parse::<MemberId>()
            .map_err(|error| self.odd("EtcdMembers", &error.to_string()))?;
        Ok(Some(id))
    }

    /// The members of etcd: by this node's own member (`query_local`; stale on one that was
    /// removed), or by any member that has a leader.
    pub async fn etcd_members(&self, query_local: bool) -> Result<Vec<EtcdMember>, CallError> {
        let mut machine = self.machine();
        let request = machine::EtcdMemberListRequest { query_local };
        let answer = self
            .read("EtcdMemberList", machine.etcd_member_list(request))
            .await?;
        let list = self.one("EtcdMemberList", answer.messages)?;
        Ok(list.members.into_iter().map(EtcdMember::from).collect())
    }

    /// What this node's own etcd says of itself.
    pub async fn etcd_status(&self) -> Result<EtcdStatus, CallError> {
        let mut machine = self.machine();
        let answer = self.read("EtcdStatus", machine.etcd_status(())).await?;
        let status = self.one("EtcdStatus", answer.messages)?;
        status
            .member_status
            .map(EtcdStatus::from)
            .ok_or_else(|| self.odd("EtcdStatus", "the answer is empty"))
    }

    /// The alarms that this node's own etcd knows of.
    pub async fn etcd_alarms(&self) -> Result<Vec<EtcdAlarm>, CallError> {
        use machine::etcd_member_alarm::AlarmType;
        let mut machine = self.machine();
        let answer = self
            .read("EtcdAlarmList", machine.etcd_alarm_list(()))
            .await?;
        let alarms = answer
            .messages
            .into_iter()
            .flat_map(|message| message.member_alarms);
        Ok(alarms
            .filter_map(|alarm| {
                let kind = match AlarmType::try_from(alarm.alarm) {
                    Ok(AlarmType::None) => return None,
                    Ok(AlarmType::Nospace) => AlarmKind::NoSpace,
                    Ok(AlarmType::Corrupt) => AlarmKind::Corrupt,
                    Err(_) => AlarmKind::Other(alarm.alarm),
                };
                Some(EtcdAlarm {
                    member_id: MemberId(alarm.member_id),
                    kind,
                })
            })
            .collect())
    }

    /// The node's services.
    pub async fn services(&self) -> Result<Vec<Service>, CallError> {
        let mut machine = self.machine();
        let answer = self.read("ServiceList", machine.service_list(())).await?;
        let list = self.one("ServiceList", answer.messages)?;
        Ok(list.services.into_iter().map(Service::from).collect())
    }

    /// One service of the node (`etcd`, `kubelet`, …); none where it has no such service.
    pub async fn service(&self, id: &str) -> Result<Option<Service>, CallError> {
        Ok(self
            .services()
            .await?
            .into_iter()
            .find(|service| service.id == id))
    }

    /// The node's volumes.
    pub async fn volume_statuses(&self) -> Result<Vec<Volume>, CallError> {
        let kind = "VolumeStatuses.block.talos.dev";
        let request = ListRequest {
            namespace: "runtime".to_owned(),
            r#type: kind.to_owned(),
            options: None,
        };
        let label = self.label(kind);
        let mut state = self.state();
        let list = async {
            let mut answers = state.list(request).await?.into_inner();
            let mut resources = Vec::new();
            while let Some(answer) = answers.message().await? {
                resources.extend(answer.resource);
            }
            Ok(resources)
        };
        let resources = match timeout(self.options.read_deadline, list).await {
            Ok(resources) => resources.map_err(|status| classify(Kind::Read, &label, &status))?,
            Err(_) => return Err(late(Kind::Read, &label, self.options.read_deadline)),
        };
        resources
            .into_iter()
            .map(|resource| {
                let id = resource
                    .metadata
                    .as_ref()
                    .map(|metadata| metadata.id.clone())
                    .unwrap_or_default();
                let spec: specs::VolumeStatus = self.decode(kind, Some(resource))?;
                Ok(Volume {
                    id,
                    phase: specs::VolumePhase::try_from(spec.phase)
                        .unwrap_or(specs::VolumePhase::Waiting),
                    kind: specs::VolumeType::try_from(spec.r#type)
                        .unwrap_or(specs::VolumeType::External),
                    location: spec.location,
                    parent: spec.parent_id,
                })
            })
            .collect()
    }

    /// The platform, and whether a configuration comes from it when the machine's own is wiped.
    pub async fn platform(&self) -> Result<Platform, CallError> {
        let coordinates = at("runtime", "KernelCmdlines.runtime.talos.dev", "cmdline");
        let (version, cmdline) = tokio::join!(
            self.version(),
            self.get_raw::<specs::KernelCmdline>(&coordinates)
        );
        let version = version?;
        // Releases without the resource refuse it; then only the platform's name can tell.
        let cmdline = match cmdline? {
            Ok(cmdline) => Some(cmdline.cmdline),
            Err(status) if status.source_is_none() => None,
            Err(status) => return Err(classify(Kind::Read, &self.label("KernelCmdline"), &status)),
        };
        Ok(Platform {
            config: platform_config(&version, cmdline.as_deref()),
            name: version.platform,
            mode: version.mode,
        })
    }

    /// The node's events from now on. Returns once the node has confirmed the stream: what happens after that is seen.
    pub async fn events(&self) -> Result<EventStream, CallError> {
        let label = self.label("Events");
        let mut machine = self.machine();
        let open = async {
            let mut stream = machine
                .events(Request::new(machine::EventsRequest::default()))
                .await?
                .into_inner();
            // The first message is an empty greeting.
            match stream.message().await? {
                Some(_) => Ok(stream),
                None => Err(Status::unavailable(
                    "the event stream ended before it began",
                )),
            }
        };
        match timeout(self.options.read_deadline, open).await {
            Ok(Ok(stream)) => Ok(EventStream::new(label, stream)),
            Ok(Err(status)) => Err(classify(Kind::Read, &label, &status)),
            Err(_) => Err(late(Kind::Read, &label, self.options.read_deadline)),
        }
    }

    /// A copy of etcd's database. It is whole only if its trailing SHA-256 is right: a stream that
    /// broke off cannot be told otherwise (facts: talos.md 4.4).
    pub async fn etcd_snapshot(
        &self,
    ) -> Result<BoxStream<'static, Result<bytes::Bytes, CallError>>, CallError> {
        let label = self.label("EtcdSnapshot");
        let mut machine = self.machine();
        let chunks = self
            .read(
                "EtcdSnapshot",
                machine.etcd_snapshot(machine::EtcdSnapshotRequest {}),
            )
            .await?;
        Ok(chunks
            .map(move |chunk| match chunk {
                Ok(chunk) => Ok(bytes::Bytes::from(chunk.bytes)),
                Err(status) => Err(classify(Kind::Read, &label, &status)),
            })
            .boxed())
    }

    /// Who answers and how far it is, all at once and within one read's deadline. Fails as a whole,
    /// since half an identity is none.
    pub async fn snapshot(&self) -> Result<Snapshot, CallError> {
        let all = async {
            tokio::try_join!(
                self.hardware_uuid(),
                self.identity(),
                self.boot_id(),
                self.machine_status(),
                self.machine_type(),
                self.node_name(),
                self.hostname(),
                self.etcd_member_id_local(),
                self.version(),
            )
        };
        let (
            hardware_uuid,
            node_id,
            boot_id,
            status,
            machine_type,
            node_name,
            hostname,
            member_id,
            version,
        ) = match timeout(self.options.read_deadline, Box::pin(all)).await {
            Ok(all) => all?,
            Err(_) => {
                return Err(late(
                    Kind::Read,
                    &self.label("its identity"),
                    self.options.read_deadline,
                ));
            }
        };
        Ok(Snapshot {
            hardware_uuid,
            node_id,
            boot_id,
            status,
            machine_type,
            node_name,
            hostname,
            member_id,
            version,
        })
    }
}

/// Statuses of the node itself carry no source; those of the connection do.
trait StatusOrigin {
    fn source_is_none(&self) -> bool;
}

impl StatusOrigin for Status {
    fn source_is_none(&self) -> bool {
        std::error::Error::source(self).is_none()
    }
}

/// Where a machine's configuration may come from besides its own disk (facts: talos.md 3.3).
fn platform_config(version: &Version, cmdline: Option<&str>) -> PlatformConfig {
    let source = cmdline.and_then(|cmdline| {
        cmdline.split_whitespace().find(|argument| {
            ["talos.config", "talos.config.inline", "talos.config.early"]
                .iter()
                .any(|key| {
                    argument.split_once('=').is_some_and(|(name, value)| {
                        name == *key && !value.is_empty() && value != "none"
                    })
                })
        })
    });
    match (source, version.mode.as_str()) {
        (Some(source), _) => PlatformConfig::Present(
            source
                .split_once('=')
                .map_or(source, |(name, _)| name)
                .to_owned(),
        ),
        (None, "cloud") => PlatformConfig::Possible(version.platform.clone()),
        (None, "") => PlatformConfig::Untold,
        // Bare metal takes a configuration only from the command line, which an older release does not show.
        (None, _) if cmdline.is_none() => PlatformConfig::Untold,
        (None, _) => PlatformConfig::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_from_outside_is_told_by_kernel_argument_and_platform() {
        let version = |platform: &str, mode: &str| Version {
            tag: "v1.14.1".to_owned(),
            platform: platform.to_owned(),
            mode: mode.to_owned(),
        };
        let metal = version("metal", "metal");
        let cases = [
            (
                &metal,
                Some("console=tty0 talos.platform=metal"),
                PlatformConfig::Absent,
            ),
            (
                &metal,
                Some("talos.platform=metal talos.config=http://boot/cp"),
                PlatformConfig::Present("talos.config".to_owned()),
            ),
            (&metal, Some("talos.config= x"), PlatformConfig::Absent),
            (&metal, None, PlatformConfig::Untold),
            (
                &version("nocloud", "cloud"),
                Some("talos.platform=nocloud"),
                PlatformConfig::Possible("nocloud".to_owned()),
            ),
            (&version("", ""), Some("quiet"), PlatformConfig::Untold),
        ];
        for (version, cmdline, expected) in cases {
            assert_eq!(
                platform_config(version, cmdline),
                expected,
                "{cmdline:?} on {}",
                version.platform
            );
        }
    }
}
