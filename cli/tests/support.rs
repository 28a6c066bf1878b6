//! Helpers to run the program in a test.

#[cfg(unix)]
use std::io::{self, PipeReader, PipeWriter};
use std::io::{BufRead, BufReader, Write};
#[cfg(unix)]
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use leasehold::Client;
#[cfg(unix)]
use rustix::io::ioctl_fionbio;
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use self::cluster::Cluster;
pub(crate) use self::server::{Server, redis_binary};

#[cfg(feature = "tls")]
#[path = "../../tests/it/support/authority.rs"]
pub(crate) mod authority;
#[path = "../../tests/it/support/cluster.rs"]
mod cluster;
#[path = "../../tests/it/support/server.rs"]
mod server;

/// A generous limit for what should happen at once, even on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A command that does nothing.
pub(crate) const TRUE: &[&str] = if cfg!(windows) { &["cmd", "/c", "exit 0"] } else { &["true"] };

/// A command that says that it holds the lock, and ends with its input.
pub(crate) const HOLDER: &[&str] = if cfg!(windows) {
    &["cmd", "/c", "echo holds& set /p line=& exit 1"]
} else {
    &["sh", "-c", "echo holds; read line"]
};

/// Returns the program with these arguments and a server.
pub(crate) fn leasehold(server: &Server, args: &[&str]) -> Command {
    let mut command = without_server(args);
    command.env("REDIS_URL", server.url());
    command
}

/// Like `leasehold`, but without a server.
pub(crate) fn without_server(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(args).env_remove("REDIS_URL").stdin(Stdio::null());
    command
}

/// The output of a process, and its exit status.
#[derive(Debug, PartialEq)]
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> Finished {
    let output = command.output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("it writes UTF-8");
    Finished {
        code: output.status.code().expect("it exits by itself"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Runs a command that must succeed and write nothing to stderr, and returns what it writes to
/// stdout.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> String {
    let Finished { code, stdout, stderr } = finish(command);
    assert_eq!((code, stderr.as_str()), (0, ""), "stdout: {stdout}");
    stdout
}

/// Runs a command that must print JSON.
#[track_caller]
pub(crate) fn json(command: &mut Command) -> serde_json::Value {
    serde_json::from_str(&output(command)).expect("it prints JSON")
}

/// A running process, killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    process: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Like `start`, with the stdout and stderr that the command already has.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut process = command.spawn().expect("it starts");
        let no_lines = || unbounded().1;
        let lines = process.stdout.take().map_or_else(no_lines, lines_of);
        let errors = process.stderr.take().map_or_else(no_lines, lines_of);
        Self { process, lines, errors }
    }

    /// Returns the next line of its stdout.
    #[track_caller]
    pub(crate) fn next(&self) -> String {
        self.lines.recv_timeout(SOON).unwrap_or_else(|error| {
            panic!("no line: {error}; stderr: {:?}", self.errors.try_iter().collect::<Vec<_>>())
        })
    }

    /// Returns the next line of its stderr.
    #[cfg(unix)]
    #[track_caller]
    pub(crate) fn next_error(&self) -> String {
        self.errors.recv_timeout(SOON).expect("a line")
    }

    /// Returns the remaining lines of its stdout, once no process has it open.
    #[cfg(unix)]
    pub(crate) fn rest(&self) -> String {
        self.lines.iter().collect::<Vec<_>>().join("\n")
    }

    /// Blocks until no process has its stdout open.
    #[track_caller]
    pub(crate) fn wait_for_end_of_output(&self) {
        while let Ok(line) = self.lines.recv_timeout(SOON) {
            assert!(!line.is_empty(), "an empty line");
        }
        assert!(self.lines.recv_timeout(Duration::ZERO).unwrap_err().is_disconnected());
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Writes to its stdin, which must be piped.
    pub(crate) fn write(&mut self, text: &str) {
        let input = self.process.stdin.as_mut().expect("stdin is piped");
        input.write_all(text.as_bytes()).expect("it reads");
    }

    /// Closes its stdin, which must be piped.
    pub(crate) fn close_input(&mut self) {
        drop(self.process.stdin.take().expect("stdin is piped"));
    }

    #[cfg(unix)]
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    /// Kills it, and nothing else.
    #[cfg(windows)]
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it runs");
    }

    /// Returns its status if it has ended.
    pub(crate) fn try_wait(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("it is a child")
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(status) = self.try_wait() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end, and returns its exit status.
    #[track_caller]
    pub(crate) fn code(&mut self) -> i32 {
        self.wait().code().expect("it exits by itself")
    }

    /// Waits until a signal ends it, and returns that signal.
    #[cfg(unix)]
    #[track_caller]
    pub(crate) fn ending_signal(&mut self) -> i32 {
        self.wait().signal().expect("a signal ends it")
    }

    /// Returns everything it has written to stderr, once no process has it open.
    pub(crate) fn errors(&self) -> String {
        let mut text = String::new();
        while let Ok(line) = self.errors.recv_timeout(SOON) {
            text += &line;
            text += "\n";
        }
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if the process has already ended.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Reads the lines of a process on a thread of its own.
fn lines_of(output: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = unbounded();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // The receiver is gone once the test is over.
            sender.send(line).ok();
        }
    });
    lines
}

/// Returns the start of a command whose first process is that of a new container.
#[cfg(unix)]
pub(crate) fn in_container() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--mount-proc", "--kill-child"]);
    command
}

/// Returns `true` if this system allows containers.
#[cfg(unix)]
pub(crate) fn has_containers() -> bool {
    let has_them = in_container().arg("true").status().is_ok_and(|status| status.success());
    if !has_them {
        eprintln!("skipped: this system allows no containers");
    }
    has_them
}

/// Opens a client with a label, to hold locks alongside the program.
pub(crate) fn client(server: &Server) -> Client {
    Client::builder().label("tester").wait(SOON).open(&server.url()).expect("the server is up")
}

/// Makes a server refuse all locks for now, like one that is loading its data.
pub(crate) fn refuse_for_now(server: &Server) {
    server.command(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    // No server listens there.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
}

/// Returns a pipe that no process reads, and that is full.
#[cfg(unix)]
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    ioctl_fionbio(&writer, true).expect("it may refuse to wait");
    while writer.write(&[b'.'; 512]).is_ok() {}
    ioctl_fionbio(&writer, false).expect("it may wait");
    (reader, writer)
}

/// Waits until `happened` returns `true`, and panics if it does not soon.
#[track_caller]
pub(crate) fn eventually(mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !happened() {
        assert!(Instant::now() < deadline, "not even after {SOON:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
