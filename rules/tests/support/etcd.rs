//! etcd as the oracle and as the code under test see it, made from one description.

use ichor_rules::etcd::{Health, ListedMember, LiveEtcd, Member, Members, Target};

use crate::oracle::{Etcd, Mem};

/// Name of the machine that the rules are asked about.
pub const TARGET: &str = "cp-1";

/// A listed, started voter with one owner.
pub fn voter(id: u64, healthy: bool) -> Mem {
    Mem {
        id,
        started: true,
        learner: false,
        healthy,
        owners: 1,
    }
}

/// A listed learner.
pub fn learner(id: u64) -> Mem {
    Mem {
        learner: true,
        healthy: false,
        ..voter(id, false)
    }
}

/// A listed member that votes and has not started.
pub fn unstarted(id: u64) -> Mem {
    Mem {
        started: false,
        healthy: false,
        ..voter(id, false)
    }
}

/// The list that the rules take.
pub fn members(list: &[Mem]) -> Members {
    Members {
        leader: list.iter().find(|m| m.healthy).map(|m| m.id),
        all: list.iter().map(member).collect(),
    }
}

fn member(m: &Mem) -> Member {
    Member {
        listed: ListedMember {
            id: m.id,
            name: if m.started {
                format!("cp-{}", m.id)
            } else {
                String::new()
            },
            peer_urls: vec![format!("https://192.0.2.{}:2380", m.id)],
            learner: m.learner,
        },
        machine: (m.owners == 1).then(|| format!("cp-{}", m.id)),
        health: if m.healthy {
            Health::Healthy
        } else {
            Health::Unhealthy("its node did not answer: timed out".to_owned())
        },
    }
}

/// What the rules are asked, made from the oracle's description.
pub fn live(etcd: &Etcd) -> LiveEtcd {
    match etcd {
        Etcd::Listed(list) => LiveEtcd::Listed(members(list)),
        Etcd::Silent {
            no_leader_for_five_minutes,
        } => LiveEtcd::NoList {
            endpoints: vec![(
                "192.0.2.1:50000".to_owned(),
                "connection refused".to_owned(),
            )],
            no_leader_for_long: *no_leader_for_five_minutes,
        },
    }
}

/// The target of a rule.
pub fn target(member_id: Option<u64>, unhealthy_long: bool) -> Target<'static> {
    Target {
        machine: TARGET,
        member_id,
        unhealthy_long,
    }
}

/// Members with two owners, as the caller of the owners rule names them.
pub fn duplicates(list: &[Mem]) -> Vec<String> {
    list.iter()
        .filter(|m| m.owners > 1)
        .map(|m| format!("{:016x} (cp-8 and cp-9)", m.id))
        .collect()
}
