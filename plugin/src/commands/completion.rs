//! `completion`, and kubectl's completion protocol.
//!
//! kubectl (1.26 and later) completes plugins by running `kubectl_complete-NAME` with
//! the words typed so far. It wants one candidate on each line (`value<TAB>help`) and
//! `:DIRECTIVE` on the last.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{Bash, EnvCompleter, Fish, Powershell, Zsh};

use crate::cli::{Cli, CompletionArgs, ConnectionFlags, Shell, Timeout};
use crate::error::{Error, exit};
use crate::io::{Env, Io};
use crate::kubeconfig;
use crate::resources;
use crate::session::Session;

/// The name by which kubectl calls for completions.
pub const COMPLETER: &str = "kubectl_complete-ichor";
/// The variable that the shells' own scripts set.
pub const SHELL_VARIABLE: &str = "_KUBECTL_ICHOR_COMPLETE";

/// cobra's `ShellCompDirectiveNoFileComp`: do not complete file names on top.
const NO_FILES: u8 = 4;
/// cobra's `ShellCompDirectiveDefault`: do.
const DEFAULT: u8 = 0;

/// A completion that takes longer than this is of no use to a person.
const PATIENCE: Duration = Duration::from_secs(3);

thread_local! {
    // clap's completers are plain functions; what they need to know of the command
    // line lies here while one completion runs.
    static ASKED: RefCell<Option<(ConnectionFlags, Env)>> = const { RefCell::new(None) };
}

fn shell(shell: Shell) -> &'static dyn EnvCompleter {
    match shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
        Shell::Powershell => &Powershell,
    }
}

/// Runs `completion`.
pub fn run(args: &CompletionArgs, io: &mut Io<'_>) -> Result<u8, Error> {
    if let Some(folder) = &args.install {
        let file = install(folder)?;
        io.note(&format!(
            "Wrote {}. kubectl's own completion finds it where that folder is in PATH.",
            file.display()
        ));
    }
    if let Some(chosen) = args.shell {
        let mut script = Vec::new();
        shell(chosen)
            .write_registration(
                SHELL_VARIABLE,
                "kubectl-ichor",
                "kubectl-ichor",
                "kubectl-ichor",
                &mut script,
            )
            .map_err(|error| Error::Failed {
                what: format!("failed to write the script: {error}"),
                next: String::new(),
            })?;
        io.out(&String::from_utf8_lossy(&script));
    }
    Ok(exit::DONE)
}

/// Writes the wrapper into `folder`: krew links one program only, and kubectl looks for
/// another name.
fn install(folder: &Path) -> Result<std::path::PathBuf, Error> {
    let (name, text) = if cfg!(windows) {
        (
            format!("{COMPLETER}.cmd"),
            "@echo off\r\nkubectl-ichor __complete %*\r\n".to_owned(),
        )
    } else {
        (
            COMPLETER.to_owned(),
            "#!/bin/sh\n# Completes `kubectl ichor ...` for kubectl's own shell completion.\nexec kubectl-ichor __complete \"$@\"\n".to_owned(),
        )
    };
    let file = folder.join(name);
    let failed = |error: std::io::Error| Error::Failed {
        what: format!("failed to write {}: {error}", file.display()),
        next: "Name a folder of your PATH that you may write to.".to_owned(),
    };
    std::fs::write(&file, text).map_err(failed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    Ok(file)
}

/// Answers kubectl: `words` are what follows `kubectl ichor`, the last being completed.
pub fn answer_kubectl(words: &[OsString], env: &Env, io: &mut Io<'_>) -> u8 {
    let current = words.last().cloned().unwrap_or_default();
    let mut line: Vec<OsString> = vec!["kubectl-ichor".into()];
    line.extend(words.iter().cloned());
    if words.is_empty() {
        line.push(OsString::new());
    }
    let candidates = candidates(line, env);
    // Asked for nothing in particular, the engine offers every flag beside the words.
    let only_words = !current.to_string_lossy().starts_with('-');
    let mut lines: Vec<String> = candidates
        .iter()
        .filter(|c| !(only_words && c.get_value().to_string_lossy().starts_with('-')))
        .map(|c| {
            let value = c.get_value().to_string_lossy();
            match c.get_help() {
                Some(help) => format!(
                    "{value}\t{}",
                    help.to_string().lines().next().unwrap_or_default()
                ),
                None => value.into_owned(),
            }
        })
        .collect();
    let files = wants_a_file(words);
    if files {
        lines.clear();
    }
    lines.push(format!(":{}", if files { DEFAULT } else { NO_FILES }));
    io.out_lines(lines);
    exit::DONE
}

/// Whether the word before is a flag that names a file.
fn wants_a_file(words: &[OsString]) -> bool {
    let before = words.len().checked_sub(2).and_then(|i| words.get(i));
    before.is_some_and(|flag| {
        [
            "--kubeconfig",
            "--certificate-authority",
            "--client-certificate",
            "--client-key",
            "--install",
        ]
        .iter()
        .any(|file_flag| flag == OsStr::new(file_flag))
    })
}

fn candidates(line: Vec<OsString>, env: &Env) -> Vec<CompletionCandidate> {
    let last = line.len().saturating_sub(1);
    remember(&line, env);
    clap_complete::engine::complete(&mut Cli::command(), line, last, None).unwrap_or_default()
}

/// Reads the connection flags out of a line that is not finished.
fn remember(line: &[OsString], env: &Env) {
    let before = line.get(..line.len().saturating_sub(1)).unwrap_or_default();
    let flags = Cli::command()
        .ignore_errors(true)
        .try_get_matches_from(before)
        .ok()
        .and_then(|matches| ConnectionFlags::from_arg_matches(&matches).ok())
        .unwrap_or_default();
    ASKED.with(|asked| *asked.borrow_mut() = Some((flags, env.clone())));
}

/// Answers one of the shells' own scripts, where it is that which called. `None`: it is not.
pub fn answer_shell(args: &[OsString], env: &Env, io: &mut Io<'_>) -> Option<u8> {
    let name = env.get(SHELL_VARIABLE)?;
    let stem = Path::new(name).file_stem()?.to_string_lossy().into_owned();
    let completer = [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Powershell]
        .into_iter()
        .map(shell)
        .find(|shell| shell.is(&stem))?;
    let line: Vec<OsString> = args
        .iter()
        .skip_while(|word| *word != OsStr::new("--"))
        .skip(1)
        .cloned()
        .collect();
    remember(&line, env);
    let mut answer = Vec::new();
    let written = completer.write_complete(&mut Cli::command(), line, None, &mut answer);
    if written.is_ok() {
        io.out(&String::from_utf8_lossy(&answer));
    }
    Some(exit::DONE)
}

/// Asks the API server, or says nothing: a completion never complains.
fn ask<F, T>(question: F) -> Vec<T>
where
    F: AsyncFnOnce(&Session) -> Result<Vec<T>, Error>,
{
    let Some((flags, env)) = ASKED.with(|asked| asked.borrow().clone()) else {
        return Vec::new();
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return Vec::new();
    };
    let answered = runtime.block_on(async {
        let resolved = kubeconfig::resolve(&flags, &env, false).await?;
        let session = Session::connect(resolved, Timeout(Some(PATIENCE)), 0)?;
        question(&session).await
    });
    answered.unwrap_or_default()
}

fn matching<T: Into<CompletionCandidate>>(
    current: &OsStr,
    all: impl IntoIterator<Item = T>,
) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    all.into_iter()
        .map(Into::into)
        .filter(|candidate: &CompletionCandidate| {
            candidate
                .get_value()
                .to_string_lossy()
                .starts_with(current.as_ref())
        })
        .collect()
}

