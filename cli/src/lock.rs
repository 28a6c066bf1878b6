//! `lock`, `renew` and `release`, for a lock that a script holds by its ticket, without a process;
//! and the wait for a lock, which a signal ends.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use leasehold::{Builder, Canceller, Client, Error, Ticket};
use serde_json::json;

use crate::args::{HowToAcquire, ServerArgs, with};
use crate::child::{ReceivedSignals, for_a_moment};
use crate::held::{Access, refuse_to_wait_for_itself};
use crate::output::{ExitError, SUCCESS, in_seconds, json_text, require_stdout, say, write_out};
use crate::progress::Progress;

/// Longer than any ticket: a name, a prefix and a label have at most 64 KB, and take three
/// characters per byte.
const TICKET_MAX: u64 = 1 << 20;

/// Acquires the lock, prints its ticket, and leaves it held for the rest of its lease.
pub(crate) fn lock(
    server: &ServerArgs,
    how: &HowToAcquire,
    name: &str,
    json: bool,
) -> Result<i32, ExitError> {
    require_stdout()?;
    let Acquired { hold, client, signals } =
        acquire(server, how, name, Access::Alone, |client, canceller| {
            client.mutex(name).cancelled_by(canceller).lock_owned()
        })?;
    let shown_name = name.to_owned();
    let printed = signals.unless_received(move || {
        let ticket = hold.detach()?;
        let text = ticket.to_string();
        let text = if json {
            json_text(&json!({ "name": shown_name, "fence": ticket.fence(), "ticket": text }))
        } else {
            text + "\n"
        };
        write_out(&text).map_err(ExitError::system("write to stdout"))
    });
    printed.and_then(|printed| printed).inspect_err(|_| {
        // No process has the ticket.
        let name = name.to_owned();
        for_a_moment(move || end_own_holds(&client, &name));
    })?;
    Ok(SUCCESS)
}

/// Renews the lease of a ticket's hold. The ticket stays valid.
pub(crate) fn renew(server: &ServerArgs, ticket: &str) -> Result<i32, ExitError> {
    let ticket = read_ticket(ticket)?;
    server.open()?.renew_ticket(&ticket)?;
    Ok(SUCCESS)
}

pub(crate) fn release(server: &ServerArgs, ticket: &str) -> Result<i32, ExitError> {
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

/// Opens a client and acquires the lock of that name with `lock`, unless a signal ends the wait.
pub(crate) fn acquire<H>(
    server: &ServerArgs,
    how: &HowToAcquire,
    name: &str,
    access: Access,
    lock: impl FnOnce(&Client, &Canceller) -> leasehold::Result<H>,
) -> Result<Acquired<H>, ExitError> {
    let wait = if how.nonblock { how.wait.or(Some(Duration::ZERO)) } else { how.wait };
    let canceller = Canceller::new();
    let signals =
        ReceivedSignals::start(&canceller).map_err(ExitError::system("receive signals"))?;
    // Neither a signal nor the end of the wait would interrupt opening.
    let builder = server.builder()?.lazy(true);
    let builder = with(builder, how.label.as_deref(), Builder::label);
    let builder = with(builder, how.lease, Builder::lease);
    let builder = with(builder, how.note.as_deref(), Builder::note);
    let client = with(builder, wait, Builder::wait).build()?;
    let survey = client.survey();
    if survey.wait().is_none() {
        // A wait without a limit would never report that the server is away.
        let asked = survey.clone();
        let its_name = name.to_owned();
        let answered = signals.unless_received(move || asked.report(&its_name))?;
        answered.map_err(|error| not_connected(error, name))?;
    }
    refuse_to_wait_for_itself(&survey, &signals, name, access)?;
    let begin = Instant::now();
    let progress = Progress::start(survey, how, name);
    let locked = lock(&client, &canceller);
    drop(progress);
    if how.verbose && locked.is_ok() {
        say(&format!("acquired lock {name:?} after {}", in_seconds(begin.elapsed())));
    }
    match (locked, signals.next_forwarded()) {
        // If the lock was acquired after all, dropping the hold releases it.
        (Ok(_) | Err(Error::Cancelled { .. }), Some(signal)) => Err(ExitError::of_signal(signal)),
        (Ok(hold), None) => Ok(Acquired { hold, client, signals }),
        (Err(error @ Error::Timeout { .. }), _) => {
            let message = if how.quiet { String::new() } else { error.to_string() };
            Err(ExitError::new(how.conflict_exit_code, message))
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// Ends the holds of this client, including a lock that stays taken.
pub(crate) fn end_own_holds(client: &Client, name: &str) -> leasehold::Result<()> {
    let survey = client.survey();
    let report = survey.report(name)?;
    for hold in report.holds.iter().filter(|(_, holder)| holder.client == client.id()) {
        survey.end_hold(&report, hold)?;
    }
    Ok(())
}

/// Rewords the error of a question, because the user asked for a lock.
fn not_connected(mut error: Error, name: &str) -> Error {
    if let Error::NoQuorum { attempt, .. }
    | Error::Redis { attempt, .. }
    | Error::Unavailable { attempt, .. } = &mut error
    {
        *attempt = format!("acquire lock {name:?}");
    }
    error
}
