//! A second pair of eyes on the leases that somebody watches.
//!
//! It is the renewer that finds a lease lost. Should that thread be kept from running, a timer on
//! the pool's thread brings the news of the local deadline to those who wait for it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use scheduled_thread_pool::ScheduledThreadPool;

use crate::hold::herald::Herald;
use crate::hold::lease::Lease;

/// Looks at a lease when its deadline has come, and again if that was moved.
pub(crate) fn set(threads: &Arc<ScheduledThreadPool>, lease: &Arc<Lease>, herald: Herald) {
    after(lease.remaining(), threads, Arc::downgrade(lease), herald);
}

fn after(time: Duration, threads: &Arc<ScheduledThreadPool>, lease: Weak<Lease>, herald: Herald) {
    // The timer must keep alive neither the lease nor the thread that it runs on.
    let again = Arc::downgrade(threads);
    threads.execute_after(time, move || {
        let (Some(held), Some(threads)) = (lease.upgrade(), again.upgrade()) else { return };
        held.expire(&herald);
        let remaining = held.remaining();
        if !remaining.is_zero() {
            after(remaining, &threads, lease, herald);
        }
    });
}

/// A receiver that has its message.
pub(crate) fn rung() -> Receiver<()> {
    let (sender, receiver) = bounded(1);
    sender.send(()).unwrap_or_default();
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::config::Terms;
    use crate::hold::owner::Thread;
    use crate::store::HoldId;

    const LEASE: Duration = Duration::from_millis(100);

    fn lease() -> Arc<Lease> {
        let id = HoldId { name: Arc::from("x"), client: Arc::from("c"), nonce: 1 };
        let terms = Terms { lease: LEASE, ..Terms::default() };
        Arc::new(Lease::new(id, 1, &terms, Moment::now(), Thread::current()))
    }

    #[test]
    fn watchers_hear_of_the_deadline_without_a_renewer() {
        let threads = Arc::new(ScheduledThreadPool::new(1));
        let lease = lease();
        let (lost, _) = lease.watch();
        set(&threads, &lease, Herald::default());
        lease.extend(Moment::now().after(LEASE), LEASE);
        assert!(lost.recv_timeout(LEASE * 3 / 2).is_err(), "the deadline was moved");
        lost.recv_timeout(LEASE * 10).expect("lost at the second deadline");
    }

    #[test]
    fn a_timer_keeps_nothing_alive() {
        let threads = Arc::new(ScheduledThreadPool::new(1));
        let (lease, weak) = (lease(), Arc::downgrade(&threads));
        set(&threads, &lease, Herald::default());
        assert_eq!(Arc::strong_count(&lease), 1);
        drop(threads);
        assert!(weak.upgrade().is_none());
    }
}
