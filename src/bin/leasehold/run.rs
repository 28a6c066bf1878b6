//! `run`: a command while the lock is held.

use std::io;
use std::time::Duration;

use crossbeam_channel::Receiver;
use leasehold::{Builder, Canceller, Error};

use crate::args::{Run, Server};
use crate::child::{Child, code_of};
use crate::connect;
use crate::exit::{Failure, LOST, Outcome, of_signal};
use crate::hold::Hold;
use crate::output::say;
use crate::progress::Progress;
use crate::signals;
use crate::supervisor::{End, Limits, stop, supervise};

/// Acquires the lock, runs the command, releases the lock, and returns the command's status.
pub(crate) fn run(server: &Server, run: &Run) -> Outcome {
    let wait = run.wait.or(run.nonblock.then_some(Duration::ZERO));
    let set = |builder: Builder| {
        let builder = builder.lease(run.lease);
        if let Some(wait) = wait { builder.wait(wait) } else { builder }
    };
    // Until this is done a signal ends this process, as nothing is held.
    let client = connect::open_with(server, set)?;
    let canceller = Canceller::new();
    let signals =
        signals::receive(&canceller).map_err(|error| Failure::system("receive signals", &error))?;
    let progress = Progress::start(&client, run);
    let hold = Hold::acquire(&client, run, &canceller);
    drop(progress);
    match (hold, signals::next_forwarded(&signals)) {
        (Ok(hold), None) => {
            let mut child = Child::start(&run.command, &environment(run, &hold))?;
            let outcome = attend(run, &mut child, hold, &signals);
            outcome.map_err(|error| {
                // It would go on without the lock.
                child.kill();
                Failure::system("wait for the command", &error)
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

fn not_acquired(error: Error, run: &Run) -> Failure {
    let is_timeout = matches!(error, Error::Timeout { .. });
    let failure = Failure::from(error);
    if !is_timeout {
        return failure;
    }
    let failure = failure.with_code(run.conflict_exit_code);
    if run.quiet { failure.silent() } else { failure }
}

/// Waits for the end of the command, and releases the lock.
fn attend(
    run: &Run,
    child: &mut Child,
    hold: Hold,
    signals: &Receiver<i32>,
) -> io::Result<Outcome> {
    let limits = Limits { lease: run.lease, kill_after: run.kill_after };
    match supervise(child, &hold, signals, limits)? {
        End::Command(status) => Ok(release(hold).map(|()| code_of(status))),
        End::Lease { left } => {
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
fn release(hold: Hold) -> Result<(), Failure> {
    match hold.release() {
        Err(error @ Error::Lost { .. }) => Err(error.into()),
        Err(error) => {
            say(&format!("{error}; the lock lasts until its lease ends"));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
