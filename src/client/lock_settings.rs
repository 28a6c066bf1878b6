//! The settings of a client that are about locks, and about what is reported of them.

use std::sync::Arc;
use std::time::Duration;

use crate::client::builder::Builder;
use crate::config::durability::Durability;
use crate::event::Event;

impl Builder {
    /// Sets the lease: how long a lock lasts after its last renewal. A holder that dies blocks
    /// others for no longer than this, and a holder that cannot reach the server loses the lock
    /// after it.
    ///
    /// From 10 ms to 365 days. Defaults to 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.options_mut().lease = lease;
        self
    }

    /// Sets how long [`Client::lock`](crate::Client::lock) waits for a lock that is held before it
    /// returns [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// Defaults to no limit.
    pub fn wait(mut self, time: Duration) -> Self {
        self.config.options_mut().wait = Some(time);
        self
    }

    /// Sets whether leases are renewed in the background, each when a third of it has passed.
    /// Without renewal, a guard is lost when its lease ends. Nested locks do not prolong it then.
    ///
    /// Defaults to `true`.
    pub fn renew(mut self, renew: bool) -> Self {
        self.config.options_mut().renew = renew;
        self
    }

    /// Sets the longest time for which a lock can be held, which limits the harm that a hung thread
    /// can do. Renewal stops in time for the last lease to end then, both here and in Redis.
    ///
    /// At least 10 ms. Defaults to no limit.
    pub fn max_hold(mut self, age: Duration) -> Self {
        self.config.options_mut().max_hold = Some(age);
        self
    }

    /// Sets whether a thread may lock again a name that it holds: `false` makes that
    /// [`AlreadyHeld`](crate::Error::AlreadyHeld) instead of another level.
    ///
    /// Choose `false` in thread pools that run other tasks while a task waits, such as rayon's:
    /// there a thread that holds a lock may start a task that locks the same name, and both would
    /// be in the critical section at once, with the same fence. Set [`wait`](Builder::wait) there,
    /// too: another thread may do the same while the holder waits for it, and neither would end. It
    /// also turns away [`lock_owned`](crate::Client::lock_owned) and
    /// [`campaign`](crate::Election::campaign), which would otherwise wait for the thread's own
    /// guard. An owned guard belongs to no thread, so they wait for one that holds the lock.
    ///
    /// Defaults to `true`.
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.config.options_mut().reentrant = reentrant;
        self
    }

    /// Sets how long the threads of this client hand a lock off among themselves, without a
    /// request, before other clients get it. Counted from when the client has acquired the lock;
    /// the hold that is under way then is the last.
    ///
    /// A client acquires a lock with one request for several of its threads: the first that waits
    /// gets it when a guard is dropped, with the next fencing token, and relies on the same lease.
    /// That takes no more than to wake a thread, however far away the server is. Longer tenures
    /// favour throughput, shorter ones other clients; with zero every hold is acquired by a request
    /// of its own. Threads that want another lease, renewal or
    /// [`hold_at_least`](crate::Mutex::hold_at_least), and those behind a guard that was
    /// [unlocked](crate::Guard::unlock), acquire the lock anew.
    ///
    /// Within a tenure a [`max_hold`](Builder::max_hold) counts from its beginning. A hold that an
    /// operator has ended there is noticed at the next request for it: at the latest by the first
    /// hold after the tenure, or by `unlock`, `verify` or `renew`.
    ///
    /// The technique is that of cohort locks (Dice, Marathe and Shavit 2012,
    /// <https://doi.org/10.1145/2145816.2145848>). Defaults to 10 ms, or a third of the lease where
    /// that is less. At most a third of the lease.
    pub fn tenure(mut self, time: Duration) -> Self {
        self.config.options_mut().tenure = Some(time);
        self
    }

    /// Sets how long this client keeps a lock after its last use, so that its threads get it again
    /// without a request: a lock that the same process uses again and again then costs about a
    /// microsecond, however far away the server is.
    ///
    /// A kept lock is renewed, and no thread holds it. Another client that asks for it gets it
    /// within a network latency: its request tells this client, which releases the lock at once, or
    /// else when the guard under way is dropped. [`try_lock`](crate::Client::try_lock) gives this
    /// client 50 ms for that, and [`try_lock_all`](crate::Client::try_lock_all) as long for each
    /// lock. A client that dies while it keeps a lock blocks others for its
    /// [lease](Builder::lease), so set a short one. The [recipe][cached] says where it pays.
    ///
    /// [cached]: crate::guide::cookbook#a-lock-that-one-process-uses-again-and-again
    ///
    /// What is kept is released when the time is over, by [`close`](crate::Client::close),
    /// [`shutdown`](crate::Client::shutdown), [`lock_all`](crate::Client::lock_all) and with the
    /// last clone of the client. Guards that are [unlocked](crate::Guard::unlock), those of locks
    /// without renewal, or with [`max_hold`](Builder::max_hold) or
    /// [`hold_at_least`](crate::Mutex::hold_at_least), those of several locks, and terms leave
    /// nothing behind that is kept. A lock is kept only while this client listens for such
    /// messages: the first call that may keep one waits for that, no longer than one
    /// [`io_timeout`](Builder::io_timeout).
    ///
    /// Cluster file systems do this with their locks: Lustre, GFS2 and Ceph RBD. Defaults to zero:
    /// nothing is kept. At most the lease, and not along with [`redisson`](Builder::redisson).
    pub fn keep(mut self, time: Duration) -> Self {
        self.config.options_mut().keep = time;
        self
    }

    /// Sets the prefix that makes the key of a lock from its name, so that no lock has the key of
    /// an application's data. The prefix is part of the name: prefix `a` with name `bc` is the same
    /// lock as prefix `ab` with name `c`. The keys of fence and queue contain it too.
    ///
    /// To share locks with programs that use another library, set the prefix that their keys have:
    /// an empty one for Redisson's `getLock(name)`, whose key is the name.
    ///
    /// Defaults to `lock:`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Sets whether wake-ups are exchanged with Redisson's `RLock`, for locks that a Java service
    /// shares under the same key (see [`prefix`](Builder::prefix)): a release wakes a thread there
    /// that waits, and one there wakes the threads here. Without this Redisson sleeps until the
    /// lease that it has seen ends, and clients of leasehold until they look again, half a second
    /// at most. Set it in every client that uses such a name.
    /// [Moving](crate::guide::moving#redisson) says whose turn it is, and which locks can be
    /// shared.
    ///
    /// While it is Redisson's turn, even `try_lock` finds the lock held. Several locks take a
    /// request each. Defaults to `false`. Has no effect in memory, on read-write locks and on
    /// semaphores; with [`open_redlock`](Builder::open_redlock), `true` is
    /// [`InvalidInput`](crate::Error::InvalidInput).
    pub fn redisson(mut self, exchange: bool) -> Self {
        self.config.redisson = exchange;
        self
    }

    /// Sets how long the server keeps the counter of [fencing tokens](crate::Guard::fence) of a
    /// name that is no longer used, counted from when its last hold began. Until then, each name
    /// that was ever used takes some memory: 100 to 150 bytes if it has a dozen characters. So a
    /// shorter time is for programs that use many names once.
    ///
    /// Once the counter is gone, the fences of the name begin again at the server's clock, or with
    /// [`open_redlock`](Builder::open_redlock) at the client's. So they still grow, unless that
    /// clock has been set back by more than this time.
    ///
    /// At least two leases: a shorter time, such as zero, means two leases of the lock. Defaults to
    /// 24 hours. Has no effect in memory.
    pub fn fence_life(mut self, time: Duration) -> Self {
        self.config.fence_life = time;
        self
    }

    /// Sets what a lock must have survived before the call that acquires it returns. While too few
    /// replicas are there to acknowledge it, no lock can be acquired. With several independent
    /// servers, each has replicas and a disk of its own, and a majority of servers is enough.
    ///
    /// Defaults to [`Durability::Memory`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// Sets what the client's [id](crate::Client::id) begins with, such as a host name, so that an
    /// operator who looks into Redis can see which program holds a lock.
    ///
    /// At most 256 bytes, without braces and control characters. Defaults to no label.
    pub fn label(mut self, label: &str) -> Self {
        self.config.label = label.into();
        self
    }

    /// Sets a callback for every [`Event`]. Events are delivered in order on a thread of their own,
    /// so a callback that blocks or panics does no harm to locks. Up to 4096 events are queued for
    /// it; further ones are dropped, and how many is logged.
    ///
    /// [`Client::shutdown`](crate::Client::shutdown), and the end of the last clone and guard of a
    /// client, wait until all earlier events are delivered, for a second at most.
    ///
    /// Defaults to no callback. The logger of the `log` crate, which gets much the same
    /// information, is called on the same thread, one line at a time. The thread is started with
    /// the client if there is a callback, and otherwise with the first line that the logger's
    /// maximum level lets through.
    pub fn on_event(mut self, callback: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.config.on_event = Some(Arc::new(callback));
        self
    }

    /// Sets whether this client reports to the recorder of the [`metrics`] crate: how many calls
    /// wait and fail, how long they wait, how many leases are late or lost, and the like.
    /// [Monitoring](crate::guide::monitoring) has the list, with alerts and a dashboard.
    ///
    /// The recorder is called on the thread of [`on_event`](Builder::on_event), with counters and
    /// gauges once a second. Several clients of a program add up. Names of locks are no labels.
    ///
    /// Install the recorder before the client is opened. Defaults to `false`.
    ///
    /// [`metrics`]: https://docs.rs/metrics
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, reports: bool) -> Self {
        self.config.metrics = reports.then(Arc::default);
        self
    }
}
