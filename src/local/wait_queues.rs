//! The lines of threads of one client that want the same lock: one per name, first come, first
//! served. Only the thread at the head asks the store; the others sleep. Knows nothing of Redis.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::local::identity::Thread;
use crate::local::lease::Lease;
use crate::local::wait_queue::{Handoffs, WaitQueue};
use crate::local::waiter::{Position, QueuedWaiter, Signal, Signals, Turn, Waiter};
use crate::store::request::Recall;
use crate::sync::{AtomicBool, Mutex, MutexGuard};

/// Threads that want different locks should rarely meet here.
const SHARDS: usize = 16;

/// All lines of a client.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    hasher: RandomState,
    pub(super) shards: [Mutex<HashMap<Arc<str>, WaitQueue>>; SHARDS],
    /// Set before the places are told, and looked at under a shard's lock before one is taken.
    pub(super) closed: AtomicBool,
}

impl WaitQueues {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Takes the first place of a line that nobody is in, or will be in a moment.
    pub(crate) fn enter(
        &self,
        name: &Arc<str>,
        options: &LockOptions,
    ) -> Result<Option<(Waiter, Position)>> {
        let mut shard = self.shard(name);
        self.check_open()?;
        if shard.get(name).is_some_and(|line| !line.is_about_to_end()) {
            return Ok(None);
        }
        Ok(Some(take_place(&mut shard, name, options, false)))
    }

    /// Takes the last place of a line.
    pub(crate) fn join(
        &self,
        name: &Arc<str>,
        options: &LockOptions,
        endless: bool,
    ) -> Result<(Waiter, Position)> {
        let mut shard = self.shard(name);
        self.check_open()?;
        Ok(take_place(&mut shard, name, options, endless))
    }

    /// Sleeps in line until it is this thread's turn or the deadline has come. What was promised
    /// by then is waited for, so that it is not lost.
    pub(crate) fn wait(&self, ticket: &Waiter, deadline: Option<Instant>) -> Result<Turn> {
        loop {
            match ticket.mailbox.take(deadline) {
                Some(Signal::Given(lease)) => return Ok(Turn::Given(lease)),
                Some(Signal::Coming(passage)) => return Ok(Turn::Coming(*passage)),
                Some(Signal::Head { polite }) => return Ok(Turn::Head { polite }),
                Some(Signal::Failed(failure)) => return Ok(Turn::Failed(failure)),
                // Meant for the head, which this thread is not.
                Some(Signal::Asked(_) | Signal::Knock) => {}
                Some(Signal::Closed) => {
                    if self.withdraw(ticket).is_some() {
                        return Err(Error::Closed);
                    }
                }
                None => {
                    let late = self.withdraw(ticket);
                    return late.map_or_else(|| self.wait(ticket, None), Ok);
                }
            }
        }
    }

    /// Leaves the line as one who is late, unless the thread has been promised something.
    fn withdraw(&self, ticket: &Waiter) -> Option<Turn> {
        let mut shard = self.shard(&ticket.name);
        let line = shard.get_mut(&ticket.name)?;
        line.withdraw(ticket)?;
        let unanswered = line.is_leaving();
        Some(if unanswered { Turn::Unanswered } else { Turn::Late(line.failure().cloned()) })
    }

    /// The hold of the thread at the head, if it is one.
    pub(crate) fn holder(&self, name: &Arc<str>) -> Option<Arc<Lease>> {
        self.shard(name).get(name)?.holder().cloned()
    }

    /// Notes how the last try of the thread at the head ended.
    pub(crate) fn note(&self, name: &Arc<str>, last: Option<&Failure>) {
        if let Some(line) = self.shard(name).get_mut(name) {
            line.note(last);
        }
    }

    /// Notes that the thread at the head has got the lock.
    pub(crate) fn hold(&self, lease: &Arc<Lease>) {
        if let Some(line) = self.shard(lease.name()).get_mut(lease.name()) {
            line.hold(lease);
        }
        self.forget_if_lost(lease);
    }

