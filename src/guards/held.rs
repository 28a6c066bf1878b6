//! What guards of all kinds have in common, and what the handles have that give them.

use std::sync::Arc;
use std::time::Duration;

use crate::config::LockOptions;
use crate::error::Result;
use crate::guards::watches::Lost;
use crate::local::call::Wait;
use crate::local::hold::Hold;
use crate::local::shared::Shared;
use crate::local::{acquire, hold_requests, release, status};
use crate::store::hold_id::HoldKind;

/// The holds of a guard: one, or those of a set, of which there is at least one. They are released
/// when this is dropped, on whatever thread.
pub(crate) struct Held<H: AsRef<[Arc<Hold>]> = [Arc<Hold>; 1]> {
    pub(super) shared: Arc<Shared>,
    /// The names of a set are separated by commas.
    pub(super) name: Arc<str>,
    pub(super) holds: H,
    /// Whether there is nothing to release any more.
    pub(super) released: bool,
}

impl<H: AsRef<[Arc<Hold>]>> Held<H> {
    pub(super) fn is_held(&self) -> bool {
        self.holds.as_ref().iter().all(|hold| self.shared.is_held(hold))
    }

    pub(super) fn remaining(&self) -> Duration {
        let remaining = self.holds.as_ref().iter().map(|hold| self.shared.remaining(hold));
        remaining.min().unwrap_or_default()
    }

    pub(super) fn lost(&self) -> Lost {
        Lost::new(&self.shared, self.holds.as_ref())
    }

    pub(super) fn verify(&self, renews: bool) -> Result<()> {
        hold_requests::verify(&self.shared, self.holds.as_ref(), renews)
    }

    pub(super) fn unlock(mut self) -> Result<()> {
        self.released = true;
        release::unlock(&self.shared, self.holds.as_ref())
    }
}

impl<H: AsRef<[Arc<Hold>]>> Drop for Held<H> {
    fn drop(&mut self) {
        if !self.released {
            release::unlock_on_drop(&self.shared, self.holds.as_ref());
        }
    }
}

/// The name of a lock of a client, or the names of a set, and the options with which a handle
/// acquires it.
#[derive(Clone)]
pub(crate) struct LockHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Arc<str>,
    /// Those of the client, until a setter changes one.
    pub(crate) options: Arc<LockOptions>,
}

impl LockHandle {
    /// As this, for locks that are never kept.
    pub(super) fn without_keep(mut self) -> Self {
        Arc::make_mut(&mut self.options).keep = Duration::ZERO;
        self
    }

    /// Acquires a hold that belongs to no thread. `None` if it cannot be had when the wait is over.
    pub(super) fn acquire(&self, kind: HoldKind, wait: Wait) -> Result<Option<Held>> {
        let Self { shared, name, options } = self;
        let hold = acquire::owned(shared, kind, name, options, wait)?;
        let (shared, name) = (shared.clone(), name.clone());
        Ok(hold.map(|hold| Held { shared, name, holds: [hold], released: false }))
    }

    /// As `acquire`, for as long as the options allow.
    pub(super) fn wait_for(&self, kind: HoldKind) -> Result<Held> {
        let wait = Wait::at_most(self.options.wait);
        let held = self.acquire(kind, wait)?;
        held.ok_or_else(|| status::timed_out(&self.shared, kind, &self.name, wait))
    }
}

/// Defines the setters of the options that handles of every kind have, and how they are shown.
macro_rules! lock_options {
    ($lock:ident) => {
        impl $lock {
            /// Sets the lease, as [`Builder::lease`](crate::Builder::lease) does for the client.
            #[must_use]
            pub fn lease(mut self, lease: std::time::Duration) -> Self {
                self.options_mut().lease = lease;
                self
            }

            /// Sets whether the lease is renewed, as [`Builder::renew`](crate::Builder::renew) does
            /// for the client.
            #[must_use]
            pub fn renew(mut self, renew: bool) -> Self {
                self.options_mut().renew = renew;
                self
            }

            /// Sets the longest age of a hold, as [`Builder::max_hold`](crate::Builder::max_hold)
            /// does for the client.
            #[must_use]
            pub fn max_hold(mut self, age: std::time::Duration) -> Self {
                self.options_mut().max_hold = Some(age);
                self
            }

            /// Sets how long a call without a deadline of its own waits, as
            /// [`Builder::wait`](crate::Builder::wait) does for the client.
            #[must_use]
            pub fn wait(mut self, time: std::time::Duration) -> Self {
                self.options_mut().wait = Some(time);
                self
            }

            /// Lets a [`Canceller`](crate::Canceller) end the waits of this handle.
            #[must_use]
            pub fn cancelled_by(
                mut self,
                canceller: &$crate::guards::canceller::Canceller,
            ) -> Self {
                self.options_mut().canceller = Some(canceller.clone());
                self
            }

            /// Returns the name; those of a set are separated by commas.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.handle.name
            }

            fn options_mut(&mut self) -> &mut $crate::config::LockOptions {
                std::sync::Arc::make_mut(&mut self.handle.options)
            }
        }

        impl std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let shown = &mut f.debug_struct(stringify!($lock));
                shown.field("name", &self.name()).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use lock_options;
