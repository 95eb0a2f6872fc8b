//! `status`: a cluster at a glance.

use std::collections::BTreeMap;

use ichor_api::cluster::{
    AbandonedRemoval, EtcdMemberStatus, EtcdStatus, LockStatus, NotWiped, RoleCounts,
};
use ichor_api::common::find_condition;
use ichor_api::conditions::{HEALTHY, READY, REMOVAL, TRANSITIONING};
use ichor_api::{Condition, ConditionStatus, MachineRole, TalosCluster, TalosMachine, names};
use serde::Serialize;

use crate::age::{Clock, seconds_between};
use crate::resources::{name_of, namespace_of, node_of};
use crate::table::Table;

/// What is said of etcd is not relied on when it is older than this, in seconds
/// (`interfaces.md`).
pub const ETCD_STALE_AFTER: i64 = 120;

/// How many lines "what is going on" has at most.
const GOING_ON_LIMIT: usize = 20;

/// A TalosCluster (or what is left of one) with its machines.
#[derive(Debug)]
pub struct Group<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The object; `None`: machines name a cluster that is not there.
    pub cluster: Option<&'a TalosCluster>,
    /// Its machines: control planes first, then by name.
    pub machines: Vec<&'a TalosMachine>,
}

/// Puts machines to their clusters, by namespace and name. Machines whose cluster is
/// not there get a group of their own, unless one cluster alone was asked for.
pub fn group<'a>(
    clusters: impl IntoIterator<Item = &'a TalosCluster>,
    machines: impl IntoIterator<Item = &'a TalosMachine>,
    only: Option<&str>,
) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<(&str, &str), Group<'a>> = clusters
        .into_iter()
        .map(|cluster| {
            let key = (namespace_of(&cluster.metadata), name_of(&cluster.metadata));
            let group = Group {
                namespace: key.0,
                name: key.1,
                cluster: Some(cluster),
                machines: Vec::new(),
            };
            (key, group)
        })
        .filter(|(key, _)| only.is_none_or(|only| only == key.1))
        .collect();
    for machine in machines {
        let key = (
            namespace_of(&machine.metadata),
            machine.spec.cluster_ref.name.as_str(),
        );
        if only.is_some_and(|only| only != key.1) {
            continue;
        }
        groups
            .entry(key)
            .or_insert_with(|| Group {
                namespace: key.0,
                name: key.1,
                cluster: None,
                machines: Vec::new(),
            })
            .machines
            .push(machine);
    }
    let mut groups: Vec<Group<'a>> = groups.into_values().collect();
    for group in &mut groups {
        group.machines.sort_by_cached_key(|m| {
            (
                m.spec.role == MachineRole::Worker,
                natural(name_of(&m.metadata)),
            )
        });
    }
    groups
}

/// A name to sort by: `cp-2` before `cp-10`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits);
        let end = tail
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (number, tail) = tail.split_at(end);
        parts.push((text.to_owned(), number.parse().unwrap_or(0)));
        rest = tail;
    }
    parts
}

/// How a machine's etcd member stands, in one word.
pub fn etcd_word(machine: &TalosMachine, etcd: Option<&EtcdStatus>) -> &'static str {
    if machine.spec.role != MachineRole::ControlPlane {
        return "<none>";
    }
    let Some(etcd) = etcd else {
        return "<unknown>";
    };
    let Some(member) = member_of(machine, etcd) else {
        return "<none>";
    };
    let leads = etcd.leader.as_deref() == Some(member.name.as_str()) && !member.name.is_empty();
    match (member.started, member.learner, member.healthy) {
        (false, _, _) => "unstarted",
        (true, true, _) => "learner",
        (true, false, true) if leads => "leader",
        (true, false, true) => "voter",
        (true, false, false) => "unhealthy",
    }
}

/// The member that the agent has put to this machine.
pub fn member_of<'e>(machine: &TalosMachine, etcd: &'e EtcdStatus) -> Option<&'e EtcdMemberStatus> {
    let name = name_of(&machine.metadata);
    let id = machine.identity().etcd_member_id;
    etcd.members.iter().find(|m| {
        m.machine.as_deref() == Some(name) || (m.machine.is_none() && id.as_ref() == Some(&m.id))
    })
}

