//! Watches on a hold, for a thread that must stop when the lock is lost, or can end early when
//! another client waits for it.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use std::{fmt, process};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use crate::base::clock::{Moment, end_of};
use crate::base::sync::receive;
use crate::error::LossCause;
use crate::local::hold_requests;
use crate::local::shared::Shared;
use crate::protocol::hold::Hold;
use crate::protocol::signals::{EndSignal, WantedSignal};

/// A watch on a hold, with which any thread can check whether it is lost, or wait until it is over.
/// Created by [`Guard::lost`](crate::Guard::lost).
///
/// All watches on the same hold report the same, and none of them keeps the lock or the client
/// alive.
///
/// ```
/// use leasehold::HoldEnd;
/// use std::time::Duration;
///
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock("report")?;
/// let lost = guard.lost();
/// let watcher = std::thread::spawn(move || lost.wait());
/// assert_eq!(guard.lost().wait_timeout(Duration::from_millis(1)), None);
/// guard.unlock()?;
/// match watcher.join().unwrap() {
///     HoldEnd::Lost => panic!("another client may hold the lock"),
///     HoldEnd::Released => {}
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Lost {
    /// The holds. Empty in a forked child, where nothing is held.
    holds: Vec<Arc<Hold>>,
    /// How they have ended, once they have.
    end: EndSignal,
    over: WatchReceiver,
}

/// Signals that a watch has something to report, in the process that created it. A forked child
/// must not touch it, because a thread of the parent may have locked it.
#[derive(Clone)]
struct WatchReceiver {
    receiver: Receiver<Infallible>,
    process: u32,
}

/// The receiver of a forked child, where nothing is held.
static DISCONNECTED: LazyLock<Receiver<Infallible>> = LazyLock::new(|| bounded(0).1);

impl WatchReceiver {
    fn new(receiver: Receiver<Infallible>) -> Self {
        LazyLock::force(&DISCONNECTED);
        Self { receiver, process: process::id() }
    }

    fn is_forked(&self) -> bool {
        process::id() != self.process
    }

    fn get(&self) -> &Receiver<Infallible> {
        if self.is_forked() { &DISCONNECTED } else { &self.receiver }
    }
}

/// How a hold ended. See [`Lost::wait`].
#[expect(clippy::exhaustive_enums, reason = "a hold that is over was either released or lost")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldEnd {
    /// The lease ended before the guard did, so another client may hold the lock now.
    Lost,
    /// The guard was dropped or unlocked, or the client was shut down.
    Released,
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost").field("is_lost", &self.is_lost()).finish_non_exhaustive()
    }
}

impl Lost {
    /// Watches for the loss of any of these holds, which share one channel. A forked child must not
    /// touch anything shared with the parent's threads.
    pub(super) fn new(shared: &Shared, holds: &[Arc<Hold>]) -> Self {
        match holds {
            [first, ..] if shared.check_process().is_ok() => {
                let end = shared.end_signal(first);
                let over = WatchReceiver::new(end.receiver().clone());
                Self { holds: holds.to_vec(), end, over }
            }
            _ => Self {
                holds: Vec::new(),
                end: EndSignal::over(true),
                over: WatchReceiver::new(DISCONNECTED.clone()),
            },
        }
    }

    /// Returns `true` if the lease was lost: at the latest when it ends by this process's clock.
    /// Returns `false` while the lock is held, and after it was released. Does not block and does
    /// not ask the server. In a forked child nothing is held, so this returns `true`, and no wait
    /// blocks.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        if self.over.is_forked() {
            return true;
        }
        let was_lost = self.end.was_lost();
        // The deadline may have passed before any thread noticed it.
        was_lost.unwrap_or_else(|| self.holds.iter().any(|hold| hold.is_lost(Moment::now())))
    }

    /// Returns why the lock was lost, as far as this client knows; of several locks, the first that
    /// was. `None` as long as [`is_lost`](Lost::is_lost) returns `false`, and in a forked child.
    /// Does not block and does not ask the server.
    ///
    /// ```
    /// use leasehold::LossCause;
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.mutex("report").max_hold(Duration::from_millis(20)).lock()?;
    /// assert_eq!(guard.lost().cause(), None);
    /// let _end = guard.lost().wait();
    /// assert_eq!(guard.lost().cause(), Some(LossCause::MaxHold));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn cause(&self) -> Option<LossCause> {
        if self.over.is_forked() || !self.is_lost() {
            return None;
        }
        let lost = self.holds.iter().find(|hold| hold.is_lost(Moment::now()));
        lost.map(|hold| hold.loss(Moment::now()).cause)
    }

    /// Blocks the current thread until the hold is over, and returns how it ended. If the lease
    /// ends while the system is suspended, this returns up to a second after it has resumed;
    /// [`is_lost`](Lost::is_lost) returns `true` at once.
    #[must_use]
    pub fn wait(&self) -> HoldEnd {
        match self.over.get().recv() {
            Ok(never) => match never {},
            Err(_) => self.end(),
        }
    }

    /// Like [`wait`](Lost::wait), for at most `time`. Returns `None` if the hold is not over by
    /// then.
    #[must_use]
    pub fn wait_timeout(&self, time: Duration) -> Option<HoldEnd> {
        match receive(self.over.get(), end_of(time)) {
            Ok(never) => match never {},
            Err(RecvTimeoutError::Timeout) => {
                // The deadline may have passed before any thread could mark the loss.
                if self.is_lost() { Some(HoldEnd::Lost) } else { None }
            }
            Err(RecvTimeoutError::Disconnected) => Some(self.end()),
        }
    }

    /// Returns how the hold ended, once it is over.
    fn end(&self) -> HoldEnd {
        if self.is_lost() { HoldEnd::Lost } else { HoldEnd::Released }
    }

    /// Returns a receiver for `select!`, which gets no messages and is disconnected when the hold
    /// is over. After that, [`is_lost`](Lost::is_lost) returns how it ended.
    ///
    /// ```
    /// use crossbeam_channel::select;
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.lock("report")?;
    /// let lost = guard.lost();
    /// for part in 0..3 {
    ///     // ... work on the part ...
    ///     select! {
    ///         recv(lost.receiver()) -> _ => panic!("lost the lock: stop before part {part}"),
    ///         default(Duration::from_millis(1)) => {}
    ///     }
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn receiver(&self) -> &Receiver<Infallible> {
        self.over.get()
    }
}

