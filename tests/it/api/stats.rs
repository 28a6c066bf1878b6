//! The numbers of a client, and the check that its server answers.

use std::thread;
use std::time::Duration;

use leasehold::{Client, Error};

use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, SHORT, SOON, Server, Store, assert_lost, assert_rejected, eventually, hasty, lock_key,
    ms, patient, sleepy, stores, take, timed, unlock, while_held,
};

stores! {
    every store:
        holds_are_counted_until_they_end,
        threads_that_wait_are_counted,
        the_names_that_most_threads_wait_for_are_listed,
        counters_agree_with_the_events,
        a_handoff_is_counted,
        renewals_are_counted,
        a_ping_is_answered;
    every server:
        a_ping_leaves_nothing,
        an_outage_is_counted,
        a_wake_up_is_counted,
        a_missed_wake_up_is_counted;
    one server:
        connections_are_counted,
        a_late_renewal_is_counted,
        the_replacement_of_a_broken_connection_is_counted,
        a_wait_for_a_connection_is_counted,
        a_ping_of_a_hung_server_fails,
        a_ping_fails_where_no_lock_can_be_acquired,
        a_lazy_client_opens_while_its_server_is_away;
}

fn holds_are_counted_until_they_end(store: &Store) {
    let client = store.open(patient());
    assert_eq!(client.stats().held, 0);
    let outer = take(&client, "a");
    let inner = take(&client, "a");
    assert_eq!(client.stats().held, 1, "a nested lock is one hold");
    let owned = client.lock_owned("b").unwrap();
    assert_eq!(client.stats().held, 2);
    inner.unlock().unwrap();
    assert_eq!(client.stats().held, 2);
    drop(outer);
    owned.unlock().unwrap();
    assert_eq!(client.stats().held, 0);
    assert!(client.mutex("c").force_unlock().is_ok_and(|ended| !ended));
    let lost = take(&client, "c");
    assert!(client.mutex("c").force_unlock().unwrap());
    assert!(lost.unlock().is_err());
    assert_eq!(client.stats().held, 0);
}

fn threads_that_wait_are_counted(store: &Store) {
    let client = store.open(patient());
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| client.lock("a").unwrap().unlock().unwrap());
        }
        eventually(SOON, || client.stats().waiting == 3);
        assert_eq!(client.stats().held, 1);
        guard.unlock().unwrap();
    });
    let stats = client.stats();
    assert_eq!((stats.waiting, stats.held), (0, 0));
}

fn the_names_that_most_threads_wait_for_are_listed(store: &Store) {
    let client = store.open(patient().wait(6 * SOON));
    let names: Vec<_> = (0..11).map(|number| format!("name {number:02}")).collect();
    let guard = client.lock_all(names.iter().chain([&"most".to_owned()])).unwrap();
    assert_eq!(client.waiting_names(), []);
    thread::scope(|scope| {
        let wanted = names.iter().map(String::as_str).chain(["most"; 3]);
        for name in wanted {
            let client = &client;
            scope.spawn(move || client.lock(name).unwrap().unlock().unwrap());
        }
        eventually(4 * SOON, || client.stats().waiting == 14);
        let mut most = vec![("most".to_owned(), 3)];
        most.extend(names.iter().take(9).map(|name| (name.clone(), 1)));
        assert_eq!(client.waiting_names(), most);
        guard.unlock().unwrap();
    });
    assert_eq!(client.waiting_names(), []);
}

/// Causes events of every kind that needs no outage.
fn counters_agree_with_the_events(store: &Store) {
    let recorder = Recorder::default();
    let builder = patient().reentrant(false).on_event(recorder.listener());
    let client = store.open_for(SHORT, builder);
    assert_eq!(client.stats().acquired, 0);
    take(&client, "a").unlock().unwrap();
    drop(client.lock_owned("a").unwrap());
    client.lock_all(["a", "b"]).unwrap().unlock().unwrap();
    let nested = client.mutex("a").reentrant(true);
    let outer = nested.lock().unwrap();
    drop(nested.lock().unwrap());
    outer.unlock().unwrap();
    while_held(&client, "a", |_end| {
        assert!(client.try_lock("a").unwrap().is_none());
        assert!(client.try_lock_for("a", ms(50)).unwrap().is_none());
        client.mutex("a").wait(ms(50)).lock().unwrap_err();
    });
    let lost = client.mutex("c").lease(SHORT).renew(false).lock().unwrap();
    recorder.wait_for("lost c");
    drop(lost);
    eventually(SOON, || recorder.count("released a") == 5);

    let stats = client.stats();
    let told = |kind: &str| {
        let events = recorder.events();
        events.iter().filter(|event| event.starts_with(kind)).count() as u64
    };
    assert_eq!((stats.acquired, stats.acquired), (told("acquired"), 7), "{stats:?}");
    assert_eq!((stats.released, stats.released), (told("released"), 6), "{stats:?}");
    assert_eq!((stats.contended, stats.contended), (told("contended"), 3), "{stats:?}");
    assert_eq!((stats.timed_out, stats.timed_out), (told("timed out"), 2), "{stats:?}");
    assert_eq!((stats.lost, stats.lost), (told("lost"), 1), "{stats:?}");
    assert_eq!((stats.busy, stats.failed, stats.failed_releases), (1, 0, 0), "{stats:?}");
    assert_eq!((stats.held, stats.waiting), (0, 0), "{stats:?}");
}

