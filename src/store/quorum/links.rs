//! One connection to each server of a quorum, which threads use in turn.
//!
//! A name always has the same connections, and a server executes the requests on one of them in
//! order. So the request that began a hold cannot be executed after its release, even if no call
//! has waited for the reply. A request is written to all servers before the first reply is read,
//! and no call waits for a reply that decides nothing: the next thread that reads from that
//! connection reads it.
//!
//! The connections are those of [`net`](crate::net), but not pooled: a thread with a pooled
//! connection opens it by itself, waits for one server, and gets any connection that is free.
//!
//! A link to one server:
//!
//! | state | a request | then |
//! |---|---|---|
//! | closed | it fails: not sent | opening, when a call finds the server worth trying |
//! | opening | it fails as when closed, but a call may wait first | open, or closed again |
//! | open | it is written | lagging, if it is behind a wait for replicas or a disk |
//! | open | | closed, after an error or a silence, or when stale |
//! | open, owed many replies | it fails as transient | open, as replies come |
//! | lagging | it fails as transient, unless it ends a hold | open, as replies come |
//!
//! When the connection is closed, everything in flight has failed. The holds that these requests
//! may have begun or ended are in doubt.

use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use parking_lot::{Mutex, MutexGuard};

use crate::base::clock;
use crate::base::failure::{Failure, FailureKind};
use crate::base::sync::wait_for_any;
use crate::net::connection::Connection;
use crate::net::in_flight::Exchange;
use crate::net::pool_thread::{PoolThread, Sweep};
use crate::net::resp::RespStream;
use crate::net::socket::poll_ready;
use crate::net::wait::ReplyWait;
use crate::store::background::jobs::BackgroundJobs;
use crate::store::background::peer::BackgroundConnection;
use crate::store::background::wakeups::BackgroundWakeups;
use crate::store::background::{JobRunner, Wakeups};
use crate::store::quorum::ballot::{Ballot, QuorumServers};
use crate::store::quorum::exclusive::{ExclusiveLinks, SharedLinks};
use crate::store::quorum::health::QuorumServer;
use crate::store::quorum::policies::{JobsOfMajorities, WakeupsOfMajorities};
use crate::store::quorum::votes::majority;
use crate::store::scripts::ScriptReply;

/// The connections, and a sweep that reads the replies no call waits for.
pub(crate) struct Links {
    servers: Arc<QuorumServers>,
    /// Locked by a call until it has its replies, so that no other thread reads them.
    reader: Mutex<()>,
    /// In the order of the servers. Locked to send and to read, but not while waiting for replies.
    each: Mutex<Vec<Link>>,
    /// Reads the replies that no call waits for, unless a call is reading. They may show that a
    /// hold is in doubt.
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

    /// Reads what has arrived, and closes connections that are silent for too long.
    fn sweep(self: &Arc<Self>) {
        // Requests for other names may be waiting for this thread, so it never waits for the
        // connections.
        let (Some(reader), Some(each)) = (self.reader.try_lock(), self.each.try_lock()) else {
            // The thread that uses them reads the replies, or the next sweep does.
            return self.sweep.schedule();
        };
        let mut links = LockedLinks { reader: Some(reader), each, shared: self };
        links.read_or_close(self.servers.settings.io_timeout);
    }
}

impl SharedLinks for Arc<Links> {
    type Locked<'a> = LockedLinks<'a>;

    fn lock(&self, deadline: Instant) -> Result<LockedLinks<'_>, Failure> {
        // Always locked before the links: threads that took them in different orders would block
        // each other.
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
            // The links stay locked: a call without a majority has nothing to send in the meantime.
            links.each.iter_mut().for_each(Link::finish_opening);
        }
        links.make_room(deadline);
        Ok(links)
    }

    fn lock_to_post(&self, deadline: Instant) -> Result<LockedLinks<'_>, Failure> {
        // Not awaited, because the reader may need a whole round trip to get its replies.
        let reader = self.reader.try_lock();
        let each = self.each.try_lock_until(deadline).ok_or_else(in_use)?;
        let mut links = LockedLinks { reader, each, shared: self };
        // If another thread waits for replies, it has prepared the connections, and reads from
        // them.
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
        // If another thread is the reader, it will read these replies, too.
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
    /// `None` if another thread is waiting for its replies, and will read those of this thread,
    /// too.
    reader: Option<MutexGuard<'a, ()>>,
    each: MutexGuard<'a, Vec<Link>>,
    shared: &'a Arc<Links>,
}

impl LockedLinks<'_> {
    fn begin_openings(&mut self) {
        // A program that ends with unread replies may lose what it has posted.
        self.read_or_close(self.shared.servers.settings.io_timeout);
        self.each.iter_mut().for_each(Link::finish_opening);
        // A call that has a majority does not shorten the pauses of failed servers.
        let urgent = !self.has_majority();
        self.each.iter_mut().for_each(|link| link.begin_opening(urgent));
    }

    /// Reads what has arrived, and closes connections that are silent for `io_timeout`.
    fn read_or_close(&mut self, io_timeout: Duration) {
        self.each.iter_mut().for_each(|link| link.read_or_close(io_timeout));
    }

    /// Returns how long to wait for connections; `None` if there are none to wait for.
    fn end_of_wait_for_openings(&self, deadline: Instant) -> Option<Instant> {
        let moment = self.each.iter().filter_map(Link::opening).map(|(_, moment)| moment).max()?;
        // Without a majority the call would fail in any case, so it waits as long as it can.
        if !self.has_majority() {
            return Some(deadline);
        }
        if moment > clock::now() { Some(deadline.min(moment)) } else { None }
    }

    /// Blocks until a majority of the connected servers has room for requests, or until the
    /// deadline.
    fn make_room(&mut self, deadline: Instant) {
        let required = majority(self.each.len());
        while self.count_with_room() < required.min(self.connected()) {
            // Only replies make room, so this thread reads them, whichever thread sent the
            // requests.
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

    /// Unlocks the connections while waiting, so that other threads can post requests.
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
            // If another thread closes a connection now, its socket stays open until this returns.
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
        // Another thread may have read these replies, or replaced the connection: `read` then finds
        // nothing.
        for place in &ready {
            self.each[numbers[*place]].connection.read();
        }
        !ready.is_empty()
    }

    /// Closes the connections whose replies do not arrive by the deadline.
    fn drain(&mut self, deadline: Instant) {
        while self.read(None, deadline) {}
        self.read_or_close(Duration::ZERO);
    }
}

