//! The wait queues of a client, by the name of the lock: first come, first served. Only the thread
//! at the head of a queue uses the store; the others sleep.
//!
//! Decides which thread is the head, and signals it. Knows nothing of Redis: what the head does
//! is decided in `acquire.rs` and `release.rs`.
//!
//! The head is signalled that the lock may be free without the lock of its shard, because its next
//! request is sent at the same time: threads that want other locks do not wait for that.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::base::clock::end_of;
use crate::base::failure::Failure;
use crate::base::sync::{AtomicBool, Condvar, Mutex, MutexGuard, wait_while};
use crate::error::{Error, Result};
use crate::local::call::Caller;
use crate::local::hold::Hold;
use crate::local::pending::Followers;
use crate::local::queue_shard::QueueShard;
use crate::local::recalls::Recalls;
use crate::local::wait_queue::{Turn, WaitQueue};
use crate::local::waiter::{QueuedWaiter, Signal, Waiter};
use crate::store::Store;
use crate::store::hold_id::{HoldId, HoldKind};

/// Threads that want different locks should rarely meet here.
const SHARDS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    hasher: RandomState,
    /// Those for locks, and those for what can be shared: threads that want a name as different
    /// things do not wait for each other.
    shards: [[Mutex<QueueShard>; SHARDS]; 2],
    /// Set before the waiters are signalled, and read under a shard's lock before one is added.
    closed: AtomicBool,
    /// Whether messages of other clients arrive, so that locks may be kept.
    listening: AtomicBool,
    /// Whether that has been tried.
    has_tried_to_listen: AtomicBool,
    recalls: Recalls,
    sleepers: Sleepers,
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

/// Where threads sleep that are in no queue.
#[derive(Debug, Default)]
struct Sleepers {
    lock: Mutex<()>,
    /// The client was closed, or listens now.
    changed: Condvar,
}

impl WaitQueues {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Sleeps outside the queues, at most until `close`, which is an error.
    pub(crate) fn pause(&self, time: Duration) -> Result<()> {
        let mut lock = self.sleepers.lock.lock();
        wait_while(&self.sleepers.changed, &mut lock, Some(end_of(time)), |()| {
            self.check_open().is_ok()
        });
        self.check_open()
    }

