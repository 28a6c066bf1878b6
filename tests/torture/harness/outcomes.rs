//! The outcomes of a worker's calls, as its history records them.

use std::time::Duration;

use leasehold::Error;
use redis::RedisResult;

use crate::harness::Result;
use crate::harness::history::{Outcome, nanos, now};

/// Returns the time until which a guard is sure to be held without a renewal, if it is for the time
/// that is `left`. Reads the clock first, so that a pause of the thread cannot make this time too
/// late.
pub(super) fn promise(left: impl FnOnce() -> Option<Duration>) -> Option<u64> {
    let now = now();
    left().map(|left| now + nanos(left))
}

pub(super) fn dropped<T>(guard: T) -> (Result<()>, Outcome) {
    drop(guard);
    (Ok(()), Outcome::Dropped)
}

pub(super) fn unlocked(result: std::result::Result<(), Error>) -> (Result<()>, Outcome) {
    match result {
        Ok(()) => (Ok(()), Outcome::Done),
        Err(error) => expected(error),
    }
}

/// Returns the outcome of an error of a lock, or the error itself if it must not occur here.
pub(super) fn expected(error: Error) -> (Result<()>, Outcome) {
    match error {
        Error::Timeout { .. } => (Ok(()), Outcome::Busy),
        Error::Lost { .. } => (Ok(()), Outcome::Lost),
        // Too few replicas is a refusal, but the servers may learn of it later.
        Error::NoQuorum { .. } | Error::NotReplicated { .. } | Error::Unavailable { .. } => {
            (Ok(()), Outcome::Unknown)
        }
        other => (Err(other.into()), Outcome::Unknown),
    }
}

/// The same for the register, where no call may fail.
pub(super) fn settled(answer: RedisResult<Outcome>) -> (Result<Outcome>, Outcome) {
    match answer {
        Ok(outcome) => (Ok(outcome), outcome),
        Err(error) => (Err(error.into()), Outcome::Unknown),
    }
}
