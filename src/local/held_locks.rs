//! The locks that the threads of this client hold.
//!
//! Finds the hold of a thread for a name. A hold that belongs to no thread is not among them. Knows
//! nothing of leases: a hold that is lost stays until its last guard is gone.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::local::lease::Lease;
use crate::shrink::shrink;

/// Threads that take and release different locks at the same time should rarely meet here.
const SHARDS: usize = 16;

type Key = (ThreadId, Arc<str>);

/// The holds that have guards, by thread and name.
#[derive(Debug, Default)]
pub(crate) struct HeldLocks {
    hasher: RandomState,
    shards: [Mutex<HashMap<Key, Arc<Lease>>>; SHARDS],
}

impl HeldLocks {
    pub(crate) fn find(&self, thread: ThreadId, name: &Arc<str>) -> Option<Arc<Lease>> {
        self.shard(thread).lock().get(&(thread, name.clone())).cloned()
    }

    pub(crate) fn insert(&self, lease: &Arc<Lease>) {
        if let Some(thread) = lease.thread() {
            self.shard(thread).lock().insert((thread, lease.name().clone()), lease.clone());
        }
    }

    pub(crate) fn remove(&self, lease: &Lease) {
        if let Some(thread) = lease.thread() {
            let mut shard = self.shard(thread).lock();
            shard.remove(&(thread, lease.name().clone()));
            shrink(&mut shard);
        }
    }

    fn shard(&self, thread: ThreadId) -> &Mutex<HashMap<Key, Arc<Lease>>> {
        let hash = self.hasher.hash_one(thread);
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)]
    }
}
