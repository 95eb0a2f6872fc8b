//! A second reading of spec section 3, in plain numbers and records.
//!
//! Written from the text alone and kept away from the code under test: it shares no
//! function and no type with `ichor_rules`, so that both would have to be misread the
//! same way for a test to pass on a mistake. Where the text leaves a choice open, the
//! choice is stated beside the line.

use std::collections::{BTreeMap, BTreeSet};

/// A rule's answer: what comes of it, and the condition reason where it stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing stands in the way.
    Proceed,
    /// Admitted, then it stands still (`interfaces.md`, `plan`).
    Wait(&'static str),
    /// Denied, or beyond repair by waiting.
    Refuse(&'static str),
}

/// What counting needs to know of a TalosMachine.
#[derive(Clone, Debug)]
pub struct Record {
    pub name: String,
    pub control_plane: bool,
    pub approved: bool,
    pub finalizer: bool,
    pub deleting: bool,
    pub leave_confirmed: bool,
    /// Reason of `Joined=False`, where it is that.
    pub not_joined: Option<&'static str>,
}

/// Where the count is taken.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    Admission,
    /// Names of the machines that a survivor's list shows as started voters, if a list
    /// was to be had.
    Lock(Option<&'a BTreeSet<String>>),
}

/// "Who counts": the names that make `n`.
pub fn counted(records: &[Record], target: &str, place: Place<'_>) -> BTreeSet<String> {
    let mut n = BTreeSet::new();
    for r in records {
        // "the cluster's control planes that are approved"; "with Ichor's finalizer
        // counts as approved whatever spec.approved says"; "a pending one never".
        if !r.control_plane || !(r.approved || r.finalizer) {
            continue;
        }
        let sibling = r.name != target;
        let no_voter_by_record = matches!(r.not_joined, Some("NeverVoter" | "MemberGone"));
        let in_the_way = match place {
            // "The agent asks the live list again under the lock and, if it is a voter
            // after all, every rule applies": the list decides, and a leave is only
            // confirmed while the member is not listed (section 5, step 4).
            Place::Lock(Some(voters)) => !voters.contains(&r.name),
            // "Admission takes the agent's record"; "siblings already being deleted
            // count as gone too". Under the lock without a list the same: of a sibling
            // being deleted "whose member is not a listed started voter" it says that it
            // "is not counted, confirmed or not".
            Place::Admission | Place::Lock(None) => {
                r.leave_confirmed || no_voter_by_record || (sibling && r.deleting)
            }
        };
        if !in_the_way {
            n.insert(r.name.clone());
        }
    }
    n
}

/// **quorum**, for a target that counts among `n` (or does not).
pub fn quorum(n: usize, target_counts: bool) -> Answer {
    if !target_counts {
        // "such a machine may go at any time".
        return Answer::Proceed;
    }
    match n {
        0 => Answer::Proceed,
        1 => Answer::Refuse("LastControlPlane"),
        _ if n - 1 < n / 2 + 1 => Answer::Refuse("QuorumWouldBreak"),
        _ => Answer::Proceed,
    }
}

/// **declared count**.
pub fn declared_count(
    n: usize,
    target_counts: bool,
    declared: i64,
    unhealthy_long: bool,
) -> Answer {
    if !target_counts || unhealthy_long {
        return Answer::Proceed;
    }
    let left = i64::try_from(n).unwrap() - 1;
    if left < declared {
        Answer::Wait("BelowDeclaredCount")
    } else {
        Answer::Proceed
    }
}

/// A listed member, judged.
#[derive(Clone, Copy, Debug)]
pub struct Mem {
    pub id: u64,
    pub started: bool,
    pub learner: bool,
    /// As a voter; never for a learner or an unstarted one.
    pub healthy: bool,
    /// How many machines have recorded its ID.
    pub owners: usize,
}

/// What etcd could be asked.
#[derive(Clone, Debug)]
pub enum Etcd {
    Listed(Vec<Mem>),
    Silent { no_leader_for_five_minutes: bool },
}

fn silent(no_leader_for_five_minutes: bool) -> Answer {
    if no_leader_for_five_minutes {
        Answer::Refuse("QuorumLost")
    } else {
        Answer::Wait("EtcdUnreachable")
    }
}

/// etcd counts every member that is no learner, started or not.
fn v(list: &[Mem]) -> usize {
    list.iter().filter(|m| !m.learner).count()
}

fn healthy_besides(list: &[Mem], target: Option<u64>) -> usize {
    let voters = list.iter().filter(|m| !m.learner && m.started && m.healthy);
    voters.filter(|m| Some(m.id) != target).count()
}

fn listed(list: &[Mem], id: Option<u64>) -> Option<&Mem> {
    list.iter().find(|m| Some(m.id) == id)
}

/// **live etcd**.
pub fn live_etcd(etcd: &Etcd, target: Option<u64>, long: bool, declared: i64) -> Answer {
    let list = match etcd {
        Etcd::Silent {
            no_leader_for_five_minutes,
        } => return silent(*no_leader_for_five_minutes),
        Etcd::Listed(list) => list,
    };
    let v = v(list);
    let h = healthy_besides(list, target);
    let t = listed(list, target);
    // "its member absent ... in a survivor's list": no voter, and "such a machine may
    // go at any time". An empty list stands for "no bootstrap ever begun": the same. One
    // that has members and no voter is no "member list with a leader".
    if t.is_none() && (v > 0 || list.is_empty()) {
        return Answer::Proceed;
    }
    // "refused when no member list with a leader can be had".
    if v == 0 {
        return Answer::Wait("EtcdUnreachable");
    }
    // "when healthy voters, the target included, are fewer than V/2+1". For a learner
    // and an unstarted member the text says both this and "at any time"; its member is
    // "removed by ID", which etcd cannot do without a majority, so this comes first.
    let target_healthy = t.is_some_and(|t| t.healthy && t.started && !t.learner);
    if h + usize::from(target_healthy) < v / 2 + 1 {
        return Answer::Wait("EtcdUnhealthy");
    }
    let Some(t) = t.filter(|m| m.started && !m.learner) else {
        return Answer::Proceed;
    };
    if h < (v - 1) / 2 + 1 {
        // The text names no reason here. With one voter it is the last; else the ones
        // left would be no majority because others are ill, and they are the remedy.
        return if v == 1 {
            Answer::Refuse("LastControlPlane")
        } else {
            Answer::Wait("EtcdUnhealthy")
        };
    }
    // "A target that has been unhealthy for those 5 minutes is exempt from these
    // three": has been, and is.
    if long && !t.healthy {
        return Answer::Proceed;
    }
    let others = || list.iter().filter(|m| Some(m.id) != target);
    // An unstarted member is named by the second of the three, not by the first.
    if others().any(|m| !m.learner && m.started && !m.healthy) {
        return Answer::Wait("EtcdUnhealthy");
    }
    if others().any(|m| m.learner || !m.started) {
        return Answer::Wait("LearnerPresent");
    }
    if i64::try_from(v - 1).unwrap() < declared {
        return Answer::Wait("BelowDeclaredCount");
    }
    Answer::Proceed
}

/// **every member has an owner**.
pub fn member_owners(list: &[Mem], target: Option<u64>, long: bool) -> Answer {
    let all_owned = list.iter().all(|m| m.owners == 1);
    // "no healthy control plane is removed". A voter that has not been unhealthy for
    // five minutes is taken for healthy, as in live etcd. A target without a listed
    // member of its own might be the very member that nobody owns, so it is no
    // exception; a listed learner or unstarted member is.
    let known_ill = match listed(list, target) {
        None => false,
        Some(m) => m.learner || !m.started || (long && !m.healthy),
    };
    if all_owned || known_ill {
        Answer::Proceed
    } else {
        Answer::Wait("UnknownMember")
    }
}

/// **away**, without the override that a sole control plane may go by.
pub fn away(etcd: &Etcd, target: Option<u64>) -> Answer {
    match etcd {
        Etcd::Silent {
            no_leader_for_five_minutes,
        } => silent(*no_leader_for_five_minutes),
        Etcd::Listed(list) => {
            if healthy_besides(list, target) < v(list) / 2 + 1 {
                Answer::Wait("EtcdUnhealthy")
            } else {
                Answer::Proceed
            }
        }
    }
}

/// **transitioning**: its reason, or none.
pub fn transitioning(approved: usize, list: Option<&[Mem]>) -> Option<&'static str> {
    // "(none at all is not)", of control planes as of voters.
    if approved != 0 && approved.is_multiple_of(2) {
        return Some("EvenControlPlaneCount");
    }
    let list = list?;
    if v(list) != 0 && v(list).is_multiple_of(2) {
        return Some("EvenVoterCount");
    }
    list.iter()
        .any(|m| m.learner || !m.started)
        .then_some("LearnerPresent")
}

