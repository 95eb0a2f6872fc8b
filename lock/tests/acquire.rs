//! Who gets the lock, and who does not.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Agent, held_by, pass, permit, removal, secs};
use ichor_lock::testing::{Asked, Fault, MemoryStore, ScriptedView};
use ichor_lock::{
    AcquireError, Durations, LeaseError, LeaseStore, Operation, UnsettledIntent, View, ViewError,
    acquire_disruptive,
};

fn unsettled(operation: &str) -> UnsettledIntent {
    UnsettledIntent {
        machine: "cp-9".into(),
        step: "Reset".into(),
        operation: operation.into(),
        message: "sent 3 minutes ago".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_one_makes_the_lease_and_the_next_hears_who_holds_it() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    let lock = a.acquire(&removal("cp-1")).await.unwrap();
    let record = store.record().unwrap();
    assert_eq!(
        record.holder.as_deref(),
        Some("removal/TalosMachine/cp-1/uid-cp-1@pod-a")
    );
    assert_eq!(record.duration, Some(secs(300)));
    assert_eq!(lock.fencing(), (record.uid.as_str(), record.transitions));
    match b.acquire(&removal("cp-2")).await {
        Err(AcquireError::Held {
            holder,
            operation,
            since,
            until_hint,
            ..
        }) => {
            assert_eq!(holder, "removal/TalosMachine/cp-1/uid-cp-1@pod-a");
            assert_eq!(operation, Some(removal("cp-1")));
            assert_eq!(since, record.acquire_time);
            assert_eq!(until_hint, Some(secs(300)));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn two_operations_in_one_process_exclude_each_other() {
    let store = MemoryStore::new();
    let a = Agent::new("pod-a", &store);
    let lock = a.acquire(&removal("cp-1")).await.unwrap();
    let writes = store.writes().len();
    assert!(held_by(&a.acquire(&removal("cp-2")).await).is_some());
    assert!(
        held_by(&a.acquire(&removal("cp-1")).await).is_some(),
        "a second guard of one hold"
    );
    assert_eq!(store.writes().len(), writes, "nothing was written");
    lock.release().await.unwrap();
    let _taken = a.acquire(&removal("cp-2")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_many_tasks_that_race_for_one_operation_in_one_process_one_gets_it() {
    let store = MemoryStore::new();
    let agent = Arc::new(Agent::new("pod-a", &store));
    for _ in 0..3 {
        // Each write slow, so that all have read before the first is stored.
        store.fail_write(Fault::Slow(secs(1)));
    }
    let tasks: Vec<_> = (0..5)
        .map(|_| {
            let agent = Arc::clone(&agent);
            tokio::spawn(async move { agent.acquire(&removal("cp-1")).await })
        })
        .collect();
    let mut locks = Vec::new();
    for task in tasks {
        locks.extend(task.await.unwrap().ok());
    }
    assert_eq!(locks.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_two_agents_that_race_one_gets_it() {
    for first in [removal("cp-1"), removal("cp-2")] {
        let store = MemoryStore::new();
        let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
        store.fail_write(Fault::Slow(secs(2)));
        store.fail_write(Fault::Slow(secs(1)));
        // For the same operation too: two agents may both believe that they lead.
        let other = removal("cp-1");
        let (one, two) = tokio::join!(a.acquire(&first), b.acquire(&other));
        assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_container_of_the_same_pod_resumes_its_operation_at_once() {
    let store = MemoryStore::new();
    let a = Agent::new("pod-a", &store);
    let lock = a.acquire(&removal("cp-1")).await.unwrap();
    let before = lock.fencing().1;
    // Killed: nothing is released and nothing renewed.
    drop(lock);
    drop(a);
    let restarted = Agent::new("pod-a", &store);
    assert!(
        held_by(&restarted.acquire(&removal("cp-2")).await).is_some(),
        "another operation waits"
    );
    let lock = restarted.acquire(&removal("cp-1")).await.unwrap();
    assert!(
        lock.fencing().1 > before,
        "a hold of its own, by the fencing token"
    );
}

#[tokio::test(start_paused = true)]
async fn another_agent_does_not_resume_an_operation_that_may_only_be_slow() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    let _kept = a.acquire(&removal("cp-1")).await.unwrap();
    assert!(held_by(&b.acquire(&removal("cp-1")).await).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lock_handed_over_is_resumed_at_once_and_only_by_its_operation() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    let mut lock = a.acquire(&removal("cp-1")).await.unwrap();
    permit(&mut lock, "Reset")
        .await
        .unwrap()
        .begin()
        .unwrap()
        .finish()
        .lost
        .ok_or(())
        .unwrap_err();
    lock.hand_over().await.unwrap();
    assert_eq!(
        store.holder().unwrap(),
        "removal/TalosMachine/cp-1/uid-cp-1@handed-over"
    );
    let record = store.record().unwrap();
    assert_eq!(
        record.step_of(&removal("cp-1")).unwrap().0,
        "Reset",
        "the step stays"
    );
    assert!(held_by(&b.acquire(&removal("cp-2")).await).is_some());
    let _taken = b.acquire(&removal("cp-1")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dead_holder_is_overtaken_after_its_full_duration_and_not_before() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    let mut lock = a.acquire(&removal("cp-1")).await.unwrap();
    permit(&mut lock, "Reset")
        .await
        .unwrap()
        .begin()
        .unwrap()
        .finish()
        .lost
        .ok_or(())
        .unwrap_err();
    drop(lock);
    assert!(
        held_by(&b.acquire(&removal("cp-2")).await).is_some(),
        "first sight"
    );
    pass(299).await;
    assert!(
        held_by(&b.acquire(&removal("cp-2")).await).is_some(),
        "one second early"
    );
    assert_eq!(b.manager.expires_in(&store.key()), Some(secs(1)));
    pass(1).await;
    let lock = b.acquire(&removal("cp-2")).await.unwrap();
    let left = lock.predecessor().expect("what the dead one left");
    assert_eq!(left.step_of(&removal("cp-1")).unwrap().0, "Reset");
    // Not lost with a release either: only the dead operation's own clearing takes it off.
    lock.release().await.unwrap();
    assert!(store.record().unwrap().step_of(&removal("cp-1")).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_fresh_process_watches_the_full_duration_itself() {
    let store = MemoryStore::new();
    let a = Agent::new("pod-a", &store);
    drop(a.acquire(&removal("cp-1")).await.unwrap());
    let b = Agent::new("pod-b", &store);
    assert!(held_by(&b.acquire(&removal("cp-2")).await).is_some());
    pass(299).await;
    let restarted = Agent::new("pod-b", &store);
    pass(1).await;
    assert!(held_by(&restarted.acquire(&removal("cp-2")).await).is_some());
    pass(299).await;
    assert!(held_by(&restarted.acquire(&removal("cp-2")).await).is_some());
    pass(1).await;
    let _taken = restarted.acquire(&removal("cp-2")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_renews_is_never_overtaken() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    let lock = a.acquire(&removal("cp-1")).await.unwrap();
    for _ in 0..60 {
        pass(59).await;
        assert!(held_by(&b.acquire(&removal("cp-2")).await).is_some());
    }
    assert!(!lock.is_lost());
}

#[tokio::test(start_paused = true)]
async fn the_waits_of_a_watch_count() {
    let store = MemoryStore::new();
    let a = Agent::new("pod-a", &store);
    drop(a.acquire(&removal("cp-1")).await.unwrap());
    let b = Agent::new("pod-b", &store);
    b.manager.observe(&store.key(), store.record().as_ref());
    pass(300).await;
    assert_eq!(b.manager.expires_in(&store.key()), Some(Duration::ZERO));
    // What a watch showed decides nothing alone: the Lease has changed meanwhile.
    store.edit(|record| record.renew_time = Some("later".into()));
    assert!(held_by(&b.acquire(&removal("cp-2")).await).is_some());
    b.manager.observe(&store.key(), store.record().as_ref());
    pass(300).await;
    let _taken = b.acquire(&removal("cp-2")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn wall_clocks_decide_nothing() {
    for renewed in [
        "2025-12-31T23:00:00.000000Z",
        "2026-01-01T01:00:00.000000Z",
        "2999-01-01T00:00:00.000000Z",
        "1970-01-01T00:00:00Z",
        "0000-99-99T99:99:99.123456789123Z",
        "garbage",
        "",
    ] {
        let store = MemoryStore::new();
        let skewed = store.with_wall_clock(renewed);
        let a = Agent::new("pod-a", &skewed);
        let b = Agent::new("pod-b", &store);
        let lock = a.acquire(&removal("cp-1")).await.unwrap();
        assert_eq!(store.record().unwrap().renew_time.as_deref(), Some(renewed));
        assert!(
            held_by(&b.acquire(&removal("cp-2")).await).is_some(),
            "{renewed}: taken over a live one"
        );
        pass(200).await;
        assert!(!lock.is_lost(), "{renewed}");
        drop(lock);
        assert!(
            held_by(&b.acquire(&removal("cp-2")).await).is_some(),
            "{renewed}: taken at once"
        );
        pass(300).await;
        let _taken = b.acquire(&removal("cp-2")).await.expect(renewed);
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_the_leases_own_duration_and_300_s_where_that_says_nothing() {
    for (written, wait) in [
        (Some(secs(15)), 15),
        (Some(secs(300)), 300),
        (None, 300),
        (Some(Duration::ZERO), 300),
        (Some(secs(86_400 * 365)), 300),
        (Some(Duration::MAX), 300),
    ] {
        let store = MemoryStore::new();
        store.edit(|record| {
            record.holder = Some("somebody-unknown".into());
            record.duration = written;
            record.transitions = i64::MAX;
        });
        // Its own lease is short: that must not shorten the wait for another's.
        let durations = Durations {
            lease: secs(15),
            margin: secs(2),
            renew: secs(3),
            ..Durations::default()
        };
        let agent = Agent::with("pod-b", &store, durations);
        match agent.acquire(&removal("cp-2")).await {
            Err(AcquireError::Held {
                holder,
                operation,
                until_hint,
                ..
            }) => {
                assert_eq!((holder.as_str(), operation), ("somebody-unknown", None));
                assert_eq!(until_hint, Some(secs(wait)), "{written:?}");
            }
            other => panic!("{written:?}: {other:?}"),
        }
        pass(wait - 1).await;
        assert!(
            held_by(&agent.acquire(&removal("cp-2")).await).is_some(),
            "{written:?}"
        );
        pass(1).await;
        let _taken = agent.acquire(&removal("cp-2")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_a_holder_is_free_whatever_else_it_says() {
    for holder in [None, Some(String::new())] {
        let store = MemoryStore::new();
        store.edit(|record| {
            record.holder = holder;
            record.transitions = -7;
            record.renew_time = Some("2999".into());
        });
        let lock = Agent::new("pod-a", &store)
            .acquire(&removal("cp-1"))
            .await
            .unwrap();
        assert!(lock.fencing().1 >= 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_transition_refuses_before_the_lease_is_touched_and_again_under_it() {
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    let view = ScriptedView::watching(&store).transitioning([Ok(Some("4 control planes".into()))]);
    let refused = agent
        .acquire_with(&removal("cp-1"), &view, false)
        .await
        .unwrap_err();
    assert_eq!(
        refused,
        AcquireError::Transitioning("4 control planes".into())
    );
    assert_eq!(
        (store.writes().len(), store.reads()),
        (0, 0),
        "the Lease was not touched"
    );

    let view = ScriptedView::watching(&store)
        .transitioning([Ok(None), Ok(Some("4 control planes".into()))]);
    let refused = agent
        .acquire_with(&removal("cp-1"), &view, false)
        .await
        .unwrap_err();
    assert_eq!(
        refused,
        AcquireError::Transitioning("4 control planes".into())
    );
    let me = Some("removal/TalosMachine/cp-1/uid-cp-1@pod-a".to_owned());
    assert_eq!(
        view.asked(),
        [
            Asked {
                question: "transitioning",
                holder: None
            },
            Asked {
                question: "unsettled_intents (settling)",
                holder: me.clone()
            },
            Asked {
                question: "transitioning",
                holder: me
            },
        ]
    );
    assert_eq!(store.holder(), None, "given back");
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_may_end_a_transition_is_not_asked_about_it() {
    let store = MemoryStore::new();
    let view = ScriptedView::watching(&store).transitioning([Ok(Some("4 control planes".into()))]);
    let agent = Agent::new("pod-a", &store);
    let _taken = agent
        .acquire_with(&removal("cp-1"), &view, true)
        .await
        .unwrap();
    assert_eq!(view.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn anothers_unsettled_intent_gives_the_lock_back_unless_it_can_be_settled() {
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    let other = removal("cp-9").to_string();
    let view = ScriptedView::watching(&store).unsettled([unsettled(&other)], false);
    match agent.acquire_with(&removal("cp-1"), &view, true).await {
        Err(AcquireError::Unsettled(intents)) => assert_eq!(intents[0].operation, other),
        result => panic!("{result:?}"),
    }
    assert_eq!(store.holder(), None, "given back");
    assert!(
        view.asked().iter().all(|asked| asked.holder.is_some()),
        "settled only under the lock"
    );

    let view = ScriptedView::watching(&store).unsettled([unsettled(&other)], true);
    let lock = agent
        .acquire_with(&removal("cp-1"), &view, true)
        .await
        .unwrap();
    lock.release().await.unwrap();

    // Its own it settles itself, under the lock that it gets.
    let view =
        ScriptedView::watching(&store).unsettled([unsettled(&removal("cp-1").to_string())], false);
    let _taken = agent
        .acquire_with(&removal("cp-1"), &view, true)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_view_that_cannot_answer_lets_nothing_begin() {
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    for answers in [
        vec![Err(ViewError("403".into()))],
        vec![Ok(None), Err(ViewError("403".into()))],
    ] {
        let view = ScriptedView::default().transitioning(answers);
        let refused = agent
            .acquire_with(&removal("cp-1"), &view, false)
            .await
            .unwrap_err();
        assert_eq!(refused, AcquireError::View(ViewError("403".into())));
        assert_eq!(store.holder(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_looked_up_and_not_guessed() {
    // Applied: mine. Not applied: tried again. Arrives later: mine all the same.
    for (fault, writes) in [
        (Fault::LostAfter, 1),
        (Fault::LostBefore, 1),
        (Fault::Late(secs(3)), 1),
        (Fault::Hangs, 1),
    ] {
        let store = MemoryStore::new();
        let agent = Agent::new("pod-a", &store);
        store.fail_write(fault.clone());
        let lock = agent.acquire(&removal("cp-1")).await.unwrap();
        assert_eq!(store.writes().len(), writes, "{fault:?}");
        pass(120).await;
        assert!(!lock.is_lost(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn anothers_write_is_not_taken_for_ones_own_after_a_lost_answer() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    // A's write is lost on the way; before it reads again, B has taken the Lease.
    store.fail_write(Fault::LostBefore);
    store.fail_read(Fault::Slow(Duration::ZERO));
    store.fail_read(Fault::Slow(secs(5)));
    let operation = removal("cp-1");
    let (lost, taken) = tokio::join!(a.acquire(&operation), async {
        pass(1).await;
        b.acquire(&operation).await
    });
    assert!(taken.is_ok());
    assert_eq!(
        held_by(&lost),
        Some("removal/TalosMachine/cp-1/uid-cp-1@pod-b")
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_or_cannot_be_read_says_so_and_leaves_nothing_held() {
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    store.fail_write(Fault::Refused("forbidden".into()));
    let refused = agent.acquire(&removal("cp-1")).await.unwrap_err();
    assert_eq!(
        refused,
        AcquireError::Store(LeaseError::Other("forbidden".into()))
    );
    store.fail_read(Fault::Hangs);
    let operation = removal("cp-1");
    let silent = tokio::time::timeout(secs(11), agent.acquire(&operation))
        .await
        .expect("an end to the wait");
    assert!(matches!(
        silent,
        Err(AcquireError::Store(LeaseError::Other(_)))
    ));
    // Written, the answer lost, and the read after it failed too.
    store.fail_write(Fault::LostAfter);
    store.fail_read(Fault::Slow(Duration::ZERO));
    store.fail_read(Fault::Refused("down".into()));
    let unknown = agent.acquire(&removal("cp-1")).await.unwrap_err();
    assert!(
        matches!(&unknown, AcquireError::Store(LeaseError::Unknown(why)) if why.contains("down")),
        "{unknown:?}"
    );
    assert_eq!(agent.manager.live(&store.key()), None);
    // The Lease names it; it resumes what may be its own.
    let _taken = agent.acquire(&removal("cp-1")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_dropped_half_way_blocks_nobody_in_this_process() {
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    store.fail_write(Fault::Slow(secs(5)));
    let operation = removal("cp-1");
    let cut = tokio::time::timeout(secs(2), agent.acquire(&operation)).await;
    assert!(cut.is_err());
    let view = ScriptedView::default();
    let again = acquire_disruptive(
        &agent.manager,
        Arc::new(store.clone()),
        &view,
        &operation,
        true,
    );
    let _taken = again.await.unwrap();
}

/// While it is asked, somebody takes the Lease.
struct Robbed(MemoryStore);

#[async_trait::async_trait]
impl View for Robbed {
    async fn transitioning(&self) -> Result<Option<String>, ViewError> {
        Ok(None)
    }
    async fn unsettled_intents(
        &self,
        _: &Operation,
        _: bool,
    ) -> Result<Vec<UnsettledIntent>, ViewError> {
        self.0.edit(|record| record.holder = Some("thief".into()));
        pass(70).await;
        Ok(Vec::new())
    }
    async fn intents_of(&self, _: &Operation) -> Result<Vec<UnsettledIntent>, ViewError> {
        Ok(Vec::new())
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_while_the_cluster_was_looked_at_is_not_handed_out() {
    let store = MemoryStore::new();
    let agent = Agent::new("pod-a", &store);
    let view = Robbed(store.clone());
    let lock = acquire_disruptive(
        &agent.manager,
        Arc::new(store.clone()),
        &view,
        &removal("cp-1"),
        true,
    )
    .await;
    assert_eq!(lock.unwrap_err(), AcquireError::Store(LeaseError::Conflict));
    assert_eq!(store.holder().as_deref(), Some("thief"));
}
