//! The world around the protocol: an API server, two machines, two agents, time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use ichor_lock::protocol::{self, Decision, Observation, Tenure};
use ichor_lock::{Durations, Holder, LeaseRecord, LeaseWrite, Operation};

use super::canon::NOW;

/// The nonce of every write whose answer came.
pub const HEARD: &str = "heard";
/// How long a message may be under way before it is certainly gone, in ticks.
const LATE: u8 = 1;

/// Which of the rules hold; a test takes one away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub compare_and_swap: bool,
    pub holder_check: bool,
    pub own_clock: bool,
    pub intents_after_acquisition: bool,
    pub send_limit: bool,
    pub lost_answers_looked_up: bool,
    pub intent_first: bool,
}

/// All of them.
pub fn rules() -> Rules {
    Rules {
        compare_and_swap: true,
        holder_check: true,
        own_clock: true,
        intents_after_acquisition: true,
        send_limit: true,
        lost_answers_looked_up: true,
        intent_first: true,
    }
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub rules: Rules,
    /// Which machine's removal each agent carries out.
    pub operations: [usize; 2],
    /// How often something goes wrong, in all.
    pub faults: u8,
    /// Whether that is an agent that crashes, an answer that is lost, a lock handed over.
    pub mishaps: bool,
    /// Whether it is somebody who deletes the Lease.
    pub meddling: bool,
    /// One bit for each [`Sight`].
    pub seen: Arc<AtomicU16>,
}

impl Setup {
    pub fn note(&self, sight: Sight, there: bool) {
        if there {
            self.seen.fetch_or(1 << sight as u16, Ordering::Relaxed);
        }
    }

    pub fn has_seen(&self, sight: Sight) -> bool {
        self.seen.load(Ordering::Relaxed) & (1 << sight as u16) != 0
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            rules: rules(),
            operations: [0, 1],
            faults: 1,
            mishaps: true,
            meddling: false,
            seen: Arc::default(),
        }
    }
}

pub fn secs(ticks: u8) -> Duration {
    Duration::from_secs(ticks.into())
}

pub fn durations() -> Durations {
    Durations {
        lease: secs(2),
        longest: secs(2),
        margin: secs(0),
        renew: secs(1),
        intent_to_renew: secs(1),
        send_within: secs(0),
        answer: secs(1),
    }
}

/// From the first sight of an intent until what it stands for can no longer happen.
pub fn settled_after() -> Duration {
    let durations = durations();
    durations.intent_to_renew + durations.send_within + secs(LATE)
}

pub fn holder(agent: usize, machine: usize) -> Holder {
    Holder {
        operation: Operation {
            kind: "M".into(),
            name: machine.to_string(),
            namespace: String::new(),
            uid: "u".into(),
            purpose: "r".into(),
        },
        instance: ["a", "b"][agent].into(),
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct World {
    pub now: u8,
    pub lease: Option<LeaseRecord>,
    pub versions: u8,
    pub machines: [Machine; 2],
    /// Irreversible calls under way: sent, and neither ended nor certainly lost.
    pub calls: Vec<Call>,
    pub agents: [Agent; 2],
    /// A write whose sender heard nothing; it may land at any time.
    pub late_write: Option<(Option<String>, LeaseWrite)>,
    /// How much may still go wrong.
    pub faults: u8,
    pub sent_without_holding: bool,
}

/// A machine and its status, which is written by compare-and-swap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Machine {
    pub version: u8,
    /// The status version that wrote it is its identity.
    pub intent: Option<u8>,
    /// How often the step was carried out.
    pub done: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Call {
    pub machine: usize,
    pub agent: usize,
    pub sent: u8,
    pub landed: bool,
}

/// What was seen to happen, so that a run without counterexample is not an empty one. Kept beside
/// the states: in them it would multiply their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    Expiry,
    GaveBack,
    NotHappened,
    Stale,
    Lost,
    LookedUp,
    LateWrite,
    OrphanCall,
    HandedOver,
    BothDone,
    Deleted,
}

/// What an agent process has in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Agent {
    pub observation: Option<Observation>,
    /// For each machine the intent last seen, and since when.
    pub sights: [Option<(u8, u8)>; 2],
    pub doing: Doing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// Wants the lock, not before this tick.
    Waiting(u8),
    /// Has read the Lease and may take it.
    Decided(Option<LeaseRecord>),
    /// Has heard nothing of its write.
    Unsure {
        write: LeaseWrite,
        sent: u8,
        before: Option<(Hold, Stage)>,
    },
    Holding(Hold, Stage),
    Finished,
}

