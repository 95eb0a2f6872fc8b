//! `kubectl ichor remove MACHINE`: shows the plan, asks, marks, deletes, follows. And
//! `--cancel`, while that is still possible (spec section 5, "Changing one's mind").

use ichor_api::conditions::REMOVAL as REMOVAL_CONDITION;
use ichor_api::{ConditionStatus, TalosMachine, names};
use ichor_rules::Verdict;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;

use crate::cli::{DryRun, Output, RemoveArgs};
use crate::commands::removal::follow_removal;
use crate::error::{Error, Request, exit};
use crate::io::Io;
use crate::output;
use crate::plan::{self, Plan, gather, render};
use crate::resources::{self, MACHINES, name_of};
use crate::session::Session;
use crate::view::removal;

/// How often a write is tried again on a fresh read: the agent writes status often.
const TRIES: usize = 5;

/// Annotations to set.
type Annotations = Vec<(&'static str, String)>;

/// One run of the command.
struct Remove<'a> {
    session: &'a Session,
    args: &'a RemoveArgs,
    output: Option<Output>,
}

/// Runs it.
pub async fn run(
    session: &Session,
    args: &RemoveArgs,
    output: Option<Output>,
    io: &mut Io<'_>,
) -> Result<u8, Error> {
    output::only(output, &[Output::Name, Output::Wide], "remove")?;
    let remove = Remove {
        session,
        args,
        output,
    };
    if args.cancel {
        return remove.cancel(io).await;
    }
    if !args.yes && args.dry_run == DryRun::None && !io.in_is_terminal {
        return Err(Error::Usage(format!(
            "removing {} wipes a machine, and there is no terminal to ask on: nothing was written. Say --yes if it shall be done",
            args.machine
        )));
    }
    let read = resources::machine(session, &args.machine).await;
    session.tell(io);
    let machine = read?;
    if machine.is_being_deleted() {
        return remove.go_on(machine, io).await;
    }
    remove.begin(machine, io).await
}

