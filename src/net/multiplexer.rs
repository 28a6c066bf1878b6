//! How the threads of a client share its connections to one server.
//!
//! A thread that finds a connection free sends its request over it. Where none is free, requests
//! queue up, and the thread that gets a connection next sends all of them in one write. The idea is
//! that of flat combining (Hendler, Incze, Shavit and Tzafrir, 2010), with a connection for the
//! lock. The first request of a batch yields once before it is sent: threads that were woken
//! together send their next requests at nearly the same time, and one write for all costs half the
//! CPU of one for each. A thread alone never yields.
//!
//! Replies come in the order of the requests. The thread whose reply comes next is the *reader* of
//! the connection. When it has its own reply it collects what was read along with that, and the
//! next thread that waits becomes the reader. So no thread waits for the reply to another, and no
//! thread is needed that only reads.
//!
//! | connection | requests in flight | what comes next |
//! |---|---|---|
//! | idle | none | queued requests are sent, or it goes back to the pool |
//! | with reader | some | the reader has its reply, or its deadline is over: without reader |
//! | without reader | some that threads wait for | the first of these threads becomes the reader |
//! | without reader | abandoned ones | given up |
//! | lingering | only some that no thread waits for | its next user reads the replies, or a sweep |
//! | lingering, blocked | a request to wait for replicas or disks | no thread uses it |
//! | given up | all have failed | idle: the next user opens it again |

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::end_of;
use crate::base::sync::{Mutex, yield_now};
use crate::net::batch_writer::BatchWriter;
use crate::net::demand::Demand;
use crate::net::exchange::{Answer, Exchange, Lent, ReplySlot, SendWait};
use crate::net::pool::{ConnectionPool, NoConnection, PooledConnection};
use crate::net::request::{Reply, Request};
use crate::net::shared_queue::{Next, NoneLingers, SWEEP, SharedQueue};
use crate::net::stream::WaitFor;

/// How long a call waits for the reply to a needless request to wait for replicas or disks, before
/// it goes on without its connection.
const NEEDLESS_WAIT: Duration = Duration::from_millis(10);

/// The connections to one server, as threads share them.
#[derive(Debug)]
pub(crate) struct Multiplexer {
    pool: ConnectionPool,
    queue: Mutex<SharedQueue>,
    writer: BatchWriter,
}

impl Multiplexer {
    /// Unless it `shares`, no two threads have requests in flight over one connection.
    pub(super) fn new(pool: ConnectionPool, shares: bool) -> Self {
        let queue = Mutex::new(SharedQueue::new(shares));
        Self { pool, queue, writer: BatchWriter::default() }
    }

    pub(super) fn pool(&self) -> &ConnectionPool {
        &self.pool
    }

    /// How many connections no thread uses while replies are to come over them.
    pub(super) fn lingering(&self) -> usize {
        self.queue.lock().lingering()
    }

    /// Returns `true` if a request waits for a connection.
    pub(super) fn has_queued(&self) -> bool {
        !self.queue.lock().is_empty()
    }

    /// Returns `true` if replies are to come that no thread waits for.
    #[cfg(all(test, leasehold_shuttle))]
    pub(super) fn is_lingering(&self) -> bool {
        self.queue.lock().is_lingering()
    }

    /// Sends a request and waits for the reply: at once if a connection is free and other threads
    /// do not send batches at the moment, else together with theirs.
    pub(super) fn exchange(
        self: &Arc<Self>,
        request: Request,
        demand: Option<(Demand, SendWait)>,
        deadline: Instant,
    ) -> Reply {
        self.run(deadline, |slot| [slot.exchange(request, demand)]).reply()
    }

