//! The world of the model: hosts and their etcd, the objects on the API server, the Lease,
//! the agents' tasks and the calls on their way. Everything is small and comparable.
//!
//! Times are ages in ticks, each capped where nothing more depends on it. Ages instead of
//! clocks keep the state space finite, and every process has its own: what a process has not
//! seen has no age for it.

use std::time::Duration;

use ichor_lock::protocol::{Observation, Tenure};
use ichor_lock::{Durations, Holder, LeaseRecord, Operation};

/// Hosts there are at most.
pub const HOSTS: usize = 4;

/// One tick is one second to the protocol. Only the order of the durations matters: a hold is
/// believed in for the tick of its renewal, others wait 2; a permit comes within 1 of its
/// intent, and a call in the tick of its permit.
pub fn durations() -> Durations {
    Durations {
        lease: Duration::from_secs(2),
        renew: Duration::from_secs(1),
        intent_to_renew: Duration::from_secs(1),
        send_within: Duration::ZERO,
        margin: Duration::from_secs(1),
        longest: Duration::from_secs(2),
        answer: Duration::from_secs(1),
    }
}

/// How long a call may take, and how long after its intent was first seen it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timing {
    /// A call takes effect within so many ticks after it was sent, or never.
    pub deadline: u8,
    /// Deadline and settling time.
    pub settle: u8,
}

impl Timing {
    /// A settling time longer than what lies between an intent and its call.
    pub const fn new(deadline: u8) -> Self {
        Self {
            deadline,
            settle: deadline + 2,
        }
    }
}

/// Silent for so long is dead, and unhealthy for long.
pub const DEAD: u8 = 2;
/// A reset that was not seen to begin for so long did not begin.
pub const NOT_STARTED: u8 = 2;
/// A reset box that is silent for so long is no longer waited for under the lock.
pub const WIPE_WAIT: u8 = 2;

/// The clock's reading that ages are counted back from.
const NOW: Duration = Duration::from_secs(1_000);

/// The clock's reading `age` ticks ago.
pub fn ago(age: u8) -> Duration {
    NOW.saturating_sub(Duration::from_secs(age.into()))
}

/// The clock's reading now.
pub fn now() -> Duration {
    NOW
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Power {
    Up,
    /// Between two boots; up again a tick later at the earliest.
    Booting {
        done: bool,
    },
    Off,
}

/// Every pod that is gone.
pub const NO_POD: u8 = 9;

/// A box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    pub power: Power,
    pub boot: u8,
    /// It has its configuration; without, it is in maintenance mode.
    pub configured: bool,
    /// Its etcd has data.
    pub data: bool,
    /// It left etcd in this boot, in which Talos does not start it again.
    pub stopped: bool,
    /// The member that its etcd runs as.
    pub member: Option<u8>,
    /// A reset sequence is running.
    pub resetting: bool,
    /// Resets that took effect in this boot.
    pub resets: u8,
    /// Since when it does not answer.
    pub quiet: u8,
}

/// What an intent or a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Leave(u8),
    Remove(u8),
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Intent {
    pub kind: Kind,
    /// The boot that answered when it was written.
    pub boot: Option<u8>,
    /// The pod that wrote it: an agent's, or [`NO_POD`].
    pub pod: u8,
}

/// Steps that are done, as bits.
pub const LEAVE: u8 = 1;
pub const RESET: u8 = 2;
pub const CONFIRM: u8 = 4;

/// A TalosMachine that is being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Object {
    pub host: usize,
    pub gone: bool,
    pub done: u8,
    pub leave_boot: Option<u8>,
    pub leave_by_id: bool,
    /// The recorded member.
    pub member: Option<u8>,
    pub intent: Option<Intent>,
    pub skip_reset: bool,
    pub not_wiped: bool,
}

/// A hold of the lock as a task remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hold {
    /// Whether the Lease still has the transitions of this hold's acquisition. Transitions only
    /// ever grow, so that whether they are equal is all there is to know.
    pub latest: bool,
    /// Since the last renewal was sent.
    pub renewed: u8,
}

/// Where a task stands in the order of an irreversible call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum At {
    /// Between two passes.
    Idle,
    /// The rules passed without the lock, which is taken next.
    Passed,
    /// The intent stands.
    Intended(Kind),
    /// The lock was renewed for it, then all that it relies on was read once more.
    Looked(Kind),
    /// The permit was used up; the next thing is the send.
    Begun(Kind),
    /// The answer is awaited.
    Calling,
}

