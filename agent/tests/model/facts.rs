//! What a pass reads of the world: the snapshot that the shipping decision is asked with.

use std::time::Duration;

use ichor_agent::removal::facts::{
    Answer, Consent, DrainFact, Governing, IntentCall, IntentFacts, Limits, MachineFacts, NodeFact,
    Snapshot, TargetFact, Waits,
};
use ichor_api::MachineRole;
use ichor_api::conditions::RemovalStep;
use ichor_api::machine::MachineIdentity;
use ichor_api::names::format_etcd_id;
use ichor_lock::protocol;
use ichor_rules::Check;
use ichor_rules::etcd::{
    Health, ListedMember, LiveEtcd, Member, Members, Target, live_etcd, member_owners,
};

use super::world::{self, CONFIRM, DEAD, Kind, LEAVE, Power, RESET, Task, World};

/// Control planes that the cluster declares.
pub const DECLARED: i32 = 3;

/// The drain is not in question here: it is done whenever it is asked for.
const DRAINED: u8 = 0;

const STEPS: [(u8, RemovalStep); 4] = [
    (DRAINED, RemovalStep::Drain),
    (LEAVE, RemovalStep::LeaveEtcd),
    (RESET, RemovalStep::Reset),
    (CONFIRM, RemovalStep::Confirm),
];

fn ticks(age: u8) -> Duration {
    Duration::from_secs(age.into())
}

fn name(host: usize) -> String {
    format!("cp-{host}")
}

fn peer_url(host: usize) -> String {
    format!("https://10.0.0.{host}:2380")
}

fn boot(number: u8) -> String {
    format!("boot-{number}")
}

/// Reads the boot's number back.
pub fn boot_number(text: &str) -> Option<u8> {
    text.strip_prefix("boot-")?.parse().ok()
}

/// etcd as the survivors list it: nothing without a quorum.
fn etcd(world: &World) -> LiveEtcd {
    if !world.has_quorum() {
        return LiveEtcd::NoList {
            endpoints: Vec::new(),
            no_leader_for_long: false,
        };
    }
    let owner = |id: u8, host: usize| {
        match world.objects.iter().find(|object| object.host == host) {
            // A machine that is removed owns what it has recorded, until it is gone.
            Some(object) => (!object.gone && object.member == Some(id)).then(|| name(host)),
            None => Some(name(host)),
        }
    };
    LiveEtcd::Listed(Members {
        leader: None,
        all: world
            .members
            .iter()
            .map(|&(id, host)| {
                let machine = owner(id, host);
                let healthy = machine.is_some() && world.votes(id, host);
                Member {
                    listed: ListedMember {
                        id: id.into(),
                        name: name(host),
                        peer_urls: vec![peer_url(host)],
                        learner: false,
                    },
                    machine,
                    health: if healthy {
                        Health::Healthy
                    } else {
                        Health::Unhealthy("its node did not answer".into())
                    },
                }
            })
            .collect(),
    })
}

fn target(world: &World, number: usize) -> TargetFact {
    let host = &world.hosts[number];
    let silent = || TargetFact::Silent {
        why: "no answer".into(),
    };
    if host.power != Power::Up {
        return silent();
    }
    let hardware_uuid = format!("box-{number}");
    if !host.configured {
        return TargetFact::Maintenance {
            hardware_uuid: Some(hardware_uuid),
        };
    }
    let etcd_service = match (host.member, host.data) {
        (Some(_), _) => "Running",
        // Its data says that it is a member, the others say that it is none.
        (None, true) => "Failed",
        (None, false) => "Preparing",
    };
    TargetFact::Answers(Box::new(Answer {
        hardware_uuid,
        node_id: format!("node-{number}"),
        boot_id: boot(host.boot),
        machine_type: "controlplane".into(),
        node_name: Some(name(number)),
        member_id: host.member.map(u64::from),
        leads: false,
        running: !host.resetting,
        stage: if host.resetting {
            "RESETTING"
        } else {
            "RUNNING"
        }
        .into(),
        etcd_service: etcd_service.into(),
        partitions: vec!["STATE".into(), "EPHEMERAL".into()],
        platform_config: false,
    }))
}

