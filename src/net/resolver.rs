//! Looks up the addresses of hosts.
//!
//! The system's look-up cannot be cut short, and may take far longer than a caller has. So it runs
//! on a thread of its own, and callers wait for it by their own deadlines. There is at most one
//! look-up of a host at a time; every caller that asks for the host meanwhile waits for that one.
//! An answer that comes too late for all of them is kept for the next: else a name server that is
//! slower than `connect_timeout` would keep a client from ever connecting.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use parking_lot::Mutex;

/// How long an answer is kept for which no caller has waited. Hosts move.
const KEPT: Duration = Duration::from_secs(30);

type Answer = io::Result<Vec<SocketAddr>>;

/// The look-ups of one client. Clones share them.
#[derive(Clone)]
pub(crate) struct Resolver {
    look_up: Arc<dyn Fn(&str) -> Answer + Send + Sync>,
    /// The look-ups under way, and the answers that no caller has taken yet.
    hosts: Arc<Mutex<HashMap<String, Arc<LookUp>>>>,
}

/// One look-up of a host. It is over when `ended` is disconnected.
struct LookUp {
    /// Empty, once the look-up is over, if its thread has panicked.
    outcome: OnceLock<Outcome>,
    ended: Receiver<Infallible>,
}

struct Outcome {
    time: Instant,
    answer: Result<Vec<SocketAddr>, Arc<io::Error>>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resolver").finish_non_exhaustive()
    }
}

impl Default for Resolver {
    /// Asks the system.
    fn default() -> Self {
        // The port is each caller's own.
        Self::new(|host| Ok((host, 0).to_socket_addrs()?.collect()))
    }
}

impl Resolver {
    pub(super) fn new(look_up: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        Self { look_up: Arc::new(look_up), hosts: Arc::default() }
    }

    /// Returns the addresses of a host, which may be an IP address itself.
    pub(crate) fn resolve(&self, host: &str, port: u16, deadline: Instant) -> Answer {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let look_up = self.join(host)?;
        let answer = look_up.wait(deadline)?;
        self.forget(host, &look_up);
        let mut addresses = answer?;
        for address in &mut addresses {
            address.set_port(port);
        }
        Ok(addresses)
    }

    /// Joins the look-up of a host, or starts one.
    fn join(&self, host: &str) -> io::Result<Arc<LookUp>> {
        let mut hosts = self.hosts.lock();
        hosts.retain(|_, look_up| !look_up.is_outdated());
        if let Some(look_up) = hosts.get(host) {
            return Ok(look_up.clone());
        }
        let look_up = self.start(host)?;
        hosts.insert(host.into(), look_up.clone());
        Ok(look_up)
    }

    fn start(&self, host: &str) -> io::Result<Arc<LookUp>> {
        let (end, ended) = bounded(0);
        let started = Arc::new(LookUp { outcome: OnceLock::new(), ended });
        let (this, look_up, host) = (started.clone(), self.look_up.clone(), host.to_owned());
        thread::Builder::new().name("leasehold-lookup".into()).spawn(move || {
            let answer = look_up(&host).map_err(Arc::new);
            this.outcome.get_or_init(|| Outcome { time: Instant::now(), answer });
            drop(end);
        })?;
        Ok(started)
    }

    /// Makes the next caller look up the host anew.
    fn forget(&self, host: &str, look_up: &Arc<LookUp>) {
        let mut hosts = self.hosts.lock();
        if hosts.get(host).is_some_and(|known| Arc::ptr_eq(known, look_up)) {
            hosts.remove(host);
        }
    }
}

