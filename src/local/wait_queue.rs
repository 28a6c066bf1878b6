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
//! | its last request, or a former head's, has failed since the waiter came | gets that failure |
//! | its hold has ended or was lost, and no other thread waits | makes an attempt of its own |
//! | else, for a lock | looks: another client's hold is contention, else waits for one of these |
//! | else, for what others can share | makes an attempt of its own: the store keeps the order |
//!
//! Holds of this client do not count, unless a thread has them: `released` has those that are being
//! taken back, and a head that finds the lock held makes sure first that none of these holds it.
//!
//! For a thread that does not wait at all, its time is over when it comes. If the last reply to the
//! head said that the lock is held, that counts for this thread however old it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use std::{mem, ptr};

use crate::base::failure::Failure;
use crate::local::call::Wait;
use crate::local::hold::Hold;
use crate::local::waiter::{HeadAnswer, Signal, WaitEnd, Waiter};
use crate::store::hold_id::HoldKind;

/// The threads of one client that want one lock.
pub(super) struct WaitQueue {
    pub(super) head: Head,
    /// The holds that were released, or that no call got, as long as it is not known that they have
    /// ended in the store.
    pub(super) released: Vec<Arc<Hold>>,
    /// `None` until a first thread has waited: a queue of a lock that is only held is small.
    waiters: Option<Box<Waiters>>,
}

type Waiters = VecDeque<Arc<Waiter>>;

pub(super) enum Head {
    Acquiring(Arc<Waiter>),
    Held(Arc<Hold>),
    Kept(Arc<Hold>),
    None,
}

/// How a hold has ended in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It is the hold of the next thread now.
    HandedOff,
    /// The client keeps the lock.
    Kept,
    /// It was lost, or had ended, before.
    Lost,
    /// Its release is to be sent.
    Released {
        /// Whether a thread is to try once that was sent.
        is_awaited: bool,
    },
}

impl WaitQueue {
    pub(super) const NEW: Self = Self { head: Head::None, released: Vec::new(), waiters: None };

    /// Adds a thread: at the head if there is none, else behind all others, or in front of them if
    /// it was in front before. Returns how its wait has ended if it is the head.
    pub(super) fn join(&mut self, waiter: &Arc<Waiter>, rejoins: bool) -> Option<WaitEnd> {
        let kept = match &self.head {
            Head::Acquiring(_) | Head::Held(_) => {
                let waiters = self.waiters.get_or_insert_default();
                let place = if rejoins { 0 } else { waiters.len() };
                waiters.insert(place, waiter.clone());
                return None;
            }
            Head::Kept(kept) => Some(kept.clone()),
            Head::None => None,
        };
        match kept {
            Some(hold) if hold.may_be_followed_by(&waiter.caller, true) => {
                self.head = Head::Held(hold.clone());
                Some(WaitEnd::Kept(hold))
            }
            kept => Some(self.set_acquiring(waiter, false, kept)),
        }
    }

    /// Makes the first waiter the head, if there is one, and returns what it wants.
    pub(super) fn advance(&mut self) -> Option<HoldKind> {
        let last = mem::replace(&mut self.head, Head::None);
        let next = self.waiters.as_mut()?.pop_front()?;
        if let Head::Acquiring(last) = last
            && let HeadAnswer::Failed(failure, failed) = &*last.answer.lock()
        {
            *next.answer.lock() = HeadAnswer::Failed(failure.clone(), *failed);
        }
        let end = self.set_acquiring(&next, true, None);
        next.send(Signal::WaitEnd(end));
        Some(next.hold.kind)
    }

    /// Makes a thread the head that is to get the lock.
    fn set_acquiring(
        &mut self,
        head: &Arc<Waiter>,
        is_next: bool,
        kept: Option<Arc<Hold>>,
    ) -> WaitEnd {
        self.head = Head::Acquiring(head.clone());
        WaitEnd::Head { is_next, after_release: !self.released.is_empty(), kept }
    }

    /// Begins a hold that a thread has acquired from the store. If it is the head, it has the lock
    /// there. Returns the earlier holds, which have ended: it is for the caller to report that.
    pub(super) fn begin_hold(&mut self, hold: &Arc<Hold>, head: Option<&Waiter>) -> Vec<Arc<Hold>> {
        if let Some(head) = head.filter(|head| self.is_acquiring(head)) {
            if head.wanted.lock().contains(&hold.id.nonce) {
                hold.set_wanted();
            }
            self.head = Head::Held(hold.clone());
        }
        mem::take(&mut self.released)
    }

    /// Ends a hold. If it `hands_off`, the first waiter gets the next hold of the tenure, if it can
    /// have it, or else the lock is kept if it `may_keep` it. `report` tells of the hold that ends,
    /// before another thread can tell of its own, or returns `false` if it was lost.
    pub(super) fn end(
        &mut self,
        hold: &Arc<Hold>,
        hands_off: bool,
        may_keep: bool,
        mut report: impl FnMut() -> bool,
    ) -> Ending {
        if hands_off && self.is_held_by(hold) {
            let first = self.behind().next().cloned();
            match first {
                Some(next) if hold.may_be_followed_by(&next.caller, may_keep) && report() => {
                    self.remove(&next);
                    hold.begin_next(&next.caller);
                    next.send(Signal::WaitEnd(WaitEnd::HandedOff(hold.clone())));
                    return Ending::HandedOff;
                }
                None if may_keep && hold.can_be_kept() && report() && hold.keep() => {
                    self.head = Head::Kept(hold.clone());
                    return Ending::Kept;
                }
                _ => {}
            }
        }
        self.release(hold)
    }

