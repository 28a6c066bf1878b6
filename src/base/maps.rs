//! How maps choose their order: at random, but in every run of a simulation the same.

#[cfg(not(all(test, unix, not(leasehold_shuttle))))]
pub(crate) use std::hash::RandomState;

#[cfg(all(test, unix, not(leasehold_shuttle)))]
pub(crate) type RandomState = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;
