//! Objects as they came over the wire: what can be told without knowing their type.

use std::collections::BTreeSet;

use ichor_api::{TalosCluster, TalosMachine, names};
use kube::core::ApiResource;
use serde_json::Value;

/// The kinds that are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Machine,
    Cluster,
}

impl Kind {
    /// By its plural name.
    pub(crate) fn of_resource(resource: &str) -> Option<Self> {
        match resource {
            "talosmachines" => Some(Self::Machine),
            "talosclusters" => Some(Self::Cluster),
            _ => None,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "TalosMachine",
            Self::Cluster => "TalosCluster",
        }
    }

    pub(crate) fn api_resource(self) -> ApiResource {
        match self {
            Self::Machine => ApiResource::erase::<TalosMachine>(&()),
            Self::Cluster => ApiResource::erase::<TalosCluster>(&()),
        }
    }
}

/// A string at `pointer`, empty where there is none.
pub(crate) fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Whether the object is being deleted.
pub(crate) fn is_being_deleted(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// Ichor's finalizers on the object.
pub(crate) fn our_finalizers(object: &Value) -> BTreeSet<&str> {
    object
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|finalizer| finalizer.starts_with(names::FINALIZER_PREFIX))
        .collect()
}

/// UIDs of the object's owners.
fn owners(object: &Value) -> BTreeSet<&str> {
    object
        .pointer("/metadata/ownerReferences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|owner| text(owner, "/uid"))
        .collect()
}

/// Whether `new` has an owner that `old` has not.
pub(crate) fn gains_an_owner(old: Option<&Value>, new: &Value) -> bool {
    let before = old.map(owners).unwrap_or_default();
    owners(new).difference(&before).next().is_some()
}

/// The object without what the API server keeps books in, so that two of them can be
/// compared for what a person changed.
fn as_written(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for bookkeeping in ["managedFields", "resourceVersion", "generation"] {
            metadata.remove(bookkeeping);
        }
    }
    object
}

/// Whether `new` differs from `old` in Ichor's consent annotations and nothing else.
pub(crate) fn changes_only_consent(old: &Value, new: &Value) -> bool {
    let without_consent = |object: &Value| {
        let mut object = as_written(object);
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            if let Some(annotations) = metadata
                .get_mut("annotations")
                .and_then(Value::as_object_mut)
            {
                annotations.retain(|key, _| !names::CONSENT_ANNOTATIONS.contains(&key.as_str()));
            }
            // No annotations and an empty map are the same to the API.
            metadata.retain(|key, value| {
                key != "annotations" || value.as_object().is_some_and(|a| !a.is_empty())
            });
        }
        object
    };
    as_written(old) != as_written(new) && without_consent(old) == without_consent(new)
}

/// What an update does, in the words of the Event: `approve` or `reject` where just that
/// field was set, else `update`.
pub(crate) fn verb_of(old: &Value, new: &Value) -> &'static str {
    let without = |field: &str, object: &Value| {
        let mut object = as_written(object);
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove(field);
        }
        object
    };
    for (field, verb) in [("approved", "approve"), ("rejected", "reject")] {
        let set = |object: &Value| object["spec"][field] == Value::Bool(true);
        if set(new) && !set(old) && without(field, old) == without(field, new) {
            return verb;
        }
    }
    "update"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object() -> Value {
        json!({
            "metadata": {
                "name": "cp-1", "resourceVersion": "1", "generation": 1,
                "managedFields": [{"manager": "a"}],
                "annotations": {"team": "infra"},
            },
            "spec": {"approved": false, "address": "192.0.2.1"},
        })
    }

    fn with(change: impl FnOnce(&mut Value)) -> Value {
        let mut object = object();
        change(&mut object);
        object
    }

    #[test]
    fn bookkeeping_of_the_api_server_is_no_change() {
        let stored = object();
        let new = with(|o| {
            o["metadata"]["resourceVersion"] = json!("2");
            o["metadata"]["managedFields"] = json!([]);
            o["metadata"]["generation"] = json!(2);
            o["metadata"]["annotations"]["ichor.maesh.dev/skip-reset"] = json!("true");
        });
        assert!(changes_only_consent(&stored, &new));
        assert!(
            !changes_only_consent(&stored, &stored),
            "nothing changed at all"
        );
    }

    #[test]
    fn consent_beside_another_change_is_not_only_consent() {
        let stored = object();
        for change in [
            ("/metadata/annotations/team", json!("other")),
            ("/spec/address", json!("192.0.2.2")),
        ] {
            let new = with(|o| {
                o["metadata"]["annotations"]["ichor.maesh.dev/allow-delete"] = json!("true");
                *o.pointer_mut(change.0).expect("there") = change.1.clone();
            });
            assert!(!changes_only_consent(&stored, &new), "{}", change.0);
        }
        // These two need the verb, so they are no mere consent.
        for annotation in [names::ALLOW_LAST_WORKER, names::ADOPT_CLUSTER] {
            let new = with(|o| o["metadata"]["annotations"][annotation] = json!("true"));
            assert!(!changes_only_consent(&stored, &new), "{annotation}");
        }
    }

    #[test]
    fn the_first_consent_on_an_object_without_annotations_is_only_consent() {
        let stored = with(|o| {
            o["metadata"]
                .as_object_mut()
                .expect("map")
                .remove("annotations");
        });
        let new = with(|o| o["metadata"]["annotations"] = json!({names::ALLOW_DELETE: "true"}));
        assert!(changes_only_consent(&stored, &new));
        assert!(
            changes_only_consent(&new, &stored),
            "taking it off is consent too"
        );
    }

    #[test]
    fn approving_is_called_so_where_nothing_else_changed() {
        let approved = with(|o| o["spec"]["approved"] = json!(true));
        assert_eq!(verb_of(&object(), &approved), "approve");
        assert_eq!(verb_of(&approved, &object()), "update");
        let rejected = with(|o| o["spec"]["rejected"] = json!(true));
        assert_eq!(verb_of(&object(), &rejected), "reject");
        let both = with(|o| {
            o["spec"]["approved"] = json!(true);
            o["spec"]["address"] = json!("192.0.2.9");
        });
        assert_eq!(verb_of(&object(), &both), "update");
    }

    #[test]
    fn an_owner_is_gained_by_uid() {
        let owned = with(|o| o["metadata"]["ownerReferences"] = json!([{"uid": "a"}]));
        let twice =
            with(|o| o["metadata"]["ownerReferences"] = json!([{"uid": "a"}, {"uid": "b"}]));
        assert!(gains_an_owner(None, &owned));
        assert!(gains_an_owner(Some(&object()), &owned));
        assert!(gains_an_owner(Some(&owned), &twice));
        assert!(!gains_an_owner(Some(&twice), &owned));
        assert!(!gains_an_owner(Some(&owned), &owned));
        assert!(!gains_an_owner(None, &object()));
    }
}
