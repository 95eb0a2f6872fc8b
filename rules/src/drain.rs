//! Which pods a drain moves, which it leaves, and which stop it (spec section 6).
//!
//! The filters and their order are `kubectl drain`'s (facts/drain.md 4.1), with the
//! options of `spec.drain` in the place of its flags. Pure: the agent's drain and the
//! plugin's plan ask the same functions.

mod budget;
mod selector;

pub use budget::{Forecast, blocked_by, budgets_of, explain, forecast, ignores_budgets, is_ready};
pub use selector::{LabelQuery, SelectorError};

use ichor_api::common::{DrainOptions, EmptyDirPolicy, UnmanagedPolicy};
use ichor_api::names;
use k8s_openapi::api::core::v1::Pod;
use std::time::Duration;

/// The kubelet's mark on the API object of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// `spec.drain`, read and checked.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DrainPolicy {
    /// What becomes of pods with emptyDir volumes.
    pub empty_dir: EmptyDirPolicy,
    /// What becomes of pods without a controller.
    pub unmanaged: UnmanagedPolicy,
    /// Grace period for every evicted pod, in seconds; `None`: each pod's own.
    pub grace_period_seconds: Option<i64>,
    /// After how long a drain stands still; `None`: never.
    pub timeout: Option<Duration>,
    skip: Option<LabelQuery>,
}

impl DrainPolicy {
    /// Reads `options`. Errors: a `skipSelector` that cannot be read, which must stop a
    /// drain before anything is cordoned or evicted.
    pub fn new(options: &DrainOptions) -> Result<Self, SelectorError> {
        let skip = match options.skip_selector.as_deref() {
            Some(selector) => LabelQuery::parse(selector)?,
            None => None,
        };
        Ok(Self {
            empty_dir: options.empty_dir.unwrap_or_default(),
            unmanaged: options.unmanaged.unwrap_or_default(),
            grace_period_seconds: options.grace_period_seconds.filter(|s| *s >= 0),
            timeout: options
                .timeout
                .and_then(|s| u64::try_from(s).ok())
                .filter(|s| *s > 0)
                .map(Duration::from_secs),
            skip,
        })
    }
}

/// What the judgement needs to know beside the pod and the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainContext {
    /// The Node is dead (spec section 5): nobody is there to finish a deletion.
    pub node_dead: bool,
}

/// Why a pod is left where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// `spec.drain.skipSelector` matches it.
    Selector,
    /// A DaemonSet would put it back at once.
    DaemonSet,
    /// It stands for a static pod; only the kubelet ends that.
    Mirror,
    /// It has run to its end.
    Finished,
}

impl SkipReason {
    /// The reason as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Selector => "Selector",
            Self::DaemonSet => "DaemonSet",
            Self::Mirror => "Mirror",
            Self::Finished => "Finished",
        }
    }
}

/// Why a pod stops the whole drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseReason {
    /// It has an emptyDir volume and the policy says `Refuse`.
    EmptyDir,
    /// It has no controller and the policy says `Refuse`.
    Unmanaged,
}

impl RefuseReason {
    /// The reason as it stands in `status.drain.pods[].reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EmptyDir => "EmptyDir",
            Self::Unmanaged => "Unmanaged",
        }
    }

    /// Why, and what to do next; it follows the pod's name.
    pub fn explain(self) -> &'static str {
        match self {
            Self::EmptyDir => {
                "keeps data in an emptyDir volume, which an eviction would lose, and spec.drain.emptyDir is Refuse: save the data and delete the pod, or set it to Evict"
            }
            Self::Unmanaged => {
                "has no controller that would make it again elsewhere, and spec.drain.unmanaged is Refuse: delete the pod, or set it to Evict"
            }
        }
    }
}

/// What a drain does with one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It stays, and the drain does not wait for it.
    Skip(SkipReason),
    /// It is deleted already and its node is dead: it counts as gone, as it does for
    /// Kubernetes on an unreachable node.
    Gone,
    /// It is on its way out: waited for, never evicted again.
    Terminating,
    /// It is evicted.
    Evict,
    /// It stops the drain: nothing at all is evicted while one pod is refused.
    Refuse(RefuseReason),
}

impl Disposition {
    /// Whether the drain is not done while this pod is there.
    pub fn must_go(self) -> bool {
        matches!(self, Self::Terminating | Self::Evict | Self::Refuse(_))
    }
}

/// `namespace/name`.
pub fn pod_name(pod: &Pod) -> String {
    format!(
        "{}/{}",
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        pod.metadata.name.as_deref().unwrap_or_default()
    )
}

/// Whether `pod` is one of the agent's own, which go last (spec section 5, step 3).
/// `namespace`: where the agent runs.
pub fn is_agent_pod(pod: &Pod, namespace: &str) -> bool {
    pod.metadata.namespace.as_deref() == Some(namespace)
        && pod
            .metadata
            .labels
            .as_ref()
            .and_then(|l| l.get("app.kubernetes.io/name"))
            .is_some_and(|name| name == names::AGENT_APP)
}

