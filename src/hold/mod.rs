//! What happens in this process: who holds what, who waits, and what keeps leases alive.

pub(crate) mod agenda;
pub(crate) mod alarm;
pub(crate) mod backoff;
pub(crate) mod compete;
pub(crate) mod engine;
pub(crate) mod handover;
pub(crate) mod herald;
pub(crate) mod inspection;
pub(crate) mod lease;
pub(crate) mod levels;
pub(crate) mod line;
pub(crate) mod lines;
pub(crate) mod listener;
pub(crate) mod owner;
pub(crate) mod passage;
pub(crate) mod patience;
pub(crate) mod place;
pub(crate) mod release;
pub(crate) mod renewer;
pub(crate) mod request;
pub(crate) mod table;
pub(crate) mod wake;

#[cfg(all(test, leasehold_shuttle))]
mod schedules;
#[cfg(test)]
mod tests;