/// One removal as one agent carries it out, and what that process remembers of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task {
    pub at: At,
    pub hold: Option<Hold>,
    /// Since the intent's mark was taken.
    pub mark: u8,
    /// Since the permit's own renewal was sent; later renewals do not make it younger.
    pub permit: u8,
    /// Somebody else wrote the object since this task's last write.
    pub overtaken: bool,
    /// Since the standing intent was first seen.
    pub intent_seen: Option<u8>,
    pub never_sent: bool,
    pub accepted: bool,
    pub locked: bool,
    /// Since the box was first seen running on, or silent, under a reset intent.
    pub running_on: Option<u8>,
    pub silent: Option<u8>,
    pub forfeit_tried: bool,
}

impl Task {
    pub fn new() -> Self {
        Self {
            at: At::Idle,
            hold: None,
            mark: 0,
            permit: 0,
            overtaken: false,
            intent_seen: None,
            never_sent: false,
            accepted: false,
            locked: false,
            running_on: None,
            silent: None,
            forfeit_tried: false,
        }
    }
}

/// An agent process, one task for each removal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Agent {
    pub pod: u8,
    pub tasks: Vec<Task>,
    /// Since this process has watched the Lease stand as it is.
    pub lease_seen: Option<u8>,
}

/// A call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    pub object: usize,
    pub kind: Kind,
    /// The boot it was sent to: a connection does not outlive it.
    pub boot: u8,
    pub age: u8,
    pub done: bool,
    /// The box answered when its intent was written.
    pub answered: bool,
    /// It was answered, and Talos then said that another sequence was running.
    pub locked: bool,
    /// The agent that waits for its answer.
    pub caller: Option<usize>,
}

/// The Lease's holder: agent's pod and removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Held {
    pub object: usize,
    pub pod: u8,
}

/// How much may still go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Budget {
    /// Agents that are killed and started again, in the same pod.
    pub crashes: u8,
    /// Agents that are killed and started again in another pod.
    pub replaced: u8,
    /// Answers that are lost.
    pub lost: u8,
    /// Power cycles of a box that is being removed.
    pub cycles: u8,
    /// Boxes being removed that lose power for good (unless put on again).
    pub off: u8,
    /// Boxes without power that are put on again.
    pub on: u8,
    /// Other voters that fail.
    pub failures: u8,
    /// Resets that are accepted and do not start, or start and fail.
    pub resets: u8,
    /// Consents to let a box go un-wiped.
    pub consents: u8,
}

/// What must never happen, found when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Broken {
    /// An operation of ours turned an etcd with quorum into one without.
    Quorum,
    /// A healthy voter was removed below the declared count.
    DeclaredCount,
    /// A leave removed another member than its intent named.
    OtherMember,
    /// A reset started on a box whose member was listed.
    ResetOfMember,
    /// A second reset started in one boot.
    SecondReset,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct World {
    pub hosts: [Host; HOSTS],
    /// Members as listed: ID and host. All of them vote.
    pub members: Vec<(u8, usize)>,
    pub next_member: u8,
    pub objects: Vec<Object>,
    pub held: Option<Held>,
    pub agents: Vec<Agent>,
    pub messages: Vec<Message>,
    pub budget: Budget,
    pub timing: Timing,
    pub broken: Option<Broken>,
}

impl World {
    /// Four healthy control planes of which the first `removals` are being deleted.
    pub fn new(agents: usize, removals: usize, budget: Budget, timing: Timing) -> Self {
        let id = |host: usize| u8::try_from(host + 1).unwrap_or(u8::MAX);
        Self {
            hosts: std::array::from_fn(|host| Host {
                power: Power::Up,
                boot: 0,
                configured: true,
                data: true,
                stopped: false,
                member: Some(id(host)),
                resetting: false,
                resets: 0,
                quiet: 0,
            }),
            members: (0..HOSTS).map(|host| (id(host), host)).collect(),
            next_member: id(HOSTS),
            objects: (0..removals)
                .map(|host| Object {
                    host,
                    gone: false,
                    done: 0,
                    leave_boot: None,
                    leave_by_id: false,
                    member: Some(id(host)),
                    intent: None,
                    skip_reset: false,
                    not_wiped: false,
                })
                .collect(),
            held: None,
            agents: (0..agents)
                .map(|agent| Agent {
                    pod: u8::try_from(agent).unwrap_or(u8::MAX),
                    tasks: vec![Task::new(); removals],
                    lease_seen: None,
                })
                .collect(),
            messages: Vec::new(),
            budget,
            timing,
            broken: None,
        }
    }

    /// Whether the box runs its etcd as `id`.
    pub fn votes(&self, id: u8, host: usize) -> bool {
        let host = &self.hosts[host];
        host.power == Power::Up && host.configured && !host.resetting && host.member == Some(id)
    }

    pub fn has_quorum(&self) -> bool {
        let up = self
            .members
            .iter()
            .filter(|(id, host)| self.votes(*id, *host))
            .count();
        up > self.members.len() / 2
    }

