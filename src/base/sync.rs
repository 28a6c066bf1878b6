//! The synchronization primitives of wait queues and shared connections, and whether a thread
//! still exists. In a test built with `--cfg leasehold_shuttle` the primitives are those of
//! shuttle, which behave the same but let the test decide which thread runs next.

use std::sync::{Arc, Weak};
use std::time::Instant;

#[cfg(not(all(test, leasehold_shuttle)))]
pub(crate) use {
    parking_lot::{Condvar, Mutex, MutexGuard},
    std::sync::atomic::AtomicBool,
    std::thread::yield_now,
};

#[cfg(all(test, leasehold_shuttle))]
pub(crate) use self::stand_ins::{
    AtomicBool, Condvar, Mutex, MutexGuard, Ordering, under_many_schedules, yield_now,
};

#[cfg(all(test, leasehold_shuttle))]
#[path = "../../tests/schedules/shuttle.rs"]
mod stand_ins;

/// Blocks until `condition` is false or the deadline has come; without one, for as long as it
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

thread_local! {
    static ALIVE: Arc<()> = Arc::new(());
}

/// A thread, as far as it matters whether it still exists.
#[derive(Clone, Debug)]
pub(crate) struct Thread(Weak<()>);

impl Thread {
    /// The calling thread. In a destructor of a thread-local it may count as ended: then a lease
    /// taken there is not renewed.
    pub(crate) fn current() -> Self {
        Self(ALIVE.try_with(Arc::downgrade).unwrap_or_default())
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_is_alive_until_it_ends() {
        let ended = thread::spawn(Thread::current).join().expect("no panic");
        assert!(!ended.is_alive());
        assert!(Thread::current().is_alive());
    }
}
