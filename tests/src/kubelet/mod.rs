//! A stand-in for the kubelets of all nodes: it registers Nodes, gives signs of life,
//! runs pods (that is: says that they run) and finishes their deletion.
//!
//! A pod may say what should become of it by annotations: `ichor-bed/ready: "false"`
//! (it runs, but is not ready) and `ichor-bed/ends: "never"` (it ignores being stopped).

pub mod node;
mod pods;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio_util::task::AbortOnDropHandle;

use crate::error::{BedError, Result};
use crate::wait::until;

pub use node::{NodeIdentity, NodeRole};
pub(crate) use pods::{finish, report};

/// Annotation on a pod: `"false"` keeps it from becoming ready.
pub const READY: &str = "ichor-bed/ready";
/// Annotation on a pod: `"never"` keeps it from ending when it is deleted.
pub const ENDS: &str = "ichor-bed/ends";

/// How the stand-in behaves.
#[derive(Clone, Debug)]
pub struct KubeletOptions {
    /// Time between two signs of life of a node.
    pub heartbeat: Duration,
    /// How long a pod's containers take at most to end when they are told to; a pod
    /// with a shorter grace period ends by that.
    pub stop_time: Duration,
}

impl Default for KubeletOptions {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            stop_time: Duration::from_secs(1),
        }
    }
}

/// Tells which pods somebody else runs (the agent's, which are real processes).
pub type Elsewhere = fn(&Pod) -> bool;

/// The kubelets of all nodes. Dropping it stops them all.
pub struct Kubelets {
    shared: Arc<Shared>,
    pods: Store<Pod>,
    nodes: Store<Node>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

struct Shared {
    client: Client,
    options: KubeletOptions,
    running: Mutex<HashMap<String, AbortOnDropHandle<()>>>,
    work: pods::Work,
}

impl Shared {
    fn runs(&self, node: &str) -> bool {
        self.running().contains_key(node)
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<String, AbortOnDropHandle<()>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kubelets {
    /// Starts the stand-in, with no node yet. `elsewhere` tells the pods that it leaves alone.
    pub async fn start(
        client: Client,
        options: KubeletOptions,
        elsewhere: Elsewhere,
    ) -> Result<Self> {
        let (pods, pod_writer) = reflector::store();
        let (nodes, node_writer) = reflector::store();
        let shared = Arc::new(Shared {
            work: pods::Work::new(client.clone(), options.stop_time),
            client: client.clone(),
            options,
            running: Mutex::default(),
        });

        let watch = watcher::Config::default();
        let node_watch = watcher(Api::<Node>::all(client.clone()), watch.clone())
            .default_backoff()
            .reflect(node_writer)
            .for_each(|event| async move {
                if let Err(error) = event {
                    tracing::debug!(%error, "the kubelet stand-in's watch of Nodes broke");
                }
            });
        let watching = Arc::clone(&shared);
        let pod_watch = watcher(Api::<Pod>::all(client), watch)
            .default_backoff()
            .reflect(pod_writer)
            .for_each(move |event| {
                let pod = match event {
                    Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => Some(pod),
                    Ok(_) => None,
                    Err(error) => {
                        tracing::debug!(%error, "the kubelet stand-in's watch of pods broke");
                        None
                    }
                };
                if let Some(pod) = pod {
                    watching.look_at(&pod, elsewhere);
                }
                std::future::ready(())
            });
        // What failed, or lies on a node that has come back, is looked at again now and then.
        let again = {
            let (shared, pods) = (Arc::clone(&shared), pods.clone());
            async move {
                let mut every = tokio::time::interval(Duration::from_millis(500));
                every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    every.tick().await;
                    for pod in pods.state() {
                        shared.look_at(&pod, elsewhere);
                    }
                }
            }
        };
        let tasks = vec![
            AbortOnDropHandle::new(tokio::spawn(node_watch)),
            AbortOnDropHandle::new(tokio::spawn(pod_watch)),
            AbortOnDropHandle::new(tokio::spawn(again)),
        ];
        let synced = async {
            pods.wait_until_ready().await.is_ok() && nodes.wait_until_ready().await.is_ok()
        };
        if !tokio::time::timeout(Duration::from_secs(30), synced)
            .await
            .unwrap_or(false)
        {
            return Err(BedError::Refused(
                "the kubelet stand-in could not list pods and Nodes".to_owned(),
            ));
        }
        Ok(Self {
            shared,
            pods,
            nodes,
            _tasks: tasks,
        })
    }

    /// Starts the kubelet of a node: registers its Node where there is none, says that
    /// it is Ready, and gives signs of life until [`stop`](Self::stop).
    pub async fn run(&self, identity: NodeIdentity) -> Result<()> {
        let name = identity.name.clone();
        node::register(&self.shared.client, &identity).await?;
        let task = tokio::spawn(node::beat(
            self.shared.client.clone(),
            identity,
            self.nodes.clone(),
            self.shared.options.heartbeat,
        ));
        self.shared
            .running()
            .insert(name, AbortOnDropHandle::new(task));
        Ok(())
    }

    /// Stops the kubelet of a node, as when its power goes: nothing is said any more.
    pub fn stop(&self, name: &str) {
        self.shared.running().remove(name);
    }

    /// Whether the kubelet of this node runs.
    pub fn runs(&self, name: &str) -> bool {
        self.shared.runs(name)
    }

    /// Every pod, as last seen.
    pub fn pods(&self) -> &Store<Pod> {
        &self.pods
    }

    /// Every Node, as last seen.
    pub fn nodes(&self) -> &Store<Node> {
        &self.nodes
    }

    /// Waits until the Node `name` has condition Ready of `status` (`True`, `False`, `Unknown`).
    pub async fn wait_ready(&self, name: &str, status: &str, limit: Duration) -> Result<()> {
        let what = format!("Node {name} to be Ready={status}");
        until(limit, &what, async || {
            match self.nodes.get(&ObjectRef::new(name)) {
                None => Err("there is no such Node".to_owned()),
                Some(node) => match node::ready_status(&node) {
                    Some(found) if found == status => Ok(()),
                    found => Err(format!("Ready={}", found.unwrap_or("nothing"))),
                },
            }
        })
        .await
    }
}

impl Shared {
    fn look_at(&self, pod: &Pod, elsewhere: Elsewhere) {
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
        if node.is_some_and(|node| self.runs(node)) && !elsewhere(pod) {
            self.work.look_at(pod);
        }
    }
}
