//! A line of threads under thousands of schedules that shuttle makes up: the lock is never lost
//! and never held twice, nobody waits for ever (which shuttle finds out), and no place is left.
//!
//! A unit test of `src/local`, run by
//! `RUSTFLAGS="--cfg leasehold_shuttle" cargo test --lib --target-dir target/shuttle schedules`

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle};

use crate::clock::Moment;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::local::acquire_request::tests::{request, sent};
use crate::local::identity::Thread;
use crate::local::lease::Lease;
use crate::local::loss::LossNotifier;
use crate::local::pending_handoff::PendingHandoff;
use crate::local::waiter::{Position, Signal, Turn, Waiter};
use crate::store::hold::HoldId;
use crate::store::request::{PendingReply, Recall, TransferReply};
use crate::sync::{AtomicBool, AtomicUsize, Ordering, under_many_schedules};

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Endless,
    No,
    /// Until a deadline, which comes at any time.
    Until,
}

/// A line, and what it is there for.
#[derive(Default)]
struct Scene {
    losses: LossNotifier,
    name: Arc<str>,
    /// Whether every hold is lost sooner or later.
    loses: bool,
    /// Who got the lock last. Not one of `crate::sync`: no thread is interrupted here.
    last: parking_lot::Mutex<Option<Arc<Lease>>>,
    /// The threads to which releases were left.
    senders: parking_lot::Mutex<Vec<JoinHandle<()>>>,
}

impl Scene {
    fn lease(&self) -> Arc<Lease> {
        let id = HoldId { name: self.name.clone(), client: Arc::from("c"), nonce: 1 };
        let lease = Lease::new(id, 1, &LockOptions::default(), Moment::now(), Thread::current());
        let lease = Arc::new(lease);
        if self.loses {
            let (losses, lease) = (self.losses.clone(), lease.clone());
            thread::spawn(move || losses.lose(&lease));
        }
        lease
    }

    /// Locks, is inside for a while, and leaves. `false` if the wait ended without the lock.
    fn visit(&self, wait: Wait) -> Result<bool> {
        let lease = match self.line_up(wait)? {
            None | Some(Turn::Late(_) | Turn::Failed(_) | Turn::Unanswered) => return Ok(false),
            Some(Turn::Given(lease)) => lease,
            Some(Turn::Head { .. } | Turn::Coming(_)) => {
                let lease = self.lease();
                self.losses.lines.hold(&lease);
                lease
            }
        };
        if stands(&lease) {
            let last = self.last.lock().replace(lease.clone());
            assert!(last.is_none_or(|last| !stands(&last)), "two have the lock");
        }
        thread::yield_now();
        // Whoever has lost the lock may stay where it is, and holds nobody up.
        if !self.loses || thread_rng().r#gen() {
            self.leave(&lease);
        }
        Ok(true)
    }

    fn line_up(&self, wait: Wait) -> Result<Option<Turn>> {
        let (lines, options) = (&self.losses.lines, LockOptions::default());
        let (ticket, entry) = if wait != Wait::No {
            lines.join(&self.name, &options, wait == Wait::Endless)?
        } else if let Some(first) = lines.enter(&self.name, &options)? {
            first
        } else {
            return Ok(None);
        };
        let deadline = (wait != Wait::Endless).then(Instant::now);
        let turn = match entry {
            Position::Head => Turn::Head { polite: false },
            Position::After(lease) => Turn::Coming(passage(&lease, thread_rng().r#gen())),
            Position::Behind => lines.wait(&ticket, deadline)?,
        };
        match turn {
            Turn::Head { .. } => self.compete(&ticket).map(Some),
            Turn::Coming(passage) => self.take_over(passage, &ticket).map(Some),
            other => Ok(Some(other)),
        }
    }

    /// Waits for the answer to a transfer.
    fn take_over(&self, passage: PendingHandoff, ticket: &Waiter) -> Result<Turn> {
        if let Ok(TransferReply::Transferred { .. }) = passage.answer.wait() {
            let lease = self.lease();
            self.losses.lines.pass(&lease);
            return Ok(Turn::Given(lease));
        }
        self.losses.lines.lead(ticket);
        self.compete(ticket)
    }

    /// Asks a store that is sometimes busy, and sleeps in between until somebody knocks.
    fn compete(&self, ticket: &Waiter) -> Result<Turn> {
        while thread_rng().r#gen() {
            if let Err(error) = ticket.sleep(Duration::ZERO, &request()) {
                self.losses.lines.give_up(&self.name, None);
                return Err(error);
            }
        }
        Ok(Turn::Head { polite: false })
    }

    /// Releases the lock or hands it on; the transfer may fail, and may be waited for by either.
    fn leave(&self, lease: &Arc<Lease>) {
        let lines = &self.losses.lines;
        let ended = lease.end();
        let Some((place, _)) = ended.then(|| lines.promise(lease)).flatten() else {
            if ended && thread_rng().r#gen() {
                return self.post(lease);
            }
            return lines.done_with(lease);
        };
        let (waits, done): (bool, bool) = thread_rng().r#gen();
        if !waits {
            place.tell(Signal::Coming(Box::new(passage(lease, done))));
        } else if done {
            lines.give(&place, &self.lease());
        } else {
            lines.call(&self.name, &place, false);
        }
    }

    /// Leaves it to another thread to send the release, if nobody takes it back before.
    fn post(&self, lease: &Arc<Lease>) {
        let taken = Arc::new(AtomicBool::new(false));
        let (lines, left, sent) = (self.losses.lines.clone(), lease.clone(), taken.clone());
        self.senders.lock().push(thread::spawn(move || {
            if !sent.swap(true, Ordering::SeqCst) {
                lines.done_with(&left);
            }
        }));
        let recall = move || !taken.swap(true, Ordering::SeqCst);
        self.losses.lines.leave(lease, Recall::new(recall));
    }

    /// Whether nobody is in the line, when all releases are sent.
    fn is_empty(&self) -> bool {
        let senders = mem::take(&mut *self.senders.lock());
        senders.into_iter().for_each(|sender| sender.join().expect("no panic"));
        let entry = self.losses.lines.enter(&self.name, &LockOptions::default());
        matches!(entry, Ok(Some((_, Position::Head))) | Err(Error::Closed))
    }
}

