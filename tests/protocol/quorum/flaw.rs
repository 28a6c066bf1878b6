//! What the protocol takes care not to do. Each flaw must be found out.

/// One rule of the protocol that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A majority makes a guard even when the lease that it granted is over.
    AnswersCountLate,
    /// The counter of tokens goes with the hold.
    CounterEndsWithHold,
    /// A server gives the token that its counter shows, if none greater is proposed.
    CounterIsGivenAgain,
    /// Half of the servers are enough.
    HalfIsEnough,
    /// A hold that was taken back is asked for again.
    NumberIsReused,
    /// A server gives the token that is proposed, whatever its counter shows.
    ProposalIsGiven,
    /// Nothing is raised where the servers of a majority have given different tokens.
    RaiseIsLeftOut,
    /// The counter is raised whether the hold is there or not.
    RaiseIsUnchecked,
    /// The counter is set to the hold's token, also where it shows a greater one.
    RaiseLowers,
    /// One server that has raised its counter is enough.
    RaiseOfAMinority,
    /// One server that has renewed the lease is enough.
    RenewalOfAMinority,
    /// A transfer that is repeated finds the new hold, and does not renew its lease.
    RepeatDoesNotRenew,
    /// A server that has lost its data does not stay away for a lease.
    ReturnsTooSoon,
    /// The hold's token is the smallest that a majority has given.
    TokenIsTheSmallest,
    /// Nothing is raised for a hold that was handed on.
    TransferIsNotRaised,
    /// A hold that was handed on gets the token that the counter shows.
    TransferKeepsToken,
}
