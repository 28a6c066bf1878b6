//! Locks that stay taken for a time after their release.

use std::process::exit;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Error, Guard, HoldEnd, Mutex};

use crate::support::child::{self, Child};
use crate::support::proxy::Proxy;
use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, Quorum, SHORT, SOON, Server, Store, behind_proxy, elsewhere, eventually, hasty, ms,
    patient, sleepy, stores, take, throughout, unlock,
};

stores! {
    every store:
        a_lock_stays_taken_however_it_is_released,
        the_thread_that_had_a_kept_lock_waits_for_the_end,
        a_thread_behind_the_holder_waits_for_the_end,
        a_kept_lock_is_seen_and_can_be_forced_free,
        a_lock_that_was_held_long_enough_is_free_at_once,
        a_lock_may_stay_taken_for_longer_than_its_lease,
        a_lock_that_was_lost_is_not_kept,
        the_outermost_lock_decides_how_long_the_lock_stays_taken,
        one_of_many_threads_runs_a_job,
        a_time_that_makes_no_sense_is_refused;
    several clients:
        a_waiting_client_gets_a_kept_lock_when_its_time_ends;
    every server:
        a_kept_lock_is_the_hold_with_depth_zero,
        a_shutdown_keeps_a_lock,
        a_holder_that_crashes_keeps_nothing,
        a_lock_stays_taken_when_its_process_ends,
        one_of_many_processes_runs_a_job;
    every direct server:
        a_client_that_is_far_away_gets_its_turns,
        a_failed_release_keeps_the_lock,
        every_request_for_a_kept_lock_may_be_executed_twice;
}

/// Long enough for a thread to get from one line of a test to the next, and much less than the
/// default lease.
const KEPT: Duration = ms(1500);

fn keeping(client: &Client, name: &str) -> Mutex {
    client.mutex(name).hold_at_least(KEPT)
}

fn release(guard: Guard, drops: bool) {
    if drops {
        drop(guard);
    } else {
        unlock(guard);
    }
}

#[track_caller]
fn assert_taken(client: &Client, name: &str) {
    assert!(client.try_lock(name).unwrap().is_none(), "for this thread as well");
    assert!(client.try_lock_owned(name).unwrap().is_none());
    let holder = client.mutex(name).holder().unwrap().expect("it is taken");
    assert_eq!((holder.depth, &*holder.client), (0, client.id()));
    assert!(holder.remaining <= KEPT, "{holder:?}");
}

/// Waits for a lock that was acquired after `begin` and stays taken. Checks that the wait ends
/// after `KEPT`, and not with the lease.
#[track_caller]
fn assert_waits(begin: Instant, lock: impl FnOnce()) {
    lock();
    let took = begin.elapsed();
    assert!(took >= KEPT && took < KEPT + SOON / 2, "{took:?}");
}

fn a_lock_stays_taken_however_it_is_released(store: &Store) {
    let client = store.open(patient());
    let names = ["drop", "unlock", "with", "try_with", "owned drop", "owned unlock"];
    let mutex = |name| keeping(&client, name);
    let begin = Instant::now();
    drop(mutex("drop").lock().unwrap());
    mutex("unlock").try_lock().unwrap().expect("free").unlock().unwrap();
    mutex("with").with(|_| ()).unwrap();
    mutex("try_with").try_with(|_| ()).unwrap().expect("free");
    drop(mutex("owned drop").lock_owned().unwrap());
    mutex("owned unlock").try_lock_owned_for(SOON).unwrap().expect("free").unlock().unwrap();
    for name in names {
        assert_taken(&client, name);
        assert!(!client.mutex(name).is_held_by_current_thread());
    }
    assert_eq!(client.stats().held, 0);
    for name in names {
        eventually(SOON, || client.try_lock(name).unwrap().is_some());
        assert!(begin.elapsed() >= KEPT);
    }
}

fn the_thread_that_had_a_kept_lock_waits_for_the_end(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(sleepy().on_event(recorder.listener()));
    let begin = Instant::now();
    let guard = keeping(&client, "a").lock().unwrap();
    let fence = guard.fence();
    drop(guard);
    assert_waits(begin, || {
        let guard = client.lock("a").unwrap();
        assert!(guard.fence() > fence && guard.depth() == 1);
        unlock(guard);
    });
    let released = ["acquired a", "released a", "contended a", "acquired a", "released a"];
    eventually(SOON, || recorder.events_of_locks() == released);
}

