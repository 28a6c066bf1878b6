//! Threads of one process that wait for one lock: their order, handoffs, and waiting without
//! requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use leasehold::{Client, Error, HoldEnd};

use crate::support::recorder::Recorder;
use crate::support::{
    SHORT, SOON, Server, Store, elsewhere, eventually, hasty, is_busy, ms, patient, sleepy, stores,
    take, throughout, timed, unlock, while_held,
};

stores! {
    every store:
        threads_are_served_in_the_order_of_arrival,
        fences_grow_with_every_handoff,
        a_lost_hold_lets_the_next_waiter_proceed,
        a_waiter_that_gives_up_does_not_block_the_wait_queue,
        a_handoff_follows_the_options_of_the_receiver,
        holds_of_one_tenure_end_separately,
        a_panic_of_the_holder_hands_the_lock_off,
        no_try_overtakes_a_thread_that_waits_for_a_lease_to_end;
    several clients:
        no_try_overtakes_a_thread_that_waits_for_another_client;
    every server:
        a_try_behind_a_thread_that_waits_costs_no_request,
        a_try_behind_a_stalled_call_reports_the_outage,
        a_lock_held_by_another_thread_is_refused_without_a_request,
        waiting_threads_send_no_requests,
        a_tenure_costs_two_requests_for_all_its_holds,
        a_hold_that_is_unlocked_ends_the_tenure;
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
            recorder.wait_for_waiters(number + 1);
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
                for round in 0..50 {
                    let guard = client.lock("a").unwrap();
                    assert!(last.swap(guard.fence(), Ordering::SeqCst) < guard.fence());
                    assert_eq!(guard.depth(), 1);
                    let read = number.read();
                    number.write(read + 1);
                    if round % 10 == 0 {
                        guard.unlock().unwrap();
                    } else {
                        drop(guard);
                    }
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
        recorder.wait_for_waiters(1);
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
        recorder.wait_for_waiters(1);
        let patient = scope.spawn(|| client.lock("a").map(unlock));
        assert!(!hasty.join().unwrap().unwrap());
        assert!(!patient.is_finished());
        let ((), took) = timed(|| {
            guard.unlock().unwrap();
            patient.join().unwrap().unwrap();
        });
        assert!(took < SOON / 2, "{took:?}");
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
            (guard.remaining(), guard.lost().wait_timeout(SOON) == Some(HoldEnd::Lost))
        });
        recorder.wait_for_waiters(1);
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

/// Keeps trying for the lock "a" until a waiting thread gets it, after `free` has freed it. No
/// thread that only tries may get a hold first.
fn assert_no_try_overtakes(client: &Client, free: impl FnOnce()) {
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let guard = client.lock("a").unwrap();
            let fence = guard.fence();
            guard.unlock().unwrap();
            fence
        });
        eventually(SOON, || client.stats().waiting == 1);
        let tries = scope.spawn(|| {
            let mut fences = Vec::new();
            while !waits.is_finished() {
                let guard = client.try_lock("a").unwrap();
                fences.extend(guard.map(|guard| guard.fence()));
            }
            (fences, waits.join().unwrap())
        });
        free();
        let (tried, waited) = tries.join().unwrap();
        let earlier = tried.iter().filter(|fence| **fence < waited).count();
        assert_eq!(earlier, 0, "holds before the waiting thread's");
    });
}

