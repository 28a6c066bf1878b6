//! The longest time that calls take when a server hangs or the network carries nothing.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard, HoldEnd};

use crate::support::recorder::Recorder;
use crate::support::{
    IO, LEASE, SOON, Server, Store, assert_unavailable, behind_proxy, eventually, hasty, ms,
    opened, soon, stores, take, throughout, timed,
};

stores! {
    every store:
        close_and_the_end_of_a_client_cost_nothing;
    every server:
        a_silent_server_costs_a_call_no_more_than_promised,
        a_silent_server_costs_a_drop_one_io_timeout,
        a_silent_server_costs_close_nothing,
        a_drop_that_cannot_hand_off_stretches_no_wait,
        a_handoff_that_a_silent_server_prevents_ends_in_time,
        a_handoff_that_a_read_only_server_prevents_ends_in_time;
    one server:
        a_login_that_hangs_ends_in_time,
        a_loss_is_reported_at_its_deadline_whatever_hangs,
        a_release_that_never_arrives_is_not_renewed,
        a_lock_that_cannot_be_cleaned_up_ends_with_its_lease,
        a_nested_lock_without_a_reply_leaves_the_outer_one,
        a_call_that_hangs_does_not_delay_later_calls,
        a_call_that_hangs_starves_no_renewal,
        a_call_that_hangs_starves_no_release;
}

/// The promised maximum beyond the deadline and the attempts.
const MARGIN: Duration = ms(100);

/// Checks that `call` takes no longer than `bound` in the best of a few tries. The machine may
/// pause in one of them, but a call that waits too long does so each time.
#[track_caller]
fn assert_within(bound: Duration, what: &str, mut call: impl FnMut()) {
    let mut took = Vec::new();
    for _ in 0..4 {
        took.push(timed(&mut call).1);
        if took.last().is_some_and(|last| *last <= bound) {
            return;
        }
    }
    panic!("{what} took {took:?} and may take {bound:?}");
}

fn a_silent_server_costs_a_call_no_more_than_promised(server: &Server) {
    let client = server.open(hasty());
    let mutex = client.mutex("b");
    let guard = take(&client, "a");
    server.stop();
    for wait in [ms(0), ms(200), ms(500)] {
        assert_within(wait + IO + MARGIN, "a timed lock", || {
            assert_unavailable(client.try_lock_for("b", wait));
        });
        assert_within(wait + IO + MARGIN, "a lock with a wait", || {
            assert_unavailable(client.mutex("b").wait(wait).lock());
        });
        assert_within(wait + IO + MARGIN, "a nested lock with a wait", || {
            assert_unavailable(client.try_lock_for("a", wait));
        });
    }
    // Calls without a deadline try a second time.
    let twice = 2 * IO + MARGIN;
    assert_within(twice, "try_lock", || assert_unavailable(client.try_lock("b")));
    assert_within(twice, "a nested try_lock", || assert_unavailable(client.try_lock("a")));
    assert_within(twice, "verify", || assert_unavailable(guard.verify()));
    assert_within(twice, "is_locked", || assert_unavailable(mutex.is_locked()));
    assert_within(twice, "holder", || assert_unavailable(mutex.holder()));
    assert_within(twice, "force_unlock", || assert_unavailable(mutex.force_unlock()));
    assert!(guard.is_held(), "no server has replied that it is gone");
}

fn a_silent_server_costs_a_drop_one_io_timeout(server: &Server) {
    let client = server.open(hasty());
    let names = ["a", "b", "c", "d"];
    let outer = names.map(|name| take(&client, name));
    let inner = RefCell::new(Vec::from(names.map(|name| take(&client, name))));
    let alone = RefCell::new(Vec::from(["e", "f", "g", "h"].map(|name| take(&client, name))));
    let unlocked = RefCell::new(Vec::from(["i", "j", "k", "l"].map(|name| take(&client, name))));
    let names = |set| (0..8).map(move |number| format!("{set}{number}"));
    let sets = ["m", "n", "o", "p"].map(|set| client.lock_all(names(set)).unwrap());
    let sets = RefCell::new(Vec::from(sets));
    server.stop();
    assert_within(IO + MARGIN, "the drop of an inner guard", || drop(inner.borrow_mut().pop()));
    assert_within(IO + MARGIN, "the drop of a guard", || drop(alone.borrow_mut().pop()));
    assert_within(2 * IO + MARGIN, "unlock", || {
        assert_unavailable(unlocked.borrow_mut().pop().unwrap().unlock());
    });
    assert_within(2 * IO + MARGIN, "unlock of a set", || {
        assert_unavailable(sets.borrow_mut().pop().unwrap().unlock());
    });
    server.cont();
    drop((outer, inner, alone, unlocked, sets));
    eventually(SOON, || server.hashes().is_empty());
}

