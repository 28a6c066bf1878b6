//! Processes that are killed, aborted, stopped, interrupted by signals or forked.

#[cfg(unix)]
use std::{
    process::exit,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold::Error;
#[cfg(unix)]
use {
    fork::{Fork, fork},
    leasehold::{Canceller, Client, Guard, HoldEnd, OwnedGuard, Ticket},
    rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};

use crate::support::child::{self, Child};
use crate::support::{LEASE, SOON, Server, ms, patient, stores, throughout, timed};
#[cfg(unix)]
use crate::support::{elsewhere, eventually, is_busy, take};

stores! {
    every server:
        a_waiter_takes_over_when_the_holder_is_killed,
        a_process_that_aborts_leaves_its_lock_to_its_lease,
        #[cfg(unix)] signals_neither_break_nor_stretch_a_wait,
        #[cfg(unix)] a_process_that_was_stopped_too_long_has_lost_its_hold,
        #[cfg(unix)] a_process_that_was_stopped_too_long_recreates_nothing,
        #[cfg(unix)] a_forked_child_can_do_no_harm,
        #[cfg(unix)] a_forked_child_has_no_kept_lock;
    one server:
        #[cfg(unix)] a_fork_of_a_busy_process_can_be_closed;
}

/// The child of the tests below: holds `a`, waits for its parent and reports the end of the hold.
#[test]
#[ignore = "a child of the tests of processes"]
fn hold_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient().lease(LEASE));
    let guard = client.lock("a").unwrap();
    child::report(guard.fence());
    child::wait_for_parent();
    child::report(guard.is_held());
    child::report(is_lost(client.try_lock("a")));
    child::report(is_lost(guard.unlock()));
}

fn is_lost<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Lost { .. }))
}

fn start_holder(server: &Server) -> (Child, u64) {
    let child = Child::start(hold_in_a_child, &server.address());
    let fence = child.next().parse().unwrap();
    (child, fence)
}

fn a_waiter_takes_over_when_the_holder_is_killed(server: &Server) {
    let client = server.open(patient());
    let (mut child, fence) = start_holder(server);
    throughout(2 * LEASE, || client.try_lock("a").unwrap().is_none());
    child.kill();
    let left = server.pttl("a");
    let (guard, took) = timed(|| client.lock("a").unwrap());
    assert!(took + ms(10) >= left, "{took:?} of {left:?} that were left");
    assert!(took < left + SOON / 2, "{took:?} of {left:?} that were left");
    assert!(guard.fence() > fence);
}

fn a_process_that_aborts_leaves_its_lock_to_its_lease(server: &Server) {
    let child = Child::start(abort_in_a_child, &server.address());
    assert_eq!(child.next(), "holds");
    let (guard, took) = timed(|| server.open(patient()).lock("a").unwrap());
    assert!(took < LEASE + SOON / 2, "{took:?}");
    assert_eq!(guard.depth(), 1);
}

#[test]
#[ignore = "a child of a_process_that_aborts_leaves_its_lock_to_its_lease"]
fn abort_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient().lease(LEASE));
    let _guard = client.lock("a").unwrap();
    child::report("holds");
    std::process::abort();
}

#[cfg(unix)]
fn signals_neither_break_nor_stretch_a_wait(server: &Server) {
    let client = server.open(patient());
    let _guard = take(&client, "a");
    let mut child = Child::start(wait_in_a_child, &server.address());
    assert_eq!(child.next(), "ready");
    child.go_on();
    // Stopping and continuing interrupts system calls, as other signals do.
    for _ in 0..300 {
        child.stop();
        child.cont();
        std::thread::sleep(ms(5));
    }
    assert_eq!(child.next(), "Ok(false)");
    let took = ms(child.next().parse().unwrap());
    assert!(took >= ms(1000) && took < SOON / 2, "{took:?}");
    child.finish();
}

#[cfg(unix)]
#[test]
#[ignore = "a child of signals_neither_break_nor_stretch_a_wait"]
fn wait_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(Client::builder().backoff(ms(1), ms(20)));
    child::report("ready");
    child::wait_for_parent();
    let (result, took) = timed(|| client.try_lock_for("a", ms(1000)).map(|held| held.is_some()));
    child::report(format_args!("{result:?}"));
    child::report(took.as_millis());
}

