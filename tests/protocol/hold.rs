//! The common part of a hold in several models: its identity and its tokens.

/// A hold: its client, and its number among the holds of that client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HoldId {
    pub(crate) client: usize,
    pub(crate) nonce: u64,
}

/// Tokens for guards that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Block {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Block {
    /// Returns the tokens after the first one.
    pub(crate) fn following(self) -> Option<Self> {
        (self.first < self.last).then_some(Self { first: self.first + 1, ..self })
    }
}
