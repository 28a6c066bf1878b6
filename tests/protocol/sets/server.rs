//! The effects of `acquire_all.lua` on the locks of a server.

use crate::hold::HoldId;
use crate::sets::flaw::Flaw;

/// Begins or finds a hold of all these locks, or begins none and returns the first lock that is
/// held. Each lock has its hold, and the request that has set its lease.
pub(crate) fn acquire(
    locks: &mut [Option<(HoldId, u64)>],
    asked: &[usize],
    hold: HoldId,
    round: u64,
    flaw: Option<Flaw>,
) -> Result<(), usize> {
    let is_taken = |lock: Option<(HoldId, u64)>| lock.is_some_and(|(found, _)| found != hold);
    let taken = asked.iter().copied().find(|name| is_taken(locks[*name]));
    for name in asked {
        if (taken.is_none() || flaw == Some(Flaw::TakesPart)) && !is_taken(locks[*name]) {
            let last = locks[*name].map_or(0, |(_, last)| last);
            locks[*name] = Some((hold, round.max(last)));
        }
    }
    taken.map_or(Ok(()), Err)
}
