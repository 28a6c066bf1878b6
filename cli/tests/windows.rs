//! What differs on Windows: the end of the command, keys, exit statuses, words of the command line,
//! and paths.

use std::fs;
use std::os::windows::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use signal_hook::consts::SIGBREAK;

use crate::support::{
    HOLDER, Running, SOON, Server, client, eventually, finish, leasehold, output, without_server,
};

/// The path of the program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// The flags with which Windows starts a process without a console, and with one of its own that is
/// not shown.
const DETACHED_PROCESS: u32 = 0x8;
const CREATE_NO_WINDOW: u32 = 0x0800_0000;

/// The variable that makes `act` do something.
const ACTOR: &str = "LEASEHOLD_ACTOR";

/// Runs this test program as the command, in which `act` does what the actor does.
fn run_actor(server: &Server, options: &[&str], actor: &str) -> Command {
    let mut command = leasehold(server, &[&["run"], options, &["a", "--"]].concat());
    command.arg(env::current_exe().unwrap()).args(ACT).env(ACTOR, actor);
    command
}

/// The arguments of this test program for `act`.
const ACT: [&str; 4] = ["windows::act", "--exact", "--ignored", "--nocapture"];

/// The commands of these tests. The harness writes some lines before their first one.
#[test]
#[ignore = "the command of other tests"]
fn act() {
    let start = |actor: &str| {
        let mut other = Command::new(env::current_exe().unwrap());
        other.args(ACT).env(ACTOR, actor).spawn().expect("it starts")
    };
    match &*env::var(ACTOR).unwrap_or_default() {
        "idles" => {
            println!("\nready");
            thread::sleep(3 * SOON);
        }
        "leaves" => drop(start("outlives")),
        "listens" => {
            let told = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(SIGBREAK, Arc::clone(&told)).unwrap();
            println!("\nready");
            eventually(|| told.load(Ordering::SeqCst));
            println!("\ntold");
        }
        "outlives" => {
            thread::sleep(Duration::from_secs(3));
            println!("\nstill here");
        }
        "waits" => drop(start("idles").wait()),
        actor => panic!("no such actor: {actor}"),
    }
}

/// Waits for a line of an actor.
fn wait_for(running: &Running, line: &str) {
    while running.next() != line {}
}

/// Runs a script as the command.
fn run(server: &Server, options: &[&str], script: &str) -> Command {
    leasehold(server, &[&["run"], options, &["a", "--", "cmd", "/c", script]].concat())
}

fn is_locked(server: &Server, name: &str) -> bool {
    server.ask(&["EXISTS", &format!("lock:{name}")])
}

#[test]
fn the_exit_status_is_that_of_the_command_with_all_its_bits() {
    let server = Server::redis();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 256", 256), ("exit -5", -5)] {
        assert_eq!(finish(&mut run(&server, &[], script)).code, code);
    }
}

#[test]
fn a_command_that_cannot_be_run_exits_with_126_or_127() {
    let server = Server::redis();
    for (command, code) in [("no-such-command", 127), (env::temp_dir().to_str().unwrap(), 126)] {
        let options = ["run", "-n", "--hold-at-least", "1h", "a", "--", command];
        let finished = finish(&mut leasehold(&server, &options));
        assert_eq!((finished.code, &*finished.stdout), (code, ""), "{finished:?}");
        assert!(finished.stderr.contains("cannot run"), "{finished:?}");
        assert!(!is_locked(&server, "a"));
    }
}

#[test]
fn a_program_that_is_killed_takes_with_it_all_that_the_command_has_started() {
    let server = Server::redis();
    let mut running = Running::start(&mut run_actor(&server, &[], "waits"));
    wait_for(&running, "ready");
    running.kill();
    running.wait_for_end_of_output();
}

#[test]
fn a_lost_lock_ends_all_that_the_command_has_started() {
    let server = Server::redis();
    for options in [&[][..], &["--shared"], &["--exclusive"], &["--permits", "1"]] {
        let options = [options, &["--lease", "3s"]].concat();
        let mut running = Running::start(&mut run_actor(&server, &options, "waits"));
        wait_for(&running, "ready");
        server.command(&["DEL", "lock:a"]);
        running.wait_for_end_of_output();
        assert_eq!(running.code(), 70, "{options:?}");
        let errors = running.errors();
        let why = "is lost, because the server does not know it any more";
        assert!(errors.contains(why), "{options:?}: {errors}");
    }
}

#[test]
fn processes_that_outlive_the_command_go_on_without_the_lock() {
    let server = Server::redis();
    let mut running = Running::start(&mut run_actor(&server, &[], "leaves"));
    assert_eq!(running.code(), 0);
    assert!(!is_locked(&server, "a"));
    wait_for(&running, "still here");
}

#[test]
fn a_session_without_a_console_runs_commands_that_cannot_be_signalled() {
    let server = Server::redis();
    let mut command = run_actor(&server, &["--lease", "3s"], "waits");
    let mut running = Running::start(command.creation_flags(DETACHED_PROCESS));
    wait_for(&running, "ready");
    server.command(&["DEL", "lock:a"]);
    running.wait_for_end_of_output();
    assert_eq!(running.code(), 70);
    for option in [["--kill-after", "1s"], ["--yield", "BREAK"]] {
        let refused = finish(run(&server, &option, "exit 0").creation_flags(DETACHED_PROCESS));
        assert_eq!(refused.code, 64, "{refused:?}");
        assert!(refused.stderr.contains("without a console"), "{refused:?}");
    }
    assert_eq!(finish(&mut run(&server, &["--yield", "USR1"], "exit 0")).code, 64);
}

