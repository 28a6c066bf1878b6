//! How the threads of a client share the connections to one server.
//!
//! A thread that finds a free connection sends its request over it. If none is free, requests queue
//! up, and the next thread that gets a connection sends all of them in one write: flat combining
//! (Hendler, Incze, Shavit and Tzafrir, 2010), with a connection for the lock. Before it sends a
//! batch, the thread yields once: threads that were woken together send their next requests at
//! nearly the same time, and one write for all of them halves the CPU time.
//!
//! Replies come in the order of the requests. The thread whose reply comes next is the *reader* of
//! the connection. Once it has its own reply, it collects everything that was read along with it,
//! and the next waiting thread becomes the reader. So no thread waits for the reply to another.
//!
//! | connection | requests in flight | what comes next |
//! |---|---|---|
//! | idle | none | queued requests are sent, or it goes back to the pool |
//! | with reader | some | the reader gets its reply, or its deadline passes: without reader |
//! | without reader | some that threads wait for | the first of these threads becomes the reader |
//! | without reader | abandoned ones | closed |
//! | lingering | only some that no thread waits for | its next user reads the replies, or a sweep |
//! | lingering, blocked | a request to wait for replicas or disks | no thread uses it |
//! | closed | all have failed | idle: the next user opens it again |

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::base::clock::{self, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::random;
use crate::base::sync::{sleep, yield_now};
use crate::config::Config;
use crate::net::demand::Demand;
use crate::net::factory::ConnectionFactory;
use crate::net::in_flight::{Exchange, SendWait};
use crate::net::packed::{Reply, ReplySlot, Request};
use crate::net::pool_thread::{PoolThread, Sweep};
use crate::net::post_writer::PostWriter;
use crate::net::shared_queue::{Loan, PooledConnection, Requests, SharedQueue};
use crate::net::wait::WaitFor;

/// How long a call waits for the reply to a WAIT that turned out to be needless, before it leaves
/// the connection to a sweep.
const NEEDLESS_WAIT: Duration = Duration::from_millis(10);

/// After a pause, threads connect again at random times within this many milliseconds.
const TURNS: u64 = 30;

/// One server, and the connections to it, shared by threads.
pub(crate) struct Multiplexer {
    pub(crate) factory: Arc<ConnectionFactory>,
    pub(super) queue: SharedQueue,
    writer: PostWriter,
}

impl Multiplexer {
    pub(super) fn new(
        factory: Arc<ConnectionFactory>,
        config: &Config,
        thread: &PoolThread,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            let sweep = Sweep::new(thread, this, |this| this.sweep());
            let queue = SharedQueue::new(factory.clone(), config, thread, sweep);
            Self { factory, queue, writer: PostWriter::default() }
        })
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), Failure> {
        let reply = self.exchange(Request::command(&redis::cmd("PING")), None, deadline);
        let checked = self.factory.check_assent(reply);
        checked.inspect_err(|failure| {
            if failure.kind == FailureKind::Foreign {
                // Another program may have taken over the address.
                self.factory.invalidate_connections();
            }
        })
    }

    /// Sends a request and waits for the reply. Sends it at once if a connection is free, or with
    /// the next batch if other threads are sending batches. With a demand, a reply that reports a
    /// change counts only once the demand is met.
    pub(crate) fn exchange(
        &self,
        request: Request,
        demand: Option<(Demand, SendWait)>,
        deadline: Instant,
    ) -> Reply {
        self.run(deadline, |slot| [Exchange::awaited(request, slot).durable(demand)]).reply()
    }

    /// Like `exchange`, for several requests, in one write.
    pub(crate) fn exchange_all(
        &self,
        requests: impl IntoIterator<Item = Request>,
        demand: Option<(Demand, SendWait)>,
        deadline: Instant,
    ) -> Vec<Reply> {
        let slot = self.run(deadline, |slot| {
            let requests = requests.into_iter();
            let exchanges = requests.map(|one| Exchange::awaited(one, slot).durable(demand));
            exchanges.collect::<Vec<_>>()
        });
        slot.replies()
    }

    /// Sends requests of this thread and waits until their slot is closed.
    fn run<E: IntoIterator<Item = Exchange, IntoIter: ExactSizeIterator>>(
        &self,
        deadline: Instant,
        exchanges: impl FnOnce(&Arc<ReplySlot>) -> E,
    ) -> Arc<ReplySlot> {
        if let Some(mut free) = self.queue.take(Requests::Own, deadline) {
            if !free.connection.is_open() {
                self.await_next_try(&mut free, clock::now(), deadline);
            }
            let own = ReplySlot::renew(&mut free.connection.slot, deadline);
            self.send(free, exchanges(&own), &own);
            return own;
        }
        let own = ReplySlot::new(deadline);
        self.push(exchanges(&own), deadline);
        self.wait(&own);
        own
    }

    /// Sleeps until callers may connect again, so that no call fails because of an attempt made
    /// before the call began. Leaves the call at least half of its time for its own attempt. An
    /// attempt that has failed since the call began counts as its own.
    fn await_next_try(&self, idle: &mut PooledConnection, begun: Instant, deadline: Instant) {
        if let Some(pause) = self.factory.pause()
            && pause.since <= begun
        {
            let now = clock::now();
            let most = deadline.saturating_duration_since(now) / 2;
            // The callers wake at random times. If the first one fails, the others pause again.
            let turn = Duration::from_millis(random() % TURNS);
            let time = (pause.until.saturating_duration_since(now) + turn).min(most);
            idle.connection.leave_unread(now + time);
            sleep(time);
        }
    }

    /// Sends a request ahead of the thread that then waits for the reply with [`Self::reply`]. Does
    /// not block, and sends nothing unless an open connection is free.
    pub(crate) fn send_ahead(&self, request: Request, deadline: Instant) -> Option<Arc<ReplySlot>> {
        let now = clock::now();
        let mut idle = self.queue.take_idle(now)?;
        let mut own = None;
        if idle.connection.is_usable() {
            let slot = ReplySlot::new(deadline);
            idle.connection.send([Exchange::awaited(request, &slot)]);
            own = Some(slot);
        }
        // This thread does not read now, so it lends the connection to a waiting thread or leaves
        // it to a sweep.
        if let Some(free) = self.queue.lend_to_next(idle) {
            self.send_queued(free, now);
        }
        own
    }

    /// Waits for the reply to a request that was sent ahead.
    pub(crate) fn reply(&self, own: &Arc<ReplySlot>) -> Reply {
        self.wait(own);
        own.reply()
    }

    /// Waits until the slot of this thread is closed. Reads for other threads if it becomes the
    /// reader.
    fn wait(&self, own: &Arc<ReplySlot>) {
        let begun = clock::now();
        let is_reader = own.wait();
        if is_reader {
            // Another thread has lent its connection. If the connection has to be opened first, the
            // requests came back unsent.
            let Loan { mut connection, unsent, .. } = self.queue.take_lent(own);
            if unsent.is_empty() {
                return self.read(connection, own);
            }
            if !connection.connection.is_open() {
                self.await_next_try(&mut connection, begun, own.deadline);
            }
            return self.send(connection, unsent, own);
        }
        // Out of time. Once withdrawn from the queue, the request can no longer be in another
        // thread's batch.
        let is_unsent =
            own.state.lock().missing > 0 && !self.queue.state.lock().withdraw(own).is_empty();
        if is_unsent {
            let label = self.factory.label();
            own.close(|| self.queue.none_free(&label));
        } else {
            own.close(|| self.factory.no_reply());
        }
    }

    /// Writes requests that no thread waits for, now or as soon as a connection is free. Blocks
    /// only while it opens a connection or waits for room to write.
    pub(crate) fn post(&self, posted: Vec<Exchange>) {
        let Some(deadline) = posted.iter().map(|posted| posted.deadline).max() else { return };
        match self.queue.take(Requests::Own, deadline) {
            None => {
                self.push(posted, deadline);
                // No connection may become free before they expire.
                self.queue.sweep.schedule();
            }
            Some(mut free) => {
                self.writer.post(&mut free.connection, posted, deadline);
                self.send_queued(free, deadline);
            }
        }
    }

    /// Writes requests that no thread waits for over the connections that are open and free,
    /// without waiting for room. A reply after `deadline` does not count. Returns the requests that
    /// were not sent.
    pub(crate) fn post_if_open(&self, posted: Vec<Exchange>, deadline: Instant) -> Vec<Exchange> {
        let now = clock::now();
        let mut unsent = posted;
        // A connection that is given back too early would be taken again.
        let mut taken = Vec::new();
        while !unsent.is_empty()
            && let Some(mut free) = self.queue.take_idle(now)
        {
            if free.connection.is_usable() {
                unsent = free.connection.send_what_fits(unsent, deadline);
            }
            taken.push(free);
        }
        for idle in taken {
            self.send_queued(idle, now);
        }
        unsent
    }

    /// Reads all outstanding replies, and closes the connections over which they do not arrive in
    /// time.
    pub(crate) fn drain(&self, deadline: Instant) {
        loop {
            let mut state = self.queue.state.lock();
            let lingering = state.take_usable();
            let is_swept = state.sweeps > 0;
            let is_queued = !state.queue.is_empty();
            drop(state);
            match lingering {
                Some(mut idle) => {
                    drop(idle.connection.read_all(deadline));
                    self.send_queued(idle, deadline);
                }
                // A sweep never takes long.
                None if is_swept => yield_now(),
                // The queue is served in order, so once this is answered, everything before it was
                // sent.
                None if is_queued && clock::now() < deadline => drop(self.ping(deadline)),
                None => return,
            }
        }
    }

    /// Queues requests, to be sent as soon as a connection is free, with those queued before.
    fn push(&self, exchanges: impl IntoIterator<Item = Exchange>, deadline: Instant) {
        let mut state = self.queue.state.lock();
        let is_first = state.queue.is_empty();
        let is_batching = state.is_batching();
        state.queue.extend(exchanges);
        drop(state);
        if is_first && is_batching {
            // The other threads of the last batch are about to queue their next requests.
            yield_now();
        }
        if is_first && let Some(free) = self.queue.take(Requests::Queued, deadline) {
            self.send_queued(free, deadline);
        } else {
            self.factory.counters.pool_waits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends requests of this thread and queued ones over an idle connection, and reads replies.
    fn send(
        &self,
        mut idle: PooledConnection,
        unsent: impl IntoIterator<Item = Exchange, IntoIter: ExactSizeIterator>,
        own: &Arc<ReplySlot>,
    ) {
        if let Err(failure) = idle.connection.try_connect(own.deadline) {
            own.close(|| failure.clone());
            return self.send_queued(idle, own.deadline);
        }
        let unsent = unsent.into_iter();
        let others = self.queue.state.lock().batch(unsent.len());
        let others = self.without_expired(others);
        self.write(&mut idle, unsent, others, own.deadline);
        self.read(idle, own);
    }

    /// Writes the requests of one thread over an open connection, along with those of others. The
    /// posted ones come first.
    fn write(
        &self,
        used: &mut PooledConnection,
        own: impl IntoIterator<Item = Exchange>,
        others: Vec<Exchange>,
        deadline: Instant,
    ) {
        let (posted, waiting): (Vec<_>, Vec<_>) = others.into_iter().partition(Exchange::is_posted);
        if !posted.is_empty() {
            self.writer.record(&mut used.connection, posted, deadline);
        }
        used.connection.send(own.into_iter().chain(waiting));
    }

    /// Reads as the reader of a connection until all replies for `own` have arrived or its deadline
    /// passes.
    fn read(&self, mut used: PooledConnection, own: &Arc<ReplySlot>) {
        used.connection.read_until(own);
        own.close(|| used.connection.no_reply());
        if used.connection.in_flight.is_empty() {
            return self.send_queued(used, own.deadline);
        }
        let mut buffered = Vec::new();
        while let Some((exchange, reply)) = used.connection.receive_answer(WaitFor::Buffered) {
            if exchange.wakes() {
                buffered.push((exchange, reply));
            } else {
                // The thread may be the next reader, for the rest of its replies.
                exchange.answer(reply);
            }
        }
        let mut idle = self.queue.lend_to_next(used);
        if let Some(free) = idle.take_if(|idle| !idle.connection.in_flight.is_blocked()) {
            self.send_queued(free, own.deadline);
        }
        // Woken only now, so that the server gets its next requests first, because waking many
        // threads takes a while.
        for (exchange, reply) in buffered {
            exchange.answer(reply);
        }
        if let Some(mut blocked) = idle {
            let deadline = own.deadline.min(end_of(NEEDLESS_WAIT));
            while blocked.connection.receive(WaitFor::Reply { deadline }) {}
            self.send_queued(blocked, own.deadline);
        }
    }

    /// Sends queued requests over an idle connection, or gives it back. The thread has until the
    /// deadline to write what other threads have posted. Requests that cannot be written in that
    /// time fail.
    fn send_queued(&self, idle: PooledConnection, deadline: Instant) {
        let mut free = Some(idle);
        while let Some(mut idle) = free {
            let mut state = self.queue.state.lock();
            let is_empty = state.queue.is_empty();
            if is_empty || idle.connection.in_flight.is_blocked() {
                self.queue.return_idle(idle, &mut state);
                drop(state);
                free = if is_empty { None } else { self.queue.take(Requests::Queued, deadline) };
                continue;
            }
            let Some(slot) = state.queue.iter().find_map(Exchange::slot).cloned() else {
                // Only posted requests are queued, so there is no thread to lend the connection to.
                let batch = state.batch(0);
                drop(state);
                let batch = self.without_expired(batch);
                if !batch.is_empty() {
                    self.writer.post(&mut idle.connection, batch, deadline);
                }
                free = Some(idle);
                continue;
            };
            if !idle.connection.is_usable() || idle.connection.retiring().is_some() {
                // Only a thread that waits for a reply has the time to connect.
                let unsent = state.withdraw(&slot);
                drop(state);
                free = self.queue.lend(&slot, idle, unsent);
                continue;
            }
            let batch = state.batch(0);
            drop(state);
            let batch = self.without_expired(batch);
            let deadlines = batch.iter().map(|exchange| exchange.deadline);
            let earliest = deadlines.fold(deadline, Instant::min);
            self.write(&mut idle, [], batch, earliest);
            free = self.queue.lend_to_next(idle);
        }
    }

    /// Fails the posted requests of a batch that have expired in the queue. Returns the others.
    fn without_expired(&self, mut batch: Vec<Exchange>) -> Vec<Exchange> {
        self.fail_unsent(batch.extract_if(.., |request| {
            // Most batches have no posted requests, so the clock is rarely read.
            request.is_posted() && request.has_expired(clock::now())
        }));
        batch
    }

    fn fail_unsent(&self, expired: impl IntoIterator<Item = Exchange>) {
        for request in expired {
            request.answer(Err(self.queue.none_free(&self.factory.label())));
        }
    }

    /// Reads replies that have been outstanding for a while, and closes the connections over which
    /// something is overdue. Sends the remaining queue, and fails what has expired there.
    fn sweep(&self) {
        let now = clock::now();
        for mut due in self.queue.begin_sweep(now) {
            due.connection.collect();
            if due.connection.in_flight.queue.iter().any(|next| next.deadline <= now) {
                due.connection.time_out();
            }
            // This thread has no time to open a connection.
            self.send_queued(due, now);
        }
        // A separate statement, which releases the lock, because a callback may take it.
        let expired = self.queue.state.lock().take_expired(now);
        self.fail_unsent(expired);
        // These were posted while every connection was in use.
        if !self.queue.state.lock().queue.is_empty()
            && let Some(free) = self.queue.take(Requests::Queued, now)
        {
            self.send_queued(free, now);
        }
        self.queue.end_sweep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::mem;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use redis::Value;

    use crate::base::clock::{Moment, end_of};
    use crate::base::event_thread::Events;
    use crate::net::connection::{Connection, IDLE};
    use crate::net::in_flight::POSTED_MAX;
    use crate::net::route::{Address, Route, VALID_FOR, sentinels_label, unanswered};
    use crate::net::server::ServerFactory;

    const SOON: Duration = Duration::from_secs(5);
    const LONG: Duration = Duration::from_secs(20);

    fn ping() -> Request {
        Request::command(&redis::cmd("PING"))
    }

    /// Creates a server with one connection, to the address of a listener.
    fn server_at(login: &str, listener: &TcpListener) -> Arc<Multiplexer> {
        let config = Config { pool_size: 1, ..Config::default() };
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let url = format!("redis://{login}{}", listener.local_addr().expect("an address"));
        servers.server(servers.endpoint(&url).expect("a good URL"))
    }

    /// Accepts a connection and replies to its first request.
    fn reply(listener: &TcpListener, reply: &[u8]) -> TcpStream {
        let (mut peer, _) = listener.accept().expect("a connection");
        let read = peer.read(&mut [0; 1000]).expect("a request");
        assert!(read > 0);
        peer.write_all(reply).expect("it is open");
        peer
    }

    /// Surplus bytes may come from a proxy that repeats requests, or says why it closes a
    /// connection.
    #[test]
    fn surplus_bytes_are_not_the_reply_to_the_next_request() {
        for (with_reply, later) in [(":1\r\n:2\r\n", ""), (":1\r\n", ":2\r\n")] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let server = server_at("", &listener);
            let (replied, go_on) = mpsc::channel();
            let peer = thread::spawn(move || {
                let mut first = reply(&listener, with_reply.as_bytes());
                go_on.recv().expect("the reply has been read");
                first.write_all(later.as_bytes()).expect("it is open");
                (first, reply(&listener, b":3\r\n"))
            });
            let exchange = || server.exchange(ping(), None, end_of(SOON)).expect("a reply");
            assert_eq!(exchange(), Value::Int(1));
            replied.send(()).expect("the peer waits");
            thread::sleep(IDLE * 3);
            assert_eq!(exchange(), Value::Int(3), "after {with_reply:?} and {later:?}");
            peer.join().expect("no panic");
        }
    }

    #[test]
    fn surplus_bytes_after_the_login_end_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = server_at(":sesame@", &listener);
        let peer = thread::spawn(move || reply(&listener, b"+OK\r\n:1\r\n"));
        let failure = server.ping(end_of(SOON)).expect_err("it is no reply to PING");
        assert_eq!(failure.kind, FailureKind::Unreachable);
        peer.join().expect("no panic");
    }

    #[test]
    fn a_service_that_repeats_requests_is_not_a_redis_server() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let servers = [server_at("", &listener), server_at(":sesame@", &listener)];
        thread::spawn(move || {
            for peer in listener.incoming() {
                let peer = peer.expect("a connection");
                thread::spawn(move || std::io::copy(&mut &peer, &mut &peer));
            }
        });
        for server in servers {
            let failure = server.ping(end_of(SOON)).expect_err("an echo");
            assert_eq!(failure.kind, FailureKind::Foreign);
            let mut connection = Connection::new(server.factory.clone());
            let opened = connection.connect(end_of(SOON));
            let greeted = opened.and_then(|()| connection.await_greeting(end_of(SOON)));
            assert_eq!(greeted.expect_err("an echo").kind, FailureKind::Foreign);
        }
    }

    /// The pauses that calls make together would otherwise last beyond the outage.
    #[test]
    fn a_call_that_begins_after_an_outage_succeeds_at_its_first_attempt() {
        succeeds_after_an_outage(1);
    }

    #[test]
    fn a_call_that_is_queued_after_an_outage_succeeds_at_its_first_attempt() {
        succeeds_after_an_outage(2);
    }

    /// Sends a request after an outage. Before the outage, this many threads sent theirs together.
    fn succeeds_after_an_outage(last_batch: usize) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = server_at("", &listener);
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let begun = Instant::now();
        for _ in 0..10 {
            server.ping(end_of(SOON)).expect_err("no program listens");
        }
        assert!(begun.elapsed() < SOON, "the pauses are short");
        // After a batch of several threads, this call queues its request.
        server.queue.state.lock().last_batch = last_batch;
        let listener = TcpListener::bind(address).expect("the same port");
        let peer = thread::spawn(move || reply(&listener, b"+PONG\r\n"));
        server.ping(end_of(SOON)).expect("the server is back");
        peer.join().expect("no panic");
    }

    /// Otherwise the calls queued behind it would fail together, long before their deadlines.
    #[test]
    fn a_call_that_comes_too_late_makes_no_other_pause() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = server_at(":sesame@", &listener);
        let mut connection = Connection::new(server.factory.clone());
        connection.connect(Instant::now()).expect_err("no time is left");
        assert!(server.factory.pause().is_none());
    }

    /// The master may have moved since the sentinels last answered.
    #[test]
    fn a_connection_that_ends_while_the_sentinels_are_asked_is_not_replaced_without_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let master = Address { host: address.ip().to_string(), port: address.port() };
        let (peers, ended) = mpsc::channel::<TcpStream>();
        let (factories, factory) = mpsc::channel::<Arc<ConnectionFactory>>();
        let mut is_first = true;
        let ask = move |_: Option<&Address>, _| {
            if mem::take(&mut is_first) {
                return Ok((master.clone(), Moment::now()));
            }
            if let Ok(peer) = ended.try_recv() {
                drop(peer);
                // As if another connection had ended, too.
                factory.recv().expect("a factory").suspect_connections();
            }
            Err(unanswered("shop", None))
        };
        let config = Config { pool_size: 1, ..Config::default() };
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let endpoint = servers.endpoint("redis://127.0.0.1/").expect("a good URL");
        let route = Route::new("shop", &Events::default(), Box::new(ask));
        let server = servers.server_along(route, endpoint);
        let peer = thread::scope(|scope| {
            let call = scope.spawn(|| server.ping(end_of(SOON)));
            let (mut peer, _) = listener.accept().expect("a connection");
            for reply in [&b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"[..], b"+PONG\r\n"] {
                assert!(peer.read(&mut [0; 1000]).expect("a request") > 0);
                peer.write_all(reply).expect("it is open");
            }
            call.join().expect("no panic").expect("a reply");
            peer
        });
        thread::sleep(VALID_FOR);
        peers.send(peer).expect("the route exists");
        factories.send(server.factory.clone()).expect("the route exists");
        let failure = server.ping(end_of(SOON)).expect_err("no sentinel answers");
        assert_eq!(failure.server, sentinels_label("shop"), "{failure:?}");
        listener.set_nonblocking(true).expect("a listener");
        listener.accept().expect_err("no connection to a server that may be no master");
    }

    /// The peer accepts connections, but never replies to the login.
    #[test]
    fn a_call_that_is_over_opens_no_connection_for_what_others_have_posted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let config = Config { pool_size: 1, connect_timeout: LONG, ..Config::default() };
        let url = format!("redis://:sesame@{}", listener.local_addr().expect("an address"));
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let server = servers.server(servers.endpoint(&url).expect("a good URL"));
        let begin = Instant::now();
        thread::scope(|scope| {
            let call = scope.spawn(|| {
                let deadline = end_of(Duration::from_millis(500));
                server.exchange(ping(), None, deadline).expect_err("no reply");
                begin.elapsed()
            });
            let _peer = listener.accept().expect("the call has the only connection");
            let reply = post(&server, LONG);
            let took = call.join().expect("no panic");
            assert!(took < LONG / 2, "{took:?}");
            reply.recv_timeout(LONG / 2).expect("told").expect_err("it was not written");
        });
    }

    /// Posts a request that expires after this time, and returns the receiver of its reply.
    fn post(server: &Multiplexer, time: Duration) -> mpsc::Receiver<Reply> {
        let (sender, reply) = mpsc::channel();
        let on_reply = Box::new(move |reply| sender.send(reply).unwrap_or_default());
        server.post(vec![Exchange::posted(ping(), end_of(time), on_reply)]);
        reply
    }

    /// The peer accepts connections, but never replies.
    #[test]
    fn a_posted_request_expires_though_a_call_with_more_time_has_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = server_at("", &listener);
        let brief = Duration::from_secs(1);
        let in_flight = post(&server, brief);
        let (mut peer, _) = listener.accept().expect("a connection");
        thread::scope(|scope| {
            let call = scope.spawn(|| server.exchange(ping(), None, end_of(LONG)));
            let mut both = vec![0; 2 * ping().bytes.len()];
            peer.read_exact(&mut both).expect("a posted request, and that of the call");
            let queued = post(&server, brief);
            let failure = in_flight.recv_timeout(LONG / 2).expect("told").expect_err("no reply");
            assert_eq!(failure.kind, FailureKind::Timeout);
            let failure = queued.recv_timeout(LONG / 2).expect("told").expect_err("not sent");
            assert_eq!(failure.kind, FailureKind::NoneFree);
            assert!(!call.is_finished(), "it has more time");
            drop(peer);
            call.join().expect("no panic").expect_err("the connection is closed");
        });
    }

    /// The peer says that it is a master, and then never replies.
    #[test]
    fn a_posted_request_expires_though_the_sentinels_are_asked_for_longer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let master = Address { host: address.ip().to_string(), port: address.port() };
        let (replies, posted) = mpsc::channel::<mpsc::Receiver<Reply>>();
        let mut is_first = true;
        let ask = move |_: Option<&Address>, _| {
            if !mem::take(&mut is_first) {
                let reply = posted.recv().expect("it is posted").recv_timeout(LONG / 2);
                reply.expect("it was notified before there was an answer").expect_err("no reply");
            }
            Ok((master.clone(), Moment::now()))
        };
        let config = Config { pool_size: 1, connect_timeout: LONG, ..Config::default() };
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let endpoint = servers.endpoint("redis://127.0.0.1/").expect("a good URL");
        let route = Route::new("shop", &Events::default(), Box::new(ask));
        let server = servers.server_along(route, endpoint);
        let peer = thread::spawn(move || {
            let mut peer = reply(&listener, b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
            let mut both = vec![0; 2 * ping().bytes.len()];
            peer.read_exact(&mut both).expect("a posted request, and that of a call");
        });
        replies.send(post(&server, SOON)).expect("the route exists");
        server.factory.suspect_move();
        server.ping(end_of(LONG)).expect_err("the connection is closed");
        peer.join().expect("no panic");
    }

    /// If more is in flight, a server may not execute the rest.
    #[test]
    fn no_more_is_posted_over_an_open_connection_than_a_server_reads_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = server_at("", &listener);
        let soon = || end_of(SOON);
        let posted = || Exchange::posted(ping(), soon(), Box::new(drop));
        let many = || (0..POSTED_MAX).map(|_| posted()).collect();
        assert_eq!(server.post_if_open(many(), soon()).len(), POSTED_MAX, "none is open");
        let _peer = thread::scope(|scope| {
            let call = scope.spawn(|| server.ping(soon()));
            let (mut peer, _) = listener.accept().expect("a connection");
            peer.write_all(b"+PONG\r\n").expect("it is open");
            call.join().expect("no panic").expect("a reply");
            peer
        });
        let fits = POSTED_MAX / ping().bytes.len();
        assert_eq!(server.post_if_open(many(), soon()).len(), POSTED_MAX - fits);
        assert_eq!(server.post_if_open(many(), soon()).len(), POSTED_MAX, "no room is left");
    }

    #[test]
    fn many_requests_of_one_thread_time_out_together() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let config = Config { pool_size: 1, ..Config::default() };
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let server = servers.server(servers.endpoint(&url).expect("a good URL"));
        let (ping, begin) = (redis::cmd("PING"), Instant::now());
        let requests = (0..50_000).map(|_| Request::command(&ping));
        let deadline = end_of(Duration::from_millis(100));
        let replies = server.exchange_all(requests, None, deadline);
        assert!(replies.len() == 50_000 && replies.iter().all(Result::is_err));
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }
}
