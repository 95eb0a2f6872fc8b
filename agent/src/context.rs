//! What every controller of this process shares.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ichor_api::{TalosCluster, TalosMachine, names};
use ichor_lock::LockManager;
use ichor_lock::clock::Clock;
use ichor_rules::DirectReader;
use kube::Client;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::{Mutex, mpsc};

use crate::credentials::Credentials;
use crate::etcd::EtcdWatches;
use crate::instance::Instance;
use crate::metrics::Metrics;
use crate::removal::memory::Memory;
use crate::settings::Settings;

/// Shared by the controllers; cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

/// What [`Context`] derefs to.
pub struct Inner {
    /// The cluster that the agent runs in. No retries: see `ichor_rules::connect`.
    pub client: Client,
    /// Direct reads of the same.
    pub reader: DirectReader,
    /// Which agent this is.
    pub instance: Instance,
    /// How long it waits for what.
    pub settings: Settings,
    /// Monotonic, counts suspended time.
    pub clock: Arc<dyn Clock>,
    /// Lock observations of this process.
    pub locks: LockManager,
    /// Talos and Kubernetes credentials.
    pub credentials: Credentials,
    /// How long voters have been unhealthy.
    pub etcd: EtcdWatches,
    /// Counters and gauges.
    pub metrics: Arc<Metrics>,
    /// Set when no new work may begin: this term of leadership ends.
    pub stopping: tokio_util::sync::CancellationToken,
    /// Asks the agent to let another replica lead.
    pub step_down: Arc<tokio::sync::Notify>,
    /// The machines as last watched: for waking and for hints, never for a decision.
    pub machines: std::sync::OnceLock<Store<TalosMachine>>,
    wake: mpsc::UnboundedSender<ObjectRef<TalosMachine>>,
    wake_cluster: mpsc::UnboundedSender<ObjectRef<TalosCluster>>,
    removals: Mutex<HashMap<String, Arc<Mutex<Memory>>>>,
    teardowns: Mutex<HashMap<String, Duration>>,
    looks: std::sync::Mutex<HashMap<String, Look>>,
    woken: std::sync::Mutex<HashSet<(String, String)>>,
}

/// When a cluster was last looked at, and as what.
struct Look {
    at: Duration,
    as_what: String,
}

impl std::ops::Deref for Context {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Context {
    /// Everything for `instance`, over `client`.
    pub fn new(
        client: Client,
        instance: Instance,
        settings: Settings,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        wake: mpsc::UnboundedSender<ObjectRef<TalosMachine>>,
        wake_cluster: mpsc::UnboundedSender<ObjectRef<TalosCluster>>,
    ) -> Self {
        let reader = DirectReader::new(client.clone());
        let locks = LockManager::new(instance.pod_uid.clone(), clock.clone(), settings.lock());
        let gap = watch_gap(&settings);
        Self(Arc::new(Inner {
            credentials: Credentials::new(reader.clone(), client.clone(), clock.clone()),
            etcd: EtcdWatches::new(gap, settings.quorum_lost_after),
            client,
            reader,
            instance,
            settings,
            clock,
            locks,
            metrics,
            stopping: tokio_util::sync::CancellationToken::new(),
            step_down: Arc::default(),
            machines: std::sync::OnceLock::new(),
            wake,
            wake_cluster,
            removals: Mutex::default(),
            teardowns: Mutex::default(),
            looks: std::sync::Mutex::default(),
            woken: std::sync::Mutex::default(),
        }))
    }

    /// The memory of the removal of the machine with `uid`.
    pub async fn removal(&self, uid: &str) -> Arc<Mutex<Memory>> {
        self.removals
            .lock()
            .await
            .entry(uid.to_owned())
            .or_insert_with(|| Arc::new(Mutex::new(Memory::new(watch_gap(&self.settings)))))
            .clone()
    }

    /// Forgets the removal of the machine with `uid`.
    pub async fn forget_removal(&self, uid: &str) {
        self.removals.lock().await.remove(uid);
    }

    /// Every removal this process remembers.
    pub async fn removals(&self) -> Vec<Arc<Mutex<Memory>>> {
        self.removals.lock().await.values().cloned().collect()
    }

