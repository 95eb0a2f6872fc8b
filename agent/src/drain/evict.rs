//! One eviction, and what the API server's answer means (facts/drain.md 4.1 and 4.2).

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::core::Status;

/// Cause type of a budget's refusal, and of a namespace on its way out.
const DISRUPTION_BUDGET: &str = "DisruptionBudget";
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

/// What came of one eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The pod is being deleted.
    Admitted,
    /// The pod, or the one that we mean, is not there any more.
    Gone,
    /// Its budget refuses. `settled`: by its numbers, which hold for every pod that it
    /// counts; otherwise they are not worked out, or this very pod changed meanwhile.
    Budget { text: String, settled: bool },
    /// More than one budget covers it.
    SeveralBudgets,
    /// The API server turns requests away, or is in contention over the budget.
    Throttled(String),
    /// Its namespace is being deleted, and the pod will be with it.
    NamespaceTerminating,
    /// Anything else; the others go on.
    Failed(String),
}

/// Asks for the eviction of this very pod (UID precondition), once, and never repeats:
/// a 429 is a budget's answer, whatever its `Retry-After` says.
///
/// kube's own `evict` sends a misspelt field, which drops precondition and grace period.
pub(super) async fn evict(
    client: &Client,
    pod: &Pod,
    grace_period_seconds: Option<i64>,
    limit: Duration,
) -> Answer {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.clone().unwrap_or_default();
    let body = Eviction {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            grace_period_seconds,
            preconditions: Some(Preconditions {
                uid: pod.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteOptions::default()
        }),
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = PostParams::default();
    let call = pods.create_subresource::<_, Status>("eviction", &name, &params, &body);
    match tokio::time::timeout(limit, call).await {
        Err(_) => Answer::Failed(format!(
            "the API server did not answer the eviction within {} s",
            limit.as_secs()
        )),
        // A failure may come with HTTP status 201 and only the body telling it.
        Ok(Ok(status)) if status.is_failure() => read(&status),
        Ok(Ok(_)) => Answer::Admitted,
        Ok(Err(kube::Error::Api(status))) => read(&status),
        Ok(Err(error)) => Answer::Failed(crate::drain::report::chain(&error)),
    }
}

fn causes<'s>(status: &'s Status, kind: &str) -> Vec<&'s str> {
    status
        .details
        .iter()
        .flat_map(|d| &d.causes)
        .filter(|c| c.reason == kind)
        .map(|c| c.message.as_str())
        .collect()
}

/// What a refusal means.
pub(super) fn read(status: &Status) -> Answer {
    let message = || {
        let text = status.message.trim();
        if text.is_empty() {
            format!("HTTP {}", status.code)
        } else {
            text.to_owned()
        }
    };
    match status.code {
        404 => Answer::Gone,
        409 if status.message.contains("UID in the precondition") => Answer::Gone,
        429 => {
            let budget = causes(status, DISRUPTION_BUDGET);
            if budget.is_empty() {
                return Answer::Throttled(message());
            }
            let text = budget.join("; ");
            // Said of a status older than its spec, and of a pod that became ready just now.
            let settled = !text.contains("is still being processed by the server");
            Answer::Budget { text, settled }
        }
        403 if !causes(status, NAMESPACE_TERMINATING).is_empty() => Answer::NamespaceTerminating,
        500 if status.message.contains("more than one PodDisruptionBudget") => {
            Answer::SeveralBudgets
        }
        // A timeout of the server: mostly its conflicts over the budget's status.
        409 | 503 | 504 => Answer::Throttled(message()),
        _ => Answer::Failed(message()),
    }
}
