//! Dropped guards: the release is written, and its reply is read by the next user of the
//! connection, or else by a sweep.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use leasehold::{Builder, Client, Error};

use crate::support::address::Address;
use crate::support::child::{self, Child};
use crate::support::lag::Lag;
use crate::support::proxy::Proxy;
use crate::support::recorder::Recorder;
use crate::support::{
    IO, SOON, Server, Store, behind_proxy, elsewhere, eventually, hasty, ms, patient, soon, stores,
    take, timed,
};

stores! {
    every store:
        busy_threads_lose_no_lock,
        a_lock_that_was_dropped_is_free_for_the_thread_that_dropped_it,
        a_lock_that_was_dropped_is_free_for_the_other_threads,
        an_inner_guard_that_was_dropped_leaves_the_outer_one,
        a_release_whose_reply_no_call_reads_is_reported,
        guards_dropped_all_at_once_leave_nothing,
        a_process_that_ends_after_a_drop_has_released;
    every server:
        busy_clients_make_progress_side_by_side,
        the_end_of_a_client_waits_for_its_releases,
        a_drop_after_the_scripts_were_flushed_releases,
        many_guards_may_be_dropped_at_once;
    every direct server:
        a_drop_does_not_wait_for_the_reply,
        the_next_thread_asks_behind_an_unlock,
        a_failed_release_is_not_contention,
        a_release_that_is_refused_is_repeated_in_the_background,
        the_next_user_of_a_connection_may_time_out_with_it;
    one server:
        connections_that_were_closed_while_idle_are_not_used_for_releases,
        guards_dropped_at_a_silent_server_wait_once,
        the_end_of_a_client_of_a_silent_server_waits_once,
        without_shared_writes_a_thread_gets_a_connection_in_its_turn;
}

stores! {
    over tls:
        connections_that_were_closed_while_idle_are_not_used_for_releases;
}

const THREADS: usize = 8;
const ROUNDS: usize = 50;

/// A client whose threads have to share a connection.
fn crowded() -> Builder {
    patient().wait(3 * SOON).pool_size(1)
}

/// Makes every thread lock names that others want too, one after another.
fn crowd(client: &Client) {
    let names: Vec<_> = (0..THREADS / 2).map(|name| format!("lock {name}")).collect();
    let taken: Vec<_> = names.iter().map(|_| AtomicBool::new(false)).collect();
    let work = |thread: usize| {
        for round in 0..ROUNDS {
            let name = (thread + round / 4) % names.len();
            let guard = client.lock(&names[name]).unwrap();
            assert!(!taken[name].swap(true, Ordering::SeqCst), "two have {:?}", names[name]);
            thread::yield_now();
            taken[name].store(false, Ordering::SeqCst);
            drop(guard);
        }
    };
    thread::scope(|scope| {
        let work = &work;
        for thread in 0..THREADS {
            scope.spawn(move || work(thread));
        }
    });
    for name in &names {
        let free = client.try_lock(name).unwrap();
        assert!(free.is_some(), "all that was released is free when all threads have ended");
    }
}

fn busy_threads_lose_no_lock(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(crowded().on_event(recorder.listener()));
    crowd(&client);
    let count =
        |word: &str| recorder.events().iter().filter(|event| event.starts_with(word)).count();
    let holds = THREADS * ROUNDS + THREADS / 2;
    eventually(SOON, || count("released") == holds);
    assert_eq!(count("acquired"), holds);
    assert_eq!(count("release failed") + count("lost"), 0);
}

fn a_lock_that_was_dropped_is_free_for_the_thread_that_dropped_it(store: &Store) {
    const HOLDS: usize = 300;
    let recorder = Recorder::default();
    let client = store.open(patient().io_timeout(SOON).pool_size(2).on_event(recorder.listener()));
    thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            scope.spawn(move || {
                let name = format!("of {thread}");
                let mut fence = 0;
                for _ in 0..HOLDS {
                    let guard = take(client, &name);
                    assert!(guard.fence() > fence, "a new hold");
                    fence = guard.fence();
                    drop(guard);
                    if fence % 8 == 0 {
                        assert!(!client.mutex(&name).is_locked().unwrap());
                    }
                }
            });
        }
    });
    eventually(SOON, || {
        (0..4).all(|thread| recorder.count(&format!("released of {thread}")) == HOLDS)
    });
    let mut events = recorder.events_of_locks();
    events.retain(|event| event.ends_with("of 0"));
    let in_order = ["acquired of 0", "released of 0"].repeat(HOLDS);
    assert!(events == in_order, "they are reported in the order of the holds");
}

