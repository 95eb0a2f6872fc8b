//! A small API server on loopback that keeps machines and a cluster, and says what it
//! was asked.
#![allow(dead_code)] // each test file uses its part

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kubectl_ichor::io::{Env, Io};
use serde_json::{Value, json};

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// Path and query.
    pub uri: String,
    pub headers: BTreeMap<String, Vec<String>>,
    pub body: Value,
}

/// An answer that stands in for the server's own.
pub type Fault = Box<dyn FnMut(&Asked) -> Option<(u16, Value)> + Send>;

#[derive(Default)]
pub struct State {
    pub machines: BTreeMap<String, Value>,
    pub cluster: Option<Value>,
    pub lease: Option<Value>,
    pub pods: Vec<Value>,
    pub budgets: Vec<Value>,
    pub asked: Vec<Asked>,
    pub fault: Option<Fault>,
    pub warning: Option<String>,
    version: u64,
}

pub struct Server {
    pub url: String,
    pub state: Arc<Mutex<State>>,
    _runtime: tokio::runtime::Runtime,
}

pub fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}

fn missing(resource: &str, name: &str) -> (u16, Value) {
    let mut body = status(404, "NotFound", &format!("{resource} {name:?} not found"));
    body["details"] = json!({"name": name, "kind": resource});
    (404, body)
}

fn list(items: Vec<Value>) -> (u16, Value) {
    (
        200,
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}),
    )
}

impl Server {
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::clone(&state);
        runtime.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = service_fn(move |request| serve(Arc::clone(&shared), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            url,
            state,
            _runtime: runtime,
        }
    }

    pub fn with(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.state.lock().unwrap().asked.clone()
    }

    /// Requests that would change something.
    pub fn writes(&self) -> Vec<String> {
        self.asked()
            .iter()
            .filter(|a| a.method != "GET" && !a.uri.contains("/eviction"))
            .map(|a| format!("{} {}", a.method, a.uri.split('?').next().unwrap()))
            .collect()
    }

    pub fn machine(&self, name: &str) -> Value {
        self.state.lock().unwrap().machines[name].clone()
    }
}

