//! Decisions by the replies of a majority.

use std::collections::BTreeSet;

use crate::hold::Block;
use crate::quorum::flaw::Flaw;

/// Returns the size of a majority of this many servers.
pub(crate) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// The tokens of a hold that a majority has granted, and whether that whole majority has given the
/// first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    pub(crate) tokens: Block,
    pub(crate) agreed: bool,
}

/// Returns the grants that may result from `required` of these replies: the first replies decide.
pub(crate) fn grants(given: &[Block], required: usize, flaw: Option<Flaw>) -> BTreeSet<Grant> {
    let heard = |chosen: u32| given.iter().enumerate().filter(move |(it, _)| chosen >> it & 1 == 1);
    let enough = |chosen: &u32| heard(*chosen).count() == required;
    let grant = |chosen| grant(heard(chosen).map(|(_, block)| *block).collect(), flaw);
    (0..1 << given.len()).filter(enough).filter_map(grant).collect()
}

/// Returns the grant by these replies. All counters have reached the shortest block, if it begins
/// with the same token everywhere.
fn grant(mut given: Vec<Block>, flaw: Option<Flaw>) -> Option<Grant> {
    given.sort_unstable();
    let (least, greatest) = (*given.first()?, *given.last()?);
    let first = if flaw == Some(Flaw::TokenIsTheSmallest) { least.first } else { greatest.first };
    let agreed = least.first == greatest.first;
    let last = match flaw {
        Some(Flaw::BlockOfAMinority) => greatest.last,
        Some(Flaw::BlockOfOneServer) if agreed => greatest.last,
        _ if agreed => least.last,
        _ => first,
    };
    Some(Grant { tokens: Block { first, last }, agreed })
}
