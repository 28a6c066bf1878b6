//! What the replies of a majority amount to.

use std::collections::BTreeSet;

use crate::quorum::flaw::Flaw;

/// The size of a majority of so many servers.
pub(crate) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// The token of a hold that a majority has granted, and whether all of that majority have given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    pub(crate) fence: u8,
    pub(crate) agreed: bool,
}

/// The grants that `required` of these tokens may amount to: the first replies decide.
pub(crate) fn grants(tokens: &[u8], required: usize, flaw: Option<Flaw>) -> BTreeSet<Grant> {
    let heard =
        |chosen: u32| tokens.iter().enumerate().filter(move |(it, _)| chosen >> it & 1 == 1);
    let enough = |chosen: &u32| heard(*chosen).count() == required;
    let grant = |chosen| {
        let given: BTreeSet<u8> = heard(chosen).map(|(_, token)| *token).collect();
        let smallest = flaw == Some(Flaw::TokenIsTheSmallest);
        let fence = if smallest { given.first() } else { given.last() };
        Some(Grant { fence: *fence?, agreed: given.len() == 1 })
    };
    (0..1 << tokens.len()).filter(enough).filter_map(grant).collect()
}
