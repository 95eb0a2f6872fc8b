//! Objects for the tests, and an API server in memory that can only be listed.

pub mod etcd;

use http::{Request, Response};
use ichor_api::cluster::Schedulable;
use ichor_api::common::{Condition, set_condition};
use ichor_api::conditions::{JOINED, StandstillReason};
use ichor_api::machine::{ClusterReference, RemovalStatus, RemovalStepStatus};
use ichor_api::{ConditionStatus, MachineRole, TalosMachine, TalosMachineSpec, names};
use ichor_rules::count::{Basis, count_approved};
use ichor_rules::{ApprovedControlPlanes, Check, DirectReader, Verdict};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::client::Body;

use crate::oracle::{Answer, Place, Record, Worker};

/// Namespace and cluster of every object here.
pub const NAMESPACE: &str = "default";
pub const CLUSTER: &str = "demo";

/// A check as the oracle speaks: verdict and reason.
pub fn answer(check: &Check) -> Answer {
    let reason = check.reason.map(StandstillReason::as_str);
    match (check.verdict, reason) {
        (Verdict::Proceed, None) => Answer::Proceed,
        (Verdict::Wait, Some(reason)) => Answer::Wait(reason),
        (Verdict::Refuse, Some(reason)) => Answer::Refuse(reason),
        (verdict, reason) => panic!("{verdict:?} does not go with reason {reason:?}: {check}"),
    }
}

/// A refusal says the numbers before and after, as words of their own.
pub fn says_its_numbers(check: &Check) {
    for number in [check.before, check.after].into_iter().flatten() {
        let said = check
            .message
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|word| word == number.to_string());
        assert!(said, "{number} is not in: {}", check.message);
    }
}

/// A refusal's text goes on after what happened with what to do next, and is no longer
/// than a person reads in a hurry.
pub fn says_what_to_do(check: &Check) {
    const STEPS: [&str; 15] = [
        ". Add ",
        ". Approve ",
        ". Assign ",
        ". Bring ",
        ". If it really shall go, run: ",
        ". It is the only one: ",
        ". Join ",
        ". Repair ",
        ". See ",
        ". Try again ",
        ". Wait ",
        ". Correct ",
        ". Remove ",
        ". Set ",
        ". Put ",
    ];
    let message = &check.message;
    assert!(
        STEPS.iter().any(|step| message.contains(step)),
        "no next step: {message}"
    );
    assert!(
        message.len() < 1024 || message.matches("; ").count() > 1,
        "too long: {message}"
    );
    assert!(
        check
            .to_string()
            .ends_with(&format!("[rule: {}]", check.rule)),
        "no rule: {check}"
    );
    assert!(
        !message.contains("  ") && !message.contains("()"),
        "clumsy: {message}"
    );
}

/// An approved control plane with Ichor's finalizer.
pub fn control_plane(name: &str) -> Record {
    Record {
        name: name.to_owned(),
        control_plane: true,
        approved: true,
        finalizer: true,
        deleting: false,
        leave_confirmed: false,
        not_joined: None,
    }
}

/// `count` approved control planes, cp-1 and on.
pub fn control_planes(count: usize) -> Vec<Record> {
    (1..=count)
        .map(|i| control_plane(&format!("cp-{i}")))
        .collect()
}

fn now() -> Time {
    Time(Timestamp::UNIX_EPOCH)
}

/// The TalosMachine that a record describes, in `cluster`.
pub fn machine(record: &Record, cluster: &str) -> TalosMachine {
    let mut machine = TalosMachine::new(
        &record.name,
        TalosMachineSpec {
            cluster_ref: ClusterReference {
                name: cluster.to_owned(),
            },
            role: if record.control_plane {
                MachineRole::ControlPlane
            } else {
                MachineRole::Worker
            },
            approved: record.approved,
            rejected: false,
            address: "192.0.2.1".to_owned(),
            node_name: None,
            drain: None,
        },
    );
    machine.metadata.namespace = Some(NAMESPACE.to_owned());
    if record.finalizer {
        machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.to_owned()]);
    }
    if record.deleting {
        machine.metadata.deletion_timestamp = Some(now());
    }
    let status = machine.status.get_or_insert_default();
    if record.leave_confirmed {
        status.removal = Some(RemovalStatus {
            steps: vec![RemovalStepStatus {
                name: "LeaveEtcd".to_owned(),
                started_at: now(),
                finished_at: Some(now()),
            }],
            ..RemovalStatus::default()
        });
    }
    if let Some(reason) = record.not_joined {
        joined_false(&mut status.conditions, reason);
    }
    machine
}

