//! A way for one thread to end another thread's wait for messages.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::net::stream::SocketCloser;

/// Interrupts a thread once, for good. Clones interrupt the same thread.
#[derive(Clone, Debug)]
pub(crate) struct Interrupter {
    state: Arc<Interrupt>,
}

#[derive(Debug)]
struct Interrupt {
    done: AtomicBool,
    /// Closes the socket that the thread waits for. Locked while it is replaced, and after `done`
    /// is set, so that no socket is missed.
    closer: Mutex<SocketCloser>,
    process: u32,
}

impl Interrupter {
    pub(crate) fn new() -> Self {
        let (done, closer) = (AtomicBool::new(false), Mutex::default());
        Self { state: Arc::new(Interrupt { done, closer, process: process::id() }) }
    }

    /// Ends the wait, and every later one.
    pub(crate) fn interrupt(&self) {
        // A forked child has the same sockets, and the lock may be held by a thread that the child
        // does not have.
        if process::id() == self.state.process {
            self.state.done.store(true, Ordering::SeqCst);
            self.state.closer.lock().close();
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.state.done.load(Ordering::SeqCst)
    }

    /// Sets the socket that the thread is going to wait for. The thread must then check once more
    /// that it is not interrupted.
    pub(crate) fn watch(&self, closer: SocketCloser) {
        *self.state.closer.lock() = closer;
    }
}
