//! The names that calls of this client want or have, each with its conversation
//! (`protocol/name.rs`), and whether the client is closed and listens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::base::clock::{self, AtomicMoment, Moment};
use crate::base::maps::RandomState;
use crate::base::sync::{AtomicBool, Condvar, Mutex, MutexGuard, interleave, wait_while, wake_all};
use crate::base::{fnv, shrink};
use crate::error::{Error, Result};
use crate::local::parker::{Parker, Sent, Signal, tell};
use crate::protocol::call::Caller;
use crate::protocol::hold::Hold;
use crate::protocol::name::Name;
use crate::protocol::steps::{Actions, Ask, NameInput, Next, Policy, Reports, Turn};
use crate::protocol::tenure::HoldInput;
use crate::store::Store;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{Change, Unused};

/// Threads that want different locks should rarely meet here.
const SHARDS: usize = 16;

/// After this many recalls in a row a lock is not kept for a while.
const RECALLS_MAX: u32 = 3;

/// How long a name is not kept after that. Each further recall starts the pause over.
const RECALL_PAUSE: Duration = Duration::from_secs(1);

/// A name is forgotten after this long without a recall.
const RECALL_MEMORY: Duration = Duration::from_secs(10);

/// How long servers keep the place of a waiting client that was found without a listener.
const PLACES_ARE_KEPT: Duration = Duration::from_secs(2);

/// The most locks that are remembered. More are kept as if they were never recalled.
const RECALLED_MAX: usize = 1024;

/// Names that share a lock.
type Shard = HashMap<Arc<str>, Name<Arc<Parker>>, RandomState>;

pub(crate) struct Names {
    policy: Policy,
    /// The names of locks, and those of read-write locks and semaphores: threads that want a name
    /// as different things do not wait for each other.
    shards: [[Mutex<Shard>; SHARDS]; 2],
    /// Set before the waiters are signalled, and read under a shard's lock before one is added.
    closed: AtomicBool,
    /// Whether messages of other clients arrive, so that locks may be kept.
    listening: AtomicBool,
    /// When messages ceased to arrive, or arrived again after that; [`Moment::FIRST`] if they never
    /// ceased.
    interrupted: AtomicMoment,
    /// The locks of this client that others have asked for, and that it had kept without using them
    /// again.
    recalled: parking_lot::Mutex<HashMap<Arc<str>, Recalled, RandomState>>,
    sleepers: Mutex<Sleepers>,
    /// The client was closed, or has tried to listen.
    changed: Condvar,
}

/// The threads that sleep and are in no queue.
#[derive(Default)]
struct Sleepers {
    /// Threads that pause or have a conversation of their own, and the calls among them that wait
    /// for a lock.
    each: Vec<(Arc<Parker>, Option<SleepingCall>)>,
    /// Whether the client has tried to listen. Some calls wait for that.
    has_tried: bool,
}

/// A call for a lock whose thread sleeps outside the names.
#[derive(Clone)]
pub(super) struct SleepingCall {
    pub(super) kind: HoldKind,
    pub(super) name: Arc<str>,
    pub(super) caller: Caller,
}

/// How often other clients have asked for a lock that was kept without further use.
struct Recalled {
    in_a_row: u32,
    last: Instant,
}

