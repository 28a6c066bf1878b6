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
use crate::store::failure::Failure;
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
    /// Without the lock; the last failure of the thread at the head, if it was one.
    Late(Option<Failure>),
}

/// What a thread in a line is told.
#[derive(Debug)]
pub(super) enum News {
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
    news: Mutex<VecDeque<News>>,
    filled: Condvar,
}

impl Mailbox {
    fn new() -> Self {
        Self { news: Mutex::default(), filled: Condvar::new() }
    }

    pub(super) fn put(&self, what: News) {
        self.news.lock().push_back(what);
        self.filled.notify_one();
    }

    /// Says that the lock may be free. Once is as good as many times.
    pub(super) fn knock(&self) {
        let mut news = self.news.lock();
        if news.is_empty() {
            news.push_back(News::Knock);
            self.filled.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.news.lock().is_empty()
    }

    /// Waits for news; `None` if there is none by then.
    pub(super) fn take(&self, deadline: Option<Instant>) -> Option<News> {
        let mut news = self.news.lock();
        while news.is_empty() {
            match deadline {
                None => self.filled.wait(&mut news),
                Some(deadline) => {
                    if self.filled.wait_until(&mut news, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        news.pop_front()
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

    /// Sleeps between two tries, until there is a knock.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        match self.mailbox.take(Some(end_of(time))) {
            Some(News::Closed) => Err(Error::Closed),
            _ => Ok(()),
        }
    }

    pub(super) fn is_of(&self, place: &Place) -> bool {
        Arc::ptr_eq(&self.mailbox, &place.mailbox)
    }
}