    /// As `exchange`, for several requests, in one write.
    pub(super) fn exchange_all(
        self: &Arc<Self>,
        requests: impl IntoIterator<Item = Request>,
        demand: Option<(Demand, SendWait)>,
        deadline: Instant,
    ) -> Vec<Reply> {
        let exchanges = |slot: &Arc<ReplySlot>| -> Vec<_> {
            requests.into_iter().map(|request| slot.exchange(request, demand)).collect()
        };
        self.run(deadline, exchanges).replies()
    }

    /// Sends requests of this thread and waits until their slot is closed.
    fn run<E>(
        self: &Arc<Self>,
        deadline: Instant,
        exchanges: impl FnOnce(&Arc<ReplySlot>) -> E,
    ) -> Arc<ReplySlot>
    where
        E: IntoIterator<Item = Exchange, IntoIter: ExactSizeIterator>,
    {
        if let Some(mut connection) = self.take_unless_batching(deadline) {
            let own = connection.slot(deadline);
            self.send(connection, exchanges(&own), &own);
            return own;
        }
        let own = Arc::new(ReplySlot::new(deadline));
        self.push(exchanges(&own), deadline);
        self.wait(&own);
        own
    }

    /// Sends a request, or has it sent as soon as a connection is free. Any thread may wait for the
    /// reply.
    pub(super) fn begin(self: &Arc<Self>, request: Request, deadline: Instant) -> Pending {
        let slot = Arc::new(ReplySlot::new(deadline));
        self.push([slot.exchange(request, None)], deadline);
        Pending { multiplexer: self.clone(), slot, waited: false }
    }

    /// Writes requests that no thread waits for, or has them written as soon as a connection is
    /// free. Blocks only for room to write, and to open a connection.
    pub(super) fn post(self: &Arc<Self>, posted: Vec<Exchange>) {
        let Some(deadline) = posted.iter().map(|posted| posted.deadline).max() else { return };
        match self.take_unless_batching(deadline) {
            None => self.push(posted, deadline),
            Some(mut connection) => {
                self.writer.post(&mut connection, posted, deadline);
                self.send_queued(connection, deadline);
            }
        }
    }

    /// Reads everything that is to come, or gives up the connections over which it does not.
    pub(super) fn settle(self: &Arc<Self>, deadline: Instant) {
        loop {
            let lingering = self.queue.lock().take_lingering();
            match lingering {
                Ok(mut connection) => {
                    drop(connection.read_all(deadline));
                    self.send_queued(connection, deadline);
                }
                Err(NoneLingers::Idle) => return,
                Err(NoneLingers::Queued) if Instant::now() >= deadline => return,
                Err(NoneLingers::Queued) => {
                    // When this has been answered, everything else has been sent.
                    drop(self.exchange(Request::command(&redis::cmd("PING")), None, deadline));
                }
                Err(NoneLingers::Swept) => yield_now(),
            }
        }
    }

    /// Returns a connection of the pool. A thread that comes too late for one has kept it from
    /// others: a sweep sends what has queued up meanwhile.
    fn take_pooled(self: &Arc<Self>, deadline: Instant) -> Option<PooledConnection> {
        match self.pool.try_get(deadline) {
            Ok(connection) => return Some(connection),
            Err(NoConnection::InUse) => {}
            Err(NoConnection::Late) => {
                let mut queue = self.queue.lock();
                if !queue.is_empty() && queue.claim_sweep() {
                    drop(queue);
                    self.schedule_sweep();
                }
            }
        }
        None
    }

    /// Returns a connection that no thread uses. A blocked one is given up for want of another.
    fn take(self: &Arc<Self>, deadline: Instant) -> Option<PooledConnection> {
        let lingering = self.queue.lock().take();
        lingering.or_else(|| self.take_pooled(deadline)).or_else(|| {
            let mut blocked = self.queue.lock().take_blocked()?;
            blocked.poison();
            Some(blocked)
        })
    }