fn ready_word(machine: &TalosMachine) -> String {
    match machine.condition(READY) {
        None if !machine.spec.approved => "NotApproved".to_owned(),
        None => "Unknown".to_owned(),
        Some(ready) if ready.status == ConditionStatus::True => "True".to_owned(),
        Some(ready) => ready.reason.clone(),
    }
}

fn removal_word(machine: &TalosMachine) -> String {
    match (machine.is_being_deleted(), machine.condition(REMOVAL)) {
        (true, Some(removal)) => removal.reason.clone(),
        (true, None) => "Deleting".to_owned(),
        (false, _) => String::new(),
    }
}

fn counts(counts: Option<&RoleCounts>, declared: Option<i32>) -> String {
    let found = counts.cloned().unwrap_or_default();
    let numbers = format!("{} approved, {} healthy", found.approved, found.healthy);
    match declared.or(found.declared) {
        Some(declared) => format!("{declared} declared, {numbers}"),
        None => numbers,
    }
}

fn etcd_line(etcd: Option<&EtcdStatus>, clock: Clock) -> String {
    let Some(etcd) = etcd else {
        return "not seen yet by the agent".to_owned();
    };
    let mut parts = vec![
        format!("{} voters", etcd.voters),
        format!("{} healthy", etcd.healthy),
    ];
    if etcd.learners > 0 {
        parts.push(format!("{} not voting yet", etcd.learners));
    }
    parts.push(match &etcd.leader {
        Some(leader) => format!("leader {leader}"),
        None => "no leader".to_owned(),
    });
    parts.push(if etcd.alarms.is_empty() {
        "no alarms".to_owned()
    } else {
        format!("ALARMS: {}", etcd.alarms.join("; "))
    });
    let mut line = parts.join(", ") + &as_of(etcd, clock);
    if !etcd.message.is_empty() {
        line.push_str(": ");
        line.push_str(&etcd.message);
    }
    line
}

/// How old what is said of etcd is. On a pipe it is left out: it would make a new line
/// of every look at etcd.
fn as_of(etcd: &EtcdStatus, clock: Clock) -> String {
    match &etcd.observed_at {
        _ if clock.absolute => String::new(),
        None => " (nobody knows as of when)".to_owned(),
        Some(at) if seconds_between(at, clock.now) > ETCD_STALE_AFTER => format!(
            " (as of {}: too old to rely on; does the agent run?)",
            clock.ago(at)
        ),
        Some(at) => format!(" (as of {})", clock.ago(at)),
    }
}

/// Who holds the lock and since when.
pub fn lock_line(lock: Option<&LockStatus>, clock: Clock) -> String {
    match lock {
        Some(lock) if !lock.operation.is_empty() || !lock.holder.is_empty() => {
            let operation = if lock.operation.is_empty() {
                "an unnamed operation"
            } else {
                &lock.operation
            };
            let agent = if lock.holder.is_empty() {
                String::new()
            } else {
                format!(" (agent {})", lock.holder)
            };
            format!(
                "held by {operation}{}{agent}",
                clock.lasting(lock.since.as_ref())
            )
        }
        _ => "free".to_owned(),
    }
}

fn transition_line(cluster: &TalosCluster, clock: Clock) -> String {
    let conditions = cluster
        .status
        .as_ref()
        .map_or(&[][..], |s| &s.conditions[..]);
    match find_condition(conditions, TRANSITIONING) {
        None => "unknown".to_owned(),
        Some(c) if c.status == ConditionStatus::True => format!(
            "{}{}: {}",
            c.reason,
            clock.lasting(Some(&c.last_transition_time)),
            c.message
        ),
        Some(c) if c.status == ConditionStatus::False => "none".to_owned(),
        Some(c) => format!("unknown: {}", c.message),
    }
}

