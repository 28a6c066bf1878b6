//! A held lock that belongs to no thread.

use crate::error::Result;
use crate::guards::owned_hold::owned_guard;
use crate::guards::ticket::Ticket;

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
    OwnedGuard with fence, depth, wanted
}

impl OwnedGuard {
    /// Renews the lease once more, and leaves the lock to the guard that adopts it by
    /// [`Client::adopt`](crate::Client::adopt), of this process or another one, before that lease
    /// is over. Blocks for the server's reply.
    ///
    /// So a web server can acquire a lock, and a worker that finds the ticket in a queue can
    /// release it. Nothing is released in between and nothing is renewed: if no guard adopts the
    /// hold, it ends with its lease, and other clients get the lock. Neither dropping this client
    /// nor [`shutdown`](crate::Client::shutdown) ends it before. Choose a
    /// [`lease`](crate::Mutex::lease) longer than a ticket may be on its way.
    ///
    /// For this process the hold is over: [`lost`](OwnedGuard::lost) reports that it was released,
    /// and so does [`Event::Released`](crate::Event::Released).
    ///
    /// [`max_hold`](crate::Builder::max_hold) limits how long one guard has the lock: the lease
    /// that is left here ends by then too, and a guard that adopts the hold begins an age of its
    /// own. A lock that is to be [held at least](crate::Mutex::hold_at_least) for a time stays
    /// taken for what is left of that time, counted from the adoption.
    ///
    /// # Errors
    ///
    /// The same as [`renew`](OwnedGuard::renew). The lock is then released as by dropping this.
    ///
    /// ```
    /// use leasehold::Ticket;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.lock_owned("order:7")?;
    /// let fence = guard.fence();
    /// let text = guard.detach()?.to_string(); // put it into a queue, along with the order
    /// assert!(client.try_lock("order:7")?.is_none());
    ///
    /// let ticket: Ticket = text.parse()?; // in the worker
    /// let guard = client.adopt(&ticket)?; // renewed in the background from here on
    /// assert_eq!(guard.fence(), fence);
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn detach(self) -> Result<Ticket> {
        let prefix = self.0.shared.config.prefix.as_str().into();
        Ok(Ticket { prefix, hold: self.0.detach()? })
    }
}
