//! The rules of the protocol, each broken in one way. The model must find every flaw.

/// A broken rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Further threads of a client get permits that other clients wait for.
    BatchOvertakes,
    /// Further threads of a client get permits without a check of how many are left.
    BatchIsUncounted,
    /// The lease counts from the reply, and not from the request.
    CountsFromReply,
    /// A hold at a server has no end unless it is released.
    LeaseHasNoEnd,
    /// All holds of a client have one number.
    NumberIsReused,
    /// An offer has no end unless it is taken.
    OfferHasNoEnd,
    /// An offered place is free for clients that were not offered it.
    OffersAreIgnored,
    /// A client gets what is free although others wait for it.
    QueueIsIgnored,
    /// A release leaves the hold until its lease is over.
    ReleaseIsLeft,
    /// A renewal begins a hold that is gone.
    RenewalRevives,
    /// A request that finds its first hold also begins the others of its batch.
    RepeatTakesMore,
    /// All waiting clients are offered a place, however many they are.
    ServesTooMany,
    /// A reader or a writer ignores the other side.
    SidesAreIgnored,
    /// A waiting client does not ask before it is offered a place.
    WaitsToBeWoken,
    /// A writer gets the last token, as readers do.
    WriterKeepsToken,
}