async fn serve(
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> Result<Response<Full<bytes::Bytes>>, std::convert::Infallible> {
    let (parts, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in &parts.headers {
        headers
            .entry(name.to_string())
            .or_default()
            .push(value.to_str().unwrap_or_default().to_owned());
    }
    let asked = Asked {
        method: parts.method.to_string(),
        uri: parts.uri.to_string(),
        headers,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    let mut state = state.lock().unwrap();
    state.asked.push(asked.clone());
    let mut fault = state.fault.take();
    let faulty = fault.as_mut().and_then(|fault| fault(&asked));
    state.fault = fault;
    let (code, value) = faulty.unwrap_or_else(|| state.answer(&asked));
    let mut response = Response::builder()
        .status(code)
        .header("content-type", "application/json");
    if let Some(warning) = &state.warning {
        response = response.header("warning", format!("299 - \"{warning}\""));
    }
    Ok(response.body(Full::new(value.to_string().into())).unwrap())
}

impl State {
    fn answer(&mut self, asked: &Asked) -> (u16, Value) {
        let path = asked.uri.split('?').next().unwrap();
        let dry = asked.uri.contains("dryRun=All") || asked.body["dryRun"] == json!(["All"]);
        let own = "/apis/ichor.maesh.dev/v1alpha1";
        if path == format!("{own}/namespaces/default/talosmachines")
            || path == format!("{own}/talosmachines")
        {
            return list(self.machines.values().cloned().collect());
        }
        if path == format!("{own}/namespaces/default/talosclusters")
            || path == format!("{own}/talosclusters")
        {
            return list(self.cluster.iter().cloned().collect());
        }
        if let Some(name) = path.strip_prefix(&format!("{own}/namespaces/default/talosmachines/")) {
            return self.machine(asked, name, dry);
        }
        if path == format!("{own}/namespaces/default/talosclusters/demo") {
            return match &self.cluster {
                Some(cluster) => (200, cluster.clone()),
                None => missing("talosclusters.ichor.maesh.dev", "demo"),
            };
        }
        match path {
            "/apis/coordination.k8s.io/v1/namespaces/default/leases/ichor-demo" => {
                match &self.lease {
                    Some(lease) => (200, lease.clone()),
                    None => missing("leases.coordination.k8s.io", "ichor-demo"),
                }
            }
            "/api/v1/pods" => list(self.pods.clone()),
            "/apis/policy/v1/poddisruptionbudgets" => list(self.budgets.clone()),
            "/api/v1/namespaces" => list(vec![json!({"metadata": {"name": "default"}})]),
            "/version" => (
                200,
                json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            ),
            _ if asked.uri.contains("/eviction") => {
                let mut body = status(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                );
                body["details"] = json!({"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget web needs 3 healthy pods and has 3 currently"}]});
                (429, body)
            }
            other => missing("objects", other),
        }
    }

    fn machine(&mut self, asked: &Asked, name: &str, dry: bool) -> (u16, Value) {
        let Some(mut machine) = self.machines.get(name).cloned() else {
            return missing("talosmachines.ichor.maesh.dev", name);
        };
        match asked.method.as_str() {
            "PATCH" => {
                let sent = &asked.body["metadata"]["resourceVersion"];
                if !sent.is_null() && *sent != machine["metadata"]["resourceVersion"] {
                    return (409, status(409, "Conflict", "the object has been modified"));
                }
                for (key, value) in asked.body["metadata"]["annotations"].as_object().unwrap() {
                    let annotations = &mut machine["metadata"]["annotations"];
                    if annotations.is_null() {
                        *annotations = json!({});
                    }
                    if value.is_null() {
                        annotations.as_object_mut().unwrap().remove(key);
                    } else {
                        annotations[key] = value.clone();
                    }
                }
            }
            "DELETE" => {
                let uid = &asked.body["preconditions"]["uid"];
                if *uid != machine["metadata"]["uid"] {
                    return (409, status(409, "Conflict", "uid mismatch"));
                }
                machine["metadata"]["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
            }
            _ => return (200, machine),
        }
        if !dry {
            self.touch(name, machine.clone());
        }
        (200, machine)
    }

    /// Stores a machine under a new resourceVersion.
    pub fn touch(&mut self, name: &str, mut machine: Value) {
        self.version += 1;
        machine["metadata"]["resourceVersion"] = json!(format!("{}", 100 + self.version));
        self.machines.insert(name.to_owned(), machine);
    }

    /// Four voting control planes, three declared: one may go.
    pub fn demo(&mut self) {
        let now = k8s_openapi::jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string();
        let names = ["cp-1", "cp-2", "cp-3", "cp-4"];
        for (n, name) in names.iter().enumerate() {
            self.machines.insert((*name).to_owned(), json!({
                "apiVersion": "ichor.maesh.dev/v1alpha1", "kind": "TalosMachine",
                "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "1",
                    "finalizers": ["ichor.maesh.dev/machine-removal"], "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"clusterRef": {"name": "demo"}, "role": "controlplane", "approved": true, "address": "192.0.2.1"},
                "status": {"identity": {"nodeName": format!("node-{name}"), "clusterUID": "uid-demo", "etcdMemberID": format!("{:016x}", n + 1)}},
            }));
        }
        let members: Vec<Value> = names
            .iter()
            .enumerate()
            .map(|(n, name)| json!({"id": format!("{:016x}", n + 1), "name": name, "machine": name, "started": true, "healthy": true}))
            .collect();
        self.cluster = Some(json!({
            "apiVersion": "ichor.maesh.dev/v1alpha1", "kind": "TalosCluster",
            "metadata": {"name": "demo", "namespace": "default", "uid": "uid-demo", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"controlPlane": {"count": 3}, "talos": {"credentialsSecretRef": {"name": "t"}}},
            "status": {"etcd": {"members": members, "leader": "cp-1", "voters": 4, "healthy": 4, "observedAt": now}},
        }));
    }
}

/// What a run of the program came to.
#[derive(Debug)]
pub struct Ran {
    pub code: u8,
    pub out: String,
    pub err: String,
}

/// Runs the program with a kubeconfig for `server`. `answer`: what a person at a terminal
/// types; `None`: no terminal.
pub fn ichor_asked(server: &Server, words: &str, answer: Option<&str>) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    std::fs::write(&file, kubeconfig(&server.url, "")).unwrap();
    ichor_env(&[("KUBECONFIG", file.to_str().unwrap())], words, answer)
}

pub fn ichor(server: &Server, words: &str) -> Ran {
    ichor_asked(server, words, None)
}

pub fn ichor_env(vars: &[(&str, &str)], words: &str, answer: Option<&str>) -> Ran {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let env = Env {
        vars: vars
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
    };
    let args = std::iter::once("/usr/bin/kubectl-ichor")
        .chain(words.split_whitespace())
        .map(Into::into)
        .collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let input = answer.map(|a| format!("{a}\n")).unwrap_or_default();
    let code = {
        let mut io = Io::new(&mut out, &mut err, input.as_bytes());
        io.in_is_terminal = answer.is_some();
        kubectl_ichor::run(args, &env, &mut io)
    };
    Ran {
        code,
        out: String::from_utf8(out).unwrap(),
        err: String::from_utf8(err).unwrap(),
    }
}

/// A kubeconfig with one context `one` for `url`; `extra` goes into its cluster.
pub fn kubeconfig(url: &str, extra: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: one\nclusters:\n- name: c-one\n  cluster:\n    server: {url}\n{extra}users:\n- name: u-one\n  user:\n    token: token-one\ncontexts:\n- name: one\n  context:\n    cluster: c-one\n    user: u-one\n    namespace: default\n"
    )
}
