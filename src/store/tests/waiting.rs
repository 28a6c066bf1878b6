//! What servers do for clients that wait, and how those hear of it.

use super::process::Server;
use super::*;

const QUEUE: &str = "leasehold:queue:{lock}";

/// Makes a module of tests per server.
macro_rules! servers {
    ($($behaviour:ident),+ $(,)?) => {
        mod on_redis {
            $(#[test] fn $behaviour() { super::$behaviour(&super::Server::redis()); })+
        }
        mod on_valkey {
            $(#[test] fn $behaviour() { super::$behaviour(&super::Server::valkey()); })+
        }
    };
}

servers!(
    only_who_waits_is_in_the_queue,
    who_has_the_lock_or_leaves_is_not_in_the_queue,
    a_queue_is_in_the_order_of_arrival,
    a_queue_never_lasts_for_ever,
    a_release_wakes_the_client_that_waits_longest,
    every_way_to_free_a_lock_wakes_somebody,
    a_lock_that_stays_taken_wakes_nobody,
    clients_that_are_gone_are_skipped,
    who_leaves_passes_the_wake_up_on,
    who_yields_lets_another_client_go_first,
    a_transfer_yields_only_to_somebody,
    a_full_server_wakes_and_queues_nobody_new,
    a_spoilt_queue_does_no_harm,
    a_user_without_rights_to_the_queue_can_lock,
    the_message_names_the_lock_without_the_prefix,
    a_lost_subscription_is_made_again,
    a_silent_server_is_given_up,
    who_may_not_subscribe_is_told,
    messages_that_make_no_sense_are_ignored,
    an_interrupt_ends_the_wait,
    nothing_is_missed_once_it_is_ready,
    what_has_arrived_is_heard_even_if_the_time_is_over,
    a_long_wait_takes_no_time_of_the_processor,
);

/// A hold of a client of its own.
fn of(client: &str, nonce: u64) -> HoldId {
    HoldId { client: Arc::from(client), ..hold(nonce) }
}

fn bid(store: &dyn Store, hold: &HoldId, queue: Registration) -> AcquireReply {
    store
        .acquire(Acquire { hold, lease: LEASE, registration: queue, deadline: soon() })
        .expect("an answer")
}

fn join(store: &dyn Store, client: &str) {
    let bid = bid(store, &of(client, 1), Registration::IfHeld);
    assert!(matches!(bid, AcquireReply::Held { remaining: Some(_) }), "{bid:?}");
}

fn free(store: &dyn Store, hold: &HoldId) {
    assert_eq!(store.release(hold, soon()).ok(), Some(HoldReply::Held));
}

fn queue(process: &Server) -> Vec<String> {
    process.ask(&["ZRANGE", QUEUE, "0", "-1"])
}

/// The ears of a client, from when it can hear.
fn ears(store: &dyn Store, client: &str) -> Box<dyn Wakeups> {
    let mut ears = store.wakeups(client).expect("others can exist");
    assert_eq!(next(&mut *ears), Wake::Ready);
    ears
}

fn next(ears: &mut dyn Wakeups) -> Wake {
    ears.next(soon()).expect("in time").expect("a message")
}

fn hears_nothing(ears: &mut dyn Wakeups) -> bool {
    ears.next(end_of(Duration::from_millis(20))).is_none()
}

fn woken() -> Wake {
    Wake::Lock("lock".into())
}

fn only_who_waits_is_in_the_queue(process: &Server) {
    let store = single(process);
    won(&store, &hold(1));
    bid(&store, &of("a", 1), Registration::None);
    assert_eq!(queue(process), [""; 0]);
    for mode in [Registration::IfHeld, Registration::Registered, Registration::Yielding] {
        let client = format!("{mode:?}");
        bid(&store, &of(&client, 1), mode);
        assert_eq!(queue(process), [client.as_str()]);
        store.unregister("lock", &client, soon()).expect("an answer");
    }
}

fn who_has_the_lock_or_leaves_is_not_in_the_queue(process: &Server) {
    let store = single(process);
    for mode in [Registration::Registered, Registration::Yielding] {
        won(&store, &hold(1));
        join(&store, "a");
        free(&store, &hold(1));
        let won = bid(&store, &of("a", 1), mode);
        assert!(matches!(won, AcquireReply::Acquired { .. }), "{won:?}");
        assert_eq!(queue(process), [""; 0]);
        // A repeat of the first request, executed late.
        join(&store, "b");
        assert_eq!(bid(&store, &of("a", 1), mode), won);
        assert_eq!(queue(process), ["b"]);
        store.unregister("lock", "b", soon()).expect("an answer");
        assert_eq!(queue(process), [""; 0]);
        free(&store, &of("a", 1));
    }
}

fn a_queue_is_in_the_order_of_arrival(process: &Server) {
    let store = single(process);
    won(&store, &hold(1));
    for client in ["c", "a", "b"] {
        join(&store, client);
        thread::sleep(Duration::from_millis(2));
    }
    bid(&store, &of("c", 1), Registration::Registered);
    assert_eq!(queue(process), ["c", "a", "b"]);
    let score: f64 = process.ask(&["ZSCORE", QUEUE, "c"]);
    let [seconds, _]: [f64; 2] = process.ask(&["TIME"]);
    assert!((score / 1000.0 - seconds).abs() < 10.0, "{score} at {seconds}");
}

fn a_queue_never_lasts_for_ever(process: &Server) {
    let life = |process: &Server| process.ask::<i64>(&["PTTL", QUEUE]);
    let patient = |max| {
        let backoff = (Duration::from_millis(5), Duration::from_secs(max));
        single_at(&process.url(), &Config { backoff, ..Config::default() })
    };
    let store = patient(1);
    won(&store, &hold(1));
    join(&store, "a");
    assert!((50_000..=60_000).contains(&life(process)), "{}", life(process));
    process.command(&["PEXPIRE", QUEUE, "10000"]);
    bid(&store, &of("a", 1), Registration::Registered);
    assert!(life(process) > 50_000, "each try confirms it: {}", life(process));
    join(&patient(100), "b");
    assert!((190_000..=200_000).contains(&life(process)), "{}", life(process));
    join(&patient(u64::MAX), "c");
    assert!(life(process) > 80_000_000, "{}", life(process));
}

fn a_release_wakes_the_client_that_waits_longest(process: &Server) {
    let store = single(process);
    let (mut first, mut second) = (ears(&store, "first"), ears(&store, "second"));
    won(&store, &hold(1));
    join(&store, "first");
    thread::sleep(Duration::from_millis(2));
    join(&store, "second");
    free(&store, &hold(1));
    assert_eq!(next(&mut *first), woken());
    assert!(hears_nothing(&mut *second));
    assert_eq!(queue(process), ["first", "second"], "until it has the lock");

    bid(&store, &of("first", 1), Registration::Registered);
    free(&store, &of("first", 1));
    assert_eq!(next(&mut *second), woken());
    assert!(hears_nothing(&mut *first));
}

fn every_way_to_free_a_lock_wakes_somebody(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "a");
    won(&store, &hold(1));
    join(&store, "a");
    assert_eq!(store.force_release("lock", soon()).ok(), Some(true));
    assert_eq!(next(&mut *ears), woken());

    won(&store, &hold(2));
    let released = care(&mut *store.jobs(), &[(hold(2), Action::Release)]);
    assert!(matches!(released[..], [Ok(HoldReply::Held)]));
    assert_eq!(next(&mut *ears), woken());

    won(&store, &hold(3));
    let yielded = store
        .transfer(Transfer {
            from: &hold(3),
            to: &hold(4),
            lease: LEASE,
            yields: true,
            deadline: soon(),
        })
        .wait();
    assert_eq!(yielded.ok(), Some(TransferReply::Yielded));
    assert_eq!(next(&mut *ears), woken());
}

fn a_lock_that_stays_taken_wakes_nobody(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "a");
    won(&store, &hold(1));
    join(&store, "a");
    assert_eq!(store.release(&hold(2), soon()).ok(), Some(HoldReply::Gone));
    assert_eq!(
        store
            .transfer(Transfer {
                from: &hold(2),
                to: &hold(3),
                lease: LEASE,
                yields: true,
                deadline: soon()
            })
            .wait()
            .ok(),
        Some(TransferReply::Gone)
    );
    join(&store, "b");
    store.unregister("lock", "b", soon()).expect("an answer");
    // Whatever it is, it is not free with another field in it.
    process.command(&["HSET", "lock", "stranger", "1"]);
    free(&store, &hold(1));
    assert!(hears_nothing(&mut *ears));
    assert_eq!(store.force_release("lock", soon()).ok(), Some(true));
    assert_eq!(next(&mut *ears), woken());
    assert_eq!(store.force_release("lock", soon()).ok(), Some(false));
    assert!(hears_nothing(&mut *ears));
}

