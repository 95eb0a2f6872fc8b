//! Emptying a node of many ready pods, against `kubectl drain` on the same API server.
//!
//! Wall time is taken straight at the API server. Calls are counted in a second run through
//! the bed's proxy, which both pay alike; beside them stands what the API server counts
//! meanwhile for pods, budgets and Nodes: an eviction makes it list budgets and write one,
//! again and again where two evictions meet, and the disruption controller answers.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ichor_agent::drain::{self, DrainLimits, DrainOutcome, DrainRequest};
use ichor_api::common::DrainOptions;
use ichor_api::names;
use ichor_lock::testing::{MemoryStore, ScriptedView};
use ichor_lock::{
    BootClock, DisruptiveLock, Durations, LockManager, Operation, acquire_disruptive,
};
use ichor_tests::bed::{Bed, BedOptions};
use ichor_tests::error::{BedError, Result};
use ichor_tests::workload::{Workload, agent_client};
use k8s_openapi::jiff::Timestamp;

use crate::table::Row;

/// What is drained, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Pods on the node.
    #[arg(long, default_value_t = 200)]
    pods: usize,
    /// Budgets over them, each over as many: a list.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 0])]
    budgets: Vec<usize>,
    /// Evictions in flight under one budget; the agent's own number without it.
    #[arg(long)]
    per_budget: Option<usize>,
    /// Milliseconds between two evictions under one budget; the agent's own without it.
    #[arg(long)]
    pace: Option<u64>,
    /// Evictions in flight under no budget; the agent's own number without it.
    #[arg(long)]
    unbudgeted: Option<usize>,
    /// Leave kubectl out.
    #[arg(long)]
    no_peer: bool,
    /// Runs of each; the fastest counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=20))]
    runs: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pods: 200,
            budgets: vec![1, 10, 0],
            per_budget: None,
            pace: None,
            unbudgeted: None,
            no_peer: false,
            runs: 1,
        }
    }
}

/// How long a drain may take until the bench gives up.
const LIMIT: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Kubectl,
    Ichor,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Kubectl => "kubectl",
            Self::Ichor => "ichor",
        }
    }
}

struct Figures {
    who: Who,
    /// Seconds.
    wall: f64,
    calls: usize,
    evictions: usize,
    served: usize,
}

/// Measures, and says on stderr what is being done.
pub async fn run(options: &Options) -> Result<Vec<Row>> {
    let bed = Bed::start(BedOptions {
        control_planes: 1,
        workers: 0,
        agents: 0,
        progress: Arc::new(|line| eprintln!("{line}")),
        ..BedOptions::default()
    })
    .await?;
    let mut rows = Vec::new();
    for budgets in &options.budgets {
        let mut figures = Vec::new();
        for who in [Who::Kubectl, Who::Ichor] {
            if who == Who::Kubectl && options.no_peer {
                continue;
            }
            let mut wall = f64::INFINITY;
            for run in 0..options.runs {
                let name = format!("bench-{}-{budgets}-{run}", who.name());
                let node = node(&bed, &name, options.pods, *budgets).await?;
                eprintln!(
                    "{} drains {} pods under {budgets} budgets",
                    who.name(),
                    options.pods
                );
                let began = Instant::now();
                drain_as(who, &bed, &node, options, false).await?;
                wall = wall.min(began.elapsed().as_secs_f64());
                eprintln!("  {wall:.2} s");
            }
            let name = format!("bench-{}-{budgets}-calls", who.name());
            let node = node(&bed, &name, options.pods, *budgets).await?;
            let mark = bed.proxy().log().len();
            let before = served(&bed).await?;
            drain_as(who, &bed, &node, options, true).await?;
            let served = served(&bed).await? - before;
            let calls = bed.proxy().log().since(mark);
            let evictions = calls.iter().filter(|c| c.resource == "pods/eviction");
            let evictions = evictions.count();
            let calls = calls.len();
            eprintln!("  {calls} calls, {evictions} of them evictions; {served} served");
            figures.push(Figures {
                who,
                wall,
                calls,
                evictions,
                served,
            });
        }
        rows.extend(compare(options.pods, *budgets, &figures));
    }
    bed.stop().await?;
    Ok(rows)
}

fn compare(pods: usize, budgets: usize, figures: &[Figures]) -> Vec<Row> {
    let of = |who| figures.iter().find(|f| f.who == who);
    let Some(ours) = of(Who::Ichor) else {
        return Vec::new();
    };
    let peer = of(Who::Kubectl);
    let under = match budgets {
        0 => "no budget".to_owned(),
        1 => "one budget".to_owned(),
        n => format!("{n} budgets"),
    };
    // What the project asks of itself: a quarter under one budget, never slower elsewhere.
    let wanted = if budgets == 1 { 0.25 } else { 1.0 };
    #[allow(clippy::cast_precision_loss)] // Thousands of calls.
    let number = |calls: usize| calls as f64;
    let row = |what: &str, unit, wanted, figure: &dyn Fn(&Figures) -> f64| Row {
        what: format!("{pods} pods, {under}: {what}"),
        unit,
        peer: peer.map(figure),
        ours: figure(ours),
        wanted,
    };
    vec![
        row("wall time", "s", Some(wanted), &|f| f.wall),
        row("calls", "calls", None, &|f| number(f.calls)),
        row("calls but evictions", "calls", Some(wanted), &|f| {
            number(f.calls - f.evictions)
        }),
        row("served by the API server", "calls", None, &|f| {
            number(f.served)
        }),
    ]
}