fn a_thread_behind_the_holder_waits_for_the_end(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(sleepy().on_event(recorder.listener()));
    for (name, drops) in [("a", true), ("b", false)] {
        let begin = Instant::now();
        let guard = keeping(&client, name).lock().unwrap();
        thread::scope(|scope| {
            let next = scope.spawn(|| client.lock(name).map(unlock));
            recorder.wait_for(&format!("contended {name}"));
            release(guard, drops);
            assert_waits(begin, || next.join().unwrap().unwrap());
        });
    }
}

fn a_kept_lock_is_seen_and_can_be_forced_free(store: &Store) {
    let client = store.open(patient());
    let mutex = client.mutex("a").hold_at_least(SOON);
    drop(mutex.lock().unwrap());
    assert!(mutex.is_locked().unwrap());
    let timed_out = mutex.clone().wait(ms(30)).lock();
    assert!(matches!(timed_out, Err(Error::Timeout { .. })), "{timed_out:?}");
    assert!(mutex.force_unlock().unwrap());
    assert!(!mutex.is_locked().unwrap() && mutex.holder().unwrap().is_none());
    assert!(!mutex.force_unlock().unwrap());
    unlock(take(&client, "a"));
}

fn a_lock_that_was_held_long_enough_is_free_at_once(store: &Store) {
    let client = store.open(patient());
    let guard = client.mutex("a").hold_at_least(ms(50)).lock().unwrap();
    let begin = Instant::now();
    eventually(SOON, || begin.elapsed() > ms(100));
    drop(guard);
    unlock(take(&client, "a"));
    drop(client.mutex("a").hold_at_least(Duration::ZERO).lock().unwrap());
    unlock(take(&client, "a"));
}

fn a_lock_may_stay_taken_for_longer_than_its_lease(store: &Store) {
    let lease = ms(600);
    let client = store.open_for(lease, patient());
    let begin = Instant::now();
    let guard = keeping(&client, "a").lease(lease).lock().unwrap();
    unlock(guard);
    assert_taken(&client, "a");
    eventually(SOON, || client.try_lock("a").unwrap().is_some());
    assert!(begin.elapsed() >= KEPT);
}

fn a_lock_that_was_lost_is_not_kept(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let mutex = client.mutex("a").lease(SHORT).renew(false).hold_at_least(SOON * 10);
    let guard = mutex.lock().unwrap();
    assert_eq!(guard.lost().wait(), HoldEnd::Lost);
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    unlock(client.lock("a").unwrap());
}

fn the_outermost_lock_decides_how_long_the_lock_stays_taken(store: &Store) {
    let client = store.open(patient());
    let outer = take(&client, "a");
    let inner = keeping(&client, "a").lock().unwrap();
    assert_eq!(inner.depth(), 2);
    drop(outer);
    drop(inner);
    unlock(take(&client, "a"));

    let outer = keeping(&client, "a").lock().unwrap();
    let inner = take(&client, "a");
    drop(outer);
    assert!(elsewhere(|| client.try_lock("a").unwrap().is_none()));
    assert_eq!(client.mutex("a").holder().unwrap().expect("it is held").depth, 1);
    drop(inner);
    assert_taken(&client, "a");
}

/// Tries for the lock on a machine whose clock is `late`. Returns `true` if this machine should run
/// the job.
fn runs_the_job(client: &Client, late: Duration) -> bool {
    thread::sleep(late);
    client.mutex("job").hold_at_least(SOON).try_with(|_| ()).unwrap().is_some()
}

fn one_of_many_threads_runs_a_job(store: &Store) {
    let client = store.open(patient());
    let ran = thread::scope(|scope| {
        let client = &client;
        let machine = |number| scope.spawn(move || runs_the_job(client, ms(20) * number));
        let machines: Vec<_> = (0..8).map(machine).collect();
        machines.into_iter().map(|machine| machine.join().unwrap()).filter(|ran| *ran).count()
    });
    assert_eq!(ran, 1);
}

