//! An API server in memory, as far as the webhook uses one, and reviews to send.
#![allow(dead_code, clippy::expect_used, clippy::missing_panics_doc)] // each test uses a part of it

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body as AxumBody;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use ichor_webhook::metrics::Metrics;
use ichor_webhook::{Judge, Limits, Users, WebhookConfig, router};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceExt;

pub const AGENT: &str = "system:serviceaccount:ichor-system:ichor-agent";
pub const GARBAGE_COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
pub const NAMESPACE_CONTROLLER: &str = "system:serviceaccount:kube-system:namespace-controller";
pub const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
pub const ARGOCD: &str = "system:serviceaccount:argocd:argocd-application-controller";
pub const EVE: &str = "eve";
/// Holds the verb `override`.
pub const OTTO: &str = "otto";

const MACHINES: &str = "/apis/ichor.maesh.dev/v1alpha1/namespaces/default/talosmachines";
const CLUSTERS: &str = "/apis/ichor.maesh.dev/v1alpha1/namespaces/default/talosclusters";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub method: Method,
    pub path: String,
    pub body: Value,
}

/// What a call whose path has this part meets instead of an answer.
#[derive(Clone, Debug)]
pub enum Fault {
    Status(u16),
    Hang,
    Panic,
}

#[derive(Default)]
struct Stored {
    objects: BTreeMap<String, Value>,
    holders: BTreeSet<String>,
    faults: Vec<(String, Fault)>,
    calls: Vec<Call>,
    version: u64,
}

/// The API server.
#[derive(Clone, Default)]
pub struct FakeApi(Arc<Mutex<Stored>>);

fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().expect("a map").remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// `test` and `add`, all or nothing.
fn json_patch(target: &mut Value, patch: &Value) -> bool {
    let mut result = target.clone();
    for operation in patch.as_array().expect("a list") {
        let path = operation["path"].as_str().expect("a path");
        match operation["op"].as_str() {
            Some("test") if result.pointer(path) != Some(&operation["value"]) => return false,
            Some("test") => {}
            Some("add") => {
                let (parent, key) = path.rsplit_once('/').expect("a path");
                result.pointer_mut(parent).expect("the parent")[key] = operation["value"].clone();
            }
            other => panic!("{other:?} is not spoken here"),
        }
    }
    *target = result;
    true
}

fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}),
    )
}

impl Stored {
    fn bump(&mut self, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    fn answer(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        kind: &str,
        body: Value,
    ) -> (u16, Value) {
        if path == REVIEWS {
            let user = body["spec"]["user"].as_str().unwrap_or_default();
            let mut review = body.clone();
            review["status"] = json!({"allowed": self.holders.contains(user)});
            return (201, review);
        }
        match *method {
            Method::GET if self.objects.contains_key(path) => (200, self.objects[path].clone()),
            Method::GET if path.ends_with("talosmachines") => {
                let cluster = query
                    .split('&')
                    .find_map(|p| p.strip_prefix("fieldSelector=spec.clusterRef.name%3D"));
                let items: Vec<&Value> = self
                    .objects
                    .iter()
                    .filter(|(key, _)| key.starts_with(&format!("{path}/")))
                    .map(|(_, object)| object)
                    .filter(|o| cluster.is_none_or(|c| o["spec"]["clusterRef"]["name"] == c))
                    .collect();
                (
                    200,
                    json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}),
                )
            }
            Method::POST => {
                let mut object = body;
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let key = format!("{path}/{name}");
                if self.objects.contains_key(&key) {
                    return status(409, "AlreadyExists", "already exists");
                }
                self.bump(&mut object);
                self.objects.insert(key, object.clone());
                (201, object)
            }
            Method::PUT | Method::PATCH => {
                let key = path.trim_end_matches("/status").to_owned();
                let Some(mut object) = self.objects.get(&key).cloned() else {
                    return status(404, "NotFound", "not found");
                };
                for field in ["resourceVersion", "uid"] {
                    let sent = &body["metadata"][field];
                    if !sent.is_null() && *sent != object["metadata"][field] {
                        return status(409, "Conflict", "the object has been modified");
                    }
                }
                if *method == Method::PUT {
                    object = body;
                } else if kind == "application/json-patch+json" {
                    if !json_patch(&mut object, &body) {
                        return status(422, "Invalid", "the test failed");
                    }
                } else {
                    merge(&mut object, &body);
                }
                self.bump(&mut object);
                self.objects.insert(key, object.clone());
                (200, object)
            }
            _ => status(404, "NotFound", &format!("{path} not found")),
        }
    }
}

