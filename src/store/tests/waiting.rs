//! How servers queue and wake waiting clients.

use std::net::TcpListener;

use super::process::Server;
use super::*;
use crate::config::callbacks::{Credentials, CredentialsCallback};

const WAITING: &str = "leasehold:queue:{lock:lock}";

/// Makes a test module per server: of the tests that need only its locks, also in real time, and of
/// those that look into Redis or need clients without a listener.
macro_rules! servers {
    ($($common:ident),+; $($real:ident),+; $($behaviour:ident),+ $(,)?) => {
        mod in_memory {
            $(#[test] fn $common() {
                super::in_virtual_time(|| super::$common(&super::MemoryServer::default()));
            })+
            $(#[test] fn $real() { super::$real(&super::MemoryServer::default()); })+
        }
        mod on_redis {
            $(#[test] fn $common() { super::$common(&super::Server::redis()); })+
            $(#[test] fn $real() { super::$real(&super::Server::redis()); })+
            $(#[test] fn $behaviour() { super::$behaviour(&super::Server::redis()); })+
        }
        mod on_valkey {
            $(#[test] fn $common() { super::$common(&super::Server::valkey()); })+
            $(#[test] fn $real() { super::$real(&super::Server::valkey()); })+
            $(#[test] fn $behaviour() { super::$behaviour(&super::Server::valkey()); })+
        }
    };
}

servers!(
    only_a_waiting_client_is_registered,
    a_client_that_has_the_lock_or_leaves_is_not_registered,
    a_release_wakes_the_client_that_has_waited_longest,
    every_way_to_free_a_lock_wakes_a_client,
    a_released_lock_is_offered_to_the_client_that_has_waited_longest,
    a_client_that_has_stopped_costs_one_offer,
    a_yielding_client_lets_another_go_first,
    a_kept_lock_is_offered_to_no_client_but_one_is_told,
    a_hold_that_gets_another_level_is_watched_as_before,
    an_offer_is_taken_by_any_thread_of_its_client,
    what_is_offered_to_a_client_that_leaves_goes_to_the_next,
    an_echo_is_sent_to_who_is_told_when_a_hold_ends;
    a_long_wait_takes_no_processor_time;
    waiting_clients_are_in_the_order_of_arrival,
    the_list_of_waiting_clients_never_lasts_for_ever,
    a_lock_that_stays_held_wakes_no_client,
    a_release_that_comes_too_late_wakes_no_client,
    a_client_that_was_told_goes_first_when_a_kept_lock_is_free,
    a_full_server_keeps_a_lock,
    clients_that_are_gone_are_skipped,
    clients_without_a_listener_keep_their_places_for_two_seconds,
    a_client_that_was_found_dead_holds_up_none_that_waits,
    a_client_that_only_asks_now_and_then_is_offered_the_lock,
    a_mark_of_a_clock_that_was_set_back_is_over,
    a_client_behind_hundreds_that_are_dead_is_offered_the_lock,
    a_client_that_does_not_wait_leaves_clients_without_a_listener_in_their_places,
    a_client_that_leaves_wakes_the_next,
    a_client_that_does_not_yield_takes_a_free_lock,
    a_full_server_wakes_clients_and_registers_none,
    a_spoilt_list_of_waiting_clients_does_no_harm,
    a_user_without_rights_to_the_waiting_clients_can_lock,
    no_echo_is_sent_to_a_client_that_will_not_be_woken,
    two_rights_that_are_missing_leave_no_key_without_a_time_to_live,
    the_message_names_the_lock_without_the_prefix,
    a_client_learns_when_it_does_not_hear_everything,
    a_lost_subscription_is_made_again,
    a_silent_server_is_given_up,
    a_rejected_subscription_is_reported,
    messages_that_make_no_sense_are_ignored,
    an_interrupt_ends_the_wait,
    no_message_is_missed_once_it_is_ready,
    a_message_that_has_come_is_returned_after_the_deadline_too,
);

/// A hold of a client of its own.
fn of(client: &str, nonce: u64) -> HoldId {
    HoldId { client: Arc::from(client), ..hold(nonce) }
}

fn ask(store: &dyn Store, hold: &HoldId, registration: Registration) -> AcquireReply {
    acquire(store, hold, registration).expect("a reply")
}

fn register(store: &dyn Store, client: &str) {
    let reply = ask(store, &of(client, 1), Registration::IfHeld);
    assert!(matches!(reply, AcquireReply::Held { remaining: Some(_), .. }), "{reply:?}");
}

fn release(store: &dyn Store, hold: &HoldId) {
    assert_eq!(super::release(store, hold).ok(), Some(HoldReply::Done));
}

/// Acquires the lock that a client was offered, and registers the client again.
fn take_offer(store: &dyn Store, client: &str, nonce: u64) {
    let reply = ask(store, &of(client, nonce), Registration::Registered);
    assert!(matches!(reply, AcquireReply::Acquired { .. }), "{reply:?}");
    register(store, client);
}

fn holder(store: &dyn Store) -> Option<Vec<u8>> {
    store.inspect("lock", soon()).expect("a reply").map(|holder| holder.owner)
}

fn waiting(process: &impl Host) -> Vec<String> {
    process.waiting()
}

/// Returns the wake-ups of a client, once messages arrive.
fn listen(store: &dyn Store, client: &str) -> Box<dyn Wakeups> {
    let mut wakeups = messages(store, client);
    assert_eq!(next(&mut *wakeups), Wake::Ready);
    wakeups
}

fn next(wakeups: &mut dyn Wakeups) -> Wake {
    wakeups.next(soon()).expect("in time").expect("a message")
}

fn nothing_comes(wakeups: &mut dyn Wakeups) -> bool {
    wakeups.next(end_of(Duration::from_millis(20))).is_none()
}

fn woken() -> Wake {
    Wake::Lock("lock".into())
}

fn only_a_waiting_client_is_registered(process: &impl Host) {
    let store = single(process);
    must_acquire(&store, &hold(1));
    ask(&store, &of("a", 1), Registration::None);
    assert_eq!(waiting(process), [""; 0]);
    for mode in [Registration::IfHeld, Registration::Registered, Registration::Yielding] {
        let client = format!("{mode:?}");
        ask(&store, &of(&client, 1), mode);
        assert_eq!(waiting(process), [client.as_str()]);
        unregister(&store, &client);
    }
}

fn a_client_that_has_the_lock_or_leaves_is_not_registered(process: &impl Host) {
    let store = single(process);
    for mode in [Registration::Registered, Registration::Yielding] {
        must_acquire(&store, &hold(1));
        register(&store, "a");
        release(&store, &hold(1));
        let reply = ask(&store, &of("a", 1), mode);
        assert!(matches!(reply, AcquireReply::Acquired { .. }), "{reply:?}");
        assert_eq!(waiting(process), [""; 0]);
        // A repeat of the first request, executed late.
        register(&store, "b");
        assert_eq!(ask(&store, &of("a", 1), mode), reply);
        assert_eq!(waiting(process), ["b"]);
        unregister(&store, "b");
        assert_eq!(waiting(process), [""; 0]);
        release(&store, &of("a", 1));
    }
}

fn waiting_clients_are_in_the_order_of_arrival(process: &Server) {
    let store = single(process);
    must_acquire(&store, &hold(1));
    for client in ["c", "a", "b"] {
        register(&store, client);
        thread::sleep(Duration::from_millis(2));
    }
    ask(&store, &of("c", 1), Registration::Registered);
    assert_eq!(waiting(process), ["c", "a", "b"]);
    let score: f64 = process.ask(&["ZSCORE", WAITING, "c"]);
    let [seconds, _]: [f64; 2] = process.ask(&["TIME"]);
    assert!((score / 1000.0 - seconds).abs() < 10.0, "{score} at {seconds}");
}

fn the_list_of_waiting_clients_never_lasts_for_ever(process: &Server) {
    let life = |process: &Server| process.ask::<i64>(&["PTTL", WAITING]);
    let patient = |max| {
        let backoff = (Duration::from_millis(5), Duration::from_secs(max));
        single_at(&process.url(), &Config { backoff, ..Config::default() })
    };
    let store = patient(1);
    must_acquire(&store, &hold(1));
    register(&store, "a");
    assert!((50_000..=60_000).contains(&life(process)), "{}", life(process));
    process.command(&["PEXPIRE", WAITING, "10000"]);
    ask(&store, &of("a", 1), Registration::Registered);
    assert!(life(process) > 50_000, "each try confirms it: {}", life(process));
    register(&patient(100), "b");
    assert!((190_000..=200_000).contains(&life(process)), "{}", life(process));
    ask(&store, &of("a", 1), Registration::Registered);
    let kind = HoldKind::Read;
    must_acquire(&store, &HoldId { name: "other".into(), kind, ..hold(1) });
    assert!(life(process) > 180_000, "b asks less often: {}", life(process));
    register(&patient(u64::MAX), "c");
    assert!(life(process) > 80_000_000, "{}", life(process));
}

fn a_release_wakes_the_client_that_has_waited_longest(process: &impl Host) {
    let store = single(process);
    let (mut first, mut second) = (listen(&store, "first"), listen(&store, "second"));
    must_acquire(&store, &hold(1));
    register(&store, "first");
    sleep(Duration::from_millis(2));
    register(&store, "second");
    release(&store, &hold(1));
    assert_eq!(next(&mut *first), woken());
    assert_eq!(next(&mut *second), woken(), "the first may have stopped");
    assert_eq!(waiting(process), ["second"], "the first may have the lock");
    let reply = ask(&store, &of("second", 1), Registration::Registered);
    let AcquireReply::Held { remaining: Some(left), .. } = reply else { panic!("{reply:?}") };
    assert!(left <= Duration::from_millis(200), "it learns when the offer is over: {left:?}");

    ask(&store, &of("first", 1), Registration::Registered);
    assert_eq!(waiting(process), ["second"]);
    release(&store, &of("first", 1));
    assert_eq!(next(&mut *second), woken());
    assert!(nothing_comes(&mut *first));
}

fn every_way_to_free_a_lock_wakes_a_client(process: &impl Host) {
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    must_acquire(&store, &hold(1));
    register(&store, "a");
    assert_eq!(store.force_release(lock_of(b"client:1"), soon()).ok(), Some(true));
    assert_eq!(next(&mut *wakeups), woken());

    take_offer(&store, "a", 2);
    let released = run_jobs(&mut *store.jobs(), &[(of("a", 2), Change::RELEASE)]);
    assert!(matches!(released[..], [Ok(HoldReply::Done)]));
    assert_eq!(next(&mut *wakeups), woken());
}

fn a_lock_that_stays_held_wakes_no_client(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    must_acquire(&store, &hold(1));
    register(&store, "a");
    assert_eq!(super::release(&store, &hold(2)).ok(), Some(HoldReply::Gone));
    register(&store, "b");
    unregister(&store, "b");
    // A hash with another field is not a free lock.
    process.command(&["HSET", "lock:lock", "stranger:1", "1"]);
    release(&store, &hold(1));
    assert!(nothing_comes(&mut *wakeups));
    assert_eq!(store.force_release(lock_of(b"stranger:1"), soon()).ok(), Some(true));
    assert_eq!(next(&mut *wakeups), woken());
    assert_eq!(store.force_release(lock_of(b"stranger:1"), soon()).ok(), Some(false));
    assert!(nothing_comes(&mut *wakeups));
}

fn a_release_that_comes_too_late_wakes_no_client(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    must_acquire(&store, &hold(1));
    register(&store, "a");
    // This stands for the end of its lease.
    process.command(&["DEL", "lock:lock"]);
    assert_eq!(super::release(&store, &hold(1)).ok(), Some(HoldReply::Gone));
    assert_eq!(store.force_release(lock_of(b"client:1"), soon()).ok(), Some(false));
    assert!(nothing_comes(&mut *wakeups) && waiting(process) == ["a"]);
}

fn a_kept_lock_is_offered_to_no_client_but_one_is_told(process: &impl Host) {
    let store = single(process);
    let [mut first, mut second, mut ended] =
        ["a", "b", "client"].map(|client| listen(&store, client));
    must_acquire(&store, &hold(1));
    change(&store, &hold(1), Change::Watch { lease: None }).expect("a reply");
    ask(&store, &of("a", 1), Registration::IfMayBeKept);
    assert!(nothing_comes(&mut *ended), "no client waits");
    register(&single(process), "gone");
    assert!(matches!(next(&mut *ended), Wake::Recall { waits: true, .. }));
    for client in ["a", "b"] {
        register(&store, client);
        assert!(matches!(next(&mut *ended), Wake::Recall { waits: true, .. }));
    }
    for reply in [HoldReply::Done, HoldReply::Gone] {
        assert_eq!(keep(&store, &hold(1), LEASE / 2).ok(), Some(reply));
    }
    assert_eq!(next(&mut *first), woken());
    assert!(nothing_comes(&mut *first), "told once");
    assert_eq!(next(&mut *second), woken(), "the first may have stopped");
    assert!(nothing_comes(&mut *second), "told once");
    assert_eq!(waiting(process), ["a", "b"]);
    assert_eq!((holder(&store), depth(&store)), (Some(b"client:1".into()), Some(0)));
    let reply = ask(&store, &of("a", 2), Registration::Registered);
    let AcquireReply::Held { remaining: Some(left), .. } = reply else { panic!("{reply:?}") };
    assert!(left <= LEASE / 2, "{left:?}");
    assert_eq!(waiting(process), ["a", "b"], "its place is the same");
    assert!(nothing_comes(&mut *ended), "the hold is over");

    // It keeps its place however often it is notified without asking, because it may be far away.
    for nonce in [2, 3] {
        process.clear();
        must_acquire(&store, &hold(nonce));
        assert_eq!(keep(&store, &hold(nonce), LEASE / 2).ok(), Some(HoldReply::Done));
        assert_eq!([next(&mut *first), next(&mut *second)], [woken(), woken()]);
        assert_eq!(waiting(process), ["a", "b"]);
    }
    assert_eq!(store.force_release(lock_of(b"client:3"), soon()).ok(), Some(true));
    assert_eq!(next(&mut *first), woken());
    assert_eq!(waiting(process), ["b"]);
}

fn a_hold_that_gets_another_level_is_watched_as_before(process: &impl Host) {
    let store = single(process);
    let mut wakeups = listen(&store, "client");
    must_acquire(&store, &hold(1));
    change(&store, &hold(1), Change::Watch { lease: None }).expect("a reply");
    for (depth, other) in [(2, "a"), (1, "b")] {
        let level = Change::SetDepth { depth, lease: None, durable: false };
        assert_eq!(change(&store, &hold(1), level).ok(), Some(HoldReply::Done));
        register(&store, other);
        assert!(matches!(next(&mut *wakeups), Wake::Recall { waits: true, .. }));
    }
}

/// Its request may be on its way for longer than the lock stays taken.
fn a_client_that_was_told_goes_first_when_a_kept_lock_is_free(process: &Server) {
    let store = single(process);
    let _wakeups = ["far", "near"].map(|client| listen(&store, client));
    must_acquire(&store, &hold(1));
    for client in ["far", "near"] {
        register(&store, client);
    }
    keep(&store, &hold(1), Duration::from_millis(10)).expect("a reply");
    eventually(|| process.ask::<u64>(&["EXISTS", "lock:lock"]) == 0);
    let near = ask(&store, &of("near", 1), Registration::Yielding);
    let AcquireReply::Held { remaining: Some(left), .. } = near else { panic!("{near:?}") };
    assert!(left <= Duration::from_millis(200), "it is offered to the other: {left:?}");
    assert_eq!(waiting(process), ["near"]);
    let far = ask(&store, &of("far", 1), Registration::Yielding);
    assert!(matches!(far, AcquireReply::Acquired { .. }), "{far:?}");
}

fn a_full_server_keeps_a_lock(process: &Server) {
    let store = single(process);
    must_acquire(&store, &hold(1));
    process.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(keep(&store, &hold(1), LEASE / 2).ok(), Some(HoldReply::Done));
    assert_eq!(depth(&store), Some(0));
}

fn clients_that_are_gone_are_skipped(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "alive");
    must_acquire(&store, &hold(1));
    for number in 0..50 {
        register(&store, &format!("dead {number:02}"));
    }
    thread::sleep(Duration::from_millis(2));
    register(&store, "alive");
    release(&store, &hold(1));
    assert_eq!(next(&mut *wakeups), woken());
    assert_eq!(waiting(process), [""; 0], "it is offered the lock");
    unregister(&store, "alive");

    // Two seconds ago they were found to have no listener.
    must_acquire(&store, &hold(2));
    let mut dead = redis::cmd("ZADD");
    dead.arg(WAITING);
    for number in 0..250 {
        dead.arg(f64::from(number) - 1e13).arg(format!("dead {number:03}"));
    }
    dead.exec(&mut process.connect()).expect("a reply");
    for left in [150, 50, 0] {
        release(&store, &hold(2));
        assert_eq!(waiting(process).len(), left, "one script does not run for too long");
        must_acquire(&store, &hold(2));
    }
}

/// As after a restart, none of them listens yet.
fn clients_without_a_listener_keep_their_places_for_two_seconds(process: &Server) {
    let store = single(process);
    let clients = ["a", "b", "c", "d", "e"];
    must_acquire(&store, &hold(1));
    for (number, client) in clients.iter().enumerate() {
        process.command(&["ZADD", WAITING, &(number + 1).to_string(), client]);
    }
    for nonce in 1..3 {
        release(&store, &hold(nonce));
        assert_eq!(waiting(process), clients);
        must_acquire(&store, &hold(nonce + 1));
    }
    release(&store, &hold(3));
    for client in ["e", "b"] {
        let reply = ask(&store, &of(client, 1), Registration::Returning);
        let AcquireReply::Held { remaining: Some(left), .. } = reply else { panic!("{reply:?}") };
        assert!(left <= Duration::from_secs(2), "{left:?}");
    }
    let first = ask(&store, &of("a", 1), Registration::Returning);
    assert!(matches!(first, AcquireReply::Acquired { .. }), "{first:?}");
    // Another client listens, but goes behind those that were just found without a listener.
    let mut wakeups = listen(&store, "d");
    release(&store, &of("a", 1));
    assert_eq!(next(&mut *wakeups), woken());
    assert_eq!(waiting(process), ["b", "c", "d", "e"], "b does not listen");
    let second = ask(&store, &of("d", 1), Registration::Returning);
    assert!(matches!(second, AcquireReply::Held { remaining: Some(_), .. }), "{second:?}");
    process.command(&["ZADD", WAITING, "-1e13", "b", "-1e13", "c"]);
    let second = ask(&store, &of("d", 1), Registration::Returning);
    assert!(matches!(second, AcquireReply::Acquired { .. }), "two seconds later: {second:?}");
}

fn takes(store: &dyn Store, hold: &HoldId, registration: Registration) -> bool {
    matches!(ask(store, hold, registration), AcquireReply::Acquired { .. })
}

/// A waiting client has died, and there was none to take its turn.
fn a_client_that_was_found_dead_holds_up_none_that_waits(process: &Server) {
    let store = single(process);
    let find_dead = |clients: &[&str]| {
        must_acquire(&store, &hold(1));
        for client in clients {
            register(&store, client);
        }
        release(&store, &hold(1));
        assert_eq!(waiting(process), clients);
    };
    find_dead(&["dead"]);
    assert!(
        takes(&store, &of("new", 1), Registration::IfHeld),
        "no waiting client is known to be alive"
    );
    // This one comes later, and listens.
    let mut wakeups = listen(&store, "alive");
    register(&store, "alive");
    release(&store, &of("new", 1));
    assert_eq!(next(&mut *wakeups), woken());
    assert!(!takes(&store, &of("new", 2), Registration::None), "it is offered to the other");
    assert!(takes(&store, &of("alive", 1), Registration::Registered));
    assert_eq!(waiting(process), ["dead"], "for two seconds");
    release(&store, &of("alive", 1));
    unregister(&store, "dead");

    // This one was about to listen when the other was found dead.
    find_dead(&["dead", "late"]);
    let mut wakeups = listen(&store, "late");
    assert!(takes(&store, &of("new", 3), Registration::IfHeld));
    register_again(&store, "late");
    release(&store, &of("new", 3));
    assert_eq!(next(&mut *wakeups), woken());
    assert!(!takes(&store, &of("new", 4), Registration::None), "it is offered to the other");
    assert!(takes(&store, &of("late", 1), Registration::Registered));
    release(&store, &of("late", 1));
    unregister(&store, "dead");

    // A free lock goes to any client that asks, whether or not it can listen.
    find_dead(&["dead", "polls"]);
    assert!(takes(&store, &of("polls", 1), Registration::Registered));
    release(&store, &of("polls", 1));
    unregister(&store, "dead");
    find_dead(&["dead", "polls"]);
    assert!(takes(&store, &of("polls", 2), Registration::Yielding));
}

/// Makes a client in the queue find the lock held.
fn register_again(store: &dyn Store, client: &str) {
    assert!(!takes(store, &of(client, 1), Registration::Registered));
}

/// All clients do that where no messages can arrive.
fn a_client_that_only_asks_now_and_then_is_offered_the_lock(process: &Server) {
    let store = single(process);
    must_acquire(&store, &hold(1));
    for client in ["polls", "asks"] {
        register(&store, client);
        thread::sleep(Duration::from_millis(2));
    }
    for round in 0..3 {
        release(&store, &hold(2 * round + 1));
        // It is not known whether they are alive.
        must_acquire(&store, &hold(2 * round + 2));
        for client in ["polls", "asks"] {
            register_again(&store, client);
        }
        release(&store, &hold(2 * round + 2));
        for registration in [Registration::None, Registration::IfHeld] {
            assert!(!takes(&store, &of("new", 1), registration), "it is offered to another");
        }
        assert!(takes(&store, &of("polls", 2), Registration::Registered));
        register(&store, "polls");
        release(&store, &of("polls", 2));
        assert!(!takes(&store, &of("new", 1), Registration::None), "it is offered to the next");
        assert!(takes(&store, &of("asks", 2), Registration::Registered));
        unregister(&store, "new");
        unregister(&store, "polls");
        release(&store, &of("asks", 2));
        must_acquire(&store, &hold(2 * round + 3));
        for client in ["polls", "asks"] {
            register(&store, client);
        }
    }
    // One that has died since then costs one offer.
    release(&store, &hold(7));
    must_acquire(&store, &hold(8));
    register_again(&store, "polls");
    release(&store, &hold(8));
    assert!(is_held(&acquire(&store, &hold(9), Registration::None)));
    eventually(|| !is_held(&acquire(&store, &hold(9), Registration::None)));
    release(&store, &hold(9));
    must_acquire(&store, &hold(10));
}

fn a_mark_of_a_clock_that_was_set_back_is_over(process: &Server) {
    let store = single(process);
    let [seconds, _]: [f64; 2] = process.ask(&["TIME"]);
    let hour_ahead = ((seconds + 3600.0) * 1000.0 - 1e13).to_string();
    must_acquire(&store, &hold(1));
    process.command(&["ZADD", WAITING, &hour_ahead, "dead"]);
    let returning = of("back", 1);
    register(&store, "back");
    release(&store, &hold(1));
    assert!(takes(&store, &returning, Registration::Returning));
    assert_eq!(waiting(process), [""; 0]);
}

fn a_client_behind_hundreds_that_are_dead_is_offered_the_lock(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "alive");
    let [seconds, _]: [f64; 2] = process.ask(&["TIME"]);
    // They came a while ago, or were found without a listener a moment ago, or long ago.
    for since in [1.0, seconds * 1000.0 - 1e13, -1e13] {
        must_acquire(&store, &hold(1));
        let mut dead = redis::cmd("ZADD");
        dead.arg(WAITING);
        for number in 0..300 {
            dead.arg(since + f64::from(number) / 1000.0).arg(format!("dead {number:03}"));
        }
        dead.exec(&mut process.connect()).expect("a reply");
        register(&store, "alive");
        release(&store, &hold(1));
        assert_eq!(next(&mut *wakeups), woken(), "{since}");
        let newcomer = of("new", 1);
        assert!(!takes(&store, &newcomer, Registration::None), "{since}");
        assert!(takes(&store, &of("alive", 1), Registration::Registered), "{since}");
        release(&store, &of("alive", 1));
        process.command(&["DEL", WAITING, "lock:lock"]);
        while !nothing_comes(&mut *wakeups) {}
    }
}

fn a_client_that_does_not_wait_leaves_clients_without_a_listener_in_their_places(process: &Server) {
    let store = single(process);
    must_acquire(&store, &hold(1));
    process.command(&["ZADD", WAITING, "1", "a", "2", "b"]);
    release(&store, &hold(1));
    let reply = ask(&store, &of("c", 1), Registration::Last);
    assert!(matches!(reply, AcquireReply::Acquired { .. }), "{reply:?}");
    assert_eq!(waiting(process), ["a", "b"]);
}

fn a_client_that_leaves_wakes_the_next(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "b");
    must_acquire(&store, &hold(1));
    register(&store, "a");
    thread::sleep(Duration::from_millis(2));
    register(&store, "b");
    unregister(&store, "a");
    assert!(nothing_comes(&mut *wakeups), "the lock is not free");
    release(&store, &hold(1));
    assert_eq!(next(&mut *wakeups), woken());

    // It is offered the lock, no longer wants it, and leaves.
    unregister(&store, "b");
    assert_eq!(holder(&store), None);
    must_acquire(&store, &hold(2));
    register(&store, "b");
    process.command(&["ZADD", WAITING, "1", "a"]);
    release(&store, &hold(2));
    assert_eq!(next(&mut *wakeups), woken(), "a does not listen");
    unregister(&store, "a");
    unregister(&store, "a");
    assert!(nothing_comes(&mut *wakeups), "it had left already");
}

fn what_is_offered_to_a_client_that_leaves_goes_to_the_next(process: &impl Host) {
    let store = single(process);
    let [mut first, mut second] = ["a", "b"].map(|client| listen(&store, client));
    must_acquire(&store, &hold(1));
    register(&store, "a");
    sleep(Duration::from_millis(2));
    register(&store, "b");
    release(&store, &hold(1));
    assert_eq!([next(&mut *first), next(&mut *second)], [woken(), woken()]);
    unregister(&store, "a");
    assert_eq!(next(&mut *second), woken(), "now it is its turn");
    take_offer(&store, "b", 2);
}

fn a_yielding_client_lets_another_go_first(process: &impl Host) {
    let store = single(process);
    let [mut wakeups, _b, _late] = ["a", "b", "late"].map(|client| listen(&store, client));
    must_acquire(&store, &hold(1));
    register(&store, "a");
    process.clear();

    let late = of("late", 1);
    let reply = ask(&store, &late, Registration::Yielding);
    let AcquireReply::Held { remaining: Some(left), .. } = reply else { panic!("{reply:?}") };
    assert!(left <= Duration::from_millis(200), "it is offered to the other: {left:?}");
    assert_eq!(next(&mut *wakeups), woken());
    assert_eq!(waiting(process), ["late"]);
    assert_eq!(depth(&store), None);
    assert!(matches!(
        ask(&store, &of("a", 1), Registration::Yielding),
        AcquireReply::Acquired { .. }
    ));
    assert!(matches!(
        ask(&store, &late, Registration::Yielding),
        AcquireReply::Held { remaining: Some(_), .. }
    ));
    register(&store, "b");
    process.clear();
    assert!(matches!(ask(&store, &late, Registration::Yielding), AcquireReply::Acquired { .. }));
    assert_eq!(waiting(process), ["b"]);
    process.clear();
    let reply = ask(&store, &of("b", 1), Registration::Registered);
    assert!(matches!(reply, AcquireReply::Acquired { .. }) && waiting(process).is_empty());
}

fn a_client_that_does_not_yield_takes_a_free_lock(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    let _wakeups = listen(&store, "late");
    process.command(&["ZADD", WAITING, "1", "a", "2", "late"]);
    let late = of("late", 1);
    assert!(matches!(ask(&store, &late, Registration::Registered), AcquireReply::Acquired { .. }));
    assert!(nothing_comes(&mut *wakeups));
    assert_eq!(waiting(process), ["a"], "its place is the same");
    // The other one has no listener, and this one has.
    process.command(&["DEL", "lock:lock"]);
    process.command(&["ZADD", WAITING, "0", "gone", "0.5", "late"]);
    let next = of("late", 2);
    assert!(matches!(ask(&store, &next, Registration::Yielding), AcquireReply::Acquired { .. }));
    assert_eq!(waiting(process), ["a"]);
}

fn a_full_server_wakes_clients_and_registers_none(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    must_acquire(&store, &hold(1));
    register(&store, "a");
    process.command(&["CONFIG", "SET", "maxmemory", "1"]);
    ask(&store, &of("b", 1), Registration::IfHeld);
    release(&store, &hold(1));
    assert_eq!(next(&mut *wakeups), woken());
    let failure = acquire(&store, &of("a", 1), Registration::Registered).expect_err("no memory");
    assert_eq!(failure.code, "OOM");
    unregister(&store, "a");
    assert_eq!(waiting(process), [""; 0]);
}

fn a_spoilt_list_of_waiting_clients_does_no_harm(process: &Server) {
    let store = single(process);
    process.command(&["SET", WAITING, "mine"]);
    must_acquire(&store, &hold(1));
    for mode in [Registration::IfHeld, Registration::Registered, Registration::Yielding] {
        assert!(matches!(
            ask(&store, &of("a", 1), mode),
            AcquireReply::Held { remaining: Some(_), .. }
        ));
    }
    unregister(&store, "a");
    release(&store, &hold(1));
    for mode in [Registration::IfHeld, Registration::Registered, Registration::Yielding] {
        assert!(matches!(ask(&store, &of("a", 1), mode), AcquireReply::Acquired { .. }));
        assert_eq!(store.force_release(lock_of(b"a:1"), soon()).ok(), Some(true));
    }
    assert_eq!(process.ask::<String>(&["GET", WAITING]), "mine");
}

fn a_released_lock_is_offered_to_the_client_that_has_waited_longest(process: &impl Host) {
    let store = single(process);
    let _wakeups = ["a", "b"].map(|client| listen(&store, client));
    must_acquire(&store, &hold(1));
    register(&store, "a");
    sleep(Duration::from_millis(2));
    register(&store, "b");
    release(&store, &hold(1));
    assert_eq!(holder(&store), None, "an offer is no hold");
    for registration in [Registration::None, Registration::IfHeld, Registration::Registered] {
        for client in ["client", "b"] {
            let reply = ask(&store, &of(client, 2), registration);
            let AcquireReply::Held { remaining: Some(left), .. } = reply else {
                panic!("{reply:?}")
            };
            assert!(left <= Duration::from_millis(200), "{left:?}");
        }
    }
    let reply = ask(&store, &of("a", 2), Registration::Registered);
    assert!(matches!(reply, AcquireReply::Acquired { .. }), "{reply:?}");
    assert_eq!(ask(&store, &of("a", 2), Registration::Registered), reply, "a repeat");
    assert_eq!(holder(&store).as_deref(), Some(&b"a:2"[..]));
    release(&store, &of("a", 2));
    assert_eq!(waiting(process), ["client"], "the offer to a is gone, and b has one");
    let reply = ask(&store, &of("client", 3), Registration::None);
    assert!(matches!(reply, AcquireReply::Held { .. }), "it is b's turn: {reply:?}");
}

fn a_client_that_has_stopped_costs_one_offer(process: &impl Host) {
    let store = single(process);
    let _wakeups = ["stopped", "late", "client"].map(|client| listen(&store, client));
    must_acquire(&store, &hold(1));
    for client in ["stopped", "late"] {
        register(&store, client);
        sleep(Duration::from_millis(2));
    }
    for left in [&["late"][..], &[]] {
        release(&store, &hold(1));
        assert_eq!(waiting(process), left, "the other was offered it");
        eventually(|| !is_held(&acquire(&store, &hold(1), Registration::None)));
    }
    // One of them asks, but too late.
    ask(&store, &of("late", 1), Registration::Registered);
    assert_eq!(waiting(process), ["late"]);
    release(&store, &hold(1));
    let reply = ask(&store, &of("late", 1), Registration::Registered);
    assert!(matches!(reply, AcquireReply::Acquired { .. }), "{reply:?}");
}

fn an_offer_is_taken_by_any_thread_of_its_client(process: &impl Host) {
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    must_acquire(&store, &hold(1));
    register(&store, "a");
    for nonce in 2..5 {
        let freed = if nonce == 2 { hold(1) } else { of("a", nonce - 1) };
        release(&store, &freed);
        assert_eq!(next(&mut *wakeups), woken(), "it has registered again");
        let reply = ask(&store, &of("a", nonce), Registration::None);
        assert!(matches!(reply, AcquireReply::Acquired { .. }), "{reply:?}");
        register(&store, "a");
    }
}

/// Asks for an echo. Returns the owner that the reply names, if the echo was sent.
fn ask_for_echo(store: &dyn Store, hold: &HoldId, registration: Registration) -> Option<String> {
    let holds = std::slice::from_ref(hold);
    let request =
        Acquire { holds, lease: LEASE, note: None, registration, echo: true, deadline: soon() };
    match store.acquire(request).expect("a reply") {
        AcquireReply::Held { echoed, .. } => echoed,
        reply @ AcquireReply::Acquired { .. } => panic!("{reply:?}"),
    }
}

/// An id in the form of real ones.
fn id(client: &str) -> String {
    format!("{client}:0123456789abcdef0123456789abcdef")
}

fn of_kind(kind: HoldKind, client: &str, nonce: u64) -> HoldId {
    HoldId { kind, ..of(&id(client), nonce) }
}

fn an_echo_is_sent_to_who_is_told_when_a_hold_ends(process: &impl Host) {
    let store = single(process);
    let [mut one, mut other] = ["one", "other"].map(|client| listen(&store, &id(client)));
    let echo = || Wake::Echo("lock".into());
    let mut hears = |kind, owner: &str| {
        let sent = ask_for_echo(&store, &of_kind(kind, "one", 1), Registration::Registered);
        assert_eq!(sent.as_deref(), Some(owner), "{kind:?}");
        assert_eq!(next(&mut *one), echo());
        assert!(nothing_comes(&mut *one));
    };
    let held = of_kind(HoldKind::Lock, "holder", 2);
    must_acquire(&store, &held);
    for _ in 0..2 {
        hears(HoldKind::Lock, &held.owner());
    }
    unregister(&store, &id("one"));
    release(&store, &held);
    let permit = HoldKind::Permit { of: 1 };
    for (held, waits) in [
        (HoldKind::Write, HoldKind::Read),
        (HoldKind::Read, HoldKind::Write),
        (HoldKind::Write, HoldKind::Write),
        (permit, permit),
    ] {
        let held = of_kind(held, "holder", 2);
        must_acquire(&store, &held);
        ask(&store, &of_kind(waits, "one", 1), Registration::IfHeld);
        for _ in 0..2 {
            hears(waits, "");
        }
        unregister(&store, &id("one"));
        release(&store, &held);
    }
    // A reader behind a waiting writer, which may be gone.
    let held = of_kind(HoldKind::Read, "holder", 2);
    must_acquire(&store, &held);
    let writer = of_kind(HoldKind::Write, "other", 1);
    ask(&store, &writer, Registration::IfHeld);
    assert!(ask_for_echo(&store, &writer, Registration::Registered).is_some());
    assert_eq!(next(&mut *other), echo());
    let reader = of_kind(HoldKind::Read, "one", 1);
    assert_eq!(ask_for_echo(&store, &reader, Registration::Registered), None);
    assert!(nothing_comes(&mut *one));
}

fn no_echo_is_sent_to_a_client_that_will_not_be_woken(process: &Server) {
    let store = single(process);
    let waits = of_kind(HoldKind::Lock, "one", 1);
    let asks = || ask_for_echo(&store, &waits, Registration::Registered);
    process.command(&["SET", "lock:lock", "another", "PX", "60000"]);
    assert_eq!(asks(), None);
    process.command(&["DEL", "lock:lock"]);
    let redisson = "01234567-89ab-cdef-0123-456789abcdef:1";
    process.command(&["HSET", "lock:lock", redisson, "1"]);
    process.command(&["PEXPIRE", "lock:lock", "60000"]);
    let _wakeups = listen(&store, &id("one"));
    assert_eq!(asks(), None, "no message will come");
    process.command(&["DEL", "lock:lock"]);
    must_acquire(&store, &of_kind(HoldKind::Lock, "holder", 2));
    assert!(asks().is_some());
    process.command(&["DEL", WAITING]);
    process.command(&["RPUSH", WAITING, "foreign"]);
    assert_eq!(asks(), None, "it is not registered");
    process.command(&["DEL", WAITING]);
    assert!(asks().is_some());
    let kept = of_kind(HoldKind::Lock, "kept", 3).that_may_be_kept();
    release(&store, &of_kind(HoldKind::Lock, "holder", 2));
    process.command(&["DEL", "lock:lock"]);
    must_acquire(&store, &kept);
    assert_eq!(asks(), None, "the client that keeps it was not reached");
    let _listener = listen(&store, &id("kept"));
    assert!(asks().is_some());
}

/// One command sets a time to live, and the other takes back a key without one.
fn two_rights_that_are_missing_leave_no_key_without_a_time_to_live(process: &Server) {
    let (all, number) = (single(process), ":0123456789abcdef0123456789abcdef");
    let [waiting, other] = ["waiting", "other"].map(|client| [client, number].concat());
    let _listener = listen(&all, &waiting);
    let permit = HoldId { kind: HoldKind::Permit { of: 1 }, ..of(&other, 1) };
    let url = format!("redis://ali:sesame@127.0.0.1:{}/", process.port());
    let queue = |clients: &[&str]| {
        let joined: Vec<_> = clients.iter().flat_map(|client| ["1", client]).collect();
        process.command(&[&["ZADD", WAITING][..], &joined].concat());
        process.command(&["PEXPIRE", WAITING, "60000"]);
    };
    for [expire, remove] in [["pexpire", "zrem"], ["pexpire", "hdel"], ["pexpireat", "zrem"]] {
        process.command(&["FLUSHALL"]);
        let rights = [format!("-{expire}"), format!("-{remove}")];
        let rule = ["ACL", "SETUSER", "ali", "reset", "on", ">sesame", "~*", "&*", "+@all"];
        process.command(&[&rule[..], &[&rights[0], &rights[1]]].concat());
        let store = single_at(&url, &Config::default());
        match remove {
            "hdel" => {
                // The lock is offered to the waiting client.
                queue(&[&waiting, &other]);
                unregister(&store, &other);
            }
            _ if expire == "pexpire" => {
                must_acquire(&all, &hold(1));
                register(&store, &other);
            }
            _ => {
                queue(&[&format!("p:{waiting}")]);
                acquire(&store, &permit, Registration::None).expect_err("no right");
            }
        }
        eventually(|| {
            let keys: Vec<String> = process.ask(&["KEYS", "*"]);
            keys.iter().all(|key| process.ask::<i64>(&["PTTL", key]) != -1)
        });
    }
}

fn a_user_without_rights_to_the_waiting_clients_can_lock(process: &Server) {
    let url = format!("redis://ali:sesame@127.0.0.1:{}/", process.port());
    let all = ["zadd", "zrem", "zrange", "publish", "exists"];
    for missing in all.iter().map(std::slice::from_ref).chain([&all[..]]) {
        process.command(&["DEL", WAITING]);
        let rights: Vec<_> = missing.iter().map(|command| format!("-{command}")).collect();
        let mut rule = vec!["ACL", "SETUSER", "ali", "reset", "on", ">sesame", "~*", "+@all"];
        rule.extend(rights.iter().map(String::as_str));
        process.command(&rule);
        let store = single_at(&url, &Config::default());
        must_acquire(&store, &hold(1));
        for mode in [Registration::IfHeld, Registration::Registered, Registration::Yielding] {
            let reply = ask(&store, &of("a", 1), mode);
            assert!(
                matches!(reply, AcquireReply::Held { remaining: Some(_), .. }),
                "{missing:?}: {reply:?}"
            );
        }
        process.command(&["ZADD", WAITING, "1", "b", "2", "c"]);
        release(&store, &hold(1));
        unregister(&store, "c");
        let reply = ask(&store, &of("c", 1), Registration::Registered);
        assert!(matches!(reply, AcquireReply::Acquired { .. }), "{missing:?}: {reply:?}");
        assert_eq!(store.force_release(lock_of(b"c:1"), soon()).ok(), Some(true), "{missing:?}");
    }
    let rule = ["ACL", "SETUSER", "ali", "reset", "on", ">sesame", "~*", "+@all", "-pexpire"];
    process.command(&["DEL", WAITING]);
    process.command(&rule);
    must_acquire(&single(process), &hold(3));
    ask(&single_at(&url, &Config::default()), &of("a", 1), Registration::IfHeld);
    assert_eq!(waiting(process), [""; 0], "no key without a TTL");
}

fn the_message_names_the_lock_without_the_prefix(process: &Server) {
    let with = |prefix: &str| {
        single_at(&process.url(), &Config { prefix: prefix.into(), ..Config::default() })
    };
    let (store, short) = (with("shop:"), with("sho"));
    let mut wakeups = listen(&store, "a");
    let named = |name: &str, hold: HoldId| HoldId { name: Arc::from(name), ..hold };
    must_acquire(&store, &named("lock", hold(1)));
    // The same key, as another client splits it.
    let same = named("p:lock", of("a", 1));
    assert!(matches!(ask(&short, &same, Registration::IfHeld), AcquireReply::Held { .. }));
    release(&store, &named("lock", hold(1)));
    assert_eq!(next(&mut *wakeups), woken());
    process.command(&["PUBLISH", "leasehold:wake:a", "stop:lock"]);
    assert!(nothing_comes(&mut *wakeups), "it has no lock of its own");
}

fn a_lost_subscription_is_made_again(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    for _ in 0..3 {
        process.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let failure = wakeups.next(soon()).expect("in time").expect_err("a broken connection");
        assert_eq!(failure.kind, FailureKind::Disconnected);
        assert_eq!(next(&mut *wakeups), Wake::Ready);
    }
    process.restart();
    assert!(wakeups.next(soon()).expect("in time").is_err());
    assert_eq!(next(&mut *wakeups), Wake::Ready);
    process.command(&["PUBLISH", "leasehold:wake:a", "lock:lock"]);
    assert_eq!(next(&mut *wakeups), woken());
}

/// A lock may be kept only where the client hears everyone that asks for it.
fn a_client_learns_when_it_does_not_hear_everything(process: &Server) {
    let mut wakeups = single(process).wakeups("a", None);
    let mut ready = || {
        let mut next = || wakeups.next(soon()).expect("in time");
        assert_eq!([next().ok(), next().ok()], [Some(Wake::Ready), Some(Wake::Complete(true))]);
        process.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert!(next().is_err());
    };
    ready();
    ready();
}

#[test]
fn a_client_of_a_quorum_hears_everything_from_a_majority() {
    let servers = [(); 3].map(|()| Server::redis());
    let mut wakeups = quorum(&servers, &Config::default()).wakeups("a", None);
    let mut next = || wakeups.next(soon()).expect("in time").ok();
    assert_eq!([next(), next()], [Some(Wake::Ready), Some(Wake::Complete(true))]);
    servers[0].kill();
    servers[1].kill();
    assert_eq!(next(), Some(Wake::Complete(false)));
    servers[0].restart();
    let told = [next(), next()];
    assert_eq!(told, [Some(Wake::Ready), Some(Wake::Complete(true))]);
}

#[test]
fn a_subscription_in_place_of_another_may_have_missed_a_message() {
    let servers = [(); 3].map(|()| Server::redis());
    for server in &servers {
        server.command(&["ACL", "SETUSER", "ali", "on", ">sesame", "~*", "&*", "+@all"]);
    }
    let login =
        || Ok(Credentials::new("ali", "sesame").valid_until(end_of(Duration::from_secs(1))));
    let credentials = Some(CredentialsCallback::new(login));
    let store = quorum(&servers, &Config { credentials, ..Config::default() });
    let mut wakeups = listen(&store, "a");
    assert_eq!(next(&mut *wakeups), Wake::Ready);
}

fn a_silent_server_is_given_up(process: &Server) {
    let io_timeout = Some(Duration::from_millis(100));
    let store = single_at(&process.url(), &Config { io_timeout, ..Config::default() });
    process.stop();
    let started = Instant::now();
    let mut wakeups = messages(&store, "a");
    let failure = wakeups.next(soon()).expect("in time").expect_err("silence");
    assert_eq!(failure.kind, FailureKind::Timeout);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    process.cont();
    assert_eq!(next(&mut *wakeups), Wake::Ready);
}

fn a_rejected_subscription_is_reported(process: &Server) {
    let rule = ["ACL", "SETUSER", "ali", "reset", "on", ">sesame", "~*", "+@all"];
    process.command(&rule);
    let url = format!("redis://ali:sesame@127.0.0.1:{}/", process.port());
    let store = single_at(&url, &Config::default());
    let mut wakeups = messages(&store, "a");
    for _ in 0..2 {
        let failure = wakeups.next(soon()).expect("in time").expect_err("no rights");
        assert_eq!((failure.kind, failure.code.as_str()), (FailureKind::Rejected, "NOPERM"));
    }
    process.command(&["ACL", "SETUSER", "ali", "&leasehold:wake:*"]);
    wakeups.next(soon()).expect("in time").expect_err("the server is left alone for a while");
    assert_eq!(next(&mut *messages(&store, "b")), Wake::Ready);
}

fn messages_that_make_no_sense_are_ignored(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    let mut connection = process.connect();
    let bytes: &[u8] = &[0xff, 0xfe];
    redis::cmd("PUBLISH").arg("leasehold:wake:a").arg(bytes).exec(&mut connection).expect("sent");
    process.command(&["PUBLISH", "leasehold:wake:b", "other"]);
    process.command(&["PUBLISH", "leasehold:wake:a", "lock:lock"]);
    assert_eq!(next(&mut *wakeups), woken());
}

fn an_interrupt_ends_the_wait(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    let interrupter = wakeups.interrupter();
    let waiter = thread::spawn(move || {
        let started = Instant::now();
        let ended = wakeups.next(end_of(Duration::from_secs(600)));
        (wakeups, ended, started.elapsed())
    });
    thread::sleep(Duration::from_millis(100));
    interrupter.interrupt();
    let (mut wakeups, ended, took) = waiter.join().expect("no panic");
    assert!(ended.is_some_and(|ended| ended.is_err()));
    assert!(took < Duration::from_secs(2), "{took:?}");
    for _ in 0..3 {
        assert!(wakeups.next(soon()).expect("at once").is_err());
    }
    // The server may notice later that the connection is closed.
    eventually(|| process.ask::<String>(&["CLIENT", "LIST", "TYPE", "pubsub"]).is_empty());

    let mut unused = messages(&store, "b");
    unused.interrupter().interrupt();
    assert!(unused.next(soon()).expect("at once").is_err());
}

fn no_message_is_missed_once_it_is_ready(process: &Server) {
    let store = single(process);
    for _ in 0..20 {
        let mut wakeups = listen(&store, "a");
        let mut messages = redis::pipe();
        for number in 0..200 {
            messages.cmd("PUBLISH").arg("leasehold:wake:a").arg(format!("lock:{number}"));
        }
        let reached: Vec<u32> = messages.query(&mut process.connect()).expect("sent");
        assert!(reached.iter().all(|reached| *reached == 1), "{reached:?}");
        for number in 0..200 {
            assert_eq!(next(&mut *wakeups), Wake::Lock(number.to_string()));
        }
        drop(wakeups);
        let gone = || process.ask::<u32>(&["PUBLISH", "leasehold:wake:a", "x"]) == 0;
        let end = soon();
        while !gone() {
            assert!(Instant::now() < end, "the connection outlives the subscription");
        }
    }
}

fn a_message_that_has_come_is_returned_after_the_deadline_too(process: &Server) {
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    for _ in 0..3 {
        process.command(&["PUBLISH", "leasehold:wake:a", "lock:lock"]);
    }
    thread::sleep(Duration::from_millis(100));
    for _ in 0..3 {
        let wake = wakeups.next(Instant::now()).expect("it has arrived").expect("a message");
        assert_eq!(wake, woken());
    }
}

fn a_long_wait_takes_no_processor_time(process: &impl Host) {
    if cfg!(not(target_os = "linux")) {
        return; // Other systems do not count a thread's context switches.
    }
    let store = single(process);
    let mut wakeups = listen(&store, "a");
    let switches = || -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("it is there");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("counted").trim().parse().expect("a number")
    };
    let before = switches();
    assert!(wakeups.next(end_of(Duration::from_secs(1))).is_none());
    let after = switches();
    // Naps of 50 ms would make it 20.
    assert!(after - before <= 10, "{} naps", after - before);
}

/// A server that accepts connections and never replies. With a password in the URL, connecting
/// means waiting for a reply.
#[test]
fn a_server_that_hangs_in_the_login_delays_no_wait() {
    const TIME: Duration = Duration::from_millis(100);
    const LOGIN: Duration = Duration::from_secs(60);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let config = Config { connect_timeout: LOGIN, ..Config::default() };
    let store = single_at(&format!("redis://:sesame@127.0.0.1:{port}/"), &config);
    let mut wakeups = messages(&store, "a");
    for _ in 0..3 {
        let started = Instant::now();
        assert!(wakeups.next(started + TIME).is_none());
        assert!(started.elapsed() < LOGIN / 2, "{:?}", started.elapsed());
    }
    let interrupter = wakeups.interrupter();
    let waiter = thread::spawn(move || wakeups.next(end_of(Duration::from_secs(600))));
    thread::sleep(TIME);
    let interrupted = Instant::now();
    interrupter.interrupt();
    assert!(waiter.join().expect("no panic").is_some_and(|ended| ended.is_err()));
    assert!(interrupted.elapsed() < LOGIN / 2, "{:?}", interrupted.elapsed());
}
