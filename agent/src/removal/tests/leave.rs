//! Step 4: leaving etcd.

use super::*;

#[test]
fn the_target_leaves_by_itself_while_it_is_up() {
    gives(&at(Phase::Drained), leave_etcd());
}

#[test]
fn it_gives_up_leadership_first_once() {
    let leads = |tried| {
        with(at(Phase::Drained), |s| {
            s.target = answers(|a| a.leads = true);
            s.forfeit_tried = tried;
        })
    };
    gives(&leads(false), Step::Forfeit);
    // A failure is recorded and the leave follows: etcd elects by itself.
    gives(&leads(true), leave_etcd());
}

#[test]
fn a_dead_target_is_removed_by_its_recorded_id_through_a_survivor() {
    gives(&dead(at(Phase::Drained)), remove_member(ID));
}

#[test]
fn a_target_that_says_that_its_etcd_is_down_is_removed_by_its_recorded_id() {
    let s = with(at(Phase::Drained), |s| {
        s.target = answers(|a| {
            a.member_id = None;
            a.etcd_service = "Waiting".into();
        });
    });
    gives(&s, remove_member(ID));
    // In maintenance mode it has no etcd at all.
    let s = with(at(Phase::Drained), |s| s.target = maintenance(Some(BOX)));
    gives(&s, remove_member(ID));
}

#[test]
fn the_recorded_id_is_removed_only_where_it_is_listed_under_the_recorded_name_or_address() {
    let foreign = with(dead(at(Phase::Drained)), |s| {
        let mut members: Vec<Member> = (2..=4).map(voter).collect();
        members.push(Member {
            listed: listed(ID, "somebody", 77),
            machine: Some("cp-1".into()),
            health: Health::Healthy,
        });
        s.etcd = etcd(members);
    });
    stands(
        &foreign,
        StandstillReason::IdentityMismatch,
        &["somebody", "cp-1"],
    );
    // One of the two is enough.
    for (name, host) in [("cp-1", 77), ("renamed", 1)] {
        let s = with(dead(at(Phase::Drained)), |s| {
            s.etcd = three_and(Member {
                listed: listed(ID, name, host),
                machine: Some("cp-1".into()),
                health: Health::Healthy,
            });
        });
        gives(&s, remove_member(ID));
    }
}

#[test]
fn a_silent_talos_api_of_a_live_node_stops_it_and_names_the_ways_out() {
    let s = with(at(Phase::Drained), |s| s.target = silent());
    stands(
        &s,
        StandstillReason::NodeUnreachable,
        &[
            "connection refused",
            "Repair",
            "power the box off",
            "kubectl ichor remove cp-1 --cancel",
        ],
    );
}

#[test]
fn a_leave_is_repeated_only_as_a_removal_by_the_recorded_id() {
    let s = with(at(Phase::Drained), |s| s.machine.leave_by_id = true);
    gives(&s, remove_member(ID));
}

#[test]
fn without_a_list_nothing_is_sent() {
    for (etcd, reason) in [
        (no_list(), StandstillReason::EtcdUnreachable),
        (quorum_lost(), StandstillReason::QuorumLost),
        (None, StandstillReason::EtcdUnreachable),
    ] {
        let s = with(at(Phase::Drained), |s| s.etcd = etcd);
        stands(&s, reason, &[]);
    }
}

#[test]
fn a_machine_without_a_listed_member_has_left_already() {
    let s = with(at(Phase::Drained), |s| s.etcd = three());
    gives(
        &s,
        Step::LeaveConfirmed {
            boot_id: Some(BOOT.into()),
        },
    );
    // An etcd that was never begun lists nobody.
    let s = with(at(Phase::Drained), |s| {
        s.etcd = Some(LiveEtcd::Listed(Members::default()));
    });
    gives(
        &s,
        Step::LeaveConfirmed {
            boot_id: Some(BOOT.into()),
        },
    );
}

#[test]
fn a_member_of_its_name_under_another_id_on_its_own_box_is_the_target_joined_again() {
    for member_id in [Some(NEW_ID), None] {
        let s = with(at(Phase::Drained), |s| {
            s.etcd = three_and(joined_again());
            s.target = answers(|a| a.member_id = member_id);
        });
        gives(&s, Step::RejoinedAs { member_id: NEW_ID });
    }
}

#[test]
fn a_member_of_its_name_that_may_be_somebody_elses_is_never_removed() {
    for target in [
        silent(),
        answers(|a| a.member_id = Some(0x77)),
        maintenance(None),
    ] {
        let s = with(dead(at(Phase::Drained)), |s| {
            s.etcd = three_and(joined_again());
            s.target = target;
        });
        stands(&s, StandstillReason::IdentityMismatch, &[]);
    }
    // It belongs by its ID to another machine.
    for member_id in [None, Some(NEW_ID)] {
        let s = with(at(Phase::Drained), |s| {
            s.etcd = three_and(Member {
                machine: Some("cp-9".into()),
                ..joined_again()
            });
            s.target = answers(|a| a.member_id = member_id);
        });
        stands(
            &s,
            StandstillReason::IdentityMismatch,
            &["cp-9", "ichor.maesh.dev/etcd-member-id"],
        );
    }
}

#[test]
fn workers_leave_nothing() {
    gives(&worker_at(Phase::Drained), reset_call(true));
}

#[test]
fn an_unhealthy_voter_has_to_go_before_the_healthy_target() {
    let s = with(at(Phase::Drained), |s| {
        let mut members: Vec<Member> = (1..=4).map(voter).collect();
        members[3].health = Health::Unhealthy("its node did not answer".into());
        s.etcd = etcd(members);
        s.checks = s.etcd.iter().map(|e| live(e, false, 3)).collect();
    });
    stands(&s, StandstillReason::EtcdUnhealthy, &["cp-4"]);
    let s = with(dead(at(Phase::Drained)), |s| {
        let mut members: Vec<Member> = (1..=3).map(voter).collect();
        members[0].health = Health::Unhealthy("its node did not answer".into());
        s.etcd = etcd(members);
        s.checks = s.etcd.iter().map(|e| live(e, true, 3)).collect();
    });
    gives(&s, remove_member(ID));
}
