//! A thread's place in a line: what the others tell it, and how it sleeps there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::end_of;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::local::acquire_request::{AcquireRequest, SentAcquire};
use crate::local::identity::Thread;
use crate::local::lease::Lease;
use crate::local::pending_handoff::PendingHandoff;
use crate::store::request::{AcquireReply, PendingReply};
use crate::sync::{Condvar, Mutex, wait_while};

/// A thread in a line, as the others see it.
#[derive(Debug)]
pub(crate) struct QueuedWaiter {
    pub(crate) options: LockOptions,
    pub(crate) thread: Thread,
    /// Whether it waits without limit.
    pub(super) endless: bool,
    pub(super) mailbox: Arc<Signals>,
}

impl QueuedWaiter {
    pub(super) fn tell(&self, what: Signal) {
        self.mailbox.put(what);
    }
}

/// How a thread came into a line.
#[derive(Debug)]
pub(crate) enum Position {
    /// At the head.
    Head,
    /// Behind another.
    Behind,
    /// Right after a hold whose release was taken back.
    After(Arc<Lease>),
}

/// How a wait in line ended.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The thread in front could not reach the server and has given up.
    Failed(Failure),
    /// With the lock.
    Given(Arc<Lease>),
    /// With the lock on its way.
    Coming(PendingHandoff),
    /// At the head: now ask the store; politely, if the lock was released for another client.
    Head { polite: bool },
    /// Without the lock, which was released if all is well: the server has not said so.
    Unanswered,
    /// Without the lock; the last failure of the thread at the head, if it was one.
    Late(Option<Failure>),
}

/// What a thread in a line is told.
#[derive(Debug)]
pub(super) enum Signal {
    /// Its next request was sent, and the answer is on its way.
    Asked(Box<SentAcquire<PendingReply<AcquireReply>>>),
    Closed,
    /// The server cannot be reached.
    Failed(Failure),
    /// The lock is held for it.
    Given(Arc<Lease>),
    /// The lock is on its way.
    Coming(Box<PendingHandoff>),
    /// It is at the head now; politely, if the lock was released for another client.
    Head {
        polite: bool,
    },
    /// The lock may be free.
    Knock,
}

/// Where a thread finds its news. A channel could do the same, and is larger than all else that a
/// lock takes.
#[derive(Debug)]
pub(super) struct Signals {
    inbox: Mutex<Inbox>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Inbox {
    news: VecDeque<Signal>,
    /// While the thread sleeps at the head: what it would send if it were awake.
    next: Option<Box<AcquireRequest>>,
}

impl Signals {
    fn new() -> Self {
        Self { inbox: Mutex::default(), filled: Condvar::new() }
    }

    pub(super) fn put(&self, what: Signal) {
        self.inbox.lock().news.push_back(what);
        self.filled.notify_one();
    }

    /// Says that the lock may be free. If the thread sleeps at the head, `begin` may send its next
    /// request, and it wakes to wait for the answer.
    ///
    /// Locked meanwhile: a thread whose pause is over finds its request either unsent or sent.
    pub(super) fn knock(
        &self,
        begin: impl FnOnce(&AcquireRequest) -> Option<SentAcquire<PendingReply<AcquireReply>>>,
    ) {
        let mut inbox = self.inbox.lock();
        let what = match inbox.news.back() {
            None => {
                let sent = inbox.next.as_deref().and_then(begin);
                sent.map_or(Signal::Knock, |sent| Signal::Asked(Box::new(sent)))
            }
            // The request may have been executed before the lock became free.
            Some(Signal::Asked(_)) => Signal::Knock,
            // Once is as good as many times.
            Some(_) => return,
        };
        inbox.news.push_back(what);
        self.filled.notify_one();
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.inbox.lock().news.is_empty()
    }

    /// Waits for news; `None` if there is none by then.
    pub(super) fn take(&self, deadline: Option<Instant>) -> Option<Signal> {
        self.take_or_ask(deadline, None)
    }

