//! How a lock is handed on to the next thread in line: by one request, whose answer that thread
//! waits for itself if the one before it does not want to.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::{Moment, end_of};
use crate::config::Terms;
use crate::error::Result;
use crate::hold::compete::AtHead;
use crate::hold::engine::{Arrival, Engine, Wait};
use crate::hold::lease::Lease;
use crate::hold::line::Handed;
use crate::hold::owner::Thread;
use crate::hold::passage::Passage;
use crate::hold::patience::{Patience, is_outage};
use crate::hold::place::{News, Place, Ticket};
use crate::store::failure::Failure;
use crate::store::{Handover, HoldId};

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
struct Transfer {
    answer: Handover,
    /// When the request was sent that got the answer.
    sent: Moment,
    /// Whether one was sent before that got none.
    unknown: bool,
}

impl Engine {
    /// Tells whether another client that waits is to get a lock that was handed on so.
    pub(super) fn yields(&self, handed: Handed) -> bool {
        handed.times >= self.config.hand_ons || handed.since.elapsed() >= HAND_ON_TIME
    }

    /// Asks for a hold for the next in line in the place of one that ends: one request instead of
    /// two.
    pub(super) fn send_off(
        &self,
        lease: &Arc<Lease>,
        terms: &Terms,
        yields: bool,
        patience: &Patience,
    ) -> Passage {
        let (from, to) = (lease.clone(), self.owner.next_hold(lease.name()));
        let span = terms.span();
        let end = patience.request_end().min(end_of(self.config.io_timeout(span)));
        let sent = Moment::now();
        let answer = self.store.transfer(&from.id, &to, span, yields, end);
        Passage { from, to, yields, sent, answer, settles: true }
    }

    /// Hands a lock on, and waits until it is known what has become of it. Whatever happens, the
    /// thread in that place is told: it has the lock, or has to ask for itself. Without an answer
    /// each of both goes on by its own deadline: that thread may have less time than this one.
    pub(super) fn hand_on(
        &self,
        mut passage: Passage,
        place: &Place,
        patience: &mut Patience,
    ) -> Result<(), Option<Failure>> {
        match (passage.answer)() {
            Err(failure) if is_outage(&failure) => {
                let (from, again) = (passage.from.clone(), failure.clone());
                passage.answer = Box::new(move || Err(again));
                passage.settles = false;
                place.tell(News::Coming(Box::new(passage)));
                let Some(pause) = patience.after(&failure) else { return Err(Some(failure)) };
                thread::sleep(pause);
                // That thread may end the hold first.
                return self.give_back(&from, patience, true);
            }
            answer => passage.answer = Box::new(move || answer),
        }
        let name = passage.to.name.clone();
        let (landing, outcome) = self.land(passage, &place.terms, &place.thread, patience);
        match landing {
            Landing::Held(lease) => self.lines().give(place, &lease),
            Landing::Asks { polite } => self.lines().call(&name, place, polite),
        }
        outcome
    }

    /// Takes a lock over from the thread in front, which has not waited to see what becomes of it.
    pub(super) fn take_over(
        &self,
        passage: Passage,
        terms: &Terms,
        wait: Wait,
        ticket: &Ticket,
    ) -> Result<Option<Arc<Lease>>> {
        let (from, name) = (passage.from.clone(), passage.to.name.clone());
        let settles = passage.settles;
        let head = AtHead::new(self.lines(), &name);
        let mut patience = Patience::new(wait.bound(), &self.config, terms.span());
        let (landing, outcome) = self.land(passage, terms, &Thread::current(), &mut patience);
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
                let arrival = if polite { Arrival::NextPolitely } else { Arrival::Next };
                self.compete_at_head(&name, terms, wait, ticket, arrival)
            }
        }
    }

    /// Waits for the answer to a transfer. Tells also how the hold has ended that it was from.
    fn land(
        &self,
        passage: Passage,
        terms: &Terms,
        thread: &Thread,
        patience: &mut Patience,
    ) -> (Landing, Result<(), Option<Failure>>) {
        let (from, to) = (passage.from.clone(), passage.to.clone());
        let asks = Landing::Asks { polite: false };
        match self.transfer(passage, terms, patience) {
            Ok(Transfer { answer: Handover::Done { fence }, sent, unknown }) => {
                let next = Arc::new(Lease::new(to, fence, terms, sent, thread.clone()));
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
            Ok(Transfer { answer: Handover::Gone, unknown, .. }) => {
                self.clean_if(unknown, &to, terms);
                (asks, if unknown { Ok(()) } else { Err(None) })
            }
            Ok(Transfer { answer: Handover::Yielded, unknown, .. }) => {
                self.clean_if(unknown, &to, terms);
                (Landing::Asks { polite: true }, Ok(()))
            }
            // The old hold has ended, and the new one is the affair of whoever was to have it.
            Err(failure) if failure.is_shortfall() => {
                self.take_back(&to, terms.span(), patience.request_end());
                (asks, Ok(()))
            }
            Err(failure) if is_outage(&failure) => (asks, Err(Some(failure))),
            // A server that is out of memory begins no hold, but ends one.
            Err(_) => (asks, self.give_back(&from, patience, false)),
        }
    }

    /// Has a hold removed that does not stand, if a request that began it may yet be executed.
    fn clean_if(&self, unknown: bool, hold: &HoldId, terms: &Terms) {
        if unknown {
            self.clean(hold, terms.span(), false);
        }
    }

    /// Waits for an answer, and asks again until there is one.
    fn transfer(
        &self,
        passage: Passage,
        terms: &Terms,
        patience: &mut Patience,
    ) -> Result<Transfer, Failure> {
        let Passage { from, to, yields, mut sent, mut answer, .. } = passage;
        let mut unknown = false;
        loop {
            let failure = match answer() {
                Ok(answer) => return Ok(Transfer { answer, sent, unknown }),
                Err(failure) => failure,
            };
            unknown |= failure.is_ambiguous();
            let Some(pause) = patience.after(&failure) else {
                self.clean_if(unknown, &to, terms);
                return Err(failure);
            };
            thread::sleep(pause);
            sent = Moment::now();
            let end = patience.request_end();
            answer = self.store.transfer(&from.id, &to, terms.span(), yields, end);
        }
    }
}
