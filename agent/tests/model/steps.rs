//! Who may do what next, and what comes of it.

use ichor_agent::removal::facts::{Call, Snapshot};
use ichor_agent::removal::next::{Step, next};
use ichor_api::conditions::StandstillReason;
use ichor_lock::protocol::{self, Decision};
use stateright::{Model, Property};

use super::facts::{self, boot_number};
use super::world::{
    self, At, Broken, Budget, CONFIRM, Held, Hold, Host, Intent, Kind, LEAVE, Message, NO_POD,
    Power, RESET, Task, Timing, World,
};

/// Sentences of the specification that can be left out, to see what they are for.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// After the permit's renewal, all that the step relies on is read once more.
    pub look_after_the_permit: bool,
    /// An acquirer lists the machines and waits for other operations' unsettled intents.
    pub unsettled_intents_hold_up_an_acquirer: bool,
    /// What passed without the lock is asked again under it.
    pub recount_under_the_lock: bool,
    /// A call counts as not having happened only when it cannot happen any more.
    pub settling_waits_for_late_calls: bool,
    /// The assumption about the known hole.
    pub no_freeze_before_the_send: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            look_after_the_permit: true,
            unsettled_intents_hold_up_an_acquirer: true,
            recount_under_the_lock: true,
            settling_waits_for_late_calls: true,
            no_freeze_before_the_send: true,
        }
    }
}

/// The model: how many agents and removals, and how much goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Removals {
    pub agents: usize,
    /// How many of the control planes are being removed.
    pub machines: usize,
    pub budget: Budget,
    pub timing: Timing,
    pub rules: Rules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A tick passes; the background renewals of the first, of the second agent succeed or not.
    Tick([bool; 2]),
    /// The next small step of agent's removal.
    Go(usize, usize),
    /// The answer of a call does not come.
    Lose(usize, usize),
    /// Agent dies and is started again, in another pod or not.
    Restart(usize, bool),
    /// A message takes effect; a reset may be accepted and not start.
    Deliver(usize, bool),
    /// A reset that runs has wiped the box, or has failed.
    Wiped(usize, bool),
    /// A box is switched off and on.
    Cycle(usize),
    PowerOff(usize),
    PowerOn(usize),
    /// A box is up again.
    Boot(usize),
    /// A box without etcd data joins.
    Join(usize),
    /// A voter that nobody removes fails for good.
    Fail(usize),
    /// A person consents to leave the box un-wiped.
    Consent(usize),
}

