//! Name servers that are slow or do not answer, and servers that have moved.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use crossbeam_channel::{Sender, bounded};
use parking_lot::Mutex;

use super::process::Server;
use super::*;
use crate::base::event_thread::Events;
use crate::net::multiplexer::Multiplexer;

const AGES: Duration = Duration::from_secs(60);

/// A server whose look-up blocks until the test answers, and the number of look-ups so far.
struct SlowlyNamed {
    servers: ServerFactory,
    server: Arc<Multiplexer>,
    look_ups: Arc<AtomicUsize>,
    answer: Sender<()>,
}

impl SlowlyNamed {
    fn new(port: u16, connect_timeout: Duration) -> Self {
        let config = Config { connect_timeout, ..Config::default() };
        let (look_ups, (answer, answered)) = (Arc::<AtomicUsize>::default(), bounded(1));
        let count = look_ups.clone();
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let servers = servers.looking_up(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            answered.recv().map_err(io::Error::other)?;
            Ok(vec![(IpAddr::from(Ipv4Addr::LOCALHOST), 0).into()])
        });
        let url = format!("redis://redis.example:{port}/");
        let endpoint = servers.endpoint(&url).expect("a good URL");
        Self { server: servers.server(endpoint), servers, look_ups, answer }
    }

    /// Attempts to connect, which fails.
    fn fail(&self) {
        let failure = self.server.ping(soon()).expect_err("there is no address yet");
        assert_eq!(failure.kind, FailureKind::Unreachable);
        // Its thread may not have started yet.
        eventually(|| self.look_ups.load(Ordering::SeqCst) == 1);
    }
}

#[test]
fn a_look_up_that_takes_longer_than_connecting_may_is_used_by_a_later_call() {
    let process = Server::redis();
    let named = SlowlyNamed::new(process.port(), Duration::from_secs(1));
    named.fail();
    named.answer.send(()).expect("the look-up continues");
    eventually(|| named.server.ping(soon()).is_ok());
    assert_eq!(named.look_ups.load(Ordering::SeqCst), 1);
}

#[test]
fn calls_that_give_up_leave_one_look_up_behind() {
    let named = SlowlyNamed::new(1, Duration::from_millis(10));
    (0..50).for_each(|_| named.fail());
}

/// To the renewer, a loss at a deadline is as urgent as a reply.
#[test]
fn a_job_ends_at_its_deadline_while_the_name_is_looked_up() {
    const TIME: Duration = Duration::from_millis(300);
    let named = SlowlyNamed::new(1, AGES);
    let store = Servers::one(named.server.clone(), &named.servers);
    let mut jobs = store.jobs();
    let (started, mut outcomes) = (Instant::now(), Vec::new());
    let change = Change::Renew { lease: LEASE.into() };
    // The last turn may begin just before the deadline, and end after it. Then another one follows.
    while started.elapsed() < TIME || outcomes.is_empty() && started.elapsed() < AGES / 2 {
        let job = Job { id: 1, hold: hold(1), change, deadline: started + TIME };
        jobs.send(vec![job], &mut |_, outcome| outcomes.push(outcome));
        jobs.collect(started + TIME, &mut |_, outcome| outcomes.push(outcome));
    }
    assert!(started.elapsed() < AGES / 2, "{:?}", started.elapsed());
    assert!(outcomes.iter().all(Result::is_err) && !outcomes.is_empty(), "{outcomes:?}");
    assert_eq!(named.look_ups.load(Ordering::SeqCst), 1);
}

/// An address that leads to one server, and later to another. Open connections stay where they are.
struct Address {
    port: u16,
    target: Arc<AtomicU16>,
}

impl Address {
    fn of(server: &Server) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0), server)
    }

    fn at(address: (Ipv4Addr, u16), server: &Server) -> Self {
        let listener = TcpListener::bind(address).expect("it is free");
        let port = listener.local_addr().expect("an address").port();
        let target = Arc::new(AtomicU16::new(server.port()));
        let current = target.clone();
        // The thread ends with the process.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", current.load(Ordering::SeqCst)));
                let server = server.expect("the server is up");
                let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
                for (mut from, mut to) in
                    [(clone(&client), clone(&server)), (clone(&server), clone(&client))]
                {
                    thread::spawn(move || {
                        io::copy(&mut from, &mut to).ok();
                        to.shutdown(Shutdown::Both).ok();
                    });
                }
            }
        });
        Self { port, target }
    }
}

