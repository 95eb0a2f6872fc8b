//! What holds of every snapshot whatever, sensible or not.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// Reasons by which step 2 refuses.
const REFUSALS: [StandstillReason; 8] = [
    StandstillReason::EtcdUnhealthy,
    StandstillReason::LastControlPlane,
    StandstillReason::QuorumWouldBreak,
    StandstillReason::BelowDeclaredCount,
    StandstillReason::LearnerPresent,
    StandstillReason::UnknownMember,
    StandstillReason::LastWorker,
    StandstillReason::Held,
];

fn maybe<T: Clone + std::fmt::Debug + 'static>(value: T) -> impl Strategy<Value = Option<T>> {
    select(vec![None, Some(value)])
}

fn targets() -> impl Strategy<Value = TargetFact> {
    let answers = (
        select(vec![BOX, OTHER_BOX, ""]),
        select(vec![NODE_ID, "node-b"]),
        select(vec![BOOT, "boot-2"]),
        select(vec!["controlplane", "worker", "unknown"]),
        select(vec![None, Some(ID), Some(NEW_ID)]),
        any::<(bool, bool, bool, bool)>(),
        select(vec!["", "Running", "Waiting", "Failed"]),
    )
        .prop_map(|(hardware, node, boot, kind, member_id, flags, service)| {
            let (leads, running, platform_config, partitions) = flags;
            TargetFact::Answers(Box::new(Answer {
                hardware_uuid: hardware.into(),
                node_id: node.into(),
                boot_id: boot.into(),
                machine_type: kind.into(),
                node_name: Some("cp-1".into()),
                member_id,
                leads,
                running,
                stage: if running { "RUNNING" } else { "BOOTING" }.into(),
                etcd_service: service.into(),
                partitions: if partitions {
                    vec!["STATE".into()]
                } else {
                    vec![]
                },
                platform_config,
            }))
        });
    prop_oneof![
        4 => answers,
        1 => select(vec![None, Some(BOX), Some(OTHER_BOX)]).prop_map(maintenance),
        1 => Just(silent()),
        1 => Just(TargetFact::Credentials { why: "expired".into() }),
    ]
}

fn members() -> impl Strategy<Value = Option<LiveEtcd>> {
    let member = (
        select(vec![ID, 0x12, 0x13, NEW_ID]),
        select(vec!["cp-1", "cp-2", ""]),
        1..4_u64,
        any::<(bool, bool)>(),
        select(vec![None, Some("cp-1"), Some("cp-9")]),
    )
        .prop_map(|(id, name, host, (learner, healthy), machine)| Member {
            listed: ListedMember {
                learner,
                ..listed(id, name, host)
            },
            machine: machine.map(str::to_owned),
            health: if healthy {
                Health::Healthy
            } else {
                Health::Unhealthy("its node did not answer".into())
            },
        });
    prop_oneof![
        1 => Just(None),
        1 => Just(no_list()),
        1 => Just(quorum_lost()),
        2 => Just(three()),
        2 => Just(four()),
        4 => proptest::collection::vec(member, 0..5).prop_map(etcd),
    ]
}

fn intents() -> impl Strategy<Value = Option<IntentFacts>> {
    let intent = (
        select(vec![
            IntentCall::Leave,
            IntentCall::Reset,
            IntentCall::Other,
        ]),
        select(vec![None, Some(ID), Some(NEW_ID)]),
        maybe(NODE_ID.to_owned()),
        maybe(BOOT.to_owned()),
        any::<[bool; 7]>(),
    )
        .prop_map(|(call, member_id, node_id, boot_id, flags)| IntentFacts {
            call,
            member_id,
            node_id,
            boot_id,
            never_sent: flags[0],
            accepted: flags[1],
            locked: flags[2],
            seen_stopping: flags[3],
            reboots: flags[4],
            settle_due: flags[5],
            sender_may_live: flags[6],
        });
    prop_oneof![2 => Just(None), 1 => intent.prop_map(Some)]
}

fn machines() -> impl Strategy<Value = MachineFacts> {
    (
        any::<[bool; 9]>(),
        select(vec![None, Some("cafe"), Some("beef")]),
        maybe("cafe".to_owned()),
        proptest::sample::subsequence(RemovalStep::ALL.to_vec(), 0..=7),
        maybe(BOOT.to_owned()),
        (maybe(BOX), maybe(NODE_ID), maybe(ID), maybe("cp-1")),
    )
        .prop_map(|(flags, token, hold, done, leave_boot_id, identity)| {
            let (hardware, node, member, name) = identity;
            MachineFacts {
                name: "cp-1".into(),
                role: if flags[0] {
                    MachineRole::ControlPlane
                } else {
                    MachineRole::Worker
                },
                identity: MachineIdentity {
                    hardware_uuid: hardware.map(str::to_owned),
                    node_id: node.map(str::to_owned),
                    etcd_member_id: member.map(format_etcd_id),
                    etcd_member_name: name.map(str::to_owned),
                    etcd_peer_urls: if flags[1] {
                        vec!["https://10.0.0.1:2380".into()]
                    } else {
                        vec![]
                    },
                    ..MachineIdentity::default()
                },
                consent: Consent {
                    allow_delete: flags[2],
                    cancel: flags[3] && flags[4],
                    skip_reset: flags[5],
                    accept_rejoin: flags[6],
                    continue_token: token.map(str::to_owned),
                },
                done,
                leave_boot_id,
                leave_by_id: flags[7],
                hold,
                not_wiped: flags[8],
                confirmed: None,
            }
        })
}

