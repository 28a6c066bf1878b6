//! A tenure that was kept: the thread at the head of the queue asks for more tokens.
//!
//! Decides whether that thread has the next hold of the tenure, or acquires another one.

use std::slice;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::local::hold::Hold;
use crate::local::shared::Shared;
use crate::local::wait_queue::Ending;
use crate::local::waiter::Waiter;
use crate::store::request::{Acquire, AcquireReply, Registration};

/// Begins the next hold of a tenure that was kept, for the thread at the head. Returns `false` if
/// the tenure has ended: a hold of another one is to be acquired.
pub(super) fn refill(shared: &Shared, head: &Waiter, kept: &Arc<Hold>) -> bool {
    let Shared { reporter, wait_queues, .. } = shared;
    if !kept.suits(&head.caller.terms) {
        give_up(shared, kept);
        return false;
    }
    let sent = Moment::now();
    let (lease, deadline) = (kept.lease.next(sent), head.caller.request_deadline());
    let (holds, registration) = (slice::from_ref(&kept.id), Registration::Kept);
    match shared.store.acquire(Acquire { holds, lease, registration, deadline }) {
        Ok(AcquireReply::Acquired { fence, room, wanted, .. }) => {
            reporter.record_reply(&kept.id.name);
            kept.lease.extend(sent, lease);
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
            return begins;
        }
        Ok(AcquireReply::Held { .. }) => {
            reporter.record_reply(&kept.id.name);
            reporter.lose(kept);
        }
        // The next request finds out whether the server can be reached.
        Err(_) => give_up(shared, kept),
    }
    false
}

/// Releases a tenure that the thread at the head cannot use.
fn give_up(shared: &Shared, kept: &Arc<Hold>) {
    let ending = shared.wait_queues.with(&kept.id, |queue| queue.release(kept));
    if ending != Ending::Lost {
        shared.post_releases(slice::from_ref(kept));
    }
}
