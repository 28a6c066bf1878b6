//! Locks on several independent servers: what a majority grants is held, whatever the others do.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Error};
use parking_lot::Mutex;

use crate::support::child::{self, Child};
use crate::support::proxy::Proxy;
use crate::support::quorum::open_redlock;
use crate::support::recorder::Recorder;
use crate::support::store::Handle;
use crate::support::{
    LEASE, Quorum, SOON, Server, assert_lost, elsewhere, eventually, is_busy, ms, patient, take,
    throughout, timed,
};

/// How long one attempt may take here.
const IO: Duration = ms(300);

/// Much more than what a call may take here, for a busy machine.
const BOUND: Duration = ms(2500);

fn hasty() -> Builder {
    Client::builder().connect_timeout(IO).io_timeout(IO).wait(SOON).backoff(ms(1), ms(50))
}

fn no_quorum<T: std::fmt::Debug>(result: Result<T, Error>) -> (u32, u32, BTreeSet<String>) {
    match result {
        Err(Error::NoQuorum { ok, required, failures, .. }) => {
            (ok, required, failures.into_iter().map(|failure| failure.server).collect())
        }
        other => panic!("{other:?} instead of no quorum"),
    }
}

fn addresses<'a>(servers: impl IntoIterator<Item = &'a Server>) -> BTreeSet<String> {
    servers.into_iter().map(|server| format!("127.0.0.1:{}", server.port())).collect()
}

#[test]
fn a_lock_stands_on_every_server_and_leaves_them_all() {
    let quorum = Quorum::of(5);
    let client = quorum.open(patient());
    for _ in 0..50 {
        let guard = take(&client, "a");
        eventually(SOON, || quorum.count("a") == 5);
        let inner = take(&client, "a");
        inner.unlock().unwrap();
        guard.unlock().unwrap();
        eventually(SOON, || quorum.count("a") == 0);
    }
}

#[test]
fn node_lists_without_sense_are_refused_before_anything_is_sent() {
    let refused = |urls: &[&str]| match Client::builder().open_redlock(urls) {
        Err(Error::InvalidInput(what)) => assert!(!what.contains("secret"), "{what}"),
        other => panic!("{other:?} instead of invalid input"),
    };
    // Nobody listens there: it would be an error of another kind.
    refused(&[]);
    refused(&["redis://127.0.0.1:1/", "redis://127.0.0.1:2/", "redis://127.0.0.1:1/"]);
    refused(&["redis://127.0.0.1:1/1", "redis://:secret@127.0.0.1:1/2"]);
    refused(&["redis://127.0.0.1:1/", "nonsense"]);
}

#[test]
fn a_client_opens_if_a_majority_answers_and_only_then() {
    let quorum = Quorum::of(4);
    quorum.servers[0].stop();
    assert!(open_redlock(hasty(), &quorum.urls()).is_ok());
    quorum.servers[1].kill();
    let (result, took) = timed(|| open_redlock(hasty(), &quorum.urls()));
    let (ok, required, failed) = no_quorum(result);
    assert_eq!((ok, required), (2, 3));
    assert_eq!(failed, addresses(&quorum.servers[..2]));
    assert!(took < BOUND, "{took:?}");
}

#[test]
fn one_server_is_a_quorum_of_one() {
    let quorum = Quorum::of(1);
    let client = quorum.open(patient());
    assert!(!is_busy(&client, "a"));
    let guard = take(&client, "a");
    assert!(is_busy(&client, "a"));
    guard.unlock().unwrap();
}

#[test]
fn a_wrong_password_at_a_majority_is_a_permanent_error() {
    let quorum = Quorum::of(3);
    let refused = |urls: &[String]| open_redlock(hasty(), urls).unwrap_err();
    let with_password = |server: &Server| format!("redis://:wrong@127.0.0.1:{}/", server.port());
    let mut urls = quorum.urls();
    urls[0] = with_password(&quorum.servers[0]);
    assert!(open_redlock(hasty(), &urls).is_ok());
    urls[1] = with_password(&quorum.servers[1]);
    assert!(matches!(refused(&urls), Error::Redis { .. }), "{:?}", refused(&urls));
    assert!(!format!("{:?}", refused(&urls)).contains("wrong@"));
}