/// A watch on a hold, with which any thread can check whether another client waits for the lock, or
/// wait until one does. Created by [`Guard::wanted`](crate::Guard::wanted).
///
/// All watches on the same hold report the same, and once `true` they stay so. None of them keeps
/// the lock or the client alive.
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock("reindex")?;
/// let wanted = guard.wanted();
/// for part in 0..100 {
///     // ... work on the part ...
///     if wanted.is_wanted() {
///         break; // the rest another time
///     }
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Wanted {
    /// `None` in a forked child, where nothing is held.
    watch: Option<WantedSignal>,
    receiver: WatchReceiver,
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wanted").field("is_wanted", &self.is_wanted()).finish_non_exhaustive()
    }
}

impl Wanted {
    pub(super) fn new(shared: &Shared, hold: &Arc<Hold>) -> Self {
        // A forked child holds nothing.
        if shared.check_process().is_err() {
            return Self { watch: None, receiver: WatchReceiver::new(DISCONNECTED.clone()) };
        }
        let watch = hold_requests::watch(shared, hold);
        let receiver = WatchReceiver::new(watch.receiver().clone());
        Self { watch: Some(watch), receiver }
    }

    /// Returns `true` if another client waits for the lock, or waited for it during this hold. Does
    /// not block and does not ask the server.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let Some(watch) = &self.watch else { return false };
        !self.receiver.is_forked() && watch.is_wanted()
    }

    /// Blocks the current thread until another client waits for the lock or the hold is over.
    /// Returns `true` in the first case.
    #[must_use]
    pub fn wait(&self) -> bool {
        match self.receiver.get().recv() {
            Ok(never) => match never {},
            Err(_) => self.is_wanted(),
        }
    }

    /// Like [`wait`](Wanted::wait), for at most `time`. Also returns `false` if no other client
    /// waits by then.
    #[must_use]
    pub fn wait_timeout(&self, time: Duration) -> bool {
        match receive(self.receiver.get(), end_of(time)) {
            Ok(never) => match never {},
            Err(_) => self.is_wanted(),
        }
    }

    /// Returns a receiver for `select!`, which gets no messages and is disconnected when another
    /// client waits for the lock or the hold is over. After that, [`is_wanted`](Wanted::is_wanted)
    /// says which.
    #[must_use]
    pub fn receiver(&self) -> &Receiver<Infallible> {
        self.receiver.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LEASE_MIN, LockOptions};
    use crate::protocol::call::tests::caller;
    use crate::protocol::hold::Grant;
    use crate::protocol::tenure::Tenure;
    use crate::store::hold_id::{HoldId, HoldKind};

    #[test]
    fn a_loss_that_no_thread_has_marked_yet_ends_a_wait_in_time() {
        let options = LockOptions { lease: LEASE_MIN, ..LockOptions::default() };
        let (name, client) = ("a".into(), "c".into());
        let id = HoldId { kind: HoldKind::Lock, name, client, nonce: 1 };
        let sent = Moment::now().before(LEASE_MIN);
        let grant = Grant { fence: 1, room: 0, may_begin: false, sent, replied: sent };
        let hold = Tenure::new(id, &grant, &caller(&options)).hold;
        let end = EndSignal::default();
        let over = WatchReceiver::new(end.receiver().clone());
        let lost = Lost { holds: vec![hold], end, over };
        assert!(lost.is_lost());
        assert_eq!(lost.wait_timeout(Duration::ZERO), Some(HoldEnd::Lost));
        assert_eq!(lost.cause(), Some(LossCause::Expired));
    }
}
