//! Shared connections under thousands of schedules that shuttle makes up: every thread gets the
//! reply to its own request or a failure, no thread waits for ever (which shuttle finds out), and
//! every connection goes back to the pool.
//!
//! A unit test of `src/net`, run by
//! `RUSTFLAGS="--cfg leasehold_shuttle" cargo test --lib --target-dir target/shuttle schedules`

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use redis::Value;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::base::failure::{Failure, FailureKind};
use crate::base::sync::{Mutex, under_many_schedules, yield_now};
use crate::net::multiplexer::Multiplexer;
use crate::net::owed::{OwedReplies, PostedRequest};
use crate::net::request::{Arg, Reply, Request, Script};
use crate::net::transport::{ConnectionSource, NoConnection, Transport, WaitFor};

const THREADS: u64 = 4;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return ARGV[1]"));

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// Connections break at any time.
    Broken,
    Fine,
    /// The server forgets its scripts at any time.
    Forgetful,
    /// Deadlines come at any time.
    Late,
}

/// A server that answers each request with its number, and a pool of connections to it.
struct Pool {
    weather: Weather,
    free: Arc<Mutex<Vec<Link>>>,
    /// How many requests were written.
    written: Arc<Mutex<usize>>,
}

/// The server's end of a connection, and the requests that it has not answered.
#[derive(Debug, Default)]
struct Link {
    open: bool,
    requests: VecDeque<Received>,
}

#[derive(Debug)]
struct Received {
    number: u64,
    in_full: bool,
}

/// A connection that goes back to the pool when this is dropped.
#[derive(Debug)]
struct Pooled {
    weather: Weather,
    link: Link,
    home: Arc<Mutex<Vec<Link>>>,
    written: Arc<Mutex<usize>>,
    /// What is not written yet.
    out: Vec<u8>,
    owed: OwedReplies,
}

impl ConnectionSource for Pool {
    type Connection = Pooled;

    fn try_get(&self, deadline: Instant) -> Result<Pooled, NoConnection> {
        let link = self.free.lock().pop().ok_or(NoConnection::InUse)?;
        if comes(deadline) && thread_rng().r#gen() {
            // The pool has not made it in time, and other threads have found none free.
            yield_now();
            self.free.lock().push(link);
            return Err(NoConnection::Late);
        }
        let Self { weather, free, written } = self;
        let (home, written) = (free.clone(), written.clone());
        let (out, owed) = (Vec::new(), OwedReplies::default());
        Ok(Pooled { weather: *weather, link, home, written, out, owed })
    }

    fn run_later(&self, _: Duration, work: impl FnOnce() + Send + 'static) {
        thread::spawn(work);
    }

    fn count_wait(&self) {}

    fn all_in_use(&self) -> Failure {
        failure(FailureKind::Unreachable)
    }

    fn no_reply(&self) -> Failure {
        failure(FailureKind::Timeout)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        assert!(!self.link.open || self.link.requests.is_empty(), "a reply is still to come");
        assert!(self.owed.is_empty(), "a posted request is forgotten");
        self.home.lock().push(std::mem::take(&mut self.link));
    }
}

impl Pooled {
    /// A moment in which others act, and perhaps the connection breaks.
    fn pass(&mut self, kind: FailureKind) -> Result<(), Failure> {
        yield_now();
        if self.weather == Weather::Broken && thread_rng().gen_range(0..4) == 0 {
            self.poison();
            return Err(failure(kind));
        }
        Ok(())
    }
}

impl Transport for Pooled {
    fn is_ready(&self) -> bool {
        self.link.open
    }

    fn is_connected(&self) -> bool {
        self.link.open
    }

    fn connect(&mut self, _: Instant) -> Result<(), Failure> {
        if !self.link.open {
            self.pass(FailureKind::Unreachable)?;
            self.link.open = true;
        }
        Ok(())
    }

    fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply {
        self.connect(deadline)?;
        self.send(|out| out.extend_from_slice(request.bytes()))?;
        let reply = self.receive(WaitFor::SoonReply { deadline });
        let reply = reply.unwrap_or_else(|| Err(self.time_out()));
        request.again_after(&reply).map_or(reply, |again| self.exchange(&again, deadline))
    }