fn joined_false(conditions: &mut Vec<Condition>, reason: &str) {
    set_condition(
        conditions,
        JOINED,
        ConditionStatus::False,
        reason,
        "",
        None,
        Timestamp::UNIX_EPOCH,
    );
}

/// The TalosMachine that a worker record describes.
pub fn worker(record: &Worker) -> TalosMachine {
    machine(
        &Record {
            name: record.name.clone(),
            control_plane: !record.works,
            approved: record.approved,
            finalizer: record.deleting,
            deleting: record.deleting,
            leave_confirmed: false,
            not_joined: None,
        },
        CLUSTER,
    )
}

/// `spec.schedulable` by its word.
pub fn schedulable(word: &str) -> Schedulable {
    serde_json::from_value(serde_json::Value::from(word)).unwrap()
}

/// Answers list requests for TalosMachines out of `machines`, `page` at a time.
///
/// It is stricter than an API server: it answers 400 to anything but a consistent read
/// (a `resourceVersion` in the query would let a stale answer through) of the machines
/// of one cluster.
pub fn list_server(machines: Vec<TalosMachine>, page: usize) -> Client {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((request, reply)) = handle.next_request().await {
            let body = list_answer(&machines, page, &request);
            let code = if body.get("items").is_some() {
                200
            } else {
                400
            };
            let response = Response::builder()
                .status(code)
                .header("content-type", "application/json")
                .body(Body::from(serde_json::to_vec(&body).unwrap()))
                .unwrap();
            reply.send_response(response);
        }
    });
    Client::new(service, NAMESPACE)
}

fn list_answer(
    machines: &[TalosMachine],
    page: usize,
    request: &Request<Body>,
) -> serde_json::Value {
    let refuse = |why: &str| {
        serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": 400, "reason": "BadRequest", "message": why})
    };
    if request.method() != http::Method::GET {
        return refuse("this server can only be listed");
    }
    if request.uri().path()
        != format!("/apis/ichor.maesh.dev/v1alpha1/namespaces/{NAMESPACE}/talosmachines")
    {
        return refuse("only TalosMachines of one namespace are served");
    }
    let query = request.uri().query().unwrap_or_default();
    let value = |key: &str| {
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(k, _)| *k == key)
            .map(|(_, v)| v.replace("%3D", "="))
    };
    if value("resourceVersion").is_some() || value("resourceVersionMatch").is_some() {
        return refuse("a list at a resourceVersion may be stale");
    }
    let Some(cluster) = value("fieldSelector")
        .and_then(|s| s.strip_prefix("spec.clusterRef.name=").map(str::to_owned))
    else {
        return refuse("the list must name its cluster");
    };
    let of_cluster: Vec<&TalosMachine> = machines
        .iter()
        .filter(|m| m.spec.cluster_ref.name == cluster)
        .collect();
    let from: usize = value("continue").map_or(0, |token| token.parse().unwrap());
    let until = (from + page).min(of_cluster.len());
    let token = (until < of_cluster.len()).then(|| until.to_string());
    serde_json::json!({
        "kind": "TalosMachineList",
        "apiVersion": "ichor.maesh.dev/v1alpha1",
        "metadata": {"resourceVersion": "7", "continue": token.unwrap_or_default()},
        "items": &of_cluster[from..until],
    })
}

/// Counts `records` the only way there is: through a [`DirectReader`], here over the
/// in-memory server, two to a page so that paging is part of every count. The server
/// also holds an approved control plane of another cluster, which never counts.
pub fn count(records: &[Record], target: &str, place: Place<'_>) -> ApprovedControlPlanes {
    wait(async {
        let mut machines: Vec<_> = records.iter().map(|r| machine(r, CLUSTER)).collect();
        machines.insert(0, machine(&control_plane("of-another-cluster"), "other"));
        let reader = DirectReader::new(list_server(machines, 2));
        count_approved(&reader, NAMESPACE, CLUSTER, target, basis(place))
            .await
            .unwrap()
    })
}

/// Runs `work` to its end.
pub fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(work)
}

fn basis(place: Place<'_>) -> Basis<'_> {
    match place {
        Place::Admission => Basis::Admission,
        Place::Lock(voters) => Basis::UnderLock { voters },
    }
}
