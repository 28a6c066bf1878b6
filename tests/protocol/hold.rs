//! What both models call a hold.

/// A hold: whose it is, and which of its client's holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HoldId {
    pub(crate) client: usize,
    pub(crate) nonce: u8,
}
