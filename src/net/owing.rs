//! The connections on which replies are owed, and that no thread uses.
//!
//! A thread that wants a connection takes the one that was used last and is not blocked. A sweep
//! takes those on which a reply has been owed for a while. One sweep at a time is scheduled, by the
//! thread that adds the first connection.
//!
//! These connections are not in the pool, so nothing that r2d2 closes is owed a reply.

use std::time::{Duration, Instant};

use crate::base::sync::{AtomicBool, Mutex, Ordering};
use crate::net::transport::Transport;

/// What is owed is read this much later, unless a thread has read it before.
pub(super) const SWEEP: Duration =
    Duration::from_millis(if cfg!(leasehold_shuttle) { 0 } else { 10 });

#[derive(Debug)]
pub(super) struct OwingConnections<C> {
    state: Mutex<OwingState<C>>,
    /// Whether a sweep is scheduled.
    scheduled: AtomicBool,
}

#[derive(Debug)]
struct OwingState<C> {
    connections: Vec<C>,
    /// How many sweeps have connections from here that they have not given back.
    sweeps: usize,
}

/// What there is for a thread that needs what is owed to be read, or a connection at once.
pub(super) enum NextOwing<C> {
    Connection(C),
    None,
    /// A sweep has some, which never takes long.
    Swept,
}

impl<C> Default for OwingConnections<C> {
    fn default() -> Self {
        let state = Mutex::new(OwingState { connections: Vec::new(), sweeps: 0 });
        Self { state, scheduled: AtomicBool::new(false) }
    }
}

impl<C: Transport> OwingState<C> {
    fn pop(&mut self) -> Option<C> {
        let last = self.connections.iter().rposition(|one| !one.owed().is_blocked())?;
        Some(self.connections.remove(last))
    }
}

impl<C: Transport> OwingConnections<C> {
    /// Adds a connection. Returns `true` if the caller has to schedule a sweep.
    pub(super) fn push(&self, connection: C) -> bool {
        self.state.lock().connections.push(connection);
        self.claim_sweep()
    }

    /// Takes the connection that was added last among those that are not blocked.
    pub(super) fn pop(&self) -> Option<C> {
        self.state.lock().pop()
    }

    /// Takes a connection that is blocked.
    pub(super) fn pop_blocked(&self) -> Option<C> {
        let mut state = self.state.lock();
        let position = state.connections.iter().position(|one| one.owed().is_blocked())?;
        Some(state.connections.remove(position))
    }

    /// How many connections are not blocked.
    pub(super) fn len(&self) -> usize {
        let state = self.state.lock();
        state.connections.iter().filter(|one| !one.owed().is_blocked()).count()
    }

    /// Takes a connection as `pop` does, or says whether a sweep may have one.
    pub(super) fn next(&self) -> NextOwing<C> {
        let mut state = self.state.lock();
        match state.pop() {
            Some(connection) => NextOwing::Connection(connection),
            None if state.sweeps > 0 => NextOwing::Swept,
            None => NextOwing::None,
        }
    }

    /// Takes the connections on which something has been owed for a while. The sweep ends with
    /// `end_sweep`.
    pub(super) fn begin_sweep(&self, now: Instant) -> Vec<C> {
        self.scheduled.store(false, Ordering::SeqCst);
        let is_due = |connection: &mut C| {
            let since = connection.owed().since();
            since.is_some_and(|since| now.saturating_duration_since(since) >= SWEEP / 2)
        };
        let mut state = self.state.lock();
        state.sweeps += 1;
        state.connections.extract_if(.., is_due).collect()
    }

    /// Ends a sweep that has given back its connections. Returns `true` if the caller has to
    /// schedule another.
    pub(super) fn end_sweep(&self) -> bool {
        let mut state = self.state.lock();
        state.sweeps -= 1;
        let owes = !state.connections.is_empty();
        drop(state);
        owes && self.claim_sweep()
    }

    /// Returns `true` if the caller has to schedule a sweep.
    pub(super) fn claim_sweep(&self) -> bool {
        !self.scheduled.load(Ordering::SeqCst) && !self.scheduled.swap(true, Ordering::SeqCst)
    }
}
