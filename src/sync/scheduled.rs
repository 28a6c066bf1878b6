//! Stand-ins, made of shuttle's parts, for those of `parking_lot` and `crossbeam-channel` that the
//! library uses. Time does not exist: a deadline comes when shuttle's dice say so.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use crossbeam_channel::{RecvError, RecvTimeoutError, SendError};
use shuttle::rand::{Rng, thread_rng};
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;
pub(crate) use shuttle::thread::yield_now;

/// A deadline beyond this never comes.
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

/// Like `parking_lot::MutexGuard`. Empty only while a condition is waited for.
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
#[derive(Debug)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.inner.take().expect("not waiting");
        guard.inner = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
    }

    /// Until the deadline, if it ever comes, the condition may be looked at too often.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> TimedOut {
        if until > Instant::now() + NEVER {
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

/// Like `crossbeam_channel::unbounded`, but never disconnected: each ticket has both ends.
pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel { messages: Mutex::default(), sent: Condvar::new() });
    (Sender(channel.clone()), Receiver(channel))
}

#[derive(Debug)]
struct Channel<T> {
    messages: Mutex<VecDeque<T>>,
    sent: Condvar,
}

/// Like `crossbeam_channel::Sender`.
#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Channel<T>>);

/// Like `crossbeam_channel::Receiver`.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Channel<T>>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Sender<T> {
    #[expect(clippy::unnecessary_wraps, reason = "as in crossbeam-channel")]
    pub(crate) fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.0.messages.lock().push_back(message);
        self.0.sent.notify_one();
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.messages.lock().is_empty()
    }

    pub(crate) fn same_channel(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Receiver<T> {
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        let mut messages = self.0.messages.lock();
        loop {
            if let Some(message) = messages.pop_front() {
                return Ok(message);
            }
            self.0.sent.wait(&mut messages);
        }
    }

    /// A message wins against the deadline, which may come whenever there is none.
    pub(crate) fn recv_deadline(&self, _: Instant) -> Result<T, RecvTimeoutError> {
        loop {
            if let Some(message) = self.0.messages.lock().pop_front() {
                return Ok(message);
            }
            if thread_rng().r#gen() {
                return Err(RecvTimeoutError::Timeout);
            }
            thread::yield_now();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.messages.lock().len()
    }
}
