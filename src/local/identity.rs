//! The identities of the client, of its holds and of the process.
//!
//! Decides what makes a client unique. Knows nothing of locks.

use std::process;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::config::check_label;
use crate::error::{Error, Result};

/// The identity of a client.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) client: Arc<str>,
    /// The number of the next hold.
    pub(super) nonces: AtomicU64,
    /// The process that has opened the client.
    pub(super) process: u32,
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
}

/// Returns `true` if a client can have this id.
pub(crate) fn is_client_id(id: &str) -> bool {
    let (label, random) = id.rsplit_once(':').unwrap_or(("", id));
    let is_random = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    random.len() == 32 && random.bytes().all(is_random) && check_label(label).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_different_ids() {
        let (a, b) = (Identity::new("").expect("random"), Identity::new("web").expect("random"));
        assert_ne!(a.client, b.client);
        assert!(b.client.starts_with("web:"));
        assert_eq!(a.client.len(), 32);
        assert!(is_client_id(&a.client) && is_client_id(&b.client));
    }
}
