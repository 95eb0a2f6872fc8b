//! `next` held against the specification, sentence by sentence.
//!
//! The fixture is a healthy removal from four control planes to three: `cp-1` goes,
//! `cp-2` leads. [`at`] gives the snapshot of a phase; a test changes what it is about.

mod changing_ones_mind;
mod checks;
mod cluster;
mod confirm;
mod drain;
mod finish;
mod invariants;
mod leave;
mod reset;
mod settling;

use std::time::Duration;

use ichor_api::MachineRole;
use ichor_api::conditions::{RemovalStep, StandstillReason};
use ichor_api::machine::MachineIdentity;
use ichor_api::names::format_etcd_id;
use ichor_rules::Check;
use ichor_rules::etcd::{Health, ListedMember, LiveEtcd, Member, Members, Target, live_etcd};

use super::facts::{
    Answer, Call, Consent, DrainFact, Governing, IntentCall, IntentFacts, Limits, MachineFacts,
    NodeFact, Snapshot, TargetFact, Waits,
};
use super::next::{LetGo, Step, next};

const MINUTE: Duration = Duration::from_mins(1);
const BOX: &str = "11111111-0000-0000-0000-000000000001";
const OTHER_BOX: &str = "22222222-0000-0000-0000-000000000002";
const NODE_ID: &str = "node-a";
const BOOT: &str = "boot-1";
/// The target's member.
const ID: u64 = 0x11;
/// A member that nobody has yet.
const NEW_ID: u64 = 0x99;

/// How far the removal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The object is being deleted; nothing was done.
    Deleted,
    /// It has the lock.
    Locked,
    /// Its Node is empty.
    Drained,
    /// The leave was sent and its outcome is not known.
    LeaveSent,
    /// It is out of etcd.
    Left,
    /// The reset was sent and its outcome is not known.
    ResetSent,
    /// The box was seen in maintenance mode.
    Wiped,
}

const PHASES: [Phase; 7] = [
    Phase::Deleted,
    Phase::Locked,
    Phase::Drained,
    Phase::LeaveSent,
    Phase::Left,
    Phase::ResetSent,
    Phase::Wiped,
];

fn listed(id: u64, name: &str, host: u64) -> ListedMember {
    ListedMember {
        id,
        name: name.into(),
        peer_urls: vec![format!("https://10.0.0.{host}:2380")],
        learner: false,
    }
}

fn voter(number: u64) -> Member {
    let name = format!("cp-{number}");
    Member {
        listed: listed(0x10 + number, &name, number),
        machine: Some(name),
        health: Health::Healthy,
    }
}

/// A member of the target's host that no machine owns: what a box that joins again makes.
fn joined_again() -> Member {
    Member {
        listed: listed(NEW_ID, "cp-1", 1),
        machine: None,
        health: Health::Unhealthy("no TalosMachine has its member ID".into()),
    }
}

#[allow(clippy::unnecessary_wraps)] // as the snapshot has it
fn etcd(all: Vec<Member>) -> Option<LiveEtcd> {
    Some(LiveEtcd::Listed(Members {
        leader: Some(0x12),
        all,
    }))
}

/// With the target's member.
fn four() -> Option<LiveEtcd> {
    etcd((1..=4).map(voter).collect())
}

/// Without it.
fn three() -> Option<LiveEtcd> {
    etcd((2..=4).map(voter).collect())
}

/// Without it, but with `member`.
fn three_and(member: Member) -> Option<LiveEtcd> {
    let mut all: Vec<Member> = (2..=4).map(voter).collect();
    all.push(member);
    etcd(all)
}

#[allow(clippy::unnecessary_wraps)] // as the snapshot has it
fn no_list() -> Option<LiveEtcd> {
    Some(LiveEtcd::NoList {
        endpoints: vec![("10.0.0.2".into(), "no answer".into())],
        no_leader_for_long: false,
    })
}

#[allow(clippy::unnecessary_wraps)] // as the snapshot has it
fn quorum_lost() -> Option<LiveEtcd> {
    Some(LiveEtcd::NoList {
        endpoints: vec![("10.0.0.2".into(), "no answer".into())],
        no_leader_for_long: true,
    })
}

