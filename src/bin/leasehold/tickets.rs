//! `lock`, `renew` and `release`: a lock that a script holds by its ticket, without a process.

use std::io::{self, Read};

use leasehold::{OwnedGuard, Ticket};
use serde_json::json;

use crate::args::{HowToAcquire, ServerArgs};
use crate::output::{ExitError, SUCCESS, of_signal, write_out};
use crate::waiting::{Acquired, acquire};

/// Longer than any ticket: a name, a prefix and a label have 64 KB at most, and three characters
/// for each byte.
const TICKET_MAX: u64 = 1 << 20;

/// Acquires the lock, prints its ticket, and leaves it held for the rest of its lease.
pub(crate) fn lock(
    server: &ServerArgs,
    how: &HowToAcquire,
    name: &str,
    json: bool,
) -> Result<u8, ExitError> {
    let Acquired { hold, client, signals } = acquire(server, how, name, |client, canceller| {
        client.mutex(name).cancelled_by(canceller).lock_owned()
    })?;
    if let Some(signal) = signals.next_forwarded() {
        hold.unlock()?;
        return Ok(of_signal(signal));
    }
    let ticket = hold.detach()?;
    let text = if json {
        let shown = json!({ "name": name, "fence": ticket.fence(), "ticket": ticket.to_string() });
        format!("{shown:#}\n")
    } else {
        format!("{ticket}\n")
    };
    if let Err(error) = write_out(&text) {
        // The ticket was never printed.
        client.adopt(&ticket)?.unlock()?;
        return Err(ExitError::system("write to stdout", &error));
    }
    Ok(SUCCESS)
}

/// Renews the lease of a ticket's hold. The ticket stays valid.
pub(crate) fn renew(server: &ServerArgs, ticket: &str) -> Result<u8, ExitError> {
    adopt(server, ticket)?.detach().map(drop)?;
    Ok(SUCCESS)
}

/// Releases a ticket's hold.
pub(crate) fn release(server: &ServerArgs, ticket: &str) -> Result<u8, ExitError> {
    adopt(server, ticket)?.unlock()?;
    Ok(SUCCESS)
}

/// Adopts the hold of a ticket; `-` means the ticket on stdin.
fn adopt(server: &ServerArgs, ticket: &str) -> Result<OwnedGuard, ExitError> {
    let ticket = match ticket {
        "-" => {
            let mut read = Vec::new();
            let end = io::stdin().take(TICKET_MAX).read_to_end(&mut read);
            end.map_err(|error| ExitError::system("read the ticket", &error))?;
            String::from_utf8_lossy(&read).into_owned()
        }
        ticket => ticket.to_owned(),
    };
    // Parsed here, because an error message of clap would repeat it.
    let ticket: Ticket = ticket.trim().parse().map_err(ExitError::from)?;
    let client = server.open(|builder| builder)?;
    Ok(client.adopt(&ticket)?)
}
