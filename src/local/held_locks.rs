//! The locks that the calling thread holds.
//!
//! Finds the hold of the thread for a name. A hold that belongs to no thread is not among them.
//! Knows nothing of leases: a hold that is lost stays until its last guard is gone, or with a
//! leaked guard until the thread ends.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::shrink;
use crate::local::hold::Hold;

/// The number of a client in this process, and the name of a lock.
type Key = (u64, Arc<str>);

thread_local! {
    static HELD: RefCell<HashMap<Key, Arc<Hold>>> = RefCell::default();
}

/// The holds of one client that have guards. No thread sees those of another. In a destructor of a
/// thread-local there may be none.
#[derive(Debug)]
pub(crate) struct HeldLocks {
    client: u64,
}

impl Default for HeldLocks {
    fn default() -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        Self { client: CLIENTS.fetch_add(1, Ordering::Relaxed) }
    }
}

impl HeldLocks {
    pub(crate) fn find(&self, name: &Arc<str>) -> Option<Arc<Hold>> {
        let key = (self.client, name.clone());
        HELD.try_with(|held| held.borrow().get(&key).cloned()).unwrap_or_default()
    }

    /// Adds a hold of the calling thread.
    pub(crate) fn insert(&self, name: &Arc<str>, hold: &Arc<Hold>) {
        let key = (self.client, name.clone());
        drop(HELD.try_with(|held| held.borrow_mut().insert(key, hold.clone())));
    }

    /// Removes a hold, if it was added.
    pub(crate) fn remove(&self, hold: &Hold) {
        let key = (self.client, hold.id.name.clone());
        let removed = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if held.get(&key).is_some_and(|found| ptr::eq(&raw const **found, hold)) {
                held.remove(&key);
                shrink(&mut held);
            }
        });
        // In a destructor of a thread-local there may be nothing to remove it from.
        removed.unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    use crate::base::clock::Moment;
    use crate::config::LockOptions;
    use crate::local::call::tests::caller;
    use crate::store::hold_id::{HoldId, HoldKind};

    /// A hold of the calling thread.
    fn hold(name: &Arc<str>) -> Arc<Hold> {
        let (kind, client) = (HoldKind::Lock, Arc::from("me"));
        let id = HoldId { kind, name: name.clone(), client, nonce: 1 };
        let caller = caller(&LockOptions::default());
        Arc::new(Hold::new(id, 1, 0, &caller, Moment::now()))
    }

    #[test]
    fn a_thread_finds_what_it_holds_by_a_client_and_leaves_nothing_behind() {
        let (held, other, name) = (HeldLocks::default(), HeldLocks::default(), Arc::from("a"));
        let mine = hold(&name);
        held.insert(&name, &mine);
        assert!(held.find(&name).is_some_and(|found| Arc::ptr_eq(&found, &mine)));
        assert!(other.find(&name).is_none());
        let leak = || {
            assert!(held.find(&name).is_none());
            let theirs = hold(&name);
            held.insert(&name, &theirs);
            Arc::downgrade(&theirs)
        };
        let leaked = thread::scope(|scope| scope.spawn(leak).join().expect("no panic"));
        assert!(leaked.upgrade().is_none(), "its thread has ended");
        held.remove(&mine);
        assert!(held.find(&name).is_none());
    }
}
