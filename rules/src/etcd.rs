//! The live-etcd rule: asked of etcd itself, through several nodes (spec section 3).

use std::collections::BTreeMap;

use ichor_api::conditions::StandstillReason;
use ichor_api::names::format_etcd_id;

use crate::verdict::{Check, Rule};

/// A member as a list names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMember {
    /// Member ID.
    pub id: u64,
    /// Member name (the host name); empty while it has not started.
    pub name: String,
    /// Peer URLs.
    pub peer_urls: Vec<String>,
    /// Whether it is a learner.
    pub learner: bool,
}

impl ListedMember {
    /// A member that has not started has no name yet.
    pub fn started(&self) -> bool {
        !self.name.is_empty()
    }

    /// Whether it votes. An unstarted member that is no learner votes too, and is a
    /// voter that cannot be healthy.
    pub fn votes(&self) -> bool {
        !self.learner
    }
}

impl std::fmt::Display for ListedMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = format_etcd_id(self.id);
        if self.started() {
            write!(f, "{} ({id})", self.name)?;
        } else {
            write!(f, "{id} (unstarted, {})", self.peer_urls.join(" "))?;
        }
        if self.learner {
            f.write_str(", a learner")?;
        }
        Ok(())
    }
}

/// What a node's own etcd said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Its member ID.
    pub member_id: u64,
    /// The leader it follows; 0: none.
    pub leader: u64,
    /// Its term.
    pub term: u64,
    /// Its applied index.
    pub applied_index: u64,
    /// Whether it says it is a learner.
    pub learner: bool,
    /// Its errors.
    pub errors: Vec<String>,
    /// Its alarms, for this member.
    pub alarms: Vec<String>,
}

/// How a voter stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its own node answered: started, no learner, no errors, no alarm, the leader that
    /// the majority agrees on, applied index near the leader's.
    Healthy,
    /// It is not, and why.
    Unhealthy(String),
}

/// A listed member with its owner and health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// As listed.
    pub listed: ListedMember,
    /// The TalosMachine that it belongs to by its recorded ID.
    pub machine: Option<String>,
    /// Its health; a learner or unstarted member is never healthy.
    pub health: Health,
}

impl Member {
    /// A voter that is healthy.
    pub fn healthy_voter(&self) -> bool {
        self.listed.votes() && self.listed.started() && self.health == Health::Healthy
    }
}

/// etcd's members as a survivor lists them, each asked through its own node.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Members {
    /// ID of the leader that the majority agrees on.
    pub leader: Option<u64>,
    /// Every listed member.
    pub all: Vec<Member>,
}

/// How far behind the leader an applied index may be. etcd's own promotion asks for
/// 90 %; a healthy voter under load is a few thousand entries behind at most.
pub const APPLIED_LAG_LIMIT: u64 = 10_000;

impl Members {
    /// Puts a list and what each node said together.
    ///
    /// `reports` holds, by machine name, what that machine's own etcd said of itself or
    /// why it could not be asked; `owners` maps member IDs to machines.
    pub fn assess(
        list: &[ListedMember],
        owners: &BTreeMap<u64, String>,
        reports: &BTreeMap<String, Result<NodeReport, String>>,
    ) -> Self {
        let leader = agreed_leader(list, reports);
        let leader_applied = leader.and_then(|leader| {
            reports
                .values()
                .filter_map(|r| r.as_ref().ok())
                .find(|r| r.member_id == leader)
                .map(|r| r.applied_index)
        });
        let all = list
            .iter()
            .map(|listed| {
                let machine = owners.get(&listed.id).cloned();
                let health = judge(listed, machine.as_deref(), reports, leader, leader_applied);
                Member {
                    listed: listed.clone(),
                    machine,
                    health,
                }
            })
            .collect();
        Self { leader, all }
    }

    /// Every voter.
    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.all.iter().filter(|m| m.listed.votes())
    }

    /// Members that are learners or have not started.
    pub fn joining(&self) -> impl Iterator<Item = &ListedMember> {
        self.all
            .iter()
            .map(|m| &m.listed)
            .filter(|m| m.learner || !m.started())
    }

    /// The member of `id`.
    pub fn by_id(&self, id: u64) -> Option<&Member> {
        self.all.iter().find(|m| m.listed.id == id)
    }

    /// Names of the machines whose member is a listed, started voter.
    pub fn voting_machines(&self) -> std::collections::BTreeSet<String> {
        self.voters()
            .filter(|m| m.listed.started())
            .filter_map(|m| m.machine.clone())
            .collect()
    }
}

fn agreed_leader(
    list: &[ListedMember],
    reports: &BTreeMap<String, Result<NodeReport, String>>,
) -> Option<u64> {
    let voters = list.iter().filter(|m| m.votes()).count();
    let mut followers: BTreeMap<u64, usize> = BTreeMap::new();
    for report in reports.values().filter_map(|r| r.as_ref().ok()) {
        let votes = list
            .iter()
            .any(|m| m.id == report.member_id && m.votes());
        if report.leader != 0 && votes {
            *followers.entry(report.leader).or_default() += 1;
        }
    }
    followers
        .into_iter()
        .find(|(leader, count)| *count > voters / 2 && list.iter().any(|m| m.id == *leader))
        .map(|(leader, _)| leader)
}

