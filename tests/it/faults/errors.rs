//! Error replies of the server: which ones are waited out, and what they leave behind.

use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;
use std::thread;

use leasehold::{Builder, Client, Error};

use crate::support::errors::assert_has_its_cause;
use crate::support::server;
use crate::support::{
    LEASE, SOON, Server, assert_rejected, assert_unavailable, behind_proxy, eventually, ms,
    patient, stores, take, throughout, timed,
};

stores! {
    every server:
        a_full_server_grants_no_lock_and_keeps_nothing,
        a_full_server_rejects_only_inner_releases,
        a_full_server_renews,
        a_full_server_renews_when_a_guard_asks_for_it,
        a_server_that_becomes_read_only_is_waited_for,
        a_server_that_stays_read_only_is_unavailable,
        a_server_that_has_become_a_replica_is_not_asked,
        a_server_busy_with_a_script_is_waited_for,
        a_server_without_room_for_connections_is_waited_for,
        a_server_that_loads_its_data_is_waited_for,
        a_replica_without_a_master_is_waited_for,
        a_server_without_enough_replicas_is_waited_for,
        a_server_that_cannot_save_grants_no_lock_and_says_so;
    every direct server:
        permanent_error_replies_are_reported_at_once,
        transient_error_replies_are_waited_out,
        an_error_reply_that_says_nothing_is_retried,
        server_texts_are_shown_on_one_line,
        an_error_reply_that_says_nothing_leaves_no_hold,
        an_error_reply_that_says_nothing_to_a_handoff_leaves_no_hold,
        a_rejected_release_is_an_error_and_is_repeated_in_the_background;
}

fn hasty() -> Builder {
    Client::builder().io_timeout(ms(300)).retry_window(ms(300))
}

/// Redis repeats 128 bytes of a request that it does not know.
#[test]
fn an_error_reply_that_is_cut_within_a_character_is_a_refusal() {
    let server = server::Server::redis_with(&["--rename-command", "EVALSHA", "gone"]);
    let client = Client::open(&server.url()).unwrap();
    for name in ["\u{fc}".repeat(100), format!("x{}", "\u{fc}".repeat(100))] {
        assert_rejected(client.try_lock(&name), "ERR");
    }
}

fn fill(server: &Server) {
    server.set_config("maxmemory", "1");
}

fn a_full_server_grants_no_lock_and_keeps_nothing(server: &Server) {
    let client = server.open(patient());
    take(&client, "a").unlock().unwrap();
    let before = server.keys();
    fill(server);
    for name in ["a", "b"] {
        let (result, took) = timed(|| client.lock(name));
        assert_rejected(result, "OOM");
        assert!(took < ms(5000), "waiting does not help: {took:?}");
        assert_rejected(client.try_lock(name), "OOM");
    }
    assert_eq!(server.keys(), before);
    server.set_config("maxmemory", "0");
    take(&client, "a").unlock().unwrap();
}

fn a_full_server_rejects_only_inner_releases(server: &Server) {
    let client = server.open(patient());
    let outer = take(&client, "a");
    let inner = take(&client, "a");
    fill(server);
    assert_rejected(client.lock("a"), "OOM");
    assert_rejected(inner.unlock(), "OOM");
    assert!(outer.is_held());
    outer.verify().unwrap();
    outer.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_full_server_renews(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    fill(server);
    throughout(3 * LEASE, || guard.is_held() && server.pttl("a") > LEASE / 3);
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_full_server_renews_when_a_guard_asks_for_it(server: &Server) {
    let client = server.open(patient());
    let (outer, inner) = (take(&client, "a"), take(&client, "a"));
    let owned = client.lock_owned("b").unwrap();
    let term = client.election("c").campaign().unwrap();
    let set = client.lock_all(["d", "e"]).unwrap();
    fill(server);
    inner.renew().unwrap();
    // The depth on the server lags behind.
    assert_rejected(inner.unlock(), "OOM");
    outer.renew().unwrap();
    owned.renew().unwrap();
    term.renew().unwrap();
    set.renew().unwrap();
    server.set_config("maxmemory", "0");
}

/// Makes the server a replica of a master that does not exist.
fn make_read_only(server: &Server) {
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
}

fn a_server_that_becomes_read_only_is_waited_for(server: &Server) {
    // This holds however rarely the client asks for a held lock.
    let client = server.open(patient().backoff(ms(30_000), ms(30_000)));
    take(&client, "a").unlock().unwrap();
    make_read_only(server);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(ms(500));
            server.command(&["REPLICAOF", "NO", "ONE"]);
        });
        let (guard, took) = timed(|| client.lock("a").unwrap());
        assert!(took > ms(200) && took < SOON / 2, "{took:?}");
        guard.unlock().unwrap();
    });
}

