//! The wait queue of one lock: the threads of one client that want it, in the order in which they
//! came. It exists while a thread of the client acquires or holds the lock, or the client keeps it.
//!
//! Decides what the state of its head allows, and what a waiter is told whose time is over. Knows
//! nothing of the other queues.
//!
//! | head | meaning | next |
//! |---|---|---|
//! | `Acquiring` | it is to get the lock by requests of its own | `Held` |
//! | `Held` | it has the lock, or had it when it last looked | `Held` by a waiter, `Kept`, `None` |
//! | `Kept` | no thread wants the lock, and the client keeps it | `Held`, `Acquiring`, `None` |
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
use std::{fmt, mem, ptr};

use crate::base::failure::Failure;
use crate::local::call::Caller;
use crate::local::hold::Hold;
use crate::local::pending::Followers;
use crate::local::waiter::{QueuedWaiter, Waiter};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::SHARERS_MAX;

/// The threads of one client that want one lock.
#[derive(Debug)]
pub(super) struct WaitQueue {
    head: Head,
    /// The nonce of a hold that another client waits for, in case the head is about to get it: the
    /// message may overtake the reply.
    wanted: u64,
    /// The holds that were released, as long as it is not known that they have ended in the store.
    released: Vec<Arc<Hold>>,
    waiters: VecDeque<QueuedWaiter>,
}

enum Head {
    Acquiring(Arc<Waiter>, HeadAnswer),
    Held(Arc<Hold>),
    Kept(Arc<Hold>),
    None,
}

/// What the last request of a head that acquires has shown.
enum HeadAnswer {
    /// It has failed, at that time.
    Failed(Box<(Failure, Instant)>),
    /// Another owner held the lock, said a reply that came then.
    Held(Instant),
    /// Nothing yet: the request is on its way.
    Pending,
}

/// How the wait behind other threads has ended.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The server cannot be reached, as the thread in front has found out.
    Failed(Failure),
    /// With a hold.
    HandedOff(Arc<Hold>),
    /// At the head, to acquire the lock.
    Head(Arrival),
    /// At the head, with the next hold of a tenure that was kept.
    Kept(Arc<Hold>),
    /// The time was over, and another thread comes first. It is not known whether a server replies.
    Look,
    /// The time was over, and nothing is known against one attempt outside the queue: the hold of
    /// the head ends, or is none that excludes others.
    Outside,
    /// The time was over, and another owner holds the lock.
    TimedOut,
}

/// How a thread has come to try for the lock.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Without waiting behind another thread.
    First {
        /// Whether the release of an earlier hold of this client is not confirmed.
        after_release: bool,
    },
    /// As `First`, in place of a tenure that was kept: it may want nothing but more tokens.
    Kept(Arc<Hold>),
    /// From behind another thread.
    Next,
    /// To try once outside the queue. A client has one place among the waiting clients: that of the
    /// thread which may try again.
    Outside,
}

impl WaitQueue {
    /// A queue whose head acquires the lock.
    pub(super) fn new(head: &Arc<Waiter>) -> Self {
        let mut queue =
            Self { head: Head::None, wanted: 0, released: Vec::new(), waiters: VecDeque::new() };
        queue.set_acquiring(head);
        queue
    }

    /// A queue of no thread, which remembers a hold whose release is not confirmed.
    pub(super) fn without_head(released: &Arc<Hold>) -> Self {
        let released = vec![released.clone()];
        Self { head: Head::None, wanted: 0, released, waiters: VecDeque::new() }
    }

    /// Adds a waiter: behind all others, or in front if it was in front before.
    pub(super) fn push(&mut self, waiter: QueuedWaiter, rejoins: bool) {
        if rejoins {
            self.waiters.push_front(waiter);
        } else {
            self.waiters.push_back(waiter);
        }
    }

    /// Returns the threads that wait behind the head, or at it for the lock.
    pub(super) fn threads(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        let head = if let Head::Acquiring(head, _) = &self.head { Some(head) } else { None };
        head.into_iter().chain(self.waiters.iter().map(|queued| &queued.waiter))
    }

    /// Returns `true` if the thread waits behind the head.
    pub(super) fn has(&self, waiter: &Arc<Waiter>) -> bool {
        self.waiters.iter().any(|queued| Arc::ptr_eq(&queued.waiter, waiter))
    }

    /// Makes the first waiter the head, and returns it. `None` if there is none.
    pub(super) fn advance(&mut self) -> Option<QueuedWaiter> {
        let next = self.waiters.pop_front()?;
        self.set_acquiring(&next.waiter);
        Some(next)
    }

    /// Returns the waiters behind the head, and those for which it can ask as well.
    pub(super) fn followers(&self) -> Followers {
        let Head::Acquiring(head, _) = &self.head else { return Followers::default() };
        let waiting = self.waiters.iter().map(|queued| &queued.waiter);
        let alike = waiting.take_while(|waiter| waiter.shares_with(head)).take(SHARERS_MAX);
        Followers { exist: self.is_waited_in(), alike: alike.cloned().collect() }
    }

