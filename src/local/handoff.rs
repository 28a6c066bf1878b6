//! How a lock is handed on to the next thread in line: by one request, whose answer that thread
//! waits for itself if the one before it does not want to.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::{Moment, end_of};
use crate::config::LockOptions;
use crate::error::Result;
use crate::failure::Failure;
use crate::local::acquire::AtHead;
use crate::local::identity::Thread;
use crate::local::lease::Lease;
use crate::local::pending_handoff::PendingHandoff;
use crate::local::retry::{RetryPolicy, is_outage};
use crate::local::shared::{HeadStart, Shared, Wait};
use crate::local::wait_queue::Handoffs;
use crate::local::waiter::{QueuedWaiter, Signal, Waiter};
use crate::store::hold::HoldId;
use crate::store::request::{PendingReply, Transfer, TransferReply};

/// For so long a lock may be handed on inside this process while another client waits for it.
const HAND_ON_TIME: Duration = Duration::from_millis(100);

/// What has become of a passage for the thread that it leads to.
enum Landing {
    Held(Arc<Lease>),
    /// It has to ask for the lock; politely, if that was released for another client.
    Asks {
        polite: bool,
    },
}

/// How a transfer was answered.
struct AnsweredTransfer {
    answer: TransferReply,
    /// When the request was sent that got the answer.
    sent: Moment,
    /// Whether one was sent before that got none.
    unknown: bool,
}

impl Shared {
    /// Tells whether another client that waits is to get a lock that was handed on so.
    pub(super) fn yields(&self, handed: Handoffs) -> bool {
        handed.times >= self.config.max_handoffs || handed.since.elapsed() >= HAND_ON_TIME
    }

    /// Asks for a hold for the next in line in the place of one that ends: one request instead of
    /// two.
    pub(super) fn send_off(
        &self,
        lease: &Arc<Lease>,
        options: &LockOptions,
        yields: bool,
        retry: &RetryPolicy,
    ) -> PendingHandoff {
        let (from, to) = (lease.clone(), self.owner.next_hold(lease.name()));
        let span = options.first_lease();
        let end = retry.request_end().min(end_of(self.config.io_timeout(span)));
        let sent = Moment::now();
        let answer = self.store.transfer(Transfer {
            from: &from.id,
            to: &to,
            lease: span,
            yields,
            deadline: end,
        });
        PendingHandoff { from, to, yields, sent, answer, settles: true }
    }

    /// Hands a lock on, and waits until it is known what has become of it. Whatever happens, the
    /// thread in that place is told: it has the lock, or has to ask for itself. Without an answer
    /// each of both goes on by its own deadline: that thread may have less time than this one.
    pub(super) fn hand_on(
        &self,
        mut passage: PendingHandoff,
        place: &QueuedWaiter,
        retry: &mut RetryPolicy,
    ) -> Result<(), Option<Failure>> {
        match passage.answer.wait() {
            Err(failure) if is_outage(&failure) => {
                let (from, again) = (passage.from.clone(), failure.clone());
                passage.answer = PendingReply::new(move || Err(again));
                passage.settles = false;
                place.tell(Signal::Coming(Box::new(passage)));
                let Some(pause) = retry.after(&failure) else { return Err(Some(failure)) };
                thread::sleep(pause);
                // That thread may end the hold first.
                return self.give_back(&from, retry, true);
            }
            answer => passage.answer = PendingReply::new(move || answer),
        }
        let name = passage.to.name.clone();
        let (landing, outcome) = self.land(passage, &place.options, &place.thread, retry);
        match landing {
            Landing::Held(lease) => self.lines().give(place, &lease),
            Landing::Asks { polite } => self.lines().call(&name, place, polite),
        }
        outcome
    }

