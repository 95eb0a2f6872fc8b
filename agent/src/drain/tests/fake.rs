//! An API server in memory: Nodes, pods, budgets, evictions. It answers evictions as a
//! real one does, unless told otherwise, and keeps a log of every request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// One request that came in.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) body: Value,
}

/// What it holds.
#[derive(Default)]
pub(super) struct World {
    pub(super) node: Option<Value>,
    pub(super) pods: Vec<Value>,
    pub(super) budgets: Vec<Value>,
    pub(super) attachments: Vec<Value>,
    pub(super) claims: BTreeMap<String, Value>,
    pub(super) events: Vec<Value>,
    /// Answers to the evictions of a pod, by name; when they are used up, as ever.
    pub(super) answers: BTreeMap<String, VecDeque<(u16, Value)>>,
    /// Pods whose evictions are never answered.
    pub(super) silent: BTreeSet<String>,
    /// What a watch of the pods tells before it ends; `None`: it is refused.
    pub(super) watch: Option<Vec<Value>>,
    /// How many patches of the Node are refused with a conflict.
    pub(super) conflicts: usize,
    /// Pods per page of a list.
    pub(super) page: Option<usize>,
    pub(super) calls: Vec<Call>,
    version: u64,
    in_flight: usize,
    pub(super) most_in_flight: usize,
}

#[derive(Clone)]
pub(super) struct Fake(Arc<Mutex<World>>);

