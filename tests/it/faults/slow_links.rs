//! Links with high latency or low bandwidth, on which a request is written in several parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Builder, Client, Event, MultiGuard};

use crate::support::lag::NarrowLink;
use crate::support::quorum::open_redlock;
use crate::support::{
    Quorum, SOON, Server, eventually, ms, opened, patient, server, stores, throughout,
};

stores! {
    one server:
        leases_that_are_due_together_survive_a_long_link,
        renewals_over_a_link_that_starts_slowly_do_not_begin_to_fail,
        a_server_that_is_slow_to_accept_renewals_keeps_its_connection;
}

const ROUND_TRIP: Duration = ms(150);

/// How many bytes fit into a fresh connection before the first acknowledgement.
const FRESH: usize = 87_000;

const LEASE: Duration = ms(9000);

/// Renewals of this many leases exceed what the system buffers for a connection.
const LEASES: usize = 2000;

/// Returns a builder of clients that count failures of renewals.
fn watched() -> (Builder, Arc<AtomicU32>) {
    let failures = Arc::new(AtomicU32::new(0));
    let counted = failures.clone();
    let builder = patient().lease(LEASE).io_timeout(LEASE / 3).pool_size(1);
    let builder = builder.on_event(move |event| {
        if matches!(event, Event::RenewalFailing { .. } | Event::Lost { .. }) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    (builder, failures)
}

fn wide_link(server: &server::Server) -> NarrowLink {
    NarrowLink::before(server, Duration::ZERO, usize::MAX..=usize::MAX)
}

fn hold_many(client: &Client) -> MultiGuard {
    client.lock_all((0..LEASES).map(|number| format!("lock {number}"))).unwrap()
}

fn leases_that_are_due_together_survive_a_long_link(server: &Server) {
    let link = NarrowLink::before(server, ROUND_TRIP, FRESH..=usize::MAX);
    let (builder, failures) = watched();
    let client = builder.open(&link.url()).unwrap();
    let guard = hold_many(&client);
    throughout(LEASE * 4 / 3, || guard.is_held());
    assert_eq!(failures.load(Ordering::SeqCst), 0);
    // The connection of the calls, and that of the renewer.
    assert_eq!(link.connections(), 2);
}

/// There are three packets before the first acknowledgement, and all renewals take six round trips,
/// longer than a request may take.
fn renewals_over_a_link_that_starts_slowly_do_not_begin_to_fail(server: &Server) {
    const TOGETHER: usize = 50;
    let lease = ms(24_000);
    server.open(patient()).lock_all(["warm", "warmer"]).unwrap().unlock().unwrap();
    let link = NarrowLink::before(server, 4 * ROUND_TRIP, 4_380..=usize::MAX);
    let (builder, failures) = watched();
    let builder = builder.lease(lease).io_timeout(ms(2500)).pool_size(18);
    let client = opened(|| builder.clone().open(&link.url()));
    let lock = |set: usize| {
        let names = (0..TOGETHER).map(move |number| format!("lock {set} {number}"));
        client.lock_all(names).unwrap()
    };
    let guards: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (0..18).map(|set| scope.spawn(move || lock(set))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let is_renewed = |guard: &MultiGuard| guard.remaining() > lease * 3 / 4;
    eventually(SOON, || !guards.iter().any(is_renewed));
    eventually(SOON, || guards.iter().all(is_renewed));
    assert_eq!(failures.load(Ordering::SeqCst), 0);
}

fn a_server_that_is_slow_to_accept_renewals_keeps_its_connection(server: &Server) {
    let link = wide_link(server);
    let (builder, failures) = watched();
    let client = builder.open(&link.url()).unwrap();
    let guard = hold_many(&client);
    accept_the_renewals_late(&[link], &guard);
    assert_eq!(failures.load(Ordering::SeqCst), 0);
}

#[test]
fn servers_of_a_quorum_that_are_slow_to_accept_renewals_keep_their_connections() {
    let quorum = Quorum::of(3);
    let links = quorum.servers.iter().map(wide_link).collect::<Vec<_>>();
    let urls: Vec<_> = links.iter().map(NarrowLink::url).collect();
    let (builder, failures) = watched();
    let client = open_redlock(builder, &urls).unwrap();
    let guard = hold_many(&client);
    accept_the_renewals_late(&links, &guard);
    assert_eq!(failures.load(Ordering::SeqCst), 0);
}

/// Stops the links while renewals are due over connections that are already open.
fn accept_the_renewals_late(links: &[NarrowLink], guard: &MultiGuard) {
    eventually(SOON, || guard.remaining() < LEASE * 7 / 10);
    eventually(SOON, || guard.remaining() > LEASE * 7 / 10);
    let connections = || links.iter().map(NarrowLink::connections).collect::<Vec<_>>();
    let before = connections();
    links.iter().for_each(NarrowLink::stop);
    eventually(SOON, || guard.remaining() < LEASE / 2);
    links.iter().for_each(NarrowLink::cont);
    throughout(LEASE, || guard.is_held());
    assert_eq!(connections(), before);
}
