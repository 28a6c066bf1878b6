//! What threads wait with in a line: in a test that is built with `--cfg leasehold_shuttle`, what
//! behaves alike but lets the test decide which thread runs next.

#[cfg(not(all(test, leasehold_shuttle)))]
pub(crate) use {
    crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded},
    parking_lot::{Mutex, MutexGuard},
    std::sync::atomic::AtomicBool,
};

#[cfg(all(test, leasehold_shuttle))]
pub(crate) use self::scheduled::{
    AtomicBool, Mutex, MutexGuard, Receiver, RecvTimeoutError, Sender, unbounded,
};

#[cfg(all(test, leasehold_shuttle))]
mod scheduled;
