//! A synchronous, blocking distributed lock on Redis, for threaded programs.
//!
//! ```
//! # fn main() -> leasehold::Result<()> {
//! let client = leasehold::Client::in_memory(); // or Client::open("redis://127.0.0.1/")?
//!
//! let guard = client.lock("stock:42")?; // blocks until this thread holds the lock
//! // ... sell one item; the lease is renewed in the background ...
//! drop(guard); // releases the lock, as unwinding from a panic would
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] is cheap to clone and can be shared by all threads of a program.
//! [`lock`](Client::lock) waits for the lock, [`try_lock`](Client::try_lock) does not, and
//! [`try_lock_for`](Client::try_lock_for) waits for a limited time;
//! [`with_lock`](Client::with_lock) runs a closure under the lock. [`mutex`](Client::mutex) gives
//! a single lock options of its own and can query its state. No async runtime is involved, ever.
//!
//! # I want to ...
//!
//! | | |
//! |---|---|
//! | let one thread of all processes do something at a time | [`lock`](Client::lock) |
//! | do it only if no other thread is doing it | [`try_with_lock`](Client::try_with_lock) |
//! | wait for a limited time | [`try_lock_for`](Client::try_lock_for), [`Builder::wait`] |
//! | wait until the wait is cancelled | [`Canceller`] |
//! | start while Redis is down | [`Builder::lazy`] |
//! | keep a stale holder from doing harm | [`Guard::fence`], see [Fencing](#fencing) |
//! | hold a lock across threads | [`lock_owned`](Client::lock_owned) |
//! | leave a lock to another process | [`OwnedGuard::detach`], [`adopt`](Client::adopt) |
//! | hold a lock in a pool of threads | [`Builder::reentrant`] |
//! | write code for guards of every kind | [`AnyGuard`] |
//! | run a job on one of several machines | [`Mutex::hold_at_least`] |
//! | lock several names at once | [`lock_all`](Client::lock_all), [`mutexes`](Client::mutexes) |
//! | let many read and one write | [`rw_lock`](Client::rw_lock) |
//! | limit how many do something at a time | [`semaphore`](Client::semaphore) |
//! | have one leader | [`election`](Client::election) |
//! | see who holds a lock, or end the hold | [`Mutex::holder`], [`Mutex::force_unlock`] |
//! | stop in order when the process is told to end | [`shutdown`](Client::shutdown) |
//! | configure it in one URL, from the environment | [`Builder::from_env`] |
//! | notice early when something goes wrong | [`stats`](Client::stats), [`Builder::on_event`] |
//! | test my own code, and every error branch of it, without a server | [`MemoryServer`] |
//!
//! The [`guide`] has the rest: a [cookbook](guide::cookbook) of recipes, each with what goes wrong
//! without it; how to [choose a deployment](guide::deployment) and configure it in one URL; a table
//! of the [guarantees](guide::guarantees), fault by fault; [operations](guide::operations),
//! [monitoring](guide::monitoring) with alerts, and [scaling](guide::scaling);
//! [moving](guide::moving) from other libraries, and what those [do](guide::comparison); and the
//! manual of the [program `leasehold`](guide::program) for cron jobs, units, containers and CI.
//!
//! # Guarantees
//!
//! - **Exclusion by lease.** There is at most one live guard per name, as long as clocks run at
//!   nearly the same rate and Redis keeps what it has acknowledged. A guard trusts its lease only
//!   until *the time the last confirmed request was sent, plus the lease, minus 1 % of the lease
//!   and 2 ms*. From then on [`is_held`](Guard::is_held) returns `false`, whether or not the
//!   background thread is running.
//! - **Exclusion by fence.** [`fence`](Guard::fence) returns a number that grows with every hold of
//!   a name. A resource that rejects numbers smaller than the largest it has seen is safe no matter
//!   what pauses, restarts or fails over.
//! - **No deadlock.** A holder that dies blocks others for no longer than its lease.
//! - **Lost is final.** A lost guard stays lost, and so do the guards nested in it. No lock is
//!   silently acquired again.
//! - **Requests may be lost, repeated or late.** Each hold has an id of its own, which every
//!   request names. A lock is never reported as held without a reply, and whatever a request
//!   without a reply may have left in Redis is removed in the background.
//! - **Calls end.** Every call returns within its deadline plus one
//!   [`io_timeout`](Builder::io_timeout) and 100 ms, even if the server accepts connections and
//!   never answers.
//!
//! # What is not guaranteed
//!
//! - A lease cannot stop a thread. A thread that is paused for longer than its lease, by the
//!   scheduler, a debugger or a virtual machine, may go on writing while another client holds the
//!   lock. Only the fence helps here, and only if the resource checks it.
//! - A server that loses data, because it restarts without persistence or fails over to a replica
//!   that lags behind, may grant the lock again while the old holder still relies on it, until that
//!   holder's next renewal at the latest. Again, the fence helps.
//! - Threads of one client are served in the order in which they ask, and hand a lock off among
//!   themselves without a request for as long as a [tenure](Builder::tenure) lasts. Between
//!   clients, a released lock is offered for 200 ms to the one that has waited longest. A lock that
//!   becomes free by itself, at the end of a lease or of the time by
//!   [`hold_at_least`](Mutex::hold_at_least), is not offered, so a client that arrives just then
//!   can take it first. Each of several independent servers makes an offer of its own, so chance
//!   decides between clients that have come at nearly the same time.
//! - A hold that an operator ends by force is not over everywhere at once: see
//!   [`Mutex::force_unlock`].
//!
//! # Traps
//!
//! - `if client.try_lock("a")?.is_some() { ... }` releases the lock before the block: the guard is
//!   a temporary of the condition. Write `if let Some(_guard) = client.try_lock("a")? { ... }`, or
//!   use [`try_with_lock`](Client::try_with_lock).
//! - `let _ = client.lock("a")?;` releases the lock at once; `let _guard = ...` keeps it.
//! - A guard that is leaked, as by `std::mem::forget`, is renewed until its thread ends. One that
//!   [belongs to no thread](OwnedGuard) is renewed until the process ends. A program that ends by
//!   `std::process::exit` or by a signal drops nothing: its locks last until their leases end,
//!   unless it calls [`shutdown`](Client::shutdown) before. [`max_hold`](Builder::max_hold) limits
//!   both.
//! - In a pool whose threads run other tasks while one of them waits, as rayon's do, nesting lets
//!   two tasks into one critical section: see [`Builder::reentrant`].
//! - `with_lock` returns the closure's value, which may itself be a `Result`:
//!   `client.with_lock("a", |guard| work(guard))??`.
//!
//! # Timeouts, leases and renewal
//!
//! How long a call waits for a lock that is held is up to the caller: see [`Builder::wait`] and
//! [`Client::try_lock_for`]. [`Builder::io_timeout`] limits a single request, and
//! [`Builder::retry_window`] limits retries by calls that have no deadline of their own.
//!
//! A lease ([30 s](Builder::lease) by default) is renewed when a third of it has passed, in one
//! batch with other leases that are due at about the same time. Renewal continues until the guard
//! is dropped, its thread has ended or [`max_hold`](Builder::max_hold) is reached. A renewal that
//! gets no reply, or does not reach the replicas or disks that [`Durability`] demands, is retried
//! until the lease ends; the lock is lost only then, or when the server says that the hold is gone.
//! The holder learns of a loss from [`lost`](Guard::lost), the rest of the program from
//! [`on_event`](Builder::on_event) and the `log` crate.
//!
//! # Fencing
//!
//! ```
//! # use std::sync::atomic::{AtomicU64, Ordering};
//! /// A resource that only the holder of the lock may write to.
//! struct Ledger {
//!     newest: AtomicU64,
//! }
//!
//! impl Ledger {
//!     /// Rejects a writer that has been replaced by a later holder.
//!     fn write(&self, fence: u64) -> bool {
//!         self.newest.fetch_max(fence, Ordering::SeqCst) <= fence
//!     }
//! }
//!
//! # fn main() -> leasehold::Result<()> {
//! let client = leasehold::Client::in_memory();
//! let ledger = Ledger { newest: AtomicU64::new(0) };
//! let stale = client.with_lock("ledger", |guard| guard.fence())?;
//! let fresh = client.with_lock("ledger", |guard| guard.fence())?;
//! assert!(ledger.write(fresh));
//! assert!(!ledger.write(stale));
//! # Ok(())
//! # }
//! ```
//!
//! # One server or several
//!
//! [`Builder::open`] has its locks on one server, and loses a held one if that server loses its
//! data. [`Builder::open_sentinel`] and [`Builder::open_cluster`] survive the loss of a master, and
//! [`Builder::open_redlock`] that of fewer than half of several independent servers, but it has
//! neither [read-write locks](RwLock) nor [semaphores](Semaphore). A [`Durability`] demands that
//! replicas or disks have a lock before it is held.
//! [Deployment](guide::deployment#which-one-do-i-need) compares what each costs and when it loses a
//! lock. [`Client::in_memory`] and the clients of a [`MemoryServer`] need no server, and are meant
//! for tests.
//!
//! # Threads and connections
//!
//! A client opens up to [`pool_size`](Builder::pool_size) connections, each in use only while a
//! request is in flight; one connection for renewals, and with a [`Durability`] another for
//! clean-up; and, from the first time that it waits for another client, one for wake-ups. With
//! several servers, it opens these to each server.
//!
//! A client has one thread that renews leases and one that serves the pool. From its first wait for
//! another client it has a thread that listens for wake-ups, and if [`on_event`](Builder::on_event)
//! is set, metrics are recorded, or the `log` crate has a logger, a thread that calls the callback,
//! the recorder and the logger; no other thread ever does. Short-lived threads look up host names,
//! open the connections for renewals and wake-ups and those of quorums, and ask clusters for their
//! hash slots. All threads end when the last clone of the client and the last guard are gone.
//!
//! # What drop does
//!
//! Dropping a [`Guard`] releases its level of the lock. It writes the release and returns: the
//! reply is read along with that of the next request over the same connection, or about 10 ms later
//! by a thread in the background. So a drop costs no round trip. What this means:
//!
//! - For this client the lock is free: whatever it calls next does not find the hold that it has
//!   dropped. For other clients the lock is free one network latency later. Use
//!   [`Guard::unlock`] to know that it is, and to learn of errors.
//! - A release that fails, or gets no reply within `io_timeout`, is reported as
//!   [`Event::ReleaseFailed`] and repeated in the background. Until that has succeeded, calls of
//!   this client for the lock get it or fail with [`Error::Unavailable`].
//! - A drop waits only for room to write and, if no connection is open, until one is, together for
//!   at most one `io_timeout`. It writes the release itself, so that a program may end right after.
//!   Only while other threads use all connections of the pool, it leaves the release to them.
//! - The last clone or guard of a client waits for the replies to all releases, for at most one
//!   `io_timeout`, when it is dropped. Guards in statics are never dropped, nor is anything by
//!   `std::process::exit`.
//!
//! Dropping a client does not end the holds of its guards; [`shutdown`](Client::shutdown) does, and
//! waits until that is certain.
//!
//! In a forked child, calls return [`Error::Forked`], and the locks of the parent are not affected.
//! So open a client in the child, and in a daemon after it has become one.
//!
//! # Features
//!
//! - `cli`: the program `leasehold`, which runs commands while it holds locks.
//! - `metrics`: a client reports its numbers to the recorder of that crate. See `Builder::metrics`.
//! - `serde`: a [`Builder`] can be deserialized, as from a configuration file, and a [`Ticket`] can
//!   be sent.
//! - `tls`: `rediss://` URLs, using `rustls`. See [`Builder::open`].
//! - `tls-insecure`: allows such URLs to end with `#insecure`, for servers that cannot be verified.
//! - `tracing`: spans of that crate around calls for locks and around holds.
//!
//! # Data in Redis
//!
//! The lock `name` is the hash `lock:name` (or another [prefix](Builder::prefix)), with the owner
//! as its only field and the depth as the value. This is the layout of Redisson's `RLock`, so with
//! an empty prefix each library sees the other's locks. The fence is a counter,
//! `leasehold:fence:{lock:name}`, which lives for a day after its last use, or for another
//! [`fence_life`](Builder::fence_life), and waiting clients are in the sorted set
//! `leasehold:queue:{lock:name}`. [Operations](guide::operations#with-redis-cli) says how to read
//! them.
//!
//! A key is taken for a lock only if it has a TTL and the shape of one. A string with a TTL, as
//! other libraries set it with `SET NX PX`, counts as held; everything else is
//! [`WrongType`](Error::WrongType), and is left unchanged.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod base;
mod client;
mod config;
mod error;
mod event;
#[cfg(test)]
#[path = "../tests/fuzz/mod.rs"]
mod fuzz;
mod guards;
mod local;
mod net;
mod stats;
mod store;

