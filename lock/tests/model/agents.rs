//! What the agents do, one step at a time; each decision is the protocol's.

use std::collections::BTreeMap;

use ichor_lock::protocol::{self, Basis, Decision, StepNote, Tenure};
use ichor_lock::{Durations, LeaseRecord, LeaseWrite};

use super::world::{
    Answer, Call, Doing, HEARD, Hold, Setup, Sight, Stage, World, durations, holder, secs,
    settled_after,
};

impl World {
    /// Looked for only after a lost answer, so that only such a write needs one of its own.
    pub fn nonce(&self, answer: Answer) -> String {
        match answer {
            Answer::Heard => HEARD.to_owned(),
            Answer::Lost => format!("lost {}", self.faults),
        }
    }

    /// The first thing an agent does next, it does in the next tick.
    pub fn wait(&mut self, agent: usize) {
        self.agents[agent].doing = Doing::Waiting(self.now + 1);
    }

    pub fn read(&mut self, setup: &Setup, agent: usize) {
        let (me, now) = (holder(agent, setup.operations[agent]), secs(self.now));
        let before = self.agents[agent].observation.take();
        let observation = protocol::observe(before, self.lease.as_ref(), now);
        let decision = if setup.rules.own_clock {
            protocol::decide(
                self.lease.as_ref(),
                &me,
                observation.as_ref(),
                now,
                &durations(),
            )
        } else {
            // A wall clock that is far ahead of the renew time in the object.
            protocol::decide(
                self.lease.as_ref(),
                &me,
                observation.as_ref(),
                now + secs(9),
                &durations(),
            )
        };
        setup.note(Sight::Expiry, decision == Decision::Take(Basis::Expired));
        setup.note(
            Sight::HandedOver,
            decision == Decision::Take(Basis::HandedOver),
        );
        self.agents[agent].observation = observation;
        if !matches!(decision, Decision::Held { .. }) {
            self.agents[agent].doing = Doing::Decided(self.lease.clone());
        }
    }

    /// Sends a write; `None` when it was refused or nothing was heard.
    pub fn write(
        &mut self,
        setup: &Setup,
        agent: usize,
        on: Option<&LeaseRecord>,
        write: &LeaseWrite,
        answer: Answer,
        before: Option<(Hold, Stage)>,
    ) -> Option<LeaseRecord> {
        let version = on.map(|record| record.resource_version.clone());
        if answer == Answer::Lost {
            self.faults -= 1;
            self.late_write = Some((version, write.clone()));
            self.agents[agent].doing = Doing::Unsure {
                write: write.clone(),
                sent: self.now,
                before,
            };
            return None;
        }
        self.store(version.as_deref(), write, setup.rules.compare_and_swap)
    }

    pub fn take(&mut self, setup: &Setup, agent: usize, answer: Answer) {
        let Doing::Decided(record) = self.agents[agent].doing.clone() else {
            return;
        };
        let me = holder(agent, setup.operations[agent]);
        let write = protocol::acquisition(record.as_ref(), &me, &self.nonce(answer), &durations());
        let stored = self.write(setup, agent, record.as_ref(), &write, answer, None);
        if answer == Answer::Heard {
            self.taken(setup, agent, stored, self.now);
        }
    }

    pub fn taken(&mut self, setup: &Setup, agent: usize, stored: Option<LeaseRecord>, sent: u8) {
        let me = holder(agent, setup.operations[agent]);
        let hold = stored.and_then(|record| {
            let tenure = Tenure::begun(&record, &me)?;
            Some(Hold {
                tenure,
                record,
                renewed: sent,
            })
        });
        match hold {
            Some(hold) => self.agents[agent].doing = Doing::Holding(hold, Stage::Taken),
            None => self.wait(agent),
        }
    }

    pub fn read_again(&mut self, setup: &Setup, agent: usize) {
        let Doing::Unsure {
            write,
            sent,
            before,
        } = self.agents[agent].doing.clone()
        else {
            return;
        };
        if !setup.rules.lost_answers_looked_up {
            // It was surely applied.
            let mut record = self.lease.clone().unwrap_or_default();
            record.holder = write.holder;
            record.transitions = write.transitions.into();
            match before {
                Some((hold, stage)) => self.renewed(setup, agent, hold, stage, record, sent),
                None => self.taken(setup, agent, Some(record), sent),
            }
            return;
        }
        let seen = self.lease.clone();
        if protocol::applied(seen.as_ref(), &write) {
            setup.note(Sight::LookedUp, true);
            let record = seen.unwrap();
            match before {
                Some((hold, stage)) => self.renewed(setup, agent, hold, stage, record, sent),
                None => self.taken(setup, agent, Some(record), sent),
            }
        } else if let Some((hold, stage)) = before {
            self.not_renewed(setup, agent, hold, stage, seen);
        } else {
            self.agents[agent].doing = Doing::Waiting(self.now);
        }
    }

