//! The synchronization primitives of wait queues and shared connections. In a test built with
//! `--cfg leasehold_shuttle` they are those of shuttle, which behave the same but let the test
//! decide which thread runs next.

use std::time::Instant;

#[cfg(not(all(test, leasehold_shuttle)))]
pub(crate) use {
    parking_lot::{Condvar, Mutex, MutexGuard},
    std::sync::atomic::AtomicBool,
    std::thread::yield_now,
};

#[cfg(all(test, leasehold_shuttle))]
pub(crate) use self::stand_ins::{
    AtomicBool, Condvar, Mutex, MutexGuard, under_many_schedules, yield_now,
};

#[cfg(all(test, leasehold_shuttle))]
#[path = "../../tests/schedules/shuttle.rs"]
mod stand_ins;

/// Blocks until `condition` is false or the deadline has passed; without a deadline, as long as it
/// takes. A condition that has become false beats the deadline.
pub(crate) fn wait_while<T>(
    changed: &Condvar,
    guard: &mut MutexGuard<'_, T>,
    deadline: Option<Instant>,
    condition: impl Fn(&T) -> bool,
) {
    while condition(guard) {
        match deadline {
            None => changed.wait(guard),
            Some(deadline) => {
                if changed.wait_until(guard, deadline).timed_out() {
                    return;
                }
            }
        }
    }
}
