//! A wait queue under thousands of schedules made up by shuttle: the lock is never lost and never
//! held twice, no thread waits forever (which shuttle detects), and no waiter is left behind.
//!
//! A unit test of `src/local`, run by
//! `RUSTFLAGS="--cfg leasehold_shuttle" cargo test --lib --target-dir target/shuttle schedules`

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle};

use crate::base::clock::Moment;
use crate::base::sync::{Ordering, under_many_schedules};
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::local::head_requests::followers_of_head;
use crate::local::reporter::Reporter;
use crate::local::wait_queue::Ending;
use crate::local::wait_queues::WaitQueues;
use crate::local::wait_queues::tests::head;
use crate::local::waiter::{HeadAnswer, Signal, WaitEnd, Waiter};
use crate::protocol::call::{self, Caller};
use crate::protocol::hold::Hold;
use crate::store::hold_id::{HoldId, HoldKind};

/// How often another client asks for a lock.
const RECALLS: usize = 48;

/// Counts over all schedules: the holds that began on a kept lock, and the locks that were released
/// because another client asked for them.
static RELOCKS: AtomicU64 = AtomicU64::new(0);
static RECALLED: AtomicU64 = AtomicU64::new(0);

/// The way in which a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Endless,
    No,
    /// Until a deadline, which comes at any time.
    Until,
}

/// A wait queue and its lock.
#[derive(Default)]
struct Scene {
    queues: Arc<WaitQueues>,
    name: Arc<str>,
    /// Whether every hold is lost sooner or later.
    loses: bool,
    /// Whether the lock is kept after a hold.
    keeps: bool,
    /// The number of the hold in the store. Like `last`, not a primitive of `crate::sync`.
    stored: parking_lot::Mutex<Option<u64>>,
    /// The last holder. Not a primitive of `crate::sync`, so that no thread is interrupted here.
    last: parking_lot::Mutex<Option<Arc<Hold>>>,
    /// The number of hold ids so far.
    holds: AtomicU64,
    /// The threads that read the replies to posted releases.
    readers: parking_lot::Mutex<Vec<JoinHandle<()>>>,
    /// The numbers of the tenures that another client has asked for.
    recalled: parking_lot::Mutex<HashSet<u64>>,
    /// The holds whose releases were posted, and whose end was not yet reported.
    unreported: Arc<parking_lot::Mutex<HashSet<u64>>>,
}

impl Scene {
    fn id(&self) -> HoldId {
        let (kind, nonce) = (HoldKind::Lock, self.holds.fetch_add(1, Relaxed));
        let id = HoldId { kind, name: self.name.clone(), client: Arc::from("c"), nonce };
        if self.keeps { id.that_may_be_kept() } else { id }
    }

    fn join(&self, wait: call::Wait) -> Result<(Arc<Waiter>, Option<WaitEnd>)> {
        self.queues.join(self.id(), &Caller { wait, ..self.caller() }, false)
    }

    /// Gives the head a hold that it has acquired. Returns the earlier ones.
    fn begin(&self, hold: &Arc<Hold>) -> Vec<Arc<Hold>> {
        let head = head(&self.queues, HoldKind::Lock, &self.name);
        let earlier = self.queues.begin_hold(hold, head.as_deref());
        // It may have been lost before it was at the head, where that would have been noticed.
        if !hold.lease.is_open() {
            self.queues.end_hold(hold);
        }
        earlier
    }

    fn caller(&self) -> Caller {
        if self.keeps { keeping_caller() } else { caller() }
    }

    fn hold(&self) -> Arc<Hold> {
        let hold = Arc::new(Hold::new(self.id(), 1, 2, &self.caller(), Moment::now()));
        if self.loses {
            let wait_queues = self.queues.clone();
            let (reporter, hold) = (Reporter { wait_queues, ..Reporter::default() }, hold.clone());
            thread::spawn(move || reporter.lose(&hold));
        }
        hold
    }

    /// Begins a hold in the store, for the head.
    fn store_hold(&self, hold: &Hold) {
        // A head that finds a released hold of this client releases it again.
        let is_released = !self.queues.released(HoldKind::Lock, &self.name).is_empty();
        let stored = self.stored.lock().replace(hold.id.nonce);
        let is_held = stored.is_some() && !is_released && !self.loses;
        assert!(!is_held, "a thread is at the head before the lock is released");
    }

    /// Ends a hold in the store, unless another has taken its place.
    fn remove_hold(&self, hold: &Hold) {
        self.stored.lock().take_if(|stored| *stored == hold.id.nonce);
    }

