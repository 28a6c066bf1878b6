//! `run`: runs a command while the lock is held, and supervises it until it has ended.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never, select};
use leasehold::{AnyGuard, Canceller, Client, Error, LossCause, Wanted};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGKILL, SIGSTOP, SIGTERM, SIGTSTP};
use signal_hook::low_level::raise;

use crate::args::{Run, ServerArgs};
use crate::child::{Child, ReceivedSignals, TerminalState, can_be_stopped, code_of};
use crate::held::{self, Access};
use crate::lock::{Acquired, acquire, end_own_holds};
use crate::output::{ExitError, LOST, in_seconds, say};

/// How long before the end of the lease the command is killed, because killing takes time.
const KILL_TIME: Duration = Duration::from_millis(50);

/// How long a command has to install a handler for the signal of `--yield`. Without one, the signal
/// would end it if another client waits from the start.
const START_TIME: Duration = Duration::from_secs(1);

/// How often to check whether the command has ended without a signal that says so.
const CHECK: Duration = Duration::from_secs(1);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How often to check whether a command that must end has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Acquires the lock, runs the command, releases the lock, and returns the command's status.
pub(crate) fn run(server: &ServerArgs, run: &Run) -> Result<u8, ExitError> {
    let lock = |client: &Client, canceller: &Canceller| acquire_for(client, run, canceller);
    let access = match run.permits {
        // A single permit excludes all others.
        Some(2..) => Access::Permit,
        None if run.shared => Access::Read,
        _ => Access::Alone,
    };
    let Acquired { hold, client, signals } = acquire(server, &run.how, &run.name, access, lock)?;
    // Makes `unlock` end the command at once.
    client.listen();
    let (guard, wanted) = hold;
    let make_way = wanted.zip(run.yield_signal);
    // The hold has just begun, so all of its lease is left.
    let limits = Limits { lease: guard.remaining(), kill_after: run.kill_after };
    if can_be_stopped() {
        signals.add_stop().map_err(ExitError::system("receive SIGTSTP"))?;
    }
    // A variable without a value is removed, so that the command does not see that of an outer
    // `run`.
    let fence = guard.fence().map(|fence| fence.to_string());
    let environment = [
        (held::NAME, Some(run.name.clone())),
        (held::CLIENT, Some(client.id().to_owned())),
        ("LEASEHOLD_FENCE", fence),
    ];
    let terminal = TerminalState::save();
    let begin = Instant::now();
    let mut child = match Child::start(&run.command, &environment) {
        Ok(child) => child,
        Err(error) => return release_unused(guard, client, run, &signals).and(Err(error)),
    };
    let ended = supervise(&mut child, &*guard, &signals.receiver, limits, make_way.as_ref());
    if let Ok(Ended::Command(status)) = ended {
        if status.signal().is_some()
            && let Some(terminal) = terminal
        {
            terminal.restore();
        }
        if child.was_not_run() {
            release_unused(guard, client, run, &signals)?;
        } else {
            release(guard, &signals)?;
        }
        if run.how.verbose {
            say(&format!("released lock {:?} after {}", run.name, in_seconds(begin.elapsed())));
        }
        return Ok(code_of(status));
    }
    let stopped = match ended {
        Ok(Ended::Lease { left }) => {
            let grace = limits.grace(left);
            child.end(SIGTERM);
            let why = match guard.lost().cause() {
                Some(LossCause::Forced) => "was ended by an operator".into(),
                Some(cause) => format!("is lost, because {cause}"),
                None => "could not be renewed".into(),
            };
            let kill = if grace < DAY {
                format!(", SIGKILL in {} s", (grace.as_secs_f64() * 10.0).round() / 10.0)
            } else {
                String::new()
            };
            say(&format!("lock {:?} {why}: SIGTERM now{kill}", run.name));
            stop(&mut child, &signals.receiver, grace).map(|()| LOST)
        }
        Err(error) => Err(error),
        Ok(Ended::Command(status)) => Ok(code_of(status)),
    };
    if stopped.is_err() {
        // The command would continue without the lock.
        child.end(SIGKILL);
    }
    if let Some(terminal) = terminal {
        terminal.restore();
    }
    stopped.map_err(ExitError::system("wait for the command"))
}

