//! The conversation of a client about one name under thousands of schedules that shuttle makes up:
//! the lock is never lost and never held twice, no thread waits for ever (which shuttle finds out),
//! and no call, hold or release is left behind.
//!
//! A unit test of `src/local`, run by
//! `RUSTFLAGS="--cfg leasehold_shuttle" cargo test --lib --target-dir target/shuttle schedules`

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{array, io, mem};

use parking_lot::Mutex;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle};

use crate::base::clock::Moment;
use crate::base::failure::{Failure, FailureKind};
use crate::base::sync::under_many_schedules;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::local::parker::{Parker, Signal};
use crate::local::reporter::Reporter;
use crate::local::wait_queues::WaitQueues;
use crate::protocol::call::{self, CallTimes, Caller, Wait};
use crate::protocol::hold::Hold;
use crate::protocol::name::{Ask, Call, Effects, Ending, Name, Next, Outcome, Turn};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{AcquireReply, Registration};

/// How often another client does something, or a call is cancelled.
const TURNS: usize = 24;

/// A time that may pass whenever a thread parks, and one that never does: a thread that parks for
/// that long waits until it is told something.
const SOON: Duration = Duration::from_millis(5);
const NEVER: Duration = Duration::from_secs(2 * 60 * 60);

/// One whose holds a request may ask for together.
const SEMAPHORE: HoldKind = HoldKind::Permit { of: 2 };

/// In all schedules: the holds that began on a lock that was kept, and the locks that were released
/// because another client asked for them.
static RELOCKS: AtomicU64 = AtomicU64::new(0);
static RECALLED: AtomicU64 = AtomicU64::new(0);

/// A client that uses one name. Its mutexes are not those of `crate::base::sync`: no thread is
/// interrupted while it has locked one.
struct Scene {
    kind: HoldKind,
    name: Arc<str>,
    /// Whether the lock is kept after a hold.
    keeps: bool,
    /// Whether every hold is lost sooner or later.
    loses: bool,
    /// How many of four requests fail.
    failures: u32,
    queues: Arc<WaitQueues>,
    store: Mutex<Store>,
    /// The last hold of a lock, and whether its end was reported.
    last: Mutex<Option<(Arc<Hold>, bool)>>,
    /// How many ids of holds there are.
    ids: AtomicU64,
    clock: Mutex<Instant>,
    /// Those that `join` waits for.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a store has under the name, by the nonces of the holds.
#[derive(Default)]
struct Store {
    holds: BTreeSet<u64>,
    /// The holds that were released, and can never begin again.
    released: BTreeSet<u64>,
    /// The holds that another client waits for.
    wanted: BTreeSet<u64>,
    /// Whether another client has the lock, or all permits.
    is_taken: bool,
    /// As in [`Turn`].
    withdraws: bool,
    keeps_order: bool,
}

impl Store {
    fn acquire(&mut self, ask: &Ask) -> AcquireReply {
        let (HoldId { kind, nonce, .. }, rng) = (&ask.hold, &mut thread_rng());
        let size = if kind.is_lock() { 1 } else { 2 };
        let is_full = |store: &Self| store.is_taken || store.holds.len() >= size;
        let begins = !matches!(ask.registration, Registration::Kept | Registration::Recall);
        if !self.holds.contains(nonce) && (is_full(self) || !begins) {
            let recalled = rng.r#gen();
            return AcquireReply::Held { index: 0, remaining: None, in_doubt: false, recalled };
        }
        assert!(!self.released.contains(nonce), "a hold is asked for that was released");
        self.holds.insert(*nonce);
        let mut others = Vec::new();
        for HoldId { nonce, .. } in &ask.others {
            let is_known = self.holds.contains(nonce) || self.released.contains(nonce);
            if !is_known && is_full(self) || rng.r#gen() {
                break;
            }
            others.push(1);
            self.holds.extend((!is_known).then_some(nonce));
        }
        AcquireReply::Acquired { fence: 1, others, room: 2, wanted: false }
    }
}

