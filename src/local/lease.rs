//! One hold of one lock: what is known of it without asking anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use crate::clock::Moment;
use crate::config::LockOptions;
use crate::local::identity::Thread;
use crate::store::hold::HoldId;

/// A lease that is due within this part of its length is renewed along with others.
pub(crate) const TOGETHER: u32 = 64;

/// Values of `Lease::deadline` that are not moments.
const LOST: u64 = 0;
const ENDED: u64 = 1;

/// A hold and how long it may be relied on.
///
/// The one mutable fact is the local deadline. It is *the time at which the last confirmed request
/// was sent, plus the lease, less the drift*, and it is moved, found to be over, or ended by
/// compare-and-swap: what one thread has seen as lost no other can renew.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: HoldId,
    pub(crate) fence: u64,
    /// The length of a whole lease.
    length: Duration,
    renewed: bool,
    taken: Moment,
    /// The age limit.
    end: Moment,
    thread: Thread,
    /// A moment, or a mark.
    deadline: AtomicU64,
    /// How many guards there are. Only the holding thread changes it.
    depth: AtomicU32,
    /// Whether a request that began this hold may yet be executed once more.
    unsettled: AtomicBool,
    /// For the receivers of `Guard::lost`, if there are any.
    watch: Mutex<Option<Box<Watch>>>,
}

/// One channel for all receivers of a lease, so that asking for another one costs no memory. When
/// the time comes there is a message for each of them.
#[derive(Debug)]
struct Watch {
    receivers: usize,
    sender: Sender<()>,
    receiver: Receiver<()>,
}

impl Watch {
    fn new() -> Self {
        let (sender, receiver) = unbounded();
        Self { receivers: 0, sender, receiver }
    }

    fn tell(&self) {
        for _ in 0..self.receivers {
            // There is a receiver: our own.
            self.sender.send(()).unwrap_or_default();
        }
    }
}

/// A receiver for whoever asks when the hold is lost already.
pub(crate) fn lost_before() -> Receiver<()> {
    let late = Watch { receivers: 1, ..Watch::new() };
    late.tell();
    late.receiver
}

/// What a lease asks its renewer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Nothing any more.
    None,
    /// To be found lost then, if nobody has released it.
    Expire(Moment),
    /// To be renewed then: when a third of it has passed, a little less because of the drift.
    Renew(Moment),
}

impl Lease {
    /// A hold of `thread`, got by a request sent at `taken`.
    pub(crate) fn new(
        id: HoldId,
        fence: u64,
        options: &LockOptions,
        taken: Moment,
        thread: Thread,
    ) -> Self {
        let span = options.first_lease();
        Self {
            id,
            fence,
            length: options.lease,
            renewed: options.renew,
            taken,
            end: options.max_hold.map_or(Moment::NEVER, |hold| taken.after(hold)),
            thread,
            deadline: AtomicU64::new(Self::deadline(taken, span).raw()),
            depth: AtomicU32::new(1),
            unsettled: AtomicBool::new(false),
            watch: Mutex::new(None),
        }
    }

    /// Until when a lease may be relied on that a request sent at `sent` has brought.
    pub(crate) fn deadline(sent: Moment, span: Duration) -> Moment {
        sent.after(span.saturating_sub(drift(span)))
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.id.name
    }

    pub(crate) fn thread(&self) -> ThreadId {
        self.thread.id
    }

