//! A forwarder that makes a server seem far away, over TCP or, with little bandwidth at first, over
//! a Unix socket.
//!
//! It runs in a process of its own, started from this program, so that its work is not counted as
//! the lock's.

use std::collections::VecDeque;
use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

/// Set in the forwarder's process to the port of the server, the microseconds that a message takes,
/// and the bytes that a narrow link takes in its first round trip.
const TARGET: &str = "LEASEHOLD_BENCH_SLOW_LINK_TO";

/// A forwarder, which is stopped when this value is dropped.
pub(crate) struct SlowLink {
    process: Child,
    url: String,
}

impl SlowLink {
    /// Starts a link on which a request or a reply travels for this long. Any number can be in
    /// transit.
    pub(crate) fn to(server: u16, one_way: Duration) -> Self {
        Self::start(server, one_way, 0)
    }

    /// Starts a link that takes no more than its window in a round trip. The window doubles
    /// whenever it was full, like TCP's. The system takes 90 to 240 KB more before it makes a
    /// client wait.
    pub(crate) fn narrow_to(server: u16, one_way: Duration, window: usize) -> Self {
        Self::start(server, one_way, window)
    }

    fn start(server: u16, one_way: Duration, window: usize) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program has a path"))
            .env(TARGET, format!("{server} {} {window}", one_way.as_micros()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let stdout = process.stdout.take().expect("stdout is piped");
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url).expect("the forwarder tells its URL");
        Self { process, url: url.trim().into() }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        if let Some(socket) = self.url.strip_prefix("redis+unix://") {
            drop(fs::remove_file(socket));
        }
    }
}

/// Forwards forever if this process was started as a forwarder, and returns at once otherwise.
pub(crate) fn serve_if_started_for_it() {
    if let Ok(target) = env::var(TARGET) {
        let numbers = target.split(' ').map(|number| number.parse().expect("a number"));
        let [server, micros, window] = numbers.collect::<Vec<u64>>()[..] else { panic!("three") };
        let (server, one_way) = (u16::try_from(server), Duration::from_micros(micros));
        let window = usize::try_from(window).expect("few bytes");
        serve(server.expect("a port"), one_way, window).expect("the forwarder can listen");
    }
}

fn serve(server: u16, one_way: Duration, window: usize) -> io::Result<()> {
    if window == 0 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        println!("redis://127.0.0.1:{}/", listener.local_addr()?.port());
        thread::spawn(end_with_parent);
        loop {
            let (client, _) = listener.accept()?;
            client.set_nodelay(true)?;
            forward(client.into(), server, one_way, usize::MAX)?;
        }
    }
    let path = env::temp_dir().join(format!("leasehold-bench-{}", process::id()));
    let listener = UnixListener::bind(&path)?;
    println!("redis+unix://{}", path.display());
    thread::spawn(end_with_parent);
    loop {
        forward(listener.accept()?.0.into(), server, one_way, window)?;
    }
}

fn forward(client: OwnedFd, server: u16, one_way: Duration, window: usize) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    server.set_nodelay(true)?;
    let (requests, replies) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || relay(requests.into(), OwnedFd::from(server).into(), one_way, window));
    thread::spawn(move || relay(OwnedFd::from(replies).into(), client.into(), one_way, usize::MAX));
    Ok(())
}

/// Blocks until the parent has ended. The parent never writes to the pipe, but its end of the pipe
/// is closed when it ends, however that happens.
fn end_with_parent() {
    let ended = io::stdin().read(&mut [0]);
    process::exit(i32::from(ended.is_err()));
}

fn relay(mut from: File, mut to: File, one_way: Duration, window: usize) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    let mut window = Window { size: window, left: window, ends: Instant::now() };
    let mut pieces = VecDeque::new();
    let mut is_open = true;
    while is_open || !pieces.is_empty() {
        let due = pieces.front().map(|(due, _): &(Instant, Vec<u8>)| *due);
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            let (_, piece) = pieces.pop_front().expect("it is there");
            to.write_all(&piece)?;
        } else if !is_open {
            thread::sleep(left.unwrap_or_default());
        } else if let Some(closed) = window.closed_for(2 * one_way) {
            thread::sleep(left.unwrap_or(closed).min(closed));
        } else if is_readable(&from, left)? {
            let most = window.left.min(buffer.len());
            let length = from.read(&mut buffer[..most])?;
            window.left -= length;
            is_open = length > 0;
            pieces.push_back((Instant::now() + one_way, buffer[..length].to_vec()));
        }
    }
    Ok(shutdown(&to, Shutdown::Write)?)
}

/// The bytes that may be read in a round trip.
struct Window {
    size: usize,
    left: usize,
    ends: Instant,
}

impl Window {
    /// Returns how long nothing may be read.
    fn closed_for(&mut self, round_trip: Duration) -> Option<Duration> {
        let now = Instant::now();
        if now >= self.ends {
            if self.left == 0 {
                self.size = self.size.saturating_mul(2);
            }
            (self.left, self.ends) = (self.size, now + round_trip);
        }
        (self.left == 0).then(|| self.ends - now)
    }
}

/// Waits until there is something to read, but no longer than `time`, if there is one.
fn is_readable(stream: &File, time: Option<Duration>) -> io::Result<bool> {
    let time = time.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
    Ok(poll(&mut [PollFd::new(stream, PollFlags::IN)], time.as_ref())? > 0)
}
