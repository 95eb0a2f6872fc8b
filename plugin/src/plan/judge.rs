//! The rules over what was read. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ichor_api::cluster::{EtcdStatus, LockStatus};
use ichor_api::common::find_condition;
use ichor_api::conditions::{HEALTHY, REMOVAL as REMOVAL_CONDITION, StandstillReason};
use ichor_api::{ConditionStatus, TalosCluster, TalosMachine, names};
use ichor_rules::belonging::{Belonging, belonging};
use ichor_rules::count::{leave_confirmed, recorded_as_no_voter};
use ichor_rules::deletion::{self, TargetHealth};
use ichor_rules::etcd::{self, Health, ListedMember, LiveEtcd, Member, Members, Target};
use ichor_rules::verdict::Rule;
use ichor_rules::{ApprovedControlPlanes, Verdict, count, transition, workers};
use k8s_openapi::api::coordination::v1::Lease;

use crate::age::{Clock, human, seconds_between};
use crate::plan::{CLUSTER, PlanCheck, REMOVAL};
use crate::resources::name_of;
use crate::view::status::{ETCD_STALE_AFTER, lock_line};

/// After how long, in seconds, an unhealthy voter is one that may go first, and a lost
/// leader a lost quorum (spec section 3).
const FIVE_MINUTES: i64 = 300;

/// What the cluster lock looks like from here.
#[derive(Clone, Debug)]
pub enum Lock {
    /// The Lease as the API server has it; `None`: there is none yet, so it is free.
    Lease(Option<Box<Lease>>),
    /// The Lease may not be read: what the agent last reported.
    Reported,
}

/// Everything that the rules are asked about.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The machine to remove.
    pub machine: &'a TalosMachine,
    /// The TalosCluster that it names.
    pub cluster: Option<&'a TalosCluster>,
    /// Every machine of that cluster.
    pub machines: &'a [TalosMachine],
    /// Those of them that vote.
    pub counted: &'a ApprovedControlPlanes,
    /// The cluster lock.
    pub lock: &'a Lock,
    /// Whether the caller holds the verb `override` on the machine; asked only where it
    /// could matter.
    pub may_override: bool,
    /// Now.
    pub clock: Clock,
}

/// The checks that need no look at the Node, in the order of a removal.
pub fn checks(facts: &Facts<'_>) -> Vec<PlanCheck> {
    let mut checks = match belonging(facts.machine, facts.cluster) {
        Belonging::Governed => governed(facts),
        Belonging::TearingDown => vec![PlanCheck::own(
            CLUSTER,
            Verdict::Proceed,
            format!(
                "TalosCluster {} is being deleted: its machines go with it, and the rules of a removal do not apply",
                facts.machine.spec.cluster_ref.name
            ),
        )],
        Belonging::Missing => vec![
            allow_delete(facts),
            PlanCheck::own(
                CLUSTER,
                Verdict::Wait,
                format!(
                    "there is no TalosCluster {}: nothing would be done to the node ({}). Create it again, or let the object alone go with kubectl ichor remove --cancel once it is being deleted",
                    facts.machine.spec.cluster_ref.name,
                    StandstillReason::ClusterMissing
                ),
            ),
        ],
        Belonging::Replaced { uid } => vec![
            allow_delete(facts),
            PlanCheck::own(
                CLUSTER,
                Verdict::Wait,
                format!(
                    "TalosCluster {} is another one (UID {uid}) than this machine recorded: nothing would be done to the node ({}). Where it is the same cluster, a holder of override sets annotation {} to that UID",
                    facts.machine.spec.cluster_ref.name,
                    StandstillReason::ClusterReplaced,
                    names::ADOPT_CLUSTER
                ),
            ),
        ],
    };
    checks.extend(under_way(facts));
    checks
}

fn allow_delete(facts: &Facts<'_>) -> PlanCheck {
    let name = name_of(&facts.machine.metadata);
    if facts.machine.consents(names::ALLOW_DELETE) {
        return deletion::allow_delete("TalosMachine", name, true).into();
    }
    // Not a refusal: `remove` sets it. Plain `kubectl delete` would be refused.
    PlanCheck::own(
        Rule::AllowDelete.as_str(),
        Verdict::Proceed,
        format!(
            "annotation {} is not set: kubectl ichor remove {name} sets it, kubectl delete would be refused without it",
            names::ALLOW_DELETE
        ),
    )
}

