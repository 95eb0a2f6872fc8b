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
        let leader = agreed_leader(list, owners, reports);
        let leader_applied = leader
            .and_then(|leader| own_report(leader, owners, reports))
            .map(|report| report.applied_index);
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

/// What the member of `id` said through its own machine. Another machine that answers
/// as this member (two addresses of one box) does not speak for it.
fn own_report<'r>(
    id: u64,
    owners: &BTreeMap<u64, String>,
    reports: &'r BTreeMap<String, Result<NodeReport, String>>,
) -> Option<&'r NodeReport> {
    let report = reports.get(owners.get(&id)?)?.as_ref().ok()?;
    (report.member_id == id).then_some(report)
}

/// The listed member that a majority of the voters follows, each speaking once.
fn agreed_leader(
    list: &[ListedMember],
    owners: &BTreeMap<u64, String>,
    reports: &BTreeMap<String, Result<NodeReport, String>>,
) -> Option<u64> {
    let voters = list.iter().filter(|m| m.votes()).count();
    let mut followers: BTreeMap<u64, usize> = BTreeMap::new();
    for voter in list.iter().filter(|m| m.votes()) {
        if let Some(report) = own_report(voter.id, owners, reports).filter(|r| r.leader != 0) {
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
        return unhealthy(alarm_text(&report.alarms));
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

/// Names the alarms and what ends each.
fn alarm_text(alarms: &[String]) -> String {
    let each = alarms.iter().map(|alarm| {
        let remedy = match alarm.as_str() {
            "NOSPACE" => {
                ", its database is full: talosctl etcd defrag, then talosctl etcd alarm disarm"
            }
            "CORRUPT" => ", its data differs from the others': this member has to be replaced",
            _ => "",
        };
        format!("alarm {alarm}{remedy}")
    });
    each.collect::<Vec<_>>().join("; ")
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
///
/// A voter is a member that is no learner: etcd counts one that has not started too.
/// A target that is itself no started voter takes no vote away, and may go.
///
/// `Wait`: a removal is admitted and stands still, except where waiting mends nothing
/// (quorum lost, the only voter): `Refuse`.
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
    let target_healthy = listed.is_some_and(Member::healthy_voter);
    let counts = listed.is_some_and(|m| m.listed.votes());
    let is_voter = listed.is_some_and(|m| m.listed.votes() && m.listed.started());
    let voters = members.voters().count();
    let others: Vec<&Member> = members
        .voters()
        .filter(|m| Some(m.listed.id) != target.member_id)
        .collect();
    let healthy_others = others.iter().filter(|m| m.healthy_voter()).count();
    let healthy = healthy_others + usize::from(target_healthy);
    let majority = voters / 2 + 1;
    let after = voters - usize::from(counts);
    let needed_after = after / 2 + 1;
    let stand =
        |reason, numbers, message: String| Check::wait(Rule::LiveEtcd, reason, numbers, message);

    if listed.is_none() && voters > 0 {
        return Check::proceed(
            Rule::LiveEtcd,
            numbers(voters, voters),
            format!(
                "{name} has no member among the {voters} voters: removing it takes no vote away"
            ),
        );
    }
    if members.all.is_empty() {
        return Check::proceed(
            Rule::LiveEtcd,
            numbers(0, 0),
            "etcd has no voters: no bootstrap was begun, so there is no quorum to lose",
        );
    }
    if voters == 0 {
        return stand(
            StandstillReason::EtcdUnreachable,
            numbers(0, 0),
            format!(
                "etcd lists members and no voter among them, 0 now and 0 without {name}: that is no list of a running etcd. \
                 See which node gave it (talosctl etcd members) and what its etcd says (talosctl service etcd)"
            ),
        );
    }
    if healthy < majority {
        let all: Vec<&Member> = members.voters().collect();
        return stand(
            StandstillReason::EtcdUnhealthy,
            numbers(healthy, healthy_others),
            format!(
                "{healthy} of {voters} etcd voters are healthy ({healthy_others} without {name}), and {majority} are needed before anything may change ({}). \
                 Bring these members back, or restore etcd from a snapshot: removing members cannot repair this",
                why_unhealthy(&all)
            ),
        );
    }
    if is_voter && voters == 1 {
        return Check::refuse(
            Rule::LiveEtcd,
            StandstillReason::LastControlPlane,
            numbers(1, 0),
            format!(
                "{name} is the only etcd voter: removing it would leave none (1 now, 0 after). \
                 Join and approve another two control planes first; to give up the whole cluster, delete its TalosCluster"
            ),
        );
    }
    if healthy_others < needed_after {
        return stand(
            StandstillReason::EtcdUnhealthy,
            numbers(healthy, healthy_others),
            format!(
                "{healthy} of {voters} etcd voters are healthy; without {name}, {healthy_others} healthy ones would be left of {after}, and {needed_after} are needed ({}). \
                 Repair or remove the unhealthy ones first",
                why_unhealthy(&others)
            ),
        );
    }
    if is_voter && (target_healthy || !target.unhealthy_long) {
        let bad: Vec<&Member> = others
            .iter()
            .copied()
            .filter(|m| m.listed.started() && !m.healthy_voter())
            .collect();
        if !bad.is_empty() {
            return stand(
                StandstillReason::EtcdUnhealthy,
                numbers(healthy, healthy_others),
                format!(
                    "another voter is unhealthy ({}), and {name} does not go before it: {healthy} of {voters} voters are healthy now, {healthy_others} of {after} would be after. \
                     Repair the unhealthy one, or remove it first",
                    why_unhealthy(&bad)
                ),
            );
        }
        if let Some(joining) = members.joining().find(|m| Some(m.id) != target.member_id) {
            return stand(
                StandstillReason::LearnerPresent,
                numbers(voters, after),
                format!(
                    "etcd lists a member that does not vote yet: {joining}; {name} does not go before that is settled ({voters} voters now, {after} after). \
                     Wait until it has started and is promoted, or remove it: this goes on by itself then"
                ),
            );
        }
        if i64::try_from(after).unwrap_or(i64::MAX) < i64::from(declared) {
            return stand(
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

/// The unhealthy ones of `members`, each with its cause.
fn why_unhealthy(members: &[&Member]) -> String {
    members
        .iter()
        .filter_map(|m| match &m.health {
            Health::Unhealthy(why) => Some(format!("{}: {why}", m.listed)),
            Health::Healthy => None,
        })
        .collect::<Vec<_>>()
        .join("; ")
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
    Check::wait(
        Rule::LiveEtcd,
        StandstillReason::EtcdUnreachable,
        None,
        format!(
            "no etcd member list with a leader could be had, so nothing is known of etcd and nothing is removed ({asked}). \
             See whether these Talos APIs can be reached and etcd runs there (talosctl service etcd); this goes on by itself then"
        ),
    )
}

/// Every listed member must belong to exactly one machine; while one does not, no
/// healthy control plane is removed.
///
/// A target counts as healthy until it is known to be none: a listed learner or
/// unstarted member, or a voter that is unhealthy and has been for five minutes. One
/// without a listed member of its own is not: the unknown member may be its very own.
///
/// `duplicates`: members that two machines claim.
pub fn member_owners(members: &Members, target: Target<'_>, duplicates: &[String]) -> Check {
    let unknown: Vec<String> = members
        .all
        .iter()
        .filter(|m| m.machine.is_none())
        .map(|m| format!("{} at {}", m.listed, m.listed.peer_urls.join(" ")))
        .chain(duplicates.iter().cloned())
        .collect();
    let count = i64::try_from(unknown.len()).unwrap_or(i64::MAX);
    if unknown.is_empty() {
        return Check::proceed(
            Rule::MemberOwners,
            None,
            "every etcd member belongs to a machine",
        );
    }
    let known_ill = target
        .member_id
        .and_then(|id| members.by_id(id))
        .is_some_and(|m| {
            !m.listed.votes()
                || !m.listed.started()
                || (target.unhealthy_long && !m.healthy_voter())
        });
    if known_ill {
        return Check::proceed(
            Rule::MemberOwners,
            Some((count, count)),
            format!(
                "unknown etcd members ({}), but {} is no healthy voter: removing it is how the cluster heals",
                unknown.join("; "),
                target.machine
            ),
        );
    }
    Check::wait(
        Rule::MemberOwners,
        StandstillReason::UnknownMember,
        Some((count, count)),
        format!(
            "etcd lists {count} member(s) that belong to no TalosMachine, or to two: {}. No healthy control plane is removed until that is settled. \
             Assign each to its machine with annotation {}, or remove it with talosctl etcd remove-member ID",
            unknown.join("; "),
            ichor_api::names::ETCD_MEMBER_ID
        ),
    )
}

/// Whether a control plane may be away for a while (reboot, shutdown, upgrade): refused
/// when the healthy voters other than it are fewer than a majority.
///
/// That refuses a sole control plane always; the caller lets it go under override.
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
        let sole = voters == 1
            && target
                .member_id
                .is_some_and(|id| members.by_id(id).is_some_and(|m| m.listed.votes()));
        let others: Vec<&Member> = members
            .voters()
            .filter(|m| Some(m.listed.id) != target.member_id)
            .collect();
        let next = if sole {
            "It is the only one: etcd and the Kubernetes API stop until it is back, which only override allows".to_owned()
        } else if healthy_others == others.len() {
            "Join and approve another control plane first".to_owned()
        } else {
            format!(
                "Bring the unhealthy ones back first ({})",
                why_unhealthy(&others)
            )
        };
        return Check::wait(
            Rule::Away,
            StandstillReason::EtcdUnhealthy,
            figures,
            format!(
                "while {} is away, {healthy_others} healthy of {voters} voters would be left, and {majority} are needed. {next}",
                target.machine
            ),
        );
    }
    Check::proceed(
        Rule::Away,
        figures,
        format!(
            "while {} is away, {healthy_others} healthy of {voters} voters are left, {majority} are needed",
            target.machine
        ),
    )
}
