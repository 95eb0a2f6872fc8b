//! What follows a write that crossed a gate by the verb `override` (spec section 7).
//!
//! Off the request's path and never on a dry run: the write is watched until it has
//! persisted; then a Warning Event `Override` is recorded on the object, an entry in the
//! TalosCluster's `status.overrides`, and, where it waived the last-worker rule of a
//! deletion, `status.removal.lastWorkerWaivedBy`, since the agent, who asks again under
//! the lock, cannot know the caller. Best effort: a failure is logged and counted.

use std::sync::Arc;
use std::time::Duration;

use ichor_api::{TalosCluster, TalosMachine, names};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::answer::said;
use crate::judge::Judge;
use crate::metrics::CertificateLabels;
use crate::objects::{self, Kind};
use crate::review::{Operation, Request};

/// How many overrides a TalosCluster remembers.
const REMEMBERED: usize = 50;
/// Kubernetes' limit on an Event's note.
const NOTE_LIMIT: usize = 1024;

/// A gate that the verb `override` opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The rule that would have refused.
    pub gate: &'static str,
    /// JSON pointers to the fields by which an update is recognised as persisted.
    pub fields: Vec<String>,
    /// The TalosCluster that the object belongs to.
    pub cluster: String,
    /// Whether a deletion was let past the last-worker rule.
    pub waives_last_worker: bool,
}

impl Crossing {
    /// An update that is known by `fields`.
    pub fn update(gate: &'static str, cluster: &str, fields: &[&str]) -> Self {
        Self {
            gate,
            fields: fields.iter().map(|&f| f.to_owned()).collect(),
            cluster: cluster.to_owned(),
            waives_last_worker: false,
        }
    }
}

/// The JSON pointer to an annotation.
pub(crate) fn annotation_pointer(key: &str) -> String {
    format!(
        "/metadata/annotations/{}",
        key.replace('~', "~0").replace('/', "~1")
    )
}

/// What is known of the object once its write has persisted.
struct Persisted {
    name: String,
    uid: String,
}

/// Starts the recording of `crossing`, which `request` was admitted by.
pub(crate) fn spawn(judge: &Arc<Judge>, request: Request, crossing: Crossing) {
    if request.dry_run {
        return;
    }
    let Some(kind) = Kind::of_resource(&request.resource.resource) else {
        return;
    };
    let task = judge.clone();
    judge.tasks.spawn(async move {
        let result = match record(&task, kind, &request, &crossing).await {
            Ok(true) => "recorded",
            Ok(false) => "not-persisted",
            Err(error) => {
                tracing::warn!(
                    object = %format!("{} {}/{}", kind.as_str(), request.namespace, request.name()),
                    user = %request.user_info.username, gate = crossing.gate, error = %said(&error),
                    "failed to record that an override was used"
                );
                "failed"
            }
        };
        task.metrics
            .overrides
            .get_or_create(&CertificateLabels { result })
            .inc();
    });
}

async fn record(
    judge: &Judge,
    kind: Kind,
    request: &Request,
    crossing: &Crossing,
) -> Result<bool, kube::Error> {
    let Some(persisted) = persisted(judge, kind, request, crossing).await? else {
        return Ok(false);
    };
    let verb = match (request.operation, &request.old_object, &request.object) {
        (Operation::Delete, _, _) => "delete",
        (_, Some(old), Some(new)) => objects::verb_of(old, new),
        _ => "update",
    };
    if crossing.waives_last_worker {
        waive_last_worker(judge, request, &persisted).await?;
    }
    // Two paths may each have seen a gate crossed by the one write: the Event's name
    // tells the second that it is recorded already.
    if event(judge, kind, request, verb, &persisted).await? {
        remember(judge, kind, request, verb, &persisted, &crossing.cluster).await?;
    }
    Ok(true)
}

