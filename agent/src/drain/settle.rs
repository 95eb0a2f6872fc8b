//! The wait between two passes.
//!
//! Polling each second through a grace period would cost dozens of calls, polling slowly
//! would add seconds to every removal. A watch of this one Node's pods (its metadata only,
//! filtered by the API server) costs one and ends at once.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::{DrainLimits, DrainOutcome, DrainPass};

/// After one pod has gone, others mostly follow: how long they are waited for.
const LINGER: Duration = Duration::from_millis(300);

/// Waits until the next pass is worth making: all pods that were on their way out are
/// gone, or some are and the others take longer, or the time of `pass.again` is over
/// (while pods are only leaving: `limits.retry`, since a poll would find nothing that the
/// watch does not tell).
pub async fn settle(client: &Client, node: &str, pass: &DrainPass, limits: &DrainLimits) {
    let only_leaving = pass.outcome == DrainOutcome::Progressing
        && i32::try_from(pass.leaving.len()).is_ok_and(|n| n == pass.status.remaining);
    let until = Instant::now()
        + if only_leaving {
            limits.retry
        } else {
            pass.again
        };
    let Some(version) = pass
        .resource_version
        .as_deref()
        .filter(|_| !pass.leaving.is_empty())
    else {
        sleep_until(until).await;
        return;
    };
    match timeout_at(until, gone(client, node, pass, version)).await {
        Err(_) | Ok(true) => {}
        // No watch to be had: fall back on the poll.
        Ok(false) => sleep(limits.poll).await,
    }
}

/// Waits for the pods of `pass.leaving`; `false` where the watch fails or ends.
async fn gone(client: &Client, node: &str, pass: &DrainPass, version: &str) -> bool {
    let pods: Api<PartialObjectMeta<Pod>> = Api::all(client.clone());
    let params = WatchParams::default().fields(&format!("spec.nodeName={node}"));
    let Ok(events) = pods.watch(&params, version).await else {
        return false;
    };
    let mut events = std::pin::pin!(events);
    let mut waited: HashSet<&str> = pass.leaving.iter().map(String::as_str).collect();
    let mut some_gone = false;
    while !waited.is_empty() {
        let event = if some_gone {
            match tokio::time::timeout(LINGER, events.next()).await {
                Ok(event) => event,
                Err(_) => return true,
            }
        } else {
            events.next().await
        };
        match event {
            Some(Ok(WatchEvent::Deleted(pod))) => {
                if let Some(uid) = pod.metadata.uid.as_deref() {
                    some_gone |= waited.remove(uid);
                }
            }
            Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => return some_gone,
            Some(Ok(_)) => {}
        }
    }
    true
}
