//! What all guards that belong to no thread have in common.

use std::fmt;
use std::slice;
use std::sync::Arc;

use crate::config::LockOptions;
use crate::error::Result;
use crate::local::adoption::{self, DetachedHold};
use crate::local::call::Wait;
use crate::local::hold::Hold;
use crate::local::shared::Shared;
use crate::local::{acquire, hold_requests, release};
use crate::store::hold_id::HoldKind;

/// A hold that is released when this is dropped, on whatever thread.
pub(crate) struct OwnedHold {
    pub(crate) shared: Arc<Shared>,
    pub(crate) hold: Arc<Hold>,
    released: bool,
}

impl OwnedHold {
    /// Acquires a hold that belongs to no thread. `None` if it cannot be had when the wait is over.
    pub(crate) fn acquire(
        shared: &Arc<Shared>,
        kind: HoldKind,
        name: &Arc<str>,
        options: &LockOptions,
        wait: Wait,
    ) -> Result<Option<Self>> {
        let hold = acquire::owned(shared, kind, name, options, wait)?;
        Ok(hold.map(|hold| Self { shared: shared.clone(), hold, released: false }))
    }

    /// Has a hold that another guard has left.
    pub(crate) fn adopt(shared: &Arc<Shared>, left: &DetachedHold) -> Result<Self> {
        let hold = adoption::adopt(shared, left)?;
        Ok(Self { shared: shared.clone(), hold, released: false })
    }

    /// Leaves the hold to the guard that adopts it. If it cannot be left, it is released.
    pub(crate) fn detach(mut self) -> Result<DetachedHold> {
        let left = adoption::detach(&self.shared, &self.hold)?;
        self.released = true;
        Ok(left)
    }

    /// Lets a writer go on as a reader.
    pub(crate) fn downgrade(mut self) -> Result<Self> {
        let left = adoption::leave(&self.shared, &self.hold, "downgrade")?;
        self.released = true;
        let hold = adoption::downgrade(&self.shared, &self.hold, left)?;
        Ok(Self { shared: self.shared.clone(), hold, released: false })
    }

    pub(crate) fn verify(&self, renews: bool) -> Result<()> {
        hold_requests::verify(&self.shared, slice::from_ref(&self.hold), renews)
    }

    /// Releases the hold, and waits for the reply.
    pub(crate) fn release(mut self) -> Result<()> {
        self.released = true;
        release::unlock(&self.shared, slice::from_ref(&self.hold))
    }

    /// Shows nothing that would allow another client to release the hold.
    pub(crate) fn fmt(&self, guard: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(guard)
            .field("name", &self.hold.id.name)
            .field("fence", &self.hold.fence())
            .field("remaining", &self.shared.remaining(&self.hold))
            .finish_non_exhaustive()
    }
}

impl Drop for OwnedHold {
    fn drop(&mut self) {
        if !self.released {
            release::unlock_on_drop(&self.shared, slice::from_ref(&self.hold));
        }
    }
}

