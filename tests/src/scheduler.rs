//! A small scheduler: pods without a node get one, so that what a budget lets go of one
//! node comes up on another.
//!
//! It knows cordons, taints and `nodeSelector`, spreads the pods of one owner, and
//! nothing else (no resources, no affinity).

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt as _};
use tokio_util::task::AbortOnDropHandle;

use crate::wait::bounded;

/// Says on which node a pod goes, whatever the rules say; `None`: the rules decide.
pub type Placement = Box<dyn Fn(&Pod) -> Option<String> + Send + Sync>;

/// Starts the scheduler; it works until the handle is dropped.
pub fn start(
    client: Client,
    pods: Store<Pod>,
    nodes: Store<Node>,
    placement: Placement,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_millis(100));
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // Bindings that the pod store does not show yet.
        let mut bound = HashMap::<String, String>::new();
        loop {
            every.tick().await;
            let all = pods.state();
            bound.retain(|uid, _| {
                all.iter()
                    .any(|p| p.metadata.uid.as_deref() == Some(uid) && node_of(p).is_none())
            });
            let waiting: Vec<_> = all.iter().filter(|p| wants_a_node(p)).collect();
            if waiting.is_empty() {
                continue;
            }
            let nodes = nodes.state();
            for pod in waiting {
                let uid = pod.uid().unwrap_or_default();
                if bound.contains_key(&uid) {
                    continue;
                }
                let node = placement(pod).or_else(|| choose(pod, &nodes, &all, &bound));
                let Some(node) = node else { continue };
                match bounded(Duration::from_secs(2), bind(&client, pod, &node)).await {
                    Ok(()) => {
                        bound.insert(uid, node);
                    }
                    Err(error) => {
                        tracing::debug!(pod = pod.name_any(), node, error, "not bound");
                    }
                }
            }
        }
    }))
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn wants_a_node(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    spec.node_name.is_none()
        && pod.metadata.deletion_timestamp.is_none()
        && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
        && spec
            .scheduler_name
            .as_ref()
            .is_none_or(|n| n == "default-scheduler")
}

/// The node that fits and has the fewest pods of the same owner, then the fewest at all.
fn choose<N, P>(
    pod: &Pod,
    nodes: &[N],
    pods: &[P],
    bound: &HashMap<String, String>,
) -> Option<String>
where
    N: AsRef<Node>,
    P: AsRef<Pod>,
{
    let owner = |p: &Pod| p.owner_references().first().map(|o| o.uid.clone());
    let of_pod = owner(pod);
    nodes
        .iter()
        .map(AsRef::as_ref)
        .filter(|node| fits(pod, node))
        .map(kube::ResourceExt::name_any)
        .min_by_key(|node| {
            let here: Vec<_> = pods
                .iter()
                .map(AsRef::as_ref)
                .filter(|p| {
                    let to = node_of(p).or_else(|| {
                        let uid = p.metadata.uid.as_ref()?;
                        bound.get(uid).map(String::as_str)
                    });
                    to == Some(node.as_str())
                })
                .collect();
            let siblings = here
                .iter()
                .filter(|p| of_pod.is_some() && owner(p) == of_pod)
                .count();
            (siblings, here.len(), node.clone())
        })
}

fn fits(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let of_node = node.spec.as_ref();
    let cordoned = of_node.and_then(|s| s.unschedulable).unwrap_or(false);
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let taints = of_node
        .and_then(|s| s.taints.as_deref())
        .unwrap_or_default();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| node.labels().get(key) == Some(value));
    let ready = node
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .any(|c| c.type_ == "Ready" && c.status == "True");
    ready
        && !cordoned
        && selected
        && node.metadata.deletion_timestamp.is_none()
        && taints
            .iter()
            .filter(|t| t.effect != "PreferNoSchedule")
            .all(|t| tolerations.iter().any(|by| tolerates(by, t)))
}

fn tolerates(by: &Toleration, taint: &Taint) -> bool {
    let effect = by.effect.as_deref().unwrap_or_default();
    let key = by.key.as_deref().unwrap_or_default();
    let exists = by.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && ((key.is_empty() && exists) || key == taint.key)
        && (exists
            || by.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default())
}

async fn bind(client: &Client, pod: &Pod, node: &str) -> Result<(), kube::Error> {
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let name = pod.name_any();
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            uid: pod.uid(),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    };
    // The answer is a Status, not a Pod.
    api.create_subresource::<_, serde_json::Value>(
        "binding",
        &name,
        &PostParams::default(),
        &binding,
    )
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, spec: serde_json::Value) -> std::sync::Arc<Node> {
        let value = json!({
            "metadata": {"name": name}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        std::sync::Arc::new(serde_json::from_value(value).unwrap())
    }

    fn pod(uid: &str, node: Option<&str>) -> std::sync::Arc<Pod> {
        let value = json!({
            "metadata": {"name": uid, "uid": uid, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web"}]},
            "spec": {"nodeName": node, "containers": []},
        });
        std::sync::Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn a_pod_goes_where_it_fits_and_its_siblings_are_few() {
        const CP: &str = "node-role.kubernetes.io/control-plane";
        let taint = json!({"taints": [{"key": CP, "effect": "NoSchedule"}]});
        let nodes = [
            node("cordoned", json!({"unschedulable": true})),
            node("tainted", taint),
            node("worker-1", json!({})),
            node("worker-2", json!({})),
        ];
        let pods = [pod("a", Some("worker-1")), pod("b", None)];
        let none = HashMap::new();
        assert_eq!(
            choose(&pods[1], &nodes, &pods, &none).as_deref(),
            Some("worker-2")
        );
        let bound = HashMap::from([("c".to_owned(), "worker-2".to_owned())]);
        let pods = [pods[0].clone(), pods[1].clone(), pod("c", None)];
        assert_eq!(
            choose(&pods[1], &nodes, &pods, &bound).as_deref(),
            Some("worker-1")
        );
        assert_eq!(choose(&pods[1], &nodes[..2], &pods, &bound), None);
    }
}
