//! Error replies of the server: which of them pass, and what they leave behind.

use std::thread;

use leasehold::{Client, Error};

use crate::support::{
    LEASE, SOON, Server, eventually, ms, patient, stores, take, throughout, timed,
};

stores! {
    every server:
        a_full_server_gives_no_lock_and_keeps_nothing,
        a_full_server_refuses_inner_releases_only,
        a_full_server_renews,
        a_server_that_becomes_read_only_is_waited_for,
        a_server_that_stays_read_only_is_unavailable,
        a_server_busy_with_a_script_is_waited_for,
        a_server_without_room_for_connections_is_waited_for;
    one server:
        a_user_without_scripts_gets_a_permanent_error,
        the_rights_in_the_readme_are_enough,
        whichever_right_is_missing_nothing_is_half_done;
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, Error>, wanted: &str) {
    match result {
        Err(Error::Redis { code, .. }) => assert_eq!(code, wanted),
        other => panic!("{other:?} instead of {wanted}"),
    }
}

fn fill(server: &Server) {
    server.set_config("maxmemory", "1");
}

fn a_full_server_gives_no_lock_and_keeps_nothing(server: &Server) {
    let client = server.open(patient());
    take(&client, "a").unlock().unwrap();
    let before = server.keys();
    fill(server);
    for name in ["a", "b"] {
        let (result, took) = timed(|| client.lock(name));
        assert_refused(result, "OOM");
        assert!(took < ms(5000), "waiting does not help: {took:?}");
        assert_refused(client.try_lock(name), "OOM");
    }
    assert_eq!(server.keys(), before);
    server.set_config("maxmemory", "0");
    take(&client, "a").unlock().unwrap();
}

fn a_full_server_refuses_inner_releases_only(server: &Server) {
    let client = server.open(patient());
    let outer = take(&client, "a");
    let inner = take(&client, "a");
    fill(server);
    assert_refused(client.lock("a"), "OOM");
    assert_refused(inner.unlock(), "OOM");
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

/// Opens a client of a user whose rights are `rights`.
fn open_as(server: &Server, rights: &[&str]) -> Result<Client, Error> {
    let user = ["ACL", "SETUSER", "ali", "reset", "on", ">sesame", "~*", "&*"];
    server.command(&[&user, rights].concat());
    patient().open(&format!("redis://ali:sesame@127.0.0.1:{}/", server.port()))
}

fn a_user_without_scripts_gets_a_permanent_error(server: &Server) {
    let client = open_as(server, &["+@all", "-eval", "-evalsha"]).unwrap();
    let (result, took) = timed(|| client.lock("a"));
    assert_refused(result, "NOPERM");
    assert!(took < ms(5000), "waiting does not help: {took:?}");
    assert_refused(client.try_lock("a"), "NOPERM");
}

/// The rights that README asks for.
pub(crate) const RIGHTS: &str = "~app:* ~leasehold:* resetchannels &leasehold:* +eval +evalsha +ping +get +set +time \
                      +hexists +hset +hdel +hgetall +hlen +del +exists +pttl +pexpire \
                      +zadd +zrange +zrem +publish +subscribe";

fn the_rights_in_the_readme_are_enough(server: &Server) {
    assert!(include_str!("../../README.md").contains(RIGHTS), "README tells other rights");
    let user = ["ACL", "SETUSER", "app", "reset", "on", ">sesame"];
    let rights: Vec<_> = RIGHTS.split(' ').collect();
    server.command(&[&user[..], &rights].concat());
    let url = format!("redis://app:sesame@127.0.0.1:{}/", server.port());
    let open = || patient().prefix("app:").lease(LEASE).open(&url).unwrap();
    let (one, other) = (open(), open());
    let outer = take(&one, "a");
    take(&one, "a").unlock().unwrap();
    throughout(LEASE / 2, || outer.is_held());
    outer.verify().unwrap();
    thread::scope(|scope| {
        let waits =
            [scope.spawn(|| other.lock("a").map(drop)), scope.spawn(|| one.lock("a").map(drop))];
        thread::sleep(ms(100));
        assert!(other.try_lock_for("a", ms(50)).unwrap().is_none());
        outer.unlock().unwrap();
        for wait in waits {
            wait.join().unwrap().unwrap();
        }
    });
    let forced = take(&one, "a");
    assert!(one.mutex("a").force_unlock().unwrap());
    drop(forced);
    let log: Vec<redis::Value> = server.ask(&["ACL", "LOG"]);
    assert!(log.is_empty(), "{log:?}");
}

fn whichever_right_is_missing_nothing_is_half_done(server: &Server) {
    const COMMANDS: [&str; 18] = [
        "del", "exists", "expire", "get", "hexists", "hget", "hset", "incr", "pexpire", "pttl",
        "set", "time", "type", "zadd", "zrange", "zrem", "hdel", "publish",
    ];
    for command in COMMANDS {
        let Ok(client) = open_as(server, &["+@all", &format!("-{command}")]) else {
            continue;
        };
        let result = client.try_lock("a");
        assert!(
            matches!(result, Ok(Some(_)) | Err(Error::Redis { .. })),
            "without {command}: {result:?}"
        );
        // A right that only the release needs may leave the hold to its lease.
        drop(result);
        for key in server.keys() {
            assert!(server.raw_pttl(&key) > 0, "without {command}, {key} has no time to live");
        }
        if client.try_lock("a").is_err() {
            assert!(!server.exists("a"), "without {command}, it is half taken");
        }
        server.command(&["FLUSHALL"]);
    }
}

/// Makes it the replica of a master that does not exist.
fn make_read_only(server: &Server) {
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
}

fn a_server_that_becomes_read_only_is_waited_for(server: &Server) {
    let client = server.open(patient());
    take(&client, "a").unlock().unwrap();
    make_read_only(server);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(ms(500));
            server.command(&["REPLICAOF", "NO", "ONE"]);
        });
        let (guard, took) = timed(|| client.lock("a").unwrap());
        assert!(took > ms(200), "{took:?}");
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

fn a_server_busy_with_a_script_is_waited_for(server: &Server) {
    // Called like this by every version.
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
    // All but the one that asks for it.
    order(&["CLIENT", "KILL", "TYPE", "normal"]);
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(ms(500));
            order(&["CONFIG", "SET", "maxclients", "100"]);
        });
        client.lock("a").unwrap().unlock().unwrap();
    });
}