#[test]
fn a_command_whose_lock_is_lost_gets_ctrl_break_and_time_to_end() {
    let server = Server::redis();
    let mut command = run_actor(&server, &["--lease", "3s", "--kill-after", "1h"], "listens");
    let mut running = Running::start(command.creation_flags(CREATE_NO_WINDOW));
    wait_for(&running, "ready");
    server.command(&["DEL", "lock:a"]);
    wait_for(&running, "told");
    assert_eq!(running.code(), 70);
    assert!(running.errors().contains(": Ctrl-Break now, its end in "));
}

#[test]
fn the_command_gets_its_words_as_they_were_given() {
    let server = Server::redis();
    let client = client(&server);
    for word in [
        "two words",
        "\"quoted\"",
        "a\"b",
        "back\\slash\\",
        "two words\\",
        "\\\\\"",
        "%PATH%",
        "a&b|c<d>e^f",
        "tab\tulator",
        "Schlüssel 錠",
    ] {
        let args = ["run", "a", "--", PROGRAM, "lock", "--note", "", word];
        output(leasehold(&server, &args).stdout(Stdio::null()));
        assert!(client.mutex(word).is_locked().unwrap(), "{word}");
    }
}

#[test]
fn the_command_knows_name_and_fence() {
    let server = Server::redis();
    let script = "echo %LEASEHOLD_NAME% %LEASEHOLD_FENCE%";
    let line = output(run(&server, &[], script).env("LEASEHOLD_FENCE", "of an outer run"));
    let fence = line.strip_prefix("a ").expect("the name").trim_end();
    assert!(fence.parse::<u64>().is_ok(), "{line}");
    let args = ["run", "a", "--", PROGRAM, "held", "a"];
    assert_eq!(finish(&mut leasehold(&server, &args)).code, 0);
    let args = ["run", "a", "--", PROGRAM, "run", "a", "--", "cmd"];
    assert_eq!(finish(&mut leasehold(&server, &args)).code, 64);
    let args = ["run", "a", "--", PROGRAM, "run", "b", "--", "cmd", "/c", "exit 5"];
    assert_eq!(finish(&mut leasehold(&server, &args)).code, 5);
}

/// A directory that is removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn paths_may_have_blanks_and_any_letters() {
    let server = Server::redis();
    let name = format!("leasehold für 錠 {}", std::process::id());
    let folder = Folder(env::temp_dir().join(name));
    fs::create_dir_all(&folder.0).unwrap();
    // Under wine, a library lies next to the program.
    for file in fs::read_dir(Path::new(PROGRAM).parent().unwrap()).unwrap() {
        let path = file.unwrap().path();
        if path == Path::new(PROGRAM) || path.extension().is_some_and(|kind| kind == "dll") {
            fs::copy(&path, folder.0.join(path.file_name().unwrap())).unwrap();
        }
    }
    let password = folder.0.join("Paßwort.txt");
    fs::write(&password, "sesame\r\n").unwrap();
    server.command(&["CONFIG", "SET", "requirepass", "sesame"]);
    let program = folder.0.join("leasehold.exe");
    let mut command = Command::new(&program);
    command.arg("--password-file").arg(&password).args(["run", "a", "--"]).arg(&program);
    command.arg("--version").env("REDIS_URL", server.url()).current_dir(&folder.0);
    assert!(output(command.stdin(Stdio::null())).starts_with("leasehold "));
}

#[test]
fn a_password_command_is_one_for_cmd() {
    let server = Server::redis();
    server.command(&["CONFIG", "SET", "requirepass", "two words"]);
    let with =
        |script: &str| finish(&mut leasehold(&server, &["--password-command", script, "ls"]));
    for script in ["echo two words", "if \"a b\"==\"a b\" (echo two words) else echo others"] {
        let finished = with(script);
        assert_eq!((finished.code, &*finished.stderr), (0, ""), "{script}");
    }
    let failed = with("echo two words& exit 3");
    assert_eq!(failed.code, 69, "{failed:?}");
    assert!(failed.stderr.contains("exit code: 3"), "{failed:?}");
}

#[test]
fn the_manual_and_completions_are_printed() {
    assert!(output(&mut without_server(&["man", "run"])).contains(".TH leasehold-run 1"));
    let script = output(&mut without_server(&["completions", "powershell"]));
    assert!(script.contains("Register-ArgumentCompleter"));
}

#[test]
fn the_end_of_the_command_is_noticed_at_once() {
    let server = Server::redis();
    let args = [&["run", "a", "--"], HOLDER].concat();
    let times = (0..5).map(|_| {
        let mut running = Running::start(leasehold(&server, &args).stdin(Stdio::piped()));
        assert_eq!(running.next(), "holds");
        // The program also checks on the command every second. It has just done so.
        thread::sleep(Duration::from_secs(1));
        let end = Instant::now();
        running.close_input();
        running.code();
        end.elapsed()
    });
    // A busy machine may be slow at any one time.
    let shortest = times.min().unwrap();
    assert!(shortest < Duration::from_millis(500), "{shortest:?}");
}
