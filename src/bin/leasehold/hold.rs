//! What a command can run under: a lock, a side of a read-write lock, or a permit.

use std::time::Duration;

use leasehold::{Canceller, Client, Lost, OwnedGuard, Permit, ReadGuard, Result, WriteGuard};

use crate::args::Run;

/// A hold, released with [`release`](Hold::release).
#[derive(Debug)]
pub(crate) enum Hold {
    Lock(OwnedGuard),
    Permit(Permit),
    Reader(ReadGuard),
    Writer(WriteGuard),
}

impl Hold {
    /// Waits for what the command line asks for.
    pub(crate) fn acquire(client: &Client, run: &Run, canceller: &Canceller) -> Result<Self> {
        let name = &run.name;
        if let Some(permits) = run.permits {
            let semaphore = client.semaphore(name, permits).cancelled_by(canceller);
            return semaphore.acquire().map(Self::Permit);
        }
        if run.shared || run.exclusive {
            let lock = client.rw_lock(name).cancelled_by(canceller);
            return if run.shared {
                lock.read().map(Self::Reader)
            } else {
                lock.write().map(Self::Writer)
            };
        }
        let least = run.hold_at_least.unwrap_or_default();
        let mutex = client.mutex(name).hold_at_least(least).cancelled_by(canceller);
        mutex.lock_owned().map(Self::Lock)
    }

    /// The fencing token; a permit has none.
    pub(crate) fn fence(&self) -> Option<u64> {
        match self {
            Self::Lock(guard) => Some(guard.fence()),
            Self::Permit(_) => None,
            Self::Reader(guard) => Some(guard.fence()),
            Self::Writer(guard) => Some(guard.fence()),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Lock(guard) => guard.remaining(),
            Self::Permit(permit) => permit.remaining(),
            Self::Reader(guard) => guard.remaining(),
            Self::Writer(guard) => guard.remaining(),
        }
    }

    pub(crate) fn lost(&self) -> Lost {
        match self {
            Self::Lock(guard) => guard.lost(),
            Self::Permit(permit) => permit.lost(),
            Self::Reader(guard) => guard.lost(),
            Self::Writer(guard) => guard.lost(),
        }
    }

    pub(crate) fn release(self) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.unlock(),
            Self::Permit(permit) => permit.unlock(),
            Self::Reader(guard) => guard.unlock(),
            Self::Writer(guard) => guard.unlock(),
        }
    }
}
