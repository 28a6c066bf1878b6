//! The gauges and counters of a client. Each number is counted in one place: where the event of the
//! same name is emitted, if there is one.

use std::sync::atomic::{AtomicU64, Ordering};

/// The gauges and counters of a client: what it holds and uses now, and what it has done since it
/// was opened. Returned by [`Client::stats`](crate::Client::stats).
///
/// The first five fields describe the present. The others count from when the client was opened,
/// and only grow. A counter that names an [`Event`](crate::Event) counts it even without a
/// callback, or if a slow callback causes the event to be dropped.
///
/// The numbers are read one by one, so they are not an atomic snapshot. A dropped guard does not
/// wait for the reply to its release, so its hold counts as `released` only when the reply has been
/// read, usually within 10 ms. After [`unlock`](crate::Guard::unlock) or
/// [`shutdown`](crate::Client::shutdown), nothing lags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Stats {
    /// The holds, of every kind, that are neither released nor lost. A nested lock is one hold.
    pub held: u64,
    /// The threads that are waiting for a lock.
    pub waiting: u64,
    /// The locks that this client keeps although no thread holds them: see
    /// [`keep`](crate::Builder::keep).
    pub kept: u64,
    /// The connections of all pools, in use or idle. A closed connection is counted until the pool
    /// next tries to use it.
    pub connections: u64,
    /// The connections among these that no request is using.
    pub idle_connections: u64,
    /// The holds that were acquired, of every kind: [`Acquired`](crate::Event::Acquired). A nested
    /// lock is not a hold of its own; a set of locks counts once per name.
    pub acquired: u64,
    /// The holds among these that another thread of this client handed off, without a request.
    pub handoffs: u64,
    /// The holds among these that began on a kept lock, without a request to acquire it.
    pub relocks: u64,
    /// The kept locks that were released because another client asked for them.
    pub recalls: u64,
    /// The calls that found a lock held by another owner: [`Contended`](crate::Event::Contended).
    /// They may have acquired it later.
    pub contended: u64,
    /// The calls that do not wait, such as `try_lock`, and that found the lock held.
    pub busy: u64,
    /// The calls whose wait ended before the lock was free: [`TimedOut`](crate::Event::TimedOut).
    pub timed_out: u64,
    /// The deadlocks that involve a thread of this client: [`Deadlock`](crate::Event::Deadlock).
    pub deadlocks: u64,
    /// The calls that failed because of an outage or a refusal: [`Failed`](crate::Event::Failed).
    pub failed: u64,
    /// The holds that were released: [`Released`](crate::Event::Released).
    pub released: u64,
    /// The holds whose release was not confirmed: [`ReleaseFailed`](crate::Event::ReleaseFailed).
    /// Includes holds whose release was still failing when the last
    /// [`shutdown`](crate::Client::shutdown) ran out of time, even if it succeeds later.
    pub failed_releases: u64,
    /// The holds whose lease ended before their guard did: [`Lost`](crate::Event::Lost).
    pub lost: u64,
    /// The holds that last, or have lasted, for longer than
    /// [`Builder::warn_held`](crate::Builder::warn_held): [`HeldLong`](crate::Event::HeldLong).
    pub long_holds: u64,
    /// The renewals by the background thread that were confirmed:
    /// [`Renewed`](crate::Event::Renewed).
    pub renewals: u64,
    /// The renewals among these that were confirmed with less than a third of the lease left. A
    /// renewal is first tried when two thirds are left.
    pub late_renewals: u64,
    /// The renewals that began to fail: [`RenewalFailing`](crate::Event::RenewalFailing). Retries
    /// do not count until a renewal of that lease succeeds again.
    pub failed_renewals: u64,
    /// The messages received from other clients saying that a lock may be free.
    pub wakeups: u64,
    /// The locks that were acquired at the end of a pause during which no wake-up had come,
    /// although the holder's lease could not have ended yet: the other client released the lock,
    /// and its message was lost, is late, or was never sent.
    pub missed_wakeups: u64,
    /// The connections, of pools or in the background, that replaced broken ones: those that the
    /// other side had closed, or that brought no reply in time.
    pub reconnects: u64,
    /// The requests that had to queue because all connections of the pool were in use, or had just
    /// been given to earlier requests.
    pub pool_waits: u64,
}

/// Defines the counters of `Stats` that are counted here. Those of connections are counted in
/// `net/`.
macro_rules! counters {
    ($($name:ident),*) => {
        /// The counts of a client's locks, for a shutdown and for [`Stats`], which describes each
        /// number.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            /// The calls that may still acquire a hold, and the holds that are not known to have
            /// ended.
            pub(crate) unfinished: AtomicU64,
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            /// Returns the numbers that are counted here. The others are zero.
            pub(crate) fn to_stats(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* ..Stats::default() }
            }
        }
    };
}

counters! {
    held, waiting, acquired, busy, contended, deadlocks, failed, failed_releases, failed_renewals,
    handoffs, late_renewals, long_holds, lost, missed_wakeups, recalls, relocks, released, renewals,
    timed_out, wakeups
}