fn clients_that_are_gone_are_skipped(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "alive");
    won(&store, &hold(1));
    for number in 0..50 {
        join(&store, &format!("dead {number:02}"));
    }
    thread::sleep(Duration::from_millis(2));
    join(&store, "alive");
    free(&store, &hold(1));
    assert_eq!(next(&mut *ears), woken());
    assert_eq!(queue(process), ["alive"]);
    store.unregister("lock", "alive", soon()).expect("an answer");

    won(&store, &hold(2));
    for number in 0..250 {
        join(&store, &format!("dead {number:03}"));
    }
    for left in [150, 50, 0] {
        free(&store, &hold(2));
        assert_eq!(queue(process).len(), left, "one script does not work for ever");
        won(&store, &hold(2));
    }
}

fn who_leaves_passes_the_wake_up_on(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "b");
    won(&store, &hold(1));
    join(&store, "a");
    thread::sleep(Duration::from_millis(2));
    join(&store, "b");
    store.unregister("lock", "a", soon()).expect("an answer");
    assert!(hears_nothing(&mut *ears), "the lock is not free");
    free(&store, &hold(1));
    assert_eq!(next(&mut *ears), woken());

    // Somebody in front of it is woken, does not want the lock any more, and leaves.
    process.command(&["ZADD", QUEUE, "1", "a"]);
    store.unregister("lock", "a", soon()).expect("an answer");
    assert_eq!(next(&mut *ears), woken());
    store.unregister("lock", "a", soon()).expect("an answer");
    assert!(hears_nothing(&mut *ears), "it had left already");
}

