//! The identities of the client, of its holds, of threads and of the process.
//!
//! Decides what makes a hold unique, and whether a thread still exists. Knows nothing of locks.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use crate::config::check_label;
use crate::error::{Error, Result};
use crate::store::hold_id::{HoldId, HoldKind};

/// The identity of a client.
#[derive(Debug)]
pub(crate) struct Identity {
    client: Arc<str>,
    nonces: AtomicU64,
    process: u32,
}

impl Identity {
    /// A new identity: the label, if any, and 128 random bits.
    pub(crate) fn new(label: &str) -> Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| Error::system("read random bytes", error))?;
        let id = u128::from_ne_bytes(random);
        let client =
            if label.is_empty() { format!("{id:032x}") } else { format!("{label}:{id:032x}") };
        Ok(Self { client: client.into(), nonces: AtomicU64::new(1), process: process::id() })
    }

    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// Returns the id of a new hold.
    pub(crate) fn next_hold(&self, kind: HoldKind, name: &Arc<str>) -> HoldId {
        HoldId {
            kind,
            name: name.clone(),
            client: self.client.clone(),
            nonce: self.nonces.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Fails in a forked child, which shares the parent's sockets and identity but none
    /// of its threads.
    pub(crate) fn check_process(&self) -> Result<()> {
        if process::id() == self.process { Ok(()) } else { Err(Error::Forked) }
    }
}

/// Returns `true` if a client can have this id.
pub(crate) fn is_client_id(id: &str) -> bool {
    let (label, random) = id.rsplit_once(':').unwrap_or(("", id));
    let is_random = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    random.len() == 32 && random.bytes().all(is_random) && check_label(label).is_ok()
}

thread_local! {
    static ALIVE: Arc<()> = Arc::new(());
}

/// A thread, and whether it still exists.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) id: ThreadId,
    alive: Weak<()>,
}

impl Thread {
    /// The calling thread. In a destructor of a thread-local it may count as ended: then a lease
    /// taken there is not renewed.
    pub(crate) fn current() -> Self {
        let alive = ALIVE.try_with(Arc::downgrade).unwrap_or_default();
        Self { id: thread::current().id(), alive }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.strong_count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_clients_and_holds_are_all_different() {
        let (a, b) = (Identity::new("").expect("random"), Identity::new("web").expect("random"));
        let name = Arc::from("x");
        assert_ne!(a.client(), b.client());
        assert_ne!(
            a.next_hold(HoldKind::Lock, &name).owner(),
            a.next_hold(HoldKind::Lock, &name).owner()
        );
        assert!(b.client().starts_with("web:"));
        assert!(b.next_hold(HoldKind::Lock, &name).owner().starts_with(b.client()));
        assert_eq!(a.client().len(), 32);
        assert!(is_client_id(a.client()) && is_client_id(b.client()));
    }

    #[test]
    fn a_thread_is_alive_until_it_ends() {
        let ended = thread::spawn(Thread::current).join().expect("no panic");
        assert!(!ended.is_alive());
        assert!(Thread::current().is_alive());
    }
}
