//! `kubectl ichor removal status MACHINE [-w]`, and following a removal to its end.

use ichor_api::{TalosCluster, TalosMachine, names};
use kube::api::Api;
use kube::runtime::watcher;

use crate::cli::{Output, RemovalAction};
use crate::error::{Error, exit};
use crate::follow::{self, Change, Frame};
use crate::io::Io;
use crate::output;
use crate::resources::{self, MACHINES, name_of};
use crate::session::Session;
use crate::view::removal;

/// Runs it.
pub async fn run(
    session: &Session,
    action: &RemovalAction,
    output: Option<Output>,
    io: &mut Io<'_>,
) -> Result<u8, Error> {
    let RemovalAction::Status { machine, watch } = action;
    output::only(
        output,
        &[Output::Json, Output::Yaml, Output::Wide],
        "removal status",
    )?;
    let found = resources::machine(session, machine).await;
    let found = match found {
        Err(missing @ Error::NotFound { .. }) => Err(what_is_left(session, machine, missing).await),
        other => other,
    };
    session.tell(io);
    let found = found?;
    if *watch {
        output::only(output, &[Output::Wide], "removal status --watch")?;
        return follow_removal(session, &found, io).await;
    }
    match output {
        Some(form @ (Output::Json | Output::Yaml)) => {
            output::document(io, form, &removal::report(&found))?;
        }
        _ => io.out_lines(removal::lines(&found, session.clock())),
    }
    Ok(exit::DONE)
}

/// A machine that is gone may have left something: says so where a cluster lists it.
async fn what_is_left(session: &Session, name: &str, missing: Error) -> Error {
    let namespace = session.namespace.clone();
    let Ok(clusters) = resources::clusters(session, Some(&namespace), None).await else {
        return missing;
    };
    let Some(left) = clusters.iter().find_map(|cluster| leftover(cluster, name)) else {
        return match missing {
            Error::NotFound {
                what, namespace, ..
            } => Error::NotFound {
                hint: Some(format!(
                    "Either it is removed, or it is elsewhere: only namespace {namespace} was asked; name another with -n NAMESPACE."
                )),
                what,
                namespace,
            },
            other => other,
        };
    };
    Error::NotFound {
        what: format!("TalosMachine {name}"),
        namespace,
        hint: Some(left),
    }
}

/// What a cluster lists as left behind by the machine of that name.
pub fn leftover(cluster: &TalosCluster, machine: &str) -> Option<String> {
    let status = cluster.status.as_ref()?;
    let name = name_of(&cluster.metadata);
    if status
        .not_wiped
        .iter()
        .any(|entry| entry.machine == machine)
    {
        return Some(format!(
            "{machine} was let go WITHOUT being wiped: see kubectl ichor status {name}"
        ));
    }
    status
        .abandoned
        .iter()
        .any(|entry| entry.machine == machine)
        .then(|| {
            format!(
                "The removal of {machine} was broken off by force: see kubectl ichor status {name}"
            )
        })
}

/// Follows the removal of this very machine until it is gone.
pub async fn follow_removal(
    session: &Session,
    machine: &TalosMachine,
    io: &mut Io<'_>,
) -> Result<u8, Error> {
    let name = name_of(&machine.metadata).to_owned();
    let uid = machine.metadata.uid.clone();
    let namespace = session.namespace.clone();
    let api: Api<TalosMachine> = Api::namespaced(session.client(), &namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let changes = follow::changes(api, config, MACHINES, Some(&namespace));
    let mut latest: Option<TalosMachine> = None;
    follow::run(session, io, changes, |change, clock| {
        match change {
            Some(Change::All(all)) => match all.into_iter().find(|m| m.metadata.uid == uid) {
                Some(found) => latest = Some(found),
                None => return Frame::End(Vec::new()),
            },
            Some(Change::Applied(found)) if found.metadata.uid == uid => latest = Some(found),
            Some(Change::Gone(found)) if found.metadata.uid == uid => {
                latest = Some(found);
                return Frame::End(Vec::new());
            }
            _ => {}
        }
        match &latest {
            None => Frame::NotYet,
            Some(machine) => Frame::Show(removal::lines(machine, clock)),
        }
    })
    .await?;
    if io.closed() {
        return Ok(exit::DONE);
    }
    let last = latest.as_ref().unwrap_or(machine);
    let cluster = resources::clusters(session, Some(&namespace), Some(&last.spec.cluster_ref.name))
        .await
        .unwrap_or_default();
    io.out_lines([ending(&name, last, cluster.first())]);
    Ok(exit::DONE)
}

/// How it ended, in a sentence.
fn ending(name: &str, last: &TalosMachine, cluster: Option<&TalosCluster>) -> String {
    if last.consents(names::CANCEL_REMOVAL) && !removal::past_return(last) {
        return format!(
            "The removal of {name} was taken back: the node was not touched, and nothing manages it now. Apply the same TalosMachine again to adopt it."
        );
    }
    match cluster.and_then(|cluster| leftover(cluster, name)) {
        Some(left) => format!("{name} is gone. {left}"),
        None => format!("{name} is removed."),
    }
}