/// A transfer whose answer is known.
fn passage(from: &Arc<Lease>, done: bool) -> PendingHandoff {
    let answer = if done { TransferReply::Transferred { fence: 1 } } else { TransferReply::Gone };
    PendingHandoff {
        from: from.clone(),
        to: from.id.clone(),
        yields: false,
        sent: Moment::now(),
        answer: PendingReply::new(move || Ok(answer)),
        settles: true,
    }
}

fn stands(lease: &Lease) -> bool {
    !lease.remaining().is_zero()
}

/// Lets threads that wait in different ways visit a scene at the same time.
fn visits<const N: usize>(scene: &Arc<Scene>, waits: [Wait; N]) -> [Result<bool>; N] {
    let threads = waits.map(|wait| {
        let scene = scene.clone();
        thread::spawn(move || scene.visit(wait))
    });
    threads.map(|thread| thread.join().expect("no panic"))
}

#[test]
fn threads_that_come_and_go_lose_nothing() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene::default());
        let waits = [Wait::Endless, Wait::Endless, Wait::Until, Wait::Until, Wait::No];
        let [first, second, ..] = visits(&scene, waits).map(|visit| visit.expect("open"));
        assert!(first && second, "served");
        assert!(scene.is_empty(), "a place is left");
    });
}

#[test]
fn close_ends_every_wait_whenever_it_comes() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene::default());
        let lines = &scene.losses.lines;
        let lease = scene.lease();
        lines.join(&scene.name, &LockOptions::default(), false).expect("open");
        lines.hold(&lease);
        let closer = scene.clone();
        thread::spawn(move || closer.losses.lines.close());
        let [endless, patient] = visits(&scene, [Wait::Endless, Wait::Until]);
        assert!(matches!(endless, Err(Error::Closed)));
        assert!(matches!(patient, Ok(false) | Err(Error::Closed)));
        assert!(lines.promise(&lease).is_none(), "a place is left");
    });
}

#[test]
fn a_hold_that_is_lost_at_any_time_holds_nobody_up() {
    under_many_schedules(|| {
        let scene = Arc::new(Scene { loses: true, ..Scene::default() });
        let visits = visits(&scene, [Wait::Endless; 3]).map(|visit| visit.expect("open"));
        assert_eq!(visits, [true; 3], "served");
    });
}

/// Whoever knocks may send a request for a thread whose pause is over, or that is turned away.
#[test]
fn every_request_that_is_sent_for_a_thread_is_waited_for() {
    under_many_schedules(|| {
        let ticket = Arc::new(Waiter::new(&Arc::from("")));
        let begun = Arc::new(AtomicUsize::new(0));
        let knockers = [(); 2].map(|()| {
            let (ticket, begun) = (ticket.clone(), begun.clone());
            thread::spawn(move || {
                ticket.mailbox.knock(|_| {
                    thread::yield_now();
                    begun.fetch_add(1, Ordering::SeqCst);
                    Some(sent())
                });
            })
        });
        let mailbox = ticket.mailbox.clone();
        let closer = thread::spawn(move || mailbox.put(Signal::Closed));
        let mut waited_for = 0;
        loop {
            let pause =
                if thread_rng().r#gen() { Duration::ZERO } else { Duration::from_secs(86_400) };
            match ticket.sleep(pause, &request()) {
                Ok(sent) => waited_for += usize::from(sent.is_some()),
                Err(_) => break,
            }
        }
        knockers.into_iter().chain([closer]).for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(waited_for, begun.load(Ordering::SeqCst));
    });
}