fn machine_candidates(session_machines: Vec<ichor_api::TalosMachine>) -> Vec<CompletionCandidate> {
    session_machines
        .into_iter()
        .filter_map(|machine| {
            let help = format!("{} of {}", machine.spec.role, machine.spec.cluster_ref.name);
            Some(CompletionCandidate::new(machine.metadata.name?).help(Some(help.into())))
        })
        .collect()
}

/// Names of the TalosMachines.
pub fn complete_machine(current: &OsStr) -> Vec<CompletionCandidate> {
    let machines = ask(async |session| {
        let namespace = session.namespace.clone();
        resources::machines(session, Some(&namespace), None).await
    });
    matching(current, machine_candidates(machines))
}

/// Names of the TalosMachines, and of their Nodes where those differ.
pub fn complete_machine_or_node(current: &OsStr) -> Vec<CompletionCandidate> {
    let machines = ask(async |session| {
        let namespace = session.namespace.clone();
        resources::machines(session, Some(&namespace), None).await
    });
    let nodes: Vec<CompletionCandidate> = machines
        .iter()
        .filter_map(|machine| {
            let node = resources::node_of(machine)?;
            let name = machine.metadata.name.as_deref()?;
            (node != name).then(|| {
                CompletionCandidate::new(node).help(Some(format!("Node of {name}").into()))
            })
        })
        .collect();
    let mut all = machine_candidates(machines);
    all.extend(nodes);
    matching(current, all)
}

/// Names of the TalosClusters.
pub fn complete_cluster(current: &OsStr) -> Vec<CompletionCandidate> {
    let clusters = ask(async |session| {
        let namespace = session.namespace.clone();
        resources::clusters(session, Some(&namespace), None).await
    });
    matching(
        current,
        clusters
            .into_iter()
            .filter_map(|cluster| cluster.metadata.name)
            .map(CompletionCandidate::new),
    )
}

/// Names of the namespaces.
pub fn complete_namespace(current: &OsStr) -> Vec<CompletionCandidate> {
    #[derive(serde::Deserialize)]
    struct Named {
        metadata: Meta,
    }
    #[derive(serde::Deserialize)]
    struct Meta {
        name: String,
    }
    let found = ask(async |session| {
        session
            .list::<Named>(
                crate::error::Request::many("list", "namespaces", None),
                "/api/v1/namespaces",
                "",
            )
            .await
    });
    matching(
        current,
        found
            .into_iter()
            .map(|n| CompletionCandidate::new(n.metadata.name)),
    )
}

/// Names of the contexts; nothing is asked of an API server.
pub fn complete_context(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some((flags, env)) = ASKED.with(|asked| asked.borrow().clone()) else {
        return Vec::new();
    };
    matching(
        current,
        kubeconfig::context_names(&flags, &env)
            .into_iter()
            .map(CompletionCandidate::new),
    )
}
