//! Holds and guards of all kinds, behind a common interface.

use std::fmt;
use std::time::Duration;

use leasehold::{Client, Error, Guard, Permit, ReadGuard, WriteGuard};

use crate::harness::history::Action;

/// The number of permits of a semaphore.
pub(crate) const PERMITS: u32 = 3;

/// The kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Primitive {
    Lock,
    RwLock,
    Semaphore,
}

impl Primitive {
    pub(crate) const ALL: [Self; 3] = [Self::Lock, Self::RwLock, Self::Semaphore];

    /// Returns `true` if each hold has its own fence.
    pub(crate) fn has_fences(self) -> bool {
        self != Self::Semaphore
    }
}

/// Prints it as on the command line.
impl fmt::Display for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "lock",
            Self::RwLock => "rw",
            Self::Semaphore => "semaphore",
        })
    }
}

/// The kind of a worker's hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldKind {
    Lock,
    Permit,
    Read,
    Write,
}

impl HoldKind {
    /// Returns the action that takes it. Only a lock has a level above 1.
    pub(crate) fn action(self, level: u32) -> Action {
        match self {
            Self::Lock | Self::Write => Action::Lock { level },
            Self::Permit => Action::Permit,
            Self::Read => Action::Share,
        }
    }
}

/// How long a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// For as long as the client's calls do.
    Default,
    For(Duration),
    No,
}

/// The guard of a hold of any kind.
pub(crate) enum AnyGuard {
    Lock(Guard),
    Permit(Permit),
    Read(ReadGuard),
    Write(WriteGuard),
}

impl AnyGuard {
    /// Acquires a hold of a kind. `None` if others still exclude it when the wait is over.
    pub(crate) fn acquire(
        client: &Client,
        kind: HoldKind,
        name: &str,
        wait: Wait,
    ) -> Result<Option<Self>, Error> {
        let (lock, semaphore) = (client.rw_lock(name), client.semaphore(name, PERMITS));
        Ok(match kind {
            HoldKind::Lock => match wait {
                Wait::Default => Some(client.lock(name)?),
                Wait::For(time) => client.try_lock_for(name, time)?,
                Wait::No => client.try_lock(name)?,
            }
            .map(Self::Lock),
            HoldKind::Permit => match wait {
                Wait::Default => Some(semaphore.acquire()?),
                Wait::For(time) => semaphore.try_acquire_for(time)?,
                Wait::No => semaphore.try_acquire()?,
            }
            .map(Self::Permit),
            HoldKind::Read => match wait {
                Wait::Default => Some(lock.read()?),
                Wait::For(time) => lock.try_read_for(time)?,
                Wait::No => lock.try_read()?,
            }
            .map(Self::Read),
            HoldKind::Write => match wait {
                Wait::Default => Some(lock.write()?),
                Wait::For(time) => lock.try_write_for(time)?,
                Wait::No => lock.try_write()?,
            }
            .map(Self::Write),
        })
    }

    /// Returns the fence; 0 for a permit, which has none.
    pub(crate) fn fence(&self) -> u64 {
        match self {
            Self::Lock(guard) => guard.fence(),
            Self::Permit(_) => 0,
            Self::Read(guard) => guard.fence(),
            Self::Write(guard) => guard.fence(),
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        if let Self::Lock(guard) = self { guard.depth() } else { 1 }
    }

    /// Returns how long it is certainly held; `None` if it is not.
    pub(crate) fn left(&self) -> Option<Duration> {
        let (is_held, left) = match self {
            Self::Lock(guard) => (guard.is_held(), guard.remaining()),
            Self::Permit(guard) => (guard.is_held(), guard.remaining()),
            Self::Read(guard) => (guard.is_held(), guard.remaining()),
            Self::Write(guard) => (guard.is_held(), guard.remaining()),
        };
        is_held.then_some(left)
    }

    pub(crate) fn unlock(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.unlock(),
            Self::Permit(guard) => guard.unlock(),
            Self::Read(guard) => guard.unlock(),
            Self::Write(guard) => guard.unlock(),
        }
    }
}