fn governed(facts: &Facts<'_>) -> Vec<PlanCheck> {
    let machine = facts.machine;
    let name = name_of(&machine.metadata);
    let Some(cluster) = facts.cluster else {
        return Vec::new();
    };
    if !machine.spec.approved && !machine.has_finalizer() {
        return vec![
            allow_delete(facts),
            PlanCheck::own(
                REMOVAL,
                Verdict::Proceed,
                format!(
                    "{name} was never approved: only the object goes, nothing is done to the box"
                ),
            ),
        ];
    }
    let mut checks = Vec::new();
    if machine.is_control_plane() {
        checks.push(deletion::adopted(name, machine.spec.approved, machine.has_finalizer()).into());
    }
    checks.push(allow_delete(facts));
    let seen = Seen::of(cluster, facts);
    if machine.is_control_plane() {
        let declared = cluster.spec.control_plane.count;
        let target = seen.target(machine);
        let health = if target.unhealthy_long {
            TargetHealth::UnhealthyLong
        } else {
            TargetHealth::Healthy
        };
        checks.push(deletion::quorum(facts.counted, name).into());
        checks.push(deletion::declared_count(facts.counted, name, declared, health).into());
        checks.push(live_etcd(&seen, target, declared, facts));
        if let LiveEtcd::Listed(members) = &seen.etcd
            && seen.too_old.is_none()
        {
            checks.push(etcd::member_owners(members, target, &duplicates(facts.machines)).into());
        }
    } else {
        checks.push(last_worker(facts, cluster));
    }
    checks.push(transitioning(facts, &seen));
    checks.push(lock(facts, cluster));
    checks
}

fn last_worker(facts: &Facts<'_>, cluster: &TalosCluster) -> PlanCheck {
    let machine = facts.machine;
    let waived_by = machine
        .status
        .as_ref()
        .and_then(|s| s.removal.as_ref())
        .and_then(|r| r.last_worker_waived_by.as_ref());
    let waived = waived_by.is_some() || machine.consents(names::ALLOW_LAST_WORKER);
    let check = workers::last_worker(
        facts.machines,
        machine,
        cluster.spec.schedulable,
        waived || facts.may_override,
    );
    let mut check = PlanCheck::from(check);
    if facts.may_override && !waived {
        check.message = format!(
            "{} is the last approved worker; you hold the verb override, which waives this rule when you delete it",
            name_of(&machine.metadata)
        );
    }
    check
}

/// etcd as the agent reported it, in the rules' own terms.
struct Seen {
    etcd: LiveEtcd,
    /// Why it cannot be relied on.
    too_old: Option<String>,
    /// How old it is, as a person reads it.
    age: String,
    unhealthy_long: BTreeSet<u64>,
}

impl Seen {
    fn of(cluster: &TalosCluster, facts: &Facts<'_>) -> Self {
        let Some(status) = cluster.status.as_ref().and_then(|s| s.etcd.as_ref()) else {
            return Self {
                etcd: LiveEtcd::NoList {
                    endpoints: Vec::new(),
                    no_leader_for_long: false,
                },
                too_old: Some(
                    "the agent has not reported etcd yet. See whether it runs: kubectl -n ichor-system get pods"
                        .to_owned(),
                ),
                age: String::new(),
                unhealthy_long: BTreeSet::new(),
            };
        };
        let seconds = status
            .observed_at
            .as_ref()
            .map(|at| seconds_between(at, facts.clock.now));
        let too_old = match seconds {
            None => Some("the agent did not say as of when it saw etcd".to_owned()),
            Some(age) if age > ETCD_STALE_AFTER => Some(format!(
                "what is known of etcd is {} old, more than 2 minutes. See whether the agent runs: kubectl -n ichor-system get pods",
                human(age)
            )),
            Some(_) => None,
        };
        let unhealthy_long = status
            .members
            .iter()
            .filter(|m| !m.healthy)
            .filter(|m| {
                m.unhealthy_since
                    .as_ref()
                    .is_some_and(|since| seconds_between(since, facts.clock.now) >= FIVE_MINUTES)
            })
            .filter_map(|m| names::parse_etcd_id(&m.id))
            .collect();
        Self {
            etcd: live(status, cluster, facts),
            too_old,
            age: seconds.map_or_else(String::new, |s| format!(" (as of {} ago)", human(s))),
            unhealthy_long,
        }
    }

    fn target<'m>(&self, machine: &'m TalosMachine) -> Target<'m> {
        let member_id = machine
            .annotation(names::ETCD_MEMBER_ID)
            .and_then(names::parse_etcd_id)
            .or_else(|| {
                machine
                    .identity()
                    .etcd_member_id
                    .as_deref()
                    .and_then(names::parse_etcd_id)
            });
        Target {
            machine: name_of(&machine.metadata),
            member_id,
            unhealthy_long: member_id.is_some_and(|id| self.unhealthy_long.contains(&id)),
        }
    }
}

