//! How fast, and at what cost: Ichor against what an administrator has without it, on the
//! same machine in the same run. Prints a table; only the ratios carry over to another one.

mod drain;
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
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let rows = match Cli::parse().what {
        What::All => drain::run(&drain::Options::default()).await,
        What::Drain(options) => drain::run(&options).await,
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
