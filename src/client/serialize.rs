//! Serialization of a client's reports, and of two of its settings, for logs and files of any
//! format.
//!
//! Durations are numbers of seconds, as a [`Builder`](crate::Builder) reads them, and variants have
//! their names in lower case. Nothing is written that would allow another client to release a lock.

use std::panic::Location;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, SerializeStruct, SerializeStructVariant, Serializer};

use crate::base::holder::{Holder, Leader};
use crate::config::Deadlock;
use crate::config::durability::Durability;
use crate::config::url::{NO_DURABILITY, deadlock, durability};
use crate::error::LossCause;
use crate::event::Event;
use crate::guards::watches::HoldEnd;
use crate::local::status::{HeldLock, WaitingCall};
use crate::stats::Stats;
use crate::store::hold_id::HeldAs;

/// Serializes fields, each under its name, after the call that begins their struct or variant.
macro_rules! fields {
    ($serializer:ident.$start:ident($($of:expr),+): $($field:ident $(= $value:expr)?),+) => {{
        let len = [$(stringify!($field)),+].len();
        let mut fields = $serializer.$start($($of),+, len)?;
        $(fields.serialize_field(stringify!($field), fields!(@$field $($value)?))?;)+
        fields.end()
    }};
    (@$field:ident) => { $field };
    (@$field:ident $value:expr) => { &$value };
}

fn seconds(time: &Duration) -> f64 {
    time.as_secs_f64()
}

fn line(place: &Location<'_>) -> String {
    place.to_string()
}

/// Serializes an event as a variant with fields, such as `{"renewed": {"count": 3}}` in JSON.
/// Durations are in seconds, and a place is a text such as `src/main.rs:7:20`. Requires the feature
/// `serde`.
///
/// ```
/// use leasehold::Client;
///
/// let client = Client::builder()
///     .on_event(|event| println!("{}", serde_json::to_string(event).expect("it is valid JSON")))
///     .in_memory()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
impl Serialize for Event {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        const EVENT: &str = "Event";
        match self {
            Self::Acquired { name, fence, waited } => fields!(
                to.serialize_struct_variant(EVENT, 0, "acquired"):
                name, fence, waited = seconds(waited)
            ),
            Self::Contended { name } => {
                fields!(to.serialize_struct_variant(EVENT, 1, "contended"): name)
            }
            Self::Deadlock { names, clients } => {
                fields!(to.serialize_struct_variant(EVENT, 2, "deadlock"): names, clients)
            }
            Self::Failed { name, waited, reason } => fields!(
                to.serialize_struct_variant(EVENT, 3, "failed"):
                name, waited = seconds(waited), reason
            ),
            Self::HeldLong { name, fence, held, place, thread, note } => fields!(
                to.serialize_struct_variant(EVENT, 4, "held_long"):
                name, fence, held = seconds(held), place = line(place), thread, note
            ),
            Self::Lost { name, fence, cause } => {
                fields!(to.serialize_struct_variant(EVENT, 5, "lost"): name, fence, cause)
            }
            Self::ReleaseFailed { name, fence, reason } => fields!(
                to.serialize_struct_variant(EVENT, 6, "release_failed"): name, fence, reason
            ),
            Self::Released { name, fence, held } => fields!(
                to.serialize_struct_variant(EVENT, 7, "released"):
                name, fence, held = seconds(held)
            ),
            Self::RenewalFailing { name, fence, remaining, reason } => fields!(
                to.serialize_struct_variant(EVENT, 8, "renewal_failing"):
                name, fence, remaining = seconds(remaining), reason
            ),
            Self::Renewed { count } => {
                fields!(to.serialize_struct_variant(EVENT, 9, "renewed"): count)
            }
            Self::TimedOut { name, waited } => fields!(
                to.serialize_struct_variant(EVENT, 10, "timed_out"):
                name, waited = seconds(waited)
            ),
        }
    }
}

