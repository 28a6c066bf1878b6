//! The lock, environment and options with which a command runs.

#[cfg(target_os = "linux")]
use std::fs;
#[cfg(unix)]
use std::io::Write;
#[cfg(unix)]
use std::process::Command;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

#[cfg(unix)]
use rustix::process::Signal;

#[cfg(target_os = "linux")]
use crate::secrets::{set_password, url};
use crate::support::{
    HOLDER, Running, Server, TRUE, client, eventually, finish, json, leasehold, output,
};

/// Starts the program with a command that runs until this is dropped.
fn hold(server: &Server, options: &[&str], name: &str) -> Running {
    let args = [&["run"], options, &[name, "--"], HOLDER].concat();
    let running = Running::start(leasehold(server, &args).stdin(Stdio::piped()));
    assert_eq!(running.next(), "holds");
    running
}

fn can_run(server: &Server, options: &[&str], name: &str) -> bool {
    let args = [&["run", "-n", "-q"], options, &[name, "--"], TRUE].concat();
    match finish(&mut leasehold(server, &args)).code {
        0 => true,
        75 => false,
        code => panic!("{code}"),
    }
}

#[test]
fn a_lock_is_held_while_the_command_runs() {
    let server = Server::redis();
    let client = client(&server);
    let mut running = hold(&server, &[], "a");
    assert!(!can_run(&server, &[], "a") && can_run(&server, &[], "b"));
    assert!(client.try_lock("a").unwrap().is_none());
    let holder = client.mutex("a").holder().unwrap().unwrap();
    assert!(holder.label.ends_with(&format!(":{}", running.id())), "{:?}", holder.label);
    running.close_input();
    assert_eq!(running.code(), 1, "of `read` at the end of input");
    assert!(client.try_lock("a").unwrap().is_some());
    assert_eq!(running.errors(), "");
}

#[test]
fn a_lock_outlives_its_lease_while_the_command_runs() {
    let server = Server::redis();
    let mut running = hold(&server, &["--lease", "3s"], "a");
    thread::sleep(Duration::from_secs(7));
    running.close_input();
    assert_eq!(running.code(), 1, "of `read` at the end of input: {}", running.errors());
}

#[test]
fn a_lock_stays_taken_after_a_short_command() {
    let server = Server::redis();
    let options = ["run", "--lease", "3s", "--hold-at-least", "1h", "a", "--"];
    let args = [&options, TRUE].concat();
    assert_eq!(output(&mut leasehold(&server, &args)), "");
    assert!(!can_run(&server, &[], "a"));
    let report = json(&mut leasehold(&server, &["show", "a", "--json"]));
    assert_eq!(report["holds"][0]["depth"], 0);
    assert!(report["holds"][0]["remaining_ms"].as_u64().unwrap() > 3_000_000);
    assert!(output(&mut leasehold(&server, &["show", "a"])).contains("stays taken"));
    assert!(output(&mut leasehold(&server, &["unlock", "a"])).starts_with("ended 1 hold of a;"));
    assert!(can_run(&server, &[], "a"));
}

#[cfg(unix)]
#[test]
fn a_lock_does_not_stay_taken_if_the_command_cannot_be_run() {
    let server = Server::redis();
    let run = |command: &[&str]| {
        let args = [&["run", "-n", "--hold-at-least", "1h", "a", "--"], command].concat();
        finish(&mut leasehold(&server, &args)).code
    };
    assert_eq!(run(&["/no/such/command"]), 127);
    assert_eq!(run(&["/etc/passwd"]), 126);
    // The command was run and ended with that status itself.
    assert_eq!(run(&["sh", "-c", "exit 127"]), 127);
    assert_eq!(run(&["true"]), 75);
}

#[test]
fn a_command_waits_for_its_lock() {
    let server = Server::redis();
    let client = client(&server);
    let guard = client.lock("a").unwrap();
    let args = [&["run", "a", "--"], HOLDER].concat();
    let mut running = Running::start(&mut leasehold(&server, &args));
    let waits =
        || json(&mut leasehold(&server, &["show", "a", "--json"]))["waiting"][0].is_string();
    eventually(waits);
    guard.unlock().unwrap();
    assert_eq!(running.next(), "holds");
    assert_eq!((running.code(), running.errors().as_str()), (1, ""));
}

