//! One pass of a drain.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use ichor_lock::DisruptiveLock;
use ichor_rules::drain::{
    Disposition, DrainContext, DrainPolicy, blocked_by, budgets_of, classify, is_agent_pod,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::{Client, ResourceExt as _};

use super::calls::{bounded, budgets, is_not_found, pods_on};
use super::evict::Answer;
use super::report::{Left, sentence, status};
use super::wave::{Sent, send};
use super::{AgentPod, DrainError, DrainLimits, DrainOutcome, DrainPass, DrainRequest, cordon};

/// Makes one pass: reads the Node, cordons it if it is schedulable, lists its pods, evicts
/// those that may go, and says what is left. It waits for no pod.
///
/// Cost: one Node read, one pod list, one budget list if something is to be evicted, the
/// evictions, and another look at the pods if one of them went (at the budgets, if one of
/// them refused with numbers that have changed).
///
/// Errors: options that cannot be used (nothing was done then), calls that the API server
/// refused or did not answer, and a lock that is lost: no eviction is begun after that.
/// What became of a single eviction is no error.
pub async fn pass(
    lock: &DisruptiveLock,
    client: &Client,
    request: DrainRequest<'_>,
) -> Result<DrainPass, DrainError> {
    run(&|| !lock.is_lost(), client, &request).await
}

/// Whether the lock is still ours; asked before everything that changes something.
pub(super) type Held<'a> = &'a (dyn Fn() -> bool + Sync);

/// What is on the Node, sorted by what is to become of it.
struct Scene<'p> {
    /// Pods that must go, in order; the agent's own, unless they terminate already, apart.
    must_go: Vec<(&'p Pod, Disposition)>,
    agents: Vec<&'p Pod>,
}

impl<'p> Scene<'p> {
    fn of(pods: &'p [Pod], policy: &DrainPolicy, request: &DrainRequest<'_>) -> Self {
        let context = DrainContext {
            node_dead: request.dead,
        };
        let mut scene = Self {
            must_go: Vec::new(),
            agents: Vec::new(),
        };
        for pod in pods {
            let disposition = classify(pod, policy, context);
            if !disposition.must_go() {
                continue;
            }
            let own = is_agent_pod(pod, request.agent_namespace);
            if own && disposition != Disposition::Terminating {
                scene.agents.push(pod);
            } else {
                scene.must_go.push((pod, disposition));
            }
        }
        scene
    }

    fn len(&self) -> usize {
        self.must_go.len() + self.agents.len()
    }

    fn refuses(&self) -> bool {
        self.must_go
            .iter()
            .any(|(_, d)| matches!(d, Disposition::Refuse(_)))
    }

    /// Pods to evict: by namespace and name, those that failed in the last pass after the
    /// others, so that one that hangs does not keep the rest waiting.
    fn to_evict(&self, request: &DrainRequest<'_>) -> Vec<&'p Pod> {
        let failed: HashSet<(&str, &str)> = request
            .previous
            .iter()
            .flat_map(|s| &s.pods)
            .filter(|p| matches!(p.reason.as_str(), "Error" | "Throttled"))
            .map(|p| (p.namespace.as_str(), p.name.as_str()))
            .collect();
        let mut pods: Vec<_> = self
            .must_go
            .iter()
            .filter(|(_, d)| *d == Disposition::Evict)
            .map(|(pod, _)| *pod)
            .collect();
        pods.sort_by_key(|pod| {
            let meta = &pod.metadata;
            failed.contains(&(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            ))
        });
        pods
    }

    /// Those that are left, and why.
    fn left(
        &self,
        sent: &HashMap<String, Sent>,
        budgets: &[PodDisruptionBudget],
        request: &DrainRequest<'_>,
    ) -> Vec<Left<'p>> {
        let refuses = self.refuses();
        let mut left: Vec<_> = self
            .must_go
            .iter()
            .map(|(pod, disposition)| match disposition {
                Disposition::Refuse(reason) => Left::refused(pod, *reason),
                Disposition::Terminating => Left::terminating(pod, request.now),
                _ if refuses => Left::held_back(pod),
                _ => Left::unevicted(
                    pod,
                    pod.uid().and_then(|uid| sent.get(&uid)),
                    budgets,
                    request.dead,
                ),
            })
            .collect();
        left.extend(self.agents.iter().map(|pod| Left::agent(pod)));
        left
    }
}

pub(super) async fn run(
    held: Held<'_>,
    client: &Client,
    request: &DrainRequest<'_>,
) -> Result<DrainPass, DrainError> {
    let policy = DrainPolicy::new(request.options)?;
    let limits = &request.limits;
    let (node, operation) = (request.node, request.operation_uid);
    let cordoned = cordon::ensure(held, client, node, operation, limits.read).await?;
    let Some(node_uid) = cordoned else {
        return Ok(DrainPass {
            status: request.previous.cloned().unwrap_or_default(),
            outcome: DrainOutcome::NodeMissing,
            node_uid: None,
            again: limits.retry,
            leaving: Vec::new(),
            resource_version: None,
        });
    };
    let (mut pods, mut resource_version) = pods_on(client, request.node, limits.read).await?;
    let first = Scene::of(&pods, &policy, request);
    let before = first.len();

    let mut sent = HashMap::new();
    let mut known = Vec::new();
    let mut went = false;
    let to_evict = if first.refuses() {
        Vec::new()
    } else {
        first.to_evict(request)
    };
    if !to_evict.is_empty() {
        let namespaces: BTreeSet<_> = to_evict
            .iter()
            .filter_map(|p| p.metadata.namespace.as_deref())
            .collect();
        let only = namespaces
            .first()
            .copied()
            .filter(|_| namespaces.len() == 1);
        known = budgets(client, only, limits.read).await?;
        let answers = send(
            held,
            client,
            &to_evict,
            &known,
            policy.grace_period_seconds,
            limits,
        )
        .await;
        if !held() {
            return Err(DrainError::LockLost);
        }
        went = answers
            .iter()
            .any(|a| matches!(a, Sent::Answered(Answer::Admitted | Answer::Gone)));
        if has_stale_numbers(&to_evict, &answers, &known) {
            known = budgets(client, only, limits.read).await?;
        }
        sent = to_evict
            .iter()
            .filter_map(|p| p.uid())
            .zip(answers)
            .collect();
    }
    if went {
        (pods, resource_version) = pods_on(client, request.node, limits.read).await?;
    }

    let scene = Scene::of(&pods, &policy, request);
    let left = scene.left(&sent, &known, request);
    let status = status(request, before, &left);
    let message = || sentence(request.node, status.total, &left);
    let mut outcome = if left.is_empty() {
        DrainOutcome::Drained
    } else if scene.must_go.is_empty() {
        DrainOutcome::OnlyAgentPods {
            pods: scene.agents.iter().map(|pod| AgentPod::of(pod)).collect(),
        }
    } else if scene.refuses() {
        DrainOutcome::Refused { message: message() }
    } else if went || left.iter().any(|l| l.moves && l.reason != "Agent") {
        DrainOutcome::Progressing
    } else {
        DrainOutcome::Blocked { message: message() }
    };
    let unfinished = matches!(
        outcome,
        DrainOutcome::Progressing | DrainOutcome::Blocked { .. } | DrainOutcome::Refused { .. }
    );
    if let Some(timeout) = policy
        .timeout
        .filter(|t| unfinished && request.elapsed >= *t)
    {
        outcome = DrainOutcome::TimedOut {
            message: format!(
                "the drain stands still, because spec.drain.timeout ({} s) is over; nothing was forced and the Node stays cordoned. {}",
                timeout.as_secs(),
                message()
            ),
        };
    }
    Ok(DrainPass {
        again: again(&outcome, &left, went, limits),
        leaving: scene
            .must_go
            .iter()
            .filter(|(_, d)| *d == Disposition::Terminating)
            .filter_map(|(pod, _)| pod.uid())
            .collect(),
        resource_version,
        node_uid: Some(node_uid),
        status,
        outcome,
    })
}

/// While pods only leave, a pass costs two reads; with others that are refused meanwhile it
/// costs their evictions too, and their budgets mostly wait for pods to come up elsewhere.
fn again(outcome: &DrainOutcome, left: &[Left<'_>], went: bool, limits: &DrainLimits) -> Duration {
    match outcome {
        DrainOutcome::Progressing if went || left.iter().all(|l| l.moves) => limits.poll,
        DrainOutcome::Progressing => (limits.poll * 5).min(limits.retry),
        _ => limits.retry,
    }
}

/// Whether a budget refused whose listed numbers would have allowed it: others were let go
/// first, or it is new. A report with those numbers would contradict itself.
fn has_stale_numbers(pods: &[&Pod], sent: &[Sent], known: &[PodDisruptionBudget]) -> bool {
    pods.iter().zip(sent).any(|(pod, sent)| {
        let refused = matches!(
            sent,
            Sent::SameBudget(_) | Sent::Answered(Answer::Budget { .. } | Answer::SeveralBudgets)
        );
        let covering = budgets_of(pod, known);
        let listed = covering.first().map(|b| blocked_by(b).allowed);
        refused && listed.is_none_or(|allowed| allowed > 0)
    })
}

impl AgentPod {
    fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        }
    }
}

/// Deletes one of the agent's own pods: the one pod that is not evicted, since its budget
/// would keep the last replica (spec section 5, step 3). Only this very pod (UID); one
/// that is gone already is fine.
pub async fn delete_agent_pod(
    lock: &DisruptiveLock,
    client: &Client,
    pod: &AgentPod,
    limits: &DrainLimits,
) -> Result<(), DrainError> {
    if lock.is_lost() {
        return Err(DrainError::LockLost);
    }
    delete(client, pod, limits).await
}

pub(super) async fn delete(
    client: &Client,
    pod: &AgentPod,
    limits: &DrainLimits,
) -> Result<(), DrainError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let what = || format!("delete the agent's pod {}/{}", pod.namespace, pod.name);
    match bounded(what, limits.read, pods.delete(&pod.name, &params)).await {
        Ok(_) => Ok(()),
        Err(DrainError::Api { source, .. })
            if is_not_found(&source)
                || matches!(&*source, kube::Error::Api(status) if status.is_conflict()) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}
