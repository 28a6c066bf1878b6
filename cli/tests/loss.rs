//! A command whose lock is lost.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{
    Running, SOON, Server, client, eventually, finish, full_pipe, leasehold, output,
};

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
fn processes_that_outlive_the_command_are_killed() {
    let server = Server::redis();
    let script = "(trap '' TERM; while :; do sleep 1; done) & echo ready; wait";
    let mut running = run(&server, &["--kill-after", "200ms"], script);
    server.command(&["DEL", "lock:a"]);
    running.wait_for_end_of_output();
    assert_eq!(running.code(), 70);
}

#[test]
fn a_loss_found_at_the_end_is_the_exit_status() {
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
    let args = ["run", "--lease", "9s", "a", "--", "sh", "-c", script];
    let mut running = Running::start(&mut leasehold(&server, &args));
    assert_eq!(running.next(), "ready");
    let stopped = Instant::now();
    server.stop();
    assert_eq!(running.next(), "told");
    // The last renewal was sent before that, and a third of the lease is left for the command.
    let took = stopped.elapsed();
    assert!(took > Duration::from_secs(1) && took < Duration::from_millis(8500), "{took:?}");
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

/// Pauses the program until this many milliseconds of its lease are left.
fn pause(server: &Server, running: &Running, signal: Signal, left: i64) {
    running.signal(signal);
    eventually(|| server.ask::<i64>(&["PTTL", "lock:a"]) <= left);
}

#[test]
fn a_pause_that_is_shorter_than_the_lease_does_not_end_the_command() {
    let server = Server::redis();
    for signal in [Signal::STOP, Signal::TSTP] {
        let script = "trap 'echo told' TERM; echo ready; read line; exit 5";
        let args = ["run", "--lease", "9s", "a", "--", "sh", "-c", script];
        let mut running = Running::start(leasehold(&server, &args).stdin(Stdio::piped()));
        assert_eq!(running.next(), "ready");
        // The command would be told to end when a third is left.
        pause(&server, &running, signal, 2500);
        running.signal(Signal::CONT);
        eventually(|| server.ask::<i64>(&["PTTL", "lock:a"]) > 4500);
        running.close_input();
        assert_eq!((running.code(), running.rest()), (5, String::new()), "{signal:?}");
    }
}

#[test]
fn a_server_that_hangs_after_a_pause_delays_the_end_for_half_of_what_is_left() {
    let server = Server::redis();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let args = ["run", "--lease", "20s", "a", "--", "sh", "-c", script];
    let mut running = Running::start(&mut leasehold(&server, &args));
    assert_eq!(running.next(), "ready");
    pause(&server, &running, Signal::STOP, 6500);
    let paused = Instant::now();
    server.stop();
    running.signal(Signal::CONT);
    assert_eq!(running.next(), "told");
    assert!(paused.elapsed() < Duration::from_millis(6400), "{:?}", paused.elapsed());
    assert_eq!(running.code(), 70);
    server.cont();
}

#[test]
fn an_age_limit_that_ends_the_command_is_reported() {
    let server = Server::redis();
    for options in [&[][..], &["--shared"], &["--permits", "1"]] {
        let args = [&["run"], options, &["a", "--", "sleep", "60"]].concat();
        let url = format!("{}?lease=3s&max_hold=4s", server.url());
        let begin = Instant::now();
        let finished = finish(leasehold(&server, &args).env("REDIS_URL", url));
        assert_eq!(finished.code, 70, "{finished:?}");
        assert!(finished.stderr.contains("lock \"a\" reaches its age limit: SIGTERM now"));
        assert!(begin.elapsed() > Duration::from_secs(2), "{:?}", begin.elapsed());
    }
}

/// The command is started by a program that gives it all rights, as sudo(8) does.
#[cfg(target_os = "linux")]
#[test]
fn a_command_with_more_rights_is_reported_as_still_running() {
    use std::os::unix::fs::PermissionsExt;
    use std::{env, fs, process};

    let place = env::temp_dir().join(format!("leasehold-rights-{}", process::id()));
    fs::create_dir(&place).unwrap();
    let copy = |name: &str, from: &str| {
        let path = place.join(name);
        fs::copy(from, &path).map(|_| path.to_str().expect("UTF-8").to_owned())
    };
    let set_user = "/usr/bin/setpriv";
    let program = copy("leasehold", env!("CARGO_BIN_EXE_leasehold")).unwrap();
    let sudo = copy("sudo", set_user).unwrap_or_default();
    let drop_rights = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let as_root = ["--reuid", "0", "--regid", "0", "--clear-groups"];
    let can_test = rustix::process::geteuid().is_root()
        && fs::set_permissions(&sudo, fs::Permissions::from_mode(0o4755)).is_ok()
        && fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).is_ok()
        && Command::new(set_user)
            .args(drop_rights)
            .arg(&sudo)
            .args(as_root)
            .arg("true")
            .status()
            .is_ok_and(|status| status.success());
    if can_test {
        let server = Server::redis();
        let script = "echo ready; read line; echo ended";
        let mut command = Command::new(set_user);
        command.args(drop_rights).arg(&program).args(["run", "--lease", "1h", "a", "--", &sudo]);
        command.args(as_root).args(["sh", "-c", script]).env("REDIS_URL", server.url());
        let mut running = Running::start(command.stdin(Stdio::piped()));
        assert_eq!(running.next(), "ready");
        running.signal(Signal::USR1);
        let errors = [running.next_error()];
        assert!(errors[0].contains("cannot send SIGUSR1 to the command"), "{errors:?}");
        let listens = || server.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len() == 1;
        eventually(listens);
        output(&mut leasehold(&server, &["unlock", "a"]));
        assert_eq!(running.code(), 71, "at once");
        let errors = [running.next_error(), running.next_error()];
        assert!(errors[0].ends_with("lock \"a\" was ended by an operator"), "{errors:?}");
        assert!(errors[1].contains("cannot end the command"), "{errors:?}");
        running.close_input();
        assert_eq!(running.next(), "ended");
    } else {
        eprintln!("skipped: this system gives no process the rights of another user");
    }
    fs::remove_dir_all(&place).unwrap();
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
fn a_forced_end_is_reported_at_once_with_the_next_step() {
    let server = Server::redis();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    for options in [&[][..], &["--shared"], &["--exclusive"], &["--permits", "1"]] {
        // The next renewal comes much later.
        let args = [&["run", "--lease", "1h"], options, &["a", "--", "sh", "-c", script]].concat();
        let mut running = Running::start(&mut leasehold(&server, &args));
        assert_eq!(running.next(), "ready");
        let listens = || server.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len() == 1;
        eventually(listens);
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
