//! The rules of the protocol, each of them broken in one way. The model must find every flaw.

/// One rule of the protocol that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Further threads of a client get permits that other clients wait for.
    BatchOvertakes,
    /// Further threads of a client get permits without a look at how many are left.
    BatchIsUncounted,
    /// The lease counts from the reply, and not from the request.
    CountsFromReply,
    /// A hold of a server has no end if it is not released.
    LeaseHasNoEnd,
    /// All holds of a client have one number.
    NumberIsReused,
    /// An offer has no end if it is not taken.
    OfferHasNoEnd,
    /// An offered place is free for clients that were not offered it.
    OffersAreIgnored,
    /// A client gets what is free though others wait for it.
    QueueIsIgnored,
    /// A release leaves the hold, until its lease is over.
    ReleaseIsLeft,
    /// A renewal begins a hold that is gone.
    RenewalRevives,
    /// A request that finds its first hold begins the others of its batch too.
    RepeatTakesMore,
    /// All waiting clients are offered a place, however many there are.
    ServesTooMany,
    /// A reader or a writer does not look for the other side.
    SidesAreIgnored,
    /// A waiting client does not ask before it is offered a place.
    WaitsToBeWoken,
    /// A writer has the last token, as readers have.
    WriterKeepsToken,
}