/// Releases the lock.
///
/// # Errors
///
/// Only if the lock was lost before, or if a signal is received. A lock that cannot be released
/// otherwise ends with its lease.
fn release(guard: Held, signals: &ReceivedSignals) -> Result<(), ExitError> {
    match signals.unless_received(|| guard.unlock())? {
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
/// The same as `release`.
fn release_unused(
    guard: Held,
    client: Client,
    run: &Run,
    signals: &ReceivedSignals,
) -> Result<(), ExitError> {
    release(guard, signals)?;
    let name = run.name.clone();
    if run.hold_at_least.is_some()
        && let Err(error) = signals.unless_received(move || end_own_holds(&client, &name))?
    {
        say(&format!("{error}; the lock stays taken"));
    }
    Ok(())
}

/// The acquired lock, side or permit.
type Held = Box<dyn AnyGuard + Send>;

/// Acquires what the command line asks for: a lock, a side of a read-write lock, or a permit. Also
/// returns the watch that shows when another client waits for the lock, if the command gets a
/// signal then.
fn acquire_for(
    client: &Client,
    run: &Run,
    canceller: &Canceller,
) -> leasehold::Result<(Held, Option<Wanted>)> {
    let rw_lock = || client.rw_lock(&run.name).cancelled_by(canceller);
    let guard: Held = if let Some(permits) = run.permits {
        Box::new(client.semaphore(&run.name, permits).cancelled_by(canceller).acquire()?)
    } else if run.shared {
        Box::new(rw_lock().read()?)
    } else if run.exclusive {
        Box::new(rw_lock().write()?)
    } else {
        let least = run.hold_at_least.unwrap_or_default();
        let mutex = client.mutex(&run.name).hold_at_least(least).cancelled_by(canceller);
        let guard = mutex.lock_owned()?;
        let wanted = run.yield_signal.map(|_| guard.wanted());
        return Ok((Box::new(guard), wanted));
    };
    Ok((guard, None))
}

/// The reason why the wait for the command is over.
#[derive(Debug)]
enum Ended {
    /// The command has ended, by itself or by a forwarded signal.
    Command(ExitStatus),
    /// The lease is lost, or was not renewed for so long that the command may not end in time by
    /// itself. The command must be stopped.
    Lease {
        /// The remaining time of the lease.
        left: Duration,
    },
}

/// The limits that decide when a command must end.
#[derive(Clone, Copy, Debug)]
struct Limits {
    lease: Duration,
    /// How long the command has between SIGTERM and SIGKILL.
    kill_after: Duration,
}

impl Limits {
    /// Returns how much of the lease is left when the command must be told to end. Renewals begin
    /// when two thirds are left, so at least one third remains for repeating them.
    fn margin(self) -> Duration {
        self.kill_after.saturating_add(KILL_TIME).min(self.lease / 3)
    }

    /// Returns how long the command has to end when this much of the lease is left. A lost lease
    /// has nothing left.
    fn grace(self, left: Duration) -> Duration {
        let is_lost = left.is_zero();
        if is_lost { self.kill_after } else { self.kill_after.min(left.saturating_sub(KILL_TIME)) }
    }
}

/// Waits until the command has ended or must be stopped. Forwards signals to it, and sends it the
/// signal of `make_way` once if another client waits.
fn supervise(
    child: &mut Child,
    guard: &dyn AnyGuard,
    signals: &Receiver<i32>,
    limits: Limits,
    make_way: Option<&(Wanted, i32)>,
) -> io::Result<Ended> {
    let (lost, started) = (guard.lost(), after(START_TIME));
    let mut wanted_by_now = never();
    loop {
        let left = guard.remaining();
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
            recv(started) -> _ => {
                let receiver = make_way.map(|(wanted, _)| wanted.receiver().clone());
                wanted_by_now = receiver.unwrap_or_else(never);
            }
            recv(wanted_by_now) -> _ => {
                // The receiver is disconnected from now on.
                wanted_by_now = never();
                if let Some((wanted, signal)) = make_way
                    && wanted.is_wanted()
                {
                    child.send(*signal);
                }
            }
            // The system may not have reported the end of the command.
            default(safe.min(CHECK)) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(Ended::Command(status));
                }
            }
        }
    }
}

/// Sends SIGTERM, and waits until the command and everything it has started have ended. Sends
/// SIGKILL when `grace` is over.
fn stop(child: &mut Child, signals: &Receiver<i32>, grace: Duration) -> io::Result<()> {
    // `None` is a grace period that never ends.
    let kill_at = Instant::now().checked_add(grace);
    let mut has_ended = false;
    while !has_ended || child.has_others() {
        let is_over = kill_at.is_some_and(|time| Instant::now() >= time);
        if is_over {
            child.end(SIGKILL);
        }
        if is_over && has_ended {
            // Killed processes may still count until their parent has noticed.
            break;
        }
        let signal = signals.recv_timeout(LOOK).ok();
        has_ended = has_ended || receive(child, signal)?.is_some();
    }
    Ok(())
}

/// Forwards a signal, and returns the status of the command if it has ended.
fn receive(child: &mut Child, signal: Option<i32>) -> io::Result<Option<ExitStatus>> {
    match signal {
        None | Some(SIGCHLD) => {}
        Some(SIGTSTP) => {
            // While this process is stopped, the lease is not renewed.
            child.suspend();
            // Stops this process as SIGTSTP would have. Returns when it is continued.
            raise(SIGSTOP)?;
            child.send(SIGCONT);
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
