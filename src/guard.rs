//! A held lock.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::Result;
use crate::local::lease::Lease;
use crate::local::shared::{Level, Shared};

/// A lock held by the current thread, or one more level of it. It is released when this is dropped.
///
/// In the background the lease is renewed until then. Should that fail for so long that somebody
/// else may have got the lock, [`is_held`](Guard::is_held) turns `false` and
/// [`lost`](Guard::lost) delivers a message. Nothing but the [fencing token](Guard::fence) protects
/// a resource against a holder that was paused and does not know yet.
///
/// Dropping never panics and takes no longer than `io_timeout`; what it could not tell the server
/// is repeated in the background. [`unlock`](Guard::unlock) reports errors. With
/// [`pipelined_release`](crate::Builder::pipelined_release) a drop may not wait at all.
///
/// A guard stays on its thread:
///
/// ```compile_fail,E0277
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock("stock:42").unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
///
/// Clients and mutexes do not, so the other thread can lock for itself:
///
/// ```
/// let client = leasehold::Client::in_memory();
/// std::thread::spawn(move || drop(client.lock("stock:42").unwrap())).join().unwrap();
/// ```
#[must_use = "if unused the lock is released immediately"]
pub struct Guard {
    engine: Arc<Shared>,
    lease: Arc<Lease>,
    depth: u32,
    unlocked: bool,
    not_send: PhantomData<*const ()>,
}

impl Guard {
    pub(crate) fn new(engine: Arc<Shared>, Level { lease, depth }: Level) -> Self {
        Self { engine, lease, depth, unlocked: false, not_send: PhantomData }
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lease.name()
    }

    /// The fencing token of this hold: greater than those of all holds of this name before, and
    /// the same for nested guards.
    ///
    /// Send it along with every write to the protected resource, and let the resource refuse
    /// tokens smaller than the greatest it has seen. Then a holder that lost the lock without
    /// noticing can do no harm
    /// (<https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>).
    ///
    /// Tokens grow even when the server has lost their counter, provided its clock (over independent
    /// servers: that of this system) is not behind the last token, which is a time in microseconds or
    /// a later number.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.lease.fence
    }

    /// The level of this guard: 1, or more for a nested one.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Tells whether the lease still lasts by this process's clock. Asks nobody.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.engine.is_held(&self.lease)
    }

    /// The time for which the lease lasts even if it is not renewed, a margin for clock drift
    /// taken off (1 % of the lease and 2 ms); zero when it is lost. Asks nobody.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.engine.remaining(&self.lease)
    }

    /// Returns a receiver that finds one message when the lease is lost, at the latest when it
    /// ends by this process's clock. It is disconnected without a message when the hold ends as it
    /// should. Each call, also for nested guards, returns a receiver with a message of its own.
    ///
    /// ```
    /// use crossbeam_channel::select;
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.lock("report")?;
    /// let lost = guard.lost();
    /// for part in 0..3 {
    ///     // ... work on the part ...
    ///     select! {
    ///         recv(lost) -> _ => panic!("somebody else may have the lock: stop before part {part}"),
    ///         default(Duration::from_millis(1)) => {}
    ///     }
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> Receiver<()> {
        self.engine.watch(&self.lease)
    }

    /// Asks the server whether it still has this hold. Blocks for its reply.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::Error::Lost) if it has not, [`Unavailable`](crate::Error::Unavailable) or
    /// [`Redis`](crate::Error::Redis) if it cannot be asked, [`Forked`](crate::Error::Forked).
    pub fn verify(&self) -> Result<()> {
        self.engine.verify(&self.lease)
    }

    /// Releases this level, as dropping the guard does, and reports what went wrong. Blocks for
    /// the server's reply.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::Error::Lost) if the lease was lost before: the work may have overlapped
    /// with somebody else's. [`Unavailable`](crate::Error::Unavailable) if no reply came: the
    /// release is repeated in the background, and the lease is not renewed any more.
    /// [`Redis`](crate::Error::Redis) if the server refused; after an inner level the outer guard
    /// stays good. [`Forked`](crate::Error::Forked) in a forked child, where nothing happens.
    pub fn unlock(mut self) -> Result<()> {
        self.unlocked = true;
        self.engine.unlock(&self.lease)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.unlocked {
            // Whatever goes wrong is logged there.
            drop(self.engine.unlock_soon(&self.lease));
        }
    }
}

/// Shows nothing that would allow somebody else to release the lock.
impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("fence", &self.fence())
            .field("depth", &self.depth)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
