//! The process: what it serves always, and what it does while it leads.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use ichor_lock::BootClock;
use ichor_lock::clock::Clock;
use ichor_webhook::{TlsSource, Users, Webhook, WebhookConfig};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::controllers::{self, Wakes};
use crate::election::{self, Election};
use crate::http::{self, Health};
use crate::instance::Instance;
use crate::lease::KubeLease;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// Ichor's agent.
#[derive(Debug, Parser)]
#[command(
    name = "ichor-agent",
    version,
    about = "Removes Talos Linux machines in order, and guards them at admission"
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Runs the agent.
    Run(Box<RunArgs>),
}

/// How the agent runs.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Which agent this is.
    #[command(flatten)]
    pub instance: Instance,
    /// How long it waits for what.
    #[command(flatten)]
    pub settings: Settings,
    /// A kubeconfig to reach the API server by; without it, the pod's own account.
    #[arg(long, env = "ICHOR_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Where the webhook listens.
    #[arg(long, default_value = "0.0.0.0:9443")]
    pub webhook_bind: SocketAddr,
    /// Where health and metrics are served.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub http_bind: SocketAddr,
    /// A folder with tls.crt and tls.key for the webhook; without it the agent makes its own.
    #[arg(long)]
    pub tls_dir: Option<PathBuf>,
    /// Namespace of Argo CD: its application controller is exempt by name.
    #[arg(long, env = "ICHOR_ARGOCD_NAMESPACE", default_value = "argocd")]
    pub argocd_namespace: String,
    /// More exempt user names, separated by commas.
    #[arg(long, env = "ICHOR_OVERRIDE_EXEMPT_USERS", default_value = "")]
    pub override_exempt_users: String,
    /// Leads without an election; for tests of two agents that both believe they lead.
    #[arg(long, hide = true)]
    pub no_election: bool,
}

/// Why the agent ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The way to the API server cannot be set up.
    #[error("failed to set up the connection to the API server: {0}")]
    Connect(String),
    /// Durations that cannot keep the lock safe.
    #[error("the durations do not fit together: {0}")]
    Durations(#[from] ichor_lock::DurationsError),
    /// The webhook cannot be served.
    #[error("failed to serve the webhook: {0}")]
    Webhook(#[from] ichor_webhook::WebhookError),
    /// A port cannot be listened on.
    #[error("failed to listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    /// Signals cannot be caught.
    #[error("failed to catch signals: {0}")]
    Signals(std::io::Error),
}

async fn client(kubeconfig: Option<&PathBuf>) -> Result<Client, RunError> {
    let connect = |why: String| RunError::Connect(why);
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path)
                .map_err(|e| connect(format!("{}: {e}", path.display())))?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .map_err(|e| connect(e.to_string()))?
        }
        None => Config::incluster().map_err(|e| connect(e.to_string()))?,
    };
    ichor_rules::connect::client(config).map_err(|e| connect(e.to_string()))
}

/// Runs the agent until it is told to stop.
pub async fn run(args: RunArgs) -> Result<(), RunError> {
    let settings = args.settings.clone().divided();
    settings.lock().validate()?;
    let client = client(args.kubeconfig.as_ref()).await?;
    let clock: Arc<dyn Clock> = Arc::new(BootClock);
    let metrics = Arc::new(Metrics::default());
    let stop = CancellationToken::new();
    let serving = CancellationToken::new();

    let users = Users::new(
        &args.instance.pod_namespace,
        &args.instance.pod_service_account,
        &args.argocd_namespace,
        &args.override_exempt_users,
    );
    let mut config =
        WebhookConfig::new(&args.instance.pod_namespace, &args.instance.pod_name, users);
    config.listen = args.webhook_bind;
    if let Some(folder) = &args.tls_dir {
        config.tls = TlsSource::Folder(folder.clone());
    }
    let webhook = Webhook::bind(&config, client.clone())?;
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    webhook.register(&mut registry);
    let health = Health {
        registry,
        webhook: webhook.readiness(),
    };
    let http = tokio::spawn(http::serve(args.http_bind, health, serving.clone()));
    let webhook = tokio::spawn(webhook.serve(serving.clone()));

    let signals = tokio::spawn(wait_for_signals(stop.clone()));
    tracing::info!(
        pod = args.instance.pod_name,
        uid = args.instance.pod_uid,
        "agent started"
    );

    let lead = lead(&args, &settings, &client, &clock, &metrics, &stop);
    tokio::pin!(lead);
    let result = tokio::select! {
        () = &mut lead => Ok(()),
        // A server that ends by itself ends the process: its replica would refuse every write.
        ended = webhook => flatten(ended).and_then(|r| r.map_err(RunError::from)),
        ended = http => flatten(ended).and_then(|r| r.map_err(|e| RunError::Listen(args.http_bind, e))),
    };
    if result.is_err() {
        stop.cancel();
        lead.await;
    }
    // The last stage: reviews that are under way get their answers.
    serving.cancel();
    tokio::time::sleep(Duration::from_millis(200)).await;
    signals.abort();
    tracing::info!("agent stopped");
    result
}

