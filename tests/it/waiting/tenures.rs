//! Tenures: holds of the threads of one client that follow one another without a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crossbeam_channel::bounded;
use leasehold::{Builder, Canceller, Client, Error, HoldEnd};
use parking_lot::Mutex;

use crate::support::lag::Lag;
use crate::support::recorder::Recorder;
use crate::support::{
    SOON, Server, Store, assert_lost, eventually, ms, sleepy, stores, take, very_sleepy,
};

stores! {
    every store:
        owned_guards_and_guards_of_threads_share_a_tenure_in_order,
        a_waiter_that_is_cancelled_in_a_tenure_leaves_nothing,
        a_wait_cancelled_during_a_handoff_leaves_nothing,
        terms_are_never_handed_off;
    several clients:
        a_hold_that_is_forced_in_a_tenure_is_found_lost_by_the_next,
        a_hold_that_is_forced_in_a_tenure_is_lost_at_its_end;
    every server:
        a_client_that_is_closed_in_a_tenure_leaves_nothing;
    every direct server:
        a_tenure_lasts_equally_long_at_any_distance;
}

/// Returns a builder with tenures that no pause of the machine ends.
fn unhurried() -> Builder {
    sleepy().tenure(ms(8000))
}

fn owned_guards_and_guards_of_threads_share_a_tenure_in_order(store: &Store) {
    let client = store.open(unhurried());
    let order = Mutex::new(Vec::new());
    let thread = |owned| {
        let (client, order) = (&client, &order);
        let thread: Box<dyn FnOnce() + Send> = Box::new(move || {
            if owned {
                let guard = client.lock_owned("a").unwrap();
                order.lock().push((owned, guard.fence()));
            } else {
                let guard = client.lock("a").unwrap();
                order.lock().push((owned, guard.fence()));
            }
        });
        thread
    };
    in_turn(&client, [true, false, false, true].map(thread).into());
    let order = order.into_inner();
    let first = order[0].1;
    assert_eq!(order, [(true, first), (false, first + 1), (false, first + 2), (true, first + 3)]);
    assert_eq!(client.stats().handoffs, 3);
}

/// Queues threads up for the lock "a", one after another, and releases it once all of them wait.
/// The first of them begins a tenure.
fn in_turn(client: &Client, threads: Vec<Box<dyn FnOnce() + Send + '_>>) {
    let guard = take(client, "a");
    thread::scope(|scope| {
        for (waiting, thread) in (1..).zip(threads) {
            scope.spawn(thread);
            eventually(SOON, || client.stats().waiting == waiting);
        }
        drop(guard);
    });
}

fn a_hold_that_is_forced_in_a_tenure_is_found_lost_by_the_next(store: &Store) {
    let (client, operator) = (store.open(unhurried()), store.open(sleepy()));
    let (tell, told) = bounded(1);
    let first = || {
        let guard = client.lock("a").unwrap();
        assert!(operator.mutex("a").force_unlock().unwrap());
        tell.send((guard.fence(), operator.lock_owned("a").unwrap())).unwrap();
    };
    let second = || {
        let guard = client.lock("a").unwrap();
        let (fence, theirs) = told.recv().unwrap();
        assert_eq!(guard.fence(), fence + 1);
        assert!(guard.is_held() && guard.fence() < theirs.fence(), "as tokens tell");
        assert_lost(guard.verify(), "a");
        assert!(!guard.is_held());
        theirs.verify().unwrap();
        tell.send((theirs.fence(), theirs)).unwrap();
        assert_lost(guard.unlock(), "a");
    };
    let third = || {
        let (fence, theirs) = told.recv().unwrap();
        theirs.unlock().unwrap();
        let guard = client.lock("a").unwrap();
        guard.verify().unwrap();
        assert!(guard.fence() > fence);
    };
    in_turn(&client, vec![Box::new(first), Box::new(second)]);
    third();
    assert_eq!((client.stats().lost, client.stats().handoffs), (1, 1));
}

fn a_hold_that_is_forced_in_a_tenure_is_lost_at_its_end(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(unhurried().on_event(recorder.listener()));
    let operator = store.open(sleepy());
    let last = AtomicU64::new(0);
    let first = || {
        let guard = client.lock("a").unwrap();
        assert!(operator.mutex("a").force_unlock().unwrap());
        drop(guard);
    };
    let second = || {
        let guard = client.lock("a").unwrap();
        last.store(guard.fence(), Ordering::SeqCst);
        let lost = guard.lost();
        drop(guard);
        assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Lost));
    };
    in_turn(&client, vec![Box::new(first), Box::new(second)]);
    recorder.wait_for("lost a");
    assert_eq!((client.stats().lost, client.stats().handoffs), (1, 1));
    assert!(take(&client, "a").fence() > last.into_inner());
}