impl FakeApi {
    /// Cluster `demo` in namespace `default` with three approved, adopted control planes
    /// and one worker; OTTO holds `override`.
    pub fn demo() -> Self {
        let api = Self::default();
        api.put("/api/v1/namespaces/default", json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default", "uid": "ns"}}));
        api.put(&format!("{CLUSTERS}/demo"), cluster("demo"));
        for n in 1..=3 {
            api.machine(control_plane(&format!("cp-{n}"), n));
        }
        api.machine(worker("worker-1", 21));
        api.0.lock().expect("lock").holders.insert(OTTO.into());
        api
    }

    pub fn put(&self, path: &str, mut object: Value) {
        let mut stored = self.0.lock().expect("lock");
        stored.bump(&mut object);
        stored.objects.insert(path.to_owned(), object);
    }

    pub fn machine(&self, machine: Value) {
        let name = machine["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned();
        self.put(&format!("{MACHINES}/{name}"), machine);
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().expect("lock").objects.get(path).cloned()
    }

    pub fn get_machine(&self, name: &str) -> Value {
        self.get(&format!("{MACHINES}/{name}"))
            .expect("the machine")
    }

    pub fn get_cluster(&self) -> Value {
        self.get(&format!("{CLUSTERS}/demo")).expect("the cluster")
    }

    pub fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut stored = self.0.lock().expect("lock");
        let mut object = stored.objects.get(path).cloned().expect("the object");
        change(&mut object);
        stored.bump(&mut object);
        stored.objects.insert(path.to_owned(), object);
    }

    pub fn change_machine(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.change(&format!("{MACHINES}/{name}"), change);
    }

    pub fn change_cluster(&self, change: impl FnOnce(&mut Value)) {
        self.change(&format!("{CLUSTERS}/demo"), change);
    }

    pub fn remove(&self, path: &str) {
        self.0.lock().expect("lock").objects.remove(path);
    }

    pub fn remove_cluster(&self) {
        self.remove(&format!("{CLUSTERS}/demo"));
    }

    pub fn remove_machine(&self, name: &str) {
        self.remove(&format!("{MACHINES}/{name}"));
    }

    /// Calls whose path has `part` meet `fault`.
    pub fn fault(&self, part: &str, fault: Fault) {
        self.0
            .lock()
            .expect("lock")
            .faults
            .push((part.into(), fault));
    }

    pub fn heal(&self) {
        self.0.lock().expect("lock").faults.clear();
    }

    pub fn calls(&self) -> Vec<Call> {
        self.0.lock().expect("lock").calls.clone()
    }

    pub fn forget_calls(&self) {
        self.0.lock().expect("lock").calls.clear();
    }

    /// Everything stored under a path that starts with `prefix`.
    pub fn under(&self, prefix: &str) -> Vec<Value> {
        let stored = self.0.lock().expect("lock");
        let found = stored
            .objects
            .iter()
            .filter(|(key, _)| key.starts_with(prefix));
        found.map(|(_, object)| object.clone()).collect()
    }

    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, std::convert::Infallible>(api.serve(request).await) }
        });
        Client::new(service, "default")
    }

    async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let kind = parts
            .headers
            .get("content-type")
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let fault = {
            let mut stored = self.0.lock().expect("lock");
            stored.calls.push(Call {
                method: parts.method.clone(),
                path: path.clone(),
                body: body.clone(),
            });
            let found = stored
                .faults
                .iter()
                .find(|(part, _)| path.contains(part.as_str()));
            found.map(|(_, fault)| fault.clone())
        };
        let (code, answer) = match fault {
            Some(Fault::Status(code)) => status(code, "Fault", "a fault was injected"),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Panic) => panic!("a fault was injected"),
            None => {
                let mut stored = self.0.lock().expect("lock");
                stored.answer(&parts.method, &path, &query, &kind, body)
            }
        };
        Response::builder()
            .status(code)
            .header("content-type", "application/json")
            .body(Body::from(serde_json::to_vec(&answer).expect("JSON")))
            .expect("a response")
    }

    pub fn judge(&self) -> Arc<Judge> {
        self.judge_within(Limits {
            lookup: Duration::from_millis(500),
            ..Limits::default()
        })
    }

    pub fn judge_within(&self, limits: Limits) -> Arc<Judge> {
        let users = Users::new("ichor-system", "ichor-agent", "", "");
        let config = WebhookConfig {
            limits,
            ..WebhookConfig::new("ichor-system", "ichor-agent-0", users)
        };
        Judge::new(&config, self.client(), Metrics::default())
    }

    /// Sends `review` to `path` and returns the `response` of the answer.
    pub async fn ask(&self, path: &str, review: &Value) -> Value {
        ask(&self.judge(), path, review).await
    }
}

