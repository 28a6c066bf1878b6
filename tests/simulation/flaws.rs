//! The flaws of the network and the server (`src/base/flaws.rs`).

use std::time::Duration;

use crate::base::clock;
use crate::base::failure::{Failure, FailureKind};
use crate::base::flaws::{self, Flaw};
use crate::simulation::network::failure;
use crate::simulation::world::micros;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::AcquireReply;

/// Changes a request for holds.
pub(super) fn change_asked(holds: &mut [HoldId], lease: &mut Duration) {
    match flaws::planted() {
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

/// Changes what the server does with a request for holds.
pub(super) fn change_granted(
    reply: Result<AcquireReply, Failure>,
) -> Result<AcquireReply, Failure> {
    match (flaws::planted(), reply) {
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
    match (flaws::planted(), reply) {
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

/// Returns the reply that a lock is held, and nothing else.
fn nothing_known() -> AcquireReply {
    let (index, remaining, in_doubt, recalled, echoed) = (0, None, false, false, None);
    AcquireReply::Held { index, remaining, in_doubt, recalled, echoed }
}
