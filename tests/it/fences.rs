//! Fencing tokens grow with every hold of a name, whatever happens to their counter.

use std::time::Duration;

use leasehold::{Client, Error};

use crate::support::{SHORT, Server, Store, elsewhere, ms, patient, stores, take};

stores! {
    every store:
        a_new_holder_has_a_greater_fence;
    every server:
        fences_grow_over_lost_counters,
        a_fence_counter_ahead_of_the_clock_is_continued,
        a_spoilt_fence_counter_is_an_error_without_a_hold,
        a_fence_that_no_longer_fits_is_an_error_without_a_hold,
        the_fence_is_kept_for_a_day;
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

fn a_spoilt_fence_counter_is_an_error_without_a_hold(server: &Server) {
    let client = server.open(patient());
    server.command(&["SET", "leasehold:fence:{lock:a}", "abc"]);
    server.command(&["RPUSH", "leasehold:fence:{lock:b}", "abc"]);
    server.command(&["SET", "leasehold:fence:{lock:c}", "9223372036854775807"]);
    for name in ["a", "b", "c"] {
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

fn a_fence_that_no_longer_fits_is_an_error_without_a_hold(server: &Server) {
    let client = server.open(Client::builder());
    let last_but_one = (1_u64 << 53) - 2;
    server.command(&["SET", "leasehold:fence:{lock:a}", &last_but_one.to_string()]);
    let guard = take(&client, "a");
    assert_eq!(guard.fence(), last_but_one + 1);
    guard.unlock().unwrap();
    let result = client.try_lock("a");
    assert!(matches!(result, Err(Error::Redis { .. })), "{result:?}");
    assert!(!server.exists("a"));
}

fn the_fence_is_kept_for_a_day(server: &Server) {
    let client = server.open(Client::builder());
    take(&client, "a").unlock().unwrap();
    let day = ms(24 * 3600 * 1000);
    assert!(server.fence_life("a") + MINUTE > day);

    let two_days = client.mutex("b").lease(2 * day).lock().unwrap();
    assert!(server.fence_life("b") + MINUTE > 4 * day);
    two_days.unlock().unwrap();
}