fn no_try_overtakes_a_thread_that_waits_for_a_lease_to_end(store: &Store) {
    let client = store.open_for(SHORT, patient());
    for _ in 0..3 {
        let lost = client.mutex("a").lease(SHORT).renew(false).lock_owned().unwrap();
        assert_no_try_overtakes(&client, || {
            assert_eq!(lost.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
        });
    }
}

fn no_try_overtakes_a_thread_that_waits_for_another_client(store: &Store) {
    let (holder, client) = (store.open(patient()), store.open(patient()));
    for _ in 0..50 {
        let guard = holder.lock("a").unwrap();
        assert_no_try_overtakes(&client, || guard.unlock().unwrap());
    }
}

fn a_try_behind_a_thread_that_waits_costs_no_request(server: &Server) {
    let (holder, client) = (server.open(patient()), server.open(sleepy()));
    while_held(&holder, "a", |end| {
        thread::scope(|scope| {
            let waits = scope.spawn(|| client.lock("a").map(unlock));
            eventually(SOON, || server.listeners(&client) == 1);
            let before = server.settled_evals();
            for _ in 0..100 {
                assert!(client.try_lock("a").unwrap().is_none());
            }
            assert_eq!(server.evals(), before);
            drop(end);
            waits.join().unwrap().unwrap();
        });
    });
}

fn a_try_behind_a_stalled_call_reports_the_outage(server: &Server) {
    let client = server.open(hasty());
    take(&client, "a").unlock().unwrap();
    server.stop();
    thread::scope(|scope| {
        let front = scope.spawn(|| client.try_lock_for("a", ms(100)).map(drop));
        thread::sleep(ms(20));
        for _ in 0..2 {
            let (result, took) = timed(|| client.try_lock("a").map(drop));
            assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
            assert!(took < SOON / 2, "{took:?}");
        }
        assert!(matches!(front.join().unwrap(), Err(Error::Unavailable { .. })));
    });
    server.cont();
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
        recorder.wait_for_waiters(20);
        let before = server.evals();
        throughout(ms(300), || server.evals() == before);
        guard.unlock().unwrap();
    });
}

fn a_tenure_costs_two_requests_for_all_its_holds(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(sleepy().tenure(ms(5000)).on_event(recorder.listener()));
    take(&client, "warm").unlock().unwrap();
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for number in 0..10 {
            let client = &client;
            scope.spawn(move || match number % 2 {
                0 => drop(client.lock("a").unwrap()),
                _ => client.with_lock("a", |guard| assert!(guard.is_held())).unwrap(),
            });
        }
        recorder.wait_for_waiters(10);
        let before = server.evals();
        drop(guard);
        eventually(SOON, || client.stats().released == 12 && !server.exists("a"));
        // The first release, and then an acquire and a release for ten holds.
        let scripts = server.evals() - before;
        assert!((3..=5).contains(&scripts), "{scripts}");
    });
}

fn a_hold_that_is_unlocked_ends_the_tenure(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(sleepy().tenure(ms(5000)).on_event(recorder.listener()));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let guard = client.lock("a").unwrap();
                let owner = server.hold("a").0;
                guard.unlock().unwrap();
                let exists = server.ask::<bool>(&["HEXISTS", "lock:a", &owner]);
                assert!(!exists, "it is not handed off");
            });
        }
        recorder.wait_for_waiters(3);
        drop(guard);
    });
    assert_eq!(client.stats().handoffs, 0);
}

/// Their leases and tokens are those of the tenure, but they remain distinct.
fn holds_of_one_tenure_end_separately(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(sleepy().tenure(ms(5000)).on_event(recorder.listener()));
    let guard = take(&client, "a");
    let lost = thread::scope(|scope| {
        let waiters = [(); 3].map(|()| {
            scope.spawn(|| {
                let guard = client.lock_owned("a").unwrap();
                let (fence, lost) = (guard.fence(), guard.lost());
                assert!(guard.is_held() && !lost.is_lost());
                drop(guard);
                (fence, lost)
            })
        });
        recorder.wait_for_waiters(3);
        drop(guard);
        waiters.map(|waiter| waiter.join().unwrap())
    });
    let mut fences = lost.each_ref().map(|(fence, _)| *fence);
    fences.sort_unstable();
    assert_eq!(fences, [fences[0], fences[0] + 1, fences[0] + 2]);
    for (_, lost) in lost {
        assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Released), "released, not lost");
    }
}