impl Scene {
    fn new(kind: HoldKind) -> Self {
        let [withdraws, keeps_order] = array::from_fn(|_| thread_rng().r#gen());
        let store = Store { withdraws, keeps_order, ..Store::default() };
        Self {
            kind,
            name: Arc::from("name"),
            keeps: false,
            loses: false,
            failures: 0,
            queues: Arc::default(),
            store: Mutex::new(store),
            last: Mutex::default(),
            ids: AtomicU64::new(0),
            clock: Mutex::new(Instant::now()),
            threads: Mutex::default(),
        }
    }

    /// With a lock that is kept after a hold, or not.
    fn of_lock(keeps: bool) -> Self {
        let scene = Self { keeps, ..Self::new(HoldKind::Lock) };
        scene.queues.set_listening(keeps);
        scene
    }

    /// With a lock or a semaphore. This many of four requests fail.
    fn failing(failures: u32) -> Arc<Self> {
        let kind = if thread_rng().r#gen() { HoldKind::Lock } else { SEMAPHORE };
        Arc::new(Self { failures, ..Self::new(kind) })
    }

    fn id(&self) -> HoldId {
        let (name, nonce) = (self.name.clone(), self.ids.fetch_add(1, Relaxed));
        let id = HoldId { kind: self.kind, name, client: Arc::from("c"), nonce };
        if self.keeps { id.that_may_be_kept() } else { id }
    }

    fn caller(&self, wait: Wait) -> Caller {
        let [keep, tenure] =
            [self.keeps, !self.keeps].map(|is_long| Duration::from_secs(9) * is_long.into());
        let options = LockOptions { keep, tenure: Some(tenure), ..LockOptions::default() };
        let caller = call::tests::caller(&options);
        let is_slow = self.failures > 0 && thread_rng().r#gen();
        let slack = if is_slow { SOON } else { NEVER };
        let times = CallTimes { io_timeout: slack, slack, ..caller.times };
        Caller { wait, times, begin: self.now(), ..caller }
    }

    /// Returns the time, which passes where threads park, and is never the same twice.
    fn now(&self) -> Instant {
        let mut clock = self.clock.lock();
        *clock += Duration::from_nanos(1);
        *clock
    }

    /// A wait with a deadline that may come at any time.
    fn soon(&self) -> Wait {
        Wait::Until(self.now() + SOON)
    }

    fn spawn(self: &Arc<Self>, act: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let scene = self.clone();
        let thread = thread::spawn(move || act(&scene));
        self.threads.lock().push(thread);
    }

    /// Runs threads that lock and unlock at the same time, while another client competes with them.
    /// Returns whether they had the lock, each time.
    fn run<const N: usize>(self: &Arc<Self>, waits: [Wait; N]) -> [Result<bool>; N] {
        self.spawn(Self::compete);
        self.run_alone(waits)
    }

    fn run_alone<const N: usize>(self: &Arc<Self>, waits: [Wait; N]) -> [Result<bool>; N] {
        let rounds = if self.keeps || self.failures > 0 { 4 } else { 1 };
        let threads = waits.map(|wait| {
            let scene = self.clone();
            let round = move |all, _| Ok(scene.lock_and_unlock(wait)? && all);
            thread::spawn(move || (0..rounds).try_fold(true, round))
        });
        threads.map(|thread| thread.join().expect("no panic"))
    }

    fn join(&self) {
        loop {
            let Some(thread) = self.threads.lock().pop() else { return };
            thread.join().expect("no panic");
        }
    }

    fn check_nothing_is_left(&self) {
        self.join();
        assert!(self.store.lock().holds.is_empty(), "a hold is left behind");
        self.queues.each(|_, _| panic!("a call or a release is left behind"));
    }

    /// Acquires the lock, holds it for a while, and releases it. Returns `false` if the call has
    /// ended without the lock.
    fn lock_and_unlock(self: &Arc<Self>, wait: Wait) -> Result<bool> {
        let Some(hold) = self.acquire(wait)? else { return Ok(false) };
        if self.loses {
            let lost = hold.clone();
            self.spawn(move |scene| scene.lose(&lost));
        }
        thread::yield_now();
        // A thread that has lost the lock may go on with its work, and holds up no other.
        if !self.loses || thread_rng().r#gen() {
            self.unlock(&hold);
        }
        Ok(true)
    }