fn a_lock_that_was_dropped_is_free_for_the_other_threads(store: &Store) {
    let client = store.open(patient().pool_size(4));
    let (pass, passed) = bounded(0);
    let (back, returned) = bounded(0);
    thread::scope(|scope| {
        let client = &client;
        scope.spawn(move || {
            while let Ok(round) = passed.recv() {
                drop(take(client, "a"));
                back.send(round).unwrap();
            }
        });
        for round in 0..300 {
            drop(take(client, "a"));
            pass.send(round).unwrap();
            assert_eq!(returned.recv().unwrap(), round);
        }
        drop(pass);
    });
}

fn an_inner_guard_that_was_dropped_leaves_the_outer_one(store: &Store) {
    let client = store.open(patient());
    let outer = take(&client, "a");
    for _ in 0..100 {
        drop(take(&client, "a"));
    }
    let inner = take(&client, "a");
    assert_eq!(inner.depth(), 2);
    drop(outer);
    inner.verify().unwrap();
    assert_eq!(client.mutex("a").holder().unwrap().unwrap().depth, 1);
    drop(inner);
    assert!(!client.mutex("a").is_locked().unwrap());
}

fn a_release_whose_reply_no_call_reads_is_reported(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    drop(take(&client, "a"));
    recorder.wait_for("released a");
    assert_eq!(recorder.count("release failed a"), 0);
}

fn guards_dropped_all_at_once_leave_nothing(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    let name = |n| format!("lock {n}");
    for _ in 0..2 {
        let guards: Vec<_> = (0..400).map(|n| take(&client, &name(n))).collect();
        drop(guards);
    }
    let failed = recorder.events().iter().any(|event| event.starts_with("release failed"));
    assert!(!failed, "the servers are up");
}

/// Takes locks, drops the guards, and ends at once.
#[test]
#[ignore = "a child of a_process_that_ends_after_a_drop_has_released"]
fn drop_in_a_child() {
    let Some(argument) = child::argument() else { return };
    let (drops_client, address) = argument.split_once(' ').unwrap();
    // A lease that outlives the test.
    let builder = patient().lease(ms(3_600_000));
    let client = Address::parse(address).open(builder);
    let outer = client.lock("a").unwrap();
    let guards = (client.lock("a").unwrap(), client.lock("b").unwrap());
    child::report("holds");
    child::wait_for_parent();
    drop((outer, guards));
    if drops_client == "true" {
        drop(client);
    }
    exit(0);
}

fn a_process_that_ends_after_a_drop_has_released(store: &Store) {
    if let Store::Memory(_) = store {
        return;
    }
    let client = store.open(patient());
    for drops_client in [false, true] {
        let mut child =
            Child::start(drop_in_a_child, &format!("{drops_client} {}", store.address()));
        assert_eq!(child.next(), "holds");
        assert!(client.try_lock("a").unwrap().is_none());
        child.go_on();
        child.finish();
        for name in ["a", "b"] {
            client.lock(name).unwrap().unlock().unwrap();
        }
    }
}

fn busy_clients_make_progress_side_by_side(server: &Server) {
    let clients = [server.open(crowded()), server.open(crowded().pool_size(2))];
    let inside = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, inside) = (&clients[thread % 2], &inside);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let guard = client.lock("a").unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    thread::yield_now();
                    inside.store(false, Ordering::SeqCst);
                    drop(guard);
                    drop(client.lock(&format!("of {thread}")).unwrap());
                }
            });
        }
    });
    drop(clients);
    assert_eq!(server.hashes(), [""; 0], "a lock is left");
}

fn the_end_of_a_client_waits_for_its_releases(server: &Server) {
    for _ in 0..20 {
        let client = server.open(patient());
        drop(take(&client, "a"));
        drop(client);
        assert!(!server.exists("a"));
        // The guard is the last owner of the client.
        let guard = take(&server.open(patient()), "a");
        drop(guard);
        assert!(!server.exists("a"));
    }
}

fn a_drop_after_the_scripts_were_flushed_releases(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(patient().on_event(recorder.listener()));
    for round in 0..20 {
        let guard = take(&client, "a");
        let inner = take(&client, "a");
        server.command(&["SCRIPT", "FLUSH"]);
        drop((inner, guard));
        if round % 2 == 0 {
            // Nodes other than that of this lock may already know the scripts again.
            take(&client, "a").unlock().unwrap();
        } else {
            eventually(SOON, || !server.exists("a"));
        }
    }
    assert_eq!(recorder.count("release failed a"), 0);
}