fn a_time_that_makes_no_sense_is_refused(store: &Store) {
    let client = store.open(hasty());
    let refused = |mutex: Mutex| {
        let errors = [
            mutex.lock().map(drop).unwrap_err(),
            mutex.try_lock().map(drop).unwrap_err(),
            mutex.lock_owned().map(drop).unwrap_err(),
        ];
        errors.iter().all(|error| matches!(error, Error::InvalidInput(_)))
    };
    let year = Duration::from_secs(365 * 24 * 60 * 60);
    let mutex = client.mutex("a");
    assert!(refused(mutex.clone().hold_at_least(year + ms(1))));
    assert!(refused(mutex.clone().hold_at_least(Duration::MAX)));
    assert!(refused(mutex.clone().hold_at_least(KEPT).max_hold(KEPT / 2)));
    assert!(!mutex.is_locked().unwrap());
    unlock(mutex.clone().hold_at_least(KEPT).max_hold(KEPT).lock().unwrap());
    unlock(client.mutex("b").hold_at_least(year).lock().unwrap());
    assert!(client.mutex("b").force_unlock().unwrap());
}

fn a_waiting_client_gets_a_kept_lock_when_its_time_ends(store: &Store) {
    // A sleepy client makes no attempt by itself.
    waits_in_another_client(sleepy(), |builder| store.open(builder));
}

#[test]
fn a_waiting_client_gets_a_kept_lock_of_a_quorum_when_its_time_ends() {
    let quorum = Quorum::of(3);
    waits_in_another_client(patient(), |builder| quorum.open(builder));
}

/// A waiting client that has seen when the lease ends learns until when the lock stays taken.
fn waits_in_another_client(waiting: Builder, open: impl Fn(Builder) -> Client) {
    let recorder = Recorder::default();
    let (client, other) = (open(patient()), open(waiting.on_event(recorder.listener())));
    for (name, drops) in [("a", true), ("b", false)] {
        let begin = Instant::now();
        let guard = keeping(&client, name).lock().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| other.lock(name).map(unlock));
            recorder.wait_for(&format!("contended {name}"));
            release(guard, drops);
            assert_waits(begin, || waits.join().unwrap().unwrap());
        });
    }
}

fn a_kept_lock_is_the_hold_with_depth_zero(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let mutex = client.mutex("a").hold_at_least(LEASE * 3);
    let guard = mutex.lock().unwrap();
    let (owner, _) = server.hold("a");
    // A renewal may be on its way.
    throughout(LEASE / 2, || guard.is_held());
    unlock(guard);
    let left = server.pttl("a");
    assert!(left > LEASE && left <= LEASE * 3, "{left:?}");
    throughout(LEASE, || server.hold("a") == (owner.clone(), "0".into()));
    let now = server.pttl("a");
    assert!(now + LEASE <= left, "it is not renewed: {now:?}");
    assert!(server.open(patient()).mutex("a").force_unlock().unwrap());
    assert!(!server.exists("a"));
}

fn a_shutdown_keeps_a_lock(server: &Server) {
    let (client, other) = (server.open(patient()), server.open(patient()));
    let kept = client.mutex("a").hold_at_least(SOON).lock().unwrap();
    let usual = take(&client, "b");
    client.shutdown(SOON).unwrap();
    assert_eq!(server.hold("a").1, "0");
    assert!(server.pttl("a") <= SOON);
    assert!(other.try_lock("a").unwrap().is_none());
    unlock(take(&other, "b"));
    unlock(kept);
    unlock(usual);
    assert!(other.try_lock("a").unwrap().is_none());
}

/// The child of the tests below: takes `a`, which then stays taken for longer than the tests last,
/// and follows its orders.
#[test]
#[ignore = "a child of the tests of hold_at_least"]
fn keep_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient().lease(LEASE));
    let guard = client.mutex("a").hold_at_least(LEASE * 100).lock().unwrap();
    child::report("holds");
    child::wait_for_parent();
    drop(guard);
    exit(0);
}

fn a_holder_that_crashes_keeps_nothing(server: &Server) {
    let mut child = Child::start(keep_in_a_child, &server.address());
    assert_eq!(child.next(), "holds");
    child.kill();
    unlock(server.open(patient()).lock("a").unwrap());
}