    fn acquire(self: &Arc<Self>, wait: Wait) -> Result<Option<Arc<Hold>>> {
        let (caller, mut rejoins) = (self.caller(wait), false);
        loop {
            let outcome = self.converse(&caller, mem::replace(&mut rejoins, true))?;
            let (hold, ended, is_kept) = match outcome {
                Outcome::Acquired { hold, ended } => (hold, ended, false),
                Outcome::Alone | Outcome::Busy => return Ok(None),
                Outcome::Failed(failure) => return Err(failure.into_error("acquire", &self.name)),
                Outcome::HandedOff { hold, .. } => (hold, Vec::new(), false),
                Outcome::Shared(hold) => (hold, Vec::new(), false),
                Outcome::Kept { hold, ended } => (hold, ended, true),
            };
            for hold in ended {
                hold.settle(false);
            }
            let begins = if is_kept {
                hold.begin_kept(&caller, Moment::now())
            } else {
                hold.lease.is_open()
            };
            if begins {
                RELOCKS.fetch_add(is_kept.into(), Relaxed);
                self.begin(&hold);
                return Ok(Some(hold));
            }
            self.queues.end_hold(&hold);
        }
    }

    fn begin(&self, hold: &Arc<Hold>) {
        let is_stored = self.store.lock().holds.contains(&hold.id.nonce);
        assert!(is_stored || self.loses, "the store does not have the hold");
        if self.kind.is_lock() {
            let last = self.last.lock().replace((hold.clone(), false));
            let is_over = |(last, is_over): (Arc<Hold>, bool)| is_over || last.lease.is_settled();
            assert!(
                last.is_none_or(is_over),
                "a hold begins before the end of the last is reported"
            );
        }
    }

    /// Takes part in the conversation about the name, as `LockCall` does.
    fn converse(self: &Arc<Self>, caller: &Caller, rejoins: bool) -> Result<Outcome> {
        let parker = Arc::<Parker>::default();
        let call = Call::new(self.id(), caller, parker.clone());
        let number = call.number;
        let leave = || self.step(|name, turn| name.leave(number, turn));
        let due = || self.step(|name, turn| name.due(number, turn));
        let mut next = self.step(|name, turn| {
            self.queues.check_open()?;
            Ok(name.call(call, rejoins, turn))
        })?;
        loop {
            next = match next {
                Next::Done(outcome) => return Ok(outcome),
                Next::Park { until, .. } => match parker.park(until) {
                    Some(Signal::Next(next)) => next,
                    Some(Signal::Ended(error)) if leave() => return Err(error),
                    Some(Signal::Ended(_)) => Next::Park { until: None, contended: false },
                    Some(Signal::Tell(_)) => unreachable!("no call looks for deadlocks here"),
                    Some(Signal::Sent(_)) => unreachable!("no listener sends requests here"),
                    None => {
                        let now = self.now();
                        *self.clock.lock() = until.map_or(now, |until| until.max(now));
                        due()
                    }
                },
                Next::Turn => {
                    if let Err(error) = self.queues.check_open() {
                        leave();
                        return Err(error);
                    }
                    due()
                }
                Next::Ask(mut ask) => {
                    if ask.needs_new_id {
                        ask.hold = self.id();
                        self.step(|name, _| name.set_hold(&ask.hold));
                    }
                    let sent = Moment::now();
                    thread::yield_now();
                    let reply = self.send(&ask);
                    thread::yield_now();
                    self.step(|name, turn| name.reply(sent, reply, turn))
                }
                Next::Pay(debts) => {
                    let outcome = self.fail();
                    if outcome.is_ok() {
                        for debt in &debts {
                            self.release(debt);
                        }
                    }
                    self.step(|name, turn| name.paid(&debts, outcome, turn))
                }
                Next::Withdraw(hold) => {
                    let is_certain = self.fail().is_ok();
                    if is_certain {
                        self.remove(&hold);
                    }
                    self.step(|name, turn| name.withdrawn(is_certain, turn))
                }
                Next::Unregister(_) => self.step(Name::recalled),
            };
        }
    }

