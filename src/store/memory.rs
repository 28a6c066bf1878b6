//! Locks that exist in this process only, by the rules of the scripts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::failure::Failure;
use crate::store::Store;
use crate::store::hold::{HoldId, Holder};
use crate::store::job::{Action, Job, JobOutcome, JobRunner};
use crate::store::request::{
    Acquire, AcquireReply, HoldReply, PendingReply, SetDepth, Transfer, TransferReply,
};
use crate::store::wake::Wakeups;

/// A set of locks in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    locks: Arc<Mutex<Locks>>,
}

#[derive(Debug, Default)]
struct Locks {
    by_name: HashMap<Arc<str>, HeldLock>,
    /// The last fencing token. One counter serves all names.
    fence: u64,
    /// When there are this many locks, those whose lease is over are removed.
    purge_at: usize,
}

#[derive(Debug)]
struct HeldLock {
    hold: HoldId,
    fence: u64,
    depth: u32,
    ends: Moment,
}

impl Locks {
    /// The lock of this name, if its lease is not over.
    fn held(&mut self, name: &str) -> Option<&mut HeldLock> {
        self.by_name.get_mut(name).filter(|held| held.ends > Moment::now())
    }

    /// The lock of this hold, if the hold still exists.
    fn held_by(&mut self, hold: &HoldId) -> Option<&mut HeldLock> {
        self.held(&hold.name).filter(|held| held.hold.nonce == hold.nonce)
    }

    fn begin(&mut self, hold: &HoldId, lease: Duration) -> u64 {
        let micros =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
        let fence = u64::try_from(micros).unwrap_or(u64::MAX).max(self.fence + 1);
        self.fence = fence;
        let now = Moment::now();
        if self.by_name.len() >= self.purge_at {
            self.by_name.retain(|_, held| held.ends > now);
            self.purge_at = self.by_name.len().max(32) * 2;
        }
        let entry = HeldLock { hold: hold.clone(), fence, depth: 1, ends: now.after(lease) };
        self.by_name.insert(hold.name.clone(), entry);
        fence
    }

    /// The reply if the lock is held already, by another hold or by this one.
    fn reply_if_held(&mut self, hold: &HoldId, lease: Duration) -> Option<AcquireReply> {
        let entry = self.held(&hold.name)?;
        let now = Moment::now();
        Some(if entry.hold.nonce == hold.nonce {
            entry.ends = now.after(lease);
            AcquireReply::Acquired { fence: entry.fence }
        } else {
            AcquireReply::Held { remaining: Some(entry.ends.since(now)) }
        })
    }

    fn renew(&mut self, hold: &HoldId, depth: Option<u32>, lease: Option<Duration>) -> HoldReply {
        self.held_by(hold).map_or(HoldReply::Gone, |entry| {
            entry.depth = depth.unwrap_or(entry.depth);
            entry.ends = lease.map_or(entry.ends, |lease| Moment::now().after(lease));
            HoldReply::Held
        })
    }

    fn release(&mut self, hold: &HoldId) -> HoldReply {
        if self.held_by(hold).is_none() {
            return HoldReply::Gone;
        }
        self.by_name.remove(&hold.name);
        HoldReply::Held
    }
}

impl Store for Memory {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        let Acquire { hold, lease, .. } = request;
        let mut locks = self.locks.lock();
        let held = locks.reply_if_held(hold, lease);
        Ok(held.unwrap_or_else(|| AcquireReply::Acquired { fence: locks.begin(hold, lease) }))
    }

    fn set_depth(&self, request: SetDepth<'_>) -> Result<HoldReply, Failure> {
        let SetDepth { hold, depth, lease, .. } = request;
        Ok(self.locks.lock().renew(hold, Some(depth), lease))
    }

    fn release(&self, hold: &HoldId, _: Instant) -> Result<HoldReply, Failure> {
        Ok(self.locks.lock().release(hold))
    }

    fn transfer(&self, request: Transfer<'_>) -> PendingReply<TransferReply> {
        let Transfer { from, to, lease, .. } = request;
        let mut locks = self.locks.lock();
        let reply = if locks.held_by(from).is_some() {
            TransferReply::Transferred { fence: locks.begin(to, lease) }
        } else {
            match locks.reply_if_held(to, lease) {
                Some(AcquireReply::Acquired { fence }) => TransferReply::Transferred { fence },
                Some(AcquireReply::Held { .. } | AcquireReply::Unknown { .. }) | None => {
                    TransferReply::Gone
                }
            }
        };
        PendingReply::new(move || Ok(reply))
    }

    fn inspect(&self, name: &str, _: Instant) -> Result<Option<Holder>, Failure> {
        Ok(self
            .locks
            .lock()
            .held(name)
            .map(|held| Holder::new(held.hold.owner(), held.depth, held.ends.since(Moment::now()))))
    }

    fn force_release(&self, name: &str, owner: &str, _: Instant) -> Result<bool, Failure> {
        let mut locks = self.locks.lock();
        let held = locks.held(name).is_some_and(|held| held.hold.owner() == owner);
        if held {
            locks.by_name.remove(name);
        }
        Ok(held)
    }

    /// No other client has access to these locks.
    fn unregister(&self, _: &str, _: &str, _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    fn wakeups(&self, _: &str) -> Option<Box<dyn Wakeups>> {
        None
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        Box::new(self.clone())
    }
}

impl JobRunner for Memory {
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        for Job { id, hold, action, .. } in jobs {
            let mut locks = self.locks.lock();
            let reply = match action {
                Action::Release => locks.release(&hold),
                Action::Renew { lease } => locks.renew(&hold, None, Some(lease)),
            };
            drop(locks);
            done(id, Ok(reply));
        }
    }

    fn collect(&mut self, _: Instant, _: &mut dyn FnMut(u64, JobOutcome)) {}

    fn abandon(&mut self, _: &mut dyn FnMut(u64, JobOutcome)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_whose_lease_is_over_are_removed() {
        let memory = Memory::default();
        let mut locks = memory.locks.lock();
        for nonce in 0..10_000 {
            let name = Arc::from(nonce.to_string());
            locks.begin(&HoldId { name, client: Arc::from("c"), nonce }, Duration::ZERO);
        }
        assert!(locks.by_name.len() <= 100, "{}", locks.by_name.len());
    }
}
