//! The channel to a thread that has work for certain times, and sleeps until it is due.
//!
//! Decides when the thread is woken: what is sent does not wake it unless it is due before the
//! thread will wake by itself, or so much was sent that the channel should be emptied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::base::clock::{Moment, end_of};

/// With this much in the channel, most of which may be over, the thread is woken to empty it.
const CHANNEL_FULL: usize = 1024;

/// The end of the other threads.
#[derive(Debug)]
pub(super) struct DueSender<T> {
    pub(super) queue: Sender<T>,
    pub(super) queued: Arc<AtomicUsize>,
    pub(super) wake: Sender<()>,
    /// When the thread will wake by itself; [`Moment::FIRST`] while it is awake.
    pub(super) wakes_at: Arc<AtomicU64>,
}

/// The end of the thread.
#[derive(Debug)]
pub(super) struct DueReceiver<T> {
    queue: Receiver<T>,
    queued: Arc<AtomicUsize>,
    woken: Receiver<()>,
    wakes_at: Arc<AtomicU64>,
}

pub(super) fn due_channel<T>() -> (DueSender<T>, DueReceiver<T>) {
    let (sender, receiver) = unbounded();
    let (wake, woken) = bounded(1);
    let queued = Arc::new(AtomicUsize::new(0));
    let wakes_at = Arc::new(AtomicU64::new(Moment::FIRST.0));
    let receiver =
        DueReceiver { queue: receiver, queued: queued.clone(), woken, wakes_at: wakes_at.clone() };
    (DueSender { queue: sender, queued, wake, wakes_at }, receiver)
}

impl<T> DueSender<T> {
    pub(super) fn send(&self, value: T, due: Moment) {
        // Counted first: the thread may receive it before the next line.
        let queued = self.queued.fetch_add(1, Ordering::SeqCst) + 1;
        // The thread ends only after `self`.
        drop(self.queue.send(value));
        if due.0 < self.wakes_at.load(Ordering::SeqCst) || queued == CHANNEL_FULL {
            // A full channel wakes the thread already.
            self.wake.try_send(()).unwrap_or_default();
        }
    }
}

impl<T> Clone for DueSender<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            queued: self.queued.clone(),
            wake: self.wake.clone(),
            wakes_at: self.wakes_at.clone(),
        }
    }
}

impl<T> DueReceiver<T> {
    /// Returns what was sent next, if anything was.
    pub(super) fn try_receive(&self) -> Option<T> {
        let value = self.queue.try_recv().ok()?;
        self.queued.fetch_sub(1, Ordering::SeqCst);
        Some(value)
    }

    /// Waits until something is due or the thread is woken. Returns `false` when the last sender is
    /// gone.
    pub(super) fn sleep(&self, due: Moment) -> bool {
        self.wakes_at.store(due.0, Ordering::SeqCst);
        // What was sent before the line above woke no thread; what is sent afterwards does.
        let has_senders = if self.queue.is_empty() {
            let end = end_of(due.since(Moment::now()));
            self.woken.recv_deadline(end) != Err(RecvTimeoutError::Disconnected)
        } else {
            true
        };
        self.wakes_at.store(Moment::FIRST.0, Ordering::SeqCst);
        has_senders
    }
}