    /// Has the conversation take an input, and does what follows besides what is next.
    fn step<T>(self: &Arc<Self>, act: impl FnOnce(&mut Name<Arc<Parker>>, &mut Turn) -> T) -> T {
        let Store { withdraws, keeps_order, .. } = *self.store.lock();
        let (result, effects) = self.queues.with_name(self.kind, &self.name, |name| {
            let mut turn = Turn {
                now: self.now(),
                moment: Moment::now(),
                missed_messages: false,
                withdraws,
                keeps_order,
                backoff: (NEVER, NEVER),
                retry_window: SOON,
                effects: Effects::default(),
            };
            (act(name, &mut turn), turn.effects)
        });
        for debt in effects.debts {
            self.spawn(move |scene| {
                scene.remove(&debt.id);
                scene.queues.settle(&debt.id, || true);
            });
        }
        effects.release.iter().for_each(|kept| self.post(kept));
        effects.lost.iter().for_each(|kept| self.lose(kept));
        effects.spare.iter().for_each(|spare| self.unlock(spare));
        result
    }

    /// Sends a request to the store, which executes it unless it fails on the way there.
    fn send(&self, ask: &Ask) -> Result<AcquireReply, Failure> {
        let outcome = self.fail();
        if let Err(failure) = &outcome {
            let is_executed = failure.is_ambiguous() && thread_rng().r#gen();
            if !is_executed && !failure.is_shortfall() {
                return Err(failure.clone());
            }
        }
        if self.kind.is_lock() && ask.registration != Registration::Kept {
            let last = self.last.lock();
            let is_held = last.as_ref().is_some_and(|(last, _)| last.lease.is_open());
            assert!(!is_held, "a call asks for the lock before it is released");
        }
        let reply = self.store.lock().acquire(ask);
        outcome.map(|()| reply)
    }

    /// Decides whether a request fails.
    fn fail(&self) -> Result<(), Failure> {
        use FailureKind::{Disconnected, NotReplicated, Timeout, Unreachable, WrongType};
        let shortfall = NotReplicated { acked: 0, required: 1 };
        let kinds = [Disconnected, shortfall, Timeout, Unreachable, WrongType];
        let (rng, server, source) =
            (&mut thread_rng(), Arc::from("here"), io::Error::other("test"));
        let failure = Failure::io(kinds[rng.gen_range(0..kinds.len())], &server, source);
        if rng.gen_ratio(self.failures, 4) { Err(failure) } else { Ok(()) }
    }