impl Names {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            shards: Default::default(),
            closed: AtomicBool::default(),
            listening: AtomicBool::default(),
            interrupted: AtomicMoment::default(),
            recalled: parking_lot::Mutex::default(),
            sleepers: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Makes `close` wake a thread that sleeps outside the names, as long as the result lives. The
    /// thread checks after this call whether the client is open.
    pub(super) fn add_sleeper<'a>(
        &'a self,
        parker: &'a Arc<Parker>,
        call: Option<SleepingCall>,
    ) -> Sleeper<'a> {
        self.sleepers.lock().each.push((parker.clone(), call));
        Sleeper { names: self, parker }
    }

    /// Rejects waiting and arriving threads.
    pub(crate) fn close(&self) {
        // First, so that a call which begins now either sees this or is found below.
        self.closed.store(true, Ordering::SeqCst);
        for (parker, _) in &self.sleepers.lock().each {
            Parker::send(parker, Signal::Ended(Error::Closed));
        }
        wake_all(&self.changed);
        self.each(|_, name| {
            for call in name.calls() {
                Parker::send(&call.port, Signal::Ended(Error::Closed));
            }
        });
    }

    /// Returns the hold that a call has of a lock.
    pub(crate) fn holder(&self, kind: HoldKind, name: &str) -> Option<Arc<Hold>> {
        self.shard(kind, name).get(name)?.holder().cloned()
    }

    /// Returns the tenures with this id, whatever its kind. Several guards may have adopted the
    /// same hold.
    pub(super) fn find(&self, id: &HoldId) -> Vec<Arc<Hold>> {
        let mut found = Vec::new();
        for kind in [HoldKind::Lock, HoldKind::Read] {
            if let Some(known) = self.shard(kind, &id.name).get(&id.name) {
                let holds = known.tenures().map(|tenure| &tenure.hold);
                found.extend(holds.filter(|hold| hold.id == *id).cloned());
            }
        }
        found
    }

    /// Returns the holds for whose locks it matters here that other clients wait.
    pub(super) fn watched(&self) -> Vec<Arc<Hold>> {
        let mut watched = Vec::new();
        self.each(|_, name| {
            let tenures = name.tenures().filter(|tenure| tenure.asks_if_wanted());
            watched.extend(tenures.map(|tenure| tenure.hold.clone()));
        });
        watched
    }

    /// Returns the debts: holds that may exist in the store, and must not.
    pub(crate) fn debts(&self, kind: HoldKind, name: &str) -> Vec<Arc<Hold>> {
        let shard = self.shard(kind, name);
        shard.get(name).map(Name::debts).unwrap_or_default()
    }

    /// Returns the change that releases a hold, to be sent now.
    pub(super) fn begin_release(&self, hold: &Hold) -> Change {
        interleave();
        // Only writers give tokens back, so no other release needs the name.
        let unused = if hold.id.kind == HoldKind::Write { self.unused(hold) } else { None };
        hold.begin_release(unused)
    }

    /// Returns the tokens that the tenure of a writer has left.
    pub(super) fn unused(&self, writer: &Hold) -> Option<Unused> {
        let HoldId { kind, name, .. } = &writer.id;
        self.shard(*kind, name).get(name)?.tenure(writer)?.unused()
    }

    /// Sets whether messages of other clients arrive. If they no longer do, no call relies on them.
    pub(crate) fn set_listening(&self, listening: bool) {
        let mut sleepers = self.sleepers.lock();
        // Under that lock: a thread that waits for the first attempt misses no signal.
        let listened = self.listening.swap(listening, Ordering::SeqCst);
        if listened || listening && self.interrupted.get() != Moment::FIRST {
            self.interrupted.set(Moment::now());
        }
        sleepers.has_tried = true;
        wake_all(&self.changed);
        drop(sleepers);
        if listened && !listening {
            // Calls that rely on being told would otherwise sleep until their next poll.
            let mut turn = self.turn();
            self.each(|_, name| name.step_name(NameInput::Interrupted, &mut turn));
            tell(turn.actions);
        }
    }

    /// Returns `true` if messages of other clients may have been missed a moment ago: for that long
    /// servers keep the places of clients that do not listen again yet.
    pub(crate) fn has_missed_messages(&self) -> bool {
        let interrupted = self.interrupted.get();
        interrupted != Moment::FIRST && interrupted.elapsed() < PLACES_ARE_KEPT
    }

    /// Blocks until the first attempt to receive messages has succeeded or failed, at most until
    /// the deadline or `close`: so that the first lock can be kept already.
    pub(crate) fn wait_to_listen(&self, deadline: Instant) {
        wait_while(&self.changed, &mut self.sleepers.lock(), Some(deadline), |sleepers| {
            !sleepers.has_tried && self.check_open().is_ok()
        });
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::SeqCst)
    }

    /// Handles another client's request for the lock of a tenure. That client `waits` for it, or
    /// asks only once. Returns the tenure if it was kept: its release is due.
    pub(crate) fn recall(&self, name: &str, nonce: u64, waits: bool) -> Option<Arc<Hold>> {
        let mut shard = self.shard(HoldKind::Lock, name);
        let known = shard.get_mut(name)?;
        let asked = if waits { known.holder().or(known.kept()) } else { known.kept() };
        let asked = asked.filter(|hold| hold.id.nonce == nonce);
        // A waiting client asks again and again, which counts as one recall.
        if let Some(tenure) = asked.and_then(|hold| known.tenure(hold))
            && !tenure.is_wanted()
        {
            self.record_recall(&tenure.hold.id.name, tenure.was_reused());
        }
        if waits {
            // A hold in use is released when its guard ends, not handed off and not kept.
            known.step_name(NameInput::Wanted(nonce), &mut self.turn());
        }
        if known.kept()?.id.nonce == nonce { self.end_if_kept(known) } else { None }
    }

    /// Records that another client has asked for a lock, and whether a thread of this one had used
    /// it again after it was kept.
    fn record_recall(&self, name: &Arc<str>, was_of_use: bool) {
        let mut recalled = self.recalled.lock();
        let now = clock::now();
        recalled.retain(|known, recalled| {
            now < recalled.last + RECALL_MEMORY && !(was_of_use && known == name)
        });
        if !was_of_use && (recalled.len() < RECALLED_MAX || recalled.contains_key(name)) {
            let recalled = recalled.entry(name.clone());
            let recalled = recalled.or_insert_with(|| Recalled { in_a_row: 0, last: now });
            recalled.in_a_row = recalled.in_a_row.saturating_add(1);
            recalled.last = now;
        }
    }

    /// Returns `true` if a lock may be kept after its next hold: other clients can ask for it, and
    /// have not done so again and again a moment ago.
    pub(crate) fn may_keep(&self, name: &str) -> bool {
        if !self.is_listening() {
            return false;
        }
        let recalled = self.recalled.lock();
        let is_too_often = recalled
            .get(name)
            .is_some_and(|it| it.in_a_row >= RECALLS_MAX && clock::elapsed(it.last) < RECALL_PAUSE);
        !is_too_often
    }

    /// Ends the tenure of a name if it is kept, and returns it to be released.
    pub(crate) fn end_kept(&self, name: &str) -> Option<Arc<Hold>> {
        interleave();
        self.end_if_kept(self.shard(HoldKind::Lock, name).get_mut(name)?)
    }

    fn end_if_kept(&self, name: &mut Name<Arc<Parker>>) -> Option<Arc<Hold>> {
        let kept = name.kept()?.clone();
        let ends = name.step_hold(&kept, HoldInput::EndKept, &mut self.turn());
        if ends { Some(kept) } else { None }
    }

    /// Ends every tenure that is kept, and returns them to be released.
    pub(crate) fn end_all_kept(&self) -> Vec<Arc<Hold>> {
        let mut ended = Vec::new();
        self.each(|_, name| ended.extend(self.end_if_kept(name)));
        ended
    }

    /// Returns how many locks are kept.
    pub(crate) fn count_kept(&self) -> usize {
        let mut count = 0;
        self.each(|_, name| count += usize::from(name.kept().is_some()));
        count
    }

    /// Signals the first call that the lock may be free. Returns `false` if no call waits for it.
    pub(crate) fn wake(&self, kind: HoldKind, name: &str) -> bool {
        let mut shard = self.shard(kind, name);
        let Some(known) = shard.get_mut(name) else { return false };
        let mut turn = self.turn();
        known.step_name(NameInput::Woken, &mut turn);
        let is_woken = known.has_first_call();
        drop(shard);
        tell(turn.actions);
        is_woken
    }

    /// Makes every first call try, because messages may have been missed.
    pub(crate) fn wake_all(&self) {
        let mut turn = self.turn();
        self.each(|_, name| {
            name.step_name(NameInput::Interrupted, &mut turn);
            name.step_name(NameInput::Woken, &mut turn);
        });
        tell(turn.actions);
    }

    /// Notes that an echo has come for the calls for a name.
    pub(crate) fn note_echo(&self, name: &str) {
        for kind in [HoldKind::Read, HoldKind::Lock] {
            if let Some(known) = self.shard(kind, name).get_mut(name) {
                known.step_name(NameInput::Echo, &mut self.turn());
            }
        }
    }

    /// Like `wake`, but sends the first call's next request at once, without waiting for its thread
    /// to wake up.
    pub(super) fn wake_ahead(&self, kind: HoldKind, name: &str, store: &dyn Store) -> bool {
        let mut shard = self.shard(kind, name);
        let ahead = shard.get_mut(name).and_then(|known| known.ask_ahead(&mut self.turn()));
        // Writing the request takes a while, in which other threads need this shard.
        drop(shard);
        let Some((parker, ask)) = ahead else { return self.wake(kind, name) };
        let mut ask = Untold { parker, ask: Some(ask) };
        ask.send(store);
        true
    }

    /// Returns the state of the world for an input. The name must be locked, so that a thread that
    /// closes the client later finds what the input does.
    pub(super) fn turn(&self) -> Turn<Arc<Parker>> {
        Turn {
            now: Moment::now(),
            instant: clock::now(),
            is_closed: self.closed.load(Ordering::SeqCst),
            listens: self.is_listening(),
            missed_messages: self.has_missed_messages(),
            policy: self.policy,
            reports: Reports::new(),
            actions: Actions::new(),
        }
    }

    /// Like `wake`, for every kind of call for the name.
    pub(crate) fn wake_any(&self, name: &str) -> bool {
        self.wake(HoldKind::Read, name) | self.wake(HoldKind::Lock, name)
    }

    /// Returns the calls that wait outside the names.
    pub(super) fn sleeping_calls(&self) -> Vec<SleepingCall> {
        self.sleepers.lock().each.iter().filter_map(|(_, call)| call.clone()).collect()
    }

    pub(super) fn each(&self, mut act: impl FnMut(&Arc<str>, &mut Name<Arc<Parker>>)) {
        for shard in self.shards.as_flattened() {
            // One at a time, so that calls for most names go on.
            shard.lock().iter_mut().for_each(|(name, known)| act(name, known));
        }
    }

    /// Runs `act` on the name of a hold. Creates it if it is missing, and removes it afterwards if
    /// there is nothing left to remember about it.
    pub(super) fn with<T>(
        &self,
        hold: &HoldId,
        act: impl FnOnce(&mut Name<Arc<Parker>>) -> T,
    ) -> T {
        self.with_name(hold.kind, &hold.name, act)
    }

    /// Like `with`, for a name.
    pub(super) fn with_name<T>(
        &self,
        kind: HoldKind,
        name: &Arc<str>,
        act: impl FnOnce(&mut Name<Arc<Parker>>) -> T,
    ) -> T {
        interleave();
        let mut shard = self.shard(kind, name);
        let known = shard.entry(name.clone()).or_insert(Name::NEW);
        let result = act(known);
        // The shard is still locked, so no other thread can have put something into the name.
        if known.is_over() {
            // A program may use each name once, such as one for each order.
            shard.remove(name);
            shrink(&mut shard);
        }
        result
    }

    /// Like `with`, for the calls that want the name of a hold as something else, if that is known.
    pub(super) fn with_other_kind<T>(
        &self,
        hold: &HoldId,
        act: impl FnOnce(&mut Name<Arc<Parker>>) -> T,
    ) -> Option<T> {
        let other = if hold.kind.is_lock() { HoldKind::Read } else { HoldKind::Lock };
        let mut shard = self.shard(other, &hold.name);
        let known = shard.get_mut(&hold.name)?;
        let result = act(known);
        if known.is_over() {
            shard.remove(&hold.name);
            shrink(&mut shard);
        }
        Some(result)
    }

    fn shard(&self, kind: HoldKind, name: &str) -> MutexGuard<'_, Shard> {
        let hash = fnv(name.bytes());
        let shards = &self.shards[usize::from(!matches!(kind, HoldKind::Lock))];
        shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)].lock()
    }
}

