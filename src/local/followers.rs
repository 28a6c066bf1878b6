//! The threads behind the head of a wait queue, as its requests see them. It asks as well for those
//! right behind it that want the same, and can have it at the same time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::clock::Moment;
use crate::local::hold::Hold;
use crate::local::shared::Shared;
use crate::local::wait_queue::{Head, WaitQueue};
use crate::local::waiter::{Signal, WaitEnd, Waiter};
use crate::store::request::SHARERS_MAX;

/// Returns whether any thread behind a head that acquires the lock may have it in the same tenure,
/// and those for which one request can ask as well.
pub(super) fn of_head(queue: &WaitQueue) -> (bool, Vec<Arc<Waiter>>) {
    let Head::Acquiring(head) = &queue.head else { return (false, Vec::new()) };
    let exist = queue.behind().next().is_some() && !head.caller.terms.tenure.is_zero();
    let wish = |waiter: &Waiter| (waiter.hold.kind, waiter.caller.times.lease);
    let shares = head.hold.kind.shares_with(head.hold.kind);
    let alike = queue.behind().take_while(|waiter| shares && wish(waiter) == wish(head));
    (exist, alike.take(SHARERS_MAX).cloned().collect())
}

/// Gives a thread the hold that a request sent at `sent` has brought it.
pub(super) fn hand_out(shared: &Shared, waiter: &Waiter, fence: u64, sent: Moment) {
    let Waiter { hold, caller, in_doubt, .. } = waiter;
    if !shared.wait_queues.remove(waiter) {
        return shared.clean_up(hold, caller.times.lease, !in_doubt.load(Ordering::Relaxed));
    }
    let hold = Arc::new(Hold::new(hold.clone(), fence, 0, caller, sent));
    hold.in_doubt.store(in_doubt.load(Ordering::Relaxed), Ordering::Relaxed);
    shared.reporter.begin_renewal(&hold);
    waiter.send(Signal::WaitEnd(WaitEnd::HandedOff(hold)));
}

/// Notes that the hold of a thread may exist.
pub(super) fn leave_in_doubt(shared: &Shared, waiter: &Waiter) {
    if !shared.wait_queues.with(&waiter.hold, |queue| queue.mark_in_doubt(waiter)) {
        shared.clean_up(&waiter.hold, waiter.caller.times.lease, false);
    }
}
