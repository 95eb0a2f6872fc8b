//! What a plan stands on, read in as few round trips as it takes.

use std::collections::BTreeMap;

use futures::future::join_all;
use ichor_api::{MachineRole, TalosCluster, TalosMachine, names};
use ichor_rules::belonging::{Belonging, belonging};
use ichor_rules::count::{Basis, count};
use ichor_rules::drain::DrainPolicy;
use ichor_rules::reader::ReadError;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{Eviction, PodDisruptionBudget};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use kube::api::{Api, PostParams};

use crate::error::{Error, Request};
use crate::plan::Plan;
use crate::plan::judge::{self, Facts, Lock};
use crate::plan::pods::{self, BudgetKey, Seen, Tried};
use crate::resources::{self, name_of, node_of};
use crate::session::{Session, encode};

/// Plans the removal of the machine of that name.
pub async fn plan(session: &Session, name: &str) -> Result<(TalosMachine, Plan), Error> {
    let machine = resources::machine(session, name).await?;
    let plan = plan_for(session, &machine).await?;
    Ok((machine, plan))
}

/// Plans the removal of `machine`.
pub async fn plan_for(session: &Session, machine: &TalosMachine) -> Result<Plan, Error> {
    let namespace = &session.namespace;
    let cluster_name = &machine.spec.cluster_ref.name;
    let reader = session.reader();
    let node = node_of(machine);
    let (cluster, machines, lock, seen) = tokio::join!(
        reader.get::<TalosCluster>(namespace, cluster_name),
        reader.machines_of(namespace, cluster_name),
        lock(session, cluster_name),
        node_pods(session, node.as_deref()),
    );
    let (cluster, machines) = (cluster?, machines?);
    let lock = lock?;
    let (mut seen, mut unseen) = seen?;
    let name = name_of(&machine.metadata);
    let counted = count(&machines, name, Basis::Admission);
    let mut facts = Facts {
        machine,
        cluster: cluster.as_ref(),
        machines: &machines,
        counted: &counted,
        lock: &lock,
        may_override: false,
        clock: session.clock(),
    };
    if matches!(lock, Lock::Reported) {
        unseen.push(format!(
            "the Lease {} (what the agent reports of the lock is shown)",
            names::lease_name(cluster_name)
        ));
    }
    let mut checks = judge::checks(&facts);
    let refused_as_last_worker = machine.spec.role == MachineRole::Worker
        && checks
            .iter()
            .any(|c| c.rule == "last-worker" && c.verdict == ichor_rules::Verdict::Refuse);
    if refused_as_last_worker && may_override(session, name).await {
        facts.may_override = true;
        checks = judge::checks(&facts);
    }
    let governed = belonging(machine, cluster.as_ref()) == Belonging::Governed;
    let touched = machine.spec.approved || machine.has_finalizer();
    let mut pods = Vec::new();
    if let Some(cluster) = cluster.as_ref().filter(|_| governed && touched) {
        let options = cluster.drain_options(machine);
        let elsewhere = cluster
            .spec
            .kubernetes
            .as_ref()
            .is_some_and(|k| k.credentials_secret_ref.is_some());
        if elsewhere {
            // The Node is another API server's: a Node of that name here is not it.
            seen = Seen::default();
            unseen = vec![
                "pods and budgets: spec.kubernetes names another cluster, whose Nodes these machines are".to_owned(),
            ];
        } else if let Ok(policy) = DrainPolicy::new(&options) {
            seen.tried = try_budgets(session, &seen, &policy).await;
        }
        let (check, judged) = pods::judge(&seen, &options);
        checks.push(check);
        pods = judged;
    } else {
        unseen.clear();
    }
    Ok(Plan::new(name, checks, pods, unseen))
}

async fn lock(session: &Session, cluster: &str) -> Result<Lock, Error> {
    let lease = session
        .reader()
        .get::<Lease>(&session.namespace, &names::lease_name(cluster))
        .await;
    match lease {
        Ok(lease) => Ok(Lock::Lease(lease.map(Box::new))),
        Err(error) if forbidden(&error) => Ok(Lock::Reported),
        Err(error) => Err(error.into()),
    }
}

fn forbidden(error: &ReadError) -> bool {
    matches!(error, ReadError::Api { source, .. }
        if matches!(source.as_ref(), kube::Error::Api(status) if status.code == 403))
}

