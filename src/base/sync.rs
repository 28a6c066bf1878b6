//! The synchronization primitives of wait queues and shared connections. In a test built with
//! `--cfg leasehold_shuttle` they are those of shuttle, which behave the same but let the test
//! decide which thread runs next. In a simulation (`tests/simulation`), threads are coroutines in
//! virtual time.

#[cfg(test)]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};
use std::{io, thread};

#[cfg(test)]
use crossbeam_channel::bounded;
use crossbeam_channel::{Receiver, RecvTimeoutError, Select};

#[cfg(not(all(test, leasehold_shuttle)))]
pub(crate) use {
    parking_lot::{Condvar, Mutex, MutexGuard},
    std::sync::atomic::AtomicBool,
};

#[cfg(all(test, leasehold_shuttle))]
pub(crate) use self::stand_ins::{
    AtomicBool, Condvar, Mutex, MutexGuard, under_many_schedules, yield_now,
};

#[cfg(all(test, leasehold_shuttle))]
#[path = "../../tests/schedules/shuttle.rs"]
mod stand_ins;

/// The coroutines of a simulation.
#[cfg(all(test, unix, not(leasehold_shuttle)))]
#[path = "../../tests/simulation/executor.rs"]
pub(crate) mod executor;

/// Blocks until `condition` is false or the deadline has passed, if there is one. If both happen,
/// the condition counts.
pub(crate) fn wait_while<T>(
    changed: &Condvar,
    guard: &mut MutexGuard<'_, T>,
    deadline: Option<Instant>,
    condition: impl Fn(&T) -> bool,
) {
    while condition(guard) {
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        if executor::can_block() {
            if deadline.is_some_and(|deadline| Some(deadline) <= executor::instant()) {
                return;
            }
            let address = std::ptr::from_ref(changed).addr();
            MutexGuard::unlocked(guard, || executor::wait(address, deadline));
            continue;
        }
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

/// Wakes one thread that waits for a change.
pub(crate) fn wake_one(changed: &Condvar) {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    executor::signal(std::ptr::from_ref(changed).addr(), false);
    changed.notify_one();
}

/// Wakes all threads that wait for a change.
pub(crate) fn wake_all(changed: &Condvar) {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    executor::signal(std::ptr::from_ref(changed).addr(), true);
    changed.notify_all();
}

/// Blocks until there is a message, the channel is disconnected, or the deadline has passed.
pub(crate) fn receive<T: 'static>(
    receiver: &Receiver<T>,
    deadline: Instant,
) -> Result<T, RecvTimeoutError> {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    if executor::is_active() {
        return executor::receive(receiver, deadline);
    }
    receiver.recv_deadline(deadline)
}

/// Blocks until one of `receivers` has a message or is disconnected, or until the deadline. Returns
/// `false` if none has.
pub(crate) fn wait_for_any<'a, T: 'static>(
    receivers: impl IntoIterator<Item = &'a Receiver<T>>,
    deadline: Instant,
) -> bool {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    if executor::can_block() {
        return executor::wait_for_any(receivers.into_iter().cloned().collect(), deadline);
    }
    let mut select = Select::new();
    for receiver in receivers {
        select.recv(receiver);
    }
    select.ready_deadline(deadline).is_ok()
}

/// Locks a mutex that other threads hold while they wait for servers. Returns `None` if the mutex
/// is still locked at the deadline.
pub(crate) fn lock_until<T>(
    mutex: &parking_lot::Mutex<T>,
    deadline: Instant,
) -> Option<parking_lot::MutexGuard<'_, T>> {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    if executor::can_block() {
        return executor::retry_until(deadline, || mutex.try_lock());
    }
    mutex.try_lock_until(deadline)
}

/// Yields to another thread.
#[cfg(not(all(test, leasehold_shuttle)))]
pub(crate) fn yield_now() {
    #[cfg(all(test, unix))]
    if executor::can_block() {
        return executor::yield_now();
    }
    thread::yield_now();
}

/// Starts a thread.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    if executor::is_active() {
        executor::spawn(None, run);
        return Ok(());
    }
    thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

pub(crate) fn sleep(time: Duration) {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    if executor::can_block() {
        return executor::sleep(time);
    }
    thread::sleep(time);
}

/// Runs a unit test in virtual time: it and the threads that it starts with `spawn` or `start` are
/// coroutines, and waits take no time. Elsewhere the test runs in real time.
#[cfg(test)]
pub(crate) fn in_virtual_time(test: impl FnOnce() + Send + 'static) {
    #[cfg(all(unix, not(leasehold_shuttle)))]
    executor::run_alone(test);
    #[cfg(not(all(unix, not(leasehold_shuttle))))]
    test();
}

/// A thread that a unit test has started.
#[cfg(test)]
pub(crate) struct Started<T>(Receiver<thread::Result<T>>);

/// Starts a thread of a unit test.
#[cfg(test)]
pub(crate) fn start<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Started<T> {
    let (sender, outcome) = bounded(1);
    let run = move || {
        let outcome = catch_unwind(AssertUnwindSafe(run));
        // A test that has failed does not wait for it.
        sender.send(outcome).unwrap_or_default();
    };
    spawn("test", run).expect("a thread");
    Started(outcome)
}

#[cfg(test)]
impl<T: 'static> Started<T> {
    pub(crate) fn is_finished(&self) -> bool {
        !self.0.is_empty()
    }

    /// Waits until the thread has ended. If it has panicked, so does this.
    pub(crate) fn join(self) -> T {
        // In virtual time, too, no test takes a year.
        let end = Instant::now() + Duration::from_secs(365 * 86_400);
        let outcome = receive(&self.0, end).expect("it ends");
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// A point where a simulation may run another thread first.
pub(crate) fn interleave() {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    executor::preempt();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_thread_reaches_the_test_that_has_started_it() {
        in_virtual_time(|| {
            let thread = start(|| panic!("a bug"));
            let joined = catch_unwind(AssertUnwindSafe(|| thread.join()));
            let panic = joined.expect_err("a panic");
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"a bug"));
        });
    }
}
