//! The election of a leader among clients.

use std::fmt;
use std::time::Duration;

use crate::base::canceller::Canceller;
use crate::base::clock;
use crate::base::holder::Leader;
use crate::error::Result;
use crate::guards::watches::{Lost, Wanted};
use crate::guards::{GuardInner, LockHandle, any_guard};
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
#[derive(Clone)]
pub struct Election {
    handle: LockHandle,
}

impl Election {
    pub(crate) fn new(handle: LockHandle) -> Self {
        let mut handle = handle.without_keep();
        // `leader` shows the last token that was given out, so it must be the one of the current
        // term.
        handle.options_mut().tenure = Some(Duration::ZERO);
        Self { handle }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// Sets the lease, as [`Builder::lease`](crate::Builder::lease) does for the client.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.handle.options_mut().lease = lease;
        self
    }

    /// Sets whether the lease is renewed, as [`Builder::renew`](crate::Builder::renew) does for the
    /// client.
    #[must_use]
    pub fn renew(mut self, renew: bool) -> Self {
        self.handle.options_mut().renew = renew;
        self
    }

    /// Sets the longest age of a hold, as [`Builder::max_hold`](crate::Builder::max_hold) does for
    /// the client.
    #[must_use]
    pub fn max_hold(mut self, age: Duration) -> Self {
        self.handle.options_mut().max_hold = Some(age);
        self
    }

    /// Sets how long a call without a deadline of its own waits, as
    /// [`Builder::wait`](crate::Builder::wait) does for the client.
    #[must_use]
    pub fn wait(mut self, time: Duration) -> Self {
        self.handle.options_mut().wait = Some(time);
        self
    }

    /// Sets what is shown with each hold, as [`Builder::note`](crate::Builder::note) does for the
    /// client.
    #[must_use]
    pub fn note(mut self, text: &str) -> Self {
        self.handle.options_mut().set_note(text);
        self
    }

    /// Lets a [`Canceller`](crate::Canceller) end the waits of this handle.
    #[must_use]
    pub fn cancelled_by(mut self, canceller: &Canceller) -> Self {
        self.handle.options_mut().cancelled_by = Some(canceller.clone());
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
        let wait = Wait::at_most(self.handle.options.wait, clock::now());
        self.attempt(wait)?.ok_or_else(|| self.handle.timed_out(wait, Some(HoldKind::Lock)))
    }

    /// Attempts to become the leader without waiting. Returns `None` if there is one. Blocks for
    /// one round trip.
    ///
    /// # Errors
    ///
    /// The same as [`campaign`](Self::campaign), except for `Timeout`.
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
        self.attempt(Wait::at_most(Some(wait), clock::now()))
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
        status::leader(&self.handle.shared, &self.handle.name)
    }

    #[track_caller]
    fn attempt(&self, wait: Wait) -> Result<Option<Term>> {
        let inner = self.handle.acquire(HoldKind::Lock, wait)?;
        Ok(inner.map(|inner| Term { inner }))
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt_as("Election", f)
    }
}

/// The time during which a client is the leader. Any thread may drop it, which ends it. Created by
/// [`Election::campaign`].
#[must_use = "if unused the term ends immediately: \
              bind it to `_guard`, not to `_`"]
pub struct Term {
    inner: GuardInner,
}

impl Term {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the fencing token of this hold. It is greater than that of every earlier hold of
    /// this name. Nested guards share it.
    ///
    /// Send it with every write to the protected resource, and let the resource reject tokens
    /// smaller than the greatest it has seen. Then a holder that has lost the lock without noticing
    /// can do no harm
    /// (<https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>).
    ///
    /// Tokens grow even if the server has lost their counter, provided that its clock is not behind
    /// the last token. A token is the clock's microseconds or, if that is not greater than the last
    /// token, the next number; among threads that share a lock it is ahead of the clock by a
    /// millisecond at most. With independent servers, the clock is that of this system.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.inner.holds[0].fence()
    }

    /// Returns 1: this guard never nests.
    #[must_use]
    pub fn depth(&self) -> u32 {
        1
    }

    /// Returns `true` if the lease has not ended by this process's clock. Does not ask the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Returns how long the lease lasts unless it is renewed, less a margin of 1 % of the lease and
    /// 2 ms for clock drift. Zero if it is lost. Does not ask the server.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Returns a watch with which any thread can check whether the lease was lost, or wait for the
    /// hold to end.
    #[must_use]
    pub fn lost(&self) -> Lost {
        self.inner.lost()
    }

    /// Returns a watch that reports when another client waits for the lock, so that a long job can
    /// end early or take a break. Waiting threads of this client do not count, nor do calls that do
    /// not wait, such as [`try_lock`](crate::Client::try_lock).
    ///
    /// The first call for a hold makes this client listen for messages, and blocks for the server's
    /// reply to a request that also finds a client that is already waiting. From then on a message
    /// arrives within a network latency. The next renewal makes up for a lost message, and for a
    /// failed request.
    ///
    /// No messages arrive for a hold that was [adopted](crate::Client::adopt): the watch learns of
    /// other clients from renewals, and each call of this method asks the server.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        Wanted::new(&self.inner.shared, &self.inner.holds[0])
    }

    /// Asks the server whether this hold still exists. Blocks for the server's reply.
    ///
    /// If the server has become a replica, and neither sentinels nor a cluster report it, it
    /// replies from its old data until a request of this client shows that it accepts no writes.
    /// While the lease is renewed, that takes a third of the lease at most.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): the hold no longer exists.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came; see [`Client::try_lock`](crate::Client::try_lock) for how long the
    ///   call retries.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Closed`](crate::Error::Closed): [`Client::shutdown`](crate::Client::shutdown) has ended
    ///   the hold, or the client was closed while this call paused after a failure.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn verify(&self) -> Result<()> {
        self.inner.verify(false)
    }

    /// Renews the lease now, also with `renew(false)`, but not beyond
    /// [`max_hold`](crate::Builder::max_hold). Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`verify`](Self::verify), and [`NotReplicated`](crate::Error::NotReplicated) if
    /// too few replicas or disks acknowledged it; then the lease is unchanged.
    pub fn renew(&self) -> Result<()> {
        self.inner.verify(true)
    }

    /// Releases what this guard holds, and reports errors. Unlike dropping the guard, this blocks
    /// for the server's reply. Does nothing after [`Client::shutdown`](crate::Client::shutdown).
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): the lease was lost before, so the work may have overlapped
    ///   with that of another holder.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came. The release is retried in the background, and the lease is no longer
    ///   renewed. If the client is closed while this call pauses after a failure, the call ends at
    ///   once with this.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child, where guards do nothing.
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
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

any_guard!(Term);
