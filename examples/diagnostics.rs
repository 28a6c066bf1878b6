//! A program that says what it holds and waits for: over HTTP, next to its metrics, and on stderr.
//!
//! See "What a program holds and waits for" in `docs/cookbook.md`.
//!
//! `cargo run --example diagnostics [URL]` lets some threads lock and wait, and visits the page.

use std::env;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Event};
use tiny_http::{Response, Server};

use self::support::Redis;

mod support;

const NAME: &str = "example:stock:42";
/// Much longer than anyone should hold a lock of this program.
const TOO_LONG: Duration = Duration::from_millis(100);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let redis = Redis::find(env::args().nth(1));
    let builder = Client::builder().note("import 4711").warn_held(TOO_LONG).on_event(|event| {
        if let Event::HeldLong { name, held, place, .. } = event {
            eprintln!("{name} has been held for {held:.0?}: {place}");
        }
    });
    let client = support::open(redis.as_ref(), builder)?;
    let server = serve(&client)?;

    let guard = client.lock(NAME)?;
    let worker = thread::Builder::new().name("worker-3".into());
    thread::scope(|scope| -> Result<()> {
        let worker = worker.spawn_scoped(scope, || client.lock(NAME).map(drop))?;
        until(|| client.waits().len() == 1 && client.stats().long_holds == 1);
        let page = get(server, "/locks")?;
        println!("{page}");
        let held = format!("holds {NAME} (Lock) for ");
        let waits = format!("waits for {NAME} (Lock) for ");
        for part in [&held, &waits, "examples/diagnostics.rs:", "worker-3", "import 4711"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        // The handler of a signal, such as SIGQUIT, may do the same: the page needs no server.
        eprint!("{}", locks(&client));
        assert!(get(server, "/metrics")?.contains("leasehold_waiting 1\n"));

        guard.unlock()?;
        worker.join().expect("no panic")?;
        Ok(())
    })?;
    assert!(get(server, "/locks")?.ends_with("\r\n\r\n"), "it holds nothing");
    Ok(())
}

/// The holds and waits of the program, one line each.
fn locks(client: &Client) -> String {
    let mut page = String::new();
    for held in client.holds() {
        let (thread, note) = (held.thread.unwrap_or_default(), held.note.unwrap_or_default());
        writeln!(
            page,
            "holds {} ({:?}) for {:.1?} at {} {thread} {note}",
            held.name, held.kind, held.since, held.place
        )
        .expect("a string takes whatever is written");
    }
    for call in client.waits() {
        let (thread, note) = (call.thread.unwrap_or_default(), call.note.unwrap_or_default());
        writeln!(
            page,
            "waits for {} ({:?}) for {:.1?} at {} {thread} {note}",
            call.name, call.kind, call.since, call.place
        )
        .expect("a string takes whatever is written");
    }
    page
}

/// Some metrics. The example `metrics` has all of them.
fn metrics(client: &Client) -> String {
    let stats = client.stats();
    format!(
        "leasehold_held {}\nleasehold_waiting {}\nleasehold_long_holds_total {}\n",
        stats.held, stats.waiting, stats.long_holds
    )
}

/// Serves both pages, on a thread that never locks: it answers even if all others wait.
fn serve(client: &Client) -> Result<SocketAddr> {
    let server = Server::http("127.0.0.1:0")?;
    let address = server.server_addr().to_ip().ok_or("the server listens at a port")?;
    let client = client.clone();
    thread::spawn(move || {
        for request in server.incoming_requests() {
            let response = match request.url() {
                "/locks" => Response::from_string(locks(&client)),
                "/metrics" => Response::from_string(metrics(&client)),
                _ => Response::from_string("").with_status_code(404),
            };
            // An error here means that the visitor is gone.
            request.respond(response).ok();
        }
    });
    Ok(address)
}

fn get(server: SocketAddr, path: &str) -> io::Result<String> {
    let mut visitor = TcpStream::connect(server)?;
    visitor.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(visitor, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    visitor.read_to_string(&mut answer)?;
    Ok(answer)
}

fn until(happened: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !happened() {
        assert!(Instant::now() < deadline, "it does not take that long");
        thread::sleep(Duration::from_millis(1));
    }
}
