//! What this program says: on stdout, on stderr, and by its exit status.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::time::Duration;

use leasehold::{Error, Phase, printable};
use serde_json::Value;

pub(crate) const SUCCESS: u8 = 0;
/// From sysexits(3), like the next ones.
pub(crate) const USAGE: u8 = 64;
const WRONG_DATA: u8 = 65;
pub(crate) const UNAVAILABLE: u8 = 69;
/// The command may have run without the lock, whatever its own status.
pub(crate) const LOST: u8 = 70;
const SYSTEM: u8 = 71;
/// As in lckdo(1).
pub(crate) const NOT_ACQUIRED: u8 = 75;
const REFUSED: u8 = 77;
/// From shells and env(1), like the next ones.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNALLED: u8 = 128;

#[derive(Debug)]
pub(crate) struct ExitError {
    pub(crate) code: u8,
    /// Empty if there is nothing to say.
    pub(crate) message: String,
}

impl ExitError {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Makes errors of an attempt that the system refused.
    pub(crate) fn system(attempt: &str) -> impl Fn(io::Error) -> Self {
        move |error| Self::new(SYSTEM, format!("cannot {attempt}: {error}"))
    }

    /// A command could not be run.
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
            Error::WrongType { .. } => WRONG_DATA,
            _ => UNAVAILABLE,
        };
        Self::new(code, error.with_causes())
    }
}

/// The exit status if a signal has ended the command or the wait.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(SIGNALLED, |signal| SIGNALLED.saturating_add(signal))
}

/// Writes a result to stdout. A reader that has closed the pipe is not an error.
pub(crate) fn print(output: &str) -> Result<u8, ExitError> {
    match write_out(output) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(SUCCESS),
        written => written.map(|()| SUCCESS).map_err(ExitError::system("write to stdout")),
    }
}

pub(crate) fn write_out(output: &str) -> io::Result<()> {
    // `Stdout` takes it for success if the descriptor cannot be written to.
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    stdout.write_all(output.as_bytes())
}

/// Prints a result as indented JSON, or as text.
pub(crate) fn print_either(
    json: bool,
    value: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<u8, ExitError> {
    print(&if json { format!("{:#}\n", value()) } else { text() })
}

/// Formats a time in seconds, with one decimal.
pub(crate) fn in_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

pub(crate) fn say(message: &str) {
    say_plainly(&format!("leasehold: {message}"));
}

/// Writes to stderr, without the name of this program.
pub(crate) fn say_plainly(text: &str) {
    // There is no other place to report a failure.
    writeln!(io::stderr(), "{}", text.trim_end()).ok();
}

/// Aligns columns to their longest entries.
pub(crate) fn table<const COLUMNS: usize>(rows: Vec<[String; COLUMNS]>) -> String {
    let rows: Vec<_> = rows.into_iter().map(|row| row.map(|entry| printable(&entry))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..COLUMNS).map(|column| width(column).unwrap_or(0)).collect();
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
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "lock", ""], ["stöck", "semaphore", "2"]];
        let text = table(rows.map(|row| row.map(str::to_owned)).to_vec());
        assert_eq!(text, "a      lock\nstöck  semaphore  2\n");
    }
}
