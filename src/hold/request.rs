//! The request by which the thread at the head of a line asks for the lock. It sends it itself; or,
//! while it sleeps, whoever hears first that the lock may be free.

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::Moment;
use crate::hold::patience::Bounds;
use crate::store::failure::Failure;
use crate::store::{Answer, Bid, HoldId, Queue, Store};

/// What the next request says, whenever it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(super) hold: HoldId,
    pub(super) lease: Duration,
    pub(super) queue: Queue,
    /// Until then it lets other clients go first.
    pub(super) polite_until: Instant,
    pub(super) bounds: Bounds,
}

/// A request that was sent, and what there is of its reply.
pub(crate) struct Sent<R> {
    /// When, at the latest moment before.
    pub(super) at: Moment,
    /// What it said about the queue.
    pub(super) queue: Queue,
    pub(super) reply: R,
}

impl Request {
    /// Sends it and waits for the reply.
    pub(super) fn ask(&self, store: &dyn Store) -> Sent<Result<Bid, Failure>> {
        self.send(|queue, end| store.acquire(&self.hold, self.lease, queue, end))
    }

    /// Sends it and leaves the reply to another thread. `None` if the store cannot.
    pub(super) fn begin(&self, store: &dyn Store) -> Option<Sent<Answer<Bid>>> {
        let Sent { at, queue, reply } =
            self.send(|queue, end| store.begin_acquire(&self.hold, self.lease, queue, end));
        reply.map(|reply| Sent { at, queue, reply })
    }

    fn send<R>(&self, send: impl FnOnce(Queue, Instant) -> R) -> Sent<R> {
        let at = Moment::now();
        let polite = Instant::now() < self.polite_until;
        let queue = if polite { Queue::Yields } else { self.queue };
        Sent { at, queue, reply: send(queue, self.bounds.request_end()) }
    }
}

impl Sent<Answer<Bid>> {
    /// Waits for the reply.
    pub(super) fn wait(self) -> Sent<Result<Bid, Failure>> {
        Sent { at: self.at, queue: self.queue, reply: (self.reply)() }
    }
}

impl<R> fmt::Debug for Sent<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent").field("queue", &self.queue).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Config;
    use crate::hold::patience::{Bound, Patience};
    use std::sync::Arc;

    const LEASE: Duration = Duration::from_secs(30);

    /// Somebody's next request.
    pub(in crate::hold) fn request() -> Request {
        let hold = HoldId { name: Arc::from("x"), client: Arc::from("c"), nonce: 1 };
        Request {
            hold,
            lease: LEASE,
            queue: Queue::Join,
            polite_until: Instant::now(),
            bounds: Patience::new(Bound::Endless, &Config::default(), LEASE).bounds(),
        }
    }

    /// One that was sent in vain.
    pub(in crate::hold) fn sent() -> Sent<Answer<Bid>> {
        let reply: Answer<Bid> = Box::new(|| Ok(Bid::Busy { remaining: None }));
        Sent { at: Moment::now(), queue: Queue::Join, reply }
    }

    #[test]
    fn a_thread_is_polite_for_as_long_as_it_says() {
        let until = |polite_until| Request { polite_until, ..request() }.send(|queue, _| queue);
        assert_eq!(until(Instant::now() + LEASE).queue, Queue::Yields);
        assert_eq!(until(Instant::now()).queue, Queue::Join);
    }
}
