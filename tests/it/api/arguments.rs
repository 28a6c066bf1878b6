//! Invalid names, options and URLs are refused, with the name of the argument, before a request is
//! sent.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Credentials, Durability, Error, HoldEnd, Mutex};

use crate::support::kinds::{Call, How, Kind};
use crate::support::{SHORT, SOON, Server, Store, eventually, ms, patient, stores, take};

stores! {
    every store:
        the_longest_times_are_accepted;
    several clients:
        inherited_settings_are_cut_to_the_lease_of_a_handle;
    every server:
        bad_names_are_refused_without_a_request,
        bad_options_of_a_mutex_are_errors_of_its_calls,
        a_default_io_timeout_adapts_to_a_short_lease;
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, Error>, argument: &str) {
    match result {
        Err(Error::InvalidInput(text)) => {
            assert!(text.contains(argument), "{text:?} does not name {argument}");
        }
        other => panic!("{other:?} instead of a refusal of {argument}"),
    }
}

fn replicas(acks: u32, timeout: Duration) -> Durability {
    Durability::Replicas { acks, timeout }
}

fn fsync(local: bool, replicas: u32, timeout: Duration) -> Durability {
    Durability::Fsync { local, replicas, timeout }
}

fn bad_options() -> Vec<(&'static str, Builder)> {
    let options = Client::builder;
    let long = "x".repeat(64 * 1024 + 1);
    vec![
        ("prefix", options().prefix("leasehold:")),
        ("prefix", options().prefix("leasehold:fence:")),
        ("prefix", options().prefix(&long)),
        ("label", options().label(&long[..257])),
        ("label", options().label("{web")),
        ("label", options().label("web}")),
        ("label", options().label("web\n1")),
        ("label", options().label("web\u{1b}[2J")),
        ("label", options().label("web\u{9b}2J")),
        ("lease", options().lease(Duration::ZERO)),
        ("lease", options().lease(Duration::from_nanos(1))),
        ("lease", options().lease(Duration::from_micros(9_999))),
        ("lease", options().lease(365 * DAY + ms(1))),
        ("lease", options().lease(Duration::MAX)),
        ("max_hold", options().max_hold(ms(9))),
        ("io_timeout", options().io_timeout(Duration::ZERO)),
        ("io_timeout", options().lease(ms(3000)).io_timeout(ms(1001))),
        ("io_timeout", options().io_timeout(Duration::MAX)),
        ("tenure", options().lease(ms(3000)).tenure(ms(1001))),
        ("durability", options().durability(replicas(0, ms(100)))),
        ("durability", options().durability(replicas(1, Duration::ZERO))),
        ("durability", options().durability(replicas(1, Duration::MAX))),
        ("durability", options().durability(fsync(false, 0, ms(100)))),
        ("durability", options().durability(fsync(true, 0, Duration::ZERO))),
        ("durability", options().io_timeout(ms(500)).durability(replicas(1, ms(500)))),
        ("durability", options().lease(ms(3000)).durability(fsync(true, 0, ms(1000)))),
        ("pool", options().pool_size(0)),
        ("pool", options().pool_size(10_001)),
        ("connect_timeout", options().connect_timeout(Duration::ZERO)),
        ("idle_timeout", options().idle_timeout(Some(Duration::ZERO))),
        ("max_lifetime", options().max_lifetime(Some(Duration::ZERO))),
        ("retry_window", options().retry_window(Duration::ZERO)),
        (
            "master_login",
            options().master_login("", "x").credentials(|| Ok(Credentials::new("", "y"))),
        ),
        ("master_login", options().master_login("", "x")),
        ("backoff min", options().backoff(Duration::ZERO, ms(100))),
        ("backoff", options().backoff(ms(101), ms(100))),
    ]
}

#[test]
fn bad_options_are_refused_before_a_connection_is_made() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    for (argument, builder) in bad_options() {
        assert_refused(builder.open(&url), argument);
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "no client has connected");
}

#[test]
fn bad_options_are_refused_in_memory_too() {
    for (argument, builder) in bad_options() {
        assert_refused(builder.in_memory(), argument);
    }
}

#[test]
fn options_at_their_limits_are_accepted() {
    let options = Client::builder;
    let limits = [
        options().lease(ms(10)),
        options().lease(365 * DAY),
        options().lease(ms(3000)).io_timeout(ms(1000)),
        options().lease(ms(3000)).tenure(ms(1000)),
        options().lease(ms(15)).tenure(Duration::ZERO),
        options().label("x".repeat(256)),
        options().max_hold(ms(10)),
        options().pool_size(1),
        options().pool_size(10_000),
        options().backoff(ms(100), ms(100)),
        options().idle_timeout(None).max_lifetime(None),
        options().idle_timeout(Some(Duration::MAX)).max_lifetime(Some(ms(1))),
        options().spin(Duration::ZERO),
        options().spin(Duration::MAX),
        options().wait(Duration::ZERO),
    ];
    for builder in limits {
        let client = builder.in_memory().unwrap();
        take(&client, "a").unlock().ok();
    }
}

