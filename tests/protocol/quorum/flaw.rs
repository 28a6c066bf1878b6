//! The rules of the protocol, each broken in one way. The model must find every flaw.

/// A broken rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A server counts only up to the first token of a block.
    BlockIsNotStored,
    /// A block is used although only a minority has given its first token.
    BlockOfAMinority,
    /// The longest block that any server has given is used.
    BlockOfOneServer,
    /// Grants of a majority make a guard even when their lease is over.
    LateRepliesCount,
    /// The counter of tokens ends with the hold.
    CounterEndsWithHold,
    /// A server gives the token that its counter shows, unless a greater one is proposed.
    CounterIsGivenAgain,
    /// Half of the servers are enough.
    HalfIsEnough,
    /// An undone hold is requested again under its number.
    NumberIsReused,
    /// A server gives the proposed token, whatever its counter shows.
    ProposalIsGiven,
    /// No counter is raised when the servers of a majority have given different tokens.
    RaiseIsLeftOut,
    /// A counter is raised whether or not the hold is there.
    RaiseIsUnchecked,
    /// A counter is set to the hold's token even if it shows a greater one.
    RaiseLowers,
    /// One server that has raised its counter is enough.
    RaiseOfAMinority,
    /// One server that has renewed the lease is enough.
    RenewalOfAMinority,
    /// A server that has lost its data does not stay away for a lease.
    ReturnsTooSoon,
    /// The hold's token is the smallest that a majority has given.
    TokenIsTheSmallest,
}
