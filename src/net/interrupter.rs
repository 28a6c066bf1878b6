//! A way for one thread to end another's wait for messages.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::net::stream::SocketCloser;

/// Interrupts once, for good. Clones interrupt the same.
#[derive(Clone, Debug)]
pub(crate) struct Interrupter {
    state: Arc<Interrupt>,
}

#[derive(Debug)]
struct Interrupt {
    done: AtomicBool,
    /// The socket at which the other thread waits. Locked while one is put in, and after `done`
    /// is set, so that none is missed.
    plug: Mutex<SocketCloser>,
    process: u32,
}

impl Interrupter {
    pub(crate) fn new() -> Self {
        let (done, plug) = (AtomicBool::new(false), Mutex::default());
        Self { state: Arc::new(Interrupt { done, plug, process: process::id() }) }
    }

    /// Ends the wait, and every later one.
    pub(crate) fn interrupt(&self) {
        // A forked child has the same sockets, and the lock may be in the hands of a thread that
        // it does not have.
        if process::id() == self.state.process {
            self.state.done.store(true, Ordering::SeqCst);
            self.state.plug.lock().pull();
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.state.done.load(Ordering::SeqCst)
    }

    /// Says where the thread is going to wait, before it looks for the last time whether it may.
    pub(crate) fn guard(&self, plug: SocketCloser) {
        *self.state.plug.lock() = plug;
    }
}