    /// As `take`, and has `next` sent if there is a knock meanwhile.
    fn take_or_ask(
        &self,
        deadline: Option<Instant>,
        next: Option<Box<AcquireRequest>>,
    ) -> Option<Signal> {
        let mut inbox = self.inbox.lock();
        inbox.next = next;
        wait_while(&self.filled, &mut inbox, deadline, |inbox| inbox.news.is_empty());
        inbox.next = None;
        inbox.news.pop_front()
    }
}

/// A thread's own end of its place.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(super) name: Arc<str>,
    pub(super) mailbox: Arc<Signals>,
}

impl Waiter {
    /// A ticket for a line, or for competing beside it.
    pub(super) fn new(name: &Arc<str>) -> Self {
        Self { name: name.clone(), mailbox: Arc::new(Signals::new()) }
    }

    /// Sleeps between two tries, until there is a knock. Whoever knocks may send the next request,
    /// whose answer is to be waited for then.
    pub(crate) fn sleep(
        &self,
        time: Duration,
        next: &AcquireRequest,
    ) -> Result<Option<SentAcquire<PendingReply<AcquireReply>>>> {
        let next = Box::new(next.clone());
        match self.mailbox.take_or_ask(Some(end_of(time)), Some(next)) {
            Some(Signal::Asked(sent)) => Ok(Some(*sent)),
            Some(Signal::Closed) => Err(Error::Closed),
            _ => Ok(None),
        }
    }

    pub(super) fn is_of(&self, place: &QueuedWaiter) -> bool {
        Arc::ptr_eq(&self.mailbox, &place.mailbox)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::acquire_request::tests::{request, sent};

    const SOON: Duration = Duration::from_secs(10);

    /// The ticket of a thread that has fallen asleep at the head.
    fn asleep() -> Waiter {
        let ticket = Waiter::new(&Arc::from("x"));
        ticket.mailbox.inbox.lock().next = Some(Box::new(request()));
        ticket
    }

    fn knock(ticket: &Waiter) {
        ticket.mailbox.knock(|_| Some(sent()));
    }

    fn knock_in_vain(ticket: &Waiter) {
        ticket.mailbox.knock(|_| panic!("nobody sleeps"));
    }

    #[test]
    fn a_knock_sends_the_request_of_a_thread_that_sleeps() {
        let ticket = asleep();
        knock(&ticket);
        assert!(ticket.sleep(SOON, &request()).expect("open").is_some());
    }

    #[test]
    fn a_thread_that_is_awake_sends_its_request_itself() {
        let ticket = asleep();
        assert!(ticket.sleep(Duration::ZERO, &request()).expect("open").is_none());
        knock_in_vain(&ticket);
        knock_in_vain(&ticket);
        assert!(ticket.sleep(SOON, &request()).expect("open").is_none());
        assert!(ticket.mailbox.is_empty(), "one knock is as good as many");
    }

    #[test]
    fn without_an_answer_to_wait_for_a_knock_only_wakes() {
        let ticket = asleep();
        ticket.mailbox.knock(|_| None);
        assert!(ticket.sleep(SOON, &request()).expect("open").is_none());
    }

    /// The request may have been refused before the lock became free.
    #[test]
    fn a_knock_that_comes_while_an_answer_is_awaited_is_kept() {
        let ticket = asleep();
        knock(&ticket);
        knock_in_vain(&ticket);
        knock_in_vain(&ticket);
        assert!(ticket.sleep(SOON, &request()).expect("open").is_some());
        assert!(!ticket.mailbox.is_empty());
        assert!(ticket.sleep(SOON, &request()).expect("open").is_none());
        assert!(ticket.mailbox.is_empty());
    }

    #[test]
    fn close_lets_no_request_be_sent_and_no_answer_be_left() {
        let ticket = asleep();
        ticket.mailbox.put(Signal::Closed);
        knock_in_vain(&ticket);
        assert!(matches!(ticket.sleep(SOON, &request()), Err(Error::Closed)));
        let ticket = asleep();
        knock(&ticket);
        ticket.mailbox.put(Signal::Closed);
        assert!(ticket.sleep(SOON, &request()).expect("an answer").is_some());
        assert!(matches!(ticket.sleep(SOON, &request()), Err(Error::Closed)));
    }
}
