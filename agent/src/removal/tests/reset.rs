//! Step 5: the wipe.

use super::*;

#[test]
fn the_partitions_are_named_and_the_box_reboots_into_maintenance() {
    gives(&at(Phase::Left), reset_call(true));
}

#[test]
fn a_machine_whose_platform_configures_it_is_left_powered_off() {
    let s = with(at(Phase::Left), |s| {
        s.target = answers(|a| a.platform_config = true);
    });
    gives(&s, reset_call(false));
}

#[test]
fn a_reset_never_goes_with_an_empty_list() {
    for s in [at(Phase::Left), worker_at(Phase::Drained)] {
        let s = with(s, |s| {
            if let TargetFact::Answers(answer) = &mut s.target {
                answer.partitions.clear();
            }
        });
        stands(&s, StandstillReason::NodeUnreachable, &["partitions"]);
    }
}

#[test]
fn a_member_of_the_target_whatever_its_role_goes_back_to_the_checks() {
    for (mut s, id) in [
        (at(Phase::Left), NEW_ID),
        (at(Phase::Left), ID),
        (worker_at(Phase::Drained), NEW_ID),
    ] {
        s.machine.identity.etcd_member_name = Some("cp-1".into());
        s.etcd = three_and(Member {
            listed: listed(id, "cp-1", 1),
            ..joined_again()
        });
        gives(&s, Step::RejoinedAs { member_id: id });
    }
}

#[test]
fn a_member_of_its_name_on_another_box_is_not_the_target_and_nothing_is_sent() {
    let s = with(at(Phase::Left), |s| {
        s.etcd = three_and(Member {
            machine: Some("cp-9".into()),
            ..joined_again()
        });
    });
    stands(&s, StandstillReason::IdentityMismatch, &["cp-9"]);
    // The box itself reports yet another member.
    let s = with(at(Phase::Left), |s| {
        s.etcd = three_and(joined_again());
        s.target = answers(|a| a.member_id = Some(0x77));
    });
    stands(&s, StandstillReason::IdentityMismatch, &[]);
    // A dead box cannot say that it is the one.
    let s = with(dead(at(Phase::Left)), |s| {
        s.etcd = three_and(joined_again());
    });
    stands(
        &s,
        StandstillReason::IdentityMismatch,
        &["ichor.maesh.dev/etcd-member-id"],
    );
    // Assigned by that annotation, it is.
    let s = with(s, |s| {
        s.machine.identity.etcd_member_id = Some(format_etcd_id(NEW_ID));
    });
    gives(&s, Step::RejoinedAs { member_id: NEW_ID });
}

#[test]
fn a_box_on_another_boot_than_that_of_its_leave_is_about_to_join_again() {
    let booted = |service: &str| {
        with(at(Phase::Left), |s| {
            s.target = answers(|a| {
                a.boot_id = "boot-2".into();
                a.member_id = None;
                a.etcd_service = service.into();
            });
        })
    };
    for service in ["", "Preparing", "Starting", "Running"] {
        stands(
            &booted(service),
            StandstillReason::Rejoining,
            &["rebooted", "by itself"],
        );
    }
    // It waits without the lock.
    let s = with(booted("Preparing"), |s| s.lock_held = false);
    stands(&s, StandstillReason::Rejoining, &[]);
    // Listed: it leaves again.
    let s = with(booted("Running"), |s| s.etcd = three_and(joined_again()));
    gives(&s, Step::RejoinedAs { member_id: NEW_ID });
    // Its etcd verifiably cannot start.
    gives(&booted("Failed"), reset_call(true));
}

#[test]
fn a_worker_that_rebooted_joins_nothing_and_is_wiped() {
    let s = with(worker_at(Phase::Drained), |s| {
        s.target = answers(|a| {
            a.machine_type = "worker".into();
            a.member_id = None;
            a.boot_id = "boot-2".into();
        });
    });
    gives(&s, reset_call(true));
}