    /// Returns a connection that no thread uses, unless other threads send batches at the moment.
    /// Waits for a sweep that has what could be used, which never takes long: if nothing but the
    /// thread of the sweep wrote what is posted, the program might end before.
    fn take_unless_batching(self: &Arc<Self>, deadline: Instant) -> Option<PooledConnection> {
        loop {
            let mut queue = self.queue.lock();
            if queue.is_batching() {
                return None;
            }
            let lingering = queue.take_lingering();
            drop(queue);
            match lingering {
                Ok(connection) => return Some(connection),
                Err(NoneLingers::Idle | NoneLingers::Queued) => return self.take(deadline),
                Err(NoneLingers::Swept) => match self.take_pooled(deadline) {
                    None => yield_now(),
                    free => return free,
                },
            }
        }
    }

    /// Has requests sent as soon as a connection is free, along with what was queued before.
    fn push(self: &Arc<Self>, exchanges: impl IntoIterator<Item = Exchange>, deadline: Instant) {
        let mut queue = self.queue.lock();
        let (is_first, is_batching) = (queue.push(exchanges), queue.is_batching());
        drop(queue);
        if !is_first {
            return self.pool.count_wait();
        }
        if is_batching {
            // Threads that were woken together have their next requests at nearly the same time: a
            // moment for those that are awake saves a write for each.
            yield_now();
        }
        match self.take(deadline) {
            Some(connection) => self.send_queued(connection, deadline),
            None => self.pool.count_wait(),
        }
    }

    /// Blocks until the replies have come, or the deadline, and closes the slot.
    fn wait(self: &Arc<Self>, own: &Arc<ReplySlot>) {
        match own.wait() {
            Some(Lent { connection, unsent }) if unsent.is_empty() => self.read(connection, own),
            Some(Lent { connection, unsent }) => self.send(connection, unsent, own),
            None => {
                let unsent = !own.is_complete() && !self.queue.lock().withdraw(own).is_empty();
                own.close(|| if unsent { self.pool.all_in_use() } else { self.pool.no_reply() });
            }
        }
    }

    /// Sends requests of this thread over an idle connection, along with those that wait for one,
    /// and reads the replies.
    fn send(
        self: &Arc<Self>,
        mut connection: PooledConnection,
        unsent: impl IntoIterator<Item = Exchange, IntoIter: ExactSizeIterator>,
        own: &Arc<ReplySlot>,
    ) {
        if let Err(failure) = connection.connect(own.deadline) {
            own.close(|| failure.clone());
            return self.send_queued(connection, own.deadline);
        }
        let unsent = unsent.into_iter();
        let others = self.queue.lock().batch(unsent.len());
        self.writer.send(&mut connection, unsent, others, own.deadline);
        self.read(connection, own);
    }

    /// Reads as the reader of a connection until the replies to `own` have come, or its deadline.
    fn read(self: &Arc<Self>, mut connection: PooledConnection, own: &Arc<ReplySlot>) {
        connection.read_until(own);
        own.close(|| self.pool.no_reply());
        let mut buffered = Vec::new();
        while let Some(answer) = connection.receive_answer(WaitFor::Buffered) {
            if answer.wakes() {
                buffered.push(answer);
            } else {
                // The thread may be the next reader, for the rest of its replies.
                answer.deliver();
            }
        }
        let mut idle = lend_to_next(connection);
        if let Some(free) = idle.take_if(|idle| !idle.in_flight.is_blocked()) {
            self.send_queued(free, own.deadline);
        }
        // Only now: to wake many threads takes longer than to give the server more to do.
        buffered.into_iter().for_each(Answer::deliver);
        if let Some(mut blocked) = idle {
            let deadline = own.deadline.min(end_of(NEEDLESS_WAIT));
            blocked.collect(WaitFor::Reply { deadline });
            self.send_queued(blocked, own.deadline);
        }
    }

