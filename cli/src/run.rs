//! `run`: runs a command while the lock is held, and supervises it until it has ended.

use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never, select};
use leasehold::{AnyGuard, Canceller, Client, Error, LossCause, Wanted};

use crate::args::{Run, ServerArgs};
#[cfg(windows)]
use crate::child::refuse_what_is_missing;
use crate::child::{Child, END, Received, ReceivedSignals, TELL, outcome, say_if_refused};
use crate::held::{self, Access};
use crate::lock::{Acquired, acquire, end_own_holds};
use crate::output::{ExitError, LOST, in_seconds, say};

/// The default of `--kill-after`.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// How long before the end of the lease the command is killed, because killing takes time.
const KILL_TIME: Duration = Duration::from_millis(50);

/// How long a command has to install a handler for the signal of `--yield`. Without one, the signal
/// would end it if another client waits from the start.
const START_TIME: Duration = Duration::from_secs(1);

/// How often to check whether the command has ended without a signal to report it.
const CHECK: Duration = Duration::from_secs(1);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How often to check whether a command that must end has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Acquires the lock, runs the command, releases the lock, and returns the command's status.
pub(crate) fn run(server: &ServerArgs, run: &Run) -> Result<i32, ExitError> {
    #[cfg(windows)]
    refuse_what_is_missing(run)?;
    let access = match run.permits {
        // A single permit excludes all others.
        Some(2..) => Access::Permit,
        None if run.shared => Access::Read,
        _ => Access::Alone,
    };
    let acquired = acquire(server, &run.how, &run.name, access, |client, canceller| {
        acquire_for(client, run, canceller)
    });
    let Acquired { hold, client, signals } = acquired?;
    // Makes `unlock` end the command at once.
    client.listen();
    let (guard, wanted) = hold;
    let make_way = wanted.zip(run.yield_signal);
    let age_limit = server.max_hold().and_then(|age| Instant::now().checked_add(age));
    let kill_after = run.kill_after.unwrap_or(KILL_AFTER);
    let mut limits = Limits { lease: guard.remaining(), kill_after };
    // A variable without a value is removed, so that the command does not see that of an outer
    // `run`.
    let fence = guard.fence().map(|fence| fence.to_string());
    let environment = [
        (held::NAME, Some(run.name.clone())),
        (held::CLIENT, Some(client.id().to_owned())),
        ("LEASEHOLD_FENCE", fence),
    ];
    let begin = Instant::now();
    // This process may have been paused since the server's reply.
    if let Some(cause) = guard.lost().cause() {
        let why = format!("lock {:?} {}: the command was not started", run.name, describe(&cause));
        return Err(ExitError::new(LOST, why));
    }
    let mut child = match Child::start(&run.command, &environment, &signals) {
        Ok(child) => child,
        Err(error) => return release_unused(guard, client, run, &signals).and(Err(error)),
    };
    let ended = supervise(&mut child, &*guard, &signals.receiver, &mut limits, make_way.as_ref());
    let stopped = match ended {
        Ok(Ended::Command(status)) => {
            child.clean_up(Some(status));
            if child.was_not_run() {
                release_unused(guard, client, run, &signals)?;
            } else {
                release(guard, &signals)?;
            }
            if run.how.verbose {
                let after = in_seconds(begin.elapsed());
                say(&format!("released lock {:?} after {after}", run.name));
            }
            return outcome(status, &signals);
        }
        Ok(Ended::Lease { left }) => {
            let told = child.tell_to_end();
            // A command that cannot be signalled has no use for a grace period.
            let grace = if told.is_ok() { limits.grace(left) } else { Duration::ZERO };
            let is_last =
                age_limit.is_some_and(|end| Instant::now() + left + limits.lease / 3 >= end);
            let why = match guard.lost().cause() {
                Some(cause) => describe(&cause),
                None if is_last => "reaches its age limit".into(),
                None => "could not be renewed".into(),
            };
            let what = match told {
                Ok(()) if grace < DAY => {
                    let seconds = (grace.as_secs_f64() * 10.0).round() / 10.0;
                    format!(": {TELL} now, {END} in {seconds} s")
                }
                Ok(()) => format!(": {TELL} now"),
                Err(_) => String::new(),
            };
            say(&format!("lock {:?} {why}{what}", run.name));
            stop(&mut child, &signals.receiver, grace)
                .map(|()| LOST)
                .map_err(ExitError::system("end the command, which may go on without the lock"))
        }
        Err(error) => Err(ExitError::system("wait for the command")(error)),
    };
    if stopped.is_err() {
        // The command would continue without the lock. Whatever refuses this has already been
        // reported.
        child.end().ok();
    }
    child.clean_up(None);
    stopped
}

