//! The part of a tenure that guards and the renewer share: its terms, and the time until which it
//! may be relied on. Reading it takes no lock and no I/O. The rest of what a client knows about a
//! tenure is in the machine of its name ([`Tenure`](crate::protocol::tenure::Tenure)).
//!
//! Everything depends on the local deadline: *the time at which the last confirmed request was
//! sent, plus the lease, less the drift*. Only the machine changes it, while the name is locked: so
//! only one input ends a tenure or finds it lost, and none renews a lost one.
//!
//! | deadline | set by | what may follow |
//! |---|---|---|
//! | a time to come | a reply to a request for the hold, or that renews it | any of these |
//! | a time that has passed | | lost, when an input finds that |
//! | ended | the end of the hold here | unused; lost, if its release finds it gone |
//! | unused | the end of a hold that no caller has had | lost, as before |
//! | lost | the deadline, or a reply that it is gone | |
//!
//! Once a hold has ended here there is no deadline that could pass: only its release decides.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::base::clock::{Moment, nanos};
use crate::base::failure::Failure;
use crate::base::spans::HoldSpan;
use crate::error::{Error, Loss, LossCause};
use crate::protocol::call::Caller;
use crate::store::hold_id::HoldId;
use crate::store::request::{Change, HoldReply, NextLease, Unused};

/// A lease that is due within this fraction of its duration is renewed along with others.
pub(crate) const TOGETHER: u32 = 64;

/// Deadlines of tenures that are over.
const LOST: u64 = 0;
const ENDED: u64 = 1;
const UNUSED: u64 = 2;

/// A hold, and later the next ones of its tenure. A client may have a million, so it is small.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) id: HoldId,
    pub(crate) span: HoldSpan,
    /// The local deadline, or how the tenure has ended.
    deadline: AtomicU64,
    /// The token of the current hold, or, for a permit, which has none, the number of holds before
    /// it.
    number: AtomicU64,
    /// The number of guards: changed by the thread that has a lock, and by the machine for readers.
    depth: AtomicU32,
    /// How many release requests may have been executed, or may still be. If there are several, any
    /// of them may be the one that ended the hold.
    releases: AtomicU16,
    /// Why the tenure was lost, once that is known.
    loss: OnceLock<Box<Loss>>,
    /// The duration of a whole lease, in nanoseconds: a `Duration` takes twice as much memory.
    lease: u64,
    /// Whether requests about the hold may renew it.
    pub(crate) renewed: bool,
    /// Whether a request that began the hold may be executed again, so that the hold can reappear
    /// after its release.
    pub(crate) may_begin: bool,
    /// How many milliseconds the lock is kept when the hold is over; 0 if it is not.
    pub(super) keep: u32,
    /// Boxed, because it is rarely set.
    rare: Option<Box<RareTerms>>,
}

/// The terms that few holds have.
#[derive(Debug)]
struct RareTerms {
    max_hold: Option<Duration>,
    /// When the tenure is lost, however often it is renewed.
    age_limit: Moment,
    /// The time until which the lock stays taken, however early the hold is released.
    taken_until: Moment,
    note: Option<Arc<str>>,
}

/// A hold granted by a reply, with the times of the request and the reply.
pub(crate) struct Grant {
    pub(crate) fence: u64,
    /// How many more holds may follow, each with the next token.
    pub(crate) room: u32,
    /// Whether an earlier request without a reply may begin the hold again.
    pub(crate) may_begin: bool,
    pub(crate) sent: Moment,
    pub(crate) replied: Moment,
}

/// When the renewer handles a lease next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextStep {
    pub(crate) due: Moment,
    /// Whether to renew it then: after a third of it, a little less because of the drift. If not,
    /// it is found lost then.
    pub(crate) renews: bool,
}

impl Hold {
    /// Creates the hold that a reply has granted to a caller.
    pub(super) fn new(id: HoldId, grant: &Grant, caller: &Caller) -> Self {
        let Caller { terms, times, note, .. } = caller;
        let Grant { fence, may_begin, sent, replied, .. } = *grant;
        let has_rare = terms.max_hold.is_some() || terms.hold_at_least.is_some() || note.is_some();
        // From the reply, because the store has begun the hold by then.
        let taken_until = terms.hold_at_least.map_or(Moment::FIRST, |time| replied.after(time));
        let rare = RareTerms {
            max_hold: terms.max_hold,
            age_limit: terms.max_hold.map_or(Moment::NEVER, |max_hold| sent.after(max_hold)),
            taken_until,
            note: note.clone(),
        };
        Self {
            keep: if id.may_be_kept() { terms.keep } else { 0 },
            id,
            span: HoldSpan::default(),
            deadline: AtomicU64::new(sent.after(reliable(times.lease)).0),
            number: AtomicU64::new(fence),
            depth: AtomicU32::new(1),
            releases: AtomicU16::new(0),
            loss: OnceLock::new(),
            lease: nanos(terms.lease),
            renewed: terms.renew,
            may_begin,
            rare: if has_rare { Some(Box::new(rare)) } else { None },
        }
    }

