//! A network that is late, and loses replies: the server has done what it was asked to, and nobody
//! hears of it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::random::Random;

/// One message of so many is lost, or late, while that is so.
const FREQUENCY: u32 = 4;

/// Carries what workers and the server say to each other. Its threads end with their connections,
/// the one that waits for connections with the program.
pub(crate) struct Proxy {
    port: u16,
    weather: Arc<Weather>,
}

/// What may happen now.
#[derive(Default)]
struct Weather {
    loses: AtomicBool,
    delays: AtomicBool,
    /// The longest delay.
    delay: Duration,
}

/// What becomes of a message.
enum Fate {
    /// Lost; the connection breaks.
    Broken,
    Carried,
    Late(Duration),
    /// Lost; nothing is carried over this connection any more.
    Silent,
}

impl Proxy {
    pub(crate) fn before(server: u16, delay: Duration, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let weather = Arc::new(Weather { delay, ..Weather::default() });
        let proxy = Self { port, weather: weather.clone() };
        thread::spawn(move || {
            for (number, client) in (0..).zip(listener.incoming()) {
                let (weather, random) = (weather.clone(), Random::new(seed, number));
                // A broken connection is nobody's news: both ends have noticed by themselves.
                thread::spawn(move || carry(&client?, server, &weather, random));
            }
        });
        Ok(proxy)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn lose_replies(&self, loses: bool) {
        self.weather.loses.store(loses, Ordering::Relaxed);
    }

    pub(crate) fn delay(&self, delays: bool) {
        self.weather.delays.store(delays, Ordering::Relaxed);
    }
}

fn carry(
    client: &TcpStream,
    server: u16,
    weather: &Arc<Weather>,
    mut random: Random,
) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server))?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (requests, to, above) = (client.try_clone()?, server.try_clone()?, weather.clone());
    let mut own = Random::new(random.number(), 0);
    thread::spawn(move || {
        // What is late is carried even if the client has gone in the meantime.
        pump(&requests, &to, || above.fate_of_request(&mut own)).ok();
        to.shutdown(Shutdown::Both)
    });
    let carried = pump(&server, client, || weather.fate_of_reply(&mut random));
    client.shutdown(Shutdown::Both)?;
    carried
}

fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    mut fate: impl FnMut() -> Fate,
) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        match fate() {
            Fate::Broken => return Ok(()),
            Fate::Carried => {}
            Fate::Late(delay) => thread::sleep(delay),
            Fate::Silent => {
                // Until the other end has lost its patience.
                io::copy(&mut from, &mut io::sink())?;
                return Ok(());
            }
        }
        to.write_all(&buffer[..length])?;
    }
}

impl Weather {
    fn fate_of_request(&self, random: &mut Random) -> Fate {
        if self.delays.load(Ordering::Relaxed) && random.one_in(FREQUENCY) {
            return Fate::Late(random.tenths(self.delay, (0, 10)));
        }
        Fate::Carried
    }

    fn fate_of_reply(&self, random: &mut Random) -> Fate {
        if self.loses.load(Ordering::Relaxed) && random.one_in(FREQUENCY) {
            return if random.one_in(2) { Fate::Broken } else { Fate::Silent };
        }
        self.fate_of_request(random)
    }
}
