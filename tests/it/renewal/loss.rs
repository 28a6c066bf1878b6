//! Holds that Redis forgets: deleted, flushed, evicted, expired early or overwritten.

use leasehold::{Client, Error, Guard, HoldEnd, LossCause};

use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, SOON, Server, assert_lost, eventually, is_busy, lock_key, patient, soon, stores, take,
    throughout,
};

stores! {
    every server:
        flushall_ends_the_hold,
        a_restart_without_the_data_ends_the_hold,
        a_waiter_gets_a_lock_that_was_deleted,
        a_deleted_key_ends_the_hold,
        a_lost_lock_names_the_client_that_took_it,
        a_foreign_key_ends_the_hold,
        every_call_notices_a_foreign_key,
        verify_and_renew_notice_a_key_of_another_type,
        unlock_and_lost_agree_on_a_loss,
        one_lost_hold_does_not_disturb_the_others,
        a_server_that_evicts_a_hold_ends_it,
        a_clock_that_jumps_ahead_ends_the_hold;
}

fn verify_and_renew_notice_a_key_of_another_type(server: &Server) {
    let client = server.open(patient());
    for (name, check) in [("a", Guard::verify as fn(&Guard) -> _), ("b", Guard::renew)] {
        let guard = take(&client, name);
        server.command(&["SET", &lock_key(name), "something else"]);
        assert_lost(check(&guard), name);
        assert!(!guard.is_held());
        assert_lost(guard.unlock(), name);
        assert_eq!(server.ask::<String>(&["GET", &lock_key(name)]), "something else");
    }
}

fn a_lost_lock_names_the_client_that_took_it(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open_for(LEASE, patient().on_event(recorder.listener()));
    let other = server.open(patient());
    let by = || LossCause::Taken { by: other.id().to_owned() };
    let taken = |name: &str| {
        server.command(&["DEL", &lock_key(name)]);
        other.lock_owned(name).unwrap()
    };
    let renewed = client.mutex("a").lease(LEASE).lock().unwrap();
    let _other = taken("a");
    assert_eq!(renewed.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    assert_eq!(renewed.lost().cause(), Some(by()));
    recorder.wait_for("lost a");
    let called = ["b", "c", "d"].map(|name| (take(&client, name), taken(name)));
    let [(verified, _), (nested, _), (released, _)] = called;
    for result in [
        renewed.unlock(),
        verified.verify(),
        client.lock(nested.name()).map(drop),
        released.unlock(),
    ] {
        assert!(matches!(&result, Err(Error::Lost { cause, .. }) if *cause == by()), "{result:?}");
    }
    let writer = client.rw_lock("e").write().unwrap();
    server.command(&["DEL", &lock_key("e")]);
    let _reader = other.rw_lock("e").read().unwrap();
    writer.verify().unwrap_err();
    assert_eq!(writer.lost().cause(), Some(by()));
    let permit = client.semaphore("f", 2).acquire().unwrap();
    server.command(&["DEL", &lock_key("f")]);
    let _permit = other.semaphore("f", 2).acquire().unwrap();
    permit.verify().unwrap_err();
    assert_eq!(permit.lost().cause(), Some(LossCause::Gone), "no other client is in its way");
}

fn unlock_and_lost_agree_on_a_loss(server: &Server) {
    let client = server.open(patient());
    let guard = take(&client, "a");
    let (lost, also) = (guard.lost(), guard.lost());
    server.command(&["DEL", "lock:a"]);
    assert_lost(guard.unlock(), "a");
    assert_eq!([lost.wait(), also.wait()], [HoldEnd::Lost; 2]);
}

fn flushall_ends_the_hold(server: &Server) {
    a_hold_ends_by(server, |server| {
        server.command(&["FLUSHALL"]);
    });
}

fn a_restart_without_the_data_ends_the_hold(server: &Server) {
    a_hold_ends_by(server, Server::restart);
    take(&server.open(patient()), "a").unlock().unwrap();
}

fn a_waiter_gets_a_lock_that_was_deleted(server: &Server) {
    let (client, waiter) = (server.open(patient()), server.open(Client::builder()));
    let guard = take(&client, "a");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(|guard| guard.fence()));
        eventually(SOON, || !server.queue("a").is_empty());
        server.command(&["FLUSHALL"]);
        // No message wakes the waiter, and the queue is gone too.
        let fence = soon(|| waits.join().unwrap().unwrap());
        assert!(fence > guard.fence());
    });
    assert_lost(guard.unlock(), "a");
}

