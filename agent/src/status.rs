//! Writing status: one PUT on the resourceVersion that the change stands on.

use ichor_api::common::set_condition;
use ichor_api::conditions::{REMOVAL, RemovalStep};
use ichor_api::machine::{RemovalStepStatus, TalosMachineStatus};
use ichor_api::{ConditionStatus, TalosCluster, TalosClusterStatus, TalosMachine};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, PostParams};

fn params() -> PostParams {
    PostParams {
        field_manager: Some(ichor_api::names::FIELD_MANAGER.into()),
        ..PostParams::default()
    }
}

/// Writes `change` of `machine`'s status, if it changes anything, and answers the object
/// as stored. Fails with 409 where somebody wrote since `machine` was read.
pub async fn write_machine(
    client: &Client,
    machine: &TalosMachine,
    change: impl FnOnce(&mut TalosMachineStatus),
) -> Result<TalosMachine, kube::Error> {
    let mut changed = machine.clone();
    change(changed.status.get_or_insert_default());
    if changed.status == machine.status {
        return Ok(changed);
    }
    if let Some(status) = &mut changed.status {
        status.observed_generation = changed.metadata.generation;
    }
    let namespace = machine.metadata.namespace.clone().unwrap_or_default();
    let name = machine.metadata.name.clone().unwrap_or_default();
    let api: Api<TalosMachine> = Api::namespaced(client.clone(), &namespace);
    api.replace_status(&name, &params(), &changed).await
}

/// The same for a TalosCluster.
pub async fn write_cluster(
    client: &Client,
    cluster: &TalosCluster,
    change: impl FnOnce(&mut TalosClusterStatus),
) -> Result<TalosCluster, kube::Error> {
    let mut changed = cluster.clone();
    change(changed.status.get_or_insert_default());
    if changed.status == cluster.status {
        return Ok(changed);
    }
    if let Some(status) = &mut changed.status {
        status.observed_generation = changed.metadata.generation;
    }
    let namespace = cluster.metadata.namespace.clone().unwrap_or_default();
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let api: Api<TalosCluster> = Api::namespaced(client.clone(), &namespace);
    api.replace_status(&name, &params(), &changed).await
}

/// `Removal=True` for `step`, or what `message` says of it.
pub fn moving(
    status: &mut TalosMachineStatus,
    generation: Option<i64>,
    step: RemovalStep,
    message: &str,
) {
    set_condition(
        &mut status.conditions,
        REMOVAL,
        ConditionStatus::True,
        step.as_str(),
        message,
        generation,
        Timestamp::now(),
    );
}

/// `Removal=False`: it stands still.
pub fn standing(
    status: &mut TalosMachineStatus,
    generation: Option<i64>,
    reason: &str,
    message: &str,
) {
    set_condition(
        &mut status.conditions,
        REMOVAL,
        ConditionStatus::False,
        reason,
        message,
        generation,
        Timestamp::now(),
    );
}

/// Notes that `step` has begun; its first beginning stands.
pub fn begin(status: &mut TalosMachineStatus, step: RemovalStep) {
    let removal = status.removal.get_or_insert_default();
    removal.step = Some(step.as_str().to_owned());
    if !removal.steps.iter().any(|s| s.name == step.as_str()) {
        removal.steps.push(RemovalStepStatus {
            name: step.as_str().to_owned(),
            started_at: Time(Timestamp::now()),
            finished_at: None,
        });
    }
}

/// Notes that `step` is done.
pub fn finish(status: &mut TalosMachineStatus, step: RemovalStep) {
    begin(status, step);
    let removal = status.removal.get_or_insert_default();
    for found in &mut removal.steps {
        if found.name == step.as_str() && found.finished_at.is_none() {
            found.finished_at = Some(Time(Timestamp::now()));
        }
    }
}

/// Notes that `steps` have to be done again.
pub fn again(status: &mut TalosMachineStatus, steps: &[RemovalStep]) {
    if let Some(removal) = &mut status.removal {
        removal
            .steps
            .retain(|s| !steps.iter().any(|step| step.as_str() == s.name));
    }
}