    /// Hands the lock off, keeps it, or releases it, and waits for the reply or not.
    fn unlock(self: &Arc<Self>, hold: &Arc<Hold>) {
        let [hands_off, posts] = array::from_fn(|_| thread_rng().r#gen());
        let report = || {
            self.last.lock().iter_mut().for_each(|(_, is_over)| *is_over = true);
            true
        };
        match self.queues.end(hold, hands_off, report) {
            Ending::HandedOff | Ending::Kept | Ending::Shared => {}
            Ending::Lost => self.queues.end_hold(hold),
            Ending::Released { is_awaited } => {
                if posts {
                    self.post(hold);
                } else {
                    self.release(hold);
                }
                if is_awaited {
                    self.queues.end_hold(hold);
                }
            }
        }
    }

    /// Releases a hold. Another thread reads the reply. A store that does not keep the order of
    /// requests may execute later ones first.
    fn post(self: &Arc<Self>, hold: &Arc<Hold>) {
        if self.store.lock().keeps_order {
            self.remove(&hold.id);
        }
        let posted = hold.clone();
        self.spawn(move |scene| scene.release(&posted));
    }

    fn release(&self, hold: &Hold) {
        thread::yield_now();
        self.remove(&hold.id);
        self.queues.settle(&hold.id, || {
            thread::yield_now();
            hold.settle(false);
            true
        });
    }

    fn lose(&self, hold: &Hold) {
        self.remove(&hold.id);
        let wait_queues = self.queues.clone();
        Reporter { wait_queues, ..Reporter::default() }.lose(hold);
    }

    /// Ends a hold in the store, which tells the waiting clients.
    fn remove(&self, hold: &HoldId) {
        let mut store = self.store.lock();
        store.holds.remove(&hold.nonce);
        store.released.insert(hold.nonce);
        drop(store);
        self.queues.wake(self.kind, &self.name);
    }

    /// Does what another client does: takes what is free, and asks for what is not.
    fn compete(self: &Arc<Self>) {
        // With an end, because a schedule may let this thread run for as long as it likes.
        for _ in 0..TURNS {
            thread::yield_now();
            let (waits, mut store) = (thread_rng().r#gen(), self.store.lock());
            let held = store.holds.first().copied();
            store.is_taken = held.is_none();
            store.wanted.extend(held.filter(|_| waits));
            drop(store);
            let Some(nonce) = held else {
                thread::yield_now();
                self.set_free();
                continue;
            };
            if let Some(kept) = self.queues.recall(&self.name, nonce, waits) {
                assert_eq!(kept.id.nonce, nonce, "another tenure is meant");
                RECALLED.fetch_add(1, Relaxed);
                self.post(&kept);
            }
            // Or it was kept for long enough.
            if thread_rng().gen_ratio(1, 4) {
                self.end_kept();
            }
        }
    }

    /// Has another client give back what it has.
    fn set_free(&self) {
        self.store.lock().is_taken = false;
        self.queues.wake(self.kind, &self.name);
    }

    fn end_kept(self: &Arc<Self>) {
        self.queues.end_kept(&self.name, |_| true).iter().for_each(|kept| self.post(kept));
    }

    /// Cancels calls.
    fn cancel(self: &Arc<Self>) {
        for _ in 0..TURNS {
            thread::yield_now();
            let (name, place) = (self.name.to_string(), thread_rng().gen_range(0..4));
            self.step(|it, _| {
                if let Some(call) = it.calls().nth(place) {
                    Parker::send(&call.port, Signal::Ended(Error::Cancelled { name }));
                }
            });
        }
    }
}

fn threads_come_and_go(kind: HoldKind) {
    let scene = Arc::new(Scene::new(kind));
    let (endless, soon) = (Wait::Endless, scene.soon());
    let waits = [endless, endless, soon, soon, Wait::No, endless];
    let [first, second, .., last] = scene.run(waits).map(|locked| locked.expect("no failure"));
    assert!(first && second && last, "served");
    scene.check_nothing_is_left();
}

#[test]
fn threads_that_come_and_go_do_not_lose_the_lock() {
    under_many_schedules(|| threads_come_and_go(HoldKind::Lock));
}

#[test]
fn no_hold_that_the_head_has_asked_for_is_left_behind() {
    under_many_schedules(|| threads_come_and_go(SEMAPHORE));
}

/// The thread that gets the lock may release it before the one that handed it off goes on.
#[test]
fn no_thread_is_the_head_before_a_lock_that_was_handed_off_is_released() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene::of_lock(false));
        let mine = scene.acquire(Wait::No).expect("no failure").expect("free");
        for _ in 0..2 {
            scene.spawn(|scene| assert!(scene.lock_and_unlock(Wait::Endless).expect("open")));
        }
        thread::yield_now();
        scene.unlock(&mine);
        scene.check_nothing_is_left();
    });
}

