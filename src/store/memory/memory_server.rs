//! The server in memory against which users test their code.
//!
//! Decides what happens to a request while the server is down or slow. Each request is executed at
//! once. If the reply takes longer than the caller waits, it is lost, and the outcome is unknown.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use parking_lot::Mutex;
use redis::Value;

use crate::base::clock::{self, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::printable;
use crate::base::sync::sleep;
use crate::config::Config;
use crate::error::{ServerFailure, Shortfall};
use crate::net::error_reply;
use crate::store::hold_id::HoldKind;
use crate::store::keys::Keys;
use crate::store::memory::inbox::failure;
use crate::store::memory::locks::Locks;
use crate::store::request::{HoldReply, HolderReply, Look};

/// How long a client has to release a kept lock.
const KEPT_TIME: Duration = Duration::from_millis(50);

/// A server that exists only in this process, for tests of code that locks.
///
/// Clients that are [opened](crate::Builder::open_memory) on the same server contend for locks like
/// processes that share a Redis: they queue up, wake each other, and see each other as
/// [holders](crate::Mutex::holder). A test can also take the server down, slow it down and end
/// holds. All clones are the same server, which lives until its last clone and client are dropped.
///
/// ```
/// use leasehold::{Client, MemoryServer};
///
/// let server = MemoryServer::new();
/// let one = Client::builder().open_memory(&server)?;
/// let other = Client::builder().open_memory(&server)?;
///
/// let guard = one.lock("stock:42")?;
/// assert!(other.try_lock("stock:42")?.is_none());
/// guard.unlock()?;
/// assert!(other.try_lock("stock:42")?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// Give your code a client of a `MemoryServer`, and make each call fail as it may in production.
/// The [cookbook][tests] provokes every error but [`Forked`](crate::Error::Forked), which takes a
/// fork.
///
/// [tests]: crate::guide::cookbook#tests-of-your-own-code
#[derive(Clone, Default)]
pub struct MemoryServer(pub(super) Arc<Mutex<ServerState>>);

#[derive(Default)]
pub(super) struct ServerState {
    pub(super) locks: Locks,
    is_down: bool,
    /// How long each reply takes.
    delay: Duration,
    /// The failure of each request.
    refusal: Option<Failure>,
}

/// The outcome of an executed request, and when its reply arrives.
pub(super) struct Delayed<T> {
    pub(super) outcome: Result<T, Failure>,
    pub(super) due: Instant,
}

impl MemoryServer {
    /// Creates a server without locks that replies at once.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the server down, or brings it back. It keeps its data, but leases continue to expire.
    ///
    /// While it is down, each request fails as if the server could not be reached: calls return
    /// [`Unavailable`](crate::Error::Unavailable), and renewals fail until the leases end. Threads
    /// that wait for a lock continue if the server is back in time.
    ///
    /// ```
    /// use leasehold::{Client, Error, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let client = Client::builder().open_memory(&server)?;
    /// server.set_down(true);
    /// assert!(matches!(client.try_lock("stock:42"), Err(Error::Unavailable { .. })));
    /// server.set_down(false);
    /// assert!(client.try_lock("stock:42")?.is_some());
    /// # Ok::<(), Error>(())
    /// ```
    pub fn set_down(&self, is_down: bool) {
        self.0.lock().is_down = is_down;
    }

    /// Sets how long the server takes to reply to later requests. Defaults to no delay.
    ///
    /// Each request is executed at once. If the reply takes longer than the call waits, for example
    /// longer than the client's [`io_timeout`](crate::Builder::io_timeout), the call ends without
    /// it, and cannot know whether the request was executed. With [`Duration::MAX`] the server
    /// never replies. A drop does not wait for a reply, here as with Redis.
    ///
    /// ```
    /// use leasehold::{Client, MemoryServer};
    /// use std::time::Duration;
    ///
    /// let server = MemoryServer::new();
    /// let client = Client::builder().io_timeout(Duration::from_millis(20)).open_memory(&server)?;
    /// server.set_delay(Duration::MAX);
    /// let error = client.try_lock("stock:42").expect_err("no reply comes");
    /// assert!(error.may_have_executed());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn set_delay(&self, delay: Duration) {
        self.0.lock().delay = delay;
    }

    /// Makes the server refuse each later request with this error reply, such as `NOPERM no right`;
    /// `None` ends that. A refused request changes nothing. The first word is the code of
    /// [`Redis`](crate::Error::Redis), except for these nine:
    ///
    /// - `BUSY`, `CLUSTERDOWN`, `LOADING`, `MASTERDOWN`, `NOREPLICAS`, `READONLY` and `TRYAGAIN`
    ///   describe conditions that pass. The request is retried as with Redis, and the call ends
    ///   with [`Unavailable`](crate::Error::Unavailable).
    /// - `NOQUORUM`, which no server sends: of two servers that must agree, only one does. The
    ///   error is [`NoQuorum`](crate::Error::NoQuorum).
    /// - `NOTREPLICATED`, which no server sends: no replica acknowledges new holds, levels and
    ///   renewals. The error is [`NotReplicated`](crate::Error::NotReplicated). Requests that need
    ///   no acknowledgement are answered.
    ///
    /// ```
    /// use leasehold::{Client, Error, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let client = Client::builder().open_memory(&server)?;
    /// server.refuse_with(Some("NOPERM this user has no permissions"));
    /// let refused = client.lock("stock:42").map(drop);
    /// assert!(matches!(refused, Err(Error::Redis { code, .. }) if code == "NOPERM"));
    /// server.refuse_with(None);
    /// client.lock("stock:42")?.unlock()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn refuse_with(&self, reply: Option<&str>) {
        let mut state = self.0.lock();
        state.refusal = None;
        state.locks.shortfall = None;
        match reply.map(refusal) {
            Some(failure) if failure.is_shortfall() => state.locks.shortfall = Some(failure),
            failure => state.refusal = failure,
        }
    }

    /// Ends the holds of a name by any client, as if an operator had ended them: a lock, both sides
    /// of a read-write lock, or all permits of a semaphore. A holder that listens for messages
    /// finds out at once, and any other holder at its next request or renewal. Returns `false` if
    /// there are none.
    ///
    /// A lock that its client only [keeps](crate::Builder::keep) is not held, but becomes free. It
    /// counts as held while the server is down, or if its client does not release it within 50 ms.
    ///
    /// `name` is the one that the client passes to [`lock`](crate::Client::lock). For a client with
    /// another [`prefix`](crate::Builder::prefix) than the default, put that prefix in front. This
    /// also works while the server is down.
    #[allow(clippy::must_use_candidate, reason = "a test may know that the lock is held")]
    pub fn end_hold(&self, name: &str) -> bool {
        let usual = Keys::new(&Config::default().prefix).lock(name).into_owned();
        let keys = [&*usual, name];
        let end = end_of(KEPT_TIME);
        for key in keys {
            // A client that only keeps the lock sees the request and releases it.
            while self.recall(key) && clock::now() < end {
                sleep(Duration::from_millis(1));
            }
        }
        let locks = &mut self.0.lock().locks;
        keys.into_iter().any(|key| end_holds(locks, key))
    }

    /// Asks for a lock that its client only keeps. Returns `false` if it is not kept, or if the
    /// client cannot be asked.
    fn recall(&self, key: &str) -> bool {
        let mut state = self.0.lock();
        !state.is_down && state.locks.recall(key)
    }

    /// Executes a request, unless the server is down or refuses it.
    pub(super) fn begin<T>(
        &self,
        deadline: Instant,
        request: impl FnOnce(&mut Locks) -> Result<T, Failure>,
    ) -> Delayed<T> {
        let mut state = self.0.lock();
        let now = clock::now();
        if state.is_down {
            let outcome = Err(failure(FailureKind::Unreachable, "the memory server is down"));
            return Delayed { outcome, due: now };
        }
        let outcome = match &state.refusal {
            Some(refusal) => Err(refusal.clone()),
            None => request(&mut state.locks),
        };
        if state.delay.is_zero() {
            return Delayed { outcome, due: now };
        }
        if let Some(due) = now.checked_add(state.delay).filter(|due| *due <= deadline) {
            return Delayed { outcome, due };
        }
        // The request was executed, but its reply is late.
        let outcome = Err(failure(FailureKind::Timeout, "the memory server is slow"));
        Delayed { outcome, due: deadline }
    }

    /// Executes a request and waits for the reply.
    pub(super) fn execute<T>(
        &self,
        deadline: Instant,
        request: impl FnOnce(&mut Locks) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Delayed { outcome, due } = self.begin(deadline, request);
        let pause = due.saturating_duration_since(clock::now());
        if pause.is_zero() {
            return outcome;
        }
        sleep(pause);
        // The request may have been executed: the outcome is unknown, as with a broken connection.
        if self.0.lock().is_down {
            let why = "the memory server went down before it replied";
            return Err(failure(FailureKind::Disconnected, why));
        }
        outcome
    }
}