    pub fn is_listed(&self, id: u8) -> bool {
        self.members.iter().any(|(member, _)| *member == id)
    }

    pub fn task(&mut self, agent: usize, object: usize) -> &mut Task {
        &mut self.agents[agent].tasks[object]
    }

    /// Changes an object's status on the version that `agent` has read.
    pub fn write(&mut self, agent: usize, object: usize, change: impl FnOnce(&mut Object)) {
        let before = self.objects[object].intent;
        change(&mut self.objects[object]);
        let after = self.objects[object].intent;
        for (number, other) in self.agents.iter_mut().enumerate() {
            let task = &mut other.tasks[object];
            if number != agent {
                task.overtaken = true;
            }
            if before != after {
                task.intent_seen = None;
                task.running_on = None;
                task.silent = None;
                if number != agent {
                    task.never_sent = false;
                    task.accepted = false;
                    task.locked = false;
                }
            }
        }
        self.agents[agent].tasks[object].overtaken = false;
    }

    /// Puts `held` on the Lease; whoever watched it starts to wait anew.
    pub fn write_lease(&mut self, held: Option<Held>) {
        self.held = held;
        for agent in &mut self.agents {
            agent.lease_seen = None;
        }
    }

    /// The Lease as the protocol reads it, at the latest transitions.
    pub fn lease(&self) -> LeaseRecord {
        LeaseRecord {
            uid: "lease".into(),
            resource_version: "latest".into(),
            holder: self
                .held
                .map(|held| holder(held.object, held.pod).to_string()),
            duration: Some(durations().lease),
            transitions: LATEST,
            ..LeaseRecord::default()
        }
    }

    /// What `agent` has watched of it.
    pub fn observed(&self, agent: usize) -> Option<Observation> {
        self.agents[agent].lease_seen.map(|age| Observation {
            record: self.lease(),
            since: ago(age),
        })
    }

    /// The hold of a task, in the protocol's words.
    pub fn tenure(&self, agent: usize, object: usize, hold: Hold) -> Tenure {
        Tenure {
            uid: "lease".into(),
            transitions: if hold.latest { LATEST } else { LATEST - 1 },
            holder: holder(object, self.agents[agent].pod),
        }
    }

    /// The same world with everything left out that nothing depends on any more.
    pub fn essence(mut self) -> Self {
        for host in &mut self.hosts {
            if !host.configured {
                // Nothing was sent to this boot, and nothing will be.
                host.boot = 0;
            }
        }
        for (number, object) in self.objects.iter_mut().enumerate() {
            if object.done & LEAVE != 0 {
                object.leave_by_id = false;
            }
            if object.done & CONFIRM != 0 {
                object.leave_boot = None;
            }
            if object.gone {
                object.done = 0;
            }
            for agent in &mut self.agents {
                let task = &mut agent.tasks[number];
                if matches!(task.at, At::Idle | At::Passed) {
                    task.overtaken = false;
                }
                if object.intent.is_none() {
                    task.never_sent = false;
                    task.accepted = false;
                    task.locked = false;
                }
                if object.gone && task.hold.is_none() && task.at == At::Idle {
                    *task = Task::new();
                }
            }
        }
        self.messages
            .retain(|message| !message.done || message.caller.is_some());
        self.messages.sort_unstable();
        self.members.sort_unstable();
        self
    }

    /// One of the worlds that differ from this one only in which agent, and which of the
    /// machines being removed, is called the first: always the same one.
    pub fn representative(self) -> Self {
        let mut least = self;
        if least.agents.len() == 2 {
            least = least.agents_swapped().min(least);
        }
        if least.objects.len() == 2 {
            let mut other = least.removals_swapped();
            if other.agents.len() == 2 {
                other = other.agents_swapped().min(other);
            }
            least = other.min(least);
        }
        least
    }

    fn agents_swapped(&self) -> Self {
        let mut world = self.clone();
        let other = |pod: u8| if pod == NO_POD { pod } else { 1 - pod };
        world.agents.swap(0, 1);
        for agent in &mut world.agents {
            agent.pod = other(agent.pod);
        }
        for intent in world.objects.iter_mut().filter_map(|o| o.intent.as_mut()) {
            intent.pod = other(intent.pod);
        }
        if let Some(held) = &mut world.held {
            held.pod = other(held.pod);
        }
        for message in &mut world.messages {
            message.caller = message.caller.map(|agent| 1 - agent);
        }
        world.messages.sort_unstable();
        world
    }

