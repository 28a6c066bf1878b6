//! Performs the actions of the machine (`protocol/name.rs`), one by one in its order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{slice, vec};

use crate::base::clock::{self, Moment};
use crate::local::parker::{Parker, Signal, tell};
use crate::local::shared::Shared;
use crate::protocol::call::{CallTimes, Wait};
use crate::protocol::name::Action;
use crate::store::hold_id::HoldKind;
use crate::store::request::POST_MOMENT;

/// Performs actions about a name, which is unlocked by now. The times and the wait are those of the
/// call that is under way: no request delays it for longer.
pub(super) fn perform(
    shared: &Shared,
    name: &str,
    times: CallTimes,
    wait: Wait,
    actions: Vec<Action<Arc<Parker>>>,
) {
    let mut left = Left(actions.into_iter());
    for action in left.0.by_ref() {
        perform_one(shared, name, times, wait, action);
    }
}

/// The actions that are left.
struct Left(vec::IntoIter<Action<Arc<Parker>>>);

/// If one panics, parked calls are still told what others say: nothing else would wake them.
impl Drop for Left {
    fn drop(&mut self) {
        tell(self.0.by_ref());
    }
}

fn perform_one(
    shared: &Shared,
    name: &str,
    times: CallTimes,
    wait: Wait,
    action: Action<Arc<Parker>>,
) {
    let Shared { store, reporter, listening, wait_queues, counters, .. } = shared;
    match action {
        Action::CountMissedWakeup => {
            counters.missed_wakeups.fetch_add(1, Ordering::Relaxed);
        }
        // That it is lost was reported while the name was locked.
        Action::End(lost) => reporter.clean_up(slice::from_ref(&lost)),
        Action::Expire(tenure) => drop(reporter.expire(&tenure)),
        Action::Keep(tenure) => {
            counters.held.fetch_sub(1, Ordering::Relaxed);
            reporter.renewer.look_after_kept(&tenure);
        }
        Action::LetNextTry(hold) => shared.let_next_try(&hold),
        Action::Listen(_) => listening.start(&**store),
        Action::Lose(tenure) => reporter.lose(&tenure),
        Action::Owe(debt) => reporter.renewer.pay(debt),
        Action::RecordFailure(failure, pause) => {
            reporter.outages.record_failed_call(name, &failure, pause);
        }
        Action::Release(hold) => {
            reporter.count_end(&hold.current.lock());
            let now = clock::now();
            let write_by = times.request_deadline(wait, now).min(now + POST_MOMENT);
            shared.post_releases(slice::from_ref(&hold), Some(write_by));
            // Only now: a subscriber must not delay the release.
            if let Some(span) = hold.span.take() {
                span.close(hold.lease.is_lost(Moment::now()));
            }
        }
        // The hold was reported while the name was locked.
        Action::ReportHandoff(ended) => {
            if let Some(span) = ended.span {
                span.close(false);
            }
        }
        Action::Tell(parker, next) => parker.send(Signal::Next(next)),
        Action::Unregister(hold) => listening.unregister(&**store, &hold, times),
        Action::WakeLocks => drop(wait_queues.wake(HoldKind::Lock, name)),
    }
}
