//! Locks whose operation is gone.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Agent, held_by, pass, permit, removal, secs};
use ichor_lock::testing::{MemoryStore, ScriptedView};
use ichor_lock::{AcquireError, LeaseError, Operation, UnsettledIntent, clear_abandoned};

async fn clear(agent: &Agent, view: &ScriptedView, gone: &Operation) -> Result<(), AcquireError> {
    let seen = agent.store.record().unwrap();
    clear_abandoned(&agent.manager, &agent.store, view, &seen, gone).await
}

#[tokio::test(start_paused = true)]
async fn any_leader_clears_the_lock_of_an_operation_that_is_gone() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    drop(a.acquire(&removal("cp-1")).await.unwrap());
    clear(&b, &ScriptedView::default(), &removal("cp-1"))
        .await
        .unwrap();
    assert_eq!(store.holder(), None);
    let _taken = b.acquire(&removal("cp-2")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_cleared_that_names_another_operation_or_nobody_known() {
    let store = MemoryStore::new();
    let a = Agent::new("pod-a", &store);
    drop(a.acquire(&removal("cp-1")).await.unwrap());
    let recreated = Operation {
        uid: "another".into(),
        ..removal("cp-1")
    };
    for gone in [removal("cp-2"), recreated] {
        clear(&a, &ScriptedView::default(), &gone).await.unwrap();
        assert!(store.holder().is_some());
    }
    store.edit(|record| record.holder = Some("somebody".into()));
    clear(&a, &ScriptedView::default(), &removal("cp-1"))
        .await
        .unwrap();
    assert_eq!(store.holder().as_deref(), Some("somebody"));
}

#[tokio::test(start_paused = true)]
async fn an_unsettled_intent_of_it_keeps_its_lock() {
    let store = MemoryStore::new();
    let a = Agent::new("pod-a", &store);
    drop(a.acquire(&removal("cp-1")).await.unwrap());
    let intent = UnsettledIntent {
        machine: "cp-1".into(),
        step: "Reset".into(),
        operation: removal("cp-1").to_string(),
        message: "sent".into(),
    };
    let view = ScriptedView::default().unsettled([intent], false);
    assert!(matches!(
        clear(&a, &view, &removal("cp-1")).await,
        Err(AcquireError::Unsettled(_))
    ));
    assert!(store.holder().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_task_of_this_process_that_still_holds_it_gives_it_back_itself() {
    let store = MemoryStore::new();
    let a = Agent::new("pod-a", &store);
    let lock = a.acquire(&removal("cp-1")).await.unwrap();
    assert!(matches!(
        clear(&a, &ScriptedView::default(), &removal("cp-1")).await,
        Err(AcquireError::Held { .. })
    ));
    assert!(!lock.is_lost() && store.holder().is_some());
}

/// The intent of a call went with its object, so another agent's renewals are all that is left
/// to tell that the call may still be under way.
#[tokio::test(start_paused = true)]
async fn another_agent_with_a_call_that_may_be_under_way_is_waited_for() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    let mut lock = a.acquire(&removal("cp-1")).await.unwrap();
    let sending = permit(&mut lock, "Reset").await.unwrap().begin().unwrap();
    for _ in 0..10 {
        pass(60).await;
        assert!(matches!(
            clear(&b, &ScriptedView::default(), &removal("cp-1")).await,
            Err(AcquireError::Held { .. })
        ));
    }
    assert!(sending.finish().lock_held);
    drop(lock);
    pass(300).await;
    clear(&b, &ScriptedView::default(), &removal("cp-1"))
        .await
        .unwrap();
    assert_eq!(
        store.record().unwrap().step_of(&removal("cp-1")),
        None,
        "its step goes with it"
    );
}

#[tokio::test(start_paused = true)]
async fn the_same_pod_and_a_lock_handed_over_are_cleared_at_once() {
    for hand_over in [false, true] {
        let store = MemoryStore::new();
        let a = Agent::new("pod-a", &store);
        let mut lock = a.acquire(&removal("cp-1")).await.unwrap();
        permit(&mut lock, "Reset").await.unwrap().check().unwrap();
        let who = if hand_over {
            lock.hand_over().await.unwrap();
            Agent::new("pod-b", &store)
        } else {
            drop(lock);
            Agent::new("pod-a", &store)
        };
        clear(&who, &ScriptedView::default(), &removal("cp-1"))
            .await
            .unwrap();
        assert_eq!(store.holder(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_record_that_was_looked_at_is_cleared() {
    let store = MemoryStore::new();
    let (a, b) = (Agent::new("pod-a", &store), Agent::new("pod-b", &store));
    drop(a.acquire(&removal("cp-1")).await.unwrap());
    let seen = store.record().unwrap();
    store.edit(|record| record.renew_time = Some("later".into()));
    let late = clear_abandoned(
        &b.manager,
        &store,
        &ScriptedView::default(),
        &seen,
        &removal("cp-1"),
    )
    .await;
    assert_eq!(late, Err(AcquireError::Store(LeaseError::Conflict)));
    assert!(held_by(&b.acquire(&removal("cp-2")).await).is_some());
    assert_eq!(
        b.manager.expires_in(&ichor_lock::LeaseStore::key(&store)),
        Some(secs(300))
    );
}
