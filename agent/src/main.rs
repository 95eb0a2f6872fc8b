//! The agent's program.

use clap::Parser;
use ichor_agent::run::{Args, Command, run};

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("ICHOR_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .json()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::error!("another TLS provider is installed already");
        return std::process::ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(error = %error, "failed to start");
            return std::process::ExitCode::FAILURE;
        }
    };
    let Command::Run(args) = args.command;
    match runtime.block_on(run(*args)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = ichor_agent::errors::chain(&error), "agent ended");
            std::process::ExitCode::FAILURE
        }
    }
}
