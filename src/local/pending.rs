//! The request of a waiter at the head, which another thread may send while the waiter sleeps.
//!
//! Decides what such a request says whenever it is sent. What its reply means is decided by the
//! thread that waits for it, in `attempt.rs`.

use std::time::{Duration, Instant};
use std::{fmt, slice};

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::local::retry::RequestLimits;
use crate::store::Store;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{Acquire, AcquireReply, PendingReply, Registration};

/// The next request of the thread at the head of a wait queue. The thread sends it itself, or,
/// while it sleeps, the thread that hears first that the lock may be free.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(super) hold: HoldId,
    pub(super) lease: Duration,
    pub(super) registration: Registration,
    /// Until then it yields to waiting clients.
    pub(super) yields_until: Instant,
    pub(super) limits: RequestLimits,
    /// Whether another thread may send it.
    pub(super) may_be_early: bool,
    /// Whether other holds of a lock may follow this one in a tenure.
    pub(super) may_be_followed: bool,
}

/// A request that was sent, and its reply or what there is of it.
pub(crate) struct SentAcquire<R> {
    /// Read before it was sent.
    pub(super) sent: Moment,
    pub(super) registration: Registration,
    pub(super) reply: R,
}

impl AcquireRequest {
    /// Sends the request and waits for the reply. The thread behind the one that wants the lock
    /// may have the turn along with it, and wants `next`.
    pub(super) fn execute(
        &self,
        store: &dyn Store,
        next: Option<HoldKind>,
    ) -> SentAcquire<Result<AcquireReply, Failure>> {
        self.send(next, |request| store.acquire(request))
    }

    /// Sends the request without waiting for the reply. `None` if the store cannot.
    pub(super) fn start(
        &self,
        store: &dyn Store,
        next: Option<HoldKind>,
    ) -> Option<SentAcquire<PendingReply<AcquireReply>>> {
        if !self.may_be_early {
            return None;
        }
        let SentAcquire { sent, registration, reply } =
            self.send(next, |request| store.start_acquire(request));
        reply.map(|reply| SentAcquire { sent, registration, reply })
    }

    fn send<R>(
        &self,
        next: Option<HoldKind>,
        send: impl FnOnce(Acquire<'_>) -> R,
    ) -> SentAcquire<R> {
        let sent = Moment::now();
        let yields = Instant::now() < self.yields_until;
        let is_followed = match (self.hold.kind, next) {
            (HoldKind::Read, Some(HoldKind::Read)) => true,
            (HoldKind::Lock, Some(_)) => self.may_be_followed && !yields,
            _ => false,
        };
        let registration = match self.registration {
            Registration::Registered if is_followed => Registration::Followed,
            _ if yields => Registration::Yielding,
            registration => registration,
        };
        let Self { hold, lease, .. } = self;
        let deadline = self.limits.request_deadline();
        let reply =
            send(Acquire { holds: slice::from_ref(hold), lease: *lease, registration, deadline });
        SentAcquire { sent, registration, reply }
    }
}

impl SentAcquire<PendingReply<AcquireReply>> {
    /// Blocks until the reply has come, or the deadline of the request.
    pub(super) fn wait(self) -> SentAcquire<Result<AcquireReply, Failure>> {
        let Self { sent, registration, reply } = self;
        SentAcquire { sent, registration, reply: reply.wait() }
    }
}

impl<R> fmt::Debug for SentAcquire<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentAcquire")
            .field("registration", &self.registration)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::config::Config;
    use crate::local::call::CallTimes;
    use crate::local::retry::{RetryLimit, RetryPolicy};

    const LEASE: Duration = Duration::from_secs(30);

    pub(in crate::local) fn request() -> AcquireRequest {
        let hold =
            HoldId { kind: HoldKind::Lock, name: Arc::from("x"), client: Arc::from("c"), nonce: 1 };
        let config = Config::default();
        let times = CallTimes::new(&config, LEASE);
        AcquireRequest {
            hold,
            lease: LEASE,
            registration: Registration::IfHeld,
            yields_until: Instant::now(),
            may_be_early: true,
            may_be_followed: true,
            limits: RetryPolicy::new(RetryLimit::Endless, &config, times).limits(),
        }
    }

    /// A request that finds the lock held.
    pub(in crate::local) fn sent() -> SentAcquire<PendingReply<AcquireReply>> {
        let reply: PendingReply<AcquireReply> = PendingReply::new(|| Ok(AcquireReply::held(None)));
        SentAcquire { sent: Moment::now(), registration: Registration::IfHeld, reply }
    }

    #[test]
    fn a_request_yields_until_the_time_it_says() {
        let registration = |yields_until| {
            let request = AcquireRequest { yields_until, ..request() };
            request.send(None, |request| request.registration).reply
        };
        assert_eq!(registration(Instant::now() + LEASE), Registration::Yielding);
        assert_eq!(registration(Instant::now()), Registration::IfHeld);
    }

    #[test]
    fn a_request_of_a_registered_reader_says_that_another_one_follows() {
        let registration = |kind, registration, next| {
            let hold = HoldId { kind, ..request().hold };
            let request = AcquireRequest { hold, registration, ..request() };
            request.send(next, |request| request.registration).reply
        };
        let (read, write) = (HoldKind::Read, HoldKind::Write);
        for registered in [Registration::IfHeld, Registration::Registered] {
            assert_eq!(registration(read, registered, None), registered);
            assert_eq!(registration(read, registered, Some(write)), registered);
            assert_eq!(registration(write, registered, Some(read)), registered);
        }
        let followed = registration(read, Registration::Registered, Some(read));
        assert_eq!(followed, Registration::Followed);
    }
}
