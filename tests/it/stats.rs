//! What a client says of itself: its numbers, and whether its server answers.

use std::thread;

use leasehold::{Client, Error};

use crate::support::{SOON, Server, Store, eventually, hasty, ms, patient, stores, take, timed};

stores! {
    every store:
        holds_are_counted_until_they_end,
        threads_that_wait_are_counted,
        a_ping_is_answered;
    one server:
        connections_are_counted,
        a_ping_of_a_hung_server_fails,
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
