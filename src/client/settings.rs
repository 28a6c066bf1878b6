//! The settings of a client: for its locks, its reports and its connections.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use crate::client::builder::Builder;
use crate::config::Deadlock;
use crate::config::callbacks::{AddressMap, Credentials, CredentialsCallback};
#[cfg(feature = "tls")]
use crate::config::certificates::Tls;
use crate::config::durability::Durability;
use crate::config::setters;
use crate::event::Event;

// Settings of locks, which a handle can change for itself.
setters! {
    Builder, |builder| builder.config.options_mut();

    /// Sets the lease: how long a lock lasts after its last renewal. A holder that dies blocks
    /// others for no longer than this, and a holder that cannot reach the server loses the lock
    /// after this time.
    ///
    /// From 10 ms to 365 days. Defaults to 30 s.
    lease(lease: Duration) = lease;

    /// Sets how long [`Client::lock`](crate::Client::lock) waits for a lock that is held before it
    /// returns [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// Defaults to no limit.
    wait(time: Duration) = Some(time);

    /// Sets whether leases are renewed in the background, each when a third of it has passed.
    /// Without renewal, a guard is lost when its lease ends, and nested locks do not prolong it.
    ///
    /// Defaults to `true`.
    renew(renew: bool) = renew;

    /// Sets the longest time for which a lock can be held, to limit the harm of a hung thread.
    /// Renewal stops early enough for the last lease to end by then, both here and in Redis.
    ///
    /// At least 10 ms. Defaults to no limit.
    max_hold(age: Duration) = Some(age);

    /// Sets whether a thread may lock a name again while it holds it. With `false` that is
    /// [`AlreadyHeld`](crate::Error::AlreadyHeld) instead of another level.
    ///
    /// In a [thread pool](crate::guide::cookbook#a-rayon-pool) whose threads run other tasks while
    /// they wait, the holder's thread may start a task that locks the same name, and both would be
    /// in the critical section at once. There, choose `false` together with a
    /// [`wait`](Builder::wait), and do not call into the pool while holding the lock. This also
    /// turns [`lock_owned`](crate::Client::lock_owned) and [`campaign`](crate::Election::campaign)
    /// into errors for a thread that holds the lock, which would otherwise wait for its own guard.
    ///
    /// Defaults to `true`.
    reentrant(reentrant: bool) = reentrant;

    /// Sets how long the threads of this client hand a lock off among themselves, without a
    /// request, before other clients get it. The time starts when the client acquires the lock. The
    /// hold in progress when it ends is the last one.
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
    /// that is less. At most a third of the lease; for a handle with a shorter lease it is cut to a
    /// third of that.
    tenure(time: Duration) = Some(time);

    /// Sets how long this client keeps a lock after its last use, so that its threads get it again
    /// without a request. A kept lock is renewed, and no thread holds it. Another client that asks
    /// for it gets it within a network latency, or when the current guard is dropped.
    /// [`try_lock`](crate::Client::try_lock) waits 50 ms for that, and
    /// [`try_lock_all`](crate::Client::try_lock_all) 50 ms for each lock. A client that dies while
    /// it keeps a lock blocks others for its [lease](Builder::lease), so set a short one. The
    /// [recipe][cached] says when this pays off, and which locks are not kept.
    ///
    /// A kept lock is released when the time is over, by [`close`](crate::Client::close),
    /// [`shutdown`](crate::Client::shutdown) or [`lock_all`](crate::Client::lock_all), and with the
    /// last clone of the client.
    ///
    /// Lustre, GFS2 and Ceph RBD cache their locks in this way. Defaults to zero: nothing is kept.
    /// At most the lease, and not together with [`redisson`](Builder::redisson). A handle with a
    /// shorter lease keeps its lock no longer than that.
    ///
    /// [cached]: crate::guide::cookbook#a-cached-lock
    keep(time: Duration) = time;
}

