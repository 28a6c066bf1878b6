//! The process of the command, and the signals that this program receives while it waits and while
//! the command runs. Code that differs between Unix and Windows is in a file for each.

use std::io;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, select, unbounded};
use leasehold::Canceller;

pub(crate) use self::system::*;

use crate::output::{ExitError, say};

#[cfg_attr(unix, path = "child/unix.rs")]
#[cfg_attr(windows, path = "child/windows.rs")]
mod system;

/// How long a call that a signal ends may take to finish what it has begun.
const LAST_MOMENT: Duration = Duration::from_millis(500);

/// A signal or event that this process has received.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Received {
    /// The command may have ended, or stopped.
    Child,
    /// A signal that ends a wait, and is forwarded to the command.
    Signal(i32),
    /// A signal that stops a job.
    #[cfg(unix)]
    Stop,
}

/// Receives signals, and the end of the command.
#[derive(Debug)]
pub(crate) struct ReceivedSignals {
    pub(crate) receiver: Receiver<Received>,
    source: Source,
}

impl ReceivedSignals {
    /// Starts to receive signals, which also cancel a wait for a lock.
    ///
    /// Must be called before threads are started, because on Unix they block what this thread
    /// blocks.
    pub(crate) fn start(canceller: &Canceller) -> io::Result<Self> {
        let (sender, receiver) = unbounded();
        let source = Source::start(sender, canceller.clone())?;
        Ok(Self { receiver, source })
    }

    /// Runs work that may block on a thread of its own, and returns its result.
    ///
    /// # Errors
    ///
    /// If a signal is received. In that case this returns soon afterwards, even if the thread is
    /// still working.
    pub(crate) fn unless_received<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ExitError> {
        let done = in_background(work)?;
        loop {
            select! {
                recv(done) -> result => {
                    let result = result.map_err(|_| io::Error::other("a thread failed"));
                    return result.map_err(ExitError::system("go on"));
                }
                recv(self.receiver) -> received => {
                    if let Ok(Received::Signal(signal)) = received {
                        done.recv_timeout(LAST_MOMENT).ok();
                        return Err(ExitError::of_signal(signal));
                    }
                }
            }
        }
    }

    /// Returns the first received signal that is forwarded to the command.
    pub(crate) fn next_forwarded(&self) -> Option<i32> {
        for received in self.receiver.try_iter() {
            if let Received::Signal(signal) = received {
                return Some(signal);
            }
        }
        None
    }
}

/// Runs work that may block, for at most a moment.
pub(crate) fn for_a_moment<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) {
    if let Ok(done) = in_background(work) {
        done.recv_timeout(LAST_MOMENT).ok();
    }
}

/// Runs work on a new thread, and returns the receiver of its result.
fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Receiver<T>, ExitError> {
    let (sender, done) = bounded(1);
    let thread = thread::Builder::new().name("leasehold-work".into());
    // The receiver is gone if the result is no longer awaited.
    let started = thread.spawn(move || drop(sender.send(work())));
    started.map_err(ExitError::system("start a thread"))?;
    Ok(done)
}

/// Sets the variables that have a value, and removes the others.
fn set_environment(command: &mut Command, variables: &[(&str, Option<String>)]) {
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

pub(crate) fn say_if_refused(signal: i32, sent: io::Result<()>) {
    if let Err(error) = sent {
        say(&format!("cannot send {} to the command: {error}", name_of(signal)));
    }
}