/// Ends all holds of a key. Returns `false` if there are none.
fn end_holds(locks: &mut Locks, key: &str) -> bool {
    let holds = locks.report(key, Look::All).unwrap_or_default().holds;
    let permits = u32::try_from(holds.len()).unwrap_or(u32::MAX);
    let ended = holds.iter().filter(|(held_as, HolderReply { owner, .. })| {
        let kind = HoldKind::reported_as(*held_as, permits);
        locks.force_release(kind, key, owner) == HoldReply::Done
    });
    ended.count() > 0
}

/// Returns the failure of a request that is refused with this reply.
fn refusal(reply: &str) -> Failure {
    let server = Arc::from("memory");
    match reply.split(' ').next() {
        Some("NOQUORUM") => {
            let one = failed(FailureKind::Unreachable, &server, reply);
            let Failure { phase, source, .. } = one.clone();
            let failures = vec![ServerFailure { server: server.to_string(), phase, source }];
            let no_quorum = Some(Arc::new(Shortfall { ok: 1, required: 2, failures }));
            Failure { no_quorum, ..one }
        }
        Some("NOTREPLICATED") => {
            failed(FailureKind::NotReplicated { acked: 0, required: 1 }, &server, reply)
        }
        _ => match redis::parse_redis_value(format!("-{}\r\n", printable(reply)).as_bytes()) {
            Ok(Value::ServerError(error)) => error_reply::failure(&error, &server),
            _ => failed(FailureKind::Rejected, &server, reply),
        },
    }
}