impl Model for Removals {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(
            self.agents,
            self.machines,
            self.budget,
            self.timing,
        )]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // What is broken stays broken.
        if world.broken.is_some() {
            return;
        }
        let begun = world
            .agents
            .iter()
            .flat_map(|agent| &agent.tasks)
            .any(|task| matches!(task.at, At::Begun(_)));
        if !(begun && self.rules.no_freeze_before_the_send) {
            let holds = |agent: usize| {
                let agent = world.agents.get(agent);
                agent.is_some_and(|a| a.tasks.iter().any(|task| task.hold.is_some()))
            };
            for first in [false, true] {
                for second in [false, true] {
                    if (!first || holds(0)) && (!second || holds(1)) {
                        actions.push(Action::Tick([first, second]));
                    }
                }
            }
        }
        for (number, agent) in world.agents.iter().enumerate() {
            let mut busy = false;
            for (object, task) in agent.tasks.iter().enumerate() {
                busy |= *task != Task::new();
                if world.objects[object].gone && task.at == At::Idle && task.hold.is_none() {
                    continue;
                }
                actions.push(Action::Go(number, object));
                if task.at == At::Calling && world.budget.lost > 0 {
                    actions.push(Action::Lose(number, object));
                }
            }
            if busy {
                if world.budget.crashes > 0 {
                    actions.push(Action::Restart(number, false));
                }
                if world.budget.replaced > 0 {
                    actions.push(Action::Restart(number, true));
                }
            }
        }
        for (number, message) in world.messages.iter().enumerate() {
            if !message.done {
                actions.push(Action::Deliver(number, true));
                if message.kind == Kind::Reset && world.budget.resets > 0 {
                    actions.push(Action::Deliver(number, false));
                }
            }
        }
        for (number, host) in world.hosts.iter().enumerate() {
            let object = world.objects.iter().find(|object| object.host == number);
            host_actions(world, number, host, object.is_some(), actions);
            if object.is_some_and(|o| !o.gone && !o.skip_reset) && world.budget.consents > 0 {
                actions.push(Action::Consent(number));
            }
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Tick(renewing) => {
                // A renewal in the course of the tick: the hold is as young at its end.
                let mut renewed = Vec::new();
                for agent in (0..self.agents).filter(|agent| renewing[*agent]) {
                    for object in 0..self.machines {
                        if renewal(&mut world, agent, object) {
                            renewed.push((agent, object));
                        }
                    }
                }
                world.tick();
                for (agent, object) in renewed {
                    if let Some(hold) = &mut world.task(agent, object).hold {
                        hold.renewed = 0;
                    }
                }
            }
            Action::Go(agent, object) => self.go(&mut world, agent, object),
            Action::Lose(agent, object) => {
                world.budget.lost -= 1;
                no_answer(&mut world, agent, object);
            }
            Action::Restart(agent, replaced) => restart(&mut world, agent, replaced),
            Action::Deliver(message, starts) => deliver(&mut world, message, starts),
            Action::Wiped(host, done) => wiped(&mut world, host, done),
            Action::Cycle(host) => {
                world.budget.cycles -= 1;
                go_down(&mut world, host, Power::Booting { done: false });
            }
            Action::PowerOff(host) => {
                world.budget.off -= 1;
                go_down(&mut world, host, Power::Off);
            }
            Action::Fail(host) => {
                world.budget.failures -= 1;
                go_down(&mut world, host, Power::Off);
            }
            Action::PowerOn(host) => {
                world.budget.on -= 1;
                world.hosts[host].power = Power::Booting { done: false };
            }
            Action::Boot(host) => boot(&mut world, host),
            Action::Join(host) => join(&mut world, host),
            Action::Consent(host) => {
                world.budget.consents -= 1;
                for object in &mut world.objects {
                    object.skip_reset |= object.host == host;
                }
            }
        }
        let world = world.essence().representative();
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always("nothing that must not happen happens", |_, world| {
                world.broken.is_none()
            }),
            Property::<Self>::always("one removal at a time believes in the lock", |_, world| {
                let believers = world
                    .agents
                    .iter()
                    .flat_map(|agent| &agent.tasks)
                    .filter_map(|task| task.hold)
                    .filter(|hold| believed(*hold))
                    .count();
                believers <= 1
            }),
            Property::<Self>::always("a removal ends wiped and out of etcd", |_, world| {
                world.objects.iter().filter(|o| o.gone).all(|object| {
                    let host = &world.hosts[object.host];
                    let out = object.member.is_none_or(|id| !world.is_listed(id));
                    out && (object.not_wiped || !host.configured)
                })
            }),
            Property::<Self>::sometimes("a removal comes to its end", |_, world| {
                world.objects.iter().any(|object| object.gone)
            }),
        ]
    }
}

fn believed(hold: Hold) -> bool {
    protocol::in_force(world::ago(hold.renewed), world::now(), &world::durations()).is_ok()
}

fn host_actions(
    world: &World,
    number: usize,
    host: &Host,
    removed: bool,
    actions: &mut Vec<Action>,
) {
    match host.power {
        Power::Booting { done: true } => actions.push(Action::Boot(number)),
        Power::Booting { done: false } => {}
        Power::Off => {
            if removed && world.budget.on > 0 {
                actions.push(Action::PowerOn(number));
            }
        }
        Power::Up => {
            if removed && host.configured {
                if world.budget.cycles > 0 {
                    actions.push(Action::Cycle(number));
                }
                if world.budget.off > 0 {
                    actions.push(Action::PowerOff(number));
                }
            }
            if !removed && world.budget.failures > 0 {
                actions.push(Action::Fail(number));
            }
            if host.resetting {
                actions.push(Action::Wiped(number, true));
                if world.budget.resets > 0 {
                    actions.push(Action::Wiped(number, false));
                }
            }
            let joins = host.configured && !host.resetting && !host.data && !host.stopped;
            if joins && host.member.is_none() && world.has_quorum() {
                actions.push(Action::Join(number));
            }
        }
    }
}

impl Removals {
    /// What `agent` knows, with the sentences that are left out left out.
    fn look(&self, world: &World, agent: usize, object: usize) -> Snapshot {
        let mut snapshot = facts::snapshot(world, agent, object);
        if snapshot.lock_held && !self.rules.recount_under_the_lock {
            snapshot.checks.clear();
        }
        if !self.rules.settling_waits_for_late_calls
            && let Some(intent) = &mut snapshot.intent
        {
            intent.settle_due = true;
            intent.sender_may_live = false;
        }
        snapshot
    }

