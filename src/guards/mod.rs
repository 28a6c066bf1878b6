//! The handles that users lock with, and the guards that they get. The methods of all handles are
//! in `handle.rs`, and those of all guards in `guard.rs`. `kinds.rs` lists the kinds of both, and
//! the other files add the methods of single kinds.

// This module comes first, because documentation links a method that several kinds have, such as
// `lock` and `fence`, to the first of them.
pub(crate) mod guard;
pub(crate) mod handle;
pub(crate) mod mutex;

pub(crate) mod election;
pub(crate) mod kinds;
pub(crate) mod multi_mutex;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
pub(crate) mod watches;
