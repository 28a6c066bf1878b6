//! The wait queues of a client, by the name of the lock: first come, first served. Only the thread
//! at the head of a queue uses the store; the others sleep.
//!
//! Decides which thread is the head, and signals it. Knows nothing of Redis: what the head does
//! is decided in `acquire.rs` and `release.rs`.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::base::canceller::Canceller;
use crate::base::clock::end_of;
use crate::base::shrink;
use crate::base::sync::{AtomicBool, Condvar, Mutex, MutexGuard, wait_while};
use crate::error::{Error, Result};
use crate::local::call::{Caller, Wait};
use crate::local::hold::Hold;
use crate::local::wait_queue::{Ending, Head, WaitQueue};
use crate::local::waiter::{Signal, WaitEnd, Waiter};
use crate::store::hold_id::{HoldId, HoldKind};

/// Threads that want different locks should rarely meet here.
const SHARDS: usize = 16;

/// After this many recalls in a row a lock is not kept for a while.
const RECALLS_MAX: u32 = 3;

/// That long. The next recall after it makes it as long again.
const RECALL_PAUSE: Duration = Duration::from_secs(1);

/// What was not recalled for this long is forgotten.
const RECALL_MEMORY: Duration = Duration::from_secs(10);

/// How long servers keep the place of a waiting client that was found without a listener.
const PLACES_ARE_KEPT: Duration = Duration::from_secs(2);

/// The most locks that are remembered. More are kept as if they were never recalled.
const RECALLED_MAX: usize = 1024;

/// Queues that share a lock. There is one for a name while a thread is at its head, the lock is
/// kept, or a release is not confirmed.
type Shard = HashMap<Arc<str>, WaitQueue>;

#[derive(Default)]
pub(crate) struct WaitQueues {
    hasher: RandomState,
    /// Those for locks, and those for what can be shared: threads that want a name as different
    /// things do not wait for each other.
    shards: [[Mutex<Shard>; SHARDS]; 2],
    /// Set before the waiters are signalled, and read under a shard's lock before one is added.
    pub(super) closed: AtomicBool,
    /// Whether messages of other clients arrive, so that locks may be kept.
    listening: AtomicBool,
    /// When messages ceased to arrive, or arrived again after that.
    interrupted: parking_lot::Mutex<Option<Instant>>,
    /// The locks of this client that others have asked for, and that it had kept for nothing.
    recalled: parking_lot::Mutex<HashMap<Arc<str>, Recalled>>,
    /// Where threads sleep that are in no queue, and whether it has been tried to listen.
    sleepers: Mutex<bool>,
    /// The client was closed, or listens now.
    changed: Condvar,
}

/// How often other clients have asked for a lock that was kept for nothing.
struct Recalled {
    in_a_row: u32,
    last: Instant,
}

impl WaitQueues {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Lets the threads that sleep outside the queues check what they sleep for.
    fn wake_sleepers(&self) {
        // A thread that has checked that a moment ago sleeps now.
        drop(self.sleepers.lock());
        self.changed.notify_all();
    }