impl LookUp {
    /// Waits for the answer; fails if it has not come by then.
    fn wait(&self, deadline: Instant) -> io::Result<Answer> {
        // Nothing is ever sent.
        let Err(end) = self.ended.recv_deadline(deadline);
        match (self.outcome.get(), end) {
            // Every caller gets an error of its own, whose source is the one that there is.
            (Some(Outcome { answer, .. }), _) => {
                Ok(answer.clone().map_err(|error| io::Error::new(error.kind(), error)))
            }
            (None, RecvTimeoutError::Disconnected) => {
                Ok(Err(io::Error::other("looking up the host failed")))
            }
            (None, RecvTimeoutError::Timeout) => {
                let why = "looking up the host took too long";
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
        }
    }

    fn is_outdated(&self) -> bool {
        self.outcome.get().is_some_and(|outcome| outcome.time.elapsed() > KEPT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crossbeam_channel::Sender;

    use crate::clock::end_of;

    const SOON: Duration = Duration::from_secs(5);
    const AT_ONCE: Duration = Duration::from_millis(20);

    /// A name server that answers a question when the test does.
    struct NameServer {
        resolver: Resolver,
        answers: Sender<Answer>,
        asked: Arc<AtomicUsize>,
    }

    impl NameServer {
        fn new() -> Self {
            let (answers, from_test) = bounded::<Answer>(9);
            let asked = Arc::<AtomicUsize>::default();
            let count = asked.clone();
            let resolver = Resolver::new(move |_| {
                count.fetch_add(1, Ordering::SeqCst);
                from_test.recv().expect("an answer")
            });
            Self { resolver, answers, asked }
        }

        fn answer(&self, last_byte: u8) {
            let address = SocketAddr::from(([10, 0, 0, last_byte], 0));
            self.answers.send(Ok(vec![address])).expect("the look-up waits");
        }

        fn resolve(&self, host: &str, time: Duration) -> Result<String, io::ErrorKind> {
            let found = self.resolver.resolve(host, 6379, end_of(time));
            let found = found.map_err(|error| error.kind())?;
            Ok(found.iter().map(ToString::to_string).collect())
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn callers_share_the_look_up_of_a_host() {
        let server = NameServer::new();
        thread::scope(|scope| {
            let callers = [(); 8].map(|()| scope.spawn(|| server.resolve("a", SOON)));
            let sharers = || server.resolver.hosts.lock().get("a").map_or(0, Arc::strong_count);
            while sharers() < 2 + callers.len() {
                thread::yield_now();
            }
            server.answer(1);
            for caller in callers {
                assert_eq!(caller.join().expect("no panic"), Ok("10.0.0.1:6379".into()));
            }
        });
        assert_eq!(server.asked(), 1);
        server.answer(2);
        assert_eq!(server.resolve("a", SOON), Ok("10.0.0.2:6379".into()), "asked anew");
        assert!(server.resolver.hosts.lock().is_empty());
    }

    #[test]
    fn an_answer_that_comes_too_late_serves_the_next_caller() {
        let server = NameServer::new();
        for _ in 0..3 {
            assert_eq!(server.resolve("a", AT_ONCE), Err(io::ErrorKind::TimedOut));
        }
        server.answer(1);
        assert_eq!(server.resolve("a", SOON), Ok("10.0.0.1:6379".into()));
        assert_eq!(server.asked(), 1);
    }

    #[test]
    fn the_look_up_of_one_host_does_not_delay_that_of_another() {
        let resolver = Resolver::new(|host| match host {
            "slow" => loop {
                thread::park();
            },
            _ => Err(io::ErrorKind::NotFound.into()),
        });
        let resolve = |host, time| resolver.resolve(host, 1, end_of(time)).map_err(|e| e.kind());
        assert_eq!(resolve("slow", AT_ONCE), Err(io::ErrorKind::TimedOut));
        assert_eq!(resolve("quick", SOON), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn a_look_up_that_panics_fails() {
        let resolver = Resolver::new(|_| panic!("a test"));
        let failed = resolver.resolve("a", 1, end_of(SOON)).map_err(|error| error.kind());
        assert_eq!(failed, Err(io::ErrorKind::Other));
        assert!(resolver.hosts.lock().is_empty());
    }

    #[test]
    fn an_address_is_not_looked_up() {
        let resolver = Resolver::new(|_| panic!("asked"));
        for address in ["10.0.0.1", "::1"] {
            let found = resolver.resolve(address, 7, Instant::now()).expect("an address");
            assert_eq!(found, [SocketAddr::new(address.parse().expect("an address"), 7)]);
        }
    }

    #[test]
    fn the_system_knows_localhost() {
        let found = Resolver::default().resolve("localhost", 7, end_of(SOON)).expect("known");
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
    }
}
