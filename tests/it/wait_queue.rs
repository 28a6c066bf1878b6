//! Threads of one process that wait for one lock: their order, handoffs, and that they send no
//! requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use leasehold::Error;

use crate::support::recorder::Recorder;
use crate::support::{
    SOON, Server, Store, elsewhere, eventually, is_busy, ms, patient, sleepy, stores, take,
    throughout, timed, unlock,
};

stores! {
    every store:
        threads_are_served_in_the_order_of_arrival,
        fences_grow_with_every_handoff,
        a_lost_hold_lets_the_next_waiter_proceed,
        a_waiter_that_gives_up_does_not_block_the_wait_queue,
        a_handoff_follows_the_options_of_the_receiver,
        a_panic_of_the_holder_hands_the_lock_off;
    every server:
        a_lock_held_by_another_thread_is_refused_without_a_request,
        waiting_threads_send_no_requests,
        a_handoff_costs_one_script;
}

/// Waits until so many threads have found the lock "a" held, and wait for it or are about to.
#[track_caller]
pub(crate) fn settle(recorder: &Recorder, threads: usize) {
    eventually(SOON, || recorder.count("contended a") >= threads);
}

fn threads_are_served_in_the_order_of_arrival(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(sleepy().on_event(recorder.listener()));
    let guard = take(&client, "a");
    let order = parking_lot::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..5 {
            let (client, order) = (&client, &order);
            scope.spawn(move || {
                let guard = client.lock("a").unwrap();
                order.lock().push(number);
                guard.unlock().unwrap();
            });
            settle(&recorder, number + 1);
        }
        guard.unlock().unwrap();
    });
    assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
}

fn fences_grow_with_every_handoff(store: &Store) {
    let client = store.open(patient());
    let last = AtomicU64::new(0);
    let register = store.register();
    thread::scope(|scope| {
        for _ in 0..8 {
            let (client, last, mut number) = (&client, &last, register.handle());
            scope.spawn(move || {
                for _ in 0..50 {
                    let guard = client.lock("a").unwrap();
                    assert!(last.swap(guard.fence(), Ordering::SeqCst) < guard.fence());
                    assert_eq!(guard.depth(), 1);
                    let read = number.read();
                    number.write(read + 1);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    assert_eq!(register.handle().read(), 400);
}

fn a_lost_hold_lets_the_next_waiter_proceed(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(sleepy().lease(ms(900)).on_event(recorder.listener()));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("a").map(|guard| guard.fence()));
        settle(&recorder, 1);
        assert!(client.mutex("a").force_unlock().unwrap());
        let fence = waiter.join().unwrap().unwrap();
        assert!(fence > guard.fence());
    });
    assert!(!guard.is_held());
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    take(&client, "a").unlock().unwrap();
}

fn a_waiter_that_gives_up_does_not_block_the_wait_queue(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(sleepy().on_event(recorder.listener()));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let hasty = scope.spawn(|| client.try_lock_for("a", ms(200)).map(|guard| guard.is_some()));
        settle(&recorder, 1);
        let patient = scope.spawn(|| client.lock("a").map(unlock));
        assert!(!hasty.join().unwrap().unwrap());
        assert!(!patient.is_finished());
        let ((), took) = timed(|| {
            guard.unlock().unwrap();
            patient.join().unwrap().unwrap();
        });
        assert!(took < ms(3000), "{took:?}");
    });
}

fn a_handoff_follows_the_options_of_the_receiver(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open_for(ms(2000), sleepy().on_event(recorder.listener()));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let short = client.mutex("a").lease(ms(2000)).renew(false);
        let waiter = scope.spawn(move || {
            let guard = short.lock().unwrap();
            (guard.remaining(), guard.lost().wait_timeout(SOON) == Some(true))
        });
        settle(&recorder, 1);
        guard.unlock().unwrap();
        let (remaining, lost) = waiter.join().unwrap();
        assert!(remaining < ms(2000), "{remaining:?}");
        assert!(lost, "it is not renewed");
    });
}

fn a_panic_of_the_holder_hands_the_lock_off(store: &Store) {
    let client = store.open(sleepy());
    thread::scope(|scope| {
        let holder = scope.spawn(|| {
            let _guard = client.lock("a").unwrap();
            thread::sleep(ms(200));
            panic!("wanted by the test");
        });
        eventually(SOON, || is_busy(&client, "a"));
        let (result, took) = timed(|| client.lock("a").map(unlock));
        result.unwrap();
        assert!(took < ms(5000), "{took:?}");
        assert!(holder.join().is_err());
    });
}

fn a_lock_held_by_another_thread_is_refused_without_a_request(server: &Server) {
    let client = server.open(patient());
    let guard = take(&client, "a");
    elsewhere(|| {
        let before = server.evals();
        for _ in 0..10 {
            assert!(client.try_lock("a").unwrap().is_none());
        }
        assert!(client.try_lock_for("a", ms(50)).unwrap().is_none());
        assert_eq!(server.evals(), before);
    });
    // After the loss of the hold, a request is sent.
    server.command(&["DEL", "lock:a"]);
    guard.verify().unwrap_err();
    assert!(elsewhere(|| client.try_lock("a").unwrap().is_some()));
}

fn waiting_threads_send_no_requests(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(patient().on_event(recorder.listener()));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| client.lock("a").unwrap().unlock().unwrap());
        }
        settle(&recorder, 20);
        let before = server.evals();
        throughout(ms(300), || server.evals() == before);
        guard.unlock().unwrap();
    });
}

fn a_handoff_costs_one_script(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(sleepy().max_handoffs(u32::MAX).on_event(recorder.listener()));
    take(&client, "warm").unlock().unwrap();
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| client.lock("a").unwrap().unlock().unwrap());
        }
        settle(&recorder, 10);
        let before = server.evals();
        guard.unlock().unwrap();
        eventually(SOON, || !server.exists("a"));
        // Ten handoffs, the first of them perhaps repeated by EVAL, and a release.
        let scripts = server.evals() - before;
        assert!((11..=12).contains(&scripts), "{scripts}");
    });
}
