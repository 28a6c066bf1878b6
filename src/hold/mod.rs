//! What happens in this process: who holds what, who waits, and what keeps leases alive.

pub(crate) mod agenda;
pub(crate) mod alarm;
pub(crate) mod backoff;
pub(crate) mod engine;
pub(crate) mod gate;
pub(crate) mod lease;
pub(crate) mod owner;
pub(crate) mod patience;
pub(crate) mod renewer;
pub(crate) mod table;
