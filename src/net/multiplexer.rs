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
use crate::net::connection::WaitFor;
use crate::net::durability::Demand;
use crate::net::exchange::{Answer, Exchange, Lent, ReplySlot, SendWait};
use crate::net::pool::{ConnectionPool, NoConnection, PooledConnection};
use crate::net::post_writer::PostWriter;
use crate::net::request::{Reply, Request};
use crate::net::shared_queue::{Next, NoneLingers, SWEEP, SharedQueue};

/// How long a call waits for the reply to a needless request to wait for replicas or disks, before
/// it goes on without its connection.
const NEEDLESS_WAIT: Duration = Duration::from_millis(10);

/// The connections to one server, as threads share them.
#[derive(Debug)]
pub(crate) struct Multiplexer {
    pool: ConnectionPool,
    queue: Mutex<SharedQueue>,
    posts: PostWriter,
}

impl Multiplexer {
    /// Unless it `shares`, no two threads have requests in flight over one connection.
    pub(super) fn new(pool: ConnectionPool, shares: bool) -> Self {
        let queue = Mutex::new(SharedQueue::new(shares));
        Self { pool, queue, posts: PostWriter::default() }
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

    /// Sends requests and waits for their replies: at once if a connection is free and other
    /// threads do not send batches at the moment, else together with theirs. More than one, and one
    /// with a demand, go over a connection of their own.
    pub(super) fn exchange(
        self: &Arc<Self>,
        requests: impl IntoIterator<Item = Request>,
        demand: Option<(Demand, SendWait)>,
        deadline: Instant,
    ) -> Vec<Reply> {
        let (own, unsent) = ReplySlot::of(requests, demand, deadline);
        if let Some(connection) = self.take_unless_batching(deadline) {
            return self.read(Lent { connection, unsent }, &own);
        }
        self.push(unsent, &own);
        self.wait(&own)
    }

    /// Sends a request, or has it sent as soon as a connection is free. Any thread may wait for the
    /// reply.
    pub(super) fn begin(self: &Arc<Self>, request: Request, deadline: Instant) -> Pending {
        let (slot, exchanges) = ReplySlot::of([request], None, deadline);
        self.push(exchanges, &slot);
        Pending { multiplexer: self.clone(), slot, waited: false }
    }

    /// Writes requests that no thread waits for, or has them written as soon as a connection is
    /// free. Blocks only for room to write, and to open a connection.
    pub(super) fn post(self: &Arc<Self>, posted: Vec<Exchange>) {
        let Some(deadline) = posted.iter().map(|posted| posted.deadline).max() else { return };
        match self.take_to_post(deadline) {
            None => {
                let is_first = self.queue.lock().push_posted(posted);
                self.send_first(is_first, deadline);
            }
            Some(mut connection) => {
                self.posts.write(&mut connection, posted, deadline);
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
                    // When it is this thread's turn, everything else has been sent.
                    let (turn, none) = ReplySlot::of([], None, deadline);
                    self.push(none, &turn);
                    self.wait(&turn);
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

    fn take_unless_batching(self: &Arc<Self>, deadline: Instant) -> Option<PooledConnection> {
        let is_batching = self.queue.lock().is_batching();
        if is_batching { None } else { self.take(deadline) }
    }

    /// As `take_unless_batching`, but waits for a sweep that has what could be used: if nothing but
    /// the thread of the sweep wrote the requests, the program might end before.
    fn take_to_post(self: &Arc<Self>, deadline: Instant) -> Option<PooledConnection> {
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

    fn push(self: &Arc<Self>, exchanges: Vec<Exchange>, slot: &Arc<ReplySlot>) {
        let is_first = self.queue.lock().push(exchanges, slot);
        self.send_first(is_first, slot.deadline);
    }

    /// Sends what has just been queued, unless it is sent along with what was queued first.
    fn send_first(self: &Arc<Self>, is_first: bool, deadline: Instant) {
        if !is_first {
            return self.pool.count_wait();
        }
        let is_batching = self.queue.lock().is_batching();
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

    /// Blocks until the replies have come, or the deadline.
    fn wait(self: &Arc<Self>, own: &Arc<ReplySlot>) -> Vec<Reply> {
        if let Some(lent) = own.wait() {
            return self.read(lent, own);
        }
        let unsent = !own.is_complete() && self.queue.lock().withdraw(own);
        own.close(|| if unsent { self.pool.all_in_use() } else { self.pool.no_reply() })
    }

    /// Sends what is unsent and reads as the reader of a connection until the replies to `own` have
    /// come, or its deadline.
    fn read(self: &Arc<Self>, lent: Lent, own: &Arc<ReplySlot>) -> Vec<Reply> {
        let Lent { mut connection, unsent } = lent;
        if !unsent.is_empty() {
            if let Err(failure) = connection.connect(own.deadline) {
                let replies = own.close(|| failure.clone());
                self.send_queued(connection, own.deadline);
                return replies;
            }
            let others = self.queue.lock().batch_along(&unsent);
            connection.send_batch(unsent, others);
        }
        connection.read_until(own);
        if own.is_complete() && connection.in_flight().is_blocked() {
            let deadline = own.deadline.min(end_of(NEEDLESS_WAIT));
            connection.collect(WaitFor::Reply { deadline });
        }
        let replies = own.close(|| self.pool.no_reply());
        let buffered = std::iter::from_fn(|| connection.receive_answer(WaitFor::Buffered));
        let buffered: Vec<Answer> = buffered.collect();
        if let Some(idle) = lend_to_next(connection) {
            self.send_queued(idle, own.deadline);
        }
        // Only now: to wake many threads takes longer than to give the server more to do.
        buffered.into_iter().for_each(Answer::deliver);
        replies
    }

    /// Sends what has queued up over an idle connection, or gives that back. If no thread waits for
    /// what is sent, there is time until the deadline to do so here.
    fn send_queued(self: &Arc<Self>, idle: PooledConnection, deadline: Instant) {
        let mut free = Some(idle);
        while let Some(mut connection) = free {
            let is_blocked = connection.in_flight().is_blocked();
            let next = if is_blocked {
                Next::Nothing
            } else {
                self.queue.lock().next(|| connection.is_ready())
            };
            free = match next {
                Next::Nothing => {
                    self.give_back(connection);
                    // A thread that queued a request just before has found no connection free.
                    if self.has_queued() { self.take(deadline) } else { None }
                }
                Next::Lend(unsent, slot) => {
                    slot.lend(Lent { connection, unsent }).map(|lent| lent.connection)
                }
                Next::Batch(batch) => {
                    connection.send_batch(Vec::new(), batch);
                    lend_to_next(connection)
                }
                Next::Post(posted) => {
                    self.posts.write(&mut connection, posted, deadline);
                    Some(connection)
                }
            };
        }
    }

    /// Gives back an idle connection.
    fn give_back(self: &Arc<Self>, connection: PooledConnection) {
        if !connection.in_flight().is_empty() && self.queue.lock().linger(connection) {
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
            if connection.in_flight().is_overdue(now) {
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
        let slot = connection.in_flight().slots().nth(next).cloned();
        let Some(slot) = slot else { break };
        let lent = Lent { connection, unsent: Vec::new() };
        connection = slot.lend(lent)?.connection;
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
        let reply = self.multiplexer.wait(&self.slot).pop();
        reply.unwrap_or_else(|| Err(self.multiplexer.pool.no_reply()))
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
