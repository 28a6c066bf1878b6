//! Locks on the master that sentinels name, before, during and after a failover.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::slice;
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use leasehold::{Builder, Client, Durability, Error, HoldEnd};

use crate::support::child::{self, Child};
use crate::support::proxy::Proxy;
use crate::support::sentinel::MASTER;
use crate::support::server::Server;
use crate::support::{
    LEASE, RIGHTS, SOON, Watched, assert_lost, eventually, everything, hasty, is_busy, ms, on_both,
    opened, patient, take, throughout, timed,
};

/// Longer than a machine pauses: no server counts as dead unless the test kills it.
const CALM: Duration = Duration::from_secs(30);

/// The silence after which a master counts as dead.
const NERVOUS: Duration = Duration::from_secs(1);

fn calm(binary: &Path) -> Watched {
    Watched::start(binary, CALM)
}

fn nervous(binary: &Path) -> Watched {
    Watched::start(binary, NERVOUS)
}

on_both! {
    calm:
        a_lock_exists_on_the_master_and_its_replicas,
        a_call_after_a_failover_goes_to_the_new_master,
        a_master_is_reached_by_a_map,
        threads_at_work_move_to_the_new_master,
        busy_threads_leave_a_master_that_does_not_know_of_its_demotion,
        a_replicated_hold_goes_on_after_a_failover,
        a_hold_that_the_new_master_does_not_know_is_lost,
        clients_exclude_each_other_across_a_failover,
        a_hung_and_a_dead_sentinel_are_skipped,
        without_sentinels_the_open_connections_go_on,
        a_sentinel_that_names_a_replica_is_not_believed,
        a_sentinel_that_names_a_dead_master_is_not_believed,
        the_first_attempt_skips_a_sentinel_that_is_wrong_or_down,
        an_unknown_master_is_a_permanent_error,
        no_extra_thread_is_needed,
        a_login_for_the_master_only_is_pointed_to_its_setting,
        sentinels_and_master_may_have_different_logins;
    nervous:
        a_stopped_master_is_abandoned_for_good,
        a_waiter_survives_the_death_of_the_master,
        a_lock_that_no_replica_has_can_be_taken_twice,
        a_lock_that_replicas_must_have_is_not_taken_twice;
}

fn open(watched: &Watched, builder: Builder) -> Client {
    opened(|| try_open(&watched.urls(), builder.clone()))
}

fn try_open(urls: &[String], builder: Builder) -> Result<Client, Error> {
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    builder.open_sentinel(&urls, MASTER)
}

fn a_lock_exists_on_the_master_and_its_replicas(watched: &Watched) {
    let client = open(watched, patient());
    let guard = client.lock("a").unwrap();
    let inner = client.lock("a").unwrap();
    assert!(is_busy(&client, "a"));
    assert!(watched.servers[0].exists("a"));
    for replica in &watched.servers[1..] {
        eventually(SOON, || replica.exists("a"));
    }
    inner.unlock().unwrap();
    guard.unlock().unwrap();
    assert!(!watched.servers[0].exists("a"));
    assert!(!is_busy(&client, "a"));
}

fn a_call_after_a_failover_goes_to_the_new_master(watched: &Watched) {
    let client = open(watched, patient());
    take(&client, "a").unlock().unwrap();
    let new = watched.fail_over();
    // An answer from before the failover is used for half a second.
    thread::sleep(ms(500));
    let guard = client.lock("a").unwrap();
    assert!(new.exists("a"));
    guard.unlock().unwrap();
}

fn a_master_is_reached_by_a_map(watched: &Watched) {
    let proxies: HashMap<u16, Proxy> =
        watched.servers.iter().map(|server| (server.port(), Proxy::before(server))).collect();
    let ports: HashMap<u16, u16> =
        proxies.iter().map(|(port, proxy)| (*port, proxy.port())).collect();
    let map = move |host: &str, port| {
        assert_eq!(host, "127.0.0.1");
        ("localhost".into(), ports[&port])
    };
    let client = open(watched, patient().address_map(map));
    take(&client, "a").unlock().unwrap();
    let new = watched.fail_over();
    // An answer from before the failover is used for half a second.
    thread::sleep(ms(500));
    take(&client, "a").unlock().unwrap();
    assert!(new.calls("evalsha") > 0);
    proxies[&new.port()].refuse();
    let error = client.try_lock("a").unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "there is no other way: {error:?}");
}