    /// Removes a waiter. `None` if it has become the head or was signalled.
    pub(super) fn remove(&mut self, waiter: &Waiter) -> Option<QueuedWaiter> {
        let is_it = |queued: &QueuedWaiter| ptr::eq(&raw const *queued.waiter, waiter);
        self.waiters.remove(self.waiters.iter().position(is_it)?)
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
        let (endless, others) = self.waiters.drain(..).partition(|waiter| waiter.endless);
        self.waiters = others;
        endless
    }

    /// Returns the head if it acquires the lock, and who waits behind it.
    pub(super) fn acquiring(&self) -> Option<(Arc<Waiter>, Followers)> {
        match &self.head {
            Head::Acquiring(head, _) => Some((head.clone(), self.followers())),
            Head::Held(_) | Head::Kept(_) | Head::None => None,
        }
    }

    /// Returns the hold of the head if it has one.
    pub(super) fn holder(&self) -> Option<&Arc<Hold>> {
        if let Head::Held(hold) = &self.head { Some(hold) } else { None }
    }

    /// Returns `true` if this is the hold of the head, or the one after which the lock is kept.
    pub(super) fn is_held_by(&self, hold: &Hold) -> bool {
        let held = self.holder().or(self.kept());
        held.is_some_and(|held| ptr::eq(&raw const **held, hold))
    }

    /// Returns the hold after which the lock is kept.
    pub(super) fn kept(&self) -> Option<&Arc<Hold>> {
        if let Head::Kept(hold) = &self.head { Some(hold) } else { None }
    }

    /// Notes that another client waits for the hold with this nonce.
    pub(super) fn set_wanted(&mut self, nonce: u64) {
        match &self.head {
            Head::Held(hold) if hold.id.nonce == nonce => hold.set_wanted(),
            Head::Acquiring(..) => self.wanted = nonce,
            _ => {}
        }
    }

    /// Keeps the lock after the hold of the head, for threads to come. Returns `false` if that
    /// cannot be.
    pub(super) fn keep(&mut self, hold: &Arc<Hold>, report: impl FnOnce()) -> bool {
        if self.holder().is_none()
            || !self.is_held_by(hold)
            || self.is_waited_in()
            || !hold.can_be_kept()
        {
            return false;
        }
        report();
        let keeps = hold.keep();
        if keeps {
            self.head = Head::Kept(hold.clone());
        }
        keeps
    }

    /// Makes a thread the head if the lock is kept: with the next hold of that tenure if it can
    /// have it, else to acquire the lock.
    pub(super) fn take_kept(&mut self, waiter: &Arc<Waiter>, caller: &Caller) -> Option<Turn> {
        let hold = self.kept()?.clone();
        if hold.may_be_followed_by(caller) {
            self.set_acquired(&hold);
            return Some(Turn::Kept(hold));
        }
        self.set_acquiring(waiter);
        Some(Turn::Head(Arrival::Kept(hold)))
    }

    /// Returns `true` if a thread waits behind the head.
    pub(super) fn is_waited_in(&self) -> bool {
        !self.waiters.is_empty()
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
        let answer = match answer {
            Ok(()) => HeadAnswer::Held(now),
            Err(failure) => HeadAnswer::Failed(Box::new((failure.clone(), now))),
        };
        self.set(thread, answer);
    }

    /// Marks the next request of a thread as on its way, if that is the head. A failure counts
    /// until there is a reply.
    pub(super) fn set_pending(&mut self, thread: &Waiter) {
        if matches!(self.head, Head::Acquiring(_, HeadAnswer::Held(_))) {
            self.set(thread, HeadAnswer::Pending);
        }
    }

    fn set(&mut self, thread: &Waiter, answer: HeadAnswer) {
        if let Head::Acquiring(head, last) = &mut self.head
            && ptr::eq(&raw const **head, thread)
        {
            *last = answer;
        }
    }

    /// Makes a thread the head that is to get the lock.
    pub(super) fn set_acquiring(&mut self, head: &Arc<Waiter>) {
        self.head = Head::Acquiring(head.clone(), HeadAnswer::Pending);
    }

    /// Gives the head the hold that it has acquired from the store.
    pub(super) fn set_acquired(&mut self, hold: &Arc<Hold>) {
        if self.wanted == hold.id.nonce {
            hold.set_wanted();
        }
        self.head = Head::Held(hold.clone());
    }

    /// Removes and returns the first waiter, which becomes the head with the next hold of the
    /// tenure, if this is the head's and can be followed by one for that waiter.
    pub(super) fn next_in_tenure(&mut self, hold: &Hold) -> Option<QueuedWaiter> {
        if !self.is_held_by(hold) {
            return None;
        }
        let can_follow = hold.may_be_followed_by(&self.waiters.front()?.caller);
        can_follow.then(|| self.waiters.pop_front()).flatten()
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquiring(..) => "Acquiring",
            Self::Held(_) => "Held",
            Self::Kept(_) => "Kept",
            Self::None => "None",
        })
    }
}