impl Fake {
    /// A schedulable Node `worker-1` without pods.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(World {
            node: Some(json!({
                "metadata": { "name": "worker-1", "uid": "node-1", "resourceVersion": "1" },
                "spec": {},
            })),
            version: 1,
            ..World::default()
        })))
    }

    pub(super) fn with(pods: impl IntoIterator<Item = Value>) -> Self {
        let fake = Self::new();
        fake.world().pods.extend(pods);
        fake
    }

    pub(super) fn budgets(self, budgets: impl IntoIterator<Item = Value>) -> Self {
        self.world().budgets.extend(budgets);
        self
    }

    /// The next evictions of pod `name` are answered so.
    pub(super) fn answer(
        self,
        name: &str,
        answers: impl IntoIterator<Item = (u16, Value)>,
    ) -> Self {
        self.world()
            .answers
            .insert(name.to_owned(), answers.into_iter().collect());
        self
    }

    pub(super) fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.world().calls.clone()
    }

    /// Names of the pods that were asked to be evicted, in order.
    pub(super) fn evicted(&self) -> Vec<String> {
        self.calls()
            .iter()
            .filter_map(|c| c.path.strip_suffix("/eviction"))
            .filter_map(|path| path.rsplit('/').next().map(str::to_owned))
            .collect()
    }

    /// How many calls had this method and path.
    pub(super) fn count(&self, method: &Method, path: &str) -> usize {
        self.calls()
            .iter()
            .filter(|c| c.method == *method && c.path == path)
            .count()
    }

    /// A client of it, without retries, as the agent's.
    pub(super) fn client(&self) -> Client {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let fake = self.clone();
        tokio::spawn(async move {
            while let Some((request, reply)) = handle.next_request().await {
                let fake = fake.clone();
                tokio::spawn(async move {
                    fake.enter();
                    // Lets every request that is ready come in before one is answered.
                    for _ in 0..20 {
                        tokio::task::yield_now().await;
                    }
                    let (parts, body) = request.into_parts();
                    let body = body.collect_bytes().await.unwrap();
                    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                    let call = Call {
                        method: parts.method,
                        path: parts.uri.path().to_owned(),
                        query: parts.uri.query().unwrap_or_default().to_owned(),
                        body,
                    };
                    if call.query.contains("watch=true") {
                        reply.send_response(fake.watch(call));
                        return;
                    }
                    let (code, value) = fake.answer_to(&call);
                    fake.leave();
                    if fake.is_silent(&call) {
                        std::future::pending::<()>().await;
                    }
                    let mut response = Response::builder().status(code);
                    if code == 429 {
                        response = response.header("Retry-After", "1000");
                    }
                    let bytes = serde_json::to_vec(&value).unwrap();
                    reply.send_response(response.body(Body::from(bytes)).unwrap());
                });
            }
        });
        Client::new(service, "default")
    }

    fn enter(&self) {
        let mut world = self.world();
        world.in_flight += 1;
        world.most_in_flight = world.most_in_flight.max(world.in_flight);
    }

    fn leave(&self) {
        self.world().in_flight -= 1;
    }

    fn is_silent(&self, call: &Call) -> bool {
        let name = call.path.strip_suffix("/eviction");
        let name = name.and_then(|path| path.rsplit('/').next());
        name.is_some_and(|name| self.world().silent.contains(name))
    }

    fn watch(&self, call: Call) -> Response<Body> {
        let mut world = self.world();
        world.calls.push(call);
        let (code, body) = if let Some(events) = &world.watch {
            let lines: Vec<String> = events.iter().map(|e| format!("{e}\n")).collect();
            (200, lines.concat())
        } else {
            let (code, body) = status(403, "Forbidden", "pods is forbidden", json!([]));
            (code, body.to_string())
        };
        Response::builder()
            .status(code)
            .body(Body::from(body.into_bytes()))
            .unwrap()
    }

    fn answer_to(&self, call: &Call) -> (u16, Value) {
        let mut world = self.world();
        world.calls.push(call.clone());
        let parts: Vec<&str> = call.path.trim_matches('/').split('/').collect();
        match (call.method.as_str(), parts.as_slice()) {
            ("GET", ["api", "v1", "nodes", _]) => match &world.node {
                Some(node) => (200, node.clone()),
                None => not_found(),
            },
            ("PATCH", ["api", "v1", "nodes", _]) => world.patch_node(&call.body),
            ("GET", ["api", "v1", "pods"]) => world.list_pods(&call.query),
            ("GET", ["apis", "policy", "v1", "poddisruptionbudgets"]) => {
                (200, list(world.budgets.clone(), ""))
            }
            (
                "GET",
                [
                    "apis",
                    "policy",
                    "v1",
                    "namespaces",
                    ns,
                    "poddisruptionbudgets",
                ],
            ) => {
                let budgets = world.budgets.iter();
                let budgets = budgets.filter(|b| b["metadata"]["namespace"] == *ns);
                (200, list(budgets.cloned().collect(), ""))
            }
            ("POST", ["api", "v1", "namespaces", ns, "pods", name, "eviction"]) => {
                world.evict(ns, name, &call.body)
            }
            ("DELETE", ["api", "v1", "namespaces", ns, "pods", name]) => {
                let uid = call.body["preconditions"]["uid"].clone();
                match world.pod(ns, name) {
                    None => not_found(),
                    Some(at) if world.pods[at]["metadata"]["uid"] != uid => uid_conflict(),
                    Some(at) => (200, world.pods.remove(at)),
                }
            }
            ("GET", ["apis", "storage.k8s.io", "v1", "volumeattachments"]) => {
                (200, list(world.attachments.clone(), ""))
            }
            (
                "GET",
                [
                    "api",
                    "v1",
                    "namespaces",
                    ns,
                    "persistentvolumeclaims",
                    name,
                ],
            ) => match world.claims.get(&format!("{ns}/{name}")) {
                Some(claim) => (200, claim.clone()),
                None => not_found(),
            },
            ("POST", ["apis", "events.k8s.io", "v1", "namespaces", _, "events"]) => {
                let name = call.body["metadata"]["name"].clone();
                if world.events.iter().any(|e| e["metadata"]["name"] == name) {
                    return status(409, "AlreadyExists", "already exists", json!([]));
                }
                world.events.push(call.body.clone());
                (201, call.body.clone())
            }
            other => panic!("no such call: {other:?}"),
        }
    }
}

impl World {
    fn pod(&self, namespace: &str, name: &str) -> Option<usize> {
        self.pods
            .iter()
            .position(|p| p["metadata"]["namespace"] == namespace && p["metadata"]["name"] == name)
    }

    fn patch_node(&mut self, patch: &Value) -> (u16, Value) {
        let Some(node) = &mut self.node else {
            return not_found();
        };
        let stale = patch["metadata"]["resourceVersion"] != node["metadata"]["resourceVersion"];
        assert!(
            patch["metadata"]["resourceVersion"].is_string(),
            "a patch of a Node without a precondition"
        );
        if self.conflicts > 0 || stale {
            self.conflicts = self.conflicts.saturating_sub(1);
            return status(409, "Conflict", "the object has been modified", json!([]));
        }
        merge(node, patch);
        self.version += 1;
        node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        (200, node.clone())
    }

    fn list_pods(&self, query: &str) -> (u16, Value) {
        assert!(
            query.contains("fieldSelector=spec.nodeName%3Dworker-1") && query.contains("limit=500"),
            "{query}"
        );
        let from: usize = query
            .split('&')
            .find_map(|part| part.strip_prefix("continue="))
            .map_or(0, |token| token.parse().unwrap());
        let end = self
            .page
            .map_or(self.pods.len(), |page| self.pods.len().min(from + page));
        let next = if end < self.pods.len() {
            end.to_string()
        } else {
            String::new()
        };
        (200, list(self.pods[from..end].to_vec(), &next))
    }