    /// Turns away the threads that wait and those that come.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.wake_sleepers();
        self.each(|_, queue| {
            queue.threads().for_each(|waiter| waiter.send(Signal::Ended(Error::Closed)));
        });
    }

    /// Joins the queue of a lock, for a hold of it. Returns how the wait has ended if the
    /// thread is the head.
    pub(crate) fn join(
        &self,
        hold: HoldId,
        caller: &Caller,
        rejoins: bool,
    ) -> Result<(Arc<Waiter>, Option<WaitEnd>)> {
        let waiter = Arc::new(Waiter::new(hold, caller));
        let end = self
            .with(&waiter.hold, |queue| self.check_open().map(|()| queue.join(&waiter, rejoins)))?;
        Ok((waiter, end))
    }

    /// Blocks until it is the turn of a thread behind the head, or its time is over.
    ///
    /// # Errors
    ///
    /// `Closed` if the client is closed, `Cancelled` if the wait is.
    pub(crate) fn wait(&self, waiter: &Waiter, wait: Wait) -> Result<WaitEnd> {
        let mut end = if wait == Wait::No { Some(Instant::now()) } else { wait.deadline() };
        loop {
            match waiter.receive(end) {
                Some(Signal::WaitEnd(end)) => return Ok(end),
                Some(Signal::Ended(error)) if self.remove(waiter) => return Err(error),
                // Meant for the head, which this thread is not; or it has its turn already.
                Some(_) => {}
                None => match self.with(&waiter.hold, |queue| queue.time_out(waiter, wait)) {
                    Some(end) => return Ok(end),
                    // It has been signalled something.
                    None => end = None,
                },
            }
        }
    }

    /// Returns what is known now to a thread that has left the queue because its time was over;
    /// `None` if there is no head that it must not overtake.
    pub(crate) fn known_to(&self, waiter: &Waiter) -> Option<WaitEnd> {
        let shard = self.shard(waiter.hold.kind, &waiter.hold.name);
        let queue = shard.get(&waiter.hold.name)?;
        let has_head = matches!(queue.head, Head::Acquiring(_) | Head::Held(_));
        has_head.then(|| queue.known_to(waiter, Wait::Until(waiter.caller.begin)))
    }

    /// Returns `true` if the thread is the head, and acquires the lock.
    pub(super) fn is_acquiring(&self, thread: &Waiter) -> bool {
        let shard = self.shard(thread.hold.kind, &thread.hold.name);
        shard.get(&thread.hold.name).is_some_and(|queue| queue.is_acquiring(thread))
    }

    /// Removes a waiter. Returns `false` if it has become the head or was signalled.
    pub(super) fn remove(&self, waiter: &Waiter) -> bool {
        self.with(&waiter.hold, |queue| queue.remove(waiter))
    }

    /// Returns the hold of the head if it has one.
    pub(crate) fn holder(&self, kind: HoldKind, name: &str) -> Option<Arc<Hold>> {
        self.shard(kind, name).get(name)?.holder().cloned()
    }

    /// Begins a hold of a lock that was acquired from the store, at the head if that has acquired
    /// it. Returns the holds before it whose release was not confirmed: they have ended.
    pub(crate) fn begin_hold(&self, hold: &Arc<Hold>, head: Option<&Waiter>) -> Vec<Arc<Hold>> {
        self.with(&hold.id, |queue| queue.begin_hold(hold, head))
    }

    /// Returns the holds whose release is not confirmed.
    pub(crate) fn released(&self, kind: HoldKind, name: &str) -> Vec<Arc<Hold>> {
        let shard = self.shard(kind, name);
        shard.get(name).map(|queue| queue.released.clone()).unwrap_or_default()
    }

    /// Remembers a hold that no thread has, and that may exist in the store until the renewer has
    /// released it.
    pub(crate) fn add_released(&self, hold: Arc<Hold>) {
        self.with(&hold.id.clone(), |queue| queue.released.push(hold));
    }

    /// Lets `report` tell how a release has gone, and forgets the hold if that returns `true`: it
    /// does not exist any more. So a thread that acquires the lock next finds the hold here, or
    /// comes after the report.
    pub(crate) fn settle_release(&self, hold: &HoldId, report: impl FnOnce() -> bool) {
        self.with(hold, |queue| {
            if report() {
                queue.released.retain(|released| released.id != *hold);
            }
        });
    }

    /// Removes the head if it gives up without the lock. Returns what the thread wants that is at
    /// the head then.
    pub(crate) fn give_up_head(&self, head: &Waiter) -> Option<HoldKind> {
        self.with(&head.hold, |queue| if queue.is_acquiring(head) { queue.advance() } else { None })
    }

    /// Removes the head if this is its hold, which was released or lost.
    pub(crate) fn end_hold(&self, hold: &Hold) {
        self.with(&hold.id, |queue| {
            if queue.is_held_by(hold) {
                queue.advance();
            }
        });
    }

    /// Ends a hold. If it `hands_off`, the first waiter gets the next hold of the tenure, if it can
    /// have it, or the lock is kept: `report` tells of the hold that ends, before another thread
    /// can tell of its own, or returns `false` if it was lost. Else the hold is remembered, because
    /// its release is to be sent now.
    pub(crate) fn end(
        &self,
        hold: &Arc<Hold>,
        hands_off: bool,
        report: impl FnMut() -> bool,
    ) -> Ending {
        self.with(&hold.id, |queue| {
            let may_keep = self.is_listening() && self.check_open().is_ok();
            queue.end(hold, hands_off, may_keep, report)
        })
    }

    /// Sets whether messages of other clients arrive.
    pub(crate) fn set_listening(&self, listening: bool) {
        let listened = self.listening.swap(listening, Ordering::SeqCst);
        let mut interrupted = self.interrupted.lock();
        if listened || listening && interrupted.is_some() {
            *interrupted = Some(Instant::now());
        }
        drop(interrupted);
        *self.sleepers.lock() = true;
        self.changed.notify_all();
    }

    /// Returns `true` if messages of other clients may have been missed a moment ago: for that long
    /// servers keep the places of clients that do not listen again yet.
    pub(crate) fn has_missed_messages(&self) -> bool {
        self.interrupted.lock().is_some_and(|at| at.elapsed() < PLACES_ARE_KEPT)
    }

    /// Blocks until the first attempt to receive messages has succeeded or failed, at most until
    /// the deadline or `close`: so that the first lock can be kept already.
    pub(crate) fn wait_to_listen(&self, deadline: Instant) {
        wait_while(&self.changed, &mut self.sleepers.lock(), Some(deadline), |has_tried| {
            !has_tried && self.check_open().is_ok()
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
            self.record_recall(&hold.id.name, hold.reused.load(Ordering::Relaxed));
        }
        if waits {
            queue.set_wanted(nonce);
        }
        queue.end_kept(|kept| kept.id.nonce == nonce)
    }

    /// Records that another client has asked for a lock, and whether a thread of this one had used
    /// it again after it was kept.
    fn record_recall(&self, name: &Arc<str>, was_of_use: bool) {
        let (mut recalled, now) = (self.recalled.lock(), Instant::now());
        recalled.retain(|known, recalled| {
            now < recalled.last + RECALL_MEMORY && !(was_of_use && known == name)
        });
        if !was_of_use && (recalled.len() < RECALLED_MAX || recalled.contains_key(name)) {
            let new = || Recalled { in_a_row: 0, last: now };
            let recalled = recalled.entry(name.clone()).or_insert_with(new);
            (recalled.in_a_row, recalled.last) = (recalled.in_a_row.saturating_add(1), now);
        }
    }

    /// Returns `true` if a lock may be kept after its next hold: other clients can ask for it, and
    /// have not done so again and again a moment ago.
    pub(crate) fn may_keep(&self, name: &str) -> bool {
        let is_too_often =
            |it: &Recalled| it.in_a_row >= RECALLS_MAX && it.last.elapsed() < RECALL_PAUSE;
        self.is_listening() && !self.recalled.lock().get(name).is_some_and(is_too_often)
    }

    /// Ends the tenure of a name if it is kept and the one that is meant, and returns it to be
    /// released.
    pub(crate) fn end_kept(
        &self,
        name: &str,
        is_meant: impl FnOnce(&Hold) -> bool,
    ) -> Option<Arc<Hold>> {
        self.shard(HoldKind::Lock, name).get_mut(name)?.end_kept(is_meant)
    }

    /// Ends every tenure that is kept, and returns them to be released.
    pub(crate) fn end_all_kept(&self) -> Vec<Arc<Hold>> {
        let mut ended = Vec::new();
        self.each(|_, queue| ended.extend(queue.end_kept(|_| true)));
        ended
    }

    /// Returns how many locks are kept.
    pub(crate) fn count_kept(&self) -> usize {
        let mut count = 0;
        self.each(|_, queue| count += usize::from(queue.kept().is_some()));
        count
    }

    /// Signals the head that the lock may be free. Returns `false` if no head acquires this lock.
    pub(crate) fn wake(&self, kind: HoldKind, name: &str) -> bool {
        self.shard(kind, name).get(name).is_some_and(WaitQueue::wake)
    }

    /// As `wake`, whatever heads of that name want.
    pub(crate) fn wake_any(&self, name: &str) -> bool {
        self.wake(HoldKind::Read, name) | self.wake(HoldKind::Lock, name)
    }

    pub(super) fn each(&self, mut act: impl FnMut(&Arc<str>, &mut WaitQueue)) {
        for shard in self.shards.as_flattened() {
            shard.lock().iter_mut().for_each(|(name, queue)| act(name, queue));
        }
    }

    /// Has the queue do something in which a hold is, or comes to be. It is there only as long as
    /// it is of use.
    pub(super) fn with<T>(&self, hold: &HoldId, act: impl FnOnce(&mut WaitQueue) -> T) -> T {
        let mut shard = self.shard(hold.kind, &hold.name);
        let queue = shard.entry(hold.name.clone()).or_insert(WaitQueue::NEW);
        let result = act(queue);
        if matches!(queue.head, Head::None) && queue.released.is_empty() {
            shard.remove(&hold.name);
            shrink(&mut shard);
        }
        result
    }

    fn shard(&self, kind: HoldKind, name: &str) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(name);
        let shards = &self.shards[usize::from(!matches!(kind, HoldKind::Lock))];
        shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)].lock()
    }
}

