//! What a call reports to the counters, the events and the log: that it has found a lock held, and
//! how it has ended without getting it. A hold is reported when it begins.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::event::Event;
use crate::local::call::Wait;
use crate::local::shared::Shared;

/// Reports that a call has found a lock held, unless it was `reported` of this call already.
pub(super) fn report_contended(shared: &Shared, name: &Arc<str>, reported: &Cell<bool>) {
    if reported.replace(true) {
        return;
    }
    shared.counters.contended.add(1);
    shared.events.emit(|| Event::Contended { name: name.to_string() });
    shared.events.debug(|| format!("lock {name:?} is held by another owner"));
}

/// Reports that a call has ended without a hold.
pub(super) fn report_outcome<T>(
    shared: &Shared,
    name: &str,
    wait: Wait,
    outcome: &Result<Option<T>>,
    waited: Duration,
) {
    let Shared { counters, events, .. } = shared;
    match outcome {
        // That the lock is held was reported when the only attempt found it so.
        Ok(None) if wait == Wait::No => counters.busy.add(1),
        Ok(None) => {
            counters.timed_out.add(1);
            events.emit(|| Event::TimedOut { name: name.to_string(), waited });
            events.debug(|| format!("waited for lock {name:?} in vain, for {waited:?}"));
        }
        Err(error) if error.is_failure() => {
            counters.failed.add(1);
            let reason = || error.with_causes();
            events.emit(|| Event::Failed { name: name.to_string(), waited, reason: reason() });
            events.debug(|| format!("lock {name:?} failed after {waited:?}: {}", reason()));
        }
        Ok(_) | Err(_) => {}
    }
}
