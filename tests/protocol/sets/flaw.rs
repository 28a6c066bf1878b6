//! The rules of the protocol, each of them broken in one way. The model must find every flaw.

/// One rule of the protocol that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The lease counts from the reply, and not from the request.
    CountsFromReply,
    /// A client has its guard when the first server has granted its part.
    GuardWithPart,
    /// A client keeps what it has while it waits for the lock that is in the way.
    KeepsWhileWaiting,
    /// A hold of a server has no end if it is not released.
    LeaseHasNoEnd,
    /// All holds of a client have one number.
    NumberIsReused,
    /// A release leaves out what the last server has.
    PartIsLeft,
    /// A server grants what is free of the locks that it is asked for.
    TakesPart,
}
