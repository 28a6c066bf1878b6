//! How a lock is released, or handed on to the next thread in line.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::{Moment, end_of};
use crate::error::Result;
use crate::event::Event;
use crate::hold::engine::{Engine, told};
use crate::hold::lease::Lease;
use crate::hold::line::Handed;
use crate::hold::patience::{Bound, Patience, is_outage};
use crate::hold::place::Place;
use crate::store::{Failure, Handover, HoldId, Standing};

/// For so long a lock may be handed on inside this process while another client waits for it.
const HAND_ON_TIME: Duration = Duration::from_millis(100);

impl Engine {
    /// Gives a level back; the hold ends with the last.
    pub(crate) fn unlock(&self, lease: &Arc<Lease>) -> Result<()> {
        self.unlock_within(Bound::Brief, lease)
    }

    /// As `unlock`, within one `io_timeout`.
    pub(crate) fn unlock_soon(&self, lease: &Arc<Lease>) -> Result<()> {
        let end = end_of(self.config.io_timeout(lease.length()));
        self.unlock_within(Bound::End(end), lease)
    }

    fn unlock_within(&self, bound: Bound, lease: &Arc<Lease>) -> Result<()> {
        self.owner.check_process()?;
        let patience = Patience::new(bound, &self.config, lease.length());
        let left = lease.depth().saturating_sub(1);
        lease.set_depth(left);
        let name = lease.name();
        let outcome = if left > 0 {
            self.set_depth(lease, left, patience)
        } else {
            self.release(lease, patience)
        };
        if let Err(Some(Failure { source, .. })) = &outcome {
            let (name, reason) = (name.to_string(), source.to_string());
            log::warn!(target: "leasehold", "releasing lock {name:?} failed: {reason}");
            self.herald.events.emit(|| Event::ReleaseFailed { name, reason });
        }
        outcome.map_err(|failure| told(failure, "release", name))
    }

    /// Ends a hold. `Err(None)` if it is lost.
    fn release(&self, lease: &Arc<Lease>, mut patience: Patience) -> Result<(), Option<Failure>> {
        self.table.remove(lease);
        // From here on nothing renews it. What was lost is not released: it is not there, or is
        // being cleaned up.
        if !self.stands(lease) || !lease.end() {
            self.lines().done_with(lease);
            return Err(None);
        }
        let outcome = if let Some((place, handed)) = self.lines().promise(lease) {
            self.hand_on(lease, &place, handed, &mut patience)
        } else {
            let outcome = self.give_back(lease, &mut patience);
            self.lines().done_with(lease);
            outcome
        };
        if lease.is_unsettled() || matches!(outcome, Err(Some(_))) {
            self.clean(&lease.id, lease.length(), !lease.is_unsettled());
        }
        let (name, held) = (lease.name(), lease.age());
        match &outcome {
            Err(None) => lease.tell_watchers(),
            Ok(()) | Err(Some(_)) => lease.dismiss_watchers(),
        }
        match outcome {
            Ok(()) => {
                self.herald.events.emit(|| Event::Released { name: name.to_string(), held });
                log::debug!(target: "leasehold", "released lock {name:?} after {held:?}");
            }
            Err(None) => self.herald.lost(lease, "the server did not know it any more"),
            Err(Some(_)) => {}
        }
        outcome
    }

    /// Releases a hold in the store. A repeat that finds nothing after a try without a reply has
    /// found what that try did.
    fn give_back(&self, lease: &Lease, patience: &mut Patience) -> Result<(), Option<Failure>> {
        let mut unknown = false;
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

    /// Begins a hold for the next in line in the place of one that ends: one request instead of
    /// two. Whatever happens, that thread is told: it has the lock, or has to ask for itself.
    fn hand_on(
        &self,
        lease: &Lease,
        place: &Place,
        handed: Handed,
        patience: &mut Patience,
    ) -> Result<(), Option<Failure>> {
        let to = self.owner.next_hold(lease.name());
        let often = handed.times >= self.config.hand_ons;
        let yields = often || handed.since.elapsed() >= HAND_ON_TIME;
        let (outcome, polite) = match self.transfer(lease, &to, place, yields, patience) {
            Ok(Transfer { answer: Handover::Done { fence }, sent, unknown }) => {
                let (terms, thread) = (&place.terms, place.thread.clone());
                let next = Arc::new(Lease::new(to, fence, terms, sent, thread));
                if unknown {
                    next.unsettle();
                }
                if self.stands(&next) {
                    self.table.insert(&next);
                    self.renewer.keep(&next);
                    self.lines().give(place, &next);
                    return Ok(());
                }
                (Ok(()), false)
            }
            Ok(Transfer { answer: Handover::Gone, unknown, .. }) => {
                (if unknown { Ok(()) } else { Err(None) }, false)
            }
            Ok(Transfer { answer: Handover::Yielded, .. }) => (Ok(()), true),
            Err(failure) if is_outage(&failure) => (Err(Some(failure)), false),
            // A server that is out of memory begins no hold, but ends one.
            Err(_) => (self.give_back(lease, patience), false),
        };
        self.lines().call(lease.name(), place, polite);
        outcome
    }

    /// Asks the store to replace one hold by another until there is an answer.
    fn transfer(
        &self,
        from: &Lease,
        to: &HoldId,
        place: &Place,
        yields: bool,
        patience: &mut Patience,
    ) -> Result<Transfer, Failure> {
        let span = place.terms.span();
        let mut unknown = false;
        loop {
            let (sent, end) = (Moment::now(), patience.request_end());
            let failure = match self.store.transfer(&from.id, to, span, yields, end) {
                Ok(answer) => return Ok(Transfer { answer, sent, unknown }),
                Err(failure) => failure,
            };
            unknown |= failure.is_ambiguous();
            let Some(pause) = patience.after(&failure) else {
                if unknown {
                    self.clean(to, span, false);
                }
                return Err(failure);
            };
            thread::sleep(pause);
        }
    }
}

/// How a transfer was answered.
struct Transfer {
    answer: Handover,
    /// When the request was sent that got the answer.
    sent: Moment,
    /// Whether one was sent before that got none.
    unknown: bool,
}