    /// Acquires the lock, holds it for a while, and releases it. Returns `false` if the wait ended
    /// without the lock.
    fn lock_and_unlock(&self, wait: Wait) -> Result<bool> {
        let hold = match self.acquire(wait)? {
            WaitEnd::HandedOff(hold) => hold,
            WaitEnd::Kept(hold) => {
                let is_stored = *self.stored.lock() == Some(hold.id.nonce);
                assert!(is_stored || self.loses, "a lock that was kept is held no more");
                RELOCKS.fetch_add(1, Relaxed);
                hold
            }
            WaitEnd::Head { .. } => {
                let hold = self.hold();
                self.store_hold(&hold);
                // A message about the hold may overtake the reply.
                thread::yield_now();
                for released in self.begin(&hold) {
                    self.unreported.lock().remove(&released.id.nonce);
                }
                let are_reported = self.loses || self.unreported.lock().is_empty();
                assert!(are_reported, "the end of a hold is told first");
                hold
            }
            _ => return Ok(false),
        };
        if is_valid(&hold) {
            let last = self.last.lock().replace(hold.clone());
            assert!(last.is_none_or(|last| !is_valid(&last)), "two threads have the lock");
        }
        thread::yield_now();
        // A thread that has lost the lock may continue its work, and delays no other.
        if !self.loses || thread_rng().r#gen() {
            self.unlock(&hold);
        }
        Ok(true)
    }

    fn acquire(&self, wait: Wait) -> Result<WaitEnd> {
        loop {
            let limit = match wait {
                Wait::Endless => call::Wait::Endless,
                Wait::No => call::Wait::No,
                Wait::Until => call::Wait::Until(Instant::now()),
            };
            let (waiter, turn) = self.join(limit)?;
            match turn.map_or_else(|| self.queues.wait(&waiter, limit), Ok)? {
                WaitEnd::Kept(hold) if !hold.begin_kept(&self.caller()) => {}
                WaitEnd::Head { kept, .. } => {
                    if let Some(kept) = kept
                        && self.queues.with(&kept.id, |queue| queue.release(&kept)) != Ending::Lost
                    {
                        self.post(&kept);
                    }
                    return self.acquire_at_head(&waiter);
                }
                other => return Ok(other),
            }
        }
    }

    /// Asks for the lock as another client, now and then.
    fn recall(&self) {
        // There is an end, because a schedule may let this thread run for as long as it likes.
        for _ in 0..RECALLS {
            thread::yield_now();
            let (stored, waits) = (*self.stored.lock(), thread_rng().r#gen());
            let Some(nonce) = stored else { continue };
            if waits {
                self.recalled.lock().insert(nonce);
            }
            if let Some(kept) = self.queues.recall(&self.name, nonce, waits) {
                assert_eq!(kept.id.nonce, nonce, "another tenure is meant");
                RECALLED.fetch_add(1, Relaxed);
                self.post(&kept);
            }
            // Or it was kept for long enough.
            if thread_rng().gen_ratio(1, 4)
                && let Some(kept) = self.queues.end_kept(&self.name, |_| true)
            {
                self.post(&kept);
            }
        }
    }

    /// Tries at a store whose lock is sometimes held, and sleeps in between.
    fn acquire_at_head(&self, waiter: &Waiter) -> Result<WaitEnd> {
        while thread_rng().r#gen() {
            *waiter.answer.lock() = HeadAnswer::Held(Instant::now());
            if let Err(error) = waiter.sleep(Duration::ZERO) {
                self.queues.give_up_head(waiter);
                return Err(error);
            }
            waiter.set_pending();
        }
        Ok(WaitEnd::Head { is_next: true, after_release: false, kept: None })
    }

    /// Hands the lock off or releases it, and then waits for the reply or not.
    fn unlock(&self, hold: &Arc<Hold>) {
        let (queues, hands_off, posts): (_, bool, bool) =
            (&self.queues, thread_rng().r#gen(), thread_rng().r#gen());
        // The next holder must find this one over, and may be another thread at once.
        self.unreported.lock().insert(hold.id.nonce);
        let end = || {
            *self.last.lock() = None;
            self.unreported.lock().remove(&hold.id.nonce);
            true
        };
        let is_awaited = match queues.end(hold, hands_off, end) {
            Ending::HandedOff | Ending::Kept => return,
            Ending::Lost => return queues.end_hold(hold),
            Ending::Released { is_awaited } => is_awaited,
        };
        if hands_off || posts {
            self.post(hold);
        } else {
            // This takes some time.
            thread::yield_now();
            self.remove_hold(hold);
            queues.settle_release(&hold.id, || self.unreported.lock().remove(&hold.id.nonce));
        }
        if is_awaited {
            queues.end_hold(hold);
        }
    }

    /// Releases a hold, and leaves reading the reply to another thread. The next thread may ask
    /// before the release has taken effect, and then asks again.
    fn post(&self, hold: &Arc<Hold>) {
        self.remove_hold(hold);
        let (queues, posted) = (self.queues.clone(), hold.clone());
        let unreported = self.unreported.clone();
        let read = thread::spawn(move || {
            queues.settle_release(&posted.id, || {
                thread::yield_now();
                unreported.lock().remove(&posted.id.nonce);
                true
            });
        });
        self.readers.lock().push(read);
    }

    /// Returns `true` if no thread is in the queue and all releases are confirmed at the end.
    fn is_empty(&self) -> bool {
        let readers = mem::take(&mut *self.readers.lock());
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        let joined = self.join(call::Wait::No).map(|(_, turn)| turn);
        matches!(joined, Ok(Some(WaitEnd::Head { after_release: false, .. })) | Err(Error::Closed))
    }
}

