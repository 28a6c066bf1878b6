//! One connection to each server of a quorum, which threads use in turn.
//!
//! A name always has the same connections, and a server executes the requests on one of them in
//! order. So the request that began a hold cannot overtake its release, even if no call has waited
//! for the reply: a request is written to all servers before the first reply is read, and no call
//! waits for a reply that decides nothing. The next thread to read from that connection reads it.
//!
//! The connections are those of [`net`](crate::net), but are not pooled: a thread with a pooled
//! connection waits for one server, opens it by itself, and gets any that is free.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::base::failure::Failure;
use crate::net::in_flight::Exchange;
use crate::net::pool_thread::{PoolThread, Sweep};
use crate::net::resp::RespStream;
use crate::net::socket::poll_ready;
use crate::net::wait::ReplyWait;
use crate::store::background::jobs::BackgroundJobs;
use crate::store::background::peer::wait_for_any;
use crate::store::background::wakeups::BackgroundWakeups;
use crate::store::background::{JobRunner, Wakeups};
use crate::store::quorum::ballot::{Ballot, QuorumServers};
use crate::store::quorum::exclusive::{ExclusiveLinks, SharedLinks};
use crate::store::quorum::link::Link;
use crate::store::quorum::policies::{JobsOfMajorities, WakeupsOfMajorities};
use crate::store::quorum::votes::majority;
use crate::store::scripts::ScriptReply;

/// The connections, and the means to read replies that no call waits for.
pub(crate) struct Links {
    servers: Arc<QuorumServers>,
    /// Locked by a call until it has its replies: no other thread reads them.
    reader: Mutex<()>,
    /// In the order of the servers. Locked to send and to read, but not while waiting for replies.
    each: Mutex<Vec<Link>>,
    /// Reads the replies that no call has waited for, unless another call reads them. They may show
    /// that a hold is in doubt.
    sweep: Sweep,
}

impl Links {
    /// Opens nothing yet.
    pub(super) fn new(servers: &Arc<QuorumServers>, pool_thread: &PoolThread) -> Arc<Self> {
        let each = Mutex::new(servers.each.iter().map(Link::new).collect());
        Arc::new_cyclic(|this: &Weak<Self>| {
            let sweep = Sweep::new(pool_thread, this, Self::sweep);
            Self { servers: servers.clone(), reader: Mutex::new(()), each, sweep }
        })
    }

    /// Reads what has arrived, and closes connections over which nothing arrives.
    fn sweep(self: &Arc<Self>) {
        // Requests of other names may wait for this thread, so it never waits for the connections.
        let (Some(reader), Some(each)) = (self.reader.try_lock(), self.each.try_lock()) else {
            return self.sweep.schedule();
        };
        let mut links = LockedLinks { reader: Some(reader), each, shared: self };
        links.read_or_close(self.servers.settings.io_timeout);
    }
}

impl SharedLinks for Arc<Links> {
    type Locked<'a> = LockedLinks<'a>;

    fn lock(&self, deadline: Instant) -> Result<LockedLinks<'_>, Failure> {
        let reader = Some(self.reader.try_lock_until(deadline).ok_or_else(in_use)?);
        let each = self.each.try_lock_until(deadline).ok_or_else(in_use)?;
        Ok(LockedLinks { reader, each, shared: self })
    }

    fn prepare(&self, deadline: Instant) -> Result<LockedLinks<'_>, Failure> {
        let mut links = self.lock(deadline)?;
        links.begin_openings();
        while let Some(end) = links.end_of_wait_for_openings(deadline) {
            let openings = links.each.iter().filter_map(Link::opening);
            if !wait_for_any(openings.map(|(opening, _)| opening), end) {
                break;
            }
            links.each.iter_mut().for_each(Link::finish_opening);
        }
        links.make_room(deadline);
        Ok(links)
    }

    fn lock_to_post(&self, deadline: Instant) -> Result<LockedLinks<'_>, Failure> {
        // Not waited for: it may be a whole round trip until the reader has its replies.
        let reader = self.reader.try_lock();
        let each = self.each.try_lock_until(deadline).ok_or_else(in_use)?;
        let mut links = LockedLinks { reader, each, shared: self };
        // If a thread waits for replies, it has prepared the connections, and reads them.
        if links.reader.is_some() {
            links.begin_openings();
            links.make_room(deadline);
        }
        Ok(links)
    }

    fn post_if_open(
        &self,
        server: usize,
        posted: Vec<Exchange>,
        deadline: Instant,
    ) -> Vec<Exchange> {
        // If another thread is the reader, it reads these replies, too.
        let reader = self.reader.try_lock();
        let Some(each) = self.each.try_lock() else { return posted };
        let mut links = LockedLinks { reader, each, shared: self };
        match links.each[server].usable() {
            Some(open) => open.send_what_fits(posted, deadline),
            None => posted,
        }
    }

    fn jobs(servers: &Arc<QuorumServers>, links: &[Self]) -> Box<dyn JobRunner> {
        let policy = JobsOfMajorities::new(servers.clone(), links.to_vec());
        Box::new(BackgroundJobs::new(policy, servers.settings.clone()))
    }

    fn wakeups(servers: &Arc<QuorumServers>, _: &[Self], client: &str) -> Box<dyn Wakeups> {
        let policy = WakeupsOfMajorities::new(servers.clone());
        Box::new(BackgroundWakeups::new(policy, &servers.settings, client, None))
    }
}

