//! The lines for the program's logger, and loggers that misbehave without harm.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use leasehold::{Guard, HoldEnd, MemoryServer};
use log::{LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;

use crate::support::address::{Address, Way};
use crate::support::child::{self, Child};
use crate::support::{
    Cluster, LEASE, SHORT, SOON, Server, eventually, hasty, ms, patient, server, stores, take,
    throughout,
};

stores! {
    every server:
        a_logger_that_blocks_stops_nothing,
        a_logger_that_panics_stops_nothing,
        an_outage_is_one_line_and_so_is_its_end,
        an_outage_without_surviving_leases_ends_with_the_next_reply,
        an_outage_without_a_lease_is_one_line_and_so_is_its_end,
        many_losses_are_few_lines,
        a_program_that_ends_for_a_loss_has_logged_it;
}

/// Long enough for a renewal to fail and be repeated in time.
const LONG: Duration = ms(2 * 3000);

/// A renewal is due after a third of [`LONG`], and fails a second later.
const OUTAGE: Duration = ms(3300);

const FINE: u8 = 0;
const BLOCKS: u8 = 1;
const PANICS: u8 = 2;

/// The start of the first line about an outage.
const BEGIN: &str = "an outage begins";
const END: &str = "the outage is over";

/// The behaviour of this process's logger.
static MODE: AtomicU8 = AtomicU8::new(FINE);

static LINES: Mutex<String> = Mutex::new(String::new());

struct Logger;

impl Logger {
    fn install(mode: u8) {
        MODE.store(mode, Ordering::SeqCst);
        log::set_logger(&Logger).unwrap();
        log::set_max_level(LevelFilter::Trace);
    }
}

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        match MODE.load(Ordering::SeqCst) {
            BLOCKS => loop {
                thread::park();
            },
            PANICS => panic!("as the test wants"),
            _ => true,
        }
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            writeln!(LINES.lock(), "{} {}", record.level(), record.args()).unwrap();
        }
    }

    fn flush(&self) {}
}

/// Returns the lines that contain this text.
fn lines_with(text: &str) -> Vec<String> {
    let lines = LINES.lock();
    lines.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

fn a_logger_that_blocks_stops_nothing(server: &Server) {
    lock_beside(BLOCKS, server);
}

fn a_logger_that_panics_stops_nothing(server: &Server) {
    lock_beside(PANICS, server);
}

fn lock_beside(mode: u8, server: &Server) {
    let mode = [("LOGGER", mode.to_string().into())];
    let mut child = Child::start_with(lock_beside_a_logger_in_a_child, &server.address(), &mode);
    assert_eq!(child.next(), "holds");
    server.stop();
    thread::sleep(OUTAGE);
    server.cont();
    child.go_on();
    for stage in ["still holds", "has waited", "renews", "has released", "has lost", "is done"] {
        assert_eq!(child.next(), stage);
    }
    child.finish();
}

/// Runs in a process of its own, because there is one logger per process.
#[test]
#[ignore = "a child of a_logger_that_blocks_stops_nothing and of the next"]
fn lock_beside_a_logger_in_a_child() {
    let Some(address) = child::address() else { return };
    let mode = std::env::var("LOGGER").unwrap().parse().unwrap();
    Logger::install(mode);
    let client = address.open_for(SHORT, patient().lease(LONG));
    let mut guards: Vec<_> = (0..5).map(|n| take(&client, &format!("lock {n}"))).collect();
    child::report("holds");
    child::wait_for_parent();

    assert!(guards.iter().all(Guard::is_held));
    child::report("still holds");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("lock 0").unwrap().fence());
        thread::sleep(ms(100));
        drop(guards.remove(0));
        waiter.join().unwrap();
    });
    child::report("has waited");
    throughout(LONG, || guards.iter().all(Guard::is_held));
    child::report("renews");
    for guard in guards {
        let name = guard.name().to_owned();
        guard.verify().unwrap();
        drop(guard);
        take(&client, &name).unlock().unwrap();
    }
    child::report("has released");
    let expiring = client.mutex("short").lease(SHORT).renew(false).lock().unwrap();
    eventually(SOON, || !expiring.is_held());
    drop(expiring);
    child::report("has lost");
    client.close();
    client.lock("a").unwrap_err();
    drop(client);
    child::report("is done");
}

fn an_outage_is_one_line_and_so_is_its_end(server: &Server) {
    let child = Child::start(outage_in_a_child, &server.address());
    assert_eq!(child.next(), "holds");
    server.stop();
    assert_eq!(child.next(), "fails");
    server.cont();
    child.finish();
}

