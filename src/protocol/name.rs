//! The conversation of one client about one name: what each of its calls waits for, what the
//! servers are asked, and what each reply, message and end of a wait means.
//!
//! A deterministic machine, which takes an input ([`Name::step`], [`Name::step_name`],
//! [`Name::step_hold`]) and says what follows from it. It never blocks, reads a clock or does I/O.
//! The runtime (`local/`) gives it inputs while it has the name locked, and performs the actions
//! that it adds to a list. The first call carries the conversation: its thread sends the requests.
//! All others are parked, and are told by actions what to do.
//!
//! ```text
//!             call            reply: Acquired            end, next in tenure
//!    Idle ───────────▶ Asking ────────────────▶ Held ◀──────────────────────┐
//!      ▲               ▲    │                   │ │ └───────────────────────┘
//!      │     due, woken│    │reply: Held,       │ │ end, may be kept
//!      │               │    ▼failure            │ ▼
//!      │               Waiting                  │ Kept ──▶ Held, or Asking for more tokens
//!      │                  │ the wait is over    │   │
//!      └──────────────────┴─────────────────────┴───┘ release sent, loss reported
//! ```
//!
//! From each state, when the first call gives up, or the release of the hold is sent or its loss
//! reported, the next call becomes the first, and asks. Without one the name is `Idle`.
//!
//! | kind | holds of a client | calls that use a hold | a call that times out behind the first |
//! |---|---|---|---|
//! | lock | one | one after the other, each with the next token | is told what is known |
//! | readers | one | together | makes an attempt of its own |
//! | writer | one | one after the other, each with the next token | makes an attempt of its own |
//! | permit | any number | one after the other | makes an attempt of its own |
//!
//! A call uses the hold of another only within the tenure: until its time is over, another client
//! asks for the lock, or a request about it is in doubt.
//!
//! An outage is not contention, so a call that times out behind the first is told only what is
//! known since it began:
//!
//! | state | since the call began | outcome |
//! |---|---|---|
//! | `Held`, its lease valid | | busy |
//! | `Waiting` | the last reply said that another owner holds the lock | busy |
//! | `Asking`, `Waiting` | the last request has failed | that failure |
//! | `Waiting` | nothing | the first call asks now, and its reply decides |
//! | `Asking`, `Held` that has ended | nothing | the next reply decides |
//! | any, of what several can hold | nothing | an attempt of its own: the servers keep the order |
//!
//! `try_lock` times out on arrival. It accepts the last reply that the lock is held, however old
//! that is.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{mem, ptr};

use smallvec::smallvec;

use crate::base::clock::{Moment, end_after};
use crate::base::failure::{Failure, FailureKind};
use crate::error::LossCause;
use crate::protocol::call::{Caller, Wait};
use crate::protocol::hold::{Grant, Hold, HoldFailure, reliable};
use crate::protocol::retry::{HeldPauses, RetryPolicy, is_outage};
use crate::protocol::signals::{EndSignal, WantedSignal};
use crate::protocol::steps::{Action, Ask, Call, Input, NameInput, Next, Outcome, Turn};
use crate::protocol::tenure::{HoldInput, ReleasedBy, Tenure};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{AcquireReply, Change, Registration, SHARERS_MAX, is_granted};

/// How long a call that does not wait gives another client to release a lock that is only kept.
const RECALL_TIME: Duration = Duration::from_millis(50);

/// The state of a client's conversation about one name. It exists while a call of the client wants
/// or has the lock, or the client keeps it, or a release is not confirmed.
pub(crate) struct Name<P> {
    state: State<P>,
    /// The tenures of this client: that of `state`, any number of permits, those that calls have
    /// acquired outside the conversation, and those that readers could not share. Their ends are
    /// reported before the next hold that excludes them begins. Some must not exist in the store,
    /// and may until it is known that they have ended there ([`Tenure::is_debt`]): a reply that the
    /// lock is held may mean one of these.
    tenures: Vec<Tenure>,
    /// The calls behind the first, in the order in which they came. `None` until there was one: a
    /// client may have a million names that are only held.
    #[expect(clippy::box_collection, reason = "a name that is only held has none, and is small")]
    behind: Option<Box<VecDeque<Call<P>>>>,
}

enum State<P> {
    Idle,
    /// A request is on its way.
    Asking(Box<Conversation<P>>),
    /// The first call is parked between two requests.
    Waiting(Box<Conversation<P>>),
    /// This hold is in the way of the calls: a call has it, or it is lost and that is not reported
    /// yet, or it has ended and calls wait until its release is sent.
    Held(Arc<Hold>),
    /// No call wants the lock, and the client keeps it.
    Kept(Arc<Hold>),
}

/// The requests of the first call, and what it knows from their replies.
struct Conversation<P> {
    first: Call<P>,
    /// The purpose of the request in flight. If there is none, the purpose of the next request.
    purpose: Purpose,
    registration: Registration,
    pauses: HeldPauses,
    /// Set since the first failure.
    retry: Option<RetryPolicy>,
    known: Known,
    /// When servers have answered the last of its requests, if they have.
    answered: Option<Instant>,
    /// The end of the time that another client has to release a lock that it may only keep. If the
    /// call does not wait, it is set once that client was notified; if the call wants the name as
    /// another kind, just before that.
    recall_ends: Option<Instant>,
    /// Whether the first call asks again before its pause is over. If it is parked, its thread was
    /// notified.
    is_told: bool,
    /// Whether an echo has come since messages may have been missed: what servers tell the client
    /// arrives.
    hears: bool,
    /// When the next request is due, if that is later than the backoff would have it.
    relies_until: Option<Instant>,
    /// The nonces of the holds that other clients wait for. Such a message may overtake the reply
    /// that brings the hold, and so may a late message about an earlier hold.
    wanted: BTreeSet<u64>,
    /// A permit that was dropped while the request was in flight. The first call gets it, unless
    /// the reply brings one.
    spare: Option<Arc<Hold>>,
}

/// The purpose of a request of the first call, which decides what the reply means.
enum Purpose {
    /// A hold of the first call.
    Acquire {
        /// The calls behind for which it asks as well.
        others: Vec<Other>,
        /// Whether the store may release a debt of this client after it has executed this request,
        /// although the reply to the release comes first, over another connection.
        may_be_older: bool,
    },
    /// The end of earlier holds of this client, which may be what is in the way.
    Pay(Vec<Arc<Hold>>),
    /// The end of a lock that another client may only keep: a name without a guard may be used for
    /// any kind. If that client does not release it, the call ends with the failure.
    Recall {
        failure: Failure,
        /// Whether the other client was told, so that this one may wait for the lock.
        told: bool,
    },
    /// More tokens for a tenure that was kept.
    Refill(Arc<Hold>),
    /// The client no longer waits for the lock that it has recalled.
    Unregister,
    /// The end of a hold that fell short of its durability. The call then ends with the failure.
    Withdraw(Failure),
}

/// A call behind the first, for which its request asks as well.
struct Other {
    number: u64,
    hold: HoldId,
    lease: Duration,
    note: Option<Arc<str>>,
    /// Whether the call has since got a permit from this process. The hold that the request brings
    /// for it then goes to another call.
    is_served: bool,
}

impl Purpose {
    const ACQUIRE: Self = Self::Acquire { others: Vec::new(), may_be_older: false };
}

/// The result of the first call's last request.
enum Known {
    /// It has failed, at that time.
    Failed(Failure, Instant),
    /// Another owner held the lock.
    Held {
        /// When the reply said so.
        at: Instant,
        /// The time before which the lock is free only if it was released, unless a wake-up has
        /// said that it is.
        until: Option<Moment>,
    },
    /// Nothing yet.
    Nothing,
}

impl Other {
    fn of<P>(call: &Call<P>) -> Self {
        let Call { number, hold, caller, .. } = call;
        Self {
            number: *number,
            hold: hold.clone(),
            lease: caller.times.lease,
            note: caller.note.clone(),
            is_served: false,
        }
    }
}

impl<P> Conversation<P> {
    fn new(first: Call<P>, registration: Registration, purpose: Purpose) -> Box<Self> {
        Box::new(Self {
            pauses: HeldPauses { backoff: None, yields_until: first.caller.begin },
            first,
            purpose,
            registration,
            retry: None,
            known: Known::Nothing,
            answered: None,
            recall_ends: None,
            is_told: false,
            hears: false,
            relies_until: None,
            wanted: BTreeSet::new(),
            spare: None,
        })
    }

    /// Returns the purpose of the request that was just answered. The next one is for a hold,
    /// unless the reply says otherwise.
    fn take_purpose(&mut self) -> Purpose {
        mem::replace(&mut self.purpose, Purpose::ACQUIRE)
    }

    /// Returns `true` if the request on its way may bring a hold for a call behind the first.
    fn asks_for(&self, number: u64) -> bool {
        matches!(&self.purpose, Purpose::Acquire { others, .. }
            if others.iter().any(|other| other.number == number))
    }

    /// Notes that a call behind the first has got a permit, and needs no other one.
    fn note_served(&mut self, number: u64) {
        if let Purpose::Acquire { others, .. } = &mut self.purpose {
            for other in others.iter_mut().filter(|other| other.number == number) {
                other.is_served = true;
            }
        }
    }

    /// Notes that the lock may have become free since the last request was sent. If so, that was a
    /// moment ago, and another attempt may soon succeed, too.
    fn set_may_be_free(&mut self) {
        self.pauses.backoff = None;
        if let Known::Held { until, .. } = &mut self.known {
            *until = None;
        }
    }

