//! Links that threads use in turn.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::base::failure::Failure;
use crate::net::pool::PoolThread;
use crate::net::request::Reply;
use crate::net::socket::poll_ready;
use crate::net::spin::ReplyWait;
use crate::net::stream::PolledSocket;
use crate::store::quorum::broadcast::Broadcast;
use crate::store::quorum::link_set::LinkSet;

/// The replies that a call has not waited for are read this much later, unless another call reads
/// them before. They may show that a hold is in doubt.
const SWEEP: Duration = Duration::from_millis(10);

/// The pause before the next sweep where one has not read all of them.
const NEXT_SWEEP: Duration = Duration::from_millis(50);

/// Links, and what reads the replies that no call waits for.
pub(super) struct SharedLinks {
    /// Locked by a call until it has its replies: no other thread reads them.
    reader: Mutex<()>,
    /// Locked to send and to read, but not while replies are waited for.
    links: Mutex<LinkSet>,
    pool_thread: PoolThread,
    /// Whether a sweep is scheduled.
    sweeps: AtomicBool,
}

/// Shows no request in flight, which names the owner of a lock.
impl fmt::Debug for SharedLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLinks").finish_non_exhaustive()
    }
}

impl SharedLinks {
    pub(super) fn new(links: LinkSet, pool_thread: &PoolThread) -> Arc<Self> {
        let (links, sweeps) = (Mutex::new(links), AtomicBool::new(false));
        Arc::new(Self { reader: Mutex::new(()), links, pool_thread: pool_thread.clone(), sweeps })
    }

    /// Blocks until no other thread uses the links. Fails if that takes until `deadline`.
    pub(super) fn lock(self: &Arc<Self>, deadline: Instant) -> Result<LockedLinks<'_>, Failure> {
        let reader = Some(self.reader.try_lock_until(deadline).ok_or_else(in_use)?);
        let links = self.links.try_lock_until(deadline).ok_or_else(in_use)?;
        Ok(LockedLinks { reader, links, shared: self })
    }

    /// As `lock`, to send what no thread waits for: another thread may wait for its replies.
    pub(super) fn lock_to_post(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<LockedLinks<'_>, Failure> {
        let reader = self.reader.try_lock();
        let links = self.links.try_lock_until(deadline).ok_or_else(in_use)?;
        Ok(LockedLinks { reader, links, shared: self })
    }

    fn schedule_sweep(self: &Arc<Self>, delay: Duration) {
        if self.sweeps.load(Ordering::SeqCst) || self.sweeps.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = Arc::downgrade(self);
        self.pool_thread.after(delay, move || {
            let Some(shared) = shared.upgrade() else { return };
            shared.sweeps.store(false, Ordering::SeqCst);
            // Requests of other names may wait for this thread, so it never waits for the links.
            let reader = shared.reader.try_lock();
            let links = reader.as_ref().and_then(|_| shared.links.try_lock());
            if links.is_none_or(|mut links| links.sweep()) {
                shared.schedule_sweep(NEXT_SWEEP);
            }
        });
    }
}

fn in_use() -> Failure {
    let why = "the connections for this name were in use until the time was over";
    Failure::none_free(&Arc::from("the servers"), why)
}

/// Links that no other thread uses until this is dropped.
#[derive(Debug)]
pub(super) struct LockedLinks<'a> {
    /// `None` if another thread waits for its replies, and reads those of this one too.
    reader: Option<MutexGuard<'a, ()>>,
    links: MutexGuard<'a, LinkSet>,
    shared: &'a Arc<SharedLinks>,
}

impl LockedLinks<'_> {
    /// Prepares to send what no thread waits for. Returns which servers are not owed too many
    /// replies. A thread that waits for replies has prepared the links.
    pub(super) fn prepare_to_post(&mut self, deadline: Instant) -> Vec<bool> {
        if self.reader.is_none() {
            return self.room();
        }
        self.begin_to_prepare();
        self.make_room(deadline)
    }

    /// Reads until `decide` returns a decision about the replies to a request so far. `None` if
    /// there is none by `deadline`, or if no further reply can come.
    pub(super) fn wait<T>(
        &mut self,
        broadcast: &Arc<Broadcast>,
        deadline: Instant,
        mut decide: impl FnMut(usize, Reply) -> Option<T>,
    ) -> Option<T> {
        let servers = self.servers.clone();
        // Replicas and disks do not answer soon, and that says nothing about the servers.
        let mut wait = broadcast.demand.is_none().then(|| servers.spin.begin());
        let mut decision = None;
        loop {
            broadcast.take_replies(|number, reply| {
                if decision.is_none() {
                    decision = decide(number, reply);
                }
            });
            if decision.is_some() || !self.read_replies(broadcast, wait.as_mut(), deadline) {
                break;
            }
        }
        if let Some(wait) = &wait {
            servers.spin.record(wait);
        }
        decision
    }

    /// Waits for replies to a request, and reads all that have come. Returns `false` if there is
    /// none in time. Meanwhile other threads can send what they do not wait for.
    fn read_replies(
        &mut self,
        broadcast: &Broadcast,
        mut wait: Option<&mut ReplyWait>,
        deadline: Instant,
    ) -> bool {
        let (numbers, sockets) = self.awaited(broadcast);
        if numbers.is_empty() {
            return false;
        }
        let ready = MutexGuard::unlocked(&mut self.links, || {
            let mut sockets: Vec<_> = sockets.iter().map(PolledSocket::poll_fd).collect();
            loop {
                let spins = wait.as_mut().is_some_and(|wait| wait.spins());
                let ready = poll_ready(&mut sockets, if spins { None } else { Some(deadline) });
                if !ready.is_empty() || !spins {
                    break ready;
                }
                std::hint::spin_loop();
            }
        });
        for place in &ready {
            self.read(numbers[*place]);
        }
        !ready.is_empty()
    }
}

impl Deref for LockedLinks<'_> {
    type Target = LinkSet;

    fn deref(&self) -> &LinkSet {
        &self.links
    }
}

impl DerefMut for LockedLinks<'_> {
    fn deref_mut(&mut self) -> &mut LinkSet {
        &mut self.links
    }
}

impl Drop for LockedLinks<'_> {
    fn drop(&mut self) {
        if self.links.is_busy() {
            self.shared.schedule_sweep(SWEEP);
        }
    }
}
