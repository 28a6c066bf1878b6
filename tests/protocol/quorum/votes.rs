//! What the answers of servers amount to.

use std::collections::BTreeSet;

use crate::quorum::flaw::Flaw;

/// How many of so many servers are a majority.
pub(crate) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// A token for a hold that a majority has begun, and whether all of that majority have given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Victory {
    pub(crate) fence: u8,
    pub(crate) agreed: bool,
}

/// All that `required` of these tokens may amount to: those that are heard of first decide.
pub(crate) fn victories(tokens: &[u8], required: usize, flaw: Option<Flaw>) -> BTreeSet<Victory> {
    let heard =
        |chosen: u32| tokens.iter().enumerate().filter(move |(it, _)| chosen >> it & 1 == 1);
    let enough = |chosen: &u32| heard(*chosen).count() == required;
    let victory = |chosen| {
        let given: BTreeSet<u8> = heard(chosen).map(|(_, token)| *token).collect();
        let smallest = flaw == Some(Flaw::TokenIsTheSmallest);
        let fence = if smallest { given.first() } else { given.last() };
        Some(Victory { fence: *fence?, agreed: given.len() == 1 })
    };
    (0..1 << tokens.len()).filter(enough).filter_map(victory).collect()
}
