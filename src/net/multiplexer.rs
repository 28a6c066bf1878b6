//! How the threads of a client share its connections to one server.
//!
//! A thread that finds a connection free uses it alone. Where none is free, requests queue up, and
//! whoever gets a connection next sends all of them in one write. The idea is that of flat
//! combining (Hendler, Incze, Shavit and Tzafrir, 2010), with a connection for the lock.

use std::sync::Arc;
use std::time::Instant;
use std::{iter, mem};

use crate::failure::Failure;
use crate::net::lane::{Lane, QueuedRequest, Step, Then};
use crate::net::pipeline::Transport;
use crate::net::request::{Reply, Request};
use crate::net::send_queue::SendQueue;
use crate::sync::yield_now;

/// Where free connections come from, and go back to when they are dropped.
pub(crate) trait ConnectionSource {
    type Transport: Transport;

    /// One that is free, or that may be made by then.
    fn try_get(&self, deadline: Instant) -> Option<Self::Transport>;

    /// Waits for one; `None` if none has become free by then.
    fn get(&self, deadline: Instant) -> Option<Self::Transport>;

    /// The failure of a request for which none has become free in time.
    fn all_in_use(&self) -> Failure;

    /// The failure of a request that was not answered in time.
    fn no_reply(&self) -> Failure;
}

/// Connections that are shared.
#[derive(Debug)]
pub(crate) struct Multiplexer<S: ConnectionSource> {
    supply: S,
    backlog: SendQueue<S::Transport>,
}

impl<S: ConnectionSource> Multiplexer<S> {
    pub(super) fn new(supply: S) -> Self {
        Self { supply, backlog: SendQueue::default() }
    }

