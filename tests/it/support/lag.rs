//! Networks with high latency or low bandwidth, between a server and its replica or client.

use std::io::{Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
#[cfg(unix)]
use std::{
    ops::RangeInclusive,
    os::unix::net::{UnixListener, UnixStream},
    sync::atomic::AtomicUsize,
};

#[cfg(unix)]
use super::ms;
use super::server::Server;

/// Forwards what a server sends at once, and what its replica or client sends with a delay: a
/// replica has everything, but the master does not know that yet; a client seems that much farther
/// away.
pub(crate) struct Lag {
    port: u16,
    closed: Arc<AtomicBool>,
}

impl Lag {
    pub(crate) fn before(server: &Server, delay: Duration) -> Lag {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let closed = Arc::new(AtomicBool::new(false));
        let (server, is_closed) = (server.port(), closed.clone());
        thread::spawn(move || {
            for peer in listener.incoming().flatten() {
                if is_closed.load(Ordering::SeqCst) {
                    return;
                }
                // The peer reopens a failed connection.
                carry(&peer, server, delay).ok();
            }
        });
        Lag { port, closed }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Lag {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes the accepting thread; if it cannot be woken, it ends with the process.
        TcpStream::connect(("127.0.0.1", self.port)).ok();
    }
}

fn carry(peer: &TcpStream, server: u16, delay: Duration) -> Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server))?;
    peer.set_nodelay(true)?;
    server.set_nodelay(true)?;
    relay(server.try_clone()?, peer.try_clone()?, Duration::ZERO, || usize::MAX);
    relay(peer.try_clone()?, server, delay, || usize::MAX);
    Ok(())
}

trait Socket: Read + Write + Send + 'static {
    fn end(&self) -> Result<()>;
}

impl Socket for TcpStream {
    fn end(&self) -> Result<()> {
        self.shutdown(Shutdown::Both)
    }
}

#[cfg(unix)]
impl Socket for UnixStream {
    fn end(&self) -> Result<()> {
        self.shutdown(Shutdown::Both)
    }
}

/// Delays each piece by the same time, however many are on their way. Reads only as much at a time
/// as there is room for.
fn relay(
    mut from: impl Socket,
    to: impl Socket,
    delay: Duration,
    mut room: impl FnMut() -> usize + Send + 'static,
) {
    let (sender, pieces) = unbounded();
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        loop {
            let most = room().min(buffer.len());
            let Ok(length @ 1..) = from.read(&mut buffer[..most]) else { return };
            if sender.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || deliver(&pieces, to));
}

fn deliver(pieces: &Receiver<(Instant, Vec<u8>)>, mut to: impl Socket) {
    for (due, piece) in pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    to.end().ok();
}

/// A link of some distance and little bandwidth to a server. In each round trip it takes no more
/// than its window, which doubles whenever it was full, like that of TCP.
///
/// Clients reach it over a Unix socket, in which the system keeps 90 to 240 KB that the link has
/// not taken; in a TCP connection within one machine there is room for megabytes.
#[cfg(unix)]
pub(crate) struct NarrowLink {
    url: String,
    state: Arc<LinkState>,
}

#[cfg(unix)]
struct LinkState {
    connections: AtomicUsize,
    is_stopped: AtomicBool,
    is_closed: AtomicBool,
}

#[cfg(unix)]
impl NarrowLink {
    /// Creates a link whose windows have this initial and this maximum size in bytes.
    pub(crate) fn before(
        server: &Server,
        round_trip: Duration,
        windows: RangeInclusive<usize>,
    ) -> NarrowLink {
        let url = format!("{}-of-a-link", server.unix_url());
        let path = url.strip_prefix("redis+unix://").expect("a Unix socket");
        let listener = UnixListener::bind(path).expect("the server's directory is there");
        let state = Arc::new(LinkState {
            connections: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        });
        let (server, link) = (server.port(), state.clone());
        thread::spawn(move || {
            for peer in listener.incoming().flatten() {
                if link.is_closed.load(Ordering::SeqCst) {
                    return;
                }
                link.connections.fetch_add(1, Ordering::SeqCst);
                let server = TcpStream::connect(("127.0.0.1", server)).expect("the server is up");
                let (other, back) = (server.try_clone().unwrap(), peer.try_clone().unwrap());
                relay(other, back, Duration::ZERO, || usize::MAX);
                let mut window = Window::new(&link, round_trip, &windows);
                relay(peer, server, round_trip, move || window.room());
            }
        });
        NarrowLink { url, state }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Takes nothing more until [`cont`](Self::cont).
    pub(crate) fn stop(&self) {
        self.state.is_stopped.store(true, Ordering::SeqCst);
    }

    pub(crate) fn cont(&self) {
        self.state.is_stopped.store(false, Ordering::SeqCst);
    }
}

#[cfg(unix)]
impl Drop for NarrowLink {
    fn drop(&mut self) {
        self.state.is_closed.store(true, Ordering::SeqCst);
        self.cont();
        // Wakes the accepting thread; if it cannot be woken, it ends with the process.
        UnixStream::connect(self.url.trim_start_matches("redis+unix://")).ok();
    }
}

/// The limit of one connection over a [`NarrowLink`].
#[cfg(unix)]
struct Window {
    link: Arc<LinkState>,
    round_trip: Duration,
    most: usize,
    size: usize,
    left: usize,
    ends: Instant,
}

#[cfg(unix)]
impl Window {
    fn new(link: &Arc<LinkState>, round_trip: Duration, windows: &RangeInclusive<usize>) -> Window {
        let (size, most) = (*windows.start(), *windows.end());
        let ends = Instant::now() + round_trip;
        Window { link: link.clone(), round_trip, most, size, left: size, ends }
    }

    /// Waits until something may be taken, and counts all of it as taken.
    fn room(&mut self) -> usize {
        while self.link.is_stopped.load(Ordering::SeqCst) {
            thread::sleep(ms(5));
        }
        if self.left == 0 {
            thread::sleep(self.ends.saturating_duration_since(Instant::now()));
            self.size = self.size.saturating_mul(2).min(self.most);
        }
        if self.left == 0 || Instant::now() > self.ends {
            (self.left, self.ends) = (self.size, Instant::now() + self.round_trip);
        }
        let piece = self.left.min(4096);
        self.left -= piece;
        piece
    }
}
