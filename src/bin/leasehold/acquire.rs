//! The wait for a lock, which a signal ends.

use std::time::Duration;

use leasehold::{Builder, Canceller, Client, Error};

use crate::args::{HowToAcquire, ServerArgs};
use crate::output::{ExitError, of_signal};
use crate::progress::ProgressLine;
use crate::signals::ReceivedSignals;

/// What was acquired, and what the program has from then on. A signal may have come in the
/// meantime.
#[derive(Debug)]
pub(crate) struct Acquired<H> {
    pub(crate) hold: H,
    pub(crate) client: Client,
    pub(crate) signals: ReceivedSignals,
}

/// Opens a client, and has it acquire the lock of that name by `lock`.
pub(crate) fn acquire<H>(
    server: &ServerArgs,
    how: &HowToAcquire,
    name: &str,
    lock: impl FnOnce(&Client, &Canceller) -> leasehold::Result<H>,
) -> Result<Acquired<H>, ExitError> {
    let wait = how.wait.or(how.nonblock.then_some(Duration::ZERO));
    let set = |builder: Builder| {
        // Neither a signal nor the end of the wait would end what opening does.
        let builder = builder.lazy(true);
        let builder = if let Some(label) = &how.label { builder.label(label) } else { builder };
        let builder = if let Some(lease) = how.lease { builder.lease(lease) } else { builder };
        if let Some(wait) = wait { builder.wait(wait) } else { builder }
    };
    let canceller = Canceller::new();
    let signals = ReceivedSignals::start(&canceller)
        .map_err(|error| ExitError::system("receive signals", &error))?;
    let client = server.open(set)?;
    if wait.is_none() {
        // A wait without a limit would never report that the server is away.
        client.ping().map_err(|error| not_connected(error, name))?;
    }
    let progress = ProgressLine::start(&client, how.quiet, name);
    let locked = lock(&client, &canceller);
    drop(progress);
    match locked {
        Ok(hold) => Ok(Acquired { hold, client, signals }),
        Err(error) => match signals.next_forwarded() {
            Some(signal) if matches!(error, Error::Cancelled { .. }) => {
                Err(ExitError::new(of_signal(signal), ""))
            }
            _ => Err(not_acquired(error, how)),
        },
    }
}

/// The error of a ping, which is not what the user has asked for.
fn not_connected(mut error: Error, name: &str) -> Error {
    if let Error::NoQuorum { attempt, .. }
    | Error::Redis { attempt, .. }
    | Error::Unavailable { attempt, .. } = &mut error
    {
        *attempt = format!("acquire lock {name:?}");
    }
    error
}

fn not_acquired(error: Error, how: &HowToAcquire) -> ExitError {
    let is_timeout = matches!(error, Error::Timeout { .. });
    let error = ExitError::from(error);
    match (is_timeout, how.quiet) {
        (false, _) => error,
        (true, false) => error.with_code(how.conflict_exit_code),
        (true, true) => error.with_code(how.conflict_exit_code).silent(),
    }
}