    /// Tells whether no request waits for a connection.
    #[cfg(all(test, leasehold_shuttle))]
    pub(super) fn is_idle(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Sends a request and waits for its reply: alone if no others have any at the moment and a
    /// connection is free, else together with theirs.
    pub(super) fn exchange(self: &Arc<Self>, request: Request, deadline: Instant) -> Reply {
        let free = if self.backlog.is_crowded() { None } else { self.supply.try_get(deadline) };
        let Some(mut wire) = free else {
            return self.begin(request, deadline).wait();
        };
        let reply = wire.exchange(&request, deadline);
        self.start_over(Lane::new(wire), deadline);
        reply
    }

    /// Sends a request, or has it sent as soon as a connection is free. Any thread may wait for the
    /// reply.
    pub(super) fn begin(self: &Arc<Self>, request: Request, deadline: Instant) -> Pending<S> {
        let request = QueuedRequest::new(deadline, request);
        // Whoever is not the first is sent along with the first.
        if self.backlog.add(request.clone()) {
            if self.backlog.is_crowded() {
                // Threads that were woken together have their next requests at nearly the same
                // time: a moment for those that are awake saves a write for each.
                yield_now();
            }
            if let Some(wire) = self.supply.try_get(deadline) {
                self.start_over(Lane::new(wire), deadline);
            }
        }
        Pending { sharing: self.clone(), request, waited: false }
    }

    /// Leaves a request to a thread that reads now: it is sent as soon as that thread is done, and
    /// `then` called with the reply. `None`, and nothing is done, while threads need not share
    /// connections.
    pub(super) fn post(
        self: &Arc<Self>,
        request: Request,
        deadline: Instant,
        then: Then<Reply>,
    ) -> Option<Posted<S>> {
        if !self.backlog.is_watched() {
            return None;
        }
        let request = QueuedRequest::posted(deadline, request, then);
        let posted = self.backlog.leave(request.clone());
        posted.then(|| Posted { sharing: self.clone(), request })
    }

    /// Lets `work` have a connection to itself.
    pub(super) fn alone<T>(
        &self,
        deadline: Instant,
        work: impl FnOnce(&mut S::Transport) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut wire = self.supply.get(deadline).ok_or_else(|| self.supply.all_in_use())?;
        let outcome = work(&mut wire);
        self.start_over(Lane::new(wire), deadline);
        outcome
    }

    /// Drives a lane until the reply to `own` is there; `None` if its time is over before.
    fn drive(
        &self,
        mut lane: Lane<S::Transport>,
        own: &Arc<QueuedRequest<S::Transport>>,
    ) -> Option<Reply> {
        if !lane.carries(own) {
            if let Err(failure) = lane.wire.connect(own.deadline) {
                self.start_over(lane, own.deadline);
                return Some(Err(failure));
            }
            let others = self.backlog.take(1);
            lane.send(iter::once(own.clone()).chain(others));
        }
        let reply = lane.read(own).or_else(|| own.leave().into_reply());
        let gathered = lane.gather();
        if let Some(lane) = self.pass_on(lane, own.deadline) {
            self.start_over(lane, own.deadline);
        }
        // Only now: to wake many threads takes longer than to give the server more to do.
        for (request, reply) in gathered {
            request.answer(reply);
        }
        reply
    }

    /// Makes the first of those that wait for a reply drive. Without any the lane is given back,
    /// after the replies that are wanted have been read: for those there is time until `until`.
    fn pass_on(
        &self,
        mut lane: Lane<S::Transport>,
        deadline: Instant,
    ) -> Option<Lane<S::Transport>> {
        if !mem::replace(&mut lane.watched, true) {
            self.backlog.watch();
        }
        let mut lane = lane.offer()?;
        self.backlog.unwatch();
        lane.watched = false;
        lane.finish(deadline);
        Some(lane)
    }

    /// Sends what has queued up over a lane without requests, or gives its connection back. If
    /// nobody waits for what is sent, there is time until `until` to do so here.
    fn start_over(&self, lane: Lane<S::Transport>, deadline: Instant) {
        let mut free = Some(lane);
        while let Some(mut lane) = free {
            free = if self.backlog.can_wait() {
                drop(lane);
                // Who queued up just before that has not found the connection free.
                if self.backlog.can_wait() {
                    None
                } else {
                    self.supply.try_get(deadline).map(Lane::new)
                }
            } else if lane.wire.is_ready() {
                lane.send(self.backlog.take(0));
                self.pass_on(lane, deadline)
            } else if let Some(next) = self.backlog.take_first_to_wait() {
                // To connect takes time, which a thread that waits for it has.
                next.offer(lane)
            } else {
                if let Err(failure) = lane.wire.connect(deadline) {
                    for next in self.backlog.take(0) {
                        next.answer(Err(failure.clone()));
                    }
                }
                Some(lane)
            };
        }
    }
}

/// A request that was sent, or will be.
#[derive(Debug)]
pub(crate) struct Pending<S: ConnectionSource> {
    sharing: Arc<Multiplexer<S>>,
    request: Arc<QueuedRequest<S::Transport>>,
    waited: bool,
}

impl<S: ConnectionSource> Pending<S> {
    pub(crate) fn wait(mut self) -> Reply {
        self.waited = true;
        let Self { sharing, request, .. } = &self;
        let reply = match request.wait() {
            Step::Drive(lane) => sharing.drive(lane, request),
            Step::Return(reply) => Some(reply),
            Step::Leave if sharing.backlog.withdraw(request) => {
                Some(Err(sharing.supply.all_in_use()))
            }
            Step::Leave => None,
        };
        let reply = reply.unwrap_or_else(|| Err(sharing.supply.no_reply()));
        match request.request.again_after(&reply) {
            Some(again) => sharing.begin(again, request.deadline).wait(),
            None => reply,
        }
    }
}

/// What nobody has waited for must not keep others from their replies.
impl<S: ConnectionSource> Drop for Pending<S> {
    fn drop(&mut self) {
        if self.waited {
            return;
        }
        match self.request.leave() {
            Step::Drive(lane) => {
                let deadline = self.request.deadline;
                if let Some(lane) = self.sharing.pass_on(lane, deadline) {
                    self.sharing.start_over(lane, deadline);
                }
            }
            Step::Return(_) | Step::Leave => {
                self.sharing.backlog.withdraw(&self.request);
            }
        }
    }
}

/// A request that was left to another thread.
#[derive(Debug)]
pub(crate) struct Posted<S: ConnectionSource> {
    sharing: Arc<Multiplexer<S>>,
    request: Arc<QueuedRequest<S::Transport>>,
}

impl<S: ConnectionSource> Posted<S> {
    /// Takes it back. `false` if it may have been sent.
    pub(crate) fn recall(self) -> bool {
        self.sharing.backlog.withdraw(&self.request)
    }
}