    /// Returns the lock to recall: the hold that the call wants, as a lock.
    fn recalled_lock(&self) -> HoldId {
        HoldId { kind: HoldKind::Lock, ..self.first.hold.clone() }
    }

    /// Returns `true` if the client may be among the waiting clients, and servers reply.
    fn may_be_queued(&self) -> bool {
        let is_failing = self.retry.as_ref().is_some_and(RetryPolicy::is_failing);
        self.registration.may_be_queued() && !is_failing
    }

    /// Returns the next request for the first call. `behind` are the calls that wait behind it.
    fn next_request(
        &mut self,
        behind: Option<&VecDeque<Call<P>>>,
        may_be_older: bool,
        turn: &Turn<P>,
    ) -> Ask {
        let Caller { wait, times, .. } = self.first.caller;
        let deadline = times.request_deadline(wait, turn.instant);
        match &self.purpose {
            Purpose::Recall { .. } => {
                // It asks a client that only keeps the lock to release it, and begins no hold.
                Ask {
                    holds: smallvec![self.recalled_lock()],
                    lease: times.lease,
                    note: None,
                    registration: Registration::Recall,
                    echo: false,
                    deadline,
                }
            }
            Purpose::Refill(kept) => {
                let lease = kept.next_lease(turn.now).duration;
                Ask {
                    holds: smallvec![kept.id.clone()],
                    lease,
                    // The call suits the tenure, so it has the same note.
                    note: self.first.caller.note.clone(),
                    registration: Registration::Kept,
                    echo: false,
                    deadline,
                }
            }
            _ => {
                let alike = self.calls_alike(behind);
                let registration = self.next_registration(behind, turn);
                let mut holds = smallvec![self.first.hold.clone()];
                holds.extend(alike.iter().map(|call| call.hold.clone()));
                let others = alike.into_iter().map(Other::of).collect();
                self.purpose = Purpose::Acquire { others, may_be_older };
                let echo = self.wants_echo(registration, turn);
                Ask {
                    holds,
                    lease: times.lease,
                    note: self.first.caller.note.clone(),
                    registration,
                    echo,
                    deadline,
                }
            }
        }
    }

    /// Returns the calls right behind the first whose holds can begin with its own.
    fn calls_alike<'a>(&self, behind: Option<&'a VecDeque<Call<P>>>) -> Vec<&'a Call<P>> {
        // In its first attempt, a call does not look at those behind it.
        if self.registration != Registration::Registered || !self.first.hold.kind.row().is_several {
            return Vec::new();
        }
        let Call { hold, caller, .. } = &self.first;
        let alike = behind.into_iter().flatten().take_while(|call| {
            call.hold.kind == hold.kind
                && call.caller.times.lease == caller.times.lease
                && call.caller.note == caller.note
        });
        alike.take(SHARERS_MAX).collect()
    }

    /// Returns what the next request for a hold says about the place among the waiting clients.
    fn next_registration(
        &self,
        behind: Option<&VecDeque<Call<P>>>,
        turn: &Turn<P>,
    ) -> Registration {
        use Registration::{Followed, IfHeld, Registered, Returning, Yielding};
        let next = behind.and_then(VecDeque::front);
        let is_followed = next.is_some_and(|next| next.hold.kind == self.first.hold.kind)
            && !self.first.caller.terms.tenure.is_zero();
        match self.registration {
            Registration::Last => Registration::Last,
            // Redis has kept the client's place while it did not listen.
            IfHeld | Registered if turn.missed_messages => Returning,
            _ if turn.instant < self.pauses.yields_until => Yielding,
            Registered if is_followed => Followed,
            registration => registration,
        }
    }

    /// Returns `true` if the next request asks for an echo. A call that was just notified will soon
    /// know more. A call that hears already asks for an echo, too, because the reply then shows
    /// that it will be notified again.
    fn wants_echo(&self, registration: Registration, turn: &Turn<P>) -> bool {
        use Registration::{Followed, Registered, Yielding};
        let waits = matches!(registration, Followed | Registered | Yielding);
        waits && !self.is_told && turn.listens
    }

    /// Records whether the client may be registered as waiting after a reply. Returns `true` if it
    /// waits for messages.
    fn record_registration(&mut self, reply: &Result<AcquireReply, Failure>) -> bool {
        self.registration = match (self.registration, reply) {
            (Registration::IfMayBeKept, Ok(AcquireReply::Held { recalled: true, .. })) => {
                Registration::Last
            }
            (Registration::IfMayBeKept | Registration::Last | Registration::None, _) => {
                return false;
            }
            _ => Registration::Registered,
        };
        matches!(reply, Ok(AcquireReply::Held { .. }))
    }

    /// Returns how long to pause after a reply that the lock is held, to a request that was sent at
    /// `sent`; `None` if the wait is over.
    fn pause_while_held(
        &mut self,
        sent: Moment,
        remaining: Option<Duration>,
        recalled: bool,
        is_echoed: bool,
        turn: &Turn<P>,
    ) -> Option<Duration> {
        let until = remaining.map(|remaining| sent.after(remaining));
        self.known = Known::Held { at: turn.instant, until };
        let is_told = is_echoed && turn.listens && self.hears;
        let seed = self.first.hold.seed();
        let pause = self.pauses.next(turn.policy.backoff, remaining, is_told, turn.instant, seed);
        let Caller { times, wait, .. } = self.first.caller;
        if let Some(pause) = wait.cut(pause, turn.instant) {
            self.relies_until = if is_told { Some(end_after(turn.instant, pause)) } else { None };
            return Some(pause);
        }
        if self.registration != Registration::Last {
            return None;
        }
        if recalled && self.recall_ends.is_none() {
            // The attempt after it needs time, too.
            let last = times.request_deadline(wait, turn.instant);
            let time = RECALL_TIME.min(last.saturating_duration_since(turn.instant) / 2);
            self.recall_ends = Some(turn.instant + time);
        }
        // A wake-up before that which brings no lock does not end the call.
        let left = self.recall_ends?.saturating_duration_since(turn.instant);
        if left.is_zero() { None } else { Some(left) }
    }

    /// Records whether servers have answered a request: the next failure then begins an outage.
    fn record_answer<T>(&mut self, reply: &Result<T, Failure>, now: Instant) {
        if reply.is_err() {
            return;
        }
        self.answered = Some(now);
        if let Some(retry) = &mut self.retry {
            retry.record_reply();
        }
    }

    /// Returns how long to pause after a failure, unless trying again is pointless.
    fn pause_after(&mut self, failure: &mut Failure, turn: &Turn<P>) -> Option<Duration> {
        let Call { caller: Caller { wait, times, .. }, hold, .. } = &self.first;
        let retry = self.retry.get_or_insert_with(|| {
            RetryPolicy::new(*wait, turn.policy.retry_window, *times, hold.seed())
        });
        let pause = retry.pause_after(failure, turn.instant);
        if pause != Some(Duration::ZERO) {
            self.known = Known::Failed(failure.clone(), turn.instant);
        } else if let Known::Held { .. } = self.known {
            // A broken connection is not an outage, but a reply is lost.
            self.known = Known::Nothing;
        }
        pause
    }
}

