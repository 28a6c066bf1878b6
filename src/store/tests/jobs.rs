//! Background jobs while connections and servers fail.

use std::net::TcpListener;

use super::process::Server;
use super::*;
use crate::config::durability::Durability;

/// Shorter than the time it takes to notice a silent connection.
const WHILE: Duration = Duration::from_millis(500);

/// How long a server waits for a replica that it does not have.
const IN_VAIN: Duration = Duration::from_secs(2);

/// One hold that exists and one that does not, and an open background connection.
struct Scene {
    process: Server,
    store: Servers,
    jobs: Box<dyn JobRunner>,
    held: HoldId,
    gone: HoldId,
    outcomes: Vec<(u64, Outcome)>,
}

impl Scene {
    fn new() -> Self {
        let process = Server::redis();
        let store = single(&process);
        let (held, gone) = (hold(1), HoldId { name: Arc::from("other"), ..hold(2) });
        must_acquire(&store, &held);
        let mut jobs = store.jobs();
        let renewed =
            run_jobs(&mut *jobs, &[(held.clone(), Change::Renew { lease: LEASE.into() })]);
        assert!(matches!(renewed[..], [Ok(HoldReply::Done)]));
        Self { process, store, jobs, held, gone, outcomes: Vec::new() }
    }

    fn renew(&mut self, id: u64, hold: HoldId, deadline: Instant) {
        let job = Job { id, hold, change: Change::Renew { lease: LEASE.into() }, deadline };
        self.jobs.send(vec![job], &mut |id, outcome| self.outcomes.push((id, outcome_of(outcome))));
    }

    /// Collects outcomes for this long, or until every job has one.
    fn collect(&mut self, time: Duration) {
        self.jobs.collect(end_of(time), &mut |id, outcome| {
            self.outcomes.push((id, outcome_of(outcome)));
        });
    }

    fn collect_all(&mut self) {
        self.collect(SOON);
    }
}

#[test]
fn jobs_go_on_when_the_server_forgets_its_scripts() {
    let mut scene = Scene::new();
    let renewals = vec![(scene.held.clone(), Change::Renew { lease: LEASE.into() }); 100];
    for _ in 0..3 {
        scene.process.command(&["SCRIPT", "FLUSH"]);
        let outcomes = run_jobs(&mut *scene.jobs, &renewals);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(HoldReply::Done))));
    }
}

#[test]
fn a_reply_of_an_old_connection_is_not_read_on_the_new_one() {
    let mut scene = Scene::new();
    scene.process.stop();
    scene.renew(1, scene.gone.clone(), soon());
    scene.process.cont();
    // Another connection learns that none can be trusted any more.
    scene.process.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = acquire(&scene.store, &scene.gone, Registration::None);
    assert_eq!(refused.expect_err("read-only").code, "READONLY");
    scene.process.command(&["REPLICAOF", "NO", "ONE"]);
    scene.renew(2, scene.held.clone(), soon());
    scene.collect_all();
    let outcomes = &scene.outcomes[..];
    assert!(matches!(outcomes, [(1, Err(_)), (2, Ok(HoldReply::Done))]), "{outcomes:?}");
}

#[test]
fn a_late_reply_to_an_abandoned_job_is_ignored() {
    let mut scene = Scene::new();
    scene.process.stop();
    scene.renew(1, scene.gone.clone(), soon());
    scene.jobs.abandon();
    scene.renew(2, scene.held.clone(), soon());
    scene.process.cont();
    let begun = Instant::now();
    scene.collect_all();
    assert!(begun.elapsed() < SOON / 2, "nothing waits for the abandoned job");
    let outcomes = &scene.outcomes[..];
    assert!(matches!(outcomes, [(2, Ok(HoldReply::Done))]), "{outcomes:?}");
}