fn in_use() -> Failure {
    let why = "the connections for this name were in use until the time was over";
    Failure::none_free(&Arc::from("the servers"), why)
}

/// Exclusive use of the connections.
pub(crate) struct LockedLinks<'a> {
    /// `None` if another thread waits for its replies, and also reads those of this one.
    reader: Option<MutexGuard<'a, ()>>,
    each: MutexGuard<'a, Vec<Link>>,
    shared: &'a Arc<Links>,
}

impl LockedLinks<'_> {
    fn begin_openings(&mut self) {
        // A program that ends with replies unread may lose what it has posted.
        self.read_or_close(self.shared.servers.settings.io_timeout);
        self.each.iter_mut().for_each(Link::finish_opening);
        let urgent = !self.has_majority();
        self.each.iter_mut().for_each(|link| link.begin_opening(urgent));
    }

    /// Reads what has arrived, and closes connections over which nothing arrives for `io_timeout`.
    fn read_or_close(&mut self, io_timeout: Duration) {
        self.each.iter_mut().for_each(|link| link.read_or_close(io_timeout));
    }

    /// Returns until when to wait for connections; `None` if there are none to wait for.
    fn end_of_wait_for_openings(&self, deadline: Instant) -> Option<Instant> {
        let moment = self.each.iter().filter_map(Link::opening).map(|(_, moment)| moment).max()?;
        if !self.has_majority() {
            return Some(deadline);
        }
        if moment > Instant::now() { Some(deadline.min(moment)) } else { None }
    }

    /// Blocks until a majority of the connected servers has room for requests, or until the
    /// deadline.
    fn make_room(&mut self, deadline: Instant) {
        let required = majority(self.each.len());
        while self.count_with_room() < required.min(self.connected()) {
            // Only replies make room. Whatever thread sent the requests, this one reads them.
            if !self.read(None, deadline) {
                break;
            }
        }
    }

    fn count_with_room(&self) -> usize {
        self.each.iter().filter(|link| link.has_room()).count()
    }
}

impl ExclusiveLinks for LockedLinks<'_> {
    fn servers(&self) -> &Arc<QuorumServers> {
        &self.shared.servers
    }

    fn is_connected(&self, server: usize) -> bool {
        self.each[server].is_connected()
    }

    fn check(&self, server: usize, ends: bool) -> Result<(), Failure> {
        self.each[server].check(ends)
    }

    fn write<T: ScriptReply>(&mut self, server: usize, ballot: &Arc<Ballot<T>>) {
        self.each[server].send(ballot.exchange_with(server));
    }

    /// Meanwhile other threads can send requests that they do not wait for.
    fn read(&mut self, mut wait: Option<&mut ReplyWait<'_>>, deadline: Instant) -> bool {
        let awaited = self.each.iter().enumerate().filter(|(_, link)| link.connection.is_busy());
        let (numbers, sockets): (Vec<usize>, Vec<_>) = awaited
            .filter_map(|(number, link)| {
                let open = link.connection.open.as_ref()?;
                Some((number, open.stream().map(RespStream::polled)?))
            })
            .unzip();
        if numbers.is_empty() {
            return false;
        }
        let ready = MutexGuard::unlocked(&mut self.each, || {
            // Another thread may close a connection now. Its socket stays open until this returns.
            let mut sockets: Vec<_> =
                sockets.iter().map(|(socket, what)| socket.poll_fd(*what)).collect();
            loop {
                let spins = wait.as_mut().is_some_and(|wait| wait.spins());
                let ready = poll_ready(&mut sockets, if spins { None } else { Some(deadline) });
                if !ready.is_empty() || !spins {
                    break ready;
                }
                std::hint::spin_loop();
            }
        });
        for place in &ready {
            self.each[numbers[*place]].connection.read();
        }
        !ready.is_empty()
    }

    /// Closes the connections over which no reply arrives by the deadline.
    fn drain(&mut self, deadline: Instant) {
        while self.read(None, deadline) {}
        self.read_or_close(Duration::ZERO);
    }
}

impl Drop for LockedLinks<'_> {
    fn drop(&mut self) {
        if self.each.iter().any(|link| link.connection.is_busy()) {
            self.shared.sweep.schedule();
        }
    }
}