fn who_yields_lets_another_client_go_first(process: &Server) {
    let store = single(process);
    won(&store, &hold(1));
    join(&store, "a");
    free(&store, &hold(1));
    // Nobody listens for it, so it was taken out.
    assert_eq!(queue(process), [""; 0]);
    process.command(&["ZADD", QUEUE, "1", "a"]);

    let late = of("late", 1);
    assert_eq!(bid(&store, &late, Registration::Yielding), AcquireReply::Held { remaining: None });
    assert_eq!(queue(process), ["a", "late"]);
    assert_eq!(depth(&store), None);
    assert!(matches!(
        bid(&store, &of("a", 1), Registration::Yielding),
        AcquireReply::Acquired { .. }
    ));
    assert!(matches!(
        bid(&store, &late, Registration::Yielding),
        AcquireReply::Held { remaining: Some(_) }
    ));
    free(&store, &of("a", 1));
    process.command(&["ZADD", QUEUE, "1", "late", "2", "b"]);
    assert!(matches!(bid(&store, &late, Registration::Yielding), AcquireReply::Acquired { .. }));
    assert_eq!(queue(process), ["b"]);
}

fn a_transfer_yields_only_to_somebody(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "a");
    won(&store, &hold(1));
    let transfer = |from, to, yields| {
        store
            .transfer(Transfer {
                from: &hold(from),
                to: &hold(to),
                lease: LEASE,
                yields,
                deadline: soon(),
            })
            .wait()
            .expect("an answer")
    };
    let done = transfer(1, 2, true);
    assert!(matches!(done, TransferReply::Transferred { .. }), "{done:?}");
    join(&store, "a");
    assert_eq!(transfer(1, 2, true), done, "a repeat finds the new hold");
    assert!(matches!(transfer(2, 3, false), TransferReply::Transferred { .. }));
    assert!(hears_nothing(&mut *ears));
    assert_eq!(transfer(3, 4, true), TransferReply::Yielded);
    assert_eq!(next(&mut *ears), woken());
    assert_eq!(depth(&store), None);
    assert_eq!(transfer(3, 4, true), TransferReply::Gone, "a repeat finds nothing");
    assert!(hears_nothing(&mut *ears));
}

fn a_full_server_wakes_and_queues_nobody_new(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "a");
    won(&store, &hold(1));
    join(&store, "a");
    process.command(&["CONFIG", "SET", "maxmemory", "1"]);
    bid(&store, &of("b", 1), Registration::IfHeld);
    free(&store, &hold(1));
    assert_eq!(next(&mut *ears), woken());
    let failure = store
        .acquire(Acquire {
            hold: &of("a", 1),
            lease: LEASE,
            registration: Registration::Registered,
            deadline: soon(),
        })
        .expect_err("no memory");
    assert_eq!(failure.code, "OOM");
    assert_eq!(queue(process), ["a"], "it still waits");
    store.unregister("lock", "a", soon()).expect("an answer");
    assert_eq!(queue(process), [""; 0]);
}

