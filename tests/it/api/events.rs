//! The reports of `on_event`, and callbacks that misbehave without harm.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{bounded, unbounded};
use leasehold::{AnyGuard, Client, Event, MemoryServer};
use parking_lot::Mutex;

use crate::support::recorder::Recorder;
use crate::support::{
    IO, LEASE, SHORT, SOON, Server, Store, assert_lost, elsewhere, eventually, hasty, is_busy, ms,
    patient, stores, take, throughout, timed, while_held,
};

stores! {
    every store:
        a_hold_is_reported_from_acquired_to_released,
        events_of_many_holds_arrive_in_order,
        a_release_is_reported_before_the_next_hold,
        a_busy_lock_is_reported_as_contended,
        a_renewal_is_reported,
        a_loss_is_reported_once,
        an_event_carries_the_numbers_of_its_hold,
        a_wait_that_ends_without_the_lock_is_reported,
        a_set_is_reported_when_it_is_complete,
        a_set_that_cannot_be_acquired_is_reported_once,
        nested_levels_are_not_reported,
        a_callback_that_panics_stops_nothing,
        a_callback_that_blocks_stops_nothing,
        a_callback_may_use_the_client,
        a_callback_may_end_the_client,
        the_end_of_a_client_delivers_what_has_happened,
        every_hold_is_reported_to_begin_once_and_to_end_once,
        a_shutdown_delivers_what_has_happened;
    every server:
        a_failing_renewal_is_reported_before_the_loss,
        a_failed_call_is_reported,
        an_inner_level_that_is_not_released_is_not_reported;
}

fn a_hold_is_reported_from_acquired_to_released(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    take(&client, "a").unlock().unwrap();
    drop(take(&client, "b"));
    recorder.wait_for("released b");
    let told = ["acquired a", "released a", "acquired b", "released b"];
    assert_eq!(recorder.events(), told);
}

fn events_of_many_holds_arrive_in_order(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    for _ in 0..50 {
        take(&client, "a").unlock().unwrap();
    }
    eventually(SOON, || recorder.count("released a") == 50);
    for pair in recorder.events().chunks(2) {
        assert_eq!(pair, ["acquired a", "released a"]);
    }
}

/// The start or the end of a hold, with its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Acquired(u64),
    Released(u64),
}

fn a_release_is_reported_before_the_next_hold(store: &Store) {
    const THREADS: usize = 6;
    const ROUNDS: usize = 60;
    let told = Arc::<parking_lot::Mutex<Vec<Told>>>::default();
    let events = Arc::clone(&told);
    let client = store.open(patient().wait(6 * SOON).on_event(move |event| match event {
        Event::Acquired { fence, .. } => events.lock().push(Told::Acquired(*fence)),
        Event::Released { fence, .. } => events.lock().push(Told::Released(*fence)),
        _ => {}
    }));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    match (thread + round) % 4 {
                        0 => client.lock("a").unwrap().unlock().unwrap(),
                        1 => drop(client.lock("a").unwrap()),
                        2 => client.lock_all(["a"]).unwrap().unlock().unwrap(),
                        _ => drop(client.lock_all(["a"]).unwrap()),
                    }
                }
            });
        }
    });
    eventually(SOON, || told.lock().len() == 2 * THREADS * ROUNDS);
    let mut last = 0;
    for pair in told.lock().chunks(2) {
        let &[Told::Acquired(fence), Told::Released(released)] = pair else { panic!("{pair:?}") };
        assert!(fence > last && fence == released, "{pair:?} after {last}");
        last = fence;
    }
}

