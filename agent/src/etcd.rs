//! Asking etcd itself, through several nodes, and how long each voter has been so.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use ichor_api::TalosMachine;
use ichor_api::names::{ETCD_MEMBER_ID, parse_etcd_id};
use ichor_rules::count::counts_as_approved;
use ichor_rules::etcd::{ListedMember, LiveEtcd, Members, NodeReport};
use ichor_talos::client::{ClientOptions, TalosClient};
use ichor_talos::config::TalosConfig;
use ichor_talos::error::CallError;
use ichor_talos::model::EtcdMember;
use tokio::sync::Mutex;

use crate::watches::Watches;

/// One look at a cluster's etcd.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The list with a leader, assessed, or why there is none.
    pub live: LiveEtcd,
    /// Members that two machines claim, in words.
    pub duplicates: Vec<String>,
    /// Whether any node did not accept our credentials.
    pub credentials_refused: Option<String>,
}

impl Observation {
    /// The members, where they were listed.
    pub fn members(&self) -> Option<&Members> {
        match &self.live {
            LiveEtcd::Listed(members) => Some(members),
            LiveEtcd::NoList { .. } => None,
        }
    }
}

/// How long each voter has been unhealthy and how long no leader was seen, by this
/// process's own watching (spec section 3).
#[derive(Debug)]
pub struct EtcdWatch {
    unhealthy: Watches<u64>,
    no_leader: Watches<()>,
}

impl EtcdWatch {
    fn new(gap: Duration) -> Self {
        Self {
            unhealthy: Watches::new(gap),
            no_leader: Watches::new(gap),
        }
    }

    /// How long `member` had not been a healthy voter when last looked at.
    pub fn unhealthy_for(&self, member: u64) -> Option<Duration> {
        self.unhealthy.lasted(&member)
    }
}

/// Watches of every cluster, by its UID.
#[derive(Debug)]
pub struct EtcdWatches {
    by_cluster: Mutex<HashMap<String, EtcdWatch>>,
    gap: Duration,
    quorum_lost_after: Duration,
}

impl EtcdWatches {
    /// `gap`: looks further apart than this say nothing about the time between.
    pub fn new(gap: Duration, quorum_lost_after: Duration) -> Self {
        Self {
            by_cluster: Mutex::default(),
            gap,
            quorum_lost_after,
        }
    }

    /// Notes an observation at `now`, and completes it with what only watching tells.
    pub async fn note(&self, cluster_uid: &str, observation: &mut Observation, now: Duration) {
        let mut all = self.by_cluster.lock().await;
        let watch = all
            .entry(cluster_uid.to_owned())
            .or_insert_with(|| EtcdWatch::new(self.gap));
        match &mut observation.live {
            LiveEtcd::Listed(members) => {
                watch.no_leader.note(&(), false, now);
                for member in &members.all {
                    watch
                        .unhealthy
                        .note(&member.listed.id, !member.healthy_voter(), now);
                }
                watch
                    .unhealthy
                    .retain(|id| members.all.iter().any(|m| m.listed.id == *id));
            }
            LiveEtcd::NoList {
                no_leader_for_long, ..
            } => {
                // No list means no leader here: the list is asked with a leader required.
                let lasted = watch.no_leader.note(&(), true, now).unwrap_or_default();
                *no_leader_for_long = lasted >= self.quorum_lost_after;
            }
        }
    }

    /// How long `member` had not been a healthy voter when last looked at.
    pub async fn unhealthy_for(&self, cluster_uid: &str, member: u64) -> Option<Duration> {
        self.by_cluster
            .lock()
            .await
            .get(cluster_uid)
            .and_then(|watch| watch.unhealthy_for(member))
    }

    /// Forgets clusters that are gone.
    pub async fn forget(&self, cluster_uid: &str) {
        self.by_cluster.lock().await.remove(cluster_uid);
    }
}

/// The member ID of a machine: assigned by annotation, else recorded.
pub fn member_id_of(machine: &TalosMachine) -> Option<u64> {
    machine
        .annotation(ETCD_MEMBER_ID)
        .and_then(parse_etcd_id)
        .or_else(|| {
            machine
                .status
                .as_ref()
                .and_then(|s| s.identity.as_ref())
                .and_then(|i| i.etcd_member_id.as_deref())
                .and_then(parse_etcd_id)
        })
}

/// Machines whose etcd is asked: control planes that count as approved, and those that a
/// member belongs to, be it by a person's word alone.
pub fn asked(machines: &[TalosMachine]) -> Vec<&TalosMachine> {
    let has_a_member = |m: &TalosMachine| m.is_control_plane() && member_id_of(m).is_some();
    machines
        .iter()
        .filter(|m| counts_as_approved(m) || has_a_member(m))
        .collect()
}

struct NodeAnswer {
    machine: String,
    address: String,
    report: Result<NodeReport, CallError>,
    list: Option<Result<Vec<EtcdMember>, CallError>>,
}

