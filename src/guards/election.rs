//! The election of a leader among clients.

use std::time::Duration;

use crate::base::holder::Leader;
use crate::error::Result;
use crate::guards::guard::LockGuard;
use crate::guards::handle::{LockHandle, wait_for};
use crate::guards::kinds::{Candidacy, Leadership};
use crate::guards::watches::Wanted;
use crate::local::status;
use crate::protocol::call::Wait;
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
///
/// In addition to the methods below, it has those of every [`LockHandle`], such as
/// [`lease`](Election::lease) and [`wait`](Election::wait).
pub type Election = LockHandle<Candidacy>;

impl Election {
    /// Returns this handle with one hold per term, because `leader` shows the last token that was
    /// issued, which must be that of the current term.
    pub(crate) fn without_tenure(mut self) -> Self {
        self.options_mut().tenure = Some(Duration::ZERO);
        self
    }

    /// Blocks the current thread until this client is the leader, or until [`wait`](Election::wait)
    /// has passed. Candidates lead in the order in which they arrived.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock_owned`](crate::Client::lock_owned).
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let election = client.election("scheduler");
    /// let term = election.campaign()?; // blocks until this client leads
    /// let lost = term.lost();
    /// while !lost.is_lost() {
    ///     // one step of the leader's work
    ///     # break;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn campaign(&self) -> Result<Term> {
        let wait = self.default_wait();
        self.attempt(wait)?.ok_or_else(|| self.timed_out(wait, Some(HoldKind::Lock)))
    }

    /// Attempts to become the leader without waiting. Returns `None` if there already is a leader.
    /// Blocks for one round trip.
    ///
    /// # Errors
    ///
    /// The same as [`campaign`](Self::campaign), except for `Timeout`.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let election = client.election("scheduler");
    /// let _term = election.try_campaign()?.expect("there is no leader yet");
    /// assert!(election.try_campaign()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn try_campaign(&self) -> Result<Option<Term>> {
        self.attempt(Wait::No)
    }

    /// Like [`campaign`](Self::campaign), but waits for at most `wait`, and returns `None` if that
    /// time passes first.
    ///
    /// # Errors
    ///
    /// The same as [`campaign`](Self::campaign), except for `Timeout`.
    #[track_caller]
    pub fn try_campaign_for(&self, wait: Duration) -> Result<Option<Term>> {
        self.attempt(wait_for(wait))
    }

    /// Returns the leader, or `None` if there is none. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::is_locked`](crate::Mutex::is_locked).
    ///
    /// ```
    /// let client = leasehold::Client::builder().label("web-3").in_memory()?;
    /// let election = client.election("scheduler");
    /// assert!(election.leader()?.is_none());
    /// let _term = election.campaign()?;
    /// assert!(election.leader()?.expect("this client leads").client.starts_with("web-3"));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn leader(&self) -> Result<Option<Leader>> {
        status::leader(&self.shared, &self.name)
    }

    #[track_caller]
    fn attempt(&self, wait: Wait) -> Result<Option<Term>> {
        let held = self.acquire_hold(HoldKind::Lock, wait)?;
        Ok(held.map(|held| LockGuard { held, kind: Leadership }))
    }
}

/// The time during which a client is the leader. Any thread may drop it, which ends it. Created by
/// [`Election::campaign`].
///
/// In addition to the methods below, it has those of every [`LockGuard`], such as
/// [`is_held`](Term::is_held) and [`lost`](Term::lost).
pub type Term = LockGuard<Leadership>;

impl Term {
    /// Returns the fencing token of this term. See [`Guard::fence`](crate::Guard::fence).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.held.hold().fence()
    }

    /// Returns 1: this guard never nests.
    #[must_use]
    pub fn depth(&self) -> u32 {
        1
    }

    /// Returns a watch that reports when another client waits to lead. See
    /// [`Guard::wanted`](crate::Guard::wanted).
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        Wanted::new(&self.held.shared, self.held.hold())
    }

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