fn a_spoilt_queue_does_no_harm(process: &Server) {
    let store = single(process);
    process.command(&["SET", QUEUE, "mine"]);
    won(&store, &hold(1));
    for mode in [Registration::IfHeld, Registration::Registered, Registration::Yielding] {
        assert!(matches!(
            bid(&store, &of("a", 1), mode),
            AcquireReply::Held { remaining: Some(_) }
        ));
    }
    store.unregister("lock", "a", soon()).expect("an answer");
    let transferred = store
        .transfer(Transfer {
            from: &hold(1),
            to: &hold(2),
            lease: LEASE,
            yields: true,
            deadline: soon(),
        })
        .wait();
    assert!(matches!(transferred, Ok(TransferReply::Transferred { .. })), "{transferred:?}");
    free(&store, &hold(2));
    for mode in [Registration::IfHeld, Registration::Registered, Registration::Yielding] {
        assert!(matches!(bid(&store, &of("a", 1), mode), AcquireReply::Acquired { .. }));
        assert_eq!(store.force_release("lock", soon()).ok(), Some(true));
    }
    assert_eq!(process.ask::<String>(&["GET", QUEUE]), "mine");
}

fn a_user_without_rights_to_the_queue_can_lock(process: &Server) {
    let url = format!("redis://ali:sesame@127.0.0.1:{}/", process.port());
    let all = ["zadd", "zrem", "zrange", "publish", "exists"];
    for missing in all.iter().map(std::slice::from_ref).chain([&all[..]]) {
        process.command(&["DEL", QUEUE]);
        let rights: Vec<_> = missing.iter().map(|command| format!("-{command}")).collect();
        let mut rule = vec!["ACL", "SETUSER", "ali", "reset", "on", ">sesame", "~*", "+@all"];
        rule.extend(rights.iter().map(String::as_str));
        process.command(&rule);
        let store = single_at(&url, &Config::default());
        won(&store, &hold(1));
        for mode in [Registration::IfHeld, Registration::Registered, Registration::Yielding] {
            let busy = bid(&store, &of("a", 1), mode);
            assert!(
                matches!(busy, AcquireReply::Held { remaining: Some(_) }),
                "{missing:?}: {busy:?}"
            );
        }
        process.command(&["ZADD", QUEUE, "1", "b", "2", "c"]);
        let handed = store
            .transfer(Transfer {
                from: &hold(1),
                to: &hold(2),
                lease: LEASE,
                yields: true,
                deadline: soon(),
            })
            .wait()
            .expect("an answer");
        if let TransferReply::Transferred { .. } = handed {
            free(&store, &hold(2));
        }
        store.unregister("lock", "c", soon()).expect("an answer");
        let won = bid(&store, &of("c", 1), Registration::Registered);
        assert!(matches!(won, AcquireReply::Acquired { .. }), "{missing:?}: {won:?}");
        assert_eq!(store.force_release("lock", soon()).ok(), Some(true), "{missing:?}");
    }
    let rule = ["ACL", "SETUSER", "ali", "reset", "on", ">sesame", "~*", "+@all", "-pexpire"];
    process.command(&["DEL", QUEUE]);
    process.command(&rule);
    won(&single(process), &hold(3));
    bid(&single_at(&url, &Config::default()), &of("a", 1), Registration::IfHeld);
    assert_eq!(queue(process), [""; 0], "no key without a TTL");
}

fn the_message_names_the_lock_without_the_prefix(process: &Server) {
    let with = |prefix: &str| {
        single_at(&process.url(), &Config { prefix: prefix.into(), ..Config::default() })
    };
    let (store, short) = (with("shop:"), with("sho"));
    let mut ears = ears(&store, "a");
    let named = |name: &str, hold: HoldId| HoldId { name: Arc::from(name), ..hold };
    won(&store, &named("lock", hold(1)));
    // The same key, as another client cuts it.
    let same = named("p:lock", of("a", 1));
    assert!(matches!(bid(&short, &same, Registration::IfHeld), AcquireReply::Held { .. }));
    free(&store, &named("lock", hold(1)));
    assert_eq!(next(&mut *ears), woken());
    process.command(&["PUBLISH", "leasehold:wake:a", "stop:lock"]);
    assert!(hears_nothing(&mut *ears), "no lock of its own");
}

fn a_lost_subscription_is_made_again(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "a");
    for _ in 0..3 {
        process.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let failure = ears.next(soon()).expect("in time").expect_err("a broken connection");
        assert_eq!(failure.kind, FailureKind::Disconnected);
        assert_eq!(next(&mut *ears), Wake::Ready);
    }
    process.restart();
    assert!(ears.next(soon()).expect("in time").is_err());
    assert_eq!(next(&mut *ears), Wake::Ready);
    process.command(&["PUBLISH", "leasehold:wake:a", "lock"]);
    assert_eq!(next(&mut *ears), woken());
}