    fn flush(&mut self, _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    fn send(&mut self, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        // What the server does not know is sent again while others are in flight.
        let idle = self.link.requests.is_empty() || self.owed.is_next();
        assert!(
            idle || self.weather == Weather::Forgetful,
            "sent before the last replies were read"
        );
        pack(&mut self.out);
        let bytes = std::mem::take(&mut self.out);
        self.pass(FailureKind::Disconnected)?;
        let requests = received(&bytes);
        *self.written.lock() += requests.len();
        self.link.requests.extend(requests);
        Ok(())
    }

    fn receive(&mut self, wait: WaitFor) -> Option<Reply> {
        while self.owed.is_next() {
            let reply = self.receive_next(wait)?;
            if !self.link.open {
                return Some(reply);
            }
            self.owed.answer(reply);
        }
        self.receive_next(wait)
    }

    fn owed(&self) -> &OwedReplies {
        &self.owed
    }

    fn can_post(&mut self, _: Instant) -> bool {
        self.link.open
    }

    fn owe(&mut self, posted: PostedRequest) {
        self.owed.push(posted, &mut self.out);
    }

    fn owe_again(&mut self) -> bool {
        let again = self.owed.take_again();
        let any = !again.is_empty();
        again.into_iter().for_each(|posted| self.owe(posted));
        any
    }

    fn collect(&mut self, wait: WaitFor) {
        while self.owed.is_next()
            && self.link.open
            && let Some(reply) = self.receive_next(wait)
        {
            self.owed.answer(reply);
        }
    }

    fn poison(&mut self) {
        self.link = Link::default();
        self.out.clear();
        self.owed.fail(&failure(FailureKind::Disconnected));
    }

    fn time_out(&mut self) -> Failure {
        self.poison();
        failure(FailureKind::Timeout)
    }
}

impl Pooled {
    fn receive_next(&mut self, wait: WaitFor) -> Option<Reply> {
        let (WaitFor::Reply { deadline } | WaitFor::SoonReply { deadline }) = wait else {
            // Without a system call a broken connection is not found out.
            return if thread_rng().r#gen() { self.answer() } else { None };
        };
        let last = deadline <= Instant::now();
        if let Err(failure) = self.pass(FailureKind::Disconnected) {
            return Some(Err(failure));
        }
        if (last || self.weather == Weather::Late) && thread_rng().r#gen() {
            return None;
        }
        self.answer()
    }

    fn answer(&mut self) -> Option<Reply> {
        let Received { number, in_full } =
            self.link.requests.pop_front().expect("a reply is still to come");
        if !in_full && self.weather == Weather::Forgetful && thread_rng().r#gen() {
            let rejected = failure(FailureKind::Rejected);
            return Some(Err(Failure { code: "NOSCRIPT".into(), ..rejected }));
        }
        Some(Ok(value(number)))
    }
}

/// Reads what was written: calls of the script, whose last argument is their number.
fn received(mut bytes: &[u8]) -> Vec<Received> {
    let mut requests = Vec::new();
    while !bytes.is_empty() {
        // `*<number of arguments>`, then a line with a length in front of each.
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let line = |line: &[u8]| String::from_utf8(line.to_vec()).expect("text");
        let count = line(lines.next().expect("a line"));
        let count: usize = count.trim_start_matches('*').trim().parse().expect("a count");
        let lines: Vec<_> = lines.take(2 * count).map(line).collect();
        let number = lines[2 * count - 1].trim().parse().expect("a number");
        requests.push(Received { number, in_full: lines[1].trim() == "EVAL" });
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let end = ends.map(|(end, _)| end).nth(2 * count).expect("a whole request");
        bytes = &bytes[end + 1..];
    }
    requests
}

fn failure(kind: FailureKind) -> Failure {
    Failure::io(kind, &Arc::from("here"), std::io::Error::other("test"))
}

fn value(number: u64) -> Value {
    Value::Int(number.try_into().expect("a small number"))
}

fn request(number: u64) -> Request {
    Request::call(&SCRIPT, &[], &[Arg::Number(number)])
}

/// A deadline that never comes, or one that comes at any time.
fn deadline(weather: Weather) -> Instant {
    let time = if weather == Weather::Late { 1 } else { 24 * 60 * 60 };
    Instant::now() + Duration::from_secs(time)
}

/// Returns `true` if the deadline is one that comes.
fn comes(deadline: Instant) -> bool {
    deadline < Instant::now() + Duration::from_secs(60)
}

/// Sends a request, alone or with others as it comes, and checks the reply.
fn ask(
    multiplexer: &Arc<Multiplexer<Pool>>,
    number: u64,
    deadline: Instant,
) -> Result<(), Failure> {
    assert_eq!(multiplexer.exchange(request(number), deadline)?, value(number));
    Ok(())
}

