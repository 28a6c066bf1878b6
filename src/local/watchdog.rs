//! A second pair of eyes on the leases that somebody watches.
//!
//! It is the renewer that finds a lease lost. Should that thread be kept from running, a timer on
//! the pool's thread brings the news of the local deadline to those who wait for it.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::local::lease::Lease;
use crate::net::pool::PoolThread;

/// A timer may run ahead of the clock by as much.
const EARLY: Duration = Duration::from_millis(1);

/// With fewer leases than this, those that have ended are not cleared away before their time.
const FEW: usize = 64;

/// The watched leases of a client, and one timer for all of them.
pub(crate) struct Watchdog {
    threads: OnceLock<PoolThread>,
    watched: Arc<Mutex<Watched>>,
}

struct Watched {
    leases: Vec<Weak<Lease>>,
    /// With so many leases it is time to clear away those that have ended.
    crowded: usize,
    /// When the timer rings; earlier timers ring for nothing.
    next: Moment,
}

impl Watchdog {
    /// Runs on one of `threads`, or on a thread of its own once that is needed.
    pub(crate) fn new(threads: Option<PoolThread>) -> Self {
        let threads = threads.map(OnceLock::from).unwrap_or_default();
        let watched = Watched { leases: Vec::new(), crowded: FEW, next: Moment::NEVER };
        Self { threads, watched: Arc::new(Mutex::new(watched)) }
    }

    /// Watches a lease until its deadline has passed for good.
    pub(crate) fn watch(&self, lease: &Arc<Lease>) {
        let due = Moment::now().after(lease.remaining());
        let mut watched = self.watched.lock();
        if watched.leases.len() >= watched.crowded {
            watched.leases.retain(is_live);
            watched.crowded = FEW.max(watched.leases.len() * 2);
        }
        watched.leases.push(Arc::downgrade(lease));
        if due < watched.next {
            watched.next = due;
            schedule(self.threads.get_or_init(PoolThread::start), &self.watched, due);
        }
    }
}

fn is_live(lease: &Weak<Lease>) -> bool {
    lease.upgrade().is_some_and(|lease| !lease.remaining().is_zero())
}

fn schedule(threads: &PoolThread, watched: &Arc<Mutex<Watched>>, due: Moment) {
    // The timer must not keep the client alive.
    let watched = Arc::downgrade(watched);
    threads.after(due.since(Moment::now()), move |threads| {
        if let Some(watched) = watched.upgrade() {
            ring(threads, &watched);
        }
    });
}

/// Tells the watchers of leases that are over, and sets the timer for the others.
fn ring(threads: &PoolThread, shared: &Arc<Mutex<Watched>>) {
    let mut watched = shared.lock();
    let now = Moment::now();
    if watched.next.since(now) > EARLY {
        return;
    }
    let mut next = Moment::NEVER;
    watched.leases.retain(|lease| {
        let Some(lease) = lease.upgrade() else { return false };
        let left = lease.remaining();
        if left.is_zero() {
            lease.report_loss_if_over();
        } else {
            next = next.min(now.after(left));
        }
        !left.is_zero()
    });
    watched.next = next;
    if next < Moment::NEVER {
        schedule(threads, shared, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, LockOptions};
    use crate::local::call::Caller;
    use crate::store::hold::HoldId;

    const LEASE: Duration = Duration::from_millis(100);

    fn lease(length: Duration) -> Arc<Lease> {
        let id = HoldId { name: Arc::from("x"), client: Arc::from("c"), nonce: 1 };
        let options = LockOptions { lease: length, ..LockOptions::default() };
        let caller = Caller::current(&Config::default(), &options);
        Arc::new(Lease::new(id, 1, &caller, Moment::now()))
    }

    #[test]
    fn watchers_hear_of_the_deadline_without_a_renewer() {
        let alarm = Watchdog::new(None);
        let lease = lease(LEASE);
        let (lost, _) = lease.loss_receiver();
        alarm.watch(&lease);
        lease.extend(Moment::now().after(LEASE), LEASE);
        assert!(lost.recv_timeout(LEASE * 3 / 2).is_err(), "the deadline was moved");
        lost.recv_timeout(LEASE * 10).expect("lost at the second deadline");
        assert!(lease.expire(), "the rest is left to others");
    }

    #[test]
    fn the_first_deadline_counts_whichever_lease_came_first() {
        let alarm = Watchdog::new(None);
        let leases = [LEASE * 100, LEASE, LEASE * 3].map(lease);
        let lost = leases.each_ref().map(|lease| {
            alarm.watch(lease);
            lease.loss_receiver().0
        });
        lost[1].recv_timeout(LEASE * 20).expect("lost");
        lost[2].recv_timeout(LEASE * 20).expect("lost");
        assert!(lost[0].is_empty());
    }

    #[test]
    fn leases_that_have_ended_are_forgotten() {
        let alarm = Watchdog::new(None);
        for _ in 0..10 * FEW {
            alarm.watch(&lease(LEASE * 1000));
        }
        assert!(alarm.watched.lock().leases.len() <= FEW);
    }

    #[test]
    fn a_timer_keeps_nothing_alive() {
        let threads = PoolThread::start();
        let is_alive = threads.observe();
        let alarm = Watchdog::new(Some(threads));
        let lease = lease(LEASE);
        alarm.watch(&lease);
        assert_eq!(Arc::strong_count(&lease), 1);
        drop(alarm);
        assert!(!is_alive());
    }
}
