//! What the removal stands under: the cluster, its end, its absence; and a machine that
//! was never seen.

use super::*;

fn under(phase: Phase, governing: Governing) -> Snapshot {
    with(at(phase), |s| {
        s.governing = governing;
        s.checks.clear();
    })
}

#[test]
fn in_a_terminating_namespace_nothing_is_finished() {
    for phase in PHASES {
        gives(
            &under(phase, Governing::NamespaceTerminating),
            Step::LetGo(LetGo::NamespaceTerminating),
        );
    }
}

#[test]
fn without_its_cluster_nothing_is_done_to_the_node() {
    for phase in PHASES {
        let missing = with(under(phase, Governing::Missing), |s| {
            // There is nobody to take credentials from.
            s.target = TargetFact::Credentials {
                why: "there is no TalosCluster to take them from".into(),
            };
            s.etcd = None;
        });
        stands(
            &missing,
            StandstillReason::ClusterMissing,
            &["kubectl ichor remove cp-1 --cancel"],
        );
        let replaced = under(
            phase,
            Governing::Replaced {
                uid: "other-uid".into(),
            },
        );
        stands(
            &replaced,
            StandstillReason::ClusterReplaced,
            &[
                "other-uid",
                "ichor.maesh.dev/adopt-cluster",
                "kubectl ichor remove cp-1 --cancel",
            ],
        );
        for s in [missing, replaced] {
            let cancelled = with(s, |s| s.machine.consent.cancel = true);
            gives(&cancelled, Step::LetGo(LetGo::Cancelled));
        }
    }
}

#[test]
fn an_orphaning_teardown_leaves_machines_untouched() {
    for may_finish in [true, false] {
        for phase in [Phase::Deleted, Phase::Locked, Phase::Drained] {
            gives(
                &under(phase, Governing::TeardownOrphan { may_finish }),
                Step::LetGo(LetGo::Orphaned),
            );
        }
    }
}

#[test]
fn an_orphaning_teardown_finishes_what_is_past_its_leave_while_it_may() {
    let may = |phase| under(phase, Governing::TeardownOrphan { may_finish: true });
    gives(&may(Phase::Left), reset_call(true));
    gives(
        &with(may(Phase::LeaveSent), |s| s.etcd = three()),
        Step::LeaveConfirmed {
            boot_id: Some(BOOT.into()),
        },
    );
    gives(
        &with(may(Phase::ResetSent), |s| s.target = maintenance(Some(BOX))),
        wiped(true, false),
    );
    gives(&may(Phase::Wiped), Step::Finish);
}

#[test]
fn after_twenty_minutes_an_orphaning_teardown_lets_everything_go() {
    for phase in PHASES {
        let s = with(
            under(phase, Governing::TeardownOrphan { may_finish: false }),
            |s| {
                s.target = silent();
                s.etcd = no_list();
            },
        );
        gives(&s, Step::LetGo(LetGo::Orphaned));
    }
}

#[test]
fn a_resetting_teardown_resets_without_draining_or_leaving_and_without_rules() {
    let turn = |phase| {
        with(under(phase, Governing::TeardownReset { turn: true }), |s| {
            s.machine.consent = Consent::default();
            s.checks = vec![refusal(StandstillReason::QuorumWouldBreak)];
            s.machine.hold = Some("cafe".into());
        })
    };
    for phase in [Phase::Locked, Phase::Drained, Phase::Left] {
        gives(&turn(phase), reset_call(true));
    }
    gives(&turn(Phase::Deleted), Step::AcquireLock);
    gives(&turn(Phase::Wiped), Step::Finish);
    // etcd may be gone by then.
    for etcd in [None, no_list(), quorum_lost(), four()] {
        gives(
            &with(turn(Phase::Drained), |s| s.etcd = etcd.clone()),
            reset_call(true),
        );
        gives(
            &with(turn(Phase::Wiped), |s| s.etcd = etcd.clone()),
            Step::Finish,
        );
    }
}