fn checks(world: &World, number: usize, live: &LiveEtcd) -> Vec<Check> {
    let object = &world.objects[number];
    let target = Target {
        machine: &name(object.host),
        member_id: object.member.map(u64::from),
        unhealthy_long: world.hosts[object.host].quiet >= DEAD,
    };
    let mut checks = vec![live_etcd(live, target, DECLARED)];
    if let LiveEtcd::Listed(members) = live {
        checks.push(member_owners(members, target, &[]));
    }
    checks
}

fn machine(world: &World, number: usize) -> MachineFacts {
    let object = &world.objects[number];
    MachineFacts {
        name: name(object.host),
        role: MachineRole::ControlPlane,
        identity: MachineIdentity {
            hardware_uuid: Some(format!("box-{}", object.host)),
            node_id: Some(format!("node-{}", object.host)),
            etcd_member_id: object.member.map(|id| format_etcd_id(id.into())),
            etcd_member_name: Some(name(object.host)),
            etcd_peer_urls: vec![peer_url(object.host)],
            ..MachineIdentity::default()
        },
        consent: Consent {
            allow_delete: true,
            skip_reset: object.skip_reset,
            ..Consent::default()
        },
        done: STEPS
            .iter()
            .filter(|(bit, _)| object.done & bit == *bit)
            .map(|(_, step)| *step)
            .collect(),
        leave_boot_id: object.leave_boot.map(boot),
        leave_by_id: object.leave_by_id,
        hold: None,
        not_wiped: object.not_wiped,
        confirmed: None,
    }
}

fn intent(world: &World, agent: usize, number: usize, task: &Task) -> Option<IntentFacts> {
    let intent = world.objects[number].intent?;
    let (call, member_id) = match intent.kind {
        Kind::Leave(id) | Kind::Remove(id) => (IntentCall::Leave, Some(id.into())),
        Kind::Reset => (IntentCall::Reset, None),
    };
    let mine = intent.pod == world.agents[agent].pod;
    Some(IntentFacts {
        call,
        member_id,
        node_id: Some(format!("node-{}", world.objects[number].host)),
        boot_id: intent.boot.map(boot),
        never_sent: task.never_sent,
        accepted: task.accepted,
        locked: task.locked,
        seen_stopping: false,
        reboots: true,
        settle_due: task
            .intent_seen
            .is_some_and(|age| age >= world.timing.settle),
        sender_may_live: !mine && world.agents.iter().any(|other| other.pod == intent.pod),
    })
}

/// Notes what a look of this task sees for how long.
pub fn note(world: &mut World, agent: usize, number: usize) {
    let object = world.objects[number];
    let fact = target(world, object.host);
    let resetting = object
        .intent
        .is_some_and(|intent| intent.kind == Kind::Reset);
    let task = world.task(agent, number);
    let keep = |age: &mut Option<u8>, so: bool| *age = so.then(|| age.unwrap_or(0));
    keep(&mut task.intent_seen, object.intent.is_some());
    let runs_on = matches!(&fact, TargetFact::Answers(answer) if answer.running);
    keep(&mut task.running_on, resetting && runs_on);
    let silent = matches!(fact, TargetFact::Silent { .. });
    keep(&mut task.silent, resetting && silent);
}

/// What `agent` knows of removal `number` in this moment.
pub fn snapshot(world: &World, agent: usize, number: usize) -> Snapshot {
    let object = &world.objects[number];
    let host = &world.hosts[object.host];
    let task = &world.agents[agent].tasks[number];
    let live = etcd(world);
    Snapshot {
        machine: machine(world, number),
        governing: Governing::Cluster,
        lock_held: task.hold.is_some_and(|hold| {
            protocol::in_force(world::ago(hold.renewed), world::now(), &world::durations()).is_ok()
        }),
        node: NodeFact::Present {
            name: name(object.host),
            uid: "node-uid".into(),
            ready: host.power == Power::Up,
        },
        target: target(world, object.host),
        dead: host.quiet >= DEAD,
        hardware_shared_with: None,
        checks: checks(world, number, &live),
        etcd: Some(live),
        intent: intent(world, agent, number, task),
        drain: DrainFact::Open,
        urgent_waiter: None,
        forfeit_tried: task.forfeit_tried,
        waits: Waits {
            still_running: task.running_on.map(ticks),
            silent: task.silent.map(ticks),
            refused: None,
        },
        limits: Limits {
            reset_not_started: ticks(world::NOT_STARTED),
            wipe_wait: ticks(world::WIPE_WAIT),
            power_off_wait: ticks(world::WIPE_WAIT),
            hold_after: Duration::MAX,
        },
    }
}