#[test]
fn a_control_plane_is_not_wiped_unless_a_survivors_list_was_read() {
    for (etcd, reason) in [
        (None, StandstillReason::EtcdUnreachable),
        (no_list(), StandstillReason::EtcdUnreachable),
        (quorum_lost(), StandstillReason::QuorumLost),
    ] {
        let s = with(at(Phase::Left), |s| s.etcd = etcd);
        stands(&s, reason, &[]);
    }
}

#[test]
fn a_box_already_in_maintenance_with_the_recorded_uuid_goes_straight_to_confirmation() {
    for s in [at(Phase::Left), worker_at(Phase::Drained)] {
        let s = with(s, |s| s.target = maintenance(Some(BOX)));
        gives(&s, wiped(true, false));
    }
}

#[test]
fn another_box_at_the_address_is_not_wiped() {
    for target in [
        answers(|a| a.hardware_uuid = OTHER_BOX.into()),
        maintenance(Some(OTHER_BOX)),
        maintenance(None),
    ] {
        let s = with(at(Phase::Left), |s| s.target = target);
        stands(
            &s,
            StandstillReason::IdentityMismatch,
            &[BOX, "spec.address"],
        );
    }
}

#[test]
fn a_box_that_was_configured_again_before_its_reset_is_not_wiped() {
    let s = with(at(Phase::Left), |s| {
        s.target = answers(|a| {
            a.node_id = "node-b".into();
            a.boot_id = "boot-2".into();
            a.member_id = None;
        });
    });
    stands(
        &s,
        StandstillReason::Rejoined,
        &[
            "node-b",
            "kubectl annotate tm cp-1 ichor.maesh.dev/accept-rejoin=true",
        ],
    );
    let accepted = with(s, |s| s.machine.consent.accept_rejoin = true);
    gives(&accepted, wiped(false, false));
    // Not while a member of it is listed.
    let listed = with(accepted, |s| s.etcd = three_and(joined_again()));
    stands(&listed, StandstillReason::Rejoined, &["cp-1"]);
}

#[test]
fn a_silent_box_that_is_not_dead_is_waited_for() {
    let s = with(at(Phase::Left), |s| {
        s.target = silent();
        s.machine.consent.skip_reset = true;
    });
    stands(
        &s,
        StandstillReason::NodeUnreachable,
        &["connection refused", "Power it on"],
    );
}

#[test]
fn the_reset_of_a_dead_machine_is_skipped_only_by_consent() {
    for s in [at(Phase::Left), worker_at(Phase::Drained)] {
        let name = s.machine.name.clone();
        let s = dead(s);
        stands(
            &s,
            StandstillReason::SkipResetNeeded,
            &[&format!(
                "kubectl annotate tm {name} ichor.maesh.dev/skip-reset=true"
            )],
        );
        // It waits for a person, so it does not take the lock for that.
        let unlocked = with(s.clone(), |s| s.lock_held = false);
        stands(&unlocked, StandstillReason::SkipResetNeeded, &[]);
        let consented = with(s, |s| s.machine.consent.skip_reset = true);
        gives(&consented, wiped(false, true));
    }
}

#[test]
fn consent_to_skip_is_ignored_while_the_box_answers() {
    let s = with(at(Phase::Left), |s| s.machine.consent.skip_reset = true);
    gives(&s, reset_call(true));
    let waiting = with(at(Phase::ResetSent), |s| {
        s.machine.consent.skip_reset = true;
    });
    match next(&waiting) {
        Step::Wait { message, .. } => {
            assert!(message.contains("skip-reset"), "it is said so: {message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_rule_is_asked_past_the_leave() {
    for phase in [
        Phase::LeaveSent,
        Phase::Left,
        Phase::ResetSent,
        Phase::Wiped,
    ] {
        let s = with(at(phase), |s| {
            s.checks = vec![refusal(StandstillReason::EtcdUnhealthy)];
            s.machine.hold = Some("cafe".into());
            s.waits.refused = Some(120 * MINUTE);
        });
        assert_eq!(next(&s), next(&at(phase)), "{phase:?}");
    }
}

#[test]
fn past_the_leave_the_lock_is_taken_again_before_anything_is_sent() {
    let s = with(at(Phase::Left), |s| s.lock_held = false);
    gives(&s, Step::AcquireLock);
}
