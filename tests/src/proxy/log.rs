//! What went through the proxy: an account of API calls for tests and benches.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use http::Method;
use jiff::Timestamp;
use serde::Serialize;

/// How many requests are kept; the oldest go first.
const KEPT: usize = 200_000;

/// One request.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiRequest {
    /// When it was answered, or its answer dropped.
    pub time: Timestamp,
    /// Its `User-Agent`.
    pub user_agent: String,
    /// Its HTTP method.
    pub method: String,
    /// Its path with its query.
    pub path: String,
    /// The verb, as RBAC names it: `get`, `list`, `watch`, `create`, …
    pub verb: String,
    /// The resource, with its subresource: `pods`, `pods/eviction`; empty for other paths.
    pub resource: String,
    /// The status code that the API server gave; 0 where it was not asked, or did not answer.
    pub code: u16,
    /// What the proxy did to it, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Requests counted alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestCount {
    /// `User-Agent`.
    pub user_agent: String,
    /// Verb.
    pub verb: String,
    /// Resource with subresource.
    pub resource: String,
    /// How many.
    pub count: u64,
}

/// Every request that went through.
#[derive(Debug, Default)]
pub struct RequestLog {
    requests: Mutex<Vec<ApiRequest>>,
}

impl RequestLog {
    pub(super) fn record(&self, request: ApiRequest) {
        let mut requests = self.requests();
        if requests.len() >= KEPT {
            requests.drain(..KEPT / 4);
        }
        requests.push(request);
    }

    /// A copy of all.
    pub fn all(&self) -> Vec<ApiRequest> {
        self.requests().clone()
    }

    /// How many there were; with [`since`](Self::since), marks a moment.
    pub fn len(&self) -> usize {
        self.requests().len()
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those that came after there were `mark`.
    pub fn since(&self, mark: usize) -> Vec<ApiRequest> {
        self.requests().get(mark..).unwrap_or_default().to_vec()
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.requests().clear();
    }

    /// How many of each kind.
    pub fn counts(&self) -> Vec<RequestCount> {
        let mut counts = BTreeMap::<(String, String, String), u64>::new();
        for request in self.requests().iter() {
            let key = (
                request.user_agent.clone(),
                request.verb.clone(),
                request.resource.clone(),
            );
            *counts.entry(key).or_default() += 1;
        }
        counts
            .into_iter()
            .map(|((user_agent, verb, resource), count)| RequestCount {
                user_agent,
                verb,
                resource,
                count,
            })
            .collect()
    }

    fn requests(&self) -> std::sync::MutexGuard<'_, Vec<ApiRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Verb and resource of a request, as the API server's own authorizer reads them.
pub(super) fn verb_and_resource(method: &Method, path_and_query: &str) -> (String, String) {
    let (path, query) = path_and_query
        .split_once('?')
        .unwrap_or((path_and_query, ""));
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let rest = match parts.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => &[],
    };
    let rest = match rest {
        ["namespaces", _, of @ ..] if !of.is_empty() && !matches!(of, ["status" | "finalize"]) => {
            of
        }
        other => other,
    };
    let (resource, named) = match rest {
        [] => (String::new(), false),
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, sub @ ..] => (format!("{resource}/{}", sub.join("/")), true),
    };
    let watches = query
        .split('&')
        .any(|p| matches!(p, "watch" | "watch=1" | "watch=true"));
    let verb = match (method.as_str(), resource.is_empty(), named) {
        (_, true, _) => return (method.as_str().to_ascii_lowercase(), resource),
        ("GET", ..) if watches => "watch",
        ("GET", _, true) => "get",
        ("GET", ..) => "list",
        ("POST", ..) => "create",
        ("PUT", ..) => "update",
        ("PATCH", ..) => "patch",
        ("DELETE", _, true) => "delete",
        ("DELETE", ..) => "deletecollection",
        _ => return (method.as_str().to_ascii_lowercase(), resource),
    };
    (verb.to_owned(), resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_as_rbac_names_them() {
        let of = |method: Method, path: &str| {
            let (verb, resource) = verb_and_resource(&method, path);
            format!("{verb} {resource}")
        };
        let table = [
            (Method::GET, "/api/v1/nodes/cp-1", "get nodes"),
            (
                Method::GET,
                "/api/v1/namespaces/default/pods?limit=5",
                "list pods",
            ),
            (
                Method::GET,
                "/api/v1/pods?fieldSelector=a%3Db&watch=true",
                "watch pods",
            ),
            (
                Method::POST,
                "/api/v1/namespaces/a/pods/b/eviction",
                "create pods/eviction",
            ),
            (Method::GET, "/api/v1/namespaces/a", "get namespaces"),
            (
                Method::PUT,
                "/api/v1/namespaces/a/finalize",
                "update namespaces/finalize",
            ),
            (
                Method::DELETE,
                "/apis/apps/v1/namespaces/a/deployments",
                "deletecollection deployments",
            ),
            (
                Method::PATCH,
                "/apis/ichor.maesh.dev/v1alpha1/namespaces/a/talosmachines/b/status",
                "patch talosmachines/status",
            ),
            (Method::GET, "/readyz", "get "),
        ];
        for (method, path, expected) in table {
            assert_eq!(of(method, path), expected, "{path}");
        }
    }
}