fn a_server_that_stays_read_only_is_unavailable(server: &Server) {
    let client = server.open(patient().retry_window(ms(400)));
    make_read_only(server);
    let (result, took) = timed(|| client.try_lock("a"));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took >= ms(300) && took < ms(4000), "{took:?}");
    let limited = client.mutex("a").wait(ms(600));
    let (result, took) = timed(|| limited.lock());
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took >= ms(300) && took < ms(4000), "{took:?}");
}

fn a_server_that_has_become_a_replica_is_not_asked(server: &Server) {
    let client = server.open(hasty());
    let guard = take(&client, "a");
    make_read_only(server);
    // A mere read would not show that the server is a replica.
    assert_unavailable(client.try_lock("b"));
    assert_unavailable(guard.verify());
    assert_unavailable(client.mutex("a").holder());
    server.command(&["REPLICAOF", "NO", "ONE"]);
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

fn a_server_busy_with_a_script_is_waited_for(server: &Server) {
    // Every version knows this name of the setting.
    server.set_config("lua-time-limit", "50");
    let client = server.open(patient());
    take(&client, "a").unlock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = server.connect();
            let endless = redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection);
            endless.unwrap_err();
        });
        eventually(SOON, || {
            let mut connection = server.connect();
            redis::cmd("GET").arg("x").exec(&mut connection).is_err()
        });
        scope.spawn(|| {
            thread::sleep(ms(300));
            server.command(&["SCRIPT", "KILL"]);
        });
        client.lock("a").unwrap().unlock().unwrap();
    });
}

fn a_server_without_room_for_connections_is_waited_for(server: &Server) {
    let client = server.open(patient());
    take(&client, "a").unlock().unwrap();
    let mut only = server.connect();
    let mut order = |words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut only).unwrap();
    };
    order(&["CONFIG", "SET", "maxclients", "1"]);
    // All but the connection of this command.
    order(&["CLIENT", "KILL", "TYPE", "normal"]);
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(ms(500));
            order(&["CONFIG", "SET", "maxclients", "100"]);
        });
        client.lock("a").unwrap().unlock().unwrap();
    });
}

fn a_server_that_loads_its_data_is_waited_for(server: &Server) {
    let client = server.open(patient());
    let guard = take(&client, "a");
    // A second of loading, during which the server answers often. Redis 6 has no such setting and
    // answers once every two megabytes.
    server.try_command(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    server.set_config("rdbcompression", "no");
    server.command(&["DEBUG", "POPULATE", "1000", "key", "8192"]);
    server.set_config("key-load-delay", "1000");
    thread::scope(|scope| {
        scope.spawn(|| server.command(&["DEBUG", "RELOAD"]));
        eventually(SOON, || redis::cmd("GET").arg("x").exec(&mut server.connect()).is_err());
        let (taken, took) = timed(|| take(&client, "b"));
        assert!(took >= ms(100), "{took:?}");
        taken.unlock().unwrap();
    });
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

fn a_replica_without_a_master_is_waited_for(server: &Server) {
    let client = server.open(patient().retry_window(ms(300)));
    take(&client, "a").unlock().unwrap();
    server.set_config("replica-serve-stale-data", "no");
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_unavailable(client.try_lock("a"));
    assert_unavailable(client.mutex("a").wait(ms(300)).lock());
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.try_lock_for("a", SOON).map(drop));
        thread::sleep(ms(300));
        server.command(&["REPLICAOF", "NO", "ONE"]);
        waits.join().unwrap().unwrap();
    });
}

