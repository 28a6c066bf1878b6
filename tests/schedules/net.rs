//! Shared connections under thousands of schedules made up by shuttle: every thread gets the reply
//! to its own request or a failure, no thread waits forever (which shuttle detects), and every
//! connection returns to the pool.
//!
//! A unit test of `src/net`, run by
//! `RUSTFLAGS="--cfg leasehold_shuttle" cargo test --lib --target-dir target/shuttle schedules`

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use redis::Value;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::base::event_thread::Events;
use crate::base::failure::Failure;
use crate::base::sync::{Mutex, under_many_schedules, yield_now};
use crate::config::Config;
use crate::config::durability::Durability;
use crate::net::demand::Demand;
use crate::net::endpoint::Endpoint;
use crate::net::factory::ConnectionFactory;
use crate::net::in_flight::{Exchange, SendWait};
use crate::net::multiplexer::Multiplexer;
use crate::net::packed::{Arg, Reply, Request, Script};
use crate::net::pool_thread::PoolThread;
use crate::net::shared_call::Resolver;

const THREADS: u64 = 4;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return ARGV[1]"));

/// Makes the connections of all pools.
static POOL_THREAD: LazyLock<PoolThread> = LazyLock::new(|| PoolThread::start().expect("a thread"));

thread_local! {
    /// The number of written requests. All threads of a schedule share one system thread.
    static WRITTEN: Cell<u64> = const { Cell::new(0) };
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// Connections break at any time.
    Broken,
    Fine,
    /// The server forgets its scripts at any time.
    Forgetful,
    /// Deadlines pass at any time.
    Late,
}

/// A connection to a server that answers each request with its number.
#[derive(Debug)]
pub(crate) struct FakeStream {
    weather: Weather,
    state: Mutex<FakeState>,
}

#[derive(Debug, Default)]
struct FakeState {
    broken: bool,
    /// Written bytes that are not a whole request yet.
    written: Vec<u8>,
    /// The requests that the server has not answered.
    requests: VecDeque<Received>,
    /// The rest of the reply that is being read.
    reply: VecDeque<u8>,
}

#[derive(Debug)]
struct Received {
    number: u64,
    in_full: bool,
}

impl FakeStream {
    /// Connects to the server with this weather.
    pub(crate) fn open(path: &Path) -> Option<io::Result<Self>> {
        let weathers = [Weather::Broken, Weather::Fine, Weather::Forgetful, Weather::Late];
        let is_it = |weather: &Weather| path.ends_with(format!("{weather:?}"));
        let weather = weathers.into_iter().find(is_it)?;
        let stream = Self { weather, state: Mutex::default() };
        Some(stream.pass().map(|()| stream))
    }

    /// Yields to other threads, and possibly breaks the connection.
    fn pass(&self) -> io::Result<()> {
        yield_now();
        let mut state = self.state.lock();
        state.broken |= self.weather == Weather::Broken && thread_rng().gen_range(0..4) == 0;
        if state.broken { Err(ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    /// Takes some of the bytes, or none if there is no room.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.pass()?;
        let room = if self.weather == Weather::Fine { bytes.len() } else { 200 };
        let sent = bytes.len().min(room);
        let mut state = self.state.lock();
        state.written.extend_from_slice(&bytes[..sent]);
        while let Some((received, len)) = received(&state.written) {
            state.written.drain(..len);
            state.requests.push_back(received);
            WRITTEN.set(WRITTEN.get() + 1);
        }
        Ok(sent)
    }

    pub(crate) fn wait(&self) -> io::Result<()> {
        self.pass()
    }

    pub(crate) fn receive(&self, into: &mut [u8], at_once: bool) -> io::Result<usize> {
        if !at_once {
            self.pass()?;
        }
        let mut state = self.state.lock();
        if state.reply.is_empty() {
            let is_late = at_once || self.weather == Weather::Late;
            if is_late && thread_rng().r#gen() {
                let kind = if at_once { ErrorKind::WouldBlock } else { ErrorKind::TimedOut };
                return Err(kind.into());
            }
            // Some replies arrive together.
            let most = thread_rng().gen_range(1..=3);
            for _ in 0..most {
                let Some(request) = state.requests.pop_front() else { break };
                let reply = self.reply(&request);
                state.reply.extend(reply.into_bytes());
            }
            if state.reply.is_empty() {
                assert!(at_once, "no reply is outstanding");
                return Err(ErrorKind::WouldBlock.into());
            }
        }
        let count = into.len().min(state.reply.len());
        for (to, byte) in into.iter_mut().zip(state.reply.drain(..count)) {
            *to = byte;
        }
        Ok(count)
    }

    fn reply(&self, Received { number, in_full }: &Received) -> String {
        if !in_full && self.weather == Weather::Forgetful && thread_rng().r#gen() {
            return "-NOSCRIPT No matching script\r\n".into();
        }
        format!(":{number}\r\n")
    }
}

