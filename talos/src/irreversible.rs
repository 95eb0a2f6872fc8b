//! The calls that cannot be taken back.
//!
//! Each takes a [`Permit`] by value: one renewal of the cluster lock allows one call, sent within
//! that permit's time (spec section 4, Fencing). None is ever sent twice: where no answer comes the
//! result is [`CallError::UnknownOutcome`], and whoever called looks at the node.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use ichor_lock::{DisruptiveLock, Permit};
use tokio::time::timeout;
use tonic::{Request, Status};

use crate::client::TalosClient;
use crate::error::{CallError, Kind, classify, late};
use crate::model::{MemberId, Volume};
use crate::proto::machine;
use crate::proto::machine::image_service_client::ImageServiceClient;
use crate::proto::machine::lifecycle_service_client::LifecycleServiceClient;
use crate::proto::{common, machine::lifecycle_service_install_progress::Response as Progress};

/// Which partitions a reset wipes. Never empty, since Talos reads an empty list as "every disk that
/// holds a system volume", and every one of them with `wipe` set, since a list without wipes
/// nothing at all (facts: talos.md 1.2 and 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions(Vec<String>);

/// Why a list of partitions cannot be wiped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartitionsError {
    /// None was named, and Talos would wipe the whole disk.
    #[error("no partition is named, and Talos reads that as the whole disk")]
    Empty,
    /// A name that is none.
    #[error("{0:?} is no partition's name")]
    BadName(String),
    /// The machine's volumes do not show what has to be wiped.
    #[error("the machine does not show its partition {0}: look at `talosctl get volumestatus`")]
    NotShown(&'static str),
}

impl Partitions {
    /// These, by their volumes' names; each once.
    pub fn new<I, S>(names: I) -> Result<Self, PartitionsError>
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        let mut list: Vec<String> = Vec::new();
        for name in names {
            let name = name.into();
            if name.is_empty()
                || !name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            {
                return Err(PartitionsError::BadName(name));
            }
            if !list.contains(&name) {
                list.push(name);
            }
        }
        if list.is_empty() {
            Err(PartitionsError::Empty)
        } else {
            Ok(Self(list))
        }
    }

    /// What has to be wiped so that this machine comes back in maintenance with its OS kept: STATE
    /// and EPHEMERAL, and from 1.14 those of ETCD, CRI, KUBELET and LOG that lie on partitions of
    /// their own (etcd's data survives the wipe of EPHEMERAL there).
    pub fn for_maintenance(volumes: &[Volume]) -> Result<Self, PartitionsError> {
        let has = |name: &str| {
            volumes
                .iter()
                .any(|volume| volume.id == name && volume.is_partition())
        };
        for needed in ["STATE", "EPHEMERAL"] {
            if !has(needed) {
                return Err(PartitionsError::NotShown(needed));
            }
        }
        Self::new(
            ["STATE", "EPHEMERAL"].into_iter().chain(
                ["ETCD", "CRI", "KUBELET", "LOG"]
                    .into_iter()
                    .filter(|name| has(name)),
            ),
        )
    }

    /// Their names.
    pub fn names(&self) -> &[String] {
        &self.0
    }
}

/// A reset of named partitions. Never graceful: etcd was left and the node drained before, and a
/// graceful reset of a node whose member is gone reboots it un-wiped (facts: talos.md 1.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetRequest {
    /// What to wipe.
    pub partitions: Partitions,
    /// Whether it starts again afterwards, or stays off.
    pub reboot: bool,
}

impl From<&ResetRequest> for machine::ResetRequest {
    fn from(request: &ResetRequest) -> Self {
        Self {
            graceful: false,
            reboot: request.reboot,
            system_partitions_to_wipe: request
                .partitions
                .names()
                .iter()
                .map(|label| machine::ResetPartitionSpec {
                    label: label.clone(),
                    wipe: true,
                })
                .collect(),
            user_disks_to_wipe: Vec::new(),
            mode: machine::reset_request::WipeMode::All.into(),
        }
    }
}

/// How a node restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebootMode {
    /// Through kexec where the machine can.
    Default,
    /// Through the firmware.
    PowerCycle,
}

/// What a bootstrap starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootstrapFrom {
    /// An empty etcd.
    Nothing,
    /// The snapshot that [`TalosClient::recover`] has uploaded to this very node.
    Snapshot {
        /// Take a snapshot without its hash (a copy of a database file).
        skip_hash_check: bool,
    },
}

