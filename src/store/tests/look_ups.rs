//! Name servers that are slow or do not answer.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::net::server::Server;

const AGES: Duration = Duration::from_secs(60);

/// How long connecting may take.
const MOMENT: Duration = Duration::from_millis(50);

/// A server whose name is looked up in so much time, and the number of look-ups so far.
fn looked_up_in(
    time: Duration,
    connect_timeout: Duration,
    port: u16,
) -> (Server, Arc<AtomicUsize>) {
    let config = Config { connect_timeout, ..Config::default() };
    let look_ups = Arc::<AtomicUsize>::default();
    let count = look_ups.clone();
    let servers = ServerFactory::new(&config).expect("a thread").looking_up(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        thread::sleep(time);
        Ok(vec![(IpAddr::from(Ipv4Addr::LOCALHOST), 0).into()])
    });
    let url = format!("redis://redis.example:{port}/");
    let endpoint = Endpoint::parse(&url, &config).expect("a good URL");
    (servers.server(endpoint), look_ups)
}

#[test]
fn a_look_up_that_takes_longer_than_connecting_may_is_used_by_a_later_call() {
    let process = process::Server::redis();
    let (server, look_ups) = looked_up_in(MOMENT * 5, MOMENT, process.port());
    let mut attempts = 0;
    eventually(|| {
        attempts += 1;
        server.ping(soon()).is_ok()
    });
    assert!(attempts > 2, "{attempts}");
    assert_eq!(look_ups.load(Ordering::SeqCst), 1);
}

#[test]
fn calls_that_give_up_leave_one_look_up_behind() {
    let (server, look_ups) = looked_up_in(AGES, MOMENT, 1);
    for _ in 0..20 {
        let failure = server.ping(soon()).expect_err("there is no address yet");
        assert_eq!(failure.kind, FailureKind::Unreachable);
    }
    assert_eq!(look_ups.load(Ordering::SeqCst), 1);
}

/// As for the renewer, to which a loss at a deadline is as urgent as a reply.
#[test]
fn a_job_ends_at_its_deadline_while_the_name_is_looked_up() {
    const TIME: Duration = Duration::from_millis(300);
    let (server, look_ups) = looked_up_in(AGES, AGES, 1);
    let store = Standalone::new(server, &Config::default());
    let mut jobs = store.jobs();
    let (started, mut outcomes) = (Instant::now(), Vec::new());
    let action = Action::Renew { lease: LEASE };
    while started.elapsed() < TIME {
        let job = Job { id: 1, hold: hold(1), action, deadline: started + TIME };
        jobs.send(vec![job], &mut |_, outcome| outcomes.push(outcome));
        jobs.collect(started + TIME, &mut |_, outcome| outcomes.push(outcome));
    }
    assert!(started.elapsed() < TIME * 4, "{:?}", started.elapsed());
    assert!(outcomes.iter().all(Result::is_err) && !outcomes.is_empty(), "{outcomes:?}");
    assert_eq!(look_ups.load(Ordering::SeqCst), 1);
}
