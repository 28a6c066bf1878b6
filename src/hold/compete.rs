//! How the thread at the head of a line competes with other clients for a lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::{Moment, end_of};
use crate::config::Terms;
use crate::error::{Error, Result};
use crate::hold::backoff::Backoff;
use crate::hold::engine::{Arrival, Engine, Wait};
use crate::hold::lease::Lease;
use crate::hold::lines::Lines;
use crate::hold::owner::Thread;
use crate::hold::patience::{Patience, is_outage};
use crate::hold::place::Ticket;
use crate::hold::request::{Request, Sent};
use crate::store::failure::Failure;
use crate::store::{Bid, HoldId, Queue, is_granted};

/// For so long a thread lets another client go first after the lock was released for that one.
const YIELD_TIME: Duration = Duration::from_millis(20);

/// One call's attempt to get a lock: a hold in the making.
struct Attempt<'a> {
    /// The next one.
    request: Request,
    terms: &'a Terms,
    wait: Wait,
    patience: Patience,
    /// Whether a request without a reply may stand in Redis as a hold, or may come to.
    unsettled: bool,
    /// Whether anybody was told that the lock is held by somebody else.
    contended: bool,
}

impl Attempt<'_> {
    fn id(&self) -> &HoldId {
        &self.request.hold
    }
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
            && attempt.request.queue == Queue::Waits
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
        let patience = Patience::new(wait.bound(), &self.config, terms.span());
        let request = Request {
            hold: self.owner.next_hold(name),
            lease: terms.span(),
            queue: match arrival {
                Arrival::First if wait.is_over() => Queue::Out,
                Arrival::First => Queue::Join,
                // The thread in front may have left the client's place to this one.
                Arrival::Next | Arrival::NextPolitely => Queue::Waits,
            },
            polite_until: Instant::now() + politeness,
            bounds: patience.bounds(),
        };
        let contended = arrival != Arrival::First;
        Attempt { request, terms, wait, patience, unsettled: false, contended }
    }

    /// Tries until the lock is ours, the wait is over, or the server is given up.
    fn compete(
        &self,
        attempt: &mut Attempt<'_>,
        ticket: &Ticket,
    ) -> Result<Option<Arc<Lease>>, Setback> {
        let outcome = self.bid_until_settled(attempt, ticket);
        if attempt.unsettled && !matches!(outcome, Ok(Some(_))) {
            self.clean(attempt.id(), attempt.terms.span(), false);
        }
        outcome
    }

    fn bid_until_settled(
        &self,
        attempt: &mut Attempt<'_>,
        ticket: &Ticket,
    ) -> Result<Option<Arc<Lease>>, Setback> {
        let mut backoff = Backoff::new(self.config.backoff);
        let mut asked: Option<Sent<_>> = None;
        loop {
            let sent = asked.map_or_else(|| attempt.request.ask(&*self.store), Sent::wait);
            let at = sent.at;
            let pause = match self.take_in(attempt, sent) {
                Ok(Bid::Won { fence }) => return Ok(Some(self.won(attempt, fence, at))),
                Ok(Bid::Busy { remaining } | Bid::Unclear { remaining }) => {
                    self.take_in_busy(attempt);
                    let pause = until_free(backoff.next().unwrap_or_default(), remaining);
                    let Some(pause) = within(attempt.wait, pause) else { return Ok(None) };
                    pause
                }
                Err(failure) => {
                    self.lines().note(&attempt.id().name, Some(&failure));
                    if failure.is_shortfall() {
                        let end = attempt.patience.request_end();
                        self.take_back(attempt.id(), attempt.terms.span(), end);
                    }
                    attempt.patience.after(&failure).ok_or(Setback::Failed(failure))?
                }
            };
            // Nobody tells those who come to the head when `close` has told everybody.
            let slept =
                self.lines().check_open().and_then(|()| ticket.sleep(pause, &attempt.request));
            asked = slept.map_err(|_| Setback::Closed)?;
        }
    }

    /// Takes in that somebody else has the lock.
    fn take_in_busy(&self, attempt: &mut Attempt<'_>) {
        attempt.patience.answered();
        self.lines().note(&attempt.id().name, None);
        if !attempt.contended {
            attempt.contended = true;
            self.tell_contended(&attempt.id().name);
        }
    }

    /// Takes in the reply to a request. One that comes when the lease it brings is already over
    /// counts as none: a pause of this process must not bring forth a guard of nothing.
    fn take_in(
        &self,
        attempt: &mut Attempt<'_>,
        Sent { at, queue, reply }: Sent<Result<Bid, Failure>>,
    ) -> Result<Bid, Failure> {
        let span = attempt.terms.span();
        if queue != Queue::Out {
            attempt.request.queue = Queue::Waits;
        }
        let unknown = match &reply {
            Ok(Bid::Won { .. }) => Moment::now() >= Lease::deadline(at, span),
            Ok(bid @ (Bid::Busy { .. } | Bid::Unclear { .. })) => {
                self.listen(queue);
                matches!(bid, Bid::Unclear { .. })
            }
            Err(failure) => failure.is_ambiguous(),
        };
        if self.store.takes_back() && (unknown || !is_granted(&reply)) {
            if unknown {
                self.clean(attempt.id(), span, false);
            }
            attempt.request.hold = self.owner.next_hold(&attempt.id().name);
        } else {
            attempt.unsettled |= unknown;
        }
        match reply? {
            Bid::Won { .. } if unknown => Err(Failure::late()),
            bid => Ok(bid),
        }
    }

    fn won(&self, attempt: &Attempt<'_>, fence: u64, sent: Moment) -> Arc<Lease> {
        let (id, thread) = (attempt.id().clone(), Thread::current());
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
            let name = &attempt.id().name;
            self.store.leave(name, self.owner.client(), end).unwrap_or_default();
            // Somebody who began to wait in between is not in the queue now.
            self.lines().knock(name, &*self.store);
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

/// As much of a pause as the wait has time for; `None` if it is over.
fn within(wait: Wait, pause: Duration) -> Option<Duration> {
    match wait {
        Wait::No => None,
        Wait::Endless => Some(pause),
        Wait::Until(deadline) => {
            let left = deadline.saturating_duration_since(Instant::now());
            (!left.is_zero()).then(|| pause.min(left))
        }
    }
}

/// The pause before asking again: no longer than the holder's lease can last, and a little longer
/// than that, for Redis counts whole milliseconds.
fn until_free(pause: Duration, remaining: Option<Duration>) -> Duration {
    remaining.map_or(pause, |remaining| pause.min(remaining + Duration::from_millis(1)))
}
