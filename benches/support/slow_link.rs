//! A TCP forwarder that makes a server seem far away.
//!
//! It runs in a process of its own, started from this program, so that its work is not counted as
//! the lock's.

use std::collections::VecDeque;
use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Set in the forwarder's process to the port of the server, and to the microseconds that a message
/// takes.
const TARGET: &str = "LEASEHOLD_BENCH_SLOW_LINK_TO";

/// A forwarder, which is stopped when this value is dropped.
pub(crate) struct SlowLink {
    process: Child,
    port: u16,
}

impl SlowLink {
    /// A link on which a request or a reply travels for so long. Any number can be on their way.
    pub(crate) fn to(server: u16, one_way: Duration) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program has a path"))
            .env(TARGET, format!("{server} {}", one_way.as_micros()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let stdout = process.stdout.take().expect("stdout is piped");
        let mut port = String::new();
        BufReader::new(stdout).read_line(&mut port).expect("the forwarder tells its port");
        let port = port.trim().parse().expect("the forwarder tells its port");
        Self { process, port }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Forwards for ever if this process was started as a forwarder, and returns at once otherwise.
pub(crate) fn serve_if_started_for_it() {
    if let Ok(target) = env::var(TARGET) {
        let (server, micros) = target.split_once(' ').expect("a port and a time");
        let (server, micros) = (server.parse(), micros.parse());
        let (server, one_way) = (server.expect("a port"), micros.map(Duration::from_micros));
        let one_way = one_way.expect("a number");
        serve(server, one_way).expect("the forwarder has a port to listen on");
    }
}

fn serve(server: u16, one_way: Duration) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    thread::spawn(end_with_parent);
    loop {
        let (client, _) = listener.accept()?;
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (requests, replies) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || relay(requests, server, one_way));
        thread::spawn(move || relay(replies, client, one_way));
    }
}

/// Blocks until the parent has ended. The parent never writes to the pipe, but its end of the pipe
/// is closed when it ends, however that happens.
fn end_with_parent() {
    let ended = io::stdin().read(&mut [0]);
    process::exit(i32::from(ended.is_err()));
}

fn relay(mut from: TcpStream, mut to: TcpStream, one_way: Duration) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
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
        } else if is_readable(&from, left)? {
            let length = from.read(&mut buffer)?;
            is_open = length > 0;
            pieces.push_back((Instant::now() + one_way, buffer[..length].to_vec()));
        }
    }
    to.shutdown(Shutdown::Write)
}

/// Waits until there is something to read, but no longer than the time, if there is one.
fn is_readable(stream: &TcpStream, time: Option<Duration>) -> io::Result<bool> {
    let time = time.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
    Ok(poll(&mut [PollFd::new(stream, PollFlags::IN)], time.as_ref())? > 0)
}
