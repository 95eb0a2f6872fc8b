//! One Warning Event when a drain starts to be blocked.
//!
//! Written to events.k8s.io/v1 directly: kube's recorder forgets over a restart, and then
//! tells the same episode twice. Here the name is the episode's, so that whoever tells it
//! again finds it told (facts/drain.md 4.4).

use std::fmt::Write as _;

use ichor_api::TalosMachine;
use ichor_api::machine::DrainStatus;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Resource as _, ResourceExt as _};
use sha2::{Digest as _, Sha256};

use super::calls::bounded;
use super::{DrainError, DrainLimits, FIELD_MANAGER};

/// The API server refuses longer notes (bytes).
const NOTE: usize = 1024;
/// And longer instances.
const INSTANCE: usize = 128;
const REASON: &str = "DrainBlocked";

/// What to say of a blocked drain in an Event's note: at most 1,024 bytes, the pods that
/// are left as far as they fit, then how many more.
pub fn blocked_note(node: &str, status: &DrainStatus) -> String {
    let mut note = format!(
        "draining Node {node} is blocked: {} of {} pods are left",
        status.remaining, status.total
    );
    let remaining = usize::try_from(status.remaining).unwrap_or(0);
    let mut shown = 0;
    for pod in &status.pods {
        let budget = pod.budget.as_ref().map_or(String::new(), |b| {
            format!(
                " {} ({} allowed, {} healthy, {} needed)",
                b.name, b.allowed, b.current, b.desired
            )
        });
        let item = format!(
            "{} {}/{}: {}{budget}",
            if shown == 0 { ":" } else { ";" },
            pod.namespace,
            pod.name,
            pod.reason
        );
        // What is left out must always have room to be counted.
        if note.len() + item.len() + "; +2147483647 more".len() > NOTE {
            break;
        }
        note.push_str(&item);
        shown += 1;
    }
    if remaining > shown {
        let _ = write!(note, "; +{} more", remaining - shown);
    }
    note
}

/// Tells on `machine` that its drain is blocked, once per `episode`.
///
/// `episode`: anything that stays the same while it is blocked and outlives a restart,
/// such as the transition time of the condition that says so. `instance`: the agent's pod.
pub async fn announce_blocked(
    client: &Client,
    machine: &TalosMachine,
    episode: &str,
    note: &str,
    instance: &str,
    now: Timestamp,
    limits: &DrainLimits,
) -> Result<(), DrainError> {
    let event = event(machine, episode, note, instance, now);
    let namespace = machine.namespace().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let what = || format!("record the Event {REASON} on {}", machine.name_any());
    match bounded(what, limits.read, events.create(&params, &event)).await {
        Err(DrainError::Api { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.is_already_exists()) => {
            Ok(())
        }
        result => result.map(|_| ()),
    }
}

fn cut(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn event(
    machine: &TalosMachine,
    episode: &str,
    note: &str,
    instance: &str,
    now: Timestamp,
) -> Event {
    let name = machine.name_any();
    let uid = machine.uid();
    let digest = Sha256::new()
        .chain_update(uid.as_deref().unwrap_or(&name))
        .chain_update([0])
        .chain_update(REASON)
        .chain_update([0])
        .chain_update(episode)
        .finalize();
    let hash = digest[..8].iter().fold(String::new(), |mut hash, byte| {
        let _ = write!(hash, "{byte:02x}");
        hash
    });
    Event {
        metadata: ObjectMeta {
            name: Some(format!(
                "{}.{hash}",
                cut(&name, 230).trim_end_matches(['.', '-'])
            )),
            namespace: machine.namespace(),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        action: Some("Drain".to_owned()),
        reason: Some(REASON.to_owned()),
        type_: Some("Warning".to_owned()),
        note: Some(cut(note, NOTE).to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some(TalosMachine::api_version(&()).into_owned()),
            kind: Some(TalosMachine::kind(&()).into_owned()),
            name: Some(name),
            namespace: machine.namespace(),
            uid,
            resource_version: machine.resource_version(),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(format!("{}/agent", ichor_api::names::GROUP)),
        reporting_instance: Some(cut(instance, INSTANCE).to_owned()),
        ..Event::default()
    }
}
