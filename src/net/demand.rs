//! Waiting until a write has reached replicas or disks: WAIT and WAITAOF.
//!
//! Both cover everything written earlier on the same connection. So one such request is sent along
//! with the scripts, in the same write, and is enough for all of them. Further requests on that
//! connection would wait, too, so none are sent. A quorum goes on without the servers that are
//! still waiting. `in_flight.rs` keeps the replies of the scripts until then.
//!
//! A script that does nothing, because the lock is held, has nothing to wait for. If locks were
//! held recently, the request to wait is sent only once a reply says that something was done.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::base::clock;
use crate::base::failure::{Failure, FailureKind};
use crate::config::durability::Durability;
use crate::net::packed::{Reply, Request};

/// The durability that a write must reach in order to count.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    /// The number of disks of the master, 0 or 1; `None` if no disk counts at all.
    local: Option<u32>,
    replicas: u32,
    timeout: Duration,
}

impl Demand {
    /// Returns `None` if a write counts as soon as the server has it in memory.
    pub(crate) fn new(durability: Durability) -> Option<Self> {
        let (local, replicas, timeout) = match durability {
            Durability::Fsync { local, replicas, timeout } => {
                (Some(local.into()), replicas, timeout)
            }
            Durability::Memory => return None,
            Durability::Replicas { acks, timeout } => (None, acks, timeout),
        };
        Some(Self { local, replicas, timeout })
    }

    /// Returns the request to wait, with a timeout that still lets the server reply by the
    /// deadline.
    pub(crate) fn request(&self, deadline: Instant) -> Request {
        let left = deadline.saturating_duration_since(clock::now());
        let time = self.timeout.min(left / 8 * 7);
        // Zero would mean no limit.
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut request = match self.local {
            None => redis::cmd("WAIT"),
            Some(local) => redis::cmd("WAITAOF").arg(local).take(),
        };
        Request::command(request.arg(self.replicas).arg(millis))
    }

    /// Returns a request that is answered at once, and is rejected if the real one would be.
    pub(crate) fn probe(&self) -> Request {
        Self { replicas: 0, ..*self }.request(clock::now())
    }

    /// Decides whether the write counts, from the reply of `server` to the request to wait. Returns
    /// `None` for a reply of another shape.
    pub(crate) fn check(&self, reply: Reply, server: &Arc<str>) -> Option<Result<(), Failure>> {
        let required = self.required();
        let (acked, failure) = match reply {
            Ok(reply) => {
                let acked = self.acked(&reply)?;
                if acked == required {
                    return Some(Ok(()));
                }
                let error = io::Error::other("too few acknowledged the write in time");
                (acked, Failure::io(FailureKind::Transient, server, error))
            }
            Err(failure) if failure.is_ambiguous() => return Some(Err(failure)),
            // The server understood the request when the client was opened, so the server has
            // changed.
            Err(failure) => (0, failure),
        };
        Some(Err(Failure { kind: FailureKind::NotReplicated { acked, required }, ..failure }))
    }

    /// Returns how many of the required disks and replicas have confirmed the write; `None` for a
    /// reply of another shape.
    fn acked(&self, reply: &Value) -> Option<u32> {
        // WAIT replies with one number, and WAITAOF with two.
        let (disks, replicas) = match (reply, self.local) {
            (Value::Int(replicas), None) => (0, *replicas),
            (Value::Array(parts), Some(_)) => match parts[..] {
                [Value::Int(disks), Value::Int(replicas)] => (disks, replicas),
                _ => return None,
            },
            _ => return None,
        };
        Some(count(disks, self.local.unwrap_or(0))? + count(replicas, self.replicas)?)
    }

    fn required(&self) -> u32 {
        self.local.unwrap_or(0).saturating_add(self.replicas)
    }
}

/// Returns `true` if a script has begun or changed a hold. The reply is then a token, which costs
/// the server less than an array, or an array that starts with a token or a 1.
pub(crate) fn is_done(reply: &Value) -> bool {
    match reply {
        Value::Array(parts) => matches!(parts.first(), Some(Value::Int(1..))),
        reply => matches!(reply, Value::Int(1..)),
    }
}

/// Caps a number of acknowledgements at the required number: surplus ones from replicas do not make
/// up for a missing one from the disk.
fn count(acked: i64, required: u32) -> Option<u32> {
    if acked < 0 {
        return None;
    }
    Some(u32::try_from(acked).unwrap_or(u32::MAX).min(required))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(1);

    fn replicas(acks: u32) -> Demand {
        Demand::new(Durability::Replicas { acks, timeout: TIME }).expect("a demand")
    }

    fn fsync(local: bool, replicas: u32) -> Demand {
        Demand::new(Durability::Fsync { local, replicas, timeout: TIME }).expect("a demand")
    }

    fn packed(demand: Demand, left: Duration) -> String {
        let request = demand.request(Instant::now() + left);
        String::from_utf8(request.bytes).expect("text").replace("\r\n", " ")
    }

    #[test]
    fn a_demand_becomes_wait_or_waitaof() {
        assert!(Demand::new(Durability::Memory).is_none());
        assert_eq!(packed(replicas(2), TIME * 9), "*3 $4 WAIT $1 2 $4 1000 ");
        assert_eq!(packed(fsync(true, 0), TIME * 9), "*4 $7 WAITAOF $1 1 $1 0 $4 1000 ");
    }

    #[test]
    fn a_wait_is_cut_to_the_time_that_is_left_and_never_without_end() {
        let short = packed(replicas(2), Duration::from_millis(800));
        let millis: u64 = short.trim_end().rsplit(' ').next().expect("").parse().expect("a number");
        assert!((500..=700).contains(&millis), "{short}");
        assert!(packed(replicas(2), Duration::ZERO).ends_with("$1 1 "));
    }

    #[test]
    fn only_what_was_demanded_counts() {
        assert_eq!(replicas(2).acked(&Value::Int(1)), Some(1));
        assert_eq!(replicas(2).acked(&Value::Int(3)), Some(2));
        assert_eq!(replicas(2).required(), 2);
        let pair = |disk, replicas| Value::Array(vec![Value::Int(disk), Value::Int(replicas)]);
        assert_eq!(fsync(true, 1).acked(&pair(1, 1)), Some(2));
        assert_eq!(fsync(true, 1).acked(&pair(0, 5)), Some(1));
        assert_eq!(fsync(false, 2).acked(&pair(1, 1)), Some(1));
        assert_eq!((fsync(true, 1).required(), fsync(false, 2).required()), (2, 2));
    }

    #[test]
    fn replies_of_another_shape_are_rejected() {
        for reply in [Value::Nil, Value::Okay, Value::Int(-1), Value::Array(Vec::new())] {
            assert_eq!(replicas(1).acked(&reply), None, "{reply:?}");
            assert_eq!(fsync(true, 1).acked(&reply), None, "{reply:?}");
        }
    }
}