    /// As the API server: precondition, then the budget, then deletion.
    fn evict(&mut self, namespace: &str, name: &str, body: &Value) -> (u16, Value) {
        if self.silent.contains(name) {
            return not_found();
        }
        if let Some(answer) = self.answers.get_mut(name).and_then(VecDeque::pop_front) {
            return answer;
        }
        let Some(at) = self.pod(namespace, name) else {
            return not_found();
        };
        let uid = &self.pods[at]["metadata"]["uid"];
        if body["deleteOptions"]["preconditions"]["uid"] != *uid {
            return uid_conflict();
        }
        if self.pods[at]["metadata"]["deletionTimestamp"].is_null() {
            let label = self.pods[at]["metadata"]["labels"]["app"].clone();
            let budget = self.budgets.iter_mut().find(|b| {
                b["metadata"]["namespace"] == namespace
                    && b["spec"]["selector"]["matchLabels"]["app"] == label
            });
            if let Some(budget) = budget {
                let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap();
                if allowed == 0 {
                    return budget_refusal(budget["metadata"]["name"].as_str().unwrap());
                }
                budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
            }
        }
        let pod = &mut self.pods[at];
        let grace = body["deleteOptions"]["gracePeriodSeconds"]
            .as_i64()
            .or(pod["spec"]["terminationGracePeriodSeconds"].as_i64())
            .unwrap_or(30);
        if grace == 0 && pod["metadata"]["finalizers"].is_null() {
            self.pods.remove(at);
        } else {
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            pod["metadata"]["deletionTimestamp"] = json!("2026-06-01T12:00:30Z");
        }
        (
            201,
            json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }),
        )
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let map = into.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key).or_insert(Value::Null), value);
        }
    }
}

fn list(items: Vec<Value>, next: &str) -> Value {
    json!({
        "kind": "List", "apiVersion": "v1",
        "metadata": { "resourceVersion": "7", "continue": next },
        "items": items,
    })
}

/// A failure as the API server words it.
pub(super) fn status(code: u16, reason: &str, message: &str, causes: Value) -> (u16, Value) {
    assert!(StatusCode::from_u16(code).is_ok());
    (
        code,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": code, "reason": reason, "message": message,
            "details": { "causes": causes },
        }),
    )
}

fn not_found() -> (u16, Value) {
    status(404, "NotFound", "not found", json!([]))
}

pub(super) fn uid_conflict() -> (u16, Value) {
    status(
        409,
        "Conflict",
        "Operation cannot be fulfilled on Pod \"x\": the UID in the precondition (a) does not match the UID in record (b). The object might have been deleted and then recreated",
        json!([]),
    )
}

/// A budget's refusal: 429 with its cause.
pub(super) fn budget_refusal(budget: &str) -> (u16, Value) {
    status(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        json!([{
            "reason": "DisruptionBudget",
            "message": format!("The disruption budget {budget} needs 2 healthy pods and has 2 currently"),
        }]),
    )
}

/// A ready pod of a ReplicaSet on `worker-1`, with label `app`.
pub(super) fn pod(name: &str, app: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "default", "name": name, "uid": format!("uid-{name}"),
            "labels": { "app": app },
            "creationTimestamp": "2026-05-01T00:00:00Z",
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": true,
            }],
        },
        "spec": { "nodeName": "worker-1", "containers": [], "terminationGracePeriodSeconds": 0 },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

/// `pod` with one value set, by JSON pointer.
pub(super) fn set(mut pod: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key] = value;
    pod
}

/// A pod that was deleted and has until noon and 10 minutes.
pub(super) fn terminating(pod: Value, grace: i64) -> Value {
    let pod = set(
        pod,
        "/metadata/deletionTimestamp",
        json!("2026-06-01T12:10:00Z"),
    );
    set(pod, "/metadata/deletionGracePeriodSeconds", json!(grace))
}

/// A budget over the pods labelled `app`, with its numbers.
pub(super) fn budget(name: &str, app: &str, allowed: i32, current: i32, desired: i32) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name, "generation": 1 },
        "spec": { "selector": { "matchLabels": { "app": app } } },
        "status": {
            "disruptionsAllowed": allowed, "currentHealthy": current, "desiredHealthy": desired,
            "expectedPods": current + 1, "observedGeneration": 1,
        },
    })
}
