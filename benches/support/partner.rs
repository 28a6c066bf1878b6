//! A second process that takes part in a benchmark: this program, started again. The two
//! communicate over pipes.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{self, Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The task of the other process, given its arguments.
pub(crate) type Part = fn(&[String]);

/// Set in the other process to the name of its task and the arguments, one per line.
const TOLD: &str = "LEASEHOLD_BENCH_PART";

/// The other process, which is ended when this value is dropped.
pub(crate) struct Partner {
    process: Child,
    words: BufReader<ChildStdout>,
}

impl Partner {
    pub(crate) fn start(part: &str, arguments: &[&str]) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program has a path"))
            .env(TOLD, [&[part], arguments].concat().join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let words = BufReader::new(process.stdout.take().expect("stdout is piped"));
        Self { process, words }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.process.stdin.as_mut().expect("stdin is piped");
        writeln!(input, "{line}").expect("the other process listens");
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.words.read_line(&mut line).expect("the other process speaks");
        line.trim().to_owned()
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Runs the task that this process was started for, if any, and does not return in that case.
pub(crate) fn serve_if_started_for_it(parts: &[(&str, Part)]) {
    let Ok(told) = env::var(TOLD) else { return };
    let mut words = told.lines().map(str::to_owned);
    let wanted = words.next();
    let part = parts.iter().find(|(name, _)| Some(*name) == wanted.as_deref());
    let (_, play) = part.expect("one of the parts");
    play(&words.collect::<Vec<_>>());
    process::exit(0);
}

/// Sends a line to the process that started this one.
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// Receives a line from the process that started this one; empty once that process has ended.
pub(crate) fn listen() -> String {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).expect("a pipe can be read");
    line.trim().to_owned()
}

/// Returns the nanoseconds on a clock that all processes share.
pub(crate) fn now() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).expect("not negative");
    u64::try_from(now.as_nanos()).expect("not in the far future")
}