    /// Turns away the threads that wait and those that come.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // A thread that has found the queues open a moment ago sleeps now.
        drop(self.sleepers.lock.lock());
        self.sleepers.changed.notify_all();
        for shard in self.shards.as_flattened() {
            let shard = shard.lock();
            for waiter in shard.threads() {
                waiter.send(Signal::Closed);
            }
        }
    }

    /// Joins the queue of a lock, for a hold of it. Returns the turn of the thread if it is the
    /// head.
    pub(crate) fn join(
        &self,
        hold: HoldId,
        caller: &Caller,
        endless: bool,
        rejoins: bool,
    ) -> Result<(Arc<Waiter>, Option<Turn>)> {
        let mut shard = self.shard_of(&hold);
        self.check_open()?;
        Ok(shard.push(hold, caller, endless, rejoins))
    }

    /// Removes a waiter whose time is over, and decides on it. It has come at `joined`, or does not
    /// wait at all. `None` if it has become the head or was signalled.
    pub(super) fn time_out(&self, waiter: &Waiter, joined: Option<Instant>) -> Option<Turn> {
        let Waiter { hold, .. } = waiter;
        self.shard_of(hold).get_mut(&hold.name)?.time_out(waiter, joined)
    }

    /// Removes a waiter. Returns `false` if it has become the head or was signalled.
    pub(super) fn remove(&self, waiter: &Waiter) -> bool {
        let Waiter { hold, .. } = waiter;
        let mut shard = self.shard_of(hold);
        shard.get_mut(&hold.name).is_some_and(|queue| queue.remove(waiter).is_some())
    }

    /// Removes those of these waiters that still wait, because the head has acquired their holds.
    /// Returns `None` for each of the others.
    pub(super) fn take(&self, waiters: &[Arc<Waiter>]) -> Vec<Option<QueuedWaiter>> {
        let Some(first) = waiters.first() else { return Vec::new() };
        let mut shard = self.shard_of(&first.hold);
        let mut queue = shard.get_mut(&first.hold.name);
        let take = |waiter: &Arc<Waiter>| queue.as_mut().and_then(|queue| queue.remove(waiter));
        waiters.iter().map(take).collect()
    }

    /// Marks those of these waiters as in doubt that still wait. Returns the others.
    pub(super) fn mark_in_doubt(&self, mut waiters: Vec<Arc<Waiter>>) -> Vec<Arc<Waiter>> {
        let Some(first) = waiters.first().cloned() else { return Vec::new() };
        let shard = self.shard_of(&first.hold);
        let queue = shard.get(&first.hold.name);
        waiters.retain(|waiter| {
            let waits = queue.is_some_and(|queue| queue.has(waiter));
            if waits {
                waiter.mark_in_doubt();
            }
            !waits
        });
        waiters
    }

    /// Returns the hold of the head if it has one.
    pub(crate) fn holder(&self, kind: HoldKind, name: &str) -> Option<Arc<Hold>> {
        self.shard(kind, name).get(name)?.holder().cloned()
    }

    /// Records what the last request of a head has shown: that another owner holds the lock, or
    /// that the server cannot be reached. Does nothing for a thread outside the queue.
    pub(crate) fn set_answer(&self, head: &Waiter, answer: Result<(), &Failure>) {
        if let Some(queue) = self.shard_of(&head.hold).get_mut(&head.hold.name) {
            queue.set_answer(head, answer);
        }
    }

    /// Marks the next request of a head as on its way. Does nothing for a thread outside the queue.
    pub(crate) fn set_pending(&self, head: &Waiter) {
        if let Some(queue) = self.shard_of(&head.hold).get_mut(&head.hold.name) {
            queue.set_pending(head);
        }
    }

    /// Gives the head the hold that it has acquired from the store.
    pub(crate) fn set_acquired(&self, hold: &Arc<Hold>) {
        if let Some(queue) = self.shard_of(&hold.id).get_mut(hold.name()) {
            queue.set_acquired(hold);
        }
        // A hold that was lost before it was at the head has not been missed there.
        if hold.remaining().is_zero() {
            self.end_hold(hold);
        }
    }

    /// Returns the holds whose release is not confirmed.
    pub(crate) fn released(&self, kind: HoldKind, name: &str) -> Vec<Arc<Hold>> {
        let shard = self.shard(kind, name);
        shard.get(name).map(|queue| queue.released().to_vec()).unwrap_or_default()
    }

    /// Forgets and returns the holds before this one whose release is not confirmed.
    pub(crate) fn take_released(&self, hold: &HoldId) -> Vec<Arc<Hold>> {
        self.shard_of(hold).take_released(&hold.name)
    }

    /// Lets `report` tell how a release has gone, and forgets the hold if that returns `true`: it
    /// does not exist any more. So a thread that acquires the lock next finds the hold here, or
    /// comes after the report.
    pub(crate) fn settle_release(&self, hold: &HoldId, report: impl FnOnce() -> bool) {
        let mut shard = self.shard_of(hold);
        if report() {
            shard.confirm_release(hold);
        }
    }

    /// Removes the head, which gives up without the lock. If that is because the server cannot be
    /// reached, the waiters without a limit get this failure, instead of finding out one by one.
    /// Returns what the thread wants that is at the head now.
    pub(crate) fn give_up_head(&self, head: &HoldId, outage: Option<&Failure>) -> Option<HoldKind> {
        let HoldId { name, .. } = head;
        let mut shard = self.shard_of(head);
        if let Some(failure) = outage
            && let Some(queue) = shard.get_mut(name)
        {
            for queued in queue.remove_endless() {
                queued.waiter.send(Signal::Failed(failure.clone()));
            }
        }
        shard.advance(name)
    }

    /// Returns who waits behind the head that asks for this hold.
    pub(super) fn followers(&self, head: &HoldId) -> Followers {
        self.shard_of(head).get(&head.name).map(WaitQueue::followers).unwrap_or_default()
    }

    /// Removes the head if this is its hold, which was released or lost.
    pub(crate) fn end_hold(&self, hold: &Hold) {
        let mut shard = self.shard_of(&hold.id);
        if shard.get(hold.name()).is_some_and(|queue| queue.is_held_by(hold)) {
            shard.advance(hold.name());
        }
    }

    /// Ends a hold. If it `hands_off`, the first waiter gets the next hold of the tenure, if it can
    /// have it, or the lock is kept: `report` tells of the hold that ends, before another thread
    /// can tell of its own. Else the hold is remembered, because its release is to be sent now.
    pub(crate) fn end(&self, hold: &Arc<Hold>, hands_off: bool, report: impl FnOnce()) -> Ending {
        let mut shard = self.shard_of(&hold.id);
        if let Some(queue) = shard.get_mut(hold.name()).filter(|_| hands_off) {
            if let Some(next) = queue.next_in_tenure(hold) {
                report();
                hold.begin_next(&next.caller);
                next.waiter.send(Signal::HandedOff(hold.clone()));
                return Ending::HandedOff;
            }
            let may_keep = self.is_listening() && self.check_open().is_ok();
            if may_keep && queue.keep(hold, report) {
                return Ending::Kept;
            }
        }
        if !hold.end() {
            return Ending::Lost;
        }
        Ending::Released { is_awaited: shard.remember_released(hold, !hands_off) }
    }

    /// Sets whether messages of other clients arrive.
    pub(crate) fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::SeqCst);
        self.has_tried_to_listen.store(true, Ordering::SeqCst);
        drop(self.sleepers.lock.lock());
        self.sleepers.changed.notify_all();
    }

    /// Blocks until the first attempt to receive messages has succeeded or failed, at most until
    /// the deadline or `close`: so that the first lock can be kept already.
    pub(crate) fn wait_to_listen(&self, deadline: Instant) {
        let mut lock = self.sleepers.lock.lock();
        wait_while(&self.sleepers.changed, &mut lock, Some(deadline), |()| {
            !self.has_tried_to_listen.load(Ordering::SeqCst) && self.check_open().is_ok()
        });
    }

    /// Returns `true` if messages of other clients arrive.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::SeqCst)
    }

    /// Does what another client wants that asks for the lock of a tenure, and `waits` for it or
    /// else has only a moment. Returns the tenure if it was kept: it is to be released.
    pub(crate) fn recall(&self, name: &str, nonce: u64, waits: bool) -> Option<Arc<Hold>> {
        let mut shard = self.shard(HoldKind::Lock, name);
        let queue = shard.get_mut(name)?;
        let asked = queue.holder().filter(|_| waits).or(queue.kept());
        if let Some(hold) = asked.filter(|hold| hold.id.nonce == nonce && !hold.is_wanted()) {
            self.recalls.record(hold.name(), hold.was_reused());
        }
        if waits {
            queue.set_wanted(nonce);
        }
        shard.end_kept(name, |kept| kept.id.nonce == nonce)
    }

    /// Returns `true` if a lock may be kept after its next hold: other clients can ask for it, and
    /// have not done so again and again a moment ago.
    pub(crate) fn may_keep(&self, name: &str) -> bool {
        self.is_listening() && !self.recalls.forbid(name)
    }

    /// Ends a tenure that was kept for long enough. Returns `false` if a thread uses it, or it has
    /// ended before.
    pub(crate) fn end_kept(&self, hold: &Hold) -> bool {
        let is_it = |kept: &Hold| std::ptr::eq(kept, hold);
        self.shard_of(&hold.id).end_kept(hold.name(), is_it).is_some()
    }

    /// Ends a tenure that the thread at the head has found kept, and remembers it, because its
    /// release is to be sent. Returns `false` if it was lost before.
    pub(crate) fn give_up(&self, hold: &Arc<Hold>) -> bool {
        let mut shard = self.shard_of(&hold.id);
        let ended = hold.end();
        if ended {
            shard.remember_released(hold, true);
        }
        ended
    }

    /// Ends the tenure of a name if it is kept, and returns it to be released.
    pub(crate) fn end_kept_of(&self, name: &str) -> Option<Arc<Hold>> {
        self.shard(HoldKind::Lock, name).end_kept(name, |_| true)
    }

    /// Ends every tenure that is kept, and returns them to be released.
    pub(crate) fn end_all_kept(&self) -> Vec<Arc<Hold>> {
        let end = |shard: &Mutex<QueueShard>| {
            let mut shard = shard.lock();
            let names: Vec<_> = shard.kept().cloned().collect();
            let end = |name: Arc<str>| shard.end_kept(&name, |_| true);
            names.into_iter().filter_map(end).collect::<Vec<_>>()
        };
        self.shards.as_flattened().iter().flat_map(end).collect()
    }

    /// Returns how many locks are kept.
    pub(crate) fn count_kept(&self) -> usize {
        self.shards.as_flattened().iter().map(|shard| shard.lock().kept().count()).sum()
    }

    /// Signals the head that the lock may be free, or sends its next request for it. Returns
    /// `false` if no head acquires this lock.
    pub(crate) fn wake(&self, kind: HoldKind, name: &str, store: &dyn Store) -> bool {
        let head = self.shard(kind, name).get(name).and_then(WaitQueue::acquiring);
        head.map(|(head, followers)| head.wake(|next| next.start(store, followers))).is_some()
    }

    /// As `wake`, whatever the head wants.
    pub(crate) fn wake_any(&self, name: &str, store: &dyn Store) -> bool {
        self.wake(HoldKind::Read, name, store) || self.wake(HoldKind::Lock, name, store)
    }

    /// Signals the heads of a name that it may be free, whatever they want, and sends nothing for
    /// them.
    pub(crate) fn signal_heads(&self, name: &str) {
        for kind in [HoldKind::Lock, HoldKind::Read] {
            let head = self.shard(kind, name).get(name).and_then(WaitQueue::acquiring);
            if let Some((head, _)) = head {
                head.wake(|_| None);
            }
        }
    }

    /// Adds the names that threads want, with how many do.
    pub(super) fn count(&self, names: &mut Vec<(Arc<str>, usize)>) {
        for shard in self.shards.as_flattened() {
            names.extend(shard.lock().counts().map(|(name, count)| (name.clone(), count)));
        }
    }

    /// As `wake`, for every lock.
    pub(crate) fn wake_all(&self, store: &dyn Store) {
        for shard in self.shards.as_flattened() {
            let heads = shard.lock().acquiring();
            for (head, followers) in heads {
                head.wake(|next| next.start(store, followers));
            }
        }
    }

    fn shard_of(&self, hold: &HoldId) -> MutexGuard<'_, QueueShard> {
        self.shard(hold.kind, &hold.name)
    }

    fn shard(&self, kind: HoldKind, name: &str) -> MutexGuard<'_, QueueShard> {
        let hash = self.hasher.hash_one(name);
        let shards = &self.shards[usize::from(kind != HoldKind::Lock)];
        shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)].lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::{Moment, end_of};
    use crate::config::{Config, LockOptions};
    use crate::local::call::Wait;
    use crate::local::pending::tests::request;
    use crate::local::reporter::Reporter;
    use crate::local::turn;
    use crate::local::wait_queue::Arrival;
    use crate::store::memory::Memory;
    use crate::store::request::SHARERS_MAX;
    use std::thread;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(10);

    fn name() -> Arc<str> {
        Arc::from("x")
    }

    fn caller() -> Caller {
        caller_with(&LockOptions { tenure: Some(SOON), ..LockOptions::default() })
    }

    fn caller_with(options: &LockOptions) -> Caller {
        Caller::current(&Config::default(), options)
    }

    /// A hold that two others may follow.
    fn new_hold() -> Arc<Hold> {
        Arc::new(Hold::new(id(HoldKind::Lock), 1, 2, &caller(), Moment::now()))
    }

    fn id(kind: HoldKind) -> HoldId {
        HoldId { kind, name: name(), client: Arc::from("c"), nonce: 1 }
    }

    /// Joins the queue. Returns `true` as well at its head.
    fn join(queues: &WaitQueues) -> (Arc<Waiter>, bool) {
        let (waiter, arrival) = join_at(queues, false, false).expect("open");
        (waiter, arrival.is_some())
    }

    fn join_at(
        queues: &WaitQueues,
        endless: bool,
        rejoins: bool,
    ) -> Result<(Arc<Waiter>, Option<Turn>)> {
        queues.join(id(HoldKind::Lock), &caller(), endless, rejoins)
    }

    /// A queue with a head and two waiters.
    fn three(queues: &WaitQueues) -> [Arc<Waiter>; 3] {
        let (head, first) = join(queues);
        assert!(first);
        let [second, third] = [join(queues), join(queues)];
        assert!(!second.1 && !third.1);
        [head, second.0, third.0]
    }

    fn turn(queues: &WaitQueues, waiter: &Waiter) -> Turn {
        turn_within(queues, waiter, SOON)
    }

    fn turn_within(queues: &WaitQueues, waiter: &Waiter, time: Duration) -> Turn {
        turn::wait(queues, waiter, Wait::Until(end_of(time))).expect("open")
    }

    fn is_empty(queues: &WaitQueues) -> bool {
        queues.shards.as_flattened().iter().all(|shard| shard.lock().is_empty())
    }

    #[test]
    fn the_waiters_become_the_head_in_the_order_in_which_they_came() {
        let queues = WaitQueues::default();
        let [_, second, third] = three(&queues);
        queues.give_up_head(&id(HoldKind::Lock), None);
        assert!(matches!(turn(&queues, &second), Turn::Head(_)));
        assert!(third.is_empty());
        queues.give_up_head(&id(HoldKind::Lock), None);
        assert!(matches!(turn(&queues, &third), Turn::Head(_)));
        queues.give_up_head(&id(HoldKind::Lock), None);
        assert!(is_empty(&queues));
    }

    /// Joins the queue for reading or for writing.
    fn join_for(queues: &WaitQueues, kind: HoldKind) -> Arc<Waiter> {
        join_for_a_lease(queues, kind, LockOptions::default().lease)
    }

    fn join_for_a_lease(queues: &WaitQueues, kind: HoldKind, lease: Duration) -> Arc<Waiter> {
        let options = LockOptions { lease, ..LockOptions::default() };
        let caller = Caller::owned(&Config::default(), &options, kind);
        queues.join(id(kind), &caller, false, false).expect("open").0
    }

    #[test]
    fn the_head_asks_for_its_neighbours_that_want_the_same() {
        use HoldKind::{Lock, Permit, Read, Write};
        let asked = |kinds: &[HoldKind]| {
            let queues = WaitQueues::default();
            let _head = join_for(&queues, kinds[0]);
            let waiters: Vec<_> = kinds[1..].iter().map(|kind| join_for(&queues, *kind)).collect();
            let Followers { exist, alike } = queues.followers(&id(kinds[0]));
            assert_eq!(exist, !waiters.is_empty());
            assert!(alike.iter().zip(&waiters).all(|(one, other)| Arc::ptr_eq(one, other)));
            alike.len()
        };
        assert_eq!(asked(&[Read]), 0);
        assert_eq!(asked(&[Read, Read, Read, Write, Read]), 2, "a writer comes first");
        assert_eq!(asked(&[Read, Write, Read]), 0);
        assert_eq!(asked(&[Write, Write]), 0);
        assert_eq!(asked(&[Lock, Lock]), 0);
        let two = Permit { of: 2 };
        assert_eq!(asked(&[two, two, two, Permit { of: 3 }, two]), 2);
        assert_eq!(asked(&[Read; 100]), SHARERS_MAX);
        let queues = WaitQueues::default();
        let _head = join_for_a_lease(&queues, Read, SOON);
        let _waiter = join_for_a_lease(&queues, Read, SOON * 2);
        assert!(queues.followers(&id(Read)).alike.is_empty(), "one request has one lease");
        queues.set_acquired(&Arc::new(Hold::new(id(Read), 1, 0, &caller(), Moment::now())));
        assert!(!queues.followers(&id(Read)).exist, "the head asks for nothing");
    }

    #[test]
    fn only_who_still_waits_gets_what_the_head_has_asked_for() {
        let queues = WaitQueues::default();
        let _head = join_for(&queues, HoldKind::Read);
        let waiters = [(); 3].map(|()| join_for(&queues, HoldKind::Read));
        let [first, second, third] = &waiters;
        assert!(queues.remove(second));
        let left = queues.mark_in_doubt(waiters.to_vec());
        assert!(left.len() == 1 && Arc::ptr_eq(&left[0], second));
        assert_eq!(waiters.each_ref().map(|waiter| waiter.is_in_doubt()), [true, false, true]);
        let taken = queues.take(&waiters[..2]);
        let taken = taken.iter().map(|queued| queued.as_ref().map(|it| Arc::as_ptr(&it.waiter)));
        assert_eq!(taken.collect::<Vec<_>>(), [Some(Arc::as_ptr(first)), None]);
        assert!(!queues.remove(first), "its time cannot end now");
        queues.give_up_head(&id(HoldKind::Read), None);
        assert!(matches!(turn(&queues, third), Turn::Head(_)));
        queues.give_up_head(&id(HoldKind::Read), None);
        assert!(is_empty(&queues));
    }

    #[test]
    fn who_has_lost_its_hold_on_the_way_goes_before_those_who_came_later() {
        let queues = WaitQueues::default();
        let [_, later, _] = three(&queues);
        let (first, _) = join_at(&queues, false, true).expect("open");
        queues.give_up_head(&id(HoldKind::Lock), None);
        assert!(matches!(turn(&queues, &first), Turn::Head(_)) && later.is_empty());
    }

    #[test]
    fn a_lock_is_handed_off_to_the_first_waiter() {
        let queues = WaitQueues::default();
        let [_, second, third] = three(&queues);
        let mine = new_hold();
        queues.set_acquired(&mine);
        let report = || assert!(second.is_empty(), "not told yet");
        assert_eq!(queues.end(&mine, true, report), Ending::HandedOff);
        let got = turn(&queues, &second);
        assert!(matches!(got, Turn::HandedOff(next) if Arc::ptr_eq(&next, &mine)));
        assert!(mine.fence() == 2 && third.is_empty());
        assert!(
            queues
                .holder(HoldKind::Lock, &name())
                .is_some_and(|holder| Arc::ptr_eq(&holder, &mine))
        );
        queues.end(&mine, false, || panic!("an unlock hands nothing off"));
        assert!(third.is_empty(), "the release was not sent");
        queues.end_hold(&mine);
        assert!(matches!(turn(&queues, &third), Turn::Head(_)));
        queues.settle_release(&mine.id, || true);
        queues.give_up_head(&id(HoldKind::Lock), None);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_tenure_ends_with_its_time_its_tokens_and_what_was_asked_for() {
        let follows = |hold: &Hold, options: LockOptions| {
            hold.may_be_followed_by(&caller_with(&LockOptions { tenure: Some(SOON), ..options }))
        };
        let same = LockOptions::default;
        assert!(follows(&new_hold(), same()));
        for other in [
            LockOptions { lease: SOON * 4, ..same() },
            LockOptions { renew: false, ..same() },
            LockOptions { max_hold: Some(SOON), ..same() },
            LockOptions { hold_at_least: Some(SOON), ..same() },
        ] {
            assert!(!follows(&new_hold(), other));
        }
        let hold = new_hold();
        hold.begin_next(&caller());
        hold.begin_next(&caller());
        assert!(!follows(&hold, same()), "two tokens are used up");
        let zero = LockOptions { tenure: Some(Duration::ZERO), ..same() };
        assert!(!new_hold().may_be_followed_by(&caller_with(&zero)));
        let hold = new_hold();
        hold.mark_in_doubt();
        assert!(!follows(&hold, same()), "in doubt");
        let hold = new_hold();
        assert!(hold.lose() && !follows(&hold, same()), "lost");
        let hold = new_hold();
        assert!(hold.end() && !follows(&hold, same()), "ended by a shutdown");
    }

    #[test]
    fn a_hold_that_was_handed_off_is_over_and_not_lost_with_the_next() {
        let hold = new_hold();
        let (over, fence) = (hold.over(), hold.fence());
        hold.begin_next(&caller());
        assert!(over.try_recv().is_err_and(|error| error.is_disconnected()));
        let next = hold.over();
        assert!(next.try_recv().is_err_and(|error| error.is_empty()));
        hold.lose();
        assert!(next.try_recv().is_err_and(|error| error.is_disconnected()));
        assert!(!hold.is_lost_with(fence) && hold.is_lost_with(fence + 1));
    }

    #[test]
    fn a_waiter_whose_time_is_over_leaves_nothing() {
        let queues = WaitQueues::default();
        let [_, second, third] = three(&queues);
        let mine = new_hold();
        queues.set_acquired(&mine);
        assert!(matches!(turn_within(&queues, &second, Duration::ZERO), Turn::TimedOut));
        assert_eq!(queues.end(&mine, true, || ()), Ending::HandedOff);
        assert!(second.is_empty());
        assert!(matches!(turn(&queues, &third), Turn::HandedOff(_)));
        queues.end_hold(&mine);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_lock_that_was_handed_off_is_not_lost_to_a_deadline() {
        let queues = WaitQueues::default();
        let [_, second, _] = three(&queues);
        let mine = new_hold();
        queues.set_acquired(&mine);
        assert_eq!(queues.end(&mine, true, || ()), Ending::HandedOff);
        let got = turn_within(&queues, &second, Duration::ZERO);
        assert!(matches!(got, Turn::HandedOff(_)));
    }

    #[test]
    fn a_hold_whose_release_is_not_confirmed_is_remembered() {
        let queues = WaitQueues::default();
        join(&queues);
        let (mine, next) = (new_hold(), new_hold());
        queues.set_acquired(&mine);
        assert_eq!(queues.end(&mine, true, || ()), Ending::Released { is_awaited: false });
        for _ in 0..2 {
            let joined = join_at(&queues, false, false).expect("open");
            assert!(matches!(joined.1, Some(Turn::Head(Arrival::First { after_release: true }))));
            assert!(Arc::ptr_eq(&queues.released(HoldKind::Lock, &name())[0], &mine));
            queues.give_up_head(&id(HoldKind::Lock), None);
        }
        let (_, first) = join(&queues);
        assert!(first);
        let ended = queues.take_released(&id(HoldKind::Lock));
        assert!(ended.len() == 1 && queues.released(HoldKind::Lock, &name()).is_empty());
        queues.set_acquired(&next);
        queues.settle_release(&mine.id, || true);
        queues.end_hold(&next);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_release_leaves_the_queue_to_the_first_waiter() {
        let queues = WaitQueues::default();
        let [_, second, third] = three(&queues);
        let mine = new_hold();
        queues.set_acquired(&mine);
        assert_eq!(queues.end(&mine, false, || ()), Ending::Released { is_awaited: true });
        assert!(second.is_empty(), "it is not sent yet");
        queues.end_hold(&mine);
        assert!(matches!(turn(&queues, &second), Turn::Head(_)));
        // A hold that was acquired outside the queue.
        let outside = new_hold();
        assert_eq!(queues.end(&outside, true, || ()), Ending::Released { is_awaited: true });
        queues.end_hold(&outside);
        assert!(third.is_empty());
        queues.settle_release(&mine.id, || true);
        queues.give_up_head(&id(HoldKind::Lock), None);
        queues.give_up_head(&id(HoldKind::Lock), None);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_lost_hold_makes_the_first_waiter_the_head() {
        let queues = Arc::new(WaitQueues::default());
        let [_, second, _] = three(&queues);
        let mine = new_hold();
        queues.set_acquired(&mine);
        Reporter { wait_queues: queues.clone(), ..Reporter::<()>::default() }.lose(&mine);
        assert!(matches!(turn(&queues, &second), Turn::Head(_)));
        queues.end_hold(&mine);
        assert!(queues.holder(HoldKind::Lock, &name()).is_none());
    }

    #[test]
    fn an_outage_ends_the_waits_without_a_limit() {
        let queues = WaitQueues::default();
        let (head, first) = join(&queues);
        assert!(first);
        let (endless, _) = join_at(&queues, true, false).expect("open");
        let (limited, _) = join(&queues);
        let source = std::io::Error::other("test");
        let failure =
            Failure::io(crate::base::failure::FailureKind::Timeout, &Arc::from("here"), source);
        queues.set_answer(&head, Err(&failure));
        // What the head learned before this thread came says nothing about now.
        let late = turn_within(&queues, &join(&queues).0, Duration::ZERO);
        assert!(matches!(late, Turn::Look), "{late:?}");
        queues.give_up_head(&id(HoldKind::Lock), Some(&failure));
        assert!(matches!(turn(&queues, &endless), Turn::Failed(_)));
        assert!(matches!(turn(&queues, &limited), Turn::Head(_)));
    }

    /// What becomes of a waiter whose time is over after `learn`.
    fn time_out_after(queues: &WaitQueues, learn: impl FnOnce()) -> Option<Turn> {
        let (waiter, first) = join(queues);
        assert!(!first);
        let joined = Some(Instant::now());
        learn();
        queues.time_out(&waiter, joined)
    }

    #[test]
    fn a_waiter_whose_time_is_over_learns_what_the_head_has_learned_since() {
        let queues = WaitQueues::default();
        let (head, _) = join(&queues);
        let outside = Waiter::new(id(HoldKind::Lock), &caller());
        let failure = unanswered();
        let unknown = |learn: &dyn Fn()| {
            assert!(matches!(time_out_after(&queues, learn), Some(Turn::Look)));
        };
        unknown(&|| ());
        unknown(&|| queues.set_answer(&outside, Ok(())));
        let contended = time_out_after(&queues, || queues.set_answer(&head, Ok(())));
        assert!(matches!(contended, Some(Turn::TimedOut)), "{contended:?}");
        unknown(&|| ());
        unknown(&|| {
            queues.set_answer(&head, Ok(()));
            queues.set_pending(&head);
        });
        let failed = time_out_after(&queues, || queues.set_answer(&head, Err(&failure)));
        assert!(matches!(failed, Some(Turn::Failed(_))), "{failed:?}");
        unknown(&|| ());
        let acquired = time_out_after(&queues, || queues.set_acquired(&new_hold()));
        assert!(matches!(acquired, Some(Turn::TimedOut)), "{acquired:?}");
        let left = time_out_after(&queues, || {
            assert!(queues.give_up_head(&id(HoldKind::Lock), None).is_some());
        });
        assert!(left.is_none(), "{left:?}");
        queues.give_up_head(&id(HoldKind::Lock), None);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_waiter_behind_a_hold_that_ends_asks_by_itself_if_nobody_else_waits() {
        let queues = WaitQueues::default();
        let [_, second, third] = three(&queues);
        let mine = new_hold();
        queues.set_acquired(&mine);
        assert_eq!(queues.end(&mine, false, || ()), Ending::Released { is_awaited: true });
        assert!(matches!(queues.time_out(&third, None), Some(Turn::Look)));
        assert!(matches!(queues.time_out(&second, None), Some(Turn::Outside)));
    }

    #[test]
    fn a_reader_whose_time_is_over_asks_by_itself() {
        let queues = WaitQueues::default();
        let head = join_for(&queues, HoldKind::Read);
        let (second, third) =
            (join_for(&queues, HoldKind::Read), join_for(&queues, HoldKind::Read));
        queues.set_answer(&head, Ok(()));
        assert!(matches!(queues.time_out(&second, None), Some(Turn::Outside)));
        assert!(matches!(queues.time_out(&third, Some(Instant::now())), Some(Turn::Outside)));
    }

    #[test]
    fn a_thread_that_does_not_wait_is_refused_what_the_head_waits_for_or_has() {
        let queues = WaitQueues::default();
        let [head, second, _] = three(&queues);
        let tried = || turn::wait(&queues, &join(&queues).0, Wait::No).expect("open");
        assert!(matches!(tried(), Turn::Look), "the head has no answer yet");
        queues.set_answer(&head, Ok(()));
        assert!(matches!(tried(), Turn::TimedOut), "the head waits");
        queues.set_pending(&head);
        assert!(matches!(tried(), Turn::Look), "the head asks again");
        queues.set_answer(&head, Err(&unanswered()));
        assert!(matches!(tried(), Turn::Look), "the server may be back");
        let mine = new_hold();
        queues.set_acquired(&mine);
        assert!(matches!(tried(), Turn::TimedOut), "the head has the lock");
        queues.end_hold(&mine);
        assert!(matches!(turn(&queues, &second), Turn::Head(_)));
        assert!(matches!(tried(), Turn::Look), "the next head has no answer yet");
    }

    fn unanswered() -> Failure {
        Failure::too_late(&Arc::from("the server"), "test")
    }

    /// The race of the deadline with the handoff: the lock is never lost and never held twice.
    #[test]
    fn short_waits_and_handoffs_lose_nothing() {
        let queues = WaitQueues::default();
        let inside = AtomicBool::new(false);
        let enter = |hold: &Arc<Hold>| {
            assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
            thread::yield_now();
            inside.store(false, Ordering::SeqCst);
            if let Ending::Released { is_awaited } = queues.end(hold, true, || ()) {
                queues.settle_release(&hold.id, || true);
                if is_awaited {
                    queues.end_hold(hold);
                }
            }
        };
        thread::scope(|scope| {
            for thread in 0..8 {
                let (queues, enter) = (&queues, &enter);
                scope.spawn(move || {
                    for round in 0..500_u64 {
                        let (waiter, first) = join(queues);
                        let wait = Duration::from_micros(round * 7 % 100 + thread);
                        let turn = if first {
                            Turn::Head(Arrival::Next)
                        } else {
                            turn_within(queues, &waiter, wait)
                        };
                        match turn {
                            Turn::HandedOff(hold) => enter(&hold),
                            Turn::Head(_) => {
                                let hold = new_hold();
                                queues.set_acquired(&hold);
                                enter(&hold);
                            }
                            _ => {}
                        }
                    }
                });
            }
        });
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_wake_up_reaches_the_head_that_acquires_and_no_other_thread() {
        let (queues, store) = (WaitQueues::default(), Memory::default());
        let [head, second, _] = three(&queues);
        for _ in 0..100 {
            assert!(queues.wake(HoldKind::Lock, "x", &store));
            queues.wake_all(&store);
        }
        head.sleep(SOON, Some(&request())).expect("open");
        assert!(head.is_empty(), "one signal is as good as many");
        assert!(second.is_empty());
        assert!(!queues.wake(HoldKind::Lock, "y", &store));
        queues.set_acquired(&new_hold());
        assert!(!queues.wake(HoldKind::Lock, "x", &store));
    }

    #[test]
    fn close_ends_every_wait_and_turns_away_those_who_come() {
        let queues = WaitQueues::default();
        let [head, second, third] = three(&queues);
        queues.close();
        assert!(matches!(head.sleep(SOON, Some(&request())), Err(Error::Closed)));
        for waiter in [second, third] {
            assert!(matches!(turn::wait(&queues, &waiter, Wait::Endless), Err(Error::Closed)));
        }
        assert!(matches!(join_at(&queues, true, false), Err(Error::Closed)));
        queues.give_up_head(&id(HoldKind::Lock), None);
        assert!(is_empty(&queues));
    }
}
