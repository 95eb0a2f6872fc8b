//! The test bed for people: a whole cluster on loopback, and a hand on its weather.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use ichor_tests::bed::{AgentPlacement, BedOptions, EtcdMode};
use ichor_tests::kubelet::KubeletOptions;
use ichor_tests::playground::{Playground, command, send};
use tokio::signal::unix::{SignalKind, signal};

/// A whole cluster on loopback: a real control plane, simulated Talos nodes over real
/// etcd, and the agent.
#[derive(Debug, Parser)]
#[command(name = "playground", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Put one up and hold it until it is told to end (SIGTERM, Ctrl-C).
    ///
    /// Prints one line of JSON on standard output when it is ready; everything else goes
    /// to standard error.
    Up(Up),
    /// Change one that is up, or ask it.
    ///
    /// Exits with 0, with 1, or with 2 for an unknown name.
    Ctl {
        /// The folder that it was put up in.
        #[arg(long)]
        state: PathBuf,
        #[command(subcommand)]
        command: command::Command,
    },
}

#[derive(Debug, clap::Args)]
struct Up {
    /// Folder for everything that it writes: kubeconfig, programs, logs, disks.
    #[arg(long)]
    state: PathBuf,
    /// Approved control planes; a spare one is always there besides.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    control_planes: u8,
    /// Workers.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=50))]
    workers: u8,
    /// The Talos release that the nodes behave like.
    #[arg(long, default_value = "1.14", value_parser = ["1.13", "1.14"])]
    talos: String,
    /// Whether the API server has an etcd of its own, or stores in the control planes'.
    #[arg(long, value_enum, default_value_t)]
    etcd: EtcdMode,
    /// How many agents run, 0 to 2.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    agents: u8,
    /// Where the agent's pods are: on a Node of the playground's own, or among the cluster's.
    #[arg(long, value_enum, default_value_t)]
    agent_placement: AgentPlacement,
    /// Divide every duration that the agent waits by.
    #[arg(long)]
    divide_durations: Option<u32>,
    /// A further argument of the agent, such as --agent-arg=--retry=2s; may be given often.
    #[arg(long = "agent-arg", value_name = "ARG", allow_hyphen_values = true)]
    agent_args: Vec<String>,
    /// Seconds without a sign of life until a Node is Unknown.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..))]
    node_grace: u64,
    /// Seconds that pods take at most to end.
    #[arg(long, default_value_t = 1)]
    stop_time: u64,
}

impl Up {
    fn options(self) -> BedOptions {
        let mut agent_args = self.agent_args;
        if let Some(by) = self.divide_durations {
            agent_args.push(format!("--divide-durations={by}"));
        }
        let grace = Duration::from_secs(self.node_grace);
        BedOptions {
            control_planes: self.control_planes.into(),
            workers: self.workers.into(),
            talos: self.talos,
            etcd: self.etcd,
            agents: self.agents.into(),
            agent_args,
            agent_placement: self.agent_placement,
            node_monitor_grace: grace,
            kubelet: KubeletOptions {
                heartbeat: (grace / 4).min(Duration::from_secs(5)),
                stop_time: Duration::from_secs(self.stop_time),
            },
            state: Some(self.state),
            progress: Arc::new(|line| eprintln!("playground: {line}")),
            ..BedOptions::default()
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        tracing_subscriber::EnvFilter::new("warn,kube_client=off,kube_runtime=off")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match cli.what {
        What::Up(up) => hold(up).await,
        What::Ctl { state, command } => match send(&state, &command).await {
            Ok(reply) => {
                print!("{}", reply.out);
                if !reply.err.is_empty() {
                    eprintln!("error: {}", reply.err);
                }
                ExitCode::from(reply.code)
            }
            Err(error) => fail(&error),
        },
    }
}

/// Puts a playground up and holds it until a signal comes.
async fn hold(up: Up) -> ExitCode {
    let (Ok(mut term), Ok(mut int)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        eprintln!("error: failed to listen for signals");
        return ExitCode::FAILURE;
    };
    let mut told = async || {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    };
    let playground = tokio::select! {
        up = Playground::up(up.options()) => match up {
            Ok(playground) => playground,
            Err(error) => return fail(&error),
        },
        () = told() => {
            eprintln!("playground: told to end before it was up");
            return ExitCode::FAILURE;
        }
    };
    match serde_json::to_string(playground.ready()) {
        Ok(line) => {
            let mut out = std::io::stdout().lock();
            // Whoever started it may not read on; that is no reason to end.
            let _ = writeln!(out, "{line}");
            let _ = out.flush();
        }
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    eprintln!("playground: ready; it ends with SIGTERM or Ctrl-C");
    let watch = async {
        loop {
            tokio::time::sleep(Duration::from_secs(2)).await;
            if let Err(error) = playground.bed().control_plane().check() {
                return error;
            }
        }
    };
    tokio::select! {
        () = told() => {}
        error = watch => {
            eprintln!("error: {error}");
            eprintln!("playground: it stays as it is until it is told to end");
            told().await;
        }
    }
    eprintln!("playground: ending");
    match playground.down().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &ichor_tests::BedError) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}