#[cfg(unix)]
fn a_process_that_was_stopped_too_long_has_lost_its_hold(server: &Server) {
    let client = server.open(patient());
    let (mut child, fence) = start_holder(server);
    child.stop();
    let guard = client.lock("a").unwrap();
    assert!(guard.fence() > fence);
    let hold = server.hold("a");
    child.cont();
    child.go_on();
    assert_eq!(child.next(), "false", "is held");
    assert_eq!(child.next(), "true", "a nested lock is lost");
    assert_eq!(child.next(), "true", "the release is lost");
    child.finish();
    assert_eq!(server.hold("a"), hold);
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

#[cfg(unix)]
fn a_process_that_was_stopped_too_long_recreates_nothing(server: &Server) {
    let (mut child, _fence) = start_holder(server);
    child.stop();
    eventually(SOON, || !server.exists("a"));
    child.cont();
    throughout(LEASE, || !server.exists("a"));
    child.go_on();
    assert_eq!(child.next(), "false", "is held");
    assert_eq!(child.next(), "true", "a nested lock is lost");
    assert_eq!(child.next(), "true", "the release is lost");
    assert!(!server.exists("a"));
    child.finish();
    take(&server.open(Client::builder()), "a").unlock().unwrap();
}

#[cfg(unix)]
fn a_forked_child_can_do_no_harm(server: &Server) {
    Child::start(fork_in_a_child, &server.address()).finish();
    assert!(server.hashes().is_empty());
}

/// Runs in a process of its own, because a fork copies the state of all other tests.
#[cfg(unix)]
#[test]
#[ignore = "a child of a_forked_child_can_do_no_harm"]
fn fork_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient().lease(LEASE));
    let other = address.open(patient());
    let guard = take(&client, "a");
    let inner = take(&client, "a");
    let owned = client.lock_owned("b").unwrap();
    let ticket = client.mutex("c").lease(10 * SOON).lock_owned().unwrap().detach().unwrap();
    let forked = match fork().unwrap() {
        Fork::Child => exit(harm_in_the_fork(client, guard, inner, owned, &ticket)),
        Fork::Parent(pid) => Pid::from_raw(pid).unwrap(),
    };
    let mut status = None;
    eventually(SOON, || {
        assert!(other.try_lock("a").unwrap().is_none(), "the parent holds it");
        status = waitpid(Some(forked), WaitOptions::NOHANG).unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().1.exit_status(), Some(0), "see harm_in_the_fork");

    // The connections that both processes had still match each reply to its request.
    for n in 0..100 {
        let guard = take(&client, &format!("lock {n}"));
        assert!(is_busy(&client, guard.name()));
    }
    throughout(3 * LEASE, || guard.is_held() && other.try_lock("a").unwrap().is_none());
    inner.unlock().unwrap();
    guard.verify().unwrap();
    guard.unlock().unwrap();
    owned.unlock().unwrap();
    client.adopt(&ticket).unwrap().unlock().unwrap();
    assert!(elsewhere(|| other.try_lock("a").unwrap().is_some()));
}

#[cfg(unix)]
fn a_forked_child_has_no_kept_lock(server: &Server) {
    Child::start(fork_with_a_kept_lock_in_a_child, &server.address()).finish();
    assert!(server.hashes().is_empty());
}

#[cfg(unix)]
#[test]
#[ignore = "a child of a_forked_child_has_no_kept_lock"]
fn fork_with_a_kept_lock_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient().keep(SOON));
    let other = address.open(patient());
    // The lock is not kept before the client listens.
    eventually(SOON, || {
        drop(client.lock("a").unwrap());
        client.stats().kept == 1
    });
    let last = take(&client, "a").fence();
    let forked = match fork().unwrap() {
        Fork::Child => {
            let locked = [
                client.lock("a").map(drop),
                client.try_lock("a").map(drop),
                client.lock_owned("a").map(drop),
            ];
            let is_forked = |result: &_| matches!(result, Err(Error::Forked));
            let all_are_forked = locked.iter().all(is_forked);
            // This releases nothing.
            drop(client);
            exit(i32::from(!all_are_forked));
        }
        Fork::Parent(pid) => Pid::from_raw(pid).unwrap(),
    };
    let mut status = None;
    eventually(SOON, || {
        status = waitpid(Some(forked), WaitOptions::NOHANG).unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().1.exit_status(), Some(0), "the child has locked");
    let relocks = client.stats().relocks;
    let guard = take(&client, "a");
    assert_eq!((guard.fence(), client.stats().relocks), (last + 1, relocks + 1));
    guard.verify().unwrap();
    drop(guard);
    let theirs = other.lock("a").unwrap();
    assert!(theirs.fence() > last + 1 && client.stats().recalls == 1);
    theirs.unlock().unwrap();
}