/// Every set of servers that somebody else has a value on.
fn foreign_values(servers: usize) {
    let quorum = Quorum::of(servers);
    let client = quorum.open(patient());
    let required = servers / 2 + 1;
    for mask in 0..1_usize << servers {
        let name = format!("lock {mask}");
        let (taken, free): (Vec<_>, Vec<_>) =
            quorum.servers.iter().enumerate().partition(|(number, _)| mask >> number & 1 == 1);
        for (number, server) in &taken {
            // Another client's hold, without and with a time to live, or something else altogether.
            match number % 3 {
                0 => server.command(&["HSET", &name, "somebody", "1"]),
                1 => server.ask(&["EVAL", HOLD, "1", &name]),
                _ => server.command(&["SET", &name, "precious"]),
            };
        }
        let guard = match client.try_lock(&name) {
            Ok(guard) => guard,
            Err(Error::WrongType { .. }) => None,
            Err(error) => panic!("{mask:b}: {error}"),
        };
        assert_eq!(guard.is_some(), free.len() >= required, "{mask:b}");
        if let Some(guard) = guard {
            eventually(SOON, || free.iter().all(|(_, server)| server.exists(&name)));
            take(&client, &name).unlock().unwrap();
            guard.verify().unwrap();
            assert!(guard.is_held());
            guard.unlock().unwrap();
        }
        eventually(SOON, || free.iter().all(|(_, server)| !server.exists(&name)));
        assert!(taken.iter().all(|(_, server)| server.exists(&name)), "{mask:b}");
        let lasting = taken.iter().filter(|(number, _)| number % 3 != 1);
        assert!(lasting.clone().all(|(_, server)| server.raw_pttl(&name) == -1), "{mask:b}");
    }
}

const HOLD: &str =
    "redis.call('hset', KEYS[1], 'other:1', 1) return redis.call('pexpire', KEYS[1], 60000)";

#[test]
fn foreign_values_on_any_of_three_servers_are_left_alone_and_count_as_held() {
    foreign_values(3);
}

#[test]
fn foreign_values_on_any_of_five_servers_are_left_alone_and_count_as_held() {
    foreign_values(5);
}

#[test]
fn hung_servers_cost_next_to_nothing() {
    let quorum = Quorum::of(5);
    let client = quorum.open(patient());
    take(&client, "a").unlock().unwrap();
    quorum.servers[0].stop();
    quorum.servers[3].stop();
    let cycles = 300;
    let ((), took) = timed(|| (0..cycles).for_each(|_| take(&client, "a").unlock().unwrap()));
    // A single wait for a hung server would take a second.
    assert!(took < ms(1000), "{took:?} for {cycles} cycles");
    let guard = take(&client, "a");
    quorum.servers[0].cont();
    quorum.servers[3].cont();
    guard.unlock().unwrap();
    eventually(SOON, || quorum.count("a") == 0);
    // They are used again.
    eventually(SOON, || {
        let _guard = take(&client, "a");
        quorum.count("a") == 5
    });
    eventually(SOON, || quorum.count("a") == 0);
}

#[test]
fn a_hold_on_a_majority_is_renewed_while_others_hang() {
    let quorum = Quorum::of(5);
    let client = quorum.open(patient().lease(LEASE));
    let guards: Vec<_> = (0..20).map(|number| take(&client, &format!("lock {number}"))).collect();
    quorum.servers[1].stop();
    quorum.servers[2].kill();
    throughout(LEASE * 3, || guards.iter().all(leasehold::Guard::is_held));
    for guard in guards {
        guard.verify().unwrap();
        guard.unlock().unwrap();
    }
}

#[test]
fn a_hold_without_a_majority_is_lost() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    let guard = take(&client, "a");
    eventually(SOON, || quorum.count("a") == 3);
    quorum.servers[0].command(&["DEL", "a"]);
    guard.verify().unwrap();
    take(&client, "a").unlock().unwrap();
    quorum.servers[2].command(&["DEL", "a"]);
    assert_lost(guard.verify(), "a");
    assert!(!guard.is_held());
    assert_lost(client.lock("a"), "a");
    assert_lost(guard.unlock(), "a");
    // What is left of it is nobody's, and goes with its lease or is removed.
    assert!(quorum.servers[0].keys().iter().all(|key| key != "a"));
}

#[test]
fn a_lease_of_which_a_majority_is_gone_is_not_renewed() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    let lost = guard.lost();
    quorum.servers[1].command(&["DEL", "a"]);
    quorum.servers[2].command(&["DEL", "a"]);
    lost.recv_timeout(LEASE).unwrap();
    assert!(!guard.is_held());
}

