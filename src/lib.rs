//! A synchronous, blocking distributed lock on Redis, for threaded programs.
//!
//! ```
//! # fn main() -> leasehold::Result<()> {
//! let client = leasehold::Client::in_memory(); // leasehold::Client::open("redis://127.0.0.1/")?
//!
//! let guard = client.lock("stock:42")?; // blocks until this thread has it
//! // ... sell one piece; the lease is renewed in the background ...
//! drop(guard); // released, and so it is when a panic unwinds
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] is cheap to clone and shared by all threads. [`lock`](Client::lock) waits,
//! [`try_lock`](Client::try_lock) does not, [`try_lock_for`](Client::try_lock_for) does for a
//! while; [`with_lock`](Client::with_lock) runs a closure; [`mutex`](Client::mutex) gives one lock
//! options of its own and answers questions about it. No async runtime is involved, ever.
//!
//! # What is guaranteed
//!
//! - **Exclusion by lease.** At most one live guard per name, as long as clocks run at nearly the
//!   same rate and Redis keeps what it has acknowledged. A guard relies on its lease only until
//!   *the last confirmed request was sent, plus the lease, less 1 % and 2 ms*; from then on
//!   [`is_held`](Guard::is_held) is `false`, whether or not the background thread runs.
//! - **Exclusion by fence.** [`fence`](Guard::fence) is a number that grows with every hold of a
//!   name. A resource that refuses numbers smaller than it has seen is safe whatever pauses,
//!   restarts or fails over.
//! - **No deadlock.** A holder that dies blocks others no longer than its lease.
//! - **Lost is final.** A lost guard stays lost, nested ones too; nothing is taken again behind
//!   your back.
//! - **Requests may be lost, repeated or late.** Each hold has a number of its own, which every
//!   request names. Without a reply a lock is never reported as held, and what such a request may
//!   have left behind is removed in the background.
//! - **Calls end.** Every call returns within its deadline, one
//!   [`io_timeout`](Builder::io_timeout) and 100 ms, also if the server accepts and never answers.
//!
//! # What is not
//!
//! - A lease cannot stop a thread. One that is paused for longer than its lease, by the scheduler,
//!   a debugger or a virtual machine, may go on to write while somebody else has the lock. Only
//!   the fence helps, and only if the resource checks it.
//! - A server that forgets, because it was restarted without persistence or failed over to a
//!   replica that lagged behind, gives the lock to somebody else while the old holder still relies
//!   on it, until the next renewal at the latest. Again the fence helps.
//! - Threads of one client are served first come, first served. Among clients there is no promise
//!   of an order, though they are woken in the order of coming, and none may keep a lock among its
//!   threads for long while another [waits](Builder::max_handoffs).
//!
//! # Nesting
//!
//! A thread that locks a name again gets a further level of the same hold, with the same fence, for
//! one round trip, which also finds out whether the hold still stands. The hold ends with its last
//! guard. Guards cannot leave their thread.
//!
//! # Leases and renewal
//!
//! A lease ([30 s](Builder::lease) by default) is renewed when a third of it has passed, together
//! with others that are due about then, until the guard is gone, its thread has ended or
//! [`max_hold`](Builder::max_hold) is reached. A renewal without a reply is repeated until the
//! lease ends; only then, or if the server says so, the lock is lost. [`lost`](Guard::lost) tells
//! those who wait, [`on_event`](Builder::on_event) and the `log` crate tell everybody else.
//!
//! # Fencing
//!
//! ```
//! # use std::sync::atomic::{AtomicU64, Ordering};
//! /// Something that is written to by whoever has the lock.
//! struct Ledger {
//!     newest: AtomicU64,
//! }
//!
//! impl Ledger {
//!     /// Refuses a writer that somebody else has replaced as the holder.
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
//! # What a client consists of
//!
//! Up to [`pool_size`](Builder::pool_size) connections, each used only while a request is under
//! way, one for renewals, and from the first wait for another client on one for wake-ups; of several
//! servers, to each. A thread each that renews, serves the pool, and listens for wake-ups, and one
//! that calls [`on_event`](Builder::on_event) if that is set. All end when the last clone of the
//! client and the last guard are gone. In a forked child nothing works, and nothing is disturbed.
//!
//! # Features
//!
//! - `tls`: `rediss://` URLs, by `rustls`; [`Builder::open`] says what they mean.
//! - `tls-insecure`: such URLs may end with `#insecure`, for servers that cannot be verified.
//!
//! # In Redis
//!
//! A lock is a hash under its own name, with the owner as its one field and the depth as the value:
//! the layout of Redisson's `RLock`, so that either side sees the other's locks. (Neither is woken
//! by the other's release: each looks again when the other's lease would have ended, and leasehold
//! sooner.) The fence is a counter `leasehold:fence:{name}` that lives for a day after its last use,
//! and clients that wait are in the sorted set `leasehold:queue:{name}`.

mod builder;
mod client;
mod clock;
mod config;
mod error;
mod event;
mod failure;
mod guard;
mod local;
mod mutex;
mod net;
mod open;
mod store;
mod sync;
#[cfg(feature = "tls")]
mod tls;

pub use client::{Builder, Client};
pub use config::Durability;
pub use error::{Error, Result, ServerFailure};
pub use event::Event;
pub use guard::Guard;
pub use mutex::Mutex;
pub use store::hold::Holder;
#[cfg(feature = "tls")]
pub use tls::Tls;
