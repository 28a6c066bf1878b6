//! What users lock with, and the guards that they get.

pub(crate) mod any_guard;
pub(crate) mod canceller;
pub(crate) mod election;
pub(crate) mod guard;
pub(crate) mod holder;
pub(crate) mod lost;
pub(crate) mod multi_guard;
pub(crate) mod mutex;
pub(crate) mod owned_guard;
pub(crate) mod owned_hold;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
pub(crate) mod ticket;
pub(crate) mod wanted;
