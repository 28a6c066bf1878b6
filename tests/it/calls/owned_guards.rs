//! A guard that belongs to no thread.

use std::thread;

use leasehold::{Error, HoldEnd, OwnedGuard};

use crate::support::{
    LEASE, SHORT, SOON, Store, elsewhere, eventually, is_busy, ms, patient, stores, take,
    throughout,
};

stores! {
    every store:
        an_owned_guard_may_be_released_by_another_thread,
        an_owned_guard_outlives_its_thread,
        an_owned_guard_never_nests,
        an_owned_guard_waits_in_line_with_others,
        an_owned_guard_knows_when_it_is_lost,
        an_owned_guard_can_be_renewed_by_hand;
}

const fn is_shared_between_threads<T: Send + Sync + 'static>() {}
const _: () = is_shared_between_threads::<OwnedGuard>();

fn an_owned_guard_may_be_released_by_another_thread(store: &Store) {
    let client = store.open(patient());
    for round in 0..3 {
        let guard = client.lock_owned("a").unwrap();
        assert_eq!((guard.name(), guard.depth()), ("a", 1));
        guard.verify().unwrap();
        thread::spawn(move || if round == 0 { drop(guard) } else { guard.unlock().unwrap() })
            .join()
            .unwrap();
        eventually(SOON, || !is_busy(&client, "a"));
    }
}

fn an_owned_guard_outlives_its_thread(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    let there = client.clone();
    let guard = thread::spawn(move || there.lock_owned("a").unwrap()).join().unwrap();
    throughout(LEASE * 2, || guard.is_held() && is_busy(&client, "a"));
    guard.unlock().unwrap();
}

fn an_owned_guard_never_nests(store: &Store) {
    let client = store.open(patient());
    let owned = client.lock_owned("a").unwrap();
    assert!(!client.mutex("a").is_held_by_current_thread());
    assert!(client.try_lock("a").unwrap().is_none());
    assert!(client.try_lock_owned("a").unwrap().is_none());
    assert!(client.try_lock_owned_for("a", ms(30)).unwrap().is_none());
    let fence = owned.fence();
    owned.unlock().unwrap();
    let outer = take(&client, "a");
    assert!(outer.fence() > fence);
    assert!(client.try_lock_owned("a").unwrap().is_none());
    assert_eq!(take(&client, "a").depth(), 2);
    let timed_out = client.mutex("a").wait(ms(30)).lock_owned();
    assert!(matches!(timed_out, Err(Error::Timeout { .. })), "{timed_out:?}");
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
                    let seen = number.read();
                    thread::sleep(ms(1));
                    number.write(seen + 1);
                    drop((guard, owned));
                }
            });
        }
    });
    assert_eq!(register.handle().read(), 60);
}

fn an_owned_guard_knows_when_it_is_lost(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let guard = client.mutex("a").lease(SHORT).renew(false).lock_owned().unwrap();
    let lost = guard.lost();
    assert_eq!(elsewhere(move || lost.wait()), HoldEnd::Lost);
    assert!(!guard.is_held());
    assert!(matches!(guard.verify(), Err(Error::Lost { .. })));
    assert!(matches!(guard.renew(), Err(Error::Lost { .. })));
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    assert!(client.lock_owned("a").unwrap().is_held());
}

fn an_owned_guard_can_be_renewed_by_hand(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let guard = client.mutex("a").lease(SHORT).renew(false).lock_owned().unwrap();
    throughout(2 * SHORT, || {
        guard.renew().unwrap();
        guard.is_held()
    });
    assert!(is_busy(&client, "a"));
    guard.unlock().unwrap();
}