/// What a node said of its own etcd.
#[derive(Clone, Debug)]
pub struct Said {
    pub member: u64,
    pub leader: u64,
    pub applied: u64,
    pub learner: bool,
    pub errors: usize,
    pub alarms: usize,
}

/// The members of which their own node says that they are healthy voters.
/// `list`: ID, started, learner. `said`: by owner's name, none where it was silent.
pub fn healthy_voters(
    list: &[(u64, bool, bool)],
    owners: &BTreeMap<u64, String>,
    said: &BTreeMap<String, Option<Said>>,
    near: u64,
) -> BTreeSet<u64> {
    let voters: Vec<u64> = list.iter().filter(|m| !m.2).map(|m| m.0).collect();
    let answer = |id: &u64| -> Option<&Said> {
        let said = said.get(owners.get(id)?)?.as_ref()?;
        (said.member == *id).then_some(said)
    };
    // "a leader that the majority agrees on": of the voters, each naming it.
    let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
    for said in voters.iter().filter_map(answer) {
        if said.leader != 0 {
            *votes.entry(said.leader).or_default() += 1;
        }
    }
    let leader = votes
        .into_iter()
        // A leader that is not listed belongs to another list than this one.
        .find(|(id, votes)| *votes > voters.len() / 2 && list.iter().any(|m| m.0 == *id))
        .map(|(leader, _)| leader);
    let Some(leader) = leader else {
        return BTreeSet::new();
    };
    // A leader whose own node is silent has no index to compare with; the others are
    // not ill because of that.
    let leaders = answer(&leader).map(|s| s.applied);
    list.iter()
        .filter(|(id, started, learner)| {
            *started
                && !*learner
                && answer(id).is_some_and(|s| {
                    !s.learner
                        && s.errors == 0
                        && s.alarms == 0
                        && s.leader == leader
                        && leaders.is_none_or(|index| s.applied.saturating_add(near) >= index)
                })
        })
        .map(|m| m.0)
        .collect()
}

/// What the last-worker rule needs to know of a TalosMachine.
#[derive(Clone, Debug)]
pub struct Worker {
    pub name: String,
    pub works: bool,
    pub approved: bool,
    pub deleting: bool,
}

/// **last worker**: deleting or un-approving `target`.
pub fn last_worker(all: &[Worker], target: &str, schedulable: &str, waived: bool) -> Answer {
    let Some(t) = all.iter().find(|w| w.name == target) else {
        return Answer::Proceed;
    };
    if schedulable != "false" || waived || !t.works || !t.approved {
        return Answer::Proceed;
    }
    let another = all
        .iter()
        .any(|w| w.works && w.approved && !w.deleting && w.name != target);
    if another {
        Answer::Proceed
    } else {
        Answer::Refuse("LastWorker")
    }
}
