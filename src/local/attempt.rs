//! The attempts of one call to acquire a lock from the store: a hold in the making.
//!
//! Decides what the next request says, and what a reply means for the requests after it: whether
//! the client is registered as waiting, whether a hold may exist without a reply, and whether the
//! next request is for another hold. When to try again is decided in `acquire.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::{Moment, end_of};
use crate::config::Mechanism;
use crate::event::Event;
use crate::failure::Failure;
use crate::local::call::{Caller, Wait};
use crate::local::ending;
use crate::local::lease::{Lease, local_deadline};
use crate::local::pending::{AcquireRequest, SentAcquire};
use crate::local::retry::RetryPolicy;
use crate::local::shared::Shared;
use crate::store::hold::HoldKind;
use crate::store::request::{AcquireReply, Registration, WaitingClient, is_granted};

/// For so long a thread yields to another client after the lock was released for that one.
const YIELD_TIME: Duration = Duration::from_millis(20);

/// How a thread has come to try for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Without waiting behind another thread.
    First,
    /// From behind another thread.
    Next,
    /// As `Next`, after the lock was released for another client.
    NextYielding,
}

/// What the attempts of one call have in common.
pub(super) struct Attempt<'a> {
    pub(super) shared: &'a Shared,
    caller: &'a Caller,
    pub(super) wait: Wait,
    /// The next one.
    pub(super) request: AcquireRequest,
    pub(super) retry: RetryPolicy,
    /// Whether a request without a reply may have begun the hold, or may still begin it.
    in_doubt: bool,
    /// Whether it was reported that the lock is held.
    contended: bool,
    /// Whether the release of an earlier hold of this client was not confirmed when the last
    /// request was sent.
    after_release: bool,
}

