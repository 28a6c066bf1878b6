//! What the thread at the head of a wait queue asks for besides a hold of its own: holds for the
//! threads right behind it that want the same and can have it at the same time, and more tokens for
//! a tenure that was kept.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::local::hold::Hold;
use crate::local::shared::Shared;
use crate::local::wait_queue::{Ending, Head, WaitQueue};
use crate::local::waiter::{Signal, WaitEnd, Waiter};
use crate::store::request::{Acquire, AcquireReply, Registration, SHARERS_MAX};

/// Returns whether any thread behind a head that acquires the lock may have it in the same tenure,
/// and those for which one request can ask as well.
pub(super) fn followers_of_head(queue: &WaitQueue) -> (bool, Vec<Arc<Waiter>>) {
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
pub(super) fn mark_in_doubt(shared: &Shared, waiter: &Waiter) {
    if !shared.wait_queues.with(&waiter.hold, |queue| queue.mark_in_doubt(waiter)) {
        shared.clean_up(&waiter.hold, waiter.caller.times.lease, false);
    }
}

/// Begins the next hold of a tenure that was kept, for the thread at the head. Returns `false` if
/// the tenure has ended: a hold of another one is to be acquired. After a failure, too.
pub(super) fn refill(shared: &Shared, head: &Waiter, kept: &Arc<Hold>) -> Result<bool, Failure> {
    let Shared { reporter, wait_queues, .. } = shared;
    if !kept.suits(&head.caller.terms) {
        give_up(shared, head, kept);
        return Ok(false);
    }
    let sent = Moment::now();
    let (lease, deadline) = (kept.lease.next(sent), head.caller.request_deadline());
    let (holds, registration) = (slice::from_ref(&kept.id), Registration::Kept);
    match shared.store.acquire(Acquire { holds, lease, registration, deadline }) {
        Ok(AcquireReply::Acquired { fence, room, wanted, .. }) => {
            reporter.record_reply(&kept.id.name);
            kept.lease.extend(sent, lease);
            // A pause of this process must not bring forth a guard of nothing.
            if reporter.expire(kept) {
                return Ok(false);
            }
            kept.add_fences(fence, room);
            if wanted {
                kept.set_wanted();
            }
            let begins = reporter.begin_kept(kept, &head.caller);
            if begins {
                reporter.begin_at_head(kept, Some(head));
                // It may have been lost before it was at the head, where it was not missed.
                if !kept.lease.is_open() {
                    wait_queues.end_hold(kept);
                }
            }
            Ok(begins)
        }
        Ok(AcquireReply::Held { .. }) => {
            reporter.record_reply(&kept.id.name);
            reporter.lose(kept);
            Ok(false)
        }
        Err(failure) => {
            give_up(shared, head, kept);
            Err(failure)
        }
    }
}

/// Releases a tenure that the thread at the head cannot use.
fn give_up(shared: &Shared, head: &Waiter, kept: &Arc<Hold>) {
    let ending = shared.wait_queues.with(&kept.id, |queue| queue.release(kept));
    if ending != Ending::Lost {
        shared.post_releases(slice::from_ref(kept), Some(head.caller.write_by()));
    }
}
