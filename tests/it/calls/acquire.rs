//! Acquiring a lock: one holder at a time, in one process and among several.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};

use crate::support::child::{self, Child};
use crate::support::store::Handle;
use crate::support::{
    SOON, Server, Store, elsewhere, eventually, is_busy, ms, patient, stores, take, timed,
    while_held,
};

stores! {
    every store:
        threads_count_without_losing_an_update,
        without_the_lock_updates_are_lost,
        an_owned_guard_waits_in_line_with_others,
        names_exclude_each_other_only_if_they_are_equal,
        try_lock_refuses_what_another_thread_holds,
        a_timed_lock_ends_with_its_time,
        a_deadline_in_the_past_is_one_attempt,
        the_wait_of_the_builder_ends_lock_with_a_timeout,
        a_waiter_gets_the_lock_once_it_is_released,
        endless_waits_do_not_overflow,
        with_lock_returns_the_value_and_releases,
        with_lock_releases_after_a_panic;
    several clients:
        clients_of_one_process_exclude_each_other;
    every server:
        a_timeout_names_the_holder,
        processes_count_without_losing_an_update;
}

fn threads_count_without_losing_an_update(store: &Store) {
    let client = store.open(Client::builder().backoff(ms(1), ms(20)));
    let register = store.register();
    let last_fence = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut number = register.handle();
                for _ in 0..10 {
                    let guard = client.lock("counter").unwrap();
                    number.add_one();
                    let before = last_fence.swap(guard.fence(), Ordering::SeqCst);
                    assert!(guard.fence() > before, "every hold has a greater fence");
                }
            });
        }
    });
    assert_eq!(register.handle().read(), 160);
}

/// Shows that the test above would notice a lock that does nothing.
fn without_the_lock_updates_are_lost(store: &Store) {
    let register = store.register();
    thread::scope(|scope| {
        for _ in 0..16 {
            let mut number = register.handle();
            scope.spawn(move || (0..10).for_each(|_| number.add_one()));
        }
    });
    assert!(register.handle().read() < 160);
}

fn an_owned_guard_waits_in_line_with_others(store: &Store) {
    let client = store.open(patient());
    let register = store.register();
    thread::scope(|scope| {
        for worker in 0..6 {
            let (client, register) = (&client, &register);
            scope.spawn(move || {
                let mut number = register.handle();
                for _ in 0..10 {
                    let (guard, owned) = if worker % 2 == 0 {
                        (Some(client.lock("a").unwrap()), None)
                    } else {
                        (None, Some(client.lock_owned("a").unwrap()))
                    };
                    number.add_one();
                    drop((guard, owned));
                }
            });
        }
    });
    assert_eq!(register.handle().read(), 60);
}

fn processes_count_without_losing_an_update(server: &Server) {
    let start = || Child::start(count_in_a_child, &server.address());
    let mut children = [start(), start(), start(), start()];
    for child in &children {
        assert_eq!(child.next(), "ready");
    }
    for child in &mut children {
        child.go_on();
    }
    children.into_iter().for_each(Child::finish);
    assert_eq!(Handle::connect(&server.url()).read(), 100);
}

#[test]
#[ignore = "a child of processes_count_without_losing_an_update"]
fn count_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(Client::builder().backoff(ms(1), ms(20)));
    let mut number = Handle::connect(&address.url);
    child::report("ready");
    child::wait_for_parent();
    for _ in 0..25 {
        let guard = client.lock("counter").unwrap();
        number.add_one();
        guard.unlock().unwrap();
    }
}

fn clients_of_one_process_exclude_each_other(store: &Store) {
    let first = store.open(patient());
    let second = store.open(patient());
    let guard = take(&first, "a");
    // Even in the same thread: each client is a separate owner.
    assert!(second.try_lock("a").unwrap().is_none());
    guard.unlock().unwrap();
    take(&second, "a").unlock().unwrap();
}

fn names_exclude_each_other_only_if_they_are_equal(store: &Store) {
    const NAMES: [&str; 18] = [
        "a",
        "A",
        " a",
        "a ",
        "a\0",
        "a\n",
        "a:b",
        "a:fence",
        "fence",
        "leasehold",
        "*",
        "a?",
        "[a]",
        "{a}:b",
        "x{a}y",
        "\0🐉汉字\x08\r\n\\",
        "\0🐉汉字\x08\n\\",
        "'; redis.call('FLUSHALL') --",
    ];
    let client = store.open(patient());
    let guards = NAMES.map(|name| take(&client, name));
    for (guard, name) in guards.iter().zip(NAMES) {
        assert_eq!(guard.name(), name);
        assert_eq!(guard.depth(), 1, "{name:?} is a lock of its own");
        assert!(is_busy(&client, name), "{name:?}");
    }
    drop(guards);
    for name in NAMES {
        assert!(!is_busy(&client, name), "{name:?}");
    }
}

