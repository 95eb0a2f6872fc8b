//! The tour: everything that the README promises of a removal, on loopback, step by step.
//!
//! The API server stores in the very etcd that the simulated control planes run: if a
//! removal broke quorum, the API would be gone and the tour would fail.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ichor_api::TalosMachine;
use ichor_api::conditions::REMOVAL;
use ichor_tests::bed::{Bed, BedOptions, EtcdMode};
use ichor_tests::playground::Playground;
use ichor_tests::playground::command::NodeAction;
use ichor_tests::wait;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Everything that is waited for comes within this, or the tour has failed.
const LIMIT: Duration = Duration::from_secs(90);

fn main() -> ExitCode {
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        eprintln!("error: another TLS provider is installed already");
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: failed to start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(tour()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: the tour failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) {
    println!("\n\u{2501}\u{2501} {text}");
}

/// kubectl with the plugin on its path, shown and run.
struct Shell {
    kubeconfig: PathBuf,
    path: String,
}

impl Shell {
    fn new(playground: &Playground) -> Self {
        let old = std::env::var("PATH").unwrap_or_default();
        Self {
            kubeconfig: playground.bed().kubeconfig().to_owned(),
            path: format!("{}:{old}", playground.ready().path.display()),
        }
    }

    fn run(&self, line: &str) -> Result<Output, Error> {
        println!("\n$ {line}");
        let output = Command::new("sh")
            .args(["-c", line])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("PATH", &self.path)
            .output()?;
        let mut out = std::io::stdout();
        out.write_all(&output.stdout)?;
        out.write_all(&output.stderr)?;
        out.flush()?;
        Ok(output)
    }

    fn succeeds(&self, line: &str) -> Result<String, Error> {
        let output = self.run(line)?;
        if !output.status.success() {
            return Err(format!("`{line}` failed: {}", output.status).into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn is_refused(&self, line: &str, why: &str) -> Result<(), Error> {
        let output = self.run(line)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !said.contains(why) {
            return Err(format!("`{line}` was not refused for {why}").into());
        }
        Ok(())
    }
}

/// Writes to the API all the time: it lives in the etcd that is worked on.
struct Writes {
    done: Arc<AtomicU64>,
    again: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    _task: tokio_util::task::AbortOnDropHandle<()>,
}

impl Writes {
    async fn start(bed: &Bed) -> Result<Self, Error> {
        let api: Api<ConfigMap> = Api::namespaced(bed.client("admin").await?, "default");
        let map = ConfigMap {
            metadata: kube::api::ObjectMeta {
                name: Some("written-all-the-time".into()),
                ..Default::default()
            },
            ..Default::default()
        };
        api.create(&PostParams::default(), &map).await?;
        let [done, again, failed] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
        let task = tokio::spawn({
            let (done, again, failed) = (done.clone(), again.clone(), failed.clone());
            async move {
                let mut n: u64 = 0;
                loop {
                    n += 1;
                    let patch = Patch::Merge(json!({"data": {"n": n.to_string()}}));
                    let params = PatchParams::default();
                    let write = || api.patch("written-all-the-time", &params, &patch);
                    // The API server drops what it had under way to the very member that
                    // leaves; a client's second try tells that from a lost quorum.
                    if write().await.is_ok() {
                        done.fetch_add(1, Ordering::Relaxed);
                    } else if let Err(error) = write().await {
                        println!("a write failed twice: {error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    } else {
                        again.fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        });
        Ok(Self {
            done,
            again,
            failed,
            _task: tokio_util::task::AbortOnDropHandle::new(task),
        })
    }
}

async fn until_removal(bed: &Bed, name: &str, reason: &str) -> Result<(), Error> {
    let api: Api<TalosMachine> = Api::namespaced(bed.client("admin").await?, "default");
    wait::until(LIMIT, &format!("{name} at {reason}"), || async {
        let machine = api.get_opt(name).await.map_err(|e| e.to_string())?;
        let found = machine.and_then(|m| m.condition(REMOVAL).map(|c| c.reason.clone()));
        if found.as_deref() == Some(reason) {
            Ok(())
        } else {
            Err(format!("it stands at {found:?}"))
        }
    })
    .await?;
    Ok(())
}

async fn until_gone(bed: &Bed, name: &str) -> Result<(), Error> {
    let api: Api<TalosMachine> = Api::namespaced(bed.client("admin").await?, "default");
    wait::until(LIMIT, &format!("the end of {name}"), || async {
        match api.get_opt(name).await {
            Ok(None) => Ok(()),
            Ok(Some(m)) => Err(format!("{:?}", m.condition(REMOVAL).map(|c| &c.message))),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

async fn members(bed: &Bed) -> Result<usize, Error> {
    let members = bed.etcd_members().await?;
    println!("\netcd's own member list:");
    for member in &members {
        println!(
            "  {}  {:<6} {}{}",
            member.id,
            member.name,
            member.peer_urls.join(" "),
            if member.learner { "  learner" } else { "" }
        );
    }
    Ok(members.iter().filter(|m| m.started && !m.learner).count())
}

const WORKLOAD: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata: { name: shop }
spec:
  replicas: 1
  selector: { matchLabels: { app: shop } }
  template:
    metadata: { labels: { app: shop } }
    spec:
      nodeSelector: { kubernetes.io/hostname: cp-1 }
      tolerations: [{ operator: Exists }]
      terminationGracePeriodSeconds: 0
      containers: [{ name: shop, image: shop }]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: shop }
spec:
  minAvailable: 1
  selector: { matchLabels: { app: shop } }
";

async fn tour() -> Result<(), Error> {
    let began = Instant::now();
    say(
        "A cluster: three control planes, two workers, one agent. The API server stores in the etcd of those control planes.",
    );
    let options = BedOptions {
        etcd: EtcdMode::Shared,
        agent_args: vec!["--divide-durations=30".to_owned()],
        progress: Arc::new(|line| println!("   {line}")),
        ..BedOptions::default()
    };
    let playground = Playground::up(options).await?;
    let bed = playground.bed();
    let shell = Shell::new(&playground);
    let writes = Writes::start(bed).await?;
    shell.succeeds("kubectl get tm,tcl")?;
    let before = members(bed).await?;

    say(
        "cp-1 is to be removed. Without the annotation nobody deletes it, not a GitOps prune either.",
    );
    shell.is_refused("kubectl delete tm cp-1", "allow-delete")?;

    say("With the annotation it is admitted, and then waits: three declared, so never 3 to 2.");
    shell.succeeds("kubectl ichor plan remove cp-1; test $? -eq 4")?;
    shell.succeeds("kubectl annotate tm cp-1 cp-2 ichor.maesh.dev/allow-delete=true")?;
    shell.succeeds("kubectl delete tm cp-1 --wait=false")?;
    until_removal(bed, "cp-1", "BelowDeclaredCount").await?;

    say(
        "Somebody else removes cp-2 at the same time. Each is legal alone; together they would leave one of three.",
    );
    shell.is_refused("kubectl delete tm cp-2 --wait=false", "quorum")?;

    say("A shop runs on cp-1, and its budget allows no disruption.");
    let file = bed.state().join("shop.yaml");
    std::fs::write(&file, WORKLOAD)?;
    shell.succeeds(&format!("kubectl apply -f {}", file.display()))?;
    shell.succeeds("kubectl wait --for=condition=Ready pod -l app=shop --timeout=60s")?;

    say(
        "A fourth control plane joins and is approved: now cp-1 may go. The budget blocks its drain.",
    );
    bed.node_action("cp-4", NodeAction::Join).await?;
    println!("\n(cp-4 was configured, joined etcd as a learner, and was promoted)");
    shell.succeeds("kubectl patch tm cp-4 --type merge -p '{\"spec\":{\"approved\":true}}'")?;
    until_removal(bed, "cp-1", "DrainFailed").await?;
    shell.succeeds("kubectl ichor drain status cp-1")?;

    say(
        "A second removal at the same moment: worker-1. It waits for the cluster to be stable again.",
    );
    shell.succeeds("kubectl annotate tm worker-1 ichor.maesh.dev/allow-delete=true")?;
    shell.succeeds("kubectl delete tm worker-1 --wait=false")?;
    until_removal(bed, "worker-1", "ClusterTransitioning").await?;
    shell.succeeds("kubectl ichor status")?;

    say(
        "The budget is freed. The agent is killed in the middle: after cp-1 was told to leave etcd, before that is on record.",
    );
    bed.agents()?.failpoint("leave-after-call", None).await?;
    shell.succeeds("kubectl delete pdb shop")?;
    let agents = bed.agents()?;
    wait::until(LIMIT, "the agent's death", || async {
        if agents.status().await.iter().all(|a| a.state == "Stopped") {
            Ok(())
        } else {
            Err("it lives".to_owned())
        }
    })
    .await?;
    println!("\nThe agent is dead. What it left:");
    shell.succeeds("kubectl get tm cp-1 -o jsonpath='{.status.intent}{\"\\n\"}'")?;
    members(bed).await?;
    println!("\nIts pod is started again, and resumes by looking at what is true:");
    bed.agents()?.start_again(None).await?;
    until_gone(bed, "cp-1").await?;
    until_gone(bed, "worker-1").await?;

    say("Done. Both machines are gone, drained and wiped; three voters, and the API never failed.");
    shell.succeeds("kubectl ichor status")?;
    let after = members(bed).await?;
    println!("\nWhat cp-1 was told, in this order:");
    let mut resets = 0;
    for call in bed.calls(Some("cp-1"))? {
        let irreversible = [
            "EtcdForfeitLeadership",
            "EtcdLeaveCluster",
            "EtcdRemoveMemberByID",
            "Reset",
        ];
        if irreversible.contains(&call.method.as_str()) {
            println!("  {} {} {}", call.method, call.code, call.request);
            resets += usize::from(call.method == "Reset");
        }
    }
    let [done, again, failed] =
        [&writes.done, &writes.again, &writes.failed].map(|count| count.load(Ordering::Relaxed));
    println!(
        "\n{} writes to the API during the tour: {again} needed a second try, {failed} failed.",
        done + again + failed
    );
    if before != 3 || after != 3 || resets != 1 {
        return Err(format!(
            "expected 3 voters before and after and one reset, saw {before}, {after} and {resets}"
        )
        .into());
    }
    if failed > 0 {
        return Err(format!("{failed} writes failed: the API lost its etcd").into());
    }
    playground.down().await?;
    println!("\nThe tour took {} s.", began.elapsed().as_secs());
    Ok(())
}