fn governings() -> impl Strategy<Value = Governing> {
    prop_oneof![
        6 => Just(Governing::Cluster),
        1 => any::<bool>().prop_map(|may_finish| Governing::TeardownOrphan { may_finish }),
        1 => any::<bool>().prop_map(|turn| Governing::TeardownReset { turn }),
        1 => Just(Governing::Missing),
        1 => Just(Governing::Replaced { uid: "u".into() }),
        1 => Just(Governing::NamespaceTerminating),
    ]
}

fn nodes() -> impl Strategy<Value = NodeFact> {
    prop_oneof![
        Just(NodeFact::NotAsked),
        Just(NodeFact::Missing {
            name: "cp-1".into()
        }),
        Just(NodeFact::Unknown {
            why: "Node cp-1 is another box. Correct spec.nodeName".into()
        }),
        any::<bool>().prop_map(|ready| NodeFact::Present {
            name: "cp-1".into(),
            uid: "u".into(),
            ready,
        }),
    ]
}

fn waits() -> impl Strategy<Value = Waits> {
    let wait = || {
        select(vec![
            None,
            Some(Duration::ZERO),
            Some(6 * MINUTE),
            Some(15 * MINUTE),
            Some(120 * MINUTE),
        ])
    };
    (wait(), wait(), wait()).prop_map(|(still_running, silent, refused)| Waits {
        still_running,
        silent,
        refused,
    })
}

prop_compose! {
    fn snapshots()(
        machine in machines(),
        governing in governings(),
        target in targets(),
        etcd in members(),
        intent in intents(),
        node in nodes(),
        waits in waits(),
        flags in any::<[bool; 3]>(),
        shared in select(vec![None, None, None, Some("cp-9")]),
        check in select(vec![None, Some(StandstillReason::QuorumWouldBreak), Some(StandstillReason::LastWorker)]),
        drain in select(vec![
            DrainFact::Open,
            DrainFact::Blocked { message: "pod web-1: blocked by budget web".into() },
            DrainFact::TimedOut { message: "pod web-1: blocked by budget web; tried again by itself when that changes".into() },
        ]),
        urgent in maybe("the removal of cp-3".to_owned()),
    ) -> Snapshot {
        Snapshot {
            machine,
            governing,
            lock_held: flags[0],
            node,
            // Dead is what has been silent for long.
            dead: flags[1] && matches!(target, TargetFact::Silent { .. }),
            target,
            hardware_shared_with: shared.map(str::to_owned),
            etcd,
            checks: check.map(refusal).into_iter().collect(),
            intent,
            drain,
            urgent_waiter: urgent,
            forfeit_tried: flags[2],
            waits,
            ..at(Phase::Deleted)
        }
    }
}

/// Whether a member that may be the target's is listed.
fn target_listed(s: &Snapshot) -> bool {
    let Some(LiveEtcd::Listed(members)) = &s.etcd else {
        return false;
    };
    let identity = &s.machine.identity;
    members.all.iter().any(|m| {
        Some(m.listed.id) == s.machine.member_id()
            || (m.listed.started() && identity.etcd_member_name.as_deref() == Some(&m.listed.name))
            || m.listed
                .peer_urls
                .iter()
                .any(|url| identity.etcd_peer_urls.contains(url))
    })
}