#[test]
fn a_lost_majority_is_no_quorum_with_the_details() {
    let quorum = Quorum::of(5);
    let client = quorum.open(hasty());
    let guard = take(&client, "held");
    quorum.servers[1].kill();
    quorum.servers[2].stop();
    quorum.servers[4].stop();
    let (result, took) = timed(|| client.try_lock("a").map(drop));
    let text = result.as_ref().unwrap_err().to_string();
    let (ok, required, failed) = no_quorum(result);
    assert_eq!((ok, required), (2, 3), "{text}");
    assert_eq!(failed, addresses([1, 2, 4].map(|number| &quorum.servers[number])));
    assert!(text.contains("acquire lock \"a\""), "{text}");
    assert!(took < BOUND, "{took:?}");
    let mutex = client.mutex("a");
    let bounded = |call: &dyn Fn() -> Result<(), Error>| {
        let (result, took) = timed(call);
        no_quorum(result);
        assert!(took < BOUND, "{took:?}");
    };
    bounded(&|| mutex.holder().map(drop));
    bounded(&|| mutex.force_unlock().map(drop));
    bounded(&|| mutex.try_lock_for(ms(100)).map(drop));
    // What was granted by the others is not kept.
    eventually(SOON, || !quorum.servers[0].exists("a") && !quorum.servers[3].exists("a"));
    let ((), took) = timed(|| drop(guard));
    assert!(took < BOUND, "{took:?}");
    eventually(SOON, || !quorum.servers[0].exists("held") && !quorum.servers[3].exists("held"));
}

#[test]
fn calls_go_on_when_a_majority_is_back() {
    let quorum = Quorum::of(3);
    let client = quorum.open(hasty());
    take(&client, "a").unlock().unwrap();
    quorum.servers[0].kill();
    quorum.servers[1].kill();
    no_quorum(client.try_lock("a").map(drop));
    quorum.servers[0].restart();
    take(&client, "a").unlock().unwrap();
    quorum.servers[2].kill();
    no_quorum(client.try_lock("a").map(drop));
    quorum.servers[1].restart();
    take(&client, "a").unlock().unwrap();
}

#[test]
fn an_outage_of_a_majority_is_waited_out() {
    let quorum = Quorum::of(3);
    let client = quorum.open(hasty());
    quorum.servers[0].stop();
    quorum.servers[1].stop();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.try_lock_for("a", SOON).unwrap().is_some());
        thread::sleep(ms(700));
        assert!(!waiter.is_finished());
        quorum.servers[1].cont();
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn servers_restarted_empty_one_at_a_time_let_nobody_in() {
    let quorum = Quorum::of(5);
    let (first, second) = (quorum.open(patient()), quorum.open(patient()));
    let mut last = 0;
    for number in 0..10 {
        let guard = take(&first, "a");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        // A majority must have it that does not forget.
        eventually(SOON, || quorum.count("a") == 5);
        quorum.servers[number % 5].restart();
        for _ in 0..10 {
            assert!(second.try_lock("a").unwrap().is_none(), "round {number}");
        }
        guard.verify().unwrap();
        guard.unlock().unwrap();
        let guard = take(&second, "a");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        guard.unlock().unwrap();
        // The next hold is to be on all of them again.
        eventually(SOON, || {
            let guard = take(&first, "b");
            let everywhere = quorum.count("b") == 5;
            guard.unlock().unwrap();
            everywhere
        });
    }
}

#[test]
fn fences_grow_whichever_majority_grants() {
    let quorum = Quorum::of(5);
    let client = quorum.open(hasty());
    let mut last = 0;
    // A different minority is out each time, and a counter that is far ahead moves about.
    for round in 0..20 {
        let out = [round % 5, (round * 3 + 1) % 5];
        out.iter().for_each(|number| quorum.servers[*number].stop());
        let ahead = &quorum.servers[(0..5).find(|number| !out.contains(number)).unwrap()];
        let counter = (last + 5_000_000_000).max(3_000_000_000_000_000).to_string();
        ahead.command(&["SET", "leasehold:fence:{a}", &counter]);
        let guard = client.lock("a").unwrap();
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        let confirmed =
            quorum.servers.iter().enumerate().filter(|(number, _)| !out.contains(number));
        let confirmed = confirmed
            .filter(|(_, server)| server.ask::<u64>(&["GET", "leasehold:fence:{a}"]) >= last);
        assert!(confirmed.count() >= 3, "round {round}");
        guard.unlock().unwrap();
        out.iter().for_each(|number| quorum.servers[*number].cont());
    }
}

