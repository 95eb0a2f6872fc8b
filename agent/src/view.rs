//! The cluster as the lock asks about it: by direct reads, settling what can be settled.

use async_trait::async_trait;
use ichor_api::machine::Intent;
use ichor_api::names::parse_etcd_id;
use ichor_api::{TalosCluster, TalosMachine};
use ichor_lock::Operation;
use ichor_lock::{UnsettledIntent, View, ViewError};
use ichor_rules::count::{counts_as_approved, leave_confirmed};
use ichor_rules::transition::transitioning;

use crate::context::Context;
use crate::etcd;
use crate::removal::gather::{Key, ever_listed};

/// The control planes by which a cluster is stable or between two sizes: the approved
/// ones, but for those that are out of etcd and only wait to be wiped. A box that never
/// comes back would hold up every worker otherwise.
pub fn stable_count(machines: &[TalosMachine]) -> usize {
    machines
        .iter()
        .filter(|m| counts_as_approved(m) && !leave_confirmed(m))
        .count()
}

/// The view of one cluster.
pub struct ClusterView<'c> {
    ctx: &'c Context,
    namespace: String,
    cluster: String,
}

impl<'c> ClusterView<'c> {
    /// Of `cluster` in `namespace`.
    pub fn new(ctx: &'c Context, namespace: &str, cluster: &str) -> Self {
        Self {
            ctx,
            namespace: namespace.to_owned(),
            cluster: cluster.to_owned(),
        }
    }

    async fn machines(&self) -> Result<ichor_rules::reader::FreshMachines, ViewError> {
        self.ctx
            .reader
            .machines_of(&self.namespace, &self.cluster)
            .await
            .map_err(|e| ViewError(e.to_string()))
    }
}

/// Whether an unsettled intent of this machine can hold up another operation: workers'
/// calls do not touch etcd, and neither does a machine that is out of it (spec section 4).
fn blocks_others(machine: &TalosMachine, intent: &Intent) -> bool {
    machine.is_control_plane()
        && !(intent.step == "Reset" && ichor_rules::count::leave_confirmed(machine))
}

fn unsettled(machine: &TalosMachine, intent: &Intent) -> UnsettledIntent {
    let name = machine.metadata.name.clone().unwrap_or_default();
    UnsettledIntent {
        message: format!(
            "{} of {name} was sent or is about to be ({}), and its outcome is not known yet",
            intent.step, intent.operation
        ),
        machine: name,
        step: intent.step.clone(),
        operation: intent.operation.clone(),
    }
}

#[async_trait]
impl View for ClusterView<'_> {
    async fn transitioning(&self) -> Result<Option<String>, ViewError> {
        let machines = self.machines().await?;
        let cluster = self
            .ctx
            .reader
            .get::<TalosCluster>(&self.namespace, &self.cluster)
            .await
            .map_err(|e| ViewError(e.to_string()))?
            .ok_or_else(|| ViewError(format!("there is no TalosCluster {}", self.cluster)))?;
        let approved = stable_count(&machines);
        let config = self
            .ctx
            .credentials
            .talos(&cluster)
            .await
            .map_err(|e| ViewError(e.to_string()))?;
        let observation = etcd::observe(
            &config,
            &machines,
            ever_listed(Some(&cluster)),
            None,
            self.ctx.settings.etcd_deadline,
        )
        .await;
        Ok(transitioning(approved, observation.members())
            .map(|(reason, message)| format!("{reason}: {message}")))
    }

    async fn unsettled_intents(
        &self,
        operation: &Operation,
        settle: bool,
    ) -> Result<Vec<UnsettledIntent>, ViewError> {
        let own = operation.to_string();
        let mut left = Vec::new();
        for machine in self.machines().await?.iter() {
            let Some(intent) = machine.status.as_ref().and_then(|s| s.intent.as_ref()) else {
                continue;
            };
            if intent.operation == own || !blocks_others(machine, intent) {
                continue;
            }
            if settle && settle_leave(self.ctx, machine, intent).await {
                continue;
            }
            left.push(unsettled(machine, intent));
        }
        Ok(left)
    }

    async fn intents_of(&self, operation: &Operation) -> Result<Vec<UnsettledIntent>, ViewError> {
        let own = operation.to_string();
        Ok(self
            .machines()
            .await?
            .iter()
            .filter_map(|m| {
                let intent = m.status.as_ref()?.intent.as_ref()?;
                (intent.operation == own).then(|| unsettled(m, intent))
            })
            .collect())
    }
}

/// Settles another machine's leave, where its ID is gone from a survivor's list, and
/// records that. The machine's own removal does everything else when it gets its turn.
async fn settle_leave(ctx: &Context, machine: &TalosMachine, intent: &Intent) -> bool {
    if !matches!(intent.step.as_str(), "LeaveEtcd" | "RemoveMember") {
        return false;
    }
    let Some(id) = intent.member_id.as_deref().and_then(parse_etcd_id) else {
        return false;
    };
    let key = Key::of(machine);
    let Ok(Some(cluster)) = ctx
        .reader
        .get::<TalosCluster>(&key.namespace, &key.cluster)
        .await
    else {
        return false;
    };
    let Ok(config) = ctx.credentials.talos(&cluster).await else {
        return false;
    };
    let Ok(machines) = ctx.reader.machines_of(&key.namespace, &key.cluster).await else {
        return false;
    };
    let observation = etcd::observe(
        &config,
        &machines,
        true,
        Some(&key.name),
        ctx.settings.etcd_deadline,
    )
    .await;
    let Some(members) = observation.members() else {
        return false;
    };
    let identity = machine.identity();
    let still_there = members.all.iter().any(|m| {
        m.listed.id == id
            || (m.listed.started() && Some(&m.listed.name) == identity.etcd_member_name.as_ref())
            || m.listed
                .peer_urls
                .iter()
                .any(|url| identity.etcd_peer_urls.contains(url))
    });
    if still_there {
        return false;
    }
    let boot = intent.boot_id.clone();
    let written = crate::status::write_machine(&ctx.client, machine, |status| {
        crate::removal::perform::record_left(status, boot, Some(id));
    })
    .await;
    match written {
        Ok(_) => {
            tracing::info!(
                machine = key.name,
                "settled a leave of another operation: its member is gone"
            );
            true
        }
        Err(error) => {
            tracing::warn!(machine = key.name, error = %error, "failed to record a settled leave");
            false
        }
    }
}