/// A thread that sleeps outside the names.
pub(super) struct Sleeper<'a> {
    names: &'a Names,
    parker: &'a Arc<Parker>,
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let mut sleepers = self.names.sleepers.lock();
        sleepers.each.retain(|(other, _)| !Arc::ptr_eq(other, self.parker));
    }
}

/// A request of the first call of a name, until its thread is notified, which happens even after a
/// panic.
struct Untold {
    parker: Arc<Parker>,
    ask: Option<Ask>,
}

impl Untold {
    /// Sends the request ahead of the thread, if that does not block.
    fn send(&mut self, store: &dyn Store) {
        let Some(ask) = &self.ask else { return };
        let at = Moment::now();
        if let Some(ahead) = store.acquire_ahead(ask.request()) {
            self.ask = None;
            Parker::send(&self.parker, Signal::Sent(Sent { at, ahead }));
        }
    }
}

/// If it was not sent, the thread sends it.
impl Drop for Untold {
    fn drop(&mut self) {
        if let Some(ask) = self.ask.take() {
            Parker::send(&self.parker, Signal::Next(Next::Ask(ask)));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::base::clock::{Moment, end_of};
    use crate::base::sync::{Started, in_virtual_time, sleep, start};
    use crate::config::LockOptions;
    use crate::protocol::call::tests::caller;
    use crate::protocol::name::tests::Ending;
    use crate::protocol::name::tests::{granted, held, turn};
    use crate::protocol::steps::{Call, Input, Next, Outcome};
    use crate::protocol::tenure::Tenure;

    const SOON: Duration = Duration::from_secs(10);

    fn name() -> Arc<str> {
        Arc::from("x")
    }

    fn id(kind: HoldKind, name: &str) -> HoldId {
        HoldId { kind, name: name.into(), client: Arc::from("c"), nonce: 1 }
    }

    impl Default for Names {
        fn default() -> Self {
            Self::new(Policy::default())
        }
    }

    impl Names {
        /// Locks all names, as threads do that a fork leaves behind.
        pub(in crate::local) fn lock_all(&self) -> impl Sized {
            self.shards.as_flattened().iter().map(Mutex::lock).collect::<Vec<_>>()
        }

        /// Begins a call.
        pub(in crate::local) fn call(
            &self,
            hold: &HoldId,
            options: &LockOptions,
        ) -> Result<(Arc<Parker>, Next)> {
            let parker = Arc::<Parker>::default();
            let call = Call::new(hold.clone(), &caller(options), parker.clone());
            let next = self.with(hold, |name| {
                self.check_open()?;
                Ok(name.step(Input::Call { call, rejoins: false }, &mut turn()))
            });
            next.map(|next| (parker, next))
        }

        pub(in crate::local) fn end(&self, hold: &Arc<Hold>, hands_off: bool) -> Ending {
            self.with(&hold.id, |name| {
                let mut turn = self.turn();
                let is_in_time = name.step_hold(hold, HoldInput::End { hands_off }, &mut turn);
                Ending::take(is_in_time, &mut turn.actions)
            })
        }

        /// Begins a call that is parked because another owner holds the lock.
        pub(in crate::local) fn call_that_waits(&self, kind: HoldKind, name: &str) -> Arc<Parker> {
            let hold = id(kind, name);
            let (parker, _) = self.call(&hold, &LockOptions::default()).expect("open");
            let input = Input::Reply { sent: Moment::now(), reply: held(), next: None };
            self.with(&hold, |name| name.step(input, &mut turn()));
            parker
        }

        /// Begins a call that gets the lock.
        pub(in crate::local) fn held(&self, hold: &HoldId, options: &LockOptions) -> Arc<Hold> {
            self.call(hold, options).expect("open");
            self.acquire(hold)
        }

        /// Has the first call, which asks, get the lock.
        fn acquire(&self, hold: &HoldId) -> Arc<Hold> {
            let input = Input::Reply { sent: Moment::now(), reply: granted(&[]), next: None };
            let next = self.with(hold, |name| name.step(input, &mut turn()));
            match next {
                Next::Done(Outcome::Acquired(hold)) => hold,
                other => panic!("{other:?}"),
            }
        }
    }

    fn is_told(parker: &Parker) -> bool {
        parker.park(Some(Instant::now())).is_some()
    }

    #[test]
    fn a_hold_that_was_handed_off_is_over_and_not_lost_with_the_next() {
        let names = Names::default();
        let lock = id(HoldKind::Lock, "x");
        let hold = names.held(&lock, &LockOptions::default());
        let signal = || names.with(&lock, |name| name.end_signal(&hold, None));
        let over = signal();
        names.call(&lock, &LockOptions::default()).expect("open");
        assert_eq!(names.end(&hold, true), Ending::GoesOn);
        assert_eq!(over.was_lost(), Some(false));
        let next = signal();
        assert_eq!(next.was_lost(), None);
        lose(&names, &hold);
        assert_eq!([over.was_lost(), next.was_lost()], [Some(false), Some(true)]);
    }

    #[test]
    fn close_ends_every_call_and_rejects_those_that_come() {
        let names = Names::default();
        let waits = names.call_that_waits(HoldKind::Lock, "x");
        let (behind, _) =
            names.call(&id(HoldKind::Lock, "x"), &LockOptions::default()).expect("open");
        names.close();
        for parker in [waits, behind] {
            let told = parker.park(Some(end_of(SOON)));
            assert!(matches!(told, Some(Signal::Ended(Error::Closed))), "{told:?}");
        }
        let late = names.call(&id(HoldKind::Lock, "x"), &LockOptions::default());
        assert!(matches!(late, Err(Error::Closed)));
    }

    #[test]
    fn calls_that_want_a_name_as_different_things_do_not_wait_for_each_other() {
        let names = Names::default();
        let lock = names.call_that_waits(HoldKind::Lock, "x");
        let reader = names.call_that_waits(HoldKind::Read, "x");
        assert!(names.wake(HoldKind::Read, "x") && !names.wake(HoldKind::Read, "y"));
        assert!(!is_told(&lock) && is_told(&reader));
        assert!(names.wake_any("x") && is_told(&lock));
    }

    #[test]
    fn a_lock_that_is_recalled_again_and_again_is_not_kept_for_a_while() {
        let (names, name) = (Names::default(), Arc::from("a"));
        names.set_listening(true);
        for _ in 0..RECALLS_MAX {
            assert!(names.may_keep("a"));
            names.record_recall(&name, false);
        }
        assert!(!names.may_keep("a") && names.may_keep("b"));
        names.record_recall(&name, true);
        assert!(names.may_keep("a"));
    }

    #[test]
    fn not_all_locks_are_remembered() {
        let names = Names::default();
        for number in 0..RECALLED_MAX * 2 {
            names.record_recall(&Arc::from(number.to_string()), false);
        }
        assert_eq!(names.recalled.lock().len(), RECALLED_MAX);
    }

    fn keeping() -> LockOptions {
        LockOptions { keep: SOON, tenure: Some(SOON), ..LockOptions::default() }
    }

    /// Names of which one is kept after this hold, which another may follow.
    fn keep() -> (Names, Arc<Hold>) {
        let names = Names::default();
        names.set_listening(true);
        let hold = names.held(&id(HoldKind::Lock, "x").that_may_be_kept(), &keeping());
        assert_eq!(names.end(&hold, true), Ending::GoesOn);
        assert_eq!(names.count_kept(), 1);
        (names, hold)
    }

    /// Begins a call that gets the kept lock.
    fn call_for_kept(names: &Names) {
        let call = names.call(&id(HoldKind::Lock, "x"), &keeping());
        let (_, next) = call.expect("open");
        assert!(matches!(next, Next::Done(Outcome::Kept(_))), "{next:?}");
    }

    fn lose(names: &Names, hold: &Arc<Hold>) {
        names.with(&hold.id, |name| name.step_hold(hold, HoldInput::Gone, &mut turn()));
    }

    fn is_wanted(names: &Names, hold: &Hold) -> bool {
        names.with(&hold.id, |name| name.tenure(hold).is_some_and(Tenure::is_wanted))
    }

    fn is_released(names: &Names, hold: &Arc<Hold>) -> bool {
        let released = names.debts(HoldKind::Lock, &name());
        names.count_kept() == 0 && released.iter().any(|it| Arc::ptr_eq(it, hold))
    }

    #[test]
    fn a_lock_is_not_kept_where_others_cannot_ask_for_it_or_do_already() {
        let end = |happen: fn(&Names, &Arc<Hold>), hands_off| {
            let (names, hold) = keep();
            call_for_kept(&names);
            happen(&names, &hold);
            (names.end(&hold, hands_off), names.count_kept())
        };
        let released = (Ending::Released { calls_wait: false }, 0);
        assert_eq!(end(|_, _| (), true), (Ending::GoesOn, 1));
        assert_eq!(end(|_, _| (), false), released);
        assert_eq!(end(|names, _| names.set_listening(false), true), released);
        assert_eq!(end(|names, _| names.close(), true), released);
        let set_wanted = |names: &Names, hold: &Arc<Hold>| {
            let wanted = NameInput::Wanted(hold.id.nonce);
            names.with(&hold.id, |name| name.step_name(wanted, &mut turn()));
        };
        assert_eq!(end(set_wanted, true), released);
        assert_eq!(end(lose, true), (Ending::Lost, 0));
    }

    #[test]
    fn a_kept_lock_that_another_client_asks_for_is_released() {
        for waits in [false, true] {
            let (names, hold) = keep();
            assert!(names.recall("y", hold.id.nonce, waits).is_none());
            assert!(names.recall("x", hold.id.nonce + 1, waits).is_none());
            assert!(names.count_kept() == 1 && names.recalled.lock().is_empty());
            let ended = names.recall("x", hold.id.nonce, waits).expect("it is kept");
            assert!(Arc::ptr_eq(&ended, &hold) && is_released(&names, &hold));
            assert_eq!(names.recalled.lock().get("x").map(|it| it.in_a_row), Some(1));
        }
    }

    #[test]
    fn a_client_that_waits_for_a_held_lock_is_remembered_until_that_is_over() {
        let names = Names::default();
        names.set_listening(true);
        let hold = names.held(&id(HoldKind::Lock, "x").that_may_be_kept(), &keeping());
        for (nonce, waits) in [(hold.id.nonce, false), (hold.id.nonce + 1, true)] {
            assert!(names.recall("x", nonce, waits).is_none() && !is_wanted(&names, &hold));
        }
        assert!(names.recalled.lock().is_empty(), "it only tries, or means an earlier hold");
        for _ in 0..2 {
            assert!(names.recall("x", hold.id.nonce, true).is_none());
            assert!(is_wanted(&names, &hold));
            assert_eq!(names.recalled.lock().get("x").map(|it| it.in_a_row), Some(1));
        }
        assert_eq!(names.end(&hold, true), Ending::Released { calls_wait: false });
    }

    #[test]
    fn kept_locks_are_ended_one_by_one_or_all_at_once() {
        let (names, hold) = keep();
        assert!(names.end_kept("y").is_none() && names.count_kept() == 1);
        let ended = names.end_kept("x").expect("it is kept");
        assert!(Arc::ptr_eq(&ended, &hold) && is_released(&names, &hold));
        assert!(names.end_kept("x").is_none() && names.end_all_kept().is_empty());
        let (names, hold) = keep();
        let ended = names.end_all_kept();
        assert!(ended.len() == 1 && is_released(&names, &hold));
        let (names, hold) = keep();
        lose(&names, &hold);
        assert!(names.end_all_kept().is_empty(), "the renewer has found it lost");
    }

    #[test]
    fn recalls_are_forgotten_after_a_while() {
        let (names, name) = (Names::default(), name());
        names.set_listening(true);
        let age = |time: Duration| {
            let mut recalled = names.recalled.lock();
            let recall = recalled.get_mut(&name).expect("recalled");
            recall.last = recall.last.checked_sub(time).expect("the machine is up for longer");
        };
        (0..RECALLS_MAX).for_each(|_| names.record_recall(&name, false));
        assert!(!names.may_keep("x"));
        age(RECALL_PAUSE);
        assert!(names.may_keep("x"));
        names.record_recall(&name, false);
        assert!(!names.may_keep("x"), "one more makes the pause as long again");
        age(RECALL_MEMORY);
        names.record_recall(&name, false);
        assert!(names.may_keep("x"));
        age(RECALL_MEMORY);
        names.record_recall(&Arc::from("y"), true);
        assert!(names.recalled.lock().is_empty());
    }

    #[test]
    fn messages_are_missed_only_by_a_client_that_has_received_them_before() {
        let names = Names::default();
        for (listening, missed) in [
            (false, false),
            (false, false),
            (true, false),
            (false, true),
            (false, true),
            (true, true),
        ] {
            names.set_listening(listening);
            assert_eq!(names.has_missed_messages(), missed, "{listening}");
        }
        let past = Moment::now().before(PLACES_ARE_KEPT);
        names.interrupted.set(past);
        assert!(!names.has_missed_messages());
    }

    /// Waits on another thread until the client has tried to listen.
    fn wait_to_listen(names: &Arc<Names>) -> Started<()> {
        let names = names.clone();
        start(move || names.wait_to_listen(end_of(SOON * 6)))
    }

    #[test]
    fn a_lock_is_not_kept_before_the_client_listens() {
        in_virtual_time(|| {
            let names = Arc::new(Names::default());
            assert!(!names.is_listening() && !names.may_keep("x"));
            let waits = wait_to_listen(&names);
            sleep(Duration::from_millis(20));
            assert!(!waits.is_finished(), "it was not tried yet");
            names.set_listening(false);
            waits.join();
            assert!(!names.may_keep("x"), "the attempt has failed");
            names.set_listening(true);
            assert!(names.is_listening() && names.may_keep("x"));
            let begin = clock::now();
            names.wait_to_listen(end_of(SOON * 6));
            assert!(clock::elapsed(begin) < SOON);
        });
    }

    #[test]
    fn no_call_waits_for_a_closed_client_to_listen() {
        in_virtual_time(|| {
            let names = Arc::new(Names::default());
            let begin = clock::now();
            let waits = wait_to_listen(&names);
            names.close();
            waits.join();
            assert!(clock::elapsed(begin) < SOON * 6);
        });
    }
}
