//! How the thread at the head of a line competes with other clients for a lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::{Moment, end_of};
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::local::acquire_request::{AcquireRequest, SentAcquire};
use crate::local::backoff::Backoff;
use crate::local::identity::Thread;
use crate::local::lease::Lease;
use crate::local::retry::{RetryPolicy, is_outage};
use crate::local::shared::{HeadStart, Shared, Wait};
use crate::local::wait_queues::WaitQueues;
use crate::local::waiter::Waiter;
use crate::store::hold::HoldId;
use crate::store::request::{AcquireReply, Registration, is_granted};

/// For so long a thread lets another client go first after the lock was released for that one.
const YIELD_TIME: Duration = Duration::from_millis(20);

/// One call's attempt to get a lock: a hold in the making.
struct Attempt<'a> {
    /// The next one.
    request: AcquireRequest,
    options: &'a LockOptions,
    wait: Wait,
    retry: RetryPolicy,
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
enum Failed {
    Closed,
    Failed(Failure),
}

impl Failed {
    fn into_error(self, name: &str) -> Error {
        match self {
            Self::Closed => Error::Closed,
            Self::Failed(failure) => failure.into_error("acquire", name),
        }
    }
}

impl Shared {
    /// Competes as the first in line, and leaves the line to the next unless it has got the lock.
    pub(super) fn compete_at_head(
        &self,
        name: &Arc<str>,
        options: &LockOptions,
        wait: Wait,
        ticket: &Waiter,
        arrival: HeadStart,
    ) -> Result<Option<Arc<Lease>>> {
        let head = AtHead::new(self.lines(), name);
        let mut attempt = self.attempt(name, options, wait, arrival);
        let outcome = self.compete(&mut attempt, ticket);
        let succeeded = head.leave(&outcome, wait);
        if !succeeded
            && attempt.request.queue == Registration::Registered
            && matches!(outcome, Ok(None) | Err(Failed::Closed))
        {
            self.leave_queue(&attempt);
        }
        outcome.map_err(|setback| setback.into_error(name))
    }

    /// Competes beside the line.
    pub(super) fn compete_beside(
        &self,
        name: &Arc<str>,
        options: &LockOptions,
        wait: Wait,
        ticket: &Waiter,
    ) -> Result<Option<Arc<Lease>>> {
        let mut attempt = self.attempt(name, options, wait, HeadStart::First);
        self.compete(&mut attempt, ticket).map_err(|setback| setback.into_error(name))
    }

