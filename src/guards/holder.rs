//! Who holds a lock, as shown to users.

use std::fmt;
use std::time::Duration;

use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::DETACHED;

/// The holder of a lock. Returned by [`Mutex::holder`](crate::Mutex::holder).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner as written in Redis: the client's id, a colon, and a number that differs for each
    /// hold. For a lock held by another library, it is what that library wrote, with `\u{FFFD}` for
    /// invalid UTF-8, cut to 256 bytes.
    pub owner: String,
    /// The [id](crate::Client::id) of the client that holds the lock, including its label: the
    /// owner without the number of the hold. Empty if another library wrote an owner of another
    /// form, all of which may be secret.
    pub client: String,
    /// The [label](crate::Builder::label) of that client; empty if it has none.
    pub label: String,
    /// How many nested levels the holder has; 0 if it has released the lock, which stays taken for
    /// the time set by [`hold_at_least`](crate::Mutex::hold_at_least).
    pub depth: u32,
    /// The time until the lease ends, or until the lock no longer stays taken; [`Duration::MAX`] if
    /// that never happens.
    pub remaining: Duration,
    /// Whether the client renews the lease: not with [`renew(false)`](crate::Builder::renew) or
    /// after [`detach`](crate::OwnedGuard::detach). `false` for another library, of which nothing
    /// is known. A client that has died renews nothing, whatever this says.
    pub renewed: bool,
    /// Whether the lock has no guard, but a [`Ticket`](crate::Ticket).
    pub detached: bool,
    /// Whether the client that holds the lock may [keep](crate::Builder::keep) it after the last
    /// guard. The lock may then be held without any guard.
    pub may_be_kept: bool,
}

/// The current leader of an election. Returned by [`Election::leader`](crate::Election::leader).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The [id](crate::Client::id) of the leading client, including its label.
    pub client: String,
    /// The [label](crate::Builder::label) of that client; empty if it has none.
    pub label: String,
    /// The fencing token of its term.
    pub fence: u64,
}

impl Holder {
    pub(crate) fn new(owner: String, depth: u32, remaining: Duration) -> Self {
        let (client, label) = client_of(&owner);
        let id = HoldId::of_owner(owner.as_bytes(), HoldKind::Lock, "");
        let may_be_kept = id.as_ref().is_some_and(HoldId::may_be_kept);
        let detached = depth == DETACHED;
        let renewed = id.as_ref().is_some_and(HoldId::is_renewed) && depth > 0 && !detached;
        let depth = if detached { 1 } else { depth };
        let (client, label) = (client.into(), label.into());
        Self { owner, client, label, depth, remaining, renewed, detached, may_be_kept }
    }
}

impl Leader {
    pub(crate) fn new(owner: &str, fence: u64) -> Self {
        let (client, label) = client_of(owner);
        Self { client: client.into(), label: label.into(), fence }
    }
}

/// The client of an owner, and the client's label.
fn client_of(owner: &str) -> (&str, &str) {
    let is_nonce = |nonce: &str| nonce.bytes().all(|byte| byte.is_ascii_hexdigit());
    match owner.rsplit_once(':') {
        Some((client, nonce)) if is_nonce(nonce) => {
            (client, client.rsplit_once(':').map_or("", |(label, _)| label))
        }
        _ => ("", ""),
    }
}

/// Leaves out the owner, which is all that another client would need to release the lock.
impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("client", &self.client)
            .field("depth", &self.depth)
            .field("remaining", &self.remaining)
            .field("renewed", &self.renewed)
            .field("detached", &self.detached)
            .field("may_be_kept", &self.may_be_kept)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_names_its_client_and_label() {
        let holder = |owner: &str| {
            let holder = Holder::new(owner.into(), 1, Duration::ZERO);
            (holder.client, holder.label)
        };
        assert_eq!(holder("web:1:0a1b:7"), ("web:1:0a1b".into(), "web:1".into()));
        assert_eq!(holder("0a1b:7"), ("0a1b".into(), String::new()));
        assert_eq!(holder("a token"), (String::new(), String::new()));
        assert_eq!(holder("a:secret"), (String::new(), String::new()));
    }
}
