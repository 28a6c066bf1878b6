//! The rules of the protocol, each broken in one way. The model must find every flaw.

/// A broken rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// An adoption begins the hold if it is gone.
    AdoptionBegins,
    /// An adoption renews any hold that exists.
    AdoptionIsUnchecked,
    /// The lease of an adopted hold counts from the reply, and not from the request.
    CountsFromReply,
    /// A hold without a guard has no end.
    LeftHoldHasNoEnd,
    /// The process that has detached a hold keeps its guard.
    OwnerKeepsGuard,
    /// A renewal shortens the remaining time: the lease is that of the last renewal to arrive.
    RenewalShortens,
    /// A release ends any hold that exists.
    ReleaseIsUnchecked,
}
