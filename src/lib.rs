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
//! A [`Client`] is cheap to clone, and all threads of a program can share one.
//! [`lock`](Client::lock) waits for the lock, [`try_lock`](Client::try_lock) does not, and
//! [`try_lock_for`](Client::try_lock_for) waits for a limited time.
//! [`with_lock`](Client::with_lock) runs a closure under the lock. [`mutex`](Client::mutex) gives a
//! single lock its own options and can query its state. There is never an async runtime.
//!
//! # I want to ...
//!
//! | task | method |
//! |---|---|
//! | let only one thread of all processes do something at a time | [`lock`](Client::lock) |
//! | do it only if no other thread is doing it | [`try_with_lock`](Client::try_with_lock) |
//! | wait for a limited time | [`try_lock_for`](Client::try_lock_for), [`Builder::wait`] |
//! | cancel a wait from another thread | [`Canceller`] |
//! | start while Redis is down | [`Builder::lazy`] |
//! | keep a stale holder from doing harm | [`Guard::fence`], see [Fencing](#fencing) |
//! | hold a lock across threads | [`lock_owned`](Client::lock_owned) |
//! | pass a lock to another process | [`OwnedGuard::detach`], [`adopt`](Client::adopt) |
//! | lock in a thread pool | [`Builder::reentrant`] |
//! | write code for guards of every kind | [`AnyGuard`] |
//! | run a scheduled job on only one of several machines | [`Mutex::hold_at_least`] |
//! | lock several names at once | [`lock_all`](Client::lock_all), [`Client::multi_mutex`] |
//! | allow many readers or one writer | [`rw_lock`](Client::rw_lock) |
//! | limit how many calls run at a time | [`semaphore`](Client::semaphore) |
//! | elect a leader | [`election`](Client::election) |
//! | see who holds a lock, or end that hold | [`Mutex::holder`], [`Mutex::force_unlock`] |
//! | see and end the holds of all clients | [`survey`](Client::survey) |
//! | release everything before the process ends | [`shutdown`](Client::shutdown) |
//! | configure everything in one URL, from the environment | [`Builder::from_env`] |
//! | notice problems early | [`stats`](Client::stats), [`Builder::on_event`] |
//! | test my own code and its error handling without a server | [`MemoryServer`] |
//!
//! The [`guide`] has the rest: a [cookbook](guide::cookbook) of recipes; how to [choose a
//! deployment](guide::deployment) and configure it in one URL; the [guarantees](guide::guarantees),
//! fault by fault; [operations](guide::operations), [monitoring](guide::monitoring) and
//! [scaling](guide::scaling); [moving](guide::moving) from other libraries, and a
//! [comparison](guide::comparison) with them; and the manual of the [program
//! `leasehold`](guide::program) for cron jobs, units, containers and CI.
//!
//! # Guarantees
//!
//! - **Exclusion by lease.** There is at most one live guard per name, as long as clocks run at
//!   nearly the same rate and Redis keeps what it has acknowledged. A guard trusts its lease only
//!   until *the time the last confirmed request was sent, plus the lease, minus 1 % of the lease
//!   and 2 ms*. From then on [`is_held`](Guard::is_held) returns `false`, whether or not the
//!   background thread is running.
//! - **Exclusion by fence.** [`fence`](Guard::fence) returns a number that grows with every hold of
//!   a name. A resource that rejects numbers smaller than the largest it has seen is safe, no
//!   matter what pauses, restarts or fails over.
//! - **No lock is stuck for ever.** A holder that dies blocks others for no longer than its lease.
//!   Threads that wait for each other in a circle are [reported](Builder::deadlock_after), and one
//!   of their calls can [fail](Builder::deadlock).
//! - **Lost is final.** A lost guard stays lost, and so do the guards nested in it. No lock is
//!   silently acquired again.
//! - **Requests may be lost, repeated or late.** Every request names the unique id of its hold. A
//!   lock is never reported as held without a reply, and whatever an unanswered request may have
//!   left in Redis is removed in the background.
//! - **Calls end.** A call with a deadline returns within one [`io_timeout`](Builder::io_timeout)
//!   and 100 ms of it, even if the server accepts connections and never answers. A call without
//!   one, such as [`try_lock`](Client::try_lock), [`unlock`](Guard::unlock) or
//!   [`open`](Client::open), gives up on such a server after two.
//!
//! # What is not guaranteed
//!
//! - A lease cannot stop a thread. A thread that is paused for longer than its lease, by the
//!   scheduler, a debugger or a virtual machine, may keep writing while another client holds the
//!   lock. Only the fence helps then, and only if the resource checks it.
//! - A server that loses data, because it restarts without persistence or fails over to a lagging
//!   replica, may grant the lock again while the old holder still relies on it: until that holder's
//!   next renewal at the latest. Again, the fence helps.
//! - Threads of one client are served in the order in which they ask. For as long as a
//!   [tenure](Builder::tenure) lasts, they hand the lock off among themselves without a request.
//!   Between clients, a released lock is offered for 200 ms to the one that has waited longest. A
//!   lock that becomes free by itself, at the end of a lease or of the time set by
//!   [`hold_at_least`](Mutex::hold_at_least), is not offered, so a client that arrives just then
//!   can take it first. Each of several independent servers makes its own offer, so chance decides
//!   between clients that arrived at nearly the same time.
//! - A holder may not notice at once that an operator has ended its hold: see
//!   [`Mutex::force_unlock`].
//!
//! # Traps
//!
//! - `let _ = client.lock("a")?;` releases the lock at once, and so does a `_` in a pattern.
//!   `let _guard = ...` keeps it.
//! - `if client.try_lock("a")?.is_some() { ... }` releases the lock before the block. Write
//!   `if let Some(_guard) = client.try_lock("a")? { ... }`.
//!
//! [More mistakes that compile](guide::traps): transactions that outlive the lock, guards in
//! structs, leaks, exits, and pools whose threads run other tasks while they wait.
//!
//! # Timeouts, leases and renewal
//!
//! The caller decides how long a call waits for a held lock: see [`Builder::wait`] and
//! [`Client::try_lock_for`]. [`Builder::io_timeout`] limits a single request, and
//! [`Builder::retry_window`] limits retries by calls that have no deadline of their own.
//!
//! A lease ([30 s](Builder::lease) by default) is renewed when a third of it has passed, in one
//! batch with other leases that are due at about the same time. Renewal continues until the guard
//! is dropped, its thread has ended or [`max_hold`](Builder::max_hold) is reached. A renewal that
//! gets no reply, or does not reach the replicas or disks that [`Durability`] requires, is retried
//! until the lease ends. The lock is lost only then, or when the server replies that the hold no
//! longer exists. The holder learns of a loss from [`lost`](Guard::lost), and the rest of the
//! program from [`on_event`](Builder::on_event) and the `log` crate.
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
//! [`Builder::open`] keeps its locks on one server, and loses a held lock if that server loses its
//! data. [`Builder::open_sentinel`] and [`Builder::open_cluster`] survive the loss of a master.
//! [`Builder::open_redlock`] survives the loss of fewer than half of several independent servers,
//! but has neither [read-write locks](RwLock) nor [semaphores](Semaphore). With a [`Durability`], a
//! lock must reach replicas or disks before it counts as held.
//! [Deployment](guide::deployment#which-one-do-i-need) compares what each costs and when it loses a
//! lock. [`Client::in_memory`] and [`MemoryServer`] need no server, and are meant for tests.
//!
//! # Threads and connections
//!
//! To each server, a client opens up to [`pool_size`](Builder::pool_size) connections, which are in
//! use only while a request is in flight; one connection for renewals, opened with the first lock
//! that is held for longer than a moment, and with a [`Durability`] another for clean-up; and one
//! for wake-ups, once it listens to other clients: from its first wait for one, or from its first
//! use of [`keep`](Builder::keep) or [`wanted`](Guard::wanted).
//!
//! A client has one thread that renews leases and one that serves the pool. A third listens for
//! wake-ups, as above. A fourth calls user code: the [`on_event`](Builder::on_event) callback, the
//! metrics recorder and the logger of the `log` crate, if there are any; no other thread ever calls
//! these. Short-lived threads look up host names, reread the files of certificates, open the
//! connections for renewals, wake-ups and quorums, and ask clusters for their hash slots. All
//! threads end when the last clone of the client and the last guard have been dropped.
//!
//! Over TLS, a thread that locks needs 64 KB of stack. The default of Rust's threads, 2 MB, is
//! plenty.
//!
//! # What drop does
//!
//! Dropping a [`Guard`] releases its level of the lock. It writes the release and returns without
//! waiting, so it costs no round trip. The reply is read with that of the next request over the
//! same connection, or about 10 ms later by a background thread. What this means:
//!
//! - For this client, the lock is free at once: later calls never find the dropped hold. For other
//!   clients, it is free one network latency later. Use [`Guard::unlock`] to be certain that it is,
//!   and to learn of errors.
//! - A release that fails, or gets no reply within `io_timeout`, is reported as
//!   [`Event::ReleaseFailed`] and repeated in the background. Until that succeeds, calls of this
//!   client for the lock either acquire it or fail with [`Error::Unavailable`].
//! - A drop waits only for room in the socket and, if no connection is open, for one to open: for
//!   one `io_timeout` at most. It writes the release itself, so the program may exit right after.
//!   Only if other threads are using all connections of the pool does it leave the release to them.
//! - Dropping the last clone or guard of a client waits for the replies to all releases, for at
//!   most one `io_timeout`. Guards in statics are never dropped, and `std::process::exit` drops
//!   nothing. A request for a lock that is still on its way then, because the network delays it,
//!   may take the lock later, for one lease.
//!
//! Dropping a client does not end the holds of its guards. [`shutdown`](Client::shutdown) ends
//! them, and waits for the confirmation.
//!
//! In a forked child, calls return [`Error::Forked`], and the parent's locks are not affected. Open
//! a client in the child; a daemon opens its client after it has daemonized.
//!
//! # Features
//!
//! - `metrics`: reports a client's numbers to the recorder of that crate. See `Builder::metrics`.
//! - `serde`: deserializes a [`Builder`], such as from a configuration file; serializes a
//!   [`Ticket`], and what a client reports, such as [`Event`] and [`Stats`].
//! - `tls`: `rediss://` URLs, using `rustls`. See [`Builder::open`].
//! - `tls-insecure`: allows these URLs to end with `#insecure`, for servers that cannot be
//!   verified.
//! - `tracing`: spans of that crate around calls for locks and around holds.
//!
//! # Data in Redis
//!
//! The lock `name` is the hash `lock:name` (or another [prefix](Builder::prefix)), with the owner
//! as its only field and the depth as the value. This is the layout of Redisson's `RLock`, so with
//! an empty prefix each library sees the other's locks. The fence is a counter,
//! `leasehold:fence:{lock:name}`, which expires a day after its last use (or after another
//! [`fence_life`](Builder::fence_life)). Waiting clients are in the sorted set
//! `leasehold:queue:{lock:name}`. The hash `leasehold:note:{lock:name}` exists while a hold has a
//! [note](Builder::note): a field for each owner.
//! [Operations](guide::operations#with-redis-cli) says how to read these keys.
//!
//! A key counts as a lock only if it has a TTL and the shape of a lock. A string with a TTL, as
//! other libraries set it with `SET NX PX`, counts as a held lock. Everything else is
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
mod protocol;
#[cfg(all(test, unix, not(leasehold_shuttle)))]
#[path = "../tests/simulation/mod.rs"]
mod simulation;
mod stats;
mod store;
mod ticket;

