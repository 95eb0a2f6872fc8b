//! The command line: kubectl's flags and manners.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use crate::commands::completion::{complete_cluster, complete_machine, complete_namespace};
use crate::commands::completion::{complete_context, complete_machine_or_node};

/// What `-o` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
    /// The table with more columns.
    Wide,
    /// Names alone, as `kubectl get -o name` prints them.
    Name,
}

impl Output {
    /// The word as it is typed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Yaml => "yaml",
            Self::Wide => "wide",
            Self::Name => "name",
        }
    }
}

/// How to reach the API server, and as whom.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub struct ConnectionFlags {
    /// Path of the kubeconfig file; without it KUBECONFIG (a list is merged), then ~/.kube/config
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use
    #[arg(long, global = true, value_name = "NAME", add = ArgValueCompleter::new(complete_context))]
    pub context: Option<String>,
    /// Cluster of the kubeconfig to use
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,
    /// User of the kubeconfig to use
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,
    /// Namespace; without it, the context's
    #[arg(short, long, global = true, value_name = "NAME", value_parser = parse_namespace, add = ArgValueCompleter::new(complete_namespace))]
    pub namespace: Option<String>,
    /// User to act as
    #[arg(long = "as", global = true, value_name = "USER")]
    pub as_user: Option<String>,
    /// Group to act as; may be given several times
    #[arg(long, global = true, value_name = "GROUP")]
    pub as_group: Vec<String>,
    /// UID to act as
    #[arg(long, global = true, value_name = "UID")]
    pub as_uid: Option<String>,
    /// Extra of the user to act as; may be given several times
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub as_user_extra: Vec<String>,
    /// How long to wait for each answer: 5s, 2m, 1h, or seconds; 0 is for ever. Default 30s
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_timeout)]
    pub request_timeout: Option<Timeout>,
    /// Address and port of the API server
    #[arg(short, long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// Bearer token
    #[arg(long, global = true, value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Name that the server's certificate is checked for
    #[arg(long, global = true, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// File with the certificate authority of the server
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub certificate_authority: Option<PathBuf>,
    /// File with a client certificate
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub client_certificate: Option<PathBuf>,
    /// File with the client certificate's key
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub client_key: Option<PathBuf>,
    /// Do not check the server's certificate (insecure)
    #[arg(long, global = true)]
    pub insecure_skip_tls_verify: bool,
}

/// How results are shown.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Form of the output
    #[arg(short, long, global = true, value_name = "FORM")]
    pub output: Option<Output>,
    /// How much to tell on stderr: 6 and more shows each request
    #[arg(
        short,
        long = "v",
        global = true,
        value_name = "LEVEL",
        default_value_t = 0
    )]
    pub verbosity: u8,
}

/// Safe hands for Talos Linux clusters.
///
/// Everything is asked of the Kubernetes API, with your own rights. What is said of
/// etcd is what the agent last saw, with its age.
#[derive(Parser, Debug)]
#[command(
    name = "kubectl-ichor",
    bin_name = "kubectl ichor",
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done (plan: would complete), 1 error, 2 usage, 3 refused by a rule or by RBAC, 4 would wait.\nFlags come after the name: kubectl ichor --context prod status."
)]
pub struct Cli {
    /// Connection flags.
    #[command(flatten)]
    pub connection: ConnectionFlags,
    /// Output flags.
    #[command(flatten)]
    pub output: OutputFlags,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// The cluster at a glance: machines, etcd, lock, what is going on and what it waits for
    Status(StatusArgs),
    /// What would happen, rule by rule and pod by pod, before anything is done
    Plan {
        /// What is planned.
        #[command(subcommand)]
        action: PlanAction,
    },
    /// Remove a machine: drain it, take it out of etcd, wipe it, and confirm that
    Remove(RemoveArgs),
    /// The draining of a Node
    Drain {
        /// What is asked.
        #[command(subcommand)]
        action: DrainAction,
    },
    /// The removal of a machine
    Removal {
        /// What is asked.
        #[command(subcommand)]
        action: RemovalAction,
    },
    /// Shell completion
    Completion(CompletionArgs),
    /// Versions of the plugin, the agent and the API server
    Version(VersionArgs),
    /// Answers kubectl's completion protocol.
    #[command(name = "__complete", hide = true, disable_help_flag = true)]
    Complete {
        /// The words typed so far; the last one is being completed.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
}

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// One TalosCluster; without it, every one of the namespace
    // An id of its own: --cluster is another thing.
    #[arg(id = "talos-cluster", value_name = "CLUSTER", value_parser = parse_cluster, add = ArgValueCompleter::new(complete_cluster))]
    pub cluster: Option<String>,
    /// Clusters of all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Keep showing it as it changes
    #[arg(short, long)]
    pub watch: bool,
}

/// What can be planned.
#[derive(Subcommand, Debug)]
pub enum PlanAction {
    /// Would a removal of this machine complete
    Remove {
        /// The TalosMachine
        #[arg(value_name = "MACHINE", value_parser = parse_machine, add = ArgValueCompleter::new(complete_machine))]
        machine: String,
    },
}

