//! Requests to a store about one lock, and the replies.

use std::fmt;
use std::time::{Duration, Instant};

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::base::holder::{Holder, Leader};
use crate::store::hold_id::{HeldAs, HoldId, HoldKind, client_of};

/// A request for holds: usually for one hold; for one hold of each of several locks, all or none;
/// or for several holds of a shared name, as many as there is room for.
#[derive(Clone, Copy)]
pub(crate) struct Acquire<'a> {
    /// Locks are one group of [`Store::groups`](crate::store::Store::groups). Holds of other kinds
    /// share one kind and name, and are granted in this order.
    pub(crate) holds: &'a [HoldId],
    pub(crate) lease: Duration,
    /// The note of these holds, if their ids say that they have one.
    pub(crate) note: Option<&'a str>,
    pub(crate) registration: Registration,
    /// Whether a client that must wait wants an echo: a message that arrives in the same way as the
    /// one that announces its turn.
    pub(crate) echo: bool,
    pub(crate) deadline: Instant,
}

impl Acquire<'_> {
    /// Returns the maximum number of fencing tokens: one, or a block if other holds may follow in
    /// the same tenure.
    pub(crate) fn tokens(&self) -> u64 {
        let hold = &self.holds[0];
        let is_followed = hold.kind.is_exclusive() && self.registration == Registration::Followed;
        if hold.may_be_kept() || is_followed { TENURE_FENCES } else { 1 }
    }
}

/// The client's place among the waiting clients of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    /// It does not wait.
    None,
    /// It has the lock, and wants more tokens for the holds of its tenure. The tenure is renewed,
    /// and never started again.
    Kept,
    /// It is registered if the holder may keep the lock, and the holder's client is notified.
    IfMayBeKept,
    /// Like `IfMayBeKept`, but the lock is not acquired, because the client wants the name as
    /// another kind.
    Recall,
    /// It is registered if the lock is held.
    IfHeld,
    /// It is registered, but only for the duration of this request.
    Last,
    /// It may already be registered.
    Registered,
    /// Like `Registered`, and other waiting threads can have the lock in the same tenure.
    Followed,
    /// Like `Registered`, but a client that has waited longer goes first even if the lock is free.
    Yielding,
    /// Like `Yielding`, for a client that has just missed messages, as after a restart of the
    /// server: for two seconds, clients that do not listen again yet go first, too.
    Returning,
}

impl Registration {
    /// Returns `true` if the client may be in the queue, which it leaves when it gets the lock.
    pub(crate) fn may_be_queued(self) -> bool {
        !matches!(self, Self::IfHeld | Self::IfMayBeKept | Self::None)
    }

    /// Returns `true` if the client is registered whenever the lock is held.
    pub(crate) fn joins(self) -> bool {
        !matches!(self, Self::IfMayBeKept | Self::Kept | Self::Last | Self::None | Self::Recall)
    }
}

/// The number of fencing tokens that a request asks for if it is [`Registration::Followed`], or if
/// the lock may be kept. It may get fewer: the last one is at most this many microseconds ahead of
/// the clock.
pub(crate) const TENURE_FENCES: u64 = 1000;

/// How long a released lock is offered to the client that has waited longest. That is long enough
/// even for a client that is far away or short of processor time. Only a stopped client loses its
/// offer. The servers of a quorum may offer it to different clients if these arrived at nearly the
/// same time. Unless a majority agrees, each of the clients then gets too few votes, and they try
/// again after random pauses.
pub(crate) const OFFER: Duration = Duration::from_millis(200);

/// Maximum number of permits that a request may ask for besides the first.
pub(crate) const SHARERS_MAX: usize = 64;

/// The depth of a hold that waits for its adoption, so that no client renews it. It is only shown,
/// and greater than any real depth.
pub(crate) const DETACHED: u32 = u32::MAX;

/// The reply to a request for holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AcquireReply {
    /// The holds exist now, or at least the first of them.
    Acquired {
        /// The token of the first one.
        fence: u64,
        /// The tokens of the others that exist, in order.
        others: Vec<u64>,
        /// How many more holds the tenure has room for, one after another, each with the next
        /// token.
        room: u32,
        /// Whether another client is known to wait.
        wanted: bool,
    },
    /// None of them exists.
    Held {
        /// The index of the lock that another owner holds.
        index: usize,
        /// How long it is held, unless it is renewed; `None` if that is not known.
        remaining: Option<Duration>,
        /// Whether one of several servers has not replied, so that the holds may exist there, or
        /// begin later.
        in_doubt: bool,
        /// Whether the holder's client may only be keeping the lock, and was notified that this one
        /// waits.
        recalled: bool,
        /// `Some` if an echo was sent: the client is registered, and will be notified when the hold
        /// in its way ends. For a lock, it contains the owner of that hold.
        echoed: Option<String>,
    },
}