fn a_server_without_enough_replicas_is_waited_for(server: &Server) {
    let client = server.open(patient().retry_window(ms(300)));
    let guard = take(&client, "held");
    server.set_config("min-replicas-to-write", "3");
    assert_unavailable(client.try_lock("a"));
    assert_unavailable(client.mutex("a").wait(ms(300)).lock());
    assert_unavailable(guard.unlock());
    assert!(!server.exists("a") && server.exists("held"));
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.try_lock_for("a", SOON).map(drop));
        thread::sleep(ms(300));
        server.set_config("min-replicas-to-write", "0");
        waits.join().unwrap().unwrap();
    });
    eventually(SOON, || !server.exists("held"));
}

fn a_server_that_cannot_save_grants_no_lock_and_says_so(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let guard = take(&client, "held");
    let [_, dir]: [String; 2] = server.ask(&["CONFIG", "GET", "dir"]);
    // A directory in place of the file makes it impossible to write.
    let obstacle = PathBuf::from(dir).join("dump.rdb");
    // With replicas there is already a file, from which they started.
    fs::remove_file(&obstacle).ok();
    fs::create_dir(&obstacle).unwrap();
    server.set_config("save", "3600 1");
    server.command(&["BGSAVE"]);
    let status = || server.ask::<String>(&["INFO", "persistence"]);
    eventually(SOON, || status().contains("rdb_last_bgsave_status:err"));

    let (result, took) = timed(|| client.lock("a"));
    assert_rejected(result, "MISCONF");
    assert!(took < SOON / 2, "waiting does not help: {took:?}");
    assert!(!server.exists("a"));
    assert_rejected(guard.unlock(), "MISCONF");
    fs::remove_dir(&obstacle).unwrap();
    server.command(&["SAVE"]);
    eventually(SOON, || !server.exists("held"));
    take(&client, "a").unlock().unwrap();
}

fn permanent_error_replies_are_reported_at_once(server: &Server) {
    const PERMANENT: [&str; 12] = [
        "ASK 7 127.0.0.1:1",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "ERR unknown command 'EVALSHA'",
        "EXECABORT Transaction discarded because of previous errors.",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "MOVED 7 127.0.0.1:1",
        "NOAUTH Authentication required.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "NOSCRIPT No matching script. Please use EVAL.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "UNBLOCKED force unblock from blocking operation",
        "WRONGPASS invalid username-password pair or user is disabled.",
    ];
    let (proxy, client) = behind_proxy(server, patient());
    for error in PERMANENT {
        let code = error.split(' ').next().unwrap();
        proxy.reject_all(error);
        let (result, took) = timed(|| client.lock("a"));
        assert_rejected(result, code);
        assert!(took < SOON / 2, "waiting does not help: {took:?} for {error}");
        assert_rejected(client.try_lock("a"), code);
        assert_rejected(client.mutex("a").holder(), code);
    }
    proxy.reject_all("WRONGTYPE Operation against a key holding the wrong kind of value");
    assert!(matches!(client.try_lock("a"), Err(Error::WrongType { .. })));
    proxy.heal();
    take(&client, "a").unlock().unwrap();
}

