//! The identity of a hold.

/// A hold: its client, and its number among the holds of that client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HoldId {
    pub(crate) client: usize,
    pub(crate) nonce: u8,
}
