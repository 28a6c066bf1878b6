//! What the program `leasehold` and errors show of names and servers.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::guards::holder::Holder;

/// The kind of a hold.
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
    /// The key of a lock of that name.
    pub key: String,
    /// Empty if the name is free.
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
    /// How many must reply, or else no lock can be relied on.
    pub required: usize,
}

impl<T> ServerReplies<T> {
    /// Returns the first error, if too few servers have replied.
    #[must_use]
    pub fn too_few(&self) -> Option<&Error> {
        let errors = || self.each.iter().filter_map(|(_, reply)| reply.as_ref().err());
        let replied = self.each.len() - errors().count();
        errors().next().filter(|_| replied < self.required)
    }
}

/// What a server reports about itself.
#[doc(hidden)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerReport {
    /// How long it took to answer.
    pub round_trip: Duration,
    /// How long the slowest of some replies took.
    pub slowest: Duration,
    /// By how many seconds the server's clock is ahead of this system's; negative if it is behind.
    /// `None` for a sentinel, which does not tell the time.
    pub clock_ahead: Option<f64>,
    /// The server's reply to INFO; `None` if the login lacks the right to ask.
    pub info: Option<String>,
    /// The reply to CLUSTER INFO of a node of a cluster; `None` if the login lacks the right.
    pub cluster_info: Option<String>,
}

/// Escapes what a terminal would obey, or a log would take for another line, in a text from a
/// server.
#[doc(hidden)]
#[must_use]
pub fn printable(text: &str) -> String {
    let escape = |char: char| char.is_control().then(|| char.escape_default().to_string());
    text.chars().map(|char| escape(char).unwrap_or_else(|| char.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_terminal_obeys_a_text_of_a_server() {
        assert_eq!(printable("a\u{1b}[2J\nb \u{1f409}"), "a\\u{1b}[2J\\nb \u{1f409}");
    }
}