fn threads_at_work_move_to_the_new_master(watched: &Watched) {
    // A lock whose release went to the old master is held on the new one until its lease ends.
    let builder = || patient().lease(LEASE).wait(CALM);
    let clients = [open(watched, builder()), open(watched, builder())];
    thread::scope(|scope| {
        // Disconnected even if a check fails.
        let (end, ended) = bounded::<()>(0);
        let workers: Vec<_> = (0..8)
            .map(|worker| {
                let (client, ended) = (&clients[worker % 2], ended.clone());
                scope.spawn(move || {
                    let mut last = 0;
                    while ended.try_recv().is_err_and(|error| error.is_empty()) {
                        let guard = client.lock(&format!("lock {}", worker / 4)).unwrap();
                        assert!(guard.fence() > last, "fences grow over a failover");
                        last = guard.fence();
                    }
                })
            })
            .collect();
        thread::sleep(ms(300));
        let new = watched.fail_over();
        let scripts = new.evals();
        eventually(SOON, || new.evals() > scripts + 100);
        drop(end);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

fn busy_threads_leave_a_master_that_does_not_know_of_its_demotion(watched: &Watched) {
    for sentinel in &watched.sentinels {
        // No sentinel notifies the old master during the test, except those before version 7.
        sentinel.try_command(&["SENTINEL", "DEBUG", "publish-period", "60000"]);
    }
    let old = &watched.servers[0];
    let client = open(watched, patient().lease(LEASE).wait(CALM).pool_size(1));
    thread::scope(|scope| {
        // Disconnected even if a check fails.
        let (end, ended) = bounded::<()>(0);
        for worker in 0..8 {
            let (client, ended) = (&client, ended.clone());
            scope.spawn(move || {
                while ended.try_recv().is_err_and(|error| error.is_empty()) {
                    // The last locks on the old master are lost on the new one.
                    drop(client.lock(&format!("lock {worker}")).unwrap());
                }
            });
        }
        let new = watched.fail_over();
        let scripts = new.evals();
        eventually(SOON, || new.evals() > scripts + 100);
        let scripts = old.evals();
        throughout(ms(1000), || old.evals() == scripts);
        drop(end);
    });
}

fn a_replicated_hold_goes_on_after_a_failover(watched: &Watched) {
    let lease = ms(6000);
    let client = open(watched, patient().lease(lease));
    let guard = take(&client, "a");
    let fence = guard.fence();
    watched.servers[1..].iter().for_each(|replica| eventually(SOON, || replica.exists("a")));
    let new = watched.fail_over();
    throughout(lease, || guard.is_held());
    guard.verify().unwrap();
    assert!(new.pttl("a") > ms(1000), "it is renewed there");
    guard.unlock().unwrap();
    assert!(take(&client, "a").fence() > fence);
}

fn a_hold_that_the_new_master_does_not_know_is_lost(watched: &Watched) {
    let client = open(watched, patient().lease(ms(3000)));
    let guard = take(&client, "a");
    let lost = guard.lost();
    let new = watched.fail_over();
    // This looks as if the lock had never been replicated.
    new.command(&["DEL", "lock:a"]);
    assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Lost));
    assert_lost(guard.unlock(), "a");
    take(&client, "a").unlock().unwrap();
}

fn clients_exclude_each_other_across_a_failover(watched: &Watched) {
    let (one, other) = (open(watched, patient()), open(watched, patient()));
    let guard = take(&one, "a");
    watched.servers[1..].iter().for_each(|replica| eventually(SOON, || replica.exists("a")));
    watched.fail_over();
    thread::sleep(ms(500));
    assert_held_by_another(&other);
    let fence = guard.fence();
    guard.unlock().unwrap();
    let guard = other.lock("a").unwrap();
    assert!(guard.fence() > fence);
    assert_held_by_another(&one);
}

/// Tries until there is a reply, because the machine may pause for longer than a call waits.
#[track_caller]
fn assert_held_by_another(client: &Client) {
    eventually(SOON, || match client.try_lock_for("a", ms(500)) {
        Ok(guard) => {
            assert!(guard.is_none(), "it is held by another client");
            true
        }
        Err(error) => {
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            false
        }
    });
}

fn a_hung_and_a_dead_sentinel_are_skipped(watched: &Watched) {
    let before = open(watched, patient());
    watched.sentinels[0].stop();
    watched.sentinels[1].kill();
    let (client, took) = timed(|| open(watched, Client::builder()));
    assert!(took < SOON / 2, "{took:?}");
    take(&client, "a").unlock().unwrap();
    // The cached answers are old by now, and the sentinel that gave them is silent.
    for _ in 0..5 {
        thread::sleep(ms(500));
        take(&before, "b").unlock().unwrap();
    }
}

fn without_sentinels_the_open_connections_go_on(watched: &Watched) {
    // A connection that is given up because the machine pauses cannot be opened again.
    let client = open(watched, patient().lease(2 * LEASE).io_timeout(ms(2000)));
    let guard = take(&client, "a");
    watched.sentinels[0].stop();
    watched.sentinels[1].kill();
    watched.sentinels[2].stop();
    // The renewer needs a connection of its own, which is opened only now.
    throughout(2 * LEASE, || guard.is_held());
    for _ in 0..4 {
        thread::sleep(ms(500));
        guard.verify().unwrap();
        take(&client, "b").unlock().unwrap();
    }
    let error = try_open(&watched.urls(), Client::builder()).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    // A broken connection is not reopened while no sentinel names the master.
    watched.servers[0].kill_connections();
    let error = client.try_lock("b").unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    watched.sentinels[2].cont();
    client.lock("b").unwrap().unlock().unwrap();
    guard.unlock().unwrap();
}

fn a_sentinel_that_names_a_replica_is_not_believed(watched: &Watched) {
    let liar = Server::sentinel(watched.binary(), &[]);
    let replica = watched.servers[1].port().to_string();
    liar.command(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &replica, "1"]);
    let mut urls = watched.urls();
    urls.insert(0, liar.url());
    let client = try_open(&urls, Client::builder()).unwrap();
    take(&client, "a").unlock().unwrap();

    let error = try_open(&urls[..1], Client::builder().retry_window(ms(300))).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("not a master"), "{error}");
}