pub async fn post(
    judge: &Arc<Judge>,
    path: &str,
    body: impl Into<AxumBody>,
) -> (StatusCode, Vec<u8>) {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(body.into())
        .expect("a request");
    let response = router(judge.clone())
        .oneshot(request)
        .await
        .expect("infallible");
    let code = response.status();
    let body = response
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    (code, body.to_vec())
}

pub async fn ask(judge: &Arc<Judge>, path: &str, review: &Value) -> Value {
    let (code, body) = post(judge, path, review.to_string()).await;
    assert_eq!(code, StatusCode::OK);
    let answer: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    answer["response"].clone()
}

pub fn cluster(name: &str) -> Value {
    json!({
        "apiVersion": "ichor.maesh.dev/v1alpha1", "kind": "TalosCluster",
        "metadata": {"name": name, "namespace": "default", "uid": "cluster-uid", "resourceVersion": "1",
            "finalizers": ["ichor.maesh.dev/cluster-teardown"]},
        "spec": {"controlPlane": {"count": 3}, "schedulable": "auto",
            "talos": {"credentialsSecretRef": {"name": "talosconfig"}}},
    })
}

pub fn control_plane(name: &str, host: u32) -> Value {
    json!({
        "apiVersion": "ichor.maesh.dev/v1alpha1", "kind": "TalosMachine",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "1",
            "finalizers": ["ichor.maesh.dev/machine-removal"]},
        "spec": {"clusterRef": {"name": "demo"}, "role": "controlplane", "approved": true,
            "address": format!("192.0.2.{host}")},
        "status": {"identity": {"clusterUID": "cluster-uid"}},
    })
}

pub fn worker(name: &str, host: u32) -> Value {
    let mut machine = control_plane(name, host);
    machine["spec"]["role"] = json!("worker");
    machine
}

pub fn annotated(mut object: Value, annotations: &[(&str, &str)]) -> Value {
    for (key, value) in annotations {
        object["metadata"]["annotations"][format!("ichor.maesh.dev/{key}")] = json!(value);
    }
    object
}

pub fn deletable(object: Value) -> Value {
    annotated(object, &[("allow-delete", "true")])
}

pub fn being_deleted(mut object: Value) -> Value {
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object
}

/// A review as an API server sends it.
pub fn review(
    operation: &str,
    resource: &str,
    user: &str,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Value {
    let any = new.or(old).expect("an object");
    let (group, namespace) = if resource == "namespaces" {
        ("", "")
    } else {
        ("ichor.maesh.dev", "default")
    };
    let group_of_users = ["people", "system:authenticated"];
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "0c9a8d74-9cb7-44dd-b98e-09fd62def2f4",
            "kind": {"group": group, "version": "v1alpha1", "kind": any["kind"]},
            "resource": {"group": group, "version": "v1alpha1", "resource": resource},
            "requestKind": {"group": group, "version": "v1alpha1", "kind": any["kind"]},
            "name": any["metadata"]["name"], "namespace": namespace, "operation": operation,
            "userInfo": {"username": user, "uid": "u-1", "groups": group_of_users, "extra": {"scopes.example/x": ["a", "b"]}},
            "object": new, "oldObject": old, "dryRun": false, "options": {"kind": "Options"},
        },
    })
}

#[track_caller]
pub fn assert_allowed(case: &str, response: &Value) {
    assert_eq!(response["allowed"], true, "{case}: {response:#}");
}

#[track_caller]
pub fn assert_refused(case: &str, response: &Value, code: u16, parts: &[&str]) {
    assert_eq!(response["allowed"], false, "{case}: {response:#}");
    assert_eq!(response["status"]["code"], code, "{case}: {response:#}");
    let reason = match code {
        403 => "Forbidden",
        503 => "ServiceUnavailable",
        _ => "BadRequest",
    };
    assert_eq!(response["status"]["reason"], reason, "{case}");
    let message = response["status"]["message"].as_str().unwrap_or_default();
    for part in parts {
        assert!(
            message.contains(part),
            "{case}: {part:?} is not in {message:?}"
        );
    }
}
