//! A faulty network: a proxy in front of a server that loses, delays or withholds what it carries.
//!
//! It takes one request at a time from each connection, hands it to the server and waits for the
//! reply, so that it always knows which reply belongs to which request.

use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Server, ms};

/// What happens to the traffic.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Nothing.
    None,
    /// Nothing is carried any more, and nothing is closed.
    Blackhole,
    /// A reply arrives byte by byte, with this pause before each.
    Drip(Duration),
    /// After so many more scripts, the next one is executed, but its connection breaks instead of
    /// carrying the reply.
    LoseReply { after: u32 },
    /// After so many more scripts, the next one does not arrive, and its connection breaks.
    LoseRequest { after: u32 },
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
    port: u16,
}

struct Shared {
    fault: Mutex<Fault>,
    server: u16,
    closed: AtomicBool,
}

impl Proxy {
    pub(crate) fn before(server: &Server) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            fault: Mutex::new(Fault::None),
            server: server.port(),
            closed: AtomicBool::new(false),
        });
        let carrier = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if carrier.closed.load(Ordering::SeqCst) {
                    return;
                }
                let carrier = Arc::clone(&carrier);
                // A broken connection is nobody's news: the client has noticed by itself.
                thread::spawn(move || client.and_then(|client| carrier.carry(client)).ok());
            }
        });
        Proxy { shared, port }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn heal(&self) {
        self.set(Fault::None);
    }

    pub(crate) fn blackhole(&self) {
        self.set(Fault::Blackhole);
    }

    pub(crate) fn drip(&self, pause: Duration) {
        self.set(Fault::Drip(pause));
    }

    /// Loses the reply to the next script.
    pub(crate) fn lose_reply(&self) {
        self.lose_reply_after(0);
    }

    /// Loses the reply to one script after so many others.
    pub(crate) fn lose_reply_after(&self, scripts: u32) {
        self.set(Fault::LoseReply { after: scripts });
    }

    /// Loses the next script on its way to the server.
    pub(crate) fn lose_request(&self) {
        self.set(Fault::LoseRequest { after: 0 });
    }

    /// Whether a fault that happens once has happened.
    pub(crate) fn has_lost(&self) -> bool {
        *self.shared.fault.lock() == Fault::None
    }

    fn set(&self, fault: Fault) {
        *self.shared.fault.lock() = fault;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the accepting thread; if it cannot be woken, it ends with the process.
        TcpStream::connect(("127.0.0.1", self.port)).ok();
    }
}

impl Shared {
    fn carry(&self, mut client: TcpStream) -> Result<()> {
        let mut server = TcpStream::connect(("127.0.0.1", self.server))?;
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        let mut requests = BufReader::new(client.try_clone()?);
        let mut replies = BufReader::new(server.try_clone()?);
        loop {
            let request = message(&mut requests)?;
            let fault = self.fault_for(&request);
            match fault {
                Fault::LoseRequest { .. } => return Ok(()),
                Fault::Blackhole => self.wait_for_light(),
                Fault::None | Fault::Drip(_) | Fault::LoseReply { .. } => {}
            }
            server.write_all(&request)?;
            let reply = message(&mut replies)?;
            match fault {
                Fault::LoseReply { .. } => return Ok(()),
                Fault::Drip(pause) => drip(&mut client, &reply, pause)?,
                Fault::None | Fault::Blackhole | Fault::LoseRequest { .. } => {
                    client.write_all(&reply)?;
                }
            }
        }
    }

    /// Decides on one request; a loss that is due happens once.
    fn fault_for(&self, request: &[u8]) -> Fault {
        let mut fault = self.fault.lock();
        let current = *fault;
        let (Fault::LoseReply { after } | Fault::LoseRequest { after }) = &mut *fault else {
            return current;
        };
        if !is_script(request) {
            return Fault::None;
        }
        if *after > 0 {
            *after -= 1;
            return Fault::None;
        }
        *fault = Fault::None;
        current
    }

    fn wait_for_light(&self) {
        while *self.fault.lock() == Fault::Blackhole && !self.closed.load(Ordering::SeqCst) {
            thread::sleep(ms(5));
        }
    }
}

fn drip(client: &mut TcpStream, reply: &[u8], pause: Duration) -> Result<()> {
    for byte in reply {
        thread::sleep(pause);
        client.write_all(&[*byte])?;
    }
    Ok(())
}

fn is_script(request: &[u8]) -> bool {
    let text = request.to_ascii_uppercase();
    text.windows(6).take(20).any(|word| word == b"\r\nEVAL")
}

/// Reads one whole RESP message, a request or a reply, with everything in it.
fn message(stream: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut message = Vec::new();
    let mut missing = 1;
    while missing > 0 {
        missing -= 1;
        let start = message.len();
        if stream.read_until(b'\n', &mut message)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&message[start..]).into_owned();
        // -1 stands for nothing at all, of which nothing follows.
        let count = |text: &str| text.trim_end().parse::<u64>().unwrap_or(0);
        match line.split_at(1) {
            ("*" | "~" | ">", length) => missing += count(length),
            ("%", pairs) => missing += 2 * count(pairs),
            ("$" | "=", length) if !length.starts_with('-') => {
                let bytes = count(length) + 2;
                stream.take(bytes).read_to_end(&mut message)?;
            }
            _ => {}
        }
    }
    Ok(message)
}
