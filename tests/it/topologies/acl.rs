//! Passwords, users and their permissions.

use std::thread;

use leasehold::{Client, Error, HoldEnd};

use crate::support::kinds::{Call, How, Kind};
use crate::support::{
    LEASE, RIGHTS, SOON, Server, assert_lost, assert_rejected, eventually, everything, ms, patient,
    stores, take, throughout, timed, unlock,
};

stores! {
    one server:
        a_password_of_the_url_is_used,
        an_acl_user_of_the_url_is_used,
        a_wrong_password_is_a_permanent_error,
        a_changed_password_is_reported_at_once,
        a_user_without_scripts_gets_a_permanent_error,
        the_documented_rights_are_enough,
        the_documented_rights_are_enough_for_read_write_locks_and_semaphores,
        a_missing_right_leaves_nothing_half_done;
}

fn a_password_of_the_url_is_used(server: &Server) {
    server.set_config("requirepass", "p@ss/w:rd%");
    let port = server.port();
    let error = Client::open(&server.url()).unwrap_err();
    assert!(matches!(&error, Error::Redis { code, .. } if code == "NOAUTH"), "{error:?}");
    let url = format!("redis://:p%40ss%2Fw%3Ard%25@127.0.0.1:{port}/");
    take(&Client::open(&url).unwrap(), "a").unlock().unwrap();
}

fn an_acl_user_of_the_url_is_used(server: &Server) {
    let rule =
        ["ACL", "SETUSER", "ali", "on", ">sesame", "~lock:shop:*", "~leasehold:*", "&*", "+@all"];
    server.command(&rule);
    let url = format!("redis://ali:sesame@127.0.0.1:{}/", server.port());
    let client = Client::open(&url).unwrap();
    let guard = take(&client, "shop:a");
    let clients: String = server.ask(&["CLIENT", "LIST"]);
    assert!(clients.contains("user=ali"), "{clients}");
    guard.unlock().unwrap();
    let error = client.lock("bank:a").unwrap_err();
    assert!(matches!(error, Error::Redis { .. }), "{error:?}");
}

fn a_wrong_password_is_a_permanent_error(server: &Server) {
    server.command(&["ACL", "SETUSER", "ali", "on", ">sesame", "~*", "&*", "+@all"]);
    let url = format!("redis://ali:mellon@127.0.0.1:{}/", server.port());
    let (result, took) = timed(|| Client::open(&url));
    let error = result.unwrap_err();
    assert!(matches!(&error, Error::Redis { code, .. } if code == "WRONGPASS"), "{error:?}");
    assert!(!everything(&error).contains("mellon"), "{error:?}");
    assert!(took < SOON / 2, "trying again does not help: {took:?}");
}

fn a_changed_password_is_reported_at_once(server: &Server) {
    let set = |password: &str| {
        let rule = ["ACL", "SETUSER", "ali", "reset", "on", password, "~*", "&*", "+@all"];
        server.command(&rule);
    };
    set(">sesame");
    let client = patient().lease(LEASE).pool_size(1);
    let url = format!("redis://ali:sesame@127.0.0.1:{}/", server.port());
    let client = client.open(&url).unwrap();
    let guard = take(&client, "a");
    set(">mellon");
    server.kill_connections();
    let (result, took) = timed(|| client.lock("b"));
    let text = everything(result.as_ref().unwrap_err());
    assert!(!text.contains("sesame") && !text.contains("mellon"), "{text}");
    assert_rejected(result, "WRONGPASS");
    assert!(took < SOON / 2, "trying again does not help: {took:?}");
    // A hold is good until its lease ends; then it is lost and not recreated.
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    assert_lost(guard.unlock(), "a");
    set(">sesame");
    take(&client, "b").unlock().unwrap();
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
    let hint = result.as_ref().unwrap_err().to_string();
    assert!(hint.contains("docs/deployment.md"), "{hint}");
    assert_rejected(result, "NOPERM");
    assert!(took < ms(5000), "waiting does not help: {took:?}");
    assert_rejected(client.try_lock("a"), "NOPERM");
}

