//! Replacements, made of shuttle's parts, for the parts of `parking_lot` that the library uses.
//! `src/base/sync.rs` exports them in tests built with `--cfg leasehold_shuttle`. Time does not
//! exist: shuttle decides at random when a deadline passes.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
pub(crate) use shuttle::sync::atomic::AtomicBool;
pub(crate) use shuttle::thread::yield_now;
use shuttle::{Config, Runner, thread};

/// The number of schedules of each kind.
const SCHEDULES: usize = 1_000;

/// The number of interruptions by the scheduler that looks for rare orders.
const INTERRUPTIONS: usize = 3;

/// The size of each thread's stack, in bytes. Shuttle's default is too small for the settings of a
/// client in an unoptimized build.
const STACK: usize = 256 * 1024;

/// A deadline beyond this never passes.
const NEVER: Duration = Duration::from_secs(60 * 60);

/// Like `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: &self.0, inner: Some(locked(&self.0)) }
    }
}

/// Like `parking_lot::MutexGuard`. Empty only during the wait for a condition.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a shuttle::sync::Mutex<T>,
    inner: Option<shuttle::sync::MutexGuard<'a, T>>,
}

fn locked<T>(mutex: &shuttle::sync::Mutex<T>) -> shuttle::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("not waiting")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("not waiting")
    }
}

/// Like `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.inner.take().expect("not waiting");
        guard.inner = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for a notification, or returns at any time if the deadline is not beyond [`NEVER`].
    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> TimedOut {
        if deadline > Instant::now() + NEVER {
            self.wait(guard);
            return TimedOut(false);
        }
        guard.inner = None;
        thread::yield_now();
        guard.inner = Some(locked(guard.mutex));
        TimedOut(thread_rng().r#gen())
    }
}

/// Like `parking_lot::WaitTimeoutResult`.
pub(crate) struct TimedOut(bool);

impl TimedOut {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

/// Runs a scene under both of shuttle's schedulers.
pub(crate) fn under_many_schedules(scene: fn()) {
    let mut config = Config::default();
    config.stack_size = STACK;
    Runner::new(RandomScheduler::new(SCHEDULES), config.clone()).run(scene);
    Runner::new(PctScheduler::new(INTERRUPTIONS, SCHEDULES), config).run(scene);
}
