//! The handle through which locks are acquired.

pub(crate) mod builder;
mod calls;
#[cfg(feature = "serde")]
mod deserialize;
mod open;
mod settings;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::local::shared::Shared;
use crate::local::survey::Survey;
use crate::local::{release, status};
use crate::stats::Stats;

/// A handle for acquiring distributed locks. Clones are cheap and share everything.
///
/// A client has a pool of connections and [a few background
/// threads](crate#threads-and-connections), one of which renews its leases. All are shut down when
/// the last clone and the last guard are dropped. Two clients are two different owners, even in one
/// thread.
///
/// ```
/// let client = leasehold::Client::in_memory(); // or Client::open("redis://127.0.0.1/")?
/// {
///     let guard = client.lock("stock:42")?; // blocks; renewed in the background
///     println!("selling with fencing token {}", guard.fence());
/// } // released
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { held, waiting, .. } = self.shared.stats();
        let shown = &mut f.debug_struct("Client");
        let shown = shown.field("label", &self.shared.config.label());
        shown.field("held", &held).field("waiting", &waiting).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Returns the id of this client: its label, if any, and 128 random bits. In Redis, the owner
    /// of each of its holds begins with it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared.client
    }

    /// Checks that locks can be acquired, and returns how long that took. The server executes what
    /// a lock needs, for a name of its own, and keeps nothing of it. So a missing right, a full
    /// server or a replica is also an error. Blocks for the reply: of one server, of a node of a
    /// cluster, or of a majority of independent servers.
    ///
    /// # Errors
    ///
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came; see [`try_lock`](Client::try_lock) for how long the call retries.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Closed`](crate::Error::Closed): the client is closed.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn ping(&self) -> Result<Duration> {
        status::ping(&self.shared)
    }

    /// Returns a handle with which the program `leasehold` shows and ends the holds of all clients.
    /// Sends nothing.
    #[doc(hidden)]
    #[must_use]
    pub fn survey(&self) -> Survey {
        Survey::new(&self.shared)
    }

    /// Returns what this client holds and uses now, and its counters. Does not ask the server.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Returns the ten names that the most threads of this client are waiting for or trying to
    /// acquire, with the number of those threads, in descending order. Does not ask the server.
    #[must_use]
    pub fn waiting_names(&self) -> Vec<(String, usize)> {
        status::waiting_names(&self.shared)
    }

    /// Closes all clones of this client to new locks: all calls that are waiting for a lock or
    /// acquiring one, and all later ones, return [`Error::Closed`](crate::Error::Closed).
    ///
    /// Live guards are not affected: their leases are still renewed, and they can be unlocked.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Closes all clones of this client as [`close`](Client::close) does, and releases every hold.
    /// Blocks until all of them are known to have ended, or `timeout` has passed.
    ///
    /// The releases are sent together, in one batch per server. The call also waits for the
    /// releases of guards that were dropped before, and for calls that are in the middle of
    /// acquiring a lock. Such a call returns [`Closed`](crate::Error::Closed), unless it already
    /// has its lock.
    ///
    /// For guards that still exist, the hold is over: [`is_held`](crate::Guard::is_held) returns
    /// `false`, [`lost`](crate::Guard::lost) reports a normal release,
    /// [`verify`](crate::Guard::verify) and [`renew`](crate::Guard::renew) return `Closed`, and
    /// unlocking or dropping the guard succeeds and does nothing. Work under a lock is not stopped,
    /// nor is a closure of [`with_lock`](Client::with_lock), whose value is returned: stop it
    /// first. A lock with [`hold_at_least`](crate::Mutex::hold_at_least) stays taken for the rest
    /// of that time.
    ///
    /// May be called repeatedly, by several threads at once, and from a closure under a lock.
    ///
    /// # Errors
    ///
    /// - [`Unavailable`](crate::Error::Unavailable), or [`NoQuorum`](crate::Error::NoQuorum) from
    ///   independent servers: a release was not confirmed in time, or a call was still under way.
    ///   Releases are retried in the background while a clone of the client or a guard exists. A
    ///   lock whose release never arrives becomes free when its lease ends.
    /// - [`Redis`](crate::Error::Redis): the server kept refusing a release until `timeout` had
    ///   passed.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    ///
    /// The [cookbook][end] shows how to free the locks of a process that SIGTERM ends.
    ///
    /// [end]: crate::guide::cookbook#shutting-down
    pub fn shutdown(&self, timeout: Duration) -> Result<()> {
        release::shut_down(&self.shared, timeout)
    }
}
