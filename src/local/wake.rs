//! How threads in lines are woken: because a lock may be free, or because the client is closed.
//!
//! A thread at the head is told without its shard's lock, because its next request is sent in
//! passing: others that are on their way to another lock need not wait for that.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::local::wait_queue::WaitQueue;
use crate::local::wait_queues::WaitQueues;
use crate::local::waiter::{Signal, Signals};
use crate::store::Store;

impl WaitQueues {
    /// Turns away those who come and those who wait.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for shard in &self.shards {
            let shard = shard.lock();
            for place in shard.values().flat_map(WaitQueue::places) {
                place.tell(Signal::Closed);
            }
            let competitors = competitors(&shard);
            drop(shard);
            for mailbox in competitors {
                mailbox.put(Signal::Closed);
            }
        }
    }

    /// Tells the thread at the head that the lock may be free, or asks the store for it on its
    /// behalf. `false` if it has it, or there is none.
    pub(crate) fn knock(&self, name: &str, store: &dyn Store) -> bool {
        let competitor = self.shard(name).get(name).and_then(WaitQueue::competitor).cloned();
        competitor.map(|mailbox| mailbox.knock(|next| next.start(store))).is_some()
    }

    /// Does so for every lock that a thread competes for.
    pub(crate) fn knock_all(&self, store: &dyn Store) {
        for shard in &self.shards {
            let competitors = competitors(&shard.lock());
            for mailbox in competitors {
                mailbox.knock(|next| next.start(store));
            }
        }
    }
}

/// Where those at the heads look for news that have not got their locks.
fn competitors(shard: &HashMap<Arc<str>, WaitQueue>) -> Vec<Arc<Signals>> {
    shard.values().filter_map(WaitQueue::competitor).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LockOptions;
    use crate::error::Error;
    use crate::local::acquire_request::tests::request;
    use crate::local::wait_queues::tests::{is_empty, lease, name, three};
    use crate::store::memory::Memory;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn a_knock_wakes_who_competes_and_nobody_else() {
        let (lines, store) = (WaitQueues::default(), Memory::default());
        let [head, second, _] = three(&lines);
        for _ in 0..100 {
            assert!(lines.knock("x", &store));
            lines.knock_all(&store);
        }
        head.sleep(SOON, &request()).expect("open");
        assert!(head.mailbox.is_empty(), "one knock is as good as many");
        assert!(second.mailbox.is_empty());
        assert!(!lines.knock("y", &store));
        lines.hold(&lease());
        assert!(!lines.knock("x", &store));
    }

    #[test]
    fn close_ends_every_wait_and_lets_nobody_in() {
        let lines = WaitQueues::default();
        let [head, second, third] = three(&lines);
        lines.close();
        assert!(matches!(head.sleep(SOON, &request()), Err(Error::Closed)));
        for ticket in [second, third] {
            assert!(matches!(lines.wait(&ticket, None), Err(Error::Closed)));
        }
        assert!(matches!(lines.join(&name(), &LockOptions::default(), true), Err(Error::Closed)));
        lines.give_up(&name(), None);
        assert!(is_empty(&lines));
    }
}