/// Asks every control plane's own etcd about itself, and every one but `not_from` for
/// the member list (with a leader required).
///
/// `ever_listed`: whether etcd members of this cluster were ever recorded.
pub async fn observe(
    config: &Arc<TalosConfig>,
    machines: &[TalosMachine],
    ever_listed: bool,
    not_from: Option<&str>,
    deadline: Duration,
) -> Observation {
    let nodes = asked(machines);
    let bootstrapped = ever_listed || machines.iter().any(|m| member_id_of(m).is_some());
    let mut asks = Vec::with_capacity(nodes.len());
    for machine in nodes {
        let name = machine.metadata.name.clone().unwrap_or_default();
        let list_too = not_from != Some(name.as_str());
        asks.push(ask(
            config.clone(),
            name,
            machine.spec.address.clone(),
            list_too,
            deadline,
        ));
    }
    let answers = join_all(asks).await;

    let mut owners = BTreeMap::new();
    let mut duplicates = Vec::new();
    for machine in machines {
        let name = machine.metadata.name.clone().unwrap_or_default();
        if let Some(id) = member_id_of(machine)
            && let Some(other) = owners.insert(id, name.clone())
        {
            duplicates.push(format!(
                "{} (claimed by {other} and {name})",
                ichor_api::names::format_etcd_id(id)
            ));
        }
    }
    let credentials_refused = answers.iter().find_map(|a| match &a.report {
        Err(CallError::Credentials(why)) => Some(why.clone()),
        _ => None,
    });
    let reports: BTreeMap<String, Result<NodeReport, String>> = answers
        .iter()
        .map(|a| {
            (
                a.machine.clone(),
                a.report.clone().map_err(|e| e.to_string()),
            )
        })
        .collect();

    let mut lists: Vec<(&NodeAnswer, Vec<ListedMember>)> = Vec::new();
    for answer in &answers {
        if let Some(Ok(list)) = &answer.list {
            lists.push((answer, listed(list)));
        }
    }
    let live = match lists.first() {
        Some((_, list)) if lists.iter().all(|(_, other)| other == list) && !list.is_empty() => {
            LiveEtcd::Listed(Members::assess(list, &owners, &reports))
        }
        Some((_, list)) if list.is_empty() && !bootstrapped => LiveEtcd::Listed(Members::default()),
        Some(_) => LiveEtcd::NoList {
            endpoints: lists
                .iter()
                .map(|(answer, list)| {
                    (
                        answer.address.clone(),
                        format!(
                            "lists {}",
                            list.iter()
                                .map(ToString::to_string)
                                .collect::<Vec<_>>()
                                .join(", ")
                        ),
                    )
                })
                .collect(),
            no_leader_for_long: false,
        },
        // Nobody ever had a member, so no bootstrap was begun: there is nothing to lose.
        None if !bootstrapped && nobody_has_etcd(&answers) => LiveEtcd::Listed(Members::default()),
        None => LiveEtcd::NoList {
            endpoints: answers
                .iter()
                .filter_map(|a| match &a.list {
                    Some(Err(error)) => Some((a.address.clone(), error.to_string())),
                    _ => None,
                })
                .collect(),
            no_leader_for_long: false,
        },
    };
    Observation {
        live,
        duplicates,
        credentials_refused,
    }
}

fn nobody_has_etcd(answers: &[NodeAnswer]) -> bool {
    answers.iter().all(|a| a.report.is_err())
}

fn listed(list: &[EtcdMember]) -> Vec<ListedMember> {
    let mut members: Vec<ListedMember> = list
        .iter()
        .map(|m| ListedMember {
            id: m.id.0,
            name: m.name.clone(),
            peer_urls: m.peer_urls.clone(),
            learner: m.learner,
        })
        .collect();
    members.sort_by_key(|m| m.id);
    members
}

async fn ask(
    config: Arc<TalosConfig>,
    machine: String,
    address: String,
    list_too: bool,
    deadline: Duration,
) -> NodeAnswer {
    let options = options(deadline);
    let client = match TalosClient::connect_with(&config, &address, options) {
        Ok(client) => client,
        Err(error) => {
            return NodeAnswer {
                machine,
                address,
                list: list_too.then(|| Err(error.clone())),
                report: Err(error),
            };
        }
    };
    let (status, alarms, list) = tokio::join!(client.etcd_status(), client.etcd_alarms(), async {
        if list_too {
            Some(client.etcd_members(false).await)
        } else {
            None
        }
    });
    let report = status.and_then(|status| {
        let alarms = alarms?;
        Ok(NodeReport {
            member_id: status.member_id.0,
            leader: status.leader.map_or(0, |id| id.0),
            term: status.term,
            applied_index: status.applied_index,
            learner: status.learner,
            errors: status.errors,
            alarms: alarms
                .into_iter()
                .filter(|alarm| alarm.member_id == status.member_id)
                .map(|alarm| format!("{:?}", alarm.kind))
                .collect(),
        })
    });
    NodeAnswer {
        machine,
        address,
        report,
        list,
    }
}

/// Client options for a read that has to be answered within `deadline`.
pub fn options(deadline: Duration) -> ClientOptions {
    ClientOptions {
        connect_timeout: deadline.mul_f64(0.8),
        read_deadline: deadline,
    }
}