    /// The next small step of a task.
    fn go(&self, world: &mut World, agent: usize, object: usize) {
        match world.agents[agent].tasks[object].at {
            At::Idle => self.pass(world, agent, object),
            At::Passed => {
                world.task(agent, object).at = At::Idle;
                self.acquire(world, agent, object);
            }
            At::Intended(kind) => self.permit_and_look(world, agent, object, kind),
            At::Looked(kind) => {
                begin(world, agent, object, kind);
                // Nobody is frozen between the two: one step.
                if self.rules.no_freeze_before_the_send
                    && world.agents[agent].tasks[object].at == At::Begun(kind)
                {
                    send(world, agent, object, kind);
                }
            }
            At::Begun(kind) => send(world, agent, object, kind),
            At::Calling => answered(world, agent, object),
        }
    }

    /// `run`: one pass of a removal.
    fn pass(&self, world: &mut World, agent: usize, object: usize) {
        let task = world.task(agent, object);
        task.overtaken = false;
        if task.hold.is_some_and(|hold| !believed(hold)) {
            task.hold = None;
        }
        if world.objects[object].gone {
            world.task(agent, object).hold = None;
            return;
        }
        facts::note(world, agent, object);
        let snapshot = self.look(world, agent, object);
        match next(&snapshot) {
            Step::Stand { .. } => release(world, agent, object),
            Step::AcquireLock => world.task(agent, object).at = At::Passed,
            Step::Drain | Step::BeginHold => {}
            Step::Forfeit => world.task(agent, object).forfeit_tried = true,
            Step::Send(call) => intend(world, agent, object, &snapshot, &call),
            Step::LeaveConfirmed { boot_id } => {
                let boot = boot_id.as_deref().and_then(boot_number);
                world.write(agent, object, |o| record_left(o, boot));
            }
            Step::RejoinedAs { member_id } => {
                world.write(agent, object, |o| {
                    o.member = u8::try_from(member_id).ok();
                    o.intent = None;
                    o.leave_boot = None;
                    o.leave_by_id = false;
                    o.done = 0;
                });
                world.task(agent, object).forfeit_tried = false;
            }
            Step::WithdrawIntent { leave_by_id, .. } => {
                world.write(agent, object, |o| {
                    o.intent = None;
                    o.leave_by_id = leave_by_id;
                    o.done &= !(RESET | CONFIRM);
                });
                let task = world.task(agent, object);
                task.never_sent = false;
                task.accepted = false;
                task.locked = false;
            }
            Step::Wiped { not_wiped, .. } => world.write(agent, object, |o| {
                o.intent = None;
                o.done |= RESET | CONFIRM;
                o.not_wiped = not_wiped;
            }),
            // Work that goes on is worked on under the lock.
            Step::Wait { .. } => {
                if !snapshot.lock_held {
                    self.acquire(world, agent, object);
                }
            }
            Step::Finish | Step::LetGo(_) => {
                world.objects[object].gone = true;
                release(world, agent, object);
            }
        }
    }

    /// `acquire_disruptive`. One step for the Lease write and the look at the machines after it:
    /// an intent written between the two could as well be written before, and be seen, or after,
    /// and get no permit.
    fn acquire(&self, world: &mut World, agent: usize, object: usize) {
        // Other removals of this process exclude it.
        let claimed = world.agents[agent]
            .tasks
            .iter()
            .any(|task| task.hold.is_some());
        if claimed {
            return;
        }
        let pod = world.agents[agent].pod;
        let me = world::holder(object, pod);
        let record = world.lease();
        let seen = &mut world.agents[agent].lease_seen;
        *seen = Some(seen.unwrap_or(0));
        let decision = protocol::decide(
            Some(&record),
            &me,
            world.observed(agent).as_ref(),
            world::now(),
            &world::durations(),
        );
        if let Decision::Held { .. } = decision {
            return;
        }
        let write = protocol::acquisition(Some(&record), &me, "nonce", &world::durations());
        assert_eq!(write.holder, Some(me.to_string()));
        assert_eq!(i64::from(write.transitions), record.transitions + 1);
        for other in world.agents.iter_mut().flat_map(|a| &mut a.tasks) {
            if let Some(hold) = &mut other.hold {
                hold.latest = false;
            }
        }
        world.write_lease(Some(Held { object, pod }));
        world.task(agent, object).hold = Some(Hold {
            latest: true,
            renewed: 0,
        });
        self.under_lock(world, agent, object);
    }