    /// The thread at the head leaves without the lock. If that is because the server cannot be
    /// reached, those who would wait without limit need not find out one by one. Tells whether
    /// another thread is at the head now.
    pub(crate) fn give_up(&self, name: &Arc<str>, outage: Option<&Failure>) -> bool {
        let mut shard = self.shard(name);
        if let Some(failure) = outage
            && let Some(line) = shard.get_mut(name)
        {
            for place in line.withdraw_endless() {
                place.tell(Signal::Failed(failure.clone()));
            }
        }
        advance(&mut shard, name)
    }

    /// The thread at the head has left it to another to send its release.
    pub(crate) fn leave(&self, lease: &Arc<Lease>, recall: Recall) {
        let mut shard = self.shard(lease.name());
        // Else the answer is there already.
        if let Some(line) = shard.get_mut(lease.name()).filter(|line| line.is_held_by(lease)) {
            line.leave(lease, recall);
        }
    }

    /// The thread at the head has released the lock, or lost it.
    pub(crate) fn done_with(&self, lease: &Lease) {
        let mut shard = self.shard(lease.name());
        if shard.get(lease.name()).is_some_and(|line| line.is_held_by(lease)) {
            advance(&mut shard, lease.name());
        }
    }

    /// Promises the lock to the next in line.
    pub(crate) fn promise(&self, lease: &Lease) -> Option<(QueuedWaiter, Handoffs)> {
        let mut shard = self.shard(lease.name());
        shard.get_mut(lease.name()).filter(|line| line.is_held_by(lease))?.promise()
    }

    /// Keeps the promise: the lock is held for the thread.
    pub(crate) fn give(&self, place: &QueuedWaiter, lease: &Arc<Lease>) {
        self.hold_next(lease);
        place.tell(Signal::Given(lease.clone()));
        self.forget_if_lost(lease);
    }

    /// Notes that the thread that was promised the lock has got it.
    pub(crate) fn pass(&self, lease: &Arc<Lease>) {
        self.hold_next(lease);
        self.forget_if_lost(lease);
    }

    fn hold_next(&self, lease: &Arc<Lease>) {
        if let Some(line) = self.shard(lease.name()).get_mut(lease.name()) {
            line.hold_next(lease);
        }
    }

    /// A hold that was lost before it was at the head has not been missed there.
    fn forget_if_lost(&self, lease: &Lease) {
        if lease.remaining().is_zero() {
            self.done_with(lease);
        }
    }

    /// Breaks the promise: the thread is at the head and has to ask for itself.
    pub(crate) fn call(&self, name: &Arc<str>, place: &QueuedWaiter, polite: bool) {
        self.compete(name, &place.mailbox);
        place.tell(Signal::Head { polite });
    }

    /// Notes that the thread that was promised the lock has to ask for it.
    pub(crate) fn lead(&self, ticket: &Waiter) {
        self.compete(&ticket.name, &ticket.mailbox);
    }

    fn compete(&self, name: &Arc<str>, mailbox: &Arc<Signals>) {
        if let Some(line) = self.shard(name).get_mut(name) {
            line.compete(mailbox);
        }
    }

    pub(super) fn shard(&self, name: &str) -> MutexGuard<'_, HashMap<Arc<str>, WaitQueue>> {
        let hash = self.hasher.hash_one(name);
        self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)].lock()
    }
}

/// Takes the last place of a line, or the head of a new one.
fn take_place(
    shard: &mut HashMap<Arc<str>, WaitQueue>,
    name: &Arc<str>,
    options: &LockOptions,
    endless: bool,
) -> (Waiter, Position) {
    let ticket = Waiter::new(name);
    let Some(line) = shard.get_mut(name) else {
        shard.insert(name.clone(), WaitQueue::new(&ticket));
        return (ticket, Position::Head);
    };
    if let Some(lease) = line.recall() {
        return (ticket, Position::After(lease));
    }
    let (options, thread) = (options.clone(), Thread::current());
    line.add(QueuedWaiter { options, thread, endless, mailbox: ticket.mailbox.clone() });
    (ticket, Position::Behind)
}

