//! Flaws that a test plants, to see that the simulation finds them.

use std::cell::Cell;
use std::time::Duration;

use crate::base::failure::{Failure, FailureKind};
use crate::simulation::network::failure;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::AcquireReply;

thread_local! {
    static PLANTED: Cell<Option<Flaw>> = const { Cell::new(None) };
}

/// Declares the flaws, and a list of all.
macro_rules! flaws {
    ($($(#[$doc:meta])* $flaw:ident,)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Flaw {
            $($(#[$doc])* $flaw,)+
        }

        pub(super) const ALL: &[Flaw] = &[$(Flaw::$flaw,)+];
    };
}

flaws! {
    /// A client is told that it has the lock although another one has it.
    HeldIsAcquired,
    /// A held lock is reported as an outage.
    HeldIsOutage,
    /// A lease ends at the server after half of its time.
    LeaseIsHalved,
    /// Messages reach another client.
    MessagesGoAstray,
    /// No client is registered as waiting.
    NeverRegisters,
    /// No client is ever woken.
    NoWakeUps,
    /// A failed request counts as one that has found the lock held.
    OutageIsHeld,
    /// The server admits one holder more than there are permits.
    PermitTooMany,
    /// A client that no longer waits stays registered.
    PlacesAreKept,
    /// The server says that it has released a hold, and has not.
    ReleaseDoesNothing,
    /// A release ends whatever hold there is.
    ReleaseEndsAny,
    /// The server says that it has renewed a hold, and has not.
    RenewalDoesNothing,
    /// Tokens do not grow.
    StaleFence,
    /// A request without a reply never times out.
    TimeoutIsMissing,
    /// Nobody tells a client that its release was confirmed.
    UnconfirmedRelease,
    /// A writer is admitted as a reader.
    WritersAreReaders,
}

pub(super) fn has(flaw: Flaw) -> bool {
    PLANTED.get() == Some(flaw)
}

pub(super) fn planted() -> Option<Flaw> {
    PLANTED.get()
}

pub(super) fn plant(flaw: Option<Flaw>) {
    PLANTED.set(flaw);
}

/// Changes a request for holds.
pub(super) fn change_asked(holds: &mut [HoldId], lease: &mut Duration) {
    match PLANTED.get() {
        Some(Flaw::LeaseIsHalved) => *lease /= 2,
        Some(Flaw::PermitTooMany) => holds.iter_mut().for_each(|hold| {
            if let HoldKind::Permit { of } = &mut hold.kind {
                *of += 1;
            }
        }),
        Some(Flaw::WritersAreReaders) => holds.iter_mut().for_each(|hold| {
            if hold.kind == HoldKind::Write {
                hold.kind = HoldKind::Read;
            }
        }),
        _ => {}
    }
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
        (Some(Flaw::HeldIsOutage), Ok(AcquireReply::Held { .. })) => {
            Err(failure(FailureKind::Unreachable))
        }
        (Some(Flaw::OutageIsHeld), Err(_)) => {
            let (index, remaining, in_doubt, recalled) = (0, None, false, false);
            Ok(AcquireReply::Held { index, remaining, in_doubt, recalled })
        }
        (Some(Flaw::StaleFence), Ok(AcquireReply::Acquired { others, room, wanted, .. })) => {
            Ok(AcquireReply::Acquired { fence: 7, others, room, wanted })
        }
        (_, reply) => reply,
    }
}
