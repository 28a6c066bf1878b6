//! Wake-up messages that are lost, late or foreign: a message is only a hint to make an attempt.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use leasehold::{Builder, Client};

use crate::support::child::{self, Child};
use crate::support::proxy::Proxy;
use crate::support::{
    SOON, Server, eventually, ms, patient, sleepy, soon, stores, take, throughout, unlock,
    very_sleepy, while_held,
};

stores! {
    every server:
        a_waiter_is_woken_after_a_restart,
        more_messages_than_the_server_buffers_cost_only_a_connection,
        a_foreign_message_changes_no_key,
        a_foreign_message_costs_one_script_at_most,
        a_flood_of_messages_takes_no_memory,
        messages_that_no_thread_waits_for_delay_no_wake_up,
        an_invalid_name_costs_no_script,
        foreign_queue_entries_do_not_block_the_lock,
        strange_names_and_labels_are_woken_too;
    one server:
        a_release_while_subscribing_is_not_missed,
        a_lost_message_costs_only_a_pause;
}

/// Runs `body` while a thread of `waiter` waits for a lock of `holder`, and releases the lock when
/// `body` returns. The thread must get it soon afterwards.
fn while_waiting(holder: &Client, waiter: &Client, name: &str, body: impl FnOnce()) {
    while_held(holder, name, |end| {
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock(name).map(unlock));
            body();
            drop(end);
            soon(|| waits.join().unwrap().unwrap());
        });
    });
}

fn waits(server: &Server, waiter: &Client, name: &str) -> bool {
    server.listeners(waiter) == 1 && server.queue(name) == [waiter.id()]
}

fn publish(server: &Server, channel: &str, message: &[u8]) {
    let mut connection = server.connect();
    redis::cmd("PUBLISH").arg(channel).arg(message).exec(&mut connection).unwrap();
}

fn channel(client: &Client) -> String {
    format!("leasehold:wake:{}", client.id())
}

fn a_release_while_subscribing_is_not_missed(server: &Server) {
    let holder = server.open(patient());
    for delay in [ms(0), ms(100), ms(300)] {
        let proxy = Proxy::before(server);
        let waiter = sleepy().open(&proxy.url()).unwrap();
        proxy.delay_subscriptions(delay);
        // The lock is released before the server knows of the subscription.
        while_waiting(&holder, &waiter, "a", || {
            eventually(SOON, || server.queue("a") == [waiter.id()]);
        });
    }
}

fn a_lost_message_costs_only_a_pause(server: &Server) {
    let proxy = Proxy::before(server);
    // The pauses are the default ones, of at most half a second.
    let (holder, waiter) = (server.open(patient()), Client::open(&proxy.url()).unwrap());
    proxy.lose_messages();
    for _ in 0..3 {
        while_waiting(&holder, &waiter, "a", || {
            eventually(SOON, || waits(server, &waiter, "a"));
        });
    }
}

fn a_waiter_is_woken_after_a_restart(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(sleepy()));
    while_waiting(&holder, &waiter, "a", || {
        eventually(SOON, || waits(server, &waiter, "a"));
        server.command(&["SAVE"]);
        server.restart();
        eventually(SOON, || waits(server, &waiter, "a"));
    });
}

/// The ids of the subscribed connections.
fn subscriptions(server: &Server) -> Vec<String> {
    let clients: String = server.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    let id = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    clients.lines().map(id).collect()
}

fn more_messages_than_the_server_buffers_cost_only_a_connection(server: &Server) {
    // They are in one script, so that the server sends none before the last one is published.
    const MANY: &str = "for n = 1, 200 do \
                            redis.call('publish', ARGV[1], n .. string.rep('x', 10000)) \
                        end";
    server.set_config("client-output-buffer-limit", "pubsub 65536 65536 1");
    let (holder, waiter) = (server.open(patient()), server.open(sleepy()));
    while_waiting(&holder, &waiter, "a", || {
        eventually(SOON, || waits(server, &waiter, "a"));
        let before = subscriptions(server);
        server.command(&["EVAL", MANY, "0", &channel(&waiter)]);
        eventually(SOON, || waits(server, &waiter, "a") && subscriptions(server) != before);
    });
}