#[cfg(unix)]
fn a_fork_of_a_busy_process_can_be_closed(server: &Server) {
    Child::start(fork_while_busy_in_a_child, &server.address()).finish();
}

#[cfg(unix)]
#[test]
#[ignore = "a child of a_fork_of_a_busy_process_can_be_closed"]
fn fork_while_busy_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient());
    let (ended, canceller) = (AtomicBool::new(false), Canceller::new());
    let guard = client.lock("held").unwrap();
    let (lost, wanted) = (guard.lost(), guard.wanted());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    drop((guard.lost(), guard.wanted()));
                    drop(client.mutex("held").cancelled_by(&canceller).try_lock());
                }
            });
        }
        for worker in 0..8 {
            let (client, ended) = (client.clone(), &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    drop(client.lock(&format!("lock {}", worker / 2)).unwrap());
                }
            });
        }
        // The child lacks the threads that hold internal locks of the process at the moment of the
        // fork.
        for _ in 0..200 {
            let forked = match fork().unwrap() {
                Fork::Child => {
                    let shown = format!("{client:?} {guard:?} {lost:?} {canceller:?}");
                    assert!(shown.contains("held") && !canceller.is_cancelled());
                    assert!(client.stats().held > 0 && client.waiting_names().is_empty());
                    assert!(guard.fence() > 0 && !guard.is_held() && !wanted.is_wanted());
                    assert!(lost.is_lost() && lost.wait() == HoldEnd::Lost);
                    assert!(lost.receiver().try_recv().is_err_and(|it| it.is_disconnected()));
                    assert!(!wanted.wait_timeout(SOON));
                    assert!(matches!(client.mutex("lock 0").holder(), Err(Error::Forked)));
                    client.close();
                    assert!(client.shutdown(SOON).is_err());
                    exit(0);
                }
                Fork::Parent(pid) => Pid::from_raw(pid).unwrap(),
            };
            let ends = || waitpid(Some(forked), WaitOptions::NOHANG).unwrap().is_some();
            if !happens(SOON, ends) {
                kill_process(forked, Signal::KILL).unwrap();
                ended.store(true, Ordering::SeqCst);
                panic!("the child hangs");
            }
        }
        ended.store(true, Ordering::SeqCst);
    });
}

/// Returns `true` if it happens within that time.
#[cfg(unix)]
fn happens(within: Duration, mut happened: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if happened() {
            return true;
        }
        thread::sleep(ms(1));
    }
    false
}

/// Tries everything that a forked process must not do. The exit code names what succeeded; 0 means
/// nothing did.
#[cfg(unix)]
fn harm_in_the_fork(
    client: Client,
    guard: Guard,
    inner: Guard,
    owned: OwnedGuard,
    ticket: &Ticket,
) -> i32 {
    fn is_forked<T>(result: Result<T, Error>) -> bool {
        let what_to_do = "open a client in the child, or after becoming a daemon";
        matches!(result, Err(e @ Error::Forked) if e.to_string().ends_with(what_to_do))
    }
    let mutex = client.mutex("a");
    let refused = [
        !guard.is_held(),
        is_forked(guard.verify()),
        is_forked(client.lock("a")),
        is_forked(client.try_lock("b")),
        is_forked(client.try_lock_for("b", ms(100))),
        is_forked(mutex.force_unlock()),
        !mutex.is_held_by_current_thread(),
        is_forked(client.shutdown(ms(100))),
        is_forked(owned.detach()),
        is_forked(client.adopt(ticket)),
    ];
    // Each guard ends in a different way.
    let unlocked = inner.unlock().is_ok();
    drop(guard);
    drop(client);
    let first_failure = refused.iter().position(|refused| !refused);
    match first_failure {
        Some(index) => 1 + i32::try_from(index).unwrap_or(100),
        None if unlocked => 50,
        None => 0,
    }
}