fn a_deleted_key_ends_the_hold(server: &Server) {
    a_hold_ends_by(server, |server| {
        server.command(&["DEL", "lock:a"]);
    });
}

/// Checks that a hold that `fault` ends is reported as lost in every way and never recreated, and
/// that a new one works.
fn a_hold_ends_by(server: &Server, fault: impl FnOnce(&Server)) {
    let recorder = Recorder::default();
    let client = server.open(patient().lease(LEASE).on_event(recorder.listener()));
    let outer = take(&client, "a");
    let inner = take(&client, "a");
    let lost = outer.lost();

    fault(server);

    assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Lost));
    recorder.wait_for("lost a");
    assert!(!outer.is_held() && !inner.is_held());
    assert_lost(outer.verify(), "a");
    assert_lost(client.lock("a"), "a");
    assert_lost(client.try_lock("a"), "a");
    let fence = outer.fence();
    assert_lost(inner.unlock(), "a");
    assert_lost(client.lock("a"), "a");
    assert_lost(outer.unlock(), "a");
    assert!(!server.exists("a"));
    assert_eq!(recorder.count("lost a"), 1);

    let again = client.lock("a").unwrap();
    assert_eq!(again.depth(), 1);
    assert!(again.fence() > fence);
    throughout(2 * LEASE, || again.is_held() && server.exists("a"));
    again.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_foreign_key_ends_the_hold(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    server.command(&["DEL", "lock:a"]);
    server.command(&["HSET", "lock:a", "another program", "1"]);
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    assert_lost(guard.unlock(), "a");
    assert_eq!(server.hold("a").0, "another program");
    assert_eq!(server.raw_pttl("a"), -1, "nor was it given a lease");
}

fn every_call_notices_a_foreign_key(server: &Server) {
    // The lease is the usual one, so that the renewer does not notice it first.
    let client = server.open(patient());
    let [verified, nested, released] = ["a", "b", "c"].map(|name| {
        let guard = take(&client, name);
        server.command(&["DEL", &lock_key(name)]);
        server.command(&["HSET", &lock_key(name), "another program", "1"]);
        guard
    });
    assert_lost(verified.verify(), "a");
    assert!(!verified.is_held(), "and it stays lost");
    assert_lost(client.lock("b"), "b");
    assert!(!nested.is_held());
    let error = client.lock("b").unwrap_err().to_string();
    assert!(error.starts_with("this thread still has a lost guard of \"b\": drop it; "), "{error}");
    assert_lost(released.unlock(), "c");
    drop((verified, nested));
    for name in ["a", "b", "c"] {
        assert_eq!(server.hold(name), ("another program".to_owned(), "1".to_owned()));
        assert_eq!(server.raw_pttl(name), -1, "nor was it given a lease");
    }
}

fn one_lost_hold_does_not_disturb_the_others(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let guards = ["a", "b", "c"].map(|name| take(&client, name));
    server.command(&["DEL", "lock:b"]);
    assert_eq!(guards[1].lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    throughout(2 * LEASE, || {
        guards[0].is_held() && server.exists("a") && guards[2].is_held() && server.exists("c")
    });
}

fn a_server_that_evicts_a_hold_ends_it(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    server.set_config("maxmemory-policy", "volatile-ttl");
    server.set_config("maxmemory", "1");
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    assert!(!server.exists("a"));
    server.set_config("maxmemory", "0");
    let fence = guard.fence();
    assert_lost(guard.unlock(), "a");
    assert!(take(&client, "a").fence() > fence);
}

fn a_clock_that_jumps_ahead_ends_the_hold(server: &Server) {
    let (client, other) = (server.open(patient().lease(LEASE)), server.open(patient()));
    let guard = take(&client, "a");
    // The key has expired for the server, but not for the client.
    server.command(&["PEXPIRE", "lock:a", "0"]);
    let next = other.lock("a").unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    assert_lost(guard.unlock(), "a");
    next.verify().unwrap();
    assert!(is_busy(&client, "a"));
}
