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
/// # Test every error branch of your code
///
/// Give your code a client of a `MemoryServer`, and make each call fail as it may fail in
/// production. These errors can be provoked:
///
/// [`Unavailable`](crate::Error::Unavailable), by a server that is down, in a lock's call or in a
/// release:
///
/// ```
/// # use leasehold::{Client, Error, MemoryServer};
/// let server = MemoryServer::new();
/// let client = Client::builder().open_memory(&server)?;
/// let guard = client.lock("a")?;
/// server.set_down(true);
/// assert!(matches!(client.try_lock("b"), Err(Error::Unavailable { .. })));
/// assert!(matches!(guard.unlock(), Err(Error::Unavailable { .. })));
/// server.set_down(false);
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// and by one that is too slow, so that the outcome of the call is unknown. What the server has
/// done nevertheless is cleaned up:
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Client, Error, MemoryServer};
/// let server = MemoryServer::new();
/// let builder = Client::builder().io_timeout(Duration::from_millis(50));
/// let client = builder.open_memory(&server)?;
/// server.set_delay(Duration::MAX);
/// match client.try_lock("a") {
///     Err(Error::Unavailable { may_have_executed, .. }) => assert!(may_have_executed),
///     other => panic!("{other:?}"),
/// }
/// server.set_delay(Duration::ZERO);
/// assert!(client.lock("a").is_ok());
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// [`Timeout`](crate::Error::Timeout), by another client that holds the lock for longer than the
/// call waits:
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Client, Error, MemoryServer};
/// let server = MemoryServer::new();
/// let other = Client::builder().open_memory(&server)?;
/// let client = Client::builder().wait(Duration::from_millis(10)).open_memory(&server)?;
/// let _guard = other.lock("a")?;
/// match client.lock("a") {
///     Err(Error::Timeout { holder, .. }) => assert_eq!(holder.unwrap().client, other.id()),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// [`Lost`](crate::Error::Lost), by an operator who ends the hold, or by an outage that lasts until
/// the lease is over:
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Client, Error, HoldEnd, MemoryServer};
/// let server = MemoryServer::new();
/// let client = Client::builder().lease(Duration::from_millis(100)).open_memory(&server)?;
/// let done = client.with_lock("a", |_guard| assert!(server.end_hold("a")));
/// assert!(matches!(done, Err(Error::Lost { .. })));
///
/// let guard = client.lock("a")?;
/// server.set_down(true);
/// assert_eq!(guard.lost().wait(), HoldEnd::Lost);
/// assert!(matches!(guard.verify(), Err(Error::Lost { .. })));
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// [`AlreadyHeld`](crate::Error::AlreadyHeld), by a thread that asks for a set with a name that it
/// holds, or again for a lock that is not [reentrant](crate::Builder::reentrant):
///
/// ```
/// # use leasehold::{Client, Error, MemoryServer};
/// let client = Client::builder().open_memory(&MemoryServer::new())?;
/// let _guard = client.lock("a")?;
/// assert!(matches!(client.lock_all(["a", "b"]), Err(Error::AlreadyHeld { .. })));
/// let again = client.mutex("a").reentrant(false);
/// assert!(matches!(again.try_lock(), Err(Error::AlreadyHeld { .. })));
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// [`WrongType`](crate::Error::WrongType), by a name that is in use for something else:
///
/// ```
/// # use leasehold::{Client, Error, MemoryServer};
/// let client = Client::builder().open_memory(&MemoryServer::new())?;
/// let _permit = client.semaphore("a", 2).acquire()?;
/// assert!(matches!(client.lock("a"), Err(Error::WrongType { .. })));
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// [`Cancelled`](crate::Error::Cancelled) and [`Closed`](crate::Error::Closed), by another thread,
/// or beforehand:
///
/// ```
/// # use leasehold::{Canceller, Client, Error, MemoryServer};
/// let client = Client::builder().open_memory(&MemoryServer::new())?;
/// let canceller = Canceller::new();
/// canceller.cancel();
/// let cancelled = client.mutex("a").cancelled_by(&canceller).lock();
/// assert!(matches!(cancelled, Err(Error::Cancelled { .. })));
/// client.close();
/// assert!(matches!(client.lock("a"), Err(Error::Closed)));
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// and [`InvalidInput`](crate::Error::InvalidInput), by an empty name or a bad setting:
///
/// ```
/// # use leasehold::{Client, Error, MemoryServer};
/// let server = MemoryServer::new();
/// let refused = Client::builder().pool_size(0).open_memory(&server);
/// assert!(matches!(refused, Err(Error::InvalidInput(_))));
/// let client = Client::builder().open_memory(&server)?;
/// assert!(matches!(client.lock(""), Err(Error::InvalidInput(_))));
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// The others need real servers that refuse a request, are too few, or have replicas:
/// [`Redis`](crate::Error::Redis), [`NoQuorum`](crate::Error::NoQuorum) and
/// [`NotReplicated`](crate::Error::NotReplicated); and [`Forked`](crate::Error::Forked) needs a
/// forked process.
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
