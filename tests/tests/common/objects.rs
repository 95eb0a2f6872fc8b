//! Writing Ichor's resources, as a person does.

use ichor_api::conditions::JOINED;
use ichor_api::{ConditionStatus, TalosCluster, TalosMachine, names};
use ichor_tests::bed::objects::{CLUSTER, Machine};
use ichor_tests::sim::Role;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::Stage;

impl Stage {
    /// Merges `patch` into a TalosMachine.
    pub async fn patch(&self, name: &str, patch: Value) -> TalosMachine {
        self.try_patch(name, patch).await.unwrap()
    }

    pub async fn try_patch(&self, name: &str, patch: Value) -> kube::Result<TalosMachine> {
        self.machines()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
    }

    /// Merges `patch` into the TalosCluster.
    pub async fn patch_cluster(&self, patch: Value) -> TalosCluster {
        self.clusters()
            .patch(CLUSTER, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap()
    }

    /// Sets an annotation of ours on a TalosMachine, or takes it off.
    pub async fn annotate(&self, name: &str, key: &str, value: Option<&str>) {
        self.patch(name, json!({"metadata": {"annotations": {key: value}}}))
            .await;
    }

    pub async fn allow_delete(&self, name: &str) {
        self.annotate(name, names::ALLOW_DELETE, Some("true")).await;
    }

    /// `kubectl delete tm NAME --wait=false`.
    pub async fn try_delete(&self, name: &str) -> kube::Result<()> {
        self.machines()
            .delete(name, &DeleteParams::default())
            .await
            .map(drop)
    }

    /// Deletes a TalosMachine with the annotation.
    pub async fn delete(&self, name: &str) {
        self.allow_delete(name).await;
        self.try_delete(name).await.unwrap();
    }

    /// What admission answers to the deletion: 403 and its text.
    pub async fn refused_delete(&self, name: &str) -> String {
        denied(self.try_delete(name).await)
    }

    /// Approves a machine that runs, and waits until the agent has adopted it.
    pub async fn approve(&self, name: &str) {
        self.patch(name, json!({"spec": {"approved": true}})).await;
        self.until_machine(name, "be joined", |machine| {
            let joined = machine.condition(JOINED);
            match joined {
                Some(c) if c.status == ConditionStatus::True => Ok(()),
                _ => Err(super::waits::said(machine)),
            }
        })
        .await;
    }

    /// The TalosMachine of a box, as a person would write it.
    pub fn object(&self, name: &str, approved: bool) -> Value {
        let node = self.box_of(name);
        Machine {
            name: name.to_owned(),
            role: role(node.role),
            address: node.address().to_string(),
            approved,
        }
        .object()
    }

    /// Creates an object of Ichor's.
    pub async fn create(&self, object: Value) -> TalosMachine {
        self.try_create(object).await.unwrap()
    }

    pub async fn try_create(&self, object: Value) -> kube::Result<TalosMachine> {
        let machine: TalosMachine = serde_json::from_value(object).unwrap();
        self.machines()
            .create(&PostParams::default(), &machine)
            .await
    }
}

pub(super) fn role(role: Role) -> &'static str {
    match role {
        Role::ControlPlane => "controlplane",
        Role::Worker => "worker",
    }
}

/// What admission answers where it refuses.
pub fn denied<T: std::fmt::Debug>(answer: kube::Result<T>) -> String {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => status.message,
        other => panic!("not refused: {other:?}"),
    }
}