fn answer() -> Answer {
    Answer {
        hardware_uuid: BOX.into(),
        node_id: NODE_ID.into(),
        boot_id: BOOT.into(),
        machine_type: "controlplane".into(),
        node_name: Some("cp-1".into()),
        member_id: Some(ID),
        leads: false,
        running: true,
        stage: "RUNNING".into(),
        etcd_service: "Running".into(),
        partitions: vec!["STATE".into(), "EPHEMERAL".into()],
        platform_config: false,
    }
}

fn answers(change: impl FnOnce(&mut Answer)) -> TargetFact {
    let mut answer = answer();
    change(&mut answer);
    TargetFact::Answers(Box::new(answer))
}

fn silent() -> TargetFact {
    TargetFact::Silent {
        why: "connection refused".into(),
    }
}

fn maintenance(uuid: Option<&str>) -> TargetFact {
    TargetFact::Maintenance {
        hardware_uuid: uuid.map(str::to_owned),
    }
}

fn leave_intent() -> IntentFacts {
    IntentFacts {
        call: IntentCall::Leave,
        member_id: Some(ID),
        node_id: Some(NODE_ID.into()),
        boot_id: Some(BOOT.into()),
        never_sent: false,
        accepted: false,
        locked: false,
        seen_stopping: false,
        reboots: false,
        settle_due: false,
        sender_may_live: false,
    }
}

fn reset_intent() -> IntentFacts {
    IntentFacts {
        call: IntentCall::Reset,
        member_id: None,
        reboots: true,
        ..leave_intent()
    }
}

/// The live-etcd rule's own answer, as the gatherer asks it.
fn live(etcd: &LiveEtcd, unhealthy_long: bool, declared: i32) -> Check {
    live_etcd(
        etcd,
        Target {
            machine: "cp-1",
            member_id: Some(ID),
            unhealthy_long,
        },
        declared,
    )
}

fn refusal(reason: StandstillReason) -> Check {
    Check::wait(
        ichor_rules::Rule::LiveEtcd,
        reason,
        Some((4, 3)),
        "4 now, 3 after: this goes on by itself",
    )
}

/// The fixture in `phase`.
fn at(phase: Phase) -> Snapshot {
    use RemovalStep as S;
    let etcd = if phase < Phase::Left { four() } else { three() };
    let done = match phase {
        Phase::Deleted => vec![],
        Phase::Locked => vec![S::Lock],
        Phase::Drained | Phase::LeaveSent => vec![S::Lock, S::Check, S::Drain],
        Phase::Left | Phase::ResetSent => vec![S::Lock, S::Check, S::Drain, S::LeaveEtcd],
        Phase::Wiped => vec![
            S::Lock,
            S::Check,
            S::Drain,
            S::LeaveEtcd,
            S::Reset,
            S::Confirm,
        ],
    };
    Snapshot {
        machine: MachineFacts {
            name: "cp-1".into(),
            role: MachineRole::ControlPlane,
            identity: MachineIdentity {
                hardware_uuid: Some(BOX.into()),
                node_id: Some(NODE_ID.into()),
                etcd_member_id: Some(format_etcd_id(ID)),
                etcd_member_name: Some("cp-1".into()),
                etcd_peer_urls: vec!["https://10.0.0.1:2380".into()],
                node_name: Some("cp-1".into()),
                ..MachineIdentity::default()
            },
            consent: Consent {
                allow_delete: true,
                ..Consent::default()
            },
            done,
            leave_boot_id: (phase >= Phase::Left).then(|| BOOT.into()),
            leave_by_id: false,
            hold: None,
            not_wiped: false,
            confirmed: (phase == Phase::Wiped).then_some(true),
        },
        governing: Governing::Cluster,
        lock_held: phase != Phase::Deleted,
        node: NodeFact::Present {
            name: "cp-1".into(),
            uid: "node-uid".into(),
            ready: true,
        },
        target: match phase {
            Phase::Left | Phase::ResetSent => answers(|a| a.member_id = None),
            Phase::Wiped => maintenance(Some(BOX)),
            _ => answers(|_| {}),
        },
        dead: false,
        hardware_shared_with: None,
        checks: etcd.iter().map(|e| live(e, false, 3)).collect(),
        etcd,
        intent: match phase {
            Phase::LeaveSent => Some(leave_intent()),
            Phase::ResetSent => Some(reset_intent()),
            _ => None,
        },
        drain: DrainFact::Open,
        urgent_waiter: None,
        forfeit_tried: false,
        waits: Waits::default(),
        limits: Limits {
            reset_not_started: 10 * MINUTE,
            wipe_wait: 20 * MINUTE,
            power_off_wait: 5 * MINUTE,
            hold_after: 60 * MINUTE,
        },
    }
}