#[test]
fn a_job_fails_at_its_own_deadline() {
    let mut scene = Scene::new();
    scene.process.stop();
    scene.renew(1, scene.gone.clone(), end_of(WHILE / 5));
    scene.renew(2, scene.held.clone(), soon());
    scene.collect(WHILE);
    let outcomes = &scene.outcomes[..];
    assert!(matches!(outcomes, [(1, Err(_))]), "{outcomes:?}");
    // The connection is still good for the other job, and the late reply is ignored.
    scene.process.cont();
    scene.collect_all();
    let outcomes = &scene.outcomes[..];
    assert!(matches!(outcomes, [(1, Err(_)), (2, Ok(HoldReply::Done))]), "{outcomes:?}");
}

#[test]
fn a_job_fails_with_a_connection_that_has_fallen_silent() {
    let process = Server::redis();
    let config = Config { io_timeout: Some(WHILE), ..Config::default() };
    let store = single_at(&process.url(), &config);
    must_acquire(&store, &hold(1));
    let mut jobs = store.jobs();
    let change = Change::Renew { lease: LEASE.into() };
    let renewed = run_jobs(&mut *jobs, &[(hold(1), change)]);
    assert!(matches!(renewed[..], [Ok(HoldReply::Done)]));
    process.stop();
    let job = Job { id: 1, hold: hold(1), change, deadline: end_of(SOON * 12) };
    let mut outcomes = Vec::new();
    jobs.send(vec![job], &mut |_, outcome| outcomes.push(outcome.is_ok()));
    jobs.collect(soon(), &mut |_, outcome| outcomes.push(outcome.is_ok()));
    assert_eq!(outcomes, [false]);
}

/// A server without the replica that it must wait for.
fn without_replica() -> Scene {
    let scene = Scene::new();
    let durability = Durability::Replicas { acks: 1, timeout: IN_VAIN };
    let config = Config { durability, ..Config::default() };
    let store = single_at(&scene.process.url(), &config);
    Scene { jobs: store.jobs(), store, ..scene }
}

#[test]
fn only_renewals_wait_for_replicas() {
    let mut scene = without_replica();
    scene.renew(1, scene.held.clone(), soon());
    scene.renew(2, scene.gone.clone(), soon());
    let release =
        Job { id: 3, hold: scene.gone.clone(), change: Change::RELEASE, deadline: soon() };
    let outcomes = &mut scene.outcomes;
    scene.jobs.send(vec![release], &mut |id, outcome| outcomes.push((id, outcome_of(outcome))));
    scene.collect_all();
    let place = |id| scene.outcomes.iter().position(|(of, _)| *of == id).expect("an outcome");
    let (renewed, gone, released) = (place(1), place(2), place(3));
    assert!(released < renewed, "{:?}", scene.outcomes);
    assert!(matches!(scene.outcomes[gone].1, Ok(HoldReply::Gone)));
    let failure = scene.outcomes[renewed].1.as_ref().expect_err("no replica has it");
    assert_eq!(failure.kind, FailureKind::NotReplicated { acked: 0, required: 1 });
}

#[test]
fn renewals_that_come_while_replicas_are_waited_for_share_the_next_request() {
    let mut scene = without_replica();
    let (waits, start) = (scene.process.calls("wait"), Instant::now());
    for id in 0..100 {
        scene.renew(id, scene.held.clone(), soon());
        scene.collect(WHILE / 500);
    }
    // There is one more if the machine has paused.
    let ended = start.elapsed().as_secs() / IN_VAIN.as_secs();
    scene.collect_all();
    assert_eq!(scene.outcomes.len(), 100);
    let short = |outcome: &(u64, Outcome)| matches!(&outcome.1, Err(it) if it.is_shortfall());
    assert!(scene.outcomes.iter().all(short), "{:?}", scene.outcomes);
    let waits = scene.process.calls("wait") - waits;
    assert!((2..=2 + ended).contains(&waits), "{waits}");
}