fn a_handoff_is_counted(store: &Store) {
    let client = store.open(patient().tenure(ms(5000)));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for waiting in 1..=3 {
            scope.spawn(|| drop(client.lock("a").unwrap()));
            eventually(SOON, || client.stats().waiting == waiting);
        }
        guard.unlock().unwrap();
    });
    let stats = client.stats();
    // The first of the three acquires the lock for all.
    assert_eq!((stats.handoffs, stats.acquired, stats.contended), (2, 4, 3));
}

fn renewals_are_counted(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    let _guards = [take(&client, "a"), take(&client, "b")];
    eventually(SOON, || client.stats().renewals >= 3);
    assert_eq!(client.stats().lost, 0);
}

fn an_outage_is_counted(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(hasty().lease(LEASE).on_event(recorder.listener()));
    let guard = take(&client, "a");
    server.stop();
    client.try_lock("b").unwrap_err();
    recorder.wait_for("lost a");
    server.cont();
    assert_lost(guard.unlock(), "a");
    let stats = client.stats();
    assert_eq!(stats.failed, recorder.count("failed b") as u64);
    assert_eq!(stats.failed_renewals, recorder.count("renewal failing a") as u64);
    assert_eq!((stats.failed, stats.failed_renewals, stats.lost), (1, 1, 1), "{stats:?}");
}

fn a_wake_up_is_counted(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(sleepy()));
    for round in 1..=3 {
        while_held(&holder, "a", |end| {
            thread::scope(|scope| {
                let waits = scope.spawn(|| waiter.lock("a").map(unlock));
                eventually(SOON, || server.listeners(&waiter) == 1);
                eventually(SOON, || server.queue("a") == [waiter.id()]);
                drop(end);
                waits.join().unwrap().unwrap();
            });
        });
        let stats = waiter.stats();
        assert!(stats.wakeups >= round && stats.missed_wakeups == 0, "{stats:?}");
    }
}

fn a_missed_wake_up_is_counted(server: &Server) {
    // Without a message, a waiting client notices a release within ten seconds.
    let waiter = server.open(patient().wait(3 * SOON));
    // Within that time, no renewal of the holder finds the lock gone and notifies the waiter.
    let holder = server.open_for(SHORT, patient().lease(12 * SOON));
    let guard = take(&holder, "a");
    let before = server.evals();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(unlock));
        eventually(SOON, || server.listeners(&waiter) == 1);
        // It tries again once it listens, and perhaps once more when it hears from all channels.
        eventually(SOON, || server.evals() >= before + 2);
        server.settled_evals();
        // This is what a client without messages would do.
        server.command(&["DEL", &lock_key("a")]);
        waits.join().unwrap().unwrap();
    });
    assert_lost(guard.unlock(), "a");
    assert_eq!(waiter.stats().missed_wakeups, 1);

    // An expired lease does not count as a release. The owner is gone; otherwise it would release
    // the lost lock.
    server.command(&["HSET", &lock_key("b"), "gone:1", "1"]);
    server.command(&["PEXPIRE", &lock_key("b"), "300"]);
    unlock(waiter.lock("b").unwrap());
    assert_eq!(waiter.stats().missed_wakeups, 1);
}

fn a_late_renewal_is_counted(server: &Server) {
    const LEASE: Duration = ms(6000);
    let client = server.open(patient().lease(LEASE).io_timeout(ms(500)));
    let guard = take(&client, "a");
    eventually(SOON, || client.stats().renewals == 1);
    assert_eq!(client.stats().late_renewals, 0);
    server.stop();
    eventually(SOON, || guard.remaining() < LEASE / 3);
    server.cont();
    eventually(SOON, || client.stats().renewals == 2);
    let stats = client.stats();
    assert_eq!((stats.late_renewals, stats.failed_renewals, stats.lost), (1, 1, 0), "{stats:?}");
}