/// The same removal of a worker, which has no member and leaves nothing.
fn worker_at(phase: Phase) -> Snapshot {
    let mut s = at(phase);
    s.machine.role = MachineRole::Worker;
    s.machine.name = "worker-1".into();
    s.machine.identity.etcd_member_id = None;
    s.machine.identity.etcd_member_name = None;
    s.machine.identity.etcd_peer_urls.clear();
    s.machine
        .done
        .retain(|step| *step != RemovalStep::LeaveEtcd);
    s.machine.leave_boot_id = None;
    s.checks.clear();
    if matches!(s.target, TargetFact::Answers(_)) {
        s.target = answers(|a| {
            a.machine_type = "worker".into();
            a.member_id = None;
            a.etcd_service = String::new();
        });
    }
    s.etcd = three();
    s
}

fn dead(mut s: Snapshot) -> Snapshot {
    s.target = silent();
    s.dead = true;
    s.node = NodeFact::Present {
        name: "cp-1".into(),
        uid: "node-uid".into(),
        ready: false,
    };
    s
}

fn with(mut s: Snapshot, change: impl FnOnce(&mut Snapshot)) -> Snapshot {
    change(&mut s);
    s
}

/// It stands still for `reason`, gives the lock back, and its text holds every one of `words`.
#[track_caller]
fn stands(s: &Snapshot, reason: StandstillReason, words: &[&str]) {
    match next(s) {
        Step::Stand {
            reason: found,
            message,
            keep_lock,
            ..
        } => {
            assert_eq!(found, reason, "{message}");
            assert!(!keep_lock, "standing still gives the lock back: {message}");
            for word in words {
                assert!(message.contains(word), "{word:?} is not in: {message}");
            }
        }
        other => panic!("expected to stand at {reason}, got {other:?}"),
    }
}

#[track_caller]
fn gives(s: &Snapshot, step: Step) {
    assert_eq!(next(s), step);
}

fn withdraws(s: &Snapshot) -> Option<bool> {
    match next(s) {
        Step::WithdrawIntent { leave_by_id, .. } => Some(leave_by_id),
        _ => None,
    }
}

fn leave_etcd() -> Step {
    Step::Send(Call::LeaveEtcd { member_id: ID })
}

fn remove_member(member_id: u64) -> Step {
    Step::Send(Call::RemoveMember { member_id })
}

fn reset_call(reboot: bool) -> Step {
    Step::Send(Call::Reset {
        wipe: vec!["STATE".into(), "EPHEMERAL".into()],
        reboot,
    })
}

fn wiped(confirmed: bool, not_wiped: bool) -> Step {
    Step::Wiped {
        confirmed,
        not_wiped,
    }
}

#[test]
fn a_healthy_removal_goes_through_its_steps_in_order() {
    gives(&at(Phase::Deleted), Step::AcquireLock);
    gives(&at(Phase::Locked), Step::Drain);
    gives(&at(Phase::Drained), leave_etcd());
    gives(
        &with(at(Phase::LeaveSent), |s| s.etcd = three()),
        Step::LeaveConfirmed {
            boot_id: Some(BOOT.into()),
        },
    );
    gives(&at(Phase::Left), reset_call(true));
    gives(
        &with(at(Phase::ResetSent), |s| s.target = maintenance(Some(BOX))),
        wiped(true, false),
    );
    gives(&at(Phase::Wiped), Step::Finish);
}

#[test]
fn a_workers_removal_is_drained_reset_and_confirmed_without_etcd() {
    gives(&worker_at(Phase::Deleted), Step::AcquireLock);
    gives(&worker_at(Phase::Locked), Step::Drain);
    gives(&worker_at(Phase::Drained), reset_call(true));
    gives(
        &with(worker_at(Phase::ResetSent), |s| {
            s.target = maintenance(Some(BOX));
        }),
        wiped(true, false),
    );
    gives(&worker_at(Phase::Wiped), Step::Finish);
}

