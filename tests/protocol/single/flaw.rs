//! What the protocol takes care not to do. Each flaw must be found out.

/// One rule of the protocol that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// One answer to a clean-up settles what a request that is still under way may begin.
    CleanUpStopsEarly,
    /// The local deadline counts from the reply instead of from the request.
    DeadlineFromReply,
    /// The local deadline leaves no room for the drift of clocks.
    DeadlineWithoutDrift,
    /// A level more adds one, a level less takes one away.
    DepthIsCounted,
    /// The next fence is the last and one, whatever the server's clock says.
    FenceIsCounted,
    /// A renewal that comes too late is taken in nonetheless.
    LostIsRenewed,
    /// An owner is a client, and its holds have no numbers.
    OwnerIsTheClient,
    /// A renewal that finds no hold makes one.
    RenewalCreates,
    /// A transfer that finds nothing settles what one that was sent before it may do.
    TransferIsForgotten,
    /// A hold that was handed on keeps the fence of the one before.
    TransferKeepsFence,
}