    /// Ends a hold whose release is to be sent, and remembers it until that is confirmed. If it is
    /// that of the head, and threads wait behind it, it stays the head until the release was sent.
    pub(super) fn release(&mut self, hold: &Arc<Hold>) -> Ending {
        if !hold.end() {
            return Ending::Lost;
        }
        self.released.push(hold.clone());
        let is_awaited = self.threads().next().is_some();
        if !is_awaited && self.is_held_by(hold) {
            self.head = Head::None;
        }
        Ending::Released { is_awaited }
    }

    /// Ends the tenure if it is kept, and is the one that is meant. Returns it, to be released.
    pub(super) fn end_kept(&mut self, is_meant: impl FnOnce(&Hold) -> bool) -> Option<Arc<Hold>> {
        let hold = self.kept().filter(|hold| is_meant(hold))?.clone();
        (self.release(&hold) != Ending::Lost).then_some(hold)
    }

    /// Returns the threads that wait behind the head, or at it for the lock.
    pub(super) fn threads(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        let head = if let Head::Acquiring(head) = &self.head { Some(head) } else { None };
        head.into_iter().chain(self.behind())
    }

    pub(super) fn behind(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.waiters.iter().flat_map(|waiters| waiters.iter())
    }

    /// Signals the head that the lock may be free. Returns `false` if it does not acquire it.
    pub(super) fn wake(&self) -> bool {
        let Head::Acquiring(head) = &self.head else { return false };
        head.wake();
        true
    }

    /// Removes a waiter. Returns `false` if it has become the head or was signalled.
    pub(super) fn remove(&mut self, waiter: &Waiter) -> bool {
        let place = self.place(waiter);
        self.waiters
            .as_mut()
            .zip(place)
            .is_some_and(|(waiters, place)| waiters.remove(place).is_some())
    }

    /// Marks a waiter as in doubt. Returns `false` if it waits no more.
    pub(super) fn mark_in_doubt(&self, waiter: &Waiter) -> bool {
        let waits = self.place(waiter).is_some();
        if waits {
            waiter.in_doubt.store(true, Ordering::Relaxed);
        }
        waits
    }

    fn place(&self, waiter: &Waiter) -> Option<usize> {
        self.behind().position(|queued| ptr::eq(&raw const **queued, waiter))
    }

    /// Removes a waiter whose time is over, and decides on it. `None` if it has become the head or
    /// was signalled.
    pub(super) fn time_out(&mut self, waiter: &Waiter, wait: Wait) -> Option<WaitEnd> {
        self.remove(waiter).then(|| self.known_to(waiter, wait))
    }

    /// Returns what is known to a thread that has left the queue because its time was over.
    pub(super) fn known_to(&self, waiter: &Waiter, wait: Wait) -> WaitEnd {
        let is_lock = waiter.hold.kind.is_lock();
        let is_new = |time: Instant| wait != Wait::No && time >= waiter.caller.begin;
        let refuses = |time| is_new(time) || wait == Wait::No && is_lock;
        let answer =
            if let Head::Acquiring(head) = &self.head { Some(head.answer.lock()) } else { None };
        match (&self.head, answer.as_deref()) {
            (Head::Held(hold), _) if !hold.lease.remaining().is_zero() => WaitEnd::TimedOut,
            (Head::Held(_), _) if self.behind().next().is_none() => WaitEnd::Outside,
            (_, Some(HeadAnswer::Held(replied))) if refuses(*replied) => WaitEnd::TimedOut,
            (_, Some(HeadAnswer::Failed(failure, failed))) if is_new(*failed) => {
                WaitEnd::Failed(failure.clone())
            }
            _ if is_lock => WaitEnd::Look,
            _ => WaitEnd::Outside,
        }
    }

    /// Gives the waiters without a limit the failure for which the head gives up, instead of having
    /// them find out one by one.
    pub(super) fn fail_endless(&mut self, head: &Waiter, failure: &Failure) {
        if self.is_acquiring(head)
            && let Some(waiters) = &mut self.waiters
        {
            waiters.retain(|waiter| {
                let is_endless = waiter.caller.wait == Wait::Endless;
                if is_endless {
                    waiter.send(Signal::WaitEnd(WaitEnd::Failed(failure.clone())));
                }
                !is_endless
            });
        }
    }

    /// Returns `true` if the thread is the head, and acquires the lock.
    pub(super) fn is_acquiring(&self, thread: &Waiter) -> bool {
        matches!(&self.head, Head::Acquiring(head) if ptr::eq(&raw const **head, thread))
    }

    /// Returns the hold of the head if it has one.
    pub(super) fn holder(&self) -> Option<&Arc<Hold>> {
        if let Head::Held(hold) = &self.head { Some(hold) } else { None }
    }

    /// Returns the hold after which the lock is kept.
    pub(super) fn kept(&self) -> Option<&Arc<Hold>> {
        if let Head::Kept(hold) = &self.head { Some(hold) } else { None }
    }

    /// Returns `true` if this is the hold of the head, or the one after which the lock is kept.
    pub(super) fn is_held_by(&self, hold: &Hold) -> bool {
        let held = self.holder().or(self.kept());
        held.is_some_and(|held| ptr::eq(&raw const **held, hold))
    }

    /// Notes that another client waits for the hold with this nonce.
    pub(super) fn set_wanted(&mut self, nonce: u64) {
        match &self.head {
            Head::Held(hold) if hold.id.nonce == nonce => hold.set_wanted(),
            Head::Acquiring(head) => drop(head.wanted.lock().insert(nonce)),
            _ => {}
        }
    }
}
