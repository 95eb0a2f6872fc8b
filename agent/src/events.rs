//! Events that the removal and the teardown leave (events.k8s.io/v1).

use ichor_api::conditions::RemovalStep;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};

use crate::context::Context;
use crate::removal::gather::Gathered;

/// Notes may hold 1024 bytes.
const NOTE_LIMIT: usize = 1024;

/// `text`, cut to a note's length at a character's end.
pub fn note(text: &str) -> String {
    if text.len() <= NOTE_LIMIT {
        return text.to_owned();
    }
    let mut end = NOTE_LIMIT - 4;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} ...", &text[..end])
}

/// One Warning Event in `default` regarding the Namespace: a terminating namespace takes
/// its own Events along.
pub async fn namespace_let_go(ctx: &Context, gathered: &Gathered) {
    let machine = &gathered.machine;
    let namespace = machine.metadata.namespace.clone().unwrap_or_default();
    let names: Vec<String> = gathered
        .machines
        .iter()
        .map(|m| {
            let name = m.metadata.name.clone().unwrap_or_default();
            let out = ichor_rules::count::leave_confirmed(m);
            let wiped = m
                .status
                .as_ref()
                .and_then(|s| s.removal.as_ref())
                .is_some_and(|r| {
                    r.steps
                        .iter()
                        .any(|s| s.name == RemovalStep::Confirm.as_str() && s.finished_at.is_some())
                });
            if out && !wiped {
                format!("{name} (out of etcd, not wiped)")
            } else {
                name
            }
        })
        .collect();
    let text = format!(
        "namespace {namespace} is terminating: its machines are let go as they are, nothing is drained or wiped: {}",
        names.join(", ")
    );
    let event = Event {
        metadata: ObjectMeta {
            // One for the namespace's end, whichever machine says it first.
            name: Some(format!("{namespace}.ichor-let-go")),
            namespace: Some("default".into()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::now())),
        reporting_controller: Some("ichor.maesh.dev/agent".into()),
        reporting_instance: Some(ctx.instance.pod_name.clone()),
        action: Some("LetGo".into()),
        reason: Some("NamespaceTerminating".into()),
        type_: Some("Warning".into()),
        note: Some(note(&text)),
        regarding: Some(ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Namespace".into()),
            name: Some(namespace),
            ..ObjectReference::default()
        }),
        ..Event::default()
    };
    let api: Api<Event> = Api::namespaced(ctx.client.clone(), "default");
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        Err(error) => tracing::warn!(error = %error, "failed to record an Event"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_at_a_characters_end() {
        let long = "ä".repeat(2000);
        let cut = note(&long);
        assert!(cut.len() <= NOTE_LIMIT && cut.ends_with(" ..."));
        assert_eq!(note("short"), "short");
    }
}