#[test]
fn an_uncontended_cycle_costs_each_server_two_scripts() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    take(&client, "a").unlock().unwrap();
    let before: Vec<_> = quorum.servers.iter().map(Server::evals).collect();
    for _ in 0..100 {
        take(&client, "a").unlock().unwrap();
    }
    for (server, before) in quorum.servers.iter().zip(before) {
        eventually(SOON, || server.evals() >= before + 200);
        assert_eq!(server.evals(), before + 200);
    }
}

#[test]
fn scripts_may_be_forgotten_at_any_time() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    for _ in 0..20 {
        quorum.servers.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
        let guard = take(&client, "a");
        quorum.servers.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
        guard.unlock().unwrap();
    }
    eventually(SOON, || quorum.count("a") == 0);
}

/// Clients that see the servers through proxies.
struct Behind {
    quorum: Quorum,
    proxies: Vec<Proxy>,
}

impl Behind {
    fn of(servers: usize) -> Behind {
        let quorum = Quorum::of(servers);
        let proxies = quorum.servers.iter().map(Proxy::before).collect();
        Behind { quorum, proxies }
    }

    fn open(&self, builder: Builder) -> Client {
        let urls: Vec<_> = self.proxies.iter().map(Proxy::url).collect();
        open_redlock(builder, &urls).unwrap()
    }
}

#[test]
fn a_hold_whose_grant_was_lost_on_the_way_is_released_too() {
    let Behind { quorum, proxies } = &Behind::of(3);
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    let client = open_redlock(hasty(), &urls).unwrap();
    take(&client, "a").unlock().unwrap();
    for proxy in proxies {
        proxy.lose_reply();
        let guard = take(&client, "a");
        eventually(SOON, || quorum.count("a") == 3);
        guard.unlock().unwrap();
        eventually(SOON, || quorum.count("a") == 0);
        throughout(ms(300), || quorum.count("a") == 0);
        proxy.heal();
    }
}

#[test]
fn a_release_that_was_lost_on_the_way_is_made_up_for() {
    let behind = Behind::of(3);
    let client = behind.open(hasty());
    take(&client, "a").unlock().unwrap();
    for proxy in &behind.proxies {
        let guard = take(&client, "a");
        eventually(SOON, || behind.quorum.count("a") == 3);
        proxy.lose_request();
        guard.unlock().unwrap();
        eventually(SOON, || behind.quorum.count("a") == 0);
        proxy.heal();
    }
}

#[test]
fn lost_replies_of_a_majority_leave_nothing() {
    let behind = Behind::of(3);
    let client = behind.open(hasty());
    take(&client, "a").unlock().unwrap();
    behind.proxies[0].blackhole();
    behind.proxies[1].blackhole();
    no_quorum(client.try_lock("a").map(drop));
    behind.proxies.iter().for_each(Proxy::heal);
    eventually(SOON, || behind.quorum.count("a") == 0);
    throughout(ms(300), || behind.quorum.count("a") == 0);
    take(&client, "a").unlock().unwrap();
}

#[test]
fn a_grant_that_comes_too_slowly_is_refused() {
    let behind = Behind::of(5);
    let client = behind.open(Client::builder().lease(ms(600)).renew(false));
    let mutex = client.mutex("a").lease(ms(60));
    behind.proxies[..4].iter().for_each(|proxy| proxy.drip(ms(20)));
    // Nobody is given a hold of which nothing is left.
    for _ in 0..5 {
        if let Ok(Some(guard)) = mutex.try_lock() {
            assert!(guard.remaining() < ms(60));
        }
    }
    behind.proxies.iter().for_each(Proxy::heal);
    eventually(SOON, || behind.quorum.count("a") == 0);
}

#[test]
fn contenders_that_split_the_votes_get_on() {
    const CLIENTS: usize = 4;
    const ROUNDS: usize = 50;
    let quorum = Quorum::of(5);
    let mut urls = quorum.urls();
    // Each asks the servers in another order, so that each gets some of them.
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            urls.rotate_left(1);
            open_redlock(patient().wait(SOON * 6), &urls).unwrap()
        })
        .collect();
    let (holding, last) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let guard = client.lock("a").unwrap();
                    assert_eq!(holding.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(last.swap(guard.fence(), Ordering::SeqCst) < guard.fence());
                    holding.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    drop(clients);
    eventually(SOON, || quorum.count("a") == 0);
}

