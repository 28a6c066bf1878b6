//! `lock`, `renew` and `release`.

use std::env;
use std::fs::{self, File};
use std::io::{Seek, Write};
#[cfg(unix)]
use std::process::Command;
use std::process::{self, Stdio};

use leasehold::Ticket;
#[cfg(unix)]
use rustix::process::Signal;

use crate::support::{
    Running, Server, client, eventually, finish, json, leasehold, output, without_server,
};

/// Acquires a lock, and returns its ticket.
fn lock(server: &Server, args: &[&str]) -> String {
    let printed = output(leasehold(server, &["lock"]).args(args));
    let ticket = printed.strip_suffix('\n').expect("a line");
    assert!(ticket.bytes().all(|byte| byte.is_ascii_graphic()), "{ticket}");
    ticket.to_owned()
}

#[test]
fn a_script_holds_a_lock_by_its_ticket() {
    let server = Server::redis();
    let client = client(&server);
    let ticket = lock(&server, &["--lease", "1m", "--label", "deploy 7", "a lock"]);
    let holder = client.mutex("a lock").holder().unwrap().expect("it is held");
    assert_eq!(holder.label, "deploy 7");
    assert!(client.try_lock("a lock").unwrap().is_none());
    let pttl = || server.ask::<u64>(&["PTTL", "lock:a lock"]);
    assert!(pttl() > 30_000);
    server.command(&["PEXPIRE", "lock:a lock", "20000"]);
    assert_eq!(output(&mut leasehold(&server, &["renew", &ticket])), "");
    assert!(pttl() > 30_000, "for the whole lease");
    assert_eq!(output(&mut leasehold(&server, &["release", &ticket])), "");
    assert!(client.try_lock("a lock").unwrap().is_some());
}

#[test]
fn a_ticket_of_the_program_is_one_of_the_library() {
    let server = Server::redis();
    let shown = json(&mut leasehold(&server, &["--json", "lock", "a"]));
    let ticket: Ticket = shown["ticket"].as_str().unwrap().parse().unwrap();
    assert_eq!(
        (shown["name"].as_str(), shown["fence"].as_u64()),
        (Some("a"), Some(ticket.fence()))
    );
    let guard = client(&server).adopt(&ticket).unwrap();
    let ticket = guard.detach().unwrap().to_string();
    assert_eq!(output(&mut leasehold(&server, &["release", &ticket])), "");
}

#[test]
fn a_ticket_may_come_from_stdin() {
    let server = Server::redis();
    let ticket = lock(&server, &["a"]);
    for task in ["renew", "release"] {
        let mut process = Running::start(leasehold(&server, &[task, "-"]).stdin(Stdio::piped()));
        process.write(&format!("{ticket}\n"));
        process.close_input();
        assert_eq!(process.code(), 0, "{task}");
    }
    assert!(!server.ask::<bool>(&["EXISTS", "lock:a"]));
}

#[test]
fn a_renewal_that_is_refused_releases_nothing_and_a_release_prolongs_nothing() {
    let server = Server::redis();
    let pttl = || server.ask::<u64>(&["PTTL", "lock:a"]);
    let ticket = lock(&server, &["--lease", "10m", "a"]);
    // Only one request of a call succeeds.
    let user = ["ACL", "SETUSER", "once", "on", ">sesame", "~*", "&*", "+@all"];
    let url = server.url().replace("//", "//once:sesame@");
    for (task, denied) in [("renew", "-hdel"), ("release", "-pexpire")] {
        server.command(&[&user[..], &[denied]].concat());
        server.command(&["PEXPIRE", "lock:a", "300000"]);
        let finished = finish(leasehold(&server, &[task, &ticket]).env("REDIS_URL", &url));
        match task {
            "renew" => assert!(pttl() > 300_000, "{finished:?}"),
            _ => assert!(!server.ask::<bool>(&["EXISTS", "lock:a"]), "{finished:?}"),
        }
        assert_eq!((finished.code, &*finished.stderr), (0, ""), "{task}");
    }
    let ticket = lock(&server, &["--lease", "10m", "a"]);
    for (task, denied) in [("renew", "-pexpire"), ("release", "-hdel")] {
        server.command(&[&user[..], &[denied]].concat());
        server.command(&["PEXPIRE", "lock:a", "300000"]);
        let finished = finish(leasehold(&server, &[task, &ticket]).env("REDIS_URL", &url));
        assert_eq!(finished.code, 77, "{task}: {finished:?}");
        assert!((200_000..=300_000).contains(&pttl()), "{task}");
    }
}

#[test]
fn an_ended_hold_exits_with_70() {
    let server = Server::redis();
    let ticket = lock(&server, &["a"]);
    output(&mut leasehold(&server, &["unlock", "a"]));
    let next = lock(&server, &["a"]);
    for task in ["renew", "release"] {
        let finished = finish(&mut leasehold(&server, &[task, &ticket]));
        assert_eq!((finished.code, &*finished.stdout), (70, ""), "{finished:?}");
        assert!(finished.stderr.contains("was lost"), "{finished:?}");
    }
    assert_eq!(output(&mut leasehold(&server, &["renew", &next])), "");
}

