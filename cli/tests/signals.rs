//! Signals to the program: while it waits, while the command runs, and SIGKILL.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::support::{
    Running, Server, client, eventually, finish, full_pipe, has_containers, in_container, json,
    leasehold, refuse_for_now,
};

/// The forwarded signals, with the names that a shell knows them by.
const FORWARDED: [(Signal, &str); 6] = [
    (Signal::HUP, "HUP"),
    (Signal::INT, "INT"),
    (Signal::QUIT, "QUIT"),
    (Signal::TERM, "TERM"),
    (Signal::USR1, "USR1"),
    (Signal::USR2, "USR2"),
];

/// The signals that this process does not ignore. Its children ignore those that it ignores, as
/// under `nohup`.
fn forwarded() -> impl Iterator<Item = (Signal, &'static str)> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
    FORWARDED.into_iter().filter(move |(signal, _)| ignored >> (signal.as_raw() - 1) & 1 == 0)
}

/// Runs a script as the command.
fn run(server: &Server, options: &[&str], script: &str) -> Running {
    let args = [&["run"], options, &["a", "--", "sh", "-c", script]].concat();
    Running::start(&mut leasehold(server, &args))
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let server = Server::redis();
    for (signal, name) in forwarded() {
        let script =
            format!("trap 'echo {name}; exit 3' {name}; echo ready; while :; do sleep 0.02; done");
        let mut running = run(&server, &[], &script);
        assert_eq!(running.next(), "ready");
        running.signal(signal);
        assert_eq!(running.next(), name);
        assert_eq!(running.code(), 3, "{name}");
    }
}

#[test]
fn a_signal_that_ends_the_command_is_the_exit_status() {
    let server = Server::redis();
    let mut running = run(&server, &[], "echo ready; exec sleep 60");
    assert_eq!(running.next(), "ready");
    running.signal(Signal::TERM);
    assert_eq!(running.ending_signal(), 15);
    assert!(client(&server).try_lock("a").unwrap().is_some(), "it is released");
}

/// A shell then ends its own loop, as it does when the command runs without the program.
#[test]
fn a_received_signal_that_ends_the_command_ends_the_program_without_a_core_dump() {
    let server = Server::redis();
    for (signal, name) in forwarded() {
        let mut running = run(&server, &[], "ulimit -c 0; echo ready; exec sleep 60");
        assert_eq!(running.next(), "ready");
        running.signal(signal);
        let status = running.wait();
        let expected = (Some(signal.as_raw()), false);
        assert_eq!((status.signal(), status.core_dumped()), expected, "{name}");
        assert!(client(&server).try_lock("a").unwrap().is_some(), "{name}: it is released");
    }
}

#[test]
fn a_signal_other_than_the_received_one_is_the_exit_status() {
    let server = Server::redis();
    let mut running = run(&server, &[], "trap 'kill -9 $$' TERM; echo ready; sleep 60 & wait");
    assert_eq!(running.next(), "ready");
    running.signal(Signal::TERM);
    assert_eq!(running.code(), 128 + 9);
}

#[cfg(target_os = "linux")]
#[test]
fn a_key_that_stops_the_program_as_it_starts_the_command_stops_it_for_as_long() {
    let server = Server::redis();
    let trial = |number: u64| {
        let name = format!("a{number}");
        let args = ["run", &name, "--", "sleep", "60"];
        let mut command = leasehold(&server, &args);
        let mut running = Running::start(command.stdin(Stdio::null()).process_group(0));
        let group = Pid::from_raw(running.id().cast_signed()).unwrap();
        let mut connection = server.connect();
        let key = format!("lock:{name}");
        // The command is started next.
        eventually(|| redis::cmd("EXISTS").arg(&key).query(&mut connection).unwrap());
        thread::sleep(Duration::from_micros(250 * (number % 16)));
        kill_process_group(group, Signal::TSTP).unwrap();
        thread::sleep(Duration::from_millis(50));
        // The shell continues the job, perhaps before it has stopped.
        kill_process_group(group, Signal::TERM).unwrap();
        eventually(|| {
            kill_process_group(group, Signal::CONT).ok();
            running.try_wait().is_some()
        });
    };
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || (0..16).for_each(|round| trial(16 * thread + round)));
        }
    });
}