#[test]
fn valkey_confirms_more_renewals_than_one_write_takes() {
    let at_once = ["--appendonly", "yes", "--appendfsync", "always"];
    let process = Server::start(process::valkey_binary(), &at_once);
    let durability = Durability::Fsync { local: true, replicas: 0, timeout: SOON };
    let store = single_at(&process.url(), &Config { durability, ..Config::default() });
    must_acquire(&store, &hold(1));
    let mut jobs = store.jobs();
    let renewals = vec![(hold(1), Change::Renew { lease: LEASE.into() }); 5000];
    let waits = process.calls("waitaof");
    for round in 1..=2 {
        let outcomes = run_jobs(&mut *jobs, &renewals);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(HoldReply::Done))));
        // In the first round, the server does not know the script.
        assert!(process.calls("waitaof") - waits <= 6 * round);
    }
}

#[test]
fn an_unconfirmed_renewal_fails_at_its_own_deadline() {
    let mut scene = without_replica();
    let start = Instant::now();
    scene.renew(1, scene.held.clone(), soon());
    scene.renew(2, scene.held.clone(), end_of(WHILE / 2));
    while scene.outcomes.is_empty() {
        scene.collect(WHILE / 50);
    }
    let is_early = start.elapsed() < IN_VAIN;
    assert!(!is_early || matches!(scene.outcomes[..], [(2, Err(_))]), "{:?}", scene.outcomes);
    // The server still answers the others.
    scene.process.command(&["SCRIPT", "FLUSH"]);
    scene.renew(3, scene.held.clone(), soon());
    scene.collect_all();
    let kind = |id| {
        let (_, outcome) = scene.outcomes.iter().find(|(of, _)| *of == id).expect("an outcome");
        outcome.as_ref().expect_err("no replica has it").is_shortfall()
    };
    assert_eq!([1, 2, 3].map(kind), [true, false, true], "{:?}", scene.outcomes);
}

#[test]
fn a_renewal_goes_on_when_the_connection_that_it_waits_for_is_closed() {
    let mut scene = without_replica();
    scene.renew(1, scene.held.clone(), end_of(WHILE / 2));
    scene.collect(WHILE / 50);
    // Waits until replicas have confirmed the first, which they never do.
    scene.renew(2, scene.held.clone(), soon());
    let start = Instant::now();
    scene.collect_all();
    assert!(start.elapsed() < SOON / 2, "it has waited until its deadline");
    assert!(matches!(scene.outcomes[..], [(1, Err(_)), (2, _)]), "{:?}", scene.outcomes);
    let failure = scene.outcomes[1].1.as_ref().expect_err("no replica has it");
    assert!(failure.is_shortfall(), "{failure:?}");
}

/// A server that accepts connections and never replies. With a password in the URL, connecting
/// means waiting for a reply.
#[test]
fn a_server_that_hangs_in_the_login_delays_nothing() {
    const JOB: Duration = Duration::from_millis(200);
    const LOGIN: Duration = Duration::from_secs(60);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let config = Config { connect_timeout: LOGIN, ..Config::default() };
    let store = single_at(&format!("redis://:sesame@127.0.0.1:{port}/"), &config);
    let mut jobs = store.jobs();
    for id in 0..3 {
        let mut outcomes = Vec::new();
        let started = Instant::now();
        let change = Change::Renew { lease: LEASE.into() };
        let job = Job { id, hold: hold(id), change, deadline: started + JOB };
        jobs.send(vec![job], &mut |id, outcome| outcomes.push((id, outcome_of(outcome))));
        jobs.collect(started + JOB / 4, &mut |id, outcome| {
            outcomes.push((id, outcome_of(outcome)));
        });
        let is_early = started.elapsed() < JOB;
        assert!(!is_early || outcomes.is_empty(), "{outcomes:?}");
        jobs.collect(soon(), &mut |id, outcome| outcomes.push((id, outcome_of(outcome))));
        assert!(started.elapsed() >= JOB, "after {:?}", started.elapsed());
        assert!(started.elapsed() < SOON, "the job took {:?}", started.elapsed());
        let [(failed, Err(failure))] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert_eq!((*failed, failure.kind), (id, FailureKind::Unreachable));
    }
}