impl Drop for LockedLinks<'_> {
    fn drop(&mut self) {
        // Replies that decide nothing, or came too late for their call, are still read soon.
        if self.each.iter().any(|link| link.connection.is_busy()) {
            self.shared.sweep.schedule();
        }
    }
}

/// A server lags if it has this many requests in flight, one of them waiting for replicas or a
/// disk.
const LAGGING: usize = 4;

/// How long to wait for a connection beyond a majority.
const LATECOMERS: Duration = Duration::from_millis(50);

/// The connection to one server, open or not.
struct Link {
    connection: BackgroundConnection<Arc<QuorumServer>, Connection>,
    /// The end of the wait for the connection being opened, if a majority is connected without it.
    soon: Instant,
}

impl Link {
    /// Opens nothing yet.
    fn new(server: &Arc<QuorumServer>) -> Self {
        // The pauses belong to the server, so that all its connections share them.
        let connection = BackgroundConnection::new(server.clone(), Duration::ZERO);
        Self { connection, soon: clock::now() }
    }

    fn server(&self) -> &QuorumServer {
        &self.connection.peer
    }

    fn open(&self) -> Option<&Connection> {
        self.connection.open.as_ref()
    }

    fn is_connected(&self) -> bool {
        self.open().is_some_and(Connection::is_connected)
    }

    /// Returns the connection that is being opened, if none is open, and how long to wait for it
    /// even if a majority is connected.
    fn opening(&self) -> Option<(&Receiver<Result<Connection, Failure>>, Instant)> {
        if self.is_connected() {
            return None;
        }
        Some((self.connection.opening.as_ref()?, self.soon))
    }

    /// Starts to open a connection if there is none or it soon expires. An `urgent` call needs the
    /// server for a majority, and skips the pause after a failure.
    fn begin_opening(&mut self, urgent: bool) {
        self.connection.open.take_if(|open| !open.is_connected());
        if self.connection.opening.is_none() {
            let soon = if self.server().is_trusted() { LATECOMERS } else { Duration::ZERO };
            self.soon = clock::now() + soon;
        }
        // The server remembers the failure.
        self.connection.begin_opening(None, self.soon, urgent, Ok).unwrap_or_default();
    }

    /// Switches to the connection that was being opened, once that is possible.
    fn finish_opening(&mut self) {
        // The server remembers the failure.
        self.connection.finish_opening().map(Result::ok);
    }

    /// Reads what has arrived. Closes the connection if it is stale, or if an expected reply has
    /// not arrived for `io_timeout`.
    fn read_or_close(&mut self, io_timeout: Duration) {
        self.connection.read();
        let BackgroundConnection { peer: server, open: Some(open), .. } = &mut self.connection
        else {
            return;
        };
        let since = open.in_flight.expected_since();
        if open.is_connected() && !open.is_open() {
            // The server may have moved, or the credentials have expired.
            open.give_up(Failure { kind: FailureKind::Disconnected, ..server.factory.no_reply() });
        } else if since.is_some_and(|since| clock::elapsed(since) >= io_timeout) {
            open.give_up(server.time_out());
        }
    }

    /// Returns `true` if too many requests are behind one that waits for replicas or a disk.
    fn is_lagging(&self) -> bool {
        self.open().is_some_and(|open| {
            open.in_flight.queue.len() >= LAGGING && open.in_flight.is_blocked()
        })
    }

    /// Returns `true` if the connection is open, has few outstanding replies, and has written
    /// everything.
    fn has_room(&self) -> bool {
        let open = self.open().filter(|open| open.is_connected());
        open.is_some_and(|open| open.in_flight.has_room(0) && !open.is_writing())
    }

    /// Fails if a request cannot be sent now. `ends` says whether it ends a hold.
    fn check(&self, ends: bool) -> Result<(), Failure> {
        if !self.is_connected() {
            return Err(self.server().unreachable());
        }
        let why = if !self.has_room() {
            "the server has not answered earlier requests yet"
        } else if !ends && self.is_lagging() {
            "earlier locks still wait for the server's replicas or disk"
        } else {
            return Ok(());
        };
        let label = self.server().factory.label();
        Err(Failure::io(FailureKind::Transient, &label, io::Error::other(why)))
    }

    /// Returns the connection if a request can be sent over it now.
    fn usable(&mut self) -> Option<&mut Connection> {
        let has_room = self.check(false).is_ok();
        self.connection.open.as_mut().filter(|open| has_room && open.is_open())
    }

    fn send(&mut self, exchange: Exchange) {
        if let Some(open) = &mut self.connection.open {
            open.send([exchange]);
        }
    }
}