fn many_guards_may_be_dropped_at_once(server: &Server) {
    let client = server.open(patient().lease(ms(3_600_000)).pool_size(2));
    let guards: Vec<_> = (0..1000).map(|n| take(&client, &format!("lock {n}"))).collect();
    drop(guards);
    drop(client);
    assert_eq!(server.hashes(), [""; 0]);
}

fn a_drop_does_not_wait_for_the_reply(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient().io_timeout(SOON).lease(4 * SOON));
    let (outer, inner) = (take(&client, "a"), take(&client, "a"));
    proxy.blackhole_for("a");
    soon(|| drop((inner, outer)));
    assert!(server.exists("a"));
    proxy.heal();
    eventually(SOON, || !server.exists("a"));
}

/// A request that was sent only after the reply to the unlock would arrive a whole delay later.
fn the_next_thread_asks_behind_an_unlock(server: &Server) {
    const DELAY: Duration = ms(1000);
    take(&server.open(patient()), "warm").unlock().unwrap();
    let lag = Lag::before(server, DELAY);
    let far = Client::builder().wait(3 * SOON).connect_timeout(SOON).io_timeout(SOON);
    let far = far.lease(6 * SOON);
    let client = server.through(lag.port()).open(far);
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock_owned("a").unwrap());
        eventually(SOON, || client.stats().waiting == 1);
        guard.unlock().unwrap();
        let (next, time) = timed(|| waiter.join().unwrap());
        assert!(time < DELAY && next.is_held(), "{time:?}");
    });
    let stats = client.stats();
    assert_eq!((stats.acquired, stats.released, stats.handoffs), (2, 1, 0));
}

/// Disturbs the release of `a` by a fault, and then makes the client want the lock again.
fn after(server: &Server, fault: impl Fn(&Proxy), next: impl Fn(&Client)) {
    let recorder = Recorder::default();
    let (proxy, client) = behind_proxy(server, patient().on_event(recorder.listener()));
    for _ in 0..3 {
        let guard = take(&client, "a");
        fault(&proxy);
        drop(guard);
        next(&client);
        proxy.heal();
        eventually(SOON, || !server.exists("a"));
        elsewhere(|| take(&client, "a").unlock().unwrap());
    }
    // The other connections work.
    take(&client, "b").unlock().unwrap();
}

fn a_failed_release_is_not_contention(server: &Server) {
    let faults: [fn(&Proxy); 5] = [
        |proxy| proxy.lose_reply_to("a"),
        |proxy| proxy.lose_request_for("a"),
        |proxy| proxy.cut_reply(2),
        |proxy| proxy.delay_replies(ms(50)),
        Proxy::duplicate_scripts,
    ];
    for fault in faults {
        let is_free = |client: &Client| match client.try_lock("a") {
            Ok(Some(guard)) => guard.unlock().unwrap(),
            Ok(None) => panic!("it was refused its own lock"),
            Err(Error::Unavailable { .. }) => {}
            Err(other) => panic!("{other:?}"),
        };
        after(server, fault, is_free);
        after(server, fault, |client| client.lock("a").unwrap().unlock().unwrap());
        after(server, fault, |client| assert!(!client.mutex("a").is_locked().unwrap()));
        // The sweep notices.
        after(server, fault, |_| {});
    }
}

fn a_release_that_is_refused_is_repeated_in_the_background(server: &Server) {
    let recorder = Recorder::default();
    let (proxy, client) = behind_proxy(server, patient().on_event(recorder.listener()));
    for error in ["READONLY You can't write against a read only replica.", "ERR what", "LOADING"] {
        let guard = take(&client, "a");
        let failures = recorder.count("release failed a");
        proxy.reject_all(error);
        drop(guard);
        eventually(SOON, || recorder.count("release failed a") > failures);
        assert!(server.exists("a"));
        proxy.heal();
        eventually(SOON, || !server.exists("a"));
        take(&client, "a").unlock().unwrap();
    }
}

