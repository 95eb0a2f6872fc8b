//! Pieces that both resources use.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It could not be told.
    Unknown,
}

impl ConditionStatus {
    /// The word as Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// One aspect of an object's state, in the shape of `metav1.Condition`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Kind of condition, in CamelCase.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// True, False or Unknown.
    pub status: ConditionStatus,
    /// The `metadata.generation` that this was judged by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the status last changed.
    pub last_transition_time: Time,
    /// Why, as one CamelCase word.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
    /// Why, for a person: what happened, the numbers, what to do next.
    #[schemars(length(max = 32768))]
    pub message: String,
}

/// Sets the condition of `type_` in `conditions`, keeping the transition time while
/// the status stays the same. Returns whether anything but the time changed.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: ConditionStatus,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    if let Some(found) = conditions.iter_mut().find(|c| c.type_ == type_) {
        let changed = found.status != status || found.reason != reason || found.message != message;
        if found.status != status {
            found.last_transition_time = Time(now);
        }
        found.status = status;
        reason.clone_into(&mut found.reason);
        message.clone_into(&mut found.message);
        found.observed_generation = generation;
        return changed;
    }
    conditions.push(Condition {
        type_: type_.to_owned(),
        status,
        observed_generation: generation,
        last_transition_time: Time(now),
        reason: reason.to_owned(),
        message: message.to_owned(),
    });
    true
}

/// The condition of `type_`, if there is one.
pub fn find_condition<'c>(conditions: &'c [Condition], type_: &str) -> Option<&'c Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Names a Secret in the object's own namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Name of the Secret, in this object's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What becomes of pods with emptyDir volumes in a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EmptyDirPolicy {
    /// They are evicted; what the volume holds is lost.
    #[default]
    Evict,
    /// They stop the drain.
    Refuse,
}

/// What becomes of pods that no controller will make again elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnmanagedPolicy {
    /// They stop the drain, by name.
    #[default]
    Refuse,
    /// They are evicted, and gone for good.
    Evict,
}

/// How nodes are drained (spec section 6). On a TalosMachine, each field that is set
/// replaces the cluster's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainOptions {
    /// Pods with emptyDir volumes: `Evict` them (default; what the volume holds is lost) or `Refuse`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDirPolicy>,
    /// Pods without a controller: `Refuse` to drain (default, naming them) or `Evict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmanaged: Option<UnmanagedPolicy>,
    /// Grace period in seconds for every evicted pod; without it each pod's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_seconds: Option<i64>,
    /// Seconds after which a drain stands still and says so. 0 (default): never. It never forces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub timeout: Option<i64>,
    /// Label selector, in kubectl's notation: matching pods are left where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub skip_selector: Option<String>,
}

impl DrainOptions {
    /// `over` where it says something, else `self`.
    #[must_use]
    pub fn overridden_by(&self, over: Option<&Self>) -> Self {
        let Some(over) = over else {
            return self.clone();
        };
        Self {
            empty_dir: over.empty_dir.or(self.empty_dir),
            unmanaged: over.unmanaged.or(self.unmanaged),
            grace_period_seconds: over.grace_period_seconds.or(self.grace_period_seconds),
            timeout: over.timeout.or(self.timeout),
            skip_selector: over
                .skip_selector
                .clone()
                .or_else(|| self.skip_selector.clone()),
        }
    }
}
