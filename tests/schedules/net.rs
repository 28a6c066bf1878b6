//! Shared connections under thousands of schedules that shuttle makes up: every thread gets the
//! reply to its own request or a failure, nobody waits for ever (which shuttle finds out), and
//! every connection goes back to the pool.
//!
//! A unit test of `src/net`, run by
//! `RUSTFLAGS="--cfg leasehold_shuttle" cargo test --lib --target-dir target/shuttle schedules`

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::failure::{Failure, FailureKind};
use crate::net::lane::{Reply, Transport};
use crate::net::multiplexer::{ConnectionSource, Multiplexer};
use crate::sync::{Mutex, under_many_schedules, yield_now};

const THREADS: u64 = 4;

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Fine,
    /// Deadlines come at any time.
    Late,
    /// Connections break at any time.
    Broken,
}

/// A server that answers each request with the number that it is, and a pool of connections to it.
struct Pool {
    weather: Weather,
    free: Arc<Mutex<Vec<Line>>>,
}

/// A connection, and the requests that it has not answered.
#[derive(Debug, Default)]
struct Line {
    open: bool,
    requests: VecDeque<u64>,
}

#[derive(Debug)]
struct Pooled {
    weather: Weather,
    line: Line,
    home: Arc<Mutex<Vec<Line>>>,
}

impl ConnectionSource for Pool {
    type Transport = Pooled;

    fn try_get(&self) -> Option<Pooled> {
        let line = self.free.lock().pop()?;
        Some(Pooled { weather: self.weather, line, home: self.free.clone() })
    }

    fn get(&self, _: Instant) -> Option<Pooled> {
        self.try_get()
    }

    fn all_in_use(&self) -> Failure {
        failure(FailureKind::Unreachable)
    }

    fn no_reply(&self) -> Failure {
        failure(FailureKind::Timeout)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        assert!(!self.line.open || self.line.requests.is_empty(), "a reply is still to come");
        self.home.lock().push(std::mem::take(&mut self.line));
    }
}

impl Pooled {
    fn poison(&mut self) {
        self.line = Line::default();
    }

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
        self.line.open
    }

    fn is_connected(&self) -> bool {
        self.line.open
    }

    fn connect(&mut self, _: Instant) -> Result<(), Failure> {
        if !self.line.open {
            self.pass(FailureKind::Unreachable)?;
            self.line.open = true;
        }
        Ok(())
    }

    fn exchange(&mut self, deadline: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Reply {
        self.connect(deadline)?;
        self.write(deadline, pack)?;
        self.receive(true, deadline).unwrap_or_else(|| {
            self.poison();
            Err(failure(FailureKind::Timeout))
        })
    }

    fn write(&mut self, _: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        assert!(self.line.requests.is_empty(), "sent before the last replies were read");
        let mut bytes = Vec::new();
        pack(&mut bytes);
        self.pass(FailureKind::Disconnected)?;
        let numbers = bytes.chunks(8).map(|chunk| chunk.try_into().map(u64::from_le_bytes));
        self.line.requests = numbers.collect::<Result<_, _>>().expect("whole numbers");
        Ok(())
    }

    fn receive(&mut self, _: bool, deadline: Instant) -> Option<Reply> {
        let last = deadline <= Instant::now();
        if let Err(failure) = self.pass(FailureKind::Disconnected) {
            return Some(Err(failure));
        }
        if (last || self.weather == Weather::Late) && thread_rng().r#gen() {
            return None;
        }
        let number = self.line.requests.pop_front().expect("a reply is still to come");
        Some(Ok(Value::Int(number.try_into().expect("a small number"))))
    }

    fn silence(&mut self) -> Failure {
        self.poison();
        failure(FailureKind::Timeout)
    }
}

fn failure(kind: FailureKind) -> Failure {
    Failure::io(kind, &Arc::from("here"), std::io::Error::other("test"))
}

/// A deadline that never comes, or one that comes at any time.
fn deadline(weather: Weather) -> Instant {
    let time = if weather == Weather::Late { 1 } else { 24 * 60 * 60 };
    Instant::now() + Duration::from_secs(time)
}

/// Asks, alone or with others as it comes, and checks the answer.
fn ask(sharing: &Arc<Multiplexer<Pool>>, number: u64, deadline: Instant) -> Result<(), Failure> {
    let reply = sharing.exchange(deadline, |out| out.extend(number.to_le_bytes()))?;
    assert_eq!(reply, Value::Int(number.try_into().expect("a small number")));
    Ok(())
}

/// Leaves a request to another thread if there is one, and perhaps takes it back. Tells whether a
/// reply is to come, which is counted.
fn post(
    sharing: &Arc<Multiplexer<Pool>>,
    number: u64,
    weather: Weather,
    replies: &Replies,
) -> bool {
    let replies = replies.clone();
    let then = move |reply: Reply| {
        match reply {
            Ok(reply) => assert_eq!(reply, Value::Int(number.try_into().expect("a small number"))),
            Err(failure) => assert!(weather != Weather::Fine, "{failure:?}"),
        }
        *replies.lock() += 1;
    };
    let pack = |out: &mut Vec<u8>| out.extend(number.to_le_bytes());
    let posted = sharing.post(deadline(weather), pack, Box::new(then));
    posted.is_some_and(|posted| !thread_rng().r#gen::<bool>() || !posted.recall())
}

/// How many replies have come for which nobody waits.
type Replies = Arc<Mutex<usize>>;

/// Lets threads ask twice each at the same time, and looks whether all is in order afterwards.
fn scene(weather: Weather, connections: usize) {
    let free: Arc<Mutex<Vec<Line>>> = Arc::default();
    free.lock().resize_with(connections, Line::default);
    let sharing = Arc::new(Multiplexer::new(Pool { weather, free: free.clone() }));
    let replies = Replies::default();
    let threads = (0..THREADS).map(|thread| {
        let (sharing, replies) = (sharing.clone(), replies.clone());
        thread::spawn(move || {
            // One that is asked and not waited for.
            drop(sharing.begin(deadline(weather), |out| out.extend(thread.to_le_bytes())));
            let mut posted = 0;
            for number in [thread, 100 + thread] {
                let answer = ask(&sharing, number, deadline(weather));
                assert!(answer.is_ok() || weather != Weather::Fine, "{answer:?}");
                posted += usize::from(post(&sharing, 200 + number, weather, &replies));
            }
            posted
        })
    });
    let threads: Vec<_> = threads.collect();
    let posted: usize = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    assert_eq!(*replies.lock(), posted, "a reply that was wanted is missing");
    assert!(sharing.is_idle(), "a request is left");
    assert_eq!(free.lock().len(), connections, "a connection is missing");
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

#[test]
fn connections_that_break_at_any_time_leave_nobody_waiting() {
    under_many_schedules(|| scene(Weather::Broken, 2));
}
