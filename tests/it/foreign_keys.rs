//! Keys of other programs are never changed.

use std::time::Duration;

use leasehold::Error;

use crate::support::{LEASE, SOON, Server, is_busy, ms, patient, stores, take, timed};

stores! {
    every server:
        a_value_of_another_type_is_an_error_and_stays,
        a_foreign_hash_without_a_ttl_counts_as_held,
        a_lock_of_redisson_is_waited_for,
        no_call_prolongs_or_ends_a_foreign_hold;
}

fn a_value_of_another_type_is_an_error_and_stays(server: &Server) {
    let client = server.open(patient());
    server.command(&["SET", "text", "precious"]);
    server.command(&["RPUSH", "list", "one", "two"]);
    server.command(&["ZADD", "queue", "1", "one"]);
    for name in ["text", "list", "queue"] {
        let before: Vec<u8> = server.ask(&["DUMP", name]);
        let mutex = client.mutex(name);
        let (result, took) = timed(|| client.lock(name));
        assert_wrong_type(result, name);
        assert!(took < ms(5000), "waiting does not help: {took:?}");
        assert_wrong_type(client.try_lock(name), name);
        assert_wrong_type(client.try_lock_for(name, ms(100)), name);
        // Whatever these return, they must leave the key alone.
        mutex.is_locked().ok();
        mutex.holder().ok();
        assert!(!matches!(mutex.force_unlock(), Ok(true)), "{name}");
        let after: Vec<u8> = server.ask(&["DUMP", name]);
        assert_eq!(after, before, "{name}");
        assert_eq!(server.raw_pttl(name), -1, "{name}");
    }
}

#[track_caller]
fn assert_wrong_type<T: std::fmt::Debug>(result: Result<T, Error>, name: &str) {
    match result {
        Err(Error::WrongType { name: wrong, .. }) => assert_eq!(wrong, name),
        other => panic!("{other:?} instead of the wrong type of {name}"),
    }
}

fn a_foreign_hash_without_a_ttl_counts_as_held(server: &Server) {
    let client = server.open(patient());
    server.command(&["HSET", "a", "someone", "1", "another", "x"]);
    let before = server.hash("a");

    assert!(client.try_lock("a").unwrap().is_none());
    assert!(client.try_lock_for("a", ms(300)).unwrap().is_none());
    let limited = client.mutex("a").wait(ms(300));
    assert!(matches!(limited.lock(), Err(Error::Timeout { .. })));
    assert!(limited.is_locked().unwrap());

    assert_eq!(server.hash("a"), before);
    assert_eq!(server.raw_pttl("a"), -1);

    // Although there is no time to live to wait for, a waiter notices that the key is gone.
    std::thread::scope(|scope| {
        scope.spawn(|| client.lock("a").unwrap().unlock().unwrap());
        std::thread::sleep(ms(200));
        server.command(&["DEL", "a"]);
    });
}

fn a_lock_of_redisson_is_waited_for(server: &Server) {
    let client = server.open(patient());
    server.command(&["HSET", "a", "285475da-9152-4c83-822a-67ee2f116a79:52", "2"]);
    server.command(&["PEXPIRE", "a", "1500"]);
    let holder = client.mutex("a").holder().unwrap().unwrap();
    assert_eq!(holder.owner, "285475da-9152-4c83-822a-67ee2f116a79:52");
    assert_eq!(holder.depth, 2);
    assert!(holder.remaining > Duration::ZERO && holder.remaining <= ms(1500));

    assert!(is_busy(&client, "a"));
    assert!(server.pttl("a") <= ms(1500), "an attempt does not prolong it");
    let (guard, took) = timed(|| client.lock("a").unwrap());
    assert!(took > ms(500) && took < ms(4000), "{took:?}");
    assert_eq!(server.hold("a").1, "1");
    guard.unlock().unwrap();
}

fn no_call_prolongs_or_ends_a_foreign_hold(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    // One was ours and is overwritten; the other never was.
    let ours = take(&client, "ours");
    for name in ["ours", "theirs"] {
        server.command(&["DEL", name]);
        server.command(&["HSET", name, "285475da-9152-4c83-822a-67ee2f116a79:52", "2"]);
        server.command(&["PEXPIRE", name, "60000"]);
    }
    let state = |name: &str| (server.hash(name), server.raw_pttl(name));
    let before = ["ours", "theirs"].map(state);
    assert!(client.try_lock_for("theirs", ms(300)).unwrap().is_none());
    assert!(client.mutex("theirs").is_locked().unwrap());
    // The renewer notices, and so does every call.
    assert_eq!(ours.lost().recv_timeout(SOON), Ok(()));
    assert!(ours.verify().is_err() && client.try_lock("ours").is_err());
    drop(ours);
    for (name, (hash, left)) in ["ours", "theirs"].into_iter().zip(before) {
        let now = state(name);
        assert_eq!(now.0, hash, "{name}");
        assert!(now.1 <= left && now.1 > left - 30_000, "{name}: {} of {left} ms", now.1);
    }
}
