//! Flaws that a test plants, to see that the simulation finds them.

use std::cell::Cell;

use crate::base::failure::Failure;
use crate::store::request::AcquireReply;

thread_local! {
    static PLANTED: Cell<Option<Flaw>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// A client is told that it has the lock although another one has it.
    HeldIsAcquired,
    /// No client is ever woken.
    NoWakeUps,
    /// No client is registered as waiting.
    NeverRegisters,
    /// A client that no longer waits stays registered.
    PlacesAreKept,
    /// The server says that it has released a hold, and has not.
    ReleaseDoesNothing,
    /// The server says that it has renewed a hold, and has not.
    RenewalDoesNothing,
    /// Tokens do not grow.
    StaleFence,
}

pub(super) const ALL: [Flaw; 7] = [
    Flaw::HeldIsAcquired,
    Flaw::NoWakeUps,
    Flaw::NeverRegisters,
    Flaw::PlacesAreKept,
    Flaw::ReleaseDoesNothing,
    Flaw::RenewalDoesNothing,
    Flaw::StaleFence,
];

pub(super) fn has(flaw: Flaw) -> bool {
    PLANTED.get() == Some(flaw)
}

pub(super) fn plant(flaw: Option<Flaw>) {
    PLANTED.set(flaw);
}

/// Changes the reply to a request for holds.
pub(super) fn change_acquired(
    reply: Result<AcquireReply, Failure>,
) -> Result<AcquireReply, Failure> {
    match (PLANTED.get(), reply) {
        (Some(Flaw::HeldIsAcquired), Ok(AcquireReply::Held { .. })) => Ok(AcquireReply::Acquired {
            fence: 1 << 52,
            others: Vec::new(),
            room: 0,
            wanted: false,
        }),
        (Some(Flaw::StaleFence), Ok(AcquireReply::Acquired { others, room, wanted, .. })) => {
            Ok(AcquireReply::Acquired { fence: 7, others, room, wanted })
        }
        (_, reply) => reply,
    }
}
