//! `run`: a command while the lock is held.

use leasehold::{Canceller, Client, Error};

use crate::args::{Run, ServerArgs};
use crate::child::{Child, can_be_stopped, code_of};
use crate::output::{ExitError, LOST, of_signal, say};
use crate::signals::ReceivedSignals;
use crate::supervisor::{CommandHold, Ended, Limits, stop, supervise};
use crate::waiting::{Acquired, acquire};

/// Acquires the lock, runs the command, releases the lock, and returns the command's status.
pub(crate) fn run(server: &ServerArgs, run: &Run) -> Result<u8, ExitError> {
    let lock =
        |client: &Client, canceller: &Canceller| CommandHold::acquire(client, run, canceller);
    let Acquired { hold, client, signals } = acquire(server, &run.how, &run.name, lock)?;
    match signals.next_forwarded() {
        None => run_under(hold, &client, run, &signals),
        Some(signal) => {
            release(hold)?;
            Ok(of_signal(signal))
        }
    }
}

/// What the command finds in its environment. Variables without a value are removed, so that it
/// does not take those of an outer `run` for its own.
fn environment<'a>(run: &Run, hold: &CommandHold) -> [(&'a str, Option<String>); 2] {
    let fence = hold.guard.fence().map(|fence| fence.to_string());
    [("LEASEHOLD_NAME", Some(run.name.clone())), ("LEASEHOLD_FENCE", fence)]
}

/// Runs the command, and releases the lock when it has ended.
fn run_under(
    hold: CommandHold,
    client: &Client,
    run: &Run,
    signals: &ReceivedSignals,
) -> Result<u8, ExitError> {
    let limits = Limits::new(&*hold.guard, run.kill_after);
    if can_be_stopped() {
        let added = signals.add_stop();
        added.map_err(|error| ExitError::system("receive SIGTSTP", &error))?;
    }
    let cannot_wait = |error| ExitError::system("wait for the command", &error);
    let mut child = match Child::start(&run.command, &environment(run, &hold)) {
        Ok(child) => child,
        Err(error) => return release_unused(hold, client, run).and(Err(error)),
    };
    let make_way = hold.make_way();
    match supervise(&mut child, &*hold.guard, &signals.receiver, limits, make_way) {
        Ok(Ended::Command(status)) if child.was_not_run() => {
            release_unused(hold, client, run).map(|()| code_of(status))
        }
        Ok(Ended::Command(status)) => release(hold).map(|()| code_of(status)),
        Ok(Ended::Lease { left }) => {
            let why = if left.is_zero() { "is lost" } else { "could not be renewed" };
            say(&format!("lock {:?} {why}: stopping the command", run.name));
            stop(&mut child, &signals.receiver, limits.grace(left)).map_err(cannot_wait)?;
            Ok(LOST)
        }
        Err(error) => {
            // It would go on without the lock.
            child.kill();
            Err(cannot_wait(error))
        }
    }
}

/// Releases the lock.
///
/// # Errors
///
/// Only if the lock was lost before. Otherwise it ends with its lease, if it cannot be released.
fn release(hold: CommandHold) -> Result<(), ExitError> {
    match hold.guard.unlock() {
        Err(error @ Error::Lost { .. }) => Err(error.into()),
        Err(error) => {
            say(&format!("{error}; the lock lasts until its lease ends"));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Releases the lock of a command that could not be run, at once, so that another host may run it.
///
/// # Errors
///
/// As `release`.
fn release_unused(hold: CommandHold, client: &Client, run: &Run) -> Result<(), ExitError> {
    release(hold)?;
    if run.hold_at_least.is_some()
        && let Err(error) = client.survey().end_own_holds(&run.name)
    {
        say(&format!("{error}; the lock stays taken"));
    }
    Ok(())
}