/// Returns `true` if the requested holds exist now. Holds that fell short of their durability exist
/// too, until they are released.
pub(crate) fn is_granted(reply: &Result<AcquireReply, Failure>) -> bool {
    match reply {
        Ok(reply) => matches!(reply, AcquireReply::Acquired { .. }),
        Err(failure) => failure.is_shortfall(),
    }
}

/// A request about a hold that exists, or that its client waits for.
#[derive(Clone, Copy)]
pub(crate) struct HoldRequest<'a> {
    pub(crate) hold: &'a HoldId,
    pub(crate) change: Change,
    /// Without a reply by then, the request has failed.
    pub(crate) deadline: Instant,
}

/// The lease that a request gives an existing hold.
///
/// A late request does not shorten a lease: near the age limit of one client, it would give less
/// than a client that has adopted the hold. But no request leaves more than a whole lease. If more
/// is left, the server's clock has been set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NextLease {
    pub(crate) duration: Duration,
    /// A whole lease, the same for all requests about the hold.
    pub(crate) whole: Duration,
}

/// A whole lease.
impl From<Duration> for NextLease {
    fn from(whole: Duration) -> Self {
        Self { duration: whole, whole }
    }
}

/// A change to a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// No change: the reply says whether the hold exists.
    Check,
    /// The writer with the same owner becomes a reader with this lease. A repeat renews it.
    Downgrade { lease: NextLease, unused: Option<Unused> },
    /// It ends. A lock stays taken until `taken_until`; [`Moment::FIRST`] frees it at once.
    Release { taken_until: Moment, unused: Option<Unused> },
    /// It is renewed.
    Renew { lease: NextLease },
    /// It gets this depth, and is renewed if there is a lease. If `durable`, the change must become
    /// as durable as a new hold, like a renewal.
    SetDepth { depth: u32, lease: Option<NextLease>, durable: bool },
    /// It is renewed if there is a lease, and its client is notified when another one waits for the
    /// lock. The reply says whether one already does.
    Watch { lease: Option<NextLease> },
    /// Its client stops waiting for the name, as any kind, because a wake-up does not say for which
    /// kind it was. An offer to the client goes to the next client.
    Unregister,
}

/// The tokens that a tenure of writers leaves unused. The next readers get the token before these,
/// which the last writer had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unused {
    pub(crate) before: u64,
    pub(crate) last: u64,
}

impl Change {
    /// Frees the lock at once.
    pub(crate) const RELEASE: Self = Self::Release { taken_until: Moment::FIRST, unused: None };

    /// Returns the lease that the change gives the hold, if it renews it.
    pub(crate) fn lease(self) -> Option<NextLease> {
        match self {
            Self::Downgrade { lease, .. } | Self::Renew { lease } => Some(lease),
            Self::SetDepth { lease, .. } | Self::Watch { lease } => lease,
            Self::Check | Self::Release { .. } | Self::Unregister => None,
        }
    }

    /// Returns the unused tokens of a writer that this change ends.
    pub(crate) fn unused(self) -> Option<Unused> {
        match self {
            Self::Downgrade { unused, .. } | Self::Release { unused, .. } => unused,
            _ => None,
        }
    }

    pub(crate) fn is_durable(self) -> bool {
        match self {
            Self::Downgrade { .. } | Self::Renew { .. } => true,
            Self::SetDepth { durable, .. } => durable,
            Self::Watch { lease } => lease.is_some(),
            Self::Check | Self::Release { .. } | Self::Unregister => false,
        }
    }
}

/// How long a call may wait to post a request. A healthy server accepts a connection within that
/// time.
pub(crate) const POST_MOMENT: Duration = Duration::from_millis(50);

/// A request that no thread waits for.
pub(crate) struct PostedChange<'a> {
    pub(crate) request: HoldRequest<'a>,
    /// The end of the posting thread's wait for a connection to open, or for room.
    pub(crate) write_by: Instant,
    /// Called once with the reply, by the thread that reads it, so it must be quick.
    pub(crate) on_reply: Box<dyn FnOnce(Result<HoldReply, Failure>) + Send>,
}

