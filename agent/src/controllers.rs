//! One term of leadership: both controllers, the watch on the locks, and their orderly end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use ichor_api::{TalosCluster, TalosMachine};
use ichor_lock::LeaseKey;
use kube::api::{Api, DynamicObject};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{PredicateConfig, WatchStreamExt, watcher};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::context::Context;
use crate::lease::{self, LOCK_LABEL};
use crate::removal::perform::PassError;
use crate::{cluster, machine};

/// What wakes the controllers besides their watches.
pub struct Wakes {
    /// Machines.
    pub machines: mpsc::UnboundedReceiver<ObjectRef<TalosMachine>>,
    /// Clusters.
    pub clusters: mpsc::UnboundedReceiver<ObjectRef<TalosCluster>>,
}

/// At most this many machines and clusters are worked on at once.
const CONCURRENCY: u16 = 64;

fn reconcile_machine(
    machine: Arc<TalosMachine>,
    ctx: Arc<Context>,
) -> BoxFuture<'static, Result<Action, PassError>> {
    async move {
        let again = Box::pin(machine::reconcile(&ctx, &machine)).await?;
        Ok(again.map_or_else(Action::await_change, Action::requeue))
    }
    .boxed()
}

fn reconcile_cluster(
    cluster: Arc<TalosCluster>,
    ctx: Arc<Context>,
) -> BoxFuture<'static, Result<Action, PassError>> {
    async move {
        let again = cluster::reconcile(&ctx, &cluster).await?;
        Ok(again.map_or_else(Action::await_change, Action::requeue))
    }
    .boxed()
}

fn on_error<K: kube::Resource<DynamicType = ()>>(
    object: Arc<K>,
    error: &PassError,
    ctx: Arc<Context>,
) -> Action {
    ctx.metrics.reconcile_errors.inc();
    tracing::warn!(
        kind = %K::kind(&()),
        namespace = object.meta().namespace,
        name = object.meta().name,
        error = crate::errors::chain(error),
        "a pass broke off; it is made again"
    );
    Action::requeue(ctx.settings.retry.min(Duration::from_secs(5)))
}

/// What people write, as one number: a change of it is looked at now. What the agent
/// writes into a status is not, or it would wake itself for ever.
#[allow(clippy::unnecessary_wraps)] // the shape that predicates have
fn changed<K: kube::Resource>(object: &K, status: Option<&str>) -> Option<u64> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let meta = object.meta();
    let mut hasher = DefaultHasher::new();
    meta.generation.hash(&mut hasher);
    meta.annotations.hash(&mut hasher);
    meta.finalizers.hash(&mut hasher);
    meta.deletion_timestamp.is_some().hash(&mut hasher);
    status.hash(&mut hasher);
    Some(hasher.finish())
}

/// The webhook's note of who waived the last-worker rule is the one entry of a machine's
/// status that somebody else writes.
fn machine_changed(machine: &TalosMachine) -> Option<u64> {
    let waived = machine
        .status
        .as_ref()
        .and_then(|s| s.removal.as_ref())
        .and_then(|r| r.last_worker_waived_by.as_deref());
    changed(machine, waived)
}

/// Every object of one kind, and those whose `key` has changed.
fn watched<K>(
    ctx: &Context,
    key: fn(&K) -> Option<u64>,
) -> (Store<K>, BoxStream<'static, Result<K, watcher::Error>>)
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let stream = watcher(
        Api::<K>::all(ctx.client.clone()),
        watcher::Config::default(),
    )
    .default_backoff()
    .reflect(writer)
    .applied_objects()
    .predicate_filter(key, PredicateConfig::default())
    .boxed();
    (store, stream)
}

/// Runs until `ctx.stopping` is set and every pass that was running has ended.
pub async fn run(ctx: Context, wakes: Wakes) {
    let shared = Arc::new(ctx.clone());
    let (store, stream) = watched::<TalosMachine>(&ctx, machine_changed);
    let _ = ctx.machines.set(store.clone());
    let machines = Controller::for_stream(stream, store)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .watches(
            Api::<TalosCluster>::all(ctx.client.clone()),
            watcher::Config::default(),
            {
                let ctx = ctx.clone();
                move |cluster| {
                    // Removals wait for many things of their cluster.
                    ctx.wake_removals(
                        cluster.metadata.namespace.as_deref().unwrap_or_default(),
                        cluster.metadata.name.as_deref().unwrap_or_default(),
                    );
                    std::iter::empty()
                }
            },
        )
        .reconcile_on(UnboundedReceiverStream::new(wakes.machines))
        .graceful_shutdown_on(ctx.stopping.clone().cancelled_owned())
        .run(reconcile_machine, on_error, shared.clone())
        .for_each(|_| async {});
    let (store, stream) = watched::<TalosCluster>(&ctx, |cluster| changed(cluster, None));
    let clusters = Controller::for_stream(stream, store)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .reconcile_on(UnboundedReceiverStream::new(wakes.clusters))
        .graceful_shutdown_on(ctx.stopping.clone().cancelled_owned())
        .run(reconcile_cluster, on_error, shared)
        .for_each(|_| async {});
    let leases = watch_locks(ctx.clone());
    tokio::join!(machines, clusters, leases);
}

/// A lock that is released wakes those who wait for it; and a lock that stands
/// unchanged is watched expiring.
async fn watch_locks(ctx: Context) {
    let api: Api<DynamicObject> = Api::all_with(ctx.client.clone(), &lease::resource());
    let mut events = watcher(api, watcher::Config::default().labels(LOCK_LABEL))
        .default_backoff()
        .boxed();
    let mut holders: HashMap<LeaseKey, Option<String>> = HashMap::new();
    loop {
        let event = tokio::select! {
            () = ctx.stopping.cancelled() => return,
            event = events.next() => event,
        };
        let (object, gone) = match event {
            Some(Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => {
                (object, false)
            }
            Some(Ok(watcher::Event::Delete(object))) => (object, true),
            Some(Ok(watcher::Event::Init | watcher::Event::InitDone)) => continue,
            Some(Err(error)) => {
                tracing::warn!(error = %error, "the watch on the cluster locks was cut; it is made again");
                continue;
            }
            None => return,
        };
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let name = object.metadata.name.clone().unwrap_or_default();
        let record = lease::record(&object);
        ctx.locks.observe(
            &LeaseKey::new(&namespace, &name),
            if gone { None } else { Some(&record) },
        );
        let holder = if gone {
            None
        } else {
            record.held_by().map(str::to_owned)
        };
        let Some(cluster) = object
            .metadata
            .labels
            .as_ref()
            .and_then(|l| l.get(LOCK_LABEL))
        else {
            continue;
        };
        if holder.is_none() {
            ctx.wake_removals(&namespace, cluster);
        }
        let before = holders.insert(LeaseKey::new(&namespace, &name), holder.clone());
        if before != Some(holder) {
            // Its status says who holds the lock.
            ctx.wake_cluster(&namespace, cluster);
        }
    }
}

/// Leaves every lock that this process holds to whichever agent leads next.
pub async fn hand_over(ctx: &Context) {
    for memory in ctx.removals().await {
        let mut memory = memory.lock().await;
        if let Some(lock) = memory.lock.take()
            && let Err(error) = lock.hand_over().await
        {
            tracing::warn!(error = %error, "failed to hand a cluster lock over; it expires by itself");
        }
    }
}
