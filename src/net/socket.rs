//! Sockets: connecting and reading with deadlines, writing as much as there is room for, and
//! waiting.
//!
//! Sockets offer only a time limit for each call of `read`, which never cuts off a reply that drips
//! in byte by byte. So every wait is for the remaining time: after a short spin if the caller
//! allows one, in `read` itself while much time is left, which saves a system call, and in `poll`
//! at the end. A caller that may wait for a long time always waits in `poll`, because `read` wakes
//! up at intervals.
//!
//! Windows has no flag that keeps a single call from blocking, so no socket blocks there, and every
//! wait is in `poll`.

use std::io::{self, ErrorKind};
#[cfg(windows)]
use std::net::{Ipv4Addr, UdpSocket};
use std::net::{SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
#[cfg(unix)]
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use rustix::event::{PollFd, PollFlags};
use rustix::event::{Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
#[cfg(unix)]
use rustix::net::SocketAddrUnix;
use rustix::net::{self, RecvFlags, SendFlags, Shutdown, sockopt};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use crate::base::clock;
#[cfg(all(test, unix, not(leasehold_shuttle)))]
use crate::base::sync::executor;
use crate::base::sync::sleep;
#[cfg(all(test, leasehold_shuttle))]
use crate::net::schedules::FakeStream;
use crate::net::wait::{Arrived, Close, ReplyWait, WaitFor};

/// The longest sleep of one call of `read`.
const NAP: Duration = Duration::from_millis(50);

/// Pause between two attempts to connect to a host, each at another of its addresses.
const STAGGER: Duration = Duration::from_millis(250);

/// The interval at which sockets are tried while `poll` does not work.
const UNPOLLED: Duration = Duration::from_millis(5);

/// After this time without traffic, the kernel checks whether the peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Apple's systems have no `NOSIGNAL`. Rust programs ignore `SIGPIPE` from the start anyway.
#[cfg(all(unix, not(target_vendor = "apple")))]
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(target_vendor = "apple")]
const SEND: SendFlags = SendFlags::DONTWAIT;
#[cfg(windows)]
const SEND: SendFlags = SendFlags::empty();

/// For a `recv` that does not block.
#[cfg(unix)]
const RECEIVE: RecvFlags = RecvFlags::DONTWAIT;
#[cfg(windows)]
const RECEIVE: RecvFlags = RecvFlags::empty();

/// Sockets are blocking where a flag can make a single call non-blocking. Elsewhere they never
/// block, and no `read` sleeps.
const BLOCKS: bool = cfg!(unix);

/// The longest sleep of a thread whose socket another thread may close. On Windows, the close wakes
/// it only once the server has closed the connection, too.
pub(crate) const CLOSE_NOTICED: Duration =
    if cfg!(windows) { Duration::from_millis(250) } else { POLL_MAX };

/// The longest sleep in one call of `poll`. Some systems reject a timeout of a month.
const POLL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest sleep of a thread that connects. Windows before version 10.2004 does not wake it
/// when an attempt fails.
const CONNECT_NOTICED: Duration = if cfg!(windows) { NAP } else { POLL_MAX };

pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    #[cfg(all(test, leasehold_shuttle))]
    Fake(FakeStream),
    /// A connection in the network of a simulation. Its other side is in this process, and no wait
    /// takes real time.
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    Simulated(UnixStream, SocketAddr),
}