/// Before it reports a loss, the client finds out who has the lock now. Meanwhile, the thread of
/// the lost guard goes on.
#[test]
fn a_loss_is_reported_before_the_next_hold() {
    let (server, recorder) = (MemoryServer::new(), Recorder::default());
    let builder = patient().lease(SHORT).tenure(Duration::ZERO).on_event(recorder.listener());
    let client = builder.open_memory(&server).unwrap();
    let names: Vec<_> = (0..8).map(|number| format!("lock {number}")).collect();
    thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| {
                let guard = client.lock(name).unwrap();
                while guard.is_held() {
                    thread::sleep(ms(1));
                }
            });
        }
        eventually(SOON, || client.stats().held == 8);
        for name in &names {
            scope.spawn(|| drop(client.lock(name).unwrap()));
        }
        eventually(SOON, || client.stats().waiting == 8);
        server.set_delay(ms(10));
        assert!(names.iter().all(|name| server.end_hold(name)));
    });
    drop(client);
    for name in &names {
        let mut events = recorder.events();
        events.retain(|event| event.ends_with(name) && !event.starts_with("contended"));
        let in_order = ["acquired", "lost", "acquired", "released"];
        assert_eq!(events, in_order.map(|verb| format!("{verb} {name}")));
    }
}

fn a_busy_lock_is_reported_as_contended(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    let guard = take(&client, "a");
    std::thread::scope(|scope| {
        scope.spawn(|| client.lock("a").unwrap().unlock().unwrap());
        recorder.wait_for("contended a");
        guard.unlock().unwrap();
    });
    eventually(SOON, || recorder.count("released a") == 2);
    assert_eq!(recorder.count("acquired a"), 2);
    let events = recorder.events_of_locks();
    let contended = events.iter().position(|event| event == "contended a");
    let acquired = events.iter().rposition(|event| event == "acquired a");
    assert!(contended < acquired, "{events:?}");
}

fn a_renewal_is_reported(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().lease(LEASE).on_event(recorder.listener()));
    let _guards = [take(&client, "a"), take(&client, "b")];
    eventually(SOON, || recorder.count("renewed") >= 3);
}

fn a_loss_is_reported_once(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open_for(SHORT, patient().on_event(recorder.listener()));
    let guard = client.mutex("a").lease(SHORT).renew(false).lock().unwrap();
    recorder.wait_for("lost a");
    assert!(!guard.is_held());
    assert_lost(guard.unlock(), "a");
    take(&client, "b").unlock().unwrap();
    recorder.wait_for("released b");
    assert_eq!(recorder.count("lost a"), 1);
    assert_eq!(recorder.count("released a"), 0, "it was not");
}

fn an_event_carries_the_numbers_of_its_hold(store: &Store) {
    let (sender, events) = unbounded();
    let client = store.open_for(
        SHORT,
        patient().on_event(move |event| {
            let numbers = match event {
                Event::Acquired { fence, waited, .. } => (*fence, *waited),
                Event::Lost { fence, .. } => (*fence, Duration::ZERO),
                Event::Released { fence, held, .. } => (*fence, *held),
                _ => return,
            };
            // The last events may be delivered after the end of the test.
            sender.send(numbers).ok();
        }),
    );
    let next = || events.recv_timeout(SOON).unwrap();

    let guard = take(&client, "a");
    let (fence, waited) = next();
    assert_eq!(fence, guard.fence());
    assert!(waited < ms(5000));
    std::thread::sleep(ms(200));
    guard.unlock().unwrap();
    let (released, held) = next();
    assert_eq!(released, fence);
    assert!(held >= ms(200) && held < ms(5000), "{held:?}");

    let expiring = client.mutex("a").lease(SHORT).renew(false).lock().unwrap();
    assert_eq!(next().0, expiring.fence());
    let second = elsewhere(|| client.lock("a").unwrap().fence());
    // Different threads report the loss, and the start and end of the next hold, so any order is
    // right.
    let told = [next(), next(), next()];
    assert!(told.contains(&(expiring.fence(), Duration::ZERO)), "{told:?}");
    let waiting = told.iter().find(|(fence, _)| *fence == second).unwrap();
    assert!(waiting.1 >= ms(300) && waiting.1 < SOON, "{waiting:?}");
}

fn a_wait_that_ends_without_the_lock_is_reported(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    while_held(&client, "a", |_end| {
        assert!(client.try_lock("a").unwrap().is_none());
        assert!(client.try_lock_for("a", ms(300)).unwrap().is_none());
        client.mutex("a").wait(ms(100)).lock().unwrap_err();
        recorder.wait_for("timed out a");
    });
    take(&client, "b").unlock().unwrap();
    recorder.wait_for("released b");
    let mut events = recorder.events_of_locks();
    events.retain(|event| event.starts_with("contended") || event.starts_with("timed out"));
    // `try_lock` does not wait.
    let told = ["contended a", "contended a", "timed out a", "contended a", "timed out a"];
    assert_eq!(events, told);
}

