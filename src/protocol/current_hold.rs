//! The part of a tenure that changes: the tokens left, the thread, the times, what is known of its
//! requests, and the channels of threads that watch a hold.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::error::LossCause;
use crate::protocol::call::{Caller, CallingThread, site};

/// The current hold of a tenure.
#[expect(clippy::struct_excessive_bools, reason = "they are independent, and take little memory")]
#[derive(Debug)]
pub(crate) struct CurrentHold {
    /// How many holds may follow, each with the next token. A store gives out a thousand at most.
    pub(crate) room: u16,
    /// Whether the hold was reported as begun. If not, its end is not reported either: its call may
    /// not get it after all, or not alone.
    pub(crate) reported: bool,
    pub(crate) ended: bool,
    /// Whether the hold is over and the lock is kept, or was when its tenure ended.
    pub(crate) kept: bool,
    /// The number of guards. Readers share a hold: for them it changes while the name is locked.
    pub(crate) depth: u32,
    /// When the hold began. After its end, [`Moment::FIRST`] plus the time that it was held. While
    /// the lock is kept, when it was last used.
    pub(crate) acquired: Moment,
    /// The thread that has called for the hold; `None` while the lock is kept, and for a debt.
    pub(crate) thread: Option<Arc<CallingThread>>,
    /// The line of the program that has called for the hold.
    pub(crate) place: &'static Location<'static>,
    // The fields below belong to the whole tenure.
    /// Whether the renewer will check if the lock is still kept.
    pub(crate) looked_after: bool,
    /// Whether a request that began this hold may be executed again.
    pub(crate) may_begin: bool,
    /// Whether the last renewal has failed. Only the renewer sets it.
    pub(crate) failing: bool,
    /// Whether another client waits for the lock.
    pub(crate) wanted: bool,
    /// Whether a hold has begun on the kept lock.
    pub(crate) reused: bool,
    /// How many requests to release the hold may have been executed, or may still be. If more than
    /// one, each may have ended the hold before another.
    pub(crate) releases: u16,
    /// Boxed, because only a few holds need it, and a client may have a million.
    pub(crate) rare: Option<Box<Rare>>,
}

/// The note of a hold, its channels, created with their first receivers, and what is known about a
/// loss of its tenure, or may lead to one.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    pub(crate) note: Option<Arc<str>>,
    /// Disconnected when the hold is over.
    pub(crate) over: Option<OverChannel>,
    /// Removed once another client waits.
    pub(crate) wanted: Option<WantedWatch>,
    /// Whether those that watch the hold are told that it is over, before it is known how it ends.
    pub(crate) told_over: bool,
    /// Whether the store has confirmed that it notifies this client when another one waits.
    pub(crate) is_told: bool,
    /// Set when the tenure is lost, or is about to be.
    pub(crate) cause: Option<LossCause>,
    /// The number of the last hold that was reported to last long.
    pub(crate) reported_long: Option<u64>,
    /// The failure of the last renewal, unless that succeeded.
    pub(crate) last_failure: Option<Arc<dyn StdError + Send + Sync>>,
    /// Whether a message said that the tenure was ended by force. Servers may still have it.
    pub(crate) forced: bool,
}

impl CurrentHold {
    pub(crate) const NEW: Self = Self {
        room: 0,
        depth: 1,
        reported: false,
        ended: false,
        kept: false,
        looked_after: false,
        may_begin: false,
        failing: false,
        wanted: false,
        reused: false,
        releases: 0,
        acquired: Moment::FIRST,
        thread: None,
        place: Location::caller(),
        rare: None,
    };

    /// Replaces the hold with the next one, after its channels were disconnected.
    pub(crate) fn advance(&mut self, caller: &Caller, acquired: Moment) {
        self.room = self.room.saturating_sub(1);
        self.depth = 1;
        self.reported = false;
        self.ended = false;
        self.kept = false;
        self.acquired = acquired;
        self.thread = Some(caller.thread.clone());
        self.place = caller.place;
    }

    /// Describes where the program has called for it.
    pub(crate) fn site(&self) -> String {
        site(self.place, self.thread.as_deref())
    }

    /// Returns the note of the tenure.
    pub(crate) fn note(&self) -> Option<&Arc<str>> {
        self.rare.as_ref()?.note.as_ref()
    }

    /// Returns `true` if the hold with this number was reported to last long.
    pub(crate) fn is_reported_long(&self, number: u64) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.reported_long == Some(number))
    }

    /// Returns how long it has been held.
    pub(crate) fn held(&self, now: Moment) -> Duration {
        let (begin, end) =
            if self.ended { (Moment::FIRST, self.acquired) } else { (self.acquired, now) };
        end.since(begin)
    }

    /// Returns `true` if those that watch the hold are told that it is over, before it is known how
    /// it ends.
    pub(crate) fn told_over(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.told_over)
    }

    /// Disconnects the receivers, even those that also watch other holds.
    pub(crate) fn disconnect(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.is_told = false;
            let wanted = rare.wanted.take().map(|watch| watch.channel);
            for channel in [rare.over.take(), wanted].into_iter().flatten() {
                channel.disconnect();
            }
        }
    }
}

/// A channel that is disconnected when a hold is over, or the first of several.
#[derive(Clone, Debug)]
pub(crate) struct OverChannel {
    sender: Arc<Mutex<Option<Sender<Infallible>>>>,
    pub(crate) receiver: Receiver<Infallible>,
}

impl Default for OverChannel {
    fn default() -> Self {
        let (sender, receiver) = bounded(0);
        Self { sender: Arc::new(Mutex::new(Some(sender))), receiver }
    }
}

impl OverChannel {
    pub(crate) fn disconnect(&self) {
        self.sender.lock().take();
    }
}

/// A flag that is set while another client waits for the lock, or has waited for it during one
/// hold. All clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedWatch {
    /// Disconnected when another client waits or the hold is over.
    channel: OverChannel,
    is_wanted: Arc<AtomicBool>,
}

impl WantedWatch {
    /// Creates a watch that does not change any more.
    pub(crate) fn over(is_wanted: bool) -> Self {
        let watch = Self::default();
        watch.is_wanted.store(is_wanted, Ordering::Relaxed);
        watch.channel.disconnect();
        watch
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }

    pub(crate) fn set_wanted(&self) {
        self.is_wanted.store(true, Ordering::Release);
        self.channel.disconnect();
    }

    pub(crate) fn receiver(&self) -> &Receiver<Infallible> {
        &self.channel.receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::TryRecvError;

    #[test]
    fn a_channel_is_disconnected_for_all_its_holds_at_once() {
        let channel = OverChannel::default();
        let other = channel.clone();
        assert_eq!(other.receiver.try_recv(), Err(TryRecvError::Empty));
        channel.disconnect();
        assert_eq!(other.receiver.try_recv(), Err(TryRecvError::Disconnected));
    }
}
