//! `kubectl ichor drain status NODE|MACHINE [-w]`: from status alone.

use ichor_api::TalosMachine;
use kube::api::Api;
use kube::runtime::watcher;

use crate::cli::{DrainAction, Output};
use crate::error::{Error, exit};
use crate::follow::{self, Change, Frame};
use crate::io::Io;
use crate::output;
use crate::resources::{self, MACHINES, name_of, node_of};
use crate::session::Session;
use crate::view::drain;

/// Runs it.
pub async fn run(
    session: &Session,
    action: &DrainAction,
    output: Option<Output>,
    io: &mut Io<'_>,
) -> Result<u8, Error> {
    let DrainAction::Status { name, watch } = action;
    output::only(
        output,
        &[Output::Json, Output::Yaml, Output::Wide],
        "drain status",
    )?;
    let found = machine_or_node(session, name).await;
    session.tell(io);
    let machine = found?;
    if *watch {
        output::only(output, &[Output::Wide], "drain status --watch")?;
        return follow_drain(session, &machine, io).await;
    }
    match output {
        Some(form @ (Output::Json | Output::Yaml)) => {
            output::document(io, form, &drain::report(&machine))?;
        }
        _ => io.out_lines(drain::lines(&machine, session.clock())),
    }
    Ok(exit::DONE)
}

/// The machine of that name, else the one whose Node has it.
async fn machine_or_node(session: &Session, name: &str) -> Result<TalosMachine, Error> {
    let missing = match resources::machine(session, name).await {
        Ok(machine) => return Ok(machine),
        Err(error @ Error::NotFound { .. }) => error,
        Err(error) => return Err(error),
    };
    let namespace = session.namespace.clone();
    resources::machines(session, Some(&namespace), None)
        .await?
        .into_iter()
        .find(|machine| node_of(machine).as_deref() == Some(name))
        .ok_or(missing)
        .map_err(|_| Error::NotFound {
            what: format!("a TalosMachine {name}, or one whose Node is {name},"),
            namespace,
            hint: None,
        })
}

async fn follow_drain(
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
    let gone = || Frame::End(vec![format!("{name} is gone.")]);
    follow::run(session, io, changes, |change, clock| {
        match change {
            Some(Change::All(all)) => match all.into_iter().find(|m| m.metadata.uid == uid) {
                Some(found) => latest = Some(found),
                None => return gone(),
            },
            Some(Change::Applied(found)) if found.metadata.uid == uid => latest = Some(found),
            Some(Change::Gone(found)) if found.metadata.uid == uid => return gone(),
            _ => {}
        }
        let Some(machine) = &latest else {
            return Frame::NotYet;
        };
        let lines = drain::lines(machine, clock);
        let drained = machine
            .status
            .as_ref()
            .and_then(|s| s.drain.as_ref())
            .is_some_and(|d| d.remaining == 0 && d.last_pass_at.is_some());
        if drained {
            Frame::End(lines)
        } else {
            Frame::Show(lines)
        }
    })
    .await?;
    Ok(exit::DONE)
}