    /// The lock's view, asked after the Lease write.
    fn under_lock(&self, world: &mut World, agent: usize, object: usize) {
        let mut unsettled = false;
        for other in 0..world.objects.len() {
            let found = world.objects[other];
            let Some(intent) = found.intent.filter(|_| other != object && !found.gone) else {
                continue;
            };
            match intent.kind {
                // Out of etcd: it blocks nobody.
                Kind::Reset if found.done & LEAVE != 0 => {}
                Kind::Leave(id) | Kind::Remove(id)
                    if world.has_quorum()
                        && !world.is_listed(id)
                        && !world.members.iter().any(|(_, host)| *host == found.host) =>
                {
                    world.write(agent, other, |o| record_left(o, intent.boot));
                    // Recorded by this process, but not by that removal's own task.
                    world.task(agent, other).overtaken = true;
                }
                _ => unsettled = true,
            }
        }
        let lost = world
            .task(agent, object)
            .hold
            .is_none_or(|hold| !believed(hold));
        if (unsettled && self.rules.unsettled_intents_hold_up_an_acquirer) || lost {
            release(world, agent, object);
        }
    }

    /// `DisruptiveLock::permit`, and what is read after it. One step: whatever happens between
    /// the two could as well happen before the renewal, which it does not change, or after the
    /// look, and a pause between them is one after both.
    fn permit_and_look(&self, world: &mut World, agent: usize, object: usize, kind: Kind) {
        let mark = world::ago(world.agents[agent].tasks[object].mark);
        let in_time = protocol::intent_in_time(mark, world::now(), &world::durations());
        if !in_time || !renewal(world, agent, object) {
            withdraw(world, agent, object);
            return;
        }
        let task = world.task(agent, object);
        task.mark = 0;
        task.permit = 0;
        if !self.rules.look_after_the_permit {
            task.at = At::Looked(kind);
            return;
        }
        let mut snapshot = self.look(world, agent, object);
        snapshot.lock_held = true;
        snapshot.intent = None;
        snapshot.forfeit_tried = true;
        if !self.rules.recount_under_the_lock {
            snapshot.checks.clear();
        }
        if !world.objects[object].gone
            && let Step::Send(call) = next(&snapshot)
            && self::kind(&call) == kind
        {
            world.task(agent, object).at = At::Looked(kind);
        } else {
            withdraw(world, agent, object);
        }
    }

    /// Whether every removal is at its end, or stands still for a reason that a person or the
    /// box can end, and renews no lock. (A Lease that an agent left behind when it died may
    /// still name it; that one expires.)
    pub fn at_rest(&self, world: &World) -> bool {
        let stands = |agent: usize, object: usize| {
            let task = &world.agents[agent].tasks[object];
            if task.at != At::Idle || task.hold.is_some() {
                return false;
            }
            let mut seen = world.clone();
            facts::note(&mut seen, agent, object);
            matches!(
                next(&facts::snapshot(&seen, agent, object)),
                Step::Stand { reason, .. } if reason != StandstillReason::OutcomeUnknown
            )
        };
        (0..self.machines).all(|object| {
            world.objects[object].gone || (0..self.agents).all(|agent| stands(agent, object))
        })
    }
}

fn kind(call: &Call) -> Kind {
    let id = |id: &u64| u8::try_from(*id).unwrap_or(u8::MAX);
    match call {
        Call::LeaveEtcd { member_id } => Kind::Leave(id(member_id)),
        Call::RemoveMember { member_id } => Kind::Remove(id(member_id)),
        Call::Reset { .. } => Kind::Reset,
    }
}

fn record_left(object: &mut world::Object, boot: Option<u8>) {
    object.intent = None;
    object.done |= LEAVE;
    object.leave_boot = boot;
}

/// Renews a task's hold, if it may; answers whether it is still held.
fn renewal(world: &mut World, agent: usize, object: usize) -> bool {
    let Some(hold) = world.agents[agent].tasks[object].hold else {
        return false;
    };
    let tenure = world.tenure(agent, object, hold);
    let record = world.lease();
    if !believed(hold) || protocol::still_held(Some(&record), &tenure).is_err() {
        return false;
    }
    let write = protocol::renewal(&record, &tenure, "nonce", None, &world::durations());
    assert_eq!(write.holder, record.holder);
    let held = world.held;
    world.write_lease(held);
    if let Some(hold) = &mut world.task(agent, object).hold {
        hold.renewed = 0;
    }
    true
}