fn a_silent_server_costs_close_nothing(server: &Server) {
    let client = server.open(hasty());
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| client.lock("a").map(drop).unwrap_err());
        }
        thread::sleep(ms(50));
        server.stop();
        assert_within(MARGIN, "close", || client.close());
    });
    assert_within(MARGIN, "a call of a closed client", || {
        assert!(matches!(client.try_lock("b"), Err(Error::Closed)));
    });
    assert_within(MARGIN, "the drop of a clone", || drop(client.clone()));
    server.cont();
    guard.unlock().unwrap();
}

fn close_and_the_end_of_a_client_cost_nothing(store: &Store) {
    let client = store.open(Client::builder());
    take(&client, "a").unlock().unwrap();
    assert_within(MARGIN, "close", || client.close());
    soon(|| drop(client));
}

fn a_login_that_hangs_ends_in_time(server: &Server) {
    server.command(&["ACL", "SETUSER", "ali", "on", ">sesame", "~*", "&*", "+@all"]);
    let (proxy, _client) = behind_proxy(server, hasty());
    let url = proxy.url_for("ali:sesame@");
    let client = opened(|| hasty().open(&url));
    take(&client, "a").unlock().unwrap();
    server.kill_connections();
    proxy.blackhole_for("AUTH");
    assert_within(2 * IO + MARGIN, "try_lock", || assert_unavailable(client.try_lock("a")));
    assert_within(IO + MARGIN, "a timed lock", || {
        assert_unavailable(client.try_lock_for("a", ms(0)));
    });
    assert_within(2 * IO + MARGIN, "open", || assert_unavailable(hasty().open(&url)));
    proxy.heal();
    take(&client, "a").unlock().unwrap();
}

fn a_loss_is_reported_at_its_deadline_whatever_hangs(server: &Server) {
    server.command(&["ACL", "SETUSER", "ali", "on", ">sesame", "~*", "&*", "+@all"]);
    let (proxy, _client) = behind_proxy(server, hasty());
    let hang_replies = || proxy.blackhole();
    let hang_logins = || {
        proxy.blackhole_for("AUTH");
        server.kill_connections();
    };
    for (what, hang) in [("replies", &hang_replies as &dyn Fn()), ("logins", &hang_logins)] {
        let mut late = Vec::new();
        while late.last().is_none_or(|late| *late > MARGIN) {
            assert!(late.len() < 4, "without {what} a loss was reported late: {late:?}");
            // Renewed every second, and retried every 150 ms.
            let open = || hasty().lease(LEASE).open(&proxy.url_for("ali:sesame@"));
            let client = opened(open);
            let guard = take(&client, "a");
            let lost = guard.lost();
            hang();
            let deadline = Instant::now() + guard.remaining();
            assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Lost));
            late.push(deadline.elapsed());
            assert!(!guard.is_held());
            proxy.heal();
            eventually(SOON, || !server.exists("a"));
        }
    }
}

fn a_release_that_never_arrives_is_not_renewed(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty().lease(LEASE));
    let guard = take(&client, "a");
    proxy.blackhole();
    soon(|| drop(guard));
    let mut left = LEASE;
    eventually(SOON, || {
        let now = server.pttl_or_zero("a");
        assert!(now <= left, "{now:?} after {left:?}");
        left = now;
        !server.exists("a")
    });
}

fn a_lock_that_cannot_be_cleaned_up_ends_with_its_lease(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty().lease(LEASE));
    proxy.delay_replies(SOON);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.try_lock("a").map(|guard| guard.is_some()));
        eventually(SOON, || server.exists("a"));
        proxy.refuse();
        assert_unavailable(call.join().unwrap());
    });
    assert!(server.pttl_or_zero("a") <= LEASE);
    eventually(SOON, || !server.exists("a"));
}

fn a_nested_lock_without_a_reply_leaves_the_outer_one(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty().retry_window(IO));
    let outer = take(&client, "a");
    proxy.lose_replies();
    assert_unavailable(client.try_lock("a"));
    proxy.heal();
    // The guards in this process count, whatever the server has executed.
    assert!(outer.is_held());
    outer.verify().unwrap();
    assert_eq!(take(&client, "a").depth(), 2);
    // The drop of the inner guard did not wait for a reply.
    eventually(SOON, || server.hold("a").1 == "1");
    outer.unlock().unwrap();
    assert!(!server.exists("a"));
}