/// Watches the object until the write shows in it; `None` where it does not in time.
async fn persisted(
    judge: &Judge,
    kind: Kind,
    request: &Request,
    crossing: &Crossing,
) -> Result<Option<Persisted>, kube::Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(
        judge.client.clone(),
        &request.namespace,
        &kind.api_resource(),
    );
    let old = request.old_object.as_ref();
    let known = Persisted {
        name: request.name().to_owned(),
        uid: old
            .map(|o| objects::text(o, "/metadata/uid").to_owned())
            .unwrap_or_default(),
    };
    if known.name.is_empty() {
        return Ok(None);
    }
    let mut pause = Duration::from_millis(50);
    let watch = async {
        loop {
            let stored = tokio::time::timeout(judge.limits.lookup, api.get_opt(&known.name)).await;
            match stored {
                // Gone, or another one of that name: the deletion is complete.
                Ok(Ok(None)) if old.is_some_and(objects::is_being_deleted) => return Ok(None),
                Ok(Ok(None)) if request.operation == Operation::Delete => return Ok(None),
                Ok(Ok(Some(object))) => {
                    let object = serde_json::to_value(&object).unwrap_or_default();
                    if shows(&object, request, crossing, &known.uid) {
                        return Ok(Some(objects::text(&object, "/metadata/uid").to_owned()));
                    }
                }
                Ok(Err(error)) if !is_passing(&error) => return Err(error),
                _ => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    };
    match tokio::time::timeout(judge.limits.persisted_within, watch).await {
        Err(_) => Ok(None),
        Ok(Err(error)) => Err(error),
        Ok(Ok(uid)) => Ok(Some(Persisted {
            uid: uid.filter(|_| known.uid.is_empty()).unwrap_or(known.uid),
            name: known.name,
        })),
    }
}

/// Whether another try may succeed.
fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

fn shows(object: &Value, request: &Request, crossing: &Crossing, uid: &str) -> bool {
    if !uid.is_empty() && objects::text(object, "/metadata/uid") != uid {
        // Another object of that name: the one that was written is gone.
        return request.operation == Operation::Delete
            || request
                .old_object
                .as_ref()
                .is_some_and(objects::is_being_deleted);
    }
    if request.operation == Operation::Delete {
        return objects::is_being_deleted(object);
    }
    let wanted = request.object.as_ref();
    let same = |pointer: &String| {
        let empty = |v: Option<&Value>| {
            v.cloned()
                .filter(|v| v.as_array().is_none_or(|a| !a.is_empty()))
        };
        empty(object.pointer(pointer)) == empty(wanted.and_then(|w| w.pointer(pointer)))
    };
    // Each differs from what was stored before, or no gate would have been crossed.
    crossing.fields.iter().all(same)
}

/// Writes who waived the last-worker rule. The UID keeps it off a successor's object.
async fn waive_last_worker(
    judge: &Judge,
    request: &Request,
    persisted: &Persisted,
) -> Result<(), kube::Error> {
    let api: Api<TalosMachine> = Api::namespaced(judge.client.clone(), &request.namespace);
    let patch = json!({
        "metadata": { "uid": persisted.uid },
        "status": { "removal": { "lastWorkerWaivedBy": request.user_info.username } },
    });
    let mut pause = Duration::from_millis(100);
    for _ in 0..5 {
        let write = api
            .patch_status(
                &persisted.name,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await;
        match write {
            Ok(_) => return Ok(()),
            // It is gone, or another object has its name.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                return Ok(());
            }
            Err(error) if !is_passing(&error) => return Err(error),
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause *= 2;
    }
    api.patch_status(
        &persisted.name,
        &PatchParams::default(),
        &Patch::Merge(&patch),
    )
    .await
    .map(|_| ())
}

/// Cuts `text` to Kubernetes' limit, on a character's boundary.
fn note(mut text: String) -> String {
    if text.len() > NOTE_LIMIT {
        let mut cut = NOTE_LIMIT - '…'.len_utf8();
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        text.truncate(cut);
        text.push('…');
    }
    text
}

/// Records the Event; false where it was there already.
async fn event(
    judge: &Judge,
    kind: Kind,
    request: &Request,
    verb: &str,
    persisted: &Persisted,
) -> Result<bool, kube::Error> {
    let version = request
        .old_object
        .as_ref()
        .map_or("0", |old| objects::text(old, "/metadata/resourceVersion"));
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("ichor-{}-{verb}-{version}", persisted.uid)),
            namespace: Some(request.namespace.clone()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::now())),
        type_: Some("Warning".into()),
        reason: Some("Override".into()),
        action: Some(verb.to_owned()),
        note: Some(note(format!(
            "{verb} {} by {} under override",
            persisted.name, request.user_info.username
        ))),
        regarding: Some(ObjectReference {
            api_version: Some(format!("{}/{}", names::GROUP, names::VERSION)),
            kind: Some(kind.as_str().to_owned()),
            namespace: Some(request.namespace.clone()),
            name: Some(persisted.name.clone()),
            uid: Some(persisted.uid.clone()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(format!("{}/webhook", names::GROUP)),
        reporting_instance: Some(judge.pod_name.chars().take(128).collect()),
        ..Event::default()
    };
    let api: Api<Event> = Api::namespaced(judge.client.clone(), &request.namespace);
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Adds the override to the TalosCluster's list, on the resourceVersion it was read at.
async fn remember(
    judge: &Judge,
    kind: Kind,
    request: &Request,
    verb: &str,
    persisted: &Persisted,
    cluster: &str,
) -> Result<(), kube::Error> {
    let api: Api<TalosCluster> = Api::namespaced(judge.client.clone(), &request.namespace);
    let entry = ichor_api::cluster::OverrideRecord {
        verb: verb.to_owned(),
        kind: kind.as_str().to_owned(),
        name: persisted.name.clone(),
        user: request.user_info.username.clone(),
        time: Time(Timestamp::now()),
    };
    let mut pause = Duration::from_millis(50);
    for _ in 0..8 {
        let Some(found) = api.get_opt(cluster).await? else {
            return Ok(());
        };
        let mut list = found.status.map(|s| s.overrides).unwrap_or_default();
        list.push(entry.clone());
        list.drain(..list.len().saturating_sub(REMEMBERED));
        let patch = json!({
            "metadata": { "resourceVersion": found.metadata.resource_version },
            "status": { "overrides": list },
        });
        match api
            .patch_status(cluster, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    tracing::warn!(
        cluster,
        "status.overrides was busy: an override is recorded by its Event alone"
    );
    Ok(())
}
