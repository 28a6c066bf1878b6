//! Servers that restart, with their data or without it.

use std::thread;

use leasehold::{Client, HoldEnd};

use crate::support::proxy::Proxy;
use crate::support::{
    LEASE, SOON, Server, assert_lost, eventually, is_busy, ms, patient, sleepy, stores, take,
    throughout,
};

stores! {
    every server:
        a_restart_with_the_data_keeps_the_hold,
        a_restart_with_older_data_ends_the_hold_and_repeats_no_fence,
        a_restart_while_idle_is_not_noticed;
    one server:
        waiting_clients_keep_their_places_over_a_restart;
}

stores! {
    over tls:
        a_restart_while_idle_is_not_noticed;
}

fn a_restart_with_the_data_keeps_the_hold(server: &Server) {
    let client = server.open(patient().lease(ms(3000)));
    let guard = take(&client, "a");
    server.command(&["SAVE"]);
    server.restart();
    throughout(ms(3500), || guard.is_held());
    guard.verify().unwrap();
    assert!(is_busy(&client, "a"));
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_restart_with_older_data_ends_the_hold_and_repeats_no_fence(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    take(&client, "a").unlock().unwrap();
    // What is written after this is lost, including the last step of the counter.
    server.command(&["SAVE"]);
    let guard = take(&client, "a");
    server.restart();
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    let fence = guard.fence();
    assert_lost(guard.unlock(), "a");
    assert!(take(&client, "a").fence() > fence);
}

fn a_restart_while_idle_is_not_noticed(server: &Server) {
    let client = server.open(patient());
    take(&client, "a").unlock().unwrap();
    server.restart();
    take(&client, "a").unlock().unwrap();
}

/// The lock is released before any of them listens again.
fn waiting_clients_keep_their_places_over_a_restart(server: &Server) {
    let (holder, proxy) = (server.open(patient()), Proxy::before(server));
    let clients = [(); 5].map(|()| sleepy().open(&proxy.url()).unwrap());
    let ids = clients.each_ref().map(Client::id);
    let guard = take(&holder, "a");
    let served = parking_lot::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (number, client) in clients.iter().enumerate() {
            let served = &served;
            scope.spawn(move || {
                let guard = client.lock("a").unwrap();
                served.lock().push(client.id());
                guard.unlock().unwrap();
            });
            eventually(SOON, || server.queue("a") == ids[..=number]);
            eventually(SOON, || server.listeners(client) == 1);
        }
        server.settled_evals();
        server.command(&["SAVE"]);
        proxy.delay_subscriptions(ms(700));
        server.restart();
        guard.unlock().unwrap();
        assert_eq!(server.queue("a"), ids);
    });
    assert_eq!(*served.lock(), ids);
    assert!(server.queue("a").is_empty());
}