fn the_documented_rights_are_enough(server: &Server) {
    assert!(
        include_str!("../../../docs/deployment.md").contains(RIGHTS),
        "docs/deployment.md lists other rights"
    );
    let user = ["ACL", "SETUSER", "app", "reset", "on", ">sesame"];
    let rights: Vec<_> = RIGHTS.split(' ').collect();
    server.command(&[&user[..], &rights].concat());
    let url = format!("redis://app:sesame@127.0.0.1:{}/", server.port());
    let open = || patient().lease(LEASE).open(&url).unwrap();
    let (one, other) = (open(), open());
    one.ping().unwrap();
    let outer = take(&one, "a");
    take(&one, "a").unlock().unwrap();
    throughout(LEASE / 2, || outer.is_held());
    outer.verify().unwrap();
    thread::scope(|scope| {
        let waits = [
            scope.spawn(|| other.lock("a").map(unlock)),
            scope.spawn(|| one.lock("a").map(unlock)),
        ];
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

/// The further rights that the documentation requires for holds with several owners.
const RIGHTS_OF_MEMBERS: &str = "+zcount +pexpireat +pubsub|numsub";

fn the_documented_rights_are_enough_for_read_write_locks_and_semaphores(server: &Server) {
    let page = include_str!("../../../docs/deployment.md");
    assert!(page.contains(RIGHTS_OF_MEMBERS), "docs/deployment.md lists other rights");
    let user = ["ACL", "SETUSER", "app", "reset", "on", ">sesame"];
    let rights: Vec<_> = RIGHTS.split(' ').chain(RIGHTS_OF_MEMBERS.split(' ')).collect();
    server.command(&[&user[..], &rights].concat());
    let url = format!("redis://app:sesame@127.0.0.1:{}/", server.port());
    let open = || patient().lease(LEASE).open(&url).unwrap();
    let (one, other) = (open(), open());
    let (reader, permit) =
        (one.rw_lock("a").read().unwrap(), one.semaphore("b", 1).acquire().unwrap());
    assert_eq!(one.semaphore("b", 1).available().unwrap(), 0);
    throughout(LEASE / 2, || reader.is_held() && permit.is_held());
    thread::scope(|scope| {
        let writer = scope.spawn(|| other.rw_lock("a").write().unwrap());
        let waiter = scope.spawn(|| other.semaphore("b", 1).acquire().unwrap());
        let queued = || ["a", "b"].iter().all(|name| !server.queue(name).is_empty());
        eventually(SOON, || queued() && server.listeners(&other) == 1);
        assert!(one.rw_lock("a").try_read().unwrap().is_none());
        assert!(one.semaphore("b", 1).try_acquire().unwrap().is_none());
        reader.verify().unwrap();
        reader.unlock().unwrap();
        permit.unlock().unwrap();
        writer.join().unwrap().unlock().unwrap();
        waiter.join().unwrap().unlock().unwrap();
    });
    let log: Vec<redis::Value> = server.ask(&["ACL", "LOG"]);
    assert!(log.is_empty(), "{log:?}");
}

fn a_missing_right_leaves_nothing_half_done(server: &Server) {
    const COMMANDS: [&str; 21] = [
        "del",
        "exists",
        "expire",
        "get",
        "hexists",
        "hget",
        "hset",
        "incr",
        "pexpire",
        "pttl",
        "set",
        "time",
        "type",
        "zadd",
        "zrange",
        "zrem",
        "hdel",
        "publish",
        "pexpireat",
        "zcount",
        "zscore",
    ];
    // A hold that began without the right to set a TTL must be undone, with whatever rights are
    // left.
    let without_ttl = |command| [vec!["pexpire", command], vec!["pexpireat", command]];
    let missing = COMMANDS.into_iter().map(|command| vec![command]);
    for missing in missing.chain(COMMANDS.into_iter().flat_map(without_ttl)) {
        let rights: Vec<_> = missing.iter().map(|command| format!("-{command}")).collect();
        let rights: Vec<_> = rights.iter().map(String::as_str).collect();
        let Ok(client) = open_as(server, &[&["+@all"], &rights[..]].concat()) else {
            continue;
        };
        for kind in Kind::IN_LINE {
            let tries = Call { how: How::Tries, ..Call::default() };
            let is_had = || kind.call(&client, "a", tries).map(|hold| hold.is_some());
            let result = is_had();
            assert!(
                matches!(result, Ok(true) | Err(Error::Redis { .. })),
                "{kind:?} without {missing:?}: {result:?}"
            );
            for key in server.keys() {
                let pttl = server.key_pttl(&key);
                assert_ne!(pttl, -1, "{kind:?} without {missing:?}: {key} stays for ever");
            }
            // If only the release lacks a right, the hold may stay until its lease ends.
            if is_had().is_err() && result.is_err() {
                eventually(SOON, || !server.exists("a"));
            }
            server.command(&["FLUSHALL"]);
        }
    }
}