impl Default for Doing {
    fn default() -> Self {
        Self::Waiting(0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub tenure: Tenure,
    pub record: LeaseRecord,
    pub renewed: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The Lease is written; the intents are not looked at yet.
    Taken,
    /// Nothing stands against it; the machine's status version.
    Clear(u8),
    /// The intent is written, when, and its identity.
    Intended { at: u8, intent: u8 },
    /// Renewed for the call, and all that it relies on read once more.
    Permitted { intent: u8 },
    /// Sent; the answer is awaited, the Lease renewed.
    Calling { intent: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    /// The agent reads the Lease and decides.
    Read(usize),
    /// It writes what it decided; what is lost is the answer.
    Take(usize, Answer),
    /// It reads again after a lost answer.
    ReadAgain(usize),
    /// It looks at all intents, settles what it can, gives the lock back where it cannot.
    Look(usize),
    Intend(usize),
    Renew(usize, Answer),
    Send(usize),
    /// It records how its call went.
    Conclude(usize),
    HandOver(usize),
    /// Killed; its container starts again in the same pod.
    Crash(usize),
    CallLands(usize),
    CallEnds(usize),
    LateWriteLands,
    LeaseDeleted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Heard,
    Lost,
}

impl World {
    pub fn new(setup: &Setup) -> Self {
        Self {
            now: NOW,
            faults: setup.faults,
            ..Self::default()
        }
    }

    pub fn possible(&self, setup: &Setup) -> Vec<Action> {
        let mishap = setup.mishaps && self.faults > 0;
        let mut actions = Vec::new();
        actions.push(Action::Tick);
        for (agent, Agent { doing, .. }) in self.agents.iter().enumerate() {
            if mishap
                && !matches!(
                    doing,
                    Doing::Waiting(_) | Doing::Decided(_) | Doing::Finished
                )
            {
                actions.push(Action::Crash(agent));
            }
            let write = |actions: &mut Vec<Action>, action: fn(usize, Answer) -> Action| {
                actions.push(action(agent, Answer::Heard));
                if mishap {
                    actions.push(action(agent, Answer::Lost));
                }
            };
            match doing {
                Doing::Waiting(until) if self.now < *until => {}
                Doing::Waiting(_) => actions.push(Action::Read(agent)),
                Doing::Decided(_) => write(&mut actions, Action::Take),
                Doing::Unsure { .. } => actions.push(Action::ReadAgain(agent)),
                Doing::Holding(_, Stage::Taken) => {
                    actions.push(Action::Look(agent));
                    if setup.operations == [0, 0] && mishap {
                        actions.push(Action::HandOver(agent));
                    }
                }
                Doing::Holding(_, Stage::Clear(_)) => actions.push(Action::Intend(agent)),
                Doing::Holding(_, Stage::Intended { .. }) => write(&mut actions, Action::Renew),
                Doing::Holding(_, Stage::Permitted { .. }) => actions.push(Action::Send(agent)),
                Doing::Holding(hold, Stage::Calling { .. }) => {
                    actions.push(Action::Conclude(agent));
                    if hold.renewed < self.now {
                        write(&mut actions, Action::Renew);
                    }
                }
                Doing::Finished => {}
            }
        }
        for (index, call) in self.calls.iter().enumerate() {
            actions.push(if call.landed {
                Action::CallEnds(index)
            } else {
                Action::CallLands(index)
            });
        }
        if self.late_write.is_some() {
            actions.push(Action::LateWriteLands);
        }
        if setup.meddling && self.faults > 0 && self.lease.is_some() {
            actions.push(Action::LeaseDeleted);
        }
        actions
    }

    pub fn after(&self, setup: &Setup, action: Action) -> Option<World> {
        let mut world = self.clone();
        match action {
            Action::Tick => world.tick(),
            Action::Read(agent) => world.read(setup, agent),
            Action::Take(agent, answer) => world.take(setup, agent, answer),
            Action::ReadAgain(agent) => world.read_again(setup, agent),
            Action::Look(agent) => world.look(setup, agent),
            Action::Intend(agent) => world.intend(setup, agent),
            Action::Renew(agent, answer) => world.renew(setup, agent, answer),
            Action::Send(agent) => world.send(setup, agent),
            Action::Conclude(agent) => world.conclude(setup, agent),
            Action::HandOver(agent) => {
                world.faults -= 1;
                world.end(agent, protocol::hand_over);
                world.agents[agent].doing = Doing::Finished;
            }
            Action::Crash(agent) => {
                world.faults -= 1;
                world.agents[agent] = Agent::default();
            }
            Action::CallLands(index) => {
                let call = &mut world.calls[index];
                call.landed = true;
                let sender = &world.agents[call.agent].doing;
                setup.note(
                    Sight::OrphanCall,
                    !matches!(sender, Doing::Holding(_, Stage::Calling { .. })),
                );
            }
            Action::CallEnds(index) => {
                let call = world.calls.remove(index);
                world.machines[call.machine].done += 1;
                setup.note(
                    Sight::BothDone,
                    world.machines.iter().all(|machine| machine.done == 1),
                );
            }
            Action::LateWriteLands => {
                let (on, write) = world.late_write.take()?;
                setup.note(
                    Sight::LateWrite,
                    world.store(on.as_deref(), &write, true).is_some(),
                );
            }
            Action::LeaseDeleted => {
                world.faults -= 1;
                world.lease = None;
                setup.note(Sight::Deleted, true);
            }
        }
        world.forget_what_cannot_matter(setup);
        (world != *self).then_some(world)
    }

    /// One that starts now, knows nothing, and sees nothing stir any more.
    pub fn takeable_by_a_fresh_process(&self) -> bool {
        let (me, now) = (holder(1, 9), secs(self.now));
        let seen = protocol::observe(None, self.lease.as_ref(), now);
        let later = now + durations().longest;
        let decision =
            protocol::decide(self.lease.as_ref(), &me, seen.as_ref(), later, &durations());
        !matches!(decision, Decision::Held { .. })
    }

    /// How many agents would do disruptive things now.
    pub fn believers(&self) -> usize {
        let believes = |agent: &&Agent| match &agent.doing {
            Doing::Holding(hold, _) => {
                protocol::in_force(secs(hold.renewed), secs(self.now), &durations()).is_ok()
            }
            _ => false,
        };
        self.agents.iter().filter(believes).count()
    }

    fn tick(&mut self) {
        self.now += 1;
        let now = self.now;
        self.calls
            .retain(|call| call.landed || now <= call.sent + LATE);
    }

    /// The API server: compare-and-swap, unless that rule is taken away.
    pub fn store(
        &mut self,
        on: Option<&str>,
        write: &LeaseWrite,
        compare: bool,
    ) -> Option<LeaseRecord> {
        let fits = match (&self.lease, on) {
            (None, None) => true,
            (Some(lease), Some(on)) => lease.resource_version == on || !compare,
            (Some(_), None) => !compare,
            (None, Some(_)) => false,
        };
        if !fits {
            return None;
        }
        self.versions += 1;
        let mut record = self.lease.take().unwrap_or_else(|| LeaseRecord {
            uid: "new".to_owned(),
            ..LeaseRecord::default()
        });
        record.resource_version = self.versions.to_string();
        record.holder.clone_from(&write.holder);
        record.duration = Some(Duration::from_secs(
            write.duration_seconds.unsigned_abs().into(),
        ));
        record.transitions = write.transitions.into();
        for (key, value) in &write.annotations {
            match value {
                Some(value) => record.annotations.insert(key.clone(), value.clone()),
                None => record.annotations.remove(key),
            };
        }
        self.lease = Some(record.clone());
        Some(record)
    }
}
