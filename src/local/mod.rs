//! The runtime of a client: which thread holds which lock, which threads wait, and the threads that
//! keep leases alive.
//!
//! Calls go one way. The face calls `acquire`, `adoption` and `release`. They use `hold_requests`,
//! and all of them borrow `shared`, which uses the names, the renewer and the listener.

pub(crate) mod acquire;
pub(crate) mod acquire_all;
pub(crate) mod adoption;
mod attempts;
pub(crate) mod deadlock;
pub(crate) mod hold_requests;
pub(crate) mod listener;
mod looks;
pub(crate) mod names;
pub(crate) mod outage_log;
pub(crate) mod parker;
pub(crate) mod release;
pub(crate) mod renewer;
mod renewer_thread;
pub(crate) mod reporter;
pub(crate) mod shared;
pub(crate) mod status;

#[cfg(test)]
mod tests;