#[test]
fn readers_share_a_lock_and_a_writer_has_it_alone() {
    let server = Server::redis();
    let mut reader = hold(&server, &["--shared"], "a");
    assert!(can_run(&server, &["-s"], "a") && !can_run(&server, &["-x"], "a"));
    reader.close_input();
    reader.code();
    let _writer = hold(&server, &["--exclusive"], "a");
    assert!(!can_run(&server, &["-s"], "a") && !can_run(&server, &["-x"], "a"));
}

#[test]
fn permits_are_limited() {
    let server = Server::redis();
    let _one = hold(&server, &["--permits", "2"], "a");
    assert!(can_run(&server, &["--permits", "2"], "a"));
    let _other = hold(&server, &["--permits", "2"], "a");
    assert!(!can_run(&server, &["--permits", "2"], "a"));
    assert!(can_run(&server, &["--permits", "3"], "a"));
}

#[cfg(unix)]
#[test]
fn the_command_knows_the_name_and_a_fence_that_grows() {
    let server = Server::redis();
    let run = |options: &[&str]| {
        let script = "echo \"$LEASEHOLD_NAME ${LEASEHOLD_FENCE-none}\"";
        let args = [&["run"], options, &["a b", "--", "sh", "-c", script]].concat();
        let line = output(leasehold(&server, &args).env("LEASEHOLD_FENCE", "of an outer run"));
        line.strip_prefix("a b ").expect("the name").trim_end().to_owned()
    };
    let fence = |options: &[&str]| run(options).parse::<u64>().expect("a number");
    let (first, second) = (fence(&[]), fence(&[]));
    assert!(first < second);
    let writer = fence(&["--exclusive"]);
    assert!(second < writer);
    assert_eq!(fence(&["--shared"]), writer, "that of the last writer");
    assert_eq!(run(&["--permits", "1"]), "none");
}

#[test]
fn the_prefix_and_label_options_are_used() {
    let server = Server::redis();
    let options = ["--prefix", "shop:", "--label", "nightly"];
    let _holder = hold(&server, &options, "a");
    assert!(server.ask::<bool>(&["EXISTS", "shop:a"]) && can_run(&server, &[], "a"));
    let shown = json(&mut leasehold(&server, &["show", "a", "--prefix", "shop:", "--json"]));
    assert_eq!(shown["holds"][0]["label"], "nightly");
}

#[test]
fn the_command_line_overrides_the_url() {
    let server = Server::redis();
    let url = format!("{}?prefix=shop:&lease=1m&wait=0s", server.url());
    let left = |options: &[&str]| {
        let args = [&["run", "--url", &url], options, &["a", "--"], HOLDER];
        let running = Running::start(leasehold(&server, &args.concat()).stdin(Stdio::piped()));
        running.next();
        assert_eq!(finish(&mut leasehold(&server, &args.concat())).code, 75, "of the URL");
        server.ask::<u64>(&["PTTL", "shop:a"])
    };
    assert!(left(&[]) > 50_000);
    server.command(&["FLUSHALL"]);
    assert!(left(&["--lease", "10s"]) <= 10_000);
}

#[test]
fn independent_servers_are_named_by_one_url() {
    let servers = [Server::redis(), Server::redis(), Server::redis()];
    let hosts: Vec<_> =
        servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let url = format!("redis+redlock://{}", hosts.join(","));
    let with_url = |args: &[&str]| {
        let mut command = leasehold(&servers[0], args);
        command.env("REDIS_URL", &url);
        command
    };
    let held = [&["run", "a", "--"], HOLDER].concat();
    let mut running = Running::start(with_url(&held).stdin(Stdio::piped()));
    assert_eq!(running.next(), "holds");
    servers[2].kill();
    assert_eq!(finish(&mut with_url(&["run", "-n", "a", "--", "true"])).code, 75);
    assert_eq!(json(&mut with_url(&["ls", "--json"]))[0]["kind"], "lock");
    let reports = json(&mut with_url(&["ping", "--json"]));
    assert_eq!(reports[0]["role"], "master");
    assert!(reports[2]["error"].is_string(), "{reports}");
    assert!(output(&mut with_url(&["unlock", "a"])).starts_with("ended 1 hold of a;"));
    running.close_input();
    assert_eq!(running.code(), 70);
}

