//! Sets the stage anew, whatever the test before left, even one that failed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ichor_api::common::find_condition;
use ichor_api::conditions::{HEALTHY, JOINED, READY, TRANSITIONING};
use ichor_api::{ConditionStatus, TalosCluster, TalosMachine, names};
use ichor_talos::Stage as At;
use ichor_tests::bed::objects::{self, CLUSTER, Machine, NAMESPACE, TALOSCONFIG};
use ichor_tests::bed::{AGENT_NODE, Bed};
use ichor_tests::sim::{Node as SimNode, Role};
use ichor_tests::wait::until;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::{SOON, control_planes, hands, pods, voters_of};

/// Restores the stage: the three that vote, and the spare.
pub(super) async fn restore(bed: &'static Bed, client: &Client) -> ([String; 3], String) {
    calm(bed).await;
    webhook_back(client).await;
    pods::clear(bed, client).await;
    credentials_and_cluster(bed, client).await;
    boxes(bed).await;
    let voters = voters_of(bed).await;
    machines(bed, client, &voters).await;
    nodes(bed, client, &voters).await;
    healthy(client).await;
    let spare = control_planes(bed)
        .into_iter()
        .map(|n| n.name.clone())
        .find(|name| !voters.contains(name))
        .unwrap();
    (voters.try_into().unwrap(), spare)
}

/// Takes back everything that a test did to lines, power and agents.
async fn calm(bed: &'static Bed) {
    bed.proxy().faults().clear();
    for node in bed.sim().nodes() {
        node.slow(Duration::ZERO);
        node.heal();
        node.etcd_thaw();
        node.etcd_start();
        node.lie_member_list(None);
        node.hold_learner(false);
        node.set_platform_config(false);
        node.power_on().await;
    }
    // Whose home is taken waits until that one has moved out.
    for _ in 0..2 {
        for node in bed.sim().nodes() {
            if let Some(home) = home(bed, &node.name)
                && home != node.address().to_string()
            {
                let _ = node.change_address(home.parse().unwrap()).await;
            }
        }
    }
    let agents = bed.agents().unwrap();
    agents.freeze(None, false).await.unwrap();
    agents.start_again(None).await.unwrap();
    agents.wait_ready(1, SOON).await.unwrap();
}

/// Puts the webhook's Service back where it serves.
async fn webhook_back(client: &Client) {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let mut configuration = api.get("ichor").await.unwrap();
    let mut moved = false;
    for webhook in configuration.webhooks.iter_mut().flatten() {
        let service = webhook.client_config.service.as_mut().unwrap();
        moved |= service.port != Some(443);
        service.port = Some(443);
    }
    if moved {
        api.replace("ichor", &PostParams::default(), &configuration)
            .await
            .unwrap();
    }
}

/// The address that the box had when the bed was put up.
fn home(bed: &Bed, name: &str) -> Option<String> {
    bed.nodes()
        .iter()
        .chain(bed.spare())
        .find(|n| n.name == name)
        .map(|n| n.address.clone())
}

async fn credentials_and_cluster(bed: &Bed, client: &Client) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let secret = json!({"stringData": {"talosconfig": bed.sim().talosconfig().unwrap()}});
    match secrets
        .patch(TALOSCONFIG, &PatchParams::default(), &Patch::Merge(&secret))
        .await
    {
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            objects::create_talosconfig(client, &bed.sim().talosconfig().unwrap())
                .await
                .unwrap();
        }
        other => drop(other.unwrap()),
    }
    let clusters: Api<TalosCluster> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = json!({
        "metadata": {"annotations": null},
        "spec": {"controlPlane": {"count": 3}, "drain": null, "schedulable": "auto",
                 "deletionPolicy": "Orphan", "kubernetes": null,
                 "talos": {"credentialsSecretRef": {"name": TALOSCONFIG}}},
    });
    let going = clusters.get_opt(CLUSTER).await.unwrap();
    if going.is_some_and(|c| c.is_being_deleted()) {
        let off = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let _ = clusters.patch(CLUSTER, &PatchParams::default(), &off).await;
        until(
            SOON,
            "the TalosCluster to be gone",
            async || match clusters.get_opt(CLUSTER).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await
        .unwrap();
    }
    if clusters.get_opt(CLUSTER).await.unwrap().is_some() {
        clusters
            .patch(CLUSTER, &PatchParams::default(), &Patch::Merge(&spec))
            .await
            .unwrap();
    } else {
        objects::create_cluster(client, 3, &[]).await.unwrap();
    }
}

