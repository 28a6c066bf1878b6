//! The clock for leases, which is monotonic and keeps running while the system is suspended.
//!
//! `std::time::Instant` stands still during suspend on Linux and macOS, so a lease measured by it
//! would outlive the server's (<https://github.com/rust-lang/rust/issues/79462>). Deadlines for
//! waiting and I/O use `Instant`, because a suspend must not use up a caller's retries. On Windows,
//! where both use the same clock, it does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[cfg(all(test, unix, not(leasehold_shuttle)))]
use crate::base::sync::executor;

/// Longer than any wait, and within the range of `Instant` on every platform.
const LONGEST_WAIT: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Returns the current time, from the clock of a simulation if there is one.
pub(crate) fn now() -> Instant {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    if let Some(now) = executor::instant() {
        return now;
    }
    Instant::now()
}

/// Returns the time that has passed since `earlier`.
pub(crate) fn elapsed(earlier: Instant) -> Duration {
    now().saturating_duration_since(earlier)
}

/// Returns the time since 1970 by the system's clock.
pub(crate) fn unix_time() -> Duration {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    if let Some(now) = executor::unix_time() {
        return now;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the end of a wait that begins now. A wait beyond the clock's range is cut to 30 years.
pub(crate) fn end_of(wait: Duration) -> Instant {
    end_after(now(), wait)
}

/// Like `end_of`, for a wait that begins at `begin`.
pub(crate) fn end_after(begin: Instant, wait: Duration) -> Instant {
    begin + wait.min(LONGEST_WAIT)
}

/// A point in time, in nanoseconds since an arbitrary start that is the same throughout this
/// process.
///
/// Values below [`Moment::FIRST`] never occur, so an atomic can use them as markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// Not later than any reading of the clock.
    pub(crate) const FIRST: Self = Self(16);
    /// Later than any reading of the clock.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) fn now() -> Self {
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        if let Some(now) = executor::now() {
            return Self(nanos(now));
        }
        Self(reading().max(Self::FIRST.0))
    }

    /// Returns the moment `span` later, or [`Moment::NEVER`] if that is beyond the clock's range.
    pub(crate) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    pub(crate) fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)).max(Self::FIRST.0))
    }

    /// Returns the time that has passed since `earlier`, or zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// Returns the time until this moment, or zero if it has passed.
    pub(crate) fn left(self) -> Duration {
        self.since(Self::now())
    }
}

/// A moment that threads share; at first [`Moment::FIRST`].
pub(crate) struct AtomicMoment(AtomicU64);

impl Default for AtomicMoment {
    fn default() -> Self {
        Self(AtomicU64::new(Moment::FIRST.0))
    }
}

impl AtomicMoment {
    pub(crate) fn get(&self) -> Moment {
        Moment(self.0.load(Ordering::SeqCst))
    }

    pub(crate) fn set(&self, moment: Moment) {
        self.0.store(moment.0, Ordering::SeqCst);
    }
}

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(unix)]
fn reading() -> u64 {
    use rustix::time::{ClockId, clock_gettime};

    // Apple's CLOCK_MONOTONIC runs during sleep, and so does FreeBSD's; there is no better one.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    Duration::try_from(clock_gettime(CLOCK)).map_or(0, nanos)
}

/// `Instant` reads the performance counter, which includes the time in sleep and hibernation:
/// <https://learn.microsoft.com/en-us/windows/win32/sysinfo/acquiring-high-resolution-time-stamps>.
/// `QueryUnbiasedInterruptTime` does not include it.
#[cfg(windows)]
fn reading() -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    nanos(START.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_with_instant_while_the_system_is_awake() {
        let time = Duration::from_millis(30);
        let (instant, moment) = (Instant::now(), Moment::now());
        std::thread::sleep(time);
        // The first one was read before the second, and is read again after it.
        let (by_moment, by_instant) = (moment.elapsed(), instant.elapsed());
        let agrees = by_moment >= time * 9 / 10 && by_moment <= by_instant * 11 / 10;
        assert!(agrees, "{by_moment:?} of {by_instant:?}");
    }

    #[test]
    fn sums_saturate() {
        assert_eq!(Moment::now().after(Duration::MAX), Moment::NEVER);
        assert_eq!(Moment::FIRST.since(Moment::now()), Duration::ZERO);
    }
}
