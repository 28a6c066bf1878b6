//! Holds that one guard detaches and another adopts.

use std::thread;
use std::time::Duration;

use leasehold::{Client, Error, HoldEnd, OwnedGuard, Ticket};

use crate::support::child::{self, Child, report};
use crate::support::proxy::Proxy;
use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, SHORT, SOON, Server, Store, assert_lost, behind_proxy, eventually, hasty, is_busy,
    lock_key, ms, patient, stores, take, throughout,
};

stores! {
    every store:
        an_adopted_hold_is_renewed_by_its_new_client,
        a_detached_hold_is_not_renewed,
        a_holder_is_shown_as_detached_and_as_adopted,
        a_detached_hold_has_a_whole_lease,
        a_hold_that_is_adopted_twice_is_one_hold,
        a_hold_that_is_adopted_twice_by_one_client_ends_for_both_when_it_is_forced,
        an_ended_hold_cannot_be_detached_or_adopted,
        a_detached_hold_survives_the_shutdown_of_its_client,
        a_closed_client_can_detach_but_not_adopt,
        a_waiter_gets_the_lock_after_detach_adopt_and_release,
        a_hold_is_adopted_past_the_waiters_of_the_client,
        a_ticket_is_for_clients_with_its_prefix,
        an_age_limit_applies_to_each_guard,
        hold_at_least_outlasts_an_adoption,
        a_kept_lock_can_be_detached,
        a_hold_is_renewed_and_released_by_its_ticket;
    every server:
        a_process_adopts_the_hold_of_a_killed_one,
        a_hold_that_was_overwritten_cannot_be_adopted,
        a_ticket_is_refused_before_any_request,
        a_ticket_is_renewed_or_released_by_one_request;
    every direct server:
        a_detached_hold_is_unchanged_if_no_reply_arrives,
        a_hold_that_cannot_be_detached_is_released,
        a_failed_renewal_or_release_by_ticket_leaves_the_hold_unchanged,
        requests_that_are_executed_twice_do_no_harm;
}

fn two(store: &Store) -> (Client, Client) {
    (store.open_for(LEASE, patient()), store.open_for(LEASE, patient()))
}

/// Acquires a hold with that lease, of a lock that must be free.
fn owned(client: &Client, name: &str, lease: Duration) -> OwnedGuard {
    client.mutex(name).lease(lease).try_lock_owned().unwrap().expect("it is free")
}

/// Returns a ticket that has passed through a queue as text.
fn sent(ticket: &Ticket) -> Ticket {
    ticket.to_string().parse().unwrap()
}

fn an_adopted_hold_is_renewed_by_its_new_client(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open_for(LEASE, patient().on_event(recorder.listener()));
    let other = store.open_for(LEASE, patient());
    let guard = owned(&client, "a", LEASE);
    let (fence, lost) = (guard.fence(), guard.lost());
    let ticket = guard.detach().unwrap();
    assert_eq!((ticket.name(), ticket.fence()), ("a", fence));
    assert_eq!(client.stats().held, 0);
    assert_eq!(lost.wait_timeout(ms(0)), Some(HoldEnd::Released));
    recorder.wait_for("released a");
    assert!(is_busy(&client, "a") && is_busy(&other, "a"));

    let guard = other.adopt(&sent(&ticket)).unwrap();
    assert_eq!((guard.name(), guard.fence(), guard.depth()), ("a", fence, 1));
    assert_eq!(other.stats().held, 1);
    assert!(guard.remaining() > LEASE / 2 && guard.remaining() <= LEASE);
    throughout(LEASE * 3 / 2, || guard.is_held() && is_busy(&client, "a"));
    guard.verify().unwrap();
    let adopted = guard.lost();
    guard.unlock().unwrap();
    assert_eq!(adopted.wait(), HoldEnd::Released);
    assert_eq!(other.stats().held, 0);
    let next = take(&client, "a");
    assert!(next.fence() > fence);
}