fn header(group: &Group<'_>, clock: Clock) -> Vec<String> {
    let Some(cluster) = group.cluster else {
        return vec![format!(
            "TalosCluster {} (namespace {}): there is none; nothing is done to its machines",
            group.name, group.namespace
        )];
    };
    let status = cluster.status.as_ref();
    let deleting = match &cluster.metadata.deletion_timestamp {
        Some(since) => format!(", being deleted{}", clock.lasting(Some(since))),
        None => String::new(),
    };
    vec![
        format!(
            "TalosCluster {} (namespace {}){deleting}",
            group.name, group.namespace
        ),
        format!(
            "  Control planes:  {}",
            counts(
                status.and_then(|s| s.control_planes.as_ref()),
                Some(cluster.spec.control_plane.count)
            )
        ),
        format!(
            "  Workers:         {}",
            counts(status.and_then(|s| s.workers.as_ref()), None)
        ),
        format!(
            "  etcd:            {}",
            etcd_line(status.and_then(|s| s.etcd.as_ref()), clock)
        ),
        format!(
            "  Lock:            {}",
            lock_line(status.and_then(|s| s.lock.as_ref()), clock)
        ),
        format!("  Transition:      {}", transition_line(cluster, clock)),
    ]
}

fn machine_table(group: &Group<'_>, clock: Clock, wide: bool) -> Table {
    const SHORT: [&str; 8] = [
        "NAME", "ROLE", "NODE", "ADDRESS", "READY", "ETCD", "REMOVAL", "AGE",
    ];
    const WIDE: [&str; 4] = ["MEMBER", "TALOS", "KUBERNETES", "HARDWARE"];
    let etcd = group
        .cluster
        .and_then(|c| c.status.as_ref())
        .and_then(|s| s.etcd.as_ref());
    let mut table = Table::new(
        SHORT
            .into_iter()
            .chain(wide.then_some(WIDE).into_iter().flatten()),
    );
    for machine in &group.machines {
        let mut row = vec![
            name_of(&machine.metadata).to_owned(),
            machine.spec.role.as_str().to_owned(),
            node_of(machine).unwrap_or_default(),
            machine.spec.address.clone(),
            ready_word(machine),
            etcd_word(machine, etcd).to_owned(),
            removal_word(machine),
            clock.age(machine.metadata.creation_timestamp.as_ref()),
        ];
        if wide {
            let identity = machine.identity();
            let status = machine.status.as_ref();
            row.extend([
                identity.etcd_member_id.unwrap_or_default(),
                status
                    .and_then(|s| s.talos_version.clone())
                    .unwrap_or_default(),
                status
                    .and_then(|s| s.kubernetes_version.clone())
                    .unwrap_or_default(),
                identity.hardware_uuid.unwrap_or_default(),
            ]);
        }
        table.row(row);
    }
    table
}

/// Something that moves, or stands still and says why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GoingOn {
    /// Kind of the object.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// The condition's reason.
    pub reason: String,
    /// Whether it moves; otherwise it waits, or a person should look.
    pub moving: bool,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
    /// What goes on and what it waits for.
    pub message: String,
}

fn from_condition(kind: &'static str, name: &str, condition: &Condition, moving: bool) -> GoingOn {
    GoingOn {
        kind,
        name: name.to_owned(),
        reason: condition.reason.clone(),
        moving,
        since: Some(condition.last_transition_time.clone()),
        message: condition.message.clone(),
    }
}

