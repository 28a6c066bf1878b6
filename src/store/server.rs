//! One server and the connections to it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;
use r2d2::{ManageConnection, NopErrorHandler, Pool};
use redis::Value;
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::config::Config;
use crate::store::connection::{Connection, Dialer};
use crate::store::endpoint::Endpoint;
use crate::store::lane::{Lane, Reply, Request, Step};
use crate::store::script::{Call, Form};
use crate::store::{Failure, Trouble};

/// Starts the thread that serves the pools of one client.
pub(crate) fn pool_threads() -> Arc<ScheduledThreadPool> {
    let threads = ScheduledThreadPool::builder()
        .num_threads(1)
        .thread_name_pattern("leasehold-pool")
        // Otherwise the thread would outlive the client until its last timer has run.
        .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled);
    Arc::new(threads.build())
}

/// At most so many requests are sent in one write.
const BATCH: usize = 64;

/// A pool of connections to one server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pool: Pool<Places>,
    dialer: Arc<Dialer>,
    queue: Arc<Queue>,
}

/// The requests that wait for a connection.
#[derive(Debug, Default)]
struct Queue {
    requests: Mutex<VecDeque<Arc<Request>>>,
    /// How many were sent together the last time.
    crowd: AtomicUsize,
}

impl Server {
    /// Makes the pool; connections are opened when they are first used.
    pub(crate) fn new(
        endpoint: Endpoint,
        config: &Config,
        threads: Arc<ScheduledThreadPool>,
    ) -> Result<Self, Failure> {
        let server = endpoint.label.clone();
        let dialer = Dialer::new(endpoint, config, threads.clone());
        let pool = Pool::builder()
            .max_size(config.pool_size)
            .test_on_check_out(false)
            // Both would keep a timer, and with it the thread, alive.
            .max_lifetime(None)
            .idle_timeout(None)
            .error_handler(Box::new(NopErrorHandler))
            .thread_pool(threads)
            .build(Places(dialer.clone()))
            .map_err(|error| Failure::io(Trouble::Unreachable, &server, error))?;
        Ok(Self { pool, dialer, queue: Arc::default() })
    }

    /// Runs a script. `read` makes sense of its reply; `None` from it means the reply has none.
    pub(crate) fn ask<T>(
        &self,
        call: &Call<'_>,
        until: Instant,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Failure> {
        let first = self.exchange(until, |out| call.pack(Form::Hash, out));
        self.finish(first, until, |out| call.pack(Form::Body, out), read)
    }

    /// Makes sense of the first reply to a script. A server that does not know it yet is sent what
    /// `pack_body` writes.
    pub(crate) fn finish<T>(
        &self,
        first: Reply,
        until: Instant,
        pack_body: impl FnOnce(&mut Vec<u8>),
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Failure> {
        let reply = match first {
            Err(failure) if failure.code == "NOSCRIPT" => self.exchange(until, pack_body),
            first => first,
        };
        read(&reply?).ok_or_else(|| self.dialer.nonsense())
    }

    /// Asks for a sign of life.
    pub(crate) fn ping(&self, until: Instant) -> Result<(), Failure> {
        self.exchange(until, |out| redis::cmd("PING").write_packed_command(out)).map(drop)
    }

    /// A connection of its own for one thread, outside the pool so that the pool cannot starve it.
    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.dialer.clone())
    }