fn a_detached_hold_is_not_renewed(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let ticket = owned(&client, "a", SHORT).detach().unwrap();
    let next = client.lock("a").unwrap();
    assert!(next.fence() > ticket.fence());
    assert_lost(client.adopt(&ticket), "a");
    next.verify().unwrap();
}

fn a_holder_is_shown_as_detached_and_as_adopted(store: &Store) {
    let (client, other) = two(store);
    let guard = owned(&client, "a", LEASE);
    let seen = || {
        let holder = other.mutex("a").holder().unwrap().expect("it is held");
        (holder.renewed, holder.detached, holder.depth)
    };
    assert_eq!(seen(), (true, false, 1));
    let ticket = guard.detach().unwrap();
    eventually(SOON, || seen() == (false, true, 1));
    other.renew_ticket(&ticket).unwrap();
    assert_eq!(seen(), (false, true, 1));
    let guard = other.adopt(&ticket).unwrap();
    eventually(SOON, || seen() == (true, false, 1));
    guard.unlock().unwrap();
    // Sets too.
    let options = || (client.mutex("a").renew(false), client.multi_mutex(["a"]).renew(false));
    let guard = options().0.lock_owned().unwrap();
    assert_eq!(seen(), (false, false, 1));
    guard.unlock().unwrap();
    let guards = options().1.lock().unwrap();
    assert_eq!(seen(), (false, false, 1));
    guards.unlock().unwrap();
}

fn a_detached_hold_has_a_whole_lease(store: &Store) {
    let client = store.open_for(LEASE, patient());
    let guard = client.mutex("a").lease(LEASE).renew(false).lock_owned().unwrap();
    thread::sleep(LEASE / 2);
    let _ticket = guard.detach().unwrap();
    let holder = client.mutex("a").holder().unwrap().expect("it is held");
    assert!(holder.remaining > LEASE * 2 / 3, "{:?}", holder.remaining);
}

fn a_hold_that_is_adopted_twice_is_one_hold(store: &Store) {
    let (client, other) = two(store);
    let ticket = owned(&client, "a", LEASE).detach().unwrap();
    let (one, same) = (client.adopt(&ticket).unwrap(), other.adopt(&ticket).unwrap());
    assert_eq!(one.fence(), same.fence());
    one.verify().unwrap();
    same.renew().unwrap();
    let (lost, end) = (same.lost(), one.lost());
    one.unlock().unwrap();
    assert_eq!(end.wait(), HoldEnd::Released);
    // No call is needed for this: the renewal of `same` finds the hold gone.
    assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Lost));
    assert_lost(same.verify(), "a");
    assert_lost(same.unlock(), "a");
    let next = take(&client, "a");
    assert_lost(other.adopt(&ticket), "a");
    next.verify().unwrap();
    assert_eq!((client.stats().held, take(&other, "b").depth()), (1, 1));
}

fn a_hold_that_is_adopted_twice_by_one_client_ends_for_both_when_it_is_forced(store: &Store) {
    let (client, other) = two(store);
    let ticket = owned(&client, "a", 10 * SOON).detach().unwrap();
    let guards = [other.adopt(&ticket).unwrap(), other.adopt(&ticket).unwrap()];
    assert!(other.mutex("a").force_unlock().unwrap());
    assert!(guards.iter().all(|guard| guard.lost().is_lost()), "at once");
    assert_eq!(other.stats().held, 0);
}

fn an_ended_hold_cannot_be_detached_or_adopted(store: &Store) {
    let (client, other) = two(store);
    let ticket = owned(&client, "a", LEASE).detach().unwrap();
    assert!(other.mutex("a").force_unlock().unwrap());
    assert_lost(other.adopt(&ticket), "a");

    let guard = owned(&client, "a", LEASE);
    let lost = guard.lost();
    assert!(client.mutex("a").force_unlock().unwrap());
    assert_lost(guard.detach(), "a");
    assert_eq!(lost.wait(), HoldEnd::Lost);
    assert_eq!((client.stats().held, other.stats().held), (0, 0));
    take(&client, "a").unlock().unwrap();
}

