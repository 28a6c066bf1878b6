//! Names and servers, as the program `leasehold` shows them.

use std::time::Duration;

use crate::error::{Error, Result};
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

/// What each server has replied to a question.
#[doc(hidden)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerReplies<T> {
    /// Each server's address, and its reply.
    pub each: Vec<(String, Result<T>)>,
    /// The first error, if so few servers have replied that no lock can be relied on.
    pub too_few: Option<Error>,
}

/// What a server says of itself.
#[doc(hidden)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerReport {
    /// How long it took to answer.
    pub round_trip: Duration,
    /// By how many seconds the server's clock is ahead of this system's; negative if it is behind.
    pub clock_ahead: f64,
    /// The server's reply to INFO; `None` if the login lacks the right to ask.
    pub info: Option<String>,
}
