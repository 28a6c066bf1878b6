//! The requests that wait for a connection to be sent over.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::net::shared_connection::{QueuedRequest, ReplySlot};
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// At most so many requests are sent in one write.
const BATCH_MAX: usize = 64;

/// The requests that wait for a connection.
#[derive(Debug)]
pub(super) struct SendQueue<C> {
    requests: Mutex<VecDeque<QueuedRequest<C>>>,
    /// How many requests from here were in the last batch.
    last_batch: AtomicUsize,
    /// How many connections have a reader. The last reader to finish sends what is queued here, so
    /// that posted requests can wait for it. Changed under the lock of `requests`.
    readers: AtomicUsize,
}

impl<C> Default for SendQueue<C> {
    fn default() -> Self {
        let [last_batch, readers] = [0, 0].map(AtomicUsize::new);
        Self { requests: Mutex::default(), last_batch, readers }
    }
}

impl<C> SendQueue<C> {
    /// Adds a request that a thread waits for. Returns `true` if it is the only such request.
    pub(super) fn push(&self, queued: QueuedRequest<C>) -> bool {
        let mut requests = self.requests.lock();
        let first = requests.iter().all(|queued| queued.slot.posted);
        requests.push_back(queued);
        first
    }

    /// Adds a posted request if a reader will send it soon; returns `false` if there is none.
    pub(super) fn push_posted(&self, queued: QueuedRequest<C>) -> bool {
        let mut requests = self.requests.lock();
        let has_readers = self.has_readers();
        if has_readers {
            requests.push_back(queued);
        }
        has_readers
    }

    pub(super) fn has_readers(&self) -> bool {
        self.readers.load(Ordering::Relaxed) > 0
    }

    /// Counts one more connection with a reader, which looks into the queue when it has finished.
    pub(super) fn add_reader(&self) {
        let _requests = self.requests.lock();
        self.readers.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one fewer: its last reader is about to look into the queue.
    pub(super) fn remove_reader(&self) {
        let _requests = self.requests.lock();
        self.readers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the first request that a thread waits for.
    pub(super) fn pop_first_waiting(&self) -> Option<QueuedRequest<C>> {
        let mut requests = self.requests.lock();
        let position = requests.iter().position(|queued| !queued.slot.posted)?;
        requests.remove(position)
    }

    /// Takes the requests of the next batch, to which `others` come that are not in the queue.
    pub(super) fn pop_batch(&self, others: usize) -> Vec<QueuedRequest<C>> {
        let mut requests = self.requests.lock();
        let size = (BATCH_MAX - others).min(requests.len());
        self.last_batch.store(size, Ordering::Relaxed);
        requests.drain(..size).collect()
    }

    /// Takes back a request that was not sent. Returns `false` if it may have been sent.
    pub(super) fn withdraw(&self, slot: &Arc<ReplySlot<C>>) -> bool {
        let mut requests = self.requests.lock();
        let position = requests.iter().position(|queued| Arc::ptr_eq(&queued.slot, slot));
        position.is_some_and(|position| requests.remove(position).is_some())
    }

    #[cfg(all(test, leasehold_shuttle))]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.lock().is_empty()
    }

    /// Returns `true` if nothing is to be sent now: the queue is empty, or has only posted requests
    /// and a reader that will send them.
    pub(super) fn can_wait(&self) -> bool {
        let requests = self.requests.lock();
        requests.is_empty()
            || self.has_readers() && requests.iter().all(|queued| queued.slot.posted)
    }

    /// Returns `true` if several threads had their requests sent in the last batch, and so may have
    /// further requests soon.
    pub(super) fn is_batching(&self) -> bool {
        self.last_batch.load(Ordering::Relaxed) > 1
    }
}