#[cfg(doc)]
pub mod guide;

pub use base::canceller::Canceller;
pub use base::holder::{Holder, Leader};
pub use base::phase::{Phase, ServerFailure};
pub use client::Client;
pub use client::builder::Builder;
pub use client::survey::{NameReport, ServerReplies, ServerReport, Survey, WaitingCircle};
pub use config::Deadlock;
#[doc(hidden)]
pub use config::Mechanism;
pub use config::callbacks::Credentials;
#[cfg(feature = "tls")]
pub use config::certificates::Tls;
pub use config::durability::Durability;
pub use config::url::parse_duration;
pub use error::{Error, LossCause, Result};
pub use event::Event;
pub use guards::election::{Election, Term};
pub use guards::guard::{AnyGuard, LockGuard};
pub use guards::handle::LockHandle;
pub use guards::multi_mutex::{MultiGuard, MultiMutex};
pub use guards::mutex::{Guard, Mutex, OwnedGuard};
pub use guards::rw_lock::{ReadGuard, RwLock, WriteGuard};
pub use guards::semaphore::{Permit, Semaphore};
pub use guards::watches::{HoldEnd, Lost, Wanted};
pub use local::status::{HeldLock, WaitingCall};
pub use stats::Stats;
pub use store::hold_id::HeldAs;
pub use store::memory::memory_server::MemoryServer;
pub use ticket::Ticket;