    /// How long this process has watched the teardown of the cluster with `uid`.
    pub async fn teardown_lasted(&self, uid: &str) -> Duration {
        let now = self.clock.now();
        let mut teardowns = self.teardowns.lock().await;
        let since = teardowns.entry(uid.to_owned()).or_insert(now);
        now.saturating_sub(*since)
    }

    fn watched(&self) -> Vec<Arc<TalosMachine>> {
        self.machines.get().map(Store::state).unwrap_or_default()
    }

    /// Has the removals of `cluster` looked at again now.
    pub fn wake_removals(&self, namespace: &str, cluster: &str) {
        for machine in self.watched() {
            if machine.is_being_deleted()
                && machine.metadata.namespace.as_deref() == Some(namespace)
                && machine.spec.cluster_ref.name == cluster
            {
                // Nobody listens any more when the term has ended.
                let _ = self.wake.send(ObjectRef::from_obj(machine.as_ref()));
            }
        }
    }

    /// How long a look at `cluster` may still wait: its own status write wakes the
    /// controller too, and is no reason to look again. `None`: look now, which this notes.
    pub fn look_may_wait(&self, cluster: &TalosCluster) -> Option<Duration> {
        let meta = &cluster.metadata;
        let key = (
            meta.namespace.clone().unwrap_or_default(),
            meta.name.clone().unwrap_or_default(),
        );
        let as_what = format!(
            "{:?} {:?} {:?} {:?}",
            meta.generation, meta.annotations, meta.finalizers, meta.deletion_timestamp
        );
        let woken = self.woken.lock().is_ok_and(|mut woken| woken.remove(&key));
        let now = self.clock.now();
        let Ok(mut looks) = self.looks.lock() else {
            return None;
        };
        let uid = meta.uid.clone().unwrap_or_default();
        if let Some(look) = looks.get(&uid)
            && !woken
            && look.as_what == as_what
        {
            let due = look.at + self.settings.observe;
            // A requeue comes a little early or late.
            if due > now + self.settings.observe / 20 {
                return Some(due.saturating_sub(now));
            }
        }
        looks.insert(uid, Look { at: now, as_what });
        None
    }

    /// Has `cluster` looked at now.
    pub fn wake_cluster(&self, namespace: &str, cluster: &str) {
        if let Ok(mut woken) = self.woken.lock() {
            woken.insert((namespace.to_owned(), cluster.to_owned()));
        }
        let _ = self
            .wake_cluster
            .send(ObjectRef::new(cluster).within(namespace));
    }

    /// Has the removals beside `machine` looked at again now.
    pub fn wake_siblings(&self, machine: &TalosMachine) {
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        self.wake_removals(namespace, &machine.spec.cluster_ref.name);
        self.wake_cluster(namespace, &machine.spec.cluster_ref.name);
    }

    /// An older machine of the same cluster with `machine`'s address or node name.
    pub fn older_claimant(&self, machine: &TalosMachine) -> Option<String> {
        let age = |m: &TalosMachine| {
            (
                m.metadata.creation_timestamp.as_ref().map(|t| t.0),
                m.metadata.uid.clone(),
            )
        };
        self.watched()
            .iter()
            .filter(|other| {
                other.metadata.uid != machine.metadata.uid
                    && other.metadata.namespace == machine.metadata.namespace
                    && other.spec.cluster_ref == machine.spec.cluster_ref
                    && age(other) < age(machine)
                    && (other.spec.address == machine.spec.address
                        || (other.spec.node_name.is_some()
                            && other.spec.node_name == machine.spec.node_name))
            })
            .find_map(|other| other.metadata.name.clone())
    }

    /// The Lease that is the lock of `cluster`.
    pub fn lease(&self, namespace: &str, cluster: &str) -> crate::lease::KubeLease {
        crate::lease::KubeLease::new(
            self.client.clone(),
            namespace,
            &names::lease_name(cluster),
            cluster,
        )
    }
}

/// Looks at one thing that are further apart than this do not make one wait: something
/// stood in the way of looking.
fn watch_gap(settings: &Settings) -> Duration {
    // A look at a silent machine takes as long as several answers are waited for.
    let looks = settings.observe.max(settings.retry);
    (looks + settings.etcd_deadline) * 4
}