#[test]
#[ignore = "a child of an_outage_is_one_line_and_so_is_its_end"]
fn outage_in_a_child() {
    let Some(address) = child::address() else { return };
    Logger::install(FINE);
    let client = address.open(patient().lease(LONG));
    let _guards: Vec<_> = (0..20).map(|n| take(&client, &format!("lock {n}"))).collect();
    child::report("holds");
    eventually(SOON, || !lines_with(BEGIN).is_empty());
    child::report("fails");
    eventually(SOON, || !lines_with(END).is_empty());
    throughout(LEASE, || lines_with(END).len() == 1);
    let begin = lines_with(BEGIN);
    assert!(begin.len() == 1 && begin[0].contains("lock \"lock "), "{begin:?}");
    let end = lines_with(END);
    assert!(end[0].ends_with("calls failed: 0, leases lost: 0"), "{end:?}");
}

fn an_outage_without_surviving_leases_ends_with_the_next_reply(server: &Server) {
    let child = Child::start(fatal_outage_in_a_child, &server.address());
    assert_eq!(child.next(), "holds");
    server.stop();
    assert_eq!(child.next(), "lost");
    server.cont();
    child.finish();
}

#[test]
#[ignore = "a child of an_outage_without_surviving_leases_ends_with_the_next_reply"]
fn fatal_outage_in_a_child() {
    let Some(address) = child::address() else { return };
    Logger::install(FINE);
    let client = address.open(patient().lease(LEASE).io_timeout(LEASE / 6));
    let guards: Vec<_> = (0..20).map(|n| take(&client, &format!("lock {n}"))).collect();
    child::report("holds");
    for guard in &guards {
        assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    }
    eventually(SOON, || client.stats().lost == 20);
    assert_eq!((lines_with(BEGIN).len(), lines_with(END).len()), (1, 0));
    child::report("lost");
    eventually(SOON, || client.try_lock("free").is_ok());
    eventually(SOON, || !lines_with(END).is_empty());
    let end = lines_with(END);
    assert!(end.len() == 1 && end[0].ends_with("leases lost: 20"), "{end:?}");
}

fn an_outage_without_a_lease_is_one_line_and_so_is_its_end(server: &Server) {
    suffer(server, &server.address(), ["a", "b"]);
}

#[test]
fn an_outage_of_a_node_is_one_line_and_so_is_its_end() {
    let cluster = Cluster::of_three();
    for node in cluster.nodes() {
        node.set_config("cluster-require-full-coverage", "no");
    }
    let names = [0, 1].map(|node| cluster.name_at(node));
    let url = cluster.nodes()[1].url();
    let address = Address { url, way: Way::Cluster("lock:".into()) }.to_string();
    suffer(&cluster.nodes()[0], &address, [&names[0], &names[1]]);
}

/// Makes a child lock two names while the server of the first one hangs.
fn suffer(server: &server::Server, address: &str, names: [&str; 2]) {
    let mut child = Child::start(suffer_in_a_child, address);
    child.tell(names.join(","));
    assert_eq!(child.next(), "ready");
    server.stop();
    child.go_on();
    assert_eq!(child.next(), "suffers");
    server.cont();
    child.go_on();
    child.finish();
}

#[test]
#[ignore = "a child of an_outage_without_a_lease_is_one_line_and_so_is_its_end and of the next"]
fn suffer_in_a_child() {
    let Some(address) = child::address() else { return };
    Logger::install(FINE);
    let client = address.open_for(SHORT, hasty());
    let names = child::line();
    let (name, other) = names.split_once(',').unwrap();
    drop((take(&client, name), take(&client, other)));
    child::report("ready");
    child::wait_for_parent();
    for _ in 0..2 {
        client.try_lock(name).unwrap_err();
        // On the other server, the lock is free.
        client.try_lock(other).ok();
    }
    let begin = || lines_with(BEGIN);
    eventually(SOON, || begin().len() == 1);
    assert!(begin()[0].starts_with("WARN") && lines_with(END).is_empty(), "{:?}", begin());
    child::report("suffers");
    child::wait_for_parent();
    eventually(SOON, || client.try_lock(name).is_ok());
    eventually(SOON, || lines_with(END).len() == 1);
    assert!(lines_with(END)[0].starts_with("WARN"), "{:?}", lines_with(END));
    let mut has_failed = false;
    throughout(ms(1500), || {
        // A call that fails on a busy machine starts another outage.
        has_failed |= client.try_lock(name).is_err() || client.try_lock(other).is_err();
        has_failed || begin().len() == 1 && lines_with(END).len() == 1
    });
}

fn many_losses_are_few_lines(server: &Server) {
    let mut child = Child::start(losses_in_a_child, &server.address());
    assert_eq!(child.next(), "holds");
    server.command(&["FLUSHALL"]);
    child.go_on();
    child.finish();
}