    /// Sends what has queued up over an idle connection, or gives that back. If no thread waits for
    /// what is sent, there is time until the deadline to do so here.
    fn send_queued(self: &Arc<Self>, idle: PooledConnection, deadline: Instant) {
        let mut free = Some(idle);
        while let Some(mut connection) = free {
            let is_blocked = connection.in_flight.is_blocked();
            let next = if is_blocked {
                Next::Nothing
            } else {
                let socket = &connection.socket;
                let is_ready = || socket.is_usable() && socket.retiring().is_none();
                self.queue.lock().next(is_ready)
            };
            free = match next {
                Next::Nothing => {
                    self.give_back(connection);
                    // A thread that queued a request just before has found no connection free.
                    if self.has_queued() { self.take(deadline) } else { None }
                }
                Next::Lend(unsent, slot) => slot.lend(Lent { connection, unsent }),
                Next::Batch(batch) => {
                    let earliest = batch.iter().map(|exchange| exchange.deadline).min();
                    let until = earliest.unwrap_or(deadline);
                    self.writer.send(&mut connection, [], batch, until);
                    lend_to_next(connection)
                }
                Next::Post(posted) => {
                    self.writer.post(&mut connection, posted, deadline);
                    Some(connection)
                }
            };
        }
    }

    /// Gives back an idle connection.
    fn give_back(self: &Arc<Self>, connection: PooledConnection) {
        if !connection.in_flight.is_empty() && self.queue.lock().linger(connection) {
            self.schedule_sweep();
        }
    }

    fn schedule_sweep(self: &Arc<Self>) {
        let multiplexer = Arc::downgrade(self);
        self.pool.run_later(SWEEP, move || {
            if let Some(multiplexer) = multiplexer.upgrade() {
                multiplexer.sweep();
            }
        });
    }

    /// Reads what has been to come for a while, and gives up the connections over which something
    /// is overdue. Sends what is left in the queue.
    fn sweep(self: &Arc<Self>) {
        let now = Instant::now();
        let due = self.queue.lock().begin_sweep(now);
        for mut connection in due {
            connection.collect(WaitFor::Nothing);
            if connection.in_flight.is_overdue(now) {
                connection.time_out();
            }
            // This thread has no time to open a connection.
            self.send_queued(connection, now);
        }
        if self.has_queued()
            && let Some(connection) = self.take(now)
        {
            self.send_queued(connection, now);
        }
        let needs_another = self.queue.lock().end_sweep();
        if needs_another {
            self.schedule_sweep();
        }
    }
}

/// Makes the first thread that waits for a reply the reader. Returns the connection if none waits,
/// without requests in flight that a thread has given up.
fn lend_to_next(mut connection: PooledConnection) -> Option<PooledConnection> {
    let mut next = 0;
    loop {
        let slot = connection.in_flight.slots().nth(next).cloned();
        let Some(slot) = slot else { break };
        let lent = Lent { connection, unsent: Vec::new() };
        connection = slot.lend(lent)?;
        next += 1;
    }
    connection.close_if_abandoned();
    Some(connection)
}

/// A request that was sent, or will be, and whose reply a thread can wait for.
#[derive(Debug)]
pub(crate) struct Pending {
    multiplexer: Arc<Multiplexer>,
    slot: Arc<ReplySlot>,
    waited: bool,
}

impl Pending {
    /// Blocks until the reply has come or the deadline of the request is over.
    pub(crate) fn wait(mut self) -> Reply {
        self.waited = true;
        self.multiplexer.wait(&self.slot);
        self.slot.reply()
    }
}

/// A request that is not waited for must not keep other threads from their replies.
impl Drop for Pending {
    fn drop(&mut self) {
        let Self { multiplexer, slot, waited } = self;
        if *waited {
            return;
        }
        match slot.leave() {
            None => drop(multiplexer.queue.lock().withdraw(slot)),
            Some(Lent { connection, .. }) => {
                slot.close(|| multiplexer.pool.no_reply());
                if let Some(idle) = lend_to_next(connection) {
                    multiplexer.send_queued(idle, slot.deadline);
                }
            }
        }
    }
}