#[test]
fn held_locks_exit_with_75_and_unreachable_servers_with_69() {
    let server = Server::redis();
    let ticket = lock(&server, &["a"]);
    for options in [&["-n"][..], &["--wait", "100ms"]] {
        let finished = finish(leasehold(&server, &["lock"]).args(options).arg("a"));
        assert_eq!((finished.code, &*finished.stdout), (75, ""), "{finished:?}");
    }
    let url = "redis://127.0.0.1:1";
    for args in [&["lock", "-n", "b"][..], &["renew", &ticket], &["release", &ticket]] {
        let finished = finish(leasehold(&server, args).env("REDIS_URL", url));
        assert_eq!((finished.code, &*finished.stdout), (69, ""), "{finished:?}");
    }
}

#[test]
fn a_ticket_of_another_prefix_exits_with_64_and_is_not_repeated() {
    let server = Server::redis();
    let ticket = lock(&server, &["a"]);
    let broken = &ticket[..ticket.len() - 1];
    for args in [
        &["renew"][..],
        &["renew", ""],
        &["release", broken],
        &["release", "-"],
        &["release", &ticket, "--prefix", "other:"],
        &["lock"],
        &["lock", ""],
        &["lock", "--lease", "1ms", "a"],
        &["--json", "renew", &ticket],
    ] {
        let finished = finish(&mut leasehold(&server, args));
        assert_eq!((finished.code, &*finished.stdout), (64, ""), "{args:?}: {finished:?}");
        assert!(!finished.stderr.contains(&broken[30..]), "{finished:?}");
    }
    assert_eq!(finish(&mut without_server(&["release", &ticket])).code, 64);
    assert_eq!(output(&mut leasehold(&server, &["release", &ticket])), "");
}

#[test]
fn input_without_a_ticket_exits_with_64_and_is_not_read_to_its_end() {
    let server = Server::redis();
    for byte in [b'a', 0xff] {
        let path = env::temp_dir().join(format!("leasehold-input-{}-{byte}", process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(&vec![byte; 4 << 20]).unwrap();
        file.rewind().unwrap();
        let input = file.try_clone().unwrap();
        let finished = finish(leasehold(&server, &["release", "-"]).stdin(input));
        assert_eq!((finished.code, &*finished.stdout), (64, ""), "{finished:?}");
        assert!(finished.stderr.len() < 1000, "{finished:?}");
        // The two descriptors share one position.
        assert!(file.stream_position().unwrap() <= 2 << 20);
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_wait_for_a_ticket() {
    let server = Server::redis();
    let client = client(&server);
    let guard = client.lock("a").unwrap();
    let mut process = Running::start(&mut leasehold(&server, &["lock", "a"]));
    eventually(|| !client.survey().report("a").unwrap().waiting.is_empty());
    process.signal(Signal::TERM);
    assert_eq!(process.ending_signal(), 15);
    guard.unlock().unwrap();
    assert!(client.try_lock("a").unwrap().is_some());
}

#[cfg(unix)]
#[test]
fn a_ticket_for_an_unwritable_stdout_leaves_no_lock() {
    let server = Server::redis();
    for option in [&[][..], &["--json"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let read_only = File::open("/dev/null").unwrap();
        for stdout in [full, read_only] {
            let mut command = leasehold(&server, &["lock", "a"]);
            let output = command.args(option).stdout(stdout).output().unwrap();
            assert_eq!(output.status.code(), Some(71), "{output:?}");
            assert!(!server.ask::<bool>(&["EXISTS", "lock:a"]), "{output:?}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_closed_stdout_is_an_error_before_the_lock_is_acquired() {
    let server = Server::redis();
    let run = |script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(env!("CARGO_BIN_EXE_leasehold"));
        finish(shell.env("REDIS_URL", server.url()).stdin(Stdio::null()))
    };
    for option in ["", "--json"] {
        let finished = run(&format!("exec \"$0\" lock {option} a >&-"));
        assert_eq!(finished.code, 71, "{finished:?}");
        assert!(finished.stderr.contains("cannot write to stdout: it is closed"), "{finished:?}");
        assert!(!server.ask::<bool>(&["EXISTS", "lock:a"]), "{finished:?}");
    }
    // This throws the ticket away on purpose.
    assert_eq!(run("exec \"$0\" lock a >/dev/null").code, 0);
    assert!(server.ask::<bool>(&["EXISTS", "lock:a"]));
}

#[test]
fn a_ticket_that_cannot_be_printed_leaves_no_lock() {
    let server = Server::redis();
    let client = client(&server);
    let guard = client.lock("a").unwrap();
    let mut command = leasehold(&server, &["lock", "a"]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(process.stdout.take());
    eventually(|| !client.survey().report("a").unwrap().waiting.is_empty());
    guard.unlock().unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(71));
    assert!(client.try_lock("a").unwrap().is_some());
}