/// How far a dry run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// None: it is done.
    None,
    /// Only the plan is shown.
    Client,
    /// The API server is asked to judge each write without keeping it.
    Server,
}

/// Arguments of `remove`.
#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// The TalosMachine
    #[arg(value_name = "MACHINE", value_parser = parse_machine, add = ArgValueCompleter::new(complete_machine))]
    pub machine: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Follow the removal to its end
    #[arg(short, long)]
    pub watch: bool,
    /// Begin even though the plan says that it will stand still first
    #[arg(long)]
    pub wait: bool,
    /// Take a removal back, while nothing irreversible has begun
    #[arg(long, conflicts_with = "wait")]
    pub cancel: bool,
    /// Do everything but keep it: client shows the plan, server asks the API server too
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "client")]
    pub dry_run: DryRun,
}

/// What can be asked of a drain.
#[derive(Subcommand, Debug)]
pub enum DrainAction {
    /// How far it has come, and which pods and budgets hold it up
    Status {
        /// The Node, or its TalosMachine
        #[arg(value_name = "NODE|MACHINE", value_parser = parse_machine_or_node, add = ArgValueCompleter::new(complete_machine_or_node))]
        name: String,
        /// Keep showing it as it changes
        #[arg(short, long)]
        watch: bool,
    },
}

/// What can be asked of a removal.
#[derive(Subcommand, Debug)]
pub enum RemovalAction {
    /// How far it has come, what it waits for, and what to do next
    Status {
        /// The TalosMachine
        #[arg(value_name = "MACHINE", value_parser = parse_machine, add = ArgValueCompleter::new(complete_machine))]
        machine: String,
        /// Keep showing it until the machine is gone
        #[arg(short, long)]
        watch: bool,
    },
}

/// Shells that completion is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
    /// PowerShell
    Powershell,
}

/// Arguments of `completion`.
#[derive(Args, Debug)]
pub struct CompletionArgs {
    /// Print the script that completes `kubectl-ichor`; `kubectl ichor` itself needs --install
    #[arg(value_name = "SHELL", required_unless_present = "install")]
    pub shell: Option<Shell>,
    /// Write `kubectl_complete-ichor`, which kubectl's own completion calls, into this folder of the PATH
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub install: Option<PathBuf>,
}

/// Arguments of `version`.
#[derive(Args, Debug)]
pub struct VersionArgs {
    /// The plugin's alone: nothing is asked of the API server
    #[arg(long)]
    pub client: bool,
}

/// A limit on each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Option<std::time::Duration>);

impl Default for Timeout {
    fn default() -> Self {
        Self(Some(std::time::Duration::from_secs(30)))
    }
}

fn parse_timeout(text: &str) -> Result<Timeout, String> {
    let wrong = || format!("{text:?} is no time: 5s, 2m, 1h, or a number of seconds");
    let mut seconds = 0.0;
    if let Ok(plain) = text.parse::<u32>() {
        seconds = f64::from(plain);
    } else {
        let mut rest = text;
        while !rest.is_empty() {
            let digits = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .ok_or_else(wrong)?;
            let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
            let unit_end = rest[digits..]
                .find(|c: char| c.is_ascii_digit())
                .map_or(rest.len(), |end| digits + end);
            let unit = match &rest[digits..unit_end] {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return Err(wrong()),
            };
            seconds += number * unit;
            rest = &rest[unit_end..];
        }
        if text.is_empty() {
            return Err(wrong());
        }
    }
    if seconds == 0.0 {
        return Ok(Timeout(None));
    }
    std::time::Duration::try_from_secs_f64(seconds)
        .map(|d| Timeout(Some(d)))
        .map_err(|_| wrong())
}

/// A name that may stand in a URL: a DNS subdomain, as Kubernetes asks of names.
fn check_name(name: &str) -> Result<String, String> {
    let legal = !name.is_empty()
        && name.len() <= 253
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric());
    if legal {
        Ok(name.to_owned())
    } else {
        Err("a name has at most 253 lower-case letters, digits, '-' and '.', and begins and ends with a letter or digit".to_owned())
    }
}

/// `KIND/NAME` is taken too, as `-o name` prints it.
fn parse_kinds(text: &str, kinds: &[&str]) -> Result<String, String> {
    let Some((kind, name)) = text.split_once('/') else {
        return check_name(text);
    };
    let kind = kind.to_ascii_lowercase();
    let kind = kind.strip_suffix(".ichor.maesh.dev").unwrap_or(&kind);
    if kinds.contains(&kind) {
        check_name(name)
    } else {
        Err(format!(
            "{kind:?} is not what goes here: {}",
            kinds.join(", ")
        ))
    }
}

const MACHINE_KINDS: [&str; 3] = ["talosmachine", "talosmachines", "tm"];

fn parse_machine(text: &str) -> Result<String, String> {
    parse_kinds(text, &MACHINE_KINDS)
}

