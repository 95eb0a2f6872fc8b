//! How fast, and at what cost: Ichor against what an administrator has without it, on the
//! same machine in the same run. Prints a table; only the ratios carry over to another one.

mod command;
mod drain;
mod removal;
mod status;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Ichor against kubectl, as ratios.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Everything, with its defaults.
    All,
    /// Emptying a node of many ready pods, against `kubectl drain`.
    Drain(drain::Options),
    /// The cluster at a glance, against `kubectl get` of the same objects.
    Status,
    /// A removal's own time and API calls.
    Removal,
    /// The agent with 500 machines and nothing to do.
    Idle,
}

async fn all() -> ichor_tests::Result<Vec<table::Row>> {
    let mut rows = drain::run(&drain::Options::default()).await?;
    rows.extend(status::run().await?);
    rows.extend(removal::run().await?);
    rows.extend(removal::idle().await?);
    Ok(rows)
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let rows = match Cli::parse().what {
        What::All => all().await,
        What::Drain(options) => drain::run(&options).await,
        What::Status => status::run().await,
        What::Removal => removal::run().await,
        What::Idle => removal::idle().await,
    };
    match rows {
        Ok(rows) => {
            print!("{}", table::render(&rows));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
