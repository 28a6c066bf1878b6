//! The parameters of one call for a lock: how long it waits, the times that limit its requests, and
//! the thread that gets the lock.
//!
//! Everything that follows from the options and the configuration is computed here, once, at the
//! start of the call.

use std::time::{Duration, Instant};

use crate::base::clock::end_of;
use crate::config::{Config, LockOptions};
use crate::local::identity::Thread;
use crate::store::hold_id::HoldKind;

/// How long a call waits for a lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Endless,
    No,
    Until(Instant),
}

impl Wait {
    /// For as long as an option allows that begins to count now; `None` means without limit.
    pub(crate) fn at_most(time: Option<Duration>) -> Self {
        time.map_or(Self::Endless, |time| Self::Until(end_of(time)))
    }

    /// Returns `true` if there is time for one attempt only.
    pub(super) fn is_over(self) -> bool {
        self.cut(Duration::MAX).is_none()
    }

    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Endless | Self::No => None,
        }
    }

    /// Cuts a pause to the time that is left; `None` if there is none.
    pub(super) fn cut(self, pause: Duration) -> Option<Duration> {
        match self {
            Self::No => None,
            Self::Endless => Some(pause),
            Self::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                (!left.is_zero()).then(|| pause.min(left))
            }
        }
    }
}

/// The times that limit the requests of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTimes {
    /// The lease that a new hold gets.
    pub(crate) lease: Duration,
    /// How long one request may take, connecting included.
    pub(crate) io_timeout: Duration,
    /// How much later than the caller's deadline a request may end: the `io_timeout` without the
    /// time that replicas and disks are given.
    pub(crate) slack: Duration,
}

impl CallTimes {
    pub(crate) fn new(config: &Config, lease: Duration) -> Self {
        let io_timeout = config.io_timeout(lease);
        Self { lease, io_timeout, slack: io_timeout.saturating_sub(config.durability.timeout()) }
    }
}

/// A thread that wants a lock, and the options with which it gets it.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(super) kind: HoldKind,
    /// The thread to which the hold will belong; `None` if to none.
    pub(super) thread: Option<Thread>,
    pub(super) options: LockOptions,
    pub(super) times: CallTimes,
    /// Whether the hold becomes one of several, which are reported once the set is complete.
    pub(super) in_set: bool,
    /// When the call began.
    pub(super) begin: Instant,
    pub(super) wait: Wait,
}

impl Caller {
    /// The calling thread, which will own a hold of a lock, and waits for it without limit.
    pub(crate) fn current(config: &Config, options: &LockOptions) -> Self {
        Self { thread: Some(Thread::current()), ..Self::owned(config, options, HoldKind::Lock) }
    }

    /// Returns `true` if the client may keep the lock when the hold is over.
    pub(super) fn keeps(&self) -> bool {
        self.kind.is_lock() && !self.in_set && !self.options.keep().is_zero()
    }

    /// As `current`, for a hold that will belong to no thread.
    pub(crate) fn owned(config: &Config, options: &LockOptions, kind: HoldKind) -> Self {
        let times = CallTimes::new(config, options.first_lease());
        Self {
            kind,
            thread: None,
            options: options.clone(),
            times,
            in_set: false,
            begin: Instant::now(),
            wait: Wait::Endless,
        }
    }
}