#[cfg(doc)]
pub mod guide;

pub use base::phase::{Phase, ServerFailure};
#[doc(hidden)]
pub use base::printable;
pub use client::Client;
pub use client::builder::Builder;
#[doc(hidden)]
pub use config::Mechanism;
pub use config::callbacks::Credentials;
#[cfg(feature = "tls")]
pub use config::certificates::Tls;
pub use config::durability::Durability;
#[doc(hidden)]
pub use config::url::parse_duration;
pub use error::{Error, Result};
pub use event::Event;
pub use guards::AnyGuard;
pub use guards::canceller::Canceller;
pub use guards::election::{Election, Term};
pub use guards::guard::Guard;
pub use guards::holder::{Holder, Leader};
pub use guards::multi_guard::{MultiGuard, MultiMutex};
pub use guards::mutex::Mutex;
pub use guards::owned_guard::{OwnedGuard, Ticket};
pub use guards::rw_lock::{ReadGuard, RwLock, WriteGuard};
pub use guards::semaphore::{Permit, Semaphore};
pub use guards::watches::{HoldEnd, Lost, Wanted};
#[doc(hidden)]
pub use local::survey::{NameReport, ServerReplies, ServerReport, Survey};
pub use stats::Stats;
#[doc(hidden)]
pub use store::hold_id::HeldAs;
pub use store::memory::memory_server::MemoryServer;
