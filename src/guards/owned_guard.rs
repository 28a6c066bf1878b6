//! A held lock that belongs to no thread.

use crate::guards::owned_hold::owned_guard;

owned_guard! {
    /// A lock that belongs to no thread: any thread may keep, send or drop it. Dropping it releases
    /// the lock. Created by [`Client::lock_owned`](crate::Client::lock_owned).
    ///
    /// It is a hold of its own. A thread that has one and locks the same name again waits for
    /// itself, and [`lock_owned`](crate::Client::lock_owned) by a thread that holds the lock
    /// through a [`Guard`](crate::Guard) waits for that, or is refused with
    /// [`reentrant(false)`](crate::Builder::reentrant). In all else it is like a `Guard`: it is
    /// renewed until it is dropped, even if the thread that acquired it has ended.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.lock_owned("stock:42")?;
    /// std::thread::spawn(move || drop(guard)).join().unwrap();
    /// assert!(client.try_lock("stock:42")?.is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// A guard that is leaked, by [`std::mem::forget`] or in a cycle of reference counts, is
    /// renewed until the process ends or [`max_hold`](crate::Builder::max_hold) is reached.
    #[must_use = "if unused the lock is released immediately: \
                  bind it to `_guard`, not to `_`"]
    OwnedGuard
}

impl OwnedGuard {
    /// Returns the fencing token of this hold. See [`Guard::fence`](crate::Guard::fence).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.hold.fence()
    }

    /// Returns 1: owned guards never nest.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.0.hold.depth()
    }
}