fn a_waiter_that_is_cancelled_in_a_tenure_leaves_nothing(store: &Store) {
    let client = store.open(unhurried());
    let canceller = Canceller::new();
    let (ended, end) = bounded(1);
    let fence = AtomicU64::new(0);
    let first = || {
        let guard = client.lock("a").unwrap();
        fence.store(guard.fence(), Ordering::SeqCst);
        canceller.cancel();
        end.recv_timeout(SOON / 2).unwrap();
    };
    let second = || {
        let result = client.mutex("a").cancelled_by(&canceller).lock();
        assert!(matches!(result, Err(Error::Cancelled { .. })), "{result:?}");
        ended.send(()).unwrap();
    };
    let third = || {
        let guard = client.lock("a").unwrap();
        assert_eq!(guard.fence(), fence.load(Ordering::SeqCst) + 1);
    };
    in_turn(&client, vec![Box::new(first), Box::new(second), Box::new(third)]);
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiting, stats.handoffs), (0, 0, 1));
    take(&client, "a").unlock().unwrap();
}

fn a_wait_cancelled_during_a_handoff_leaves_nothing(store: &Store) {
    let client = store.open(unhurried());
    for round in 0..30 {
        let canceller = Canceller::new();
        let (tell, told) = bounded(1);
        let first = || {
            let guard = client.lock("a").unwrap();
            tell.send(()).unwrap();
            (0..round % 6).for_each(|_| thread::yield_now());
            drop(guard);
        };
        let second = || match client.mutex("a").cancelled_by(&canceller).lock() {
            Ok(guard) => guard.verify().unwrap(),
            Err(error) => assert!(matches!(error, Error::Cancelled { .. }), "{error}"),
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                told.recv().unwrap();
                canceller.cancel();
            });
            in_turn(&client, vec![Box::new(first), Box::new(second)]);
        });
        assert_eq!((client.stats().held, client.stats().waiting), (0, 0));
        take(&client, "a").unlock().unwrap();
    }
}

fn a_client_that_is_closed_in_a_tenure_leaves_nothing(server: &Server) {
    let client = server.open(unhurried());
    let (ended, end) = bounded(2);
    let first = || {
        let guard = client.lock("a").unwrap();
        client.close();
        (0..2).for_each(|_| end.recv_timeout(SOON / 2).unwrap());
        guard.verify().unwrap();
    };
    let later = || {
        let result = client.lock("a");
        assert!(matches!(result, Err(Error::Closed)), "{result:?}");
        ended.send(()).unwrap();
    };
    in_turn(&client, vec![Box::new(first), Box::new(later), Box::new(later)]);
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiting, stats.handoffs), (0, 0, 0));
    eventually(SOON, || !server.exists("a") && server.queue("a").is_empty());
}

fn a_tenure_lasts_equally_long_at_any_distance(server: &Server) {
    let lag = Lag::before(server, ms(700));
    let builder = very_sleepy().io_timeout(ms(8000)).tenure(ms(600));
    let client = server.through(lag.port()).open(builder);
    let hold = || -> Box<dyn FnOnce() + Send> { Box::new(|| drop(client.lock("a").unwrap())) };
    // A slow machine may take longer than the tenure lasts.
    eventually(6 * SOON, || {
        in_turn(&client, vec![hold(), hold(), hold()]);
        client.stats().handoffs >= 2
    });
}

/// The fence of a leader is the one in the store: that of the last hold of a tenure.
fn terms_are_never_handed_off(store: &Store) {
    let client = store.open(unhurried());
    let term = || {
        let term = client.election("a").campaign().unwrap();
        let leader = client.election("a").leader().unwrap().unwrap();
        assert_eq!((leader.client.as_str(), leader.fence), (client.id(), term.fence()));
    };
    let hold = || drop(client.lock("a").unwrap());
    let all: [Box<dyn FnOnce() + Send>; 6] = [
        Box::new(term),
        Box::new(term),
        Box::new(hold),
        Box::new(hold),
        Box::new(term),
        Box::new(term),
    ];
    in_turn(&client, all.into());
    assert_eq!(client.stats().handoffs, 1, "from one plain hold to the other");
}