/// What is going on in a group, the cluster's own matters first.
pub fn going_on(group: &Group<'_>) -> Vec<GoingOn> {
    let mut found = Vec::new();
    if let Some(cluster) = group.cluster {
        let status = cluster.status.as_ref();
        let conditions = status.map_or(&[][..], |s| &s.conditions[..]);
        let mut said: Vec<&str> = Vec::new();
        for type_ in [READY, HEALTHY] {
            if let Some(condition) = find_condition(conditions, type_)
                && condition.status == ConditionStatus::False
                && !said.contains(&condition.message.as_str())
            {
                said.push(&condition.message);
                found.push(from_condition("TalosCluster", group.name, condition, false));
            }
        }
        if let Some(teardown) = status.and_then(|s| s.teardown.as_ref()) {
            found.push(GoingOn {
                kind: "TalosCluster",
                name: group.name.to_owned(),
                reason: "Teardown".to_owned(),
                moving: true,
                since: teardown.since.clone(),
                message: format!(
                    "deletionPolicy {}, {} machines left{}{}",
                    teardown.policy.as_str(),
                    teardown.remaining,
                    if teardown.message.is_empty() {
                        ""
                    } else {
                        ": "
                    },
                    teardown.message
                ),
            });
        }
    }
    for machine in &group.machines {
        let name = name_of(&machine.metadata);
        let removal = machine.condition(REMOVAL);
        if machine.is_being_deleted() {
            found.push(match removal {
                Some(condition) => from_condition(
                    "TalosMachine",
                    name,
                    condition,
                    condition.status == ConditionStatus::True,
                ),
                None => GoingOn {
                    kind: "TalosMachine",
                    name: name.to_owned(),
                    reason: "Deleting".to_owned(),
                    moving: false,
                    since: machine.metadata.deletion_timestamp.clone(),
                    message: "it is being deleted, and the agent has not said anything yet"
                        .to_owned(),
                },
            });
        } else if let Some(ready) = machine.condition(READY)
            && machine.spec.approved
            && ready.status != ConditionStatus::True
        {
            found.push(from_condition("TalosMachine", name, ready, false));
        }
    }
    found
}

fn going_on_lines(group: &Group<'_>, clock: Clock) -> Vec<String> {
    let all = going_on(group);
    let mut lines: Vec<String> = all
        .iter()
        .take(GOING_ON_LIMIT)
        .map(|on| {
            let object = if on.kind == "TalosCluster" {
                format!("TalosCluster {}", on.name)
            } else {
                on.name.clone()
            };
            let lasting = clock.lasting(on.since.as_ref());
            let colon = if on.message.is_empty() { "" } else { ": " };
            format!("  {object}: {}{lasting}{colon}{}", on.reason, on.message)
        })
        .collect();
    if let more @ 1.. = all.len().saturating_sub(GOING_ON_LIMIT) {
        lines.push(format!("  and {more} more"));
    }
    lines
}

fn forget(cluster: &str, hardware: Option<&str>) -> String {
    match hardware.filter(|h| !h.is_empty()) {
        Some(hardware) => format!(
            "kubectl annotate tcl {cluster} {}={hardware}",
            names::FORGET
        ),
        None => format!("annotation {} on the TalosCluster", names::FORGET),
    }
}

fn leftover_lines(group: &Group<'_>, clock: Clock) -> Vec<String> {
    let Some(status) = group.cluster.and_then(|c| c.status.as_ref()) else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    if !status.not_wiped.is_empty() {
        lines.push(
            "Let go without being wiped (they still hold this cluster's data and credentials):"
                .to_owned(),
        );
        for entry in &status.not_wiped {
            let seen = match &entry.seen_again_at {
                Some(at) => format!(", SEEN AGAIN {}", clock.ago(at)),
                None => String::new(),
            };
            lines.push(format!(
                "  {}{}{}{seen}: wipe it (talosctl reset), then: {}",
                entry.machine,
                at_address(&entry.address),
                clock.lasting(entry.since.as_ref()),
                forget(group.name, Some(&entry.hardware_uuid))
            ));
        }
    }
    if !status.abandoned.is_empty() {
        lines.push("Removals broken off by force:".to_owned());
        for entry in &status.abandoned {
            let node = entry
                .node
                .as_deref()
                .map_or_else(String::new, |n| format!(", Node {n} still cordoned"));
            let told = if entry.message.is_empty() {
                "see in which state the box is"
            } else {
                &entry.message
            };
            lines.push(format!(
                "  {} at step {}{}{node}: {told}; then: {}",
                entry.machine,
                if entry.step.is_empty() {
                    "unknown"
                } else {
                    &entry.step
                },
                clock.lasting(entry.since.as_ref()),
                forget(
                    group.name,
                    entry.hardware_uuid.as_deref().or(Some(&entry.uid))
                )
            ));
        }
    }
    lines
}