/// The pauses of one call between its requests. Each ends at once when the client is closed during
/// the call, or the call is cancelled.
pub(super) struct Pauses<'a> {
    queues: &'a Arc<WaitQueues>,
    canceller: Option<&'a Canceller>,
    /// The guards of a closed client go on, with calls that pause as before.
    was_closed: bool,
}

impl<'a> Pauses<'a> {
    /// Those of a call for a lock, which has found the client open.
    pub(super) fn of_wait(queues: &'a Arc<WaitQueues>, canceller: Option<&'a Canceller>) -> Self {
        Self { queues, canceller, was_closed: false }
    }

    /// Those of another call, which begins now.
    pub(super) fn of_request(queues: &'a Arc<WaitQueues>) -> Self {
        Self { queues, canceller: None, was_closed: queues.check_open().is_err() }
    }

    /// Sleeps for this time, unless the call is to end.
    ///
    /// # Errors
    ///
    /// The same as `check`.
    pub(super) fn sleep(&self, time: Duration, name: &str) -> Result<()> {
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let _watch = self.canceller.map(|canceller| {
            let (queues, is_cancelled) = (self.queues.clone(), is_cancelled.clone());
            canceller.watch(move || {
                is_cancelled.store(true, Ordering::SeqCst);
                queues.wake_sleepers();
            })
        });
        let WaitQueues { sleepers, changed, closed, .. } = &**self.queues;
        // No lock of the canceller here: it takes that of the sleepers under its own.
        let goes_on = |_: &bool| {
            let is_closed = !self.was_closed && closed.load(Ordering::SeqCst);
            !is_closed && !is_cancelled.load(Ordering::SeqCst)
        };
        wait_while(changed, &mut sleepers.lock(), Some(end_of(time)), goes_on);
        self.check(name)
    }