impl Stream {
    /// Connects to the first of `addresses` that answers, as RFC 8305 recommends: each attempt
    /// begins shortly after the one before, or when that one fails, and none is abandoned before
    /// the deadline. At least half of the time is left for the last one.
    pub(crate) fn tcp(addresses: &[SocketAddr], deadline: Instant) -> io::Result<Self> {
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        if let Some(connected) = executor::connect(addresses, deadline) {
            return connected.map(|(stream, peer)| Self::Simulated(stream, peer));
        }
        let count = u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        let stagger = STAGGER.min(remaining(deadline)? / 2 / count);
        let mut failure = io::Error::new(ErrorKind::NotFound, "the host has no address");
        let mut untried = addresses.iter();
        let mut attempts = Vec::<TcpStream>::new();
        let mut next = clock::now();
        loop {
            if next <= clock::now() || attempts.is_empty() {
                match untried.next().map(begin_tcp) {
                    Some(Ok(attempt)) => attempts.push(attempt),
                    Some(Err(error)) => {
                        failure = error;
                        continue;
                    }
                    None if attempts.is_empty() => return Err(failure),
                    None => {}
                }
                next = if untried.len() == 0 { deadline } else { clock::now() + stagger };
            }
            let mut fds: Vec<_> =
                attempts.iter().map(|attempt| PollFd::new(attempt, PollFlags::OUT)).collect();
            poll_until(&mut fds, Some(next.min(deadline).min(clock::now() + CONNECT_NOTICED)));
            let mut connected = None;
            // From the end, because removing an attempt moves the ones behind it.
            for place in (0..attempts.len()).rev() {
                match is_connected(&attempts[place]) {
                    Ok(true) => connected = Some(attempts.remove(place)),
                    Ok(false) => {}
                    Err(error) => {
                        attempts.remove(place);
                        failure = error;
                        next = clock::now();
                    }
                }
            }
            if let Some(stream) = connected {
                stream.set_nonblocking(!BLOCKS)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(NAP))?;
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
                // On Windows, both times are set together.
                #[cfg(windows)]
                let keepalive = keepalive.with_interval(Duration::from_secs(1));
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                return Ok(Self::Tcp(stream));
            }
            if remaining(deadline).is_err() {
                return Err(io::Error::new(ErrorKind::TimedOut, "connection timed out"));
            }
        }
    }

    #[cfg(unix)]
    pub(crate) fn unix(path: &Path, deadline: Instant) -> io::Result<Self> {
        #[cfg(all(test, leasehold_shuttle))]
        if let Some(stream) = FakeStream::open(path) {
            return stream.map(Self::Fake);
        }
        let address = SocketAddrUnix::new(path)?;
        let pause = Duration::from_millis(1);
        loop {
            let stream = UnixStream::from(Socket::new(Domain::UNIX, Type::STREAM, None)?);
            stream.set_nonblocking(true)?;
            match net::connect(&stream, &address) {
                Ok(()) => {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(NAP))?;
                    return Ok(Self::Unix(stream));
                }
                // The server's queue of new connections is full, and `poll` does not wait for room
                // in it.
                Err(Errno::AGAIN) => sleep(pause.min(remaining(deadline)?)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the address of the other side; a Unix socket has none.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            #[cfg(unix)]
            Self::Unix(_) => None,
            #[cfg(all(test, leasehold_shuttle))]
            Self::Fake(_) => None,
            #[cfg(all(test, unix, not(leasehold_shuttle)))]
            Self::Simulated(_, peer) => Some(*peer),
        }
    }

    /// Writes as many of `bytes` as there is room for, without waiting.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(all(test, leasehold_shuttle))]
        if let Self::Fake(stream) = self {
            return stream.send(bytes);
        }
        loop {
            match net::send(self.handle(), bytes, SEND) {
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    }

    /// Reads what has arrived, waiting for it if needed. The thread does not sleep while it spins.
    pub(super) fn read(
        &self,
        into: &mut [u8],
        wait: WaitFor,
        mut spin: Option<&mut ReplyWait<'_>>,
    ) -> io::Result<usize> {
        loop {
            let naps = if spin.as_mut().is_some_and(|spin| spin.spins()) {
                std::hint::spin_loop();
                false
            } else {
                match wait {
                    WaitFor::Buffered | WaitFor::Nothing => false,
                    WaitFor::SoonReply { deadline } if self.blocks() && has_nap(deadline)? => true,
                    WaitFor::Reply { deadline } | WaitFor::SoonReply { deadline } => {
                        self.wait(PollFlags::IN, deadline)?;
                        false
                    }
                }
            };
            match self.receive(into, naps) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if matches!(wait, WaitFor::Nothing) {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    // Nothing has arrived. The thread continues to spin or sleep while there is
                    // time.
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => return received,
            }
        }
    }

    #[cfg_attr(
        not(all(test, unix, not(leasehold_shuttle))),
        expect(clippy::unused_self, reason = "only simulated ones differ")
    )]
    fn blocks(&self) -> bool {
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        if let Self::Simulated(..) = self {
            return false;
        }
        BLOCKS
    }

    /// Reads once. If `naps` is true, waits for something to arrive, but no longer than a [`NAP`].
    fn receive(&self, into: &mut [u8], naps: bool) -> io::Result<usize> {
        #[cfg(all(test, leasehold_shuttle))]
        if let Self::Fake(stream) = self {
            return stream.receive(into, !naps);
        }
        let flags = if naps { RecvFlags::empty() } else { RECEIVE };
        Ok(net::recv(self.handle(), into, flags)?.1)
    }

    /// Checks what has arrived, without waiting and without taking any of it.
    pub(crate) fn look(&self) -> Arrived {
        #[cfg(all(test, leasehold_shuttle))]
        if let Self::Fake(_) = self {
            return Arrived::Nothing;
        }
        match net::recv(self.handle(), &mut [0], RecvFlags::PEEK.union(RECEIVE)) {
            Ok((_, 1..)) => Arrived::Data,
            Err(Errno::AGAIN | Errno::INTR) => Arrived::Nothing,
            Ok(_) | Err(_) => Arrived::End,
        }
    }

    /// Returns the entry for `poll`, for a thread that waits for several sockets.
    pub(crate) fn poll_fd(&self, what: PollFlags) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.handle(), what)
    }

    pub(crate) fn wait(&self, what: PollFlags, deadline: Instant) -> io::Result<()> {
        #[cfg(all(test, leasehold_shuttle))]
        if let Self::Fake(stream) = self {
            return stream.wait();
        }
        let mut fds = [self.poll_fd(what)];
        match poll_until(&mut fds, Some(deadline)) {
            Polled::Nothing => remaining(deadline).map(drop),
            Polled::Refused | Polled::Some => Ok(()),
        }
    }

    /// Returns the system's handle: a file descriptor, on Windows a `SOCKET`.
    fn handle(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            #[cfg(unix)]
            Self::Unix(stream) => stream.as_fd(),
            #[cfg(all(test, leasehold_shuttle))]
            Self::Fake(_) => unreachable!("it has no file"),
            #[cfg(all(test, unix, not(leasehold_shuttle)))]
            Self::Simulated(stream, _) => stream.as_fd(),
        }
    }
}