/// Runs `body` while another thread keeps requesting a lock on the only pooled connection, without
/// ever getting a reply.
fn while_the_pool_hangs(server: &Server, body: impl FnOnce(&Client)) {
    let (proxy, client) = behind_proxy(server, Client::builder().lease(LEASE).pool_size(1));
    thread::scope(|scope| {
        let (end, ended) = crossbeam_channel::bounded::<()>(0);
        // Only attempts to acquire the lock name this key; the clean-up does not.
        proxy.blackhole_for("leasehold:fence:{lock:hanging}");
        let (proxy, hanging) = (&proxy, &client);
        scope.spawn(move || {
            while ended.try_recv().is_err_and(|error| error.is_empty()) {
                assert_unavailable(hanging.try_lock("hanging"));
            }
            proxy.heal();
        });
        body(&client);
        drop(end);
    });
}

/// Takes a lock as soon as the other thread leaves the connection for a moment.
fn take_in_between(client: &Client) -> Guard {
    let mut guard = None;
    eventually(3 * SOON, || {
        guard = client.try_lock("a").ok().flatten();
        guard.is_some()
    });
    guard.expect("just taken")
}

fn a_call_that_hangs_does_not_delay_later_calls(server: &Server) {
    while_the_pool_hangs(server, |client| {
        for n in 0..5 {
            // Successful if the connection was free between two calls of the other thread.
            let result = soon(|| client.try_lock_for(&format!("lock {n}"), ms(200)));
            match result {
                Ok(guard) => assert!(guard.is_some(), "no other thread has it"),
                failed => assert_unavailable(failed),
            }
        }
    });
}

fn a_call_that_hangs_starves_no_renewal(server: &Server) {
    while_the_pool_hangs(server, |client| {
        let guard = take_in_between(client);
        throughout(3 * LEASE, || guard.is_held() && server.pttl("a") > LEASE / 3);
    });
}

fn a_call_that_hangs_starves_no_release(server: &Server) {
    while_the_pool_hangs(server, |client| {
        for _ in 0..3 {
            let guard = take_in_between(client);
            soon(|| drop(guard));
            eventually(SOON, || !server.exists("a"));
        }
    });
}

/// Checks that a thread with a deadline of 400 ms waits for hardly any longer when `fault` prevents
/// the holder from handing the lock off to it; in one try of a few, because the machine may pause.
fn assert_a_prevented_handoff_ends_in_time(
    server: &Server,
    fault: &[&str],
    repair: &[&str],
    release: fn(Guard),
) {
    let mut tries = (0..10).map(|_| {
        let recorder = Recorder::default();
        let builder = hasty().retry_window(ms(3000)).on_event(recorder.listener());
        let client = server.open(builder);
        let guard = take(&client, "a");
        let took = thread::scope(|scope| {
            let waits = scope.spawn(|| timed(|| client.try_lock_for("a", ms(400)).map(drop)));
            recorder.wait_for("contended a");
            server.command(fault);
            release(guard);
            waits.join().unwrap().1
        });
        server.command(repair);
        eventually(SOON, || !server.exists("a"));
        took
    });
    assert!(tries.any(|took| took <= ms(400) + IO + MARGIN), "too long after {fault:?}");
}

fn a_drop_that_cannot_hand_off_stretches_no_wait(server: &Server) {
    let faults: [(&[&str], &[&str]); 2] = [
        (&["CLIENT", "PAUSE", "1500"], &["PING"]),
        (&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
    ];
    for (fault, repair) in faults {
        assert_a_prevented_handoff_ends_in_time(server, fault, repair, drop);
    }
}

/// Ignores the outcome, because only the other thread matters.
fn unlock(guard: Guard) {
    guard.unlock().ok();
}

fn a_handoff_that_a_silent_server_prevents_ends_in_time(server: &Server) {
    let pause = ["CLIENT", "PAUSE", "1500"];
    assert_a_prevented_handoff_ends_in_time(server, &pause, &["PING"], unlock);
}

fn a_handoff_that_a_read_only_server_prevents_ends_in_time(server: &Server) {
    let replica = ["REPLICAOF", "127.0.0.1", "1"];
    let master = ["REPLICAOF", "NO", "ONE"];
    assert_a_prevented_handoff_ends_in_time(server, &replica, &master, unlock);
}
