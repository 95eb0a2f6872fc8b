//! What `playground ctl` can be asked for: read by clap on one end of the socket, sent as
//! JSON, done on the other.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// One command to a running playground.
#[derive(Clone, Debug, Subcommand, Serialize, Deserialize)]
pub enum Command {
    /// Do something to a node: its power, its network, its etcd, its disk.
    Node {
        /// Name of the node, such as cp-1.
        name: String,
        /// What to do to it.
        #[command(subcommand)]
        action: NodeAction,
    },
    /// Change the weather between the agent (or context `proxied`) and the API server.
    Api {
        /// What is to happen to requests.
        #[command(subcommand)]
        action: ApiAction,
    },
    /// Stop, kill, start, freeze the agent, or have it end at a named point.
    Agent {
        /// Only this pod; without it every agent (for `failpoint`: the one that leads).
        #[arg(long, global = true)]
        pod: Option<String>,
        /// What to do to it.
        #[command(subcommand)]
        action: AgentAction,
    },
    /// List every Talos call that reached a node.
    Calls {
        /// Only those of this node.
        #[arg(long)]
        node: Option<String>,
        /// How to print it.
        #[command(flatten)]
        output: Output,
    },
    /// Ask etcd itself.
    Etcd {
        /// What to ask.
        #[command(subcommand)]
        action: EtcdAction,
    },
}

/// How to print a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Output {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Output formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// What can happen to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand, Serialize, Deserialize)]
pub enum NodeAction {
    /// Pull its plug.
    PowerOff,
    /// Plug it in again: it boots what is on its disk.
    PowerOn,
    /// Cut it off from the network: Talos API, etcd and kubelet.
    Cut,
    /// Undo `cut`, `slow`.
    Heal,
    /// Let its Talos API answer late.
    Slow {
        /// By how many milliseconds.
        ms: u64,
    },
    /// Stop its etcd.
    EtcdStop,
    /// Start its etcd again.
    EtcdStart,
    /// Freeze its etcd (SIGSTOP): it holds its connections and says nothing.
    EtcdFreeze,
    /// Thaw its etcd.
    EtcdThaw,
    /// Break its system disk.
    DiskGone,
    /// Configure a machine in maintenance as a control plane, as a person would with
    /// talosctl: it joins etcd as a learner and is promoted. Ends when it votes.
    Join,
}

/// What can happen to requests.
#[derive(Clone, Debug, Subcommand, Serialize, Deserialize)]
pub enum ApiAction {
    /// They reach the API server late, even if their sender has given up by then.
    Delay {
        /// By how many milliseconds.
        ms: u64,
        /// Which requests.
        #[command(flatten)]
        which: Which,
    },
    /// They are applied, then the connection is cut without an answer.
    DropAnswer {
        /// Which requests.
        #[command(flatten)]
        which: Which,
    },
    /// They are answered with a status code, without being applied.
    Status {
        /// The HTTP status code, 400 to 599.
        #[arg(value_parser = clap::value_parser!(u16).range(400..=599))]
        code: u16,
        /// Apply them first.
        #[arg(long)]
        after: bool,
        /// Which requests.
        #[command(flatten)]
        which: Which,
    },
    /// Every connection is cut, and no other taken.
    Unavailable {
        /// For how many seconds.
        seconds: u64,
    },
    /// Fair weather.
    Clear,
    /// Count the requests that went through, or (-o json) list them.
    Requests {
        /// How to print it.
        #[command(flatten)]
        output: Output,
    },
}

/// Which requests.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Which {
    /// Only requests of this HTTP method whose path has a match of this expression: 'METHOD PATH-REGEX'.
    #[arg(long = "match", value_name = "METHOD PATH-REGEX")]
    pub matching: Option<String>,
    /// Only so many; without it until `clear`.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub times: Option<u64>,
}

/// What can happen to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand, Serialize, Deserialize)]
pub enum AgentAction {
    /// Tell it to end (SIGTERM), and wait for that.
    Stop,
    /// Kill it (SIGKILL).
    Kill,
    /// Start it again: the same pod, its container restarted.
    Start {
        /// As another pod, with another UID; what still runs of the old one is left to itself.
        #[arg(long)]
        new_pod: bool,
    },
    /// Stop its clock (SIGSTOP).
    Freeze,
    /// Let it go on.
    Thaw,
    /// Restart it so that it ends itself at this point, once; it stays down until `start`.
    Failpoint {
        /// Name of the point.
        name: String,
    },
    /// Show how each agent stands.
    Status {
        /// How to print it.
        #[command(flatten)]
        output: Output,
    },
}

/// What can be asked of etcd.
#[derive(Clone, Debug, Subcommand, Serialize, Deserialize)]
pub enum EtcdAction {
    /// List the members.
    Members {
        /// How to print it.
        #[command(flatten)]
        output: Output,
    },
}

/// The playground's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Exit code: 0 done, 1 failed, 2 an unknown name.
    pub code: u8,
    /// For standard output.
    pub out: String,
    /// For standard error.
    pub err: String,
}

/// How long a command may take: a node that joins is waited for.
pub const LIMIT: Duration = Duration::from_mins(3);
