//! The election of a leader among clients.

use std::time::Duration;

use crate::base::holder::Leader;
use crate::error::Result;
use crate::guards::guard::guard;
use crate::guards::mutex::waits;
use crate::guards::{Held, LockHandle, lock_options};
use crate::local::status;
use crate::store::hold_id::HoldKind;

/// An election: one of the campaigning clients is the leader, until it resigns or dies. Created by
/// [`Client::election`](crate::Client::election).
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let election = client.election("scheduler");
/// let term = election.campaign()?; // blocks until this client leads
/// assert_eq!(election.leader()?.map(|leader| leader.fence), Some(term.fence()));
/// // ... lead while !term.lost().is_lost(); stop all work before the term ends ...
/// term.resign()?; // the next candidate leads within a few round trips
/// assert!(election.leader()?.is_none());
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// At any time, at most one client has a term for which [`is_held`](Term::is_held) returns `true`,
/// as long as clocks run at nearly the same rate and Redis keeps what it has acknowledged. A leader
/// must not assume that it still leads when its writes arrive, because a leader that was paused
/// finds out late. Only a resource that checks the [fence](Term::fence) is safe from that. A lost
/// term stays lost. Campaign again for another one, after the work of the old one has stopped.
///
/// An election and a [`Mutex`](crate::Mutex) with the same name are the same lock.
#[derive(Clone)]
pub struct Election {
    handle: LockHandle,
}

lock_options!(Election);

/// The time during which a client is the leader. Any thread may drop it, which ends it. Created by
/// [`Election::campaign`].
#[must_use = "if unused the term ends immediately: \
              bind it to `_guard`, not to `_`"]
pub struct Term {
    held: Held,
}

guard!(Term with held, depth, fence, wanted);

waits! {
    Election => Term, held_as: Some(HoldKind::Lock),
    |lock, wait| lock.handle.acquire(HoldKind::Lock, wait);

    /// Blocks the current thread until this client is the leader, or until [`wait`](Election::wait)
    /// has passed. Candidates lead in the order in which they arrived.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock_owned`](crate::Client::lock_owned).
    campaign;

    /// Attempts to become the leader without waiting. Returns `None` if there is one. Blocks for
    /// one round trip.
    try_campaign;

    try_campaign_for;
}

impl Election {
    pub(crate) fn new(handle: LockHandle) -> Self {
        let mut handle = handle.without_keep();
        // `leader` shows the last token that was given out, so it must be the one of the current
        // term.
        handle.options_mut().tenure = Some(Duration::ZERO);
        Self { handle }
    }

    /// Returns the leader, or `None` if there is none. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::is_locked`](crate::Mutex::is_locked).
    pub fn leader(&self) -> Result<Option<Leader>> {
        status::leader(&self.handle.shared, &self.handle.name)
    }
}

impl Term {
    /// Ends the term and reports errors, exactly as [`unlock`](Term::unlock) does. Stop the
    /// leader's work first.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::unlock`](crate::Guard::unlock).
    pub fn resign(self) -> Result<()> {
        self.unlock()
    }
}
