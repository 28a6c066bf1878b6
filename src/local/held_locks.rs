//! The locks that the threads of this client hold.
//!
//! Finds the hold of a thread for a name. A hold that belongs to no thread is not among them. Knows
//! nothing of leases: a hold that is lost stays until its last guard is gone. Of threads that have
//! ended, leaked guards are forgotten when the table would have to grow.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::base::shrink;
use crate::local::hold::Hold;

/// Threads that take and release different locks at the same time should rarely meet here.
const SHARDS: usize = 16;

type Key = (ThreadId, Arc<str>);

/// The holds that have guards, by thread and name.
#[derive(Debug, Default)]
pub(crate) struct HeldLocks {
    hasher: RandomState,
    shards: [Mutex<HashMap<Key, Arc<Hold>>>; SHARDS],
}

impl HeldLocks {
    pub(crate) fn find(&self, thread: ThreadId, name: &Arc<str>) -> Option<Arc<Hold>> {
        self.shard(thread).lock().get(&(thread, name.clone())).cloned()
    }

    pub(crate) fn insert(&self, hold: &Arc<Hold>) {
        if let Some(thread) = hold.thread() {
            let mut shard = self.shard(thread).lock();
            if shard.len() == shard.capacity() {
                shard.retain(|_, hold| hold.has_living_thread());
                // With room for as many again, this costs each hold a constant time.
                let room = shard.len().max(1);
                shard.reserve(room);
            }
            shard.insert((thread, hold.name().clone()), hold.clone());
        }
    }

    pub(crate) fn remove(&self, hold: &Hold) {
        if let Some(thread) = hold.thread() {
            let mut shard = self.shard(thread).lock();
            shard.remove(&(thread, hold.name().clone()));
            shrink(&mut shard);
        }
    }

    fn shard(&self, thread: ThreadId) -> &Mutex<HashMap<Key, Arc<Hold>>> {
        let hash = self.hasher.hash_one(thread);
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    use crate::base::clock::Moment;
    use crate::config::{Config, LockOptions};
    use crate::local::call::Caller;
    use crate::store::hold_id::{HoldId, HoldKind};

    /// A hold of the calling thread.
    fn hold(table: &HeldLocks, nonce: u64) {
        let (name, client) = (Arc::from(format!("lock {nonce}")), Arc::from("me"));
        let id = HoldId { kind: HoldKind::Lock, name, client, nonce };
        let caller = Caller::current(&Config::default(), &LockOptions::default());
        table.insert(&Arc::new(Hold::new(id, nonce, 0, &caller, Moment::now())));
    }

    #[test]
    fn what_threads_leave_behind_that_have_ended_is_forgotten() {
        let table = HeldLocks::default();
        for nonce in 0..50 {
            hold(&table, nonce);
        }
        for nonce in 0..1_000 {
            thread::scope(|scope| scope.spawn(|| hold(&table, nonce)).join().expect("no panic"));
        }
        let entries: usize = table.shards.iter().map(|shard| shard.lock().len()).sum();
        assert!(entries < 300, "{entries} entries");
        let is_held = |nonce: u64| {
            let name = Arc::from(format!("lock {nonce}"));
            table.find(thread::current().id(), &name).is_some()
        };
        assert!((0..50).all(is_held), "this thread lives");
    }
}
