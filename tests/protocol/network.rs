//! Requests in transit from clients to a server, which arrive in any order.

use std::collections::BTreeSet;

use stateright::Model;

use crate::hold::HoldId;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Request<C> {
    /// The first one of a batch.
    pub(crate) hold: HoldId,
    /// Its number among the requests of this client, or among those for this hold.
    pub(crate) round: u64,
    pub(crate) command: C,
    /// Whether it is a copy of an executed request.
    pub(crate) is_copy: bool,
}

impl<C> Request<C> {
    pub(crate) fn new(hold: HoldId, round: u64, command: C) -> Self {
        Self { hold, round, command, is_copy: false }
    }
}

/// The execution of a request, which may arrive again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival<C> {
    pub(crate) request: Request<C>,
    again: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Network<C> {
    /// One that no client waits for may be lost. One that ends something is repeated until it has
    /// arrived.
    pub(crate) requests: BTreeSet<Request<C>>,
    /// The number of faults so far, of any kind.
    pub(crate) faults: u64,
}

impl<C: Copy + Ord> Network<C> {
    pub(crate) fn new() -> Self {
        Self { requests: BTreeSet::new(), faults: 0 }
    }

    /// Returns the requests that arrive sooner or later.
    pub(crate) fn course(&self, must_arrive: impl Fn(&Request<C>) -> bool) -> Vec<Arrival<C>> {
        let requests = self.requests.iter().copied().filter(must_arrive);
        requests.map(|request| Arrival { request, again: false }).collect()
    }

    /// Returns the requests that may also be lost; all of them if any may arrive `twice`.
    pub(crate) fn accidents(
        &self,
        twice: bool,
        must_arrive: impl Fn(&Request<C>) -> bool,
    ) -> Vec<Arrival<C>> {
        let mut late = self.course(|request| !must_arrive(request));
        let again = |request: &Request<C>| twice && !request.is_copy;
        let copies = self.requests.iter().copied().filter(again);
        late.extend(copies.map(|request| Arrival { request, again: true }));
        late
    }

    /// Removes the request that arrives.
    pub(crate) fn take(&mut self, Arrival { request, again }: Arrival<C>) -> Request<C> {
        self.requests.remove(&request);
        self.requests.extend(again.then_some(Request { is_copy: true, ..request }));
        self.faults += u64::from(again);
        request
    }
}

/// A model in which part of the events happen sooner or later.
pub(crate) trait Course: Model {
    /// Adds the events that happen sooner or later if nothing else does.
    fn course(&self, world: &Self::State, actions: &mut Vec<Self::Action>);

    /// Returns `true` if nothing more happens without a fault.
    fn is_at_rest(&self, world: &Self::State) -> bool {
        let mut actions = Vec::new();
        self.course(world, &mut actions);
        actions.is_empty()
    }
}
