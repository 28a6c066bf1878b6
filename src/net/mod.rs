//! How bytes travel: connections, the threads that share them, and where servers are.

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
#[cfg_attr(not(unix), path = "no_socket.rs")]
pub(crate) mod socket;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "tls")]
pub(crate) mod trust;
pub(crate) mod wait;

#[cfg(all(test, leasehold_shuttle))]
#[path = "../../tests/schedules/net.rs"]
mod schedules;
