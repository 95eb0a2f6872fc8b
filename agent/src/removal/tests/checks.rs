//! Step 2: the rules, asked without the lock and again under it.

use super::*;

const ASKED: [Phase; 3] = [Phase::Deleted, Phase::Locked, Phase::Drained];

#[test]
fn a_refusal_stands_with_the_rules_reason_and_text_undoes_the_cordon_and_gives_the_lock_back() {
    for reason in StandstillReason::ALL {
        for phase in ASKED {
            let s = with(at(phase), |s| s.checks = vec![refusal(*reason)]);
            gives(
                &s,
                Step::Stand {
                    reason: *reason,
                    message: "4 now, 3 after: this goes on by itself [rule: live-etcd]".into(),
                    keep_lock: false,
                    undo_cordon: true,
                },
            );
        }
    }
}

#[test]
fn the_first_rule_that_stands_in_the_way_is_named() {
    let s = with(at(Phase::Locked), |s| {
        s.checks = vec![
            Check::proceed(ichor_rules::Rule::Quorum, Some((4, 3)), "4 now"),
            refusal(StandstillReason::EtcdUnhealthy),
            refusal(StandstillReason::UnknownMember),
        ];
    });
    stands(&s, StandstillReason::EtcdUnhealthy, &["rule: live-etcd"]);
}

#[test]
fn only_an_operation_that_would_pass_takes_the_lock() {
    let refused = with(at(Phase::Deleted), |s| {
        s.checks = vec![refusal(StandstillReason::EtcdUnhealthy)];
    });
    stands(&refused, StandstillReason::EtcdUnhealthy, &[]);
    gives(&at(Phase::Deleted), Step::AcquireLock);
}

#[test]
fn what_passed_without_the_lock_is_asked_again_under_it() {
    let s = with(at(Phase::Locked), |s| {
        s.checks = vec![refusal(StandstillReason::QuorumWouldBreak)];
    });
    stands(&s, StandstillReason::QuorumWouldBreak, &[]);
}

#[test]
fn all_of_step_2_is_asked_once_more_in_the_pass_that_sends_the_leave() {
    let s = with(at(Phase::Drained), |s| {
        s.checks = vec![refusal(StandstillReason::EtcdUnhealthy)];
    });
    stands(&s, StandstillReason::EtcdUnhealthy, &[]);
}

#[test]
fn the_last_worker_is_refused_until_its_reset_is_sent_and_not_after() {
    let last = Check::refuse(
        ichor_rules::Rule::LastWorker,
        StandstillReason::LastWorker,
        Some((1, 0)),
        "the last worker",
    );
    for phase in ASKED {
        let s = with(worker_at(phase), |s| s.checks = vec![last.clone()]);
        stands(&s, StandstillReason::LastWorker, &[]);
    }
    let s = with(worker_at(Phase::ResetSent), |s| {
        s.checks = vec![last];
        s.target = maintenance(Some(BOX));
    });
    gives(&s, wiped(true, false));
}

#[test]
fn a_lost_quorum_says_restore_and_not_remove() {
    let s = with(at(Phase::Deleted), |s| {
        s.etcd = quorum_lost();
        s.checks = s.etcd.iter().map(|e| live(e, false, 3)).collect();
    });
    stands(&s, StandstillReason::QuorumLost, &["restore", "10.0.0.2"]);
}

#[test]
fn one_that_has_been_refused_for_an_hour_is_held() {
    let refused = |for_: Option<Duration>| {
        with(at(Phase::Deleted), |s| {
            s.checks = vec![refusal(StandstillReason::BelowDeclaredCount)];
            s.waits.refused = for_;
        })
    };
    stands(&refused(None), StandstillReason::BelowDeclaredCount, &[]);
    stands(
        &refused(Some(Duration::from_secs(60 * 60 - 1))),
        StandstillReason::BelowDeclaredCount,
        &[],
    );
    gives(&refused(Some(60 * MINUTE)), Step::BeginHold);
}