#[test]
fn control_planes_wait_for_the_workers_without_the_lock() {
    for lock_held in [true, false] {
        let s = with(
            under(Phase::Locked, Governing::TeardownReset { turn: false }),
            |s| s.lock_held = lock_held,
        );
        stands(
            &s,
            StandstillReason::Yielded,
            &["workers are reset first", "by itself"],
        );
    }
}

#[test]
fn a_resetting_teardown_still_compares_who_answers() {
    let teardown = |target| {
        with(
            under(Phase::Drained, Governing::TeardownReset { turn: true }),
            |s| s.target = target,
        )
    };
    stands(
        &teardown(answers(|a| a.hardware_uuid = OTHER_BOX.into())),
        StandstillReason::IdentityMismatch,
        &["spec.address"],
    );
    stands(
        &teardown(answers(|a| a.machine_type = "worker".into())),
        StandstillReason::RoleMismatch,
        &[],
    );
    stands(
        &teardown(answers(|a| a.node_id = "node-b".into())),
        StandstillReason::Rejoined,
        &["accept-rejoin"],
    );
    let accepted = with(teardown(answers(|a| a.node_id = "node-b".into())), |s| {
        s.machine.consent.accept_rejoin = true;
        s.etcd = no_list();
    });
    gives(&accepted, wiped(false, false));
}

#[test]
fn a_teardown_is_not_held_up_by_a_leave_that_etcd_can_no_longer_settle() {
    let s = |settle_due| {
        with(
            under(Phase::LeaveSent, Governing::TeardownReset { turn: true }),
            |s| {
                s.etcd = quorum_lost();
                s.intent = Some(IntentFacts {
                    settle_due,
                    ..leave_intent()
                });
            },
        )
    };
    stands(&s(false), StandstillReason::QuorumLost, &[]);
    assert_eq!(withdraws(&s(true)), Some(true));
}

#[test]
fn a_teardown_lets_a_machine_go_that_was_never_seen() {
    let s = with(
        under(Phase::Deleted, Governing::TeardownReset { turn: true }),
        |s| s.machine.identity = MachineIdentity::default(),
    );
    gives(&s, Step::LetGo(LetGo::NeverSeen));
}

fn never_identified() -> Snapshot {
    with(at(Phase::Deleted), |s| {
        s.machine.identity = MachineIdentity {
            // What the gatherer derives from the address.
            etcd_peer_urls: vec!["https://10.0.0.1:2380".into()],
            ..MachineIdentity::default()
        };
        s.target = silent();
        s.etcd = three();
    })
}

#[test]
fn a_machine_that_never_answered_is_let_go_and_sent_nothing() {
    gives(&never_identified(), Step::LetGo(LetGo::NeverSeen));
    let worker = with(never_identified(), |s| {
        s.machine.role = MachineRole::Worker;
        s.etcd = None;
    });
    gives(&worker, Step::LetGo(LetGo::NeverSeen));
}

#[test]
fn a_member_at_the_address_of_a_machine_that_never_answered_is_removed_by_id() {
    let s = with(never_identified(), |s| {
        s.etcd = three_and(joined_again());
        s.lock_held = true;
    });
    gives(&s, remove_member(NEW_ID));
    gives(&with(s.clone(), |s| s.lock_held = false), Step::AcquireLock);
    for lock_held in [true, false] {
        let refused = with(s.clone(), |s| {
            s.lock_held = lock_held;
            s.checks = vec![refusal(StandstillReason::UnknownMember)];
        });
        stands(&refused, StandstillReason::UnknownMember, &[]);
    }
}

#[test]
fn a_member_at_its_address_that_belongs_to_another_machine_is_not_removed() {
    let s = with(never_identified(), |s| {
        s.lock_held = true;
        s.etcd = three_and(Member {
            machine: Some("cp-9".into()),
            ..joined_again()
        });
    });
    gives(&s, Step::LetGo(LetGo::NeverSeen));
}

#[test]
fn a_machine_that_never_answered_waits_for_a_list_and_for_consent_like_any_other() {
    let s = with(never_identified(), |s| s.etcd = no_list());
    stands(&s, StandstillReason::EtcdUnreachable, &[]);
    let s = with(never_identified(), |s| {
        s.machine.consent.allow_delete = false;
    });
    stands(&s, StandstillReason::Held, &[]);
}