fn a_set_is_reported_when_it_is_complete(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    client.lock_all(["a", "b"]).unwrap().unlock().unwrap();
    recorder.wait_for("released b");
    let told = ["acquired a", "acquired b", "released a", "released b"];
    assert_eq!(recorder.events_of_locks(), told);
}

fn a_set_that_cannot_be_acquired_is_reported_once(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    while_held(&client, "b", |_end| {
        assert!(client.try_lock_all(["a", "b"]).unwrap().is_none());
        assert!(client.try_lock_all_for(["a", "b"], ms(100)).unwrap().is_none());
        recorder.wait_for("timed out a, b");
    });
    take(&client, "c").unlock().unwrap();
    recorder.wait_for("released c");
    let mut events = recorder.events_of_locks();
    events.retain(|event| !event.ends_with(" c"));
    let told = ["acquired b", "contended b", "contended b", "timed out a, b", "released b"];
    assert_eq!(events, told);
    assert_eq!(client.stats().busy, 1);
}

fn nested_levels_are_not_reported(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    let outer = take(&client, "a");
    client.lock("a").unwrap().unlock().unwrap();
    drop(client.try_lock_for("a", ms(10)).unwrap());
    outer.unlock().unwrap();
    recorder.wait_for("released a");
    assert_eq!(recorder.events_of_locks(), ["acquired a", "released a"]);
}

/// The beginnings and ends of holds that a client has reported, by lock and token.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Vec<(bool, String, u64)>>>);

impl Ledger {
    fn listener(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let ledger = self.0.clone();
        move |event| {
            let (begins, name, fence) = match event {
                Event::Acquired { name, fence, .. } => (true, name, *fence),
                Event::Lost { name, fence, .. }
                | Event::ReleaseFailed { name, fence, .. }
                | Event::Released { name, fence, .. } => (false, name, *fence),
                _ => return,
            };
            ledger.lock().push((begins, name.clone(), fence));
        }
    }

    /// How many holds have begun, and how many have ended.
    fn counts(&self) -> (u64, u64) {
        let ledger = self.0.lock();
        let begins = ledger.iter().filter(|(begins, ..)| *begins).count() as u64;
        (begins, ledger.len() as u64 - begins)
    }

    /// Checks that each hold has begun once, and has then ended once. Readers between the same two
    /// writes share a token, and permits have none. For these, no more holds may end than have
    /// begun.
    fn check(&self) {
        let mut open = HashMap::new();
        for (begins, name, fence) in &*self.0.lock() {
            let is_shared = ["r", "p"].contains(&&**name);
            let now: &mut u64 = open.entry((name.clone(), *fence)).or_default();
            assert!(!*begins || is_shared || *now == 0, "{name} {fence} has begun twice");
            assert!(*begins || *now > 0, "{name} {fence} has ended without a begin");
            *now = if *begins { *now + 1 } else { *now - 1 };
        }
        open.retain(|_, count| *count > 0);
        assert!(open.is_empty(), "without an end: {open:?}");
    }
}

/// Threads of two clients, one of which keeps locks, contend for holds of all kinds, and an
/// operator ends some of them.
fn every_hold_is_reported_to_begin_once_and_to_end_once(store: &Store) {
    const ROUNDS: usize = 8;
    const CALLS: usize = 24;
    let ledgers = [Ledger::default(), Ledger::default()];
    let builder = |ledger: &Ledger| patient().on_event(ledger.listener());
    let clients = [builder(&ledgers[0]).keep(ms(5)), builder(&ledgers[1])].map(|it| store.open(it));
    let operator = store.open(patient());
    for round in 0..ROUNDS {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|thread| {
                    let (client, operator) = (&clients[thread % 2], &operator);
                    let calls = (0..CALLS).map(move |call| round * 977 + thread * 131 + call * 17);
                    scope.spawn(move || calls.for_each(|dice| hold_one(client, operator, dice)))
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
        });
        // Few events are queued at a time, so none is dropped.
        for (client, ledger) in clients.iter().zip(&ledgers) {
            eventually(SOON, || {
                let stats = client.stats();
                let ended = stats.released + stats.lost + stats.failed_releases;
                stats.acquired == ended && ledger.counts() == (stats.acquired, ended)
            });
        }
    }
    for ledger in &ledgers {
        ledger.check();
        assert!(ledger.counts().0 > 0);
    }
    let stats = clients.each_ref().map(Client::stats);
    assert!(stats.iter().any(|stats| stats.lost > 0), "the operator ended some: {stats:?}");
    assert!(stats.iter().all(|stats| stats.held == 0), "{stats:?}");
}

