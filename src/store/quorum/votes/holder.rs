//! Which holder the servers of a quorum name.

use std::time::Duration;

use crate::failure::{Failure, FailureKind};
use crate::store::hold::Holder;
use crate::store::quorum::votes::Votes;

/// Decides which holder has a majority, if any can.
pub(in super::super) fn decide_holder(
    votes: &Votes<Option<Holder>>,
) -> Option<Result<Option<Holder>, Failure>> {
    let holders: Vec<&Holder> = votes.answers().filter_map(Option::as_ref).collect();
    let count = |owner: &str| holders.iter().filter(|other| other.owner == owner).count();
    let best = holders.iter().max_by_key(|holder| count(&holder.owner));
    let most = best.map_or(0, |holder| count(&holder.owner));
    if let Some(best) = best.filter(|_| most >= votes.required()) {
        let same: Vec<_> =
            holders.iter().filter(|other| other.owner == best.owner).copied().collect();
        return Some(Ok(Some(summary(&same, votes.required()))));
    }
    if most + votes.pending() >= votes.required() {
        return None;
    }
    let wrong = votes.count_failures(FailureKind::WrongType);
    if !votes.outvoted_by(wrong) && votes.answers().count() + wrong >= votes.required() {
        return Some(Ok(None));
    }
    votes.unanswered(most).map(Err)
}

/// What at least `required` servers that name the same holder reply: the depth that most of them
/// know, and the time until they are no majority any more.
fn summary(same: &[&Holder], required: usize) -> Holder {
    let mut depths: Vec<u32> = same.iter().map(|holder| holder.depth).collect();
    depths.sort_unstable();
    let mut leases: Vec<Duration> = same.iter().map(|holder| holder.remaining).collect();
    leases.sort_unstable_by(|one, other| other.cmp(one));
    let fence = same.iter().map(|holder| holder.fence).max().unwrap_or(0);
    Holder::new(same[0].owner.clone(), depths[depths.len() / 2], leases[required - 1], fence)
}
