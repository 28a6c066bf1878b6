//! A network that loses replies: the server has done what it was asked to, and nobody hears of it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::random::Random;

/// Carries what workers and the server say to each other. Its threads end with their connections,
/// the one that waits for connections with the program.
pub(crate) struct Proxy {
    port: u16,
    /// One reply of so many gets lost; none if it is 0.
    losing: Arc<AtomicU32>,
}

/// What becomes of a reply.
enum Fate {
    Carried,
    /// Lost; the connection breaks.
    Broken,
    /// Lost; nothing is carried over this connection any more.
    Silent,
}

impl Proxy {
    pub(crate) fn before(server: u16, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let losing = Arc::new(AtomicU32::new(0));
        let loses = losing.clone();
        thread::spawn(move || {
            for (number, client) in (0..).zip(listener.incoming()) {
                let (loses, random) = (loses.clone(), Random::new(seed, number));
                // A broken connection is nobody's news: both ends have noticed by themselves.
                thread::spawn(move || carry(&client?, server, &loses, random));
            }
        });
        Ok(Self { port, losing })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Loses one reply of so many from here on; none if it is 0.
    pub(crate) fn lose_one_in(&self, replies: u32) {
        self.losing.store(replies, Ordering::Relaxed);
    }
}

fn carry(client: &TcpStream, server: u16, losing: &AtomicU32, random: Random) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server))?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut requests, mut to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        io::copy(&mut requests, &mut to).ok();
        to.shutdown(Shutdown::Both)
    });
    let carried = carry_replies(&server, client, losing, random);
    client.shutdown(Shutdown::Both)?;
    carried
}

fn carry_replies(
    mut server: &TcpStream,
    mut client: &TcpStream,
    losing: &AtomicU32,
    mut random: Random,
) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let length = server.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        match fate(losing.load(Ordering::Relaxed), &mut random) {
            Fate::Carried => client.write_all(&buffer[..length])?,
            Fate::Broken => return Ok(()),
            Fate::Silent => {
                // Until the client has lost its patience.
                io::copy(&mut server, &mut io::sink())?;
                return Ok(());
            }
        }
    }
}

fn fate(losing: u32, random: &mut Random) -> Fate {
    match losing {
        0 => Fate::Carried,
        _ if !random.one_in(losing) => Fate::Carried,
        _ if random.one_in(2) => Fate::Broken,
        _ => Fate::Silent,
    }
}
