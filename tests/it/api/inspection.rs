//! The state of a lock, the options of a mutex, and `force_unlock`.

use std::thread;
use std::time::Duration;

use leasehold::{Client, Error, HoldEnd};

use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, SHORT, SOON, Server, Store, assert_lost, elsewhere, eventually, is_busy, ms, patient,
    sleepy, stores, take, timed, unlock, while_held,
};

stores! {
    every store:
        a_mutex_is_the_same_lock,
        a_mutex_has_its_own_lease,
        a_mutex_has_its_own_wait,
        a_free_lock_has_no_holder,
        the_holder_of_a_lock_can_be_seen,
        a_thread_knows_what_it_holds,
        force_unlock_frees_the_lock_for_others,
        a_hold_that_its_own_client_forces_out_is_lost_at_once,
        force_unlock_wakes_the_waiting_threads_of_its_own_client,
        force_unlock_of_a_free_lock_is_false;
    every server:
        other_clients_see_the_holder,
        an_owner_that_is_forced_out_is_notified,
        force_unlock_ends_a_hold_of_redisson,
        the_locks_of_a_thread_are_known_without_redis;
}

fn a_mutex_is_the_same_lock(store: &Store) {
    let client = store.open(patient());
    let mutex = client.mutex("a");
    assert_eq!(mutex.name(), "a");
    let guard = mutex.clone().lock().unwrap();
    assert_eq!(guard.name(), "a");
    assert!(is_busy(&client, "a"));
    assert_eq!(take(&client, "a").depth(), 2);
    assert!(elsewhere(|| mutex.try_lock().unwrap().is_none()));
    guard.unlock().unwrap();
    assert!(elsewhere(|| mutex.try_lock_for(ms(10)).unwrap().is_some()));
    assert!(elsewhere(|| client.try_lock("a").unwrap().is_some()));
}

fn a_mutex_has_its_own_lease(store: &Store) {
    let client = store.open_for(ms(5000), patient());
    let guard = client.mutex("a").lease(ms(5000)).lock().unwrap();
    assert!(guard.remaining() > ms(3000) && guard.remaining() < ms(5000));
    let usual = take(&client, "b");
    assert!(usual.remaining() > ms(20_000), "the client's own is untouched");
}

fn a_mutex_has_its_own_wait(store: &Store) {
    let client = store.open(patient());
    let mutex = client.mutex("a").wait(ms(200));
    while_held(&client, "a", |_end| {
        let (result, took) = timed(|| mutex.lock());
        assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
        assert!(took >= ms(200) && took < SOON / 2, "{took:?}");
    });
}

fn a_free_lock_has_no_holder(store: &Store) {
    let client = store.open(patient());
    let mutex = client.mutex("a");
    assert!(mutex.holder().unwrap().is_none());
    assert!(!mutex.is_locked().unwrap());
    mutex.lock().unwrap().unlock().unwrap();
    assert!(mutex.holder().unwrap().is_none());
    assert!(!mutex.is_locked().unwrap());
}

fn the_holder_of_a_lock_can_be_seen(store: &Store) {
    let client = store.open_for(ms(20_000), patient());
    let mutex = client.mutex("a").lease(ms(20_000));
    let _outer = mutex.lock().unwrap();
    let first = mutex.holder().unwrap().unwrap();
    assert!(first.owner.starts_with(client.id()), "{first:?}");
    assert_eq!(first.depth, 1);
    assert!(first.remaining > ms(10_000) && first.remaining <= ms(20_000));

    let _inner = mutex.lock().unwrap();
    let second = elsewhere(|| mutex.holder().unwrap().unwrap());
    assert_eq!(second.owner, first.owner);
    assert_eq!(second.depth, 2);
    assert!(elsewhere(|| mutex.is_locked().unwrap()));
}

fn a_thread_knows_what_it_holds(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let mutex = client.mutex("a").lease(SHORT).renew(false);
    assert!(!mutex.is_held_by_current_thread());
    let guard = mutex.lock().unwrap();
    assert!(mutex.is_held_by_current_thread());
    assert!(client.mutex("a").is_held_by_current_thread());
    assert!(!client.mutex("b").is_held_by_current_thread());
    assert!(elsewhere(|| !mutex.is_held_by_current_thread()));
    guard.unlock().unwrap();
    assert!(!mutex.is_held_by_current_thread());

    let _expiring = mutex.lock().unwrap();
    eventually(SOON, || !mutex.is_held_by_current_thread());
}