fn the_replacement_of_a_broken_connection_is_counted(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    eventually(SOON, || client.stats().renewals > 0);
    assert_eq!(client.stats().reconnects, 0);
    drop(guard);
    // The connections of the pool are replaced first, then that of the renewer.
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let _guard = take(&client, "b");
    eventually(SOON, || client.stats().reconnects == 2);
}

fn a_wait_for_a_connection_is_counted(server: &Server) {
    let client = server.open(patient().pool_size(1));
    take(&client, "a").unlock().unwrap();
    assert_eq!(client.stats().pool_waits, 0);
    server.stop();
    thread::scope(|scope| {
        for name in ["a", "b"] {
            let client = &client;
            scope.spawn(move || client.lock(name).map(unlock).unwrap());
        }
        eventually(SOON, || client.stats().pool_waits > 0);
        server.cont();
    });
}

fn a_ping_leaves_nothing(server: &Server) {
    let client = server.open(patient());
    client.ping().unwrap();
    client.ping().unwrap();
    assert_eq!(server.keys(), Vec::<String>::new());
}

fn a_ping_fails_where_no_lock_can_be_acquired(server: &Server) {
    let rights = ["~lock:*", "~leasehold:*", "+@all"];
    let open = |user: &str| {
        let url = format!("redis://{user}:x@127.0.0.1:{}/", server.port());
        hasty().retry_window(ms(300)).open(&url).unwrap()
    };
    for (user, without) in
        [("ali", "-evalsha"), ("ben", "resetkeys"), ("cleo", "-hset"), ("dora", "-pexpire")]
    {
        let user_rights = [&["ACL", "SETUSER", user, "on", ">x"], &rights[..], &[without]].concat();
        server.command(&user_rights);
        match open(user).ping() {
            Err(Error::Redis { code, .. }) => assert_eq!(code, "NOPERM", "{without}"),
            other => panic!("{without}: {other:?}"),
        }
        assert_eq!(server.hashes(), Vec::<String>::new(), "{without}");
    }
    let client = server.open(hasty().retry_window(ms(300)));
    client.ping().unwrap();
    server.set_config("maxmemory", "1");
    assert_rejected(client.ping(), "OOM");
    server.set_config("maxmemory", "0");
    server.set_config("min-replicas-to-write", "3");
    let result = client.ping();
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    server.set_config("min-replicas-to-write", "0");
    client.ping().unwrap();
}

fn a_ping_is_answered(store: &Store) {
    let client = store.open(patient());
    let (answered, took) = timed(|| client.ping().unwrap());
    assert!(answered <= took && took < SOON);
    client.close();
    assert!(matches!(client.ping(), Err(Error::Closed)));
}

fn connections_are_counted(server: &Server) {
    let client = server.open(patient().pool_size(3));
    take(&client, "a").unlock().unwrap();
    eventually(SOON, || client.stats().idle_connections == client.stats().connections);
    let stats = client.stats();
    assert!((1..=3).contains(&stats.connections), "{stats:?}");
}

fn a_ping_of_a_hung_server_fails(server: &Server) {
    let client = server.open(hasty());
    server.stop();
    let (result, took) = timed(|| client.ping());
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < SOON, "{took:?}");
    server.cont();
    eventually(SOON, || client.ping().is_ok());
}

fn a_lazy_client_opens_while_its_server_is_away(server: &Server) {
    let url = server.url();
    server.kill();
    assert!(hasty().retry_window(ms(10)).open(&url).is_err());
    let client = hasty().retry_window(ms(10)).lazy(true).open(&url).unwrap();
    assert!(matches!(client.try_lock("a"), Err(Error::Unavailable { .. })));
    server.restart();
    let guard = client.lock("a").unwrap();
    assert!(guard.is_held());
    assert!(Client::builder().lazy(true).open("no URL").is_err());
    let (sentinels, seeds) = ([url.as_str()], [url.as_str()]);
    let lazy = || hasty().retry_window(ms(10)).lazy(true);
    assert!(lazy().open_sentinel(sentinels, "main").unwrap().try_lock("a").is_err());
    assert!(lazy().open_cluster(seeds).unwrap().try_lock("a").is_err());
    assert!(lazy().open_redlock(seeds).is_ok());
}