fn the_next_user_of_a_connection_may_time_out_with_it(server: &Server) {
    let recorder = Recorder::default();
    let (proxy, client) = behind_proxy(server, hasty().on_event(recorder.listener()));
    let guard = take(&client, "a");
    proxy.blackhole();
    drop(guard);
    let refused = client.try_lock("b");
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    recorder.wait_for("release failed a");
    proxy.heal();
    eventually(SOON, || !server.exists("a"));
    eventually(SOON, || client.try_lock("b").is_ok_and(|guard| guard.is_some()));
}

/// The server closes the connections of the pool, which the client does not notice until it uses
/// them.
fn connections_that_were_closed_while_idle_are_not_used_for_releases(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(patient().on_event(recorder.listener()));
    for _ in 0..2 {
        let guard = take(&client, "a");
        thread::sleep(ms(600));
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        drop(guard);
        eventually(SOON, || !server.exists("a"));
    }
    assert_eq!(recorder.count("release failed a"), 0);
}

fn guards_dropped_at_a_silent_server_wait_once(server: &Server) {
    // With this many, the replies on several connections would have to be read first.
    const GUARDS: usize = 600;
    let io_timeout = ms(3000);
    let (proxy, client) = behind_proxy(server, hasty().io_timeout(io_timeout));
    let name = |n| format!("lock {n}");
    let guards: Vec<_> = (0..GUARDS).map(|n| take(&client, &name(n))).collect();
    proxy.blackhole();
    let ((), took) = timed(|| drop(guards));
    assert!(took < 2 * io_timeout, "{took:?}");
    proxy.heal();
    eventually(SOON, || server.hashes().is_empty());
}

fn the_end_of_a_client_of_a_silent_server_waits_once(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty());
    let guards: Vec<_> = (0..20).map(|n| take(&client, &format!("lock {n}"))).collect();
    proxy.blackhole();
    let ((), took) = timed(|| drop((guards, client)));
    assert!(took >= IO, "{took:?}");
    assert!(took < IO + SOON / 2, "{took:?}");
}

fn without_shared_writes_a_thread_gets_a_connection_in_its_turn(server: &Server) {
    // Without shared writes, every request needs a connection of its own.
    let client = server.open(crowded().without(leasehold::Mechanism::SharedWrites));
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (client, end) = (&client, &end);
            scope.spawn(move || {
                while !end.load(Ordering::SeqCst) {
                    drop(client.lock(&format!("of {thread}")).unwrap());
                }
            });
        }
        for _ in 0..20 {
            client.lock("mine").unwrap().unlock().unwrap();
        }
        end.store(true, Ordering::SeqCst);
    });
}

/// The mistakes listed under "Traps" in the crate's documentation, which compile.
#[test]
#[allow(clippy::let_underscore_lock, reason = "this is under test")]
#[allow(clippy::let_underscore_must_use, reason = "this is under test")]
fn an_unnamed_guard_is_released_at_once() {
    let (client, other) = pair();
    let is_free = || other.try_lock("a").unwrap().is_some();

    let _ = client.lock("a").unwrap();
    assert!(is_free());
    _ = client.lock("a").unwrap();
    assert!(is_free());
    let (_, order) = (client.lock("a").unwrap(), 1);
    assert!(order == 1 && is_free());
    let Some(_) = client.try_lock("a").unwrap() else { unreachable!("it is free") };
    assert!(is_free());
    if client.try_lock("a").unwrap().is_some() {
        assert!(is_free());
    }

    let _guard = client.lock("a").unwrap();
    assert!(!is_free());
}

/// The documentation about guards in structs says this.
#[test]
fn a_guard_in_a_struct_is_released_in_the_order_of_the_fields() {
    struct IsFree<'a>(&'a Client, &'a AtomicBool);
    impl Drop for IsFree<'_> {
        fn drop(&mut self) {
            self.1.store(self.0.try_lock("a").unwrap().is_some(), Ordering::SeqCst);
        }
    }
    struct Fields<'a> {
        _before: IsFree<'a>,
        _guard: leasehold::OwnedGuard,
        _after: IsFree<'a>,
    }
    let (client, other) = pair();
    let (before, after) = (AtomicBool::new(true), AtomicBool::new(false));

    drop(Fields {
        _before: IsFree(&other, &before),
        _guard: client.lock_owned("a").unwrap(),
        _after: IsFree(&other, &after),
    });

    assert!(!before.into_inner() && after.into_inner());
}

/// Two clients of one server in memory.
fn pair() -> (Client, Client) {
    let server = leasehold::MemoryServer::new();
    let open = || Builder::default().open_memory(&server).unwrap();
    (open(), open())
}
