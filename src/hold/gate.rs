//! What `close()` shuts: new calls are turned away and sleepers are woken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::clock::end_of;
use crate::error::{Error, Result};

/// Open until it is closed, for good.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    /// Held while closing, and by sleepers from their last look until they sleep.
    sleepers: Mutex<()>,
    change: Condvar,
}

impl Gate {
    pub(crate) fn close(&self) {
        let sleepers = self.sleepers.lock();
        self.closed.store(true, Ordering::Release);
        drop(sleepers);
        self.change.notify_all();
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Sleeps, unless the gate is or gets closed.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        let until = end_of(time);
        let mut sleepers = self.sleepers.lock();
        loop {
            self.check()?;
            if Instant::now() >= until {
                return Ok(());
            }
            self.change.wait_until(&mut sleepers, until);
        }
    }
}
