//! The decision itself, as a table and against every record there can be.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use ichor_lock::protocol::{Basis, Decision, Observation, acquisition, decide, observe, waits_for};
use ichor_lock::{Durations, HANDED_OVER, Holder, LeaseRecord, Operation};
use proptest::prelude::*;

const NOW: Duration = Duration::from_secs(10_000);

fn holder(machine: &str, instance: &str) -> Holder {
    Holder {
        operation: Operation {
            kind: "TalosMachine".into(),
            name: machine.into(),
            namespace: "prod".into(),
            uid: format!("uid-{machine}"),
            purpose: "removal".into(),
        },
        instance: instance.into(),
    }
}

fn record(holder: &str) -> LeaseRecord {
    LeaseRecord {
        uid: "u".into(),
        resource_version: "7".into(),
        holder: Some(holder.into()),
        duration: Some(Duration::from_mins(5)),
        ..LeaseRecord::default()
    }
}

fn watched(record: &LeaseRecord, seconds: u64) -> Observation {
    Observation {
        record: record.clone(),
        since: NOW.saturating_sub(Duration::from_secs(seconds)),
    }
}

#[test]
fn who_may_write_over_what() {
    let me = holder("cp-1", "pod-a");
    let durations = Durations::default();
    for (theirs, expected) in [
        (me.clone(), Some(Basis::Resumed)),
        (holder("cp-1", HANDED_OVER), Some(Basis::HandedOver)),
        (holder("cp-1", "pod-b"), None),
        (holder("cp-2", "pod-a"), None),
        (holder("cp-2", HANDED_OVER), None),
    ] {
        let there = record(&theirs.to_string());
        for (seconds, expired) in [(0, false), (299, false), (300, true)] {
            let decision = decide(
                Some(&there),
                &me,
                Some(&watched(&there, seconds)),
                NOW,
                &durations,
            );
            match expected.or(expired.then_some(Basis::Expired)) {
                Some(basis) => assert_eq!(
                    decision,
                    Decision::Take(basis),
                    "{theirs} after {seconds} s"
                ),
                None => assert_eq!(
                    decision,
                    Decision::Held {
                        holder: theirs.to_string(),
                        operation: Some(theirs.operation.clone()),
                        expires_in: Duration::from_secs(300 - seconds),
                    }
                ),
            }
        }
    }
    assert_eq!(decide(None, &me, None, NOW, &durations), Decision::Create);
}

#[test]
fn an_observation_of_another_record_says_nothing_about_this_one() {
    let me = holder("cp-1", "pod-a");
    let there = record(&holder("cp-2", "pod-b").to_string());
    let durations = Durations::default();
    let changes: [fn(&mut LeaseRecord); 5] = [
        |old| old.resource_version = "6".into(),
        |old| old.uid = "v".into(),
        |old| old.renew_time = Some("earlier".into()),
        |old| old.holder = Some("before".into()),
        |old| old.duration = None,
    ];
    for change in changes {
        let mut old = there.clone();
        change(&mut old);
        let seen = watched(&old, 9_000);
        let decision = decide(Some(&there), &me, Some(&seen), NOW, &durations);
        assert!(
            matches!(decision, Decision::Held { expires_in, .. } if expires_in == durations.longest)
        );
        assert_eq!(
            observe(Some(seen), Some(&there), NOW).unwrap().since,
            NOW,
            "the wait starts anew"
        );
    }
    let decision = decide(Some(&there), &me, None, NOW, &durations);
    assert!(matches!(decision, Decision::Held { .. }));
}

fn any_record() -> impl Strategy<Value = LeaseRecord> {
    let holder = prop_oneof![
        Just(None),
        "\\PC{0,20}".prop_map(Some),
        ("cp-[12]", "pod-[ab]|handed-over")
            .prop_map(|(machine, pod)| Some(holder(&machine, &pod).to_string())),
    ];
    let duration = proptest::option::of(prop_oneof![
        Just(Duration::ZERO),
        (0u64..1000).prop_map(Duration::from_secs),
        Just(Duration::MAX),
    ]);
    let time = proptest::option::of("\\PC{0,10}");
    (holder, duration, time, any::<i64>()).prop_map(
        |(holder, duration, renew_time, transitions)| LeaseRecord {
            uid: "u".into(),
            resource_version: "7".into(),
            holder,
            duration,
            renew_time,
            transitions,
            ..LeaseRecord::default()
        },
    )
}

proptest! {
    /// Whatever stands in the Lease, it is to be had after a wait that is never longer than 300 s,
    /// and before that wait only by whom it names; and taking it never breaks the API's rules.
    #[test]
    fn any_lease_is_held_and_then_to_be_had(record in any_record(), waited in 0u64..400) {
        let (me, durations) = (holder("cp-1", "pod-a"), Durations::default());
        let wait = waits_for(&record, &durations);
        prop_assert!(!wait.is_zero() && wait <= durations.longest);
        let decision = decide(Some(&record), &me, Some(&watched(&record, waited)), NOW, &durations);
        let mine = record.held_by().is_none_or(|holder| {
            Holder::parse(holder, "prod").is_some_and(|holder| {
                holder.operation == me.operation && [HANDED_OVER, "pod-a"].contains(&holder.instance.as_str())
            })
        });
        let waited = Duration::from_secs(waited);
        prop_assert_eq!(matches!(decision, Decision::Take(_)), mine || waited >= wait, "{:?}", decision);
        let write = acquisition(Some(&record), &me, "n", &durations);
        prop_assert!(write.transitions >= 0 && i64::from(write.transitions) != record.transitions);
        prop_assert!(write.duration_seconds > 0);
    }
}