/// Parses the first written request, and returns its length: a call of the script, whose last
/// argument is its number, or one to wait for replicas, or a PING.
fn received(bytes: &[u8]) -> Option<(Received, usize)> {
    // `*<number of arguments>`, then a line with a length in front of each.
    let ends: Vec<_> = (0..bytes.len()).filter(|end| bytes[*end] == b'\n').collect();
    let line = |number: usize| {
        let start = if number == 0 { 0 } else { ends[number - 1] + 1 };
        String::from_utf8(bytes[start..ends[number]].to_vec()).expect("text").trim().to_owned()
    };
    let count: usize = ends.first().map(|_| line(0))?.trim_start_matches('*').parse().ok()?;
    let end = *ends.get(2 * count)?;
    let name = line(2);
    let is_script = name.starts_with("EVAL");
    let number = if is_script { line(2 * count).parse().expect("a number") } else { 1 };
    Some((Received { number, in_full: !is_script || name == "EVAL" }, end + 1))
}

/// Returns `true` unless the pool has failed to make a connection in time, and other threads have
/// found none free.
pub(crate) fn is_in_time(deadline: Instant) -> bool {
    let is_late = comes(deadline) && thread_rng().r#gen();
    if is_late {
        yield_now();
    }
    !is_late
}

fn multiplexer(weather: Weather, connections: u32) -> Arc<Multiplexer> {
    let (spin, pool_size) = (Duration::ZERO, connections);
    let config =
        Config { spin, pool_size, idle_timeout: None, max_lifetime: None, ..Config::default() };
    let url = format!("unix:///{weather:?}");
    let endpoint = Endpoint::parse(&url, &config, &Events::default()).expect("a good URL");
    let factory = ConnectionFactory::new(endpoint, &config, Resolver::default());
    Multiplexer::new(Arc::new(factory), &config, &POOL_THREAD)
}

fn value(number: u64) -> Value {
    Value::Int(number.try_into().expect("a small number"))
}

fn request(number: u64) -> Request {
    Request::call(&SCRIPT, &[], &[Arg::Number(number)])
}

/// Returns a deadline that never passes, or one that passes at any time.
fn deadline(weather: Weather) -> Instant {
    let time = if weather == Weather::Late { 1 } else { 24 * 60 * 60 };
    Instant::now() + Duration::from_secs(time)
}

/// Returns `true` if the deadline passes at some time.
fn comes(deadline: Instant) -> bool {
    deadline < Instant::now() + Duration::from_secs(60)
}

/// Sends requests, alone or together with others, and checks the replies.
fn ask(multiplexer: &Arc<Multiplexer>, number: u64, deadline: Instant) -> Result<(), Failure> {
    let durability = Durability::Replicas { acks: 1, timeout: Duration::from_secs(1) };
    let demand = |send_wait| Demand::new(durability).map(|demand| (demand, send_wait));
    let (count, demand) = match thread_rng().gen_range(0..8) {
        0 => (1, demand(SendWait::Along)),
        1 => (1, demand(SendWait::After)),
        2 => (2, demand(SendWait::Along)),
        3 => (2, None),
        _ => (1, None),
    };
    let replies = if count == 1 {
        vec![multiplexer.exchange(request(number), demand, deadline)]
    } else {
        let requests = [request(number), request(1000 + number)];
        multiplexer.exchange_all(requests, demand, deadline)
    };
    assert_eq!(replies.len(), count);
    for (reply, expected) in replies.into_iter().zip([number, 1000 + number]) {
        assert_eq!(reply?, value(expected));
    }
    Ok(())
}

