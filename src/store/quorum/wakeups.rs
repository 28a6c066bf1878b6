//! The messages to one client from N servers.
//!
//! Each server that a lock is released on wakes the client, and only when a majority has, it has a
//! chance to get the lock. So messages about a name are gathered until a majority has sent one, or
//! for a moment: then some servers do not know the client, or do not answer.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::clock::end_of;
use crate::failure::{Failure, FailureKind};
use crate::net::interrupter::Interrupter;
use crate::net::poll::poll_readable;
use crate::store::keys::Keys;
use crate::store::quorum::node::{Opened, QuorumServer};
use crate::store::quorum::votes::majority;
use crate::store::subscription::Subscription;
use crate::store::wake::{Wake, Wakeups};

/// For so long messages of a majority are waited for.
const GATHER: Duration = Duration::from_millis(5);

/// A message that comes so much later is another one.
const MEMORY: Duration = Duration::from_millis(50);

/// A subscription that was lost is not made again before this time.
const PAUSE: Duration = Duration::from_millis(100);

/// As `PAUSE`, where the server has refused it.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// How often to look for connections that are being opened, and whether to end.
const LOOK: Duration = Duration::from_millis(20);

/// One client's channels.
#[derive(Debug)]
pub(super) struct QuorumWakeups {
    members: Vec<ServerSubscription>,
    keys: Keys,
    client: String,
    retry: Duration,
    rumours: HashMap<String, Wakeup>,
    interrupter: Interrupter,
    opened: Receiver<Opened>,
    answer: Sender<Opened>,
}

#[derive(Debug)]
struct ServerSubscription {
    node: Arc<QuorumServer>,
    subscription: Option<Subscription>,
    /// Whether messages arrive.
    ready: bool,
    opening: bool,
    retry_at: Instant,
    last: Option<Failure>,
}

/// What was heard about one lock.
#[derive(Debug)]
struct Wakeup {
    from: Vec<bool>,
    first: Instant,
    told: bool,
}

impl QuorumWakeups {
    pub(super) fn new(
        nodes: Vec<Arc<QuorumServer>>,
        keys: Keys,
        client: &str,
        retry: Duration,
    ) -> Self {
        let (answer, opened) = unbounded();
        let member = |node| ServerSubscription {
            node,
            subscription: None,
            ready: false,
            opening: false,
            retry_at: Instant::now(),
            last: None,
        };
        Self {
            members: nodes.into_iter().map(member).collect(),
            keys,
            client: client.into(),
            retry,
            rumours: HashMap::new(),
            interrupter: Interrupter::new(),
            opened,
            answer,
        }
    }

    fn wait(&mut self, deadline: Instant) -> Result<Option<Wake>, Failure> {
        loop {
            self.check()?;
            self.connect();
            if self.hear() {
                return Ok(Some(Wake::Ready));
            }
            if let Some(name) = self.due() {
                return Ok(Some(Wake::Lock(name)));
            }
            self.check_hearing()?;
            if Instant::now() >= deadline {
                return Ok(None);
            }
            self.sleep(deadline)?;
        }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.interrupter.is_interrupted() {
            return Err(self.members[0].node.connection().interrupted());
        }
        Ok(())
    }

    /// Subscribes where a connection has been opened, and has missing ones opened.
    fn connect(&mut self) {
        while let Ok((number, opened)) = self.opened.try_recv() {
            let member = &mut self.members[number];
            member.opening = false;
            let subscribed = opened.and_then(|connection| {
                let (keys, retry) = (self.keys.clone(), self.retry);
                let mut subscription = Subscription::new(connection, keys, &self.client, retry);
                subscription.subscribe().map(|()| subscription)
            });
            match subscribed {
                Ok(subscription) => member.subscription = Some(subscription),
                Err(failure) => member.lose(failure),
            }
        }
        for member in &mut self.members {
            if member.subscription.is_none() && !member.opening && Instant::now() >= member.retry_at
            {
                member.opening = member.node.open(false, &self.answer);
            }
        }
    }

