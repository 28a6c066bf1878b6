//! What servers are told about locks, and what they answer.

pub(crate) mod arguments;
pub(crate) mod backlog;
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod dialer;
pub(crate) mod durable;
pub(crate) mod endpoint;
pub(crate) mod failure;
pub(crate) mod interrupter;
pub(crate) mod keys;
pub(crate) mod lane;
pub(crate) mod memory;
pub(crate) mod pipeline;
pub(crate) mod quorum;
pub(crate) mod ready;
pub(crate) mod reply;
pub(crate) mod route;
pub(crate) mod script;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod sharing;
pub(crate) mod single;
pub(crate) mod socket;
pub(crate) mod spin;
pub(crate) mod stream;
pub(crate) mod subscription;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "tls")]
pub(crate) mod trust;

#[cfg(all(test, leasehold_shuttle))]
mod schedules;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::failure::Failure;
use crate::store::interrupter::Interrupter;

/// Names one hold of one lock, and no other hold ever: what every request says.
#[derive(Clone)]
pub(crate) struct HoldId {
    pub(crate) name: Arc<str>,
    pub(crate) client: Arc<str>,
    /// Unique in the client.
    pub(crate) nonce: u64,
}

impl HoldId {
    /// The owner as it stands in Redis.
    pub(crate) fn owner(&self) -> String {
        format!("{}:{:x}", self.client, self.nonce)
    }
}

/// Whoever knows the nonce can release the lock, so it is not shown.
impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldId").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Who holds a lock. See [`Mutex::holder`](crate::Mutex::holder).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner as it stands in Redis: the client's id, a colon, and a part that is different for
    /// each hold. For a lock taken by Redisson it is what Redisson wrote.
    pub owner: String,
    /// How many levels deep the holder has locked.
    pub depth: u32,
    /// The time until the lease ends; [`Duration::MAX`] if it never does.
    pub remaining: Duration,
}

/// The answer to an attempt to get a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bid {
    /// The lock is held now.
    Won { fence: u64 },
    /// Somebody has it, for this long if they do not renew; `None` if it is not known.
    Busy { remaining: Option<Duration> },
    /// As `Busy`; but some server of several has not answered, so that the request may stand there
    /// as a hold, or may come to.
    Unclear { remaining: Option<Duration> },
}

/// Tells whether the hold that was asked for stands now. One that fell short of its durability does,
/// until it is released.
pub(crate) fn is_granted(outcome: &Result<Bid, Failure>) -> bool {
    match outcome {
        Ok(bid) => matches!(bid, Bid::Won { .. }),
        Err(failure) => failure.is_shortfall(),
    }
}

/// How a client figures in the queue of those that wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// It does not wait.
    Out,
    /// It joins if the lock is busy.
    Join,
    /// It has joined, or may have.
    Waits,
    /// As `Waits`, and lets a client that waits longer go first even if the lock is free.
    Yields,
}

/// The answer to a request to put one hold in another's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handover {
    /// The new hold stands.
    Done { fence: u64 },
    /// The old hold is not there any more.
    Gone,
    /// The old hold was ended, and a client that waits was woken.
    Yielded,
}

/// The answer to a request for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The hold was there, and was dealt with.
    Ours,
    /// The hold is not there any more.
    Gone,
}

/// An answer that is perhaps still on its way. Any thread may wait for it.
pub(crate) type Answer<T> = Box<dyn FnOnce() -> Result<T, Failure> + Send>;

/// What is done with an answer for which no thread waits, by whichever thread reads it.
pub(crate) type Then<T> = lane::Then<Result<T, Failure>>;

/// Takes back a request that was left to another thread. `false` if it may have been sent.
pub(crate) type Recall = Box<dyn FnOnce() -> bool + Send>;

/// Where locks live. Requests are idempotent: each may be executed twice, or late, without harm to
/// anybody else's hold. None takes longer than until the given instant.
pub(crate) trait Store: fmt::Debug + Send + Sync {
    /// Takes the lock if nobody has it.
    fn acquire(
        &self,
        hold: &HoldId,
        lease: Duration,
        queue: Queue,
        until: Instant,
    ) -> Result<Bid, Failure>;

    /// As `acquire`, without waiting for the answer; `None` if that cannot be.
    fn begin_acquire(
        &self,
        _hold: &HoldId,
        _lease: Duration,
        _queue: Queue,
        _until: Instant,
    ) -> Option<Answer<Bid>> {
        None
    }

