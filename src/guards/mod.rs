//! What users lock with, and the guards that they get. Here is what guards of all kinds have in
//! common, for code that takes any of them.

pub(crate) mod canceller;
pub(crate) mod election;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod holder;
pub(crate) mod multi_guard;
pub(crate) mod mutex;
pub(crate) mod owned_guard;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
pub(crate) mod watches;

use std::fmt;
use std::time::Duration;

use crate::error::Result;
use crate::guards::election::Term;
use crate::guards::guard::Guard;
use crate::guards::multi_guard::MultiGuard;
use crate::guards::owned_guard::OwnedGuard;
use crate::guards::rw_lock::{ReadGuard, WriteGuard};
use crate::guards::semaphore::Permit;
use crate::guards::watches::Lost;

/// A guard of any kind, for code that does the same under a lock, a side of a read-write lock, a
/// permit, a term or a set of locks. The methods are those that each of these has itself.
///
/// All guards but [`Guard`] belong to no thread, so that a `Box<dyn AnyGuard + Send + Sync>` may
/// have one of them. Other types cannot implement this trait, and it may get further methods.
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

    /// Returns the fencing token, which permits and sets do not have. See
    /// [`Guard::fence`](Guard::fence).
    #[must_use]
    fn fence(&self) -> Option<u64>;

    /// Returns `true` if the lease has not ended by this process's clock. Does not ask the server.
    #[must_use]
    fn is_held(&self) -> bool;

    /// Returns how long the lease lasts if it is not renewed again. See
    /// [`Guard::remaining`](Guard::remaining).
    #[must_use]
    fn remaining(&self) -> Duration;

    /// Returns the watch on this hold. See [`Guard::lost`](Guard::lost).
    #[must_use]
    fn lost(&self) -> Lost;

    /// Asks the server whether this hold still exists. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::verify`](Guard::verify).
    fn verify(&self) -> Result<()>;

    /// Renews the lease now. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::renew`](Guard::renew).
    fn renew(&self) -> Result<()>;

    /// Releases the hold and reports errors. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::unlock`](Guard::unlock).
    fn unlock(self: Box<Self>) -> Result<()>;
}

/// Keeps the trait to the guards of this crate.
#[expect(unnameable_types, reason = "no other crate may implement the trait")]
pub trait Sealed {}

macro_rules! any_guard {
    ($($guard:ident: $fence:expr;)+) => {$(
        impl Sealed for $guard {}

        impl AnyGuard for $guard {
            fn name(&self) -> &str {
                $guard::name(self)
            }

            fn fence(&self) -> Option<u64> {
                let fence: fn(&Self) -> Option<u64> = $fence;
                fence(self)
            }

            fn is_held(&self) -> bool {
                $guard::is_held(self)
            }

            fn remaining(&self) -> Duration {
                $guard::remaining(self)
            }

            fn lost(&self) -> Lost {
                $guard::lost(self)
            }

            fn verify(&self) -> Result<()> {
                $guard::verify(self)
            }

            fn renew(&self) -> Result<()> {
                $guard::renew(self)
            }

            fn unlock(self: Box<Self>) -> Result<()> {
                $guard::unlock(*self)
            }
        }
    )+};
}

any_guard! {
    Guard: |guard| Some(guard.fence());
    MultiGuard: |_| None;
    OwnedGuard: |guard| Some(guard.fence());
    Permit: |_| None;
    ReadGuard: |guard| Some(guard.fence());
    Term: |guard| Some(guard.fence());
    WriteGuard: |guard| Some(guard.fence());
}
