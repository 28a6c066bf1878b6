//! Stand-ins, made of shuttle's parts, for those of `parking_lot` and `crossbeam-channel` that the
//! line uses. Time does not exist: a deadline comes when shuttle's dice say so.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

pub(crate) use crossbeam_channel::{RecvError, RecvTimeoutError, SendError};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Condvar;
pub(crate) use shuttle::sync::MutexGuard;
pub(crate) use shuttle::sync::atomic::AtomicBool;
use shuttle::thread;

/// Like `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Like `crossbeam_channel::unbounded`, but never disconnected: each ticket has both ends.
pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel {
        messages: Mutex(shuttle::sync::Mutex::default()),
        sent: Condvar::new(),
    });
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
            messages = self.0.sent.wait(messages).unwrap_or_else(PoisonError::into_inner);
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