fn transient_error_replies_are_waited_out(server: &Server) {
    const TRANSIENT: [&str; 8] = [
        "BUSY Redis is busy running a script.",
        "CLUSTERDOWN The cluster is down",
        "ERR max number of clients reached",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "NOREPLICAS Not enough good replicas to write.",
        "READONLY You can't write against a read only replica.",
        "TRYAGAIN Multiple keys request during rehashing of slot",
    ];
    let (proxy, client) = behind_proxy(server, Client::builder().retry_window(ms(300)));
    for error in TRANSIENT {
        proxy.reject_all(error);
        let (result, took) = timed(|| client.try_lock("a"));
        assert_unavailable(result);
        assert!(took >= ms(200), "{took:?} for {error}");
        assert_unavailable(client.try_lock_for("a", ms(100)));
        proxy.heal();
        // An abandoned request of the previous round may be executed late, and is cleaned up.
        eventually(SOON, || !server.exists("a"));
        take(&client, "a").unlock().unwrap();
    }
}

fn a_rejected_release_is_an_error_and_is_repeated_in_the_background(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    let guard = take(&client, "a");
    proxy.reject_all("MISCONF Errors writing to the AOF file: No space left on device");
    assert_rejected(guard.unlock(), "MISCONF");
    assert!(server.exists("a"));
    proxy.heal();
    eventually(SOON, || !server.exists("a"));
}

/// The reply of a proxy that lost the server before or after the request was executed.
const UPSTREAM: &[u8] = b"-upstream failure\r\n";

/// The same reply in words that a server also uses, for requests that it does not execute.
const UPSTREAMS: [&[u8]; 3] = [
    UPSTREAM,
    b"-ERR unknown upstream error\r\n",
    b"-ERR script call was interrupted by the proxy\r\n",
];

fn server_texts_are_shown_on_one_line(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty());
    for (reply, shown) in [
        ("NOPERM no\n\u{1b}[2Jright", r"NOPERM no\n\u{1b}[2Jright"),
        ("\u{1b}[2J\nA proxy's", r"\u{1b}[2J\nA proxy's"),
    ] {
        proxy.reject_all(reply);
        let error = client.try_lock("a").unwrap_err();
        assert!(!error.to_string().contains(char::is_control), "{error}");
        assert!(error.to_string().contains(shown), "{error}");
        assert_has_its_cause(&error);
    }
}

fn an_error_reply_that_says_nothing_is_retried(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    proxy.answer(UPSTREAM);
    let guard = take(&client, "a");
    assert_eq!(guard.depth(), 1);
    proxy.answer(UPSTREAM);
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}

/// Checks that a call has failed, but may have acquired the lock.
#[track_caller]
fn assert_doubtful<T: Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.may_have_executed(), "{error:?}");
}

fn an_error_reply_that_says_nothing_leaves_no_hold(server: &Server) {
    // Leases of half a minute, which is more than the test waits.
    let (proxy, client) = behind_proxy(server, hasty());
    let limited = client.mutex("a").wait(ms(100));
    for (round, reply) in UPSTREAMS.into_iter().enumerate() {
        proxy.answer_all(reply);
        assert_doubtful(match round {
            0 => client.try_lock("a").map(drop),
            1 => client.try_lock_for("a", ms(100)).map(drop),
            _ => limited.lock().map(drop),
        });
        proxy.heal();
        eventually(SOON, || !server.exists("a"));
    }
    take(&client, "a").unlock().unwrap();
}

fn an_error_reply_that_says_nothing_to_a_handoff_leaves_no_hold(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty().wait(ms(1000)));
    for reply in UPSTREAMS {
        let guard = take(&client, "a");
        thread::scope(|scope| {
            let waits = scope.spawn(|| client.lock("a").map(drop));
            // The call queues behind the other thread, which needs no request.
            thread::sleep(ms(100));
            proxy.answer_all(reply);
            drop(guard);
            waits.join().unwrap().unwrap_err();
        });
        proxy.heal();
        eventually(SOON, || !server.exists("a"));
    }
    take(&client, "a").unlock().unwrap();
}