fn release(world: &mut World, agent: usize, object: usize) {
    let Some(hold) = world.task(agent, object).hold.take() else {
        return;
    };
    let tenure = world.tenure(agent, object, hold);
    let record = world.lease();
    if protocol::still_held(Some(&record), &tenure).is_ok() {
        let write = protocol::release(&record, &tenure, "nonce", &world::durations());
        assert_eq!(write.holder, None);
        world.write_lease(None);
    }
}

/// `fenced`, its first write.
fn intend(world: &mut World, agent: usize, object: usize, seen: &Snapshot, call: &Call) {
    use ichor_agent::removal::facts::TargetFact;
    let kind = kind(call);
    let boot = match &seen.target {
        TargetFact::Answers(answer) => boot_number(&answer.boot_id),
        _ => None,
    };
    let pod = world.agents[agent].pod;
    world.write(agent, object, |o| {
        o.intent = Some(Intent { kind, boot, pod });
    });
    let task = world.task(agent, object);
    task.intent_seen = Some(0);
    task.mark = 0;
    task.never_sent = true;
    task.accepted = false;
    task.locked = false;
    task.at = At::Intended(kind);
}

/// Takes the intent back on the version of its own write; overtaken, it stays.
fn withdraw(world: &mut World, agent: usize, object: usize) {
    let task = world.task(agent, object);
    task.at = At::Idle;
    task.mark = 0;
    task.permit = 0;
    if !task.overtaken {
        world.write(agent, object, |o| o.intent = None);
        world.task(agent, object).never_sent = false;
    }
}

/// `Permit::begin`: the last check.
fn begin(world: &mut World, agent: usize, object: usize, kind: Kind) {
    let Task { hold, permit, .. } = world.agents[agent].tasks[object];
    let may = hold.is_some_and(|hold| {
        believed(hold) && protocol::may_send(world::ago(permit), world::now(), &world::durations())
    });
    if may {
        let task = world.task(agent, object);
        task.never_sent = false;
        task.permit = 0;
        task.at = At::Begun(kind);
    } else {
        withdraw(world, agent, object);
    }
}

fn send(world: &mut World, agent: usize, object: usize, kind: Kind) {
    let object_now = world.objects[object];
    let host = world.hosts[object_now.host];
    world.task(agent, object).at = At::Calling;
    // What does not answer is not connected to; a removal by ID goes through another node.
    let reached = matches!(kind, Kind::Remove(_)) || (host.power == Power::Up && host.configured);
    if reached {
        world.messages.push(Message {
            object,
            kind,
            boot: host.boot,
            age: 0,
            done: false,
            locked: false,
            answered: object_now
                .intent
                .is_some_and(|intent| intent.boot.is_some()),
            caller: Some(agent),
        });
    }
}

/// The call ends: with an answer where it took effect, else it is given up.
fn answered(world: &mut World, agent: usize, object: usize) {
    let found = world
        .messages
        .iter()
        .position(|m| m.caller == Some(agent) && m.object == object);
    let Some(found) = found else {
        no_answer(world, agent, object);
        return;
    };
    let message = world.messages[found];
    if !message.done {
        return;
    }
    world.messages.remove(found);
    let task = world.task(agent, object);
    task.at = At::Idle;
    // While another wrote the object, nothing that is remembered is about what stands there.
    if task.overtaken {
        return;
    }
    task.accepted = true;
    task.locked = message.locked;
    if message.kind == Kind::Reset {
        world.write(agent, object, |o| o.done |= RESET);
    }
}

fn no_answer(world: &mut World, agent: usize, object: usize) {
    world.task(agent, object).at = At::Idle;
    for message in &mut world.messages {
        if message.caller == Some(agent) && message.object == object {
            message.caller = None;
        }
    }
    world.messages.retain(|m| !m.done || m.caller.is_some());
}