/// Sends a request that no thread waits for. Its reply is counted.
fn post(multiplexer: &Arc<Multiplexer>, number: u64, weather: Weather, replies: &Replies) {
    let replies = replies.clone();
    let on_reply = move |reply: Reply| {
        match reply {
            Ok(reply) => assert_eq!(reply, value(number)),
            Err(failure) => {
                // A connection with only abandoned requests in flight is closed, with everything
                // else.
                let given_up = failure.is_ambiguous();
                assert!(given_up || may_fail(weather), "{failure:?}");
            }
        }
        *replies.lock() += 1;
    };
    let on_reply = Box::new(on_reply);
    multiplexer.post(vec![Exchange::posted(request(number), deadline(weather), on_reply)]);
}

fn may_fail(weather: Weather) -> bool {
    matches!(weather, Weather::Broken | Weather::Late)
}

/// The number of replies to posted requests.
type Replies = Arc<Mutex<u64>>;

/// Runs threads that send two requests each at the same time, and then checks that nothing is left.
fn scene(weather: Weather, connections: u32) {
    let multiplexer = multiplexer(weather, connections);
    let replies = Replies::default();
    let threads = (0..THREADS).map(|thread| {
        let (multiplexer, replies) = (multiplexer.clone(), replies.clone());
        thread::spawn(move || {
            for number in [thread, 100 + thread] {
                let answer = ask(&multiplexer, number, deadline(weather));
                assert!(answer.is_ok() || may_fail(weather), "{answer:?}");
                post(&multiplexer, 200 + number, weather, &replies);
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    multiplexer.drain(deadline(Weather::Fine));
    assert_eq!(*replies.lock(), 2 * THREADS, "a reply that was wanted is missing, or came twice");
    assert!(multiplexer.queue.state.lock().queue.is_empty(), "a request is left");
    // Only WAITs that no thread needs any longer are left. A sweep reads their replies.
    let is_lingering = || {
        let state = multiplexer.queue.state.lock();
        !state.lingering.is_empty() || state.sweeps > 0
    };
    while is_lingering() {
        yield_now();
    }
    let state = multiplexer.queue.pool.state();
    assert_eq!(state.idle_connections, state.connections, "a connection is missing");
}

/// The program may end right after the post.
#[test]
fn a_posted_request_is_written_before_the_only_thread_goes_on() {
    under_many_schedules(|| {
        let (weather, replies) = (Weather::Fine, Replies::default());
        let multiplexer = multiplexer(weather, 1);
        WRITTEN.set(0);
        for number in 0..4 {
            post(&multiplexer, 200 + number, weather, &replies);
            assert_eq!(WRITTEN.get(), number + 1);
        }
        multiplexer.drain(deadline(weather));
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

/// Without posted requests there are no sweeps, which would send it too.
#[test]
fn a_request_that_finds_the_only_connection_in_use_is_sent_once_it_is_free() {
    under_many_schedules(|| {
        let multiplexer = multiplexer(Weather::Fine, 1);
        let threads = [0, 1].map(|number| {
            let (multiplexer, deadline) = (multiplexer.clone(), deadline(Weather::Fine));
            thread::spawn(move || {
                for _ in 0..4 {
                    let reply = multiplexer.exchange(request(number), None, deadline);
                    assert_eq!(reply.expect("a reply"), value(number));
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn deadlines_at_any_time_leave_nothing_behind() {
    under_many_schedules(|| scene(Weather::Late, 1));
}

/// Such a request would never be sent, although a connection is free.
#[test]
fn a_thread_that_times_out_without_a_connection_leaves_no_request_behind() {
    under_many_schedules(|| {
        let multiplexer = multiplexer(Weather::Late, 1);
        let threads = [true, false, false].map(|late| {
            let multiplexer = multiplexer.clone();
            thread::spawn(move || {
                let deadline = deadline(if late { Weather::Late } else { Weather::Fine });
                drop(ask(&multiplexer, u64::from(late), deadline));
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(multiplexer.queue.state.lock().queue.is_empty(), "a request is left");
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
