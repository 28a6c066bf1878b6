//! The output of this program: on stdout, on stderr, and by its exit status.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt::Write as _;
#[cfg(unix)]
use std::fs;
use std::fs::File;
#[cfg(windows)]
use std::io::IsTerminal;
#[cfg(unix)]
use std::io::Read as _;
use std::io::{self, Write as _};
use std::iter;
#[cfg(unix)]
use std::os::fd::AsFd;
#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
#[cfg(windows)]
use std::os::windows::io::{AsHandle, AsRawHandle};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded, unbounded};
use leasehold::{Error, Phase};
#[cfg(unix)]
use nix::sys::signal::{SigSet, Signal};
use serde_json::Value;

use crate::secrets::without_secrets;

pub(crate) const SUCCESS: i32 = 0;
/// From sysexits(3), like the next ones.
pub(crate) const USAGE: i32 = 64;
const WRONG_DATA: i32 = 65;
pub(crate) const UNAVAILABLE: i32 = 69;
/// The command may have run without the lock, whatever its own status.
pub(crate) const LOST: i32 = 70;
const SYSTEM: i32 = 71;
/// As in lckdo(1).
pub(crate) const NOT_ACQUIRED: i32 = 75;
const REFUSED: i32 = 77;
/// From shells and env(1), like the next ones.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
const SIGNALLED: i32 = 128;

/// The system's errors for too many open files, in this process or in all.
#[cfg(unix)]
const OUT_OF_FILES: [i32; 2] =
    [rustix::io::Errno::MFILE.raw_os_error(), rustix::io::Errno::NFILE.raw_os_error()];
/// `ERROR_TOO_MANY_OPEN_FILES`, and for sockets `WSAEMFILE`.
#[cfg(windows)]
const OUT_OF_FILES: [i32; 2] = [4, 10_024];

#[derive(Debug)]
pub(crate) struct ExitError {
    pub(crate) code: i32,
    /// The signal by which this process ends, if that is possible.
    #[cfg_attr(windows, expect(dead_code, reason = "there, no process ends by a signal"))]
    pub(crate) signal: Option<i32>,
    /// Empty if there is nothing to say.
    pub(crate) message: String,
}

impl ExitError {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, signal: None, message: message.into() }
    }

    /// Creates the error of a command, a wait or a release that has ended because this process has
    /// received a signal.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self { signal: Some(signal), ..Self::new(of_signal(signal), "") }
    }

    /// Creates the errors of an attempt that the system refused.
    pub(crate) fn system(attempt: &str) -> impl Fn(io::Error) -> Self {
        move |error| Self::new(SYSTEM, format!("cannot {attempt}: {error}"))
    }

    /// Creates the error of a command that could not be run.
    pub(crate) fn of_command(command: &str, error: &io::Error) -> Self {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let code = if is_missing { NOT_FOUND } else { NOT_EXECUTABLE };
        Self::new(code, format!("cannot run {command:?}: {error}"))
    }
}

impl From<Error> for ExitError {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidInput(_) => USAGE,
            Error::Lost { .. } => LOST,
            Error::Redis { code, .. } if matches!(&**code, "NOAUTH" | "NOPERM" | "WRONGPASS") => {
                REFUSED
            }
            Error::Timeout { .. } => NOT_ACQUIRED,
            Error::Unavailable { phase: Phase::System, .. } => SYSTEM,
            Error::Unavailable { source, .. } if is_out_of_files(&**source) => SYSTEM,
            Error::NoQuorum { failures, .. }
                if failures.iter().any(|failure| is_out_of_files(&*failure.source)) =>
            {
                SYSTEM
            }
            Error::WrongType { .. } => WRONG_DATA,
            _ => UNAVAILABLE,
        };
        let causes = iter::successors(error.source(), |&cause| cause.source());
        let message = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        Self::new(code, message)
    }
}

/// Returns `true` if this process or the system has too many open files.
pub(crate) fn is_out_of_files(error: &(dyn StdError + 'static)) -> bool {
    let mut causes = iter::successors(Some(error), |&cause| cause.source());
    causes.any(|cause| {
        let code = cause.downcast_ref().and_then(io::Error::raw_os_error);
        code.is_some_and(|code| OUT_OF_FILES.contains(&code))
    })
}

/// Returns the exit status after a signal has ended the command or the wait.
pub(crate) fn of_signal(signal: i32) -> i32 {
    SIGNALLED + signal
}

/// Writes a result to stdout. A reader that has closed the pipe is not an error.
pub(crate) fn print(output: &str) -> Result<i32, ExitError> {
    match write_out(output) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(SUCCESS),
        written => written.map(|()| SUCCESS).map_err(ExitError::system("write to stdout")),
    }
}

/// # Errors
///
/// Fails if stdout was closed when this process started, so that nothing can read the output.
pub(crate) fn require_stdout() -> Result<(), ExitError> {
    match is_stdout_closed() {
        Ok(true) => Err(ExitError::new(SYSTEM, "cannot write to stdout: it is closed")),
        // Writing will fail where this does.
        Ok(false) | Err(_) => Ok(()),
    }
}

#[cfg(unix)]
fn is_stdout_closed() -> io::Result<bool> {
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let is_null = stdout.metadata()?.rdev() == fs::metadata("/dev/null")?.rdev();
    // A shell opens `/dev/null` only for writing. In place of a closed descriptor, Rust opens it
    // for reading too.
    Ok(is_null && stdout.read(&mut [0]).is_ok())
}

#[cfg(windows)]
#[expect(clippy::unnecessary_wraps, reason = "on Unix, this can fail")]
fn is_stdout_closed() -> io::Result<bool> {
    Ok(io::stdout().as_raw_handle().is_null())
}

