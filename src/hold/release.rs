//! How a lock is released.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::end_of;
use crate::error::Result;
use crate::event::Event;
use crate::hold::engine::{Engine, told};
use crate::hold::lease::Lease;
use crate::hold::patience::{Bound, Patience};
use crate::hold::place::News;
use crate::store::failure::Failure;
use crate::store::{HoldId, Standing};

impl Engine {
    /// Gives a level back; the hold ends with the last.
    pub(crate) fn unlock(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<()> {
        let patience = Patience::new(Bound::Brief, &self.config, lease.length());
        self.give_level_back(lease, patience, true)
    }

    /// As `unlock`, within one `io_timeout`. If the next in line gets the lock, it is left to that
    /// thread to see that it does.
    pub(crate) fn unlock_soon(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<()> {
        let end = end_of(self.config.io_timeout(lease.length()));
        let patience = Patience::new(Bound::End(end), &self.config, lease.length());
        self.give_level_back(lease, patience, false)
    }

    fn give_level_back(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        patience: Patience,
        waits: bool,
    ) -> Result<()> {
        self.owner.check_process()?;
        let left = lease.depth().saturating_sub(1);
        lease.set_depth(left);
        let outcome = if left > 0 {
            let outcome = self.set_depth(lease, left, patience);
            self.tell_if_failed(lease, &outcome);
            outcome
        } else {
            self.release(lease, patience, waits)
        };
        outcome.map_err(|failure| told(failure, "release", lease.name()))
    }

    /// Ends a hold. `Err(None)` if it is lost.
    fn release(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        mut patience: Patience,
        waits: bool,
    ) -> Result<(), Option<Failure>> {
        self.table.remove(lease);
        // From here on nothing renews it. What was lost is not released: it is not there, or is
        // being cleaned up.
        if !self.stands(lease) || !lease.end() {
            self.lines().done_with(lease);
            return Err(None);
        }
        let outcome = if let Some((place, handed)) = self.lines().promise(lease) {
            let yields = self.yields(handed);
            let passage = self.send_off(lease, &place.terms, yields, &patience);
            if !waits {
                place.tell(News::Coming(Box::new(passage)));
                return Ok(());
            }
            self.hand_on(passage, &place, &mut patience)
        } else if !waits && self.config.pipelined_release && self.leave(lease, &patience) {
            return Ok(());
        } else {
            let outcome = self.give_back(lease, &mut patience, false);
            self.lines().done_with(lease);
            outcome
        };
        self.settle(lease, &outcome);
        outcome
    }

    /// Leaves it to another thread to release a hold, if one is about to send requests anyway.
    fn leave(self: &Arc<Self>, lease: &Arc<Lease>, patience: &Patience) -> bool {
        let (engine, left) = (self.clone(), lease.clone());
        let then = Box::new(move |answer| {
            let outcome = match answer {
                Ok(Standing::Ours) => Ok(()),
                Ok(Standing::Gone) => Err(None),
                Err(failure) => Err(Some(failure)),
            };
            engine.lines().done_with(&left);
            engine.settle(&left, &outcome);
        });
        let recall = self.store.post_release(&lease.id, patience.request_end(), then);
        recall.map(|recall| self.lines().leave(lease, recall)).is_some()
    }

    /// Does what is left to do when it is known how a hold has ended.
    pub(super) fn settle(&self, lease: &Lease, outcome: &Result<(), Option<Failure>>) {
        if lease.is_unsettled() || matches!(outcome, Err(Some(_))) {
            self.clean(&lease.id, lease.length(), !lease.is_unsettled());
        }
        match outcome {
            Err(None) => lease.tell_watchers(),
            Ok(()) | Err(Some(_)) => lease.dismiss_watchers(),
        }
        let (name, held) = (lease.name(), lease.age());
        match outcome {
            Ok(()) => {
                self.herald.events.emit(|| Event::Released { name: name.to_string(), held });
                log::debug!(target: "leasehold", "released lock {name:?} after {held:?}");
            }
            Err(None) => self.herald.lost(lease, "the server did not know it any more"),
            Err(Some(_)) => self.tell_if_failed(lease, outcome),
        }
    }

    fn tell_if_failed(&self, lease: &Lease, outcome: &Result<(), Option<Failure>>) {
        if let Err(Some(Failure { source, .. })) = outcome {
            let (name, reason) = (lease.name().to_string(), source.to_string());
            log::warn!(target: "leasehold", "releasing lock {name:?} failed: {reason}");
            self.herald.events.emit(|| Event::ReleaseFailed { name, reason });
        }
    }

    /// Ends a hold that stands but does not count, in the background if need be.
    pub(super) fn take_back(&self, id: &HoldId, lease: Duration, end: Instant) {
        if self.store.release(id, end).is_err() {
            self.clean(id, lease, true);
        }
    }

    /// Releases a hold in the store. A repeat that finds nothing after a try without a reply has
    /// found what that try did.
    pub(super) fn give_back(
        &self,
        lease: &Lease,
        patience: &mut Patience,
        mut unknown: bool,
    ) -> Result<(), Option<Failure>> {
        loop {
            match self.store.release(&lease.id, patience.request_end()) {
                Ok(Standing::Gone) if !unknown => return Err(None),
                Ok(_) => return Ok(()),
                Err(failure) => {
                    unknown |= failure.is_ambiguous();
                    match patience.after(&failure) {
                        Some(pause) => thread::sleep(pause),
                        None => return Err(Some(failure)),
                    }
                }
            }
        }
    }
}
