//! Volumes that are still attached after a drain (spec section 5, step 3).

use std::collections::HashSet;

use ichor_api::common::DrainOptions;
use ichor_rules::drain::{Disposition, DrainContext, DrainPolicy, SkipReason, classify};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Client;
use kube::api::Api;

use super::calls::{bounded, list, pods_on};
use super::{DrainError, DrainLimits};

/// Names of the VolumeAttachments that a drained Node still has and that ought to go.
/// Volumes of pods that the drain left running (DaemonSet, mirror, `skipSelector`) stay
/// attached and do not count.
pub async fn volume_attachments(
    client: &Client,
    node: &str,
    options: &DrainOptions,
    limits: &DrainLimits,
) -> Result<Vec<String>, DrainError> {
    let policy = DrainPolicy::new(options)?;
    let (attachments, _) = list::<VolumeAttachment>(
        &Api::all(client.clone()),
        "VolumeAttachments",
        None,
        limits.read,
    )
    .await?;
    let mut here: Vec<VolumeAttachment> = attachments
        .into_iter()
        .filter(|a| a.spec.node_name == node)
        .collect();
    if here.is_empty() {
        return Ok(Vec::new());
    }
    let kept = kept_volumes(client, node, &policy, limits).await?;
    here.retain(|a| {
        a.spec
            .source
            .persistent_volume_name
            .as_ref()
            .is_none_or(|volume| !kept.contains(volume))
    });
    let mut names: Vec<_> = here.into_iter().filter_map(|a| a.metadata.name).collect();
    names.sort();
    Ok(names)
}

/// PersistentVolumes of pods that stay.
async fn kept_volumes(
    client: &Client,
    node: &str,
    policy: &DrainPolicy,
    limits: &DrainLimits,
) -> Result<HashSet<String>, DrainError> {
    let (pods, _) = pods_on(client, node, limits.read).await?;
    let mut kept = HashSet::new();
    for (namespace, claim) in pods
        .iter()
        .filter(|pod| stays(pod, policy))
        .flat_map(claims)
        .collect::<HashSet<_>>()
    {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
        let what = || format!("read PersistentVolumeClaim {namespace}/{claim}");
        let found = bounded(what, limits.read, claims.get_opt(&claim)).await?;
        kept.extend(found.and_then(|c| c.spec).and_then(|s| s.volume_name));
    }
    Ok(kept)
}

/// A finished pod stays too, but uses no volume any more.
fn stays(pod: &Pod, policy: &DrainPolicy) -> bool {
    matches!(
        classify(pod, policy, DrainContext::default()),
        Disposition::Skip(SkipReason::Selector | SkipReason::DaemonSet | SkipReason::Mirror)
    )
}

/// Namespace and name of the claims that a pod uses, those of its ephemeral volumes too.
fn claims(pod: &Pod) -> Vec<(String, String)> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    pod.spec
        .iter()
        .flat_map(|s| s.volumes.iter().flatten())
        .filter_map(|v| match (&v.persistent_volume_claim, &v.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{name}-{}", v.name)),
            (None, None) => None,
        })
        .map(|claim| (namespace.clone(), claim))
        .collect()
}
