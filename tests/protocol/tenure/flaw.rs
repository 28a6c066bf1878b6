//! The rules of the protocol, each of them broken in one way. The model must find every flaw.

/// One rule of the protocol that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The counter shows the first token of a block, and not the last one.
    BlockIsNotReserved,
    /// A lock is kept with the tokens that its tenure had, and used without asking for more.
    BlockIsOverdrawn,
    /// The lease counts from the reply, and not from the request.
    CountsFromReply,
    /// A tenure is handed off whose release was sent.
    HandsOffInDoubt,
    /// A tenure is handed off after its deadline, and its lease counts anew.
    HandsOffLate,
    /// A kept lock is used after an operator has ended its tenure, and its client was told.
    KeptIsUsedAfterItsEnd,
    /// A kept lock is used after its deadline, and its lease counts anew.
    KeptIsUsedLate,
    /// A hold of a server has no end if it is not released.
    LeaseHasNoEnd,
    /// A release offers the lock to no client.
    NothingIsOffered,
    /// All tenures of a client have one number.
    NumberIsReused,
    /// An offer has no end if it is not taken.
    OfferHasNoEnd,
    /// The lock is free for other clients than that which was offered it.
    OffersAreIgnored,
    /// The reply that grants more tokens does not show whether another client waits.
    RefillHidesWaiters,
    /// A message that another client waits has no effect while the lock is kept.
    RecallIsIgnored,
    /// A client that waits for a kept lock asks for it once.
    RecallIsNotRepeated,
    /// A release ends whatever hold there is.
    ReleaseIsUnchecked,
    /// A request that finds its own hold counts as one more.
    RepeatIsCounted,
    /// A waiting client does not ask before it is woken.
    WaitsToBeWoken,
    /// A message that another client waits has no effect if it overtakes the reply that grants the
    /// lock.
    WantedTooEarly,
}