fn a_lock_stays_taken_when_its_process_ends(server: &Server) {
    let mut child = Child::start(keep_in_a_child, &server.address());
    assert_eq!(child.next(), "holds");
    child.go_on();
    child.finish();
    let client = server.open(patient());
    throughout(LEASE + SHORT, || client.try_lock("a").unwrap().is_none());
    assert_eq!(client.mutex("a").holder().unwrap().expect("it is kept").depth, 0);
}

/// The child of the test below: a machine with a clock of its own.
#[test]
#[ignore = "a child of one_of_many_processes_runs_a_job"]
fn run_a_job_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient());
    child::report("is ready");
    let late = child::line();
    child::report(runs_the_job(&client, ms(late.parse().unwrap())));
}

fn one_of_many_processes_runs_a_job(server: &Server) {
    let address = server.address();
    let mut machines: Vec<_> =
        (0..3).map(|_| Child::start(run_a_job_in_a_child, &address)).collect();
    for machine in &machines {
        assert_eq!(machine.next(), "is ready");
    }
    for (machine, late) in machines.iter_mut().zip([200, 0, 100]) {
        machine.tell(late);
    }
    let ran: Vec<_> = machines.iter().map(Child::next).collect();
    assert_eq!(ran.iter().filter(|ran| *ran == "true").count(), 1, "{ran:?}");
    machines.into_iter().for_each(Child::finish);
}

fn a_failed_release_keeps_the_lock(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    for (number, lose) in [Proxy::lose_reply, Proxy::lose_request].into_iter().enumerate() {
        for drops in [true, false] {
            let name = format!("{number} {drops}");
            let guard = client.mutex(&name).hold_at_least(SOON).lock().unwrap();
            lose(&proxy);
            release(guard, drops);
            eventually(SOON, || server.hold(&name).1 == "0");
            assert!(proxy.has_lost());
            assert!(client.try_lock(&name).unwrap().is_none());
            assert!(server.pttl(&name) <= SOON);
        }
    }
    server.command(&["SCRIPT", "FLUSH"]);
    drop(client.mutex("flushed").hold_at_least(SOON).lock().unwrap());
    assert!(client.try_lock("flushed").unwrap().is_none());
    assert_eq!(server.hold("flushed").1, "0");
}

fn every_request_for_a_kept_lock_may_be_executed_twice(server: &Server) {
    let proxy = Proxy::before(server);
    let client = server.through(proxy.port()).open(sleepy());
    proxy.duplicate_scripts();
    for drops in [true, false] {
        let begin = Instant::now();
        let guard = keeping(&client, "a").lock().unwrap();
        let fence = guard.fence();
        release(guard, drops);
        assert_waits(begin, || {
            let guard = client.lock("a").unwrap();
            assert!(guard.fence() > fence);
            unlock(guard);
        });
    }
    assert!(!server.exists("a"));
}

fn a_client_that_is_far_away_gets_its_turns(server: &Server) {
    let proxy = Proxy::before(server);
    let (near, far) = (server.open(patient()), server.through(proxy.port()).open(patient()));
    proxy.delay_replies(ms(10));
    assert_turns_are_taken([near, far]);
}

#[test]
fn clients_of_a_quorum_take_turns() {
    let quorum = Quorum::of(3);
    assert_turns_are_taken([(); 3].map(|()| quorum.open(patient())));
}

/// Clients lock again as soon as they have released, while the lock still stays taken, so that it
/// is offered to none of them.
fn assert_turns_are_taken<const N: usize>(clients: [Client; N]) {
    let end = Instant::now() + ms(3000);
    let turns = |client: &Client| {
        let mutex = client.mutex("a").hold_at_least(ms(50));
        let mut turns = 0;
        while Instant::now() < end {
            drop(mutex.lock().unwrap());
            turns += 1;
        }
        turns
    };
    let turns = thread::scope(|scope| {
        let clients = clients.each_ref().map(|client| scope.spawn(|| turns(client)));
        clients.map(|turns| turns.join().unwrap())
    });
    let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
    assert!(least * 2 >= *most, "{turns:?}");
}
