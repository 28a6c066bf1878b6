//! The network between clients and servers: its bytes take time, arrive in pieces, and may get lost
//! along with the connection.
//!
//! A connection is a pair of real sockets, so that the client polls, reads, writes and closes as it
//! does elsewhere. The client's bytes are taken from the other socket after each turn of a thread,
//! and reach the server later. The server's bytes are written there after a delay, too.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;

use crate::base::clock;
use crate::base::sync::executor::{self, Process, Random};
use crate::simulation::wire::judge::check_connections;
use crate::simulation::wire::server::{Accepts, Session, receive};
use crate::simulation::wire::world::{World, now, with};

/// The process of everything but the clients: the servers, the network and the director.
pub(super) const OUTSIDE: Process = 0;

/// A server buffers no more than this many bytes of unexecuted requests.
const UNREAD_MAX: usize = 32 * 1024;

/// How bytes travel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// The shortest travel time, and how much longer it may be.
    pub(super) latency: Duration,
    pub(super) jitter: Duration,
    /// How many writes per thousand arrive in pieces, and how many arrive much later.
    pub(super) split: u64,
    pub(super) slow: u64,
    /// How many writes per thousand are the last of their connection, which is closed in the middle
    /// of them, or falls silent without either side noticing.
    pub(super) broken: u64,
    pub(super) silent: u64,
}

/// One connection.
pub(super) struct Link {
    pub(super) process: Process,
    pub(super) server: usize,
    /// The server's end, until one of them has closed the connection.
    pub(super) socket: Option<UnixStream>,
    /// When the last bytes arrive at the server, and at the client.
    last_up: Duration,
    last_down: Duration,
    /// It has fallen silent.
    pub(super) is_silent: bool,
    /// Bytes that have arrived at the client's system, but do not fit into its socket.
    delivered: Vec<u8>,
    pub(super) session: Session,
}

/// The direction of bytes.
#[derive(Clone, Copy)]
enum Direction {
    /// From a client to a server.
    Up,
    Down,
}

/// The fate of a write.
enum Fate {
    Arrives,
    Breaks,
    FallsSilent,
}

impl Weather {
    fn delay(&self, random: &mut Random) -> Duration {
        let slow = if random.permille(self.slow) {
            random.time(self.latency * 200)
        } else {
            Duration::ZERO
        };
        self.latency + random.time(self.jitter) + slow
    }

    fn fate(&self, random: &mut Random) -> Fate {
        if random.permille(self.broken) {
            Fate::Breaks
        } else if random.permille(self.silent) {
            Fate::FallsSilent
        } else {
            Fate::Arrives
        }
    }

    /// Divides bytes into pieces that arrive one after another.
    fn pieces(&self, bytes: &[u8], random: &mut Random) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while random.permille(self.split) && rest.len() > 1 && pieces.len() < 5 {
            let (piece, behind) = rest.split_at(1 + below(random, rest.len() - 1));
            pieces.push(piece.to_vec());
            rest = behind;
        }
        pieces.push(rest.to_vec());
        pieces
    }
}

fn below(random: &mut Random, end: usize) -> usize {
    usize::try_from(random.below(end as u64)).unwrap_or(0)
}

/// Opens a connection, as a thread of a client does.
pub(super) fn connect(
    process: Process,
    addresses: &[SocketAddr],
    deadline: Instant,
) -> io::Result<(UnixStream, SocketAddr)> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for (number, address) in addresses.iter().enumerate() {
        let others = u32::try_from(addresses.len() - number).unwrap_or(1);
        let left = deadline.saturating_duration_since(clock::now()) / others;
        let (time, accepts) = with(|world| {
            let trip = world.weather.delay(&mut world.random) * 2;
            let server = world.servers.iter().find(|server| server.address == *address);
            (trip, server.map_or(Accepts::Nothing, |server| server.accepts))
        });
        if time > left || accepts == Accepts::Silence {
            executor::sleep(left);
            failure = io::Error::new(ErrorKind::TimedOut, "connection timed out");
            continue;
        }
        executor::sleep(time);
        if accepts == Accepts::Nothing {
            failure = ErrorKind::ConnectionRefused.into();
            continue;
        }
        return Ok((with(|world| world.open(process, *address))?, *address));
    }
    Err(failure)
}

impl World {
    /// Opens a connection, and returns the client's end.
    fn open(&mut self, process: Process, address: SocketAddr) -> io::Result<UnixStream> {
        self.pump(process);
        let server = self.servers.iter().position(|server| server.address == address);
        let server = server.ok_or(ErrorKind::ConnectionRefused)?;
        let (client, socket) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        if let Some(bytes) = self.send_buffer {
            set_socket_send_buffer_size(&client, bytes)?;
        }
        let number = self.next_link;
        self.next_link += 1;
        self.tally.connections += 1;
        self.say(|| format!("p{process} opens #{number} to server {server}"));
        let hangs = self.servers[server].accepts == Accepts::Mutely;
        let link = Link {
            process,
            server,
            socket: Some(socket),
            last_up: Duration::ZERO,
            last_down: Duration::ZERO,
            is_silent: hangs,
            delivered: Vec::new(),
            session: Session::default(),
        };
        self.links.insert(number, link);
        check_connections(self, process, server);
        if self.servers[server].accepts == Accepts::Full {
            self.send(number, b"-ERR max number of clients reached\r\n");
            self.close_later(number);
        }
        Ok(client)
    }

