//! The program `kubectl-ichor`; see the library.

use std::process::ExitCode;

use kubectl_ichor::io::{Env, Io};

fn main() -> ExitCode {
    // Fails only where one is installed already; then that one serves.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let args = std::env::args_os().collect();
    ExitCode::from(kubectl_ichor::run(
        args,
        &Env::from_process(),
        &mut Io::from_process(),
    ))
}