/// Brings the boxes to three that vote and one in maintenance, workers running.
async fn boxes(bed: &'static Bed) {
    let by_hand = RefCell::new(BTreeSet::new());
    until(
        Duration::from_secs(240),
        "three voters and a spare",
        async || {
            let all = control_planes(bed);
            if let Some(busy) = bed.sim().nodes().iter().find(|n| !settled(n)) {
                return Err(format!("{} is at stage {}", busy.name, busy.now().stage));
            }
            let members = bed.etcd_members().await.map_err(|e| e.to_string())?;
            for node in &all {
                if node.now().stage == At::Maintenance {
                    continue;
                }
                let listed = members
                    .iter()
                    .any(|m| m.name == node.name || m.client_urls.contains(&node.client_url()));
                if !listed && by_hand.borrow_mut().insert(node.name.clone()) {
                    hands::reset(bed, &node.name).await;
                    return Err(format!("{} is reset by hand", node.name));
                }
            }
            if let Some(odd) = members.iter().find(|m| !m.started || m.learner) {
                return Err(format!("{odd:?} does not vote yet"));
            }
            match members.len() {
                3 => {}
                0..3 => {
                    let spare = all.iter().find(|n| n.now().stage == At::Maintenance);
                    match spare {
                        Some(spare) => spare.join().await.map_err(|e| e.to_string())?,
                        None => return Err("nobody is left to join".to_owned()),
                    }
                    return Err("joined one".to_owned());
                }
                _ => {
                    let last = members
                        .iter()
                        .map(|m| m.name.clone())
                        .max()
                        .unwrap_or_default();
                    hands::leave(bed, &last).await.map_err(|e| e.to_string())?;
                    hands::reset(bed, &last).await;
                    return Err(format!("{last} is taken out by hand"));
                }
            }
            for node in bed.sim().nodes() {
                if node.role == Role::Worker && node.now().stage == At::Maintenance {
                    node.join().await.map_err(|e| e.to_string())?;
                }
            }
            Ok(())
        },
    )
    .await
    .unwrap();
}

fn settled(node: &Arc<SimNode>) -> bool {
    matches!(node.now().stage, At::Maintenance | At::Running)
        || (node.now().powered && node.now().configured && node.now().stage == At::Booting)
}

/// One TalosMachine for each box: approved where it runs, unapproved where it waits.
async fn machines(bed: &'static Bed, client: &Client, voters: &[String]) {
    let api: Api<TalosMachine> = Api::namespaced(client.clone(), NAMESPACE);
    for machine in api.list(&ListParams::default()).await.unwrap() {
        let name = machine.name_any();
        let node = bed.sim().nodes().iter().find(|n| n.name == name);
        let runs = node.is_some_and(|n| n.role == Role::Worker || voters.contains(&name));
        let fits = node.is_some_and(|n| machine.spec.address == n.address().to_string())
            && machine.spec.cluster_ref.name == CLUSTER
            && machine.spec.approved == runs
            && !machine.is_being_deleted()
            && !machine
                .annotations()
                .keys()
                .any(|k| k.starts_with(names::GROUP));
        if fits {
            continue;
        }
        if let Some(node) = node
            && runs == machine.spec.approved
            && !machine.is_being_deleted()
        {
            let patch = json!({
                "metadata": {"annotations": null},
                "spec": {"address": node.address().to_string()},
            });
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .unwrap();
            continue;
        }
        strip(&api, &machine).await;
    }
    for node in bed.sim().nodes() {
        let approved = node.role == Role::Worker || voters.contains(&node.name);
        if api.get_opt(&node.name).await.unwrap().is_none() {
            let object = Machine {
                name: node.name.clone(),
                role: super::objects::role(node.role),
                address: node.address().to_string(),
                approved,
            }
            .object();
            api.create(
                &PostParams::default(),
                &serde_json::from_value(object).unwrap(),
            )
            .await
            .unwrap();
        }
    }
}

