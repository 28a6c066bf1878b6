//! Commands that know under which lock they run, and messages of the program about its waits.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::support::{Running, Server, client, eventually, finish, leasehold, output};

/// The path of the program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// Runs a script under a lock. It finds the program as `$0`.
fn run_script(server: &Server, options: &[&str], script: &str) -> Command {
    let args = [&["run"], options, &["a", "--", "sh", "-c", script, PROGRAM]].concat();
    leasehold(server, &args)
}

#[test]
fn a_command_checks_that_the_lock_is_held_under_which_it_was_started() {
    let server = Server::redis();
    assert_eq!(finish(&mut leasehold(&server, &["held", "a"])).code, 1);
    for options in [&[][..], &["--shared"], &["--exclusive"], &["--permits", "2"]] {
        let script = "\"$0\" held a; echo $?; \"$0\" held b; echo $?";
        assert_eq!(output(&mut run_script(&server, options, script)), "0\n1\n", "{options:?}");
    }
    // A lock that stays taken is not held.
    let script = "\"$0\" unlock a >&2; \"$0\" held a; echo $?";
    let ended = finish(&mut run_script(&server, &["--lease", "1h"], script));
    assert!(ended.stdout.starts_with("1\n") || ended.stdout.is_empty(), "{ended:?}");
    // Without a marker, no server is asked.
    let mut unreachable = leasehold(&server, &["held", "a"]);
    assert_eq!(finish(unreachable.env("REDIS_URL", "redis://127.0.0.1:1")).code, 1);
}

#[test]
fn processes_that_outlive_the_lock_do_not_hold_it() {
    let server = Server::redis();
    for options in [&[][..], &["--hold-at-least", "1h"]] {
        let script = "(read line <\"$1\"; \"$0\" held a; echo \"held: $?\") & echo started";
        let fifo = std::env::temp_dir().join(format!("leasehold-fifo-{}", std::process::id()));
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let mut command = run_script(&server, options, script);
        let mut running = Running::start(command.arg(&fifo));
        assert_eq!(running.next(), "started");
        assert_eq!(running.code(), 0);
        fs::write(&fifo, "\n").unwrap();
        assert_eq!(running.next(), "held: 1", "{options:?}");
        fs::remove_file(&fifo).unwrap();
    }
}

#[test]
fn a_script_that_locks_itself_runs_once_whatever_started_it() {
    let server = Server::redis();
    let path = std::env::temp_dir().join(format!("leasehold-script-{}", std::process::id()));
    // The line of the manual, with the path of this program.
    let manual = include_str!("../../docs/program.md");
    let line = manual.lines().find(|line| line.starts_with("leasehold held report || "));
    let line = line.expect("the idiom").replace("leasehold ", &format!("'{PROGRAM}' "));
    let script = format!("#!/bin/sh\n{line}\necho \"runs with $1\"\n");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let script = || {
        let mut command = Command::new(&path);
        command.arg("it").env("REDIS_URL", server.url()).stdin(Stdio::null());
        command
    };
    assert_eq!(output(&mut script()), "runs with it\n");
    // A marker inherited from a hold that is over.
    let mut stale = script();
    stale.env("LEASEHOLD_NAME", "report").env("LEASEHOLD_CLIENT", "someone:1:00");
    assert_eq!(output(&mut stale), "runs with it\n");
    let _guard = client(&server).lock("report").unwrap();
    stale.env("LEASEHOLD_NAME", "report").env("LEASEHOLD_CLIENT", "someone:1:00");
    let refused = finish(&mut stale);
    assert_eq!((refused.code, &*refused.stdout), (75, ""), "{refused:?}");
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_command_that_would_wait_for_itself_is_an_error_at_once() {
    let server = Server::redis();
    for (outer, inner) in [
        (&[][..], "run a -- echo ran"),
        (&[], "run -n -E 0 a -- echo ran"),
        (&[], "lock a"),
        (&["--exclusive"], "run --shared a -- echo ran"),
        (&["--shared"], "run --exclusive a -- echo ran"),
        (&["--permits", "1"], "run --permits 1 a -- echo ran"),
    ] {
        let script = format!("\"$0\" {inner}; echo \"status $?\"");
        let finished = finish(&mut run_script(&server, outer, &script));
        assert_eq!((finished.code, &*finished.stdout), (0, "status 64\n"), "{outer:?} {inner}");
        assert!(finished.stderr.contains("has started this"), "{finished:?}");
    }
    for (outer, inner) in [
        (&[][..], "run b -- echo ran"),
        (&[], "run --prefix other: a -- echo ran"),
        (&["--shared"], "run --shared a -- echo ran"),
        (&["--permits", "2"], "run --permits 2 a -- echo ran"),
    ] {
        let script = format!("\"$0\" {inner}");
        assert_eq!(output(&mut run_script(&server, outer, &script)), "ran\n", "{outer:?} {inner}");
    }
}

#[test]
fn a_verbose_program_says_what_it_waits_for_without_a_terminal() {
    let server = Server::redis();
    let client = client(&server);
    let guard = client.lock("a").unwrap();
    let mut running =
        Running::start(&mut leasehold(&server, &["run", "-v", "a", "--", "echo", "ran"]));
    let said = running.next_error();
    assert!(
        said.starts_with("leasehold: waiting for lock \"a\", held by tester, since "),
        "{said}"
    );
    guard.unlock().unwrap();
    assert_eq!(running.next(), "ran");
    assert!(running.next_error().starts_with("leasehold: acquired lock \"a\" after "));
    assert!(running.next_error().starts_with("leasehold: released lock \"a\" after "));
    assert_eq!((running.code(), running.errors()), (0, String::new()));
    let guard = client.mutex("a").note("why, 4711").lock().unwrap();
    let mut running = Running::start(&mut leasehold(&server, &["run", "-v", "a", "--", "true"]));
    let said = running.next_error();
    assert!(said.contains(", held by tester (why, 4711), since "), "{said}");
    guard.unlock().unwrap();
    assert_eq!(running.code(), 0);
    // Otherwise there is no message.
    let guard = client.lock("a").unwrap();
    let mut running = Running::start(&mut leasehold(&server, &["run", "a", "--", "echo", "ran"]));
    eventually(|| !client.survey().report("a").unwrap().waiting.is_empty());
    std::thread::sleep(std::time::Duration::from_millis(1500));
    guard.unlock().unwrap();
    assert_eq!((running.code(), running.errors()), (0, String::new()));
}
