//! What happens while the command runs.

use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select};
use signal_hook::consts::SIGCHLD;

use crate::child::Child;
use crate::hold::Hold;

/// The command is killed so long before the lease ends, for the system to do it in time.
const KILL_TIME: Duration = Duration::from_millis(50);

/// How often to look whether the command has ended, once it must.
const LOOK: Duration = Duration::from_millis(20);

/// How the command has ended.
#[derive(Debug)]
pub(crate) enum End {
    /// By itself, or by a signal that was passed on.
    Ended(ExitStatus),
    /// Because the lease was lost, or was about to end.
    Stopped,
}

/// What decides when a command must end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) lease: Duration,
    /// How long the command has between SIGTERM and SIGKILL.
    pub(crate) kill_after: Duration,
}

impl Limits {
    /// With so much of the lease left the command must begin to end. Renewals begin with two thirds
    /// left, so that one third at least is for repeating them.
    fn margin(self) -> Duration {
        self.kill_after.saturating_add(KILL_TIME).min(self.lease / 3)
    }

    /// How long the command has with so much of the lease left, or with none if it is lost.
    fn grace(self, left: Duration) -> Duration {
        let is_lost = left.is_zero();
        if is_lost { self.kill_after } else { self.kill_after.min(left.saturating_sub(KILL_TIME)) }
    }
}

/// Waits for the end of the command, and passes signals on to it. Stops it if the lease is lost, or
/// has not been renewed for so long that the command could else not end before it.
pub(crate) fn supervise(
    child: &mut Child,
    hold: &Hold,
    signals: &Receiver<i32>,
    limits: Limits,
) -> io::Result<End> {
    let lost = hold.lost();
    loop {
        let left = hold.remaining();
        let safe = left.saturating_sub(limits.margin());
        if safe.is_zero() {
            stop(child, signals, limits.grace(left))?;
            return Ok(End::Stopped);
        }
        select! {
            recv(signals) -> signal => {
                let ended = receive(child, signal.ok())?;
                if let Some(status) = ended {
                    return Ok(End::Ended(status));
                }
            }
            recv(lost.receiver()) -> _ => {}
            default(safe) => {}
        }
    }
}

/// Ends the command, and all processes of its own group. SIGTERM comes at once, SIGKILL when
/// `grace` is over.
fn stop(child: &mut Child, signals: &Receiver<i32>, grace: Duration) -> io::Result<()> {
    let kill_at = Instant::now() + grace;
    let mut has_ended = false;
    child.terminate();
    while !has_ended || child.has_group() {
        let is_over = Instant::now() >= kill_at;
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
    if let Some(signal) = signal.filter(|signal| *signal != SIGCHLD) {
        child.forward(signal);
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
