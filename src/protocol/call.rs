//! The parameters of one call for a lock: how long it waits, the times that limit its requests, the
//! terms of its hold, and the thread that gets it.
//!
//! Everything that depends on the options and the configuration is computed here once, when the
//! call begins.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, ptr, thread};

use crate::base::canceller::Canceller;
use crate::base::clock::end_after;
use crate::config::{Config, LockOptions};
use crate::error::Result;
use crate::store::request::POST_MOMENT;

/// How long threads hand a lock off among themselves.
const TENURE_DEFAULT: Duration = Duration::from_millis(10);

/// How long a call waits for a held lock, which also decides how often its requests are repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Without limit, as long as servers reply. An outage may last for the retry window.
    Endless,
    /// Not at all. Requests about a hold use this too, because they have no limit of their own.
    /// Within the retry window, they are repeated after transient failures. A server that is
    /// unreachable, stays silent or replies nonsense gets a second attempt at once, but no third.
    /// The same goes for a pool without a free connection.
    No,
    /// Until the caller's deadline. A request may begin until then and end one `io_timeout` later.
    Until(Instant),
}

impl Wait {
    /// Returns the wait for the time in an option, counted from now; `None` means without limit.
    pub(crate) fn at_most(time: Option<Duration>, now: Instant) -> Self {
        time.map_or(Self::Endless, |time| Self::Until(end_after(now, time)))
    }

    /// Returns `true` if there is time for one attempt only.
    pub(crate) fn is_over(self, now: Instant) -> bool {
        self.cut(Duration::MAX, now).is_none()
    }

    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Endless | Self::No => None,
        }
    }

    /// Cuts a pause to the time left; `None` if there is none.
    pub(crate) fn cut(self, pause: Duration, now: Instant) -> Option<Duration> {
        match self {
            Self::No => None,
            Self::Endless => Some(pause),
            Self::Until(deadline) => {
                let left = deadline.saturating_duration_since(now);
                if left.is_zero() { None } else { Some(pause.min(left)) }
            }
        }
    }
}

/// Returns `true` for the client's own options, which no setter of a handle has changed.
pub(crate) fn are_own(options: &LockOptions, config: &Config) -> bool {
    ptr::eq(options, &raw const *config.options)
}

/// The times that limit the requests of a call.
#[derive(Clone, Copy)]
pub(crate) struct CallTimes {
    /// The lease that a new hold gets.
    pub(crate) lease: Duration,
    /// How long one request may take, connecting included.
    pub(crate) io_timeout: Duration,
    /// How much later than the caller's deadline a request may end: the `io_timeout` without the
    /// time allowed for replicas and disks.
    pub(crate) slack: Duration,
}

impl CallTimes {
    pub(crate) fn new(config: &Config, lease: Duration) -> Self {
        let io_timeout = config.io_timeout(lease);
        Self { lease, io_timeout, slack: io_timeout.saturating_sub(config.durability.timeout()) }
    }

    /// Returns the deadline of a request that begins at `now`, for a call with this wait.
    pub(crate) fn request_deadline(&self, wait: Wait, now: Instant) -> Instant {
        let end = end_after(now, self.io_timeout);
        let last = wait.deadline();
        // Beyond the deadline of the call, because its last request needs time for the reply.
        last.and_then(|last| last.checked_add(self.slack)).map_or(end, |last| last.min(end))
    }
}

/// The terms that all holds of a tenure share.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// The duration of a whole lease.
    pub(crate) lease: Duration,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) hold_at_least: Option<Duration>,
    /// How many milliseconds the client keeps the lock after its last use; 0 if it does not. A hold
    /// that is not renewed, or has an age limit or a minimum duration, relies on a request of its
    /// own.
    pub(crate) keep: u32,
    /// How long threads hand the lock off among themselves.
    pub(crate) tenure: Duration,
}

impl Terms {
    fn new(options: &LockOptions) -> Self {
        let LockOptions { lease, renew, max_hold, hold_at_least, keep, tenure, .. } = *options;
        let keeps = renew && max_hold.is_none() && hold_at_least.is_none();
        // Less than a millisecond counts as one.
        let nanos = keep.min(lease).as_nanos();
        let millis = u32::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u32::MAX);
        let keep = if keeps { millis } else { 0 };
        let tenure = tenure.unwrap_or(TENURE_DEFAULT).min(lease / 3);
        Self { lease, renew, max_hold, hold_at_least, keep, tenure }
    }
}

/// A call that waits, or that may acquire a hold, counted until this is dropped. If a call races
/// with closing the client, at least one of them sees the other.
pub(crate) struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    pub(crate) fn begin(counter: &'a AtomicU64) -> Self {
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The owner of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldOwner {
    /// Its guard, which any thread may drop.
    Guard,
    /// The calling thread: once that has ended, no guard can release the hold.
    Thread,
}

/// The thread that asked for a hold.
#[derive(Debug)]
pub(crate) struct CallingThread {
    pub(crate) name: Option<Arc<str>>,
    /// Whether a hold belongs to the thread, and the thread has ended.
    has_ended: AtomicBool,
}

impl CallingThread {
    fn current(has_ended: bool) -> Arc<Self> {
        let name = thread::current().name().map(Arc::from);
        Arc::new(Self { name, has_ended: AtomicBool::new(has_ended) })
    }
}

/// The place of a call in the program: its line and its thread.
#[derive(Clone, Debug)]
pub(crate) struct CallSite {
    pub(crate) thread: Arc<CallingThread>,
    pub(crate) place: &'static Location<'static>,
}

impl CallSite {
    pub(crate) fn can_release(&self) -> bool {
        !self.thread.has_ended.load(Ordering::Acquire)
    }
}

/// The form that log lines use.
impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}:{}", self.place.file(), self.place.line())?;
        match &self.thread.name {
            Some(name) => write!(f, " in thread {name}"),
            None => Ok(()),
        }
    }
}

