//! A slow connection: carries bytes to a server and back without parsing them.

use std::io::{self, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::server::Server;

pub(crate) struct Wire {
    shared: Arc<Shared>,
    port: u16,
}

struct Shared {
    server: u16,
    /// The pause before each byte from the server, in microseconds.
    pause: AtomicU64,
    connections: AtomicU32,
    closed: AtomicBool,
}

impl Wire {
    pub(crate) fn before(server: &Server) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server: server.port(),
            pause: AtomicU64::new(0),
            connections: AtomicU32::new(0),
            closed: AtomicBool::new(false),
        });
        let carrier = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if carrier.closed.load(Ordering::SeqCst) {
                    return;
                }
                carrier.connections.fetch_add(1, Ordering::SeqCst);
                // A broken connection is not reported, because the client notices it.
                client.and_then(|client| carrier.carry(client)).ok();
            }
        });
        Wire { shared, port }
    }

    pub(crate) fn tls_url(&self) -> String {
        format!("rediss://localhost:{}/", self.port)
    }

    /// Delivers the bytes from the server one by one, with this pause before each.
    pub(crate) fn drip(&self, pause: Duration) {
        let micros = u64::try_from(pause.as_micros()).unwrap();
        self.shared.pause.store(micros, Ordering::SeqCst);
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> u32 {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the accepting thread; if it cannot be woken, it ends with the process.
        TcpStream::connect(("127.0.0.1", self.port)).ok();
    }
}

impl Shared {
    /// Starts a thread for each direction.
    fn carry(self: &Arc<Self>, client: TcpStream) -> Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.server))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut requests, mut to_server) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || {
            io::copy(&mut requests, &mut to_server).ok();
            to_server.shutdown(Shutdown::Both).ok();
        });
        let carrier = Arc::clone(self);
        thread::spawn(move || {
            carrier.carry_back(server, &client).ok();
            client.shutdown(Shutdown::Both).ok();
        });
        Ok(())
    }

    fn carry_back(&self, mut server: TcpStream, mut client: &TcpStream) -> Result<()> {
        let mut buffer = [0; 4096];
        loop {
            let read = server.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            let mut rest = &buffer[..read];
            while !rest.is_empty() {
                let pause = self.pause.load(Ordering::SeqCst);
                let now = if pause == 0 { rest.len() } else { 1 };
                thread::sleep(Duration::from_micros(pause));
                client.write_all(&rest[..now])?;
                rest = &rest[now..];
            }
        }
    }
}
