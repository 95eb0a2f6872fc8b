//! Step 7: the last look, and the end.

use super::*;

#[test]
fn a_machine_that_is_wiped_is_finished_with_and_without_the_lock() {
    for lock_held in [true, false] {
        let s = with(at(Phase::Wiped), |s| s.lock_held = lock_held);
        gives(&s, Step::Finish);
    }
}

#[test]
fn a_member_of_the_target_listed_again_is_removed_by_id_first_under_the_lock() {
    let s = with(at(Phase::Wiped), |s| s.etcd = three_and(joined_again()));
    gives(&s, remove_member(NEW_ID));
    let unlocked = with(s, |s| s.lock_held = false);
    gives(&unlocked, Step::AcquireLock);
}

#[test]
fn a_member_that_belongs_to_another_machine_is_not_the_targets() {
    let s = with(at(Phase::Wiped), |s| {
        s.etcd = three_and(Member {
            machine: Some("cp-9".into()),
            ..joined_again()
        });
    });
    gives(&s, Step::Finish);
}

#[test]
fn no_last_look_takes_the_quorum_away() {
    // Let go un-wiped, it came back as a voter; meanwhile cp-3 was removed and cp-2 is down.
    let came_back = |health: Health| {
        with(at(Phase::Wiped), |s| {
            let mut down = voter(2);
            down.health = Health::Unhealthy("its node did not answer".into());
            s.etcd = Some(LiveEtcd::Listed(Members {
                leader: Some(0x14),
                all: vec![
                    down,
                    voter(4),
                    Member {
                        health,
                        ..joined_again()
                    },
                ],
            }));
        })
    };
    stands(
        &came_back(Health::Healthy),
        StandstillReason::EtcdUnhealthy,
        &["cp-2"],
    );
}

#[test]
fn without_a_list_it_is_not_finished() {
    for (etcd, reason) in [
        (no_list(), StandstillReason::EtcdUnreachable),
        (None, StandstillReason::EtcdUnreachable),
        (quorum_lost(), StandstillReason::QuorumLost),
    ] {
        let s = with(at(Phase::Wiped), |s| s.etcd = etcd);
        stands(&s, reason, &[]);
    }
    let worker = with(worker_at(Phase::Wiped), |s| s.etcd = None);
    gives(&worker, Step::Finish);
}

#[test]
fn a_machine_let_go_unwiped_is_finished_like_any_other() {
    let s = with(dead(at(Phase::Wiped)), |s| {
        s.machine.not_wiped = true;
        s.machine.confirmed = Some(false);
    });
    gives(&s, Step::Finish);
}
