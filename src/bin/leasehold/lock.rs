//! `lock`, `renew` and `release`: a lock that a script holds by its ticket, without a process. And
//! the wait for a lock, which a signal ends, with the line that says on a terminal what it waits
//! for.

use std::convert::Infallible;
use std::io::{self, IsTerminal, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use leasehold::{Builder, Canceller, Client, Error, NameReport, Survey, Ticket, printable};
use parking_lot::Mutex;
use rustix::termios::tcgetwinsize;
use serde_json::json;

use crate::args::{HowToAcquire, ServerArgs, with};
use crate::child::ReceivedSignals;
use crate::output::{ExitError, SUCCESS, in_seconds, of_signal, write_out};

/// Longer than any ticket: a name, a prefix and a label have 64 KB at most, and take three
/// characters per byte.
const TICKET_MAX: u64 = 1 << 20;

/// How long a wait lasts before the line is written.
const FIRST: Duration = Duration::from_millis(300);
const PERIOD: Duration = Duration::from_secs(1);

/// Moves to the start of the line, and clears it.
const CLEAR: &str = "\r\x1b[K";

/// Acquires the lock, prints its ticket, and leaves it held for the rest of its lease.
pub(crate) fn lock(
    server: &ServerArgs,
    how: &HowToAcquire,
    name: &str,
    json: bool,
) -> Result<u8, ExitError> {
    let Acquired { hold, client, .. } = acquire(server, how, name, |client, canceller| {
        client.mutex(name).cancelled_by(canceller).lock_owned()
    })?;
    let ticket = hold.detach()?;
    let (fence, mut text) = (ticket.fence(), ticket.to_string());
    if json {
        text = format!("{:#}", json!({ "name": name, "fence": fence, "ticket": text }));
    }
    if let Err(error) = write_out(&(text + "\n")) {
        // The ticket was never printed.
        client.release_ticket(&ticket)?;
        return Err(ExitError::system("write to stdout")(error));
    }
    Ok(SUCCESS)
}

/// Renews the lease of a ticket's hold. The ticket stays valid.
pub(crate) fn renew(server: &ServerArgs, ticket: &str) -> Result<u8, ExitError> {
    let ticket = read_ticket(ticket)?;
    server.open()?.renew_ticket(&ticket)?;
    Ok(SUCCESS)
}

pub(crate) fn release(server: &ServerArgs, ticket: &str) -> Result<u8, ExitError> {
    let ticket = read_ticket(ticket)?;
    server.open()?.release_ticket(&ticket)?;
    Ok(SUCCESS)
}

/// Parses a ticket; `-` means the one on stdin.
fn read_ticket(ticket: &str) -> Result<Ticket, ExitError> {
    let ticket = match ticket {
        "-" => {
            let mut read = Vec::new();
            let end = io::stdin().take(TICKET_MAX).read_to_end(&mut read);
            end.map_err(ExitError::system("read the ticket"))?;
            String::from_utf8_lossy(&read).into_owned()
        }
        ticket => ticket.to_owned(),
    };
    // Parsed here, because an error message of clap would repeat it.
    ticket.trim().parse().map_err(ExitError::from)
}

/// The hold that was acquired, and what the program needs afterwards.
#[derive(Debug)]
pub(crate) struct Acquired<H> {
    pub(crate) hold: H,
    pub(crate) client: Client,
    pub(crate) signals: ReceivedSignals,
}

/// Opens a client and acquires the lock of that name by `lock`, unless a signal ends the wait.
pub(crate) fn acquire<H>(
    server: &ServerArgs,
    how: &HowToAcquire,
    name: &str,
    lock: impl FnOnce(&Client, &Canceller) -> leasehold::Result<H>,
) -> Result<Acquired<H>, ExitError> {
    let wait = how.wait.or(how.nonblock.then_some(Duration::ZERO));
    let canceller = Canceller::new();
    let signals =
        ReceivedSignals::start(&canceller).map_err(ExitError::system("receive signals"))?;
    // Neither a signal nor the end of the wait would interrupt opening.
    let builder = server.builder()?.lazy(true);
    let builder = with(builder, how.label.as_deref(), Builder::label);
    let builder = with(builder, how.lease, Builder::lease);
    let client = with(builder, wait, Builder::wait).build()?;
    if wait.is_none() {
        // A wait without a limit would never report that the server is away.
        client.survey().report(name).map_err(|error| not_connected(error, name))?;
    }
    let progress = ProgressLine::start(&client, how.quiet, name);
    let locked = lock(&client, &canceller);
    drop(progress);
    match (locked, signals.next_forwarded()) {
        // If the lock was acquired nevertheless, dropping the hold releases it.
        (Ok(_) | Err(Error::Cancelled { .. }), Some(signal)) => {
            Err(ExitError::new(of_signal(signal), ""))
        }
        (Ok(hold), None) => Ok(Acquired { hold, client, signals }),
        (Err(error @ Error::Timeout { .. }), _) => {
            let message = if how.quiet { String::new() } else { error.to_string() };
            Err(ExitError::new(how.conflict_exit_code, message))
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// Rewords the error of a question: the user asked for a lock.
fn not_connected(mut error: Error, name: &str) -> Error {
    if let Error::NoQuorum { attempt, .. }
    | Error::Redis { attempt, .. }
    | Error::Unavailable { attempt, .. } = &mut error
    {
        *attempt = format!("acquire lock {name:?}");
    }
    error
}

/// The line on the terminal, until this is dropped.
#[derive(Debug)]
struct ProgressLine {
    /// Whether it was written.
    line: Arc<Mutex<bool>>,
    /// `None` once the wait has ended and the line stays clear.
    waits: Option<Sender<Infallible>>,
}

impl ProgressLine {
    /// Starts to write the line, if stderr is a terminal.
    fn start(client: &Client, quiet: bool, name: &str) -> Option<Self> {
        if quiet || !io::stderr().is_terminal() {
            return None;
        }
        let (waits, over) = bounded(0);
        let line = Arc::new(Mutex::new(false));
        let (survey, name, shared) = (client.survey(), name.to_owned(), line.clone());
        let thread = thread::Builder::new().name("leasehold-progress".into());
        // The wait does not depend on the line.
        thread.spawn(move || write_line(&survey, &name, &shared, &over)).ok()?;
        Some(Self { line, waits: Some(waits) })
    }
}

impl Drop for ProgressLine {
    /// Does not wait for the thread, which may be waiting for the server.
    fn drop(&mut self) {
        let is_written = self.line.lock();
        if *is_written {
            write!(io::stderr(), "{CLEAR}").ok();
        }
        self.waits = None;
    }
}

/// Rewrites the line until the wait is over.
fn write_line(survey: &Survey, name: &str, line: &Mutex<bool>, over: &Receiver<Infallible>) {
    let (start, mut pause) = (Instant::now(), FIRST);
    while over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        // The wait itself reports what is wrong with the server.
        let rest = survey.report(name).map(|report| describe(&report)).unwrap_or_default();
        let waited = start.elapsed().as_secs();
        let text = format!("leasehold: waiting for {name:?} ({waited} s){rest}");
        let mut is_written = line.lock();
        if over.try_recv() == Err(TryRecvError::Empty) {
            // The terminal may be gone.
            write!(io::stderr(), "{CLEAR}{}", cut(&text)).ok();
            *is_written = true;
        }
        pause = PERIOD;
    }
}

/// Who holds the lock and for how long, and how many wait.
fn describe(report: &NameReport) -> String {
    let mut text = String::new();
    if let Some((_, holder)) = report.holds.first() {
        // A lock of another library has neither.
        let names = [&*holder.label, &*holder.client, "another library"];
        let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        text = format!(", held by {}", printable(name));
        if report.holds.len() > 1 {
            text = format!("{text} and {} more", report.holds.len() - 1);
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
    let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    // A terminal that does not know its width has 80 columns.
    let columns = if columns == 0 { 80 } else { columns };
    line.chars().take(columns.saturating_sub(1)).collect()
}
