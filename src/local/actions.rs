//! Performs the actions of the machine (`protocol/name.rs`), one by one in its order.

use std::slice;
use std::sync::Arc;

use crate::base::clock::{self, Moment};
use crate::local::parker::{Parker, perform_each};
use crate::local::shared::Shared;
use crate::protocol::call::{CallTimes, Wait};
use crate::protocol::name::{Action, Actions};
use crate::store::hold_id::HoldKind;
use crate::store::request::POST_MOMENT;

/// Performs actions about a name, which is unlocked by now. The times and the wait are those of the
/// call that is under way: no request delays it for longer.
pub(super) fn perform(
    shared: &Shared,
    name: &str,
    times: CallTimes,
    wait: Wait,
    actions: Actions<Arc<Parker>>,
) {
    perform_each(actions, |action| {
        if let Some(action) = shared.reporter.perform(action) {
            perform_one(shared, name, times, wait, action);
        }
    });
}

/// Performs an action for which requests may be sent.
fn perform_one(
    shared: &Shared,
    name: &str,
    times: CallTimes,
    wait: Wait,
    action: Action<Arc<Parker>>,
) {
    let Shared { store, reporter, listening, wait_queues, .. } = shared;
    match action {
        Action::LetNextTry(hold) => shared.let_next_try(&hold),
        Action::Listen(_) => listening.start(&**store),
        Action::RecordFailure(failure, pause) => {
            reporter.outages.record_failed_call(name, &failure, pause);
        }
        Action::Release(hold) => {
            let now = clock::now();
            let write_by = times.request_deadline(wait, now).min(now + POST_MOMENT);
            shared.post_releases(slice::from_ref(&hold), Some(write_by));
            // Only now: a subscriber must not delay the release.
            if let Some(span) = hold.span.take() {
                span.close(hold.is_lost(Moment::now()));
            }
        }
        Action::Unregister(hold) => listening.unregister(&**store, &hold, times),
        Action::WakeLocks => drop(wait_queues.wake(HoldKind::Lock, name)),
        _ => unreachable!("the reporter has performed it"),
    }
}
