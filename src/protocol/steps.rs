//! The language of the machine of a name (`name.rs`): the inputs about its calls and the name
//! ([`Input`], [`NameInput`]), and the results: the next step of a call's thread ([`Next`]), and
//! the actions of the runtime ([`Action`]). The inputs about its holds are in `tenure.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::base::spans::OpenSpan;
use crate::error::Loss;
use crate::protocol::call::{CallSite, Caller, Wait};
use crate::protocol::hold::Hold;
use crate::store::hold_id::HoldId;
use crate::store::request::{Acquire, AcquireReply, Change, Registration};

/// A call that wants a hold.
pub(crate) struct Call<P> {
    /// Its number, unique in the client.
    pub(crate) number: u64,
    /// The hold that it asks for.
    pub(crate) hold: HoldId,
    pub(crate) caller: Caller,
    /// Where the call is told what to do next while its thread is parked.
    pub(crate) port: P,
    /// Whether a request without a reply may have begun the hold, or may still begin it.
    pub(super) may_begin: bool,
    /// Whether it has timed out, and only waits for the next reply.
    pub(super) leaves: bool,
}

impl<P> Call<P> {
    pub(crate) fn new(hold: HoldId, caller: &Caller, port: P) -> Self {
        Self {
            number: hold.nonce,
            hold,
            caller: caller.clone(),
            port,
            may_begin: false,
            leaves: false,
        }
    }

    /// Returns the action that tells the call how it ends.
    pub(super) fn end(self, outcome: Outcome) -> Action<P> {
        Action::Tell(self.port, Next::Done(outcome))
    }

    /// Returns `true` if the call has timed out, and may end with what was learned at this time. A
    /// call that does not wait accepts a failure only after it has waited for the next reply.
    pub(super) fn believes(&self, at: Instant) -> bool {
        let Caller { begin, wait, .. } = self.caller;
        (self.leaves || wait != Wait::No) && at >= begin
    }
}

/// An input about a call. Numbers are those of calls.
pub(crate) enum Input<P> {
    /// A call wants a hold. It comes behind all others, or in front of them if it `rejoins`: it was
    /// given a hold that was lost on the way.
    Call { call: Call<P>, rejoins: bool },
    /// A call wants a hold by itself, beside those that wait: no message reaches it. It releases
    /// these debts of the client if they are in its way.
    CallAlone { call: Call<P>, debts: Vec<Arc<Hold>> },
    /// The reply has come to the request of the first call, which was sent at that time.
    Reply {
        sent: Moment,
        reply: Result<AcquireReply, Failure>,
        /// The hold to ask for next if the store withdraws what it has not granted: that must not
        /// be requested again.
        next: Option<HoldId>,
    },
    /// The change that the first call asked for was made or has failed.
    Changed(Result<(), Failure>),
    /// It is the turn of this call, or its time to park is over.
    Due(u64),
    /// The wait of this call is cancelled. If its request is on its way, the reply comes first.
    Cancelled(u64),
    /// The thread of this call panics, and reads no reply.
    Panicked(u64),
}

/// An input about a name as a whole.
#[derive(Clone, Copy)]
pub(crate) enum NameInput {
    /// The lock may be free.
    Woken,
    /// An echo has come: what servers tell the client arrives.
    Echo,
    /// Messages may have been missed. Calls no longer rely on them.
    Interrupted,
    /// Another client waits for the lock, and knows its hold by this nonce.
    Wanted(u64),
    /// Another client has the name, or this client has it as another kind, so no debt is left.
    IsOthers,
}

/// The state of the world for one input, and what follows from that.
pub(crate) struct Turn<P> {
    /// The time by the clock of leases.
    pub(crate) now: Moment,
    /// The same by the clock of waits, which a suspend stops.
    pub(crate) instant: Instant,
    /// Whether the client is closed, and takes no new calls.
    pub(crate) is_closed: bool,
    /// Whether messages of other clients arrive from all places.
    pub(crate) listens: bool,
    /// Whether messages of other clients may have been missed a moment ago.
    pub(crate) missed_messages: bool,
    pub(crate) policy: Policy,
    /// Reported before the name is unlocked, so that no later hold is reported first.
    pub(crate) reports: Reports,
    /// Two at most, as a rule, which allocate nothing.
    pub(crate) actions: Actions<P>,
}

impl<P> Turn<P> {
    /// Returns `true` if locks may be kept: other clients can ask for them.
    pub(super) fn can_keep(&self) -> bool {
        self.listens && !self.is_closed
    }

    /// Reports this about the current hold of a tenure.
    pub(super) fn report(&mut self, hold: &Arc<Hold>, what: HoldEvent) {
        // The token now: the same turn may begin the next hold.
        self.reports.push(HoldReport { hold: hold.clone(), fence: hold.fence(), what });
    }
}

/// The settings that all calls of a client share.
#[derive(Clone, Copy)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Policy {
    /// Whether the store withdraws a hold that it has not granted at once.
    pub(crate) withdraws: bool,
    /// Whether the store executes the requests of a client in the order in which they are sent.
    pub(crate) keeps_order: bool,
    /// The least and the longest pause while another owner holds the lock.
    pub(crate) backoff: (Duration, Duration),
    /// How long a call without a limit repeats requests that fail.
    pub(crate) retry_window: Duration,
    /// The age at which a hold is reported as long, if at all.
    pub(crate) warn_held: Option<Duration>,
}

