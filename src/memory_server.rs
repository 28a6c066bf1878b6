//! The server in memory against which users test their code.

use std::fmt;
use std::time::Duration;

use crate::config::Config;
use crate::store::keys::Keys;
use crate::store::memory::SimulatedServer;

/// A server that exists only in this process, for tests of code that locks.
///
/// Clients that are [opened](crate::Builder::open_memory) on the same server contend for locks as
/// processes that share a Redis do: they wait for each other in line, wake each other, and see each
/// other as [holders](crate::Mutex::holder). A test can also stop the server, slow it down and end
/// holds. Clones are the same server, and it lives as long as a clone or a client of it.
///
/// ```
/// use leasehold::{Client, MemoryServer};
///
/// let server = MemoryServer::new();
/// let [one, other] = [Client::builder(), Client::builder()].map(|it| it.open_memory(&server));
/// let (one, other) = (one?, other?);
///
/// let guard = one.lock("stock:42")?;
/// assert!(other.try_lock("stock:42")?.is_none());
/// guard.unlock()?;
/// assert!(other.try_lock("stock:42")?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// Give your code a client of a `MemoryServer`, and make each call fail as it may fail in
/// production. The [cookbook][tests] provokes each error once: `Unavailable`, `Timeout`, `Lost`,
/// `AlreadyHeld`, `WrongType`, `Cancelled`, `Closed` and `InvalidInput`. The others need real
/// servers that refuse a request, are too few, or have replicas: [`Redis`](crate::Error::Redis),
/// [`NoQuorum`](crate::Error::NoQuorum) and [`NotReplicated`](crate::Error::NotReplicated); and
/// [`Forked`](crate::Error::Forked) needs a forked process.
///
/// [tests]: crate::guide::cookbook#tests-of-your-own-code
#[derive(Clone, Default)]
pub struct MemoryServer(pub(crate) SimulatedServer);

impl MemoryServer {
    /// Creates a server that has no locks and answers at once.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops the server, or lets it answer again. It keeps what it has, but leases go on to end.
    ///
    /// While it is down, each request fails as one to a server that cannot be reached, so that
    /// calls return [`Unavailable`](crate::Error::Unavailable), and renewals fail until the leases
    /// are over. Threads that wait for a lock go on when it is up again in time.
    pub fn set_down(&self, is_down: bool) {
        self.0.set_down(is_down);
    }

    /// Sets how long the server takes to reply to requests from now on: not at all by default.
    ///
    /// Each request is executed at once. Where the reply takes longer than its call waits, such as
    /// the client's [`io_timeout`](crate::Builder::io_timeout), the call ends without it, and does
    /// not know whether the request was executed. A server with [`Duration::MAX`] never replies. A
    /// drop does not wait for a reply, here as with Redis.
    pub fn set_delay(&self, delay: Duration) {
        self.0.set_delay(delay);
    }

    /// Ends the hold of a lock, of any client, as an operator or a lost key does. The holder finds
    /// out when it next asks, or by a renewal. Returns `false` if the lock is not held.
    ///
    /// The name is that which the client gives to [`lock`](crate::Client::lock). Only locks of
    /// clients with the default [`prefix`](crate::Builder::prefix) are found, and this works also
    /// while the server is down.
    #[allow(clippy::must_use_candidate, reason = "a test may know that the lock is held")]
    pub fn end_hold(&self, name: &str) -> bool {
        self.0.end_hold(&Keys::new(&Config::default().prefix).lock(name))
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer").finish_non_exhaustive()
    }
}
