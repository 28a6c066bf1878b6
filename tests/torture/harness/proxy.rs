//! A network that delays messages, carries few bytes at a time, and loses replies: the server has
//! executed a request, but the client does not learn of it. It also loses the messages of channels,
//! like a server with full buffers, while everything else arrives.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::messages::Stream;
use crate::harness::random::Random;

/// While a fault lasts, one message in this many is lost or late.
const FREQUENCY: u32 = 4;

/// Part of the request of a connection that receives messages.
const SUBSCRIBE: &[u8] = b"SUBSCRIBE\r\n";

/// The bytes that a narrow link carries at a time, and the pause after that: 128 KB a second.
const NARROW: (usize, Duration) = (256, Duration::from_millis(2));

/// Carries the messages between workers and the server. Its threads end with their connections, and
/// the accepting one ends with the program.
pub(crate) struct Proxy {
    port: u16,
    conditions: Arc<Conditions>,
}

/// The faults that may occur now.
#[derive(Default)]
struct Conditions {
    loses: AtomicBool,
    loses_messages: AtomicBool,
    delays: AtomicBool,
    is_narrow: AtomicBool,
    /// The longest delay.
    delay: Duration,
}

/// The fate of a message in the network.
enum Treatment {
    /// The message is lost, and the connection breaks.
    Broken,
    Carried,
    Late(Duration),
    /// The message is lost, and so are all later ones on this connection.
    Silent,
}

impl Proxy {
    pub(crate) fn before(server: u16, delay: Duration, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let conditions = Arc::new(Conditions { delay, ..Conditions::default() });
        let proxy = Self { port, conditions: conditions.clone() };
        thread::spawn(move || {
            for (number, client) in (0..).zip(listener.incoming()) {
                let (conditions, random) = (conditions.clone(), Random::new(seed, number));
                // A broken connection is not reported, because both ends have noticed it.
                thread::spawn(move || carry(&client?, server, &conditions, random));
            }
        });
        Ok(proxy)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn lose_replies(&self, loses: bool) {
        self.conditions.loses.store(loses, Ordering::Relaxed);
    }

    pub(crate) fn lose_messages(&self, loses: bool) {
        self.conditions.loses_messages.store(loses, Ordering::Relaxed);
    }

    pub(crate) fn delay(&self, delays: bool) {
        self.conditions.delays.store(delays, Ordering::Relaxed);
    }

    pub(crate) fn narrow(&self, is_narrow: bool) {
        self.conditions.is_narrow.store(is_narrow, Ordering::Relaxed);
    }
}

fn carry(
    client: &TcpStream,
    server: u16,
    conditions: &Arc<Conditions>,
    mut random: Random,
) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server))?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (requests, to, above) = (client.try_clone()?, server.try_clone()?, conditions.clone());
    let mut own = Random::new(random.number(), 0);
    let subscribes = Arc::new(AtomicBool::new(false));
    let subscribed = subscribes.clone();
    thread::spawn(move || {
        let watch = |request: &[u8]| {
            if contains(request, SUBSCRIBE) {
                subscribes.store(true, Ordering::Relaxed);
            }
            None
        };
        // A late message is carried even if the client is gone by then.
        pump(&requests, &to, &above, || above.treat_request(&mut own), watch).ok();
        to.shutdown(Shutdown::Both)
    });
    let mut replies = Stream::default();
    let thin_out = |received: &[u8]| {
        if !subscribed.load(Ordering::Relaxed) {
            return None;
        }
        let loses = conditions.loses_messages.load(Ordering::Relaxed);
        Some(if loses { replies.add_replies(received) } else { replies.add(received).concat() })
    };
    let treat = || conditions.treat_reply(&mut random);
    let carried = pump(&server, client, conditions, treat, thin_out);
    client.shutdown(Shutdown::Both)?;
    carried
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|part| part == what)
}

/// Carries the bytes that arrive, or the result of `alter`, as `treat` says.
fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    conditions: &Conditions,
    mut treat: impl FnMut() -> Treatment,
    mut alter: impl FnMut(&[u8]) -> Option<Vec<u8>>,
) -> io::Result<()> {
    let (mut buffer, mut is_silent) = ([0; 16 * 1024], false);
    loop {
        let is_narrow = conditions.is_narrow.load(Ordering::Relaxed);
        let (most, pause) = if is_narrow { NARROW } else { (buffer.len(), Duration::ZERO) };
        let length = from.read(&mut buffer[..most])?;
        if length == 0 {
            return Ok(());
        }
        let altered = alter(&buffer[..length]);
        // Once silent, it stays so until the other end closes the connection.
        match treat() {
            _ if is_silent => {}
            Treatment::Broken => return Ok(()),
            Treatment::Carried => {}
            Treatment::Late(delay) => thread::sleep(delay),
            Treatment::Silent => is_silent = true,
        }
        if is_silent {
            continue;
        }
        to.write_all(altered.as_deref().unwrap_or(&buffer[..length]))?;
        thread::sleep(pause);
    }
}

impl Conditions {
    fn treat_request(&self, random: &mut Random) -> Treatment {
        if self.delays.load(Ordering::Relaxed) && random.one_in(FREQUENCY) {
            return Treatment::Late(random.tenths(self.delay, (0, 10)));
        }
        Treatment::Carried
    }

    fn treat_reply(&self, random: &mut Random) -> Treatment {
        if self.loses.load(Ordering::Relaxed) && random.one_in(FREQUENCY) {
            return if random.one_in(2) { Treatment::Broken } else { Treatment::Silent };
        }
        self.treat_request(random)
    }
}