fn a_detached_hold_survives_the_shutdown_of_its_client(store: &Store) {
    let (client, other) = two(store);
    let ticket = owned(&client, "a", LEASE).detach().unwrap();
    client.shutdown(SOON).unwrap();
    drop(client);
    let guard = other.adopt(&ticket).unwrap();
    guard.verify().unwrap();
    other.shutdown(SOON).unwrap();
    assert!(!guard.is_held() && !guard.lost().is_lost());
    assert!(!other.mutex("a").is_locked().unwrap());
}

fn a_closed_client_can_detach_but_not_adopt(store: &Store) {
    let client = store.open_for(LEASE, patient());
    let guard = owned(&client, "a", LEASE);
    client.close();
    let ticket = guard.detach().unwrap();
    let refused = client.adopt(&ticket);
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    assert!(client.mutex("a").is_locked().unwrap());
}

fn a_waiter_gets_the_lock_after_detach_adopt_and_release(store: &Store) {
    let (client, other) = two(store);
    let guard = owned(&client, "a", 10 * SOON);
    let fence = guard.fence();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("a").unwrap().fence());
        eventually(SOON, || client.stats().waiting == 1);
        let ticket = guard.detach().unwrap();
        throughout(ms(100), || !waiter.is_finished());
        let adopted = other.adopt(&ticket).unwrap();
        throughout(ms(100), || !waiter.is_finished());
        drop(adopted);
        assert!(waiter.join().unwrap() > fence);
    });
}

fn a_hold_is_adopted_past_the_waiters_of_the_client(store: &Store) {
    let (client, other) = two(store);
    let ticket = owned(&client, "a", 10 * SOON).detach().unwrap();
    thread::scope(|scope| {
        let waiters = [(); 3].map(|()| scope.spawn(|| other.lock("a").unwrap().fence()));
        eventually(SOON, || other.stats().waiting == 3);
        let guard = other.adopt(&ticket).unwrap();
        throughout(ms(100), || waiters.iter().all(|waiter| !waiter.is_finished()));
        guard.unlock().unwrap();
        let fences = waiters.map(|waiter| waiter.join().unwrap());
        assert!(fences.iter().all(|fence| *fence > ticket.fence()), "{fences:?}");
    });
}

fn a_ticket_is_for_clients_with_its_prefix(store: &Store) {
    let client = store.open_for(LEASE, patient());
    let ticket = owned(&client, "a", LEASE).detach().unwrap();
    let stranger = Client::builder().prefix("other:").in_memory().unwrap();
    let refused = stranger.adopt(&ticket);
    assert!(matches!(refused, Err(Error::InvalidInput(_))), "{refused:?}");
    client.adopt(&ticket).unwrap().unlock().unwrap();
}

fn an_age_limit_applies_to_each_guard(store: &Store) {
    let client = store.open_for(SHORT, patient().max_hold(SHORT * 2));
    let ticket = client.lock_owned("a").unwrap().detach().unwrap();
    let holder = client.mutex("a").holder().unwrap().expect("it is held");
    assert!(holder.remaining <= SHORT * 2, "{:?}", holder.remaining);
    thread::sleep(SHORT);
    let guard = client.adopt(&ticket).unwrap();
    assert!(guard.remaining() > SHORT, "{:?}", guard.remaining());
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    assert_lost(guard.detach(), "a");
}

fn hold_at_least_outlasts_an_adoption(store: &Store) {
    let (client, other) = two(store);
    let guard = client.mutex("a").hold_at_least(SOON).lock_owned().unwrap();
    let ticket = guard.detach().unwrap();
    other.adopt(&sent(&ticket)).unwrap().unlock().unwrap();
    let holder = other.mutex("a").holder().unwrap().expect("it stays taken");
    assert_eq!(holder.depth, 0);
    assert!(holder.remaining <= SOON && holder.remaining > SOON / 2, "{:?}", holder.remaining);
    assert_lost(other.adopt(&ticket), "a");
}