/// Makes one of the calls of the stress test, and ends its hold in one of the possible ways. There
/// may be no hold, because others hold the lock or the machine pauses.
fn hold_one(client: &Client, operator: &Client, dice: usize) {
    let wait = ms(40);
    let pause = || thread::sleep(Duration::from_micros(dice as u64 % 700));
    // Losses are reported as losses.
    let end = |guard: Box<dyn AnyGuard>| {
        pause();
        if dice.is_multiple_of(2) { drop(guard.unlock()) } else { drop(guard) }
    };
    match dice % 11 {
        0 | 1 => {
            if let Ok(Some(guard)) = client.try_lock_for("a", wait) {
                drop(client.lock("a"));
                end(Box::new(guard));
            }
        }
        2 => drop(client.mutex("b").wait(wait).with(|_| pause())),
        3 | 4 => {
            if let Ok(Some(set)) = client.try_lock_all_for(["a", "b", "c"], wait) {
                end(Box::new(set));
            }
        }
        5 => {
            if let Ok(Some(set)) = client.try_lock_all(["c", "b"]) {
                end(Box::new(set));
            }
        }
        6 => {
            let semaphore = client.semaphore("p", 2);
            if let Ok(permit) = semaphore.wait(wait).acquire() {
                end(Box::new(permit));
            }
        }
        7 => {
            if let Ok(reader) = client.rw_lock("r").wait(wait).read() {
                end(Box::new(reader));
            }
        }
        8 => {
            if let Ok(writer) = client.rw_lock("r").wait(wait).write() {
                end(Box::new(writer));
            }
        }
        9 => {
            if let Ok(Some(guard)) = client.try_lock_owned_for("b", wait)
                && let Ok(ticket) = guard.detach()
                && let Ok(guard) = client.adopt(&ticket)
            {
                end(Box::new(guard));
            }
        }
        _ => {
            let name = ["a", "b", "c"][dice % 3];
            drop(operator.mutex(name).force_unlock());
        }
    }
}

fn a_failed_call_is_reported(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(hasty().on_event(recorder.listener()));
    server.stop();
    client.try_lock("a").unwrap_err();
    client.try_lock_for("b", IO).unwrap_err();
    client.try_lock_all(["b", "d"]).unwrap_err();
    server.cont();
    recorder.wait_for("failed b, d");
    server.command(&["SET", "lock:c", "something else"]);
    client.try_lock("c").unwrap_err();
    recorder.wait_for("failed c");
    assert_eq!(recorder.events_of_locks(), ["failed a", "failed b", "failed b, d", "failed c"]);
}

fn an_inner_level_that_is_not_released_is_not_reported(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(hasty().on_event(recorder.listener()));
    let outer = take(&client, "a");
    let inner = take(&client, "a");
    server.stop();
    inner.unlock().unwrap_err();
    server.cont();
    outer.unlock().unwrap();
    recorder.wait_for("released a");
    assert_eq!(recorder.events_of_locks(), ["acquired a", "released a"]);
}

fn a_callback_that_panics_stops_nothing(store: &Store) {
    let recorder = Recorder::default();
    let listener = recorder.listener();
    let client = store.open(patient().lease(LEASE).on_event(move |event| {
        listener(event);
        panic!("as the test wants");
    }));
    let guard = take(&client, "a");
    throughout(3 * LEASE, || guard.is_held());
    guard.verify().unwrap();
    guard.unlock().unwrap();
    // The events do not stop either.
    recorder.wait_for("acquired a");
    recorder.wait_for("released a");
}