    /// Takes in what all servers have sent. `true` if messages of a majority arrive from now on.
    fn hear(&mut self) -> bool {
        let required = majority(self.members.len());
        let ready =
            |members: &[ServerSubscription]| members.iter().filter(|member| member.ready).count();
        let (servers, before) = (self.members.len(), ready(&self.members));
        for (number, member) in self.members.iter_mut().enumerate() {
            while let Some(subscription) = &mut member.subscription {
                match subscription.look() {
                    Ok(None) => break,
                    Ok(Some(Wake::Ready)) => member.ready = true,
                    Ok(Some(Wake::Lock(name))) => {
                        Wakeup::spread(&mut self.rumours, name, number, servers);
                    }
                    Err(failure) => member.lose(failure),
                }
            }
        }
        before < required && ready(&self.members) >= required
    }

    /// The name of a lock of which enough has been heard.
    fn due(&mut self) -> Option<String> {
        let (required, now) = (majority(self.members.len()), Instant::now());
        self.rumours.retain(|_, rumour| !rumour.told || now < rumour.first + MEMORY);
        let due = |rumour: &Wakeup| !rumour.told && rumour.due(required) <= now;
        let (name, rumour) = self.rumours.iter_mut().find(|(_, rumour)| due(rumour))?;
        rumour.told = true;
        Some(name.clone())
    }

    /// Fails if there is nothing to be heard from anywhere.
    fn check_hearing(&self) -> Result<(), Failure> {
        let hears = |member: &ServerSubscription| member.subscription.is_some() || member.opening;
        if self.members.iter().any(hears) {
            return Ok(());
        }
        let last = self.members.iter().find_map(|member| member.last.clone());
        Err(last.unwrap_or_else(|| self.members[0].node.down()))
    }

    /// Sleeps until there may be something to do.
    fn sleep(&self, deadline: Instant) -> Result<(), Failure> {
        let open = || self.members.iter().filter_map(|member| member.subscription.as_ref());
        let sockets: Vec<BorrowedFd<'_>> =
            open().filter_map(|open| open.connection().as_fd()).collect();
        let required = majority(self.members.len());
        let pending = self.rumours.values().filter(|rumour| !rumour.told);
        let times = pending.map(|rumour| rumour.due(required));
        let times = times.chain(open().map(Subscription::expected));
        let times = times.chain(self.members.iter().filter_map(ServerSubscription::next_look));
        let end = times.fold(deadline, Instant::min);
        if let Some(any) = open().next() {
            self.interrupter.guard(any.connection().plug());
            self.check()?;
            poll_readable(&sockets, Some(end));
        } else {
            let left = end.saturating_duration_since(Instant::now());
            thread::sleep(left.min(LOOK));
        }
        Ok(())
    }
}

impl Wakeups for QuorumWakeups {
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>> {
        self.wait(deadline).transpose()
    }

    fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }
}

impl ServerSubscription {
    fn lose(&mut self, failure: Failure) {
        self.subscription = None;
        self.ready = false;
        let refused = failure.kind == FailureKind::Rejected;
        self.retry_at = end_of(if refused { REFUSED_PAUSE } else { PAUSE });
        self.last = Some(failure);
    }

    /// When to see about the connection.
    fn next_look(&self) -> Option<Instant> {
        if self.subscription.is_some() {
            None
        } else if self.opening {
            Some(end_of(LOOK))
        } else {
            Some(self.retry_at.max(self.node.next_try()))
        }
    }
}

impl Wakeup {
    /// Takes in that a server has sent a message about a name.
    fn spread(rumours: &mut HashMap<String, Self>, name: String, from: usize, servers: usize) {
        let fresh = || Self { from: vec![false; servers], first: Instant::now(), told: false };
        let rumour = rumours.entry(name).or_insert_with(fresh);
        if rumour.told && rumour.from[from] {
            // The lock was released once more.
            *rumour = fresh();
        }
        rumour.from[from] = true;
    }

    /// When it is to be told.
    fn due(&self, required: usize) -> Instant {
        let from = self.from.iter().filter(|from| **from).count();
        if from >= required { self.first } else { self.first + GATHER }
    }
}
