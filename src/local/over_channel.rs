//! The channel by which a program can wait for the end of a hold.

use std::convert::Infallible;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

/// The channel whose disconnection says that a hold is over, or one of several.
#[derive(Clone, Debug)]
pub(crate) struct OverChannel {
    sender: Arc<Mutex<Option<Sender<Infallible>>>>,
    pub(crate) receiver: Receiver<Infallible>,
}

impl OverChannel {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = bounded(0);
        Self { sender: Arc::new(Mutex::new(Some(sender))), receiver }
    }

    pub(super) fn disconnect(&self) {
        self.sender.lock().take();
    }
}