/// What the API server has counted so far for pods, budgets and Nodes, its own calls to
/// itself and the controllers' included.
async fn served(bed: &Bed) -> Result<usize> {
    let client = bed.client("admin").await?;
    let request = http::Request::get("/metrics")
        .body(Vec::new())
        .map_err(|e| BedError::Refused(e.to_string()))?;
    let text = client
        .request_text(request)
        .await
        .map_err(|e| BedError::api("failed to read the API server's metrics", e))?;
    let resources = ["pods", "poddisruptionbudgets", "nodes"];
    Ok(text
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total{"))
        // A watch is counted when it ends, whoever's it was.
        .filter(|line| !line.contains("verb=\"WATCH\""))
        .filter(|line| {
            resources
                .iter()
                .any(|r| line.contains(&format!("resource=\"{r}\"")))
        })
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(_, count)| count.parse::<usize>().ok())
        .sum())
}

/// A node of `pods` ready pods, spread over `budgets` budgets that allow all of them.
async fn node(bed: &Bed, name: &str, pods: usize, budgets: usize) -> Result<Workload> {
    let node = Workload::new(bed, name).await?;
    let app = |i: usize| match budgets {
        0 => "free".to_owned(),
        _ => format!("app-{}", i % budgets),
    };
    node.run((0..pods).map(|i| node.pod(&format!("pod-{i:03}"), &app(i))))
        .await?;
    for budget in 0..budgets {
        let app = app(budget);
        let healthy = (0..pods).filter(|i| i % budgets == budget).count();
        node.budget(&app, &app, 0, i32::try_from(healthy).unwrap_or(i32::MAX))
            .await?;
    }
    Ok(node)
}

async fn drain_as(
    who: Who,
    bed: &Bed,
    node: &Workload,
    options: &Options,
    proxied: bool,
) -> Result<()> {
    match who {
        Who::Kubectl => {
            let context = if proxied { "proxied" } else { "admin" };
            kubectl(bed, node.name(), context).await?;
        }
        Who::Ichor => {
            let url = if proxied {
                bed.proxy().url()
            } else {
                bed.control_plane().url()
            };
            ichor(bed, node.name(), url, options).await?;
        }
    }
    let left = node.pods().await?;
    if left.is_empty() {
        return Ok(());
    }
    Err(BedError::Refused(format!(
        "{} left {} pods on {}",
        who.name(),
        left.len(),
        node.name()
    )))
}

async fn kubectl(bed: &Bed, node: &str, context: &str) -> Result<()> {
    let mut command = tokio::process::Command::from(bed.kubectl());
    command
        .args(["--context", context, "drain", node])
        .args(["--ignore-daemonsets", "--delete-emptydir-data"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = tokio::time::timeout(LIMIT, command.output())
        .await
        .map_err(|_| BedError::Refused("kubectl drain did not end".to_owned()))?
        .map_err(|e| BedError::io("failed to run kubectl drain", e))?;
    if output.status.success() {
        return Ok(());
    }
    Err(BedError::Refused(format!(
        "kubectl drain failed: {}",
        String::from_utf8_lossy(&output.stderr)
    )))
}

/// As the agent's removal does it: pass after pass, its own account, the same limits.
async fn ichor(bed: &Bed, node: &str, url: &str, options: &Options) -> Result<()> {
    let client = agent_client(bed, url).await?;
    let lock = held(node).await?;
    let mut limits = DrainLimits::default();
    if let Some(number) = options.per_budget {
        limits.per_budget = number;
    }
    if let Some(number) = options.pace {
        limits.pace = Duration::from_millis(number);
    }
    if let Some(number) = options.unbudgeted {
        limits.unbudgeted = number;
    }
    limits.in_flight = limits
        .in_flight
        .max(limits.per_budget)
        .max(limits.unbudgeted);
    let drain_options = DrainOptions::default();
    let began = Instant::now();
    let mut status = None;
    loop {
        let request = DrainRequest {
            node,
            operation_uid: "bench",
            options: &drain_options,
            dead: false,
            agent_namespace: names::AGENT_NAMESPACE,
            previous: status.as_ref(),
            elapsed: began.elapsed(),
            now: Timestamp::now(),
            limits: limits.clone(),
        };
        let pass = drain::pass(&lock, &client, request)
            .await
            .map_err(|e| BedError::Refused(e.to_string()))?;
        match &pass.outcome {
            DrainOutcome::Drained => return Ok(()),
            _ if began.elapsed() > LIMIT => {
                return Err(BedError::Refused(format!(
                    "not drained: {:?}",
                    pass.outcome
                )));
            }
            _ => drain::settle(&client, node, &pass, &limits).await,
        }
        status = Some(pass.status);
    }
}

async fn held(node: &str) -> Result<DisruptiveLock> {
    let manager = LockManager::new("bench", Arc::new(BootClock), Durations::default());
    let operation = Operation {
        kind: "TalosMachine".to_owned(),
        name: node.to_owned(),
        namespace: "default".to_owned(),
        uid: "bench".to_owned(),
        purpose: "removal".to_owned(),
    };
    let (store, view) = (Arc::new(MemoryStore::new()), ScriptedView::default());
    acquire_disruptive(&manager, store, &view, &operation, true)
        .await
        .map_err(|e| BedError::Refused(e.to_string()))
}