#[test]
fn processes_count_without_losing_an_update() {
    let quorum = Quorum::of(3);
    let argument = quorum.urls().join(" ");
    let mut children: Vec<_> = (0..3).map(|_| Child::start(count_in_a_child, &argument)).collect();
    for child in &children {
        assert_eq!(child.next(), "ready");
    }
    children.iter_mut().for_each(Child::go_on);
    // One server after the other forgets its connections while they count.
    for server in &quorum.servers[..2] {
        thread::sleep(ms(100));
        server.kill_connections();
    }
    children.into_iter().for_each(Child::finish);
    assert_eq!(Handle::connect(&quorum.last().url()).read(), 75);
}

#[test]
#[ignore = "a child of processes_count_without_losing_an_update"]
fn count_in_a_child() {
    let Some(urls) = child::argument() else { return };
    let urls: Vec<_> = urls.split(' ').map(str::to_owned).collect();
    let client = open_redlock(Client::builder().backoff(ms(1), ms(20)), &urls).unwrap();
    let mut number = Handle::connect(urls.last().unwrap());
    child::report("ready");
    child::wait_for_parent();
    for _ in 0..25 {
        let guard = client.lock("counter").unwrap();
        let read = number.read();
        thread::sleep(ms(1));
        number.write(read + 1);
        guard.unlock().unwrap();
    }
}

#[test]
fn a_release_wakes_a_waiting_client() {
    let quorum = Quorum::of(3);
    // Never asks again by itself within the test, so that only a wake-up can end a wait.
    let sleepy = || Client::builder().wait(SOON).backoff(ms(30_000), ms(30_000));
    let told = Recorder::default();
    let (first, second) = (quorum.open(patient()), quorum.open(sleepy().on_event(told.listener())));
    let waits = Mutex::new(Duration::ZERO);
    for round in 0..20 {
        let guard = take(&first, "a");
        thread::scope(|scope| {
            scope.spawn(|| {
                let guard = second.lock("a").unwrap();
                *waits.lock() += guard.remaining();
                guard.unlock().unwrap();
            });
            eventually(SOON, || told.count("contended a") > round);
            eventually(SOON, || quorum.servers.iter().all(|server| server.listeners(&second) == 1));
            thread::sleep(ms(20));
            guard.unlock().unwrap();
        });
    }
}

#[test]
fn a_release_wakes_although_a_server_is_down() {
    let quorum = Quorum::of(3);
    let sleepy = Client::builder().wait(SOON).backoff(ms(30_000), ms(30_000));
    let (first, second) = (quorum.open(patient()), quorum.open(sleepy));
    quorum.servers[0].kill();
    let guard = take(&first, "a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| second.lock("a").map(drop));
        let up = &quorum.servers[1..];
        eventually(SOON, || up.iter().all(|server| server.listeners(&second) == 1));
        thread::sleep(ms(100));
        guard.unlock().unwrap();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn the_holder_of_a_majority_is_seen_and_can_be_forced_out() {
    let quorum = Quorum::of(5);
    let (first, second) = (quorum.open(patient()), quorum.open(patient()));
    let guard = take(&first, "a");
    let inner = take(&first, "a");
    quorum.servers[2].kill();
    quorum.servers[3].command(&["DEL", "a"]);
    let holder = second.mutex("a").holder().unwrap().unwrap();
    assert!(holder.owner.starts_with(first.id()));
    assert_eq!(holder.depth, 2);
    assert!(second.mutex("a").force_unlock().unwrap());
    assert_eq!(second.mutex("a").holder().unwrap(), None);
    assert_lost(inner.verify(), "a");
    assert!(!guard.is_held());
    assert!(!second.mutex("a").force_unlock().unwrap());
    elsewhere(|| take(&second, "a").unlock().unwrap());
}

#[test]
fn a_clock_that_is_behind_does_not_stop_tokens_from_growing() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    let ahead = 4_000_000_000_000_000_u64;
    for server in &quorum.servers {
        server.command(&["SET", "leasehold:fence:{a}", &ahead.to_string()]);
    }
    for round in 1..=5 {
        let guard = take(&client, "a");
        assert_eq!(guard.fence(), ahead + round);
        guard.unlock().unwrap();
    }
}

#[test]
fn threads_end_with_the_client() {
    let quorum = Quorum::of(3);
    quorum.servers[0].stop();
    let client = quorum.open(hasty());
    let guard = take(&client, "a");
    assert!(is_busy(&client, "a"));
    drop((guard, client));
    let up = Instant::now();
    let connections = |server: &Server| {
        let list: String = server.ask(&["CLIENT", "LIST", "TYPE", "normal"]);
        list.lines().count()
    };
    // The one that asks is there always.
    eventually(SOON, || quorum.servers[1..].iter().all(|server| connections(server) == 1));
    assert!(up.elapsed() < SOON);
}