fn a_sentinel_that_names_a_dead_master_is_not_believed(watched: &Watched) {
    let [dead, hung] = [Server::start(watched.binary(), &[]), Server::start(watched.binary(), &[])];
    dead.kill();
    hung.stop();
    let liars = [&dead, &hung].map(|master| {
        let liar = Server::sentinel(watched.binary(), &[]);
        let port = master.port().to_string();
        liar.command(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port, "1"]);
        liar
    });
    let liars = liars.each_ref().map(Server::url);
    for liars in [&liars[..1], &liars[1..], &liars] {
        let client = try_open(&[liars, &watched.urls()].concat(), hasty()).unwrap();
        take(&client, "a").unlock().unwrap();
    }
}

/// All programs may have the same list of sentinels, with such a one in front.
fn the_first_attempt_skips_a_sentinel_that_is_wrong_or_down(watched: &Watched) {
    let [dead, hung] = [Server::start(watched.binary(), &[]), Server::start(watched.binary(), &[])];
    dead.kill();
    hung.stop();
    let naming = |master: &Server| {
        let liar = Server::sentinel(watched.binary(), &[]);
        let port = master.port().to_string();
        liar.command(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port, "1"]);
        liar
    };
    let liars = [naming(&watched.servers[1]), naming(&dead), naming(&hung)];
    let ignorant = Server::sentinel(watched.binary(), &[]);
    let firsts = liars.iter().chain([&ignorant, &dead, &hung]).map(Server::url);
    for first in firsts {
        let others = watched.urls();
        // Neither of two is a majority.
        for others in [&others[..], &others[..1]] {
            let urls = [slice::from_ref(&first), others].concat();
            let client = try_open(&urls, Client::builder().lazy(true)).unwrap();
            let guard = client.try_lock_for("a", ms(0)).unwrap().expect("it is free");
            guard.unlock().unwrap();
        }
    }
}