fn at_address(address: &str) -> String {
    if address.is_empty() {
        String::new()
    } else {
        format!(" at {address}")
    }
}

/// Everything about every group, as lines.
pub fn lines(groups: &[Group<'_>], clock: Clock, wide: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for group in groups {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(header(group, clock));
        lines.push(String::new());
        if group.machines.is_empty() {
            lines.push("No machines.".to_owned());
        } else {
            lines.extend(machine_table(group, clock, wide).lines());
        }
        let on = going_on_lines(group, clock);
        if !on.is_empty() {
            lines.push(String::new());
            lines.push("What is going on:".to_owned());
            lines.extend(on);
        }
        let left = leftover_lines(group, clock);
        if !left.is_empty() {
            lines.push(String::new());
            lines.extend(left);
        }
    }
    lines
}

/// `-o json` and `-o yaml`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report<'a> {
    clusters: Vec<ClusterReport<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterReport<'a> {
    name: &'a str,
    namespace: &'a str,
    exists: bool,
    control_planes: RoleCounts,
    workers: RoleCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    transitioning: Option<&'a Condition>,
    lock: Option<&'a LockStatus>,
    etcd: Option<&'a EtcdStatus>,
    machines: Vec<MachineReport<'a>>,
    going_on: Vec<GoingOn>,
    not_wiped: &'a [NotWiped],
    abandoned: &'a [AbandonedRemoval],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MachineReport<'a> {
    name: &'a str,
    role: &'static str,
    approved: bool,
    node: Option<String>,
    address: &'a str,
    ready: String,
    etcd: &'static str,
    removal: Option<String>,
}

/// The report that `-o json` prints.
pub fn report<'a>(groups: &'a [Group<'a>]) -> Report<'a> {
    Report {
        clusters: groups.iter().map(cluster_report).collect(),
    }
}

fn cluster_report<'a>(group: &'a Group<'a>) -> ClusterReport<'a> {
    let status = group.cluster.and_then(|c| c.status.as_ref());
    let etcd = status.and_then(|s| s.etcd.as_ref());
    let mut control_planes = status
        .and_then(|s| s.control_planes.clone())
        .unwrap_or_default();
    if let Some(cluster) = group.cluster {
        control_planes.declared = Some(cluster.spec.control_plane.count);
    }
    ClusterReport {
        name: group.name,
        namespace: group.namespace,
        exists: group.cluster.is_some(),
        control_planes,
        workers: status.and_then(|s| s.workers.clone()).unwrap_or_default(),
        transitioning: status.and_then(|s| find_condition(&s.conditions, TRANSITIONING)),
        lock: status.and_then(|s| s.lock.as_ref()),
        etcd,
        machines: group
            .machines
            .iter()
            .map(|machine| MachineReport {
                name: name_of(&machine.metadata),
                role: machine.spec.role.as_str(),
                approved: machine.spec.approved,
                node: node_of(machine),
                address: &machine.spec.address,
                ready: ready_word(machine),
                etcd: etcd_word(machine, etcd),
                removal: Some(removal_word(machine)).filter(|word| !word.is_empty()),
            })
            .collect(),
        going_on: going_on(group),
        not_wiped: status.map_or(&[], |s| &s.not_wiped),
        abandoned: status.map_or(&[], |s| &s.abandoned),
    }
}

/// `-o name`: the clusters, then their machines.
pub fn name_lines(groups: &[Group<'_>]) -> Vec<String> {
    groups
        .iter()
        .flat_map(|group| {
            group
                .cluster
                .iter()
                .map(|c| format!("taloscluster.{}/{}", names::GROUP, name_of(&c.metadata)))
                .chain(
                    group
                        .machines
                        .iter()
                        .map(|m| format!("talosmachine.{}/{}", names::GROUP, name_of(&m.metadata))),
                )
                .collect::<Vec<_>>()
        })
        .collect()
}