/// Messages that make no sense, or would do harm if they were trusted.
const STRANGE: [&[u8]; 16] = [
    b"",
    b"\0",
    b"a",
    b"lock:free",
    b"lock:list",
    b"lock:foreign",
    b"leasehold:fence:{lock:foreign}",
    b"leasehold:queue:{lock:foreign}",
    b"{",
    b"}{",
    b"\xff\xfe\xc0\x80",
    b"'; redis.call('FLUSHALL') --",
    b"]] redis.call('DEL', KEYS[1]) --",
    b"\r\n*1\r\n$8\r\nFLUSHALL\r\n",
    b"%s%n%x",
    &[b'x'; 100_000],
];

/// Returns all keys with their values, and whether they lack a time to live.
fn everything(server: &Server) -> BTreeMap<String, (Vec<u8>, bool)> {
    let state = |key: &String| (server.ask::<Vec<u8>>(&["DUMP", key]), server.key_pttl(key) == -1);
    server.keys().into_iter().map(|key| (key.clone(), state(&key))).collect()
}

fn a_foreign_message_changes_no_key(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(sleepy()));
    server.command(&["SET", "lock:text", "precious"]);
    server.command(&["RPUSH", "lock:list", "one"]);
    server.command(&["HSET", "lock:foreign", "other", "1"]);
    server.command(&["SET", "leasehold:fence:{lock:foreign}", "7"]);
    server.command(&["ZADD", "leasehold:queue:{lock:foreign}", "1", "other"]);
    server.command(&["RPUSH", "leasehold:queue:{lock:list}", "one"]);
    while_waiting(&holder, &waiter, "a", || {
        eventually(SOON, || waits(server, &waiter, "a"));
        let (before, left) = (everything(server), server.pttl("a"));
        for message in STRANGE {
            publish(server, &channel(&waiter), message);
        }
        // This message arrives after the others, and makes the waiter try again.
        let asked = server.evals();
        publish(server, &channel(&waiter), b"lock:a");
        eventually(SOON, || server.evals() > asked);
        assert_eq!(everything(server), before);
        assert!(server.pttl("a") <= left);
        assert!(waits(server, &waiter, "a"), "the waiter is unharmed");
    });
}

fn a_foreign_message_costs_one_script_at_most(server: &Server) {
    const MESSAGES: u64 = 2_000;
    let (holder, waiter) = (server.open(patient()), server.open(very_sleepy()));
    while_waiting(&holder, &waiter, "a", || {
        eventually(SOON, || waits(server, &waiter, "a"));
        let before = server.evals();
        let mut connection = server.connect();
        for n in 0..MESSAGES {
            let message = if n % 2 == 0 { "lock:a" } else { "lock:another" };
            redis::cmd("PUBLISH").arg(channel(&waiter)).arg(message).exec(&mut connection).unwrap();
        }
        thread::sleep(ms(300));
        let scripts = server.evals() - before;
        assert!(scripts <= MESSAGES + MESSAGES / 10, "{scripts} scripts");
    });
}

fn messages_that_no_thread_waits_for_delay_no_wake_up(server: &Server) {
    const STRAY: u64 = 400;
    let (holder, waiter) = (server.open(patient()), server.open(sleepy()));
    // The machine may pause in some of the rounds.
    let comes_first = (0..20).any(|_| {
        let lost = take(&holder, "a");
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock("a").map(unlock));
            eventually(SOON, || self::waits(server, &waiter, "a"));
            let before = server.evals();
            // They are in one script, so that all of them arrive before the one that counts.
            server.command(&["EVAL", STRAY_AND_REAL, "0", &channel(&waiter), &STRAY.to_string()]);
            waits.join().unwrap().unwrap();
            drop(lost);
            server.evals() - before < STRAY / 2
        })
    });
    assert!(comes_first, "they are delivered first");
}

/// Frees the lock "a", and tells the client after this many messages that no thread waits for.
const STRAY_AND_REAL: &str = "for n = 1, ARGV[2] do \
                                  redis.call('publish', ARGV[1], 'lock:stray ' .. n) \
                              end \
                              redis.call('del', 'lock:a') \
                              redis.call('publish', ARGV[1], 'lock:a')";