#[test]
fn a_command_that_is_stopped_ends_by_a_signal() {
    let server = Server::redis();
    let ending = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];
    for (signal, name) in forwarded().filter(|(signal, _)| ending.contains(signal)) {
        let mut running = run(&server, &[], "echo $$; exec sleep 60");
        let command = running.next().parse().ok().and_then(Pid::from_raw);
        kill_process(command.expect("its process id"), Signal::STOP).unwrap();
        running.signal(signal);
        assert_eq!(running.ending_signal(), signal.as_raw(), "{name}");
    }
}

#[test]
fn children_of_the_command_get_the_signal_too() {
    let server = Server::redis();
    let mut running = run(&server, &[], "sh -c 'echo ready; sleep 60; echo on'; echo on");
    assert_eq!(running.next(), "ready");
    running.signal(Signal::TERM);
    running.wait_for_end_of_output();
    assert_eq!(running.ending_signal(), 15);
}

#[test]
fn the_lock_is_held_until_the_command_has_ended() {
    let server = Server::redis();
    let script = "trap 'echo told' TERM; echo ready; n=0
        while [ $n -lt 2 ]; do read line && n=$((n + 1)); done; exit 6";
    let args = ["run", "a", "--", "sh", "-c", script];
    let mut running = Running::start(leasehold(&server, &args).stdin(Stdio::piped()));
    assert_eq!(running.next(), "ready");
    running.signal(Signal::TERM);
    // The shell handles signals between two commands.
    running.write("a line\n");
    assert_eq!(running.next(), "told");
    assert!(client(&server).try_lock("a").unwrap().is_none());
    running.write("another\n");
    assert_eq!(running.code(), 6);
}

/// Prints how often it was asked to make way, and ends when told to.
const MAKES_WAY: &str = "n=0; trap 'n=$((n + 1)); echo told $n' USR1; trap 'exit 3' TERM
    echo ready; while :; do sleep 0.02; done";

#[test]
fn a_command_is_told_once_that_another_client_waits() {
    let server = Server::redis();
    let mut running = run(&server, &["--yield", "SIGUSR1"], MAKES_WAY);
    assert_eq!(running.next(), "ready");
    thread::scope(|scope| {
        let wait = |client: Client| scope.spawn(move || drop(client.lock("a").unwrap()));
        let first = wait(client(&server));
        assert_eq!(running.next(), "told 1");
        // It continues, and gets no further signal, although another client also waits.
        let second = wait(client(&server));
        eventually(|| waiting(&server) == 2);
        thread::sleep(Duration::from_millis(300));
        running.signal(Signal::TERM);
        assert_eq!(running.code(), 3);
        for waiter in [first, second] {
            waiter.join().unwrap();
        }
    });
    assert_eq!(running.rest(), "");
}

#[test]
fn a_command_can_prepare_though_another_client_waits_from_the_start() {
    let server = Server::redis();
    let client = client(&server);
    let guard = client.lock("a").unwrap();
    let mut first = run(&server, &["--yield", "usr1"], MAKES_WAY);
    eventually(|| waiting(&server) == 1);
    let mut second = run(&server, &[], "exit 5");
    eventually(|| waiting(&server) == 2);
    drop(guard);
    assert_eq!(first.next(), "ready");
    assert_eq!(first.next(), "told 1");
    first.signal(Signal::TERM);
    assert_eq!((first.code(), second.code()), (3, 5));
}

/// Returns how many clients wait for the lock.
fn waiting(server: &Server) -> usize {
    let report = json(&mut leasehold(server, &["show", "a", "--json"]));
    report["waiting"].as_array().map_or(0, Vec::len)
}

