//! The holder of a lock, as shown to users.

use std::fmt;
use std::time::Duration;

/// The holder of a lock. Returned by [`Mutex::holder`](crate::Mutex::holder).
#[derive(Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Holder {
    /// The owner as written in Redis: the client's id, a colon, and a number that differs for each
    /// hold. For a lock held by another library, it is what that library wrote, with `\u{FFFD}` for
    /// invalid UTF-8, cut to 256 bytes.
    pub owner: String,
    /// The [id](crate::Client::id) of the client that holds the lock, including its label: the
    /// owner without the number of the hold. Empty if another library wrote the owner in another
    /// form, because all of that may be a secret.
    pub client: String,
    /// The [label](crate::Builder::label) of that client; empty if it has none.
    pub label: String,
    /// How many nested levels the holder has; 0 if it has released the lock, which stays taken for
    /// the time set by [`hold_at_least`](crate::Mutex::hold_at_least).
    pub depth: u32,
    /// The time until the lease ends, or until the lock no longer stays taken; [`Duration::MAX`] if
    /// that never happens.
    pub remaining: Duration,
    /// The [note](crate::Mutex::note) of the hold, if it has one.
    pub note: Option<String>,
    /// Whether the client renews the lease. It does not with
    /// [`renew(false)`](crate::Builder::renew) or after [`detach`](crate::OwnedGuard::detach).
    /// `false` for another library, about which nothing is known. It does not show whether the
    /// client is still alive.
    pub renewed: bool,
    /// Whether the lock has a [`Ticket`](crate::Ticket) instead of a guard.
    pub detached: bool,
    /// Whether the client that holds the lock may [keep](crate::Builder::keep) it after the last
    /// guard. The lock may then be held without any guard.
    pub may_be_kept: bool,
}

/// The current leader of an election. Returned by [`Election::leader`](crate::Election::leader).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Leader {
    /// The [id](crate::Client::id) of the leading client, including its label.
    pub client: String,
    /// The [label](crate::Builder::label) of that client; empty if it has none.
    pub label: String,
    /// The fencing token of its term.
    pub fence: u64,
    /// The [note](crate::Election::note) of its term, if it has one.
    pub note: Option<String>,
}

/// The id of a client in the output of `Debug`. The id is empty for a client of another library.
pub(crate) struct ShownClient<'a>(pub(crate) &'a str);

impl fmt::Debug for ShownClient<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("another library") } else { write!(f, "{:?}", self.0) }
    }
}

/// Omits the owner, which is all that another client needs to release the lock.
impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("client", &ShownClient(&self.client))
            .field("depth", &self.depth)
            .field("remaining", &self.remaining)
            .field("note", &self.note)
            .field("renewed", &self.renewed)
            .field("detached", &self.detached)
            .field("may_be_kept", &self.may_be_kept)
            .finish_non_exhaustive()
    }
}
