//! How the threads of a client share its connections to one server.
//!
//! A thread that finds a connection free uses it alone. Where none is free, requests queue up, and
//! whoever gets a connection next sends all of them in one write. The idea is that of flat
//! combining (Hendler, Incze, Shavit and Tzafrir, 2010), with a connection for the lock.

use std::collections::VecDeque;
use std::iter;
use std::sync::Arc;
use std::time::Instant;

use crate::store::failure::Failure;
use crate::store::lane::{Lane, Reply, Request, Step, Wire};
use crate::sync::{AtomicUsize, Mutex, Ordering, yield_now};

/// At most so many requests are sent in one write.
const BATCH: usize = 64;

/// Where free connections come from, and go back to when they are dropped.
pub(crate) trait Supply {
    type Wire: Wire;

    fn try_get(&self) -> Option<Self::Wire>;

    /// Waits for one; `None` if none has become free by then.
    fn get(&self, until: Instant) -> Option<Self::Wire>;

    /// The failure of a request for which none has become free in time.
    fn all_in_use(&self) -> Failure;

    /// The failure of a request that was not answered in time.
    fn no_reply(&self) -> Failure;
}

/// Connections that are shared.
#[derive(Debug)]
pub(crate) struct Sharing<S: Supply> {
    supply: S,
    queue: Queue<S::Wire>,
}

/// The requests that wait for a connection.
#[derive(Debug)]
struct Queue<W> {
    requests: Mutex<VecDeque<Arc<Request<W>>>>,
    /// How many were sent together the last time.
    crowd: AtomicUsize,
}

impl<S: Supply> Sharing<S> {
    pub(super) fn new(supply: S) -> Self {
        let (requests, crowd) = (Mutex::default(), AtomicUsize::new(0));
        Self { supply, queue: Queue { requests, crowd } }
    }

    /// Tells whether no request waits for a connection.
    #[cfg(all(test, leasehold_shuttle))]
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Sends a request and waits for its reply: alone if no others have any at the moment and a
    /// connection is free, else together with theirs.
    pub(super) fn exchange(
        self: &Arc<Self>,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Reply {
        let free = if self.queue.is_crowded() { None } else { self.supply.try_get() };
        let Some(mut wire) = free else {
            return self.begin(until, pack).wait();
        };
        let reply = wire.exchange(until, pack);
        self.start_over(Lane::new(wire));
        reply
    }

    /// Sends a request, or has it sent as soon as a connection is free. Any thread may wait for the
    /// reply.
    pub(super) fn begin(
        self: &Arc<Self>,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Pending<S> {
        let request = Request::new(until, pack);
        // Whoever is not the first is sent along with the first.
        if self.queue.add(request.clone()) {
            if self.queue.is_crowded() {
                // Threads that were woken together have their next requests at nearly the same
                // time: a moment for those that are awake saves a write for each.
                yield_now();
            }
            if let Some(wire) = self.supply.try_get() {
                self.start_over(Lane::new(wire));
            }
        }
        Pending { sharing: self.clone(), request, waited: false }
    }

    /// A request that needs no connection any more.
    pub(super) fn answered(self: &Arc<Self>, reply: Reply) -> Pending<S> {
        let request = Request::new(Instant::now(), |_| {});
        request.answer(reply);
        Pending { sharing: self.clone(), request, waited: false }
    }

    /// Lets `work` have a connection to itself.
    pub(super) fn alone<T>(
        &self,
        until: Instant,
        work: impl FnOnce(&mut S::Wire) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut wire = self.supply.get(until).ok_or_else(|| self.supply.all_in_use())?;
        let outcome = work(&mut wire);
        self.start_over(Lane::new(wire));
        outcome
    }

    /// Drives a lane until the reply to `own` is there; `None` if its time is over before.
    fn drive(&self, mut lane: Lane<S::Wire>, own: &Arc<Request<S::Wire>>) -> Option<Reply> {
        if !lane.carries(own) {
            if let Err(failure) = lane.wire.connect(own.until) {
                self.start_over(lane);
                return Some(Err(failure));
            }
            let others = self.queue.take(BATCH - 1);
            lane.send(iter::once(own.clone()).chain(others));
        }
        let reply = lane.read(own).or_else(|| own.leave().into_reply());
        let gathered = lane.gather();
        if let Some(lane) = lane.pass_on() {
            self.start_over(lane);
        }
        // Only now: to wake many threads takes longer than to give the server more to do.
        for (request, reply) in gathered {
            request.answer(reply);
        }
        reply
    }

    /// Sends what has queued up over a lane without requests, or gives its connection back.
    fn start_over(&self, lane: Lane<S::Wire>) {
        let mut free = Some(lane);
        while let Some(mut lane) = free {
            free = if self.queue.is_empty() {
                drop(lane);
                // Who queued up just before that has not found the connection free.
                if self.queue.is_empty() { None } else { self.supply.try_get().map(Lane::new) }
            } else if lane.wire.is_ready() {
                lane.send(self.queue.take(BATCH));
                lane.pass_on()
            } else {
                // To connect takes time, which only a thread that waits for it has.
                match self.queue.take(1).pop() {
                    Some(next) => next.offer(lane),
                    None => Some(lane),
                }
            };
        }
    }
}

impl<W> Queue<W> {
    /// Adds a request, and tells whether it is the only one.
    fn add(&self, request: Arc<Request<W>>) -> bool {
        let mut requests = self.requests.lock();
        requests.push_back(request);
        requests.len() == 1
    }

    /// Takes what is to be sent together.
    fn take(&self, most: usize) -> Vec<Arc<Request<W>>> {
        let mut requests = self.requests.lock();
        let size = most.min(requests.len());
        self.crowd.store(size, Ordering::Relaxed);
        requests.drain(..size).collect()
    }

    /// Takes a request back that was not sent. `false` if it may have been.
    fn withdraw(&self, request: &Arc<Request<W>>) -> bool {
        let mut requests = self.requests.lock();
        let place = requests.iter().position(|queued| Arc::ptr_eq(queued, request));
        place.is_some_and(|place| requests.remove(place).is_some())
    }

    fn is_empty(&self) -> bool {
        self.requests.lock().is_empty()
    }

    fn is_crowded(&self) -> bool {
        self.crowd.load(Ordering::Relaxed) > 1
    }
}

/// A request that was sent, or will be.
#[derive(Debug)]
pub(crate) struct Pending<S: Supply> {
    sharing: Arc<Sharing<S>>,
    request: Arc<Request<S::Wire>>,
    waited: bool,
}

impl<S: Supply> Pending<S> {
    pub(crate) fn wait(mut self) -> Reply {
        self.waited = true;
        let Self { sharing, request, .. } = &self;
        let reply = match request.wait() {
            Step::Drive(lane) => sharing.drive(lane, request),
            Step::Return(reply) => Some(reply),
            Step::Leave if sharing.queue.withdraw(request) => {
                Some(Err(sharing.supply.all_in_use()))
            }
            Step::Leave => None,
        };
        reply.unwrap_or_else(|| Err(sharing.supply.no_reply()))
    }
}

/// What nobody has waited for must not keep others from their replies.
impl<S: Supply> Drop for Pending<S> {
    fn drop(&mut self) {
        if self.waited {
            return;
        }
        match self.request.leave() {
            Step::Drive(lane) => {
                if let Some(lane) = lane.pass_on() {
                    self.sharing.start_over(lane);
                }
            }
            Step::Return(_) | Step::Leave => {
                self.sharing.queue.withdraw(&self.request);
            }
        }
    }
}
