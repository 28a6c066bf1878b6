//! The messages of a memory server to its clients.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::base::failure::{Failure, FailureKind};
use crate::base::maps::RandomState;
use crate::base::sync::receive;
use crate::net::wait::{Close, Interrupter};
use crate::store::background::{Wake, Wakeups};
use crate::store::keys::Keys;

/// The inboxes of the clients that listen.
#[derive(Default)]
pub(super) struct Inboxes(HashMap<Arc<str>, Weak<Inbox>, RandomState>);

/// The unread messages to one client, each with a key in place of the name. `None` ends a wait that
/// was interrupted.
pub(super) struct Inbox {
    messages: Sender<Option<Wake>>,
    received: Receiver<Option<Wake>>,
}

impl Inboxes {
    /// Creates the inbox of a client, which receives messages until the result is dropped.
    pub(super) fn open(&mut self, client: Arc<str>) -> Arc<Inbox> {
        // Also removes the inboxes of clients that are gone.
        self.0.retain(|_, inbox| inbox.strong_count() > 0);
        let (messages, received) = unbounded();
        let inbox = Arc::new(Inbox { messages, received });
        self.0.insert(client, Arc::downgrade(&inbox));
        inbox
    }

    pub(super) fn exists(&self, client: &str) -> bool {
        self.0.get(client).is_some_and(|inbox| inbox.strong_count() > 0)
    }

    /// Sends a client a message, with a key in place of the name.
    pub(super) fn send(&self, client: &str, message: Wake) {
        if let Some(inbox) = self.0.get(client).and_then(Weak::upgrade) {
            inbox.add(Some(message));
        }
    }
}

impl Inbox {
    fn add(&self, message: Option<Wake>) {
        self.messages.send(message).expect("the receiver lives as long as the sender");
    }
}

impl Close for Inbox {
    fn close(&self) {
        self.add(None);
    }
}

/// The messages to one client.
pub(super) struct MemoryWakeups {
    inbox: Arc<Inbox>,
    keys: Keys,
    interrupter: Interrupter,
    /// Reported to the client before any message.
    first: Vec<Wake>,
}

impl MemoryWakeups {
    pub(super) fn new(inbox: Arc<Inbox>, keys: Keys) -> Self {
        let interrupter = Interrupter::new();
        let awaited: Weak<Inbox> = Arc::downgrade(&inbox);
        interrupter.watch(Some(awaited));
        let first = vec![Wake::Complete(true), Wake::Ready];
        Self { inbox, keys, interrupter, first }
    }
}

impl Wakeups for MemoryWakeups {
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>> {
        if let Some(wake) = self.first.pop() {
            return Some(Ok(wake));
        }
        loop {
            let message = receive(&self.inbox.received, deadline);
            if self.interrupter.is_interrupted() {
                return Some(Err(failure(FailureKind::Unreachable, "interrupted")));
            }
            let message = message.ok()?;
            if let Some(Wake::Probe { .. }) = message {
                return message.map(Ok);
            }
            if let Some(mut wake) = message
                && let Wake::Echo(name)
                | Wake::Ended { name, .. }
                | Wake::Lock(name)
                | Wake::Recall { name, .. } = &mut wake
                // A client with another prefix has another name for the same key.
                && let Some(known) = self.keys.name(name)
            {
                *name = known.to_owned();
                return Some(Ok(wake));
            }
        }
    }

    fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }
}

pub(super) fn failure(kind: FailureKind, why: &'static str) -> Failure {
    Failure::io(kind, &Arc::from("memory"), io::Error::other(why))
}
