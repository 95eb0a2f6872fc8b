//! Calls to the API server, each with a deadline.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::DrainError;

/// Objects per page of a list.
const PAGE: u32 = 500;

/// `call`, ended after `limit`; `what` completes "failed to …".
pub(super) async fn bounded<T>(
    what: impl FnOnce() -> String,
    limit: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, DrainError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(DrainError::Api {
            what: what(),
            source: Box::new(source),
        }),
        Err(_) => Err(DrainError::Timeout {
            what: what(),
            after: limit,
        }),
    }
}

/// The Node, or `None` where there is none.
pub(super) async fn node(
    client: &Client,
    name: &str,
    limit: Duration,
) -> Result<Option<Node>, DrainError> {
    let nodes: Api<Node> = Api::all(client.clone());
    bounded(|| format!("read Node {name}"), limit, nodes.get_opt(name)).await
}

/// A whole list, page by page, and the resourceVersion that it was read at.
pub(super) async fn list<K>(
    api: &Api<K>,
    what: &str,
    fields: Option<String>,
    limit: Duration,
) -> Result<(Vec<K>, Option<String>), DrainError>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    params.field_selector = fields;
    let mut items = Vec::new();
    loop {
        let page = bounded(|| format!("list {what}"), limit, api.list(&params)).await?;
        items.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok((items, page.metadata.resource_version)),
        }
    }
}

/// The pods of a Node, by namespace and name.
pub(super) async fn pods_on(
    client: &Client,
    node: &str,
    limit: Duration,
) -> Result<(Vec<Pod>, Option<String>), DrainError> {
    let (mut pods, version) = list::<Pod>(
        &Api::all(client.clone()),
        &format!("the pods of Node {node}"),
        Some(format!("spec.nodeName={node}")),
        limit,
    )
    .await?;
    pods.sort_by(|a, b| {
        (&a.metadata.namespace, &a.metadata.name).cmp(&(&b.metadata.namespace, &b.metadata.name))
    });
    Ok((pods, version))
}

/// The budgets of one namespace, or of all.
pub(super) async fn budgets(
    client: &Client,
    namespace: Option<&str>,
    limit: Duration,
) -> Result<Vec<PodDisruptionBudget>, DrainError> {
    let api: Api<PodDisruptionBudget> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let (mut budgets, _) = list(&api, "PodDisruptionBudgets", None, limit).await?;
    budgets.sort_by(|a, b| {
        (&a.metadata.namespace, &a.metadata.name).cmp(&(&b.metadata.namespace, &b.metadata.name))
    });
    Ok(budgets)
}

/// Whether the API server knows no such object.
pub(super) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}
