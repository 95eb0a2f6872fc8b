//! Agents, faults and time in any order: whoever believes to hold the lock holds it, and alone.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{pass, permit, removal, secs};
use ichor_lock::testing::{Fault, ManualClock, MemoryStore, ScriptedView};
use ichor_lock::{
    AcquireError, DisruptiveLock, Durations, LeaseError, LeaseKey, LeaseRecord, LeaseStore,
    LeaseWrite, LockManager, acquire_disruptive,
};
use proptest::prelude::*;

/// The way of one agent to the API server, which can be cut.
#[derive(Clone)]
struct Line {
    store: MemoryStore,
    cut: Arc<AtomicBool>,
}

impl Line {
    async fn whole(&self) {
        if self.cut.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl LeaseStore for Line {
    fn key(&self) -> LeaseKey {
        self.store.key()
    }
    async fn get(&self) -> Result<Option<LeaseRecord>, LeaseError> {
        self.whole().await;
        self.store.get().await
    }
    async fn create(&self, write: &LeaseWrite) -> Result<LeaseRecord, LeaseError> {
        self.whole().await;
        self.store.create(write).await
    }
    async fn replace(&self, version: &str, write: &LeaseWrite) -> Result<LeaseRecord, LeaseError> {
        self.whole().await;
        self.store.replace(version, write).await
    }
}

struct Process {
    pod: String,
    manager: LockManager,
    line: Line,
    locks: Vec<DisruptiveLock>,
}

impl Process {
    fn start(pod: &str, store: &MemoryStore, uptime: Duration) -> Self {
        let clock = ManualClock::following_tokio();
        // No two machines count from the same zero.
        clock.advance(uptime);
        Self {
            pod: pod.to_owned(),
            manager: LockManager::new(pod, Arc::new(clock), Durations::default()),
            line: Line {
                store: store.with_wall_clock(&format!("the clock of {pod}")),
                cut: Arc::default(),
            },
            locks: Vec::new(),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Acquire { process: usize, machine: usize },
    Permit { process: usize },
    Release { process: usize },
    HandOver { process: usize },
    Restart { process: usize },
    Cut { process: usize, cut: bool },
    WriteFault(Fault),
    ReadFault(Fault),
    Label,
    Pass(u64),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Conflict),
        Just(Fault::LostAfter),
        Just(Fault::LostBefore),
        (1u64..400).prop_map(|s| Fault::Late(secs(s))),
        (1u64..15).prop_map(|s| Fault::Slow(secs(s))),
        Just(Fault::Refused("503".into())),
        Just(Fault::Hangs),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let process = 0..2usize;
    prop_oneof![
        6 => (process.clone(), 0..2usize).prop_map(|(process, machine)| Step::Acquire { process, machine }),
        5 => process.clone().prop_map(|process| Step::Permit { process }),
        2 => process.clone().prop_map(|process| Step::Release { process }),
        1 => process.clone().prop_map(|process| Step::HandOver { process }),
        1 => process.clone().prop_map(|process| Step::Restart { process }),
        3 => (process, any::<bool>()).prop_map(|(process, cut)| Step::Cut { process, cut }),
        3 => fault().prop_map(Step::WriteFault),
        1 => fault().prop_map(Step::ReadFault),
        1 => Just(Step::Label),
        6 => (1u64..320).prop_map(Step::Pass),
    ]
}

/// What happened, so that the run can be shown not to be empty.
#[derive(Default)]
struct Tally {
    taken: usize,
    permits: usize,
    lost: usize,
}

async fn run(steps: Vec<Step>) -> Result<Tally, TestCaseError> {
    let store = MemoryStore::new();
    let mut processes = [
        Process::start("pod-a", &store, secs(11)),
        Process::start("pod-b", &store, secs(90_000)),
    ];
    let mut tally = Tally::default();
    for step in steps {
        match step {
            Step::Acquire { process, machine } => {
                let process = &mut processes[process];
                process.locks.retain(|lock| !lock.is_lost());
                let operation = removal(["cp-1", "cp-2"][machine]);
                let line = Arc::new(process.line.clone());
                let view = ScriptedView::default();
                match acquire_disruptive(&process.manager, line, &view, &operation, true).await {
                    Ok(lock) => {
                        tally.taken += 1;
                        process.locks.push(lock);
                    }
                    Err(AcquireError::Held { .. } | AcquireError::Store(_)) => {}
                    Err(other) => return Err(TestCaseError::fail(format!("{other:?}"))),
                }
            }
            Step::Permit { process } => {
                if let Some(lock) = processes[process].locks.last_mut() {
                    let me = format!("{}@{}", lock.operation(), lock.instance());
                    let (uid, transitions) = lock.fencing();
                    let token = (uid.to_owned(), transitions);
                    if let Ok(permit) = permit(lock, "Reset").await
                        && permit.check().is_ok()
                    {
                        tally.permits += 1;
                        let record = store.record().unwrap();
                        prop_assert_eq!(record.held_by(), Some(me.as_str()));
                        prop_assert_eq!((record.uid, record.transitions), token);
                    }
                }
            }
            Step::Release { process } => {
                if let Some(lock) = processes[process].locks.pop() {
                    let _ = lock.release().await;
                }
            }
            Step::HandOver { process } => {
                if let Some(lock) = processes[process].locks.pop() {
                    let _ = lock.hand_over().await;
                }
            }
            Step::Restart { process } => {
                let old = &processes[process];
                let fresh = Process::start(&old.pod, &store, secs(5));
                processes[process] = fresh;
            }
            Step::Cut { process, cut } => processes[process].line.cut.store(cut, Ordering::Relaxed),
            Step::WriteFault(fault) => store.fail_write(fault),
            Step::ReadFault(fault) => store.fail_read(fault),
            Step::Label if store.record().is_some() => store.edit(|record| {
                record.annotations.insert("team".into(), "storage".into());
            }),
            Step::Label => {}
            Step::Pass(seconds) => pass(seconds).await,
        }
        let believers: Vec<_> = processes
            .iter()
            .flat_map(|process| &process.locks)
            .filter(|lock| !lock.is_lost())
            .collect();
        prop_assert!(
            believers.len() <= 1,
            "two believe to hold it: {:?}",
            believers
        );
        let all: usize = processes.iter().map(|process| process.locks.len()).sum();
        tally.lost += all - believers.len();
    }

    // Whatever was left behind, a fresh process gets the lock when all else is dead.
    drop(processes);
    let late = Process::start("pod-c", &store, secs(0));
    let operation = removal("cp-3");
    for _ in 0..40 {
        // Faults left over, and late writes, may spoil a few tries.
        let line = Arc::new(late.line.clone());
        if let Ok(lock) = acquire_disruptive(
            &late.manager,
            line,
            &ScriptedView::default(),
            &operation,
            true,
        )
        .await
        {
            drop(lock);
            return Ok(tally);
        }
        pass(100).await;
    }
    Err(TestCaseError::fail("the lock was never to be had again"))
}

#[test]
fn whoever_believes_to_hold_the_lock_holds_it_and_alone_and_it_is_always_to_be_had_again() {
    let config = ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let total = std::cell::RefCell::new(Tally::default());
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&proptest::collection::vec(step(), 1..60), |steps| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            let tally = runtime.block_on(run(steps))?;
            let mut total = total.borrow_mut();
            total.taken += tally.taken;
            total.permits += tally.permits;
            total.lost += tally.lost;
            Ok(())
        })
        .unwrap();
    let total = total.into_inner();
    assert!(
        total.taken > 200 && total.permits > 100 && total.lost > 100,
        "{} {} {}",
        total.taken,
        total.permits,
        total.lost
    );
}