impl TalosClient {
    /// Sends one call under a permit: once, and with the deadline told to the node too, so that
    /// Talos stops trying at that time even where this process is no more.
    ///
    /// A read goes before it. So the connection stands when the permit's time is checked for the
    /// last time, the call itself leaves at once, and a node that cannot be reached is found out
    /// before anything was sent.
    async fn once<T, Q, F>(
        &self,
        permit: Permit<'_>,
        method: &str,
        deadline: Duration,
        message: Q,
        call: impl FnOnce(Request<Q>) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let label = self.label(method);
        let mut request = Request::new(message);
        request.set_timeout(deadline);
        self.version().await?;
        let sending = permit
            .begin()
            .map_err(|stale| CallError::PermitStale(stale.to_string()))?;
        let answer = timeout(deadline, call(request)).await;
        let guard = sending.finish();
        if !guard.lock_held {
            // Another operation may have begun meanwhile: no answer settles anything now.
            let lost = guard
                .lost
                .map_or_else(String::new, |lost| format!(": {lost}"));
            return Err(CallError::UnknownOutcome(format!(
                "{label}: the cluster lock was lost while the call ran{lost}"
            )));
        }
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => Err(classify(Kind::Irreversible, &label, &status)),
            Err(_) => Err(late(Kind::Irreversible, &label, deadline)),
        }
    }

    /// Hands this node's etcd leadership to another member: its name, or none where the node did not
    /// lead. It can be taken back (another election may follow at any time), so the lock is enough.
    pub async fn forfeit_leadership(
        &self,
        _lock: &DisruptiveLock,
        deadline: Duration,
    ) -> Result<Option<String>, CallError> {
        let label = self.label("EtcdForfeitLeadership");
        let mut machine = self.machine();
        let answer = match timeout(
            deadline,
            machine.etcd_forfeit_leadership(machine::EtcdForfeitLeadershipRequest {}),
        )
        .await
        {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return Err(classify(Kind::Read, &label, &status)),
            Err(_) => return Err(late(Kind::Read, &label, deadline)),
        };
        Ok(answer
            .messages
            .into_iter()
            .next()
            .map(|message| message.member)
            .filter(|member| !member.is_empty()))
    }

    /// This node takes its own member out of etcd, stops etcd and empties its data. Talos tries for
    /// five minutes by itself; give it at least nine (facts: talos.md 4.5; the spec says ten).
    pub async fn leave_etcd(
        &self,
        permit: Permit<'_>,
        deadline: Duration,
    ) -> Result<(), CallError> {
        let mut machine = self.machine();
        let message = machine::EtcdLeaveClusterRequest {};
        self.once(
            permit,
            "EtcdLeaveCluster",
            deadline,
            message,
            async |request| machine.etcd_leave_cluster(request).await.map(drop),
        )
        .await
    }

    /// Has this node's control plane take *another* node's member out of etcd. Never the node's own:
    /// the executor and the victim are two machines (facts: talos.md 11, row 4).
    pub async fn remove_member(
        &self,
        permit: Permit<'_>,
        id: MemberId,
        deadline: Duration,
    ) -> Result<(), CallError> {
        let mut machine = self.machine();
        let message = machine::EtcdRemoveMemberByIdRequest { member_id: id.0 };
        self.once(
            permit,
            "EtcdRemoveMemberByID",
            deadline,
            message,
            async |request| machine.etcd_remove_member_by_id(request).await.map(drop),
        )
        .await
    }

    /// Asks this node to wipe itself. The answer, an actor ID by which its events can be told, only
    /// means that the request was accepted: see [`crate::ResetWatch`].
    pub async fn reset(
        &self,
        permit: Permit<'_>,
        reset: &ResetRequest,
        deadline: Duration,
    ) -> Result<String, CallError> {
        let mut machine = self.machine();
        let message = machine::ResetRequest::from(reset);
        self.once(permit, "Reset", deadline, message, async |request| {
            machine
                .reset(request)
                .await
                .map(|answer| first(answer.into_inner().messages, |reset| reset.actor_id))
        })
        .await
    }

    /// Asks this node to restart. Talos drains nothing. The answer (an actor ID) only means "accepted".
    pub async fn reboot(
        &self,
        permit: Permit<'_>,
        mode: RebootMode,
        deadline: Duration,
    ) -> Result<String, CallError> {
        let mut machine = self.machine();
        let mode = match mode {
            RebootMode::Default => machine::reboot_request::Mode::Default,
            RebootMode::PowerCycle => machine::reboot_request::Mode::Powercycle,
        };
        let message = machine::RebootRequest { mode: mode.into() };
        self.once(permit, "Reboot", deadline, message, async |request| {
            machine
                .reboot(request)
                .await
                .map(|answer| first(answer.into_inner().messages, |reboot| reboot.actor_id))
        })
        .await
    }

    /// Asks this node to power off, without Talos' own drain (ours came before). The answer (an
    /// actor ID) only means "accepted".
    pub async fn shutdown(
        &self,
        permit: Permit<'_>,
        deadline: Duration,
    ) -> Result<String, CallError> {
        let mut machine = self.machine();
        let message = machine::ShutdownRequest { force: true };
        self.once(permit, "Shutdown", deadline, message, async |request| {
            machine
                .shutdown(request)
                .await
                .map(|answer| first(answer.into_inner().messages, |shutdown| shutdown.actor_id))
        })
        .await
    }

    /// Starts etcd on this node, for the whole cluster. On two nodes it makes two clusters.
    pub async fn bootstrap(
        &self,
        permit: Permit<'_>,
        from: BootstrapFrom,
        deadline: Duration,
    ) -> Result<(), CallError> {
        let mut machine = self.machine();
        let message = match from {
            BootstrapFrom::Nothing => machine::BootstrapRequest {
                recover_etcd: false,
                recover_skip_hash_check: false,
            },
            BootstrapFrom::Snapshot { skip_hash_check } => machine::BootstrapRequest {
                recover_etcd: true,
                recover_skip_hash_check: skip_hash_check,
            },
        };
        self.once(permit, "Bootstrap", deadline, message, async |request| {
            machine.bootstrap(request).await.map(drop)
        })
        .await
    }

    /// Uploads an etcd snapshot to this node, for the bootstrap that follows. A later upload replaces it.
    pub async fn recover<S>(
        &self,
        permit: Permit<'_>,
        snapshot: S,
        deadline: Duration,
    ) -> Result<(), CallError>
    where
        S: Stream<Item = Bytes> + Send + 'static,
    {
        let mut machine = self.machine();
        let chunks = snapshot.map(|chunk| common::Data {
            metadata: None,
            bytes: chunk.to_vec(),
        });
        self.once(permit, "EtcdRecover", deadline, chunks, async |request| {
            machine.etcd_recover(request).await.map(drop)
        })
        .await
    }

    /// Boots this node's other installed release. It restarts at once.
    pub async fn rollback(&self, permit: Permit<'_>, deadline: Duration) -> Result<(), CallError> {
        let mut machine = self.machine();
        let message = machine::RollbackRequest {};
        self.once(permit, "Rollback", deadline, message, async |request| {
            machine.rollback(request).await.map(drop)
        })
        .await
    }

    /// Fetches an installer image into the node's store, as an upgrade needs it (1.13 and later;
    /// else [`CallError::NotSupported`]). It changes nothing that runs.
    pub async fn pull_image(&self, image: &str, deadline: Duration) -> Result<(), CallError> {
        let label = self.label("Pull");
        let request = machine::ImageServicePullRequest {
            containerd: Some(system_containerd()),
            image_ref: image.to_owned(),
        };
        let mut images = ImageServiceClient::new(self.channel());
        let pull = async {
            let mut progress = images.pull(request).await?.into_inner();
            let mut name = None;
            while let Some(step) = progress.message().await? {
                if let Some(machine::image_service_pull_response::Response::Name(done)) =
                    step.response
                {
                    name = Some(done);
                }
            }
            name.map(drop)
                .ok_or_else(|| Status::unavailable("the stream ended before the image was there"))
        };
        match timeout(deadline, pull).await {
            Ok(answer) => answer.map_err(|status| classify(Kind::Read, &label, &status)),
            Err(_) => Err(late(Kind::Read, &label, deadline)),
        }
    }

    /// Runs the installer of an image that [`TalosClient::pull_image`] has fetched (1.13 and later).
    /// No drain, no look at etcd, no restart: those are for the caller.
    pub async fn upgrade(
        &self,
        permit: Permit<'_>,
        image: &str,
        deadline: Duration,
    ) -> Result<(), CallError> {
        let mut lifecycle = LifecycleServiceClient::new(self.channel());
        let message = machine::LifecycleServiceUpgradeRequest {
            containerd: Some(system_containerd()),
            source: Some(machine::InstallArtifactsSource {
                image_name: image.to_owned(),
            }),
        };
        self.once(permit, "Upgrade", deadline, message, async |request| {
            let mut progress = lifecycle.upgrade(request).await?.into_inner();
            let mut last = String::new();
            // Dropping this stream would abort the installer: it is read to its end.
            while let Some(step) = progress.message().await? {
                match step.progress.and_then(|progress| progress.response) {
                    Some(Progress::Message(message)) => last = message,
                    Some(Progress::ExitCode(0)) => return Ok(()),
                    Some(Progress::ExitCode(code)) => {
                        return Err(Status::aborted(format!(
                            "the installer ended with {code}: {last}"
                        )));
                    }
                    None => {}
                }
            }
            Err(Status::unavailable(format!(
                "the stream ended before the installer did: {last}"
            )))
        })
        .await
    }

    /// The upgrade of releases before 1.13: the node pulls the image, installs it and restarts by
    /// itself. `preserve` and `force` are set, since both would make Talos drain and judge etcd by rules of its own.
    pub async fn upgrade_legacy(
        &self,
        permit: Permit<'_>,
        image: &str,
        deadline: Duration,
    ) -> Result<String, CallError> {
        let mut machine = self.machine();
        let message = machine::UpgradeRequest {
            image: image.to_owned(),
            preserve: true,
            stage: false,
            force: true,
            reboot_mode: machine::upgrade_request::RebootMode::Default.into(),
        };
        self.once(permit, "Upgrade", deadline, message, async |request| {
            machine
                .upgrade(request)
                .await
                .map(|answer| first(answer.into_inner().messages, |upgrade| upgrade.actor_id))
        })
        .await
    }
}