    /// Returns `Closed` if the client was closed during the call, and `Cancelled` if the call was
    /// cancelled.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        if !self.was_closed {
            self.queues.check_open()?;
        }
        self.canceller.map_or(Ok(()), |canceller| canceller.check(name))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::base::clock::{Moment, end_of};
    use crate::base::failure::Failure;
    use crate::config::LockOptions;
    use crate::local::reporter::Reporter;
    use crate::local::waiter::HeadAnswer;
    use crate::local::{call, head_requests};
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
        call::tests::caller(options)
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
    ) -> Result<(Arc<Waiter>, Option<WaitEnd>)> {
        let wait = if endless { Wait::Endless } else { Wait::No };
        queues.join(id(HoldKind::Lock), &Caller { wait, ..caller() }, rejoins)
    }

    impl WaitQueues {
        /// Locks all queues, as threads do that a fork leaves behind.
        pub(in crate::local) fn lock_all(&self) -> impl Sized {
            self.shards.as_flattened().iter().map(Mutex::lock).collect::<Vec<_>>()
        }
    }

    /// Returns the head that acquires a lock.
    pub(in crate::local) fn head(
        queues: &WaitQueues,
        kind: HoldKind,
        name: &str,
    ) -> Option<Arc<Waiter>> {
        let shard = queues.shard(kind, name);
        let Head::Acquiring(head) = &shard.get(name)?.head else { return None };
        Some(head.clone())
    }

    fn followers(queues: &WaitQueues, kind: HoldKind) -> (bool, Vec<Arc<Waiter>>) {
        queues.with(&id(kind), |queue| head_requests::followers_of_head(queue))
    }

    fn failed(failure: &Failure) -> HeadAnswer {
        HeadAnswer::Failed(failure.clone(), Instant::now())
    }

    /// Gives the head a hold that it has acquired.
    fn acquire(queues: &WaitQueues, hold: &Arc<Hold>) -> Vec<Arc<Hold>> {
        queues.begin_hold(hold, head(queues, hold.id.kind, &hold.id.name).as_deref())
    }

    /// Has the head give up.
    fn give_up(queues: &WaitQueues, kind: HoldKind) -> Option<HoldKind> {
        queues.give_up_head(&head(queues, kind, &name()).expect("a head"))
    }

    /// A queue with a head and two waiters.
    fn three(queues: &WaitQueues) -> [Arc<Waiter>; 3] {
        let (head, first) = join(queues);
        assert!(first);
        let [second, third] = [join(queues), join(queues)];
        assert!(!second.1 && !third.1);
        [head, second.0, third.0]
    }

    fn wait_end(queues: &WaitQueues, waiter: &Waiter) -> WaitEnd {
        wait_end_within(queues, waiter, SOON)
    }

    fn wait_end_within(queues: &WaitQueues, waiter: &Waiter, time: Duration) -> WaitEnd {
        queues.wait(waiter, Wait::Until(end_of(time))).expect("open")
    }

    fn is_empty(queues: &WaitQueues) -> bool {
        queues.shards.as_flattened().iter().all(|shard| shard.lock().is_empty())
    }

    #[test]
    fn the_waiters_become_the_head_in_the_order_in_which_they_came() {
        let queues = WaitQueues::default();
        let [_, second, third] = three(&queues);
        give_up(&queues, HoldKind::Lock);
        assert!(matches!(wait_end(&queues, &second), WaitEnd::Head { .. }));
        assert!(third.is_empty());
        give_up(&queues, HoldKind::Lock);
        assert!(matches!(wait_end(&queues, &third), WaitEnd::Head { .. }));
        give_up(&queues, HoldKind::Lock);
        assert!(is_empty(&queues));
    }

    /// Joins the queue for reading or for writing.
    fn join_for(queues: &WaitQueues, kind: HoldKind) -> Arc<Waiter> {
        join_for_a_lease(queues, kind, LockOptions::default().lease)
    }

    fn join_for_a_lease(queues: &WaitQueues, kind: HoldKind, lease: Duration) -> Arc<Waiter> {
        let options = LockOptions { lease, ..LockOptions::default() };
        queues.join(id(kind), &call::tests::caller(&options), false).expect("open").0
    }

    #[test]
    fn the_head_asks_for_its_neighbours_that_want_the_same() {
        use HoldKind::{Lock, Permit, Read, Write};
        let asked = |kinds: &[HoldKind]| {
            let queues = WaitQueues::default();
            let _head = join_for(&queues, kinds[0]);
            let waiters: Vec<_> = kinds[1..].iter().map(|kind| join_for(&queues, *kind)).collect();
            let (exist, alike) = followers(&queues, kinds[0]);
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
        let (_, alike) = followers(&queues, Read);
        assert!(alike.is_empty(), "one request has one lease");
        acquire(&queues, &Arc::new(Hold::new(id(Read), 1, 0, &caller(), Moment::now())));
        assert!(head(&queues, Read, &name()).is_none(), "the head asks for nothing");
    }

    #[test]
    fn only_who_still_waits_gets_what_the_head_has_asked_for() {
        let queues = WaitQueues::default();
        let _head = join_for(&queues, HoldKind::Read);
        let waiters = [(); 3].map(|()| join_for(&queues, HoldKind::Read));
        let [first, second, third] = &waiters;
        assert!(queues.remove(second));
        let wait = waiters
            .each_ref()
            .map(|waiter| queues.with(&waiter.hold, |queue| queue.mark_in_doubt(waiter)));
        assert_eq!(wait, [true, false, true]);
        assert_eq!(waiters.each_ref().map(|waiter| waiter.in_doubt.load(Ordering::Relaxed)), wait);
        assert!(queues.remove(first), "its hold is handed out");
        assert!(!queues.remove(first), "its time cannot end now");
        give_up(&queues, HoldKind::Read);
        assert!(matches!(wait_end(&queues, third), WaitEnd::Head { .. }));
        give_up(&queues, HoldKind::Read);
        assert!(is_empty(&queues));
    }

    #[test]
    fn who_has_lost_its_hold_on_the_way_goes_before_those_who_came_later() {
        let queues = WaitQueues::default();
        let [_, later, _] = three(&queues);
        let (first, _) = join_at(&queues, false, true).expect("open");
        give_up(&queues, HoldKind::Lock);
        assert!(matches!(wait_end(&queues, &first), WaitEnd::Head { .. }) && later.is_empty());
    }

    #[test]
    fn a_lock_is_handed_off_to_the_first_waiter() {
        let queues = WaitQueues::default();
        let [_, second, third] = three(&queues);
        let mine = new_hold();
        acquire(&queues, &mine);
        let report = || {
            assert!(second.is_empty(), "not told yet");
            true
        };
        assert_eq!(queues.end(&mine, true, report), Ending::HandedOff);
        let got = wait_end(&queues, &second);
        assert!(matches!(got, WaitEnd::HandedOff(next) if Arc::ptr_eq(&next, &mine)));
        assert!(mine.fence() == 2 && third.is_empty());
        assert!(
            queues
                .holder(HoldKind::Lock, &name())
                .is_some_and(|holder| Arc::ptr_eq(&holder, &mine))
        );
        queues.end(&mine, false, || panic!("an unlock hands nothing off"));
        assert!(third.is_empty(), "the release was not sent");
        queues.end_hold(&mine);
        assert!(matches!(wait_end(&queues, &third), WaitEnd::Head { .. }));
        queues.settle_release(&mine.id, || true);
        give_up(&queues, HoldKind::Lock);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_tenure_ends_with_its_time_its_tokens_and_what_was_asked_for() {
        let follows = |hold: &Hold, options: LockOptions| {
            hold.may_be_followed_by(
                &caller_with(&LockOptions { tenure: Some(SOON), ..options }),
                true,
            )
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
        assert!(!new_hold().may_be_followed_by(&caller_with(&zero), true));
        let hold = new_hold();
        hold.in_doubt.store(true, Ordering::Relaxed);
        assert!(!follows(&hold, same()), "in doubt");
        let hold = new_hold();
        assert!(hold.lease.lose() && !follows(&hold, same()), "lost");
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
        Reporter::default().lose(&hold);
        assert!(next.try_recv().is_err_and(|error| error.is_disconnected()));
        assert!(!hold.is_lost_with(fence) && hold.is_lost_with(fence + 1));
    }

    #[test]
    fn a_waiter_whose_time_is_over_leaves_nothing() {
        let queues = WaitQueues::default();
        let [_, second, third] = three(&queues);
        let mine = new_hold();
        acquire(&queues, &mine);
        assert!(matches!(wait_end_within(&queues, &second, Duration::ZERO), WaitEnd::TimedOut));
        assert_eq!(queues.end(&mine, true, || true), Ending::HandedOff);
        assert!(second.is_empty());
        assert!(matches!(wait_end(&queues, &third), WaitEnd::HandedOff(_)));
        queues.end_hold(&mine);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_lock_that_was_handed_off_is_not_lost_to_a_deadline() {
        let queues = WaitQueues::default();
        let [_, second, _] = three(&queues);
        let mine = new_hold();
        acquire(&queues, &mine);
        assert_eq!(queues.end(&mine, true, || true), Ending::HandedOff);
        let got = wait_end_within(&queues, &second, Duration::ZERO);
        assert!(matches!(got, WaitEnd::HandedOff(_)));
    }

    #[test]
    fn a_hold_whose_release_is_not_confirmed_is_remembered() {
        let queues = WaitQueues::default();
        join(&queues);
        let (mine, next) = (new_hold(), new_hold());
        acquire(&queues, &mine);
        assert_eq!(queues.end(&mine, true, || true), Ending::Released { is_awaited: false });
        for _ in 0..2 {
            let joined = join_at(&queues, false, false).expect("open");
            assert!(matches!(joined.1, Some(WaitEnd::Head { after_release: true, .. })));
            assert!(Arc::ptr_eq(&queues.released(HoldKind::Lock, &name())[0], &mine));
            give_up(&queues, HoldKind::Lock);
        }
        let (_, first) = join(&queues);
        assert!(first);
        let ended = acquire(&queues, &next);
        assert!(ended.len() == 1 && queues.released(HoldKind::Lock, &name()).is_empty());
        queues.settle_release(&mine.id, || true);
        queues.end_hold(&next);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_release_leaves_the_queue_to_the_first_waiter() {
        let queues = WaitQueues::default();
        let [_, second, third] = three(&queues);
        let mine = new_hold();
        acquire(&queues, &mine);
        assert_eq!(queues.end(&mine, false, || true), Ending::Released { is_awaited: true });
        assert!(second.is_empty(), "it is not sent yet");
        queues.end_hold(&mine);
        assert!(matches!(wait_end(&queues, &second), WaitEnd::Head { .. }));
        // A hold that was acquired outside the queue.
        let outside = new_hold();
        assert_eq!(queues.end(&outside, true, || true), Ending::Released { is_awaited: true });
        queues.end_hold(&outside);
        assert!(third.is_empty());
        queues.settle_release(&mine.id, || true);
        give_up(&queues, HoldKind::Lock);
        give_up(&queues, HoldKind::Lock);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_lost_hold_makes_the_first_waiter_the_head() {
        let queues = Arc::new(WaitQueues::default());
        let [_, second, _] = three(&queues);
        let mine = new_hold();
        acquire(&queues, &mine);
        Reporter { wait_queues: queues.clone(), ..Reporter::default() }.lose(&mine);
        assert!(matches!(wait_end(&queues, &second), WaitEnd::Head { .. }));
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
        *head.answer.lock() = failed(&failure);
        // What the head learned before this thread came says nothing about now.
        let late = wait_end_within(&queues, &join(&queues).0, Duration::ZERO);
        assert!(matches!(late, WaitEnd::Look), "{late:?}");
        queues.with(&head.hold, |queue| queue.fail_endless(&head, &failure));
        give_up(&queues, HoldKind::Lock);
        assert!(matches!(wait_end(&queues, &endless), WaitEnd::Failed(_)));
        assert!(matches!(wait_end(&queues, &limited), WaitEnd::Head { .. }));
    }

    /// What becomes of a waiter whose time is over after `learn`.
    fn time_out_after(queues: &WaitQueues, learn: impl FnOnce()) -> Option<WaitEnd> {
        let (waiter, first) = join(queues);
        assert!(!first);
        learn();
        time_out(queues, &waiter, Wait::Endless)
    }

    fn time_out(queues: &WaitQueues, waiter: &Waiter, wait: Wait) -> Option<WaitEnd> {
        queues.with(&waiter.hold, |queue| queue.time_out(waiter, wait))
    }

    #[test]
    fn a_waiter_whose_time_is_over_learns_what_the_head_has_learned_since() {
        let queues = WaitQueues::default();
        let (head, _) = join(&queues);
        let outside = Waiter::new(id(HoldKind::Lock), &caller());
        let failure = unanswered();
        let unknown = |learn: &dyn Fn()| {
            assert!(matches!(time_out_after(&queues, learn), Some(WaitEnd::Look)));
        };
        unknown(&|| ());
        unknown(&|| *outside.answer.lock() = HeadAnswer::Held(Instant::now()));
        let contended =
            time_out_after(&queues, || *head.answer.lock() = HeadAnswer::Held(Instant::now()));
        assert!(matches!(contended, Some(WaitEnd::TimedOut)), "{contended:?}");
        unknown(&|| ());
        unknown(&|| {
            *head.answer.lock() = HeadAnswer::Held(Instant::now());
            head.set_pending();
        });
        let failed = time_out_after(&queues, || *head.answer.lock() = failed(&failure));
        assert!(matches!(failed, Some(WaitEnd::Failed(_))), "{failed:?}");
        unknown(&|| ());
        let hold = new_hold();
        let acquired = time_out_after(&queues, || drop(acquire(&queues, &hold)));
        assert!(matches!(acquired, Some(WaitEnd::TimedOut)), "{acquired:?}");
        let left = time_out_after(&queues, || queues.end_hold(&hold));
        assert!(left.is_none(), "{left:?}");
        give_up(&queues, HoldKind::Lock);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_waiter_behind_a_hold_that_ends_asks_by_itself_if_nobody_else_waits() {
        let queues = WaitQueues::default();
        let [_, second, third] = three(&queues);
        let mine = new_hold();
        acquire(&queues, &mine);
        assert_eq!(queues.end(&mine, false, || true), Ending::Released { is_awaited: true });
        assert!(matches!(time_out(&queues, &third, Wait::No), Some(WaitEnd::Look)));
        assert!(matches!(time_out(&queues, &second, Wait::No), Some(WaitEnd::Outside)));
    }

    #[test]
    fn a_reader_whose_time_is_over_asks_by_itself() {
        let queues = WaitQueues::default();
        let head = join_for(&queues, HoldKind::Read);
        let second = join_for(&queues, HoldKind::Read);
        *head.answer.lock() = HeadAnswer::Held(Instant::now());
        let third = join_for(&queues, HoldKind::Read);
        assert!(matches!(time_out(&queues, &second, Wait::No), Some(WaitEnd::Outside)));
        assert!(matches!(time_out(&queues, &third, Wait::Endless), Some(WaitEnd::Outside)));
    }

    #[test]
    fn a_thread_that_does_not_wait_is_refused_what_the_head_waits_for_or_has() {
        let queues = WaitQueues::default();
        let [head, second, _] = three(&queues);
        let tried = || queues.wait(&join(&queues).0, Wait::No).expect("open");
        assert!(matches!(tried(), WaitEnd::Look), "the head has no answer yet");
        *head.answer.lock() = HeadAnswer::Held(Instant::now());
        assert!(matches!(tried(), WaitEnd::TimedOut), "the head waits");
        head.set_pending();
        assert!(matches!(tried(), WaitEnd::Look), "the head asks again");
        *head.answer.lock() = failed(&unanswered());
        assert!(matches!(tried(), WaitEnd::Look), "the server may be back");
        let mine = new_hold();
        acquire(&queues, &mine);
        assert!(matches!(tried(), WaitEnd::TimedOut), "the head has the lock");
        queues.end_hold(&mine);
        assert!(matches!(wait_end(&queues, &second), WaitEnd::Head { .. }));
        assert!(matches!(tried(), WaitEnd::Look), "the next head has no answer yet");
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
            if let Ending::Released { is_awaited } = queues.end(hold, true, || true) {
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
                        let (waiter, end) = join_at(queues, false, false).expect("open");
                        let wait = Duration::from_micros(round * 7 % 100 + thread);
                        match end.unwrap_or_else(|| wait_end_within(queues, &waiter, wait)) {
                            WaitEnd::HandedOff(hold) => enter(&hold),
                            WaitEnd::Head { .. } => {
                                let hold = new_hold();
                                acquire(queues, &hold);
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
        let queues = WaitQueues::default();
        let [head, second, _] = three(&queues);
        for _ in 0..100 {
            assert!(queues.wake_any("x"));
            queues.each(|_, queue| {
                queue.wake();
            });
        }
        head.sleep(SOON).expect("open");
        assert!(head.is_empty(), "one signal is as good as many");
        assert!(second.is_empty());
        assert!(!queues.wake_any("y"));
        acquire(&queues, &new_hold());
        assert!(!queues.wake_any("x"));
    }

    #[test]
    fn a_wish_that_overtakes_the_reply_is_kept_whatever_comes_late() {
        let queues = WaitQueues::default();
        let (head, _) = join(&queues);
        for nonce in [1, 7] {
            assert!(queues.recall("x", nonce, true).is_none());
        }
        let mine = new_hold();
        queues.begin_hold(&mine, Some(&head));
        assert!(mine.id.nonce == 1 && mine.is_wanted());
    }

    #[test]
    fn close_ends_every_wait_and_turns_away_those_who_come() {
        let queues = WaitQueues::default();
        let [head, second, third] = three(&queues);
        queues.close();
        assert!(matches!(head.sleep(SOON), Err(Error::Closed)));
        for waiter in [second, third] {
            assert!(matches!(queues.wait(&waiter, Wait::Endless), Err(Error::Closed)));
        }
        assert!(matches!(join_at(&queues, true, false), Err(Error::Closed)));
        give_up(&queues, HoldKind::Lock);
        assert!(is_empty(&queues));
    }

    #[test]
    fn a_lock_that_is_recalled_again_and_again_is_not_kept_for_a_while() {
        let (queues, name) = (WaitQueues::default(), Arc::from("a"));
        queues.set_listening(true);
        for _ in 0..RECALLS_MAX {
            assert!(queues.may_keep("a"));
            queues.record_recall(&name, false);
        }
        assert!(!queues.may_keep("a") && queues.may_keep("b"));
        queues.record_recall(&name, true);
        assert!(queues.may_keep("a"));
    }

    #[test]
    fn not_all_locks_are_remembered() {
        let queues = WaitQueues::default();
        for number in 0..RECALLED_MAX * 2 {
            queues.record_recall(&Arc::from(number.to_string()), false);
        }
        assert_eq!(queues.recalled.lock().len(), RECALLED_MAX);
    }

    fn keeping() -> LockOptions {
        LockOptions { keep: SOON, tenure: Some(SOON), ..LockOptions::default() }
    }

    /// Queues of which one has kept a lock after this hold, which another may follow.
    fn keep() -> (WaitQueues, Arc<Hold>) {
        let (queues, caller) = (WaitQueues::default(), caller_with(&keeping()));
        queues.set_listening(true);
        let id = id(HoldKind::Lock).that_may_be_kept();
        let hold = Arc::new(Hold::new(id, 1, 1, &caller, Moment::now()));
        join(&queues);
        acquire(&queues, &hold);
        let mut told = false;
        let report = || {
            told = true;
            told
        };
        assert_eq!(queues.end(&hold, true, report), Ending::Kept);
        assert!(told && queues.count_kept() == 1);
        (queues, hold)
    }

    fn join_kept(queues: &WaitQueues) -> Option<WaitEnd> {
        queues.join(id(HoldKind::Lock), &caller_with(&keeping()), false).expect("open").1
    }

    fn is_released(queues: &WaitQueues, hold: &Arc<Hold>) -> bool {
        let released = queues.released(HoldKind::Lock, &name());
        queues.count_kept() == 0 && released.iter().any(|it| Arc::ptr_eq(it, hold))
    }

    #[test]
    fn a_kept_lock_goes_to_the_next_thread_that_comes() {
        let (queues, hold) = keep();
        assert!(queues.holder(HoldKind::Lock, &name()).is_none(), "no thread has it");
        assert!(
            matches!(join_kept(&queues), Some(WaitEnd::Kept(kept)) if Arc::ptr_eq(&kept, &hold))
        );
        assert!(hold.begin_kept(&caller_with(&keeping())) && queues.count_kept() == 0);
        assert!(queues.holder(HoldKind::Lock, &name()).is_some());
        // It is kept again, but has no token for one more.
        assert_eq!(queues.end(&hold, true, || true), Ending::Kept);
        let end = join_kept(&queues);
        assert!(
            matches!(&end, Some(WaitEnd::Head { kept: Some(kept), is_next: false, .. })
                if Arc::ptr_eq(kept, &hold)),
            "{end:?}"
        );
        assert_eq!(queues.count_kept(), 0);
    }

    #[test]
    fn a_lock_is_not_kept_where_others_cannot_ask_for_it_or_do_already() {
        let end = |happen: fn(&WaitQueues, &Arc<Hold>), hands_off| {
            let (queues, hold) = keep();
            join_kept(&queues);
            assert!(hold.begin_kept(&caller_with(&keeping())));
            happen(&queues, &hold);
            (queues.end(&hold, hands_off, || true), queues.count_kept())
        };
        let released = (Ending::Released { is_awaited: false }, 0);
        assert_eq!(end(|_, _| (), true), (Ending::Kept, 1));
        assert_eq!(end(|_, _| (), false), released);
        assert_eq!(end(|queues, _| queues.set_listening(false), true), released);
        assert_eq!(end(|queues, _| queues.close(), true), released);
        assert_eq!(end(|_, hold| hold.set_wanted(), true), released);
        assert_eq!(end(|_, hold| assert!(hold.lease.lose()), true), (Ending::Lost, 0));
    }

    #[test]
    fn a_kept_lock_that_another_client_asks_for_is_released() {
        for waits in [false, true] {
            let (queues, hold) = keep();
            assert!(queues.recall("y", hold.id.nonce, waits).is_none());
            assert!(queues.recall("x", hold.id.nonce + 1, waits).is_none());
            assert!(queues.count_kept() == 1 && queues.recalled.lock().is_empty());
            let ended = queues.recall("x", hold.id.nonce, waits).expect("it is kept");
            assert!(Arc::ptr_eq(&ended, &hold) && is_released(&queues, &hold));
            assert_eq!(queues.recalled.lock().get("x").map(|it| it.in_a_row), Some(1));
        }
    }

    #[test]
    fn a_client_that_waits_for_a_held_lock_is_remembered_until_that_is_over() {
        let (queues, hold) = keep();
        join_kept(&queues);
        assert!(queues.recall("x", hold.id.nonce, false).is_none() && !hold.is_wanted());
        assert!(queues.recall("x", hold.id.nonce + 1, true).is_none() && !hold.is_wanted());
        assert!(queues.recalled.lock().is_empty(), "it only tries, or means an earlier hold");
        for _ in 0..2 {
            assert!(queues.recall("x", hold.id.nonce, true).is_none() && hold.is_wanted());
            assert_eq!(queues.recalled.lock().get("x").map(|it| it.in_a_row), Some(1));
        }
        assert_eq!(queues.end(&hold, true, || true), Ending::Released { is_awaited: false });
    }

    #[test]
    fn kept_locks_are_ended_one_by_one_or_all_at_once() {
        let (queues, hold) = keep();
        assert!(queues.end_kept("y", |_| true).is_none());
        assert!(queues.end_kept("x", |_| false).is_none() && queues.count_kept() == 1);
        let ended = queues.end_kept("x", |kept| kept.id == hold.id).expect("it is kept");
        assert!(Arc::ptr_eq(&ended, &hold) && is_released(&queues, &hold));
        assert!(queues.end_kept("x", |_| true).is_none() && queues.end_all_kept().is_empty());
        let (queues, hold) = keep();
        let ended = queues.end_all_kept();
        assert!(ended.len() == 1 && is_released(&queues, &hold));
        let (queues, hold) = keep();
        assert!(hold.lease.lose());
        assert!(queues.end_all_kept().is_empty(), "the renewer has found it lost");
    }

    #[test]
    fn recalls_are_forgotten_after_a_while() {
        let (queues, name) = (WaitQueues::default(), name());
        queues.set_listening(true);
        let age = |time: Duration| {
            let mut recalled = queues.recalled.lock();
            let recall = recalled.get_mut(&name).expect("recalled");
            recall.last = recall.last.checked_sub(time).expect("the machine is up for longer");
        };
        (0..RECALLS_MAX).for_each(|_| queues.record_recall(&name, false));
        assert!(!queues.may_keep("x"));
        age(RECALL_PAUSE);
        assert!(queues.may_keep("x"));
        queues.record_recall(&name, false);
        assert!(!queues.may_keep("x"), "one more makes the pause as long again");
        age(RECALL_MEMORY);
        queues.record_recall(&name, false);
        assert!(queues.may_keep("x"));
        age(RECALL_MEMORY);
        queues.record_recall(&Arc::from("y"), true);
        assert!(queues.recalled.lock().is_empty());
    }

    #[test]
    fn messages_are_missed_only_by_a_client_that_has_received_them_before() {
        let queues = WaitQueues::default();
        for (listening, missed) in [
            (false, false),
            (false, false),
            (true, false),
            (false, true),
            (false, true),
            (true, true),
        ] {
            queues.set_listening(listening);
            assert_eq!(queues.has_missed_messages(), missed, "{listening}");
        }
        let past = Instant::now().checked_sub(PLACES_ARE_KEPT);
        *queues.interrupted.lock() = Some(past.expect("the machine is up for longer"));
        assert!(!queues.has_missed_messages());
    }

    #[test]
    fn a_lock_is_not_kept_before_the_client_listens() {
        let queues = WaitQueues::default();
        assert!(!queues.is_listening() && !queues.may_keep("x"));
        thread::scope(|scope| {
            let waits = scope.spawn(|| queues.wait_to_listen(end_of(SOON * 6)));
            thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished(), "it was not tried yet");
            queues.set_listening(false);
            waits.join().expect("no panic");
            assert!(!queues.may_keep("x"), "it was tried in vain");
            queues.set_listening(true);
            assert!(queues.is_listening() && queues.may_keep("x"));
        });
        let begin = Instant::now();
        queues.wait_to_listen(end_of(SOON * 6));
        assert!(begin.elapsed() < SOON);
    }

    #[test]
    fn a_pause_lasts_until_close_at_most() {
        let queues = Arc::new(WaitQueues::default());
        let (begin, time) = (Instant::now(), Duration::from_millis(20));
        let pauses = Pauses::of_request(&queues);
        assert!(pauses.sleep(time, "x").is_ok() && begin.elapsed() >= time);
        let ends_with_close = |sleep: &(dyn Fn() + Sync)| {
            thread::scope(|scope| {
                let sleeper = scope.spawn(sleep);
                queues.close();
                sleeper.join().expect("no panic");
            });
        };
        let sleep = || pauses.sleep(SOON * 6, "x");
        ends_with_close(&|| assert!(matches!(sleep(), Err(Error::Closed))));
        ends_with_close(&|| queues.wait_to_listen(end_of(SOON * 6)));
        assert!(begin.elapsed() < SOON * 6);
        // What a guard asks for after that is asked as before.
        let (begin, late) = (Instant::now(), Pauses::of_request(&queues));
        assert!(late.sleep(time, "x").is_ok() && begin.elapsed() >= time);
    }

    #[test]
    fn a_pause_lasts_until_it_is_cancelled_at_most() {
        let (queues, canceller) = (Arc::new(WaitQueues::default()), Canceller::new());
        let begin = Instant::now();
        let sleep = || Pauses::of_wait(&queues, Some(&canceller)).sleep(SOON * 6, "x");
        thread::scope(|scope| {
            let sleeper = scope.spawn(sleep);
            canceller.cancel();
            let ended = sleeper.join().expect("no panic");
            assert!(matches!(ended, Err(Error::Cancelled { .. })));
        });
        assert!(matches!(sleep(), Err(Error::Cancelled { .. })), "cancelled before");
        assert!(begin.elapsed() < SOON * 6);
    }

    #[test]
    fn threads_that_want_a_name_as_different_things_do_not_wait_for_each_other() {
        let queues = WaitQueues::default();
        let lock = join_for(&queues, HoldKind::Lock);
        let reader = join_for(&queues, HoldKind::Read);
        assert!(queues.wake(HoldKind::Read, "x") && !queues.wake(HoldKind::Read, "y"));
        assert!(lock.is_empty() && !reader.is_empty());
        assert!(queues.wake_any("x") && !lock.is_empty());
        give_up(&queues, HoldKind::Read);
        assert!(!queues.wake(HoldKind::Read, "x") && queues.wake_any("x"));
    }

    #[test]
    fn only_the_head_gives_up_its_place_or_gets_the_lock_there() {
        let queues = WaitQueues::default();
        let [first, second, third] = three(&queues);
        assert_eq!(queues.give_up_head(&second), None);
        queues.begin_hold(&new_hold(), Some(&second));
        queues.with(&second.hold, |queue| queue.fail_endless(&second, &unanswered()));
        assert!(Arc::ptr_eq(&head(&queues, HoldKind::Lock, "x").expect("a head"), &first));
        assert!(second.is_empty() && third.is_empty());
        assert_eq!(queues.give_up_head(&first), Some(HoldKind::Lock));
        assert!(matches!(wait_end(&queues, &second), WaitEnd::Head { .. }));
    }
}