fn a_silent_server_is_given_up(process: &Server) {
    let io_timeout = Some(Duration::from_millis(100));
    let store = single_at(&process.url(), &Config { io_timeout, ..Config::default() });
    process.stop();
    let started = Instant::now();
    let mut ears = store.wakeups("a").expect("others can exist");
    let failure = ears.next(soon()).expect("in time").expect_err("silence");
    assert_eq!(failure.kind, FailureKind::Timeout);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    process.cont();
    assert_eq!(next(&mut *ears), Wake::Ready);
}

fn who_may_not_subscribe_is_told(process: &Server) {
    let rule = ["ACL", "SETUSER", "ali", "reset", "on", ">sesame", "~*", "+@all"];
    process.command(&rule);
    let url = format!("redis://ali:sesame@127.0.0.1:{}/", process.port());
    let store = single_at(&url, &Config::default());
    let mut ears = store.wakeups("a").expect("others can exist");
    for _ in 0..2 {
        let failure = ears.next(soon()).expect("in time").expect_err("no rights");
        assert_eq!((failure.kind, failure.code.as_str()), (FailureKind::Rejected, "NOPERM"));
    }
    process.command(&["ACL", "SETUSER", "ali", "&leasehold:wake:*"]);
    assert_eq!(next(&mut *ears), Wake::Ready);
}

fn messages_that_make_no_sense_are_ignored(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "a");
    let mut connection = process.connect();
    let bytes: &[u8] = &[0xff, 0xfe];
    redis::cmd("PUBLISH").arg("leasehold:wake:a").arg(bytes).exec(&mut connection).expect("sent");
    process.command(&["PUBLISH", "leasehold:wake:b", "other"]);
    process.command(&["PUBLISH", "leasehold:wake:a", "lock"]);
    assert_eq!(next(&mut *ears), woken());
}

fn an_interrupt_ends_the_wait(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "a");
    let interrupter = ears.interrupter();
    let waiter = thread::spawn(move || {
        let started = Instant::now();
        let ended = ears.next(end_of(Duration::from_secs(600)));
        (ears, ended, started.elapsed())
    });
    thread::sleep(Duration::from_millis(100));
    interrupter.interrupt();
    let (mut ears, ended, took) = waiter.join().expect("no panic");
    assert!(ended.is_some_and(|ended| ended.is_err()));
    assert!(took < Duration::from_secs(2), "{took:?}");
    for _ in 0..3 {
        assert!(ears.next(soon()).expect("at once").is_err());
    }
    let clients: String = process.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    assert_eq!(clients, "", "it does not come back");

    let mut unborn = store.wakeups("b").expect("others can exist");
    unborn.interrupter().interrupt();
    assert!(unborn.next(soon()).expect("at once").is_err());
}

fn nothing_is_missed_once_it_is_ready(process: &Server) {
    let store = single(process);
    for _ in 0..20 {
        let mut ears = ears(&store, "a");
        let mut messages = redis::pipe();
        for number in 0..200 {
            messages.cmd("PUBLISH").arg("leasehold:wake:a").arg(number);
        }
        let reached: Vec<u32> = messages.query(&mut process.connect()).expect("sent");
        assert!(reached.iter().all(|reached| *reached == 1), "{reached:?}");
        for number in 0..200 {
            assert_eq!(next(&mut *ears), Wake::Lock(number.to_string()));
        }
        drop(ears);
        let gone = || process.ask::<u32>(&["PUBLISH", "leasehold:wake:a", "x"]) == 0;
        let end = soon();
        while !gone() {
            assert!(Instant::now() < end, "the connection outlives the subscription");
        }
    }
}

fn what_has_arrived_is_heard_even_if_the_time_is_over(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "a");
    for _ in 0..3 {
        process.command(&["PUBLISH", "leasehold:wake:a", "lock"]);
    }
    thread::sleep(Duration::from_millis(100));
    for _ in 0..3 {
        let wake = ears.next(Instant::now()).expect("it has arrived").expect("a message");
        assert_eq!(wake, woken());
    }
}

fn a_long_wait_takes_no_time_of_the_processor(process: &Server) {
    let store = single(process);
    let mut ears = ears(&store, "a");
    let switches = || -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("counted").trim().parse().expect("a number")
    };
    let before = switches();
    assert!(ears.next(end_of(Duration::from_secs(1))).is_none());
    let after = switches();
    // Naps of 50 ms would be 20.
    assert!(after - before <= 10, "{} naps", after - before);
}
