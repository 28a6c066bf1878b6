//! Which holder the servers of a quorum name.

use std::time::Duration;

use crate::base::failure::Failure;
use crate::store::quorum::votes::Votes;
use crate::store::request::HolderReply;

/// Decides which holder has a majority, if any can.
pub(in super::super) fn decide_holder(
    votes: &Votes<Option<HolderReply>>,
) -> Option<Result<Option<HolderReply>, Failure>> {
    let holders: Vec<&HolderReply> = votes.answers().filter_map(Option::as_ref).collect();
    let count = |owner: &[u8]| holders.iter().filter(|other| other.owner == owner).count();
    let best = holders.iter().max_by_key(|holder| count(&holder.owner));
    let most = best.map_or(0, |holder| count(&holder.owner));
    if let Some(best) = best.filter(|_| most >= votes.required()) {
        let same: Vec<_> =
            holders.iter().filter(|other| other.owner == best.owner).copied().collect();
        return Some(Ok(Some(summary(&same, votes.required()))));
    }
    if most + votes.pending() >= votes.required() || votes.may_be_wrong() {
        return None;
    }
    let wrong = votes.count_wrong();
    if !votes.outvoted_by(wrong) && votes.answers().count() + wrong >= votes.required() {
        return Some(Ok(None));
    }
    votes.unanswered(most).map(Err)
}

/// What at least `required` servers that name the same holder reply: the depth that most of them
/// know, and the time until they are no majority any more.
fn summary(same: &[&HolderReply], required: usize) -> HolderReply {
    let mut depths: Vec<u32> = same.iter().map(|holder| holder.depth).collect();
    depths.sort_unstable();
    let mut leases: Vec<Duration> = same.iter().map(|holder| holder.remaining).collect();
    leases.sort_unstable_by(|one, other| other.cmp(one));
    let fence = same.iter().map(|holder| holder.fence).max().unwrap_or(0);
    HolderReply {
        owner: same[0].owner.clone(),
        depth: depths[depths.len() / 2],
        remaining: leases[required - 1],
        fence,
    }
}