    pub fn look(&mut self, setup: &Setup, agent: usize) {
        let Doing::Holding(hold, _) = self.agents[agent].doing.clone() else {
            return;
        };
        let own = setup.operations[agent];
        for index in 0..self.machines.len() {
            let Some(intent) = self.machines[index].intent else {
                continue;
            };
            if index != own && !setup.rules.intents_after_acquisition {
                continue;
            }
            let since = match self.agents[agent].sights[index] {
                Some((seen, since)) if seen == intent => since,
                _ => self.now,
            };
            self.agents[agent].sights[index] = Some((intent, since));
            let landed = self
                .calls
                .iter()
                .any(|call| call.machine == index && call.landed);
            let over = secs(self.now - since) > settled_after();
            if self.machines[index].done > 0 || (over && !landed) {
                setup.note(Sight::NotHappened, self.machines[index].done == 0);
                self.machines[index].intent = None;
                self.machines[index].version += 1;
            } else {
                setup.note(Sight::GaveBack, true);
                self.end(agent, protocol::release);
                self.wait(agent);
                return;
            }
        }
        if self.machines[own].done > 0 {
            self.end(agent, protocol::release);
            self.agents[agent].doing = Doing::Finished;
            return;
        }
        self.agents[agent].doing = Doing::Holding(hold, Stage::Clear(self.machines[own].version));
    }

    pub fn intend(&mut self, setup: &Setup, agent: usize) {
        let Doing::Holding(hold, Stage::Clear(version)) = self.agents[agent].doing.clone() else {
            return;
        };
        if !setup.rules.intent_first {
            // Renews now, and writes the intent together with the call.
            let stage = Stage::Intended {
                at: self.now,
                intent: version,
            };
            self.agents[agent].doing = Doing::Holding(hold, stage);
            return;
        }
        let machine = &mut self.machines[setup.operations[agent]];
        if machine.version != version {
            self.agents[agent].doing = Doing::Holding(hold, Stage::Taken);
            return;
        }
        machine.version += 1;
        machine.intent = Some(machine.version);
        let stage = Stage::Intended {
            at: self.now,
            intent: machine.version,
        };
        self.agents[agent].doing = Doing::Holding(hold, stage);
    }

    pub fn renew(&mut self, setup: &Setup, agent: usize, answer: Answer) {
        let Doing::Holding(hold, stage) = self.agents[agent].doing.clone() else {
            return;
        };
        let now = secs(self.now);
        if let Stage::Intended { at, intent } = stage
            && !protocol::intent_in_time(secs(at), now, &durations())
        {
            self.withdraw(setup, agent, intent);
            return;
        }
        let held = protocol::in_force(secs(hold.renewed), now, &durations())
            .and_then(|()| may_write(setup, Some(&hold.record), &hold.tenure));
        if held.is_err() {
            self.lost(setup, agent, stage);
            return;
        }
        let note = StepNote {
            step: "s".into(),
            details: BTreeMap::new(),
        };
        let step = matches!(stage, Stage::Intended { .. }).then_some(&note);
        let write = protocol::renewal(
            &hold.record,
            &hold.tenure,
            &self.nonce(answer),
            step,
            &durations(),
        );
        let before = Some((hold.clone(), stage));
        let stored = self.write(setup, agent, Some(&hold.record), &write, answer, before);
        if answer == Answer::Lost {
            return;
        }
        match stored {
            Some(record) => self.renewed(setup, agent, hold, stage, record, self.now),
            None => self.not_renewed(setup, agent, hold, stage, self.lease.clone()),
        }
    }

    pub fn renewed(
        &mut self,
        setup: &Setup,
        agent: usize,
        hold: Hold,
        stage: Stage,
        record: LeaseRecord,
        sent: u8,
    ) {
        let hold = Hold {
            record,
            renewed: sent,
            ..hold
        };
        let mut next = stage;
        if let Stage::Intended { intent, .. } = stage {
            let machine = &self.machines[setup.operations[agent]];
            let stands = machine.intent == Some(intent) || !setup.rules.intent_first;
            if !stands || machine.done > 0 {
                self.agents[agent].doing = Doing::Holding(hold, stage);
                self.withdraw(setup, agent, intent);
                return;
            }
            next = Stage::Permitted { intent };
        }
        self.agents[agent].doing = Doing::Holding(hold, next);
    }