#[cfg(unix)]
#[test]
fn the_command_gets_the_input_and_no_file_of_ours() {
    let server = Server::redis();
    let mut command = leasehold(&server, &["run", "a", "--", "cat"]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(b"through \xff\n").unwrap();
    assert_eq!(process.wait_with_output().unwrap().stdout, b"through \xff\n");
    let list = ["sh", "-c", "ls /dev/fd"];
    let args = [&["run", "a", "--"], &list[..]].concat();
    let ours = output(&mut leasehold(&server, &args));
    assert_eq!(ours, output(Command::new("sh").args(&list[1..]).stdin(Stdio::null())));
}

#[cfg(unix)]
#[test]
fn a_command_need_not_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let server = Server::redis();
    let mut command = leasehold(&server, &["run", "a", "--", "printf", "%s"]);
    command.arg(OsStr::from_bytes(b"\xff\xfe"));
    assert_eq!(command.output().unwrap().stdout, b"\xff\xfe");
}

#[test]
fn a_failed_release_is_reported_and_does_not_fail_the_command() {
    let server = Server::redis();
    let mut running = hold(&server, &["--lease", "1m"], "a");
    server.kill();
    running.close_input();
    assert_eq!(running.code(), 1);
    assert!(running.errors().contains("lease"), "it says how long the lock lasts");
}

/// The line for cron in the manual that survives the death of the host that runs the job, with
/// shorter times.
#[cfg(unix)]
#[test]
fn a_waiting_host_runs_the_job_of_a_host_that_dies() {
    let server = Server::redis();
    let manual = include_str!("../../docs/program.md");
    let options = manual.split_once("leasehold run -w 2m ").expect("a line that waits").1;
    let options = options.split_once(" report -- ").unwrap().0;
    let host = |wait: &str, script: &str| {
        let options = options.split(' ').collect::<Vec<_>>();
        let args = [&["run", "-w", wait, "--lease", "2s"], &options[..], &["report", "--"]];
        let command = ["sh", "-c", script];
        Running::start(&mut leasehold(&server, &[&args.concat()[..], &command].concat()))
    };
    let first = host("1m", "echo runs; exec sleep 600");
    assert_eq!(first.next(), "runs");
    let mut second = host("1m", "echo runs too");

    first.signal(Signal::KILL);

    assert_eq!(second.next(), "runs too");
    assert_eq!(second.code(), 0);
    // The job is done, and the lock stays taken for hosts that still wait.
    let mut third = host("100ms", "echo runs again");
    assert_eq!((third.code(), third.rest().as_str()), (0, ""));
}

/// Bundles and wrappers start programs like this.
#[cfg(target_os = "linux")]
#[test]
fn a_program_that_was_started_by_the_loader_runs_the_command() {
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let Some(loader) = loaders.into_iter().find(|path| fs::exists(path).unwrap_or(false)) else {
        eprintln!("skipped: this system has no such loader");
        return;
    };
    let server = Server::redis();
    let program = leasehold(&server, &[]).get_program().to_owned();
    set_password(&server, "sesame");
    let run = |options: &[&str], command: &str| {
        let mut loaded = Command::new(loader);
        loaded.args(["--library-path", "/no/such/directory"]).arg(&program);
        loaded.args(["--password-command", "echo sesame", "run", "-n"]).args(options);
        loaded.args(["a", "--", command]).env("REDIS_URL", url(&server));
        finish(loaded.stdin(Stdio::null())).code
    };
    assert_eq!(run(&["--hold-at-least", "1h"], "/no/such/command"), 127);
    assert_eq!(run(&[], "true"), 0);
    assert_eq!(run(&[], "false"), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn variables_of_systemd_name_the_command() {
    let server = Server::redis();
    let run = |set: &str| {
        let script = format!(
            "export {set}; exec \"$0\" run a -- sh -c \
             'echo $$ $LISTEN_PID $WATCHDOG_PID ${{LISTEN_PIDFDID-none}} $LISTEN_FDS'"
        );
        let program = leasehold(&server, &[]).get_program().to_owned();
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(program).env("REDIS_URL", server.url());
        let words = output(command.stdin(Stdio::null()));
        words.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let words = run("LISTEN_PID=$$ WATCHDOG_PID=$$ LISTEN_PIDFDID=7 LISTEN_FDS=1");
    let [command, listens, watched, id, count] = &words[..] else { panic!("{words:?}") };
    assert_eq!((listens, watched, &**id, &**count), (command, command, "none", "1"));
    let words = run("LISTEN_PID=1 WATCHDOG_PID=1 LISTEN_FDS=1");
    assert_eq!(words[1..], ["1", "1", "none", "1"], "they are for others");
}
