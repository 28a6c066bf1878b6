//! Levels of a hold: a thread may lock again what it has.

use std::sync::Arc;
use std::thread;

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::local::lease::Lease;
use crate::local::retry::{RetryLimit, RetryPolicy};
use crate::local::shared::{Level, Shared, Wait, told};
use crate::store::request::{HoldReply, SetDepth};

impl Shared {
    /// Goes one level deeper, which also finds out whether the hold still stands.
    pub(super) fn nest(&self, lease: Arc<Lease>, wait: Wait) -> Result<Level> {
        let name = lease.name().clone();
        let Some(depth) = lease.depth().checked_add(1) else {
            return Err(Error::invalid("depth", "must not be greater than 4294967295"));
        };
        let bound = match wait {
            Wait::Endless | Wait::No => RetryLimit::Brief,
            Wait::Until(_) => wait.bound(),
        };
        let retry = RetryPolicy::new(bound, &self.config, lease.length());
        self.set_depth(&lease, depth, retry).map_err(|failure| told(failure, "nest", &name))?;
        Ok(Level { lease, depth })
    }

    /// Writes the depth of a hold to the server. `Err(None)` if the hold is lost.
    pub(super) fn set_depth(
        &self,
        lease: &Arc<Lease>,
        depth: u32,
        mut retry: RetryPolicy,
    ) -> Result<(), Option<Failure>> {
        while self.stands(lease) {
            let sent = Moment::now();
            let (id, span, end) = (&lease.id, lease.span(sent), retry.request_end());
            let durable = depth > lease.depth();
            let reply = self.store.set_depth(SetDepth {
                hold: id,
                depth,
                lease: span,
                durable,
                deadline: end,
            });
            match reply {
                Ok(HoldReply::Held) => {
                    lease.extend(sent, span);
                    // A level that the caller does not get must not be waited for by the release.
                    if self.stands(lease) {
                        lease.set_depth(depth);
                        return Ok(());
                    }
                }
                Ok(HoldReply::Gone) => self.lose(lease),
                Err(failure) if failure.is_shortfall() => {
                    // Only for those who look into Redis: the next request sets the depth anyway.
                    let end = retry.request_end();
                    let lease_left = lease.span(Moment::now());
                    drop(self.store.set_depth(SetDepth {
                        hold: id,
                        depth: lease.depth(),
                        lease: lease_left,
                        durable: false,
                        deadline: end,
                    }));
                    return Err(Some(failure));
                }
                Err(failure) => match retry.after(&failure) {
                    Some(pause) => thread::sleep(pause),
                    None => return Err(Some(failure)),
                },
            }
        }
        Err(None)
    }
}
