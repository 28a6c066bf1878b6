//! What can be asked about a lock, of this process and of the store.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::local::lease::{Lease, lost_before};
use crate::local::retry::{RetryLimit, RetryPolicy};
use crate::local::shared::Shared;
use crate::store::hold::Holder;

impl Shared {
    /// Tells whether a hold may be relied on, without asking anybody.
    pub(crate) fn is_held(&self, lease: &Lease) -> bool {
        self.owner.check_process().is_ok() && self.stands(lease)
    }

    /// The time for which a hold may be relied on.
    pub(crate) fn remaining(&self, lease: &Lease) -> Duration {
        if self.is_held(lease) { lease.remaining() } else { Duration::ZERO }
    }

    pub(super) fn stands(&self, lease: &Lease) -> bool {
        if self.losses.expire(lease) {
            self.clean(&lease.id, lease.length(), !lease.is_unsettled());
        }
        !lease.remaining().is_zero()
    }

    /// Takes in that the store does not know a hold any more.
    pub(super) fn lose(&self, lease: &Lease) {
        self.losses.lose(lease);
        if lease.is_unsettled() {
            self.clean(&lease.id, lease.length(), false);
        }
    }

    /// Asks the server whether a hold stands.
    pub(crate) fn verify(&self, lease: &Arc<Lease>) -> Result<()> {
        self.owner.check_process()?;
        let name = lease.name();
        if self.stands(lease) {
            let ours = match self.inspect(name) {
                // Somebody has put another thing in the lock's place.
                Err(Error::WrongType { .. }) => false,
                holder => holder?.is_some_and(|holder| holder.owner == lease.id.owner()),
            };
            if !ours {
                self.lose(lease);
            }
        }
        if self.stands(lease) { Ok(()) } else { Err(Error::lost(name)) }
    }

    /// Tells who has a lock.
    pub(crate) fn inspect(&self, name: &Arc<str>) -> Result<Option<Holder>> {
        self.insist("inspect", name, |end| self.store.inspect(name, end))
    }

    /// Takes a lock away from whoever has it.
    pub(crate) fn force(&self, name: &Arc<str>) -> Result<bool> {
        self.insist("force open", name, |end| self.store.force_release(name, end))
    }

    /// Repeats a request that is bounded by nothing else.
    fn insist<T>(
        &self,
        attempt: &str,
        name: &str,
        request: impl Fn(Instant) -> Result<T, Failure>,
    ) -> Result<T> {
        self.owner.check_process()?;
        self.config.check_name(name)?;
        let mut retry =
            RetryPolicy::new(RetryLimit::Brief, &self.config, self.config.options.first_lease());
        loop {
            match request(retry.request_end()) {
                Ok(answer) => return Ok(answer),
                Err(failure) => match retry.after(&failure) {
                    Some(pause) => thread::sleep(pause),
                    None => return Err(failure.into_error(attempt, name)),
                },
            }
        }
    }

    /// The calling thread's hold of a lock, if it may be relied on.
    pub(crate) fn own_hold(&self, name: &Arc<str>) -> Option<Arc<Lease>> {
        self.owner.check_process().ok()?;
        let lease = self.table.find(thread::current().id(), name)?;
        self.stands(&lease).then_some(lease)
    }

    /// A receiver of the news that a hold is lost.
    pub(crate) fn watch(&self, lease: &Arc<Lease>) -> Receiver<()> {
        if self.owner.check_process().is_err() {
            // The hold is the parent's. Nothing that is shared may be touched here.
            return lost_before();
        }
        let (receiver, first) = lease.watch();
        if first {
            self.alarm.watch(lease);
        }
        receiver
    }
}