fn judge(
    listed: &ListedMember,
    machine: Option<&str>,
    reports: &BTreeMap<String, Result<NodeReport, String>>,
    leader: Option<u64>,
    leader_applied: Option<u64>,
) -> Health {
    let unhealthy = |why: String| Health::Unhealthy(why);
    if !listed.started() {
        return unhealthy("it has not started".into());
    }
    if listed.learner {
        return unhealthy("it is a learner".into());
    }
    let Some(machine) = machine else {
        return unhealthy("no TalosMachine has its member ID, so nobody can be asked".into());
    };
    let report = match reports.get(machine) {
        None => return unhealthy("its node was not asked".into()),
        Some(Err(why)) => return unhealthy(format!("its node did not answer: {why}")),
        Some(Ok(report)) => report,
    };
    if report.member_id != listed.id {
        return unhealthy(format!(
            "its node reports another member ID, {}",
            format_etcd_id(report.member_id)
        ));
    }
    if report.learner {
        return unhealthy("its node says that it is a learner".into());
    }
    if !report.errors.is_empty() {
        return unhealthy(format!("etcd reports: {}", report.errors.join("; ")));
    }
    if !report.alarms.is_empty() {
        return unhealthy(format!("alarm {}", report.alarms.join(", ")));
    }
    if report.leader == 0 {
        return unhealthy("it sees no leader".into());
    }
    let Some(leader) = leader else {
        return unhealthy("no leader that a majority of voters agrees on".into());
    };
    if report.leader != leader {
        return unhealthy(format!(
            "it follows {}, the majority follows {}",
            format_etcd_id(report.leader),
            format_etcd_id(leader)
        ));
    }
    if let Some(applied) = leader_applied {
        let behind = applied.saturating_sub(report.applied_index);
        if behind > APPLIED_LAG_LIMIT {
            return unhealthy(format!("{behind} entries behind the leader"));
        }
    }
    Health::Healthy
}

/// What could be learnt of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveEtcd {
    /// A member list with a leader.
    Listed(Members),
    /// None could be had.
    NoList {
        /// Every endpoint that was asked and what came back.
        endpoints: Vec<(String, String)>,
        /// Whether, for five minutes of this process's watching, no node reported a leader.
        no_leader_for_long: bool,
    },
}

/// The member that would go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Name of its machine.
    pub machine: &'a str,
    /// Its member ID, if it has one.
    pub member_id: Option<u64>,
    /// Whether it has not been a healthy voter for five minutes by this process's own watching.
    pub unhealthy_long: bool,
}

fn numbers(before: usize, after: usize) -> Option<(i64, i64)> {
    Some((i64::try_from(before).ok()?, i64::try_from(after).ok()?))
}

/// Whether etcd survives the removal of `target`: V voters, H healthy voters other than
/// the target. Every refusal names who or what is in the way and the remedy.
pub fn live_etcd(etcd: &LiveEtcd, target: Target<'_>, declared: i32) -> Check {
    let members = match etcd {
        LiveEtcd::Listed(members) => members,
        LiveEtcd::NoList {
            endpoints,
            no_leader_for_long,
        } => return no_list(endpoints, *no_leader_for_long),
    };
    let name = target.machine;
    let listed = target.member_id.and_then(|id| members.by_id(id));
    let is_voter = listed.is_some_and(|m| m.listed.votes());
    let voters = members.voters().count();
    let others: Vec<&Member> = members
        .voters()
        .filter(|m| Some(m.listed.id) != target.member_id)
        .collect();
    let healthy_others = others.iter().filter(|m| m.healthy_voter()).count();
    let healthy = healthy_others + usize::from(listed.is_some_and(Member::healthy_voter));
    let majority = voters / 2 + 1;
    let unhealthy = |ms: &[&Member]| {
        ms.iter()
            .filter_map(|m| match &m.health {
                Health::Unhealthy(why) => Some(format!("{}: {why}", m.listed)),
                Health::Healthy => None,
            })
            .collect::<Vec<_>>()
            .join("; ")
    };
    let refuse = |reason, numbers, message: String| {
        Check::refuse(Rule::LiveEtcd, reason, numbers, message)
    };

    if healthy < majority {
        let all: Vec<&Member> = members.voters().collect();
        return refuse(
            StandstillReason::EtcdUnhealthy,
            numbers(healthy, healthy_others),
            format!(
                "{healthy} of {voters} etcd voters are healthy, {majority} are needed before anything may change ({}). \
                 Bring those nodes back, or restore etcd from a snapshot: removing members cannot repair this",
                unhealthy(&all)
            ),
        );
    }
    let after = if is_voter { voters - 1 } else { voters };
    let needed_after = after / 2 + 1;
    if healthy_others < needed_after {
        return refuse(
            StandstillReason::EtcdUnhealthy,
            numbers(healthy, healthy_others),
            format!(
                "without {name}, {healthy_others} healthy voters would be left of {after}, and {needed_after} are needed ({}). \
                 Repair or remove the unhealthy ones first",
                unhealthy(&others)
            ),
        );
    }
    if is_voter && !target.unhealthy_long {
        let bad: Vec<&Member> = others
            .iter()
            .copied()
            .filter(|m| !m.healthy_voter())
            .collect();
        if !bad.is_empty() {
            return refuse(
                StandstillReason::EtcdUnhealthy,
                numbers(healthy, healthy_others),
                format!(
                    "another voter is unhealthy and must go, or recover, first ({}). \
                     Removing the healthy {name} now would leave {healthy_others} healthy of {after}",
                    unhealthy(&bad)
                ),
            );
        }
        if let Some(joining) = members
            .joining()
            .find(|m| Some(m.id) != target.member_id)
        {
            return refuse(
                StandstillReason::LearnerPresent,
                numbers(voters, after),
                format!(
                    "etcd lists a member that does not vote yet: {joining}. \
                     Wait until it is promoted, or remove it, and this goes on by itself"
                ),
            );
        }
        if i64::try_from(after).unwrap_or(i64::MAX) < i64::from(declared) {
            return refuse(
                StandstillReason::BelowDeclaredCount,
                numbers(voters, after),
                format!(
                    "etcd has {voters} voters; without {name} it would have {after}, fewer than the {declared} that spec.controlPlane.count declares. \
                     Join and approve another control plane first"
                ),
            );
        }
    }
    Check::proceed(
        Rule::LiveEtcd,
        numbers(voters, after),
        format!(
            "{voters} voters now, {after} after; {healthy_others} healthy without {name}, {needed_after} needed"
        ),
    )
}