fn failed(kind: FailureKind, server: &Arc<str>, reply: &str) -> Failure {
    Failure::io(kind, server, io::Error::other(printable(reply)))
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Moment;
    use crate::store::hold_id::HoldId;

    #[cfg_attr(windows, allow(dead_code, reason = "the simulation, which needs Unix, uses most"))]
    impl MemoryServer {
        /// Sets the end of the selected holds and offers of a name.
        pub(crate) fn end_at(&self, key: &str, end: Moment, is_meant: impl Fn(&HoldId) -> bool) {
            self.0.lock().locks.end_at(key, end, is_meant);
        }

        /// Returns another server with the same data, and without clients that listen.
        pub(crate) fn copy(&self) -> Self {
            let locks = self.0.lock().locks.copy();
            Self(Arc::new(Mutex::new(ServerState { locks, ..ServerState::default() })))
        }

        /// Returns the holds and offers of a name, each with the depth and the end.
        pub(crate) fn holds(&self, key: &str) -> Vec<(HoldId, u32, Moment)> {
            self.0.lock().locks.holds(key)
        }

        /// Calls `see` with each key and each client that has a hold or an offer of it (`true`) or
        /// waits for it (`false`).
        pub(crate) fn look(&self, see: impl FnMut(&str, &str, bool)) {
            self.0.lock().locks.look(see);
        }

        /// Sets the token that the server takes to be the last one.
        pub(crate) fn set_last_token(&self, token: u64) {
            self.0.lock().locks.set_last_token(token);
        }

        /// Ends a hold without waking a client.
        pub(crate) fn withdraw(&self, key: &str, hold: &HoldId) -> HoldReply {
            self.0.lock().locks.withdraw(key, hold)
        }

        /// Returns the last token that was given for any name.
        pub(crate) fn last_token(&self) -> u64 {
            self.0.lock().locks.last_token()
        }

        /// Returns the clients that wait for a lock, as Redis stores them.
        pub(crate) fn waiting(&self, key: &str) -> Vec<String> {
            self.0.lock().locks.waiting(key)
        }
    }
}