fn parse_machine_or_node(text: &str) -> Result<String, String> {
    parse_kinds(
        text,
        &["talosmachine", "talosmachines", "tm", "node", "nodes", "no"],
    )
}

fn parse_cluster(text: &str) -> Result<String, String> {
    parse_kinds(text, &["taloscluster", "talosclusters", "tcl"])
}

fn parse_namespace(text: &str) -> Result<String, String> {
    check_name(text)
}

/// How the program was called, for its usage lines (field report P7): by its file name,
/// or through kubectl, which starts plugins by their full path.
pub fn called_as(argv0: &std::path::Path, env: &crate::io::Env) -> &'static str {
    const DIRECT: &str = "kubectl-ichor";
    let stem = |path: &std::path::Path| path.file_stem().map(|s| s.to_string_lossy().into_owned());
    // A shell passes on what was typed, and says in `_` which program it started.
    let typed = argv0.components().count() == 1;
    let by_shell = env
        .get("_")
        .and_then(|path| stem(std::path::Path::new(path)))
        .is_some_and(|stem| stem == DIRECT);
    if typed || by_shell {
        DIRECT
    } else {
        "kubectl ichor"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use std::path::Path;
    use std::time::Duration;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_command_takes_a_global_flag_for_its_own() {
        let cli = Cli::command();
        let globals: Vec<_> = cli.get_arguments().map(|a| a.get_id().clone()).collect();
        let mut commands: Vec<&clap::Command> = cli.get_subcommands().collect();
        while let Some(command) = commands.pop() {
            for argument in command.get_arguments() {
                assert!(!globals.contains(argument.get_id()), "{argument:?}");
            }
            commands.extend(command.get_subcommands());
        }
    }

    #[test]
    fn kubectls_flags_are_taken_before_and_after_the_command() {
        for words in [
            "x --context a -n b status demo -o json",
            "x status demo --context a -n b -o json",
            "x status --context=a --namespace=b tcl/demo -ojson",
        ] {
            let cli = Cli::try_parse_from(words.split(' ')).unwrap();
            assert_eq!(cli.connection.context.as_deref(), Some("a"), "{words}");
            assert_eq!(cli.connection.namespace.as_deref(), Some("b"));
            assert_eq!(cli.output.output, Some(Output::Json));
            let Command::Status(status) = cli.command else {
                panic!("{words}")
            };
            assert_eq!(status.cluster.as_deref(), Some("demo"));
        }
    }

    #[test]
    fn names_that_are_no_names_do_not_reach_a_url() {
        for name in [
            "../x",
            "a/b/c",
            "A",
            "",
            "-a",
            "a?b",
            "a%2f",
            &"x".repeat(300),
            "pod/x",
        ] {
            assert!(
                Cli::try_parse_from(["x", "plan", "remove", "--", name]).is_err(),
                "{name}"
            );
        }
        for name in ["cp-1", "tm/cp-1", "talosmachine.ichor.maesh.dev/cp-1"] {
            assert_eq!(parse_machine(name).unwrap(), "cp-1");
        }
        assert_eq!(parse_machine_or_node("node/cp-1").unwrap(), "cp-1");
        assert!(parse_machine("node/cp-1").is_err());
    }

    #[test]
    fn request_timeouts_read_as_kubectls() {
        let limit = |text| parse_timeout(text).map(|t| t.0);
        assert_eq!(limit("0"), Ok(None));
        assert_eq!(limit("0s"), Ok(None));
        assert_eq!(limit("5"), Ok(Some(Duration::from_secs(5))));
        assert_eq!(limit("1m30s"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(limit("500ms"), Ok(Some(Duration::from_millis(500))));
        assert_eq!(limit("1.5h"), Ok(Some(Duration::from_mins(90))));
        for wrong in ["", "x", "5d", "s", "5s5", "-1"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn usage_follows_how_the_program_was_called() {
        let env = |underscore: &str| crate::io::Env {
            vars: [("_".to_owned(), underscore.to_owned())].into(),
        };
        let full = Path::new("/usr/local/bin/kubectl-ichor");
        assert_eq!(
            called_as(Path::new("kubectl-ichor"), &env("")),
            "kubectl-ichor"
        );
        assert_eq!(called_as(full, &env("/usr/bin/kubectl")), "kubectl ichor");
        assert_eq!(
            called_as(full, &env("/usr/local/bin/kubectl-ichor")),
            "kubectl-ichor"
        );
        assert_eq!(called_as(full, &env("")), "kubectl ichor");
    }

    #[test]
    fn cancelling_and_waiting_are_two_wishes() {
        assert!(Cli::try_parse_from(["x", "remove", "cp-1", "--cancel", "--wait"]).is_err());
        assert!(Cli::try_parse_from(["x", "remove", "cp-1", "--cancel"]).is_ok());
        let cli = Cli::try_parse_from(["x", "remove", "cp-1", "--dry-run"]).unwrap();
        let Command::Remove(remove) = cli.command else {
            panic!()
        };
        assert_eq!(remove.dry_run, DryRun::Client);
    }
}