    fn removals_swapped(&self) -> Self {
        // Their hosts are the first two, and so are the members that these began with.
        let id = |id: u8| match id {
            1 => 2,
            2 => 1,
            id => id,
        };
        let number = |number: usize| if number < 2 { 1 - number } else { number };
        let kind = |kind: Kind| match kind {
            Kind::Leave(member) => Kind::Leave(id(member)),
            Kind::Remove(member) => Kind::Remove(id(member)),
            Kind::Reset => Kind::Reset,
        };
        let mut world = self.clone();
        world.hosts.swap(0, 1);
        for host in &mut world.hosts {
            host.member = host.member.map(id);
        }
        for (member, host) in &mut world.members {
            (*member, *host) = (id(*member), number(*host));
        }
        world.members.sort_unstable();
        world.objects.swap(0, 1);
        for object in &mut world.objects {
            object.host = number(object.host);
            object.member = object.member.map(id);
            if let Some(intent) = &mut object.intent {
                intent.kind = kind(intent.kind);
            }
        }
        if let Some(held) = &mut world.held {
            held.object = number(held.object);
        }
        for agent in &mut world.agents {
            agent.tasks.swap(0, 1);
            for task in &mut agent.tasks {
                task.at = match task.at {
                    At::Intended(of) => At::Intended(kind(of)),
                    At::Looked(of) => At::Looked(kind(of)),
                    At::Begun(of) => At::Begun(kind(of)),
                    at => at,
                };
            }
        }
        for message in &mut world.messages {
            message.object = number(message.object);
            message.kind = kind(message.kind);
        }
        world.messages.sort_unstable();
        world
    }

    /// Lets a tick pass.
    pub fn tick(&mut self) {
        for host in &mut self.hosts {
            match &mut host.power {
                Power::Up => host.quiet = 0,
                Power::Booting { done } => {
                    *done = true;
                    host.quiet = (host.quiet + 1).min(DEAD);
                }
                Power::Off => host.quiet = (host.quiet + 1).min(DEAD),
            }
        }
        let settle = self.timing.settle;
        for agent in &mut self.agents {
            if let Some(age) = &mut agent.lease_seen {
                *age = (*age + 1).min(2);
            }
            for task in &mut agent.tasks {
                // Of no account outside of the steps that they bound.
                match task.at {
                    At::Intended(_) => task.mark = (task.mark + 1).min(2),
                    At::Looked(_) => task.permit = 1,
                    _ => {}
                }
                if let Some(hold) = &mut task.hold {
                    hold.renewed = 1;
                }
                let older = |age: &mut Option<u8>, most: u8| {
                    *age = age.map(|age| (age + 1).min(most));
                };
                older(&mut task.intent_seen, settle);
                older(&mut task.running_on, NOT_STARTED);
                older(&mut task.silent, WIPE_WAIT);
            }
        }
        for message in &mut self.messages {
            // Of no account once it took effect.
            message.age = if message.done { 0 } else { message.age + 1 };
        }
        let deadline = self.timing.deadline;
        self.messages
            .retain(|message| message.age <= deadline || message.done);
    }
}

const LATEST: i64 = 7;

/// The removal of object number `object`.
pub fn operation(object: usize) -> Operation {
    Operation {
        kind: "TalosMachine".into(),
        name: format!("cp-{object}"),
        namespace: "prod".into(),
        uid: format!("uid-{object}"),
        purpose: "removal".into(),
    }
}

pub fn holder(object: usize, pod: u8) -> Holder {
    Holder {
        operation: operation(object),
        instance: format!("pod-{pod}"),
    }
}

/// A state in one line, for counterexamples.
impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let members: Vec<String> = self
            .members
            .iter()
            .map(|(id, host)| format!("{id}@{host}"))
            .collect();
        write!(f, "[{}]", members.join(" "))?;
        for (number, object) in self.objects.iter().enumerate() {
            let host = &self.hosts[object.host];
            write!(
                f,
                " o{number}(done {:03b} {:?}{} {:?} boot {} {:?}{})",
                object.done,
                object.intent.map(|intent| intent.kind),
                if object.gone { " gone" } else { "" },
                host.power,
                host.boot,
                host.member,
                if host.resetting { " resetting" } else { "" },
            )?;
        }
        for agent in &self.agents {
            for task in &agent.tasks {
                let held = task.hold.map(|hold| (hold.latest, hold.renewed));
                write!(
                    f,
                    " p{}({:?} {held:?} seen {:?})",
                    agent.pod, task.at, task.intent_seen
                )?;
            }
        }
        for message in &self.messages {
            write!(
                f,
                " m{}({:?} {}{})",
                message.object,
                message.kind,
                message.age,
                if message.done { " done" } else { "" }
            )?;
        }
        if let Some(broken) = self.broken {
            write!(f, " {broken:?}")?;
        }
        Ok(())
    }
}
