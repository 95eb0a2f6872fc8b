//! Makes worlds alike that can only go on alike, so that their number is finite with no end of time.
//!
//! Of versions, UIDs, transitions and intents it only matters whether they are the ones that are
//! there now, and of times only the ages, up to where a wait is over.

use ichor_lock::LeaseRecord;
use ichor_lock::annotations::RENEWAL;

use super::world::{Doing, HEARD, Setup, Stage, World, secs};

/// The time it always is.
pub const NOW: u8 = 10;
/// `leaseTransitions` always.
const TRANSITIONS: i64 = 3;

const CURRENT: u8 = 1;
const STALE: u8 = 0;

impl World {
    pub fn forget_what_cannot_matter(&mut self, setup: &Setup) {
        let lease = self.lease.clone();
        let current = |record: &LeaseRecord| Some(record) == lease.as_ref();

        // A write on a version that is gone never lands; nor does one that makes the Lease, unless
        // it can be deleted once more.
        let deletable = setup.meddling && self.faults > 0;
        let lands = |on: &Option<String>| match (on, &lease) {
            (Some(on), Some(lease)) => *on == lease.resource_version,
            (Some(_), None) => false,
            (None, None) => true,
            (None, Some(_)) => deletable,
        };
        if !setup.rules.compare_and_swap
            || self.late_write.as_ref().is_some_and(|(on, _)| !lands(on))
        {
            self.late_write = None;
        }

        // Annotations are looked at after a lost answer only.
        let unsure = self
            .agents
            .iter()
            .any(|agent| matches!(agent.doing, Doing::Unsure { .. }));
        let plain = |record: &mut LeaseRecord| {
            record
                .annotations
                .retain(|key, nonce| unsure && key == RENEWAL && nonce != HEARD);
        };

        let mut wide = Vec::new();
        let mut narrow = Vec::new();
        let mut uids = Vec::new();
        if let Some((_, write)) = &mut self.late_write {
            narrow.push(&mut write.transitions);
        }
        let now = self.now;
        let age =
            move |at: &mut u8, over: u8| *at = (*at + NOW).saturating_sub(now).max(NOW - over);
        for call in &mut self.calls {
            // One that has landed has all the time it wants.
            age(&mut call.sent, u8::from(!call.landed));
        }
        self.calls.sort();

        for (agent, operation) in self.agents.iter_mut().zip(setup.operations) {
            // What was seen of a Lease or an intent that is there no more never matches again.
            agent.observation.take_if(|seen| !current(&seen.record));
            if let Some(seen) = &mut agent.observation {
                let mut since = u8::try_from(seen.since.as_secs()).unwrap();
                age(&mut since, 2);
                seen.since = secs(since);
                plain(&mut seen.record);
                wide.push(&mut seen.record.transitions);
                uids.push(&mut seen.record.uid);
                seen.record.resource_version = CURRENT.to_string();
            }
            for (sight, machine) in agent.sights.iter_mut().zip(&self.machines) {
                sight.take_if(|(intent, _)| machine.intent != Some(*intent));
                if let Some((intent, since)) = sight {
                    *intent = CURRENT;
                    age(since, 3);
                }
            }
            let held = match &mut agent.doing {
                Doing::Waiting(until) => {
                    age(until, 0);
                    None
                }
                Doing::Decided(record) => {
                    if record.as_ref().is_some_and(|record| !current(record)) {
                        *record = Some(stale());
                    } else if let Some(record) = record {
                        record.resource_version = CURRENT.to_string();
                        plain(record);
                        wide.push(&mut record.transitions);
                        uids.push(&mut record.uid);
                    }
                    None
                }
                Doing::Unsure {
                    write,
                    sent,
                    before,
                } => {
                    age(sent, 2);
                    narrow.push(&mut write.transitions);
                    before.as_mut().map(|(hold, stage)| (hold, stage))
                }
                Doing::Holding(hold, stage) => Some((hold, stage)),
                Doing::Finished => None,
            };
            let Some((hold, stage)) = held else { continue };
            age(&mut hold.renewed, 2);
            let version = if current(&hold.record) {
                CURRENT
            } else {
                STALE
            };
            hold.record.resource_version = version.to_string();
            plain(&mut hold.record);
            if version == STALE {
                hold.record.annotations.clear();
            }
            wide.extend([&mut hold.record.transitions, &mut hold.tenure.transitions]);
            uids.extend([&mut hold.record.uid, &mut hold.tenure.uid]);
            let there = self.machines[operation].version;
            match stage {
                Stage::Taken => {}
                Stage::Intended { at, intent } => {
                    age(at, 2);
                    *intent = u8::from(*intent == there);
                }
                Stage::Clear(intent) | Stage::Permitted { intent } | Stage::Calling { intent } => {
                    *intent = u8::from(*intent == there);
                }
            }
        }

        let base = lease
            .as_ref()
            .map_or(TRANSITIONS, |lease| lease.transitions);
        for at in wide {
            *at = (*at - base + TRANSITIONS).clamp(0, 5);
        }
        for at in narrow {
            *at = i32::try_from((i64::from(*at) - base + TRANSITIONS).clamp(0, 5)).unwrap();
        }
        let uid = lease.as_ref().map(|lease| lease.uid.clone());
        for at in uids {
            *at = if Some(&*at) == uid.as_ref() {
                CURRENT
            } else {
                STALE
            }
            .to_string();
        }
        if let Some((Some(on), _)) = &mut self.late_write {
            *on = CURRENT.to_string();
        }
        if let Some(lease) = &mut self.lease {
            plain(lease);
            lease.resource_version = CURRENT.to_string();
            lease.transitions = TRANSITIONS;
            lease.uid = CURRENT.to_string();
        }
        for machine in &mut self.machines {
            machine.version = CURRENT;
            machine.intent = machine.intent.map(|_| CURRENT);
        }
        self.versions = CURRENT;
        self.now = NOW;
    }
}

fn stale() -> LeaseRecord {
    LeaseRecord {
        uid: STALE.to_string(),
        resource_version: STALE.to_string(),
        ..LeaseRecord::default()
    }
}
