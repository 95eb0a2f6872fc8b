//! The cluster's own end (spec section 3, "teardown").

use std::time::Duration;

use ichor_api::cluster::{DeletionPolicy, TeardownStatus};
use ichor_api::common::set_condition;
use ichor_api::conditions::{ClusterReason, READY, RemovalStep};
use ichor_api::{ConditionStatus, TalosCluster, TalosMachine, names};
use ichor_rules::count::leave_confirmed;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Preconditions};

use crate::cluster::set_finalizers;
use crate::context::Context;
use crate::removal::gather::GatherError;
use crate::removal::perform::PassError;
use crate::status::write_cluster;

/// One step of a teardown; answers when to look again.
pub async fn reconcile(
    ctx: &Context,
    cluster: TalosCluster,
) -> Result<Option<Duration>, PassError> {
    let namespace = cluster.metadata.namespace.clone().unwrap_or_default();
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let uid = cluster.metadata.uid.clone().unwrap_or_default();
    let terminating = ctx
        .reader
        .get_cluster::<Namespace>(&namespace)
        .await
        .map_err(GatherError::from)?
        .is_none_or(|n| n.metadata.deletion_timestamp.is_some());
    if terminating {
        return done(ctx, &cluster).await;
    }
    let cluster = record_policy(ctx, cluster).await?;
    let teardown = cluster
        .status
        .as_ref()
        .and_then(|s| s.teardown.clone())
        .unwrap_or_default();
    if teardown.policy == DeletionPolicy::Reset
        && let Some(why) = own_cluster(ctx, &cluster).await
    {
        write_cluster(&ctx.client, &cluster, |status| {
            set_condition(
                &mut status.conditions,
                READY,
                ConditionStatus::False,
                ClusterReason::OwnCluster.as_str(),
                &why,
                cluster.metadata.generation,
                Timestamp::now(),
            );
        })
        .await?;
        return Ok(Some(ctx.settings.retry));
    }
    let machines = ctx
        .reader
        .machines_of(&namespace, &name)
        .await
        .map_err(GatherError::from)?;
    // Its own: one that Git creates again meanwhile, or of another cluster, is not of it.
    let own: Vec<&TalosMachine> = machines
        .iter()
        .filter(|m| {
            m.identity()
                .cluster_uid
                .is_none_or(|recorded| recorded == uid)
        })
        .collect();
    let waited = ctx.teardown_lasted(&uid).await;
    let may_finish = waited < ctx.settings.teardown_wait;
    // Who is past its leave is finished by the word of the survivors: while that may go
    // on, they stay to be asked.
    let asked = may_finish
        && teardown.policy == DeletionPolicy::Orphan
        && own.iter().any(|m| past_leave(m));
    let stays = |m: &TalosMachine| asked && m.is_control_plane();
    let api: Api<TalosMachine> = Api::namespaced(ctx.client.clone(), &namespace);
    for machine in own.iter().filter(|m| !m.is_being_deleted() && !stays(m)) {
        let machine_name = machine.metadata.name.as_deref().unwrap_or_default();
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: machine.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match api.delete(machine_name, &params).await {
            Ok(_) => {}
            Err(error)
                if crate::errors::is_not_found(&error) || crate::errors::is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let remaining = own.len();
    if remaining == 0 {
        return done(ctx, &cluster).await;
    }
    write_cluster(&ctx.client, &cluster, |status| {
        let count = i32::try_from(remaining).unwrap_or(i32::MAX);
        let message = format!(
            "tearing down ({}): {count} machines are left",
            teardown.policy.as_str()
        );
        if let Some(teardown) = &mut status.teardown {
            teardown.remaining = count;
            teardown.may_finish = may_finish;
            teardown.message.clone_from(&message);
        }
        set_condition(
            &mut status.conditions,
            READY,
            ConditionStatus::False,
            ClusterReason::TearingDown.as_str(),
            &message,
            cluster.metadata.generation,
            Timestamp::now(),
        );
    })
    .await?;
    ctx.wake_removals(&namespace, &name);
    Ok(Some(ctx.settings.retry.min(Duration::from_secs(5))))
}

/// Whether the machine's removal has begun what cannot be taken back.
fn past_leave(machine: &TalosMachine) -> bool {
    let Some(status) = &machine.status else {
        return false;
    };
    let reset = status.removal.as_ref().is_some_and(|removal| {
        let word = RemovalStep::Reset.as_str();
        let mut steps = removal.steps.iter();
        steps.any(|s| s.name == word && s.finished_at.is_some())
    });
    machine.is_being_deleted() && (leave_confirmed(machine) || reset || status.intent.is_some())
}

/// `deletionPolicy` is read when the deletion is first seen; later only a change to
/// `Orphan` counts.
async fn record_policy(ctx: &Context, cluster: TalosCluster) -> Result<TalosCluster, PassError> {
    let recorded = cluster.status.as_ref().and_then(|s| s.teardown.as_ref());
    let policy = cluster.spec.deletion_policy;
    let stands = match recorded {
        None => false,
        Some(recorded) => recorded.policy == policy || policy == DeletionPolicy::Reset,
    };
    if stands {
        return Ok(cluster);
    }
    let written = write_cluster(&ctx.client, &cluster, |status| {
        let teardown = status.teardown.get_or_insert_with(|| TeardownStatus {
            since: Some(Time(Timestamp::now())),
            may_finish: true,
            ..TeardownStatus::default()
        });
        teardown.policy = policy;
    })
    .await?;
    Ok(written)
}

/// Whether the machines to be reset are those that the agent runs on, in words.
async fn own_cluster(ctx: &Context, cluster: &TalosCluster) -> Option<String> {
    let uid = |namespace: Option<Namespace>| namespace.and_then(|n| n.metadata.uid);
    let remote = match ctx.credentials.kubernetes(cluster).await {
        Ok(client) => ichor_rules::DirectReader::new(client),
        Err(error) => {
            return Some(format!(
                "deletionPolicy Reset needs the cluster's kubeconfig: {error}"
            ));
        }
    };
    let (here, there) = tokio::join!(
        ctx.reader.get_cluster::<Namespace>("kube-system"),
        remote.get_cluster::<Namespace>("kube-system")
    );
    match (here, there) {
        (Ok(here), Ok(there)) => {
            let (here, there) = (uid(here), uid(there));
            (here.is_none() || here == there).then(|| {
                "deletionPolicy Reset would wipe the cluster that the agent itself runs in: nothing is done. Set spec.deletionPolicy to Orphan, or delete it from another cluster".to_owned()
            })
        }
        (Err(error), _) | (_, Err(error)) => Some(format!(
            "whether this is the agent's own cluster cannot be told, so nothing is reset: {error}"
        )),
    }
}

async fn done(ctx: &Context, cluster: &TalosCluster) -> Result<Option<Duration>, PassError> {
    let kept: Vec<String> = cluster
        .metadata
        .finalizers
        .iter()
        .flatten()
        .filter(|f| *f != names::CLUSTER_FINALIZER)
        .cloned()
        .collect();
    match set_finalizers(ctx, cluster, &kept).await {
        Ok(_) => {}
        Err(error) if crate::errors::is_not_found(&error) => {}
        Err(error) => return Err(error.into()),
    }
    if let Some(uid) = &cluster.metadata.uid {
        ctx.etcd.forget(uid).await;
    }
    tracing::info!(cluster = cluster.metadata.name, "teardown finished");
    Ok(None)
}
