//! What threads wait with in a line, and for shared connections: in a test that is built with `--cfg leasehold_shuttle`, what
//! behaves alike but lets the test decide which thread runs next.

#[cfg(not(all(test, leasehold_shuttle)))]
pub(crate) use {
    parking_lot::{Condvar, Mutex, MutexGuard},
    std::sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    std::thread::yield_now,
};

#[cfg(all(test, leasehold_shuttle))]
pub(crate) use self::scheduled::{
    AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, under_many_schedules, yield_now,
};

#[cfg(all(test, leasehold_shuttle))]
mod scheduled;