    pub(crate) fn age(&self) -> Duration {
        Moment::now().since(self.taken)
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    pub(crate) fn set_depth(&self, depth: u32) {
        self.depth.store(depth, Ordering::Relaxed);
    }

    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// Notes that a request that began this hold may yet be executed once more.
    pub(crate) fn unsettle(&self) {
        self.unsettled.store(true, Ordering::Relaxed);
    }

    /// The time for which the hold may still be relied on; zero if it is lost or ended.
    pub(crate) fn remaining(&self) -> Duration {
        Moment::from_raw(self.deadline.load(Ordering::Acquire)).since(Moment::now())
    }

    /// The length to ask for in a request that is sent now: less than a whole lease where the age
    /// limit comes first.
    pub(crate) fn span(&self, now: Moment) -> Duration {
        self.length.min(self.end.since(now))
    }

    /// Takes in that a request sent at `sent` has renewed the hold for `span`. Does nothing if the
    /// hold was lost in the meantime.
    pub(crate) fn extend(&self, sent: Moment, span: Duration) {
        let deadline = Self::deadline(sent, span).raw();
        let mut seen = self.deadline.load(Ordering::Acquire);
        while seen > ENDED && seen < deadline && Moment::now().raw() < seen {
            let swap = self.deadline.compare_exchange_weak(
                seen,
                deadline,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match swap {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Finds out whether the hold is lost by time. `true` the one time it turns out to be.
    pub(crate) fn expire(&self) -> bool {
        let mut seen = self.deadline.load(Ordering::Acquire);
        while seen > ENDED && seen <= Moment::now().raw() {
            match self.deadline.compare_exchange(seen, LOST, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.tell_watchers();
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Takes in that the server does not know the hold any more. `true` the one time this is news.
    pub(crate) fn lose(&self) -> bool {
        let lost = self.deadline.fetch_update(Ordering::AcqRel, Ordering::Acquire, |seen| {
            (seen > ENDED).then_some(LOST)
        });
        if lost.is_ok() {
            self.tell_watchers();
        }
        lost.is_ok()
    }

    /// Ends the hold as its holder wishes. `false` if it was lost before. Those who watch are told
    /// when it is known how the release went.
    pub(crate) fn end(&self) -> bool {
        let ended = self.deadline.fetch_update(Ordering::AcqRel, Ordering::Acquire, |seen| {
            (seen > ENDED && Moment::now().raw() < seen).then_some(ENDED)
        });
        ended.is_ok()
    }

    /// A receiver that finds one message when the hold is lost, and is disconnected without one
    /// when it ends. Tells also whether nobody watched before.
    pub(crate) fn watch(&self) -> (Receiver<()>, bool) {
        let mut watch = self.watch.lock();
        if self.deadline.load(Ordering::Acquire) == LOST {
            return (lost_before(), false);
        }
        let first = watch.is_none();
        let watch = watch.get_or_insert_with(|| Box::new(Watch::new()));
        watch.receivers += 1;
        (watch.receiver.clone(), first)
    }

    /// Tells those who watch that the hold is lost.
    pub(crate) fn tell_watchers(&self) {
        if let Some(watch) = self.watch.lock().take() {
            watch.tell();
        }
    }

    /// Tells those who watch that the hold has ended as it should.
    pub(crate) fn dismiss_watchers(&self) {
        self.watch.lock().take();
    }

    /// Tells those who watch if the deadline has passed, and leaves it to others to find the hold
    /// lost and to do what is to be done then.
    pub(crate) fn tell_watchers_if_over(&self) {
        let seen = self.deadline.load(Ordering::Acquire);
        if seen > ENDED && seen <= Moment::now().raw() {
            self.tell_watchers();
        }
    }

    /// What is to be done for the lease next.
    pub(crate) fn duty(&self) -> NextStep {
        let deadline = self.deadline.load(Ordering::Acquire);
        if deadline <= ENDED {
            return NextStep::None;
        }
        let deadline = Moment::from_raw(deadline);
        // The age limit leaves nothing to renew, or the thread that could release is gone.
        let last = deadline.after(drift(self.length)) >= self.end;
        if !self.renewed || last || !self.thread.is_alive() {
            NextStep::Expire(deadline)
        } else {
            NextStep::Renew(deadline.before(self.length * 2 / 3))
        }
    }

    /// Whether the lease should be renewed now, or so soon that others may take it along.
    pub(crate) fn wants_renewal(&self, now: Moment) -> bool {
        let soon = now.after(self.length / TOGETHER);
        matches!(self.duty(), NextStep::Renew(due) if due <= soon)
    }

    /// The length of a whole lease.
    pub(crate) fn length(&self) -> Duration {
        self.length
    }
}

/// What clocks may differ by within a lease: 1 % of it and 2 ms, as in
/// <https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>.
fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    const LEASE: Duration = Duration::from_millis(200);

    fn options() -> LockOptions {
        LockOptions { lease: LEASE, ..LockOptions::default() }
    }

    fn taken(options: &LockOptions, sent: Moment) -> Lease {
        let id = HoldId { name: Arc::from("x"), client: Arc::from("c"), nonce: 1 };
        Lease::new(id, 7, options, sent, Thread::current())
    }

    fn expired() -> Lease {
        let lease = taken(&options(), Moment::now());
        sleep(LEASE);
        lease
    }

    #[test]
    fn the_deadline_counts_from_the_request_and_leaves_room_for_drift() {
        let sent = Moment::now();
        sleep(LEASE / 4);
        let left = taken(&options(), sent).remaining();
        let drift = LEASE / 100 + Duration::from_millis(2);
        assert!(left + drift <= LEASE * 3 / 4, "{left:?}");
        assert!(left > LEASE / 4, "{left:?}");
    }

    #[test]
    fn a_renewal_counts_from_its_request_and_never_shortens() {
        let sent = Moment::now();
        let lease = taken(&options(), sent);
        sleep(LEASE / 4);
        let before = lease.remaining();
        lease.extend(sent, LEASE / 2);
        assert!(before.abs_diff(lease.remaining()) < LEASE / 10, "not shortened");
        lease.extend(sent.after(LEASE / 4), LEASE);
        assert!(lease.remaining() > before + LEASE / 5);
    }

    #[test]
    fn a_lost_lease_stays_lost() {
        let lease = expired();
        assert!(lease.remaining().is_zero());
        lease.extend(Moment::now(), LEASE);
        assert!(lease.remaining().is_zero(), "renewed too late");
        assert!(lease.expire(), "the first to see it");
        assert!(!lease.expire(), "and no other");
        assert!(!lease.end(), "too late to end it");
        assert_eq!(lease.duty(), NextStep::None);
    }

    #[test]
    fn an_ended_lease_is_not_lost() {
        let lease = taken(&options(), Moment::now());
        let (lost, _) = lease.watch();
        assert!(lease.end());
        lease.lose();
        lease.dismiss_watchers();
        assert!(lost.recv().is_err(), "disconnected, without a message");
        assert!(!lease.end(), "only once");
    }

    #[test]
    fn watchers_hear_of_a_loss_before_and_after_it() {
        let lease = taken(&options(), Moment::now());
        let ((early, first), (second, not_first)) = (lease.watch(), lease.watch());
        assert!(first && !not_first);
        lease.lose();
        let (late, _) = lease.watch();
        let receivers = [early, second, late];
        assert!(receivers.iter().all(|lost| lost.recv().is_ok()));
        assert!(receivers.iter().all(|lost| lost.recv().is_err()), "one message for each");
    }

    #[test]
    fn a_lease_asks_to_be_renewed_after_a_third() {
        let sent = Moment::now();
        let lease = taken(&options(), sent);
        let NextStep::Renew(due) = lease.duty() else { panic!("{:?}", lease.duty()) };
        assert!(due.since(sent) <= LEASE / 3 && due.since(sent) > LEASE / 4);
        assert!(!lease.wants_renewal(sent));
        assert!(lease.wants_renewal(sent.after(LEASE / 3)));
    }

    #[test]
    fn a_lease_that_is_not_to_be_renewed_asks_to_be_ended() {
        let lease = taken(&LockOptions { renew: false, ..options() }, Moment::now());
        assert!(matches!(lease.duty(), NextStep::Expire(_)));
    }

    #[test]
    fn the_age_limit_cuts_the_first_lease_and_the_last() {
        let sent = Moment::now();
        let short = taken(&LockOptions { max_hold: Some(LEASE / 2), ..options() }, sent);
        assert!(short.remaining() < LEASE / 2);
        assert!(matches!(short.duty(), NextStep::Expire(_)));

        let longer = taken(&LockOptions { max_hold: Some(LEASE * 5 / 4), ..options() }, sent);
        assert!(matches!(longer.duty(), NextStep::Renew(_)));
        let later = sent.after(LEASE / 2);
        let span = longer.span(later);
        assert!(span <= LEASE * 3 / 4);
        longer.extend(later, span);
        assert!(
            matches!(longer.duty(), NextStep::Expire(then) if then <= sent.after(LEASE * 5 / 4))
        );
    }
}
