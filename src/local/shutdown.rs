//! Shutting a client down: no new holds, and every hold is released.
//!
//! Decides in which order. First the client is closed, so that only calls under way can still
//! acquire a hold. Then the renewer ends all holds that it has, and those that these calls give it,
//! and sends the releases of all of them together. Releases that other threads have begun are
//! theirs: their replies are read here, if they were posted, and the renewer learns how they have
//! gone as from any other call.

use std::time::Duration;

use crate::clock::end_of;
use crate::error::Result;
use crate::local::shared::Shared;

/// Closes the client and releases every hold. Blocks until all are known to have ended, for
/// `timeout` at most; the rest is left to the background then.
pub(crate) fn shut_down(shared: &Shared, timeout: Duration) -> Result<()> {
    shared.identity.check_process()?;
    let deadline = end_of(timeout);
    shared.close();
    shared.renewer.end_all(deadline);
    // A sweep would read them too, a little later.
    shared.store.settle(deadline.min(end_of(shared.times.io_timeout)));
    let outcome = shared.renewer.settle(deadline);
    shared.events.flush(|| true);
    outcome.map_err(|failure| failure.into_error("shut down", ""))
}