fn a_kept_lock_can_be_detached(store: &Store) {
    let client = store.open(patient().keep(ms(25_000)));
    let other = store.open_for(LEASE, patient());
    eventually(SOON, || {
        drop(client.lock("a").unwrap());
        client.stats().kept == 1
    });
    let guard = client.lock_owned("a").unwrap();
    let (fence, ticket) = (guard.fence(), guard.detach().unwrap());
    assert_eq!((client.stats().held, client.stats().kept), (0, 0));
    assert!(is_busy(&client, "a") && is_busy(&other, "a"));
    let adopted = other.adopt(&ticket).unwrap();
    assert_eq!(adopted.fence(), fence);
    adopted.unlock().unwrap();
    assert!(!other.mutex("a").is_locked().unwrap());
    assert!(take(&client, "a").fence() > fence);
}

fn a_hold_is_renewed_and_released_by_its_ticket(store: &Store) {
    let (client, other) = two(store);
    let ticket = sent(&owned(&client, "a", LEASE).detach().unwrap());
    for _ in 0..3 {
        thread::sleep(LEASE / 2);
        other.renew_ticket(&ticket).unwrap();
    }
    let holder = client.mutex("a").holder().unwrap().expect("it is held");
    assert!(holder.remaining > LEASE / 2, "{:?}", holder.remaining);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.lock("a").unwrap().fence());
        eventually(SOON, || other.stats().waiting == 1);
        other.release_ticket(&ticket).unwrap();
        assert!(waiter.join().unwrap() > ticket.fence());
    });
    let next = take(&client, "a");
    assert_lost(other.renew_ticket(&ticket), "a");
    assert_lost(other.release_ticket(&ticket), "a");
    next.verify().unwrap();
    let guard = client.mutex("b").hold_at_least(SOON).lock_owned().unwrap();
    let ticket_of_b = guard.detach().unwrap();
    other.release_ticket(&ticket_of_b).unwrap();
    let holder = other.mutex("b").holder().unwrap().expect("it stays taken");
    assert!(holder.depth == 0 && holder.remaining <= SOON, "{holder:?}");
    assert_lost(other.release_ticket(&ticket_of_b), "b");
    let guard = client.mutex("c").hold_at_least(SOON).lock_owned().unwrap();
    let ticket_of_c = guard.detach().unwrap();
    let [first, second] = [&client, &other].map(|client| client.adopt(&ticket_of_c).unwrap());
    first.unlock().unwrap();
    assert_lost(second.unlock(), "c");
    client.close();
    let refused = client.renew_ticket(&ticket);
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
}

fn a_process_adopts_the_hold_of_a_killed_one(server: &Server) {
    let mut child = Child::start(detach_in_a_child, &server.address());
    let ticket: Ticket = child.next().parse().unwrap();
    child.kill();
    let client = server.open_for(LEASE, patient());
    let guard = client.adopt(&ticket).unwrap();
    throughout(LEASE * 3 / 2, || guard.verify().is_ok());
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}

#[test]
#[ignore = "a child of a_process_adopts_the_hold_of_a_killed_one"]
fn detach_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open_for(LEASE, patient().label("a web server"));
    report(owned(&client, "a", LEASE).detach().unwrap());
    child::wait_for_parent();
}

fn a_hold_that_was_overwritten_cannot_be_adopted(server: &Server) {
    let client = server.open_for(LEASE, patient());
    let ticket = owned(&client, "a", LEASE).detach().unwrap();
    server.command(&["DEL", &lock_key("a")]);
    server.command(&["SET", &lock_key("a"), "someone", "PX", "60000"]);
    assert_lost(client.adopt(&ticket), "a");
    server.command(&["DEL", &lock_key("a")]);
    let next = take(&client, "a");
    assert_lost(client.adopt(&ticket), "a");
    next.verify().unwrap();
}