/// Calls the next in line to the head, or ends the line. `false` if nobody was called.
fn advance(shard: &mut HashMap<Arc<str>, WaitQueue>, name: &Arc<str>) -> bool {
    let Some(line) = shard.get_mut(name) else { return false };
    let Some(next) = line.next() else {
        shard.remove(name);
        return false;
    };
    line.compete(&next.mailbox);
    next.tell(Signal::Head { polite: false });
    true
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::clock::{Moment, end_of};
    use crate::local::loss::LossNotifier;
    use crate::store::hold::HoldId;
    use std::thread;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(10);

    pub(in crate::local) fn name() -> Arc<str> {
        Arc::from("x")
    }

    pub(in crate::local) fn lease() -> Arc<Lease> {
        let id = HoldId { name: name(), client: Arc::from("c"), nonce: 1 };
        let thread = Thread::current();
        Arc::new(Lease::new(id, 1, &LockOptions::default(), Moment::now(), thread))
    }

    /// Takes a place, and tells whether it is the head.
    fn join(lines: &WaitQueues) -> (Waiter, bool) {
        let (ticket, entry) = lines.join(&name(), &LockOptions::default(), false).expect("open");
        (ticket, matches!(entry, Position::Head))
    }

    /// A line with somebody at the head and two who wait.
    pub(in crate::local) fn three(lines: &WaitQueues) -> [Waiter; 3] {
        let (head, first) = join(lines);
        assert!(first);
        let [second, third] = [join(lines), join(lines)];
        assert!(!second.1 && !third.1);
        [head, second.0, third.0]
    }

    fn turn(lines: &WaitQueues, ticket: &Waiter) -> Turn {
        lines.wait(ticket, Some(end_of(SOON))).expect("open")
    }

    fn is_late(lines: &WaitQueues, ticket: &Waiter) -> bool {
        matches!(lines.wait(ticket, Some(Instant::now())).expect("open"), Turn::Late(_))
    }

    pub(in crate::local) fn is_empty(lines: &WaitQueues) -> bool {
        lines.shards.iter().all(|shard| shard.lock().is_empty())
    }

    #[test]
    fn the_head_is_passed_on_in_the_order_of_coming() {
        let lines = WaitQueues::default();
        let [_, second, third] = three(&lines);
        assert!(lines.enter(&name(), &LockOptions::default()).expect("open").is_none());
        lines.give_up(&name(), None);
        assert!(matches!(turn(&lines, &second), Turn::Head { polite: false }));
        assert!(third.mailbox.is_empty());
        lines.give_up(&name(), None);
        assert!(matches!(turn(&lines, &third), Turn::Head { .. }));
        lines.give_up(&name(), None);
        assert!(is_empty(&lines));
    }

    #[test]
    fn a_lock_is_given_to_the_next_in_line() {
        let lines = WaitQueues::default();
        let [_, second, third] = three(&lines);
        let (mine, next) = (lease(), lease());
        lines.hold(&mine);
        let (place, handed) = lines.promise(&mine).expect("somebody waits");
        assert_eq!(handed.times, 0);
        lines.give(&place, &next);
        assert!(matches!(turn(&lines, &second), Turn::Given(given) if Arc::ptr_eq(&given, &next)));
        assert!(lines.holder(&name()).is_some_and(|holder| Arc::ptr_eq(&holder, &next)));
        assert!(lines.promise(&mine).is_none(), "it has nothing to promise any more");
        let (place, handed) = lines.promise(&next).expect("somebody waits");
        assert_eq!(handed.times, 1);
        lines.call(&name(), &place, true);
        assert!(matches!(turn(&lines, &third), Turn::Head { polite: true }));
        lines.give_up(&name(), None);
        assert!(is_empty(&lines));
    }

    #[test]
    fn whoever_is_late_leaves_no_place() {
        let lines = WaitQueues::default();
        let [_, second, third] = three(&lines);
        let mine = lease();
        lines.hold(&mine);
        assert!(is_late(&lines, &second));
        let (place, _) = lines.promise(&mine).expect("the third waits");
        assert!(third.is_of(&place));
        lines.call(&name(), &place, false);
        lines.give_up(&name(), None);
        assert!(is_empty(&lines));
    }

    #[test]
    fn what_was_promised_is_waited_for_beyond_the_deadline() {
        let lines = WaitQueues::default();
        let [_, second, _] = three(&lines);
        let mine = lease();
        lines.hold(&mine);
        let (place, _) = lines.promise(&mine).expect("somebody waits");
        thread::scope(|scope| {
            let waits = scope.spawn(|| lines.wait(&second, Some(Instant::now())).expect("open"));
            thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished());
            lines.give(&place, &lease());
            assert!(matches!(waits.join().expect("no panic"), Turn::Given(_)));
        });
    }

    #[test]
    fn a_release_is_taken_back_only_for_the_first_who_comes() {
        let lines = WaitQueues::default();
        let [_, second, third] = three(&lines);
        let mine = lease();
        lines.hold(&mine);
        lines.leave(&mine, Recall::new(|| panic!("two wait already")));
        assert!(lines.enter(&name(), &LockOptions::default()).expect("open").is_none());
        let (fourth, first) = join(&lines);
        assert!(!first);
        lines.done_with(&mine);
        for ticket in [second, third, fourth] {
            assert!(matches!(turn(&lines, &ticket), Turn::Head { polite: false }));
            lines.give_up(&name(), None);
        }
        assert!(is_empty(&lines));
    }

    #[test]
    fn a_lost_hold_lets_the_next_try() {
        let lines = Arc::new(WaitQueues::default());
        let [_, second, _] = three(&lines);
        let mine = lease();
        lines.hold(&mine);
        LossNotifier { lines: lines.clone(), ..LossNotifier::default() }.lose(&mine);
        assert!(matches!(turn(&lines, &second), Turn::Head { .. }));
        lines.done_with(&mine);
        assert!(lines.holder(&name()).is_none());
    }

    #[test]
    fn an_outage_is_told_to_those_who_would_wait_for_ever() {
        let lines = WaitQueues::default();
        let (_, first) = join(&lines);
        assert!(first);
        let (endless, _) = lines.join(&name(), &LockOptions::default(), true).expect("open");
        let (patient, _) = join(&lines);
        let source = std::io::Error::other("test");
        let failure = Failure::io(crate::failure::FailureKind::Timeout, &Arc::from("here"), source);
        lines.note(&name(), Some(&failure));
        let late = lines.wait(&join(&lines).0, Some(Instant::now())).expect("open");
        assert!(matches!(late, Turn::Late(Some(_))), "{late:?}");
        lines.give_up(&name(), Some(&failure));
        assert!(matches!(turn(&lines, &endless), Turn::Failed(_)));
        assert!(matches!(turn(&lines, &patient), Turn::Head { .. }));
    }

    /// The race of the deadline with the hand-over: the lock is never lost and never held twice.
    #[test]
    fn short_waits_and_hand_overs_lose_nothing() {
        let lines = WaitQueues::default();
        let inside = AtomicBool::new(false);
        let enter = |lease: &Arc<Lease>| {
            assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
            thread::yield_now();
            inside.store(false, Ordering::SeqCst);
            match lines.promise(lease) {
                Some((place, _)) => lines.give(&place, &self::lease()),
                None => lines.done_with(lease),
            }
        };
        thread::scope(|scope| {
            for thread in 0..8 {
                let (lines, enter) = (&lines, &enter);
                scope.spawn(move || {
                    for round in 0..500_u64 {
                        let (ticket, first) = join(lines);
                        let wait = Duration::from_micros(round * 7 % 100 + thread);
                        let turn = if first {
                            Turn::Head { polite: false }
                        } else {
                            lines.wait(&ticket, Some(end_of(wait))).expect("open")
                        };
                        match turn {
                            Turn::Given(lease) => enter(&lease),
                            Turn::Head { .. } => {
                                let lease = lease();
                                lines.hold(&lease);
                                enter(&lease);
                            }
                            Turn::Late(_)
                            | Turn::Failed(_)
                            | Turn::Coming(_)
                            | Turn::Unanswered => {}
                        }
                    }
                });
            }
        });
        assert!(is_empty(&lines));
    }
}