/// Describes a loss, after the name of the lock.
fn describe(cause: &LossCause) -> String {
    match cause {
        LossCause::Forced => "was ended by an operator".into(),
        cause => format!("is lost, because {cause}"),
    }
}

/// Releases the lock.
///
/// # Errors
///
/// Fails only if the lock was lost before, or if a signal is received. A lock that cannot be
/// released otherwise ends with its lease.
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
    let guard: Held = if let Some(permits) = run.permits {
        Box::new(client.semaphore(&run.name, permits).cancelled_by(canceller).acquire()?)
    } else if run.shared {
        Box::new(client.rw_lock(&run.name).cancelled_by(canceller).read()?)
    } else if run.exclusive {
        Box::new(client.rw_lock(&run.name).cancelled_by(canceller).write()?)
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
    /// The whole lease: the longest time that was left of it so far.
    lease: Duration,
    /// How long the command has between SIGTERM and SIGKILL.
    kill_after: Duration,
}

impl Limits {
    /// Returns how much of the lease must be left when the command is told to end. Renewals begin
    /// when two thirds are left, so at least one third remains for repeating them.
    fn margin(self) -> Duration {
        self.kill_after.saturating_add(KILL_TIME).min(self.lease / 3)
    }

    /// Returns how much of the lease is left when its renewal counts as overdue. If the first look
    /// finds less, this process was paused.
    fn overdue(self) -> Duration {
        self.margin() + self.turn()
    }

    /// Returns how long a renewal may take after a pause.
    fn turn(self) -> Duration {
        self.lease / 6
    }

    /// Returns how much of the lease must be left when the command is told to end, if `first` was
    /// left when the lease was first seen to be overdue. After a pause, this thread may see that
    /// before the lease could be renewed. A server that hangs takes no more than half of what is
    /// left.
    fn end(self, first: Duration) -> Duration {
        self.margin().min(first.saturating_sub(self.turn()).max(first / 2))
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
    signals: &Receiver<Received>,
    limits: &mut Limits,
    make_way: Option<&(Wanted, i32)>,
) -> io::Result<Ended> {
    let lost = guard.lost();
    let started = after(START_TIME);
    let mut wanted_by_now = never();
    // The time left when the lease was first seen to be overdue.
    let mut first = None;
    loop {
        let left = guard.remaining();
        limits.lease = limits.lease.max(left);
        first = if left > limits.overdue() { None } else { first.or(Some(left)) };
        let end = first.map_or(limits.overdue(), |first| limits.end(first));
        let safe = left.saturating_sub(end);
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
                // The receiver is disconnected now.
                wanted_by_now = never();
                if let Some((wanted, signal)) = make_way
                    && wanted.is_wanted()
                {
                    say_if_refused(*signal, child.send(*signal));
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

/// Waits until the command, which was told to end, and everything it has started have ended. Ends
/// them when `grace` is over.
///
/// # Errors
///
/// Fails if the remaining processes have more rights than this one.
fn stop(child: &mut Child, signals: &Receiver<Received>, grace: Duration) -> io::Result<()> {
    // `None` is a grace period that never ends.
    let kill_at = Instant::now().checked_add(grace);
    let mut has_ended = false;
    while !has_ended || child.has_others()? {
        let is_over = kill_at.is_some_and(|time| Instant::now() >= time);
        if is_over {
            child.end()?;
        }
        if is_over && has_ended {
            // Killed processes still exist until their parent has waited for them.
            break;
        }
        let signal = signals.recv_timeout(LOOK).ok();
        has_ended = has_ended || receive(child, signal)?.is_some();
    }
    Ok(())
}

/// Forwards a signal, and returns the status of the command if it has ended.
fn receive(child: &mut Child, received: Option<Received>) -> io::Result<Option<ExitStatus>> {
    match received {
        None | Some(Received::Child) => {}
        Some(Received::Signal(signal)) => say_if_refused(signal, child.forward(signal)),
        #[cfg(unix)]
        Some(Received::Stop) => child.stop_with_this_process()?,
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
        for limits in [limits, short, Limits { kill_after: ms(0), ..limits }] {
            assert_eq!(limits.end(limits.overdue()), limits.margin(), "without a pause");
        }
    }

    #[test]
    fn after_a_pause_there_is_time_to_renew_the_lease_and_to_end_the_command() {
        let limits = Limits { lease: ms(30_000), kill_after: ms(5000) };
        for first in [10, 200, 5000, 10_000] {
            let end = limits.end(ms(first));
            assert!(end <= ms(first) / 2 && end >= ms(first) / 3, "{first} ms: {end:?}");
        }
        assert_eq!(limits.end(Duration::ZERO), Duration::ZERO, "it is lost");
    }
}
