//! How the thread at the head of a line competes with other clients for a lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::{Moment, end_of};
use crate::config::Terms;
use crate::error::{Error, Result};
use crate::hold::backoff::Backoff;
use crate::hold::engine::{Arrival, Engine, Wait};
use crate::hold::lease::Lease;
use crate::hold::line::Lines;
use crate::hold::owner::Thread;
use crate::hold::patience::{Patience, is_outage};
use crate::hold::place::Ticket;
use crate::store::failure::Failure;
use crate::store::{Bid, HoldId, Queue, is_granted};

/// For so long a thread lets another client go first after the lock was released for that one.
const YIELD_TIME: Duration = Duration::from_millis(20);

/// One call's attempt to get a lock: a hold in the making.
struct Attempt<'a> {
    id: HoldId,
    terms: &'a Terms,
    wait: Wait,
    /// Whether a request without a reply may stand in Redis as a hold, or may come to.
    unsettled: bool,
    queue: Queue,
    /// Whether anybody was told that the lock is held by somebody else.
    contended: bool,
    polite_until: Instant,
}

/// Why a thread stops to compete.
enum Setback {
    Closed,
    Failed(Failure),
}

impl Setback {
    fn into_error(self, name: &str) -> Error {
        match self {
            Self::Closed => Error::Closed,
            Self::Failed(failure) => failure.into_error("acquire", name),
        }
    }
}

impl Engine {
    /// Competes as the first in line, and leaves the line to the next unless it has got the lock.
    pub(super) fn compete_at_head(
        &self,
        name: &Arc<str>,
        terms: &Terms,
        wait: Wait,
        ticket: &Ticket,
        arrival: Arrival,
    ) -> Result<Option<Arc<Lease>>> {
        let head = AtHead::new(self.lines(), name);
        let mut attempt = self.attempt(name, terms, wait, arrival);
        let outcome = self.compete(&mut attempt, ticket);
        let succeeded = head.leave(&outcome, wait);
        if !succeeded
            && attempt.queue == Queue::Waits
            && matches!(outcome, Ok(None) | Err(Setback::Closed))
        {
            self.leave_queue(&attempt);
        }
        outcome.map_err(|setback| setback.into_error(name))
    }

    /// Competes beside the line.
    pub(super) fn compete_beside(
        &self,
        name: &Arc<str>,
        terms: &Terms,
        wait: Wait,
        ticket: &Ticket,
    ) -> Result<Option<Arc<Lease>>> {
        let mut attempt = self.attempt(name, terms, wait, Arrival::First);
        self.compete(&mut attempt, ticket).map_err(|setback| setback.into_error(name))
    }

