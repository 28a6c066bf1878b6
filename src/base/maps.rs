//! The hasher of maps: random, but the same in every run of a simulation.

#[cfg(not(all(test, unix, not(leasehold_shuttle))))]
pub(crate) use std::hash::RandomState;

#[cfg(all(test, unix, not(leasehold_shuttle)))]
pub(crate) type RandomState = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;
