//! How a lock is released.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::end_of;
use crate::error::Result;
use crate::event::Event;
use crate::failure::Failure;
use crate::local::lease::Lease;
use crate::local::retry::{RetryLimit, RetryPolicy};
use crate::local::shared::{Shared, told};
use crate::local::waiter::Signal;
use crate::store::hold::HoldId;
use crate::store::request::{HoldReply, PostedRelease};

impl Shared {
    /// Gives a level back; the hold ends with the last.
    pub(crate) fn unlock(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<()> {
        let retry = RetryPolicy::new(RetryLimit::Brief, &self.config, lease.length());
        self.give_level_back(lease, retry, true)
    }

    /// As `unlock`, within one `io_timeout`. If the next in line gets the lock, it is left to that
    /// thread to see that it does.
    pub(crate) fn unlock_soon(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<()> {
        let end = end_of(self.config.io_timeout(lease.length()));
        let retry = RetryPolicy::new(RetryLimit::End(end), &self.config, lease.length());
        self.give_level_back(lease, retry, false)
    }

    fn give_level_back(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        retry: RetryPolicy,
        waits: bool,
    ) -> Result<()> {
        self.owner.check_process()?;
        let left = lease.depth().saturating_sub(1);
        lease.set_depth(left);
        let outcome = if left > 0 {
            let outcome = self.set_depth(lease, left, retry);
            self.tell_if_failed(lease, &outcome);
            outcome
        } else {
            self.release(lease, retry, waits)
        };
        outcome.map_err(|failure| told(failure, "release", lease.name()))
    }

    /// Ends a hold. `Err(None)` if it is lost.
    fn release(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        mut retry: RetryPolicy,
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
            let passage = self.send_off(lease, &place.options, yields, &retry);
            if !waits {
                place.tell(Signal::Coming(Box::new(passage)));
                return Ok(());
            }
            self.hand_on(passage, &place, &mut retry)
        } else if !waits && self.config.pipelined_release && self.leave(lease, &retry) {
            return Ok(());
        } else {
            let outcome = self.give_back(lease, &mut retry, false);
            self.lines().done_with(lease);
            outcome
        };
        self.settle(lease, &outcome);
        outcome
    }

    /// Leaves it to another thread to release a hold, if one is about to send requests anyway.
    fn leave(self: &Arc<Self>, lease: &Arc<Lease>, retry: &RetryPolicy) -> bool {
        let (engine, left) = (self.clone(), lease.clone());
        let then = Box::new(move |answer| {
            let outcome = match answer {
                Ok(HoldReply::Held) => Ok(()),
                Ok(HoldReply::Gone) => Err(None),
                Err(failure) => Err(Some(failure)),
            };
            engine.lines().done_with(&left);
            engine.settle(&left, &outcome);
        });
        let deadline = retry.request_end();
        let release = PostedRelease { hold: &lease.id, deadline, on_reply: then };
        let recall = self.store.post_release(release);
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
                self.losses.events.emit(|| Event::Released { name: name.to_string(), held });
                log::debug!(target: "leasehold", "released lock {name:?} after {held:?}");
            }
            Err(None) => self.losses.lost(lease, "the server did not know it any more"),
            Err(Some(_)) => self.tell_if_failed(lease, outcome),
        }
    }

    fn tell_if_failed(&self, lease: &Lease, outcome: &Result<(), Option<Failure>>) {
        if let Err(Some(Failure { source, .. })) = outcome {
            let (name, reason) = (lease.name().to_string(), source.to_string());
            log::warn!(target: "leasehold", "releasing lock {name:?} failed: {reason}");
            self.losses.events.emit(|| Event::ReleaseFailed { name, reason });
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
        retry: &mut RetryPolicy,
        mut unknown: bool,
    ) -> Result<(), Option<Failure>> {
        loop {
            match self.store.release(&lease.id, retry.request_end()) {
                Ok(HoldReply::Gone) if !unknown => return Err(None),
                Ok(_) => return Ok(()),
                Err(failure) => {
                    unknown |= failure.is_ambiguous();
                    match retry.after(&failure) {
                        Some(pause) => thread::sleep(pause),
                        None => return Err(Some(failure)),
                    }
                }
            }
        }
    }
}