/// Serializes the cause as a text such as `"expired"`, and `Taken` with its field. Requires the
/// feature `serde`.
impl Serialize for LossCause {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        const CAUSE: &str = "LossCause";
        match self {
            Self::Expired => to.serialize_unit_variant(CAUSE, 0, "expired"),
            Self::Forced => to.serialize_unit_variant(CAUSE, 1, "forced"),
            Self::Gone => to.serialize_unit_variant(CAUSE, 2, "gone"),
            Self::MaxHold => to.serialize_unit_variant(CAUSE, 3, "max_hold"),
            Self::Taken { by } => fields!(to.serialize_struct_variant(CAUSE, 4, "taken"): by),
        }
    }
}

/// Serializes how the hold ended as a text: `"lost"` or `"released"`. Requires the feature `serde`.
impl Serialize for HoldEnd {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        const END: &str = "HoldEnd";
        match self {
            Self::Lost => to.serialize_unit_variant(END, 0, "lost"),
            Self::Released => to.serialize_unit_variant(END, 1, "released"),
        }
    }
}

/// Serializes all numbers, by the names of the fields. Requires the feature `serde`.
impl Serialize for Stats {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self {
            held,
            waiting,
            kept,
            connections,
            idle_connections,
            acquired,
            handoffs,
            relocks,
            recalls,
            contended,
            busy,
            timed_out,
            deadlocks,
            failed,
            released,
            failed_releases,
            lost,
            long_holds,
            renewals,
            late_renewals,
            failed_renewals,
            wakeups,
            missed_wakeups,
            reconnects,
            pool_waits,
        } = self;
        fields!(
            to.serialize_struct("Stats"):
            held, waiting, kept, connections, idle_connections, acquired, handoffs, relocks,
            recalls, contended, busy, timed_out, deadlocks, failed, released, failed_releases,
            lost, long_holds, renewals, late_renewals, failed_renewals, wakeups, missed_wakeups,
            reconnects, pool_waits
        )
    }
}

/// Serializes all fields except the owner, which is all that another client needs to release the
/// lock. The time is in seconds. Requires the feature `serde`.
impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self {
            owner: _,
            client,
            label,
            depth,
            remaining,
            note,
            renewed,
            detached,
            may_be_kept,
        } = self;
        fields!(
            to.serialize_struct("Holder"):
            client, label, depth, remaining = seconds(remaining), note, renewed, detached,
            may_be_kept
        )
    }
}

/// Serializes all fields. Requires the feature `serde`.
impl Serialize for Leader {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { client, label, fence, note } = self;
        fields!(to.serialize_struct("Leader"): client, label, fence, note)
    }
}

/// Serializes the kind as a text such as `"reader"`. Requires the feature `serde`.
impl Serialize for HeldAs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        const HELD_AS: &str = "HeldAs";
        match self {
            Self::Foreign => to.serialize_unit_variant(HELD_AS, 0, "foreign"),
            Self::Lock => to.serialize_unit_variant(HELD_AS, 1, "lock"),
            Self::Permit => to.serialize_unit_variant(HELD_AS, 2, "permit"),
            Self::Reader => to.serialize_unit_variant(HELD_AS, 3, "reader"),
            Self::Writer => to.serialize_unit_variant(HELD_AS, 4, "writer"),
        }
    }
}

/// Serializes all fields. The time is in seconds, and the place is a text such as
/// `src/main.rs:7:20`. Requires the feature `serde`.
impl Serialize for HeldLock {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { name, kind, since, thread, place, note } = self;
        fields!(
            to.serialize_struct("HeldLock"):
            name, kind, since = seconds(since), thread, place = line(place), note
        )
    }
}

/// Serializes all fields. The time is in seconds, and the place is a text such as
/// `src/main.rs:7:20`. Requires the feature `serde`.
impl Serialize for WaitingCall {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { name, kind, since, thread, place, note } = self;
        fields!(
            to.serialize_struct("WaitingCall"):
            name, kind, since = seconds(since), thread, place = line(place), note
        )
    }
}

/// Serializes the text that a [URL](crate::Builder::from_url) has for this setting. Requires the
/// feature `serde`.
impl Serialize for Deadlock {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match self {
            Self::Fail => "fail",
            Self::Report => "report",
        })
    }
}

