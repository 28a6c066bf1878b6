//! The guard of every kind, and the trait for code that takes any guard.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, slice};

use crate::error::Result;
use crate::guards::kinds::Kind;
use crate::guards::watches::Lost;
use crate::local::adoption::{self, DetachedHold};
use crate::local::shared::Shared;
use crate::local::{hold_requests, release};
use crate::protocol::hold::Hold;
use crate::store::hold_id::HoldKind;

/// A guard of any kind: [`Guard`](crate::Guard), [`OwnedGuard`](crate::OwnedGuard),
/// [`ReadGuard`](crate::ReadGuard), [`WriteGuard`](crate::WriteGuard), [`Permit`](crate::Permit),
/// [`Term`](crate::Term) or [`MultiGuard`](crate::MultiGuard). These names stand for this type,
/// which has the methods that all of them share.
///
/// Dropping a guard releases what it holds. That never panics, and does not wait for the server's
/// reply: see [What drop does](crate#what-drop-does).
#[must_use = "if unused what it holds is released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct LockGuard<K> {
    pub(super) held: Held,
    pub(super) kind: K,
}

impl<K> LockGuard<K> {
    /// Returns the name; those of a set are separated by commas.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.held.holds {
            Holds::One(hold) => &hold.id.name,
            Holds::Set(set) => &set.name,
        }
    }

    /// Returns `true` if the lease has not ended by this process's clock; for a set, if no lease
    /// has. Does not ask the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.holds().iter().all(|hold| self.held.shared.is_held(hold))
    }

    /// Returns how long the lease lasts unless it is renewed, less a margin of 1 % of the lease and
    /// 2 ms for clock drift; for a set, the lease that ends first. Zero if it is lost. Does not ask
    /// the server.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = self.held.holds().iter().map(|hold| self.held.shared.remaining(hold));
        remaining.min().unwrap_or_default()
    }

    /// Returns a watch with which any thread can check whether the lease was lost, or wait for the
    /// hold to end. A set is lost as soon as one of its locks is.
    #[must_use]
    pub fn lost(&self) -> Lost {
        Lost::new(&self.held.shared, self.held.holds())
    }

    /// Asks the server whether this hold, or each hold of a set, still exists. Blocks for the
    /// server's reply.
    ///
    /// If the server has become a replica, and neither sentinels nor a cluster report it, it
    /// replies from its old data until a request of this client shows that it accepts no writes.
    /// While the lease is renewed, that takes a third of the lease at most.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): the hold no longer exists.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came; [`Client::try_lock`](crate::Client::try_lock) says how long the call
    ///   retries.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Closed`](crate::Error::Closed): [`Client::shutdown`](crate::Client::shutdown) has ended
    ///   the hold, or the client was closed while this call paused after a failure.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn verify(&self) -> Result<()> {
        hold_requests::verify(&self.held.shared, self.held.holds(), false)
    }

    /// Renews the lease now, or each lease of a set, even with `renew(false)`, but not beyond
    /// [`max_hold`](crate::Builder::max_hold). Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`verify`](Self::verify), and [`NotReplicated`](crate::Error::NotReplicated) if
    /// too few replicas or disks acknowledged it; then that lease is unchanged.
    pub fn renew(&self) -> Result<()> {
        hold_requests::verify(&self.held.shared, self.held.holds(), true)
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
        self.held.unlock()
    }
}

/// Omits everything that would allow another client to release the hold.
impl<K: Kind> fmt::Debug for LockGuard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(K::NAME)
            .field("name", &self.name())
            .field("fence", &self.held.fence())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// A guard of any kind, for code that treats a lock, a side of a read-write lock, a permit, a term
/// and a set of locks alike. The methods are those that each of these guards has itself.
///
/// All guards except [`Guard`](crate::Guard) belong to no thread, so they fit into a `Box<dyn
/// AnyGuard + Send + Sync>`. Other types cannot implement this trait, and it may gain methods.
///
/// ```
/// use leasehold::{AnyGuard, Client, Result};
///
/// fn work(guard: &dyn AnyGuard) -> Result<()> {
///     // ... stop when guard.is_held() is false ...
///     guard.verify()
/// }
///
/// let client = Client::in_memory();
/// let lock: Box<dyn AnyGuard> = Box::new(client.lock("stock:42")?);
/// let permit: Box<dyn AnyGuard> = Box::new(client.semaphore("paid-api", 2).acquire()?);
/// assert!(lock.fence().is_some() && permit.fence().is_none());
/// for guard in [lock, permit] {
///     work(&*guard)?;
///     guard.unlock()?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "if unused what is held is released immediately: \
              bind it to `_guard`, not to `_`"]
pub trait AnyGuard: fmt::Debug + Sealed {
    /// Returns the name; those of a set are separated by commas.
    #[must_use]
    fn name(&self) -> &str;