fn flatten<T>(joined: Result<T, tokio::task::JoinError>) -> Result<T, RunError> {
    joined.map_err(|e| RunError::Connect(format!("a task ended by itself: {e}")))
}

/// The first SIGTERM or SIGINT begins an orderly stop, the second ends the process.
async fn wait_for_signals(stop: CancellationToken) -> Result<(), RunError> {
    let mut term = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut int = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    for first in [true, false] {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        if first {
            tracing::info!("told to stop: calls in flight are awaited, nothing new is begun");
            stop.cancel();
        }
    }
    tracing::warn!("told to stop twice: stopping at once");
    std::process::exit(1);
}

/// Campaigns and leads, again and again, until `stop`.
async fn lead(
    args: &RunArgs,
    settings: &Settings,
    client: &Client,
    clock: &Arc<dyn Clock>,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
) {
    while !stop.is_cancelled() {
        let lease = KubeLease::election(
            client.clone(),
            &args.instance.pod_namespace,
            election::LEASE,
        );
        let mut election = Election::new(
            lease,
            &args.instance.pod_uid,
            settings.election_duration,
            settings.election_renew,
            clock.clone(),
        );
        if !args.no_election && !election.campaign(stop).await {
            return;
        }
        tracing::info!("leading");
        metrics.leader.set(1);
        let stepped_down = term(args, settings, client, clock, metrics, &mut election, stop).await;
        metrics.leader.set(0);
        if !args.no_election {
            election.resign().await;
        }
        if stepped_down {
            // Others first.
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(settings.election_duration * 2) => {}
            }
        }
    }
}

/// One term; answers whether this replica made way for another.
async fn term(
    args: &RunArgs,
    settings: &Settings,
    client: &Client,
    clock: &Arc<dyn Clock>,
    metrics: &Arc<Metrics>,
    election: &mut Election,
    stop: &CancellationToken,
) -> bool {
    let (wake_machines, machines) = mpsc::unbounded_channel();
    let (wake_clusters, clusters) = mpsc::unbounded_channel();
    let ctx = Context::new(
        client.clone(),
        args.instance.clone(),
        settings.clone(),
        clock.clone(),
        metrics.clone(),
        wake_machines,
        wake_clusters,
    );
    let step_down = ctx.step_down.clone();
    let mut work = tokio::spawn(controllers::run(ctx.clone(), Wakes { machines, clusters }));
    let over = CancellationToken::new();
    let mut stepped_down = false;
    {
        let hold = async {
            if args.no_election {
                over.cancelled().await;
            } else {
                election.hold(&over).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = hold => {}
            () = step_down.notified() => stepped_down = true,
            _ = &mut work => tracing::error!("the controllers ended by themselves; beginning a new term"),
        }
    }
    // Leadership is not given up while a call is in flight: it is awaited, its outcome
    // written, and nothing else is begun.
    ctx.stopping.cancel();
    let wait = settings.shutdown_wait;
    let renewing = CancellationToken::new();
    let until_done = async {
        if !work.is_finished() && tokio::time::timeout(wait, &mut work).await.is_err() {
            tracing::error!(?wait, "work that was running has not ended in time");
            work.abort();
        }
        controllers::hand_over(&ctx).await;
        renewing.cancel();
    };
    if args.no_election {
        until_done.await;
    } else {
        tokio::join!(until_done, election.hold(&renewing));
    }
    stepped_down
}
