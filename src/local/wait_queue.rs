//! The wait queue of one lock: the threads of one client that want it, in the order in which they
//! came. It exists while a thread of the client acquires or holds the lock.
//!
//! Decides what the state of its head allows, and what a waiter is told whose time is over. Knows
//! nothing of the other queues.
//!
//! | head | meaning | next |
//! |---|---|---|
//! | `Acquiring` | it is to get the lock by requests of its own | `Held` |
//! | `Held` | it has the lock, or had it when it last looked | `Held` by the next waiter, `None` |
//! | `Left` | it has gone, and those that were let try beside it have no answer yet | `Acquiring` |
//! | `None` | no thread wants the lock, but its release is not confirmed | `Acquiring` |
//!
//! From `Held` the first waiter becomes the head with the next hold of the tenure, if it can. From
//! each state, when the head gives up, releases or loses the lock, the first waiter becomes the
//! head as `Acquiring`. Without a waiter the queue is removed, unless a release is not confirmed:
//! until then a reply that the lock is held may mean that very hold.
//!
//! An outage is not contention. So what becomes of a waiter whose time is over depends on what is
//! known since it came:
//!
//! | head | a waiter whose time is over |
//! |---|---|
//! | has a valid hold | times out |
//! | its last request has found the lock held since the waiter came | times out |
//! | its last request has failed since the waiter came | gets that failure |
//! | its hold has ended or was lost, and no other thread waits | makes an attempt of its own |
//! | else, for a lock | looks whether a server replies, and does not overtake |
//! | else, for what others can share | makes an attempt of its own: the store keeps the order |
//!
//! For a thread that does not wait at all, its time is over when it comes. If the last reply to the
//! head said that the lock is held, that counts for this thread however old it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, mem};

use crate::base::failure::Failure;
use crate::local::hold::Hold;
use crate::local::waiter::{QueuedWaiter, Signal, Signals, Waiter};
use crate::store::hold_id::{HoldId, HoldKind};

/// It is small, because no thread waits for most locks.
#[derive(Debug)]
pub(super) struct WaitQueue {
    head: Head,
    /// The holds that were released, as long as it is not known that they have ended in the store.
    released: Vec<Arc<Hold>>,
    /// `None` until a first thread has waited.
    waiters: Option<Box<Waiters>>,
}

enum Head {
    Acquiring(Arc<Signals>, HeadAnswer),
    Held(Arc<Hold>),
    Left,
    None,
}

/// What the last request of a head that acquires has shown.
enum HeadAnswer {
    /// It has failed, at that time.
    Failed(Box<(Failure, Instant)>),
    /// Another owner held the lock, said a reply that came then.
    Held(Instant),
    /// Nothing yet: the request is on its way.
    Pending {
        /// Whether others may get what they want as well as the head, as far as is known.
        shares: bool,
    },
}

/// Where a thread joins the queue, behind the head.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// It tried beside the head in vain, and was in front before.
    Beside,
    /// It was in front before.
    First,
    Last,
}

/// How the wait behind other threads has ended.
#[derive(Debug)]
pub(crate) enum Turn {
    /// With one attempt outside the queue: there is room for this thread as well as for the head.
    Beside,
    /// The server cannot be reached, as the thread in front has found out.
    Failed(Failure),
    /// With the lock.
    HandedOff(Arc<Hold>),
    /// At the head, to acquire the lock.
    Head,
    /// The time was over, and another thread comes first. It is not known whether a server replies.
    Look,
    /// The time was over, and nothing is known against one attempt outside the queue: the hold of
    /// the head ends, or is none that excludes others.
    Outside,
    /// The time was over, and another owner holds the lock.
    TimedOut,
}

/// The threads behind the head.
#[derive(Debug, Default)]
struct Waiters {
    queue: VecDeque<QueuedWaiter>,
    /// How many were let try beside the head, and have no answer yet.
    beside: u32,
    /// How many readers there still were behind the head when the first one of them had the turn of
    /// this client. `None` outside such a turn.
    turn: Option<usize>,
}

impl WaitQueue {
    /// A queue whose head acquires the lock.
    pub(super) fn new(head: &Waiter, kind: HoldKind) -> Self {
        let mut queue = Self { head: Head::None, released: Vec::new(), waiters: None };
        queue.set_acquiring(&head.signals, kind);
        queue
    }

    /// A queue of no thread, which remembers a hold whose release is not confirmed.
    pub(super) fn without_head(released: &Arc<Hold>) -> Self {
        Self { head: Head::None, released: vec![released.clone()], waiters: None }
    }

    pub(super) fn push(&mut self, waiter: QueuedWaiter, place: Place) {
        let queue = &mut self.waiters.get_or_insert_default().queue;
        match place {
            Place::Beside | Place::First => queue.push_front(waiter),
            Place::Last => queue.push_back(waiter),
        }
    }