fn live(status: &EtcdStatus, cluster: &TalosCluster, facts: &Facts<'_>) -> LiveEtcd {
    let members: Vec<Member> = status
        .members
        .iter()
        .filter_map(|m| {
            Some(Member {
                listed: ListedMember {
                    id: names::parse_etcd_id(&m.id)?,
                    name: m.name.clone(),
                    peer_urls: m.peer_urls.clone(),
                    learner: m.learner,
                },
                machine: m.machine.clone(),
                health: if m.healthy {
                    Health::Healthy
                } else {
                    Health::Unhealthy(if m.message.is_empty() {
                        "the agent reports it unhealthy".to_owned()
                    } else {
                        m.message.clone()
                    })
                },
            })
        })
        .collect();
    let leader = status.leader.as_deref().and_then(|leader| {
        members
            .iter()
            .find(|m| m.listed.name == leader)
            .map(|m| m.listed.id)
    });
    if leader.is_some() && !members.is_empty() {
        return LiveEtcd::Listed(Members {
            leader,
            all: members,
        });
    }
    let endpoints = if status.message.is_empty() {
        members
            .iter()
            .filter_map(|m| match &m.health {
                Health::Unhealthy(why) => Some((m.listed.to_string(), why.clone())),
                Health::Healthy => None,
            })
            .collect()
    } else {
        vec![("the agent".to_owned(), status.message.clone())]
    };
    LiveEtcd::NoList {
        endpoints,
        no_leader_for_long: quorum_lost(status, cluster, facts),
    }
}

/// Whether the agent's own watching, or five minutes by its records, say that etcd has
/// no leader and will get none.
fn quorum_lost(status: &EtcdStatus, cluster: &TalosCluster, facts: &Facts<'_>) -> bool {
    let word = StandstillReason::QuorumLost.as_str();
    let said_by_cluster = cluster
        .status
        .as_ref()
        .and_then(|s| find_condition(&s.conditions, HEALTHY))
        .is_some_and(|c| c.status == ConditionStatus::False && c.reason == word);
    let said_by_a_removal = facts.machines.iter().any(|m| {
        m.is_being_deleted()
            && m.condition(REMOVAL_CONDITION)
                .is_some_and(|c| c.status == ConditionStatus::False && c.reason == word)
    });
    // So does the agent begin its word on a list that cannot be had.
    let said_of_etcd = status.message.starts_with("quorum is lost");
    let voters = status.members.iter().filter(|m| !m.learner).count();
    let long = status
        .members
        .iter()
        .filter(|m| !m.learner && !m.healthy)
        .filter(|m| {
            m.unhealthy_since
                .as_ref()
                .is_some_and(|since| seconds_between(since, facts.clock.now) >= FIVE_MINUTES)
        })
        .count();
    said_of_etcd
        || said_by_cluster
        || said_by_a_removal
        || (voters > 0 && voters - long < voters / 2 + 1)
}

fn live_etcd(seen: &Seen, target: Target<'_>, declared: i32, facts: &Facts<'_>) -> PlanCheck {
    if let Some(why) = &seen.too_old {
        return PlanCheck::own(
            Rule::LiveEtcd.as_str(),
            Verdict::Wait,
            format!("{why}. A removal asks etcd itself before anything is done"),
        );
    }
    if !facts.counted.target_counts()
        && target.member_id.is_none()
        && matches!(&seen.etcd, LiveEtcd::NoList { .. })
    {
        // No bootstrap was ever begun, or it never joined: it takes nothing from etcd.
        return PlanCheck::own(
            Rule::LiveEtcd.as_str(),
            Verdict::Proceed,
            format!("{} has no etcd member{}", target.machine, seen.age),
        );
    }
    let mut check = PlanCheck::from(etcd::live_etcd(&seen.etcd, target, declared));
    check.message.push_str(&seen.age);
    check
}

/// Member IDs that two machines claim.
fn duplicates(machines: &[TalosMachine]) -> Vec<String> {
    let mut owners: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for machine in machines {
        if let Some(id) = machine.identity().etcd_member_id {
            owners
                .entry(id)
                .or_default()
                .push(name_of(&machine.metadata));
        }
    }
    owners
        .into_iter()
        .filter(|(_, machines)| machines.len() > 1)
        .map(|(id, machines)| format!("{id} (claimed by {})", machines.join(" and ")))
        .collect()
}

