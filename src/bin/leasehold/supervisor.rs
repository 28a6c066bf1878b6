//! The hold that a command runs under, and what happens while it runs.

use std::convert::Infallible;
use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, select};
use leasehold::{AnyGuard, Canceller, Client, Wanted};
use signal_hook::consts::{SIGCHLD, SIGTSTP};

use crate::args::Run;
use crate::child::Child;
use crate::signals::stop_this_process;

/// How long before the end of the lease the command is killed, so that the system does it in time.
const KILL_TIME: Duration = Duration::from_millis(50);

/// How long a command has to install its handler for the signal that tells it that others wait.
/// Before that the signal would end it, even if others wait from the start.
const START_TIME: Duration = Duration::from_secs(1);

/// How often to check whether a command that must end has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What the command runs under: a lock, a side of a read-write lock, or a permit.
#[derive(Debug)]
pub(crate) struct CommandHold {
    pub(crate) guard: Box<dyn AnyGuard>,
    /// What the command is told of another client that waits, if it is to be told.
    wanted: Option<(Wanted, i32)>,
}

impl CommandHold {
    /// Waits for what the command line asks for.
    pub(crate) fn acquire(
        client: &Client,
        run: &Run,
        canceller: &Canceller,
    ) -> leasehold::Result<Self> {
        let rw_lock = || client.rw_lock(&run.name).cancelled_by(canceller);
        let guard: Box<dyn AnyGuard> = if let Some(permits) = run.permits {
            Box::new(client.semaphore(&run.name, permits).cancelled_by(canceller).acquire()?)
        } else if run.shared {
            Box::new(rw_lock().read()?)
        } else if run.exclusive {
            Box::new(rw_lock().write()?)
        } else {
            let least = run.hold_at_least.unwrap_or_default();
            let mutex = client.mutex(&run.name).hold_at_least(least).cancelled_by(canceller);
            let guard = mutex.lock_owned()?;
            let wanted = run.yield_signal.map(|signal| (guard.wanted(), signal));
            return Ok(Self { guard: Box::new(guard), wanted });
        };
        Ok(Self { guard, wanted: None })
    }

    /// The signal to send once another client waits; `None` if there is none to send.
    pub(crate) fn make_way(&self) -> Option<MakeWay> {
        let (wanted, signal) = self.wanted.clone()?;
        Some(MakeWay { wanted, signal, not_before: Instant::now() + START_TIME })
    }
}

/// How the command learns that another client waits for the lock.
#[derive(Debug)]
pub(crate) struct MakeWay {
    wanted: Wanted,
    signal: i32,
    not_before: Instant,
}

impl MakeWay {
    /// Returns what to wait for, and for how long it is too early for that.
    fn watch(&self) -> (Receiver<Infallible>, Duration) {
        let early = self.not_before.saturating_duration_since(Instant::now());
        let wanted = if early.is_zero() { self.wanted.receiver().clone() } else { never() };
        (wanted, early)
    }
}

/// Why the wait for the command is over.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The command has ended, by itself or by a signal that was passed on.
    Command(ExitStatus),
    /// The lease is lost, or has been without renewal for too long for the command to end in time
    /// by itself. The command must be stopped.
    Lease {
        /// What is left of it.
        left: Duration,
    },
}

/// What decides when a command must end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    lease: Duration,
    /// How long the command has between SIGTERM and SIGKILL.
    kill_after: Duration,
}

impl Limits {
    /// For a hold that has just begun, so that all of its lease is left.
    pub(crate) fn new(guard: &dyn AnyGuard, kill_after: Duration) -> Self {
        Self { lease: guard.remaining(), kill_after }
    }

    /// How much of the lease is left when the command must be told to end. Renewals begin when two
    /// thirds are left, so at least one third remains for repeating them.
    fn margin(self) -> Duration {
        self.kill_after.saturating_add(KILL_TIME).min(self.lease / 3)
    }

    /// How long the command has to end when this much of the lease is left. A lost lease has
    /// nothing left.
    pub(crate) fn grace(self, left: Duration) -> Duration {
        let is_lost = left.is_zero();
        if is_lost { self.kill_after } else { self.kill_after.min(left.saturating_sub(KILL_TIME)) }
    }
}

/// Waits until the command has ended or must be stopped. Passes signals on to it, and tells it once
/// if another client waits.
pub(crate) fn supervise(
    child: &mut Child,
    guard: &dyn AnyGuard,
    signals: &Receiver<i32>,
    limits: Limits,
    mut make_way: Option<MakeWay>,
) -> io::Result<Ended> {
    let lost = guard.lost();
    loop {
        let left = guard.remaining();
        let safe = left.saturating_sub(limits.margin());
        if safe.is_zero() {
            return Ok(Ended::Lease { left });
        }
        let (wanted, early) = make_way.as_ref().map_or((never(), Duration::ZERO), MakeWay::watch);
        let wait = if early.is_zero() { safe } else { early.min(safe) };
        select! {
            recv(signals) -> signal => {
                let ended = receive(child, signal.ok())?;
                if let Some(status) = ended {
                    return Ok(Ended::Command(status));
                }
            }
            recv(lost.receiver()) -> _ => {}
            recv(wanted) -> _ => {
                // It is disconnected from now on.
                if let Some(MakeWay { wanted, signal, .. }) = make_way.take()
                    && wanted.is_wanted()
                {
                    child.send(signal);
                }
            }
            default(wait) => {}
        }
    }
}

/// Ends the command, and all processes of its own group. SIGTERM comes at once, SIGKILL when
/// `grace` is over.
pub(crate) fn stop(child: &mut Child, signals: &Receiver<i32>, grace: Duration) -> io::Result<()> {
    // None: a grace that never ends.
    let kill_at = Instant::now().checked_add(grace);
    let mut has_ended = false;
    child.terminate();
    while !has_ended || child.has_group() {
        let is_over = kill_at.is_some_and(|time| Instant::now() >= time);
        if is_over {
            child.kill();
        }
        if is_over && has_ended {
            // Processes that were killed may still count until their parent has noticed.
            break;
        }
        let signal = signals.recv_timeout(LOOK).ok();
        has_ended = has_ended || receive(child, signal)?.is_some();
    }
    Ok(())
}

/// Passes on a signal, and returns the status of the command if it has ended.
fn receive(child: &mut Child, signal: Option<i32>) -> io::Result<Option<ExitStatus>> {
    match signal {
        None | Some(SIGCHLD) => {}
        Some(SIGTSTP) => {
            // While this process is stopped, the lease is not renewed.
            child.suspend();
            stop_this_process()?;
            child.resume();
        }
        Some(signal) => child.forward(signal),
    }
    child.try_wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_command_ends_before_its_lease_where_there_is_time() {
        let limits = Limits { lease: ms(30_000), kill_after: ms(5000) };
        assert_eq!(limits.margin(), ms(5050));
        assert_eq!(limits.grace(limits.margin()), ms(5000));
        assert_eq!(limits.grace(Duration::ZERO), ms(5000), "it is too late");
        let short = Limits { lease: ms(3000), ..limits };
        assert_eq!(short.margin(), ms(1000), "time for renewals is left");
        assert_eq!(short.grace(short.margin()), ms(950));
    }
}