    /// The write was refused, or not applied so far: on what is there now it is tried again.
    pub fn not_renewed(
        &mut self,
        setup: &Setup,
        agent: usize,
        hold: Hold,
        stage: Stage,
        seen: Option<LeaseRecord>,
    ) {
        if may_write(setup, seen.as_ref(), &hold.tenure).is_err() {
            self.lost(setup, agent, stage);
            return;
        }
        let hold = Hold {
            record: seen.unwrap(),
            ..hold
        };
        self.agents[agent].doing = Doing::Holding(hold, stage);
    }

    /// Nothing more is begun; an intent whose call was sent stays.
    pub fn lost(&mut self, setup: &Setup, agent: usize, stage: Stage) {
        setup.note(Sight::Lost, true);
        match stage {
            Stage::Intended { intent, .. } | Stage::Permitted { intent } => {
                self.withdraw(setup, agent, intent);
            }
            _ => self.wait(agent),
        }
    }

    /// Takes back the very intent just written, and the lock with it.
    pub fn withdraw(&mut self, setup: &Setup, agent: usize, intent: u8) {
        let machine = &mut self.machines[setup.operations[agent]];
        if machine.intent == Some(intent) {
            machine.intent = None;
            machine.version += 1;
        }
        self.end(agent, protocol::release);
        self.wait(agent);
    }

    pub fn send(&mut self, setup: &Setup, agent: usize) {
        let Doing::Holding(hold, Stage::Permitted { mut intent }) =
            self.agents[agent].doing.clone()
        else {
            return;
        };
        let now = secs(self.now);
        let fresh = protocol::may_send(secs(hold.renewed), now, &durations())
            && protocol::in_force(secs(hold.renewed), now, &durations()).is_ok();
        if setup.rules.send_limit && !fresh {
            setup.note(Sight::Stale, true);
            self.withdraw(setup, agent, intent);
            return;
        }
        let own = setup.operations[agent];
        if !setup.rules.intent_first {
            let machine = &mut self.machines[own];
            machine.version += 1;
            machine.intent = Some(machine.version);
            intent = machine.version;
        }
        self.sent_without_holding |=
            protocol::still_held(self.lease.as_ref(), &hold.tenure).is_err();
        self.calls.push(Call {
            machine: own,
            agent,
            sent: self.now,
            landed: false,
        });
        self.agents[agent].doing = Doing::Holding(hold, Stage::Calling { intent });
    }

    pub fn conclude(&mut self, setup: &Setup, agent: usize) {
        let Doing::Holding(_, Stage::Calling { intent }) = self.agents[agent].doing else {
            return;
        };
        let own = setup.operations[agent];
        if self.machines[own].done > 0 {
            self.withdraw(setup, agent, intent);
            self.agents[agent].doing = Doing::Finished;
        } else if !self
            .calls
            .iter()
            .any(|call| call.machine == own && call.agent == agent)
        {
            // Unknown outcome: the intent stays, to be settled.
            self.end(agent, protocol::release);
            self.wait(agent);
        }
    }

    /// The last write of a hold, if the Lease read for it still is its own.
    pub fn end(
        &mut self,
        agent: usize,
        ending: fn(&LeaseRecord, &Tenure, &str, &Durations) -> LeaseWrite,
    ) {
        let Doing::Holding(hold, _) = self.agents[agent].doing.clone() else {
            return;
        };
        let Some(record) = self.lease.clone() else {
            return;
        };
        if protocol::still_held(Some(&record), &hold.tenure).is_ok() {
            let write = ending(
                &record,
                &hold.tenure,
                &self.nonce(Answer::Heard),
                &durations(),
            );
            self.store(Some(&record.resource_version), &write, true);
        }
    }
}

fn may_write(
    setup: &Setup,
    record: Option<&LeaseRecord>,
    tenure: &Tenure,
) -> Result<(), protocol::Lost> {
    if setup.rules.holder_check {
        return protocol::still_held(record, tenure);
    }
    record.map(|_| ()).ok_or(protocol::Lost::Deleted)
}