fn transitioning(facts: &Facts<'_>, seen: &Seen) -> PlanCheck {
    // As the agent counts it: those being deleted count until their leave is confirmed.
    let approved = facts
        .machines
        .iter()
        .filter(|m| count::counts_as_approved(m))
        .filter(|m| !recorded_as_no_voter(m) && !leave_confirmed(m))
        .count();
    let members = match &seen.etcd {
        LiveEtcd::Listed(members) if seen.too_old.is_none() => Some(members),
        _ => None,
    };
    let completes = facts.machine.is_control_plane();
    let check = transition::may_disrupt(approved, members, completes);
    if check.passes()
        && !completes
        && let Some(why) = &seen.too_old
    {
        return PlanCheck::own(
            Rule::Transitioning.as_str(),
            Verdict::Wait,
            format!("whether the cluster is transitioning cannot be told: {why}"),
        );
    }
    check.into()
}

fn lock(facts: &Facts<'_>, cluster: &TalosCluster) -> PlanCheck {
    let rule = Rule::Lock.as_str();
    let reported = cluster.status.as_ref().and_then(|s| s.lock.as_ref());
    let uid = facts.machine.metadata.uid.as_deref().unwrap_or_default();
    let free = || PlanCheck::own(rule, Verdict::Proceed, "the cluster lock is free");
    let held = |lock: &LockStatus, identity: &str, renewed: String| {
        if !uid.is_empty() && identity.contains(uid) {
            return PlanCheck::own(
                rule,
                Verdict::Proceed,
                "this machine's own removal holds the cluster lock",
            );
        }
        PlanCheck::own(
            rule,
            Verdict::Wait,
            format!(
                "the cluster lock is {}{renewed}: a removal waits until it is free, and goes on by itself then",
                lock_line(Some(lock), facts.clock)
            ),
        )
    };
    match facts.lock {
        Lock::Reported => match reported {
            Some(lock) if !lock.operation.is_empty() || !lock.holder.is_empty() => {
                let own = facts.machine.is_being_deleted()
                    && lock.operation.ends_with(&format!(
                        " of TalosMachine {}",
                        name_of(&facts.machine.metadata)
                    ));
                let identity = if own { uid } else { "" };
                held(lock, identity, ", as the agent reports".to_owned())
            }
            _ => free(),
        },
        Lock::Lease(lease) => {
            let spec = lease.as_ref().and_then(|l| l.spec.as_ref());
            let Some(holder) = spec
                .and_then(|s| s.holder_identity.as_deref())
                .filter(|h| !h.is_empty())
            else {
                return free();
            };
            let micro =
                |time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime>| {
                    time.map(|t| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(t.0))
                };
            let renewed = micro(spec.and_then(|s| s.renew_time.as_ref()))
                .map_or_else(String::new, |at| {
                    format!(" (renewed {})", facts.clock.ago(&at))
                });
            let (operation, agent) = spoken(holder);
            held(
                &LockStatus {
                    holder: agent,
                    operation,
                    since: micro(spec.and_then(|s| s.acquire_time.as_ref())),
                    until: None,
                },
                holder,
                renewed,
            )
        }
    }
}

/// A holder identity in words: who writes it puts `purpose/kind/name/uid@agent`.
fn spoken(identity: &str) -> (String, String) {
    let words = identity.rsplit_once('@').and_then(|(operation, agent)| {
        let parts: Vec<&str> = operation.split('/').collect();
        match parts.as_slice() {
            [purpose, kind, name, _uid] => {
                Some((format!("{purpose} of {kind} {name}"), agent.to_owned()))
            }
            _ => None,
        }
    });
    words.unwrap_or_else(|| (identity.to_owned(), String::new()))
}

/// A removal that is under way already: how it stands.
fn under_way(facts: &Facts<'_>) -> Option<PlanCheck> {
    let machine = facts.machine;
    if !machine.is_being_deleted() {
        return None;
    }
    Some(match machine.condition(REMOVAL_CONDITION) {
        Some(c) if c.status != ConditionStatus::True => PlanCheck::own(
            REMOVAL,
            Verdict::Wait,
            format!(
                "it is being removed and stands still ({}): {}",
                c.reason, c.message
            ),
        ),
        Some(c) => PlanCheck::own(
            REMOVAL,
            Verdict::Proceed,
            format!("it is being removed already: {}", c.reason),
        ),
        None => PlanCheck::own(
            REMOVAL,
            Verdict::Proceed,
            "it is being deleted already; the agent has not begun",
        ),
    })
}