fn an_unknown_master_is_a_permanent_error(watched: &Watched) {
    let urls = watched.urls();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let (result, took) = timed(|| Client::builder().open_sentinel(&urls, "unknown"));
    match result {
        Err(Error::Redis { code, server, source, .. }) => {
            assert_eq!(code, "NOMASTER");
            assert!(server.contains("unknown"), "{server}");
            assert!(source.to_string().contains("no such master"), "{source}");
        }
        other => panic!("{other:?}"),
    }
    assert!(took < SOON / 2, "{took:?}");
}

fn no_extra_thread_is_needed(watched: &Watched) {
    if cfg!(target_os = "linux") {
        Child::start(count_threads_in_a_child, &watched.urls().join(" ")).finish();
    }
}

/// Runs in a process of its own, where no other test starts threads.
#[test]
#[ignore = "a child of no_extra_thread_is_needed"]
fn count_threads_in_a_child() {
    let Some(urls) = child::argument() else { return };
    let urls: Vec<_> = urls.split(' ').map(str::to_owned).collect();
    let client = try_open(&urls, patient().lease(LEASE)).unwrap();
    let guard = take(&client, "a");
    let lasting = ["leasehold-pool", "leasehold-renew"];
    let only_those = || lasting_threads().iter().eq(&lasting);
    // A thread takes its name when it first runs.
    eventually(SOON, only_those);
    throughout(LEASE, || guard.is_held() && only_those());
    guard.unlock().unwrap();
    drop(client);
    eventually(SOON, || lasting_threads().is_empty());
}

/// Returns the names of the library's threads, except for the short-lived one that occasionally
/// opens a connection for the renewer. Until it has a name of its own, it has the renewer's.
fn lasting_threads() -> BTreeSet<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(|task| Some(name(task.ok()?)?.trim_end().to_owned()));
    let ours = names.filter(|name| name.starts_with("leasehold-") && name != "leasehold-conne");
    ours.collect()
}

fn sentinels_and_master_may_have_different_logins(watched: &Watched) {
    let rights = ["+sentinel|get-master-addr-by-name"];
    for sentinel in &watched.sentinels {
        sentinel.command(&[&["ACL", "SETUSER", "asker", "on", ">first"], &rights[..]].concat());
    }
    let rights: Vec<_> = RIGHTS.split(' ').chain(["+role", "+select", "+wait"]).collect();
    for server in &watched.servers {
        server.command(&[&["ACL", "SETUSER", "locker", "on", ">second"], &rights[..]].concat());
    }
    let at = |login: &str| -> Vec<String> {
        let with_login = |url: &String| format!("{}5", url.replace("//", &format!("//{login}@")));
        watched.urls().iter().map(with_login).collect()
    };
    let builder = || {
        let durability = Durability::Replicas { acks: 2, timeout: SOON / 2 };
        let builder = Client::builder().durability(durability);
        builder.lease(CALM).master_login("locker", "second")
    };
    let client = try_open(&at("asker:first"), builder()).unwrap();
    let guard = take(&client, "a");
    let clients: String = watched.master().ask(&["CLIENT", "LIST"]);
    let ours = clients.lines().find(|line| line.contains("user=locker")).expect("it is logged in");
    assert!(ours.contains("db=5"), "{ours}");
    guard.unlock().unwrap();
    for (urls, builder) in [
        (at("asker:first"), Client::builder()),
        (at("asker:first"), builder().master_login("locker", "third")),
        (at("asker:third"), builder()),
    ] {
        match try_open(&urls, builder) {
            Err(Error::Redis { code, .. }) => assert_eq!(code, "WRONGPASS"),
            other => panic!("{other:?}"),
        }
    }
}

fn a_stopped_master_is_abandoned_for_good(watched: &Watched) {
    let client = open(watched, patient().wait(CALM));
    let old = &watched.servers[0];
    // Two connections, one of which is idle for the rest of the test.
    let guard = take(&client, "a");
    take(&client, "b").unlock().unwrap();
    watched.servers[1..].iter().for_each(|replica| eventually(SOON, || replica.exists("a")));
    old.stop();
    let new = watched.wait_for_another(old.port());
    old.cont();
    // The old master believes that it is the master until a sentinel tells it otherwise.
    let other = client.lock("c").unwrap();
    assert!(new.exists("c"));
    assert!(!old.exists("c") || old.ask::<String>(&["INFO", "replication"]).contains("role:slave"));
    guard.verify().unwrap();
    other.unlock().unwrap();
    guard.unlock().unwrap();
}