// Settings of the client.
setters! {
    Builder, |builder| &mut builder.config;

    /// Sets the prefix of the keys of locks, so that no lock has the same key as an application's
    /// data. The key is the prefix followed by the name, so prefix `a` with name `bc` is the same
    /// lock as prefix `ab` with name `c`. To share locks with programs that use another library,
    /// set the prefix of their keys: an empty one for Redisson's `getLock(name)`.
    ///
    /// Defaults to `lock:`.
    prefix(prefix: &str) = prefix.into();

    /// Sets whether wake-ups are exchanged with Redisson's `RLock`, for locks that a Java service
    /// shares under the same key (see [`prefix`](Builder::prefix)). Set it in every client that
    /// uses such a name. [Moving](crate::guide::moving#redisson) says who gets the lock next, and
    /// which locks can be shared. With it, `lock_all` sends one request per name.
    ///
    /// Defaults to `false`. Has no effect in memory, on read-write locks and on semaphores; with
    /// [`open_redlock`](Builder::open_redlock), `true` is
    /// [`InvalidInput`](crate::Error::InvalidInput).
    redisson(exchange: bool) = exchange;

    /// Sets after which wait a call looks whether it is in a deadlock: whether the holder of the
    /// lock waits for a lock that this thread holds, directly or through others, in any process. A
    /// deadlock is reported as [`Event::Deadlock`](crate::Event::Deadlock) and in the log.
    ///
    /// A call that waits for less than this costs nothing, and neither does one whose thread holds
    /// no lock. After that, the call looks again after pauses that double, up to a minute. A look
    /// sends one message for each process in the chain. What is reported is a deadlock: two looks
    /// in succession must find the same calls.
    ///
    /// Found are deadlocks of threads that hold locks by [`Guard`](crate::Guard)s, nested ones
    /// included, as from [`lock`](crate::Client::lock) and [`with_lock`](crate::Client::with_lock),
    /// and that wait for a lock by any call. Not found are those in which
    ///
    /// - a hold belongs to no thread, because any thread may release it: an
    ///   [`OwnedGuard`](crate::OwnedGuard), a [`MultiGuard`](crate::MultiGuard), a side of a
    ///   read-write lock, a permit, or a term;
    /// - a thread waits for something else than a lock of this library: for a read-write lock or a
    ///   semaphore, another thread, a channel, or a lock of Redisson;
    /// - a thread holds locks by one client, and waits by another;
    /// - a process has another version without this, or the setting `None`, or gets no messages
    ///   from the servers.
    ///
    /// Longer than zero; `None` means never. Defaults to 1 s, as in PostgreSQL.
    deadlock_after(time: Option<Duration>) = time;

    /// Sets whether a call of this client that is in a deadlock may fail, so that the others go on.
    /// The [recipe][deadlocks] says what the thread has to do then.
    ///
    /// Defaults to [`Deadlock::Report`]: the deadlock is only reported.
    ///
    /// [deadlocks]: crate::guide::cookbook#a-deadlock
    deadlock(deadlock: Deadlock) = deadlock;

    /// Sets how long the server keeps the [fence](crate::Guard::fence) counter of a name after its
    /// last hold began. Until then, each name takes 100 to 150 bytes if it has a dozen characters.
    /// Once the counter is gone, the fences of the name begin again at the server's clock, or with
    /// [`open_redlock`](Builder::open_redlock) at the client's: they still grow, unless that clock
    /// was set back by more than this time.
    ///
    /// A time shorter than two leases of the lock, such as zero, means two leases. Defaults to 24
    /// hours. Has no effect in memory.
    fence_life(time: Duration) = time;

    /// Sets where a lock must be stored before the call that acquires it returns. While too few
    /// replicas or disks can acknowledge it, no lock can be acquired.
    ///
    /// Defaults to [`Durability::Memory`].
    durability(durability: Durability) = durability;

    /// Sets the beginning of the client's [id](crate::Client::id), by which operators see in Redis
    /// which program holds a lock.
    ///
    /// At most 256 bytes, without braces and control characters; empty for none. Defaults to the
    /// host and the number of the process, such as `web-3:4711`. If that number is 1, as in
    /// containers, four random digits follow it, such as `web-3:1-0815`.
    label(label: &str) = Some(label.into());

    /// Sets a callback for every [`Event`]. A thread of its own delivers the events, and the lines
    /// for the logger of the `log` crate, in order, so a callback that blocks or panics does no
    /// harm to locks. Up to 4096 of them are queued; further ones are dropped, and their number is
    /// logged. [`Client::shutdown`](crate::Client::shutdown) waits until all earlier ones are
    /// delivered, for a second at most, and so does dropping the last clone and guard of a client.
    ///
    /// Defaults to no callback. The thread is then started by the first line that the logger's
    /// maximum level lets through.
    on_event(callback: impl Fn(&Event) + Send + Sync + 'static) = Some(Arc::new(callback));

    /// Sets whether this client reports to the recorder of the `metrics` crate, which must be
    /// installed before the client is opened. [Monitoring](crate::guide::monitoring) lists the
    /// metrics, with alerts and a dashboard. The recorder is called on the thread of
    /// [`on_event`](Builder::on_event), with counters and gauges once a second.
    ///
    /// Defaults to `false`.
    #[cfg(feature = "metrics")]
    metrics(reports: bool) = reports;

    /// Sets whether the client is opened without any I/O. With `true` it opens even while the
    /// server is away, and the first call reports any problem with the server or the login.
    ///
    /// Defaults to `false`.
    lazy(lazy: bool) = lazy;

    /// Sets how many connections the calls of all threads share. A connection is opened when it is
    /// first needed and is in use only while a request is in flight, never while a thread waits for
    /// a lock. The renewer's connection is not counted.
    ///
    /// From 1 to 10 000. Defaults to 8.
    pool_size(connections: u32) = connections;

    /// Sets how long a pooled connection may be idle. It is closed up to 30 s after that time.
    /// `None` keeps connections open for as long as the client lives.
    ///
    /// Longer than zero. Defaults to 10 minutes. Has no effect with
    /// [`open_redlock`](Builder::open_redlock), whose clients have no spare connections.
    idle_timeout(time: Option<Duration>) = time;

    /// Sets how old a connection may become, so that all of them follow a host name or an address
    /// to another server: those of the pool, and those for renewals, wake-ups and quorums. It is
    /// replaced at its first use after four fifths of that time. An idle one of the pool is closed
    /// up to 30 s after that time, and others are kept until their successors are open. `None`
    /// means no limit.
    ///
    /// If a host name has another address when a connection is opened, all connections to the old
    /// one are replaced at once.
    ///
    /// Longer than zero. Defaults to 30 minutes.
    max_lifetime(age: Option<Duration>) = age;

    /// Sets how long opening a connection may take, from looking up the host name to the end of the
    /// login.
    ///
    /// Defaults to 1 s.
    connect_timeout(timeout: Duration) = timeout;

    /// Sets how long one request may take, from waiting for a connection to the last byte of the
    /// reply.
    ///
    /// At most a third of the lease. Defaults to 1 s plus the timeout of the
    /// [`durability`](Builder::durability), or to a third of the lease if that is less.
    io_timeout(timeout: Duration) = Some(timeout);

    /// Sets how long calls without a deadline of their own keep retrying while a server replies
    /// that it cannot serve for now: it loads its data, fails over, or runs a long script. A server
    /// that refuses the connection fails such calls at once, except a
    /// [`lock`](crate::Client::lock) without a [`wait`](Builder::wait).
    ///
    /// Defaults to 10 s.
    retry_window(time: Duration) = time;

    /// Sets the shortest and the longest pause between two attempts at a held lock, unless a
    /// wake-up ends the pause. Pauses grow at random between the two ([decorrelated
    /// jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/)) and end
    /// no later than the holder's lease. After failures, attempts are repeated with other pauses,
    /// of at most 500 ms.
    ///
    /// Defaults to 5 ms and 500 ms.
    backoff(min: Duration, max: Duration) = (min, max);

    /// Sets how long a thread may busy-wait for a reply before it sleeps, because waking a thread
    /// takes longer than a nearby server takes to reply. Threads do not spin for a server that
    /// usually takes longer than this, nor when that would leave no core free.
    ///
    /// Zero disables spinning; more than 1 ms counts as 1 ms. Defaults to 50 µs.
    spin(time: Duration) = time;

    /// Sets a callback that provides the user and the password whenever a connection is opened, for
    /// tokens that expire and passwords that are rotated. [Deployment][login] has an example, and
    /// says when it is called. An error or a panic in it is the field `source`
    /// of an [`Unavailable`](crate::Error::Unavailable) error.
    ///
    /// Defaults to the login in the URLs. With a callback, that login is used only for sentinels.
    /// Has no effect in memory.
    ///
    /// [login]: crate::guide::deployment#credentials
    credentials(
        callback: impl Fn() -> Result<Credentials, Box<dyn StdError + Send + Sync>>
            + Send + Sync + 'static
    ) = Some(CredentialsCallback::new(callback));

    /// Sets the user (empty for the default user) and the password for the master that sentinels
    /// name. The login in the URLs is then used only for the sentinels. Without sentinels, this is
    /// [`InvalidInput`](crate::Error::InvalidInput).
    ///
    /// Must not be set together with [`credentials`](Builder::credentials). Defaults to the login
    /// in the URLs.
    master_login(user: &str, password: &str) = Some(Credentials::new(user, password));

    /// Sets a function that translates the host and the port that a sentinel or a node of a cluster
    /// announces into those at which the server can be reached: for servers in containers or behind
    /// NAT. Over TLS, a server must have a certificate for the returned host, unless
    /// `Tls::server_name` is set. The function is called often, by any thread, and must return at
    /// once. If it panics, the announced address is used.
    ///
    /// Defaults to the announced addresses. Applies only to
    /// [`open_sentinel`](Builder::open_sentinel) and [`open_cluster`](Builder::open_cluster), and
    /// not to the addresses in their URLs.
    address_map(map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static)
        = AddressMap::new(map);

    /// Sets which servers the client trusts at a `rediss://` URL, and the certificate it presents.
    /// Requires the feature `tls`.
    ///
    /// Defaults to the system's certificate authorities and no client certificate.
    #[cfg(feature = "tls")]
    tls(tls: Tls) = Some(tls);
}
