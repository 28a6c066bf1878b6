//! A command whose lock is lost.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Running, SOON, Server, client, full_pipe, leasehold, output};

/// Starts a command that is a script, and waits until it is ready.
fn run(server: &Server, options: &[&str], script: &str) -> Running {
    let args = [&["run", "--lease", "3s"], options, &["a", "--", "sh", "-c", script]].concat();
    let running = Running::start(&mut leasehold(server, &args));
    assert_eq!(running.next(), "ready");
    running
}

#[test]
fn a_lost_lock_ends_the_command_whatever_it_answers() {
    let server = Server::redis();
    for options in [&[][..], &["--shared"], &["--exclusive"], &["--permits", "1"]] {
        let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
        let mut running = run(&server, options, script);
        server.command(&["DEL", "lock:a"]);
        assert_eq!(running.next(), "told", "{options:?}");
        assert_eq!(running.code(), 70, "{options:?}");
        let errors = running.errors();
        let why = "is lost, because the server does not know it any more";
        assert!(errors.contains(why), "{options:?}: {errors}");
    }
}

#[test]
fn a_command_that_does_not_end_is_killed_with_all_that_it_has_started() {
    let server = Server::redis();
    let script = "trap '' TERM; sh -c 'while :; do sleep 1; done' & echo ready; wait; sleep 60";
    let mut running = run(&server, &["--kill-after", "200ms"], script);
    server.command(&["FLUSHALL"]);
    running.wait_for_end_of_output();
    assert_eq!(running.code(), 70);
}

#[test]
fn what_outlives_the_command_is_killed() {
    let server = Server::redis();
    let script = "(trap '' TERM; while :; do sleep 1; done) & echo ready; wait";
    let mut running = run(&server, &["--kill-after", "200ms"], script);
    server.command(&["DEL", "lock:a"]);
    running.wait_for_end_of_output();
    assert_eq!(running.code(), 70);
}

#[test]
fn a_loss_that_is_found_at_the_end_is_the_status() {
    let server = Server::redis();
    let script = "echo ready; read line; exit 0";
    let args = ["run", "--lease", "1h", "a", "--", "sh", "-c", script];
    let mut running = Running::start(leasehold(&server, &args).stdin(Stdio::piped()));
    assert_eq!(running.next(), "ready");
    server.command(&["DEL", "lock:a"]);
    running.close_input();
    assert_eq!(running.code(), 70);
}

#[test]
fn a_command_is_told_to_end_before_a_lease_that_is_not_renewed() {
    let server = Server::redis();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let args = ["run", "--lease", "6s", "a", "--", "sh", "-c", script];
    let mut running = Running::start(&mut leasehold(&server, &args));
    assert_eq!(running.next(), "ready");
    let stopped = Instant::now();
    server.stop();
    assert_eq!(running.next(), "told");
    // The last renewal was sent before that, and a third of the lease is left for the command.
    let took = stopped.elapsed();
    assert!(took > Duration::from_secs(1) && took < Duration::from_millis(5500), "{took:?}");
    assert_eq!(running.code(), 70);
    assert!(running.errors().contains("could not be renewed"));
    server.cont();
}

#[test]
fn a_program_that_was_stopped_for_too_long_ends_the_command() {
    let server = Server::redis();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = run(&server, &[], script);
    running.signal(Signal::STOP);
    let guard = client(&server).lock("a").unwrap();
    running.signal(Signal::CONT);
    assert_eq!(running.next(), "told");
    assert_eq!(running.code(), 70);
    guard.verify().unwrap();
}

#[test]
fn a_lost_lock_ends_the_command_though_no_process_reads_the_message() {
    let server = Server::redis();
    let script = "exec 2>/dev/null; trap 'echo told; exit 0' TERM
        echo ready; while :; do sleep 0.02; done";
    let args = ["run", "--lease", "3s", "a", "--", "sh", "-c", script];
    let (reader, writer) = full_pipe();
    let mut command = leasehold(&server, &args);
    let mut running = Running::spawn(command.stdout(Stdio::piped()).stderr(writer));
    assert_eq!(running.next(), "ready");
    server.command(&["DEL", "lock:a"]);
    assert_eq!(running.next(), "told");
    assert_eq!(running.code(), 70, "it does not wait until its message is read");
    drop(reader);
}

#[test]
fn a_forced_end_is_told_at_once_with_what_happens_now() {
    let server = Server::redis();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    for options in [&[][..], &["--shared"], &["--exclusive"], &["--permits", "1"]] {
        // The next renewal comes much later.
        let args = [&["run", "--lease", "1h"], options, &["a", "--", "sh", "-c", script]].concat();
        let mut running = Running::start(&mut leasehold(&server, &args));
        assert_eq!(running.next(), "ready");
        let listens = || server.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len() == 1;
        crate::support::eventually(listens);
        let begin = Instant::now();
        output(&mut leasehold(&server, &["unlock", "a"]));
        assert_eq!(running.next(), "told", "{options:?}");
        assert!(begin.elapsed() < SOON);
        assert_eq!(running.code(), 70, "{options:?}");
        let errors = running.errors();
        let expected = "lock \"a\" was ended by an operator: SIGTERM now, SIGKILL in 5 s";
        assert!(errors.contains(expected), "{errors}");
    }
}