fn a_waiter_survives_the_death_of_the_master(watched: &Watched) {
    let (one, other) = (open(watched, patient()), open(watched, patient().wait(CALM * 2)));
    let guard = take(&one, "a");
    watched.servers[1..].iter().for_each(|replica| eventually(SOON, || replica.exists("a")));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.lock("a").map(|guard| guard.fence()));
        thread::sleep(ms(200));
        watched.servers[0].kill();
        let new = watched.wait_for_another(watched.servers[0].port());
        assert!(new.exists("a"));
        let fence = guard.fence();
        guard.unlock().unwrap();
        assert!(waiter.join().unwrap().unwrap() > fence);
    });
}

/// Kills the master after `call`, which the replicas do not receive, and waits for the next master.
fn fail_over_without<T>(watched: &Watched, call: impl FnOnce() -> T) -> T {
    let (old, replicas) = (&watched.servers[0], &watched.servers[1..]);
    replicas.iter().for_each(Server::stop);
    old.command(&["CLIENT", "KILL", "TYPE", "replica"]);
    let result = call();
    old.kill();
    replicas.iter().for_each(Server::cont);
    watched.wait_for_another(old.port());
    result
}

fn a_lock_that_no_replica_has_can_be_taken_twice(watched: &Watched) {
    let (one, other) = (open(watched, patient()), open(watched, patient()));
    let guard = fail_over_without(watched, || take(&one, "a"));
    let second = other.lock("a").unwrap();
    assert!(guard.is_held() && second.is_held(), "until the next renewal");
    assert!(second.fence() > guard.fence(), "which is why there are fences");
    assert_lost(guard.verify(), "a");
}

fn a_lock_that_replicas_must_have_is_not_taken_twice(watched: &Watched) {
    let durability = Durability::Replicas { acks: 1, timeout: ms(3000) };
    let client = open(watched, patient().durability(durability));
    take(&client, "a").unlock().unwrap();
    match fail_over_without(watched, || client.try_lock("a").map(drop)) {
        Err(Error::NotReplicated { acked: 0, required: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
    open(watched, patient()).lock("a").unwrap().unlock().unwrap();
}

fn a_login_for_the_master_only_is_pointed_to_its_setting(watched: &Watched) {
    let with = |login: &str, url: &String| url.replace("//", &format!("//{login}@"));
    for login in [":sesame", "ali:sesame"] {
        let urls: Vec<_> = watched.urls().iter().map(|url| with(login, url)).collect();
        let error = try_open(&urls, Client::builder()).unwrap_err();
        assert!(matches!(error, Error::Redis { .. }), "{error:?}");
        assert!(everything(&error).contains("`master_login`"), "{error:?}");
    }
}

#[test]
fn invalid_sentinel_lists_are_refused() {
    let refused = |sentinels: &[&str], master: &str, builder: Builder, about: &str| match builder
        .open_sentinel(sentinels, master)
    {
        Err(Error::InvalidInput(text)) => assert!(text.contains(about), "{text}"),
        other => panic!("{other:?}"),
    };
    let builder = Client::builder;
    refused(&[], "m", builder(), "sentinels");
    refused(&["redis://h"], "", builder(), "master");
    refused(&["redis://h", "nonsense"], "m", builder(), "url");
    refused(&["redis://h", "redis://h:26379/"], "m", builder(), "h:26379");
    refused(&["redis://h/1", "redis://i/2"], "m", builder(), "database");
    refused(&["redis://a@h", "redis://b@i"], "m", builder(), "user");
    refused(&["redis://a:b@h/1", "redis://c:d@i/2"], "m", builder().master_login("", "x"), "sent");
    refused(&["redis://h"], "m", builder().pool_size(0), "pool");
}

#[test]
fn debug_output_of_a_builder_has_no_login() {
    let builder = Client::builder().master_login("alibaba", "sesame");
    let text = format!("{builder:?}");
    assert!(!text.contains("alibaba") && !text.contains("sesame"), "{text}");
}
