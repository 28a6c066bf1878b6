//! The rules of the protocol, each of them broken in one way. The model must find every flaw.

/// One rule of the protocol that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// An adoption begins the hold if it is gone.
    AdoptionBegins,
    /// An adoption renews whatever hold there is.
    AdoptionIsUnchecked,
    /// The lease of an adopted hold counts from the reply, and not from the request.
    CountsFromReply,
    /// A hold without a guard has no end.
    LeftHoldHasNoEnd,
    /// The process that has left a hold keeps its guard.
    OwnerKeepsGuard,
    /// A renewal shortens what is left: the lease is that of the last one to arrive.
    RenewalShortens,
    /// A release ends whatever hold there is.
    ReleaseIsUnchecked,
}
