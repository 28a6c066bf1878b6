//! Levels of a hold: a thread may lock again what it has.

use std::sync::Arc;
use std::thread;

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::hold::engine::{Engine, Level, Wait, told};
use crate::hold::lease::Lease;
use crate::hold::patience::{Bound, Patience};
use crate::store::Standing;
use crate::store::failure::Failure;

impl Engine {
    /// Goes one level deeper, which also finds out whether the hold still stands.
    pub(super) fn nest(&self, lease: Arc<Lease>, wait: Wait) -> Result<Level> {
        let name = lease.name().clone();
        let Some(depth) = lease.depth().checked_add(1) else {
            return Err(Error::invalid("depth", "must not be greater than 4294967295"));
        };
        let bound = match wait {
            Wait::Endless | Wait::No => Bound::Brief,
            Wait::Until(_) => wait.bound(),
        };
        let patience = Patience::new(bound, &self.config, lease.length());
        self.set_depth(&lease, depth, patience).map_err(|failure| told(failure, "nest", &name))?;
        Ok(Level { lease, depth })
    }

    /// Writes the depth of a hold to the server. `Err(None)` if the hold is lost.
    pub(super) fn set_depth(
        &self,
        lease: &Arc<Lease>,
        depth: u32,
        mut patience: Patience,
    ) -> Result<(), Option<Failure>> {
        while self.stands(lease) {
            let sent = Moment::now();
            let (id, span, end) = (&lease.id, lease.span(sent), patience.request_end());
            let reply = if depth > lease.depth() {
                self.store.deepen(id, depth, span, end)
            } else {
                self.store.nest(id, depth, span, end)
            };
            match reply {
                Ok(Standing::Ours) => {
                    lease.extend(sent, span);
                    // A level that the caller does not get must not be waited for by the release.
                    if self.stands(lease) {
                        lease.set_depth(depth);
                        return Ok(());
                    }
                }
                Ok(Standing::Gone) => self.lose(lease),
                Err(failure) if failure.is_shortfall() => {
                    // Only for those who look into Redis: the next request sets the depth anyway.
                    let end = patience.request_end();
                    drop(self.store.nest(id, lease.depth(), lease.span(Moment::now()), end));
                    return Err(Some(failure));
                }
                Err(failure) => match patience.after(&failure) {
                    Some(pause) => thread::sleep(pause),
                    None => return Err(Some(failure)),
                },
            }
        }
        Err(None)
    }
}
