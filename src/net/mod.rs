//! How bytes travel: connections, the threads that share them, and where servers are.
//!
//! ```text
//!   exchange: the thread waits ──▶ multiplexer ◀── post: no thread waits
//!                                    │     ▲
//!        take a connection, or queue │     │ give it back, lend it to a waiting thread, sweep
//!                                    ▼     │
//!                                 shared_queue
//!                                      │ one thread at a time has the connection
//!                                      ▼
//!     writes its own requests, queued ones and, through post_writer, posted ones
//!                                      │ in order
//!                                      ▼
//!                       connection (in_flight, resp, socket)
//!                                      │ replies in the same order
//!                                      ▼
//!             the ReplySlot of a waiting thread, or the callback of a post
//! ```
//!
//! Who does what on a connection:
//!
//! - **Writes.** The thread that has taken the connection from `shared_queue`, along with what
//!   other threads have queued. Where the thread may block, `post_writer` writes the requests that
//!   no thread waits for.
//! - **Reads.** The same thread, until it has its own replies. It hands replies for others to their
//!   slots (`packed`), and then lends the connection to a thread whose replies are still
//!   outstanding.
//! - **Waits.** A thread waits for its slot, or reads. No thread exists only to read: a reply is
//!   read by the thread that waits for it, or by another thread that is already reading.
//! - **Deadlines.** A thread that waits for a reply also fails the posted requests on its
//!   connection that expire in the meantime. A sweep does so on connections on which no thread
//!   waits, and in the queue. A thread that holds unsent requests never waits beyond the earliest
//!   of their deadlines.
//! - **Order.** `in_flight` knows which requests are outstanding, and matches replies to them.
//!
//! Work that cannot be interrupted, such as looking up a host, is done by `shared_call` on threads
//! of its own, and each caller waits for it until its own deadline.

pub(crate) mod connection;
pub(crate) mod demand;
pub(crate) mod endpoint;
pub(crate) mod error_reply;
pub(crate) mod factory;
pub(crate) mod in_flight;
pub(crate) mod multiplexer;
pub(crate) mod packed;
pub(crate) mod pool_thread;
mod post_writer;
pub(crate) mod resp;
pub(crate) mod route;
pub(crate) mod sentinels;
pub(crate) mod server;
pub(crate) mod shared_call;
mod shared_queue;
pub(crate) mod socket;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "tls")]
pub(crate) mod trust;
pub(crate) mod wait;

#[cfg(all(test, leasehold_shuttle))]
#[path = "../../tests/schedules/net.rs"]
mod schedules;