#[test]
fn bad_urls_are_refused() {
    let urls = [
        "",
        "127.0.0.1",
        "not a url",
        "http://127.0.0.1/",
        "redis://",
        "redis://127.0.0.1:65536/",
        "redis://127.0.0.1/zero",
        "rediss://127.0.0.1/#nonsense",
        #[cfg(not(feature = "tls"))]
        "rediss://127.0.0.1/",
    ];
    for url in urls {
        match Client::open(url) {
            Err(Error::InvalidInput(text)) => {
                let text = text.to_lowercase();
                assert!(text.contains("url") || text.contains("tls"), "{url}: {text}");
            }
            other => panic!("{other:?} instead of a refusal of {url:?}"),
        }
    }
}

#[test]
fn a_refused_url_is_not_repeated_with_its_password() {
    let urls = [
        "redis://:sesame@127.0.0.1:notaport/",
        "rediss://ali:sesame@127.0.0.1/zero",
        "redis://ali:sesame@127.0.0.1/zero",
        "http://ali:sesame@127.0.0.1/",
        "ali:sesame@127.0.0.1",
    ];
    for url in urls {
        let error = Client::open(url).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("sesame"), "{text}");
    }
}

fn bad_names_are_refused_without_a_request(server: &Server) {
    let long = "x".repeat(64 * 1024 + 1);
    let with_prefix = |prefix: &str| server.open(Client::builder().prefix(prefix));
    let plain = with_prefix("");
    let usual = server.open(Client::builder());
    let app = with_prefix("app:");
    let half = with_prefix("lease");
    let open_brace = with_prefix("{");
    let cases: [(&Client, &str); 20] = [
        (&plain, ""),
        (&plain, &long),
        (&plain, "leasehold:"),
        (&plain, "leasehold:fence:{a}"),
        (&half, "hold:a"),
        (&app, ""),
        // Their companion keys would be in another slot.
        (&plain, "}"),
        (&plain, "a}"),
        (&plain, "a}b"),
        (&plain, "{}"),
        (&plain, "a{}b"),
        (&plain, "}{"),
        (&plain, "{}{a}"),
        // Their companion keys would be those of another name.
        (&plain, "{a}"),
        (&plain, "{{a}"),
        (&open_brace, "a}"),
        (&app, "a}b"),
        (&usual, "}"),
        (&usual, "a}b"),
        (&usual, "a{}b"),
    ];
    let before = server.evals();
    for (client, name) in cases {
        assert_refused(client.lock(name), "name");
        assert_refused(client.try_lock(name), "name");
        assert_refused(client.try_lock_for(name, ms(100)), "name");
        assert_refused(client.try_lock_until(name, Instant::now()), "name");
        assert_refused(client.with_lock(name, |_| ()), "name");
        let mutex = client.mutex(name);
        assert_refused(mutex.lock(), "name");
        assert_refused(mutex.is_locked(), "name");
        assert_refused(mutex.holder(), "name");
        assert_refused(mutex.force_unlock(), "name");
        assert!(!mutex.is_held_by_current_thread());
    }
    assert_eq!(server.evals(), before);

    // Just within the limits.
    for name in [&long[1..], "leasehold", "{a}:", "a{b}c", "{a}{b}", "{a", "a{", "}{a}"] {
        take(&plain, name).unlock().unwrap();
    }
    for name in ["leasehold:a", "{a}", "a{b}"] {
        take(&usual, name).unlock().unwrap();
    }
    take(&app, "leasehold:a").unlock().unwrap();
    take(&with_prefix("p{"), "a}").unlock().unwrap();
}

#[test]
fn names_are_checked_with_the_prefix_in_memory_too() {
    let (usual, bare) = (Client::in_memory(), Client::builder().prefix("").in_memory().unwrap());
    for name in ["leasehold:a", "{a}"] {
        take(&usual, name).unlock().unwrap();
        assert_refused(bare.try_lock(name), "name");
    }
    for client in [&usual, &bare] {
        assert_refused(client.try_lock("a}"), "name");
    }
}

