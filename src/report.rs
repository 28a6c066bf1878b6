//! Names and servers, as the program `leasehold` shows them.

use std::time::Duration;

use crate::holder::Holder;

/// What a hold is a hold of.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldAs {
    /// A string, which is a lock of another library.
    Foreign,
    /// A lock.
    Lock,
    /// A permit of a semaphore.
    Permit,
    /// The side of a read-write lock that readers share.
    Reader,
    /// The other side.
    Writer,
}

/// Who holds a name, of whatever kind it is, and which clients wait for it.
#[doc(hidden)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NameReport {
    /// None if the name is free.
    pub holds: Vec<(HeldAs, Holder)>,
    /// The last fencing token of the name; `None` if it has no counter now.
    pub fence: Option<u64>,
    /// The [ids](crate::Client::id) of the clients in the queue, the first one first.
    pub waiting: Vec<String>,
}

/// What a server says of itself.
#[doc(hidden)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerReport {
    /// The server's address.
    pub address: String,
    /// How long it took to answer.
    pub round_trip: Duration,
    /// By how many seconds the server's clock is ahead of this system's; negative if it is behind.
    pub clock_ahead: f64,
    /// The server's reply to INFO; `None` if the login lacks the right to ask.
    pub info: Option<String>,
}
