//! What a holder may do, and when it no longer holds.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Agent, held_by, pass, permit, removal, secs};
use ichor_lock::testing::{Fault, MemoryStore};
use ichor_lock::{
    LeaseError, LeaseRecord, Lost, PermitError, PermitStale, RenewError, annotations,
};

fn me(machine: &str, instance: &str) -> String {
    format!("{}@{instance}", removal(machine))
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_every_minute_on_the_version_last_seen() {
    let store = MemoryStore::new();
    let lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    let token = (lock.fencing().0.to_owned(), lock.fencing().1);
    pass(630).await;
    assert_eq!(store.writes().len(), 11, "one acquisition, ten renewals");
    assert_eq!(store.reads(), 1, "a renewal needs no read");
    let record = store.record().unwrap();
    assert_eq!((record.uid, record.transitions), token);
    assert!(store.writes()[1..].iter().all(|write| !write.acquired));
    assert!(!lock.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_release_frees_the_lease_and_takes_the_operations_step_off_it() {
    let store = MemoryStore::new();
    store.edit(|record| {
        record.annotations.insert("team".into(), "storage".into());
    });
    let agent = Agent::new("pod-a", &store);
    let mut lock = agent.acquire(&removal("cp-1")).await.unwrap();
    permit(&mut lock, "Reset")
        .await
        .unwrap()
        .begin()
        .unwrap()
        .finish()
        .lost
        .ok_or(())
        .unwrap_err();
    let record = store.record().unwrap();
    let (step, details) = record.step_of(&removal("cp-1")).unwrap();
    assert_eq!(
        (step, details),
        ("Reset", BTreeMap::from([("machine", "cp-1")]))
    );
    assert_eq!(record.step_of(&removal("cp-2")), None);
    lock.release().await.unwrap();
    let record = store.record().unwrap();
    assert_eq!(record.held_by(), None);
    let left: Vec<_> = record.annotations.keys().map(String::as_str).collect();
    assert_eq!(left, [annotations::RENEWAL, "team"]);
    let writes = store.writes().len();
    pass(600).await;
    assert_eq!(
        store.writes().len(),
        writes,
        "nothing renews a lock given back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_step_replaces_the_one_before_with_all_its_details() {
    let store = MemoryStore::new();
    let mut lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    let intent = lock.mark_intent();
    let note = BTreeMap::from([("member".to_owned(), "00000000000000ab".to_owned())]);
    lock.permit("RemoveMember", &note, intent)
        .await
        .unwrap()
        .check()
        .unwrap();
    permit(&mut lock, "Reset").await.unwrap().check().unwrap();
    let record = store.record().unwrap();
    assert_eq!(
        record.step_of(&removal("cp-1")).unwrap(),
        ("Reset", BTreeMap::from([("machine", "cp-1")]))
    );
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_stops_renewing_and_gives_nothing_back() {
    let store = MemoryStore::new();
    let lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    drop(lock);
    pass(200).await;
    assert_eq!(store.writes().len(), 1);
    assert_eq!(store.holder(), Some(me("cp-1", "pod-a")));
}

/// What somebody does to the Lease, and what the holder then says.
type Tampering = (&'static str, fn(&MemoryStore), Lost);

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_no_longer_ours_is_lost_at_the_next_renewal() {
    let cases: [Tampering; 5] = [
        ("deleted", MemoryStore::delete, Lost::Deleted),
        (
            "made anew",
            |store| {
                let record = store.record().unwrap();
                store.delete();
                store.edit(|fresh| {
                    *fresh = LeaseRecord {
                        uid: fresh.uid.clone(),
                        ..record
                    }
                });
            },
            Lost::Replaced,
        ),
        (
            "cleared",
            |store| store.edit(|record| record.holder = None),
            Lost::Cleared,
        ),
        (
            "stolen",
            |store| store.edit(|record| record.holder = Some("me now".into())),
            Lost::Taken {
                holder: "me now".into(),
            },
        ),
        (
            "another hold of the same holder",
            |store| store.edit(|record| record.transitions += 1),
            Lost::AcquiredAgain { ours: 0, found: 1 },
        ),
    ];
    for (name, tamper, expected) in cases {
        let store = MemoryStore::new();
        let agent = Agent::new("pod-a", &store);
        let mut lock = agent.acquire(&removal("cp-1")).await.unwrap();
        tamper(&store);
        let there = store.record();
        let lost = tokio::time::timeout(secs(61), lock.lost())
            .await
            .expect(name);
        assert_eq!(lost, expected, "{name}");
        assert!(lock.is_lost());
        // For good, and without touching what is there.
        assert_eq!(
            lock.renew().await,
            Err(RenewError::Lost(expected.clone())),
            "{name}"
        );
        match permit(&mut lock, "Reset").await {
            Err(PermitError::Lost { lost, .. }) => assert_eq!(lost, expected, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
        lock.release().await.unwrap();
        assert_eq!(store.record(), there, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_finds_out_by_itself_that_the_lease_was_stolen() {
    let store = MemoryStore::new();
    let mut lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    store.edit(|record| record.holder = Some(me("cp-2", "pod-b")));
    let there = store.record();
    let refused = permit(&mut lock, "Reset").await.unwrap_err();
    assert_eq!(
        refused,
        PermitError::Lost {
            step: "Reset".into(),
            lost: Lost::Taken {
                holder: me("cp-2", "pod-b")
            }
        }
    );
    assert_eq!(store.record(), there);
}

#[tokio::test(start_paused = true)]
async fn a_label_put_on_the_lease_by_somebody_costs_nobody_the_lock() {
    let store = MemoryStore::new();
    let mut lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    for _ in 0..5 {
        store.edit(|record| {
            record.annotations.insert("team".into(), "storage".into());
        });
        pass(60).await;
    }
    assert!(!lock.is_lost());
    store.edit(|record| record.renew_time = Some("2999".into()));
    permit(&mut lock, "Reset").await.unwrap().check().unwrap();
    store.edit(|record| record.acquire_time = None);
    lock.release().await.unwrap();
    assert_eq!(store.holder(), None);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_costs_the_lock_only_when_the_margin_is_reached() {
    for (away, lost) in [(265, false), (275, true)] {
        let store = MemoryStore::new();
        let lock = Agent::new("pod-a", &store)
            .acquire(&removal("cp-1"))
            .await
            .unwrap();
        store.down("503");
        pass(away).await;
        assert_eq!(lock.is_lost(), lost, "{away} s");
        store.up();
        pass(60).await;
        assert_eq!(lock.is_lost(), lost, "{away} s: it never comes back");
        if lost {
            assert!(
                matches!(lock.lost().await, Lost::NotRenewed { limit, .. } if limit == secs(270))
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_silent_call_after_another_is_given_up_before_others_may_take_the_lease() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    let lock = a.acquire(&removal("cp-1")).await.unwrap();
    for _ in 0..1000 {
        store.fail_write(Fault::Hangs);
    }
    assert!(held_by(&b.acquire(&removal("cp-2")).await).is_some());
    let lost = tokio::time::timeout(secs(299), lock.lost()).await.unwrap();
    assert!(matches!(lost, Lost::NotRenewed { .. }), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn lost_answers_to_renewals_are_looked_up() {
    let store = MemoryStore::new();
    let lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    for _ in 0..5 {
        for fault in [
            Fault::LostAfter,
            Fault::LostBefore,
            Fault::Late(secs(30)),
            Fault::Conflict,
            Fault::Hangs,
        ] {
            store.fail_write(fault);
            pass(60).await;
        }
    }
    assert!(!lock.is_lost());
    lock.release().await.unwrap();
    pass(600).await;
    assert_eq!(store.holder(), None, "nothing late brings it back");
}

#[tokio::test(start_paused = true)]
async fn a_holder_frozen_for_longer_than_its_lease_is_refused_when_it_thaws() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    let mut lock = a.acquire(&removal("cp-1")).await.unwrap();
    let permit = permit(&mut lock, "Reset").await.unwrap();
    permit.check().unwrap();
    // Frozen between the permit and the send. Not one of its timers has run when it thaws.
    let operation = removal("cp-2");
    assert!(held_by(&b.acquire(&operation).await).is_some());
    b.freeze(secs(301));
    let taken = b.acquire(&operation).await.unwrap();
    a.freeze(secs(301));
    assert!(matches!(
        permit.check(),
        Err(PermitStale::Lost {
            lost: Lost::NotRenewed { .. },
            ..
        })
    ));
    assert!(permit.begin().is_err());
    assert!(lock.is_lost());
    let there = store.record();
    assert!(matches!(lock.renew().await, Err(RenewError::Lost(_))));
    lock.release().await.unwrap();
    assert_eq!(
        store.record(),
        there,
        "nothing of the new holder's was touched"
    );
    assert!(!taken.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_holder_frozen_and_not_overtaken_gives_up_too_but_gives_the_lease_back() {
    let store = MemoryStore::new();
    let a = Agent::new("pod-a", &store);
    let mut lock = a.acquire(&removal("cp-1")).await.unwrap();
    a.freeze(secs(271));
    assert!(matches!(
        permit(&mut lock, "Reset").await,
        Err(PermitError::Lost { .. })
    ));
    lock.release().await.unwrap();
    assert_eq!(store.holder(), None);
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_good_for_ten_seconds_from_its_renewal() {
    for (waited, good) in [(10_000, true), (10_001, false)] {
        let store = MemoryStore::new();
        let agent = Agent::new("pod-a", &store);
        let mut lock = agent.acquire(&removal("cp-1")).await.unwrap();
        let permit = permit(&mut lock, "Reset").await.unwrap();
        agent.freeze(Duration::from_millis(waited));
        match permit.begin() {
            Ok(_) => assert!(good, "{waited} ms"),
            Err(stale) => {
                assert!(!good, "{waited} ms: {stale}");
                assert!(matches!(&stale, PermitStale::TooLate { step, .. } if step == "Reset"));
                assert!(
                    stale.to_string().contains("10.001s") && stale.to_string().contains("10s"),
                    "{stale}"
                );
            }
        }
        assert!(!lock.is_lost(), "a stale permit costs only the permit");
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_slow_renewal_counts_from_when_it_was_sent() {
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    let mut lock = agent.acquire(&removal("cp-1")).await.unwrap();
    store.fail_write(Fault::Slow(secs(8)));
    let permit = permit(&mut lock, "Reset").await.unwrap();
    agent.freeze(secs(2));
    permit.check().unwrap();
    agent.freeze(secs(1));
    assert!(matches!(permit.check(), Err(PermitStale::TooLate { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_found_out_after_a_lost_answer_counts_from_when_it_was_sent() {
    let store = MemoryStore::new();
    let mut lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    store.fail_write(Fault::LostAfter);
    store.fail_read(Fault::Slow(secs(9)));
    let permit = permit(&mut lock, "Reset").await.unwrap();
    permit.check().unwrap();
    pass(2).await;
    assert!(matches!(permit.check(), Err(PermitStale::TooLate { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_intent_older_than_a_minute_gives_no_permit() {
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    let mut lock = agent.acquire(&removal("cp-1")).await.unwrap();
    let intent = lock.mark_intent();
    agent.freeze(secs(61));
    let writes = store.writes().len();
    let refused = lock
        .permit("Reset", &BTreeMap::new(), intent)
        .await
        .unwrap_err();
    assert_eq!(
        refused,
        PermitError::IntentTooOld {
            step: "Reset".into(),
            age: secs(61),
            limit: secs(60)
        }
    );
    assert_eq!(store.writes().len(), writes);
    // Also where the renewal itself took it past the minute.
    let intent = lock.mark_intent();
    agent.freeze(secs(55));
    store.fail_write(Fault::Slow(secs(6)));
    assert!(matches!(
        lock.permit("Reset", &BTreeMap::new(), intent).await,
        Err(PermitError::IntentTooOld { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn an_intent_of_an_earlier_hold_gives_no_permit() {
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    let lock = agent.acquire(&removal("cp-1")).await.unwrap();
    let intent = lock.mark_intent();
    lock.release().await.unwrap();
    let mut lock = agent.acquire(&removal("cp-1")).await.unwrap();
    assert_eq!(
        lock.permit("Reset", &BTreeMap::new(), intent)
            .await
            .unwrap_err(),
        PermitError::IntentOfAnotherHold {
            step: "Reset".into()
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_permit_needs_its_own_renewal_to_succeed() {
    let store = MemoryStore::new();
    let mut lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    store.fail_write(Fault::Refused("503".into()));
    let refused = permit(&mut lock, "Reset").await.unwrap_err();
    assert_eq!(
        refused,
        PermitError::Store {
            step: "Reset".into(),
            source: LeaseError::Other("503".into())
        }
    );
    assert!(!lock.is_lost(), "one failure is not the end");
    permit(&mut lock, "Reset").await.unwrap().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_through_a_call_of_ten_minutes() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    let mut lock = a.acquire(&removal("cp-1")).await.unwrap();
    let sending = permit(&mut lock, "LeaveEtcd")
        .await
        .unwrap()
        .begin()
        .unwrap();
    for _ in 0..10 {
        pass(60).await;
        assert!(held_by(&b.acquire(&removal("cp-2")).await).is_some());
    }
    let outcome = sending.finish();
    assert!(outcome.lock_held);
    // The renewals in between keep the step on the Lease.
    assert_eq!(
        store.record().unwrap().step_of(&removal("cp-1")).unwrap().0,
        "LeaveEtcd"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_during_a_call_makes_its_outcome_unknown() {
    let store = MemoryStore::new();
    let mut lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    let sending = permit(&mut lock, "LeaveEtcd")
        .await
        .unwrap()
        .begin()
        .unwrap();
    pass(90).await;
    store.edit(|record| record.holder = Some("thief".into()));
    let lost = tokio::time::timeout(secs(61), sending.lost())
        .await
        .unwrap();
    let outcome = sending.finish();
    assert!(!outcome.lock_held);
    assert_eq!(outcome.lost, Some(lost));
    assert!(
        matches!(
            permit(&mut lock, "Reset").await,
            Err(PermitError::Lost { .. })
        ),
        "nothing else is begun"
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_says_so_and_one_whose_answer_is_lost_is_looked_up() {
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    let operation = removal("cp-1");
    for fault in [
        Fault::LostAfter,
        Fault::LostBefore,
        Fault::Conflict,
        Fault::Late(secs(5)),
        Fault::Hangs,
    ] {
        let lock = agent.acquire(&operation).await.unwrap();
        store.fail_write(fault.clone());
        lock.release().await.unwrap();
        assert_eq!(store.holder(), None, "{fault:?}");
    }
    let lock = agent.acquire(&operation).await.unwrap();
    store.fail_write(Fault::Refused("503".into()));
    assert_eq!(lock.release().await, Err(LeaseError::Other("503".into())));
    assert_eq!(store.holder(), Some(me("cp-1", "pod-a")));
    drop(agent.acquire(&operation).await.expect("resumed"));
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_slow_renewal_wins() {
    let store = MemoryStore::new();
    let lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    store.fail_write(Fault::Slow(secs(9)));
    pass(61).await;
    lock.release().await.unwrap();
    pass(600).await;
    assert_eq!(store.holder(), None);
}

#[tokio::test(start_paused = true)]
async fn after_the_lease_was_deleted_another_makes_it_anew_and_the_old_holder_stays_out() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    let mut old = a.acquire(&removal("cp-1")).await.unwrap();
    store.delete();
    let new = b.acquire(&removal("cp-2")).await.unwrap();
    assert_ne!(old.fencing().0, new.fencing().0);
    assert!(matches!(
        permit(&mut old, "Reset").await,
        Err(PermitError::Lost {
            lost: Lost::Replaced,
            ..
        })
    ));
    old.release().await.unwrap();
    assert!(!new.is_lost());
    assert_eq!(store.holder(), Some(me("cp-2", "pod-b")));
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_believed_in_from_when_its_last_write_was_sent() {
    // The acquisition is answered late, and nothing after it.
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    store.fail_write(Fault::Slow(secs(9)));
    let lock = agent.acquire(&removal("cp-1")).await.unwrap();
    store.down("503");
    pass(260).await;
    assert!(!lock.is_lost());
    pass(2).await;
    assert!(lock.is_lost(), "271 s after the acquisition was sent");

    // The first renewal is answered late, and nothing after it.
    let store = MemoryStore::new();
    let lock = Agent::new("pod-a", &store)
        .acquire(&removal("cp-1"))
        .await
        .unwrap();
    store.fail_write(Fault::Slow(secs(9)));
    pass(70).await;
    store.down("503");
    pass(255).await;
    assert!(!lock.is_lost());
    pass(7).await;
    assert!(lock.is_lost(), "272 s after the renewal was sent");
}