fn bad_options_of_a_mutex_are_errors_of_its_calls(server: &Server) {
    #[track_caller]
    fn assert_useless(mutex: &Mutex, argument: &str) {
        assert_refused(mutex.lock(), argument);
        assert_refused(mutex.try_lock(), argument);
        assert_refused(mutex.try_lock_for(ms(100)), argument);
        assert_refused(mutex.try_lock_until(Instant::now()), argument);
        assert_refused(mutex.with(|_| ()), argument);
    }
    let client = server.open(Client::builder());
    let explicit = server.open(Client::builder().io_timeout(ms(500)));
    let before = server.evals();
    for lease in [Duration::ZERO, ms(9), 366 * DAY, Duration::MAX] {
        assert_useless(&client.mutex("a").lease(lease), "lease");
    }
    assert_useless(&explicit.mutex("a").lease(ms(1499)), "io_timeout");
    assert_eq!(server.evals(), before);
    explicit.mutex("a").lease(ms(1500)).lock().unwrap().unlock().unwrap();
}

/// Only an option set on a handle itself is an error if it does not fit the handle's lease.
fn inherited_settings_are_cut_to_the_lease_of_a_handle(store: &Store) {
    let client = store.open(Client::builder().keep(ms(30_000)).tenure(ms(10_000)));
    let lease = ms(29_000);
    drop(client.mutex("a").lease(lease).lock().unwrap());
    drop(client.mutex("a").lease(lease).lock_owned().unwrap());
    drop(client.election("b").lease(lease).campaign().unwrap());
    drop(client.multi_mutex(["c", "d"]).lease(lease).lock().unwrap());
    drop(client.rw_lock("e").lease(lease).write().unwrap());
    drop(client.semaphore("f", 1).lease(lease).acquire().unwrap());
    let (before, after) = (client.mutex("a").keep(ms(30_000)), client.mutex("a").lease(lease));
    assert_refused(before.lease(lease).lock(), "keep");
    assert_refused(after.keep(ms(29_001)).lock(), "keep");
}

fn a_default_io_timeout_adapts_to_a_short_lease(server: &Server) {
    let client = server.open_for(SHORT, Client::builder());
    let guard = client.mutex("a").lease(SHORT).lock().unwrap();
    assert!(guard.is_held());
    server.open(Client::builder().lease(SHORT)).lock("b").unwrap().unlock().unwrap();
}

/// Every time that has no limit of its own is `Duration::MAX`, and no sum overflows.
fn the_longest_times_are_accepted(store: &Store) {
    let longest = Client::builder()
        .wait(Duration::MAX)
        .max_hold(Duration::MAX)
        .lease(365 * DAY)
        .retry_window(Duration::MAX)
        .connect_timeout(Duration::MAX)
        .idle_timeout(Some(Duration::MAX))
        .max_lifetime(Some(Duration::MAX))
        .deadlock_after(Some(Duration::MAX))
        .fence_life(Duration::MAX)
        .backoff(Duration::MAX, Duration::MAX)
        .spin(Duration::MAX);
    let (client, other) = (store.open(longest), store.open(patient()));
    let long = Call { lease: Some(365 * DAY), wait: Some(Duration::MAX), ..Call::default() };
    for kind in store.kinds() {
        let name = &format!("{kind:?}");
        let held = kind.block(&other, name);
        // A call for several locks pauses after it got in the way of another, and nothing ends the
        // pause.
        let waits = if *kind == Kind::Set { 1 } else { 2 };
        thread::scope(|scope| {
            for how in [How::TriesFor(Duration::MAX), How::Waits].into_iter().take(waits) {
                let (client, call) = (&client, Call { how, ..long });
                scope.spawn(move || drop(kind.call(client, name, call).unwrap().unwrap()));
            }
            eventually(SOON, || client.stats().waiting == waits as u64);
            drop(held);
        });
    }
    let mutex = client.mutex("a").max_hold(Duration::MAX).hold_at_least(365 * DAY);
    let far = Instant::now() + 365_000 * DAY;
    let guard = mutex.try_lock_until(far).unwrap().unwrap();
    thread::scope(|scope| {
        let (lost, wanted) = (guard.lost(), guard.wanted());
        let told = scope.spawn(move || lost.wait_timeout(Duration::MAX));
        let is_wanted = scope.spawn(move || wanted.wait_timeout(Duration::MAX));
        guard.verify().unwrap();
        guard.renew().unwrap();
        guard.unlock().unwrap();
        assert_eq!(told.join().unwrap(), Some(HoldEnd::Released));
        assert!(!is_wanted.join().unwrap());
    });
    assert!(mutex.force_unlock().unwrap());
    client.shutdown(Duration::MAX).unwrap();
}