/// The pool has the only connection that the server admits, however many jobs there are.
#[test]
fn jobs_go_over_the_connections_of_calls_while_no_other_can_be_opened() {
    let process = Server::redis();
    let store = single(&process);
    must_acquire(&store, &hold(1));
    // The connection that asks for this is gone before the next one arrives.
    process.command(&["CONFIG", "SET", "maxclients", "1"]);
    let mut jobs = store.jobs();
    jobs.prepare("lock");
    let renewals = vec![(hold(1), Change::Renew { lease: LEASE.into() }); 1000];
    for _ in 0..3 {
        let outcomes = run_jobs(&mut *jobs, &renewals);
        let failed = outcomes.iter().find(|outcome| !matches!(outcome, Ok(HoldReply::Done)));
        assert!(failed.is_none(), "{failed:?}");
    }
    assert_eq!(depth(&store), Some(1), "calls go on");
}

#[test]
fn jobs_of_a_quorum_go_over_its_links_while_no_connection_can_be_opened() {
    let servers = [Server::redis(), Server::redis(), Server::redis()];
    let config = Config { pool_size: 1, ..Config::default() };
    let store = quorum(&servers, &config);
    must_acquire(&store, &hold(1));
    for server in &servers {
        server.command(&["CONFIG", "SET", "maxclients", "1"]);
    }
    let outcomes =
        run_jobs(&mut *store.jobs(), &[(hold(1), Change::Renew { lease: LEASE.into() })]);
    assert!(matches!(outcomes[..], [Ok(HoldReply::Done)]), "{outcomes:?}");
}

/// A connection is prepared before it is needed.
#[test]
fn jobs_find_a_connection_that_was_prepared() {
    let process = Server::redis();
    let store = single(&process);
    must_acquire(&store, &hold(1));
    let connected = || {
        let list: String = process.ask(&["CLIENT", "LIST"]);
        // Without the connection that asks.
        list.lines().count() - 1
    };
    let mut jobs = store.jobs();
    jobs.prepare("lock");
    eventually(|| connected() == 2);
    for _ in 0..3 {
        jobs.prepare("lock");
        let outcomes = run_jobs(&mut *jobs, &[(hold(1), Change::Renew { lease: LEASE.into() })]);
        assert!(matches!(outcomes[..], [Ok(HoldReply::Done)]), "{outcomes:?}");
    }
    assert_eq!(connected(), 2);
}

#[test]
fn a_connection_that_could_not_be_prepared_is_opened_for_the_first_job() {
    let scene = Scene::new();
    let mut jobs = scene.store.jobs();
    scene.process.kill();
    jobs.prepare(&scene.held.name);
    // By the end of this, the attempt has failed.
    scene.process.restart();
    let outcomes = run_jobs(&mut *jobs, &[(scene.held.clone(), Change::RELEASE)]);
    assert!(matches!(outcomes[..], [Ok(HoldReply::Gone)]), "{outcomes:?}");
}

#[test]
fn jobs_of_a_quorum_without_a_majority_wait_for_no_pause_of_a_server() {
    let servers = [(); 3].map(|()| Server::redis());
    let store = quorum(&servers, &Config::default());
    let mut jobs = store.jobs();
    servers[..2].iter().for_each(Server::kill);
    for nonce in 1..20 {
        acquire(&store, &hold(nonce), Registration::None).expect_err("there is no majority");
    }
    servers[..2].iter().for_each(Server::restart);
    let begun = Instant::now();
    let outcomes = run_jobs(&mut *jobs, &[(hold(1), Change::RELEASE)]);
    assert!(matches!(outcomes[..], [Ok(HoldReply::Gone)]), "{outcomes:?}");
    assert!(begun.elapsed() < 4 * WHILE, "{:?}", begun.elapsed());
}
