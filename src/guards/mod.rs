//! The handles that users lock with, and the guards that they get. This file has the shared parts
//! of all guards and of all handles, and the trait for code that takes any guard.

pub(crate) mod election;
pub(crate) mod guard;
pub(crate) mod multi_guard;
pub(crate) mod mutex;
pub(crate) mod owned_guard;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
pub(crate) mod watches;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::guards::watches::Lost;
use crate::local::shared::Shared;
use crate::local::{acquire, hold_requests, release, status};
use crate::protocol::call::Wait;
use crate::protocol::hold::Hold;
use crate::store::hold_id::HoldKind;

/// What every guard has inside: its holds, one or, for a set, at least one. Dropping this releases
/// them, on any thread.
pub(crate) struct GuardInner<H: AsRef<[Arc<Hold>]> = [Arc<Hold>; 1]> {
    shared: Arc<Shared>,
    /// The names of a set are separated by commas.
    holds: H,
    /// Whether there is nothing left to release.
    released: bool,
}

impl GuardInner {
    fn name(&self) -> &str {
        &self.holds[0].id.name
    }
}

impl<H: AsRef<[Arc<Hold>]>> GuardInner<H> {
    fn is_held(&self) -> bool {
        self.holds.as_ref().iter().all(|hold| self.shared.is_held(hold))
    }

    /// `None` for a permit, and for several holds.
    fn fence(&self) -> Option<u64> {
        match self.holds.as_ref() {
            [hold] if !matches!(hold.id.kind, HoldKind::Permit { .. }) => Some(hold.fence()),
            _ => None,
        }
    }

    fn remaining(&self) -> Duration {
        let remaining = self.holds.as_ref().iter().map(|hold| self.shared.remaining(hold));
        remaining.min().unwrap_or_default()
    }

    fn lost(&self) -> Lost {
        Lost::new(&self.shared, self.holds.as_ref())
    }

    fn verify(&self, renews: bool) -> Result<()> {
        hold_requests::verify(&self.shared, self.holds.as_ref(), renews)
    }

    fn unlock(mut self) -> Result<()> {
        self.released = true;
        release::unlock(&self.shared, self.holds.as_ref())
    }
}

impl<H: AsRef<[Arc<Hold>]>> Drop for GuardInner<H> {
    fn drop(&mut self) {
        if !self.released {
            release::unlock_on_drop(&self.shared, self.holds.as_ref());
        }
    }
}

/// The name of a lock, or the names of a set, with the handle's options for acquiring it.
#[derive(Clone)]
pub(crate) struct LockHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Arc<str>,
    /// The client's options, until a setter changes one.
    pub(crate) options: Arc<LockOptions>,
}

impl LockHandle {
    fn options_mut(&mut self) -> &mut LockOptions {
        Arc::make_mut(&mut self.options)
    }

    /// Returns this handle for locks that are never kept.
    pub(crate) fn without_keep(mut self) -> Self {
        self.options_mut().keep = Duration::ZERO;
        self
    }

    /// Acquires a hold that belongs to no thread. Returns `None` if the wait ends first.
    #[track_caller]
    fn acquire(&self, kind: HoldKind, wait: Wait) -> Result<Option<GuardInner>> {
        let hold = acquire::owned(&self.shared, kind, &self.name, &self.options, wait)?;
        Ok(hold.map(|hold| self.inner([hold])))
    }

    fn inner<H: AsRef<[Arc<Hold>]>>(&self, holds: H) -> GuardInner<H> {
        GuardInner { shared: self.shared.clone(), holds, released: false }
    }

    fn fmt_as(&self, handle: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(handle).field("name", &self.name).finish_non_exhaustive()
    }

    /// Returns the error of a call that waited without getting the lock.
    fn timed_out(&self, wait: Wait, kind: Option<HoldKind>) -> Error {
        status::timed_out(&self.shared, &self.name, wait, kind)
    }
}

/// Implements [`AnyGuard`] by the methods of the same names, and `Debug`.
macro_rules! any_guard {
    ($guard:ident) => {
        impl $crate::guards::Sealed for $guard {}

        impl $crate::guards::AnyGuard for $guard {
            fn name(&self) -> &str {
                self.name()
            }

            fn fence(&self) -> Option<u64> {
                self.inner.fence()
            }

            fn is_held(&self) -> bool {
                self.is_held()
            }

            fn remaining(&self) -> std::time::Duration {
                self.remaining()
            }

            fn lost(&self) -> $crate::guards::watches::Lost {
                self.lost()
            }

            fn verify(&self) -> $crate::error::Result<()> {
                self.verify()
            }

            fn renew(&self) -> $crate::error::Result<()> {
                self.renew()
            }

            fn unlock(self: Box<Self>) -> $crate::error::Result<()> {
                (*self).unlock()
            }
        }

        /// Omits everything that would allow another client to release the hold.
        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("name", &self.name())
                    .field("fence", &self.inner.fence())
                    .field("remaining", &self.remaining())
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use any_guard;

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