    /// Returns the fencing token. Permits have none, and sets of locks have one for each lock. See
    /// [`Guard::fence`](crate::Guard::fence).
    #[must_use]
    fn fence(&self) -> Option<u64>;

    /// Returns `true` if the lease has not ended by this process's clock. Does not ask the server.
    #[must_use]
    fn is_held(&self) -> bool;

    /// Returns how long the lease lasts unless it is renewed. See
    /// [`Guard::remaining`](crate::Guard::remaining).
    #[must_use]
    fn remaining(&self) -> Duration;

    /// Returns the watch on this hold. See [`Guard::lost`](crate::Guard::lost).
    #[must_use]
    fn lost(&self) -> Lost;

    /// Asks the server whether this hold still exists. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::verify`](crate::Guard::verify).
    fn verify(&self) -> Result<()>;

    /// Renews the lease now. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::renew`](crate::Guard::renew).
    fn renew(&self) -> Result<()>;

    /// Releases the hold and reports errors. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::unlock`](crate::Guard::unlock).
    fn unlock(self: Box<Self>) -> Result<()>;
}

/// Limits the trait to the guards of this crate.
#[expect(unnameable_types, reason = "no other crate may implement the trait")]
pub trait Sealed {}

impl<K: Kind> Sealed for LockGuard<K> {}

impl<K: Kind> AnyGuard for LockGuard<K> {
    fn name(&self) -> &str {
        self.name()
    }

    fn fence(&self) -> Option<u64> {
        self.held.fence()
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }

    fn remaining(&self) -> Duration {
        self.remaining()
    }

    fn lost(&self) -> Lost {
        self.lost()
    }

    fn verify(&self) -> Result<()> {
        self.verify()
    }

    fn renew(&self) -> Result<()> {
        self.renew()
    }

    fn unlock(self: Box<Self>) -> Result<()> {
        (*self).unlock()
    }
}

/// The hold of a guard or, for a set, at least one. Dropping this releases them, on any thread.
pub(super) struct Held {
    pub(super) shared: Arc<Shared>,
    holds: Holds,
    /// Whether there is nothing left to release.
    released: bool,
}

/// Boxed for a set, because a program may have a million guards of single locks.
enum Holds {
    One(Arc<Hold>),
    Set(Box<Set>),
}

struct Set {
    name: Arc<str>,
    holds: Vec<Arc<Hold>>,
}

impl Held {
    pub(super) fn new(shared: &Arc<Shared>, hold: Arc<Hold>) -> Self {
        Self { shared: shared.clone(), holds: Holds::One(hold), released: false }
    }

    pub(super) fn set(shared: &Arc<Shared>, name: &Arc<str>, holds: Vec<Arc<Hold>>) -> Self {
        shared.share_end_signal(&holds);
        let holds = Holds::Set(Box::new(Set { name: name.clone(), holds }));
        Self { shared: shared.clone(), holds, released: false }
    }

    #[track_caller]
    pub(super) fn adopt(shared: &Arc<Shared>, hold: &DetachedHold) -> Result<Self> {
        Ok(Self::new(shared, adoption::adopt(shared, hold)?))
    }

    pub(super) fn holds(&self) -> &[Arc<Hold>] {
        match &self.holds {
            Holds::One(hold) => slice::from_ref(hold),
            Holds::Set(set) => &set.holds,
        }
    }

    /// Returns the hold, or the first of a set.
    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.holds()[0]
    }

    /// `None` for a permit, and for a set.
    fn fence(&self) -> Option<u64> {
        match &self.holds {
            Holds::One(hold) if !matches!(hold.id.kind, HoldKind::Permit { .. }) => {
                Some(hold.fence())
            }
            _ => None,
        }
    }

    fn unlock(mut self) -> Result<()> {
        self.released = true;
        release::unlock(&self.shared, self.holds())
    }

    /// Hands the lock off to the next thread of this process, or else releases it.
    pub(super) fn hand_off_or_unlock(mut self) -> Result<()> {
        self.released = true;
        release::hand_off_or_unlock(&self.shared, self.hold())
    }

    /// Leaves the hold to be adopted. On an error it is released.
    pub(super) fn detach(mut self) -> Result<DetachedHold> {
        let hold = adoption::detach(&self.shared, self.hold())?;
        self.released = true;
        Ok(hold)
    }

    /// Turns a writer into a reader. On an error both are released.
    #[track_caller]
    pub(super) fn downgrade(mut self) -> Result<Self> {
        let unused = adoption::unused(&self.shared, self.hold());
        let left = adoption::leave(&self.shared, self.hold(), "downgrade")?;
        // The hold is over in this process now, whatever the server replies.
        self.released = true;
        let reader = adoption::downgrade(&self.shared, self.hold(), left, unused)?;
        Ok(Self::new(&self.shared, reader))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.released {
            release::unlock_on_drop(&self.shared, self.holds());
        }
    }
}
