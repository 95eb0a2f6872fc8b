//! Doing what `playground ctl` asks for.

use std::time::Duration;

use serde::Serialize;

use crate::bed::Bed;
use crate::error::{BedError, Result};
use crate::proxy::faults::{Fault, Matcher};

use super::command::{AgentAction, ApiAction, Command, EtcdAction, OutputFormat, Which};
use super::table::table;

/// How long an agent that was told to end is waited for.
const STOP: Duration = Duration::from_mins(1);

/// How long one that was started is waited for until it is ready.
const SETTLE: Duration = Duration::from_secs(15);

/// Does it; what is to be printed.
pub(super) async fn perform(bed: &Bed, command: Command) -> Result<String> {
    match command {
        Command::Node { name, action } => bed.node_action(&name, action).await,
        Command::Api { action } => api(bed, action),
        Command::Agent { pod, action } => agent(bed, pod.as_deref(), action).await,
        Command::Calls { node, output } => calls(bed, node.as_deref(), output.output),
        Command::Etcd {
            action: EtcdAction::Members { output },
        } => members(bed, output.output).await,
    }
}

fn api(bed: &Bed, action: ApiAction) -> Result<String> {
    let faults = bed.proxy().faults();
    let set = |fault, which: Which| {
        let matcher = which.matching.as_deref().map(Matcher::parse).transpose()?;
        faults.set(fault, matcher.unwrap_or_default(), which.times);
        Ok(String::new())
    };
    match action {
        ApiAction::Delay { ms, which } => set(Fault::Delay(Duration::from_millis(ms)), which),
        ApiAction::DropAnswer { which } => set(Fault::DropAnswer, which),
        ApiAction::Status { code, after, which } => set(Fault::Status { code, after }, which),
        ApiAction::Unavailable { seconds } => {
            faults.outage(Duration::from_secs(seconds));
            Ok(String::new())
        }
        ApiAction::Clear => {
            faults.clear();
            Ok(String::new())
        }
        ApiAction::Requests { output } => match output.output {
            OutputFormat::Json => json(&bed.proxy().log().all()),
            OutputFormat::Table => {
                let counts = bed.proxy().log().counts().into_iter();
                let rows: Vec<_> = counts
                    .map(|c| vec![c.user_agent, c.verb, c.resource, c.count.to_string()])
                    .collect();
                Ok(table(&["USER-AGENT", "VERB", "RESOURCE", "COUNT"], &rows))
            }
        },
    }
}

async fn agent(bed: &Bed, pod: Option<&str>, action: AgentAction) -> Result<String> {
    let agents = bed.agents()?;
    let done = |count: usize, what: &str| match count {
        0 => format!("nothing {what}: it stands so already\n"),
        1 => format!("1 agent {what}\n"),
        n => format!("{n} agents {what}\n"),
    };
    Ok(match action {
        AgentAction::Stop => done(agents.stop(pod, STOP).await?, "stopped"),
        AgentAction::Kill => done(agents.kill(pod).await?, "killed"),
        AgentAction::Start { new_pod } => {
            let text = if new_pod {
                done(
                    agents.start_new_pods(pod, STOP).await?,
                    "started as a new pod",
                )
            } else {
                done(agents.start_again(pod).await?, "started")
            };
            agents.settle(SETTLE).await;
            text
        }
        AgentAction::Freeze => done(agents.freeze(pod, true).await?, "frozen"),
        AgentAction::Thaw => done(agents.freeze(pod, false).await?, "thawed"),
        AgentAction::Failpoint { name } => {
            let pod = agents.failpoint(&name, pod).await?;
            agents.settle(SETTLE).await;
            format!("{pod} restarted; it ends at {name}\n")
        }
        AgentAction::Status { output } => {
            let all = agents.status().await;
            match output.output {
                OutputFormat::Json => json(&all)?,
                OutputFormat::Table => {
                    let rows: Vec<_> = all
                        .into_iter()
                        .map(|a| {
                            let pid = a.pid.map_or_else(|| "-".to_owned(), |p| p.to_string());
                            let state = if a.replaced {
                                format!("{}, replaced", a.state)
                            } else {
                                a.state.to_owned()
                            };
                            vec![
                                a.pod,
                                a.node,
                                state,
                                a.ready.to_string(),
                                pid,
                                a.restarts.to_string(),
                                a.failpoint.unwrap_or_default(),
                                a.last_exit.unwrap_or_default(),
                            ]
                        })
                        .collect();
                    table(
                        &[
                            "POD",
                            "NODE",
                            "STATE",
                            "READY",
                            "PID",
                            "RESTARTS",
                            "FAILPOINT",
                            "LAST EXIT",
                        ],
                        &rows,
                    )
                }
            }
        }
    })
}

fn calls(bed: &Bed, node: Option<&str>, format: OutputFormat) -> Result<String> {
    let calls = bed.calls(node)?;
    match format {
        OutputFormat::Json => json(&calls),
        OutputFormat::Table => {
            let rows: Vec<_> = calls
                .iter()
                .map(|c| {
                    vec![
                        format!("{:.3}", c.time),
                        c.node.clone(),
                        c.method.clone(),
                        c.code.clone(),
                        c.request.to_string(),
                    ]
                })
                .collect();
            Ok(table(&["TIME", "NODE", "METHOD", "CODE", "REQUEST"], &rows))
        }
    }
}

async fn members(bed: &Bed, format: OutputFormat) -> Result<String> {
    let members = bed.etcd_members().await?;
    match format {
        OutputFormat::Json => json(&members),
        OutputFormat::Table => {
            let rows: Vec<_> = members
                .iter()
                .map(|m| {
                    vec![
                        m.id.clone(),
                        m.name.clone(),
                        m.started.to_string(),
                        m.learner.to_string(),
                        m.peer_urls.join(","),
                    ]
                })
                .collect();
            Ok(table(
                &["ID", "NAME", "STARTED", "LEARNER", "PEER URLS"],
                &rows,
            ))
        }
    }
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map(|text| text + "\n")
        .map_err(|e| BedError::Refused(format!("failed to write JSON: {e}")))
}
