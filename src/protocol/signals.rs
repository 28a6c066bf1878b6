//! The signals of a hold to the threads that watch it: the hold is over, or another client waits
//! for its lock.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

/// The state that the watches of a hold see. Its value only grows.
#[derive(Debug)]
struct HoldSignal {
    /// One of the states below.
    state: AtomicU8,
    /// Dropped at the first change, which wakes them.
    sender: Mutex<Option<Sender<Infallible>>>,
    /// Never has a message.
    receiver: Receiver<Infallible>,
}

const NOTHING: u8 = 0;
const OVER: u8 = 1;
/// For the watches of the end.
const LOST: u8 = 2;
/// For the watches of other clients.
const WANTED: u8 = 2;

impl Default for HoldSignal {
    fn default() -> Self {
        let (sender, receiver) = bounded(0);
        Self { state: AtomicU8::new(NOTHING), sender: Mutex::new(Some(sender)), receiver }
    }
}

impl HoldSignal {
    fn tell(&self, state: u8) {
        self.state.fetch_max(state, Ordering::AcqRel);
        self.sender.lock().take();
    }

    fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }
}

/// Signals the end of a hold, or of the first of several that share this signal, and whether it was
/// lost. All clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndSignal(Arc<HoldSignal>);

impl EndSignal {
    /// Creates the signal of a hold that is over.
    pub(crate) fn over(was_lost: bool) -> Self {
        let signal = Self::default();
        signal.tell(was_lost);
        signal
    }

    /// Signals that the hold is over. A loss may follow, and is final.
    pub(super) fn tell(&self, was_lost: bool) {
        self.0.tell(if was_lost { LOST } else { OVER });
    }

    /// Returns whether the hold was lost; `None` if it is not over.
    pub(crate) fn was_lost(&self) -> Option<bool> {
        match self.0.state() {
            NOTHING => None,
            state => Some(state == LOST),
        }
    }

    /// Returns a receiver that is disconnected when the hold is over.
    pub(crate) fn receiver(&self) -> &Receiver<Infallible> {
        &self.0.receiver
    }
}

/// A flag that is set while another client waits for the lock, or has waited for it during one
/// hold. All clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedSignal(Arc<HoldSignal>);

impl WantedSignal {
    /// Creates a signal that no longer changes.
    pub(super) fn over(is_wanted: bool) -> Self {
        let signal = Self::default();
        signal.0.tell(if is_wanted { WANTED } else { OVER });
        signal
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.0.state() == WANTED
    }

    pub(super) fn set_wanted(&self) {
        self.0.tell(WANTED);
    }

    /// Signals that the hold is over.
    pub(super) fn end(&self) {
        self.0.tell(OVER);
    }

    /// Returns a receiver that is disconnected when another client waits or the hold is over.
    pub(crate) fn receiver(&self) -> &Receiver<Infallible> {
        &self.0.receiver
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
