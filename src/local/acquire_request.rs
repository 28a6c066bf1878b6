//! The request by which the thread at the head of a line asks for the lock. It sends it itself; or,
//! while it sleeps, whoever hears first that the lock may be free.

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::Moment;
use crate::failure::Failure;
use crate::local::retry::RequestLimits;
use crate::store::Store;
use crate::store::hold::HoldId;
use crate::store::request::{Acquire, AcquireReply, PendingReply, Registration};

/// What the next request says, whenever it is sent.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(super) hold: HoldId,
    pub(super) lease: Duration,
    pub(super) queue: Registration,
    /// Until then it lets other clients go first.
    pub(super) polite_until: Instant,
    pub(super) bounds: RequestLimits,
}

/// A request that was sent, and what there is of its reply.
pub(crate) struct SentAcquire<R> {
    /// When, at the latest moment before.
    pub(super) at: Moment,
    /// What it said about the queue.
    pub(super) queue: Registration,
    pub(super) reply: R,
}

impl AcquireRequest {
    /// Sends it and waits for the reply.
    pub(super) fn ask(&self, store: &dyn Store) -> SentAcquire<Result<AcquireReply, Failure>> {
        self.send(|request| store.acquire(request))
    }

    /// Sends it and leaves the reply to another thread. `None` if the store cannot.
    pub(super) fn start(
        &self,
        store: &dyn Store,
    ) -> Option<SentAcquire<PendingReply<AcquireReply>>> {
        let SentAcquire { at, queue, reply } = self.send(|request| store.start_acquire(request));
        reply.map(|reply| SentAcquire { at, queue, reply })
    }

    fn send<R>(&self, send: impl FnOnce(Acquire<'_>) -> R) -> SentAcquire<R> {
        let at = Moment::now();
        let polite = Instant::now() < self.polite_until;
        let queue = if polite { Registration::Yielding } else { self.queue };
        let Self { hold, lease, .. } = self;
        let deadline = self.bounds.request_end();
        let reply = send(Acquire { hold, lease: *lease, registration: queue, deadline });
        SentAcquire { at, queue, reply }
    }
}

impl SentAcquire<PendingReply<AcquireReply>> {
    /// Waits for the reply.
    pub(super) fn wait(self) -> SentAcquire<Result<AcquireReply, Failure>> {
        SentAcquire { at: self.at, queue: self.queue, reply: self.reply.wait() }
    }
}

impl<R> fmt::Debug for SentAcquire<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentAcquire").field("queue", &self.queue).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Config;
    use crate::local::retry::{RetryLimit, RetryPolicy};
    use std::sync::Arc;

    const LEASE: Duration = Duration::from_secs(30);

    /// Somebody's next request.
    pub(in crate::local) fn request() -> AcquireRequest {
        let hold = HoldId { name: Arc::from("x"), client: Arc::from("c"), nonce: 1 };
        AcquireRequest {
            hold,
            lease: LEASE,
            queue: Registration::IfHeld,
            polite_until: Instant::now(),
            bounds: RetryPolicy::new(RetryLimit::Endless, &Config::default(), LEASE).bounds(),
        }
    }

    /// One that was sent in vain.
    pub(in crate::local) fn sent() -> SentAcquire<PendingReply<AcquireReply>> {
        let reply: PendingReply<AcquireReply> =
            PendingReply::new(|| Ok(AcquireReply::Held { remaining: None }));
        SentAcquire { at: Moment::now(), queue: Registration::IfHeld, reply }
    }

    #[test]
    fn a_thread_is_polite_for_as_long_as_it_says() {
        let deadline = |polite_until| {
            AcquireRequest { polite_until, ..request() }.send(|request| request.registration)
        };
        assert_eq!(deadline(Instant::now() + LEASE).queue, Registration::Yielding);
        assert_eq!(deadline(Instant::now()).queue, Registration::IfHeld);
    }
}