pub(crate) fn write_out(output: &str) -> io::Result<()> {
    // A console of Windows shows only what `Stdout` has translated.
    #[cfg(windows)]
    if io::stdout().is_terminal() {
        let mut stdout = io::stdout();
        return stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush());
    }
    // `Stdout` reports success if the descriptor cannot be written to.
    #[cfg(unix)]
    let stdout = io::stdout().as_fd().try_clone_to_owned()?;
    #[cfg(windows)]
    let stdout = io::stdout().as_handle().try_clone_to_owned()?;
    File::from(stdout).write_all(output.as_bytes())
}

/// Prints a result as indented JSON, or as text.
pub(crate) fn print_either(
    json: bool,
    value: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<i32, ExitError> {
    print(&if json { json_text(&value()) } else { text() })
}

/// Formats a value as lines of JSON. Also escapes the control characters that JSON permits.
pub(crate) fn json_text(value: &Value) -> String {
    let mut text = String::new();
    for char in format!("{value:#}\n").chars() {
        if matches!(char, '\u{7f}'..='\u{9f}') {
            write!(text, "\\u{:04x}", u32::from(char)).expect("a string takes everything");
        } else {
            text.push(char);
        }
    }
    text
}

/// Formats a time in seconds, with one decimal.
pub(crate) fn in_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

pub(crate) fn say(message: &str) {
    say_plainly(&format!("leasehold: {message}"));
}

/// Writes lines to stderr, without the name of this program.
pub(crate) fn say_plainly(text: &str) {
    // An argument or a server's reply may have characters that a terminal obeys.
    let text = without_secrets(text.trim_end());
    let lines = text.lines().map(|line| printable(line) + "\n");
    write_err(lines.collect());
}

/// Queues text for stderr, and does not wait until it is written.
pub(crate) fn write_err(text: String) {
    match STDERR.get_or_init(start_writer) {
        Some(outputs) => outputs.send(Output::Text(text)).unwrap_or_default(),
        // The system cannot start a thread. In that case no lock is held either.
        None => write_now(&text),
    }
}

/// Returns `true` if nothing is left to write to stderr, except perhaps what is being written.
pub(crate) fn is_err_written() -> bool {
    STDERR.get().is_none_or(|outputs| outputs.as_ref().is_none_or(Sender::is_empty))
}

/// Waits until everything is written to stderr, but no longer than `limit`.
pub(crate) fn flush_err(limit: Duration) {
    // Without any output so far, there is no thread.
    if let Some(Some(outputs)) = STDERR.get() {
        let (written, end) = bounded(0);
        outputs.send(Output::Flush(written)).unwrap_or_default();
        end.recv_timeout(limit).err();
    }
}

/// A task for the thread that writes to stderr.
enum Output {
    /// Dropped once everything before it is written.
    Flush(#[expect(dead_code, reason = "only dropped")] Sender<Infallible>),
    Text(String),
}

/// Sends to the thread that writes to stderr. Stderr may be a pipe that no process reads, or a
/// terminal whose output is stopped, and urgent code must not wait for it. `None` if the thread
/// cannot be started.
static STDERR: OnceLock<Option<Sender<Output>>> = OnceLock::new();

fn start_writer() -> Option<Sender<Output>> {
    let (sender, outputs) = unbounded();
    let thread = thread::Builder::new().name("leasehold-stderr".into());
    let thread = thread.spawn(move || {
        // A line from the background must not stop this process while it holds a lock.
        #[cfg(unix)]
        not_stopped_by_output().ok();
        for output in outputs {
            if let Output::Text(text) = output {
                write_now(&text);
            }
        }
    });
    if thread.is_ok() { Some(sender) } else { None }
}

/// Lets this thread write to the terminal, and change its settings, even if this process is in the
/// background. Otherwise the system may stop the process.
#[cfg(unix)]
pub(crate) fn not_stopped_by_output() -> io::Result<()> {
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTTOU);
    Ok(stop.thread_block()?)
}

fn write_now(text: &str) {
    // There is no other place to report a failure.
    io::stderr().write_all(text.as_bytes()).ok();
}

/// Escapes the characters of a name or a label that a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            printable.extend(char.escape_default());
        } else {
            printable.push(char);
        }
    }
    printable
}

/// Aligns columns to their longest entries.
pub(crate) fn table<const COLUMNS: usize>(rows: Vec<[String; COLUMNS]>) -> String {
    let rows: Vec<_> = rows.into_iter().map(|row| row.map(|entry| printable(&entry))).collect();
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (entry, width) in row.iter().zip(&mut widths) {
            *width = entry.chars().count().max(*width);
        }
    }
    let mut table = String::new();
    for row in &rows {
        let mut line = String::new();
        for (entry, width) in row.iter().zip(&widths) {
            write!(line, "{entry:width$}  ").expect("a string takes everything");
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_output_has_a_character_that_a_terminal_obeys() {
        let text = "a\u{1b}[31m\u{7f}\u{9b}2J";
        assert_eq!(printable(text), "a\\u{1b}[31m\\u{7f}\\u{9b}2J");
        let printed = json_text(&json!({ text: [text, "ä\n\""] }));
        assert!(!printed.replace('\n', "").contains(char::is_control), "{printed:?}");
        let read: Value = serde_json::from_str(&printed).expect("it is JSON");
        assert_eq!(read, json!({ text: [text, "ä\n\""] }));
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "lock", ""], ["stöck", "semaphore", "2"]];
        let text = table(rows.map(|row| row.map(str::to_owned)).to_vec());
        assert_eq!(text, "a      lock\nstöck  semaphore  2\n");
    }
}
