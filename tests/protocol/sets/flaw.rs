//! The rules of the protocol, each broken in one way. The model must find every flaw.

/// A broken rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The lease counts from the reply, and not from the request.
    CountsFromReply,
    /// A client has its guard when the first server has granted its part.
    GuardWithPart,
    /// A client keeps what it has while it waits for the lock that is held.
    KeepsWhileWaiting,
    /// A hold at a server has no end unless it is released.
    LeaseHasNoEnd,
    /// All holds of a client have one number.
    NumberIsReused,
    /// A release omits the locks of the last server.
    PartIsLeft,
    /// A server grants those of the requested locks that are free.
    TakesPart,
}
