//! What happens in this process: which thread holds what, who waits, and what keeps leases alive.

pub(crate) mod acquire;
pub(crate) mod acquire_request;
pub(crate) mod backoff;
pub(crate) mod handoff;
pub(crate) mod held_locks;
pub(crate) mod identity;
pub(crate) mod lease;
pub(crate) mod listener;
pub(crate) mod loss;
pub(crate) mod pending_handoff;
pub(crate) mod reentrancy;
pub(crate) mod release;
pub(crate) mod renewer;
pub(crate) mod retry;
pub(crate) mod shared;
pub(crate) mod status;
pub(crate) mod timers;
pub(crate) mod wait_queue;
pub(crate) mod wait_queues;
pub(crate) mod waiter;
pub(crate) mod wake;
pub(crate) mod watchdog;

#[cfg(all(test, leasehold_shuttle))]
#[path = "../../tests/schedules/local.rs"]
mod schedules;
#[cfg(test)]
mod tests;