#[test]
#[ignore = "a child of many_losses_are_few_lines"]
fn losses_in_a_child() {
    let Some(address) = child::address() else { return };
    Logger::install(FINE);
    let client = address.open(patient().lease(LEASE));
    let guards: Vec<_> = (0..100).map(|n| take(&client, &format!("lock {n}"))).collect();
    child::report("holds");
    child::wait_for_parent();
    for guard in &guards {
        assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    }
    eventually(SOON, || !lines_with("lost").is_empty());
    let lines = lines_with("lost");
    assert!(lines.len() < 20, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("does not know")), "{lines:?}");
}

#[test]
fn lines_about_a_lock_name_the_line_and_the_thread_of_the_program() {
    Child::start(trouble_in_a_child, "in memory").finish();
}

#[test]
#[ignore = "a child of lines_about_a_lock_name_the_line_and_the_thread_of_the_program"]
fn trouble_in_a_child() {
    if child::argument().is_none() {
        return;
    }
    Logger::install(FINE);
    let server = MemoryServer::new();
    let builder = || hasty().retry_window(ms(100)).warn_held(ms(100)).deadlock_after(Some(ms(100)));
    let client = builder().open_memory(&server).unwrap();
    let expect = |level: &str, parts: &[&str]| {
        eventually(SOON, || {
            let lines = lines_with(parts[0]);
            lines
                .iter()
                .any(|line| line.starts_with(level) && parts.iter().all(|part| line.contains(part)))
        });
    };
    let work = || {
        let place = std::panic::Location::caller();
        let at = |line| format!(" at {}:{line} in thread worker-3", place.file());
        let (begun, guard) = (line!(), client.mutex("a").note("why").lock_owned().unwrap());
        expect("WARN", &["has been held for", "lock \"a\" (fence ", &at(begun), " (why) "]);
        assert!(server.end_hold("a"));
        guard.verify().unwrap_err();
        expect("WARN", &["is lost", "lock \"a\" (fence ", &at(begun)]);

        let (begun, guard) = (line!(), client.lock_owned("b").unwrap());
        server.set_down(true);
        guard.unlock().unwrap_err();
        server.set_down(false);
        expect("WARN", &["releasing lock \"b\"", &at(begun), " failed: "]);

        let (begun, first) = (line!(), client.mutex("c").note("why").lock_owned().unwrap());
        let (waits, second) = (line!(), client.try_lock_for("c", ms(300)).unwrap());
        assert!(second.is_none());
        let waits = format!("lock \"c\"{} waits for ", at(waits));
        expect("INFO", &[&waits, &format!(" so far, held{} (why)", at(begun))]);
        drop(first);

        let first = client.mutex("d").note("why").lock().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _second = client.lock("e").unwrap();
                client.try_lock_for("d", ms(1000)).unwrap();
            });
            eventually(SOON, || !client.waits().is_empty());
            let (begun, both) = (line!(), client.try_lock_for("e", SOON).unwrap());
            drop(both);
            let here = format!("; lock \"e\"{}", at(begun));
            expect("WARN", &["deadlock: ", " (why)", &here, "; lock \"d\" at "]);
        });
        drop(first);
    };
    let worker = thread::Builder::new().name("worker-3".into());
    thread::scope(|scope| worker.spawn_scoped(scope, work).unwrap().join().unwrap());
}

#[test]
fn dropped_events_are_counted_in_a_log_line() {
    Child::start(drop_events_in_a_child, "in memory").finish();
}

#[test]
#[ignore = "a child of dropped_events_are_counted_in_a_log_line"]
fn drop_events_in_a_child() {
    if child::argument().is_none() {
        return;
    }
    Logger::install(FINE);
    let (end, ended) = bounded::<()>(0);
    let client = patient().on_event(move |_| {
        ended.recv_timeout(SOON).ok();
    });
    let client = client.in_memory().unwrap();
    for _ in 0..5_000 {
        take(&client, "a").unlock().unwrap();
    }
    drop(end);
    eventually(SOON, || lines_with("dropped").iter().any(|line| line.starts_with("WARN")));
}

fn a_program_that_ends_for_a_loss_has_logged_it(server: &Server) {
    Child::start(end_for_a_loss_in_a_child, &server.address()).finish();
}

#[test]
#[ignore = "a child of a_program_that_ends_for_a_loss_has_logged_it"]
fn end_for_a_loss_in_a_child() {
    let Some(address) = child::address() else { return };
    Logger::install(FINE);
    let operator = address.open(patient());
    for lost in 1..=3 {
        let client = address.open(patient().lease(LEASE));
        let guard = take(&client, "a");
        operator.mutex("a").force_unlock().unwrap();
        assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
        drop(guard);
        drop(client);
        assert_eq!(lines_with("is lost").len(), lost);
    }
}