    /// Returns the signals of the waiters.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Arc<Signals>> {
        self.waiters.iter().flat_map(|waiters| &waiters.queue).map(|waiter| &waiter.signals)
    }

    /// Makes the first waiter the head, and returns it. `None` if there is none.
    pub(super) fn advance(&mut self) -> Option<QueuedWaiter> {
        let next = self.waiters.as_mut()?.queue.pop_front()?;
        self.set_acquiring(&next.signals, next.caller.kind);
        Some(next)
    }

    /// Removes the first waiters, and lets them try beside the head where there is `room` for so
    /// many holds of a kind. One of them stays to be the head after this one, so that who wants
    /// another kind, and comes after them, does not ask before.
    pub(super) fn signal_beside(&mut self, kind: HoldKind, room: u32) {
        let Some(Waiters { queue, beside, .. }) = self.waiters.as_deref_mut() else { return };
        let alike = queue.iter().take_while(|waiter| waiter.caller.kind.shares_with(kind)).count();
        // The head, and others who were let try, may still get what is free.
        let room = room.saturating_sub(*beside).saturating_sub(1);
        let count = alike.saturating_sub(1).min(usize::try_from(room).unwrap_or(usize::MAX));
        *beside = beside.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        for waiter in queue.drain(..count) {
            waiter.signals.send(Signal::Beside);
        }
    }

    /// Notes that the head has what it wants, with `room` for this many more. In a turn behind
    /// which other clients wait, the readers in line have a part, and none that come later.
    pub(super) fn count_turn(&mut self, kind: HoldKind, room: u32) {
        let Some(Waiters { queue, turn, .. }) = self.waiters.as_deref_mut() else { return };
        let readers = || queue.iter().take_while(|waiter| waiter.caller.kind == kind).count();
        let is_turn = kind == HoldKind::Read && room == 0;
        *turn = is_turn.then(|| turn.unwrap_or_else(readers).saturating_sub(1));
    }

    /// Returns what the first waiter wants, unless the turn of the head is over before it.
    pub(super) fn next_in_turn(&self) -> Option<HoldKind> {
        let Waiters { queue, turn, .. } = self.waiters.as_deref()?;
        queue.front().filter(|_| *turn != Some(0)).map(|waiter| waiter.caller.kind)
    }

    /// Leaves the queue without a head if the first waiter shares with none of those that try
    /// beside the head: they came before it, and what it asks for would keep them out. Returns
    /// `true` if it has to wait for them.
    pub(super) fn waits_for_beside(&mut self) -> bool {
        let Some(Waiters { queue, beside, .. }) = self.waiters.as_deref() else { return false };
        let kind = queue.front().map(|first| first.caller.kind);
        let waits = *beside > 0 && kind.is_some_and(|kind| !kind.shares_with(kind));
        if waits {
            self.head = Head::Left;
        }
        waits
    }

    pub(super) fn has_head_left(&self) -> bool {
        matches!(self.head, Head::Left)
    }

    /// Notes that one who was let try beside the head has its answer.
    pub(super) fn end_beside(&mut self) {
        if let Some(waiters) = &mut self.waiters {
            waiters.beside = waiters.beside.saturating_sub(1);
        }
    }

    /// Returns `true` if the head wants what it can share, and was not refused it.
    pub(super) fn does_head_share(&self) -> bool {
        matches!(self.head, Head::Acquiring(_, HeadAnswer::Pending { shares: true }))
    }

    /// Removes a waiter. `None` if it has become the head or was signalled.
    pub(super) fn remove(&mut self, waiter: &Waiter) -> Option<QueuedWaiter> {
        let queue = &mut self.waiters.as_mut()?.queue;
        let index = queue.iter().position(|queued| waiter.is_same(&queued.signals))?;
        queue.remove(index)
    }

    /// Removes a waiter whose time is over, and decides on it. It has come at `joined`, or does not
    /// wait at all. `None` if it has become the head or was signalled.
    pub(super) fn time_out(&mut self, waiter: &Waiter, joined: Option<Instant>) -> Option<Turn> {
        let kind = self.remove(waiter)?.caller.kind;
        let is_new = |time: Instant| joined.is_some_and(|joined| time >= joined);
        let refuses = |time| is_new(time) || joined.is_none() && kind == HoldKind::Lock;
        Some(match &self.head {
            Head::Held(hold) if !hold.remaining().is_zero() => Turn::TimedOut,
            Head::Held(_) if !self.is_waited_in() => Turn::Outside,
            Head::Acquiring(_, HeadAnswer::Held(replied)) if refuses(*replied) => Turn::TimedOut,
            Head::Acquiring(_, HeadAnswer::Failed(failed)) if is_new(failed.1) => {
                Turn::Failed(failed.0.clone())
            }
            _ if kind == HoldKind::Lock => Turn::Look,
            _ => Turn::Outside,
        })
    }

    /// Removes and returns the waiters that would wait without limit.
    pub(super) fn remove_endless(&mut self) -> VecDeque<QueuedWaiter> {
        let Some(waiters) = &mut self.waiters else { return VecDeque::new() };
        let (endless, others) = waiters.queue.drain(..).partition(|waiter| waiter.endless);
        waiters.queue = others;
        endless
    }

    /// Returns the signals of the head if it acquires the lock.
    pub(super) fn acquiring(&self) -> Option<&Arc<Signals>> {
        if let Head::Acquiring(signals, _) = &self.head { Some(signals) } else { None }
    }

    /// Returns the hold of the head if it has one.
    pub(super) fn holder(&self) -> Option<&Arc<Hold>> {
        if let Head::Held(hold) = &self.head { Some(hold) } else { None }
    }

    pub(super) fn is_held_by(&self, hold: &Hold) -> bool {
        self.holder().is_some_and(|held| std::ptr::eq(&raw const **held, hold))
    }

    /// Returns `true` if a thread waits behind the head.
    pub(super) fn is_waited_in(&self) -> bool {
        self.waiting().next().is_some()
    }

    pub(super) fn has_head(&self) -> bool {
        !matches!(self.head, Head::None)
    }

    /// The holds whose release is not confirmed.
    pub(super) fn released(&self) -> &[Arc<Hold>] {
        &self.released
    }

    pub(super) fn take_released(&mut self) -> Vec<Arc<Hold>> {
        mem::take(&mut self.released)
    }

    /// Adds a hold whose release is not confirmed.
    pub(super) fn add_released(&mut self, hold: &Arc<Hold>) {
        self.released.push(hold.clone());
    }

    /// Forgets one of these, which has ended in the store.
    pub(super) fn confirm_release(&mut self, hold: &HoldId) {
        self.released.retain(|released| released.id != *hold);
    }

    /// Removes the head. Returns `true` if the queue is of no use then.
    pub(super) fn remove_head(&mut self) -> bool {
        self.head = Head::None;
        self.released.is_empty()
    }

    /// Sets what the last request of a thread has shown: that another owner holds the lock, or that
    /// the server cannot be reached. Does nothing if the thread is not the head.
    pub(super) fn set_answer(&mut self, thread: &Waiter, answer: Result<(), &Failure>) {
        let now = Instant::now();
        if answer.is_ok()
            && let Some(waiters) = &mut self.waiters
        {
            waiters.turn = None;
        }
        self.set(
            thread,
            match answer {
                Ok(()) => HeadAnswer::Held(now),
                Err(failure) => HeadAnswer::Failed(Box::new((failure.clone(), now))),
            },
        );
    }

    /// Marks the next request of a thread as on its way, if that is the head. A failure counts
    /// until there is a reply.
    pub(super) fn set_pending(&mut self, thread: &Waiter) {
        if matches!(self.head, Head::Acquiring(_, HeadAnswer::Held(_))) {
            self.set(thread, HeadAnswer::Pending { shares: false });
        }
    }

    fn set(&mut self, thread: &Waiter, answer: HeadAnswer) {
        if let Head::Acquiring(signals, last) = &mut self.head
            && thread.is_same(signals)
        {
            *last = answer;
        }
    }

    /// Makes a thread the head that is to get the lock.
    pub(super) fn set_acquiring(&mut self, signals: &Arc<Signals>, kind: HoldKind) {
        let answer = HeadAnswer::Pending { shares: kind.shares_with(kind) };
        self.head = Head::Acquiring(signals.clone(), answer);
    }

    /// Gives the head the hold that it has acquired from the store.
    pub(super) fn set_acquired(&mut self, hold: &Arc<Hold>) {
        self.head = Head::Held(hold.clone());
    }

    /// Removes and returns the first waiter, which becomes the head with the next hold of the
    /// tenure, if this is the head's and can be followed by one for that waiter.
    pub(super) fn next_in_tenure(&mut self, hold: &Hold) -> Option<QueuedWaiter> {
        if !self.is_held_by(hold) {
            return None;
        }
        let queue = &mut self.waiters.as_mut()?.queue;
        let can_follow = hold.may_be_followed_by(&queue.front()?.caller);
        can_follow.then(|| queue.pop_front()).flatten()
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquiring(..) => "Acquiring",
            Self::Held(_) => "Held",
            Self::Left => "Left",
            Self::None => "None",
        })
    }
}