/// The Node's pods and all budgets. What the caller may not see is said, not failed at.
async fn node_pods(session: &Session, node: Option<&str>) -> Result<(Seen, Vec<String>), Error> {
    let Some(node) = node else {
        return Ok((
            Seen::default(),
            vec!["pods: which Node is this machine's is not known yet".to_owned()],
        ));
    };
    let selector = format!(
        "&fieldSelector={}",
        encode(&format!("spec.nodeName={node}"))
    );
    let (pods, budgets) = tokio::join!(
        session.list::<Pod>(
            Request::many("list", "pods", None),
            "/api/v1/pods",
            &selector
        ),
        session.list::<PodDisruptionBudget>(
            Request::many("list", "poddisruptionbudgets.policy", None),
            "/apis/policy/v1/poddisruptionbudgets",
            "",
        ),
    );
    let mut unseen = Vec::new();
    let mut allowed = |found: Error, what: &str| {
        if found.is_forbidden() {
            unseen.push(format!("{what}: you may not list them in all namespaces"));
            Ok(())
        } else {
            Err(found)
        }
    };
    let pods = match pods {
        Ok(pods) => Some(pods),
        Err(error) => {
            allowed(error, "pods")?;
            None
        }
    };
    let budgets = match budgets {
        Ok(budgets) => Some(budgets),
        Err(error) => {
            allowed(error, "budgets")?;
            None
        }
    };
    let seen = Seen {
        pods,
        budgets,
        tried: BTreeMap::new(),
    };
    Ok((seen, unseen))
}

/// One dry-run eviction for each budget that seems to refuse. A caller who may not
/// evict, or an API server that does not answer, leaves the budget's status to speak.
async fn try_budgets(
    session: &Session,
    seen: &Seen,
    policy: &DrainPolicy,
) -> BTreeMap<BudgetKey, Tried> {
    let (Some(pods), Some(budgets)) = (&seen.pods, &seen.budgets) else {
        return BTreeMap::new();
    };
    let tries = pods::worth_trying(pods, budgets, policy)
        .into_iter()
        .map(|(budget, pod)| async move { Some((budget, try_eviction(session, pod).await?)) });
    join_all(tries).await.into_iter().flatten().collect()
}

async fn try_eviction(session: &Session, pod: &Pod) -> Option<Tried> {
    let namespace = pod.metadata.namespace.as_deref()?;
    let name = pod.metadata.name.as_deref()?;
    let pods: Api<Pod> = Api::namespaced(session.client(), namespace);
    let eviction = Eviction {
        metadata: kube::core::ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..Default::default()
        },
        delete_options: Some(DeleteOptions {
            dry_run: Some(vec!["All".to_owned()]),
            ..DeleteOptions::default()
        }),
    };
    let params = PostParams {
        dry_run: true,
        field_manager: None,
    };
    let answer = session
        .bounded(
            Request::one("create", "pods/eviction", namespace, name),
            pods.create_subresource::<_, serde_json::Value>("eviction", name, &params, &eviction),
        )
        .await;
    match answer {
        Ok(_) => Some(Tried::Allowed),
        Err(Error::Api { source, .. }) => match *source {
            kube::Error::Api(status) if status.code == 429 => {
                let cause = status
                    .details
                    .as_ref()
                    .and_then(|d| d.causes.iter().find(|c| c.reason == "DisruptionBudget"))
                    .map(|c| c.message.clone());
                // Without that cause it is the server that is busy, not the budget.
                cause.map(Tried::Refused)
            }
            _ => None,
        },
        Err(_) => None,
    }
}

/// Whether the caller holds `override` on the machine. "Cannot tell" is no.
async fn may_override(session: &Session, name: &str) -> bool {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(names::GROUP.to_owned()),
                resource: Some("talosmachines".to_owned()),
                verb: Some(names::OVERRIDE_VERB.to_owned()),
                name: Some(name.to_owned()),
                namespace: Some(session.namespace.clone()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(session.client());
    session
        .bounded(
            Request::many(
                "create",
                "selfsubjectaccessreviews.authorization.k8s.io",
                None,
            ),
            reviews.create(&PostParams::default(), &review),
        )
        .await
        .is_ok_and(|review| review.status.is_some_and(|s| s.allowed))
}