/// Defines a guard around an [`OwnedHold`], with the methods that all such guards have, and those
/// of these that are named.
macro_rules! owned_guard {
    (@fence $guard:ident) => {
        impl $guard {
            /// Returns the fencing token of this hold. See [`Guard::fence`](crate::Guard::fence).
            #[must_use]
            pub fn fence(&self) -> u64 {
                self.0.hold.fence()
            }
        }
    };
    (@depth $guard:ident) => {
        impl $guard {
            /// Returns 1: this guard never nests.
            #[must_use]
            pub fn depth(&self) -> u32 {
                self.0.hold.depth()
            }
        }
    };
    (@wanted $guard:ident) => {
        impl $guard {
            /// Returns the watch on the wishes of other clients. See
            /// [`Guard::wanted`](crate::Guard::wanted).
            ///
            /// A client is not told of wishes for a hold that it has
            /// [adopted](crate::Client::adopt). Each call of this method asks the server then, and
            /// what it returns does not change; of several independent servers it does not learn
            /// of them.
            #[must_use]
            pub fn wanted(&self) -> $crate::guards::watches::Wanted {
                $crate::guards::watches::watch_wishes(&self.0.shared, &self.0.hold)
            }
        }
    };
    ($(#[$doc:meta])* $guard:ident $(with $($method:ident),+)?) => {
        $(#[$doc])*
        pub struct $guard($crate::guards::owned_hold::OwnedHold);

        impl $guard {
            pub(crate) fn new(hold: $crate::guards::owned_hold::OwnedHold) -> Self {
                Self(hold)
            }

            /// Returns the name.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.0.hold.id.name
            }

            /// Returns `true` if the lease has not ended by this process's clock. Does not ask the
            /// server.
            #[must_use]
            pub fn is_held(&self) -> bool {
                self.0.shared.is_held(&self.0.hold)
            }

            /// Returns how long the lease lasts if it is not renewed again, less a margin for clock
            /// drift of 1 % of the lease and 2 ms; zero if it is lost. Does not ask the server.
            #[must_use]
            pub fn remaining(&self) -> std::time::Duration {
                self.0.shared.remaining(&self.0.hold)
            }

            /// Returns the watch on this hold. See [`Guard::lost`](crate::Guard::lost).
            #[must_use]
            pub fn lost(&self) -> $crate::guards::watches::Lost {
                $crate::guards::watches::watch_loss(&self.0.shared, &self.0.hold)
            }

            /// Asks the server whether this hold still exists. Blocks for the server's reply. See
            /// [`Guard::verify`](crate::Guard::verify).
            ///
            /// # Errors
            ///
            /// The same as [`Guard::verify`](crate::Guard::verify).
            pub fn verify(&self) -> $crate::error::Result<()> {
                self.0.verify(false)
            }

            /// Renews the lease now. Blocks for the server's reply. See
            /// [`Guard::renew`](crate::Guard::renew).
            ///
            /// # Errors
            ///
            /// The same as [`Guard::renew`](crate::Guard::renew).
            pub fn renew(&self) -> $crate::error::Result<()> {
                self.0.verify(true)
            }

            /// Releases the hold and reports errors. Unlike dropping this, it blocks for the
            /// server's reply.
            ///
            /// # Errors
            ///
            /// The same as [`Guard::unlock`](crate::Guard::unlock).
            pub fn unlock(self) -> $crate::error::Result<()> {
                self.0.release()
            }
        }

        /// Shows nothing that would allow another client to release the hold.
        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(stringify!($guard), f)
            }
        }

        $($($crate::guards::owned_hold::owned_guard!(@$method $guard);)+)?
    };
}
pub(crate) use owned_guard;

/// Defines the setters of the options that locks of every kind have, and how they are shown.
macro_rules! lock_options {
    ($lock:ident) => {
        impl $lock {
            /// Sets the lease, as [`Builder::lease`](crate::Builder::lease) does for the client.
            #[must_use]
            pub fn lease(mut self, lease: std::time::Duration) -> Self {
                self.options.lease = lease;
                self
            }

            /// Sets whether the lease is renewed, as [`Builder::renew`](crate::Builder::renew) does
            /// for the client.
            #[must_use]
            pub fn renew(mut self, renew: bool) -> Self {
                self.options.renew = renew;
                self
            }

            /// Sets the longest age of a hold, as [`Builder::max_hold`](crate::Builder::max_hold)
            /// does for the client.
            #[must_use]
            pub fn max_hold(mut self, age: std::time::Duration) -> Self {
                self.options.max_hold = Some(age);
                self
            }

            /// Sets how long a call without a deadline of its own waits, as
            /// [`Builder::wait`](crate::Builder::wait) does for the client.
            #[must_use]
            pub fn wait(mut self, time: std::time::Duration) -> Self {
                self.options.wait = Some(time);
                self
            }

            /// Lets a [`Canceller`](crate::Canceller) end the waits of this handle.
            #[must_use]
            pub fn cancelled_by(
                mut self,
                canceller: &$crate::guards::canceller::Canceller,
            ) -> Self {
                self.options.canceller = Some(canceller.clone());
                self
            }

            /// Returns the name.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.name
            }
        }

        impl std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let shown = &mut f.debug_struct(stringify!($lock));
                shown.field("name", &self.name).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use lock_options;
