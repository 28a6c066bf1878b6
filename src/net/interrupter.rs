//! A way for one thread to end another thread's wait for messages.

use std::fmt::Debug;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// What a thread waits for.
pub(crate) trait Close: Debug + Send + Sync {
    /// Wakes the thread, and lets nothing more come.
    fn close(&self);
}

/// Interrupts a thread once, for good. Clones interrupt the same thread.
#[derive(Clone, Debug)]
pub(crate) struct Interrupter {
    state: Arc<Interrupt>,
}

#[derive(Debug)]
struct Interrupt {
    done: AtomicBool,
    /// What the thread waits for. Locked while it is replaced, and after `done`
    /// is set, so that no socket is missed.
    awaited: Mutex<Option<Weak<dyn Close>>>,
    process: u32,
}

impl Interrupter {
    pub(crate) fn new() -> Self {
        let (done, awaited) = (AtomicBool::new(false), Mutex::default());
        Self { state: Arc::new(Interrupt { done, awaited, process: process::id() }) }
    }

    /// Ends the wait, and every later one.
    pub(crate) fn interrupt(&self) {
        // A forked child has the same sockets, and the lock may be held by a thread that the child
        // does not have.
        if process::id() == self.state.process {
            self.state.done.store(true, Ordering::SeqCst);
            if let Some(awaited) = self.state.awaited.lock().as_ref().and_then(Weak::upgrade) {
                awaited.close();
            }
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.state.done.load(Ordering::SeqCst)
    }

    /// Sets what the thread is going to wait for. The thread must then check once more that it is
    /// not interrupted.
    pub(crate) fn watch(&self, awaited: Option<Weak<dyn Close>>) {
        *self.state.awaited.lock() = awaited;
    }
}
