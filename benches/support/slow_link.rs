//! A TCP forwarder that makes a server seem far away.
//!
//! It runs in a process of its own, this program started again, so that its work is not counted
//! as the lock's.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Set in the forwarder's process: the port of the server.
const TARGET: &str = "LEASEHOLD_BENCH_SLOW_LINK_TO";
/// How long a request or a reply is on its way. Callers wait for each reply before they send the
/// next request, so that it is enough to hold up one message at a time.
const ONE_WAY: Duration = Duration::from_micros(500);

/// A forwarder; it ends with this value.
pub(crate) struct SlowLink {
    process: Child,
    port: u16,
}

impl SlowLink {
    pub(crate) fn to(server: u16) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program has a path"))
            .env(TARGET, server.to_string())
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

/// Forwards for ever if this process was started to do that; else returns at once.
pub(crate) fn serve_if_started_for_it() {
    if let Ok(server) = env::var(TARGET) {
        let server = server.parse().expect("a port");
        serve(server).expect("the forwarder has a port to listen on");
    }
}

fn serve(server: u16) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    thread::spawn(end_with_parent);
    loop {
        let (client, _) = listener.accept()?;
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (requests, replies) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || relay(requests, server));
        thread::spawn(move || relay(replies, client));
    }
}

/// The parent never writes: its end of the pipe closes when it ends, however it ends.
fn end_with_parent() {
    let ended = io::stdin().read(&mut [0]);
    process::exit(i32::from(ended.is_err()));
}

fn relay(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return to.shutdown(Shutdown::Write);
        }
        thread::sleep(ONE_WAY);
        to.write_all(&buffer[..length])?;
    }
}