/// The calling thread, as known to the holds that belong to it, and to all others.
struct CurrentThread {
    owner: Arc<CallingThread>,
    caller: Arc<CallingThread>,
}

impl Drop for CurrentThread {
    fn drop(&mut self) {
        self.owner.has_ended.store(true, Ordering::Release);
    }
}

thread_local! {
    static CURRENT: CurrentThread = CurrentThread {
        owner: CallingThread::current(false),
        caller: CallingThread::current(false),
    };
}

/// Returns the calling thread, for a hold that belongs to `owner`. In a destructor of a
/// thread-local, the thread may count as ended already: then its lease is not renewed.
pub(crate) fn current_thread(owner: HoldOwner) -> Arc<CallingThread> {
    let current = CURRENT.try_with(|current| match owner {
        HoldOwner::Guard => current.caller.clone(),
        HoldOwner::Thread => current.owner.clone(),
    });
    // The value is gone while the thread runs the destructors of its other ones.
    current.unwrap_or_else(|_| CallingThread::current(owner == HoldOwner::Thread))
}

/// A thread that wants a lock, and the terms of its hold.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) thread: Arc<CallingThread>,
    /// The line of the program that made the call.
    pub(crate) place: &'static Location<'static>,
    pub(crate) terms: Terms,
    pub(crate) times: CallTimes,
    pub(crate) canceller: Option<Canceller>,
    /// The note that is shown with the hold.
    pub(crate) note: Option<Arc<str>>,
    /// Whether the hold becomes one of several, which are reported once the set is complete.
    pub(crate) in_set: bool,
    /// When the call began.
    pub(crate) begin: Instant,
    pub(crate) wait: Wait,
}

impl Caller {
    /// Returns the place of the call in the program.
    pub(crate) fn site(&self) -> CallSite {
        CallSite { thread: self.thread.clone(), place: self.place }
    }

    /// Returns the deadline of a request that the call begins now.
    pub(crate) fn request_deadline(&self, now: Instant) -> Instant {
        self.times.request_deadline(self.wait, now)
    }

    /// Returns the latest time at which the call may write requests that it posts along the way.
    pub(crate) fn write_by(&self, now: Instant) -> Instant {
        self.request_deadline(now).min(now + POST_MOMENT)
    }

    /// Returns an error if the wait for a lock has been cancelled.
    pub(crate) fn check_cancelled(&self, name: &str) -> Result<()> {
        self.canceller.as_ref().map_or(Ok(()), |canceller| canceller.check(name))
    }

    /// Creates the caller of a hold that will belong to `owner`. With the client's own options, it
    /// has the `usual` times.
    #[track_caller]
    pub(crate) fn new(
        config: &Config,
        usual: CallTimes,
        options: &LockOptions,
        wait: Wait,
        owner: HoldOwner,
        begin: Instant,
    ) -> Self {
        let times = if are_own(options, config) {
            usual
        } else {
            CallTimes::new(config, options.first_lease())
        };
        Self {
            thread: current_thread(owner),
            place: Location::caller(),
            terms: Terms::new(options),
            times,
            canceller: options.cancelled_by.clone(),
            note: options.note.clone(),
            in_set: false,
            begin,
            wait,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::base::clock::end_of;

    /// Returns the calling thread as one that will own a hold, and waits for it without limit.
    pub(crate) fn caller(options: &LockOptions) -> Caller {
        let config = Config::default();
        let usual = CallTimes::new(&config, options.first_lease());
        let owner = HoldOwner::Thread;
        Caller::new(&config, usual, options, Wait::Endless, owner, Instant::now())
    }

    fn can_release(thread: &Arc<CallingThread>) -> bool {
        CallSite { thread: thread.clone(), place: Location::caller() }.can_release()
    }

    #[test]
    fn a_thread_is_alive_until_it_ends() {
        let both = || [HoldOwner::Thread, HoldOwner::Guard].map(current_thread);
        let named = thread::Builder::new().name("worker-3".into());
        let ended = named.spawn(both).expect("a thread").join().expect("no panic");
        assert_eq!(ended.each_ref().map(can_release), [false, true]);
        assert!(ended.iter().all(|thread| thread.name.as_deref() == Some("worker-3")));
        assert!(both().iter().all(can_release));
    }

    #[test]
    fn no_request_outlasts_its_limit_by_more_than_one_io_timeout() {
        let (now, times) = (Instant::now(), caller(&LockOptions::default()).times);
        assert!(times.request_deadline(Wait::Until(now), now) <= now + Duration::from_secs(1));
    }

    #[test]
    fn a_wait_is_over_when_there_is_time_for_one_attempt_only() {
        let until = |time| Wait::Until(end_of(time));
        let waits =
            [Wait::No, until(Duration::ZERO), until(Duration::from_secs(60)), Wait::Endless];
        let now = Instant::now();
        assert_eq!(waits.map(|wait| wait.is_over(now)), [true, true, false, false]);
    }
}