/// Whether a text tells what to do or that nothing is to be done.
fn names_a_next_step(message: &str) -> bool {
    [
        "kubectl ",
        "talosctl ",
        "ichor.maesh.dev/",
        "by itself",
        "spec.",
        // Of the rules' texts, where something else has to come before.
        " first",
        "restore etcd",
    ]
    .iter()
    .any(|mark| message.contains(mark))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_snapshot_has_one_answer(s in snapshots()) {
        prop_assert_eq!(next(&s), next(&s.clone()));
    }

    #[test]
    fn past_a_confirmed_leave_and_with_no_member_listed_nothing_refuses_or_cancels(s in snapshots()) {
        let mut s = s;
        s.governing = Governing::Cluster;
        s.machine.identity.hardware_uuid = Some(BOX.into());
        s.machine.done.push(RemovalStep::LeaveEtcd);
        if target_listed(&s) {
            s.etcd = three();
        }
        match next(&s) {
            Step::Stand { reason, message, .. } => {
                prop_assert!(!REFUSALS.contains(&reason), "{}: {}", reason, message);
            }
            step => prop_assert!(
                !matches!(step, Step::LetGo(_) | Step::BeginHold),
                "{:?}", step
            ),
        }
    }

    #[test]
    fn nothing_is_sent_without_the_lock_nor_on_top_of_an_unsettled_call(s in snapshots()) {
        if let Step::Send(call) = next(&s) {
            prop_assert!(s.lock_held, "{:?}", call);
            prop_assert!(s.intent.is_none(), "{:?}", call);
        }
    }

    #[test]
    fn nothing_is_sent_where_the_cluster_is_not_its_own(s in snapshots()) {
        if matches!(
            s.governing,
            Governing::Missing | Governing::Replaced { .. } | Governing::NamespaceTerminating
        ) {
            let step = next(&s);
            let untouched = matches!(step, Step::Stand { .. } | Step::LetGo(_));
            prop_assert!(untouched, "{:?}", step);
        }
    }

    #[test]
    fn nothing_irreversible_is_done_to_hardware_that_two_machines_claim(s in snapshots()) {
        if s.hardware_shared_with.is_some() && s.machine.identity.hardware_uuid.is_some() {
            prop_assert!(!matches!(next(&s), Step::Send(_)));
        }
    }

    #[test]
    fn a_reset_goes_only_to_the_recorded_box_and_never_while_its_member_is_listed(s in snapshots()) {
        if let Step::Send(Call::Reset { wipe, .. }) = next(&s) {
            prop_assert!(!wipe.is_empty());
            let TargetFact::Answers(answer) = &s.target else {
                return Err(TestCaseError::fail("a reset to a box that does not answer"));
            };
            prop_assert_eq!(Some(&answer.hardware_uuid), s.machine.identity.hardware_uuid.as_ref());
            if let Some(node_id) = &s.machine.identity.node_id {
                prop_assert_eq!(node_id, &answer.node_id);
            }
            // In a teardown the cluster goes as a whole, its members with it.
            if !matches!(s.governing, Governing::TeardownReset { .. }) {
                prop_assert!(!target_listed(&s));
                prop_assert!(
                    s.machine.role == MachineRole::Worker
                        || matches!(s.etcd, Some(LiveEtcd::Listed(_)))
                );
            }
        }
    }

    #[test]
    fn only_a_listed_member_that_is_nobody_elses_is_removed(s in snapshots()) {
        let Step::Send(
            Call::RemoveMember { member_id: id } | Call::LeaveEtcd { member_id: id },
        ) = next(&s)
        else {
            return Ok(());
        };
        let Some(LiveEtcd::Listed(members)) = &s.etcd else {
            return Err(TestCaseError::fail("a member is removed without a list"));
        };
        prop_assert!(members.by_id(id).is_some());
        if Some(id) != s.machine.member_id() {
            let own = members
                .all
                .iter()
                .filter(|m| m.listed.id == id)
                .any(|m| m.machine.as_deref().is_none_or(|name| name == "cp-1"));
            prop_assert!(own);
        }
    }

    #[test]
    fn standing_still_gives_the_lock_back_and_says_what_to_do(s in snapshots()) {
        if let Step::Stand { reason, message, keep_lock, .. } = next(&s) {
            prop_assert!(!keep_lock);
            prop_assert!(names_a_next_step(&message), "{}: {}", reason, message);
        }
    }

    #[test]
    fn a_machine_is_finished_with_only_once_it_is_confirmed(s in snapshots()) {
        if next(&s) == Step::Finish {
            prop_assert!(s.machine.did(RemovalStep::Confirm));
            prop_assert!(s.intent.is_none());
        }
    }

    #[test]
    fn unwiped_only_by_consent_and_never_while_its_box_answers(s in snapshots()) {
        if let Step::Wiped { not_wiped: true, confirmed } = next(&s) {
            prop_assert!(!confirmed);
            prop_assert!(s.machine.consent.skip_reset);
            if let TargetFact::Answers(answer) = &s.target {
                prop_assert_ne!(Some(&answer.hardware_uuid), s.machine.identity.hardware_uuid.as_ref());
            }
        }
    }

    #[test]
    fn wiped_and_confirmed_only_where_the_recorded_box_is_in_maintenance(s in snapshots()) {
        if let Step::Wiped { confirmed: true, .. } = next(&s) {
            prop_assert_eq!(&s.target, &maintenance(s.machine.identity.hardware_uuid.as_deref()));
        }
    }
}
