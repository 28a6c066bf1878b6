//! Progress reports during the wait for a lock: on a terminal, one line that is rewritten and
//! finally removed; with `--verbose`, one that stays.

use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use leasehold::{NameReport, Survey};
use parking_lot::Mutex;
#[cfg(unix)]
use rustix::termios::tcgetwinsize;

use crate::args::HowToAcquire;
use crate::output::{flush_err, in_seconds, is_err_written, printable, say, write_err};
use crate::secrets::without_secrets;
use crate::show::{begun, in_utc};

/// Delay before the line is written.
const FIRST: Duration = Duration::from_millis(300);
const PERIOD: Duration = Duration::from_secs(1);

/// How long the command waits for the line to be removed.
const CLEARING: Duration = Duration::from_millis(100);

/// Moves to the start of the line, and clears it.
#[cfg(unix)]
const CLEAR: &str = "\r\x1b[K";
/// A console of Windows might print those control characters, so this writes a line of blanks.
#[cfg(windows)]
const CLEAR: &str = concat!(
    "\r                                        ",
    "                                       \r"
);

/// Reports what the program waits for, until this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Whether the removable line was written.
    line: Arc<Mutex<bool>>,
    /// `None` once the wait has ended and the line stays clear.
    waits: Option<Sender<Infallible>>,
}

impl Progress {
    /// Starts to write, if the user wants it or stderr is a terminal.
    pub(crate) fn start(survey: Survey, how: &HowToAcquire, name: &str) -> Option<Self> {
        let says = how.verbose;
        if !says && (how.quiet || !io::stderr().is_terminal()) {
            return None;
        }
        let (waits, over) = bounded(0);
        let line = Arc::new(Mutex::new(false));
        let name = name.to_owned();
        let shared = line.clone();
        let thread = thread::Builder::new().name("leasehold-progress".into());
        let thread = thread.spawn(move || {
            if says {
                say_once(&survey, &name, &over);
            } else {
                write_line(&survey, &name, &shared, &over);
            }
        });
        // The wait does not depend on it.
        thread.ok()?;
        Some(Self { line, waits: Some(waits) })
    }
}

impl Drop for Progress {
    /// Does not wait for the thread, which may be waiting for the server.
    fn drop(&mut self) {
        let is_written = self.line.lock();
        if *is_written {
            write_err(CLEAR.into());
            flush_err(CLEARING);
        }
        self.waits = None;
    }
}

/// Reports once what the wait is for, if it lasts.
fn say_once(survey: &Survey, name: &str, over: &Receiver<Infallible>) {
    if over.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        // The wait itself reports problems of the server.
        let rest = survey.report(name).map(|report| describe(&report)).unwrap_or_default();
        say(&format!("waiting for lock {name:?}{rest}"));
    }
}

/// Rewrites the line until the wait is over.
fn write_line(survey: &Survey, name: &str, line: &Mutex<bool>, over: &Receiver<Infallible>) {
    let start = Instant::now();
    let mut pause = FIRST;
    while over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let rest = survey.report(name).map(|report| describe(&report)).unwrap_or_default();
        let waited = start.elapsed().as_secs();
        let text = format!("leasehold: waiting for {name:?} ({waited} s){rest}");
        let text = without_secrets(&text);
        let mut is_written = line.lock();
        // Lines do not pile up behind a terminal that is stopped.
        if over.try_recv() == Err(TryRecvError::Empty) && is_err_written() {
            write_err(format!("{CLEAR}{}", cut(&text)));
            *is_written = true;
        }
        pause = PERIOD;
    }
}

/// Returns the holder of the lock, when the hold began, how much of the lease is left, and how many
/// clients wait.
fn describe(report: &NameReport) -> String {
    let mut text = String::new();
    if let Some((held_as, holder)) = report.holds.first() {
        // A lock of another library has neither.
        let names = [&*holder.label, &*holder.client, "another library"];
        let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        text = format!(", held by {}", printable(name));
        if let Some(note) = &holder.note {
            text = format!("{text} ({})", printable(note));
        }
        if report.holds.len() > 1 {
            text = format!("{text} and {} more", report.holds.len() - 1);
        }
        if let Some(begun) = begun(*held_as, holder, report.fence) {
            text = format!("{text}, since {}", in_utc(begun));
        }
        text = format!("{text}, {} left", in_seconds(holder.remaining));
    }
    match report.waiting.len() {
        0 | 1 => text,
        waiting => format!("{text}, {waiting} waiting"),
    }
}

/// Cuts a line to the width of the terminal.
fn cut(line: &str) -> String {
    // A terminal that does not know its width counts as 80 columns wide.
    let columns = columns().filter(|columns| *columns > 0).unwrap_or(80);
    line.chars().take(columns - 1).collect()
}

#[cfg(unix)]
fn columns() -> Option<usize> {
    Some(tcgetwinsize(io::stderr()).ok()?.ws_col.into())
}

/// Windows has no safe call for this.
#[cfg(windows)]
fn columns() -> Option<usize> {
    None
}