/// A queue of readers, whose head asks for all of them.
#[derive(Default)]
struct Readers {
    queues: WaitQueues,
    name: Arc<str>,
    /// The number of hold ids so far.
    holds: AtomicU64,
    /// The numbers of the holds in the store.
    stored: parking_lot::Mutex<HashSet<u64>>,
}

impl Readers {
    /// Reads and releases. Returns `false` if the wait ended without a hold.
    fn read(&self, wait: call::Wait) -> bool {
        let (waiter, turn) = self.join(wait);
        let nonce = waiter.hold.nonce;
        let turn = turn.map_or_else(|| self.queues.wait(&waiter, wait), Ok).expect("open");
        let reads = match turn {
            WaitEnd::Head { .. } => self.ask_for_all(&waiter),
            WaitEnd::HandedOff(hold) => {
                assert!(hold.id.nonce == nonce && self.stored.lock().contains(&nonce));
                true
            }
            _ => false,
        };
        if reads || waiter.in_doubt.load(Ordering::Relaxed) {
            self.stored.lock().remove(&nonce);
        }
        reads
    }

    fn join(&self, wait: call::Wait) -> (Arc<Waiter>, Option<WaitEnd>) {
        let caller = Caller { wait, ..call::tests::caller(&LockOptions::default()) };
        let (kind, nonce) = (HoldKind::Read, self.holds.fetch_add(1, Relaxed));
        let id = HoldId { kind, name: self.name.clone(), client: Arc::from("c"), nonce };
        self.queues.join(id, &caller, false).expect("open")
    }

    /// Asks until a reply arrives. The store grants as many as it likes.
    fn ask_for_all(&self, head: &Waiter) -> bool {
        loop {
            let (_, alike) = self.queues.with(&head.hold, |queue| followers_of_head(queue));
            thread::yield_now();
            let granted = thread_rng().gen_range(0..=alike.len());
            let nonces = alike[..granted].iter().map(|waiter| waiter.hold.nonce);
            self.stored.lock().extend(nonces.chain([head.hold.nonce]));
            thread::yield_now();
            if thread_rng().r#gen() {
                for waiter in alike {
                    if !self.queues.with(&waiter.hold, |queue| queue.mark_in_doubt(&waiter)) {
                        self.stored.lock().remove(&waiter.hold.nonce);
                    }
                }
                continue;
            }
            for waiter in &alike[..granted] {
                let Waiter { hold: id, caller, .. } = &**waiter;
                if self.queues.remove(waiter) {
                    let hold = Hold::new(id.clone(), 1, 0, caller, Moment::now());
                    waiter.send(Signal::WaitEnd(WaitEnd::HandedOff(Arc::new(hold))));
                } else {
                    self.stored.lock().remove(&id.nonce);
                }
            }
            self.queues.give_up_head(head);
            return true;
        }
    }
}

fn is_valid(hold: &Hold) -> bool {
    !hold.lease.remaining().is_zero()
}

fn caller() -> Caller {
    let tenure = Some(Duration::from_secs(10));
    call::tests::caller(&LockOptions { tenure, ..LockOptions::default() })
}

fn keeping_caller() -> Caller {
    let keep = Duration::from_secs(10);
    call::tests::caller(&LockOptions { keep, ..LockOptions::default() })
}

/// Runs threads that wait in different ways at the same time.
fn run_threads<const N: usize>(scene: &Arc<Scene>, waits: [Wait; N]) -> [Result<bool>; N] {
    let threads = waits.map(|wait| {
        let scene = scene.clone();
        thread::spawn(move || scene.lock_and_unlock(wait))
    });
    threads.map(|thread| thread.join().expect("no panic"))
}

#[test]
fn threads_that_come_and_go_do_not_lose_the_lock() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene::default());
        let waits = [Wait::Endless, Wait::Endless, Wait::Until, Wait::Until, Wait::No];
        let [first, second, ..] = run_threads(&scene, waits).map(|locked| locked.expect("open"));
        assert!(first && second, "served");
        assert!(scene.is_empty(), "a waiter is left behind");
    });
}