#[test]
fn a_command_that_is_not_asked_to_make_way_is_told_nothing() {
    let server = Server::redis();
    let mut running = run(&server, &[], MAKES_WAY);
    assert_eq!(running.next(), "ready");
    assert!(client(&server).try_lock_for("a", Duration::from_millis(1500)).unwrap().is_none());
    running.signal(Signal::TERM);
    assert_eq!((running.code(), running.rest()), (3, String::new()));
    for kind in [&["--shared"][..], &["--exclusive"], &["--permits", "2"]] {
        let refused = finish(&mut leasehold(
            &server,
            &[&["run", "--yield", "USR1"], kind, &["a", "--", "true"]].concat(),
        ));
        assert_eq!(refused.code, 64, "{kind:?}: {refused:?}");
    }
    let refused = finish(&mut leasehold(&server, &["run", "--yield", "KILL", "a", "--", "true"]));
    assert_eq!(refused.code, 64);
    assert!(refused.stderr.contains("SIGUSR1"), "{refused:?}");
}

#[test]
fn a_signal_ends_the_wait() {
    let server = Server::redis();
    let client = client(&server);
    let _guard = client.lock("a").unwrap();
    for (signal, name) in forwarded() {
        let mut running = run(&server, &[], "echo ran");
        let waits = || waiting(&server) > 0;
        eventually(waits);
        running.signal(signal);
        assert_eq!(running.ending_signal(), signal.as_raw(), "{name}");
        assert!(!waits(), "{name}: it leaves the queue");
        assert_eq!(running.errors(), "", "{name}");
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_server() {
    let server = Server::redis();
    refuse_for_now(&server);
    let mut running = run(&server, &["--wait", "10m"], "echo ran");
    eventually(|| server.ask::<String>(&["INFO", "errorstats"]).contains("MASTERDOWN"));
    running.signal(Signal::TERM);
    assert_eq!(running.ending_signal(), 15);
    assert_eq!(running.errors(), "");
}

/// Waits until the server has refused a request.
fn wait_for_refusal(server: &Server) {
    eventually(|| server.ask::<String>(&["INFO", "errorstats"]).contains("MASTERDOWN"));
}

#[test]
fn a_signal_ends_the_wait_for_a_server_at_the_start() {
    let server = Server::redis();
    refuse_for_now(&server);
    for task in [&["run", "a", "--", "echo", "ran"][..], &["lock", "a"]] {
        server.command(&["CONFIG", "RESETSTAT"]);
        let mut running = Running::start(&mut leasehold(&server, task));
        wait_for_refusal(&server);
        let begin = Instant::now();
        running.signal(Signal::TERM);
        assert_eq!(running.ending_signal(), 15, "{task:?}");
        // The program would wait 10 s for the server.
        assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
        assert_eq!((running.rest(), running.errors()), (String::new(), String::new()));
    }
}

/// Returns `true` if the program has a child, perhaps one that it has not yet waited for.
fn has_child(running: &Running) -> bool {
    let output = Command::new("ps").args(["-A", "-o", "ppid="]).output().expect("it lists them");
    let parents = String::from_utf8(output.stdout).expect("numbers");
    parents.lines().any(|parent| parent.trim() == running.id().to_string())
}

#[test]
fn a_signal_ends_the_release() {
    let server = Server::redis();
    let args = ["run", "a", "--", "sh", "-c", "echo ready; read line; exit 5"];
    // The program would wait for the server for longer than the test takes.
    let url = format!("{}?retry_window=10m", server.url());
    let mut program = leasehold(&server, &args);
    let mut running = Running::start(program.env("REDIS_URL", url).stdin(Stdio::piped()));
    assert_eq!(running.next(), "ready");
    refuse_for_now(&server);
    running.close_input();
    // A signal before that would go to the command.
    eventually(|| !has_child(&running));
    let begin = Instant::now();
    running.signal(Signal::TERM);
    assert_eq!(running.ending_signal(), 15);
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
}

/// Waits until a program is about to print its ticket, when the hold has no owner yet.
fn wait_for_ticket(server: &Server) {
    eventually(|| server.ask::<Vec<String>>(&["HVALS", "lock:a"]) == [u32::MAX.to_string()]);
}

#[test]
fn a_signal_ends_the_printing_of_a_ticket_and_the_lock() {
    let server = Server::redis();
    let (reader, writer) = full_pipe();
    let mut command = leasehold(&server, &["lock", "--lease", "1h", "a"]);
    let mut running = Running::spawn(command.stdout(writer).stderr(Stdio::piped()));
    wait_for_ticket(&server);
    running.signal(Signal::TERM);
    assert_eq!(running.ending_signal(), 15);
    assert!(client(&server).try_lock("a").unwrap().is_some(), "no process has the ticket");
    drop(reader);
}

#[test]
fn a_program_that_could_not_print_its_ticket_ends_no_hold_of_another_client() {
    let server = Server::redis();
    let (reader, writer) = full_pipe();
    let mut command = leasehold(&server, &["lock", "--lease", "1h", "a"]);
    let mut running = Running::spawn(command.stdout(writer).stderr(Stdio::piped()));
    wait_for_ticket(&server);
    server.command(&["DEL", "lock:a"]);
    let other = client(&server);
    let guard = other.lock("a").unwrap();
    running.signal(Signal::TERM);
    assert_eq!(running.ending_signal(), 15);
    guard.verify().unwrap();
    drop(reader);
}

#[test]
fn signals_that_were_blocked_are_received_all_the_same() {
    let server = Server::redis();
    let blocked = "--block-signal=CHLD,HUP,INT,QUIT,TERM,USR1,USR2";
    let program = leasehold(&server, &[]).get_program().to_owned();
    let run = |script: &str| {
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(blocked).arg(&program);
        command.args(["run", "a", "--", "sh", "-c", script]).env("REDIS_URL", server.url());
        Running::start(command.stdin(Stdio::null()))
    };
    assert_eq!(run("exit 5").code(), 5);
    for (signal, name) in forwarded() {
        let mut running = run("echo ready; exec sleep 60");
        assert_eq!(running.next(), "ready");
        running.signal(signal);
        assert_eq!(running.ending_signal(), signal.as_raw(), "{name}");
    }
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let server = Server::redis();
    // nohup(1) does this.
    let ignore = "trap '' HUP; exec \"$0\" run a -- sh -c 'echo ready; read line; exit 5'";
    let program = leasehold(&server, &[]).get_program().to_owned();
    let mut command = Command::new("sh");
    command.args(["-c", ignore]).arg(program).env("REDIS_URL", server.url());
    command.stdin(Stdio::piped());
    let mut running = Running::start(&mut command);
    assert_eq!(running.next(), "ready");
    running.signal(Signal::HUP);
    running.write("a line\n");
    assert_eq!(running.code(), 5);
}

#[cfg(target_os = "linux")]
#[test]
fn the_first_process_of_a_container_waits_for_all() {
    if !has_containers() {
        return;
    }
    let server = Server::redis();
    // Each of these processes loses its parent before it ends.
    let script = "for i in 1 2 3; do (sleep 0.1 &); done; sleep 0.2
        while grep -q 'State:.Z' /proc/[0-9]*/status 2>/dev/null; do sleep 0.02; done
        echo \"none is left of $PPID\"; exit 5";
    let program = leasehold(&server, &[]).get_program().to_owned();
    let mut command = in_container();
    command.arg(program).args(["run", "a", "--", "sh", "-c", script]);
    let mut running = Running::start(command.env("REDIS_URL", server.url()).stdin(Stdio::null()));
    assert_eq!(running.next(), "none is left of 1");
    assert_eq!(running.code(), 5);
    let mut command = in_container();
    command.arg(leasehold(&server, &[]).get_program());
    command.args(["run", "a", "--", "sh", "-c", "kill $$"]).env("REDIS_URL", server.url());
    let finished = finish(command.stdin(Stdio::null()));
    assert_eq!(finished.code, 128 + 15, "it cannot end itself by a signal");
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_that_is_killed_takes_the_command_with_it() {
    let server = Server::redis();
    let mut running = run(&server, &[], "echo ready; exec sleep 60");
    assert_eq!(running.next(), "ready");
    running.signal(Signal::KILL);
    running.wait_for_end_of_output();
    assert!(running.wait().code().is_none());
    assert!(client(&server).mutex("a").is_locked().unwrap(), "until its lease ends");
}