fn no_list(endpoints: &[(String, String)], no_leader_for_long: bool) -> Check {
    let asked = if endpoints.is_empty() {
        "no control plane to ask".to_owned()
    } else {
        endpoints
            .iter()
            .map(|(endpoint, said)| format!("{endpoint}: {said}"))
            .collect::<Vec<_>>()
            .join("; ")
    };
    if no_leader_for_long {
        return Check::refuse(
            Rule::LiveEtcd,
            StandstillReason::QuorumLost,
            None,
            format!(
                "etcd has had no leader for 5 minutes: quorum is lost, and nothing can be removed. \
                 Bring nodes back, or restore etcd from a snapshot ({asked})"
            ),
        );
    }
    Check::refuse(
        Rule::LiveEtcd,
        StandstillReason::EtcdUnreachable,
        None,
        format!("no member list with a leader could be had, so nothing is known and nothing is removed ({asked})"),
    )
}

/// Every listed member must belong to exactly one machine; while one does not, no
/// healthy control plane is removed.
///
/// `duplicates`: members that two machines claim.
pub fn member_owners(members: &Members, target: Target<'_>, duplicates: &[String]) -> Check {
    let unknown: Vec<String> = members
        .all
        .iter()
        .filter(|m| m.machine.is_none() && Some(m.listed.id) != target.member_id)
        .map(|m| m.listed.to_string())
        .chain(duplicates.iter().cloned())
        .collect();
    let count = i64::try_from(unknown.len()).unwrap_or(i64::MAX);
    if unknown.is_empty() {
        return Check::proceed(Rule::MemberOwners, None, "every etcd member belongs to a machine");
    }
    if target.unhealthy_long {
        return Check::proceed(
            Rule::MemberOwners,
            Some((count, count)),
            format!("unknown etcd members ({}), but {} is unhealthy: removing it is how the cluster heals", unknown.join("; "), target.machine),
        );
    }
    Check::refuse(
        Rule::MemberOwners,
        StandstillReason::UnknownMember,
        Some((count, count)),
        format!(
            "etcd lists members that belong to no TalosMachine, or to two: {}. \
             Remove such a member with talosctl etcd remove-member, or assign it with annotation {} on its machine",
            unknown.join("; "),
            ichor_api::names::ETCD_MEMBER_ID
        ),
    )
}

/// Whether a control plane may be away for a while (reboot, shutdown, upgrade): refused
/// when the healthy voters other than it are fewer than a majority.
pub fn away(etcd: &LiveEtcd, target: Target<'_>) -> Check {
    let members = match etcd {
        LiveEtcd::Listed(members) => members,
        LiveEtcd::NoList {
            endpoints,
            no_leader_for_long,
        } => {
            return Check {
                rule: Rule::Away,
                ..no_list(endpoints, *no_leader_for_long)
            };
        }
    };
    let voters = members.voters().count();
    let majority = voters / 2 + 1;
    let healthy_others = members
        .voters()
        .filter(|m| Some(m.listed.id) != target.member_id && m.healthy_voter())
        .count();
    let figures = numbers(voters, healthy_others);
    if healthy_others < majority {
        return Check::refuse(
            Rule::Away,
            StandstillReason::EtcdUnhealthy,
            figures,
            format!(
                "while {} is away, {healthy_others} healthy of {voters} voters would be left, and {majority} are needed. Bring another voter back first",
                target.machine
            ),
        );
    }
    Check::proceed(
        Rule::Away,
        figures,
        format!("while {} is away, {healthy_others} healthy of {voters} voters are left, {majority} are needed", target.machine),
    )
}
