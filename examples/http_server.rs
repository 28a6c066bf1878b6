//! An HTTP server whose handlers lock: its replies when the lock is held, and when Redis is away.
//!
//! See "An HTTP server" and "Redis down at start" in `docs/cookbook.md`.
//!
//! `cargo run --example http_server [URL]` starts three servers, one with a Redis that is away and
//! one with a Redis that hangs, and visits them.

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use tiny_http::{Response, Server};

use self::support::Redis;

mod support;

const NAME: &str = "example:stock:42";
const THREADS: usize = 4;
/// How long a visitor may wait for an answer, whatever happens.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long a call may wait for the lock, which leaves time for a request that gets no reply.
const WAIT: Duration = Duration::from_millis(100);
const IO_TIMEOUT: Duration = Duration::from_millis(50);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let redis = Redis::find(env::args().nth(1));
    // `lazy`: it starts although Redis is down, and answers 503 until Redis is back.
    let limits = Client::builder().wait(WAIT).io_timeout(IO_TIMEOUT).lazy(true);
    let client = support::open(redis.as_ref(), limits.clone())?;
    let server = serve(&client)?;

    println!("\n-- the lock is free");
    assert_eq!(buy(server)?, 200);
    println!("\n-- a slow visitor holds the lock");
    let guard = client.lock(NAME)?;
    assert_eq!(buy(server)?, 409);
    println!("\n-- the slow visitor has released it");
    guard.unlock()?;
    assert_eq!(buy(server)?, 200);

    println!("\n-- the Redis of another server is away");
    // Nothing listens at port 1.
    let cut_off = limits.clone().open("redis://127.0.0.1:1/")?;
    assert_eq!(buy(serve(&cut_off)?)?, 503);

    println!("\n-- the Redis of a third server accepts connections, and never answers");
    let hung = TcpListener::bind("127.0.0.1:0")?;
    let server = serve(&limits.open(&format!("redis://{}/", hung.local_addr()?))?)?;
    let mut times = Vec::new();
    for _ in 0..5 {
        let started = Instant::now();
        assert_eq!(buy(server)?, 503);
        times.push(started.elapsed());
    }
    // The fastest of several visits, because this machine may be busy.
    let fastest = times.iter().min().ok_or("there were visits")?;
    assert!(*fastest < PATIENCE, "{times:?}");
    Ok(())
}

/// Starts a server with some threads, which end with the program.
fn serve(client: &Client) -> Result<SocketAddr> {
    let server = Arc::new(Server::http("127.0.0.1:0")?);
    let address = server.server_addr().to_ip().ok_or("the server listens at a port")?;
    for _ in 0..THREADS {
        let (server, client) = (server.clone(), client.clone());
        thread::spawn(move || {
            for request in server.incoming_requests() {
                let (status, text) = sell(&client);
                // An error here means that the visitor is gone.
                request.respond(Response::from_string(text).with_status_code(status)).ok();
            }
        });
    }
    Ok(address)
}

/// Handles a request: sells one item under the lock.
fn sell(client: &Client) -> (u16, String) {
    let sold = client.with_lock(NAME, |guard| format!("sold, with fence {}", guard.fence()));
    match sold {
        Ok(text) => (200, text),
        Err(error) => (status(&error), error.to_string()),
    }
}

fn status(error: &Error) -> u16 {
    match error {
        Error::Timeout { .. } => 409,
        Error::Unavailable { .. } | Error::NoQuorum { .. } => 503,
        // The lease was lost during the sale, or the program or Redis is set up wrongly.
        _ => 500,
    }
}

/// Visits a server, prints its answer, and returns the status.
fn buy(server: SocketAddr) -> Result<u16> {
    let started = Instant::now();
    let answer = post(server)?;
    let status = answer.split(' ').nth(1).ok_or("an answer has a status")?.parse()?;
    let text = answer.lines().last().unwrap_or_default();
    println!("POST /buy: {status} after {:.0?}: {text}", started.elapsed());
    Ok(status)
}

fn post(server: SocketAddr) -> io::Result<String> {
    let mut visitor = TcpStream::connect(server)?;
    visitor.set_read_timeout(Some(Duration::from_secs(10)))?;
    visitor.write_all(b"POST /buy HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    visitor.read_to_string(&mut answer)?;
    Ok(answer)
}
