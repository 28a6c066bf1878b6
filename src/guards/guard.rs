//! A lock held by a thread.

use std::marker::PhantomData;
use std::sync::MutexGuard;
use std::time::Duration;

use crate::error::Result;
use crate::guards::watches::{Lost, Wanted};
use crate::guards::{GuardInner, any_guard};

/// A lock, or one level of it, held by the current thread. Dropping the guard releases it.
///
/// Until then the lease is renewed in the background. If renewal keeps failing until another client
/// may have the lock, [`is_held`](Guard::is_held) starts to return `false` and
/// [`lost`](Guard::lost) wakes the threads that wait for it. Only the [fencing token](Guard::fence)
/// protects a resource from a holder that was paused and has not noticed yet.
///
/// Dropping a guard never panics, and does not wait for the server's reply: see [What drop
/// does](crate#what-drop-does). [`unlock`](Guard::unlock) waits, and reports errors.
///
/// A guard stays on its thread:
///
/// ```compile_fail,E0277
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock("stock:42").unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
///
/// Clients and mutexes can be sent, so the other thread can lock for itself. A guard from
/// [`lock_owned`](crate::Client::lock_owned) belongs to no thread, and can be sent:
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock_owned("stock:42").unwrap();
/// std::thread::spawn(move || drop(guard)).join().unwrap();
/// ```
///
/// Other threads can borrow a guard:
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock("stock:42").unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(|| assert!(guard.is_held()));
/// });
/// ```
#[must_use = "if unused the lock is released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct Guard {
    pub(super) inner: GuardInner,
    pub(super) depth: u32,
    pub(super) _not_send: BelongsToItsThreadUseLockOwned,
}

impl Guard {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the fencing token of this hold. It is greater than that of every earlier hold of
    /// this name. Nested guards share it.
    ///
    /// Send it with every write to the protected resource, and let the resource reject tokens
    /// smaller than the greatest it has seen. Then a holder that has lost the lock without noticing
    /// can do no harm
    /// (<https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>).
    ///
    /// Tokens grow even if the server has lost their counter, provided that its clock is not behind
    /// the last token. A token is the clock's microseconds or, if that is not greater than the last
    /// token, the next number; among threads that share a lock it is ahead of the clock by a
    /// millisecond at most. With independent servers, the clock is that of this system.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.inner.holds[0].fence()
    }

    /// Returns the level of this guard: 1, or more if it is nested.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns `true` if the lease has not ended by this process's clock. Does not ask the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Returns how long the lease lasts unless it is renewed, less a margin of 1 % of the lease and
    /// 2 ms for clock drift. Zero if it is lost. Does not ask the server.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Returns a watch with which any thread can check whether the lease was lost, or wait for the
    /// hold to end.
    #[must_use]
    pub fn lost(&self) -> Lost {
        self.inner.lost()
    }

    /// Returns a watch that reports when another client waits for the lock, so that a long job can
    /// end early or take a break. Waiting threads of this client do not count, nor do calls that do
    /// not wait, such as [`try_lock`](crate::Client::try_lock).
    ///
    /// The first call for a hold makes this client listen for messages, and blocks for the server's
    /// reply to a request that also finds a client that is already waiting. From then on a message
    /// arrives within a network latency. The next renewal makes up for a lost message, and for a
    /// failed request.
    ///
    /// No messages arrive for a hold that was [adopted](crate::Client::adopt): the watch learns of
    /// other clients from renewals, and each call of this method asks the server.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        Wanted::new(&self.inner.shared, &self.inner.holds[0])
    }

    /// Asks the server whether this hold still exists. Blocks for the server's reply.
    ///
    /// If the server has become a replica, and neither sentinels nor a cluster report it, it
    /// replies from its old data until a request of this client shows that it accepts no writes.
    /// While the lease is renewed, that takes a third of the lease at most.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): the hold no longer exists.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came; see [`Client::try_lock`](crate::Client::try_lock) for how long the
    ///   call retries.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Closed`](crate::Error::Closed): [`Client::shutdown`](crate::Client::shutdown) has ended
    ///   the hold, or the client was closed while this call paused after a failure.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn verify(&self) -> Result<()> {
        self.inner.verify(false)
    }

    /// Renews the lease now, also with `renew(false)`, but not beyond
    /// [`max_hold`](crate::Builder::max_hold). Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`verify`](Self::verify), and [`NotReplicated`](crate::Error::NotReplicated) if
    /// too few replicas or disks acknowledged it; then the lease is unchanged.
    pub fn renew(&self) -> Result<()> {
        self.inner.verify(true)
    }

    /// Releases what this guard holds, and reports errors. Unlike dropping the guard, this blocks
    /// for the server's reply. Does nothing after [`Client::shutdown`](crate::Client::shutdown).
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): the lease was lost before, so the work may have overlapped
    ///   with that of another holder.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came. The release is retried in the background, and the lease is no longer
    ///   renewed. If the client is closed while this call pauses after a failure, the call ends at
    ///   once with this.
    /// - [`Redis`](crate::Error::Redis): the server refused the request. The outer guards of a
    ///   [nested](crate::Guard::depth) one remain valid.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child, where guards do nothing.
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }
}

any_guard!(Guard);

/// Makes a guard `!Send`, because the levels of a hold are counted per thread. The compiler shows
/// this name in its error when a guard is sent to another thread.
pub(super) struct BelongsToItsThreadUseLockOwned(pub(super) PhantomData<MutexGuard<'static, ()>>);