    /// Takes a lock over from the thread in front, which has not waited to see what becomes of it.
    pub(super) fn take_over(
        &self,
        passage: PendingHandoff,
        options: &LockOptions,
        wait: Wait,
        ticket: &Waiter,
    ) -> Result<Option<Arc<Lease>>> {
        let (from, name) = (passage.from.clone(), passage.to.name.clone());
        let settles = passage.settles;
        let head = AtHead::new(self.lines(), &name);
        let mut retry = RetryPolicy::new(wait.bound(), &self.config, options.first_lease());
        let (landing, outcome) = self.land(passage, options, &Thread::current(), &mut retry);
        if settles {
            self.settle(&from, &outcome);
        }
        if let Err(Some(failure)) = outcome
            && is_outage(&failure)
        {
            head.give_up(Some(&failure), wait);
            return Err(failure.into_error("acquire", &name));
        }
        head.stay();
        match landing {
            Landing::Held(lease) => {
                self.lines().pass(&lease);
                Ok(Some(lease))
            }
            Landing::Asks { polite } => {
                self.lines().lead(ticket);
                let arrival = if polite { HeadStart::NextPolitely } else { HeadStart::Next };
                self.compete_at_head(&name, options, wait, ticket, arrival)
            }
        }
    }

    /// Waits for the answer to a transfer. Tells also how the hold has ended that it was from.
    fn land(
        &self,
        passage: PendingHandoff,
        options: &LockOptions,
        thread: &Thread,
        retry: &mut RetryPolicy,
    ) -> (Landing, Result<(), Option<Failure>>) {
        let (from, to) = (passage.from.clone(), passage.to.clone());
        let asks = Landing::Asks { polite: false };
        match self.transfer(passage, options, retry) {
            Ok(AnsweredTransfer {
                answer: TransferReply::Transferred { fence },
                sent,
                unknown,
            }) => {
                let next = Arc::new(Lease::new(to, fence, options, sent, thread.clone()));
                if unknown {
                    next.unsettle();
                }
                if !self.stands(&next) {
                    return (asks, Ok(()));
                }
                self.table.insert(&next);
                self.renewer.keep(&next);
                (Landing::Held(next), Ok(()))
            }
            Ok(AnsweredTransfer { answer: TransferReply::Gone, unknown, .. }) => {
                self.clean_if(unknown, &to, options);
                (asks, if unknown { Ok(()) } else { Err(None) })
            }
            Ok(AnsweredTransfer { answer: TransferReply::Yielded, unknown, .. }) => {
                self.clean_if(unknown, &to, options);
                (Landing::Asks { polite: true }, Ok(()))
            }
            // The old hold has ended, and the new one is the affair of whoever was to have it.
            Err(failure) if failure.is_shortfall() => {
                self.take_back(&to, options.first_lease(), retry.request_end());
                (asks, Ok(()))
            }
            Err(failure) if is_outage(&failure) => (asks, Err(Some(failure))),
            // A server that is out of memory begins no hold, but ends one.
            Err(_) => (asks, self.give_back(&from, retry, false)),
        }
    }

    /// Has a hold removed that does not stand, if a request that began it may yet be executed.
    fn clean_if(&self, unknown: bool, hold: &HoldId, options: &LockOptions) {
        if unknown {
            self.clean(hold, options.first_lease(), false);
        }
    }

    /// Waits for an answer, and asks again until there is one.
    fn transfer(
        &self,
        passage: PendingHandoff,
        options: &LockOptions,
        retry: &mut RetryPolicy,
    ) -> Result<AnsweredTransfer, Failure> {
        let PendingHandoff { from, to, yields, mut sent, mut answer, .. } = passage;
        let mut unknown = false;
        loop {
            let failure = match answer.wait() {
                Ok(answer) => return Ok(AnsweredTransfer { answer, sent, unknown }),
                Err(failure) => failure,
            };
            unknown |= failure.is_ambiguous();
            let Some(pause) = retry.after(&failure) else {
                self.clean_if(unknown, &to, options);
                return Err(failure);
            };
            thread::sleep(pause);
            sent = Moment::now();
            let end = retry.request_end();
            answer = self.store.transfer(Transfer {
                from: &from.id,
                to: &to,
                lease: options.first_lease(),
                yields,
                deadline: end,
            });
        }
    }
}