    fn attempt<'a>(
        &self,
        name: &Arc<str>,
        options: &'a LockOptions,
        wait: Wait,
        arrival: HeadStart,
    ) -> Attempt<'a> {
        let polite = arrival == HeadStart::NextPolitely;
        let politeness = if polite { YIELD_TIME } else { Duration::ZERO };
        let retry = RetryPolicy::new(wait.bound(), &self.config, options.first_lease());
        let request = AcquireRequest {
            hold: self.owner.next_hold(name),
            lease: options.first_lease(),
            queue: match arrival {
                HeadStart::First if wait.is_over() => Registration::None,
                HeadStart::First => Registration::IfHeld,
                // The thread in front may have left the client's place to this one.
                HeadStart::Next | HeadStart::NextPolitely => Registration::Registered,
            },
            polite_until: Instant::now() + politeness,
            bounds: retry.bounds(),
        };
        let contended = arrival != HeadStart::First;
        Attempt { request, options, wait, retry, unsettled: false, contended }
    }

    /// Tries until the lock is ours, the wait is over, or the server is given up.
    fn compete(
        &self,
        attempt: &mut Attempt<'_>,
        ticket: &Waiter,
    ) -> Result<Option<Arc<Lease>>, Failed> {
        let outcome = self.bid_until_settled(attempt, ticket);
        if attempt.unsettled && !matches!(outcome, Ok(Some(_))) {
            self.clean(attempt.id(), attempt.options.first_lease(), false);
        }
        outcome
    }

    fn bid_until_settled(
        &self,
        attempt: &mut Attempt<'_>,
        ticket: &Waiter,
    ) -> Result<Option<Arc<Lease>>, Failed> {
        let mut backoff = Backoff::new(self.config.backoff);
        let mut asked: Option<SentAcquire<_>> = None;
        loop {
            let sent = asked.map_or_else(|| attempt.request.ask(&*self.store), SentAcquire::wait);
            let at = sent.at;
            let pause = match self.take_in(attempt, sent) {
                Ok(AcquireReply::Acquired { fence }) => {
                    return Ok(Some(self.won(attempt, fence, at)));
                }
                Ok(AcquireReply::Held { remaining } | AcquireReply::Unknown { remaining }) => {
                    self.take_in_busy(attempt);
                    let pause = until_free(backoff.next().unwrap_or_default(), remaining);
                    let Some(pause) = within(attempt.wait, pause) else { return Ok(None) };
                    pause
                }
                Err(failure) => {
                    self.lines().note(&attempt.id().name, Some(&failure));
                    if failure.is_shortfall() {
                        let end = attempt.retry.request_end();
                        self.take_back(attempt.id(), attempt.options.first_lease(), end);
                    }
                    attempt.retry.after(&failure).ok_or(Failed::Failed(failure))?
                }
            };
            // Nobody tells those who come to the head when `close` has told everybody.
            let slept =
                self.lines().check_open().and_then(|()| ticket.sleep(pause, &attempt.request));
            asked = slept.map_err(|_| Failed::Closed)?;
        }
    }

    /// Takes in that somebody else has the lock.
    fn take_in_busy(&self, attempt: &mut Attempt<'_>) {
        attempt.retry.answered();
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
        SentAcquire { at, queue, reply }: SentAcquire<Result<AcquireReply, Failure>>,
    ) -> Result<AcquireReply, Failure> {
        let span = attempt.options.first_lease();
        if queue != Registration::None {
            attempt.request.queue = Registration::Registered;
        }
        let unknown = match &reply {
            Ok(AcquireReply::Acquired { .. }) => Moment::now() >= Lease::deadline(at, span),
            Ok(bid @ (AcquireReply::Held { .. } | AcquireReply::Unknown { .. })) => {
                self.listen(queue);
                matches!(bid, AcquireReply::Unknown { .. })
            }
            Err(failure) => failure.is_ambiguous(),
        };
        if self.withdraws && (unknown || !is_granted(&reply)) {
            if unknown {
                self.clean(attempt.id(), span, false);
            }
            attempt.request.hold = self.owner.next_hold(&attempt.id().name);
        } else {
            attempt.unsettled |= unknown;
        }
        match reply? {
            AcquireReply::Acquired { .. } if unknown => Err(Failure::late()),
            bid => Ok(bid),
        }
    }

    fn won(&self, attempt: &Attempt<'_>, fence: u64, sent: Moment) -> Arc<Lease> {
        let (id, thread) = (attempt.id().clone(), Thread::current());
        let lease = Arc::new(Lease::new(id, fence, attempt.options, sent, thread));
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
        let io_timeout = self.config.io_timeout(attempt.options.first_lease());
        let last = attempt.wait.deadline().and_then(|deadline| deadline.checked_add(io_timeout));
        let end = last.map_or(end_of(io_timeout), |last| last.min(end_of(io_timeout)));
        if end > Instant::now() {
            let name = &attempt.id().name;
            self.store.unregister(name, self.owner.client(), end).unwrap_or_default();
            // Somebody who began to wait in between is not in the queue now.
            self.lines().knock(name, &*self.store);
        }
    }
}

/// The head of a line, which is left even if the thread panics.
pub(super) struct AtHead<'a> {
    lines: &'a WaitQueues,
    name: &'a Arc<str>,
    leaves: bool,
}

impl<'a> AtHead<'a> {
    pub(super) fn new(lines: &'a WaitQueues, name: &'a Arc<str>) -> Self {
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
    fn leave(self, outcome: &Result<Option<Arc<Lease>>, Failed>, wait: Wait) -> bool {
        match outcome {
            Ok(Some(lease)) => {
                self.lines.hold(lease);
                self.stay();
                false
            }
            Err(Failed::Failed(failure)) => self.give_up(Some(failure), wait),
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