/// The reply to a request about a hold that already exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldReply {
    /// The hold existed, and the request was executed.
    Done,
    /// The hold no longer exists.
    Gone,
    /// Like `Done`, and another client waits for the lock. Only [`Change::Watch`] asks for that.
    Wanted,
}

/// A request that was sent for another thread, which waits for the reply.
pub(crate) struct Ahead {
    wait: Option<Box<dyn FnOnce() -> Result<AcquireReply, Failure> + Send>>,
}

impl Ahead {
    pub(crate) fn new(
        wait: impl FnOnce() -> Result<AcquireReply, Failure> + Send + 'static,
    ) -> Self {
        Self { wait: Some(Box::new(wait)) }
    }

    /// Waits for the reply.
    pub(crate) fn reply(mut self) -> Result<AcquireReply, Failure> {
        self.wait.take().map_or_else(|| Err(Failure::unsent()), |wait| wait())
    }
}

/// Waits for the reply, because this thread may be the reader of the connection, for which others
/// wait.
impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(wait) = self.wait.take() {
            drop(wait());
        }
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").finish_non_exhaustive()
    }
}

/// The holder of a lock, as a server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HolderReply {
    /// As stored in the key, where some libraries store no text.
    pub(crate) owner: Vec<u8>,
    /// 0 if the hold has ended but keeps the lock taken.
    pub(crate) depth: u32,
    /// The time until the lock is free, or [`Duration::MAX`] if it never is.
    pub(crate) remaining: Duration,
    /// The last fencing token of the name.
    pub(crate) fence: u64,
    pub(crate) note: Option<String>,
}

impl HolderReply {
    /// Returns `true` if this is the owner of that hold, and the hold has not ended.
    pub(crate) fn is_owner_of(&self, hold: &HoldId) -> bool {
        self.owner == hold.owner().as_bytes() && self.depth > 0
    }

    /// The holder as shown to users.
    pub(crate) fn into_holder(self) -> Holder {
        let Self { owner, depth, remaining, note, .. } = self;
        let owner = String::from_utf8_lossy(&owner).into_owned();
        let (client, label) = client_of(&owner);
        let client = client.into();
        let label = label.into();
        let id = HoldId::of_owner(owner.as_bytes(), HoldKind::Lock, "");
        let may_be_kept = id.as_ref().is_some_and(HoldId::may_be_kept);
        let detached = depth == DETACHED;
        let renewed = id.as_ref().is_some_and(HoldId::is_renewed) && depth > 0 && !detached;
        let depth = if detached { 1 } else { depth };
        Holder { owner, client, label, depth, remaining, note, renewed, detached, may_be_kept }
    }

    /// The holder of an election's lock as shown to users.
    pub(crate) fn into_leader(self) -> Leader {
        let owner = String::from_utf8_lossy(&self.owner);
        let (client, label) = client_of(&owner);
        Leader { client: client.into(), label: label.into(), fence: self.fence, note: self.note }
    }
}

/// The owner of a hold, of any client or library.
#[derive(Clone, Copy)]
pub(crate) struct OwnerOf<'a> {
    pub(crate) kind: HoldKind,
    pub(crate) name: &'a str,
    /// As stored in the key.
    pub(crate) owner: &'a [u8],
}

/// A message about threads that wait, or may wait, for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Telling {
    /// The clients that get it. If there are none, the holder of the lock does.
    pub(crate) clients: Vec<String>,
    pub(crate) message: String,
}

/// A question about a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The holders of any kind, and the waiting clients.
    All,
    /// The holder of a lock, perhaps without the token and the note.
    Owner,
    /// The holder of a lock, perhaps without the token.
    Holder,
    /// The number of permits of a semaphore that are held or offered.
    Permits,
    /// The holder of a lock, with the token.
    Token,
}

/// The answer to a [`Look`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportReply {
    pub(crate) holds: Vec<(HeldAs, HolderReply)>,
    /// The last fencing token of the name, or 0.
    pub(crate) fence: u64,
    /// The clients in the queue, in order.
    pub(crate) waiting: Vec<String>,
    /// The number of permits that are held or offered.
    pub(crate) permits: u32,
}

impl ReportReply {
    /// Returns the holder of a lock, if there is one.
    pub(crate) fn holder(&self) -> Option<&HolderReply> {
        self.holds.first().map(|(_, holder)| holder)
    }
}