fn try_lock_refuses_what_another_thread_holds(store: &Store) {
    let client = store.open(patient());
    let guard = take(&client, "a");
    assert!(elsewhere(|| client.try_lock("a").unwrap().is_none()));
    guard.unlock().unwrap();
    assert!(elsewhere(|| client.try_lock("a").unwrap().is_some()));
}

fn a_timed_lock_ends_with_its_time(store: &Store) {
    let client = store.open(patient());
    while_held(&client, "a", |_end| {
        let (refused, took) = timed(|| client.try_lock_for("a", ms(300)).unwrap().is_none());
        assert!(refused);
        assert!(took >= ms(300) && took < SOON / 2, "{took:?}");
        let deadline = Instant::now() + ms(200);
        assert!(client.try_lock_until("a", deadline).unwrap().is_none());
        assert!(Instant::now() >= deadline);
    });
}

fn a_deadline_in_the_past_is_one_attempt(store: &Store) {
    let client = store.open(patient());
    let past = Instant::now();
    assert!(client.try_lock_until("a", past).unwrap().is_some());
    while_held(&client, "a", |_end| {
        assert!(client.try_lock_until("a", past).unwrap().is_none());
        assert!(client.try_lock_for("a", Duration::ZERO).unwrap().is_none());
    });
}

fn the_wait_of_the_builder_ends_lock_with_a_timeout(store: &Store) {
    let client = store.open(Client::builder().wait(ms(300)));
    while_held(&client, "a", |_end| {
        let (result, took) = timed(|| client.lock("a"));
        match result {
            Err(Error::Timeout { name, .. }) => assert_eq!(name, "a"),
            other => panic!("{other:?} instead of a timeout"),
        }
        assert!(took >= ms(300) && took < SOON / 2, "{took:?}");
    });
}

fn a_timeout_names_the_holder(server: &Server) {
    let holder = server.open(patient().label("till"));
    let waiter = server.open(patient());
    let guard = take(&holder, "a");
    let limited = |time| waiter.mutex("a").wait(time);
    let (error, took) = timed(|| limited(ms(200)).lock().unwrap_err());
    assert!(took < SOON / 2, "{took:?}");
    assert!(error.to_string().contains("\"till:"), "{error}");
    let owner = server.hold("a").0;
    assert!(!format!("{error:?}").contains(&owner), "{error:?}");
    match error {
        Error::Timeout { name, holder: Some(by), .. } => {
            assert_eq!((&*name, &*by.client, by.depth), ("a", holder.id(), 1));
        }
        other => panic!("{other:?} names no holder"),
    }
    // The threads behind the first one get this error too.
    let errors = thread::scope(|scope| {
        let wait = |time| scope.spawn(move || limited(time).lock().unwrap_err());
        [ms(200), ms(400), ms(600)].map(wait).map(|waits| waits.join().unwrap())
    });
    for error in errors {
        assert!(matches!(error, Error::Timeout { holder: Some(_), .. }), "{error:?}");
    }
    guard.unlock().unwrap();
    // The error names no threads of its own client.
    let guard = take(&waiter, "a");
    let error = elsewhere(|| limited(ms(200)).lock().unwrap_err());
    assert!(matches!(error, Error::Timeout { holder: None, .. }), "{error:?}");
    guard.unlock().unwrap();
}

fn a_waiter_gets_the_lock_once_it_is_released(store: &Store) {
    let client = store.open(patient());
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("a").unwrap().fence());
        thread::sleep(ms(100));
        assert!(!waiter.is_finished(), "it has to wait");
        let first = guard.fence();
        guard.unlock().unwrap();
        eventually(SOON, || waiter.is_finished());
        assert!(waiter.join().unwrap() > first);
    });
}

fn endless_waits_do_not_overflow(store: &Store) {
    let client = store.open(Client::builder().wait(Duration::MAX));
    for _ in 0..2 {
        let guard = client.try_lock_for("a", Duration::MAX).unwrap().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(client.lock("a").unwrap()));
            scope.spawn(|| drop(client.try_lock_for("a", Duration::MAX).unwrap().unwrap()));
            thread::sleep(ms(100));
            drop(guard);
        });
    }
}

fn with_lock_returns_the_value_and_releases(store: &Store) {
    let client = store.open(patient());
    let value = client.with_lock("a", |guard| {
        assert!(guard.is_held());
        assert!(is_busy(&client, "a"));
        17
    });
    assert_eq!(value.unwrap(), 17);
    assert!(!is_busy(&client, "a"));
    let name = client.mutex("a").with(|guard| guard.name().to_owned());
    assert_eq!(name.unwrap(), "a");
    assert!(!is_busy(&client, "a"));
}

fn with_lock_releases_after_a_panic(store: &Store) {
    let client = store.open(patient());
    let panicked = thread::scope(|scope| {
        let work = || client.with_lock("a", |_| panic!("as the test wants"));
        scope.spawn(work).join().is_err()
    });
    assert!(panicked);
    assert!(!is_busy(&client, "a"));
}
