//! Locks in this process only, by the rules of the scripts.

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

/// A world of locks of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    world: Arc<Mutex<World>>,
}

#[derive(Debug, Default)]
struct World {
    locks: HashMap<Arc<str>, Held>,
    /// One counter serves all names.
    fence: u64,
    /// With this many locks, those whose lease is over are cleared away.
    crowded: usize,
}

#[derive(Debug)]
struct Held {
    hold: HoldId,
    fence: u64,
    depth: u32,
    ends: Moment,
}

impl World {
    fn live(&mut self, name: &str) -> Option<&mut Held> {
        self.locks.get_mut(name).filter(|held| held.ends > Moment::now())
    }

    fn ours(&mut self, hold: &HoldId) -> Option<&mut Held> {
        self.live(&hold.name).filter(|held| held.hold.nonce == hold.nonce)
    }

    fn begin(&mut self, hold: &HoldId, lease: Duration) -> u64 {
        let micros =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
        let fence = u64::try_from(micros).unwrap_or(u64::MAX).max(self.fence + 1);
        self.fence = fence;
        let now = Moment::now();
        if self.locks.len() >= self.crowded {
            self.locks.retain(|_, held| held.ends > now);
            self.crowded = self.locks.len().max(32) * 2;
        }
        let entry = Held { hold: hold.clone(), fence, depth: 1, ends: now.after(lease) };
        self.locks.insert(hold.name.clone(), entry);
        fence
    }

    /// The answer to somebody who wants a lock that is held, by another hold or already by this.
    fn taken(&mut self, hold: &HoldId, lease: Duration) -> Option<AcquireReply> {
        let entry = self.live(&hold.name)?;
        let now = Moment::now();
        Some(if entry.hold.nonce == hold.nonce {
            entry.ends = now.after(lease);
            AcquireReply::Acquired { fence: entry.fence }
        } else {
            AcquireReply::Held { remaining: Some(entry.ends.since(now)) }
        })
    }

    fn renew(&mut self, hold: &HoldId, depth: Option<u32>, lease: Duration) -> HoldReply {
        self.ours(hold).map_or(HoldReply::Gone, |entry| {
            entry.depth = depth.unwrap_or(entry.depth);
            entry.ends = Moment::now().after(lease);
            HoldReply::Held
        })
    }

    fn release(&mut self, hold: &HoldId) -> HoldReply {
        if self.ours(hold).is_none() {
            return HoldReply::Gone;
        }
        self.locks.remove(&hold.name);
        HoldReply::Held
    }
}

impl Store for Memory {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        let Acquire { hold, lease, .. } = request;
        let mut world = self.world.lock();
        let taken = world.taken(hold, lease);
        Ok(taken.unwrap_or_else(|| AcquireReply::Acquired { fence: world.begin(hold, lease) }))
    }

    fn set_depth(&self, request: SetDepth<'_>) -> Result<HoldReply, Failure> {
        let SetDepth { hold, depth, lease, .. } = request;
        Ok(self.world.lock().renew(hold, Some(depth), lease))
    }

    fn release(&self, hold: &HoldId, _: Instant) -> Result<HoldReply, Failure> {
        Ok(self.world.lock().release(hold))
    }

    fn transfer(&self, request: Transfer<'_>) -> PendingReply<TransferReply> {
        let Transfer { from, to, lease, .. } = request;
        let mut world = self.world.lock();
        let reply = if world.ours(from).is_some() {
            TransferReply::Transferred { fence: world.begin(to, lease) }
        } else {
            match world.taken(to, lease) {
                Some(AcquireReply::Acquired { fence }) => TransferReply::Transferred { fence },
                Some(AcquireReply::Held { .. } | AcquireReply::Unknown { .. }) | None => {
                    TransferReply::Gone
                }
            }
        };
        PendingReply::new(move || Ok(reply))
    }

    fn inspect(&self, name: &str, _: Instant) -> Result<Option<Holder>, Failure> {
        Ok(self.world.lock().live(name).map(|held| Holder {
            owner: held.hold.owner(),
            depth: held.depth,
            remaining: held.ends.since(Moment::now()),
        }))
    }

    fn force_release(&self, name: &str, _: Instant) -> Result<bool, Failure> {
        let mut world = self.world.lock();
        let held = world.live(name).is_some();
        world.locks.remove(name);
        Ok(held)
    }

    /// No other client can be waiting.
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
            let mut world = self.world.lock();
            let standing = match action {
                Action::Release => world.release(&hold),
                Action::Renew { lease } => world.renew(&hold, None, lease),
            };
            drop(world);
            done(id, Ok(standing));
        }
    }

    fn collect(&mut self, _: Instant, _: &mut dyn FnMut(u64, JobOutcome)) {}

    fn abandon(&mut self, _: &mut dyn FnMut(u64, JobOutcome)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_whose_lease_is_over_are_cleared_away() {
        let memory = Memory::default();
        let mut world = memory.world.lock();
        for nonce in 0..10_000 {
            let name = Arc::from(nonce.to_string());
            world.begin(&HoldId { name, client: Arc::from("c"), nonce }, Duration::ZERO);
        }
        assert!(world.locks.len() <= 100, "{}", world.locks.len());
    }
}
