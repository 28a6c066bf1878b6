//! Fencing tokens grow with every hold of a name, whatever happens to their counter.

use std::time::Duration;

use leasehold::{Client, Error};

use crate::support::{
    SHORT, SOON, Server, Store, elsewhere, eventually, ms, patient, stores, take,
};

stores! {
    every store:
        a_new_holder_has_a_greater_fence,
        a_fence_counter_lives_as_long_as_configured,
        fences_grow_after_their_counter_has_expired;
    every server:
        fences_grow_over_lost_counters,
        a_fence_counter_ahead_of_the_clock_is_continued,
        an_attempt_for_a_held_lock_does_not_touch_the_counter,
        a_spoilt_fence_counter_is_an_error_without_a_hold,
        a_fence_beyond_its_maximum_is_an_error_without_a_hold,
        the_fence_is_kept_for_a_day_and_never_for_ever;
}

/// Longer than any machine takes between the lock and the check.
const MINUTE: Duration = ms(60_000);

fn a_new_holder_has_a_greater_fence(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let mutex = client.mutex("a").lease(SHORT).renew(false);
    let first = mutex.lock().unwrap();
    let second = elsewhere(|| client.lock("a").unwrap().fence());
    assert!(second > first.fence());
    drop(first);
    assert!(take(&client, "a").fence() > second);
}

fn fences_grow_over_lost_counters(server: &Server) {
    let client = server.open(Client::builder());
    let mut last = 0;
    for round in 0..40 {
        let guard = client.lock("a").unwrap();
        assert!(guard.fence() > last, "in round {round}");
        last = guard.fence();
        guard.unlock().unwrap();
        match round % 4 {
            0 => drop(server.command(&["FLUSHALL"])),
            1 => drop(server.command(&["DEL", "leasehold:fence:{lock:a}"])),
            _ => {}
        }
    }
    server.restart();
    assert!(client.lock("a").unwrap().fence() > last);
}

fn a_fence_counter_ahead_of_the_clock_is_continued(server: &Server) {
    let client = server.open(Client::builder());
    let ahead = (1_u64 << 53) - 1000;
    server.command(&["SET", "leasehold:fence:{lock:a}", &ahead.to_string()]);
    for step in 1..10 {
        assert_eq!(take(&client, "a").fence(), ahead + step);
    }
}

fn an_attempt_for_a_held_lock_does_not_touch_the_counter(server: &Server) {
    let (client, other) = (server.open(patient()), server.open(patient()));
    let guard = take(&client, "a");
    server.command(&["PEXPIRE", "leasehold:fence:{lock:a}", "60000"]);
    assert!(other.try_lock("a").unwrap().is_none());
    assert!(other.try_lock_for("a", ms(50)).unwrap().is_none());
    let fence: u64 = server.ask(&["GET", "leasehold:fence:{lock:a}"]);
    assert_eq!(fence, guard.fence());
    assert!(server.fence_life("a") <= MINUTE);
}

fn a_spoilt_fence_counter_is_an_error_without_a_hold(server: &Server) {
    let client = server.open(patient());
    server.command(&["SET", "leasehold:fence:{lock:a}", "abc"]);
    server.command(&["RPUSH", "leasehold:fence:{lock:b}", "abc"]);
    server.command(&["SET", "leasehold:fence:{lock:c}", "9223372036854775807"]);
    server.command(&["SET", "leasehold:fence:{lock:d}", "1.5"]);
    server.command(&["SET", "leasehold:fence:{lock:e}", "-1"]);
    for name in ["a", "b", "c", "d", "e"] {
        let key = format!("leasehold:fence:{{lock:{name}}}");
        let before: Vec<u8> = server.ask(&["DUMP", &key]);
        let result = client.try_lock(name);
        assert!(
            matches!(result, Err(Error::Redis { .. } | Error::WrongType { .. })),
            "{name}: {result:?}"
        );
        assert!(!server.exists(name), "{name} is not half taken");
        let after: Vec<u8> = server.ask(&["DUMP", &key]);
        assert_eq!(after, before, "{name}");
    }
}

fn a_fence_beyond_its_maximum_is_an_error_without_a_hold(server: &Server) {
    let client = server.open(Client::builder());
    let last_but_one = (1_u64 << 53) - 2;
    server.command(&["SET", "leasehold:fence:{lock:a}", &last_but_one.to_string()]);
    let guard = take(&client, "a");
    assert_eq!(guard.fence(), last_but_one + 1);
    guard.unlock().unwrap();
    let result = client.try_lock("a");
    assert!(matches!(result, Err(Error::Redis { .. })), "{result:?}");
    assert!(!server.exists("a"));
    assert_eq!(server.ask::<u64>(&["GET", "leasehold:fence:{lock:a}"]), last_but_one + 1);
    assert!(server.fence_life("a") > MINUTE);
}

fn the_fence_is_kept_for_a_day_and_never_for_ever(server: &Server) {
    take(&server.open(Client::builder()), "a").unlock().unwrap();
    assert!(server.fence_life("a") + MINUTE > 24 * HOUR);
    assert!(server.fence_life("a") <= 24 * HOUR);

    take(&server.open(Client::builder().fence_life(Duration::MAX)), "b").unlock().unwrap();
    assert!(server.fence_life("b") > 24 * 365 * 99 * HOUR);
}

const HOUR: Duration = ms(3600 * 1000);

fn a_fence_counter_lives_as_long_as_configured(store: &Store) {
    let client = store.open(patient().fence_life(HOUR));
    for (name, lease, wanted) in [
        ("a", ms(30_000), HOUR),
        ("b", HOUR / 2, HOUR),
        ("c", HOUR, 2 * HOUR),
        ("d", 24 * HOUR, 48 * HOUR),
    ] {
        client.mutex(name).lease(lease).lock().unwrap().unlock().unwrap();
        if !matches!(store, Store::Memory(_)) {
            // A server of a quorum may be late.
            eventually(SOON, || store.fence_life(name).is_some());
            let life = store.fence_life(name).unwrap();
            assert!(life <= wanted && life + MINUTE > wanted, "{life:?} instead of {wanted:?}");
        }
    }
}

fn fences_grow_after_their_counter_has_expired(store: &Store) {
    // Zero counts as two leases.
    let client = store.open_for(SHORT, patient().fence_life(Duration::ZERO));
    let mutex = client.mutex("a").lease(SHORT);
    let mut last = 0;
    for _ in 0..2 {
        let guard = mutex.lock().unwrap();
        assert!(guard.fence() > last);
        last = guard.fence();
        guard.unlock().unwrap();
        assert!(store.fence_life("a").is_none_or(|life| life > SHORT / 2 && life <= 2 * SHORT));
        eventually(SOON, || store.fence_life("a").is_none());
    }
}
