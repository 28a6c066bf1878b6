//! Single requests and replies that are lost, so that the client cannot know whether a request was
//! executed.

use std::thread::{self, ScopedJoinHandle};

use leasehold::Error;

use crate::support::proxy::Proxy;
use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, SOON, Server, behind_proxy, eventually, ms, patient, sleepy, stores, take, throughout,
    timed, unlock,
};

stores! {
    every direct server:
        a_lost_reply_to_a_lock_is_retried,
        a_lost_reply_to_try_lock_is_not_taken_for_contention,
        a_lost_request_for_a_lock_is_retried,
        a_lost_reply_to_a_release_is_no_error,
        a_lost_reply_to_a_release_wakes_the_next,
        a_lost_request_for_a_release_is_retried,
        a_lost_reply_to_a_drop_leaves_nothing,
        a_lost_reply_to_a_nested_lock_counts_once,
        a_lost_reply_to_an_inner_release_counts_once,
        lost_replies_to_renewals_do_not_end_the_hold,
        no_update_is_lost_whatever_message_is;
}

fn a_lost_reply_to_a_lock_is_retried(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    proxy.lose_reply();
    let guard = client.lock("a").unwrap();
    assert!(proxy.has_lost());
    assert_eq!(guard.depth(), 1);
    assert_eq!(server.hold("a").1, "1");
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert!(!server.exists("a"), "one release frees what one lock took");
}

fn a_lost_reply_to_try_lock_is_not_taken_for_contention(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    for _ in 0..5 {
        proxy.lose_reply();
        match client.try_lock("a") {
            Ok(Some(guard)) => guard.unlock().unwrap(),
            Ok(None) => panic!("it was refused its own lock"),
            Err(_) => eventually(SOON, || !server.exists("a")),
        }
        assert!(proxy.has_lost());
        assert!(!server.exists("a"));
    }
}

fn a_lost_request_for_a_lock_is_retried(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    proxy.lose_request();
    let guard = client.lock("a").unwrap();
    assert!(proxy.has_lost());
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_lost_reply_to_a_release_is_no_error(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    let guard = take(&client, "a");
    proxy.lose_reply();
    guard.unlock().unwrap();
    assert!(proxy.has_lost());
    assert!(!server.exists("a"));
}

fn a_lost_reply_to_a_release_wakes_the_next(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    let waiter = server.open(sleepy());
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(unlock));
        eventually(SOON, || server.listeners(&waiter) == 1 && server.queue("a").len() == 1);
        proxy.lose_reply();
        let ((), took) = timed(|| {
            guard.unlock().unwrap();
            waits.join().unwrap().unwrap();
        });
        assert!(proxy.has_lost());
        assert!(took < SOON / 2, "{took:?}");
    });
}

fn a_lost_request_for_a_release_is_retried(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    let guard = take(&client, "a");
    proxy.lose_request();
    guard.unlock().unwrap();
    assert!(proxy.has_lost());
    assert!(!server.exists("a"));
}

fn a_lost_reply_to_a_drop_leaves_nothing(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    for lose in [Proxy::lose_reply, Proxy::lose_request] {
        let guard = take(&client, "a");
        lose(&proxy);
        drop(guard);
        eventually(SOON, || !server.exists("a"));
        assert!(proxy.has_lost());
    }
}

fn a_lost_reply_to_a_nested_lock_counts_once(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    let outer = take(&client, "a");
    proxy.lose_reply();
    let inner = client.lock("a").unwrap();
    assert!(proxy.has_lost());
    assert_eq!(inner.depth(), 2);
    assert_eq!(server.hold("a").1, "2");
    inner.unlock().unwrap();
    assert_eq!(server.hold("a").1, "1");
    assert!(outer.is_held());
    outer.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_lost_reply_to_an_inner_release_counts_once(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    let outer = take(&client, "a");
    let middle = take(&client, "a");
    let inner = take(&client, "a");
    proxy.lose_reply();
    inner.unlock().unwrap();
    assert!(proxy.has_lost());
    assert_eq!(server.hold("a").1, "2");
    middle.unlock().unwrap();
    outer.verify().unwrap();
    outer.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn lost_replies_to_renewals_do_not_end_the_hold(server: &Server) {
    let recorder = Recorder::default();
    let builder = patient().lease(LEASE).on_event(recorder.listener());
    let (proxy, client) = behind_proxy(server, builder);
    let guard = take(&client, "a");
    let mut lost = 0;
    throughout(4 * LEASE, || {
        if proxy.has_lost() {
            // Every second reply is lost: the first repetition arrives.
            lost += 1;
            proxy.lose_reply_after(1);
        }
        guard.is_held() && server.exists("a")
    });
    assert!(lost >= 3, "only {lost} replies were lost");
    proxy.heal();
    assert_eq!(recorder.count("lost a"), 0);
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn no_update_is_lost_whatever_message_is(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient().wait(3 * SOON));
    let cell = parking_lot::Mutex::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let guard = client.lock("a").unwrap();
                        let mut held = cell.try_lock().expect("no other thread is in here");
                        *held += 1;
                        drop(held);
                        match guard.unlock() {
                            // After a second loss, the hold ends in the background.
                            Ok(()) | Err(Error::Unavailable { may_have_executed: true, .. }) => (),
                            Err(other) => panic!("{other}"),
                        }
                    }
                })
            })
            .collect();
        while !workers.iter().all(ScopedJoinHandle::is_finished) {
            if proxy.has_lost() {
                proxy.lose_reply_after(5);
            }
            thread::sleep(ms(3));
        }
    });
    assert_eq!(*cell.lock(), 100);
    proxy.heal();
    eventually(SOON, || server.hashes().is_empty());
}