/// Sends a request that no thread waits for. Its reply is counted.
fn post(multiplexer: &Arc<Multiplexer<Pool>>, number: u64, weather: Weather, replies: &Replies) {
    let replies = replies.clone();
    let on_reply = move |reply: Reply| {
        match reply {
            Ok(reply) => assert_eq!(reply, value(number)),
            Err(failure) => {
                // A connection over which only abandoned requests are in flight is given up, with
                // what is owed on it.
                let given_up = failure.kind == FailureKind::Disconnected;
                assert!(given_up || may_fail(weather), "{failure:?}");
            }
        }
        *replies.lock() += 1;
    };
    let on_reply = Box::new(on_reply);
    multiplexer.post(vec![PostedRequest::new(request(number), deadline(weather), on_reply)]);
}

/// Sends a request over a connection that no other thread uses, and checks the reply.
fn ask_alone(
    multiplexer: &Arc<Multiplexer<Pool>>,
    number: u64,
    deadline: Instant,
) -> Result<(), Failure> {
    let ask = |connection: &mut Pooled| connection.exchange(&request(number), deadline);
    assert_eq!(multiplexer.alone(deadline, ask)?, value(number));
    Ok(())
}

fn may_fail(weather: Weather) -> bool {
    matches!(weather, Weather::Broken | Weather::Late)
}

/// How many replies have come to posted requests.
type Replies = Arc<Mutex<u64>>;

/// Lets threads send two requests each at the same time, and checks afterwards that nothing is
/// left.
fn scene(weather: Weather, connections: usize) {
    let free: Arc<Mutex<Vec<Link>>> = Arc::default();
    free.lock().resize_with(connections, Link::default);
    let pool = Pool { weather, free: free.clone(), written: Arc::default() };
    let multiplexer = Arc::new(Multiplexer::new(pool, true));
    let replies = Replies::default();
    let threads = (0..THREADS).map(|thread| {
        let (multiplexer, replies) = (multiplexer.clone(), replies.clone());
        thread::spawn(move || {
            // One that no thread waits for.
            drop(multiplexer.begin(request(thread), deadline(weather)));
            for number in [thread, 100 + thread] {
                let ask = if thread_rng().r#gen() { ask } else { ask_alone };
                let answer = ask(&multiplexer, number, deadline(weather));
                assert!(answer.is_ok() || may_fail(weather), "{answer:?}");
                post(&multiplexer, 200 + number, weather, &replies);
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    multiplexer.settle(deadline(Weather::Fine));
    assert_eq!(*replies.lock(), 2 * THREADS, "a reply that was wanted is missing, or came twice");
    assert!(multiplexer.is_idle(), "a request is left");
    assert_eq!(free.lock().len(), connections, "a connection is missing");
}

/// The program may end then.
#[test]
fn what_the_only_thread_posts_is_written_when_it_goes_on() {
    under_many_schedules(|| {
        let (weather, written) = (Weather::Fine, Arc::<Mutex<usize>>::default());
        let free = Arc::new(Mutex::new(vec![Link::default()]));
        let pool = Pool { weather, free, written: written.clone() };
        let multiplexer = Arc::new(Multiplexer::new(pool, true));
        let replies = Replies::default();
        for number in 0..4 {
            post(&multiplexer, 200 + number, weather, &replies);
            assert_eq!(*written.lock() as u64, number + 1);
        }
        multiplexer.settle(deadline(weather));
    });
}

#[test]
fn one_connection_serves_many_threads() {
    under_many_schedules(|| scene(Weather::Fine, 1));
}

#[test]
fn two_connections_serve_many_threads() {
    under_many_schedules(|| scene(Weather::Fine, 2));
}

#[test]
fn deadlines_at_any_time_leave_nothing_behind() {
    under_many_schedules(|| scene(Weather::Late, 1));
}

/// It would be one that is never sent, beside a free connection.
#[test]
fn a_thread_whose_time_for_a_connection_is_over_leaves_no_request_behind() {
    under_many_schedules(|| {
        let free = Arc::new(Mutex::new(vec![Link::default()]));
        let pool = Pool { weather: Weather::Late, free, written: Arc::default() };
        let multiplexer = Arc::new(Multiplexer::new(pool, true));
        let threads = [true, false, false].map(|late| {
            let multiplexer = multiplexer.clone();
            thread::spawn(move || {
                let deadline = deadline(if late { Weather::Late } else { Weather::Fine });
                let ask = if thread_rng().r#gen() { ask } else { ask_alone };
                drop(ask(&multiplexer, u64::from(late), deadline));
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(multiplexer.is_idle(), "a request is left");
    });
}

#[test]
fn connections_that_break_at_any_time_leave_no_thread_waiting() {
    under_many_schedules(|| scene(Weather::Broken, 2));
}

#[test]
fn scripts_that_are_forgotten_at_any_time_are_sent_in_full() {
    under_many_schedules(|| scene(Weather::Forgetful, 1));
}
