//! Name servers that are slow or do not answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Sender, bounded};

use super::*;
use crate::base::event_thread::Events;
use crate::net::multiplexer::Multiplexer;

const AGES: Duration = Duration::from_secs(60);

/// A server whose name is looked up until the test answers, and the number of look-ups so far.
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
        // Its thread may not have begun yet.
        eventually(|| self.look_ups.load(Ordering::SeqCst) == 1);
    }
}

#[test]
fn a_look_up_that_takes_longer_than_connecting_may_is_used_by_a_later_call() {
    let process = process::Server::redis();
    let named = SlowlyNamed::new(process.port(), Duration::from_secs(1));
    named.fail();
    named.answer.send(()).expect("the look-up goes on");
    eventually(|| named.server.ping(soon()).is_ok());
    assert_eq!(named.look_ups.load(Ordering::SeqCst), 1);
}

#[test]
fn calls_that_give_up_leave_one_look_up_behind() {
    let named = SlowlyNamed::new(1, Duration::from_millis(10));
    (0..50).for_each(|_| named.fail());
}

/// As for the renewer, to which a loss at a deadline is as urgent as a reply.
#[test]
fn a_job_ends_at_its_deadline_while_the_name_is_looked_up() {
    const TIME: Duration = Duration::from_millis(300);
    let named = SlowlyNamed::new(1, AGES);
    let store = Servers::one(named.server.clone(), &named.servers);
    let mut jobs = store.jobs();
    let (started, mut outcomes) = (Instant::now(), Vec::new());
    let change = Change::Renew { lease: LEASE };
    while started.elapsed() < TIME {
        let job = Job { id: 1, hold: hold(1), change, deadline: started + TIME };
        jobs.send(vec![job], &mut |_, outcome| outcomes.push(outcome));
        jobs.collect(started + TIME, &mut |_, outcome| outcomes.push(outcome));
    }
    assert!(started.elapsed() < AGES / 2, "{:?}", started.elapsed());
    assert!(outcomes.iter().all(Result::is_err) && !outcomes.is_empty(), "{outcomes:?}");
    assert_eq!(named.look_ups.load(Ordering::SeqCst), 1);
}
