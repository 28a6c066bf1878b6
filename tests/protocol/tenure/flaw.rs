//! The rules of the protocol, each broken in one way. The model must find every flaw.

/// A broken rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The counter shows the first token of a block, and not the last one.
    BlockIsNotReserved,
    /// A lock is kept with the tokens of its tenure, and used without asking for more.
    BlockIsOverdrawn,
    /// The lease counts from the reply, and not from the request.
    CountsFromReply,
    /// A tenure is handed off after its release was sent.
    HandsOffInDoubt,
    /// A tenure is handed off after its deadline, and its lease starts again.
    HandsOffLate,
    /// A kept lock is used after an operator has ended its tenure, and its client was told.
    KeptIsUsedAfterItsEnd,
    /// A kept lock is used after its deadline, and its lease starts again.
    KeptIsUsedLate,
    /// A hold at a server has no end unless it is released.
    LeaseHasNoEnd,
    /// A release offers the lock to no client.
    NothingIsOffered,
    /// All tenures of a client have one number.
    NumberIsReused,
    /// An offer has no end unless it is taken.
    OfferHasNoEnd,
    /// An offered lock is free for other clients too.
    OffersAreIgnored,
    /// The reply that grants more tokens does not show whether another client waits.
    RefillHidesWaiters,
    /// A message that another client waits has no effect while the lock is kept.
    RecallIsIgnored,
    /// A client that waits for a kept lock asks for it once.
    RecallIsNotRepeated,
    /// A release ends any hold that exists.
    ReleaseIsUnchecked,
    /// A request that finds its own hold counts as one more.
    RepeatIsCounted,
    /// A waiting client does not ask before it is woken.
    WaitsToBeWoken,
    /// A message that another client waits has no effect if it overtakes the reply that grants the
    /// lock.
    WantedTooEarly,
}
