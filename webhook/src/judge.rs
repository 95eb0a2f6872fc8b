//! What a judgement stands on: direct reads, names, bounds.

use std::sync::Arc;

use ichor_rules::DirectReader;
use kube::Client;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::config::{Limits, WebhookConfig};
use crate::metrics::Metrics;
use crate::users::Users;

/// Shared by all requests. It holds no state of the cluster: every answer is read anew.
pub struct Judge {
    pub(crate) client: Client,
    pub(crate) reader: DirectReader,
    pub(crate) users: Users,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    pub(crate) pod_name: String,
    /// What goes on after an answer: recording that a gate was crossed.
    pub(crate) tasks: TaskTracker,
    pub(crate) permits: Semaphore,
}

impl Judge {
    /// Judges by what `client` reads.
    pub fn new(config: &WebhookConfig, client: Client, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            reader: DirectReader::with_deadline(client.clone(), config.limits.lookup),
            client,
            users: config.users.clone(),
            limits: config.limits,
            metrics,
            pod_name: config.pod_name.clone(),
            tasks: TaskTracker::new(),
            permits: Semaphore::new(config.limits.in_flight),
        })
    }

    /// Waits until everything that answers have left to do is done.
    pub async fn settled(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }
}