fn force_unlock_frees_the_lock_for_others(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    let mutex = client.mutex("a");
    let guard = take(&client, "a");
    let _inner = take(&client, "a");
    assert!(elsewhere(|| mutex.force_unlock().unwrap()));
    assert!(!mutex.is_locked().unwrap());
    assert_lost(guard.verify(), "a");
    elsewhere(|| client.lock("a").unwrap().unlock().unwrap());
    assert_lost(guard.unlock(), "a");
}

fn a_hold_that_its_own_client_forces_out_is_lost_at_once(store: &Store) {
    let client = store.open(patient());
    let (guard, owned) = (take(&client, "a"), client.lock_owned("b").unwrap());
    let set = client.lock_all(["c", "d"]).unwrap();
    let term = client.election("e").campaign().unwrap();
    let losses = [guard.lost(), owned.lost(), set.lost(), term.lost()];
    let held = || [guard.is_held(), owned.is_held(), set.is_held(), term.is_held()];
    for (index, name) in ["a", "b", "c", "e"].into_iter().enumerate() {
        assert!(held()[index] && !losses[index].is_lost());
        assert!(client.mutex(name).force_unlock().unwrap());
        assert!(!held()[index] && losses[index].is_lost(), "{name}");
    }
    assert_lost(guard.unlock(), "a");
    assert_lost(set.unlock(), "c");
    assert!(!is_busy(&client, "d"));
}

fn force_unlock_wakes_the_waiting_threads_of_its_own_client(store: &Store) {
    let client = store.open(sleepy());
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("a").map(unlock));
        eventually(SOON, || client.stats().waiting == 1);
        let ((), took) = timed(|| {
            assert!(client.mutex("a").force_unlock().unwrap());
            waiter.join().unwrap().unwrap();
        });
        // The next renewal comes after a third of the lease.
        assert!(took < ms(5000), "{took:?}");
    });
    assert!(!guard.is_held());
}

fn force_unlock_of_a_free_lock_is_false(store: &Store) {
    let client = store.open(patient());
    assert!(!client.mutex("a").force_unlock().unwrap());
    take(&client, "a").unlock().unwrap();
    assert!(!client.mutex("a").force_unlock().unwrap());
}

fn other_clients_see_the_holder(server: &Server) {
    let client = server.open(patient());
    let other = server.open(patient());
    let _guard = take(&client, "a");
    let holder = other.mutex("a").holder().unwrap().unwrap();
    assert!(holder.owner.starts_with(client.id()));
    assert_eq!(holder.client, client.id());
    assert!(holder.label.ends_with(&format!(":{}", std::process::id())), "{:?}", holder.label);
    let unlabelled = server.open(patient().label(""));
    assert!(!unlabelled.id().contains(':'), "{}", unlabelled.id());
    assert_eq!(holder.owner, server.hold("a").0);
    assert!(other.mutex("a").is_locked().unwrap());
    assert!(!other.mutex("a").is_held_by_current_thread());
}

fn an_owner_that_is_forced_out_is_notified(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(patient().lease(LEASE).on_event(recorder.listener()));
    let other = server.open(patient());
    let guard = take(&client, "a");
    assert!(other.mutex("a").force_unlock().unwrap());
    assert!(!server.exists("a"));
    let next = take(&other, "a");
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    recorder.wait_for("lost a");
    assert!(!guard.is_held());
    drop(guard);
    next.verify().unwrap();
    assert!(next.is_held());
}

fn force_unlock_ends_a_hold_of_redisson(server: &Server) {
    let client = server.open(patient());
    server.command(&["HSET", "lock:a", "285475da-9152-4c83-822a-67ee2f116a79:52", "1"]);
    server.command(&["PEXPIRE", "lock:a", "60000"]);
    assert!(client.mutex("a").force_unlock().unwrap());
    assert!(!server.exists("a"));
}

fn the_locks_of_a_thread_are_known_without_redis(server: &Server) {
    let client = server.open(Client::builder().io_timeout(SOON));
    let mutex = client.mutex("a");
    let guard = take(&client, "a");
    server.stop();
    let ((), took) = timed(|| {
        assert!(mutex.is_held_by_current_thread());
        assert!(!client.mutex("b").is_held_by_current_thread());
        assert!(guard.is_held() && guard.remaining() > Duration::ZERO);
        assert!(guard.fence() > 0 && guard.depth() == 1);
        assert!(!guard.lost().is_lost());
    });
    assert!(took < SOON / 2, "{took:?}");
    server.cont();
    guard.unlock().unwrap();
}