    /// Collects the bytes that the threads of a process have written, and notices the connections
    /// that they have closed.
    pub(super) fn pump(&mut self, process: Process) {
        for number in self.readable(process) {
            self.flush(number);
            let Some(link) = self.links.get_mut(&number) else { continue };
            let Some(socket) = &mut link.socket else { continue };
            let mut bytes = Vec::new();
            let mut buffer = [0; 16 * 1024];
            let mut has_ended = false;
            while link.session.input.len() + bytes.len() < UNREAD_MAX {
                match socket.read(&mut buffer) {
                    Ok(0) => has_ended = true,
                    Ok(read) => {
                        bytes.extend_from_slice(&buffer[..read]);
                        continue;
                    }
                    Err(error) => has_ended = error.kind() != ErrorKind::WouldBlock,
                }
                break;
            }
            if !bytes.is_empty() {
                self.transmit(number, &bytes, Direction::Up);
                if self.send_buffer.is_some() {
                    // There is room again.
                    executor::signal_traffic(process);
                }
            }
            if has_ended {
                self.end_by_client(number);
            }
        }
    }

    /// Returns the connections of a process with new bytes, or closed by it.
    fn readable(&self, process: Process) -> Vec<u64> {
        let of_process = self.links.iter().filter(|(_, link)| link.process == process);
        let open = of_process.filter_map(|(number, link)| Some((*number, link.socket.as_ref()?)));
        let (numbers, sockets): (Vec<_>, Vec<_>) = open.unzip();
        if sockets.is_empty() {
            return numbers;
        }
        let mut fds: Vec<_> =
            sockets.into_iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec::default())).expect("they are sockets");
        let ready = numbers.into_iter().zip(fds).filter(|(_, fd)| !fd.revents().is_empty());
        ready.map(|(number, _)| number).collect()
    }

    /// Sends bytes of a server.
    pub(super) fn send(&mut self, number: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.transmit(number, bytes, Direction::Down);
        }
    }

    fn transmit(&mut self, number: u64, bytes: &[u8], direction: Direction) {
        let Self { links, weather, random, .. } = self;
        let Some(link) = links.get_mut(&number) else { return };
        if link.is_silent {
            return;
        }
        let fate = weather.fate(random);
        let mut pieces = weather.pieces(bytes, random);
        if !matches!(fate, Fate::Arrives) {
            // Only the first ones arrive.
            pieces.truncate(below(random, pieces.len() + 1));
        }
        let last = match direction {
            Direction::Up => &mut link.last_up,
            Direction::Down => &mut link.last_down,
        };
        for piece in pieces {
            let at = (now() + weather.delay(random)).max(*last);
            *last = at;
            at_time(at, move || match direction {
                Direction::Up => arrive(number, &piece),
                Direction::Down => deliver(number, &piece),
            });
        }
        self.end_as(number, &fate);
    }

    fn end_as(&mut self, number: u64, fate: &Fate) {
        match fate {
            Fate::Arrives => {}
            Fate::Breaks => {
                self.tally.broken += 1;
                self.close_later(number);
            }
            Fate::FallsSilent => {
                self.tally.silent += 1;
                self.silence(number);
            }
        }
    }

    /// Silences a connection, without telling either side.
    pub(super) fn silence(&mut self, number: u64) {
        self.say(|| format!("#{number} falls silent"));
        if let Some(link) = self.links.get_mut(&number) {
            link.is_silent = true;
        }
    }

    /// Closes a connection once everything sent before has reached the client.
    pub(super) fn close_later(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let at = link.last_down.max(link.last_up).max(now());
        // Nothing more is sent.
        link.is_silent = true;
        at_time(at, move || with(|world| world.close(number)));
    }

    /// Closes a connection, as the server.
    pub(super) fn close(&mut self, number: u64) {
        if let Some(link) = self.links.remove(&number) {
            self.say(|| format!("#{number} is closed by the server"));
            drop(link.socket);
            executor::signal_traffic(link.process);
        }
    }

    /// Tells the server that the client has closed a connection, after everything sent before.
    fn end_by_client(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        link.socket = None;
        let last = link.last_up.max(now());
        self.say(|| format!("#{number} is closed by the client"));
        at_time(last, move || {
            with(|world| drop(world.links.remove(&number)));
        });
    }

    /// Returns how many connections no client has closed. Only for the end of a world, because the
    /// last bytes are lost.
    pub(super) fn open_links(&mut self) -> usize {
        let sockets = self.links.values_mut().filter_map(|link| link.socket.as_mut());
        let is_open = |socket: &mut UnixStream| loop {
            match socket.read(&mut [0; 1024]) {
                Ok(1..) => {}
                Ok(0) => return false,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        };
        sockets.map(is_open).filter(|is_open| *is_open).count()
    }

    /// Writes what has arrived to the client's socket.
    fn flush(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let Some(socket) = &mut link.socket else { return };
        while !link.delivered.is_empty()
            && let Ok(written) = socket.write(&link.delivered)
        {
            link.delivered.drain(..written);
        }
    }
}

/// Schedules an action at a time of the world.
fn at_time(time: Duration, act: impl FnOnce() + 'static) {
    executor::after(OUTSIDE, time.saturating_sub(now()), act);
}

/// Delivers bytes to the server.
fn arrive(number: u64, piece: &[u8]) {
    with(|world| {
        if let Some(link) = world.links.get_mut(&number) {
            link.session.input.extend_from_slice(piece);
            receive(world, number);
        }
    });
}

/// Delivers bytes to the client.
fn deliver(number: u64, piece: &[u8]) {
    with(|world| {
        let Some(link) = world.links.get_mut(&number) else { return };
        link.delivered.extend_from_slice(piece);
        let process = link.process;
        world.flush(number);
        executor::signal_traffic(process);
    });
}
