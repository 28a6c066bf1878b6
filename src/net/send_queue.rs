//! The requests that wait for a connection to be sent over.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::sync::{AtomicUsize, Mutex, Ordering};
use crate::net::owed::PostedRequest;
use crate::net::shared_connection::{Batch, QueuedRequest, ReplySlot};

/// The most requests that are sent in one write.
const BATCH_MAX: usize = 64;

/// What waits for a connection.
#[derive(Debug)]
pub(super) enum Queued<C> {
    /// A thread that wants a connection to itself.
    Alone(Arc<ReplySlot<C>>),
    /// A request that no thread waits for.
    Posted(PostedRequest),
    Request(QueuedRequest<C>),
}

/// The requests that wait for a connection, and the threads that want one to themselves: first
/// come, first served.
#[derive(Debug)]
pub(super) struct SendQueue<C> {
    queue: Mutex<VecDeque<Queued<C>>>,
    /// How many requests from here were in the last batch.
    last_batch: AtomicUsize,
}

impl<C> Default for SendQueue<C> {
    fn default() -> Self {
        Self { queue: Mutex::default(), last_batch: AtomicUsize::new(0) }
    }
}

impl<C> SendQueue<C> {
    /// Adds a request. Returns `true` if it is the first.
    pub(super) fn push(&self, queued: Queued<C>) -> bool {
        let mut queue = self.queue.lock();
        queue.push_back(queued);
        queue.len() == 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Takes the thread that is next if it wants a connection to itself.
    pub(super) fn pop_alone(&self) -> Option<Arc<ReplySlot<C>>> {
        let mut queue = self.queue.lock();
        let Some(Queued::Alone(slot)) = queue.front() else { return None };
        let slot = slot.clone();
        queue.pop_front();
        Some(slot)
    }

    /// Takes the first request that a thread waits for, if there is one before a thread wants a
    /// connection to itself.
    pub(super) fn pop_waiting(&self) -> Option<QueuedRequest<C>> {
        let mut queue = self.queue.lock();
        let position = queue.iter().position(|queued| !matches!(queued, Queued::Posted(_)))?;
        match queue.get(position) {
            Some(Queued::Request(_)) => queue.remove(position).and_then(Queued::into_request),
            _ => None,
        }
    }

    /// Takes the requests that no thread waits for.
    pub(super) fn pop_posted(&self) -> Vec<PostedRequest> {
        let mut queue = self.queue.lock();
        let (posted, others) = queue.drain(..).partition(Queued::is_posted);
        *queue = others;
        let posted: VecDeque<_> = posted;
        posted.into_iter().filter_map(Queued::into_posted).collect()
    }

    /// Takes the requests of the next batch, to which `others` come that are not in the queue.
    pub(super) fn pop_batch(&self, others: usize) -> Batch<C> {
        let mut batch = Batch::default();
        let mut queue = self.queue.lock();
        while batch.requests.len() + batch.posted.len() + others < BATCH_MAX {
            match queue.pop_front() {
                Some(Queued::Posted(posted)) => batch.posted.push(posted),
                Some(Queued::Request(request)) => batch.requests.push(request),
                Some(alone @ Queued::Alone(_)) => {
                    queue.push_front(alone);
                    break;
                }
                None => break,
            }
        }
        let size = batch.requests.len() + batch.posted.len();
        self.last_batch.store(size, Ordering::Relaxed);
        batch
    }

    /// Takes back a request that was not sent. Returns `false` if it may have been sent.
    pub(super) fn withdraw(&self, slot: &Arc<ReplySlot<C>>) -> bool {
        let mut queue = self.queue.lock();
        let position = queue.iter().position(|queued| match queued {
            Queued::Alone(other) => Arc::ptr_eq(other, slot),
            Queued::Posted(_) => false,
            Queued::Request(queued) => Arc::ptr_eq(&queued.slot, slot),
        });
        position.is_some_and(|position| queue.remove(position).is_some())
    }

    /// Returns `true` if several threads had their requests sent in the last batch, and so may have
    /// further requests soon.
    pub(super) fn is_batching(&self) -> bool {
        self.last_batch.load(Ordering::Relaxed) > 1
    }
}

impl<C> Queued<C> {
    fn is_posted(&self) -> bool {
        matches!(self, Self::Posted(_))
    }

    fn into_posted(self) -> Option<PostedRequest> {
        if let Self::Posted(posted) = self { Some(posted) } else { None }
    }

    fn into_request(self) -> Option<QueuedRequest<C>> {
        if let Self::Request(request) = self { Some(request) } else { None }
    }
}