fn a_ticket_is_refused_before_any_request(server: &Server) {
    let ticket = owned(&server.open_for(LEASE, patient()), "a", LEASE).detach().unwrap();
    let stranger = server.open_for(LEASE, patient().prefix("other:"));
    let slow = server.open_for(LEASE, patient().lease(3 * LEASE).io_timeout(LEASE / 2));
    let scripts = server.settled_evals();
    for client in [stranger, slow] {
        let adopted = client.adopt(&ticket).map(drop);
        for refused in [adopted, client.renew_ticket(&ticket), client.release_ticket(&ticket)] {
            assert!(matches!(refused, Err(Error::InvalidInput(_))), "{refused:?}");
        }
    }
    assert_eq!(server.settled_evals(), scripts);
}

fn a_ticket_is_renewed_or_released_by_one_request(server: &Server) {
    let client = server.open_for(LEASE, patient());
    let ticket = owned(&client, "a", LEASE).detach().unwrap();
    // From here on, the server knows the scripts.
    client.release_ticket(&ticket).unwrap();
    let ticket = owned(&client, "a", LEASE).detach().unwrap();
    let scripts = server.settled_evals();
    client.renew_ticket(&ticket).unwrap();
    assert_eq!(server.settled_evals(), scripts + 1);
    client.release_ticket(&ticket).unwrap();
    assert_eq!(server.settled_evals(), scripts + 2);
}

fn a_failed_renewal_or_release_by_ticket_leaves_the_hold_unchanged(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty());
    let direct = server.open_for(LEASE, patient());
    let ticket = owned(&direct, "a", 10 * SOON).detach().unwrap();
    let remaining = || direct.mutex("a").holder().unwrap().expect("it is held").remaining;
    let before = remaining();
    proxy.refuse();
    for failed in [client.renew_ticket(&ticket), client.release_ticket(&ticket)] {
        assert!(matches!(failed, Err(Error::Unavailable { .. })), "{failed:?}");
    }
    assert!(remaining() <= before);
    proxy.heal();
    // This happens in the background.
    eventually(SOON, || !server.exists("a"));
    let ticket = owned(&direct, "a", 10 * SOON).detach().unwrap();
    // This is transparent: the effect of the first attempt is not a loss.
    proxy.lose_reply();
    client.renew_ticket(&ticket).unwrap();
    proxy.lose_reply();
    client.release_ticket(&ticket).unwrap();
    assert!(!server.exists("a"));
}

fn a_detached_hold_is_unchanged_if_no_reply_arrives(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty());
    let direct = server.open_for(LEASE, patient());
    let ticket = owned(&direct, "a", 10 * SOON).detach().unwrap();
    for fault in [Proxy::refuse, Proxy::lose_replies] {
        fault(&proxy);
        let failed = client.adopt(&ticket);
        assert!(matches!(failed, Err(Error::Unavailable { .. })), "{failed:?}");
        proxy.heal();
        assert_eq!(client.stats().held, 0);
        throughout(ms(300), || is_busy(&direct, "a"));
    }
    // This is transparent: the request is repeated.
    proxy.lose_reply();
    let guard = client.adopt(&ticket).unwrap();
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_hold_that_cannot_be_detached_is_released(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty());
    let guard = owned(&client, "a", 10 * SOON);
    let lost = guard.lost();
    proxy.refuse();
    let failed = guard.detach();
    assert!(matches!(failed, Err(Error::Unavailable { .. })), "{failed:?}");
    assert_eq!((client.stats().held, lost.is_lost()), (0, false));
    proxy.heal();
    eventually(SOON, || !server.exists("a"));
    assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Released));
    client.shutdown(SOON).unwrap();
}

fn requests_that_are_executed_twice_do_no_harm(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty());
    proxy.duplicate_scripts();
    for _ in 0..5 {
        let ticket = owned(&client, "a", LEASE).detach().unwrap();
        client.adopt(&ticket).unwrap().unlock().unwrap();
        assert!(!server.exists("a"));
        assert_lost(client.adopt(&ticket), "a");
        let ticket = owned(&client, "a", LEASE).detach().unwrap();
        client.renew_ticket(&ticket).unwrap();
        client.release_ticket(&ticket).unwrap();
        assert!(!server.exists("a"));
    }
}