fn restart(world: &mut World, agent: usize, replaced: bool) {
    for object in 0..world.objects.len() {
        no_answer(world, agent, object);
        *world.task(agent, object) = Task::new();
    }
    world.agents[agent].lease_seen = None;
    if replaced {
        world.budget.replaced -= 1;
        // Its old pod is gone, and its new one is nobody's so far.
        let pod = world.agents[agent].pod;
        for intent in world.objects.iter_mut().filter_map(|o| o.intent.as_mut()) {
            if intent.pod == pod {
                intent.pod = NO_POD;
            }
        }
        if let Some(held) = &mut world.held
            && held.pod == pod
        {
            held.pod = NO_POD;
        }
    } else {
        world.budget.crashes -= 1;
    }
}

/// A call takes effect on the box, or on etcd through another one.
fn deliver(world: &mut World, number: usize, starts: bool) {
    let message = world.messages[number];
    let object = world.objects[message.object];
    let host = world.hosts[object.host];
    let same_boot =
        host.power == Power::Up && host.configured && host.boot == message.boot && !host.resetting;
    let mut done = true;
    match message.kind {
        Kind::Leave(id) if same_boot => match host.member {
            Some(own) => done = remove(world, own, id, true, message.answered),
            None => done = false,
        },
        Kind::Remove(id) => done = remove(world, id, id, false, message.answered),
        Kind::Reset if same_boot => {
            if starts {
                start_reset(world, object.host);
            } else {
                world.budget.resets -= 1;
            }
        }
        _ => done = false,
    }
    if !done {
        // Refused, or the connection broke: it never happens, and nobody hears of it.
        world.messages.remove(number);
        return;
    }
    let message = &mut world.messages[number];
    message.done = true;
    message.locked = message.kind == Kind::Reset && !starts;
    if message.caller.is_none() {
        world.messages.remove(number);
    }
}

/// etcd removes member `id`; `meant` is the one that the intent named. `counts`: the declared
/// count holds for it, since it was not dead when that was decided.
fn remove(world: &mut World, id: u8, meant: u8, by_itself: bool, counts: bool) -> bool {
    // Gone already is an answer too.
    let Some(found) = world.members.iter().position(|(member, _)| *member == id) else {
        return true;
    };
    if !world.has_quorum() {
        return false;
    }
    let (_, host) = world.members[found];
    let healthy = world.votes(id, host);
    world.members.remove(found);
    if world.hosts[host].member == Some(id) && world.hosts[host].power == Power::Up {
        world.hosts[host].member = None;
    }
    if by_itself {
        world.hosts[host].data = false;
        world.hosts[host].stopped = true;
    }
    let left = i32::try_from(world.members.len()).unwrap_or(i32::MAX);
    if id != meant {
        world.broken = Some(Broken::OtherMember);
    } else if !world.has_quorum() {
        world.broken = Some(Broken::Quorum);
    } else if healthy && counts && left < facts::DECLARED {
        world.broken = Some(Broken::DeclaredCount);
    }
    true
}

fn start_reset(world: &mut World, number: usize) {
    if world.members.iter().any(|(_, host)| *host == number) {
        world.broken = Some(Broken::ResetOfMember);
    } else if world.hosts[number].resets > 0 {
        world.broken = Some(Broken::SecondReset);
    }
    let host = &mut world.hosts[number];
    host.resetting = true;
    host.resets = 1;
}

fn wiped(world: &mut World, number: usize, done: bool) {
    let host = &mut world.hosts[number];
    host.resetting = false;
    host.resets = 0;
    if done {
        host.member = None;
        host.data = false;
        host.configured = false;
        host.boot += 1;
    } else {
        world.budget.resets -= 1;
        go_down(world, number, Power::Booting { done: false });
    }
}

fn go_down(world: &mut World, number: usize, power: Power) {
    let host = &mut world.hosts[number];
    host.power = power;
    host.resetting = false;
    host.resets = 0;
    host.member = None;
    host.quiet = 0;
}

fn boot(world: &mut World, number: usize) {
    // Its etcd starts from its data, if the others still list that member.
    let member = world
        .members
        .iter()
        .find(|(_, host)| *host == number)
        .map(|(id, _)| *id);
    let host = &mut world.hosts[number];
    host.power = Power::Up;
    host.boot += 1;
    host.quiet = 0;
    host.stopped = false;
    host.member = member.filter(|_| host.data);
}

fn join(world: &mut World, number: usize) {
    world.members.retain(|(_, host)| *host != number);
    let id = world.next_member;
    world.next_member += 1;
    world.members.push((id, number));
    world.hosts[number].member = Some(id);
    world.hosts[number].data = true;
}
