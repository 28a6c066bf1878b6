//! Locks in this process only, by the rules of the scripts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::store::failure::Failure;
use crate::store::{
    Answer, Bid, Care, Handover, HoldId, Holder, Outcome, Queue, Standing, Store, Task, Upkeep,
    Wakeups,
};

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
    fn taken(&mut self, hold: &HoldId, lease: Duration) -> Option<Bid> {
        let entry = self.live(&hold.name)?;
        let now = Moment::now();
        Some(if entry.hold.nonce == hold.nonce {
            entry.ends = now.after(lease);
            Bid::Won { fence: entry.fence }
        } else {
            Bid::Busy { remaining: Some(entry.ends.since(now)) }
        })
    }

    fn nest(&mut self, hold: &HoldId, depth: Option<u32>, lease: Duration) -> Standing {
        self.ours(hold).map_or(Standing::Gone, |entry| {
            entry.depth = depth.unwrap_or(entry.depth);
            entry.ends = Moment::now().after(lease);
            Standing::Ours
        })
    }

    fn release(&mut self, hold: &HoldId) -> Standing {
        if self.ours(hold).is_none() {
            return Standing::Gone;
        }
        self.locks.remove(&hold.name);
        Standing::Ours
    }
}

impl Store for Memory {
    fn acquire(
        &self,
        hold: &HoldId,
        lease: Duration,
        _: Queue,
        _: Instant,
    ) -> Result<Bid, Failure> {
        let mut world = self.world.lock();
        let taken = world.taken(hold, lease);
        Ok(taken.unwrap_or_else(|| Bid::Won { fence: world.begin(hold, lease) }))
    }

    fn nest(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        _: Instant,
    ) -> Result<Standing, Failure> {
        Ok(self.world.lock().nest(hold, Some(depth), lease))
    }

    fn release(&self, hold: &HoldId, _: Instant) -> Result<Standing, Failure> {
        Ok(self.world.lock().release(hold))
    }

    fn transfer(
        &self,
        from: &HoldId,
        to: &HoldId,
        lease: Duration,
        _: bool,
        _: Instant,
    ) -> Answer<Handover> {
        let mut world = self.world.lock();
        let answer = if world.ours(from).is_some() {
            Handover::Done { fence: world.begin(to, lease) }
        } else {
            match world.taken(to, lease) {
                Some(Bid::Won { fence }) => Handover::Done { fence },
                Some(Bid::Busy { .. } | Bid::Unclear { .. }) | None => Handover::Gone,
            }
        };
        Box::new(move || Ok(answer))
    }

    fn inspect(&self, name: &str, _: Instant) -> Result<Option<Holder>, Failure> {
        Ok(self.world.lock().live(name).map(|held| Holder {
            owner: held.hold.owner(),
            depth: held.depth,
            remaining: held.ends.since(Moment::now()),
        }))
    }

    fn force(&self, name: &str, _: Instant) -> Result<bool, Failure> {
        let mut world = self.world.lock();
        let held = world.live(name).is_some();
        world.locks.remove(name);
        Ok(held)
    }

    /// There is no other client that could be in a queue.
    fn leave(&self, _: &str, _: &str, _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    fn wakeups(&self, _: &str) -> Option<Box<dyn Wakeups>> {
        None
    }

    fn upkeep(&self) -> Box<dyn Upkeep> {
        Box::new(self.clone())
    }
}

impl Upkeep for Memory {
    fn send(&mut self, tasks: Vec<Task>, done: &mut dyn FnMut(u64, Outcome)) {
        for Task { id, hold, care, .. } in tasks {
            let mut world = self.world.lock();
            let standing = match care {
                Care::Release => world.release(&hold),
                Care::Renew { lease } => world.nest(&hold, None, lease),
            };
            drop(world);
            done(id, Ok(standing));
        }
    }

    fn collect(&mut self, _: Instant, _: &mut dyn FnMut(u64, Outcome)) {}

    fn abandon(&mut self, _: &mut dyn FnMut(u64, Outcome)) {}
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
