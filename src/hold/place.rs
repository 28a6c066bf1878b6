//! A thread's place in a line: what the others tell it, and how it sleeps there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::end_of;
use crate::config::Terms;
use crate::error::{Error, Result};
use crate::hold::lease::Lease;
use crate::hold::owner::Thread;
use crate::hold::passage::Passage;
use crate::hold::request::{Request, Sent};
use crate::store::failure::Failure;
use crate::store::{Answer, Bid};
use crate::sync::{Condvar, Mutex};

/// A thread in a line, as the others see it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) terms: Terms,
    pub(crate) thread: Thread,
    /// Whether it waits without limit.
    pub(super) endless: bool,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Place {
    pub(super) fn tell(&self, what: News) {
        self.mailbox.put(what);
    }
}

/// How a thread came into a line.
#[derive(Debug)]
pub(crate) enum Entry {
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
    Coming(Passage),
    /// At the head: now ask the store; politely, if the lock was released for another client.
    Head { polite: bool },
    /// Without the lock, which was released if all is well: the server has not said so.
    Unanswered,
    /// Without the lock; the last failure of the thread at the head, if it was one.
    Late(Option<Failure>),
}

/// What a thread in a line is told.
#[derive(Debug)]
pub(super) enum News {
    /// Its next request was sent, and the answer is on its way.
    Asked(Box<Sent<Answer<Bid>>>),
    Closed,
    /// The server cannot be reached.
    Failed(Failure),
    /// The lock is held for it.
    Given(Arc<Lease>),
    /// The lock is on its way.
    Coming(Box<Passage>),
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
pub(super) struct Mailbox {
    inbox: Mutex<Inbox>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Inbox {
    news: VecDeque<News>,
    /// While the thread sleeps at the head: what it would send if it were awake.
    next: Option<Box<Request>>,
}

impl Mailbox {
    fn new() -> Self {
        Self { inbox: Mutex::default(), filled: Condvar::new() }
    }

    pub(super) fn put(&self, what: News) {
        self.inbox.lock().news.push_back(what);
        self.filled.notify_one();
    }

    /// Says that the lock may be free. If the thread sleeps at the head, `begin` may send its next
    /// request, and it wakes to wait for the answer.
    ///
    /// Locked meanwhile: a thread whose pause is over finds its request either unsent or sent.
    pub(super) fn knock(&self, begin: impl FnOnce(&Request) -> Option<Sent<Answer<Bid>>>) {
        let mut inbox = self.inbox.lock();
        let what = match inbox.news.back() {
            None => {
                let sent = inbox.next.as_deref().and_then(begin);
                sent.map_or(News::Knock, |sent| News::Asked(Box::new(sent)))
            }
            // The request may have been executed before the lock became free.
            Some(News::Asked(_)) => News::Knock,
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
    pub(super) fn take(&self, deadline: Option<Instant>) -> Option<News> {
        self.take_or_ask(deadline, None)
    }

    /// As `take`, and has `next` sent if there is a knock meanwhile.
    fn take_or_ask(&self, deadline: Option<Instant>, next: Option<Box<Request>>) -> Option<News> {
        let mut inbox = self.inbox.lock();
        inbox.next = next;
        while inbox.news.is_empty() {
            match deadline {
                None => self.filled.wait(&mut inbox),
                Some(deadline) => {
                    if self.filled.wait_until(&mut inbox, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        inbox.next = None;
        inbox.news.pop_front()
    }
}

/// A thread's own end of its place.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(super) name: Arc<str>,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Ticket {
    /// A ticket for a line, or for competing beside it.
    pub(super) fn new(name: &Arc<str>) -> Self {
        Self { name: name.clone(), mailbox: Arc::new(Mailbox::new()) }
    }

    /// Sleeps between two tries, until there is a knock. Whoever knocks may send the next request,
    /// whose answer is to be waited for then.
    pub(crate) fn sleep(
        &self,
        time: Duration,
        next: &Request,
    ) -> Result<Option<Sent<Answer<Bid>>>> {
        let next = Box::new(next.clone());
        match self.mailbox.take_or_ask(Some(end_of(time)), Some(next)) {
            Some(News::Asked(sent)) => Ok(Some(*sent)),
            Some(News::Closed) => Err(Error::Closed),
            _ => Ok(None),
        }
    }

    pub(super) fn is_of(&self, place: &Place) -> bool {
        Arc::ptr_eq(&self.mailbox, &place.mailbox)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::request::tests::{request, sent};

    const SOON: Duration = Duration::from_secs(10);

    /// The ticket of a thread that has fallen asleep at the head.
    fn asleep() -> Ticket {
        let ticket = Ticket::new(&Arc::from("x"));
        ticket.mailbox.inbox.lock().next = Some(Box::new(request()));
        ticket
    }

    fn knock(ticket: &Ticket) {
        ticket.mailbox.knock(|_| Some(sent()));
    }

    fn knock_in_vain(ticket: &Ticket) {
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
        ticket.mailbox.put(News::Closed);
        knock_in_vain(&ticket);
        assert!(matches!(ticket.sleep(SOON, &request()), Err(Error::Closed)));
        let ticket = asleep();
        knock(&ticket);
        ticket.mailbox.put(News::Closed);
        assert!(ticket.sleep(SOON, &request()).expect("an answer").is_some());
        assert!(matches!(ticket.sleep(SOON, &request()), Err(Error::Closed)));
    }
}