impl<P: Clone> Name<P> {
    pub(crate) const NEW: Self = Self { state: State::Idle, tenures: Vec::new(), behind: None };

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Idle) && self.tenures.is_empty()
    }

    /// Takes an input about a call, and returns what the thread of the call does next.
    pub(crate) fn step(&mut self, input: Input<P>, turn: &mut Turn<P>) -> Next {
        match input {
            // A thread that closes the client later finds the call.
            Input::Call { .. } | Input::CallAlone { .. } if turn.is_closed => {
                Next::Done(Outcome::Closed)
            }
            Input::Call { call, rejoins } => self.call(call, rejoins, turn),
            Input::CallAlone { call, debts } => self.begin_alone(call, debts, turn),
            Input::Reply { sent, reply, next } => self.reply(sent, reply, next, turn),
            Input::Changed(outcome) => self.changed(outcome, turn),
            Input::Due(number) => self.due(number, turn),
            Input::Cancelled(number) if self.asks(number) => Next::AWAIT,
            Input::Cancelled(number) | Input::Panicked(number) => self.leave(number, turn),
        }
    }

    /// Takes an input about all calls and holds.
    pub(crate) fn step_name(&mut self, input: NameInput, turn: &mut Turn<P>) {
        match input {
            NameInput::Woken => self.wake(turn),
            NameInput::Echo => self.note_echo(),
            NameInput::Interrupted => self.rely_on_nothing(turn),
            NameInput::Wanted(nonce) => self.set_wanted(nonce),
            NameInput::IsOthers => {
                let debts = self.debts();
                self.end_debts_or_lose(&debts, turn);
            }
        }
    }

    /// Takes an input about a hold. Returns `false` if it comes too late to have an effect: because
    /// the hold has ended or was lost before, or because its content was known.
    pub(crate) fn step_hold(
        &mut self,
        hold: &Arc<Hold>,
        input: HoldInput<'_>,
        turn: &mut Turn<P>,
    ) -> bool {
        match input {
            HoldInput::Begin { tenure, sent } => self.begin_beside(tenure, sent, turn),
            HoldInput::Accept { begin } => self.accept(hold, begin, turn),
            HoldInput::Acquired { begin } => {
                self.tenure_mut(hold).is_some_and(|tenure| tenure.report_begin(begin, turn))
            }
            HoldInput::End { hands_off } => self.end(hold, hands_off, turn),
            HoldInput::GiveBack => self.give_back_hold(hold, turn),
            HoldInput::Leave => self.leave_hold(hold, turn),
            HoldInput::ShutDown => self.shut_down(hold, turn),
            HoldInput::EndKept => self.end_kept(hold, turn.now),
            HoldInput::ReleaseSent => self.let_next_try(hold, turn),
            HoldInput::Released { outcome, by } => self.released(hold, outcome, by, turn),
            HoldInput::ReleaseGivenUp(failure) => self.give_up_release(hold, failure, turn),
            HoldInput::Owed => self.owe(hold, turn),
            HoldInput::Abandoned => self.change_tenure(hold, Tenure::tell_over),
            HoldInput::Deadline => self.expire(hold, turn),
            HoldInput::Gone => self.lose(hold, turn),
            HoldInput::FoundGone => self.mark_lost(hold, LossCause::Gone),
            HoldInput::TakenBy(client) => self.change_tenure(hold, |it| it.set_taken(client)),
            HoldInput::LookedUp => self.tell_lost(hold, hold.may_begin, turn),
            HoldInput::Forced => self.change_tenure(hold, Tenure::set_forced),
            HoldInput::Wanted => self.set_hold_wanted(hold, turn),
            HoldInput::WillBeTold => self.change_tenure(hold, Tenure::set_told),
            HoldInput::Due { at } => self.hold_due(hold, at, turn),
            HoldInput::Renewed { sent, lease } => {
                self.change_tenure(hold, |it| it.renewed(sent, lease, turn))
            }
            HoldInput::RenewalFailed(failure) => {
                self.change_tenure(hold, |it| it.renewal_failed(failure, turn))
            }
        }
    }

    /// Adds a call: as the first if there is none, else behind all others, or in front of them if
    /// it `rejoins`.
    fn call(&mut self, call: Call<P>, rejoins: bool, turn: &mut Turn<P>) -> Next {
        if let State::Kept(kept) = &self.state {
            let kept = kept.clone();
            return self.call_for_kept(call, &kept, turn);
        }
        if let State::Held(shared) = &self.state
            && shared.id.kind.row().is_shared
        {
            let shared = shared.clone();
            if self.may_share(&shared, &call, turn.now) {
                shared.set_depth(shared.depth() + 1);
                return Next::Done(Outcome::Shared(shared));
            }
            // From now on no reader overtakes this call.
            self.state = State::Idle;
        }
        let is_free = match &self.state {
            State::Idle => true,
            // Its release was sent or is about to be, and the calls that waited for that have left.
            // A lost hold is still in the way until its loss is reported.
            State::Held(hold) => hold.is_ended() && self.calls_behind().next().is_none(),
            _ => false,
        };
        if is_free {
            return self.begin(call, Purpose::ACQUIRE, turn);
        }
        if call.caller.wait == Wait::No {
            return self.time_out(call, rejoins, turn);
        }
        // The first call gets the next one, if its reply brings none.
        if let State::Asking(talk) = &mut self.state
            && let Some(spare) = talk.spare.take()
        {
            if self.fits(&spare, &call, turn.now) {
                self.begin_next(&spare, &call.caller, turn.now);
                return Next::Done(Outcome::HandedOff(spare));
            }
            self.set_spare(spare);
        }
        let until = Self::park_until(&call, turn);
        self.push(call, rejoins);
        Next::Park { until, contended: true }
    }

    /// Adds a call while the client keeps the lock.
    fn call_for_kept(&mut self, call: Call<P>, kept: &Arc<Hold>, turn: &mut Turn<P>) -> Next {
        let tenure = self.tenure(kept);
        if tenure.is_some_and(|kept| kept.may_be_followed_by(&call.caller, true, turn.now)) {
            // Without a request: in Redis, the client has the lock all the time.
            self.state = State::Held(kept.clone());
            self.begin_next(kept, &call.caller, turn.now);
            turn.actions.push(Action::CountHold);
            return Next::Done(Outcome::Kept(kept.clone()));
        }
        let suits = tenure.is_some_and(|kept| kept.suits(&call.caller, turn.now));
        self.state = State::Idle;
        if suits {
            // Its tokens are used up, or its time is over. A request brings both.
            return self.begin(call, Purpose::Refill(kept.clone()), turn);
        }
        self.give_up_kept(kept, turn);
        self.begin(call, Purpose::ACQUIRE, turn)
    }

    fn may_share(&self, shared: &Hold, call: &Call<P>, now: Moment) -> bool {
        call.hold.kind == shared.id.kind && self.may_follow(shared, &call.caller, false, now)
    }

    fn may_follow(&self, tenure: &Hold, caller: &Caller, may_keep: bool, now: Moment) -> bool {
        let tenure = self.tenure(tenure);
        tenure.is_some_and(|tenure| tenure.may_be_followed_by(caller, may_keep, now))
    }

    /// Begins the next hold of a tenure, for this caller.
    fn begin_next(&mut self, tenure: &Hold, caller: &Caller, now: Moment) {
        if let Some(tenure) = self.tenure_mut(tenure) {
            tenure.begin_next(caller, now);
        }
    }

    /// Keeps a permit for the first call while its request is on its way.
    fn set_spare(&mut self, permit: Arc<Hold>) {
        if let State::Asking(talk) = &mut self.state {
            talk.spare = Some(permit);
        }
    }

    /// Returns how long a call may stay parked behind others. A call that wants a permit may become
    /// the first without a signal. It finds out when its pause is over.
    fn park_until(call: &Call<P>, turn: &Turn<P>) -> Option<Instant> {
        let is_several = call.hold.kind.row().is_several;
        let nap =
            if is_several { Some(end_after(turn.instant, turn.policy.backoff.1)) } else { None };
        call.caller.wait.deadline().into_iter().chain(nap).min()
    }

    fn push(&mut self, call: Call<P>, in_front: bool) {
        let behind = self.behind.get_or_insert_default();
        if in_front { behind.push_front(call) } else { behind.push_back(call) }
    }

    /// Begins the conversation with a call.
    fn begin(&mut self, first: Call<P>, purpose: Purpose, turn: &Turn<P>) -> Next {
        let registration = if !first.caller.wait.is_over(turn.instant) {
            Registration::IfHeld
        } else if first.hold.kind.is_lock() {
            Registration::IfMayBeKept
        } else {
            Registration::None
        };
        self.ask(Conversation::new(first, registration, purpose), turn)
    }

    /// Begins a conversation of this call alone, which no message reaches.
    fn begin_alone(&mut self, call: Call<P>, debts: Vec<Arc<Hold>>, turn: &Turn<P>) -> Next {
        self.tenures = debts.into_iter().map(Tenure::owed).collect();
        self.ask(Conversation::new(call, Registration::None, Purpose::ACQUIRE), turn)
    }

    fn ask(&mut self, mut talk: Box<Conversation<P>>, turn: &Turn<P>) -> Next {
        let may_be_older = self.has_debts() && !turn.policy.keeps_order;
        let ask = talk.next_request(self.behind.as_deref(), may_be_older, turn);
        // Messages that arrive from now on may be about a release after this request.
        talk.is_told = false;
        talk.relies_until = None;
        self.state = State::Asking(talk);
        Next::Ask(ask)
    }

    /// Asks for a change of a hold before the first call goes on.
    fn change(
        &mut self,
        mut talk: Box<Conversation<P>>,
        purpose: Purpose,
        hold: HoldId,
        change: Change,
    ) -> Next {
        talk.purpose = purpose;
        self.state = State::Asking(talk);
        Next::Change(hold, change)
    }

    /// Takes the reply to the request of the first call, which was sent at `sent`. `next` is the
    /// hold to ask for next if the store withdraws what it has not granted: that must not be
    /// requested again.
    fn reply(
        &mut self,
        sent: Moment,
        reply: Result<AcquireReply, Failure>,
        next: Option<HoldId>,
        turn: &mut Turn<P>,
    ) -> Next {
        let mut talk = self.take_talk();
        match talk.take_purpose() {
            Purpose::Acquire { others, may_be_older } => {
                let reply = self.reply_to_attempt(&mut talk, others, sent, reply, next, turn);
                talk.record_answer(&reply, turn.instant);
                self.go_on(talk, may_be_older, sent, reply, turn)
            }
            Purpose::Recall { failure, told } => {
                talk.record_answer(&reply, turn.instant);
                self.reply_to_recall(talk, failure, told, &reply, turn)
            }
            Purpose::Refill(kept) => {
                talk.record_answer(&reply, turn.instant);
                self.reply_to_refill(talk, &kept, sent, reply, turn)
            }
            Purpose::Pay(_) | Purpose::Unregister | Purpose::Withdraw(_) => {
                unreachable!("the outcome of a change is no reply to an attempt")
            }
        }
    }

    /// Takes the part of a reply about the requested holds and the place among the waiting clients.
    /// Returns the reply as it counts for the first call.
    fn reply_to_attempt(
        &mut self,
        talk: &mut Conversation<P>,
        others: Vec<Other>,
        sent: Moment,
        reply: Result<AcquireReply, Failure>,
        next: Option<HoldId>,
        turn: &mut Turn<P>,
    ) -> Result<AcquireReply, Failure> {
        let reply = match reply {
            // If the lease is over when the reply comes, the hold does not count: after a pause of
            // this process, there must be no guard without a hold.
            Ok(AcquireReply::Acquired { .. })
                if turn.now.since(sent) >= reliable(talk.first.caller.times.lease) =>
            {
                Err(Failure::late())
            }
            reply => reply,
        };
        let in_doubt = match &reply {
            Ok(AcquireReply::Acquired { .. }) => false,
            Ok(AcquireReply::Held { in_doubt, .. }) => *in_doubt,
            Err(failure) => failure.is_ambiguous(),
        };
        if talk.record_registration(&reply) {
            turn.actions.push(Action::Listen(talk.first.hold.clone()));
        }
        self.reply_to_others(others, sent, &reply, in_doubt, turn);
        if in_doubt && turn.policy.withdraws {
            // The next attempt asks for another hold, so that nothing repeats this one.
            self.doubt_call(&talk.first, true, turn);
        } else if in_doubt {
            talk.first.may_begin = true;
        }
        if let Some(next) = next
            && (in_doubt || !is_granted(&reply))
        {
            // The withdrawal of the old hold may be executed after the next request.
            talk.first.hold = next;
        }
        reply
    }

    /// Goes on with the first call after the reply to its attempt.
    fn go_on(
        &mut self,
        mut talk: Box<Conversation<P>>,
        may_be_older: bool,
        sent: Moment,
        reply: Result<AcquireReply, Failure>,
        turn: &mut Turn<P>,
    ) -> Next {
        match reply {
            Ok(AcquireReply::Acquired { fence, room, wanted, .. }) => {
                let Call { hold, caller, may_begin, .. } = &talk.first;
                let replied = turn.now;
                let grant = Grant { fence, room, may_begin: *may_begin, sent, replied };
                let mut tenure = Tenure::new(hold.clone(), &grant, caller);
                // A message about this hold may have overtaken the reply that begins it.
                if wanted || talk.wanted.contains(&hold.nonce) {
                    tenure.set_wanted();
                }
                let hold = self.begin_tenure(tenure, turn);
                self.begin_hold(talk, hold, turn)
            }
            // A debt of this client may be what is in the way: the call releases it first. If it
            // was released in the meantime, the reply may still be about it, so the call asks
            // again. Otherwise another owner has the lock.
            Ok(AcquireReply::Held { .. }) if self.has_debts() => {
                let debts = self.debts();
                talk.purpose = Purpose::Pay(debts.clone());
                self.state = State::Asking(talk);
                Next::Pay(debts)
            }
            Ok(AcquireReply::Held { .. }) if may_be_older => self.ask(talk, turn),
            Ok(AcquireReply::Held { remaining, recalled, echoed, .. }) => {
                let is_echoed = echoed.is_some();
                match talk.pause_while_held(sent, remaining, recalled, is_echoed, turn) {
                    Some(pause) => self.wait(talk, pause, true, turn),
                    None => self.give_up(talk, Outcome::Busy, turn),
                }
            }
            // The hold exists.
            Err(failure) if failure.is_shortfall() => {
                let hold = talk.first.hold.clone();
                self.change(talk, Purpose::Withdraw(failure), hold, Change::RELEASE)
            }
            Err(failure)
                if failure.kind == FailureKind::WrongType
                    && !talk.first.hold.kind.is_lock()
                    && talk.recall_ends.is_none() =>
            {
                // Another client may have used the name for a lock that it now only keeps.
                talk.recall_ends = Some(turn.instant + RECALL_TIME);
                talk.purpose = Purpose::Recall { failure, told: false };
                self.ask(talk, turn)
            }
            Err(failure) => self.fail(talk, failure, turn),
        }
    }

    /// Ends the first call with a new hold.
    fn begin_hold(
        &mut self,
        mut talk: Box<Conversation<P>>,
        hold: Arc<Hold>,
        turn: &mut Turn<P>,
    ) -> Next {
        // The lock can only have been released before that time, and a message should have said so.
        if let Known::Held { until: Some(until), .. } = talk.known
            && turn.now < until
        {
            turn.actions.push(Action::CountMissedWakeup);
        }
        if hold.id.kind.is_exclusive() {
            self.state = State::Held(hold.clone());
            self.tell_leaving(turn);
            self.end_others(&hold, turn);
            return Next::Done(Outcome::Acquired(hold));
        }
        // Another call can have its hold at the same time.
        if let Some(spare) = talk.spare.take() {
            self.pass_spare(&spare, turn);
        }
        self.state = State::Waiting(talk);
        if hold.id.kind.row().is_shared {
            self.share(&hold, turn);
        } else {
            self.advance(turn);
        }
        Next::Done(Outcome::Acquired(hold))
    }

    /// Shares the first call's hold with the readers right behind it, and with later ones, unless
    /// another call waits.
    fn share(&mut self, hold: &Arc<Hold>, turn: &mut Turn<P>) {
        loop {
            let next = self.calls_behind().next();
            if !next.is_some_and(|next| self.may_share(hold, next, turn.now)) {
                break;
            }
            let Some(next) = self.pop_behind() else { break };
            hold.set_depth(hold.depth() + 1);
            turn.actions.push(next.end(Outcome::Shared(hold.clone())));
        }
        if self.advance(turn).is_none() {
            self.state = State::Held(hold.clone());
        }
    }

    /// Gives the holds that a request has brought to the other calls for which it has asked, or
    /// notes that they may exist. The hold of a call that has left is being cleaned up already.
    fn reply_to_others(
        &mut self,
        others: Vec<Other>,
        sent: Moment,
        reply: &Result<AcquireReply, Failure>,
        in_doubt: bool,
        turn: &mut Turn<P>,
    ) {
        let fences = match reply {
            Ok(AcquireReply::Acquired { others, .. }) => &**others,
            _ => &[],
        };
        // Holds that fell short exist, too.
        let may_exist = in_doubt || reply.as_ref().is_err_and(Failure::is_shortfall);
        let mut spared = Vec::new();
        for (place, other) in others.into_iter().enumerate() {
            let fence = fences.get(place);
            if other.is_served {
                // A permit of this process has come for the call while the request was on its way.
                match fence {
                    Some(fence) => spared.push((other, *fence)),
                    None if may_exist => self.doubt(other.hold, other.lease, true, turn),
                    None => {}
                }
                continue;
            }
            let Some((at, mut call)) = self.take_behind(other.number) else { continue };
            if let Some(fence) = fence {
                self.acquire_for(call, other.hold, *fence, sent, turn);
            } else {
                // The call asks again with the same id, which finds the hold if it has begun.
                call.may_begin |= may_exist;
                self.behind.get_or_insert_default().insert(at, call);
            }
        }
        // Last, so that the calls that the request was for get their own holds.
        for (other, fence) in spared {
            let follows = self.calls_behind().next().is_some_and(|next| {
                next.hold.kind == other.hold.kind
                    && next.caller.times.lease == other.lease
                    && next.caller.note == other.note
                    && !next.may_begin
            });
            if follows && let Some(next) = self.pop_behind() {
                self.acquire_for(next, other.hold, fence, sent, turn);
            } else {
                self.doubt(other.hold, other.lease, false, turn);
            }
        }
    }

    /// Ends a call with a hold that the request of another call has brought.
    fn acquire_for(
        &mut self,
        call: Call<P>,
        id: HoldId,
        fence: u64,
        sent: Moment,
        turn: &mut Turn<P>,
    ) {
        let replied = turn.now;
        // Without room, because the block of tokens belongs to the first call.
        let grant = Grant { fence, room: 0, may_begin: call.may_begin, sent, replied };
        let hold = self.begin_tenure(Tenure::new(id, &grant, &call.caller), turn);
        turn.actions.push(call.end(Outcome::Acquired(hold)));
    }

    /// Takes the reply to the request for more tokens of a tenure that was kept.
    fn reply_to_refill(
        &mut self,
        talk: Box<Conversation<P>>,
        kept: &Arc<Hold>,
        sent: Moment,
        reply: Result<AcquireReply, Failure>,
        turn: &mut Turn<P>,
    ) -> Next {
        match reply {
            Ok(AcquireReply::Acquired { fence, room, wanted, .. }) => {
                kept.extend(sent, kept.next_lease(sent).duration, turn.now);
                if !kept.is_valid(turn.now) {
                    // After a pause of this process, there must be no guard without a hold.
                    self.expire(kept, turn);
                    return self.ask(talk, turn);
                }
                if let Some(tenure) = self.tenure_mut(kept) {
                    tenure.add_fences(fence, room);
                    tenure.begin_next(&talk.first.caller, turn.now);
                    // A message about it may have overtaken the reply.
                    if wanted || talk.wanted.contains(&kept.id.nonce) {
                        tenure.set_wanted();
                    }
                }
                self.state = State::Held(kept.clone());
                turn.actions.push(Action::CountHold);
                self.tell_leaving(turn);
                self.end_others(kept, turn);
                Next::Done(Outcome::Kept(kept.clone()))
            }
            // It is over in Redis: an operator has ended it, or the server has forgotten it.
            Ok(AcquireReply::Held { .. }) => {
                self.lose(kept, turn);
                self.ask(talk, turn)
            }
            // This request counts as the first attempt.
            Err(failure) => {
                self.give_up_kept(kept, turn);
                self.fail(talk, failure, turn)
            }
        }
    }

    /// Takes the reply to the request that recalls a lock that another client may only keep.
    fn reply_to_recall(
        &mut self,
        mut talk: Box<Conversation<P>>,
        failure: Failure,
        told: bool,
        reply: &Result<AcquireReply, Failure>,
        turn: &mut Turn<P>,
    ) -> Next {
        let is_told = matches!(reply, Ok(AcquireReply::Held { recalled: true, .. }));
        if is_told {
            turn.actions.push(Action::Listen(talk.recalled_lock()));
            let end = talk.recall_ends.unwrap_or(turn.instant);
            let left = end.saturating_duration_since(turn.instant);
            if !left.is_zero() {
                talk.purpose = Purpose::Recall { failure, told: true };
                return self.wait(talk, left, false, turn);
            }
        }
        if told || is_told {
            // An offer to this client occupies the name as a lock, too.
            let lock = talk.recalled_lock();
            return self.change(talk, Purpose::Unregister, lock, Change::Unregister);
        }
        match reply {
            // It is gone.
            Ok(AcquireReply::Held { remaining: None, .. }) => self.ask(talk, turn),
            _ => self.fail(talk, failure, turn),
        }
    }

    /// Goes on after the change that the first call asked for was made or has failed.
    fn changed(&mut self, outcome: Result<(), Failure>, turn: &mut Turn<P>) -> Next {
        let mut talk = self.take_talk();
        talk.record_answer(&outcome, turn.instant);
        match (talk.take_purpose(), outcome) {
            (Purpose::Pay(debts), Ok(())) => {
                for debt in &debts {
                    self.released(debt, &Ok(()), ReleasedBy::Call, turn);
                }
                self.ask(talk, turn)
            }
            (Purpose::Pay(_), Err(failure)) => self.fail(talk, failure, turn),
            (Purpose::Unregister, _) => {
                turn.actions.push(Action::WakeLocks);
                self.ask(talk, turn)
            }
            (Purpose::Withdraw(failure), outcome) => {
                if outcome.is_err() {
                    // The renewer goes on trying, because the hold keeps all others out.
                    self.doubt_call(&talk.first, false, turn);
                }
                self.fail(talk, failure, turn)
            }
            (Purpose::Acquire { .. } | Purpose::Recall { .. } | Purpose::Refill(_), _) => {
                unreachable!("a reply to an attempt is not the outcome of a change")
            }
        }
    }

    fn take_talk(&mut self) -> Box<Conversation<P>> {
        match mem::replace(&mut self.state, State::Idle) {
            State::Asking(talk) | State::Waiting(talk) => talk,
            _ => unreachable!("only the first call asks"),
        }
    }

    fn fail(
        &mut self,
        mut talk: Box<Conversation<P>>,
        mut failure: Failure,
        turn: &mut Turn<P>,
    ) -> Next {
        let pause = talk.pause_after(&mut failure, turn);
        turn.actions.push(Action::RecordFailure(failure.clone(), pause));
        match pause {
            Some(pause) => self.wait(talk, pause, false, turn),
            None => self.give_up(talk, Outcome::Failed(failure), turn),
        }
    }

    /// Parks the first call until its next request.
    fn wait(
        &mut self,
        talk: Box<Conversation<P>>,
        pause: Duration,
        contended: bool,
        turn: &mut Turn<P>,
    ) -> Next {
        // A permit that was dropped while the request was on its way is as good as a reply.
        let mut talk = match self.take_spare(talk, turn) {
            Ok(next) => return next,
            Err(talk) => talk,
        };
        // A message that came while the request was on its way may be newer than the reply.
        let until = if talk.is_told {
            talk.set_may_be_free();
            turn.instant
        } else {
            end_after(turn.instant, pause)
        };
        self.state = State::Waiting(talk);
        self.tell_leaving(turn);
        Next::Park { until: Some(until), contended }
    }

    /// Ends the first call without a hold. The next one becomes the first.
    fn give_up(
        &mut self,
        talk: Box<Conversation<P>>,
        outcome: Outcome,
        turn: &mut Turn<P>,
    ) -> Next {
        let talk = match self.take_spare(talk, turn) {
            Ok(next) => return next,
            Err(talk) => talk,
        };
        if let Outcome::Failed(failure) = &outcome
            && talk.first.caller.wait == Wait::Endless
            && is_outage(failure)
        {
            self.fail_endless(failure, turn);
        }
        let hold = talk.first.hold.clone();
        if talk.first.may_begin {
            // One of its requests may still be executed, when no thread waits for the hold any
            // longer.
            self.doubt_call(&talk.first, true, turn);
        }
        let may_be_queued = talk.may_be_queued();
        self.state = State::Waiting(talk);
        self.tell_leaving(turn);
        // The next call keeps the place among the waiting clients if it wants the same.
        let next = self.advance(turn);
        let keeps_place = next.is_some_and(|next| next.waits_with(hold.kind));
        if may_be_queued && !keeps_place {
            turn.actions.push(Action::Unregister(hold));
        }
        Next::Done(outcome)
    }

    /// Gives the calls without a limit the failure for which the first one gives up, instead of
    /// having them find out one by one.
    fn fail_endless(&mut self, failure: &Failure, turn: &mut Turn<P>) {
        let Some(behind) = &mut self.behind else { return };
        // Those with a limit may still get the lock in their time.
        let (ended, left): (VecDeque<_>, _) =
            behind.drain(..).partition(|call| call.caller.wait == Wait::Endless);
        **behind = left;
        for call in ended {
            self.end_call(&call, turn);
            turn.actions.push(call.end(Outcome::Failed(failure.clone())));
        }
    }

    /// Makes the next call the first, if there is one, and returns what it wants.
    fn advance(&mut self, turn: &mut Turn<P>) -> Option<HoldKind> {
        let last = mem::replace(&mut self.state, State::Idle);
        let next = self.behind.as_mut()?.pop_front()?;
        let kind = next.hold.kind;
        let mut talk = Conversation::new(next, Registration::Registered, Purpose::ACQUIRE);
        if let State::Asking(last) | State::Waiting(last) = last
            && let Known::Failed(failure, at) = last.known
        {
            // A call that began to wait before the outage would only learn the same.
            talk.known = Known::Failed(failure, at);
        }
        talk.is_told = true;
        turn.actions.push(Action::Tell(talk.first.port.clone(), Next::Turn));
        self.state = State::Waiting(talk);
        Some(kind)
    }

    /// Goes on with a call that was told that it is its turn, or whose time to park is over.
    fn due(&mut self, number: u64, turn: &mut Turn<P>) -> Next {
        if let State::Waiting(talk) = &self.state
            && talk.first.number == number
        {
            let talk = self.take_talk();
            return self.ask(talk, turn);
        }
        let Some((place, call)) = self.take_behind(number) else {
            // It was told something else in the meantime.
            return Next::AWAIT;
        };
        if call.leaves {
            let until = self.reply_deadline(&call);
            if turn.instant < until {
                return self.park_again(place, call, Some(until));
            }
            let why = "the call in front has had no reply in time";
            let failure = Failure::too_late(&Arc::from("the server"), why);
            self.end_call(&call, turn);
            return Next::Done(Outcome::Failed(failure));
        }
        if !call.caller.wait.is_over(turn.instant) {
            let until = Self::park_until(&call, turn);
            return self.park_again(place, call, until);
        }
        if !call.hold.kind.is_lock() {
            self.end_call(&call, turn);
        }
        self.time_out(call, place == 0, turn)
    }

    /// Puts a call behind the first back in its place.
    fn park_again(&mut self, place: usize, call: Call<P>, until: Option<Instant>) -> Next {
        self.behind.get_or_insert_default().insert(place, call);
        Next::Park { until, contended: true }
    }

    /// Decides on a call behind the first that has timed out.
    fn time_out(&mut self, mut call: Call<P>, in_front: bool, turn: &mut Turn<P>) -> Next {
        if let Some(outcome) = self.known_to(&call, turn.now) {
            return Next::Done(outcome);
        }
        if !call.hold.kind.is_lock() {
            return Next::Done(Outcome::Alone);
        }
        // The first call already asks what this one could ask, so the next reply decides for both.
        call.leaves = true;
        if let State::Waiting(talk) = &mut self.state
            && !talk.is_told
        {
            // That call may have a long pause left.
            talk.is_told = true;
            turn.actions.push(Action::Tell(talk.first.port.clone(), Next::Turn));
        }
        let until = Some(call.caller.request_deadline(turn.instant));
        self.push(call, in_front);
        Next::Park { until, contended: true }
    }

    /// Returns until when a call that has timed out waits for the reply to the first call. That may
    /// need several requests, each with its own time.
    fn reply_deadline(&self, call: &Call<P>) -> Instant {
        let answered = match &self.state {
            State::Asking(talk) | State::Waiting(talk) => talk.answered,
            _ => None,
        };
        let begin = call.caller.begin;
        call.caller.request_deadline(answered.map_or(begin, |answered| answered.max(begin)))
    }

    /// Returns the outcome of a call that has timed out, if enough is known since it began.
    fn known_to(&self, call: &Call<P>, now: Moment) -> Option<Outcome> {
        match &self.state {
            State::Held(hold) if hold.is_valid(now) => Some(Outcome::Busy),
            State::Asking(talk) | State::Waiting(talk) => match &talk.known {
                Known::Failed(failure, at) if call.believes(*at) => {
                    Some(Outcome::Failed(failure.clone()))
                }
                // The reply to the request in flight decides.
                Known::Held { .. } if matches!(self.state, State::Asking(_)) => None,
                Known::Held { at, .. }
                    if call.believes(*at)
                        || (call.caller.wait == Wait::No && call.hold.kind.is_lock()) =>
                {
                    Some(Outcome::Busy)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Ends the calls that were only waiting for the next reply, if it is known.
    fn tell_leaving(&mut self, turn: &mut Turn<P>) {
        let mut at = 0;
        while let Some(call) = self.behind.as_ref().and_then(|behind| behind.get(at)) {
            if call.leaves
                && let Some(outcome) = self.known_to(call, turn.now)
            {
                let call = self.behind.as_mut().and_then(|behind| behind.remove(at));
                turn.actions.extend(call.map(|call| call.end(outcome)));
            } else {
                at += 1;
            }
        }
    }

    /// Removes a call whose wait is cancelled, or whose thread panics, unless it was told how it
    /// ends.
    fn leave(&mut self, number: u64, turn: &mut Turn<P>) -> Next {
        if let State::Asking(talk) | State::Waiting(talk) = &self.state
            && talk.first.number == number
        {
            // A cancelled call reads the reply first, so this is a panic.
            let is_asking = self.asks(number);
            let mut talk = self.take_talk();
            let mut recalled = None;
            // Its thread will read no reply, so what a request has begun is undone here.
            talk.first.may_begin |= is_asking;
            match talk.take_purpose() {
                Purpose::Recall { told: true, .. } => recalled = Some(talk.recalled_lock()),
                Purpose::Refill(kept) => self.give_up_kept(&kept, turn),
                Purpose::Acquire { others, .. } => {
                    self.reply_to_others(others, turn.now, &Err(Failure::unsent()), true, turn);
                }
                _ => {}
            }
            let spare = talk.spare.take();
            self.give_up(talk, Outcome::Busy, turn);
            if let Some(spare) = spare {
                self.give_back(&spare, turn);
            }
            turn.actions.extend(recalled.map(Action::Unregister));
            return Next::Done(Outcome::Left);
        }
        let Some((_, call)) = self.take_behind(number) else { return Next::AWAIT };
        self.end_call(&call, turn);
        Next::Done(Outcome::Left)
    }

    /// Removes a call behind the first, and returns it with its place.
    fn take_behind(&mut self, number: u64) -> Option<(usize, Call<P>)> {
        let behind = self.behind.as_mut()?;
        let place = behind.iter().position(|call| call.number == number)?;
        behind.remove(place).map(|call| (place, call))
    }

    /// Cleans up after a call behind the first that gets no hold.
    fn end_call(&mut self, call: &Call<P>, turn: &mut Turn<P>) {
        // The request that is on its way may bring a hold for it.
        let is_asked_for = match &self.state {
            State::Asking(talk) => talk.asks_for(call.number),
            _ => false,
        };
        if call.may_begin || is_asked_for {
            self.doubt_call(call, true, turn);
        }
    }

    /// Remembers that the hold of a call may exist in the store and must not, or that a request
    /// `may_begin` it there.
    fn doubt_call(&mut self, call: &Call<P>, may_begin: bool, turn: &mut Turn<P>) {
        self.doubt(call.hold.clone(), call.caller.times.lease, may_begin, turn);
    }

    fn doubt(&mut self, hold: HoldId, lease: Duration, may_begin: bool, turn: &mut Turn<P>) {
        let debt = Arc::new(Hold::debt(hold, lease, may_begin));
        if turn.policy.withdraws {
            // With independent servers every request has an id of its own.
            turn.actions.push(Action::Owe(debt));
        } else {
            self.owe(&debt, turn);
        }
    }

    /// Releases a tenure that the first call cannot use.
    fn give_up_kept(&mut self, kept: &Arc<Hold>, turn: &mut Turn<P>) {
        if self.end_tenure(kept, turn.now) {
            turn.actions.push(Action::Release { hold: kept.clone(), calls_wait: false });
        }
    }

    /// Makes the first call try, because the lock may be free.
    fn wake(&mut self, turn: &mut Turn<P>) {
        match &mut self.state {
            // The reply may be older.
            State::Asking(talk) => talk.is_told = true,
            State::Waiting(talk) => {
                talk.set_may_be_free();
                if !mem::replace(&mut talk.is_told, true) {
                    turn.actions.push(Action::Tell(talk.first.port.clone(), Next::Turn));
                }
            }
            _ => {}
        }
    }

    /// Notes that an echo has come.
    fn note_echo(&mut self) {
        if let State::Asking(talk) | State::Waiting(talk) = &mut self.state {
            // From here on a long pause is safe: the end of what is in the way will be heard.
            talk.hears = true;
        }
    }

    /// Notes that messages may be missed, so that no call relies on them.
    fn rely_on_nothing(&mut self, turn: &mut Turn<P>) {
        let is_parked = matches!(self.state, State::Waiting(_));
        let (State::Asking(talk) | State::Waiting(talk)) = &mut self.state else { return };
        talk.hears = false;
        if let Some(until) = talk.relies_until.take()
            && is_parked
            && !talk.is_told
        {
            // The pause was long because a message would have ended it.
            let until = Some(until.min(end_after(turn.instant, talk.pauses.next_backoff())));
            let port = talk.first.port.clone();
            turn.actions.push(Action::Tell(port, Next::Park { until, contended: true }));
        }
    }

    /// Like [`NameInput::Woken`], if the first call is parked between two requests: returns the
    /// next one, which may be sent before the thread is awake, and the port of the call.
    pub(crate) fn ask_ahead(&mut self, turn: &mut Turn<P>) -> Option<(P, Ask)> {
        let State::Waiting(talk) = &mut self.state else { return None };
        if talk.is_told {
            return None;
        }
        talk.set_may_be_free();
        let number = talk.first.number;
        let port = talk.first.port.clone();
        let Next::Ask(ask) = self.due(number, turn) else { return None };
        Some((port, ask))
    }

    pub(crate) fn asks(&self, number: u64) -> bool {
        matches!(&self.state, State::Asking(talk) if talk.first.number == number)
    }

    fn tenure_mut(&mut self, hold: &Hold) -> Option<&mut Tenure> {
        self.tenures.iter_mut().find(|tenure| ptr::eq(&raw const *tenure.hold, hold))
    }

    /// Returns what is known of a tenure; `None` if it is over.
    pub(crate) fn tenure(&self, hold: &Hold) -> Option<&Tenure> {
        self.tenures.iter().find(|tenure| ptr::eq(&raw const *tenure.hold, hold))
    }

    /// Returns all tenures of this client, and its debts.
    pub(crate) fn tenures(&self) -> impl Iterator<Item = &Tenure> {
        self.tenures.iter()
    }

    /// Adds a tenure that begins, and returns what its guard has of it.
    fn begin_tenure(&mut self, mut tenure: Tenure, turn: &mut Turn<P>) -> Arc<Hold> {
        let hold = tenure.hold.clone();
        let due = tenure.schedule_first(turn);
        turn.actions.push(Action::Begin { hold: hold.clone(), due });
        self.add(tenure);
        hold
    }

    fn add(&mut self, tenure: Tenure) {
        // Most names have one.
        self.tenures.reserve_exact(usize::from(self.tenures.is_empty()));
        self.tenures.push(tenure);
    }

    /// Removes a tenure from a conversation that a call has had alone.
    pub(crate) fn take_tenure(&mut self, hold: &Hold) -> Option<Tenure> {
        let at = self.tenures.iter().position(|it| ptr::eq(&raw const *it.hold, hold))?;
        Some(self.tenures.remove(at))
    }

    fn has_debts(&self) -> bool {
        self.tenures.iter().any(Tenure::is_debt)
    }

    /// Returns the debts: holds that may exist in the store, and must not.
    pub(crate) fn debts(&self) -> Vec<Arc<Hold>> {
        let debts = self.tenures.iter().filter(|tenure| tenure.is_debt());
        debts.map(|debt| debt.hold.clone()).collect()
    }

    /// Remembers a hold without a call, and schedules its payment.
    fn owe(&mut self, debt: &Arc<Hold>, turn: &mut Turn<P>) -> bool {
        self.add(Tenure::owed(debt.clone()));
        turn.actions.push(Action::Owe(debt.clone()));
        true
    }

    /// Changes a tenure, unless it is over.
    fn change_tenure(&mut self, hold: &Hold, change: impl FnOnce(&mut Tenure)) -> bool {
        self.tenure_mut(hold).map(change).is_some()
    }

    /// Ends the holds that a new, exclusive hold shows to be over: they were released, or an
    /// operator has ended one, or a server has forgotten it.
    fn end_others(&mut self, new: &Hold, turn: &mut Turn<P>) {
        let mut over = Vec::new();
        for tenure in &self.tenures {
            let Tenure { hold, .. } = tenure;
            // Permits exclude nothing, and another guard may have adopted the same hold.
            let is_excluded = !hold.id.kind.row().is_several && hold.id != new.id;
            if tenure.is_debt() || is_excluded {
                over.push(hold.clone());
            }
        }
        self.end_debts_or_lose(&over, turn);
    }

    fn end_debts_or_lose(&mut self, over: &[Arc<Hold>], turn: &mut Turn<P>) {
        for hold in over {
            if self.tenure(hold).is_some_and(Tenure::is_debt) {
                // Its release was executed, though the reply to that is still on its way. If that
                // reply says that the hold was gone before, only the caller of `unlock` learns it.
                self.released(hold, &Ok(()), ReleasedBy::Call, turn);
            } else {
                // Another input may have found it lost, and a thread may still be looking up why.
                self.mark_lost(hold, LossCause::Gone);
                self.tell_lost(hold, hold.may_begin, turn);
            }
        }
    }

    /// Returns `true` if a later hold of this client shows that the one requested at `sent` is
    /// over: an operator has ended it, or its server has forgotten it, or another guard that had
    /// adopted it too has released it. A hold that the client had before `sent` may itself be one
    /// that its server has forgotten.
    fn is_followed(&self, hold: &Hold, sent: Moment) -> bool {
        hold.id.kind.is_exclusive()
            && self.tenures.iter().any(|other| {
                let is_several = other.hold.id.kind.row().is_several;
                !is_several && other.hold.id != hold.id && other.has_begun_since(sent)
            })
    }

    /// Begins a tenure that was acquired outside the conversation, with a request sent at `sent`.
    /// Returns `false` if a later hold shows that it is over: between the reply and now, the thread
    /// may have paused.
    fn begin_beside(&mut self, tenure: Tenure, sent: Moment, turn: &mut Turn<P>) -> bool {
        if self.is_followed(&tenure.hold, sent) {
            // Redis grants a later hold only when this one has ended.
            return false;
        }
        let hold = self.begin_tenure(tenure, turn);
        if hold.id.kind.is_exclusive() {
            self.end_others(&hold, turn);
        }
        true
    }

    /// Begins the hold that a call was given. If `begin` is set, when the call began, the hold is
    /// reported now. Returns `false` if the hold was lost on the way: no call gets it then.
    fn accept(&mut self, hold: &Arc<Hold>, begin: Option<Instant>, turn: &mut Turn<P>) -> bool {
        self.expire(hold, turn);
        let begins = hold.is_valid(turn.now);
        if begins
            && let Some(begin) = begin
            && let Some(tenure) = self.tenure_mut(hold)
        {
            tenure.report_begin(begin, turn);
        }
        begins
    }

    /// Ends a hold. With `hands_off`, the tenure passes to the next call if its terms allow it, or
    /// the lock is kept. Otherwise it is released. Returns `false` if the hold was lost or had
    /// ended.
    fn end(&mut self, hold: &Arc<Hold>, hands_off: bool, turn: &mut Turn<P>) -> bool {
        let kind = hold.id.kind;
        if kind.row().is_shared && Self::remove_reader(hold, turn.now) {
            return true;
        }
        // A tenure outside the conversation passes to no call.
        let is_handed_off = if !hands_off {
            false
        } else if kind.row().is_several {
            self.hand_off_permit(hold, turn)
        } else if kind.is_exclusive() && self.is_held_by(hold) {
            self.hand_off(hold, turn)
        } else {
            false
        };
        if is_handed_off {
            return true;
        }
        if !self.end_tenure(hold, turn.now) {
            return false;
        }
        turn.actions.push(Action::CountEnd);
        let calls_wait = self.calls().next().is_some();
        turn.actions.push(Action::Release { hold: hold.clone(), calls_wait });
        true
    }

    /// Ends a hold that no caller gets. Its lock does not stay taken, because nothing was done
    /// under it. A shutdown may have ended it before.
    fn give_back_hold(&mut self, hold: &Arc<Hold>, turn: &mut Turn<P>) -> bool {
        let ends = self.end(hold, true, turn);
        hold.set_unused();
        ends
    }

    /// Removes the guard of a reader. Returns `false`, and removes nothing, if it is the last one
    /// or the hold is over, even if no input has found it lost yet.
    fn remove_reader(hold: &Hold, now: Moment) -> bool {
        let removes = hold.depth() > 1 && hold.is_valid(now);
        if removes {
            hold.set_depth(hold.depth() - 1);
        }
        removes
    }

    /// Ends the present hold of a tenure that goes on, and reports that.
    fn end_current(&mut self, hold: &Arc<Hold>, turn: &mut Turn<P>) {
        self.change_tenure(hold, |tenure| tenure.end_use(turn));
        turn.actions.extend(hold.span.take().map(Action::CloseSpan));
    }

    /// Gives a call the next hold of a tenure whose current one is over.
    fn pass_on(&mut self, hold: &Hold, next: Option<Call<P>>, turn: &mut Turn<P>) {
        let Some(next) = next else { return };
        match self.tenure_mut(hold) {
            Some(tenure) => {
                tenure.begin_next(&next.caller, turn.now);
                turn.actions.push(next.end(Outcome::HandedOff(tenure.hold.clone())));
            }
            // The call must not be forgotten: its thread sleeps until it is told what to do.
            None => self.push(next, true),
        }
    }

    fn pop_behind(&mut self) -> Option<Call<P>> {
        self.behind.as_mut()?.pop_front()
    }

    /// Gives the next call the next hold of the tenure, or keeps the lock if there is no such call.
    /// Returns `false` if neither can be.
    fn hand_off(&mut self, hold: &Arc<Hold>, turn: &mut Turn<P>) -> bool {
        let Some(next) = self.calls_behind().next() else {
            // From here on other clients must ask for the lock, so it is kept only if they can.
            let can_be_kept = self.tenure(hold).is_some_and(|tenure| tenure.can_be_kept(turn.now));
            let keeps = turn.can_keep() && can_be_kept;
            if keeps {
                self.keep(hold, turn);
            }
            return keeps;
        };
        if next.hold.kind != hold.id.kind
            || !self.may_follow(hold, &next.caller, turn.can_keep(), turn.now)
        {
            return false;
        }
        // The end is reported before the next thread can be notified and report its own beginning.
        self.end_current(hold, turn);
        let next = self.pop_behind();
        self.pass_on(hold, next, turn);
        true
    }

    /// Keeps the lock, though no call wants it.
    fn keep(&mut self, hold: &Arc<Hold>, turn: &mut Turn<P>) {
        self.end_current(hold, turn);
        self.state = State::Kept(hold.clone());
        turn.actions.push(Action::CountEnd);
        self.change_tenure(hold, |tenure| tenure.keep(turn));
    }

    /// Like `hand_off`, for a permit. It goes to the first call, or to the next one while a request
    /// of the first is on its way: its thread could not go on before the reply. If there is no next
    /// call, the permit waits for the reply.
    fn hand_off_permit(&mut self, permit: &Arc<Hold>, turn: &mut Turn<P>) -> bool {
        let fits_next =
            self.calls_behind().next().is_some_and(|it| self.fits(permit, it, turn.now));
        let fits_first = self.calls().next().is_some_and(|it| self.fits(permit, it, turn.now));
        match &mut self.state {
            State::Waiting(_) if fits_first => {
                self.end_current(permit, turn);
                let talk = self.take_talk();
                self.pass_permit(talk, permit, turn);
                true
            }
            State::Asking(talk) if fits_next => {
                let next = self.behind.as_mut().and_then(|behind| behind.pop_front());
                if let Some(next) = &next {
                    // The request on its way may bring one for this call, too. That one goes to
                    // another call.
                    talk.note_served(next.number);
                }
                self.end_current(permit, turn);
                self.pass_on(permit, next, turn);
                true
            }
            State::Asking(talk) if talk.spare.is_none() && fits_first => {
                // The thread of the first call is reading a reply, and looks here afterwards.
                talk.spare = Some(permit.clone());
                self.end_current(permit, turn);
                true
            }
            _ => false,
        }
    }

    fn fits(&self, permit: &Hold, call: &Call<P>, now: Moment) -> bool {
        call.hold.kind == permit.id.kind
            && !call.may_begin
            && self.may_follow(permit, &call.caller, false, now)
    }

    /// Ends the first call with a permit that another one has had. The next call takes over the
    /// conversation.
    fn pass_permit(
        &mut self,
        mut talk: Box<Conversation<P>>,
        permit: &Arc<Hold>,
        turn: &mut Turn<P>,
    ) {
        let kind = permit.id.kind;
        // A call that does not wait has not registered the client, so the conversation ends with
        // it.
        let goes_on = talk.registration != Registration::None;
        let follows = goes_on && self.calls_behind().next().is_some_and(|it| it.hold.kind == kind);
        let next = if follows { self.pop_behind() } else { None };
        let Some(next) = next else {
            // The servers still have the client's place, unless another call goes on in it.
            let may_be_queued = talk.may_be_queued();
            let keeps_place = self.advance(turn).is_some_and(|next| next.waits_with(kind));
            self.pass_on(permit, Some(talk.first), turn);
            if may_be_queued && !keeps_place {
                turn.actions.push(Action::Unregister(permit.id.clone()));
            }
            return;
        };
        // The message was for whichever call comes first, and more than one permit may be free.
        if talk.is_told {
            turn.actions.push(Action::Tell(next.port.clone(), Next::Turn));
        }
        let first = mem::replace(&mut talk.first, next);
        self.pass_on(permit, Some(first), turn);
        talk.purpose = Purpose::ACQUIRE;
        talk.retry = None;
        talk.recall_ends = None;
        self.state = State::Waiting(talk);
    }

    /// Gives a permit that the first call no longer needs to the next one, if that can have it.
    fn pass_spare(&mut self, spare: &Arc<Hold>, turn: &mut Turn<P>) {
        let next = self.calls_behind().next();
        if next.is_some_and(|next| self.fits(spare, next, turn.now)) {
            let next = self.pop_behind();
            self.pass_on(spare, next, turn);
        } else {
            self.give_back(spare, turn);
        }
    }

    /// Ends a permit that was dropped for a call which does not get it.
    fn give_back(&mut self, permit: &Arc<Hold>, turn: &mut Turn<P>) {
        if !self.end(permit, true, turn) {
            self.expire(permit, turn);
        }
    }

    /// Ends the first call with the permit that was dropped in the meantime, if there is one and
    /// the call can have it.
    fn take_spare(
        &mut self,
        mut talk: Box<Conversation<P>>,
        turn: &mut Turn<P>,
    ) -> Result<Next, Box<Conversation<P>>> {
        let Some(spare) = talk.spare.take() else { return Err(talk) };
        if !self.may_follow(&spare, &talk.first.caller, false, turn.now) {
            self.give_back(&spare, turn);
            return Err(talk);
        }
        if mem::take(&mut talk.first.may_begin) {
            self.doubt_call(&talk.first, true, turn);
        }
        self.pass_permit(talk, &spare, turn);
        // It receives the permit like any other call.
        Ok(Next::Park { until: None, contended: true })
    }

    /// Ends a tenure, which stays until its release is confirmed. If calls wait behind it, it is in
    /// their way until the release was sent. Returns `false` if it was ended or lost before.
    fn end_tenure(&mut self, hold: &Hold, now: Moment) -> bool {
        let ends = self.tenure_mut(hold).is_some_and(|tenure| tenure.end(now));
        // If calls wait, the name is free for them only once the release was written.
        if ends && self.calls().next().is_none() && self.is_held_by(hold) {
            self.state = State::Idle;
        }
        ends
    }

    /// Makes the next call try if this hold was in its way, and has ended. Returns `false` if it
    /// was not.
    fn let_next_try(&mut self, hold: &Hold, turn: &mut Turn<P>) -> bool {
        let was_in_the_way = self.is_held_by(hold);
        if was_in_the_way {
            self.advance(turn);
        }
        was_in_the_way
    }

    /// Ends a hold without its holder, as a shutdown does. Returns `false` if it has ended or is
    /// lost already.
    fn shut_down(&mut self, hold: &Hold, turn: &mut Turn<P>) -> bool {
        let ends = self.tenure_mut(hold).is_some_and(|tenure| {
            let was_held = tenure.current().is_some();
            let ends = tenure.end(turn.now);
            if ends && was_held {
                turn.actions.push(Action::CountEnd);
            }
            ends
        });
        if ends {
            self.let_next_try(hold, turn);
        }
        ends
    }

    /// Ends a hold that goes on without its guard. Returns `false` if it has ended or is lost
    /// already.
    fn leave_hold(&mut self, hold: &Arc<Hold>, turn: &mut Turn<P>) -> bool {
        let ends = self.tenure_mut(hold).is_some_and(|tenure| tenure.end(turn.now));
        if ends {
            turn.actions.push(Action::CountEnd);
            // First the report, because the next holder makes its own.
            if let Some(tenure) = self.tenure_mut(hold) {
                tenure.report_end(&Ok(()), turn);
            }
            self.take_tenure(hold);
            self.let_next_try(hold, turn);
        }
        ends
    }

    /// Takes the outcome of a release: of a tenure that is ending, whose end is reported then, or
    /// of a debt. Returns `false` if an earlier outcome has decided how it ends.
    fn released(
        &mut self,
        hold: &Arc<Hold>,
        outcome: &Result<(), HoldFailure>,
        by: ReleasedBy,
        turn: &mut Turn<P>,
    ) -> bool {
        let has_failed = matches!(outcome, Err(HoldFailure::Failed(_)));
        let may_exist = has_failed || hold.may_begin;
        // The renewer repeats its own releases by itself.
        let is_new = self.tenure(hold).is_some_and(Tenure::is_ending);
        if is_new && may_exist && by == ReleasedBy::Call {
            turn.actions.push(Action::Owe(hold.clone()));
        }
        if let Some(tenure) = self.tenure_mut(hold) {
            tenure.report_end(outcome, turn);
        }
        if !has_failed {
            // The calls for its name release a debt until the first success. After that it is the
            // renewer's alone, if a request may begin it again.
            let is_first = self.tenure(hold).is_some();
            self.forget(hold);
            // The renewer has connections of its own.
            if is_first
                && by == ReleasedBy::Renewer
                && let State::Asking(talk) = &mut self.state
                && let Purpose::Acquire { may_be_older, .. } = &mut talk.purpose
            {
                *may_be_older = true;
            }
        }
        is_new
    }

    /// Forgets a hold whose release has not been confirmed until its lease was over. Returns
    /// `false` if its end was reported before.
    fn give_up_release(&mut self, hold: &Arc<Hold>, failure: &Failure, turn: &mut Turn<P>) -> bool {
        let outcome = &Err(HoldFailure::Failed(failure.clone()));
        let is_new = self.tenure_mut(hold).is_some_and(|tenure| tenure.report_end(outcome, turn));
        self.forget(hold);
        is_new
    }

    /// Forgets a hold that no longer exists in the store. A second guard that has adopted it may
    /// not know of its end yet. That is still reported before the next hold begins.
    fn forget(&mut self, hold: &Hold) {
        self.tenures.retain(|tenure| {
            let is_it = ptr::eq(&raw const *tenure.hold, hold);
            let is_same = tenure.is_owed() && tenure.hold.id == hold.id;
            !is_it && !is_same
        });
    }

    /// Finds a tenure lost if its deadline has passed, and reports that. Returns `false` if it was
    /// ended or lost before.
    fn expire(&mut self, hold: &Arc<Hold>, turn: &mut Turn<P>) -> bool {
        let Some(cause) = hold.cause_at_deadline(turn.now) else { return false };
        let is_first = self.mark_lost(hold, cause);
        if is_first {
            // In Redis its lease may not be over yet, and it would hold up the next call.
            self.tell_lost(hold, true, turn);
        }
        is_first
    }

    /// Finds a tenure lost because the store no longer has it, and reports the loss.
    fn lose(&mut self, hold: &Arc<Hold>, turn: &mut Turn<P>) -> bool {
        self.mark_lost(hold, LossCause::Gone) && self.tell_lost(hold, hold.may_begin, turn)
    }

    /// Marks a tenure as lost, so that its guards know at once. `tell_lost` follows when it is
    /// known why. Returns `false` if it was ended or lost before.
    fn mark_lost(&mut self, hold: &Hold, cause: LossCause) -> bool {
        self.tenure_mut(hold).is_some_and(|tenure| tenure.lose(cause))
    }

    /// Reports the loss of a tenure that was marked as lost, unless another input has, and cleans
    /// up after it. Only then may the next call try, because it makes its own reports.
    fn tell_lost(&mut self, hold: &Arc<Hold>, may_exist: bool, turn: &mut Turn<P>) -> bool {
        if !self.tenure_mut(hold).is_some_and(|tenure| tenure.report_loss(turn)) {
            return false;
        }
        if may_exist {
            // As a debt it stays in this list, so that calls release it before they ask again.
            turn.actions.push(Action::Owe(hold.clone()));
        } else {
            self.take_tenure(hold);
        }
        turn.actions.push(Action::Finish);
        self.let_next_try(hold, turn);
        true
    }

    /// Ends a tenure after which the lock is kept. Returns `false` if it is not, or its lease is
    /// over.
    fn end_kept(&mut self, hold: &Hold, now: Moment) -> bool {
        let is_kept = self.kept().is_some_and(|kept| ptr::eq(&raw const **kept, hold));
        is_kept && self.end_tenure(hold, now)
    }

    /// Does what is due of a tenure. Returns `false` if nothing is due.
    fn hold_due(&mut self, hold: &Arc<Hold>, at: Moment, turn: &mut Turn<P>) -> bool {
        if !self.tenure_mut(hold).is_some_and(|tenure| tenure.is_due(at)) {
            return false;
        }
        // This process may have been paused for longer than the lease.
        self.expire(hold, turn);
        let kept_end = self.tenure(hold).and_then(Tenure::kept_end);
        if kept_end.is_some_and(|end| end <= turn.now) && self.end_kept(hold, turn.now) {
            turn.actions.push(Action::Owe(hold.clone()));
        }
        self.change_tenure(hold, |tenure| tenure.due(turn))
    }

    /// Notes that another client waits for the hold with this nonce.
    fn set_wanted(&mut self, nonce: u64) {
        match &mut self.state {
            State::Held(hold) if hold.id.nonce == nonce => {
                // It is released when its guard ends, not handed off and not kept.
                let hold = hold.clone();
                if let Some(tenure) = self.tenure_mut(&hold) {
                    tenure.set_wanted();
                }
            }
            State::Asking(talk) | State::Waiting(talk) => drop(talk.wanted.insert(nonce)),
            _ => {}
        }
    }

    /// Notes that another client waits for a lock, and releases it if it is only kept.
    fn set_hold_wanted(&mut self, hold: &Arc<Hold>, turn: &mut Turn<P>) -> bool {
        let is_new = self.change_tenure(hold, Tenure::set_wanted);
        if self.end_kept(hold, turn.now) {
            turn.actions.push(Action::Owe(hold.clone()));
        }
        is_new
    }

    /// Returns the signal of waiting clients of a hold.
    pub(crate) fn wanted_signal(&mut self, hold: &Hold) -> WantedSignal {
        match self.tenure_mut(hold) {
            Some(tenure) => tenure.wanted_signal(),
            None => WantedSignal::over(false),
        }
    }

    /// Returns the signal of the end of a hold. If `shared` is given, the hold uses that signal
    /// from now on.
    pub(crate) fn end_signal(&mut self, hold: &Hold, shared: Option<&EndSignal>) -> EndSignal {
        if let Some(tenure) = self.tenure_mut(hold) {
            return tenure.end_signal(shared);
        }
        let signal = shared.cloned().unwrap_or_default();
        signal.tell(hold.was_lost());
        signal
    }

    /// Returns the calls that wait, the first one first.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call<P>> {
        let talk = match &self.state {
            State::Asking(talk) | State::Waiting(talk) => Some(talk),
            _ => None,
        };
        talk.map(|talk| &talk.first).into_iter().chain(self.calls_behind())
    }

    pub(crate) fn has_first_call(&self) -> bool {
        matches!(self.state, State::Asking(_) | State::Waiting(_))
    }

    fn calls_behind(&self) -> impl Iterator<Item = &Call<P>> {
        self.behind.iter().flat_map(|behind| behind.iter())
    }

    /// Returns the hold of a call.
    pub(crate) fn holder(&self) -> Option<&Arc<Hold>> {
        if let State::Held(hold) = &self.state { Some(hold) } else { None }
    }

    /// Returns the hold after which the lock is kept.
    pub(crate) fn kept(&self) -> Option<&Arc<Hold>> {
        if let State::Kept(hold) = &self.state { Some(hold) } else { None }
    }

    fn is_held_by(&self, hold: &Hold) -> bool {
        let held = self.holder().or(self.kept());
        held.is_some_and(|held| ptr::eq(&raw const **held, hold))
    }
}

#[cfg(test)]
pub(crate) mod tests;