#[test]
fn a_deadline_ends_a_wait_behind_a_call_that_waits_on() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene::of_lock(false));
        scene.store.lock().is_taken = true;
        scene.spawn(|scene| assert!(scene.lock_and_unlock(Wait::Endless).expect("open")));
        for locked in scene.run_alone([scene.soon(), Wait::No, scene.soon()]) {
            assert!(!locked.expect("no failure"), "another client has the lock");
        }
        scene.set_free();
        scene.check_nothing_is_left();
    });
}

#[test]
fn calls_that_fail_or_are_cancelled_leave_nothing_behind() {
    under_many_schedules(|| {
        let scene = Scene::failing(1);
        scene.spawn(Scene::cancel);
        let _ends = scene.run([Wait::Endless, scene.soon(), Wait::Endless, Wait::No]);
        scene.check_nothing_is_left();
    });
}

/// No call takes it for contention.
#[test]
fn an_outage_ends_every_wait() {
    under_many_schedules(|| {
        let scene = Scene::failing(4);
        let ends = scene.run([Wait::Endless, Wait::Endless, scene.soon(), Wait::No]);
        // Of a semaphore, a call that has timed out makes an attempt of its own, which this omits.
        let failed = &ends[..if scene.kind.is_lock() { 4 } else { 2 }];
        assert!(failed.iter().all(Result::is_err), "{ends:?}");
        scene.check_nothing_is_left();
    });
}

#[test]
fn close_ends_every_wait_whenever_it_comes() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene::of_lock(false));
        let hold = scene.acquire(Wait::No).expect("no failure").expect("free");
        scene.spawn(|scene| scene.queues.close());
        let [endless, limited] = scene.run([Wait::Endless, scene.soon()]);
        assert!(matches!(endless, Err(Error::Closed)));
        assert!(matches!(limited, Ok(false) | Err(Error::Closed)));
        scene.unlock(&hold);
        scene.check_nothing_is_left();
    });
}

#[test]
fn a_hold_that_is_lost_at_any_time_holds_up_no_waiter() {
    under_many_schedules(|| {
        // Also while the lock is kept.
        let scene = Arc::new(Scene { loses: true, ..Scene::of_lock(thread_rng().r#gen()) });
        let locked = scene.run([Wait::Endless; 3]).map(|locked| locked.expect("open"));
        assert_eq!(locked, [true; 3], "served");
        scene.check_nothing_is_left();
    });
}

/// Threads drop the lock and lock it again, while another client asks for it at any time, and the
/// lock may have been kept for long enough at any time.
#[test]
fn a_lock_that_is_kept_and_recalled_is_neither_lost_nor_held_twice() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene::of_lock(true));
        let [endless, ..] = scene.run([Wait::Endless, scene.soon(), Wait::No]);
        assert!(endless.expect("open"), "served");
        scene.join();
        let store = scene.store.lock();
        assert!(store.holds.is_disjoint(&store.wanted), "a lock is kept that another client wants");
        let kept = store.holds.len();
        drop(store);
        assert_eq!(scene.queues.count_kept(), kept);
        scene.end_kept();
        scene.check_nothing_is_left();
    });
    assert!(RELOCKS.load(Relaxed) > 0 && RECALLED.load(Relaxed) > 0, "no lock was kept");
}

#[test]
fn close_leaves_no_lock_that_is_kept_whenever_it_comes() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene::of_lock(true));
        scene.spawn(|scene| {
            scene.queues.close();
            scene.end_kept();
        });
        for locked in scene.run([Wait::Endless; 3]) {
            assert!(matches!(locked, Ok(true) | Err(Error::Closed)));
        }
        scene.check_nothing_is_left();
    });
}
