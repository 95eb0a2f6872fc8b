//! `kubectl ichor`: what a person does with Ichor, through kubectl.
//!
//! It knows only the Kubernetes API and acts with the caller's own rights. What it says
//! of etcd is what the agent last wrote to TalosCluster's status, with its age.
//! [`run`] is the whole program: arguments, environment and streams go in, an exit code
//! comes out (spec section 11; `interfaces.md`, "The plugin").

pub mod age;
pub mod cli;
pub mod commands;
pub mod error;
pub mod follow;
pub mod io;
pub mod kubeconfig;
pub mod output;
pub mod plan;
pub mod proxy;
pub mod resources;
pub mod session;
pub mod table;
#[cfg(test)]
pub(crate) mod testing;
pub mod view;

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory as _, FromArgMatches as _};

use crate::cli::{Cli, Command};
use crate::commands::{completion, drain, plan as plan_command, removal, remove, status, version};
use crate::error::{Error, exit};
use crate::io::{Env, Io};
use crate::session::Session;

/// Runs the program. `args`: the words of the command line, the program's own name first.
pub fn run(args: Vec<OsString>, env: &Env, io: &mut Io<'_>) -> u8 {
    let program = args.first().cloned().unwrap_or_default();
    let stem = Path::new(&program)
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    // One program under two names: kubectl asks for completions by the other one.
    if stem == completion::COMPLETER {
        return completion::answer_kubectl(args.get(1..).unwrap_or_default(), env, io);
    }
    if let Some(code) = completion::answer_shell(&args, env, io) {
        return code;
    }
    let command = Cli::command().bin_name(cli::called_as(Path::new(&program), env));
    let parsed = command
        .try_get_matches_from(args)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return usage(&error, io, env),
    };
    match execute(&cli, env, io) {
        Ok(code) => code,
        Err(error) => {
            if !matches!(error, Error::Interrupted) {
                io.note(&error.render());
            }
            error.exit_code()
        }
    }
}

/// clap's own answers: help and version are results, the rest are mistakes.
fn usage(error: &clap::Error, io: &mut Io<'_>, env: &Env) -> u8 {
    let text = error.render();
    let coloured = env.get("NO_COLOR").is_none()
        && if error.use_stderr() {
            io.err_is_terminal
        } else {
            io.out_is_terminal
        };
    let text = if coloured {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    if error.use_stderr() {
        io.note(text.trim_end());
        exit::USAGE
    } else {
        io.out(&text);
        exit::DONE
    }
}

fn execute(cli: &Cli, env: &Env, io: &mut Io<'_>) -> Result<u8, Error> {
    let output = cli.output.output;
    match &cli.command {
        Command::Completion(args) => return completion::run(args, io),
        Command::Complete { words } => return Ok(completion::answer_kubectl(words, env, io)),
        Command::Version(args) if args.client => return version::client_only(output, io),
        _ => {}
    }
    // One thread: a command waits for answers and little else.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Failed {
            what: format!("failed to start: {error}"),
            next: String::new(),
        })?;
    let code = runtime.block_on(connected(cli, env, io));
    // A credential plugin or a name that is being looked up is not waited for.
    runtime.shutdown_background();
    code
}

async fn connected(cli: &Cli, env: &Env, io: &mut Io<'_>) -> Result<u8, Error> {
    let output = cli.output.output;
    let resolved = kubeconfig::resolve(&cli.connection, env, io.in_is_terminal).await?;
    let timeout = cli.connection.request_timeout.unwrap_or_default();
    let session = Session::connect(resolved, timeout, cli.output.verbosity)?;
    let outcome = match &cli.command {
        Command::Status(args) => Box::pin(status::run(&session, args, output, io)).await,
        Command::Plan { action } => Box::pin(plan_command::run(&session, action, output, io)).await,
        Command::Remove(args) => Box::pin(remove::run(&session, args, output, io)).await,
        Command::Drain { action } => Box::pin(drain::run(&session, action, output, io)).await,
        Command::Removal { action } => Box::pin(removal::run(&session, action, output, io)).await,
        Command::Version(_) => version::run(&session, output, io).await,
        Command::Completion(_) | Command::Complete { .. } => Ok(exit::DONE),
    };
    session.tell(io);
    outcome
}
