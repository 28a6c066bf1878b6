//! The program at a terminal: keys, input, and the line about the wait.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use crate::support::{Server, client, eventually, leasehold};

/// The program in its own session, with this terminal.
struct Terminal {
    keys: File,
    screen: Arc<Mutex<String>>,
    process: Child,
}

impl Terminal {
    fn start(server: &Server, args: &[&str]) -> Self {
        let program = leasehold(server, args);
        let mut command = Command::new(program.get_program());
        Self::run(command.args(program.get_args()).env("REDIS_URL", server.url()))
    }

    fn run(program: &Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = name.to_str().unwrap();
        let slave = || OpenOptions::new().read(true).write(true).open(name).unwrap();
        let mut command = Command::new("setsid");
        // The shell that started these tests may make its children ignore such keys.
        command.args(["--ctty", "env", "--default-signal"]);
        command.arg(program.get_program()).args(program.get_args());
        let variables = program.get_envs();
        command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        command.stdin(slave()).stdout(slave()).stderr(slave());
        let process = command.spawn().unwrap();
        // Closes the command's copies of the terminal, so that reading ends.
        drop(command);
        let mut master = File::from(master);
        let keys = master.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let output = screen.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails when the last process has closed the terminal.
            while let Ok(length @ 1..) = master.read(&mut bytes) {
                *output.lock() += &String::from_utf8_lossy(&bytes[..length]);
            }
        });
        Self { keys, screen, process }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        let seen = || self.screen.lock().contains(text);
        eventually(seen);
    }

    /// Returns the numbers on the screen.
    #[track_caller]
    fn numbers<const COUNT: usize>(&self) -> [i32; COUNT] {
        let screen = self.screen.lock().clone();
        let words = screen.split(|char: char| !char.is_ascii_digit());
        let numbers: Vec<_> = words.filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().unwrap_or_else(|_| panic!("{screen:?}"))
    }

    #[track_caller]
    fn code(&mut self) -> i32 {
        let mut status = None;
        eventually(|| {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail if the process has already ended.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_lost_lock_ends_all_that_the_command_has_started_at_the_terminal() {
    let server = Server::redis();
    // Two processes in the program's group, one of them without a parent, and one in a job of its
    // own.
    let script = "trap '' TERM; (sleep 60 & echo $!); sleep 60 & echo $!
        set -m; sleep 60 & echo $!; echo end.; wait; sleep 60";
    let neighbour = "sleep 60 & echo $!
        \"$0\" run --kill-after 500ms a -- sh -c \"$1\"; echo code $?.; read line";
    let program = leasehold(&server, &[]).get_program().to_owned();
    let mut shell = Command::new("sh");
    shell.args(["-c", neighbour]).arg(program).arg(script).env("REDIS_URL", server.url());
    let mut terminal = Terminal::run(&shell);
    terminal.wait_for("end.\r\n");
    let [neighbour, orphan, child, job] = terminal.numbers();
    let runs = |id: i32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        !status.is_empty() && !status.contains("State:\tZ")
    };
    assert!([neighbour, orphan, child, job].into_iter().all(runs));
    server.command(&["DEL", "lock:a"]);
    terminal.wait_for("code 70.");
    assert_eq!([orphan, child, job].map(runs), [false; 3]);
    assert!(runs(neighbour), "it is not the command's");
    terminal.press("\n");
    assert_eq!(terminal.code(), 0);
}

#[test]
fn the_terminal_is_as_before_when_the_command_was_killed() {
    let server = Server::redis();
    let script = "trap '' TERM; stty raw -echo; echo ready; while :; do sleep 0.02; done";
    for is_lost in [true, false] {
        let args = ["run", "--lease", "3s", "-k", "200ms", "a", "--", "sh", "-c"];
        let script = format!("echo $$.; {script}");
        let mut terminal = Terminal::start(&server, &[&args[..], &[&script]].concat());
        let before = settings(&terminal.keys);
        terminal.wait_for("ready");
        let [command] = terminal.numbers();
        assert_ne!(settings(&terminal.keys), before);
        if is_lost {
            server.command(&["DEL", "lock:a"]);
        } else {
            kill_process(Pid::from_raw(command).unwrap(), Signal::KILL).unwrap();
        }
        assert_eq!(terminal.code(), if is_lost { 70 } else { 137 });
        assert_eq!(settings(&terminal.keys), before, "{is_lost}");
    }
}

/// Returns the modes that a raw terminal does not have.
fn settings(terminal: &File) -> (bool, bool) {
    let modes = tcgetattr(terminal).unwrap().local_modes;
    (modes.contains(LocalModes::ECHO), modes.contains(LocalModes::ICANON))
}

#[test]
fn a_terminal_whose_output_is_stopped_delays_nothing() {
    let server = Server::redis();
    let client = client(&server);
    let guard = client.lock("a").unwrap();
    let mut terminal = Terminal::start(&server, &["run", "a", "--", "sleep", "60"]);
    terminal.wait_for("waiting for \"a\"");
    terminal.press("\u{13}");
    // Another line is due by then.
    thread::sleep(Duration::from_millis(1500));
    guard.unlock().unwrap();
    let holder = || client.mutex("a").holder().unwrap();
    eventually(|| holder().is_some_and(|holder| holder.label != "tester"));
    // The command runs, and ends with a forwarded signal.
    thread::sleep(Duration::from_millis(500));
    terminal.signal(Signal::TERM);
    assert_eq!(terminal.code(), 128 + 15);
    assert!(holder().is_none(), "it was released");
}

/// A stopped terminal keeps the program from starting the command for a moment.
#[cfg(target_os = "linux")]
#[test]
fn a_command_is_not_started_after_a_pause_in_which_the_lease_has_ended() {
    let server = Server::redis();
    let client = client(&server);
    let is_paused_in_time = || {
        let guard = client.lock("a").unwrap();
        let args = ["run", "--lease", "1s", "a", "--", "echo", "ran"];
        let mut terminal = Terminal::start(&server, &args);
        terminal.wait_for("waiting for \"a\"");
        terminal.press("\u{13}");
        guard.unlock().unwrap();
        let holder = || client.mutex("a").holder().unwrap();
        eventually(|| holder().is_some_and(|holder| holder.label != "tester"));
        // It has got the reply.
        thread::sleep(Duration::from_millis(20));
        terminal.signal(Signal::STOP);
        let id = terminal.process.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        if children.unwrap() != "" {
            return false;
        }
        let other = client.lock("a").unwrap();
        terminal.signal(Signal::CONT);
        terminal.press("\u{11}");
        assert_eq!(terminal.code(), 70);
        let expected = "lock \"a\" is lost, because it was not renewed in time: \
                        the command was not started";
        assert!(terminal.screen.lock().contains(expected), "{:?}", terminal.screen.lock());
        other.unlock().unwrap();
        true
    };
    eventually(is_paused_in_time);
}

/// The start of a script that starts no process later: a shell that is stopped at that moment may
/// count as waiting for the new process, which is stopped.
#[cfg(target_os = "linux")]
const WAITING: &str = "sleep 60 & trap 'kill $!; exit 4' USR1";

/// Returns `true` if the process with this id is stopped.
#[cfg(target_os = "linux")]
fn is_stopped(id: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    status.contains("State:\tT")
}

#[test]
fn a_key_reaches_the_command_once() {
    let server = Server::redis();
    let script = "n=0; trap 'n=$((n + 1)); echo pressed' INT; trap 'echo \"$n times\"; exit 4' USR1
        echo ready; while :; do sleep 0.02; done";
    let mut terminal = Terminal::start(&server, &["run", "a", "--", "sh", "-c", script]);
    terminal.wait_for("ready");
    // The command would see two nearly simultaneous signals as one.
    terminal.signal(Signal::STOP);
    terminal.press("\u{3}");
    terminal.wait_for("pressed");
    // The program has received that as well, and forwards what comes after it.
    terminal.signal(Signal::CONT);
    terminal.signal(Signal::USR1);
    terminal.wait_for("1 times");
    assert_eq!(terminal.code(), 4);
}

#[test]
fn the_command_reads_from_the_terminal() {
    let server = Server::redis();
    let script = "echo ready; read line; echo \"got $line\"";
    let mut terminal = Terminal::start(&server, &["run", "a", "--", "sh", "-c", script]);
    terminal.wait_for("ready");
    terminal.press("a word\n");
    terminal.wait_for("got a word");
    assert_eq!(terminal.code(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_key_that_stops_the_program_stops_a_command_with_other_input() {
    let server = Server::redis();
    let script = format!("{WAITING}; echo process $$.; wait");
    let program = leasehold(&server, &[]).get_program().to_owned();
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" run a -- sh -c \"$1\" </dev/null"]).arg(program).arg(&script);
    let mut terminal = Terminal::run(shell.env("REDIS_URL", server.url()));
    terminal.wait_for(".\r\n");
    let [command] = terminal.numbers();
    assert!(!is_stopped(command));
    terminal.press("\u{1a}");
    let program = terminal.process.id().cast_signed();
    eventually(|| is_stopped(command) && is_stopped(program));
    terminal.signal(Signal::CONT);
    eventually(|| !is_stopped(command));
    terminal.signal(Signal::USR1);
    assert_eq!(terminal.code(), 4);
}

#[cfg(target_os = "linux")]
#[test]
fn what_stops_the_program_at_a_terminal_stops_the_command() {
    let server = Server::redis();
    // The program as a job of a shell, which continues when the program has stopped.
    let job = "set -m; \"$0\" run a -- sh -c \"$1\"
        echo \"the shell goes on\"; read line; fg; echo \"ended with $?\"";
    for (is_key, trap) in
        [(true, ""), (true, "trap '' TSTP;"), (false, ""), (false, "trap '' TSTP;")]
    {
        let script = format!("{trap} {WAITING}; echo process $$ of $PPID.; wait");
        let program = leasehold(&server, &[]).get_program().to_owned();
        let mut shell = Command::new("sh");
        shell.args(["-c", job]).arg(program).arg(script).env("REDIS_URL", server.url());
        let mut terminal = Terminal::run(&shell);
        terminal.wait_for(".\r\n");
        let [command, program] = terminal.numbers();
        if is_key {
            terminal.press("\u{1a}");
        } else {
            kill_process(Pid::from_raw(program).unwrap(), Signal::TSTP).unwrap();
        }
        terminal.wait_for("the shell goes on");
        assert!(is_stopped(program), "{is_key} {trap}");
        eventually(|| is_stopped(command));
        terminal.press("\n");
        eventually(|| !is_stopped(program) && !is_stopped(command));
        kill_process(Pid::from_raw(command).unwrap(), Signal::USR1).unwrap();
        terminal.wait_for("ended with 4");
        assert_eq!(terminal.code(), 0);
    }
}

#[test]
fn a_key_ends_the_wait() {
    let server = Server::redis();
    let client = client(&server);
    let _guard = client.lock("a").unwrap();
    let mut terminal = Terminal::start(&server, &["run", "a", "--", "echo", "ran"]);
    terminal.wait_for("waiting for \"a\"");
    terminal.press("\u{3}");
    assert_eq!(terminal.code(), 130);
}

#[test]
fn a_line_says_what_is_waited_for_and_goes_away() {
    let server = Server::redis();
    let client = client(&server);
    let guard = client.lock("a").unwrap();
    let mut terminal = Terminal::start(&server, &["run", "a", "--", "echo", "ran"]);
    terminal.wait_for("held by tester, ");
    guard.unlock().unwrap();
    terminal.wait_for("ran");
    assert_eq!(terminal.code(), 0);
    let screen = terminal.screen.lock();
    let (_, after) = screen.rsplit_once("held by").unwrap();
    assert!(after.contains("\r\u{1b}[Kran"), "{screen:?}");
}
