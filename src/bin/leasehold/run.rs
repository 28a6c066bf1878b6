//! `run`: a command while the lock is held.

use std::io;
use std::time::Duration;

use crossbeam_channel::Receiver;
use leasehold::{Builder, Canceller, Error};

use crate::args::{Run, ServerArgs};
use crate::child::{Child, code_of, has_own_group};
use crate::connect;
use crate::exit::{ExitError, LOST, of_signal};
use crate::hold::Hold;
use crate::output::say;
use crate::progress::ProgressLine;
use crate::signals::ReceivedSignals;
use crate::supervisor::{Ended, Limits, stop, supervise};

/// Acquires the lock, runs the command, releases the lock, and returns the command's status.
pub(crate) fn run(server: &ServerArgs, run: &Run) -> Result<u8, ExitError> {
    let wait = run.wait.or(run.nonblock.then_some(Duration::ZERO));
    let set = |builder: Builder| {
        let builder = if let Some(lease) = run.lease { builder.lease(lease) } else { builder };
        if let Some(wait) = wait { builder.wait(wait) } else { builder }
    };
    // Until this is done a signal ends this process, as nothing is held.
    let client = connect::open_with(server, set)?;
    let canceller = Canceller::new();
    let cannot_receive = |error| ExitError::system("receive signals", &error);
    let signals = ReceivedSignals::start(&canceller).map_err(cannot_receive)?;
    let progress = ProgressLine::start(&client, run);
    let hold = Hold::acquire(&client, run, &canceller);
    drop(progress);
    match (hold, signals.next_forwarded()) {
        (Ok(hold), None) => {
            let limits = Limits::new(&hold, run.kill_after);
            if has_own_group() {
                signals.add_stop().map_err(cannot_receive)?;
            }
            let mut child = Child::start(&run.command, &environment(run, &hold))?;
            let outcome = attend(run, &mut child, hold, &signals.receiver, limits);
            outcome.map_err(|error| {
                // It would go on without the lock.
                child.kill();
                ExitError::system("wait for the command", &error)
            })?
        }
        (Ok(hold), Some(signal)) => {
            release(hold)?;
            Ok(of_signal(signal))
        }
        (Err(Error::Cancelled { .. }), Some(signal)) => Ok(of_signal(signal)),
        (Err(error), _) => Err(not_acquired(error, run)),
    }
}

/// What the command finds in its environment. Variables without a value are removed, so that it
/// does not take those of an outer `run` for its own.
fn environment<'a>(run: &Run, hold: &Hold) -> [(&'a str, Option<String>); 2] {
    let fence = hold.fence().map(|fence| fence.to_string());
    [("LEASEHOLD_NAME", Some(run.name.clone())), ("LEASEHOLD_FENCE", fence)]
}

fn not_acquired(error: Error, run: &Run) -> ExitError {
    let is_timeout = matches!(error, Error::Timeout { .. });
    let error = ExitError::from(error);
    match (is_timeout, run.quiet) {
        (false, _) => error,
        (true, false) => error.with_code(run.conflict_exit_code),
        (true, true) => error.with_code(run.conflict_exit_code).silent(),
    }
}

/// Waits for the end of the command, and releases the lock.
fn attend(
    run: &Run,
    child: &mut Child,
    hold: Hold,
    signals: &Receiver<i32>,
    limits: Limits,
) -> io::Result<Result<u8, ExitError>> {
    match supervise(child, &hold, signals, limits)? {
        Ended::Command(status) => Ok(release(hold).map(|()| code_of(status))),
        Ended::Lease { left } => {
            let why = if left.is_zero() { "is lost" } else { "could not be renewed" };
            say(&format!("lock {:?} {why}: stopping the command", run.name));
            stop(child, signals, limits.grace(left))?;
            Ok(Ok(LOST))
        }
    }
}

/// Releases the lock.
///
/// # Errors
///
/// Only if the lock was lost before. Otherwise it ends with its lease, if it cannot be released.
fn release(hold: Hold) -> Result<(), ExitError> {
    match hold.release() {
        Err(error @ Error::Lost { .. }) => Err(error.into()),
        Err(error) => {
            say(&format!("{error}; the lock lasts until its lease ends"));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
