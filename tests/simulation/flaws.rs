//! Flaws of the network and the server. A test plants one at a time, and checks that the simulation
//! finds it. Those of the client are in `tests/mutants`.

use std::cell::Cell;
use std::time::Duration;

use crate::base::clock;
use crate::base::failure::{Failure, FailureKind};
use crate::simulation::network::failure;
use crate::simulation::world::micros;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::AcquireReply;

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
    /// The server's clock runs faster than the drift that leases allow for.
    ClockRuns,
    /// The fence counter is deleted with the hold.
    CounterEndsWithHold,
    /// A server gives the token that its counter shows, unless a greater one is proposed.
    CounterIsGivenAgain,
    /// The server grants a lock that another client holds.
    HeldIsAcquired,
    /// A held lock is reported as an outage.
    HeldIsOutage,
    /// A lease ends on the server after half of its time.
    LeaseIsHalved,
    /// Messages reach another client.
    MessagesGoAstray,
    /// No client is registered as waiting.
    NeverRegisters,
    /// No client is ever woken.
    NoWakeUps,
    /// A failed request counts as contention.
    OutageIsHeld,
    /// The server admits one holder too many.
    PermitTooMany,
    /// A client that no longer waits stays registered.
    PlacesAreKept,
    /// A server gives the proposed token, whatever its counter shows.
    ProposalIsGiven,
    /// A server raises its counter whether or not it has the hold, and says so.
    RaiseIsUnchecked,
    /// A counter is set to the hold's token even if it shows a greater one.
    RaiseLowers,
    /// One server of a quorum raises its counter, and all say so.
    RaiseOfAMinority,
    /// A refused request counts as contention.
    RefusalIsHeld,
    /// A refused request counts as granted.
    RefusalIsSuccess,
    /// The server reports a hold as released without releasing it.
    ReleaseDoesNothing,
    /// A release ends any hold of the name.
    ReleaseEndsAny,
    /// The server reports a hold as renewed without renewing it.
    RenewalDoesNothing,
    /// One server of a quorum renews a hold, and all say so.
    RenewalOfAMinority,
    /// A renewal renews any hold of the name.
    RenewalRenewsAny,
    /// A renewal recreates a hold that is gone.
    RenewalRevives,
    /// A server always repeats its first report of a name.
    ReportIsOld,
    /// A quorum server that has lost its data comes back before a lease has passed.
    ReturnsTooSoon,
    /// A request counts as replicated although no acknowledgement came in time.
    ShortfallIsSuccess,
    /// A request for several locks gets only the free ones.
    ServerGrantsPart,
    /// Tokens do not grow.
    StaleFence,
    /// A request without a reply never times out.
    TimeoutIsMissing,
    /// Tokens follow the clock even when it is set back.
    TokenIsClock,
    /// A client is told that its release has failed, although it was executed.
    UnconfirmedRelease,
    /// A client that got a lock from other servers of a quorum still waits at this one.
    WaitsElsewhere,
    /// A writer is admitted as a reader.
    WritersAreReaders,
}

thread_local! {
    static PLANTED: Cell<Option<Flaw>> = const { Cell::new(None) };
}

pub(super) fn flawed(flaw: Flaw) -> bool {
    planted() == Some(flaw)
}

pub(super) fn planted() -> Option<Flaw> {
    PLANTED.get()
}

/// Plants a flaw in all simulations of this thread.
pub(super) fn plant(flaw: Option<Flaw>) {
    PLANTED.set(flaw);
}

/// Changes a request for holds.
pub(super) fn change_asked(holds: &mut [HoldId], lease: &mut Duration) {
    match planted() {
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

/// Changes how the server executes a request for holds.
pub(super) fn change_granted(
    reply: Result<AcquireReply, Failure>,
) -> Result<AcquireReply, Failure> {
    match (planted(), reply) {
        (Some(Flaw::TokenIsClock), Ok(AcquireReply::Acquired { others, wanted, .. })) => {
            let fence = micros(clock::unix_time());
            Ok(AcquireReply::Acquired { fence, others, room: 0, wanted })
        }
        (Some(Flaw::RefusalIsHeld), Err(failure)) if failure.kind == FailureKind::Rejected => {
            Ok(nothing_known())
        }
        (Some(Flaw::RefusalIsSuccess), Err(failure)) if failure.kind == FailureKind::Rejected => {
            let (fence, others, room, wanted) = (micros(clock::unix_time()), Vec::new(), 0, false);
            Ok(AcquireReply::Acquired { fence, others, room, wanted })
        }
        (_, reply) => reply,
    }
}

/// Changes the reply to a request for holds.
pub(super) fn change_acquired(
    reply: Result<AcquireReply, Failure>,
) -> Result<AcquireReply, Failure> {
    match (planted(), reply) {
        (Some(Flaw::HeldIsAcquired), Ok(AcquireReply::Held { .. })) => Ok(AcquireReply::Acquired {
            fence: 1 << 52,
            others: Vec::new(),
            room: 0,
            wanted: false,
        }),
        (Some(Flaw::HeldIsOutage), Ok(AcquireReply::Held { .. })) => {
            Err(failure(FailureKind::Unreachable))
        }
        (Some(Flaw::OutageIsHeld), Err(_)) => Ok(nothing_known()),
        (Some(Flaw::StaleFence), Ok(AcquireReply::Acquired { others, room, wanted, .. })) => {
            Ok(AcquireReply::Acquired { fence: 7, others, room, wanted })
        }
        (_, reply) => reply,
    }
}

/// Returns the plain reply that a lock is held.
fn nothing_known() -> AcquireReply {
    let (index, remaining, in_doubt, recalled, echoed) = (0, None, false, false, None);
    AcquireReply::Held { index, remaining, in_doubt, recalled, echoed }
}
