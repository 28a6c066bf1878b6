//! The settings of a client: for its locks, its reports and its connections.

use std::sync::Arc;
use std::time::Duration;

use crate::client::builder::Builder;
use crate::config::Mechanism;
use crate::config::durability::Durability;
use crate::event::Event;

impl Builder {
    /// Sets the lease: how long a lock lasts after its last renewal. A holder that dies blocks
    /// others for no longer than this, and a holder that cannot reach the server loses the lock
    /// after this time.
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
    /// Without renewal, a guard is lost when its lease ends, and nested locks do not prolong it.
    ///
    /// Defaults to `true`.
    pub fn renew(mut self, renew: bool) -> Self {
        self.config.options_mut().renew = renew;
        self
    }

    /// Sets the longest time for which a lock can be held, to limit the harm of a hung thread.
    /// Renewal stops early enough for the last lease to end by then, both here and in Redis.
    ///
    /// At least 10 ms. Defaults to no limit.
    pub fn max_hold(mut self, age: Duration) -> Self {
        self.config.options_mut().max_hold = Some(age);
        self
    }

    /// Sets whether a thread may lock a name again while it holds it. With `false` that is
    /// [`AlreadyHeld`](crate::Error::AlreadyHeld) instead of another level.
    ///
    /// Choose `false`, together with a [`wait`](Builder::wait), in [thread
    /// pools](crate::guide::cookbook#a-rayon-pool) whose threads run other tasks while they wait.
    /// It also turns [`lock_owned`](crate::Client::lock_owned) and
    /// [`campaign`](crate::Election::campaign) into errors for a thread that holds the lock, which
    /// would otherwise wait for its own guard.
    ///
    /// Defaults to `true`.
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.config.options_mut().reentrant = reentrant;
        self
    }

    /// Sets how long the threads of this client hand a lock off among themselves, without a
    /// request, before other clients get it. The time starts when the client acquires the lock. The
    /// hold that is under way when it ends is the last.
    ///
    /// Longer tenures favour throughput, shorter ones favour other clients. With zero, every hold
    /// is acquired by a request of its own. So is a hold with another lease, renewal or
    /// [`hold_at_least`](crate::Mutex::hold_at_least), and a hold after a guard that was
    /// [unlocked](crate::Guard::unlock). Within a tenure, [`max_hold`](Builder::max_hold) counts
    /// from its beginning, and a hold that an operator has ended is noticed only at the next
    /// request about it: at the latest by the first hold after the tenure, or by `unlock`, `verify`
    /// or `renew`.
    ///
    /// The technique is that of cohort locks (Dice, Marathe and Shavit 2012,
    /// <https://doi.org/10.1145/2145816.2145848>). Defaults to 10 ms, or a third of the lease where
    /// that is less. At most a third of the lease.
    pub fn tenure(mut self, time: Duration) -> Self {
        self.config.options_mut().tenure = Some(time);
        self
    }

    /// Sets how long this client keeps a lock after its last use, so that its threads get it again
    /// without a request. A kept lock is renewed, and no thread holds it. Another client that asks
    /// for it gets it within a network latency, or when the current guard is dropped.
    /// [`try_lock`](crate::Client::try_lock) waits 50 ms for that, and
    /// [`try_lock_all`](crate::Client::try_lock_all) 50 ms for each lock. A client that dies while
    /// it keeps a lock blocks others for its [lease](Builder::lease), so set a short one. The
    /// [recipe][cached] says where it pays, and which locks are not kept.
    ///
    /// A kept lock is released when the time is over, by [`close`](crate::Client::close),
    /// [`shutdown`](crate::Client::shutdown) or [`lock_all`](crate::Client::lock_all), and with the
    /// last clone of the client.
    ///
    /// Lustre, GFS2 and Ceph RBD cache their locks in this way. Defaults to zero: nothing is kept.
    /// At most the lease, and not together with [`redisson`](Builder::redisson).
    ///
    /// [cached]: crate::guide::cookbook#a-lock-that-one-process-uses-again-and-again
    pub fn keep(mut self, time: Duration) -> Self {
        self.config.options_mut().keep = time;
        self
    }

    /// Sets the prefix of the keys of locks, so that no lock has the same key as an application's
    /// data. The key is the prefix followed by the name, so prefix `a` with name `bc` is the same
    /// lock as prefix `ab` with name `c`. To share locks with programs that use another library,
    /// set the prefix of their keys: an empty one for Redisson's `getLock(name)`.
    ///
    /// Defaults to `lock:`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Sets whether wake-ups are exchanged with Redisson's `RLock`, for locks that a Java service
    /// shares under the same key (see [`prefix`](Builder::prefix)). Set it in every client that
    /// uses such a name. [Moving](crate::guide::moving#redisson) says who gets the lock next, and
    /// which locks can be shared. With it, `lock_all` sends one request per name.
    ///
    /// Defaults to `false`. Has no effect in memory, on read-write locks and on semaphores; with
    /// [`open_redlock`](Builder::open_redlock), `true` is
    /// [`InvalidInput`](crate::Error::InvalidInput).
    pub fn redisson(mut self, exchange: bool) -> Self {
        self.config.redisson = exchange;
        self
    }

    /// Sets how long the server keeps the [fence](crate::Guard::fence) counter of a name after its
    /// last hold began. Until then, each name takes 100 to 150 bytes if it has a dozen characters.
    /// Once the counter is gone, the fences of the name begin again at the server's clock, or with
    /// [`open_redlock`](Builder::open_redlock) at the client's: they still grow, unless that clock
    /// was set back by more than this time.
    ///
    /// A time shorter than two leases of the lock, such as zero, means two leases. Defaults to 24
    /// hours. Has no effect in memory.
    pub fn fence_life(mut self, time: Duration) -> Self {
        self.config.fence_life = time;
        self
    }

    /// Sets where a lock must be stored before the call that acquires it returns. While too few
    /// replicas or disks can acknowledge it, no lock can be acquired.
    ///
    /// Defaults to [`Durability::Memory`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// Sets the beginning of the client's [id](crate::Client::id), such as a host name, which shows
    /// operators in Redis which program holds a lock.
    ///
    /// At most 256 bytes, without braces and control characters. Defaults to no label.
    pub fn label(mut self, label: &str) -> Self {
        self.config.label = label.into();
        self
    }

    /// Sets a callback for every [`Event`]. A thread of its own delivers the events, and the lines
    /// for the logger of the `log` crate, in order, so a callback that blocks or panics does no
    /// harm to locks. Up to 4096 of them are queued; further ones are dropped, and their number is
    /// logged. [`Client::shutdown`](crate::Client::shutdown) waits until all earlier ones are
    /// delivered, for a second at most, and so does dropping the last clone and guard of a client.
    ///
    /// Defaults to no callback. The thread is then started by the first line that the logger's
    /// maximum level lets through.
    pub fn on_event(mut self, callback: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.config.on_event = Some(Arc::new(callback));
        self
    }

    /// Sets whether this client reports to the recorder of the `metrics` crate, which must be
    /// installed before the client is opened. [Monitoring](crate::guide::monitoring) lists the
    /// metrics, with alerts and a dashboard. The recorder is called on the thread of
    /// [`on_event`](Builder::on_event), with counters and gauges once a second.
    ///
    /// Defaults to `false`.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, reports: bool) -> Self {
        self.config.metrics = reports.then(Arc::default);
        self
    }

    /// Sets whether the client is opened without any I/O. With `true` it opens even while the
    /// server is away, and the first call reports any problem with the server or the login.
    ///
    /// Defaults to `false`.
    pub fn lazy(mut self, lazy: bool) -> Self {
        self.config.lazy = lazy;
        self
    }

    /// Sets how many connections the calls of all threads share. A connection is opened when it is
    /// first needed and is in use only while a request is in flight, never while a thread waits for
    /// a lock. The renewer's connection is not counted.
    ///
    /// From 1 to 10 000. Defaults to 8.
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.config.pool_size = connections;
        self
    }

    /// Sets how long a pooled connection may be idle. It is closed up to 30 s after that time.
    /// `None` keeps connections open for as long as the client lives.
    ///
    /// Longer than zero. Defaults to 10 minutes. Has no effect with
    /// [`open_redlock`](Builder::open_redlock), whose clients have no spare connections.
    pub fn idle_timeout(mut self, time: Option<Duration>) -> Self {
        self.config.idle_timeout = time;
        self
    }

    /// Sets the age at which a pooled connection is replaced, so that connections follow a host
    /// name to its new address. It is closed after its next request or, if it is idle, up to 30 s
    /// later. `None` means no limit.
    ///
    /// Longer than zero. Defaults to 30 minutes. Has no effect with
    /// [`open_redlock`](Builder::open_redlock).
    pub fn max_lifetime(mut self, age: Option<Duration>) -> Self {
        self.config.max_lifetime = age;
        self
    }

    /// Sets how long opening a connection may take, from looking up the host name to the end of the
    /// login.
    ///
    /// Defaults to 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// Sets how long one request may take, from waiting for a connection to the last byte of the
    /// reply.
    ///
    /// At most a third of the lease. Defaults to 1 s plus the timeout of the
    /// [`durability`](Builder::durability), or to a third of the lease if that is less.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.config.io_timeout = Some(timeout);
        self
    }

    /// Sets how long calls without a deadline of their own keep retrying while a server reports a
    /// temporary condition, such as a restart, a failover or a long-running script.
    ///
    /// Defaults to 10 s.
    pub fn retry_window(mut self, time: Duration) -> Self {
        self.config.retry_window = time;
        self
    }

    /// Sets the shortest and the longest pause between two attempts at a held lock, unless a
    /// wake-up ends the pause. Pauses grow at random between the two ([decorrelated
    /// jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/)) and end
    /// no later than the holder's lease. After failures, attempts are repeated with other pauses,
    /// of at most 500 ms.
    ///
    /// Defaults to 5 ms and 500 ms.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.config.backoff = (min, max);
        self
    }

    /// Sets how long a thread may busy-wait for a reply before it sleeps, because waking a thread
    /// takes longer than a nearby server takes to reply. Threads do not spin for a server that
    /// usually takes longer than this, nor when that would leave no core free.
    ///
    /// Zero disables spinning. Defaults to 50 µs.
    pub fn spin(mut self, time: Duration) -> Self {
        self.config.spin = time;
        self
    }

    /// Switches off a mechanism that makes locks faster, for benchmarks that show what it gains.
    #[doc(hidden)]
    pub fn without(mut self, mechanism: Mechanism) -> Self {
        self.config.without.push(mechanism);
        self
    }
}
