//! The requests that wait for a connection to be sent over.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::net::lane::QueuedRequest;
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// At most so many requests are sent in one write.
const BATCH: usize = 64;

/// The requests that wait for a connection.
#[derive(Debug)]
pub(super) struct SendQueue<W> {
    requests: Mutex<VecDeque<Arc<QueuedRequest<W>>>>,
    /// How many were sent together the last time.
    crowd: AtomicUsize,
    /// On how many lanes somebody waits for a reply: whoever is the last to do so looks here
    /// afterwards. Changed under the lock of the requests.
    watched: AtomicUsize,
}

impl<W> Default for SendQueue<W> {
    fn default() -> Self {
        let [crowd, watched] = [0, 0].map(AtomicUsize::new);
        Self { requests: Mutex::default(), crowd, watched }
    }
}

impl<W> SendQueue<W> {
    /// Adds a request, and tells whether it is the only one for which a thread waits.
    pub(super) fn add(&self, request: Arc<QueuedRequest<W>>) -> bool {
        let mut requests = self.requests.lock();
        let first = requests.iter().all(|request| request.posted);
        requests.push_back(request);
        first
    }

    /// Adds a request if somebody will find it soon.
    pub(super) fn leave(&self, request: Arc<QueuedRequest<W>>) -> bool {
        let mut requests = self.requests.lock();
        let found = self.is_watched();
        if found {
            requests.push_back(request);
        }
        found
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed) > 0
    }

    /// Notes that somebody waits on one more lane, and that one of them will look here.
    pub(super) fn watch(&self) {
        let _requests = self.requests.lock();
        self.watched.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the one who will look here is about to.
    pub(super) fn unwatch(&self) {
        let _requests = self.requests.lock();
        self.watched.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the first request for which a thread waits.
    pub(super) fn take_first_to_wait(&self) -> Option<Arc<QueuedRequest<W>>> {
        let mut requests = self.requests.lock();
        let place = requests.iter().position(|request| !request.posted)?;
        requests.remove(place)
    }

    /// Takes what is to be sent together, and with so many that are not in here.
    pub(super) fn take(&self, others: usize) -> Vec<Arc<QueuedRequest<W>>> {
        let mut requests = self.requests.lock();
        let size = (BATCH - others).min(requests.len());
        self.crowd.store(size, Ordering::Relaxed);
        requests.drain(..size).collect()
    }

    /// Takes a request back that was not sent. `false` if it may have been.
    pub(super) fn withdraw(&self, request: &Arc<QueuedRequest<W>>) -> bool {
        let mut requests = self.requests.lock();
        let place = requests.iter().position(|queued| Arc::ptr_eq(queued, request));
        place.is_some_and(|place| requests.remove(place).is_some())
    }

    #[cfg(all(test, leasehold_shuttle))]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.lock().is_empty()
    }

    /// Tells whether nothing in here need be sent now: there is nothing, or only what was left for
    /// the last one who waits on a lane.
    pub(super) fn can_wait(&self) -> bool {
        let requests = self.requests.lock();
        requests.is_empty() || self.is_watched() && requests.iter().all(|request| request.posted)
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.crowd.load(Ordering::Relaxed) > 1
    }
}
