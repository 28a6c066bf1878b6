//! A thread's place in a line: what the others tell it, and how it sleeps there.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::end_of;
use crate::config::Terms;
use crate::error::{Error, Result};
use crate::hold::lease::Lease;
use crate::hold::owner::Thread;
use crate::hold::passage::Passage;
use crate::store::Failure;
use crate::sync::{Receiver, Sender, unbounded};

/// A thread in a line, as the others see it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) terms: Terms,
    pub(crate) thread: Thread,
    /// Whether it waits without limit.
    pub(super) endless: bool,
    pub(super) news: Sender<News>,
}

impl Place {
    pub(super) fn tell(&self, what: News) {
        tell(&self.news, what);
    }
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

/// A thread's own end of its place.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(super) name: Arc<str>,
    pub(super) sender: Sender<News>,
    pub(super) news: Receiver<News>,
}

impl Ticket {
    /// A ticket for a line, or for competing beside it.
    pub(super) fn new(name: &Arc<str>) -> Self {
        let (sender, news) = unbounded();
        Self { name: name.clone(), sender, news }
    }

    /// Sleeps between two tries, until there is a knock.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        match self.news.recv_deadline(end_of(time)) {
            Ok(News::Closed) => Err(Error::Closed),
            _ => Ok(()),
        }
    }

    pub(super) fn is_of(&self, place: &Place) -> bool {
        self.sender.same_channel(&place.news)
    }
}

/// Tells a thread something.
pub(super) fn tell(news: &Sender<News>, what: News) {
    // A ticket has both ends of its channel, so somebody always listens while the place exists.
    drop(news.send(what));
}

/// One knock is as good as many.
pub(super) fn knock(news: &Sender<News>) {
    if news.is_empty() {
        tell(news, News::Knock);
    }
}