    /// Sends a request and waits for its reply: alone if no others have any at the moment and a
    /// connection is free, else together with theirs.
    pub(crate) fn exchange(&self, until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Reply {
        let free = if self.queue.is_crowded() { None } else { self.pool.try_get() };
        let Some(mut connection) = free else {
            return self.begin(until, pack).wait();
        };
        let reply = connection.exchange(until, pack);
        self.start_over(Lane::new(connection));
        reply
    }

    /// Sends a request, or has it sent as soon as a connection is free. Any thread may wait for the
    /// reply.
    pub(crate) fn begin(&self, until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Pending {
        let request = Request::new(until, pack);
        // Whoever is not the first is sent along with the first.
        if self.queue.add(request.clone()) {
            if self.queue.is_crowded() {
                // Threads that were woken together have their next requests at nearly the same
                // time: a moment for those that are awake saves a write for each.
                thread::yield_now();
            }
            if let Some(connection) = self.pool.try_get() {
                self.start_over(Lane::new(connection));
            }
        }
        Pending { server: self.clone(), request, waited: false }
    }

    /// Drives a lane until the reply to `own` is there; `None` if its time is over before.
    fn drive(&self, mut lane: Lane, own: &Arc<Request>) -> Option<Reply> {
        if !lane.carries(own) {
            if let Err(failure) = lane.connection.connect(own.until) {
                self.start_over(lane);
                return Some(Err(failure));
            }
            let others = self.queue.take(BATCH - 1);
            lane.send(iter::once(own.clone()).chain(others));
        }
        let reply = lane.read(own).or_else(|| own.leave().into_reply());
        let gathered = lane.gather();
        if let Some(lane) = lane.pass_on() {
            self.start_over(lane);
        }
        // Only now: to wake many threads takes longer than to give the server more to do.
        for (request, reply) in gathered {
            request.answer(reply);
        }
        reply
    }

    /// Sends what has queued up over a lane without requests, or gives its connection back.
    fn start_over(&self, lane: Lane) {
        let mut free = Some(lane);
        while let Some(mut lane) = free {
            free = if self.queue.is_empty() {
                drop(lane);
                // Who queued up just before that has not found the connection free.
                if self.queue.is_empty() { None } else { self.pool.try_get().map(Lane::new) }
            } else if lane.connection.is_open() {
                lane.send(self.queue.take(BATCH));
                lane.pass_on()
            } else {
                // To connect takes time, which only a thread that waits for it has.
                match self.queue.take(1).pop() {
                    Some(next) => next.offer(lane),
                    None => Some(lane),
                }
            };
        }
    }
}

impl Queue {
    /// Adds a request, and tells whether it is the only one.
    fn add(&self, request: Arc<Request>) -> bool {
        let mut requests = self.requests.lock();
        requests.push_back(request);
        requests.len() == 1
    }

    /// Takes what is to be sent together.
    fn take(&self, most: usize) -> Vec<Arc<Request>> {
        let mut requests = self.requests.lock();
        let size = most.min(requests.len());
        self.crowd.store(size, Ordering::Relaxed);
        requests.drain(..size).collect()
    }

    /// Takes a request back that was not sent. `false` if it may have been.
    fn withdraw(&self, request: &Arc<Request>) -> bool {
        let mut requests = self.requests.lock();
        let place = requests.iter().position(|queued| Arc::ptr_eq(queued, request));
        place.is_some_and(|place| requests.remove(place).is_some())
    }

    fn is_empty(&self) -> bool {
        self.requests.lock().is_empty()
    }

    fn is_crowded(&self) -> bool {
        self.crowd.load(Ordering::Relaxed) > 1
    }
}

/// A request that was sent, or will be.
#[derive(Debug)]
pub(crate) struct Pending {
    server: Server,
    request: Arc<Request>,
    waited: bool,
}

impl Pending {
    pub(crate) fn wait(mut self) -> Reply {
        self.waited = true;
        let Self { server, request, .. } = &self;
        let reply = match request.wait() {
            Step::Drive(lane) => server.drive(lane, request),
            Step::Return(reply) => Some(reply),
            Step::Leave if server.queue.withdraw(request) => Some(Err(Failure::too_late(
                server.dialer.label(),
                "all pooled connections were in use until the time was over",
            ))),
            Step::Leave => None,
        };
        reply.unwrap_or_else(|| Err(server.dialer.no_reply()))
    }
}

/// What nobody has waited for must not keep others from their replies.
impl Drop for Pending {
    fn drop(&mut self) {
        if self.waited {
            return;
        }
        match self.request.leave() {
            Step::Drive(lane) => {
                if let Some(lane) = lane.pass_on() {
                    self.server.start_over(lane);
                }
            }
            Step::Return(_) | Step::Leave => {
                self.server.queue.withdraw(&self.request);
            }
        }
    }
}

/// Makes places for connections, never connections: whoever takes a place connects, by a deadline
/// of its own and with an error of its own. Through r2d2 an error would arrive as a text, after the
/// whole time to wait.
#[derive(Debug)]
pub(super) struct Places(Arc<Dialer>);

impl ManageConnection for Places {
    type Connection = Connection;
    type Error = Infallible;

    fn connect(&self) -> Result<Connection, Infallible> {
        Ok(Connection::new(self.0.clone()))
    }

    fn is_valid(&self, _: &mut Connection) -> Result<(), Infallible> {
        Ok(())
    }

    /// A connection in which something went wrong has left its place already.
    fn has_broken(&self, _: &mut Connection) -> bool {
        false
    }
}
