//! The drain against a real API server, with live budgets, under the agent's own
//! ServiceAccount and exactly the shipped rights.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ichor_agent::drain::{self, DrainLimits, DrainOutcome, DrainPass, DrainRequest};
use ichor_api::common::DrainOptions;
use ichor_api::machine::DrainStatus;
use ichor_api::names;
use ichor_lock::testing::{MemoryStore, ScriptedView};
use ichor_lock::{
    BootClock, DisruptiveLock, Durations, LockManager, Operation, acquire_disruptive,
};
use ichor_tests::bed::{Bed, BedOptions};
use ichor_tests::shared::SharedBed;
use ichor_tests::workload::{Workload, agent_client};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

#[path = "drain/around.rs"]
mod around;
#[path = "drain/budgets.rs"]
mod budgets;
#[path = "drain/pods.rs"]
mod pods;

static BED: SharedBed = SharedBed::new(|| BedOptions {
    control_planes: 1,
    workers: 0,
    agents: 0,
    ..BedOptions::default()
});

const SOON: Duration = Duration::from_secs(120);

/// A drain of a workload's node, as the agent makes it.
struct Drain {
    client: Client,
    lock: DisruptiveLock,
    node: String,
    options: DrainOptions,
    dead: bool,
    elapsed: Duration,
    status: Option<DrainStatus>,
    began: Instant,
    limits: DrainLimits,
}

impl Drain {
    async fn of(bed: &Bed, workload: &Workload) -> Self {
        Self::through(bed, workload, bed.control_plane().url()).await
    }

    async fn through(bed: &Bed, workload: &Workload, url: &str) -> Self {
        Self {
            client: agent_client(bed, url).await.unwrap(),
            lock: held(workload.name()).await,
            node: workload.name().to_owned(),
            options: DrainOptions::default(),
            dead: false,
            elapsed: Duration::ZERO,
            status: None,
            began: Instant::now(),
            limits: DrainLimits::default(),
        }
    }

    fn options(mut self, options: Value) -> Self {
        self.options = serde_json::from_value(options).unwrap();
        self
    }

    fn operation(&self) -> String {
        format!("op-{}", self.node)
    }

    async fn pass(&mut self) -> DrainPass {
        let operation = self.operation();
        let request = DrainRequest {
            node: &self.node,
            operation_uid: &operation,
            options: &self.options,
            dead: self.dead,
            agent_namespace: names::AGENT_NAMESPACE,
            previous: self.status.as_ref(),
            elapsed: self.elapsed,
            now: Timestamp::now(),
            limits: self.limits.clone(),
        };
        let pass = drain::pass(&self.lock, &self.client, request)
            .await
            .unwrap();
        self.status = Some(pass.status.clone());
        pass
    }

    /// Passes until one ends as `wanted`; what else it may come by is `Progressing`, or
    /// a budget that is still being worked out.
    async fn until(&mut self, wanted: fn(&DrainOutcome) -> bool) -> DrainPass {
        loop {
            let pass = self.pass().await;
            if wanted(&pass.outcome) {
                return pass;
            }
            assert!(self.began.elapsed() < SOON, "{:?}", pass.outcome);
            drain::settle(&self.client, &self.node, &pass, &self.limits).await;
        }
    }

    async fn drained(&mut self) -> DrainPass {
        self.limits.retry = Duration::from_millis(300);
        self.until(|o| *o == DrainOutcome::Drained).await
    }

    async fn unschedulable(&self) -> bool {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(&self.node).await.unwrap();
        node.spec.and_then(|s| s.unschedulable).unwrap_or(false)
    }
}

async fn held(name: &str) -> DisruptiveLock {
    let manager = LockManager::new("test", Arc::new(BootClock), Durations::default());
    let operation = Operation {
        kind: "TalosMachine".to_owned(),
        name: name.to_owned(),
        namespace: "default".to_owned(),
        uid: format!("op-{name}"),
        purpose: "removal".to_owned(),
    };
    let store = MemoryStore::new();
    let view = ScriptedView::default();
    acquire_disruptive(&manager, Arc::new(store), &view, &operation, true)
        .await
        .unwrap()
}

fn blocked(pass: &DrainPass) -> &str {
    match &pass.outcome {
        DrainOutcome::Blocked { message } => message,
        other => panic!("not blocked: {other:?}"),
    }
}

fn reasons(pass: &DrainPass) -> BTreeMap<&str, &str> {
    let pods = pass.status.pods.iter();
    pods.map(|p| (p.name.as_str(), p.reason.as_str())).collect()
}

fn is_blocked(outcome: &DrainOutcome) -> bool {
    matches!(outcome, DrainOutcome::Blocked { .. })
}

async fn relax(workload: &Workload, budget: &str, min_available: i32) {
    let api = workload.api::<PodDisruptionBudget>();
    let patch = Patch::Merge(json!({ "spec": { "minAvailable": min_available } }));
    api.patch(budget, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn delete(workload: &Workload, pod: &str) {
    let api = workload.api::<Pod>();
    api.delete(pod, &DeleteParams::default()).await.unwrap();
}