fn an_invalid_name_costs_no_script(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(sleepy()));
    // The first wait asks once more when it can be woken.
    while_waiting(&holder, &waiter, "warm", || {
        eventually(SOON, || waits(server, &waiter, "warm"));
    });
    while_waiting(&holder, &waiter, "a", || {
        eventually(SOON, || waits(server, &waiter, "a"));
        let huge = [b"lock:" as &[u8], &vec![b'x'; 100_000]].concat();
        let before = server.settled_evals();
        for message in [b"" as &[u8], b"lock:", b"lock:\xff\xfe", b"lock:}{", b"other", &huge] {
            publish(server, &channel(&waiter), message);
        }
        throughout(ms(200), || server.evals() == before);
    });
}

fn a_flood_of_messages_takes_no_memory(server: &Server) {
    const MESSAGES: usize = 200_000;
    let (holder, mut child) = (server.open(patient()), None);
    while_held(&holder, "a", |end| {
        let child = child.insert(Child::start(wait_in_a_child, &server.address()));
        let id = child.next();
        eventually(SOON, || server.subscribers(&id) == 1);
        child.go_on();
        let before: usize = child.next().parse().unwrap();

        let flood = vec![b'x'; 1_000];
        let mut connection = server.connect();
        let mut pipe = redis::pipe();
        for _ in 0..1_000 {
            pipe.cmd("PUBLISH").arg(format!("leasehold:wake:{id}")).arg(&flood).ignore();
        }
        for _ in 0..MESSAGES / 1_000 {
            pipe.exec(&mut connection).unwrap();
        }
        drop(end);
        assert_eq!(child.next(), "has it");
        let after: usize = child.next().parse().unwrap();
        assert!(after < before + 32 * 1024, "{before} KiB before and {after} KiB after");
    });
    child.expect("it was started").finish();
}

/// Returns the peak memory use of this process in KiB; 0 where the system does not report it.
fn most_memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or(0, |rest| rest.trim().trim_end_matches(" kB").parse().unwrap_or(0))
}

#[test]
#[ignore = "a child of a_flood_of_messages_takes_no_memory"]
fn wait_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(Client::builder().wait(6 * SOON));
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock("a").map(unlock));
        child::report(client.id());
        child::wait_for_parent();
        child::report(most_memory());
        waits.join().unwrap().unwrap();
    });
    child::report("has it");
    child::report(most_memory());
}

fn foreign_queue_entries_do_not_block_the_lock(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(patient()));
    let mut connection = server.connect();
    let mut strangers = redis::cmd("ZADD");
    strangers.arg("leasehold:queue:{lock:a}");
    for n in 0..5_000 {
        strangers.arg(-1).arg(format!("stranger {n}"));
    }
    strangers.exec(&mut connection).unwrap();
    while_waiting(&holder, &waiter, "a", || {
        eventually(SOON, || server.listeners(&waiter) == 1);
        assert_eq!(server.queue("a").len(), 5_001);
    });
    take(&holder, "a").unlock().unwrap();
    assert!(server.key_pttl("leasehold:queue:{lock:a}") != -1, "the queue expires");
}

fn strange_names_and_labels_are_woken_too(server: &Server) {
    let label = "\"'x]] redis.call('FLUSHALL') --%s$(id)🐉";
    let long = "x".repeat(64 * 1024);
    let names = [
        " ",
        "\0",
        "\0🐉汉字\x08\r\n\\",
        "a\"b'c`d",
        "'; redis.call('FLUSHALL') --",
        "]] return 1 --",
        "\r\n*1\r\n$8\r\nFLUSHALL\r\n",
        "*?[a-z]",
        "{open",
        "%s%n%.0f",
        "$(id)",
        &long,
    ];
    let strange = |builder: Builder| builder.label(label).wait(6 * SOON);
    let (holder, waiter) = (server.open(strange(patient())), server.open(strange(sleepy())));
    for name in names {
        while_waiting(&holder, &waiter, name, || {
            eventually(SOON, || waits(server, &waiter, name));
            let (owner, depth) = server.hold(name);
            assert!(owner.starts_with(holder.id()) && holder.id().starts_with(label));
            assert_eq!(depth, "1");
        });
        assert!(!server.exists(name));
    }
    assert!(server.keys().iter().all(|key| key.starts_with("leasehold:fence:{lock:")));
    let time = Duration::ZERO;
    assert!(waiter.try_lock_for(names[2], time).unwrap().is_some());
}
