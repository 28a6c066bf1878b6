//! What a hold signals to the threads that watch it: that it is over, and that another client waits
//! for its lock.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

/// A channel that never has a message, and is disconnected once.
#[derive(Debug)]
struct OverChannel {
    sender: Mutex<Option<Sender<Infallible>>>,
    receiver: Receiver<Infallible>,
}

impl Default for OverChannel {
    fn default() -> Self {
        let (sender, receiver) = bounded(0);
        Self { sender: Mutex::new(Some(sender)), receiver }
    }
}

impl OverChannel {
    fn disconnect(&self) {
        self.sender.lock().take();
    }
}

/// Signals that a hold is over, or the first of several that share this, and whether one was lost.
/// All clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndSignal(Arc<End>);

#[derive(Debug, Default)]
struct End {
    channel: OverChannel,
    /// One of the states below.
    state: AtomicU8,
}

const NOT_OVER: u8 = 0;
const RELEASED: u8 = 1;
const LOST: u8 = 2;

impl EndSignal {
    /// Creates the signal of a hold that is over.
    pub(crate) fn over(was_lost: bool) -> Self {
        let signal = Self::default();
        signal.tell(was_lost);
        signal
    }

    /// Tells that the hold is over. A loss may come later, and stays.
    pub(super) fn tell(&self, was_lost: bool) {
        let state = if was_lost { LOST } else { RELEASED };
        self.0.state.fetch_max(state, Ordering::AcqRel);
        self.0.channel.disconnect();
    }

    /// Returns whether the hold was lost; `None` if it is not over.
    pub(crate) fn was_lost(&self) -> Option<bool> {
        match self.0.state.load(Ordering::Acquire) {
            NOT_OVER => None,
            state => Some(state == LOST),
        }
    }

    /// Returns a receiver that is disconnected when the hold is over.
    pub(crate) fn receiver(&self) -> &Receiver<Infallible> {
        &self.0.channel.receiver
    }
}

/// A flag that is set while another client waits for the lock, or has waited for it during one
/// hold. All clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedSignal(Arc<WantedState>);

#[derive(Debug, Default)]
struct WantedState {
    /// Disconnected when another client waits or the hold is over.
    channel: OverChannel,
    is_wanted: AtomicBool,
}

impl WantedSignal {
    /// Creates a signal that does not change any more.
    pub(super) fn over(is_wanted: bool) -> Self {
        let signal = Self::default();
        signal.0.is_wanted.store(is_wanted, Ordering::Relaxed);
        signal.end();
        signal
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_wanted.load(Ordering::Acquire)
    }

    pub(super) fn set_wanted(&self) {
        self.0.is_wanted.store(true, Ordering::Release);
        self.0.channel.disconnect();
    }

    /// Tells that the hold is over.
    pub(super) fn end(&self) {
        self.0.channel.disconnect();
    }

    pub(crate) fn receiver(&self) -> &Receiver<Infallible> {
        &self.0.channel.receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::TryRecvError;

    #[test]
    fn a_signal_of_several_holds_tells_of_the_first_end_and_of_any_loss() {
        let signal = EndSignal::default();
        let other = signal.clone();
        assert_eq!(other.receiver().try_recv(), Err(TryRecvError::Empty));
        assert_eq!(other.was_lost(), None);
        for (was_lost, is_lost) in [(false, false), (true, true), (false, true)] {
            signal.tell(was_lost);
            assert_eq!(other.receiver().try_recv(), Err(TryRecvError::Disconnected));
            assert_eq!(other.was_lost(), Some(is_lost));
        }
    }
}