/// Deserializes the text that a [URL](crate::Builder::from_url) has for this setting. Requires the
/// feature `serde`.
impl<'de> Deserialize<'de> for Deadlock {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        deadlock(&String::deserialize(from)?).map_err(Error::custom)
    }
}

/// Serializes the text that a [URL](crate::Builder::from_url) has for this setting, such as
/// `"replicas:1:0.1s"`. Requires the feature `serde`.
impl Serialize for Durability {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let time = seconds(&self.timeout());
        match self {
            Self::Fsync { local, replicas, .. } => {
                to.collect_str(&format_args!("fsync:{local}:{replicas}:{time}s"))
            }
            Self::Memory => to.serialize_str("memory"),
            Self::Replicas { acks, .. } => to.collect_str(&format_args!("replicas:{acks}:{time}s")),
        }
    }
}

/// Deserializes the text that a [URL](crate::Builder::from_url) has for this setting. Requires the
/// feature `serde`.
impl<'de> Deserialize<'de> for Durability {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        durability(&String::deserialize(from)?).ok_or_else(|| Error::custom(NO_DURABILITY))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    const SECOND: Duration = Duration::from_millis(1500);

    fn check(value: impl Serialize, expected: &serde_json::Value) {
        assert_eq!(&to_value(value).expect("it can be written as JSON"), expected);
    }

    #[test]
    fn an_event_is_serialized_under_its_name() {
        let name = "a".to_owned();
        check(Event::Renewed { count: 3 }, &json!({ "renewed": { "count": 3 } }));
        check(
            Event::Released { name: name.clone(), fence: 7, held: SECOND },
            &json!({ "released": { "name": "a", "fence": 7, "held": 1.5 } }),
        );
        check(
            Event::Lost { name, fence: 7, cause: LossCause::Taken { by: "b".into() } },
            &json!({ "lost": { "name": "a", "fence": 7, "cause": { "taken": { "by": "b" } } } }),
        );
    }

    #[test]
    fn a_holder_is_serialized_without_its_owner() {
        let holder = Holder {
            owner: "web:secret:1".into(),
            client: "web:".into(),
            label: "web".into(),
            depth: 1,
            remaining: SECOND,
            note: None,
            renewed: true,
            detached: false,
            may_be_kept: false,
        };
        let expected = json!({
            "client": "web:", "label": "web", "depth": 1, "remaining": 1.5, "note": null,
            "renewed": true, "detached": false, "may_be_kept": false,
        });
        check(holder, &expected);
    }

    #[test]
    fn a_hold_is_serialized_with_its_place() {
        let client = crate::Client::in_memory();
        let _guard = client.lock("a").expect("it is free");
        let [hold] = &client.holds()[..] else { panic!("there is one hold") };
        let shown = to_value(hold).expect("it can be written as JSON");
        assert_eq!((&shown["name"], &shown["kind"]), (&json!("a"), &json!("lock")));
        assert!(shown["place"].as_str().is_some_and(|place| place.contains("serialize.rs:")));
        check(client.stats().held, &json!(1));
        assert_eq!(to_value(client.stats()).expect("it can be written as JSON")["held"], 1);
    }

    #[test]
    fn settings_are_serialized_as_their_texts_in_a_url_and_read_again() {
        for setting in [Deadlock::Fail, Deadlock::Report] {
            let text = serde_json::to_string(&setting).expect("it is a text");
            assert_eq!(serde_json::from_str::<Deadlock>(&text).expect(&text), setting);
        }
        let timeout = Duration::from_micros(100_001);
        for setting in [
            Durability::Fsync { local: true, replicas: 2, timeout },
            Durability::Memory,
            Durability::Replicas { acks: 1, timeout },
        ] {
            let text = serde_json::to_string(&setting).expect("it is a text");
            assert_eq!(serde_json::from_str::<Durability>(&text).expect(&text), setting);
        }
        check(Durability::Replicas { acks: 1, timeout: SECOND }, &json!("replicas:1:1.5s"));
        serde_json::from_str::<Durability>("\"disk\"").expect_err("it is not a durability");
        serde_json::from_str::<Deadlock>("\"loud\"").expect_err("it is not a setting");
    }
}
