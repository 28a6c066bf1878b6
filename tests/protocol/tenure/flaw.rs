//! The rules of the protocol, each of them broken in one way. The model must find every flaw.

/// One rule of the protocol that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The counter shows the first token of a block, and not the last one.
    BlockIsNotReserved,
    /// The lease counts from the reply, and not from the request.
    CountsFromReply,
    /// A tenure is handed off whose release was sent.
    HandsOffInDoubt,
    /// A tenure is handed off after its deadline, and its lease counts anew.
    HandsOffLate,
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
    /// A release ends whatever hold there is.
    ReleaseIsUnchecked,
    /// A request that finds its own hold counts as one more.
    RepeatIsCounted,
    /// A waiting client does not ask before it is woken.
    WaitsToBeWoken,
}
