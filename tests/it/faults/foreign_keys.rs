//! Keys of other programs are never changed.

use std::time::Duration;

use leasehold::HoldEnd;

use crate::support::{
    LEASE, SOON, Server, assert_found, assert_wrong_type, is_busy, lock_key, ms, patient, stores,
    take, timed,
};

stores! {
    every server:
        a_key_that_is_no_lock_is_an_error_and_stays,
        a_sorted_set_of_another_program_is_no_lock_and_stays,
        a_large_hash_is_not_read,
        a_string_with_a_ttl_is_a_lock_of_another_library,
        a_string_that_is_no_text_can_be_ended,
        a_lock_with_many_readers_is_a_lock,
        a_lock_of_redisson_is_waited_for,
        no_call_prolongs_or_ends_a_foreign_hold;
}

fn a_key_that_is_no_lock_is_an_error_and_stays(server: &Server) {
    let client = server.open(patient());
    server.command(&["SET", "lock:text", "precious"]);
    server.command(&["RPUSH", "lock:list", "one", "two"]);
    server.command(&["ZADD", "lock:scores", "1", "one"]);
    server.command(&["HSET", "lock:hash", "someone", "1"]);
    server.command(&["HSET", "lock:like a lock", "285475da:52", "1"]);
    for (name, field, value) in [("session", "user", "7"), ("count", "a:1", "x")] {
        server.command(&["HSET", &lock_key(name), field, value]);
        server.command(&["PEXPIRE", &lock_key(name), "60000"]);
    }
    for (name, found) in [
        ("text", "a string without a TTL"),
        ("list", "a list"),
        ("scores", "a sorted set without a TTL"),
        ("hash", "a hash without a TTL"),
        ("like a lock", "a hash without a TTL"),
        ("session", "a hash of another program"),
        ("count", "a hash of another program"),
    ] {
        assert_found(client.try_lock(name), found);
        assert_found(client.mutex(name).force_unlock(), found);
        assert_found(client.rw_lock(name).try_read(), found);
        assert_found(client.semaphore(name, 2).available(), found);
        assert_found(client.survey().report(name), found);
        let before: Vec<u8> = server.ask(&["DUMP", &lock_key(name)]);
        let lasts = server.raw_pttl(name);
        let mutex = client.mutex(name);
        let (result, took) = timed(|| client.lock(name));
        assert_wrong_type(result, name);
        assert!(took < ms(5000), "waiting does not help: {took:?}");
        assert_wrong_type(client.try_lock(name), name);
        assert_wrong_type(client.try_lock_for(name, ms(100)), name);
        assert_wrong_type(mutex.is_locked(), name);
        assert_wrong_type(mutex.holder(), name);
        assert_wrong_type(mutex.force_unlock(), name);
        for names in [["free", name], [name, "free"]] {
            assert_wrong_type(client.lock_all(names), name);
            assert_wrong_type(client.try_lock_all(names), name);
            assert_wrong_type(client.try_lock_all_for(names, ms(0)), name);
            assert_wrong_type(client.try_lock_all_for(names, ms(100)), name);
        }
        assert!(!server.exists("free"));
        let after: Vec<u8> = server.ask(&["DUMP", &lock_key(name)]);
        assert_eq!(after, before, "{name}");
        let left = server.raw_pttl(name);
        assert!(left <= lasts && left > lasts - 30_000, "{name}: {left} of {lasts} ms");
    }
}

/// Even if its members look like holds.
fn a_sorted_set_of_another_program_is_no_lock_and_stays(server: &Server) {
    let client = server.open(patient());
    let hold = "p:0123456789abcdef0123456789abcdef:1";
    let sets: [&[&str]; 4] = [
        &["1", "r:ab:1", "2", "hello"],
        &["1", "p:post:42"],
        &["1", "w:post:42", "99999999999999", "w:post:43"],
        &["1", hold, "2", "hello"],
    ];
    for (number, members) in sets.into_iter().enumerate() {
        let name = &format!("scores {number}");
        server.command(&[&["ZADD", &lock_key(name)], members].concat());
        server.command(&["PEXPIRE", &lock_key(name), "60000"]);
        let before: Vec<u8> = server.ask(&["DUMP", &lock_key(name)]);
        let (lock, semaphore) = (client.rw_lock(name), client.semaphore(name, 2));
        assert_wrong_type(lock.read(), name);
        assert_wrong_type(lock.try_read(), name);
        assert_wrong_type(lock.write(), name);
        assert_wrong_type(lock.try_write(), name);
        assert_wrong_type(semaphore.acquire(), name);
        assert_wrong_type(semaphore.try_acquire(), name);
        assert_wrong_type(semaphore.try_acquire_for(ms(100)), name);
        assert_wrong_type(semaphore.available(), name);
        assert_wrong_type(client.try_lock(name), name);
        assert_wrong_type(client.survey().report(name), name);
        assert_found(lock.try_read(), "a sorted set of another program");
        assert_found(client.try_lock(name), "a sorted set of another program");
        assert_found(client.survey().report(name), "a sorted set of another program");
        assert_wrong_type(client.survey().end_holds(name), name);
        let after: Vec<u8> = server.ask(&["DUMP", &lock_key(name)]);
        assert_eq!(after, before, "{members:?}");
        let left = server.raw_pttl(name);
        assert!((30_000..=60_000).contains(&left), "{members:?}: {left} ms");
    }
}

