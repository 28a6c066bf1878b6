//! The request of a waiter at the head, which another thread may send while the waiter sleeps.
//!
//! Decides what such a request says whenever it is sent. What its reply means is decided by the
//! thread that waits for it, in `attempt.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, iter, slice};

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::local::retry::RequestLimits;
use crate::local::waiter::Waiter;
use crate::store::Store;
use crate::store::hold_id::HoldId;
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

/// The threads behind the head when its request is sent.
#[derive(Default)]
pub(super) struct Followers {
    pub(super) exist: bool,
    /// Those right behind it for which the request asks as well, because they want the same and can
    /// have it at the same time.
    pub(super) alike: Vec<Arc<Waiter>>,
}

/// A request that was sent, and its reply or what there is of it.
pub(crate) struct SentAcquire<R> {
    /// Read before it was sent.
    pub(super) sent: Moment,
    pub(super) registration: Registration,
    /// The other threads for which it asks.
    pub(super) alike: Vec<Arc<Waiter>>,
    pub(super) reply: R,
}

impl AcquireRequest {
    /// Sends the request and waits for the reply.
    pub(super) fn execute(
        &self,
        store: &dyn Store,
        followers: Followers,
    ) -> SentAcquire<Result<AcquireReply, Failure>> {
        self.send(followers, |request| store.acquire(request))
    }

    /// Sends the request without waiting for the reply. `None` if the store cannot.
    pub(super) fn start(
        &self,
        store: &dyn Store,
        followers: Followers,
    ) -> Option<SentAcquire<PendingReply<AcquireReply>>> {
        if !self.may_be_early {
            return None;
        }
        let SentAcquire { sent, registration, alike, reply } =
            self.send(followers, |request| store.start_acquire(request));
        reply.map(|reply| SentAcquire { sent, registration, alike, reply })
    }

    fn send<R>(
        &self,
        Followers { exist, alike }: Followers,
        send: impl FnOnce(Acquire<'_>) -> R,
    ) -> SentAcquire<R> {
        let sent = Moment::now();
        let registration = match self.registration {
            Registration::Last => Registration::Last,
            _ if Instant::now() < self.yields_until => Registration::Yielding,
            Registration::Registered if exist && self.may_be_followed => Registration::Followed,
            registration => registration,
        };
        let Self { hold, lease, .. } = self;
        let all: Vec<_>;
        let holds = if alike.is_empty() {
            slice::from_ref(hold)
        } else {
            let alike = alike.iter().map(|waiter| waiter.hold.clone());
            all = iter::once(hold.clone()).chain(alike).collect();
            &all
        };
        let deadline = self.limits.request_deadline();
        let reply = send(Acquire { holds, lease: *lease, registration, deadline });
        SentAcquire { sent, registration, alike, reply }
    }
}

impl SentAcquire<PendingReply<AcquireReply>> {
    /// Blocks until the reply has come, or the deadline of the request.
    pub(super) fn wait(self) -> SentAcquire<Result<AcquireReply, Failure>> {
        let Self { sent, registration, alike, reply } = self;
        SentAcquire { sent, registration, alike, reply: reply.wait() }
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
    use crate::config::Config;
    use crate::local::call::CallTimes;
    use crate::local::retry::{RetryLimit, RetryPolicy};
    use crate::store::hold_id::HoldKind;

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
        let (sent, registration) = (Moment::now(), Registration::IfHeld);
        SentAcquire { sent, registration, alike: Vec::new(), reply }
    }

    #[test]
    fn a_request_yields_until_the_time_it_says() {
        let registration = |yields_until| {
            let request = AcquireRequest { yields_until, ..request() };
            request.send(Followers::default(), |request| request.registration).reply
        };
        assert_eq!(registration(Instant::now() + LEASE), Registration::Yielding);
        assert_eq!(registration(Instant::now()), Registration::IfHeld);
    }

    #[test]
    fn a_request_of_a_registered_thread_says_that_others_wait() {
        let registration = |registration, exist, may_be_followed| {
            let request = AcquireRequest { registration, may_be_followed, ..request() };
            let followers = Followers { exist, ..Followers::default() };
            request.send(followers, |request| request.registration).reply
        };
        let (first, registered) = (Registration::IfHeld, Registration::Registered);
        assert_eq!(registration(registered, true, true), Registration::Followed);
        assert_eq!(registration(registered, false, true), registered);
        assert_eq!(registration(registered, true, false), registered);
        assert_eq!(registration(first, true, true), first);
    }
}