impl Close for Stream {
    fn close(&self) {
        // This fails if the connection has already ended, which is just as good.
        net::shutdown(self.handle(), Shutdown::Both).unwrap_or_default();
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        executor::signal_own_traffic();
    }
}

/// Starts to connect. The socket becomes writable when the attempt ends.
fn begin_tcp(address: &SocketAddr) -> io::Result<TcpStream> {
    // Child processes do not inherit the socket.
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    match net::connect(&stream, address) {
        // Windows returns `WOULDBLOCK` for a connect in progress.
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR | Errno::WOULDBLOCK) => Ok(stream),
        Err(error) => Err(error.into()),
    }
}

/// Returns `true` if a connect has succeeded, and `false` if it is still in progress.
fn is_connected(attempt: &TcpStream) -> io::Result<bool> {
    if let Some(error) = attempt.take_error()? {
        return Err(error);
    }
    let peer = match attempt.peer_addr() {
        Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
        peer => peer?,
    };
    // No program listens at the port, and the system has chosen the same port for this end. TCP
    // then connects the socket to itself, and every reply would be the request.
    if peer == attempt.local_addr()? {
        // Otherwise the port would stay in use, and the server could not start.
        sockopt::set_socket_linger(attempt, Some(Duration::ZERO))?;
        let why = "no program listens there: the connection has led back to this one";
        return Err(io::Error::new(ErrorKind::ConnectionRefused, why));
    }
    Ok(true)
}

