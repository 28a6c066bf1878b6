//! The handle of every kind: a name, and the options for locking it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::canceller::Canceller;
use crate::base::clock;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::guards::guard::Held;
use crate::guards::kinds::Kind;
use crate::local::shared::Shared;
use crate::local::{acquire, status};
use crate::protocol::call::Wait;
use crate::store::hold_id::HoldKind;

/// A handle of any kind: [`Mutex`](crate::Mutex), [`RwLock`](crate::RwLock),
/// [`Semaphore`](crate::Semaphore), [`Election`](crate::Election) or
/// [`MultiMutex`](crate::MultiMutex). These names stand for this type, which has the methods that
/// all of them share: options that may differ from the client's.
///
/// Clones are cheap, and creating or changing a handle sends nothing. Invalid options are reported
/// by the locking call.
#[derive(Clone)]
#[must_use = "a handle does nothing until it locks"]
pub struct LockHandle<K> {
    pub(super) shared: Arc<Shared>,
    pub(super) name: Arc<str>,
    /// The client's options, until a setter changes one.
    pub(super) options: Arc<LockOptions>,
    pub(super) kind: K,
}

impl<K> LockHandle<K> {
    /// Creates a handle with the client's options.
    pub(crate) fn new(shared: &Arc<Shared>, name: &str, kind: K) -> Self {
        let options = shared.config.options.clone();
        Self { shared: shared.clone(), name: name.into(), options, kind }
    }

    pub(super) fn options_mut(&mut self) -> &mut LockOptions {
        Arc::make_mut(&mut self.options)
    }

    /// Returns this handle for locks that are never kept.
    pub(crate) fn without_keep(mut self) -> Self {
        self.options_mut().keep = Duration::ZERO;
        self
    }

    /// Returns the name; those of a set are separated by commas.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the lease, as [`Builder::lease`](crate::Builder::lease) does for the client.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options_mut().lease = lease;
        self
    }

    /// Sets whether the lease is renewed, as [`Builder::renew`](crate::Builder::renew) does for the
    /// client.
    pub fn renew(mut self, renew: bool) -> Self {
        self.options_mut().renew = renew;
        self
    }

    /// Sets the longest age of a hold, as [`Builder::max_hold`](crate::Builder::max_hold) does for
    /// the client.
    pub fn max_hold(mut self, age: Duration) -> Self {
        self.options_mut().max_hold = Some(age);
        self
    }

    /// Sets how long a call without a deadline of its own waits, as
    /// [`Builder::wait`](crate::Builder::wait) does for the client.
    pub fn wait(mut self, time: Duration) -> Self {
        self.options_mut().wait = Some(time);
        self
    }

    /// Sets the text that is shown with each hold, as [`Builder::note`](crate::Builder::note) does
    /// for the client.
    pub fn note(mut self, text: &str) -> Self {
        self.options_mut().set_note(text);
        self
    }

    /// Makes the calls of this handle fail with [`Cancelled`](crate::Error::Cancelled) once the
    /// [`Canceller`](crate::Canceller) is cancelled.
    pub fn cancelled_by(mut self, canceller: &Canceller) -> Self {
        self.options_mut().cancelled_by = Some(canceller.clone());
        self
    }

    /// Returns the wait of a call that has no deadline of its own.
    pub(super) fn default_wait(&self) -> Wait {
        Wait::at_most(self.options.wait, clock::now())
    }

    /// Acquires a hold that belongs to no thread. Returns `None` if the wait ends first.
    #[track_caller]
    pub(super) fn acquire_hold(&self, kind: HoldKind, wait: Wait) -> Result<Option<Held>> {
        let hold = acquire::owned(&self.shared, kind, &self.name, &self.options, wait)?;
        Ok(hold.map(|hold| Held::new(&self.shared, hold)))
    }

    /// Returns the error of a call that waited without getting the lock. A set has no `kind`.
    pub(super) fn timed_out(&self, wait: Wait, kind: Option<HoldKind>) -> Error {
        status::timed_out(&self.shared, &self.name, wait, kind)
    }
}

impl<K: Kind> fmt::Debug for LockHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(K::NAME).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns the wait of a call that waits for at most this time.
pub(super) fn wait_for(time: Duration) -> Wait {
    Wait::at_most(Some(time), clock::now())
}