/// Where installer images live.
fn system_containerd() -> common::ContainerdInstance {
    common::ContainerdInstance {
        driver: common::ContainerDriver::Cri.into(),
        namespace: common::ContainerdNamespace::NsSystem.into(),
    }
}

/// The value of an answer that Talos shapes as a list of one; empty where it gave none.
fn first<T>(messages: Vec<T>, value: impl FnOnce(T) -> String) -> String {
    messages.into_iter().next().map(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::specs::{VolumePhase, VolumeType};

    fn volume(id: &str, kind: VolumeType, phase: VolumePhase) -> Volume {
        Volume {
            id: id.to_owned(),
            phase,
            kind,
            location: String::new(),
            parent: String::new(),
        }
    }

    #[test]
    fn a_reset_never_goes_out_without_named_partitions_all_to_be_wiped() {
        assert_eq!(
            Partitions::new(Vec::<String>::new()),
            Err(PartitionsError::Empty)
        );
        assert_eq!(
            Partitions::new([""]),
            Err(PartitionsError::BadName(String::new()))
        );
        let partitions = Partitions::new(["STATE", "EPHEMERAL", "STATE"]).expect("two partitions");
        let request = machine::ResetRequest::from(&ResetRequest {
            partitions,
            reboot: true,
        });
        assert!(!request.graceful && request.reboot);
        assert_eq!(request.system_partitions_to_wipe.len(), 2);
        assert!(
            request
                .system_partitions_to_wipe
                .iter()
                .all(|partition| partition.wipe && !partition.label.is_empty())
        );
    }

    /// The agent runs these on several threads.
    #[test]
    fn every_call_can_be_awaited_from_any_thread() {
        fn is_send<T: Send>(_: impl FnOnce() -> T) {}
        fn client() -> TalosClient {
            unreachable!("only typed, never called")
        }
        fn permit() -> Permit<'static> {
            unreachable!("only typed, never called")
        }
        is_send(|| async { client().leave_etcd(permit(), Duration::ZERO).await });
        is_send(|| async {
            client()
                .remove_member(permit(), MemberId(1), Duration::ZERO)
                .await
        });
        is_send(|| async { client().upgrade(permit(), "", Duration::ZERO).await });
        is_send(|| async {
            client()
                .recover(permit(), futures::stream::empty(), Duration::ZERO)
                .await
        });
        is_send(|| async { client().snapshot().await });
        is_send(|| async { crate::maintenance::probe("").await });
    }

    #[test]
    fn dedicated_partitions_are_wiped_and_folders_are_not_named() {
        use VolumePhase::{Missing, Ready};
        let volumes = [
            volume("META", VolumeType::Partition, Ready),
            volume("STATE", VolumeType::Partition, Ready),
            volume("EPHEMERAL", VolumeType::Partition, Ready),
            volume("ETCD", VolumeType::Partition, Ready),
            volume("CRI", VolumeType::Directory, Ready),
            volume("LOG", VolumeType::Partition, Missing),
        ];
        let partitions = Partitions::for_maintenance(&volumes).expect("partitions");
        assert_eq!(partitions.names(), ["STATE", "EPHEMERAL", "ETCD"]);
        assert_eq!(
            Partitions::for_maintenance(&volumes[..2]),
            Err(PartitionsError::NotShown("EPHEMERAL"))
        );
    }
}
