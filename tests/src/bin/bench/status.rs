//! `kubectl-ichor status` against `kubectl get` of the same objects.

use std::sync::Arc;

use futures::StreamExt as _;

use ichor_api::TalosMachine;
use ichor_tests::assets::own_program;
use ichor_tests::bed::{Bed, BedOptions};
use ichor_tests::error::{BedError, Result};
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::command::measure;
use crate::table::Row;

/// Machines, and the share of kubectl's time that is asked for at most.
const SIZES: [(usize, f64); 3] = [(3, 1.0 / 3.0), (100, 1.0 / 3.0), (1000, 1.0)];

/// Adds machines that nobody approved, so that nothing is asked of them, up to `total`.
pub async fn fill(bed: &Bed, have: usize, total: usize) -> Result<()> {
    let api: Api<TalosMachine> = Api::namespaced(bed.client("admin").await?, "default");
    let mut creating = Vec::new();
    for n in have..total {
        let machine: TalosMachine = serde_json::from_value(json!({
            "apiVersion": "ichor.maesh.dev/v1alpha1",
            "kind": "TalosMachine",
            "metadata": {"name": format!("more-{n}")},
            "spec": {
                "clusterRef": {"name": "demo"},
                "role": "worker",
                "address": format!("192.0.{}.{}", n / 250, n % 250 + 1),
            },
        }))
        .map_err(|e| BedError::Refused(e.to_string()))?;
        let api = api.clone();
        creating.push(async move { api.create(&PostParams::default(), &machine).await });
    }
    let mut made = futures::stream::iter(creating).buffer_unordered(16);
    while let Some(made) = made.next().await {
        made.map_err(|e| BedError::Refused(e.to_string()))?;
    }
    Ok(())
}

/// Measures, and says on stderr what is being done.
pub async fn run() -> Result<Vec<Row>> {
    let plugin = own_program("kubectl-ichor", &[], "KUBECTL_ICHOR", |line| {
        eprintln!("{line}");
    })
    .await?;
    let bed = Bed::start(BedOptions {
        control_planes: 1,
        workers: 1,
        progress: Arc::new(|line| eprintln!("{line}")),
        ..BedOptions::default()
    })
    .await?;
    let kubeconfig = bed.kubeconfig().display().to_string();
    let env = [("KUBECONFIG", kubeconfig.as_str())];
    let mut rows = Vec::new();
    let mut have = 3;
    for (machines, wanted) in SIZES {
        eprintln!("status of {machines} machines");
        fill(&bed, have, machines).await?;
        have = machines;
        let kubectl = measure(
            bed.control_plane().kubectl(),
            &["get", "tm,tcl", "-o", "wide"],
            &env,
            10,
        )?;
        let ichor = measure(&plugin, &["status"], &env, 10)?;
        rows.push(Row {
            what: format!("status of {machines} machines: time"),
            unit: "s",
            peer: Some(kubectl.wall),
            ours: ichor.wall,
            wanted: Some(wanted),
        });
        if let (Some(peer), Some(ours)) = (kubectl.memory, ichor.memory) {
            rows.push(Row {
                what: format!("status of {machines} machines: memory"),
                unit: "MB",
                peer: Some(peer),
                ours,
                wanted: Some(0.25),
            });
        }
    }
    bed.stop().await?;
    Ok(rows)
}
