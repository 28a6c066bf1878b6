//! The program at a terminal: keys, input, and the line about the wait.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use crate::secrets::{set_password, url};
use crate::support::{Server, client, eventually, has_containers, in_container, leasehold, output};

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
        // The line about the wait was erased, if there was one.
        let lines = screen.lines().filter_map(|line| line.rsplit("\u{1b}[K").next());
        let words = lines.flat_map(|line| line.split(|char: char| !char.is_ascii_digit()));
        let numbers: Vec<_> = words.filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().unwrap_or_else(|_| panic!("{screen:?}"))
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually(|| {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    #[track_caller]
    fn code(&mut self) -> i32 {
        self.wait().code().expect("it exits by itself")
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
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
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
    assert_eq!(terminal.wait().signal(), Some(15));
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
        // It has the reply by then.
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
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
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
    // The program has received that as well, and forwards later signals.
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
fn stopping_the_program_at_a_terminal_stops_the_command() {
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

/// Returns a shell with this script, in which `$0` is the program, at a terminal that stops what
/// writes to it from the background.
#[cfg(target_os = "linux")]
fn at_a_strict_terminal(server: &Server, script: &str) -> Terminal {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("stty tostop; {script}"));
    shell.arg(leasehold(server, &[]).get_program()).env("REDIS_URL", server.url());
    Terminal::run(&shell)
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_with_other_input_gets_the_terminal_when_it_needs_it() {
    let server = Server::redis();
    let script = "\"$0\" run a -- sh -c 'echo wri\"\"tten; read line </dev/tty; echo got $line' \
        </dev/null; read line; echo \"the shell got $line\"";
    let mut terminal = at_a_strict_terminal(&server, script);
    terminal.wait_for("written");
    terminal.press("one\n");
    terminal.wait_for("got one");
    terminal.press("two\n");
    terminal.wait_for("the shell got two");
    assert_eq!(terminal.code(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_needs_the_terminal_in_the_background_stops_with_the_program() {
    let server = Server::redis();
    let script = "set -m; \"$0\" run -v a -- sh -c 'echo wri\"\"tten' </dev/null & echo job $!.
        read line; fg >/dev/null; echo \"ended with $?\"";
    let mut terminal = at_a_strict_terminal(&server, script);
    terminal.wait_for(".\r\n");
    let [program] = terminal.numbers();
    // This line is the program's own, and stops nothing.
    terminal.wait_for("acquired lock \"a\"");
    eventually(|| is_stopped(program));
    terminal.press("\n");
    terminal.wait_for("written");
    terminal.wait_for("ended with 0");
    assert_eq!(terminal.code(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_key_stops_a_command_that_was_given_the_terminal() {
    let server = Server::redis();
    let script = "set -m; \"$0\" run a -- sh -c \
        'echo job $PPID $$; read line </dev/tty; echo got $line' </dev/null
        echo \"the shell goes on\"; read line; fg >/dev/null; echo \"ended with $?\"";
    let mut terminal = at_a_strict_terminal(&server, script);
    terminal.wait_for("\r\n");
    let [program, command] = terminal.numbers();
    terminal.press("\u{1a}");
    terminal.wait_for("the shell goes on");
    assert!(is_stopped(program) && is_stopped(command));
    terminal.press("\n");
    eventually(|| !is_stopped(program) && !is_stopped(command));
    terminal.press("a word\n");
    terminal.wait_for("got a word");
    terminal.wait_for("ended with 0");
    assert_eq!(terminal.code(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_job_in_the_background_leaves_the_terminal_to_the_shell() {
    let server = Server::redis();
    let script = "set -m; \"$0\" run -k 200ms a -- sh -c 'echo job $PPID $$.; exec sleep 60'
        echo \"the shell goes on\"; read line; echo \"the shell got $line\"";
    for is_lost in [true, false] {
        let mut terminal = at_a_strict_terminal(&server, script);
        terminal.wait_for(".\r\n");
        let pids: [i32; 2] = terminal.numbers();
        let [program, command] = pids.map(|id| Pid::from_raw(id).unwrap());
        terminal.press("\u{1a}");
        terminal.wait_for("the shell goes on");
        if is_lost {
            server.command(&["DEL", "lock:a"]);
        } else {
            kill_process(command, Signal::KILL).unwrap();
        }
        kill_process(program, Signal::CONT).unwrap();
        eventually(|| !fs::exists(format!("/proc/{}", command.as_raw_pid())).unwrap());
        let has_ended = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", program.as_raw_pid()));
            stat.is_ok_and(|stat| stat.contains(") Z"))
        };
        eventually(has_ended);
        terminal.press("a word\n");
        terminal.wait_for("the shell got a word");
        assert_eq!(terminal.code(), 0, "{is_lost}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn processes_from_before_the_program_are_not_ended_with_the_command() {
    let server = Server::redis();
    let script = "sh -c 'sleep 60 & echo job $!.; exec \"$0\" run -k 200ms a -- \
        sh -c \"echo ready; exec sleep 60\"' \"$0\"; echo code $?.; read line";
    let mut terminal = at_a_strict_terminal(&server, script);
    terminal.wait_for("ready");
    let [earlier] = terminal.numbers();
    server.command(&["DEL", "lock:a"]);
    terminal.wait_for("code 70.");
    kill_process(Pid::from_raw(earlier).unwrap(), Signal::KILL).expect("it runs");
    terminal.press("\n");
    assert_eq!(terminal.code(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_with_the_former_id_of_the_command_gets_no_signals() {
    if !has_containers() {
        return;
    }
    let server = Server::redis();
    // A process of the command outlives it until it is killed, and another gets the command's id.
    let script = "\"$0\" run -k 2s a -- sh -c '
            (trap \"\" TERM HUP; echo job $$.; while :; do sleep 0.2; done) & wait' </dev/tty &
        program=$!; read command
        while test -e /proc/$command; do sleep 0.01; done
        while test \"$!\" != $command; do
            test $! = $program || kill -9 $!
            echo $((command - 1)) >/proc/sys/kernel/ns_last_pid; sleep 60 &
        done
        echo \"it is taken\"; wait $program; echo \"code $?.\"
        kill -9 $command && echo \"it lived\"";
    let mut shell = in_container();
    shell.args(["sh", "-c", script]).arg(leasehold(&server, &[]).get_program());
    let mut terminal = Terminal::run(shell.env("REDIS_URL", server.url()));
    terminal.wait_for(".\r\n");
    let [command] = terminal.numbers();
    terminal.press(&format!("{command}\n"));
    server.command(&["DEL", "lock:a"]);
    output(&mut leasehold(&server, &["unlock", "a"]));
    terminal.wait_for("it is taken");
    terminal.wait_for("code 70.");
    terminal.wait_for("it lived");
    assert_eq!(terminal.code(), 0);
}

#[test]
fn a_password_command_that_hangs_does_not_hide_the_end_of_the_command() {
    let server = Server::redis();
    set_password(&server, "sesame");
    let hangs = env::temp_dir().join(format!("leasehold-hangs-{}", process::id()));
    let began = hangs.with_extension("began");
    let password = format!(
        "if test -e {0}; then touch {1}; while test -e {0}; do sleep 0.05; done; fi; echo sesame",
        hangs.display(),
        began.display(),
    );
    let args = ["--password-command", &password, "run", "a", "--", "sh", "-c"];
    let mut program = leasehold(&server, &args);
    program.arg("echo ready; read line").env("REDIS_URL", url(&server));
    let mut terminal = Terminal::run(&program);
    terminal.wait_for("ready");
    eventually(|| server.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len() == 1);
    fs::write(&hangs, "").unwrap();
    // A new connection is made in its place.
    eventually(|| server.ask::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]) > 0);
    eventually(|| fs::exists(&began).unwrap());
    terminal.press("\n");
    assert_eq!(terminal.code(), 0);
    assert!(!server.ask::<bool>(&["EXISTS", "lock:a"]));
    fs::remove_file(hangs).unwrap();
    fs::remove_file(began).unwrap();
}

#[test]
fn a_key_that_ends_the_command_ends_the_program() {
    let server = Server::redis();
    // The command may end before the program has seen the key's signal.
    for round in 0..10 {
        let script = "echo ready; exec sleep 60";
        let mut terminal = Terminal::start(&server, &["run", "a", "--", "sh", "-c", script]);
        terminal.wait_for("ready");
        terminal.press("\u{3}");
        assert_eq!(terminal.wait().signal(), Some(2), "{round}: a shell ends its own loop, too");
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
    assert_eq!(terminal.wait().signal(), Some(2), "a shell ends its own loop, too");
}

#[test]
fn the_line_about_the_wait_names_the_holder_and_goes_away() {
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