fn a_callback_that_blocks_stops_nothing(store: &Store) {
    let (end, ended) = bounded::<()>(0);
    let client = store.open(patient().lease(LEASE).on_event(move |_| {
        // It waits until the end of the test; the time limit turns a deadlock into a failure.
        ended.recv_timeout(2 * SOON).ok();
    }));
    let guard = take(&client, "a");
    throughout(3 * LEASE, || guard.is_held() && is_busy(&client, "a"));
    guard.verify().unwrap();
    guard.unlock().unwrap();
    while_held(&client, "b", |_end| {
        assert!(client.try_lock_for("b", ms(50)).unwrap().is_none());
    });
    let ((), took) = timed(|| drop(client));
    assert!(took < SOON / 2, "the end of the client does not wait for it: {took:?}");
    drop(end);
}

#[test]
fn a_full_event_queue_blocks_no_call() {
    let (end, ended) = bounded::<()>(0);
    let (done, is_done) = bounded(1);
    let client = patient().on_event(move |_| {
        ended.recv_timeout(10 * SOON).ok();
    });
    let client = client.in_memory().unwrap();
    // Not in a scope: if this thread blocks, the test must not wait for it.
    std::thread::spawn(move || {
        for _ in 0..5_000 {
            take(&client, "a").unlock().unwrap();
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(4 * SOON).unwrap();
    drop(end);
}

fn a_callback_may_use_the_client(store: &Store) {
    let (locked, results) = unbounded();
    let slot = Arc::new(parking_lot::Mutex::new(None::<Client>));
    let shared = Arc::clone(&slot);
    let client = store.open(patient().on_event(move |event| {
        let Event::Acquired { name, .. } = event else {
            return;
        };
        let client = shared.lock().clone();
        if let (true, Some(client)) = (name == "a", client) {
            locked.send(client.lock("b").is_ok()).ok();
        }
    }));
    *slot.lock() = Some(client.clone());
    take(&client, "a").unlock().unwrap();
    assert!(results.recv_timeout(SOON).unwrap());
    // Breaks the cycle through which the client would keep itself alive.
    *slot.lock() = None;
}

fn a_callback_may_end_the_client(store: &Store) {
    let (hand_over, handed_over) = bounded::<Client>(1);
    let (ended, has_ended) = bounded(1);
    let client = store.open(patient().on_event(move |event| {
        if matches!(event, Event::Acquired { .. }) {
            let client = handed_over.recv_timeout(SOON).unwrap();
            let (outcome, took) = timed(|| {
                let outcome = client.shutdown(SOON);
                drop(client);
                outcome
            });
            ended.send((outcome, took)).unwrap();
        }
    }));
    drop(take(&client, "a"));
    hand_over.send(client).unwrap();
    let (outcome, took) = has_ended.recv_timeout(SOON).unwrap();
    outcome.unwrap();
    assert!(took < SOON / 2, "it does not wait for itself: {took:?}");
}

fn the_end_of_a_client_delivers_what_has_happened(store: &Store) {
    for _ in 0..10 {
        let recorder = Recorder::default();
        let client = store.open(patient().on_event(recorder.listener()));
        drop(take(&client, "a"));
        drop(client);
        assert_eq!(recorder.events_of_locks(), ["acquired a", "released a"]);
    }
}

fn a_shutdown_delivers_what_has_happened(store: &Store) {
    for _ in 0..10 {
        let recorder = Recorder::default();
        let client = store.open(patient().on_event(recorder.listener()));
        let _guard = take(&client, "a");
        client.shutdown(SOON).unwrap();
        assert_eq!(recorder.events_of_locks(), ["acquired a", "released a"]);
    }
}

fn a_failing_renewal_is_reported_before_the_loss(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(patient().lease(LEASE).on_event(recorder.listener()));
    let guard = take(&client, "a");
    server.stop();
    recorder.wait_for("lost a");
    server.cont();
    let events = recorder.events();
    let failing = events.iter().position(|event| event == "renewal failing a");
    let lost = events.iter().position(|event| event == "lost a");
    assert!(failing.is_some() && failing < lost, "{events:?}");
    assert_lost(guard.unlock(), "a");
}