    fn attempt<'a>(
        &self,
        name: &Arc<str>,
        terms: &'a Terms,
        wait: Wait,
        arrival: Arrival,
    ) -> Attempt<'a> {
        let polite = arrival == Arrival::NextPolitely;
        let politeness = if polite { YIELD_TIME } else { Duration::ZERO };
        Attempt {
            id: self.owner.next_hold(name),
            terms,
            wait,
            unsettled: false,
            queue: match arrival {
                Arrival::First if wait.is_over() => Queue::Out,
                Arrival::First => Queue::Join,
                // The thread in front may have left the client's place to this one.
                Arrival::Next | Arrival::NextPolitely => Queue::Waits,
            },
            contended: arrival != Arrival::First,
            polite_until: Instant::now() + politeness,
        }
    }

    /// Tries until the lock is ours, the wait is over, or the server is given up.
    fn compete(
        &self,
        attempt: &mut Attempt<'_>,
        ticket: &Ticket,
    ) -> Result<Option<Arc<Lease>>, Setback> {
        let outcome = self.bid_until_settled(attempt, ticket);
        if attempt.unsettled && !matches!(outcome, Ok(Some(_))) {
            self.clean(&attempt.id, attempt.terms.span(), false);
        }
        outcome
    }

    fn bid_until_settled(
        &self,
        attempt: &mut Attempt<'_>,
        ticket: &Ticket,
    ) -> Result<Option<Arc<Lease>>, Setback> {
        let (wait, span) = (attempt.wait, attempt.terms.span());
        let mut patience = Patience::new(wait.bound(), &self.config, span);
        let mut backoff = Backoff::new(self.config.backoff);
        loop {
            let pause = match self.bid(attempt, patience.request_end()) {
                Ok((Bid::Won { fence }, sent)) => {
                    return Ok(Some(self.won(attempt, fence, sent)));
                }
                Ok((Bid::Busy { remaining } | Bid::Unclear { remaining }, _)) => {
                    patience.answered();
                    self.lines().note(&attempt.id.name, None);
                    if !attempt.contended {
                        attempt.contended = true;
                        self.tell_contended(&attempt.id.name);
                    }
                    let pause = until_free(backoff.next().unwrap_or_default(), remaining);
                    match wait {
                        Wait::No => return Ok(None),
                        Wait::Endless => pause,
                        Wait::Until(deadline) => {
                            let left = deadline.saturating_duration_since(Instant::now());
                            if left.is_zero() {
                                return Ok(None);
                            }
                            pause.min(left)
                        }
                    }
                }
                Err(failure) => {
                    self.lines().note(&attempt.id.name, Some(&failure));
                    if failure.is_shortfall() {
                        self.take_back(&attempt.id, span, patience.request_end());
                    }
                    patience.after(&failure).ok_or(Setback::Failed(failure))?
                }
            };
            ticket.sleep(pause).map_err(|_| Setback::Closed)?;
        }
    }

    /// Asks for the lock once. A reply that comes when the lease it brings is already over counts
    /// as none: a pause of this process must not bring forth a guard of nothing.
    fn bid(&self, attempt: &mut Attempt<'_>, end: Instant) -> Result<(Bid, Moment), Failure> {
        let (sent, span) = (Moment::now(), attempt.terms.span());
        let polite = Instant::now() < attempt.polite_until;
        let queue = if polite { Queue::Yields } else { attempt.queue };
        let reply = self.store.acquire(&attempt.id, span, queue, end);
        if queue != Queue::Out {
            attempt.queue = Queue::Waits;
        }
        let unknown = match &reply {
            Ok(Bid::Won { .. }) => Moment::now() >= Lease::deadline(sent, span),
            Ok(bid @ (Bid::Busy { .. } | Bid::Unclear { .. })) => {
                self.listen(queue);
                matches!(bid, Bid::Unclear { .. })
            }
            Err(failure) => failure.is_ambiguous(),
        };
        if self.store.takes_back() && (unknown || !is_granted(&reply)) {
            if unknown {
                self.clean(&attempt.id, span, false);
            }
            attempt.id = self.owner.next_hold(&attempt.id.name);
        } else {
            attempt.unsettled |= unknown;
        }
        match reply? {
            Bid::Won { .. } if unknown => Err(Failure::late()),
            bid => Ok((bid, sent)),
        }
    }

    fn won(&self, attempt: &Attempt<'_>, fence: u64, sent: Moment) -> Arc<Lease> {
        let (id, thread) = (attempt.id.clone(), Thread::current());
        let lease = Arc::new(Lease::new(id, fence, attempt.terms, sent, thread));
        if attempt.unsettled {
            lease.unsettle();
        }
        self.table.insert(&lease);
        self.renewer.keep(&lease);
        lease
    }

    /// Takes the client out of the queue in Redis if there is time. If not, or should it fail, the
    /// first wake-up does it.
    fn leave_queue(&self, attempt: &Attempt<'_>) {
        let io_timeout = self.config.io_timeout(attempt.terms.span());
        let last = attempt.wait.deadline().and_then(|deadline| deadline.checked_add(io_timeout));
        let end = last.map_or(end_of(io_timeout), |last| last.min(end_of(io_timeout)));
        if end > Instant::now() {
            let name = &attempt.id.name;
            self.store.leave(name, self.owner.client(), end).unwrap_or_default();
            // Somebody who began to wait in between is not in the queue now.
            self.lines().knock(name);
        }
    }
}

/// The head of a line, which is left even if the thread panics.
pub(super) struct AtHead<'a> {
    lines: &'a Lines,
    name: &'a Arc<str>,
    leaves: bool,
}

impl<'a> AtHead<'a> {
    pub(super) fn new(lines: &'a Lines, name: &'a Arc<str>) -> Self {
        Self { lines, name, leaves: true }
    }

    /// Leaves it to others to leave the head.
    pub(super) fn stay(mut self) {
        self.leaves = false;
    }

    /// Leaves without the lock, perhaps because of a failure. Tells whether another thread is at
    /// the head now.
    pub(super) fn give_up(mut self, failure: Option<&Failure>, wait: Wait) -> bool {
        self.leaves = false;
        let outage = failure.filter(|failure| wait == Wait::Endless && is_outage(failure));
        self.lines.give_up(self.name, outage)
    }

    /// Leaves, or stays with the lock. Tells whether another thread is at the head now.
    fn leave(self, outcome: &Result<Option<Arc<Lease>>, Setback>, wait: Wait) -> bool {
        match outcome {
            Ok(Some(lease)) => {
                self.lines.hold(lease);
                self.stay();
                false
            }
            Err(Setback::Failed(failure)) => self.give_up(Some(failure), wait),
            _ => self.give_up(None, wait),
        }
    }
}

impl Drop for AtHead<'_> {
    fn drop(&mut self) {
        if self.leaves {
            self.lines.give_up(self.name, None);
        }
    }
}

/// The pause before asking again: no longer than the holder's lease can last, and a little longer
/// than that, for Redis counts whole milliseconds.
fn until_free(pause: Duration, remaining: Option<Duration>) -> Duration {
    remaining.map_or(pause, |remaining| pause.min(remaining + Duration::from_millis(1)))
}