impl Arrival {
    pub(super) fn next(yields: bool) -> Self {
        if yields { Self::NextYielding } else { Self::Next }
    }
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        name: &Arc<str>,
        caller: &'a Caller,
        wait: Wait,
        arrival: Arrival,
        after_release: bool,
    ) -> Self {
        let yield_time = if arrival == Arrival::NextYielding { YIELD_TIME } else { Duration::ZERO };
        let retry = RetryPolicy::new(wait, &shared.config, caller.times);
        let request = AcquireRequest {
            hold: shared.identity.next_hold(caller.kind, name),
            lease: caller.times.lease,
            registration: match arrival {
                Arrival::First if wait.is_over() => Registration::None,
                Arrival::First => Registration::IfHeld,
                // The thread in front may have left the client registered.
                Arrival::Next | Arrival::NextYielding => Registration::Registered,
            },
            yields_until: Instant::now() + yield_time,
            limits: retry.limits(),
            may_be_early: shared.config.uses(Mechanism::EarlyRequest),
        };
        let contended = arrival != Arrival::First;
        Self { shared, caller, wait, request, retry, in_doubt: false, contended, after_release }
    }

    /// Records what a reply means for the next request. A hold whose lease is over when the reply
    /// comes counts as none: a pause of this process must not bring forth a guard of nothing.
    pub(super) fn record_reply(
        &mut self,
        SentAcquire { sent, registration, reply }: SentAcquire<Result<AcquireReply, Failure>>,
    ) -> Result<AcquireReply, Failure> {
        let lease = self.caller.times.lease;
        if registration != Registration::None {
            self.request.registration = Registration::Registered;
        }
        let in_doubt = match &reply {
            Ok(AcquireReply::Acquired { .. }) => Moment::now() >= local_deadline(sent, lease),
            Ok(AcquireReply::Held { .. }) => false,
            Ok(AcquireReply::Unknown { .. }) => true,
            Err(failure) => failure.is_ambiguous(),
        };
        if let Ok(AcquireReply::Held { .. } | AcquireReply::Unknown { .. }) = &reply {
            self.shared.listen(registration);
        }
        if self.shared.withdraws && (in_doubt || !is_granted(&reply)) {
            if in_doubt {
                self.shared.clean_up(&self.request.hold, lease, false);
            }
            self.request.hold = {
                let hold = &self.request.hold;
                self.shared.identity.next_hold(hold.kind, &hold.name)
            };
        } else {
            self.in_doubt |= in_doubt;
        }
        match reply? {
            AcquireReply::Acquired { .. } if in_doubt => Err(Failure::late()),
            reply => Ok(reply),
        }
    }

    /// Makes sure that earlier holds of this client have ended whose release was not confirmed when
    /// the request was sent that found the lock held: by just those, perhaps. Returns `true` if it
    /// is worth trying again at once.
    pub(super) fn confirm_releases(&mut self) -> Result<bool, Failure> {
        let Shared { store, end_reports, .. } = self.shared;
        let queues = self.shared.queues(self.caller.kind);
        let released = queues.released(&self.request.hold.name);
        // If they were confirmed in the meantime, they may have ended after this request.
        let retries = !released.is_empty() || self.after_release && !store.keeps_order();
        for released in released {
            self.after_release = true;
            store.release(&released.id, self.retry.request_deadline())?;
            queues.confirm_release(&released.id);
            end_reports.report_released(&released);
        }
        self.after_release = false;
        Ok(retries)
    }

    /// Records that another owner holds the lock.
    pub(super) fn record_contention(&mut self) {
        self.retry.record_reply();
        let name = &self.request.hold.name;
        self.shared.queues(self.caller.kind).set_failure(name, None);
        if !self.contended {
            self.contended = true;
            report_contended(self.shared, name);
        }
    }

    /// Records that a request has failed. A hold that fell short of its durability is released.
    pub(super) fn record_failure(&self, failure: &Failure) {
        let hold = &self.request.hold;
        self.shared.queues(self.caller.kind).set_failure(&hold.name, Some(failure));
        if failure.is_shortfall() {
            ending::undo(self.shared, hold, self.caller.times.lease, self.retry.request_deadline());
        }
    }

    /// Begins the hold that a request sent at `sent` has acquired.
    pub(super) fn begin_hold(&self, fence: u64, sent: Moment) -> Arc<Lease> {
        let lease = Arc::new(Lease::new(self.request.hold.clone(), fence, self.caller, sent));
        if self.in_doubt {
            lease.mark_in_doubt();
        }
        if self.after_release && self.caller.kind == HoldKind::Lock {
            // Two holds of a lock do not exist at the same time. The end of the one is reported
            // before the beginning of the other.
            for released in self.shared.wait_queues.take_released(lease.name()) {
                self.shared.end_reports.report_released(&released);
            }
        }
        self.shared.add_hold(&lease, self.caller);
        lease
    }

    /// Cleans up after attempts that have not acquired the lock.
    pub(super) fn clean_up(&self) {
        if self.in_doubt {
            self.shared.clean_up(&self.request.hold, self.caller.times.lease, false);
        }
    }

    /// Removes the client from the waiting clients, if it is among them and there is time. If not,
    /// or if this fails, the first wake-up does it.
    pub(super) fn unregister(&self) {
        if self.request.registration != Registration::Registered {
            return;
        }
        let io_timeout = self.caller.times.io_timeout;
        let end = end_of(io_timeout);
        let last = self.wait.deadline().and_then(|deadline| deadline.checked_add(io_timeout));
        let deadline = last.map_or(end, |last| last.min(end));
        if deadline > Instant::now() {
            let (shared, name) = (self.shared, &self.request.hold.name);
            let (kind, client) = (self.request.hold.kind, shared.identity.client());
            let waiting = WaitingClient { kind, name, client };
            shared.store.unregister(waiting, deadline).unwrap_or_default();
            // A thread that began to wait in between is not registered now.
            shared.queues(kind).wake(name, &*shared.store);
        }
    }
}

/// Reports that a call has found the lock held.
pub(super) fn report_contended(shared: &Shared, name: &Arc<str>) {
    shared.events.emit(|| Event::Contended { name: name.to_string() });
    shared.events.debug(|| format!("lock {name:?} is held by another owner"));
}