/// The next step of a call's thread.
#[derive(Debug)]
pub(crate) enum Next {
    /// Sends this request, and goes on with [`Input::Reply`].
    Ask(Ask),
    /// Asks for this change of a hold, and goes on with [`Input::Changed`].
    Change(HoldId, Change),
    /// Releases these holds of the client, and goes on with [`Input::Changed`].
    Pay(Vec<Arc<Hold>>),
    /// Parks until it is told what to do. If it is told nothing by this time, goes on with
    /// [`Input::Due`].
    Park {
        until: Option<Instant>,
        /// Whether another owner has the lock, or another call comes first.
        contended: bool,
    },
    /// It is the call's turn: goes on with [`Input::Due`].
    Turn,
    Done(Outcome),
}

impl Next {
    /// Waits for a signal that was sent, or is about to be.
    pub(super) const AWAIT: Self = Self::Park { until: None, contended: false };
}

/// A request for holds.
#[derive(Debug)]
pub(crate) struct Ask {
    /// The hold of the first call, and the holds of calls behind it that can begin at the same
    /// time.
    pub(crate) holds: SmallVec<[HoldId; 1]>,
    pub(crate) lease: Duration,
    /// The note of all these holds.
    pub(crate) note: Option<Arc<str>>,
    pub(crate) registration: Registration,
    /// Whether an echo is wanted.
    pub(crate) echo: bool,
    pub(crate) deadline: Instant,
}

impl Ask {
    pub(crate) fn request(&self) -> Acquire<'_> {
        let Self { holds, note, lease, registration, echo, deadline } = self;
        Acquire {
            holds,
            lease: *lease,
            note: note.as_deref(),
            registration: *registration,
            echo: *echo,
            deadline: *deadline,
        }
    }
}

/// How a call ends.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// With a new hold.
    Acquired(Arc<Hold>),
    /// With an attempt of its own, beside the conversation.
    Alone,
    /// Without a hold: another owner holds the lock.
    Busy,
    /// Without a hold: the client is closed.
    Closed,
    Failed(Failure),
    /// With the next hold of a tenure.
    HandedOff(Arc<Hold>),
    /// It has left, because its wait was cancelled or its thread panics.
    Left,
    /// With a hold that readers share. It has one more guard now.
    Shared(Arc<Hold>),
    /// With the next hold of a tenure that was kept.
    Kept(Arc<Hold>),
}

/// The result of an input.
pub(crate) type Actions<P> = SmallVec<[Action<P>; 2]>;

/// An action of the runtime after an input and its reports, in the order of the list. The next step
/// of the call's thread comes after that.
#[derive(Debug)]
pub(crate) enum Action<P> {
    /// Counts a new tenure, and goes on with `HoldInput::Due` at this time.
    Begin { hold: Arc<Hold>, due: Moment },
    /// Closes the span of a hold whose tenure goes on.
    CloseSpan(OpenSpan),
    /// Counts a lock that was free before the first call was notified.
    CountMissedWakeup,
    /// Counts one hold less.
    CountEnd,
    /// Counts a hold on a kept lock.
    CountHold,
    /// Goes on with `HoldInput::Due` at this time.
    Due { hold: Arc<Hold>, at: Moment },
    /// Counts the end of a tenure, for which a shutdown waits.
    Finish,
    /// Receives messages of other clients about this hold.
    Listen(HoldId),
    /// Leaves a debt to the renewer.
    Owe(Arc<Hold>),
    /// Opens the connections that renewals of the hold will need.
    Prepare,
    /// Records that a request has failed, and how long the call pauses before it repeats it, if it
    /// does.
    RecordFailure(Failure, Option<Duration>),
    /// Sends the release of a hold that has ended here. If calls wait until it is sent, goes on
    /// with `HoldInput::ReleaseSent`.
    Release { hold: Arc<Hold>, calls_wait: bool },
    /// Asks for this change of a hold, which renews it.
    Renew(Change),
    /// Tells a parked call what to do next.
    Tell(P, Next),
    /// Takes the client off the queue for holds like this.
    Unregister(HoldId),
    /// Makes the calls that want the name as a lock try.
    WakeLocks,
}

/// The reports of an input: one hold, as a rule.
pub(crate) type Reports = SmallVec<[HoldReport; 1]>;

/// A report to the program about a hold.
#[derive(Debug)]
pub(crate) struct HoldReport {
    pub(crate) hold: Arc<Hold>,
    pub(crate) fence: u64,
    pub(crate) what: HoldEvent,
}

#[derive(Debug)]
pub(crate) enum HoldEvent {
    /// It has begun, for a call that began at that time.
    Acquired {
        begin: Instant,
    },
    Released {
        held: Duration,
    },
    /// It was lost. There is no site if the lock was kept, or if the hold was never reported to
    /// begin.
    Lost {
        site: Option<CallSite>,
        loss: Loss,
    },
    ReleaseFailed {
        site: CallSite,
        failure: Failure,
    },
    /// A renewal has failed, unlike the one before, and there is time to try again.
    RenewalFailing {
        remaining: Duration,
        failure: Failure,
    },
    /// It has been held for too long.
    HeldLong {
        site: CallSite,
        held: Duration,
    },
}
