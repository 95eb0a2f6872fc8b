//! What a removal costs of its own: wall time and API calls, with 3 and with 1,000
//! machines; and what the agent needs while it does nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ichor_api::{ConditionStatus, TalosMachine, names};
use ichor_tests::bed::{Bed, BedOptions};
use ichor_tests::error::{BedError, Result};
use ichor_tests::playground::command::NodeAction;
use ichor_tests::wait;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::status::fill;
use crate::table::Row;

const LIMIT: Duration = Duration::from_secs(300);

fn refused(error: kube::Error) -> BedError {
    BedError::Refused(error.to_string())
}

/// Measures, and says on stderr what is being done.
pub async fn run() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for machines in [7, 1000] {
        let bed = Bed::start(BedOptions {
            progress: Arc::new(|line| eprintln!("{line}")),
            ..BedOptions::default()
        })
        .await?;
        fill(&bed, 6, machines).await?;
        let (own, calls) = remove(&bed).await?;
        rows.push(Row {
            what: format!("removal among {machines} machines: own time, 2 s asked for"),
            unit: "s",
            peer: None,
            ours: own,
            wanted: None,
        });
        rows.push(Row {
            what: format!("removal among {machines} machines: API calls, 40 asked for"),
            unit: "calls",
            peer: None,
            ours: f64::from(u32::try_from(calls).unwrap_or(u32::MAX)),
            wanted: None,
        });
        bed.stop().await?;
    }
    Ok(rows)
}

/// Removes cp-1 once cp-4 has joined. Own time: the wall time less what Talos took to
/// wipe and come back (from the answer to the reset until maintenance mode).
async fn remove(bed: &Bed) -> Result<(f64, usize)> {
    let api: Api<TalosMachine> = Api::namespaced(bed.client("admin").await?, "default");
    let patch = |name: &'static str, patch: serde_json::Value| {
        let api = api.clone();
        async move {
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .map_err(refused)
        }
    };
    bed.node_action("cp-4", NodeAction::Join).await?;
    patch("cp-4", json!({"spec": {"approved": true}})).await?;
    wait::until(LIMIT, "cp-4's adoption", || async {
        let machine = api.get("cp-4").await.map_err(|e| e.to_string())?;
        let ready = machine
            .condition("Ready")
            .is_some_and(|c| c.status == ConditionStatus::True);
        if ready {
            Ok(())
        } else {
            Err("it is not Ready".to_owned())
        }
    })
    .await?;
    // The looks that its adoption set off are not the removal's.
    tokio::time::sleep(Duration::from_secs(3)).await;
    patch(
        "cp-1",
        json!({"metadata": {"annotations": {names::ALLOW_DELETE: "true"}}}),
    )
    .await?;
    let mark = bed.proxy().log().len();
    let began = Instant::now();
    api.delete("cp-1", &DeleteParams::default())
        .await
        .map_err(refused)?;
    wait::until(LIMIT, "the end of cp-1", || async {
        match api.get_opt("cp-1").await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err("it is there".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    let wall = began.elapsed().as_secs_f64();
    let counted: Vec<_> = bed
        .proxy()
        .log()
        .since(mark)
        .into_iter()
        .filter(|r| r.verb != "watch" && r.resource != "pods/eviction" && r.resource != "leases")
        // Reviews of this bench's own writes are the webhook's, not the removal's.
        .filter(|r| {
            !r.resource.contains("accessreviews") && !r.resource.contains("webhookconfigurations")
        })
        .collect();
    for request in &counted {
        tracing::debug!(verb = request.verb, path = request.path, "counted");
    }
    let waited = bed
        .calls(Some("cp-1"))?
        .iter()
        .filter(|c| c.method == "Reset")
        .map(|c| c.time)
        .next_back()
        .map_or(0.0, |reset| {
            let since = k8s_openapi::jiff::Timestamp::now().duration_since(reset);
            since.as_secs_f64()
        });
    // From the reset on it is Talos that works; what follows is one look and three writes.
    Ok(((wall - waited).max(0.0), counted.len()))
}

/// The agent with 500 machines and nothing to do.
pub async fn idle() -> Result<Vec<Row>> {
    let bed = Bed::start(BedOptions {
        progress: Arc::new(|line| eprintln!("{line}")),
        ..BedOptions::default()
    })
    .await?;
    fill(&bed, 6, 500).await?;
    eprintln!("the agent idles with 500 machines");
    tokio::time::sleep(Duration::from_secs(45)).await;
    let pids = bed.agents()?.status().await;
    let mut rows = Vec::new();
    for agent in pids {
        let Some(pid) = agent.pid else { continue };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
            .map_err(|e| BedError::Refused(e.to_string()))?;
        let kilobytes = status
            .lines()
            .find_map(|l| l.strip_prefix("VmRSS:"))
            .and_then(|l| l.split_whitespace().next())
            .and_then(|n| n.parse::<f64>().ok());
        if let Some(kilobytes) = kilobytes {
            rows.push(Row {
                what: "agent idle with 500 machines: resident memory, 40 MB aimed at".to_owned(),
                unit: "MB",
                peer: None,
                ours: kilobytes / 1024.0,
                wanted: None,
            });
        }
    }
    bed.stop().await?;
    Ok(rows)
}
