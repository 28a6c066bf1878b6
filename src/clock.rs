//! The clock that leases are measured by: monotonic, and counting while the system is suspended.
//!
//! `std::time::Instant` stands still during suspend on Linux and macOS, so a lease measured by it
//! would outlive the server's (<https://github.com/rust-lang/rust/issues/79462>). Waiting and
//! I/O deadlines keep to `Instant`: a suspend must not eat a caller's retry.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Later than any wait, and within the range of `Instant` everywhere.
const AGES: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The end of a wait that begins now; a wait beyond the clock's range ends in ages.
pub(crate) fn end_of(wait: Duration) -> Instant {
    Instant::now() + wait.min(AGES)
}

/// A point in time, as nanoseconds since an arbitrary start that is the same in this process.
///
/// Values below [`Moment::FIRST`] never occur, so that an atomic can use them as marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Earlier than every reading of the clock.
    pub(crate) const FIRST: Self = Self(16);
    /// Later than every reading of the clock.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) fn now() -> Self {
        Self(reading().max(Self::FIRST.0))
    }

    /// The moment `span` later; [`Moment::NEVER`] if that is beyond the clock's range.
    pub(crate) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    /// The moment `span` earlier.
    pub(crate) fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)).max(Self::FIRST.0))
    }

    /// The time from `earlier` to here, zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) fn raw(self) -> u64 {
        self.0
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn reading() -> u64 {
    // Apple's CLOCK_MONOTONIC counts through sleep; so does FreeBSD's, in lack of a better one.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    Duration::try_from(clock_gettime(CLOCK)).map_or(0, nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_with_instant_while_the_system_is_awake() {
        let (instant, moment) = (std::time::Instant::now(), Moment::now());
        std::thread::sleep(Duration::from_millis(30));
        let (by_instant, by_moment) = (instant.elapsed(), Moment::now().since(moment));
        assert!(by_moment.abs_diff(by_instant) < Duration::from_millis(10));
    }

    #[test]
    fn sums_saturate() {
        assert_eq!(Moment::now().after(Duration::MAX), Moment::NEVER);
        assert_eq!(Moment::FIRST.since(Moment::now()), Duration::ZERO);
    }
}