fn a_large_hash_is_not_read(server: &Server) {
    let client = server.open(patient());
    let fill = "for i = 1, 300000 do redis.call('hset', KEYS[1], 'field:' .. i, i) end";
    server.command(&["EVAL", fill, "1", "lock:large"]);
    server.command(&["PEXPIRE", "lock:large", "60000"]);
    assert_wrong_type(client.mutex("large").holder(), "large");
    assert_wrong_type(client.try_lock("large"), "large");
    assert_found(client.rw_lock("large").try_read(), "a hash of another program");
    let calls: String = server.ask(&["INFO", "commandstats"]);
    assert!(!calls.contains("cmdstat_hgetall"), "{calls}");
}

/// `SET NX PX`, as used by redsync, redis-py, rslock and Redlock.
fn a_string_with_a_ttl_is_a_lock_of_another_library(server: &Server) {
    let client = server.open(patient());
    server.command(&["SET", "lock:a", "a token", "NX", "PX", "1000"]);
    let mutex = client.mutex("a");
    let holder = mutex.holder().unwrap().unwrap();
    assert_eq!((holder.owner.as_str(), holder.client.as_str()), ("a token", ""));
    assert!(holder.remaining <= ms(1000) && holder.depth == 1);
    assert!(is_busy(&client, "a") && mutex.is_locked().unwrap());
    let error = client.mutex("a").wait(ms(20)).lock().unwrap_err();
    let shown = format!("{holder:?} {error} {error:?}");
    assert!(!shown.contains("token"), "it is all that it takes to release the lock: {shown}");
    let (guard, took) = timed(|| client.lock("a").unwrap());
    assert!(took > ms(300) && took < ms(4000), "{took:?}");
    guard.unlock().unwrap();

    server.command(&["SET", "lock:a", "a token", "NX", "PX", "60000"]);
    assert!(mutex.force_unlock().unwrap());
    assert!(!server.exists("a"));
}

/// The values of rslock are 20 random bytes.
fn a_string_that_is_no_text_can_be_ended(server: &Server) {
    let client = server.open(patient());
    let mutex = client.mutex("a");
    let long = "\u{20ac}".repeat(100);
    for value in [&b"\xff\xfe\x80token"[..], &[b'\xfe'; 300], long.as_bytes()] {
        let set = || {
            let mut request = redis::cmd("SET");
            request.arg("lock:a").arg(value).arg("PX").arg(60_000);
            request.exec(&mut server.connect()).unwrap();
        };
        set();
        assert!(mutex.holder().unwrap().unwrap().owner.contains('\u{fffd}'));
        assert!(mutex.force_unlock().unwrap());
        assert!(!server.exists("a"));
        set();
        assert_eq!(client.survey().end_holds("a").unwrap(), 1);
        assert!(!server.exists("a"));
    }
}

/// A read lock of Redisson has a field for each reading thread.
fn a_lock_with_many_readers_is_a_lock(server: &Server) {
    let client = server.open(patient());
    let fill = "redis.call('hset', KEYS[1], 'mode', 'read')
        for i = 1, 300 do redis.call('hset', KEYS[1], ARGV[1] .. i, 1) end
        redis.call('pexpire', KEYS[1], 60000)";
    let readers = "285475da-9152-4c83-822a-67ee2f116a79:";
    server.command(&["EVAL", fill, "1", "lock:a", readers]);
    assert!(is_busy(&client, "a") && client.mutex("a").is_locked().unwrap());
    let holder = client.mutex("a").holder().unwrap().unwrap();
    assert!(holder.owner.starts_with(readers), "{holder:?}");
}

fn a_lock_of_redisson_is_waited_for(server: &Server) {
    let client = server.open(patient());
    server.command(&["HSET", "lock:a", "285475da-9152-4c83-822a-67ee2f116a79:52", "2"]);
    server.command(&["PEXPIRE", "lock:a", "1500"]);
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
        server.command(&["DEL", &lock_key(name)]);
        server.command(&["HSET", &lock_key(name), "285475da-9152-4c83-822a-67ee2f116a79:52", "2"]);
        server.command(&["PEXPIRE", &lock_key(name), "60000"]);
    }
    let state = |name: &str| (server.hash(name), server.raw_pttl(name));
    let before = ["ours", "theirs"].map(state);
    assert!(client.try_lock_for("theirs", ms(300)).unwrap().is_none());
    assert!(client.mutex("theirs").is_locked().unwrap());
    // The renewer notices, and so does every call.
    assert_eq!(ours.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    assert!(ours.verify().is_err() && client.try_lock("ours").is_err());
    drop(ours);
    for (name, (hash, left)) in ["ours", "theirs"].into_iter().zip(before) {
        let now = state(name);
        assert_eq!(now.0, hash, "{name}");
        assert!(now.1 <= left && now.1 > left - 30_000, "{name}: {} of {left} ms", now.1);
    }
}
