//! What happens while the command runs.

use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select};
use signal_hook::consts::{SIGCHLD, SIGTSTP};

use crate::child::Child;
use crate::hold::Hold;
use crate::signals::stop_this_process;

/// The command is killed so long before the lease ends, for the system to do it in time.
const KILL_TIME: Duration = Duration::from_millis(50);

/// How often to look whether the command has ended, once it must.
const LOOK: Duration = Duration::from_millis(20);

/// Why there is nothing more to wait for.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The command has ended, by itself or by a signal that was passed on.
    Command(ExitStatus),
    /// The lease is lost, or was not renewed for so long that the command could else not end before
    /// it. The command must be stopped.
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
    pub(crate) fn new(hold: &Hold, kill_after: Duration) -> Self {
        Self { lease: hold.remaining(), kill_after }
    }

    /// With so much of the lease left the command must begin to end. Renewals begin with two thirds
    /// left, so that one third at least is for repeating them.
    fn margin(self) -> Duration {
        self.kill_after.saturating_add(KILL_TIME).min(self.lease / 3)
    }

    /// How long the command has with so much of the lease left, or with none if it is lost.
    pub(crate) fn grace(self, left: Duration) -> Duration {
        let is_lost = left.is_zero();
        if is_lost { self.kill_after } else { self.kill_after.min(left.saturating_sub(KILL_TIME)) }
    }
}

/// Waits for the end of the command, or until it must be stopped, and passes signals on to it.
pub(crate) fn supervise(
    child: &mut Child,
    hold: &Hold,
    signals: &Receiver<i32>,
    limits: Limits,
) -> io::Result<Ended> {
    let lost = hold.lost();
    loop {
        let left = hold.remaining();
        let safe = left.saturating_sub(limits.margin());
        if safe.is_zero() {
            return Ok(Ended::Lease { left });
        }
        select! {
            recv(signals) -> signal => {
                let ended = receive(child, signal.ok())?;
                if let Some(status) = ended {
                    return Ok(Ended::Command(status));
                }
            }
            recv(lost.receiver()) -> _ => {}
            default(safe) => {}
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
