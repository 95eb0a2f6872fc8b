//! The TalosMachine controller: adopts what is approved, watches what is adopted, and
//! hands what is being deleted to the removal.

use std::time::Duration;

use ichor_api::common::{find_condition, set_condition};
use ichor_api::conditions::{JOINED, MachineReadyReason, NotJoinedReason, READY};
use ichor_api::machine::{MachineIdentity, TalosMachineStatus};
use ichor_api::{ConditionStatus, TalosCluster, TalosMachine, names};
use ichor_talos::{TalosClient, maintenance};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::context::Context;
use crate::etcd;
use crate::failpoint;
use crate::removal::gather::{answer, node_name, same_etcd};
use crate::removal::perform::PassError;
use crate::removal::{self, Key, Outcome};

/// One look at one machine; answers when to look again.
pub async fn reconcile(
    ctx: &Context,
    machine: &TalosMachine,
) -> Result<Option<Duration>, PassError> {
    let key = Key::of(machine);
    if machine.is_being_deleted() {
        if !machine.has_finalizer() {
            return Ok(None);
        }
        return Ok(match Box::pin(removal::run(ctx, &key)).await? {
            Outcome::Again => Some(Duration::ZERO),
            Outcome::After(wait) => Some(wait),
            Outcome::Gone => {
                ctx.forget_removal(&key.uid).await;
                ctx.wake_siblings(machine);
                None
            }
        });
    }
    let Some(machine) = ctx
        .reader
        .get::<TalosMachine>(&key.namespace, &key.name)
        .await
        .map_err(removal::gather::GatherError::from)?
    else {
        return Ok(None);
    };
    if machine.is_being_deleted() {
        // The watch brings it again in a moment, as what it is now.
        return Ok(Some(Duration::from_secs(1)));
    }
    let machine = if machine.spec.approved && !machine.has_finalizer() {
        adopt(ctx, machine).await?
    } else {
        machine
    };
    observe(ctx, &key, &machine).await
}

/// An approved machine carries the finalizer from its first reconcile.
async fn adopt(ctx: &Context, machine: TalosMachine) -> Result<TalosMachine, PassError> {
    let mut finalizers = machine.metadata.finalizers.clone().unwrap_or_default();
    finalizers.push(names::MACHINE_FINALIZER.to_owned());
    let api: Api<TalosMachine> = Api::namespaced(
        ctx.client.clone(),
        machine.metadata.namespace.as_deref().unwrap_or_default(),
    );
    let patch = Patch::Merge(json!({"metadata": {
        "resourceVersion": machine.metadata.resource_version,
        "finalizers": finalizers,
    }}));
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    let adopted = api
        .patch(
            machine.metadata.name.as_deref().unwrap_or_default(),
            &params,
            &patch,
        )
        .await?;
    tracing::info!(machine = machine.metadata.name, "adopted");
    failpoint::hit("after-finalizer");
    ctx.wake_siblings(&adopted);
    Ok(adopted)
}

