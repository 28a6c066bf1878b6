//! A network between a server and its replica or client that takes its time.

use std::io::{Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};

use super::server::Server;

/// Carries what a server sends at once, and what its replica or client sends with a delay: a
/// replica has everything, and the master does not know that yet; a client is so much farther away.
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
                // A connection that fails is made again by the peer.
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
    let (from_server, to_peer) = (server.try_clone()?, peer.try_clone()?);
    relay(from_server, to_peer, Duration::ZERO);
    relay(peer.try_clone()?, server, delay);
    Ok(())
}

/// Delays each piece by the same time, however many are on their way.
fn relay(mut from: TcpStream, to: TcpStream, delay: Duration) {
    let (sender, pieces) = unbounded();
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || deliver(&pieces, to));
}

fn deliver(pieces: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    for (due, piece) in pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Both).ok();
}