impl Remove<'_> {
    fn api(&self) -> Api<TalosMachine> {
        Api::namespaced(self.session.client(), &self.session.namespace)
    }

    fn request(&self, verb: &'static str) -> Request {
        Request::one(verb, MACHINES, &self.session.namespace, &self.args.machine)
    }

    fn dry(&self) -> bool {
        self.args.dry_run == DryRun::Server
    }

    fn done(&self, io: &mut Io<'_>, what: &str) {
        let name = &self.args.machine;
        let dry = if self.dry() { " (server dry run)" } else { "" };
        match self.output {
            Some(Output::Name) => {
                io.out_lines([format!("talosmachine.{}/{name}", names::GROUP)]);
            }
            _ => io.out_lines([format!(
                "talosmachine.{} {name:?} {what}{dry}",
                names::GROUP
            )]),
        }
    }

    /// Shows the plan; ends the command where its verdict does.
    async fn plan(&self, machine: &TalosMachine, io: &mut Io<'_>) -> Result<(), Error> {
        let planned = gather::plan_for(self.session, machine).await;
        self.session.tell(io);
        let plan = without_its_own_state(planned?);
        let lines = render::lines(&plan, self.output == Some(Output::Wide));
        if self.output == Some(Output::Name) {
            io.note(&lines.join("\n"));
        } else {
            io.out_lines(&lines);
        }
        let reasons = plan
            .checks
            .iter()
            .filter(|c| c.verdict == plan.verdict)
            .map(|c| format!("{} [rule: {}]", c.message, c.rule))
            .collect::<Vec<_>>()
            .join("\n");
        match plan.verdict {
            Verdict::Proceed => Ok(()),
            Verdict::Wait if self.args.wait => Ok(()),
            Verdict::Wait => Err(Error::WouldWait(format!(
                "{} would wait, so nothing was written: {reasons}\nMend that first, or begin all the same with --wait.",
                plan.machine
            ))),
            Verdict::Refuse => Err(Error::Refused(format!(
                "{} is not removed, and nothing was written: {reasons}",
                plan.machine
            ))),
        }
    }

    fn confirm(&self, io: &mut Io<'_>, what: &str) -> Result<(), Error> {
        if self.args.yes || self.args.dry_run != DryRun::None {
            return Ok(());
        }
        let name = &self.args.machine;
        let answer = io.ask(&format!("{what}\nType its name ({name}) to go on: "));
        if answer.as_deref() == Some(name) {
            return Ok(());
        }
        Err(Error::Failed {
            what: "not confirmed: nothing was written".to_owned(),
            next: format!("To remove it, answer with {name}, or say --yes."),
        })
    }

    async fn begin(&self, machine: TalosMachine, io: &mut Io<'_>) -> Result<u8, Error> {
        self.plan(&machine, io).await?;
        if self.args.dry_run == DryRun::Client {
            io.note("Dry run: nothing was written.");
            return Ok(exit::DONE);
        }
        self.confirm(
            io,
            &format!(
                "{} {} will be drained, taken out of the cluster and WIPED.",
                machine.spec.role, self.args.machine
            ),
        )?;
        let marked_before = machine.consents(names::ALLOW_DELETE);
        let machine = self
            .annotate(machine, &|m| {
                if m.is_being_deleted() {
                    return Err(Error::Failed {
                        what: format!("somebody else deleted {} meanwhile", name_of(&m.metadata)),
                        next: "See how it stands: kubectl ichor removal status".to_owned(),
                    });
                }
                Ok(vec![(names::ALLOW_DELETE, "true".to_owned())])
            })
            .await?;
        self.session.tell(io);
        if self.dry() && !marked_before {
            // A delete would be asked about the object as it is, without the annotation.
            io.note("The delete itself cannot be tried before the annotation is there; the plan above answers for it.");
            self.done(io, "would be removed");
            return Ok(exit::DONE);
        }
        if let Err(error) = self.delete(&machine).await {
            self.session.tell(io);
            if !marked_before && !self.dry() {
                self.unmark(&machine, io).await;
            }
            return Err(error);
        }
        self.session.tell(io);
        if self.dry() {
            self.done(io, "would be removed");
            return Ok(exit::DONE);
        }
        self.done(io, "is being removed");
        self.follow(&machine, io).await
    }

    async fn follow(&self, machine: &TalosMachine, io: &mut Io<'_>) -> Result<u8, Error> {
        if self.args.watch {
            return follow_removal(self.session, machine, io).await;
        }
        io.note(&format!(
            "Follow it: kubectl ichor removal status {} -w",
            self.args.machine
        ));
        Ok(exit::DONE)
    }

    /// A removal that is under way: lets it go on where it is held, else says how it stands.
    async fn go_on(&self, machine: TalosMachine, io: &mut Io<'_>) -> Result<u8, Error> {
        let answers = consents_for(&machine);
        if answers.is_empty() {
            io.out_lines(removal::lines(&machine, self.session.clock()));
            return if self.args.watch {
                follow_removal(self.session, &machine, io).await
            } else {
                Ok(exit::DONE)
            };
        }
        self.plan(&machine, io).await?;
        if self.args.dry_run == DryRun::Client {
            io.note("Dry run: nothing was written.");
            return Ok(exit::DONE);
        }
        self.confirm(
            io,
            &format!(
                "The removal of {} is held; it will go on and WIPE the machine.",
                self.args.machine
            ),
        )?;
        let machine = self.annotate(machine, &|m| Ok(consents_for(m))).await?;
        self.session.tell(io);
        self.done(io, "goes on");
        if self.dry() {
            return Ok(exit::DONE);
        }
        self.follow(&machine, io).await
    }

    async fn cancel(&self, io: &mut Io<'_>) -> Result<u8, Error> {
        let read = resources::machine(self.session, &self.args.machine).await;
        self.session.tell(io);
        let machine = read?;
        let judge = |m: &TalosMachine| {
            let name = name_of(&m.metadata);
            if !m.is_being_deleted() {
                return Err(Error::Failed {
                    what: format!("{name} is not being removed: there is nothing to take back"),
                    next: format!("See how it stands: kubectl ichor removal status {name}"),
                });
            }
            if removal::past_return(m) {
                return Err(Error::Refused(too_late(m)));
            }
            Ok(vec![(names::CANCEL_REMOVAL, "true".to_owned())])
        };
        judge(&machine)?;
        if self.args.dry_run == DryRun::Client {
            io.note("Dry run: nothing was written. It could still be taken back.");
            return Ok(exit::DONE);
        }
        // On the version just judged: an intent written meanwhile makes this a conflict,
        // and it is judged anew.
        let machine = self.annotate(machine, &judge).await?;
        self.session.tell(io);
        self.done(io, "is being taken back");
        if self.dry() {
            return Ok(exit::DONE);
        }
        self.follow(&machine, io).await
    }

    /// Sets what `wanted` says of the machine, on the very version that it was asked
    /// about. Nothing is sent where all is set already.
    async fn annotate(
        &self,
        machine: TalosMachine,
        wanted: &dyn Fn(&TalosMachine) -> Result<Annotations, Error>,
    ) -> Result<TalosMachine, Error> {
        let uid = machine.metadata.uid.clone();
        let mut machine = machine;
        let mut last = None;
        for _ in 0..TRIES {
            let annotations: serde_json::Map<String, serde_json::Value> = wanted(&machine)?
                .into_iter()
                .filter(|(key, value)| machine.annotation(key) != Some(value))
                .map(|(key, value)| (key.to_owned(), value.into()))
                .collect();
            if annotations.is_empty() {
                return Ok(machine);
            }
            match self.patch(&machine, annotations).await {
                Ok(patched) => return Ok(patched),
                // The agent wrote meanwhile, or no answer came: look again.
                Err(error) if error.is_conflict() || error.is_unknown_outcome() => {
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
            machine = resources::machine(self.session, &self.args.machine).await?;
            if machine.metadata.uid != uid {
                return Err(replaced(&self.args.machine));
            }
        }
        Err(last.unwrap_or_else(|| replaced(&self.args.machine)))
    }

    async fn patch(
        &self,
        machine: &TalosMachine,
        annotations: serde_json::Map<String, serde_json::Value>,
    ) -> Result<TalosMachine, Error> {
        let patch = json!({
            "metadata": {
                "resourceVersion": machine.metadata.resource_version,
                "annotations": annotations,
            }
        });
        let params = PatchParams {
            dry_run: self.dry(),
            field_manager: Some(names::FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api();
        let patch = Patch::Merge(&patch);
        let call = api.patch(&self.args.machine, &params, &patch);
        self.session.bounded(self.request("patch"), call).await
    }

    /// Deletes this very machine. No answer is not taken for a failure: it is looked at
    /// again, and only one that still stands unmarked was not deleted.
    async fn delete(&self, machine: &TalosMachine) -> Result<(), Error> {
        let uid = machine.metadata.uid.clone();
        let params = DeleteParams {
            dry_run: self.dry(),
            preconditions: Some(Preconditions {
                uid: uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let api = self.api();
        let call = api.delete(&self.args.machine, &params);
        let error = match self.session.bounded(self.request("delete"), call).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() => return Err(replaced(&self.args.machine)),
            Err(error) => error,
        };
        if !error.is_unknown_outcome() || self.dry() {
            return Err(error);
        }
        match resources::machine(self.session, &self.args.machine).await {
            Ok(now) if now.metadata.uid == uid && !now.is_being_deleted() => Err(error),
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(_) => Err(error),
        }
    }

    /// Takes back the annotation that this run set, so that a refused removal leaves the
    /// machine as protected as it was.
    async fn unmark(&self, machine: &TalosMachine, io: &mut Io<'_>) {
        let uid = &machine.metadata.uid;
        for _ in 0..TRIES {
            let Ok(now) = resources::machine(self.session, &self.args.machine).await else {
                break;
            };
            if now.metadata.uid != *uid
                || now.is_being_deleted()
                || now.annotation(names::ALLOW_DELETE).is_none()
            {
                return;
            }
            let none = std::iter::once((names::ALLOW_DELETE.to_owned(), serde_json::Value::Null));
            if self.patch(&now, none.collect()).await.is_ok() {
                return;
            }
        }
        io.note(&format!(
            "The annotation {key} could not be taken back: run kubectl annotate tm {} {key}-",
            self.args.machine,
            key = names::ALLOW_DELETE
        ));
    }
}

/// The annotations that let a held removal go on; none where it is not held.
fn consents_for(machine: &TalosMachine) -> Annotations {
    let mut answers = Vec::new();
    let held = machine
        .condition(REMOVAL_CONDITION)
        .is_some_and(|c| c.status == ConditionStatus::False && c.reason == "Held");
    let token = machine
        .status
        .as_ref()
        .and_then(|s| s.removal.as_ref())
        .and_then(|r| r.hold.clone());
    if (held || token.is_some()) && !machine.consents(names::ALLOW_DELETE) {
        answers.push((names::ALLOW_DELETE, "true".to_owned()));
    }
    if let Some(token) = token
        && machine.annotation(names::CONTINUE_REMOVAL) != Some(&token)
    {
        answers.push((names::CONTINUE_REMOVAL, token));
    }
    answers
}

/// A plan for going on is not stopped by the removal's own standing still.
fn without_its_own_state(plan: Plan) -> Plan {
    let checks = plan
        .checks
        .into_iter()
        .map(|mut check| {
            if check.rule == plan::REMOVAL {
                check.verdict = Verdict::Proceed;
            }
            check
        })
        .collect();
    Plan::new(&plan.machine, checks, plan.pods, plan.unseen)
}

fn replaced(name: &str) -> Error {
    Error::Failed {
        what: format!(
            "{name} is not the machine that the plan was made for: it was replaced or changed meanwhile"
        ),
        next: "Run the command again.".to_owned(),
    }
}

fn too_late(machine: &TalosMachine) -> String {
    let name = name_of(&machine.metadata);
    let step = machine
        .status
        .as_ref()
        .and_then(|s| s.removal.as_ref())
        .and_then(|r| r.step.clone())
        .unwrap_or_else(|| "LeaveEtcd".to_owned());
    let what = if machine.is_control_plane() {
        "leaving etcd has begun or was asked for"
    } else {
        "its reset has begun or was asked for"
    };
    format!(
        "it is too late to take the removal of {name} back: {what} (step {step}). It goes on to its end; to use the box again, create a new TalosMachine for it afterwards"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{control_plane, deleted, removal_condition};

    #[test]
    fn only_a_held_removal_asks_for_a_new_consent() {
        let mut machine = deleted(control_plane("cp-1"));
        assert!(consents_for(&machine).is_empty());
        removal_condition(&mut machine, ConditionStatus::False, "Held", "");
        assert_eq!(
            consents_for(&machine),
            [(names::ALLOW_DELETE, "true".to_owned())]
        );
        let status = machine.status.get_or_insert_default();
        status.removal.get_or_insert_default().hold = Some("t1".into());
        assert_eq!(
            consents_for(&machine),
            [
                (names::ALLOW_DELETE, "true".to_owned()),
                (names::CONTINUE_REMOVAL, "t1".to_owned())
            ]
        );
        machine.metadata.annotations = Some(
            [
                (names::ALLOW_DELETE.to_owned(), "true".to_owned()),
                (names::CONTINUE_REMOVAL.to_owned(), "t1".to_owned()),
            ]
            .into(),
        );
        assert!(consents_for(&machine).is_empty());
    }
}
