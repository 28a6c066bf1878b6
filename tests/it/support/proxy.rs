//! A faulty network: a proxy in front of a server that loses, delays, repeats, garbles or withholds
//! messages.
//!
//! It takes one request at a time from each connection, passes it to the server and waits for the
//! reply, so that it always knows which reply belongs to which request. After a subscription, a
//! connection carries everything that arrives.

use std::io::{self, BufReader, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt::set_socket_linger;

use super::resp::{contains, is, message};
use super::server::Server;
use super::{SOON, eventually, ms};

/// A disturbance of the traffic.
#[derive(Clone, PartialEq)]
enum Trouble {
    /// A script is executed, and this arrives instead of its reply.
    Answer(Vec<u8>),
    /// Nothing is carried any more, but nothing is closed.
    Blackhole,
    /// This many bytes of the reply to a script arrive, and then its connection is reset.
    CutReply(usize),
    /// The reply to a script arrives with this delay.
    DelayReply(Duration),
    /// A script arrives at the server with this delay.
    DelayRequest(Duration),
    /// A subscription arrives at the server with this delay.
    DelaySubscription(Duration),
    /// A reply arrives byte by byte, with this pause before each.
    Drip(Duration),
    /// A script is executed twice.
    Duplicate,
    /// Messages of a subscription do not arrive.
    LoseMessages,
    /// A script is executed, and its connection breaks before the reply.
    LoseReply,
    /// A script does not arrive, and its connection breaks.
    LoseRequest,
    /// Connections are closed as soon as they are opened or used.
    Refuse,
    /// A script is not executed, and answered with this.
    Reject(Vec<u8>),
}

/// A disturbance, and when it occurs.
struct Fault {
    trouble: Trouble,
    /// It happens once, after this many more scripts; with `None` it always happens.
    after: Option<u32>,
    /// It affects only messages that contain this.
    only: String,
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
    port: u16,
}

struct Shared {
    fault: Mutex<Option<Fault>>,
    /// The scripts so far, while a test records them.
    record: Mutex<Option<Vec<Vec<u8>>>>,
    /// The number of rejected scripts.
    rejections: AtomicUsize,
    server: u16,
    closed: AtomicBool,
}

impl Proxy {
    pub(crate) fn before(server: &Server) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            fault: Mutex::default(),
            record: Mutex::default(),
            rejections: AtomicUsize::new(0),
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
                // A broken connection is not reported, because the client notices it.
                thread::spawn(move || client.and_then(|client| carrier.carry(client)).ok());
            }
        });
        Proxy { shared, port }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        self.url_for("")
    }

    /// Returns the address with a login such as `ali:sesame@`.
    pub(crate) fn url_for(&self, login: &str) -> String {
        format!("redis://{login}127.0.0.1:{}/", self.port)
    }

    pub(crate) fn heal(&self) {
        *self.shared.fault.lock() = None;
    }

    pub(crate) fn blackhole(&self) {
        self.always(Trouble::Blackhole);
    }

    /// Stops carrying anything on a connection with a message that contains `text`.
    pub(crate) fn blackhole_for(&self, text: &str) {
        let only = text.to_owned();
        self.set(Fault { trouble: Trouble::Blackhole, after: None, only });
    }

    pub(crate) fn drip(&self, pause: Duration) {
        self.always(Trouble::Drip(pause));
    }

    pub(crate) fn delay_replies(&self, time: Duration) {
        self.always(Trouble::DelayReply(time));
    }

    /// Delays the next script on its way to the server.
    pub(crate) fn delay_request(&self, time: Duration) {
        self.once(0, Trouble::DelayRequest(time));
    }

    pub(crate) fn delay_subscriptions(&self, time: Duration) {
        self.always(Trouble::DelaySubscription(time));
    }

    pub(crate) fn duplicate_scripts(&self) {
        self.always(Trouble::Duplicate);
    }

    pub(crate) fn lose_messages(&self) {
        self.always(Trouble::LoseMessages);
    }

    pub(crate) fn refuse(&self) {
        self.always(Trouble::Refuse);
    }

    /// Answers the next script with this instead of its reply.
    pub(crate) fn answer(&self, reply: &[u8]) {
        self.once(0, Trouble::Answer(reply.into()));
    }

    /// Answers the next script that contains `text` with this instead of its reply.
    pub(crate) fn answer_to(&self, text: &str, reply: &[u8]) {
        self.once_for(text, Trouble::Answer(reply.into()));
    }

    /// Answers every script with this instead of its reply.
    pub(crate) fn answer_all(&self, reply: &[u8]) {
        self.always(Trouble::Answer(reply.into()));
    }

    /// Answers every script with an error, and executes none.
    pub(crate) fn reject_all(&self, error: &str) {
        self.always(Trouble::Reject(format!("-{error}\r\n").into()));
    }

    /// Waits until this many scripts were rejected.
    pub(crate) fn wait_for_rejections(&self, count: usize) {
        eventually(SOON, || self.shared.rejections.load(Ordering::SeqCst) >= count);
    }

    /// Resets the connection of the next script in the middle of its reply.
    pub(crate) fn cut_reply(&self, bytes: usize) {
        self.once(0, Trouble::CutReply(bytes));
    }

    pub(crate) fn lose_replies(&self) {
        self.always(Trouble::LoseReply);
    }

    /// Loses the reply to the next script.
    pub(crate) fn lose_reply(&self) {
        self.lose_reply_after(0);
    }

    /// Loses the reply to one script after this many others.
    pub(crate) fn lose_reply_after(&self, scripts: u32) {
        self.once(scripts, Trouble::LoseReply);
    }

    /// Loses the next script on its way to the server.
    pub(crate) fn lose_request(&self) {
        self.once(0, Trouble::LoseRequest);
    }

    /// Loses the reply to the next script that contains `text`.
    pub(crate) fn lose_reply_to(&self, text: &str) {
        self.once_for(text, Trouble::LoseReply);
    }

    /// Loses the next script that contains `text` on its way to the server.
    pub(crate) fn lose_request_for(&self, text: &str) {
        self.once_for(text, Trouble::LoseRequest);
    }

    /// Returns `true` if a one-time fault has occurred.
    pub(crate) fn has_lost(&self) -> bool {
        self.shared.fault.lock().is_none()
    }

    /// Runs `work`, and returns the scripts that the proxy has carried meanwhile.
    pub(crate) fn record<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<Vec<u8>>) {
        *self.shared.record.lock() = Some(Vec::new());
        let value = work();
        (value, self.shared.record.lock().take().unwrap_or_default())
    }

    fn always(&self, trouble: Trouble) {
        self.set(Fault { trouble, after: None, only: String::new() });
    }

    fn once(&self, after: u32, trouble: Trouble) {
        self.set(Fault { trouble, after: Some(after), only: String::new() });
    }

    fn once_for(&self, text: &str, trouble: Trouble) {
        self.set(Fault { trouble, after: Some(0), only: text.to_owned() });
    }

    fn set(&self, fault: Fault) {
        *self.shared.fault.lock() = Some(fault);
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
        if self.has(&Trouble::Refuse) {
            return Ok(());
        }
        let mut server = TcpStream::connect(("127.0.0.1", self.server))?;
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        let mut requests = BufReader::new(client.try_clone()?);
        let mut replies = BufReader::new(server.try_clone()?);
        loop {
            let request = message(&mut requests)?;
            let trouble = self.trouble_for(&request);
            match &trouble {
                Some(Trouble::LoseRequest | Trouble::Refuse) => return Ok(()),
                Some(Trouble::Blackhole) => self.wait_for_end_of_blackhole(&request),
                Some(Trouble::DelayRequest(time) | Trouble::DelaySubscription(time)) => {
                    thread::sleep(*time);
                }
                Some(Trouble::Reject(error)) => {
                    self.rejections.fetch_add(1, Ordering::SeqCst);
                    client.write_all(error)?;
                    continue;
                }
                _ => {}
            }
            server.write_all(&request)?;
            if is(&request, b"SUBSCRIBE") {
                return self.carry_messages(&client, requests, &server, replies);
            }
            let reply = message(&mut replies)?;
            match trouble {
                Some(Trouble::LoseReply) => return Ok(()),
                Some(Trouble::Drip(pause)) => drip(&mut client, &reply, pause)?,
                Some(Trouble::CutReply(bytes)) => return cut(&client, &reply, bytes),
                Some(Trouble::Answer(answer)) => client.write_all(&answer)?,
                Some(Trouble::DelayReply(time)) => {
                    thread::sleep(time);
                    client.write_all(&reply)?;
                }
                Some(Trouble::Duplicate) => {
                    server.write_all(&request)?;
                    message(&mut replies)?;
                    client.write_all(&reply)?;
                }
                _ => client.write_all(&reply)?,
            }
        }
    }

    fn carry_messages(
        &self,
        mut client: &TcpStream,
        mut requests: BufReader<TcpStream>,
        server: &TcpStream,
        mut replies: BufReader<TcpStream>,
    ) -> Result<()> {
        let mut further = server.try_clone()?;
        thread::spawn(move || {
            // Until either end closes the connection.
            io::copy(&mut requests, &mut further).ok();
            further.shutdown(Shutdown::Both).ok();
        });
        while let Ok(reply) = message(&mut replies) {
            self.wait_for_end_of_blackhole(&reply);
            let lost = is(&reply, b"message") && self.has(&Trouble::LoseMessages);
            if !lost && client.write_all(&reply).is_err() {
                break;
            }
        }
        client.shutdown(Shutdown::Both)
    }

    /// Returns the disturbance for one request. A one-time disturbance is removed.
    fn trouble_for(&self, request: &[u8]) -> Option<Trouble> {
        let script = is(request, b"EVAL");
        if let (true, Some(record)) = (script, &mut *self.record.lock()) {
            record.push(request.to_vec());
        }
        let mut current = self.fault.lock();
        let fault = current.as_mut()?;
        let concerns = match fault.trouble {
            Trouble::Blackhole | Trouble::Drip(_) | Trouble::Refuse => true,
            Trouble::DelaySubscription(_) => is(request, b"SUBSCRIBE"),
            _ => script,
        };
        if !concerns || !contains(request, &fault.only) {
            return None;
        }
        match &mut fault.after {
            None => Some(fault.trouble.clone()),
            Some(0) => current.take().map(|fault| fault.trouble),
            Some(more) => {
                *more -= 1;
                None
            }
        }
    }

    fn has(&self, trouble: &Trouble) -> bool {
        self.fault.lock().as_ref().is_some_and(|fault| fault.trouble == *trouble)
    }

    /// Holds a message back while a black hole affects it.
    fn wait_for_end_of_blackhole(&self, message: &[u8]) {
        let is_held_back = || {
            let fault = self.fault.lock();
            fault.as_ref().is_some_and(|fault| {
                fault.trouble == Trouble::Blackhole && contains(message, &fault.only)
            })
        };
        while is_held_back() && !self.closed.load(Ordering::SeqCst) {
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

/// Resets a connection in the middle of a reply.
fn cut(mut client: &TcpStream, reply: &[u8], bytes: usize) -> Result<()> {
    client.write_all(reply.get(..bytes).unwrap_or(reply))?;
    Ok(set_socket_linger(client, Some(Duration::ZERO))?)
}