/// Checks that all connections of a store soon lead to the new server.
fn assert_moves(store: &dyn Store, new: &Server, moves: impl FnOnce()) {
    let (mut jobs, mut wakeups) = (store.jobs(), messages(store, "client"));
    let mut renew =
        || run_jobs(&mut *jobs, &[(hold(1), Change::Renew { lease: LEASE.into() })]).remove(0);
    must_acquire(store, &hold(1));
    assert!(matches!(renew(), Ok(HoldReply::Done)));
    assert!(matches!(wakeups.next(soon()), Some(Ok(Wake::Ready))));
    moves();
    eventually(|| matches!(renew(), Ok(HoldReply::Gone)));
    eventually(|| {
        let acquired = acquire(store, &hold(2), Registration::None);
        matches!(acquired, Ok(AcquireReply::Acquired { .. }))
    });
    assert!(matches!(wakeups.next(soon()), Some(Ok(Wake::Ready))));
    let listening: Vec<String> = new.ask(&["PUBSUB", "CHANNELS"]);
    assert_eq!(listening.len(), 1);
}

/// As one server, and as a quorum of one.
fn as_each_store(url: &str, servers: &ServerFactory, check: impl Fn(&dyn Store)) {
    let endpoint = || servers.endpoint(url).expect("a good URL");
    check(&Servers::one(servers.server(endpoint()), servers));
    check(&Quorum::new(vec![endpoint()], servers));
}

#[test]
fn connections_that_are_old_are_replaced_wherever_the_address_leads_by_then() {
    let max_lifetime = Some(Duration::from_millis(300));
    let config = Config { max_lifetime, pool_size: 1, ..Config::default() };
    let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
    let (old, new) = (Server::redis(), Server::redis());
    let address = Address::of(&old);
    let url = format!("redis://127.0.0.1:{}/", address.port);
    as_each_store(&url, &servers, |store| {
        old.command(&["FLUSHALL"]);
        new.command(&["FLUSHALL"]);
        address.target.store(old.port(), Ordering::SeqCst);
        assert_moves(store, &new, || address.target.store(new.port(), Ordering::SeqCst));
    });
}

/// Other systems have one loopback address.
#[cfg(any(target_os = "linux", windows))]
#[test]
fn connections_follow_a_name_as_soon_as_a_look_up_gives_another_address() {
    let config = Config { pool_size: 1, ..Config::default() };
    let (old, new) = (Server::redis(), Server::redis());
    let (here, there) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2));
    let _address = Address::at((there, old.port()), &new);
    let named = Arc::new(Mutex::new(here));
    let known = named.clone();
    let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
    let servers = servers.looking_up(move |_| Ok(vec![(IpAddr::from(*known.lock()), 0).into()]));
    as_each_store(&format!("redis://redis.example:{}/", old.port()), &servers, |store| {
        old.command(&["FLUSHALL"]);
        new.command(&["FLUSHALL"]);
        *named.lock() = here;
        assert_moves(store, &new, || {
            *named.lock() = there;
            // It is looked up whenever a connection is made.
            let (mut each, _) = store.connections().expect("there are some");
            each[0].connect(soon()).expect("it is there");
        });
    });
}

/// Like the name of a headless service, which has the addresses of all its servers.
#[test]
#[cfg(any(target_os = "linux", windows))]
fn the_other_addresses_of_a_host_are_tried_if_the_first_is_that_of_a_replica() {
    let (master, replica) = (Server::redis(), Server::redis());
    let follow = |server: &Server, of: &Server| {
        let order = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(of.port()).take();
        order.exec(&mut server.connect()).expect("it obeys");
    };
    follow(&replica, &master);
    let first = Address::of(&replica);
    let second = Ipv4Addr::new(127, 0, 0, 2);
    let port = Address::at((second, first.port), &master).port;
    let servers = ServerFactory::new(&Config::default(), &Events::default()).expect("a thread");
    let addresses = [Ipv4Addr::LOCALHOST, second].map(|address| (IpAddr::from(address), 0).into());
    let servers = servers.looking_up(move |_| Ok(addresses.to_vec()));
    let endpoint = servers.endpoint(&format!("redis://redis.example:{port}/"));
    let server = servers.server(endpoint.expect("a good URL"));
    let write = || {
        let set = redis::cmd("SET").arg("a").arg(1).take();
        server.exchange(Request::command(&set), None, soon())
    };
    let failure = write().expect_err("the first one is a replica");
    assert_eq!(failure.code, "READONLY");
    write().expect("the second one is the master");
    server.factory.invalidate_connections();
    write().expect("which is known");

    follow(&master, &replica);
    write().expect_err("it is a replica now");
    let failure = write().expect_err("as is the other");
    let error = failure.into_error("lock", "a").to_string();
    assert!(error.contains(&format!("the server at 127.0.0.2:{port} is not a master")), "{error}");
}