#[test]
fn every_step_and_every_reason_that_can_be_given_is_given_by_some_test_snapshot() {
    use StandstillReason as R;
    // Reasons that come from the performer, not from the decision.
    let performers = [
        R::ClusterLockHeld,
        R::ClusterTransitioning,
        R::LeaveFailed,
        // Given by a check of the rules, whose reason is passed on as it is.
        R::LastControlPlane,
        R::QuorumWouldBreak,
        R::BelowDeclaredCount,
        R::EtcdUnhealthy,
        R::LearnerPresent,
        R::UnknownMember,
        R::LastWorker,
    ];
    let mut seen: Vec<R> = samples()
        .iter()
        .filter_map(|s| match next(s) {
            Step::Stand { reason, .. } => Some(reason),
            _ => None,
        })
        .collect();
    seen.sort_unstable();
    seen.dedup();
    let mut expected: Vec<R> = R::ALL
        .iter()
        .copied()
        .filter(|r| !performers.contains(r))
        .collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
    let kinds: std::collections::BTreeSet<String> =
        samples().iter().map(|s| kind(&next(s))).collect();
    let all: std::collections::BTreeSet<String> = [
        "Stand",
        "BeginHold",
        "AcquireLock",
        "Drain",
        "Forfeit",
        "Send",
        "LeaveConfirmed",
        "RejoinedAs",
        "WithdrawIntent",
        "Wiped",
        "Wait",
        "Finish",
        "LetGo",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    assert_eq!(kinds, all);
}

fn kind(step: &Step) -> String {
    format!("{step:?}")
        .split([' ', '(', '{'])
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// One snapshot for each thing that `next` can say.
fn samples() -> Vec<Snapshot> {
    let after = |phase, change: fn(&mut Snapshot)| with(at(phase), change);
    let mut all: Vec<Snapshot> = PHASES.map(at).into();
    all.extend([
        after(Phase::Deleted, |s| s.machine.consent.allow_delete = false),
        after(Phase::Deleted, |s| s.machine.consent.cancel = true),
        after(Phase::Deleted, |s| {
            s.checks = vec![refusal(StandstillReason::EtcdUnhealthy)];
            s.waits.refused = Some(60 * MINUTE);
        }),
        after(Phase::Deleted, |s| {
            s.checks = quorum_lost().iter().map(|e| live(e, false, 3)).collect();
        }),
        after(Phase::Deleted, |s| {
            s.checks = no_list().iter().map(|e| live(e, false, 3)).collect();
        }),
        after(Phase::Deleted, |s| s.governing = Governing::Missing),
        after(Phase::Deleted, |s| {
            s.governing = Governing::Replaced { uid: "u".into() };
        }),
        after(Phase::Deleted, |s| {
            s.target = TargetFact::Credentials {
                why: "expired".into(),
            };
        }),
        after(Phase::Deleted, |s| {
            s.target = answers(|a| a.hardware_uuid = OTHER_BOX.into());
        }),
        after(Phase::Deleted, |s| {
            s.target = answers(|a| a.machine_type = "worker".into());
        }),
        after(Phase::Locked, |s| {
            s.node = NodeFact::Unknown {
                why: "Correct spec.nodeName".into(),
            };
        }),
        after(Phase::Locked, |s| {
            s.drain = DrainFact::TimedOut {
                message: "pod web-1 is blocked by budget web".into(),
            };
        }),
        after(Phase::Locked, |s| {
            s.drain = DrainFact::Blocked {
                message: "pod web-1 is blocked by budget web".into(),
            };
            s.urgent_waiter = Some("the removal of the unhealthy control plane cp-3".into());
        }),
        after(Phase::Drained, |s| s.target = answers(|a| a.leads = true)),
        after(Phase::Drained, |s| s.target = silent()),
        after(Phase::LeaveSent, |s| s.etcd = three()),
        after(Phase::LeaveSent, |s| {
            s.intent = Some(IntentFacts {
                settle_due: true,
                ..leave_intent()
            });
        }),
        after(Phase::Left, |s| {
            s.etcd = three_and(joined_again());
        }),
        after(Phase::Left, |s| {
            s.target = answers(|a| {
                a.boot_id = "boot-2".into();
                a.member_id = None;
                a.etcd_service = "Preparing".into();
            });
        }),
        dead(at(Phase::Left)),
        after(Phase::ResetSent, |s| s.target = maintenance(Some(BOX))),
        after(Phase::ResetSent, |s| {
            s.target = answers(|a| a.node_id = "node-b".into());
        }),
        after(Phase::ResetSent, |s| {
            s.target = silent();
            s.waits.silent = Some(20 * MINUTE);
        }),
    ]);
    all
}
