//! No log, event or error contains a password, or anything that would let another program release a
//! lock.

use std::fmt::{Debug, Write as _};
use std::thread;

use leasehold::{Builder, Client, Error, HoldEnd};
use log::{LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use redis::Connection;

use crate::support::child::{self, Child};
use crate::support::{SOON, Server, eventually, everything, ms, opened, stores, take};

stores! {
    one server:
        no_log_event_or_error_has_a_secret;
}

const PASSWORDS: [&str; 2] = ["sesame", "mellon"];

fn no_log_event_or_error_has_a_secret(server: &Server) {
    Child::start(talk_in_a_child, &server.url()).finish();
}

/// The text of all logs, events and errors while the child runs.
static SAID: Mutex<String> = Mutex::new(String::new());

fn say(what: &str) {
    writeln!(SAID.lock(), "{what}").unwrap();
}

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        say(&format!("{} {:?} {}", record.target(), record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// Records the error of a call, which must fail.
#[track_caller]
fn fails<T: Debug>(result: Result<T, Error>) {
    say(&everything(&result.unwrap_err()));
}

fn hasty() -> Builder {
    Client::builder().lease(ms(3000)).io_timeout(ms(300)).retry_window(ms(300)).wait(SOON)
}

/// Runs a command on the connection of the administrator.
fn order(admin: &mut Connection, words: &str) {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    command.arg(words.collect::<Vec<_>>()).exec(admin).unwrap();
}

/// Runs in a process of its own, because there is one logger per process.
#[test]
#[ignore = "a child of no_log_event_or_error_has_a_secret"]
fn talk_in_a_child() {
    let Some(url) = child::argument() else { return };
    log::set_logger(&Logger).unwrap();
    log::set_max_level(LevelFilter::Trace);
    let mut admin = redis::Client::open(&*url).unwrap().get_connection().unwrap();
    order(&mut admin, "ACL SETUSER ali on >sesame ~* &* +@all");
    let url = url.replace("redis://", "redis://ali:sesame@");
    let told = |builder: Builder| builder.on_event(|event| say(&format!("{event:?}")));
    let client = opened(|| told(hasty()).open(&url));
    let other = opened(|| told(hasty().label("other")).open(&url));
    let ids = [client.id().to_owned(), other.id().to_owned()];

    everyday(&client, &other);
    losses(&client, &mut admin);
    refusals(&client, &mut admin);
    outages(&client, &mut admin);
    fails(hasty().open(&url));
    say(&format!("{client:?} {:?} {:?}", client.mutex("a"), hasty()));
    drop((client, other));

    let said = SAID.lock().clone();
    for wanted in ["acquired lock", "is lost", "an outage begins", "releasing lock", "wake-ups"] {
        assert!(said.contains(wanted), "{wanted:?} is missing in:\n{said}");
    }
    for secret in PASSWORDS {
        assert!(!said.contains(secret), "{secret} in\n{said}");
    }
    for id in ids {
        assert!(!said.contains(&format!("{id}:")), "an owner of {id} in\n{said}");
    }
}

fn everyday(client: &Client, other: &Client) {
    let guard = take(client, "a");
    let inner = take(client, "a");
    say(&format!("{guard:?} {inner:?}"));
    thread::scope(|scope| {
        let waits =
            [scope.spawn(|| other.lock("a").map(drop)), scope.spawn(|| client.lock("a").map(drop))];
        thread::sleep(ms(100));
        drop(inner);
        guard.unlock().unwrap();
        for wait in waits {
            wait.join().unwrap().unwrap();
        }
    });
    fails(client.try_lock(""));
    fails(client.mutex("a").lease(ms(1)).lock());
}

fn losses(client: &Client, admin: &mut Connection) {
    let (verified, unlocked, renewed) = (take(client, "a"), take(client, "b"), take(client, "c"));
    order(admin, "FLUSHALL");
    fails(verified.verify());
    fails(unlocked.unlock());
    assert_eq!(renewed.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    fails(client.lock("c"));
    order(admin, "SET lock:d text");
    fails(client.lock("d"));
    drop((verified, renewed));
}

fn refusals(client: &Client, admin: &mut Connection) {
    let guard = take(client, "a");
    for right in ["hset", "hdel", "hexists", "pexpire", "evalsha", "subscribe"] {
        order(admin, &format!("ACL SETUSER ali -{right}"));
        let refused = client.try_lock("b").map(drop);
        refused.unwrap_or_else(|error| say(&everything(&error)));
        order(admin, "CLIENT KILL TYPE pubsub");
        thread::sleep(ms(50));
        order(admin, &format!("ACL SETUSER ali +{right}"));
    }
    order(admin, "ACL SETUSER ali -hdel");
    fails(guard.unlock());
    order(admin, "ACL SETUSER ali +hdel");
    eventually(SOON, || client.try_lock("a").is_ok_and(|guard| guard.is_some()));
}

fn outages(client: &Client, admin: &mut Connection) {
    let (guard, dropped) = (take(client, "a"), take(client, "b"));
    order(admin, "CLIENT PAUSE 1500");
    fails(client.try_lock("c"));
    fails(guard.verify());
    drop(dropped);
    // In the meantime, the password changes.
    order(admin, "ACL SETUSER ali resetpass >mellon");
    order(admin, "CLIENT KILL TYPE normal");
    fails(client.try_lock("c"));
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    fails(guard.unlock());
    order(admin, "CLIENT KILL TYPE pubsub");
    thread::sleep(ms(200));
}
