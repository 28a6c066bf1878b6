//! The current cost of waking a thread on this machine, which decides what pays.
//!
//! A raw cycle is measured with a reader that sleeps until each reply has arrived, and with one
//! that spins. The difference is the price of two wake-ups. It changes with the machine and with
//! other load on it, so ratios of one run are only comparable with those of runs in the same
//! regime.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::raw::Raw;
use super::server::Server;
use super::turns::quartiles;

const ROUNDS: u32 = 20;
const CYCLES: u32 = 20;

/// Wake-ups count as expensive if a raw cycle takes at least this many times as long with a reader
/// that sleeps.
const DEAR: f64 = 2.0;

pub(crate) struct Regime {
    sleeping: Duration,
    spinning: Duration,
}

impl Regime {
    pub(crate) fn of(server: &Server) -> Self {
        let mut raw = Raw::connect(&server.url(), "regime");
        let mut spinner = Spinner::connect(server, raw.packed());
        let (mut sleeping, mut spinning) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            sleeping.push(time_of(|| raw.lock_and_unlock()));
            spinning.push(time_of(|| spinner.lock_and_unlock()));
        }
        let median = |times| Duration::from_secs_f64(quartiles(times)[1]);
        Self { sleeping: median(sleeping), spinning: median(spinning) }
    }

    /// Returns `true` if waking a thread is expensive.
    pub(crate) fn is_dear(&self) -> bool {
        self.sleeping.div_duration_f64(self.spinning) >= DEAR
    }

    pub(crate) fn price(&self) -> &'static str {
        if self.is_dear() { "dear" } else { "cheap" }
    }
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sleeping, spinning } = self;
        let price = self.price();
        write!(
            f,
            "waking a thread is {price}: a raw cycle takes {sleeping:.0?}, and {spinning:.0?} with \
             a reader that spins"
        )
    }
}

/// Returns the seconds of one cycle.
fn time_of(mut cycle: impl FnMut()) -> f64 {
    let started = Instant::now();
    for _ in 0..CYCLES {
        cycle();
    }
    started.elapsed().as_secs_f64() / f64::from(CYCLES)
}

/// Raw with a reader that never sleeps.
struct Spinner {
    stream: TcpStream,
    requests: [Vec<u8>; 2],
}

impl Spinner {
    fn connect(server: &Server, requests: [Vec<u8>; 2]) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it answers");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_nonblocking(true).expect("a TCP socket");
        Self { stream, requests }
    }

    fn lock_and_unlock(&mut self) {
        for request in &self.requests {
            self.stream.write_all(request).expect("there is room for a short request");
            let mut reply = [0; 64];
            let mut length = 0;
            while !reply[..length].ends_with(b"\n") {
                match self.stream.read(&mut reply[length..]) {
                    Ok(more) => length += more,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("the server answers: {error}"),
                }
            }
            assert!(reply.starts_with(b":") && reply[1] != b'0', "the raw lock is free");
        }
    }
}
