//! The identity of a hold, and what the store shows of its holder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a hold is a hold of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldKind {
    /// A lock, which one owner can hold.
    Lock,
    /// One of so many permits of a semaphore.
    Permit { of: u32 },
    /// A read-write lock, along with other readers.
    Read,
    /// A read-write lock, alone.
    Write,
}

/// The identity of one hold of one lock. No other hold ever has the same id.
#[derive(Clone)]
pub(crate) struct HoldId {
    pub(crate) kind: HoldKind,
    pub(crate) name: Arc<str>,
    pub(crate) client: Arc<str>,
    /// Unique in the client.
    pub(crate) nonce: u64,
}

impl HoldId {
    /// The owner as it is written to Redis.
    pub(crate) fn owner(&self) -> String {
        format!("{}:{:x}", self.client, self.nonce)
    }
}

/// Leaves out the nonce, which is all that another client would need to release the lock.
impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldId").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The holder of a lock. Returned by [`Mutex::holder`](crate::Mutex::holder).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner as it is written in Redis: the client's id, a colon, and a number that is
    /// different for each hold. For a lock held by Redisson, it is what Redisson wrote.
    pub owner: String,
    /// The [id](crate::Client::id) of the client that holds the lock, its label included: the owner
    /// without the part that is different for each hold.
    pub client: String,
    /// The [label](crate::Builder::label) of that client; empty if it has none.
    pub label: String,
    /// How many levels deep the holder has locked.
    pub depth: u32,
    /// The time until the lease ends, or [`Duration::MAX`] if it never does.
    pub remaining: Duration,
    /// The last fencing token of the name.
    pub(crate) fence: u64,
}

/// The leader that an election has now. Returned by
/// [`Election::leader`](crate::Election::leader).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The [id](crate::Client::id) of the client that leads, its label included.
    pub client: String,
    /// The [label](crate::Builder::label) of that client; empty if it has none.
    pub label: String,
    /// The fencing token of its term.
    pub fence: u64,
}

impl Holder {
    pub(crate) fn new(owner: String, depth: u32, remaining: Duration, fence: u64) -> Self {
        let client = owner.rsplit_once(':').map_or(owner.as_str(), |(client, _)| client);
        let label = client.rsplit_once(':').map_or("", |(label, _)| label);
        Self { client: client.into(), label: label.into(), owner, depth, remaining, fence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_names_its_client_and_label() {
        let holder = |owner: &str| {
            let holder = Holder::new(owner.into(), 1, Duration::ZERO, 1);
            (holder.client, holder.label)
        };
        assert_eq!(holder("web:1:0a1b:7"), ("web:1:0a1b".into(), "web:1".into()));
        assert_eq!(holder("0a1b:7"), ("0a1b".into(), String::new()));
        assert_eq!(holder("a token"), ("a token".into(), String::new()));
    }
}