/// Blocks until some of the sockets may be ready, and returns their indices; none after the
/// deadline. Without a deadline it does not block.
pub(crate) fn poll_ready(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Vec<usize> {
    match poll_until(fds, deadline) {
        Polled::Nothing => Vec::new(),
        Polled::Refused => (0..fds.len()).collect(),
        Polled::Some => {
            let ready = fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty());
            ready.map(|(position, _)| position).collect()
        }
    }
}

/// The outcome of a `poll`.
enum Polled {
    Nothing,
    /// Any socket may be ready, because the system refuses the call: it is out of memory, the limit
    /// of open files is now below the number of sockets, or a filter forbids the call.
    Refused,
    Some,
}

fn poll_until(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Polled {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    if executor::can_block() {
        return poll_in_virtual_time(fds, deadline);
    }
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(clock::now()));
        let time = Timespec::try_from(left.unwrap_or_default().min(POLL_MAX)).ok();
        match poll(fds, time.as_ref()) {
            Ok(0) if left.is_some_and(|left| !left.is_zero()) => {}
            Err(Errno::INTR) => {}
            Ok(0) => return Polled::Nothing,
            // If something is wrong with a socket, reading from it returns the error.
            Ok(_) => return Polled::Some,
            Err(_) if left.is_some_and(|left| left.is_zero()) => return Polled::Nothing,
            // Windows refuses an empty list.
            Err(_) if fds.is_empty() => sleep(left.unwrap_or_default()),
            Err(_) => {
                sleep(UNPOLLED.min(left.unwrap_or_default()));
                return Polled::Refused;
            }
        }
    }
}

/// Like `poll_until`, for a thread of a simulation.
#[cfg(all(test, unix, not(leasehold_shuttle)))]
fn poll_in_virtual_time(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Polled {
    loop {
        if poll(fds, Some(&Timespec::default())) != Ok(0) {
            return Polled::Some;
        }
        match deadline {
            Some(deadline) if deadline > clock::now() => executor::wait_for_traffic(deadline),
            _ => {
                // A thread that only polls could keep a core busy forever.
                executor::preempt();
                return Polled::Nothing;
            }
        }
    }
}

/// Returns the time until the deadline, or a timeout error if none is left.
fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(clock::now());
    if left.is_zero() {
        return Err(io::Error::new(ErrorKind::TimedOut, "the time for the request is over"));
    }
    Ok(left)
}

fn has_nap(deadline: Instant) -> io::Result<bool> {
    Ok(remaining(deadline)? >= NAP)
}

/// Wakes a thread that polls. The alarm is readable after `ring` until `reset`. Clones share it.
#[derive(Clone)]
pub(crate) struct Alarm(Arc<Pair>);

/// Two connected sockets: what is sent to the first one arrives at the second.
#[cfg(unix)]
struct Pair(UnixStream, UnixStream);

/// The second one only receives from the first.
#[cfg(windows)]
struct Pair(UdpSocket, UdpSocket);

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        let pair = Pair::new()?;
        pair.0.set_nonblocking(true)?;
        pair.1.set_nonblocking(true)?;
        Ok(Self(Arc::new(pair)))
    }

    pub(crate) fn ring(&self) {
        // If the buffer is full, earlier rings are still unread, which is enough.
        net::send(&self.0.0, &[0], SEND).map(drop).unwrap_or_default();
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        executor::signal_own_traffic();
    }

    pub(crate) fn reset(&self) {
        let mut rings = [0; 64];
        loop {
            match net::recv(&self.0.1, &mut rings, RECEIVE) {
                Ok((_, 1..)) | Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }

    pub(crate) fn rung(&self) -> PollFd<'_> {
        PollFd::new(&self.0.1, PollFlags::IN)
    }
}

impl Pair {
    #[cfg(unix)]
    fn new() -> io::Result<Self> {
        UnixStream::pair().map(|(one, other)| Self(one, other))
    }