    /// Sets the depth of a hold, and renews it.
    fn nest(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        until: Instant,
    ) -> Result<Standing, Failure>;

    /// As `nest`, for a level more, which must become as durable as a new hold.
    fn deepen(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        until: Instant,
    ) -> Result<Standing, Failure> {
        self.nest(hold, depth, lease, until)
    }

    /// Ends a hold, and wakes the client that waits longest.
    fn release(&self, hold: &HoldId, until: Instant) -> Result<Standing, Failure>;

    /// Leaves it to another thread to send a release along with its own next request, and to call
    /// `then` with the answer. `None`, and nothing is done, if there is no such thread.
    fn post_release(
        &self,
        _hold: &HoldId,
        _until: Instant,
        _then: Then<Standing>,
    ) -> Option<Recall> {
        None
    }

    /// Ends one hold and begins another of the same lock, without waiting for the answer. If it
    /// `yields` and a client waits in the queue, only the first is done, and that client is woken.
    fn transfer(
        &self,
        from: &HoldId,
        to: &HoldId,
        lease: Duration,
        yields: bool,
        until: Instant,
    ) -> Answer<Handover>;

    /// Tells who has the lock.
    fn inspect(&self, name: &str, until: Instant) -> Result<Option<Holder>, Failure>;

    /// Takes the lock away from whoever has it; `false` if nobody has.
    fn force(&self, name: &str, until: Instant) -> Result<bool, Failure>;

    /// Takes a client out of the queue, and wakes the next one if the lock is free.
    fn leave(&self, name: &str, client: &str, until: Instant) -> Result<(), Failure>;

    /// The messages to a client; `None` where no other client can exist.
    fn wakeups(&self, client: &str) -> Option<Box<dyn Wakeups>>;

    /// A way to care for many holds at once, for one thread.
    fn upkeep(&self) -> Box<dyn Upkeep>;

    /// Tells whether a hold that was not granted is taken back at once. Then it must not be asked
    /// for again: the request that takes it back may come late. One that fell short of its
    /// durability is granted, and for the caller to release.
    fn takes_back(&self) -> bool {
        false
    }

    /// Takes in whom to tell of holds that are left over. A store calls nobody of whose requests
    /// each is answered, or given up, before the call that made it returns.
    fn on_stray(&self, _tell: Box<dyn Fn(Stray) + Send + Sync>) {}
}

/// A hold that nobody wants any more, and that may stand in some server nevertheless.
#[derive(Debug)]
pub(crate) struct Stray {
    pub(crate) hold: HoldId,
    /// After this it is gone by itself.
    pub(crate) lease: Duration,
    /// Whether the first answer settles it: nothing that would create it can come after.
    pub(crate) settles: bool,
}

/// What is to be done for a hold in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    Release,
    Renew { lease: Duration },
}

/// One thing to be done, with a number by which its outcome is reported.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) id: u64,
    pub(crate) hold: HoldId,
    pub(crate) care: Care,
    /// Without an outcome until then it is a failure.
    pub(crate) until: Instant,
}

/// What came of a task. An ambiguous failure is unknown, not lost.
pub(crate) type Outcome = Result<Standing, Failure>;

/// Sends tasks in batches and collects their outcomes, without waiting for a reply longer than it
/// is told to. Each task sent has exactly one outcome.
pub(crate) trait Upkeep: Send {
    /// Sends tasks.
    fn send(&mut self, tasks: Vec<Task>, done: &mut dyn FnMut(u64, Outcome));

    /// Waits for outcomes until there is nothing more to wait for or `until`.
    fn collect(&mut self, until: Instant, done: &mut dyn FnMut(u64, Outcome));

    /// Gives up what has no outcome yet.
    fn abandon(&mut self, done: &mut dyn FnMut(u64, Outcome));
}

/// A message to a client that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The lock of this name may be free.
    Lock(String),
    /// Messages arrive from now on; any before may have been missed.
    Ready,
}

/// The messages to one client, for one thread.
pub(crate) trait Wakeups: Send {
    /// Waits for a message until `until`, or longer by the time that a new connection takes.
    /// After a failure the next call begins anew.
    fn next(&mut self, until: Instant) -> Option<Result<Wake, Failure>>;

    /// Ends a `next` that another thread is in, and fails every later one.
    fn interrupter(&self) -> Interrupter;
}