/// Deletes an object without work on its box: cancelled as soon as it is deleted, or by
/// force, as a holder of `override` can.
async fn strip(api: &Api<TalosMachine>, machine: &TalosMachine) {
    let name = machine.name_any();
    if !machine.is_being_deleted() {
        let allow = json!({"metadata": {"annotations": {
            names::ALLOW_DELETE: "true",
            names::CANCEL_REMOVAL: "true",
        }}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&allow))
            .await
            .unwrap();
        let deleted = api.delete(&name, &DeleteParams::default()).await.is_ok();
        let gone = until(
            Duration::from_secs(5),
            "it to be let go",
            async || match api.get_opt(&name).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        );
        if deleted && gone.await.is_ok() {
            return;
        }
    }
    let off = json!({"metadata": {"finalizers": null}});
    match api
        .patch(&name, &PatchParams::default(), &Patch::Merge(&off))
        .await
    {
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        other => drop(other.unwrap()),
    }
    until(
        SOON,
        &format!("TalosMachine {name} to be gone"),
        async || match api.get_opt(&name).await {
            Ok(None) => Ok(()),
            other => Err(format!("{:?}", other.map(|m| m.map(|m| m.metadata)))),
        },
    )
    .await
    .unwrap();
}

/// Nodes of those that run and of nobody else, uncordoned and Ready.
async fn nodes(bed: &'static Bed, client: &Client, voters: &[String]) {
    let api: Api<Node> = Api::all(client.clone());
    let runs = |name: &str| {
        name == AGENT_NODE || name.starts_with("worker-") || voters.iter().any(|v| v == name)
    };
    for node in api.list(&ListParams::default()).await.unwrap() {
        let name = node.name_any();
        if !runs(&name) {
            let _ = api.delete(&name, &DeleteParams::default()).await;
        } else if node.spec.is_some_and(|s| s.unschedulable == Some(true)) {
            let patch = json!({
                "metadata": {"annotations": {names::CORDONED_BY: null}},
                "spec": {"unschedulable": null},
            });
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .unwrap();
        }
    }
    for node in bed.sim().nodes().iter().filter(|n| runs(&n.name)) {
        bed.kubelets()
            .wait_ready(&node.name, "True", SOON)
            .await
            .unwrap();
    }
}

/// The agent has seen that all is well.
async fn healthy(client: &Client) {
    let machines: Api<TalosMachine> = Api::namespaced(client.clone(), NAMESPACE);
    let clusters: Api<TalosCluster> = Api::namespaced(client.clone(), NAMESPACE);
    until(SOON, "the agent to see that all is well", async || {
        let list = machines
            .list(&ListParams::default())
            .await
            .map_err(|e| e.to_string())?;
        for machine in list.iter().filter(|m| m.spec.approved) {
            for type_ in [JOINED, READY] {
                if machine.condition(type_).map(|c| c.status) != Some(ConditionStatus::True) {
                    return Err(format!(
                        "{}: {}",
                        machine.name_any(),
                        super::waits::said(machine)
                    ));
                }
            }
        }
        let cluster = clusters.get(CLUSTER).await.map_err(|e| e.to_string())?;
        let status = cluster.status.unwrap_or_default();
        let is = |type_, wanted| {
            find_condition(&status.conditions, type_).is_some_and(|c| c.status == wanted)
        };
        let left = status
            .not_wiped
            .first()
            .map(|n| n.hardware_uuid.clone())
            .or_else(|| {
                status
                    .abandoned
                    .first()
                    .and_then(|a| a.hardware_uuid.clone())
            });
        if let Some(uuid) = left {
            let forget = json!({"metadata": {"annotations": {names::FORGET: uuid}}});
            clusters
                .patch(CLUSTER, &PatchParams::default(), &Patch::Merge(&forget))
                .await
                .map_err(|e| e.to_string())?;
            return Err("something that was left behind is forgotten first".to_owned());
        }
        let calm = is(HEALTHY, ConditionStatus::True)
            && is(TRANSITIONING, ConditionStatus::False)
            && status.lock.is_none();
        if calm {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await
    .unwrap();
}
