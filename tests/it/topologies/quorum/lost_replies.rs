//! Requests and replies that are lost or late on the way to some of the servers.

use std::thread;

use leasehold::{Builder, Client};

use crate::support::proxy::Proxy;
use crate::support::quorum::open_redlock;
use crate::support::quorum::{hasty, no_quorum, settle, take_everywhere};
use crate::support::{Quorum, SOON, eventually, ms, opened, patient, take, throughout};

/// Servers behind proxies.
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
        opened(|| open_redlock(builder.clone(), &urls))
    }
}

#[test]
fn a_hold_whose_grant_was_lost_is_released_too() {
    let behind = Behind::of(3);
    let (quorum, client) = (&behind.quorum, behind.open(hasty()));
    for proxy in &behind.proxies {
        settle(quorum, &client);
        proxy.lose_reply();
        let guard = take(&client, "a");
        eventually(SOON, || quorum.count("a") == 3);
        guard.unlock().unwrap();
        eventually(SOON, || quorum.count("a") == 0);
        throughout(ms(300), || quorum.count("a") == 0);
        proxy.heal();
    }
}

/// Loses the release at each server in turn, while other `troubles` affect them all.
fn lose_releases(troubles: impl Fn(&Proxy)) {
    let behind = Behind::of(3);
    let client = behind.open(hasty());
    for lost in &behind.proxies {
        let guard = take_everywhere(&behind.quorum, &client);
        behind.proxies.iter().for_each(&troubles);
        lost.lose_request();
        guard.unlock().unwrap();
        eventually(SOON, || behind.quorum.count("a") == 0);
        behind.proxies.iter().for_each(Proxy::heal);
    }
}

#[test]
fn a_lost_release_is_repeated() {
    lose_releases(|_| {});
}

/// A release lost at one server is repeated in the background, to all servers. The repetition must
/// not arrive before the release itself, which would find the hold gone.
#[test]
fn a_lost_release_is_no_loss_of_the_hold() {
    lose_releases(|proxy| proxy.delay_request(ms(100)));
}

/// The client that adopts the hold did not begin it, so it has never asked a server for it.
#[test]
fn the_lost_release_of_an_adopted_hold_is_repeated() {
    let behind = Behind::of(3);
    let client = behind.open(hasty());
    let guard = behind.quorum.open(patient()).lock_owned("a").unwrap();
    eventually(SOON, || behind.quorum.count("a") == 3);
    let guard = client.adopt(&guard.detach().unwrap()).unwrap();
    behind.proxies[0].refuse();
    guard.unlock().unwrap();
    // Until the first attempts to repeat it have failed.
    thread::sleep(ms(700));
    assert_eq!(behind.quorum.count("a"), 1);
    behind.proxies[0].heal();
    eventually(SOON, || behind.quorum.count("a") == 0);
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
    // The delayed requests arrive now, and their holds are removed again.
    let is_gone = || {
        thread::sleep(ms(10));
        behind.quorum.count("a") == 0
    };
    eventually(SOON, || (0..30).all(|_| is_gone()));
    take(&client, "a").unlock().unwrap();
}

#[test]
fn a_grant_that_arrives_too_late_is_refused() {
    let behind = Behind::of(5);
    let client = behind.open(Client::builder().lease(ms(600)).renew(false));
    let mutex = client.mutex("a").lease(ms(60));
    behind.proxies[..4].iter().for_each(|proxy| proxy.drip(ms(20)));
    // No call returns a hold whose lease is over.
    for _ in 0..5 {
        if let Ok(Some(guard)) = mutex.try_lock() {
            assert!(guard.remaining() < ms(60));
        }
    }
    behind.proxies.iter().for_each(Proxy::heal);
    eventually(SOON, || behind.quorum.count("a") == 0);
}

#[test]
fn a_grant_after_the_release_is_removed() {
    let behind = Behind::of(3);
    let client = behind.open(hasty().pool_size(1));
    let late = &behind.quorum.servers[0];
    for round in 0..5 {
        settle(&behind.quorum, &client);
        let name = format!("lock {round}");
        behind.proxies[0].blackhole();
        let guard = take(&client, &name);
        // Until the client has abandoned the request to that server.
        thread::sleep(ms(700));
        guard.unlock().unwrap();
        behind.proxies[0].heal();
        eventually(SOON, || late.key_pttl(&format!("leasehold:fence:{{lock:{name}}}")) > 0);
        eventually(SOON, || behind.quorum.count(&name) == 0);
        throughout(ms(300), || behind.quorum.count(&name) == 0);
    }
}

#[test]
fn a_late_undo_does_not_remove_the_next_hold() {
    let behind = Behind::of(3);
    let client = behind.open(hasty());
    for _ in 0..3 {
        settle(&behind.quorum, &client);
        behind.proxies[..2].iter().for_each(Proxy::blackhole);
        thread::scope(|scope| {
            scope.spawn(|| {
                let guard = client.try_lock_for("a", SOON).unwrap().unwrap();
                throughout(ms(500), || guard.verify().is_ok());
                guard.unlock().unwrap();
            });
            thread::sleep(ms(700));
            behind.proxies.iter().for_each(Proxy::heal);
        });
    }
}

/// The server is up, but something in between has forgotten the connection, as a firewall may.
#[test]
fn a_connection_that_falls_silent_is_replaced() {
    let behind = Behind::of(3);
    // All names share the connections.
    let client = behind.open(hasty().pool_size(1));
    settle(&behind.quorum, &client);
    behind.proxies[2].blackhole_for("mute");
    assert!(client.mutex("mute").holder().unwrap().is_none());
    settle(&behind.quorum, &client);
}