/// What a drain does with `pod`. The first filter that applies decides:
/// selector, dead node, DaemonSet, mirror, finished, terminating, emptyDir, unmanaged.
///
/// Unlike kubectl, a DaemonSet is not looked up (a pod whose DaemonSet is gone is the
/// garbage collector's), finished pods are left alone, and a pod that terminates already
/// stops nothing.
pub fn classify(pod: &Pod, policy: &DrainPolicy, context: DrainContext) -> Disposition {
    let meta = &pod.metadata;
    if policy
        .skip
        .as_ref()
        .is_some_and(|s| s.matches(meta.labels.as_ref()))
    {
        return Disposition::Skip(SkipReason::Selector);
    }
    let terminating = meta.deletion_timestamp.is_some();
    if terminating && context.node_dead {
        return Disposition::Gone;
    }
    let controller = meta
        .owner_references
        .iter()
        .flatten()
        .find(|o| o.controller == Some(true));
    if controller.is_some_and(|o| o.kind == "DaemonSet" && o.api_version == "apps/v1") {
        return Disposition::Skip(SkipReason::DaemonSet);
    }
    if meta
        .annotations
        .as_ref()
        .is_some_and(|a| a.contains_key(MIRROR_ANNOTATION))
    {
        return Disposition::Skip(SkipReason::Mirror);
    }
    if matches!(
        pod.status.as_ref().and_then(|s| s.phase.as_deref()),
        Some("Succeeded" | "Failed")
    ) {
        return Disposition::Skip(SkipReason::Finished);
    }
    if terminating {
        return Disposition::Terminating;
    }
    let empty_dir = pod
        .spec
        .iter()
        .flat_map(|s| s.volumes.iter().flatten())
        .any(|v| v.empty_dir.is_some());
    if empty_dir && policy.empty_dir == EmptyDirPolicy::Refuse {
        return Disposition::Refuse(RefuseReason::EmptyDir);
    }
    if controller.is_none() && policy.unmanaged == UnmanagedPolicy::Refuse {
        return Disposition::Refuse(RefuseReason::Unmanaged);
    }
    Disposition::Evict
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A running pod `default/web` of a ReplicaSet, with `over` merged in.
    pub(crate) fn pod(over: Value) -> Pod {
        fn merge(into: &mut Value, over: Value) {
            match (into, over) {
                (Value::Object(into), Value::Object(over)) => {
                    for (key, value) in over {
                        merge(into.entry(key).or_insert(Value::Null), value);
                    }
                }
                (into, over) => *into = over,
            }
        }
        let mut base = json!({
            "metadata": {
                "namespace": "default", "name": "web", "uid": "u-web",
                "ownerReferences": [owner("apps/v1", "ReplicaSet")],
            },
            "spec": { "containers": [] },
            "status": { "phase": "Running" },
        });
        merge(&mut base, over);
        serde_json::from_value(base).unwrap()
    }

    fn owner(api_version: &str, kind: &str) -> Value {
        json!({ "apiVersion": api_version, "kind": kind, "name": "o", "uid": "o", "controller": true })
    }

    fn bare() -> Value {
        json!({ "metadata": { "ownerReferences": null } })
    }

    fn empty_dir() -> Value {
        json!({ "spec": { "volumes": [{ "name": "tmp", "emptyDir": {} }] } })
    }

    fn policy(options: Value) -> DrainPolicy {
        DrainPolicy::new(&serde_json::from_value(options).unwrap()).unwrap()
    }

    fn judge(over: Value, options: Value) -> Disposition {
        classify(&pod(over), &policy(options), DrainContext::default())
    }

    fn both(mut one: Value, other: Value) -> Value {
        for (key, value) in other.as_object().unwrap() {
            let map = one.as_object_mut().unwrap();
            match map.get_mut(key) {
                Some(Value::Object(inner)) => {
                    inner.extend(value.as_object().unwrap().clone());
                }
                _ => {
                    map.insert(key.clone(), value.clone());
                }
            }
        }
        one
    }

    #[test]
    fn the_defaults_evict_empty_dirs_and_refuse_bare_pods() {
        use Disposition::{Evict, Refuse};
        assert_eq!(judge(json!({}), json!({})), Evict);
        assert_eq!(judge(empty_dir(), json!({})), Evict);
        assert_eq!(judge(bare(), json!({})), Refuse(RefuseReason::Unmanaged));
    }

    #[test]
    fn each_option_turns_its_own_filter_and_no_other() {
        use Disposition::{Evict, Refuse};
        let refuse = json!({ "emptyDir": "Refuse" });
        let evict = json!({ "unmanaged": "Evict" });
        assert_eq!(
            judge(empty_dir(), refuse.clone()),
            Refuse(RefuseReason::EmptyDir)
        );
        assert_eq!(judge(json!({}), refuse.clone()), Evict);
        assert_eq!(judge(bare(), evict.clone()), Evict);
        assert_eq!(judge(both(bare(), empty_dir()), evict), Evict);
        // kubectl's order: local storage is named before the missing controller.
        assert_eq!(
            judge(both(bare(), empty_dir()), refuse),
            Refuse(RefuseReason::EmptyDir)
        );
    }

    #[test]
    fn daemon_set_mirror_and_finished_pods_stay() {
        let skipped = |over, reason| {
            assert_eq!(
                judge(over, json!({ "emptyDir": "Refuse" })),
                Disposition::Skip(reason)
            );
        };
        let daemon = json!({ "metadata": { "ownerReferences": [owner("apps/v1", "DaemonSet")] } });
        skipped(daemon.clone(), SkipReason::DaemonSet);
        skipped(both(daemon.clone(), empty_dir()), SkipReason::DaemonSet);
        // A DaemonSet's pod that is being replaced is never waited for.
        let dying = both(
            daemon,
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
        );
        skipped(dying, SkipReason::DaemonSet);
        let mirror = json!({ "metadata": {
            "ownerReferences": null,
            "annotations": { "kubernetes.io/config.mirror": "hash" },
        } });
        skipped(mirror, SkipReason::Mirror);
        for phase in ["Succeeded", "Failed"] {
            let finished = both(
                both(bare(), empty_dir()),
                json!({ "status": { "phase": phase } }),
            );
            skipped(finished, SkipReason::Finished);
        }
    }

    #[test]
    fn only_the_controller_reference_counts_and_only_apps_daemon_sets() {
        let mut reference = owner("apps/v1", "DaemonSet");
        reference["controller"] = json!(false);
        let owned = json!({ "metadata": { "ownerReferences": [reference] } });
        assert_eq!(
            judge(owned, json!({})),
            Disposition::Refuse(RefuseReason::Unmanaged)
        );
        let foreign =
            json!({ "metadata": { "ownerReferences": [owner("apps.kruise.io/v1", "DaemonSet")] } });
        assert_eq!(judge(foreign, json!({})), Disposition::Evict);
    }

    #[test]
    fn a_terminating_pod_is_waited_for_on_a_live_node_and_gone_on_a_dead_one() {
        let dying = both(
            both(bare(), empty_dir()),
            json!({ "metadata": { "ownerReferences": null, "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
        );
        assert_eq!(
            judge(dying.clone(), json!({ "emptyDir": "Refuse" })),
            Disposition::Terminating
        );
        let dead = DrainContext { node_dead: true };
        assert_eq!(
            classify(&pod(dying), &policy(json!({})), dead),
            Disposition::Gone
        );
        // A dead node changes nothing for a pod that nobody deleted.
        assert_eq!(
            classify(&pod(bare()), &policy(json!({})), dead),
            Disposition::Refuse(RefuseReason::Unmanaged)
        );
    }

    #[test]
    fn the_skip_selector_comes_before_every_other_filter() {
        let labelled = both(
            bare(),
            json!({ "metadata": { "ownerReferences": null, "labels": { "drain": "skip" } } }),
        );
        let options = json!({ "skipSelector": "drain in (skip)" });
        assert_eq!(
            judge(labelled.clone(), options.clone()),
            Disposition::Skip(SkipReason::Selector)
        );
        assert_eq!(judge(json!({}), options), Disposition::Evict);
        // An empty one selects nothing, not everything.
        assert_eq!(
            judge(labelled, json!({ "skipSelector": " " })),
            Disposition::Refuse(RefuseReason::Unmanaged)
        );
    }

    #[test]
    fn an_unreadable_skip_selector_stops_the_drain() {
        let options = DrainOptions {
            skip_selector: Some("drain in skip".into()),
            ..DrainOptions::default()
        };
        let error = DrainPolicy::new(&options).unwrap_err();
        assert!(error.to_string().contains("drain in skip"), "{error}");
    }

    #[test]
    fn zero_is_no_time_limit_but_a_grace_period() {
        let read = policy(json!({ "timeout": 0, "gracePeriodSeconds": 0 }));
        assert_eq!(read.timeout, None);
        assert_eq!(read.grace_period_seconds, Some(0));
        let read = policy(json!({ "timeout": 60 }));
        assert_eq!(read.timeout, Some(Duration::from_mins(1)));
        assert_eq!(read.grace_period_seconds, None);
    }

    #[test]
    fn the_agents_pods_are_told_by_label_and_namespace() {
        let own = pod(
            json!({ "metadata": { "namespace": "ichor-system", "labels": { "app.kubernetes.io/name": "ichor-agent" } } }),
        );
        assert!(is_agent_pod(&own, "ichor-system"));
        assert!(!is_agent_pod(&own, "elsewhere"));
        assert!(!is_agent_pod(&pod(json!({})), "default"));
    }
}