#[test]
fn a_held_removal_goes_on_only_when_the_token_is_repeated() {
    let held = |token: Option<&str>| {
        with(at(Phase::Deleted), |s| {
            s.machine.hold = Some("cafe".into());
            s.machine.consent.continue_token = token.map(str::to_owned);
        })
    };
    for wrong in [None, Some(""), Some("true"), Some("beef")] {
        stands(
            &held(wrong),
            StandstillReason::Held,
            &[
                "60 minutes",
                "kubectl ichor remove cp-1",
                "ichor.maesh.dev/continue-removal: \"cafe\"",
            ],
        );
    }
    gives(&held(Some("cafe")), Step::AcquireLock);
}

#[test]
fn a_removal_that_was_let_go_on_and_is_refused_for_another_hour_is_held_again() {
    let again = |for_| {
        with(at(Phase::Deleted), |s| {
            s.machine.hold = Some("cafe".into());
            s.machine.consent.continue_token = Some("cafe".into());
            s.checks = vec![refusal(StandstillReason::BelowDeclaredCount)];
            s.waits.refused = Some(for_);
        })
    };
    stands(&again(MINUTE), StandstillReason::BelowDeclaredCount, &[]);
    gives(&again(60 * MINUTE), Step::BeginHold);
}

#[test]
fn another_box_at_the_address_stops_it_and_both_uuids_are_named() {
    for phase in ASKED {
        let s = with(at(phase), |s| {
            s.target = answers(|a| a.hardware_uuid = OTHER_BOX.into());
        });
        stands(
            &s,
            StandstillReason::IdentityMismatch,
            &[BOX, OTHER_BOX, "spec.address"],
        );
        let s = with(at(phase), |s| s.target = maintenance(Some(OTHER_BOX)));
        stands(
            &s,
            StandstillReason::IdentityMismatch,
            &[BOX, OTHER_BOX, "spec.address"],
        );
        let s = with(at(phase), |s| s.target = maintenance(None));
        stands(&s, StandstillReason::IdentityMismatch, &[BOX, "unknown"]);
    }
}

#[test]
fn a_box_that_was_installed_anew_is_not_the_machine_that_was_adopted() {
    for phase in ASKED {
        let s = with(at(phase), |s| {
            s.target = answers(|a| a.node_id = "node-b".into());
        });
        stands(
            &s,
            StandstillReason::IdentityMismatch,
            &["node-b", NODE_ID, "--cancel"],
        );
    }
}

#[test]
fn a_machine_type_that_is_not_the_role_stops_it() {
    for phase in ASKED {
        let s = with(at(phase), |s| {
            s.target = answers(|a| a.machine_type = "worker".into());
        });
        stands(
            &s,
            StandstillReason::RoleMismatch,
            &["worker", "controlplane"],
        );
        let s = with(worker_at(phase), |s| {
            s.target = answers(|a| a.machine_type = "init".into());
        });
        stands(&s, StandstillReason::RoleMismatch, &["init", "worker"]);
    }
    let init = with(at(Phase::Deleted), |s| {
        s.target = answers(|a| a.machine_type = "init".into());
    });
    gives(&init, Step::AcquireLock);
}

#[test]
fn two_machines_with_one_hardware_uuid_nothing_irreversible_on_either() {
    for s in PHASES.map(at).into_iter().chain(PHASES.map(worker_at)) {
        let s = with(s, |s| {
            s.hardware_shared_with = Some("cp-9".into());
            s.intent = None;
        });
        match next(&s) {
            Step::Stand {
                reason: StandstillReason::IdentityMismatch,
                message,
                ..
            } => assert!(message.contains("cp-9"), "{message}"),
            Step::Finish => assert!(s.machine.did(RemovalStep::Confirm)),
            other => panic!("{other:?}"),
        }
    }
    // Where finishing means to remove a member first, it stands too.
    let s = with(at(Phase::Wiped), |s| {
        s.hardware_shared_with = Some("cp-9".into());
        s.etcd = three_and(joined_again());
    });
    stands(&s, StandstillReason::IdentityMismatch, &["cp-9"]);
}

#[test]
fn credentials_that_cannot_be_used_are_said_before_anything_is_done() {
    for phase in [Phase::Deleted, Phase::Locked, Phase::Drained, Phase::Left] {
        let s = with(at(phase), |s| {
            s.target = TargetFact::Credentials {
                why: "certificate expired".into(),
            };
        });
        stands(
            &s,
            StandstillReason::CredentialsInvalid,
            &["certificate expired", "spec.talos.credentialsSecretRef"],
        );
    }
}