/// The thread that gets the lock may release it before the one that handed it off continues.
#[test]
fn no_thread_is_the_head_before_a_lock_that_was_handed_off_is_released() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene::default());
        let mine = scene.hold();
        scene.join(call::Wait::No).expect("open");
        scene.begin(&mine);
        scene.store_hold(&mine);
        let (second, _) = scene.join(call::Wait::Endless).expect("open");
        let [giver, receiver, third] = [(); 3].map(|()| scene.clone());
        let threads = [
            thread::spawn(move || {
                assert_eq!(giver.queues.end(&mine, true, || true), Ending::HandedOff, "a waiter");
            }),
            thread::spawn(move || {
                match receiver.queues.wait(&second, call::Wait::Endless).expect("open") {
                    WaitEnd::HandedOff(hold) => receiver.unlock(&hold),
                    other => panic!("{other:?}"),
                }
            }),
            thread::spawn(move || assert!(third.lock_and_unlock(Wait::Endless).expect("open"))),
        ];
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(scene.is_empty(), "a waiter is left behind");
    });
}

#[test]
fn close_ends_every_wait_whenever_it_comes() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene::default());
        let queues = &scene.queues;
        let hold = scene.hold();
        scene.join(call::Wait::No).expect("open");
        scene.begin(&hold);
        let closer = scene.clone();
        thread::spawn(move || closer.queues.close());
        let [endless, limited] = run_threads(&scene, [Wait::Endless, Wait::Until]);
        assert!(matches!(endless, Err(Error::Closed)));
        assert!(matches!(limited, Ok(false) | Err(Error::Closed)));
        let ending = queues.end(&hold, true, || true);
        assert_eq!(ending, Ending::Released { is_awaited: false }, "a waiter is left behind");
    });
}

#[test]
fn a_hold_that_is_lost_at_any_time_holds_up_no_waiter() {
    under_many_schedules(|| {
        // This includes a kept lock.
        let scene = Scene { loses: true, keeps: thread_rng().r#gen(), ..Scene::default() };
        let scene = Arc::new(scene);
        scene.queues.set_listening(scene.keeps);
        let locked = run_threads(&scene, [Wait::Endless; 3]).map(|locked| locked.expect("open"));
        assert_eq!(locked, [true; 3], "served");
    });
}

/// Threads drop the lock and lock it again, while another client asks for it at any time, and at
/// any time the lock may have been kept for long enough.
#[test]
fn a_lock_that_is_kept_and_recalled_is_neither_lost_nor_held_twice() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene { keeps: true, ..Scene::default() });
        scene.queues.set_listening(true);
        let listener = scene.clone();
        let recalls = thread::spawn(move || listener.recall());
        let threads = [Wait::Endless, Wait::Until, Wait::No].map(|wait| {
            let scene = scene.clone();
            thread::spawn(move || {
                for _ in 0..4 {
                    let served = scene.lock_and_unlock(wait).expect("open");
                    assert!(served || wait != Wait::Endless, "served");
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        recalls.join().expect("no panic");
        let stored = *scene.stored.lock();
        let is_recalled = stored.is_some_and(|nonce| scene.recalled.lock().contains(&nonce));
        assert!(!is_recalled, "a lock is kept that another client waits for");
        assert_eq!(scene.queues.count_kept(), usize::from(stored.is_some()));
        for kept in scene.queues.end_all_kept() {
            scene.post(&kept);
        }
        assert!(scene.stored.lock().is_none() && scene.is_empty(), "a lock is left behind");
    });
    assert!(RELOCKS.load(Relaxed) > 0 && RECALLED.load(Relaxed) > 0, "no lock was kept");
}

#[test]
fn close_leaves_no_lock_that_is_kept_whenever_it_comes() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene { keeps: true, ..Scene::default() });
        scene.queues.set_listening(true);
        let closer = scene.clone();
        let close = thread::spawn(move || {
            closer.queues.close();
            for kept in closer.queues.end_all_kept() {
                closer.post(&kept);
            }
        });
        for locked in run_threads(&scene, [Wait::Endless; 3]) {
            assert!(matches!(locked, Ok(true) | Err(Error::Closed)));
        }
        close.join().expect("no panic");
        assert_eq!((scene.queues.count_kept(), *scene.stored.lock()), (0, None));
    });
}

#[test]
fn no_hold_that_the_head_has_asked_for_is_left_behind() {
    under_many_schedules(|| {
        let readers = Arc::new(Readers::default());
        let soon = call::Wait::Until(Instant::now());
        let waits = [call::Wait::Endless, call::Wait::Endless, soon, soon, call::Wait::Endless];
        let threads = waits.map(|wait| {
            let readers = readers.clone();
            thread::spawn(move || readers.read(wait))
        });
        let [first, second, .., last] = threads.map(|thread| thread.join().expect("no panic"));
        assert!(first && second && last, "served");
        assert!(readers.stored.lock().is_empty(), "a hold is left behind");
    });
}
