//! Other processes: this test binary, run again for one of its own (ignored) tests.
//!
//! The test is the main function of the child. It calls [`argument`] or [`address`] first and
//! returns if this process is not a child; it reports to its parent with [`report`] and waits for
//! it with [`wait_for_parent`].

use std::any::type_name;
use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use parking_lot::Mutex;
#[cfg(unix)]
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::SOON;
use super::address::Address;

const ARGUMENT: &str = "LEASEHOLD_TEST_CHILD";
/// Marks a report in the output, between the lines of the test harness.
const MARK: &str = "@report ";

/// A child process, killed when it is dropped.
pub(crate) struct Child {
    process: std::process::Child,
    input: Option<ChildStdin>,
    reports: Receiver<String>,
    output: Arc<Mutex<String>>,
}

impl Child {
    /// Starts `test`, an ignored test function, in a process of its own with one argument.
    pub(crate) fn start<F: Fn()>(test: F, argument: &str) -> Child {
        Child::start_with(test, argument, &[])
    }

    /// Like `start`, with further environment variables.
    pub(crate) fn start_with<F: Fn()>(
        _test: F,
        argument: &str,
        variables: &[(&str, OsString)],
    ) -> Child {
        let (_crate, test) = type_name::<F>().split_once("::").expect("a path");
        let mut command = Command::new(env::current_exe().expect("a test is a file"));
        command.args([test, "--exact", "--ignored", "--nocapture"]);
        command.args(["--test-threads", "1"]).env(ARGUMENT, argument);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();

        let (sender, reports) = unbounded();
        let output = Arc::new(Mutex::new(String::new()));
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let kept = Arc::clone(&output);
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, report)) = line.split_once(MARK) {
                    // The receiver is gone once the parent's test is over.
                    sender.send(report.to_owned()).ok();
                }
                *kept.lock() += &(line + "\n");
            }
        });
        let kept = Arc::clone(&output);
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                *kept.lock() += &(line + "\n");
            }
        });
        Child { input: process.stdin.take(), process, reports, output }
    }

    /// Returns the child's next report. The child may wait for something itself.
    #[track_caller]
    pub(crate) fn next(&self) -> String {
        self.reports
            .recv_timeout(3 * SOON)
            .unwrap_or_else(|_| panic!("the child says nothing:\n{}", self.output.lock()))
    }

    /// Resumes a child that waits for its parent.
    pub(crate) fn go_on(&mut self) {
        self.tell("go on");
    }

    /// Sends a line to the child, which waits for it.
    pub(crate) fn tell(&mut self, what: impl Display) {
        writeln!(self.input.as_ref().expect("still open"), "{what}").unwrap();
    }

    /// SIGSTOP; returns when every thread has stopped, which takes a while on a busy machine.
    #[cfg(unix)]
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        // If the process has ended meanwhile, other calls report that.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.process)), options).unwrap();
    }

    /// SIGCONT.
    #[cfg(unix)]
    pub(crate) fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGKILL; returns when the process is gone.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits for the end of the child's test, and fails if that failed.
    #[track_caller]
    pub(crate) fn finish(mut self) {
        self.input = None;
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}:\n{}", self.output.lock());
    }

    #[cfg(unix)]
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail if the process has already ended.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Returns the argument from the parent, or `None` if this process is not a child.
pub(crate) fn argument() -> Option<String> {
    env::var(ARGUMENT).ok()
}

/// Returns the server of the parent's behaviour, or `None` if this process is not a child.
pub(crate) fn address() -> Option<Address> {
    argument().map(|text| Address::parse(&text))
}

/// Sends a line to the parent.
pub(crate) fn report(what: impl Display) {
    println!("{MARK}{what}");
}

/// Blocks until the parent calls [`Child::go_on`] or ends.
pub(crate) fn wait_for_parent() {
    std::io::stdin().lines().next();
}

/// Returns the line that the parent sends with [`Child::tell`].
pub(crate) fn line() -> String {
    std::io::stdin().lines().next().expect("the parent lives").expect("a line")
}
