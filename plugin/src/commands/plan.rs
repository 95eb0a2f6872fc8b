//! `kubectl ichor plan remove MACHINE`.

use crate::cli::{Output, PlanAction};
use crate::error::Error;
use crate::io::Io;
use crate::output;
use crate::plan::{Plan, gather, render};
use crate::session::Session;

/// Runs it; the exit code tells the verdict.
pub async fn run(
    session: &Session,
    action: &PlanAction,
    output: Option<Output>,
    io: &mut Io<'_>,
) -> Result<u8, Error> {
    let PlanAction::Remove { machine } = action;
    output::only(output, &[Output::Json, Output::Yaml, Output::Wide], "plan")?;
    let planned = gather::plan(session, machine).await;
    session.tell(io);
    let (_, plan) = planned?;
    show(&plan, output, io)?;
    Ok(plan.exit_code())
}

/// Shows a plan in the form that was asked for.
pub fn show(plan: &Plan, output: Option<Output>, io: &mut Io<'_>) -> Result<(), Error> {
    match output {
        Some(form @ (Output::Json | Output::Yaml)) => {
            // The document has its fixed shape: what could not be seen goes beside it.
            for unseen in &plan.unseen {
                io.note(&format!("not seen: {unseen}"));
            }
            output::document(io, form, plan)
        }
        form => {
            io.out_lines(render::lines(plan, form == Some(Output::Wide)));
            Ok(())
        }
    }
}