    /// Creates a debt: a hold that no guard has, and that may exist in the store until `lease` is
    /// over. It is neither renewed nor reported. If a request may begin it again, one release does
    /// not settle it.
    pub(crate) fn debt(id: HoldId, lease: Duration, may_begin: bool) -> Self {
        Self {
            id,
            span: HoldSpan::default(),
            deadline: AtomicU64::new(ENDED),
            number: AtomicU64::new(0),
            depth: AtomicU32::new(1),
            releases: AtomicU16::new(0),
            loss: OnceLock::new(),
            lease: nanos(lease),
            renewed: false,
            may_begin,
            keep: 0,
            rare: None,
        }
    }

    /// Keeps the lock of a debt taken until then, however early the debt is paid.
    pub(crate) fn that_stays_taken(self, taken_until: Moment) -> Self {
        let rare = RareTerms { max_hold: None, age_limit: Moment::NEVER, taken_until, note: None };
        Self { rare: Some(Box::new(rare)), ..self }
    }

    /// Returns the duration of a whole lease.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease)
    }

    /// Returns the note of the tenure.
    pub(crate) fn note(&self) -> Option<&Arc<str>> {
        self.rare.as_ref()?.note.as_ref()
    }

    pub(super) fn max_hold(&self) -> Option<Duration> {
        self.rare.as_ref()?.max_hold
    }

    fn age_limit(&self) -> Moment {
        self.rare.as_ref().map_or(Moment::NEVER, |rare| rare.age_limit)
    }

    /// Returns the time until which the lock stays taken, however early the hold is released. That
    /// does not apply to a lost lock, nor to one that no caller has had.
    pub(crate) fn taken_until(&self) -> Moment {
        match &self.rare {
            Some(rare) if !matches!(self.load(), LOST | UNUSED) => rare.taken_until,
            _ => Moment::FIRST,
        }
    }

    /// Returns the time until the age limit.
    pub(crate) fn age_left(&self, now: Moment) -> Duration {
        self.age_limit().since(now)
    }

    /// Returns the lease to ask for in a request that is sent now: less than a whole one if the age
    /// limit comes first.
    pub(crate) fn next_lease(&self, now: Moment) -> NextLease {
        let whole = self.lease();
        NextLease { duration: whole.min(self.age_left(now)), whole }
    }

    /// Returns the fencing token of the present hold, or 0 for a permit, which has none.
    pub(crate) fn fence(&self) -> u64 {
        if self.id.kind.row().has_fence { self.number() } else { 0 }
    }

    /// Returns the number of the present hold within its tenure. Later holds have greater numbers.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub(super) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Returns the number of guards.
    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Sets the number of guards.
    pub(crate) fn set_depth(&self, depth: u32) {
        self.depth.store(depth, Ordering::Relaxed);
    }

    /// Returns how many levels the hold has in the store. The guards of readers share one.
    pub(crate) fn levels(&self) -> u32 {
        if self.id.kind.is_lock() { self.depth() } else { 1 }
    }

    /// Returns the change that releases the hold, to be sent now, with the tokens that its tenure
    /// has left.
    pub(crate) fn begin_release(&self, unused: Option<Unused>) -> Change {
        // Counted before it is written, so that a reply that arrives meanwhile is not taken for the
        // only one.
        self.releases.fetch_add(1, Ordering::Relaxed);
        Change::Release { taken_until: self.taken_until(), unused }
    }

    /// Returns what the reply to a release means. If another release may have ended the hold, a
    /// reply that it is gone is not a loss, unless it was reported as one.
    pub(crate) fn release_outcome(
        &self,
        reply: Result<HoldReply, Failure>,
    ) -> Result<(), HoldFailure> {
        let is_only = self.releases.load(Ordering::Relaxed) <= 1;
        match reply {
            Ok(HoldReply::Gone) if is_only || self.was_lost() => Err(HoldFailure::Lost),
            Ok(_) => Ok(()),
            Err(failure) => {
                if !failure.is_ambiguous() {
                    // It was not executed.
                    self.releases.fetch_sub(1, Ordering::Relaxed);
                }
                Err(HoldFailure::Failed(failure))
            }
        }
    }

    /// Returns `true` if the tenure was neither ended nor found lost.
    pub(crate) fn is_open(&self) -> bool {
        self.open_deadline().is_some()
    }

    /// Returns how long the hold may still be relied on; zero if it is lost or ended.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.open_deadline().map_or(Duration::ZERO, |deadline| deadline.since(now))
    }

    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        self.open_deadline().is_some_and(|deadline| now < deadline)
    }

    /// Returns `true` if some of the lease is left, but less than a third.
    pub(crate) fn is_nearly_over(&self, now: Moment) -> bool {
        let remaining = self.remaining(now);
        !remaining.is_zero() && remaining < self.lease() / 3
    }

    /// Returns `true` if the hold is lost, even if no input has found that yet.
    pub(crate) fn is_lost(&self, now: Moment) -> bool {
        match self.open_deadline() {
            Some(deadline) => deadline <= now,
            None => self.was_lost(),
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        matches!(self.load(), ENDED | UNUSED)
    }

    pub(super) fn was_lost(&self) -> bool {
        self.load() == LOST
    }

    /// Returns why the hold is over if its deadline has passed, and no input has ended it or found
    /// it lost.
    pub(crate) fn cause_at_deadline(&self, now: Moment) -> Option<LossCause> {
        let deadline = self.open_deadline().filter(|deadline| *deadline <= now)?;
        Some(if self.is_last(deadline) { LossCause::MaxHold } else { LossCause::Expired })
    }

    /// Returns `true` if the age limit leaves nothing to renew after this deadline.
    fn is_last(&self, deadline: Moment) -> bool {
        deadline.after(drift(self.lease())) >= self.age_limit()
    }

    /// Moves the deadline after a request sent at `sent` has renewed the hold for `lease`. Does
    /// nothing if the hold was lost in the meantime, or the deadline is later already.
    pub(super) fn extend(&self, sent: Moment, lease: Duration, now: Moment) {
        let deadline = sent.after(reliable(lease));
        // A reply that comes after the deadline revives nothing: the lock may be another client's.
        if let Some(before) = self.open_deadline()
            && now < before
            && before < deadline
        {
            self.deadline.store(deadline.0, Ordering::Release);
        }
    }

    /// Marks the tenure as ended. Returns `false` if it was ended or lost before, or its deadline
    /// has passed.
    pub(super) fn end(&self, now: Moment) -> bool {
        // At the deadline it is lost, though no input has said so yet.
        let ends = self.is_valid(now);
        if ends {
            self.deadline.store(ENDED, Ordering::Release);
        }
        ends
    }

    /// Notes that no caller has had a hold that was ended: its lock need not stay taken.
    pub(super) fn set_unused(&self) {
        if self.is_ended() {
            self.deadline.store(UNUSED, Ordering::Release);
        }
    }

    /// Marks the tenure as lost.
    pub(super) fn lose(&self) {
        self.deadline.store(LOST, Ordering::Release);
    }

    /// Sets why it was lost.
    pub(super) fn set_loss(&self, loss: Loss) {
        // Only one input reports a loss.
        self.loss.set(Box::new(loss)).unwrap_or_default();
    }

    /// Returns the cause of the loss, as far as it is known.
    pub(crate) fn loss(&self, now: Moment) -> Loss {
        if let Some(loss) = self.loss.get() {
            return Loss::clone(loss);
        }
        // Perhaps no input has found it lost yet.
        self.cause_at_deadline(now).unwrap_or(LossCause::Gone).into()
    }

    /// Returns the error for the caller of `attempt`.
    pub(crate) fn to_error(&self, failure: HoldFailure, attempt: &str, now: Moment) -> Error {
        match failure {
            HoldFailure::Ended => Error::Closed,
            HoldFailure::Failed(failure) => failure.into_error(attempt, &self.id.name),
            HoldFailure::Lost => Error::lost(&self.id.name, self.loss(now)),
        }
    }

    /// Returns the next step of the renewer; `None` if the hold is over. Without `renews`, the
    /// lease is only found lost.
    pub(crate) fn next_step(&self, renews: bool) -> Option<NextStep> {
        let deadline = self.open_deadline()?;
        if !renews || self.is_last(deadline) {
            return Some(NextStep { due: deadline, renews: false });
        }
        Some(NextStep { due: deadline.before(self.lease() * 2 / 3), renews: true })
    }

    /// Returns the deadline of a tenure that was neither ended nor found lost.
    fn open_deadline(&self) -> Option<Moment> {
        let deadline = self.load();
        if deadline > UNUSED { Some(Moment(deadline)) } else { None }
    }

    fn load(&self) -> u64 {
        self.deadline.load(Ordering::Acquire)
    }
}

/// Why a request about an existing hold had no effect.
pub(crate) enum HoldFailure {
    /// A shutdown has ended the hold.
    Ended,
    Failed(Failure),
    /// The hold is lost.
    Lost,
}

impl HoldFailure {
    /// Returns why a hold that still has guards is no longer valid: a shutdown has ended it, or it
    /// is lost.
    pub(crate) fn of(hold: &Hold) -> Self {
        if hold.is_ended() { Self::Ended } else { Self::Lost }
    }
}

/// Returns how long a lease may be relied on, counted from when its request was sent.
pub(crate) fn reliable(lease: Duration) -> Duration {
    lease.saturating_sub(drift(lease))
}

/// Returns how much clocks may drift apart within a lease: 1 % of it and 2 ms, as in
/// <https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>.
fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}