/// What a look found, before it is written.
struct Found {
    ready: ConditionStatus,
    reason: MachineReadyReason,
    message: String,
    joined: Option<(ConditionStatus, &'static str, String)>,
    identity: Option<MachineIdentity>,
    talos_version: Option<String>,
    kubernetes_version: Option<String>,
}

impl Found {
    fn not_ready(reason: MachineReadyReason, message: impl Into<String>) -> Self {
        Self {
            ready: ConditionStatus::False,
            reason,
            message: message.into(),
            joined: None,
            identity: None,
            talos_version: None,
            kubernetes_version: None,
        }
    }
}

async fn observe(
    ctx: &Context,
    key: &Key,
    machine: &TalosMachine,
) -> Result<Option<Duration>, PassError> {
    let found = look(ctx, key, machine).await?;
    let ready = found.ready == ConditionStatus::True;
    let was_ready = machine.condition(READY).map(|c| c.status);
    let was_joined = machine.condition(JOINED).map(|c| c.status);
    let news = was_ready != Some(found.ready)
        || found
            .joined
            .as_ref()
            .is_some_and(|j| was_joined != Some(j.0));
    let generation = machine.metadata.generation;
    crate::status::write_machine(&ctx.client, machine, |status| {
        apply(status, generation, found);
    })
    .await?;
    if news {
        ctx.wake_cluster(&key.namespace, &key.cluster);
    }
    let often = machine.is_control_plane() || !ready;
    Ok(Some(if often {
        ctx.settings.observe
    } else {
        ctx.settings.observe_worker
    }))
}

fn apply(status: &mut TalosMachineStatus, generation: Option<i64>, found: Found) {
    let now = Timestamp::now();
    if let Some(identity) = found.identity {
        status.identity = Some(identity);
    }
    if found.talos_version.is_some() {
        status.talos_version = found.talos_version;
    }
    if found.kubernetes_version.is_some() {
        status.kubernetes_version = found.kubernetes_version;
    }
    set_condition(
        &mut status.conditions,
        READY,
        found.ready,
        found.reason.as_str(),
        &found.message,
        generation,
        now,
    );
    if let Some((joined, reason, message)) = found.joined {
        set_condition(
            &mut status.conditions,
            JOINED,
            joined,
            reason,
            &message,
            generation,
            now,
        );
    }
}

async fn look(ctx: &Context, key: &Key, machine: &TalosMachine) -> Result<Found, PassError> {
    use MachineReadyReason as Reason;
    if machine.spec.rejected {
        return Ok(Found::not_ready(
            Reason::Rejected,
            "a person turned this machine down",
        ));
    }
    if !machine.spec.approved && !machine.has_finalizer() {
        return Ok(Found::not_ready(
            Reason::NotApproved,
            "nobody has approved this machine yet: set spec.approved to true",
        ));
    }
    let Some(cluster) = ctx
        .reader
        .get::<TalosCluster>(&key.namespace, &key.cluster)
        .await
        .map_err(removal::gather::GatherError::from)?
    else {
        return Ok(Found::not_ready(
            Reason::ClusterMissing,
            format!("there is no TalosCluster {}; create it", key.cluster),
        ));
    };
    let cluster_uid = cluster.metadata.uid.clone().unwrap_or_default();
    let mut identity = machine.identity();
    if let Some(recorded) = &identity.cluster_uid
        && *recorded != cluster_uid
        && machine.annotation(names::ADOPT_CLUSTER) != Some(cluster_uid.as_str())
        && !same_etcd(machine, &cluster)
    {
        return Ok(Found::not_ready(
            Reason::ClusterReplaced,
            format!(
                "TalosCluster {} is another one (UID {cluster_uid}) than the one this machine was adopted into (UID {recorded}). \
                 If it is the same cluster, set annotation {}: \"{cluster_uid}\"",
                key.cluster,
                names::ADOPT_CLUSTER
            ),
        ));
    }
    if let Some(other) = ctx.older_claimant(machine) {
        return Ok(Found::not_ready(
            Reason::DuplicateAddress,
            format!(
                "TalosMachine {other} has this address or node name already: correct one of them"
            ),
        ));
    }
    let config = match ctx.credentials.talos(&cluster).await {
        Ok(config) => config,
        Err(error) => {
            return Ok(Found::not_ready(
                Reason::CredentialsInvalid,
                error.to_string(),
            ));
        }
    };
    let deadline = ctx.settings.etcd_deadline;
    let asked =
        match TalosClient::connect_with(&config, &machine.spec.address, etcd::options(deadline)) {
            Ok(client) => match answer(&client, false).await {
                Ok(answer) => Ok((client, answer)),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
    let (client, answered) = match asked {
        Ok(found) => found,
        Err(error) => return Ok(unanswered(ctx, machine, &cluster, identity, error).await),
    };
    if let Some(recorded) = &identity.hardware_uuid
        && *recorded != answered.hardware_uuid
        && machine.annotation(names::ACCEPT_HARDWARE) != Some(answered.hardware_uuid.as_str())
    {
        return Ok(Found::not_ready(
            Reason::IdentityMismatch,
            format!(
                "another box answers at {}: hardware UUID {}, recorded is {recorded}. Correct spec.address; if its board was replaced, set annotation {}: \"{}\"",
                machine.spec.address,
                answered.hardware_uuid,
                names::ACCEPT_HARDWARE,
                answered.hardware_uuid
            ),
        ));
    }
    let control_plane = answered.machine_type == "controlplane";
    if control_plane != machine.is_control_plane() {
        return Ok(Found::not_ready(
            Reason::RoleMismatch,
            format!(
                "Talos reports machine type {}, spec.role is {}: create the TalosMachine anew with the right role",
                answered.machine_type,
                machine.spec.role.as_str()
            ),
        ));
    }
    identity.hardware_uuid = Some(answered.hardware_uuid.clone()).filter(|uuid| !uuid.is_empty());
    identity.node_id = Some(answered.node_id.clone());
    identity.machine_type = Some(answered.machine_type.clone());
    identity.cluster_uid = Some(cluster_uid);
    identity.node_name = node_name_of(machine, answered.node_name.as_deref());

    let node = node(ctx, &cluster, identity.node_name.as_deref()).await;
    let node_ready = node.as_ref().is_some_and(|n| n.ready);
    identity.node_uid = node.as_ref().map(|n| n.uid.clone()).or(identity.node_uid);

    let mut healthy = true;
    let mut message = "it answers".to_owned();
    let joined = if control_plane {
        let (joined, etcd_ok) = membership(&client, &answered, &mut identity, machine).await;
        healthy &= etcd_ok;
        if !etcd_ok {
            "its etcd member is not healthy".clone_into(&mut message);
        }
        joined
    } else if node.is_some() {
        Some((
            ConditionStatus::True,
            "Node",
            "its Node is registered".to_owned(),
        ))
    } else {
        Some((
            ConditionStatus::False,
            NotJoinedReason::NotSeen.as_str(),
            "its Node is not registered".to_owned(),
        ))
    };
    if healthy && !node_ready {
        healthy = false;
        message = match &identity.node_name {
            Some(name) if node.is_some() => format!("Node {name} is not Ready"),
            Some(name) => format!("there is no Node {name}"),
            None => "Talos reports no node name".to_owned(),
        };
    }
    if healthy && !answered.running {
        healthy = false;
        message = format!("Talos is at stage {}", answered.stage);
    }
    let reason = if healthy {
        Reason::Healthy
    } else if control_plane && message.contains("etcd") {
        Reason::EtcdUnhealthy
    } else {
        Reason::NodeUnreachable
    };
    let version = client.version().await.ok().map(|v| v.tag);
    Ok(Found {
        ready: if healthy {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        },
        reason,
        message,
        joined,
        identity: Some(identity),
        talos_version: version,
        kubernetes_version: node.map(|n| n.kubelet_version),
    })
}

fn node_name_of(machine: &TalosMachine, answered: Option<&str>) -> Option<String> {
    machine
        .spec
        .node_name
        .clone()
        .or_else(|| answered.map(str::to_owned))
        .or_else(|| node_name(machine, None))
}

/// The machine's membership, as etcd lists it, and whether its member is healthy.
async fn membership(
    client: &TalosClient,
    answered: &removal::facts::Answer,
    identity: &mut MachineIdentity,
    machine: &TalosMachine,
) -> (Option<(ConditionStatus, &'static str, String)>, bool) {
    let Ok(list) = client.etcd_members(false).await else {
        // Nothing is known, so the record stands.
        return (None, false);
    };
    let own = answered.member_id;
    let listed = own.and_then(|id| list.iter().find(|m| m.id.0 == id));
    #[allow(clippy::single_match_else)] // two equal cases
    match listed {
        Some(member) => {
            identity.etcd_member_id = Some(names::format_etcd_id(member.id.0));
            identity.etcd_member_name = Some(member.name.clone());
            identity.etcd_peer_urls.clone_from(&member.peer_urls);
            if member.learner {
                (
                    Some((
                        ConditionStatus::False,
                        NotJoinedReason::NeverVoter.as_str(),
                        "its etcd member is a learner: it has no vote yet".into(),
                    )),
                    false,
                )
            } else {
                (
                    Some((
                        ConditionStatus::True,
                        "Member",
                        format!("etcd member {} votes", names::format_etcd_id(member.id.0)),
                    )),
                    true,
                )
            }
        }
        None => {
            let recorded = identity
                .etcd_member_id
                .as_deref()
                .and_then(names::parse_etcd_id);
            let still_listed = recorded.is_some_and(|id| list.iter().any(|m| m.id.0 == id));
            if still_listed {
                // Its own etcd is down; the record stands.
                return (None, false);
            }
            let was_joined = machine
                .condition(JOINED)
                .is_some_and(|c| c.status == ConditionStatus::True)
                || recorded.is_some();
            let (reason, message) = if was_joined {
                (
                    NotJoinedReason::MemberGone,
                    "its etcd member is gone from the list",
                )
            } else {
                (NotJoinedReason::NeverVoter, "etcd lists no member of it")
            };
            (
                Some((ConditionStatus::False, reason.as_str(), message.into())),
                false,
            )
        }
    }
}

struct NodeSeen {
    uid: String,
    ready: bool,
    kubelet_version: String,
}

async fn node(ctx: &Context, cluster: &TalosCluster, name: Option<&str>) -> Option<NodeSeen> {
    let client = ctx.credentials.kubernetes(cluster).await.ok()?;
    let reader = ichor_rules::DirectReader::new(client);
    let node = reader.get_cluster::<Node>(name?).await.ok()??;
    let status = node.status.unwrap_or_default();
    Some(NodeSeen {
        uid: node.metadata.uid.unwrap_or_default(),
        ready: status
            .conditions
            .unwrap_or_default()
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True"),
        kubelet_version: status
            .node_info
            .map(|i| i.kubelet_version)
            .unwrap_or_default(),
    })
}

async fn unanswered(
    ctx: &Context,
    machine: &TalosMachine,
    cluster: &TalosCluster,
    identity: MachineIdentity,
    error: ichor_talos::CallError,
) -> Found {
    use MachineReadyReason as Reason;
    let probed = maintenance::probe_within(&machine.spec.address, ctx.settings.etcd_deadline).await;
    let never_voter = machine.is_control_plane() && identity.etcd_member_id.is_none();
    let mut found = match probed {
        Ok(seen) => {
            let mut found = Found::not_ready(
                Reason::Maintenance,
                "the box is in maintenance mode: it has no configuration yet",
            );
            found.talos_version = Some(seen.talos_version).filter(|v| !v.is_empty());
            found
        }
        Err(_) => match error {
            ichor_talos::CallError::Credentials(why) => {
                ctx.credentials.forget_talos(cluster).await;
                Found::not_ready(
                    Reason::CredentialsInvalid,
                    format!("the machine does not accept the Talos credentials: {why}"),
                )
            }
            other => Found::not_ready(Reason::NodeUnreachable, other.to_string()),
        },
    };
    let recorded = machine
        .status
        .as_ref()
        .is_some_and(|s| find_condition(&s.conditions, JOINED).is_some());
    if never_voter && !recorded {
        found.joined = Some((
            ConditionStatus::False,
            NotJoinedReason::NotSeen.as_str(),
            "it has not answered yet".into(),
        ));
    }
    found
}