    #[cfg(windows)]
    fn new() -> io::Result<Self> {
        let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        one.connect(other.local_addr()?)?;
        other.connect(one.local_addr()?)?;
        Ok(Self(one, other))
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    /// A listener that accepts no connection for now, not even into its queue, and the connections
    /// that fill the queue.
    struct Silent(TcpListener, Vec<TcpStream>);

    impl Silent {
        fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            net::listen(&listener, 0).expect("it listens");
            let mut silent = Self(listener, Vec::new());
            let short = Duration::from_millis(100);
            while let Ok(stream) = TcpStream::connect_timeout(&silent.address(), short) {
                silent.1.push(stream);
            }
            silent
        }

        fn address(&self) -> SocketAddr {
            self.0.local_addr().expect("an address")
        }
    }

    #[test]
    fn addresses_that_do_not_answer_delay_the_one_that_does_only_a_little() {
        let silent = Silent::new();
        let live = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut addresses = vec![silent.address(); 7];
        addresses.push(live.local_addr().expect("an address"));
        let begun = Instant::now();
        let time = Duration::from_secs(20);
        Stream::tcp(&addresses, begun + time).expect("the last one answers");
        assert!(begun.elapsed() < time / 2, "{:?}", begun.elapsed());
    }

    /// The system repeats its SYN after a second.
    #[test]
    fn an_address_that_answers_late_is_connected_to_though_the_host_has_many() {
        let late = Silent::new();
        let silent = Silent::new();
        let mut addresses = vec![silent.address(); 15];
        addresses.insert(0, late.address());
        thread::scope(|scope| {
            let time = Duration::from_secs(8);
            let connects = scope.spawn(move || Stream::tcp(&addresses, Instant::now() + time));
            thread::sleep(Duration::from_millis(600));
            for _ in &late.1 {
                late.0.accept().expect("it is in the queue");
            }
            let stream = connects.join().expect("no panic").expect("one answers");
            assert_eq!(stream.peer(), Some(late.address()));
        });
    }

    /// Connects a socket to its own port, as the system does now and then.
    fn loop_back() -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
        let stream = TcpStream::from(socket.expect("a socket"));
        net::bind(&stream, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let own = stream.local_addr().expect("it is bound");
        net::connect(&stream, &own).expect("no program listens");
        stream
    }

    #[test]
    fn a_connection_to_itself_is_refused_and_frees_the_port() {
        let stream = loop_back();
        let error = is_connected(&stream).expect_err("there is no server");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let own = stream.local_addr().expect("it is bound");
        drop(stream);
        TcpListener::bind(own).expect("the server starts");
    }

    /// As if the limit of open files had been lowered.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_wait_that_the_system_refuses_ends_in_time_and_is_not_busy() {
        use rustix::process::{Resource, getrlimit};

        // Where the limit is far higher, this many sockets would need too much memory.
        let limit = getrlimit(Resource::Nofile).current.filter(|most| *most < 4_000_000);
        let Some(most) = limit else { return };
        let (one, _other) = UnixStream::pair().expect("two sockets");
        let mut fds: Vec<_> = (0..=most).map(|_| PollFd::new(&one, PollFlags::IN)).collect();
        let deadline = Instant::now() + Duration::from_millis(300);
        let mut looks = 0;
        while !poll_ready(&mut fds, Some(deadline)).is_empty() {
            looks += 1;
        }
        assert!(Instant::now() >= deadline && (1..=61).contains(&looks), "{looks}");
    }

    #[test]
    fn a_host_that_refuses_everywhere_says_so_at_once() {
        let unused = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("an address")
        };
        let begun = Instant::now();
        let time = Duration::from_secs(60);
        let failure = Stream::tcp(&[unused(), unused()], begun + time).err();
        let failure = failure.expect("no program listens");
        assert_eq!(failure.kind(), ErrorKind::ConnectionRefused);
        assert!(begun.elapsed() < time / 2, "{:?}", begun.elapsed());
    }
}
