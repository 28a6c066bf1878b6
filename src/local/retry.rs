//! How long one call keeps trying while servers fail it.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::failure::{Failure, FailureKind};
use crate::local::backoff::Backoff;

/// What bounds a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryLimit {
    /// Nothing of its own: what passes by itself is waited for, up to the retry window; a server
    /// that cannot be reached or stays silent gets a second chance, at once, and no third.
    Brief,
    /// The caller's deadline. A request may begin until then and end one `io_timeout` later.
    Deadline(Instant),
    /// A moment at which everything must be over.
    End(Instant),
    /// Nothing, as long as servers answer; an outage may last for the retry window.
    Endless,
}

/// Tells whether a failure says something about the server rather than about the request.
pub(crate) fn is_outage(failure: &Failure) -> bool {
    let about_the_request = matches!(
        failure.kind,
        FailureKind::Rejected | FailureKind::WrongType | FailureKind::NotReplicated { .. }
    );
    !about_the_request
}

/// When the requests of a call must have ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    bound: RetryLimit,
    io_timeout: Duration,
    /// How much later than the caller's deadline a request may end.
    grace: Duration,
}

/// Decides after each failure whether and when to try again.
#[derive(Debug)]
pub(crate) struct RetryPolicy {
    bounds: RequestLimits,
    window: Duration,
    /// Since when there was no answer that counts.
    failing_since: Option<Instant>,
    resets: u32,
    silences: u32,
    backoff: Backoff,
}

impl RequestLimits {
    /// When a request that begins now must have ended.
    pub(super) fn request_end(&self) -> Instant {
        let end = Instant::now() + self.io_timeout;
        match self.bound {
            RetryLimit::Brief | RetryLimit::Endless => end,
            RetryLimit::Deadline(deadline) => {
                deadline.checked_add(self.grace).map_or(end, |last| last.min(end))
            }
            RetryLimit::End(last) => last.min(end),
        }
    }
}

impl RetryPolicy {
    /// For a call about a lock with leases of this length.
    pub(crate) fn new(bound: RetryLimit, config: &Config, lease: Duration) -> Self {
        let bound = match bound {
            // Also a deadline long past leaves the time for one try.
            RetryLimit::Deadline(deadline) => RetryLimit::Deadline(deadline.max(Instant::now())),
            other => other,
        };
        Self {
            bounds: RequestLimits {
                bound,
                io_timeout: config.io_timeout(lease),
                grace: config.slack(lease),
            },
            window: config.retry_window,
            failing_since: None,
            resets: 0,
            silences: 0,
            backoff: Backoff::new(config.backoff),
        }
    }

    pub(super) fn bounds(&self) -> RequestLimits {
        self.bounds
    }

    /// When a request that begins now must have ended.
    pub(crate) fn request_end(&self) -> Instant {
        self.bounds.request_end()
    }

    /// Takes in that a server answered.
    pub(crate) fn answered(&mut self) {
        self.failing_since = None;
    }

    /// How long to pause before the next try, `None` if there should be none.
    pub(crate) fn after(&mut self, failure: &Failure) -> Option<Duration> {
        let now = Instant::now();
        let since = *self.failing_since.get_or_insert(now);
        match failure.kind {
            FailureKind::NotReplicated { .. } | FailureKind::Rejected | FailureKind::WrongType => {
                return None;
            }
            FailureKind::Disconnected => self.resets += 1,
            FailureKind::Timeout | FailureKind::Unreachable => self.silences += 1,
            FailureKind::Transient => {}
        }
        // An idle connection that the server has closed is found out only by using it.
        let at_once = failure.kind == FailureKind::Disconnected && self.resets == 1;
        if at_once && !matches!(self.bounds.bound, RetryLimit::End(end) if now >= end) {
            return Some(Duration::ZERO);
        }
        let rest = match self.bounds.bound {
            RetryLimit::Brief
                if matches!(failure.kind, FailureKind::Timeout | FailureKind::Unreachable) =>
            {
                return (self.silences == 1).then_some(Duration::ZERO);
            }
            RetryLimit::Brief | RetryLimit::Endless => self.window.saturating_sub(now - since),
            RetryLimit::Deadline(end) | RetryLimit::End(end) => end.saturating_duration_since(now),
        };
        let pause = self.backoff.next().unwrap_or_default();
        (!rest.is_zero()).then_some(pause.min(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn failure(kind: FailureKind) -> Failure {
        Failure::io(kind, &Arc::from("here"), std::io::Error::other("test"))
    }

    fn retry(bound: RetryLimit) -> RetryPolicy {
        RetryPolicy::new(bound, &Config::default(), Duration::from_secs(30))
    }

    #[test]
    fn a_refusal_is_final() {
        for bound in [RetryLimit::Brief, RetryLimit::Endless] {
            assert_eq!(retry(bound).after(&failure(FailureKind::Rejected)), None);
            let shortfall = FailureKind::NotReplicated { acked: 0, required: 1 };
            assert_eq!(retry(bound).after(&failure(shortfall)), None);
            assert_eq!(retry(bound).after(&failure(FailureKind::WrongType)), None);
        }
    }

    #[test]
    fn a_brief_call_gives_a_silent_server_one_more_chance() {
        for kind in [FailureKind::Timeout, FailureKind::Unreachable] {
            let mut retry = retry(RetryLimit::Brief);
            assert_eq!(retry.after(&failure(kind)), Some(Duration::ZERO));
            assert_eq!(retry.after(&failure(kind)), None);
        }
    }

    #[test]
    fn what_passes_by_itself_is_waited_for_within_the_window() {
        let mut retry = retry(RetryLimit::Brief);
        for _ in 0..20 {
            assert!(retry.after(&failure(FailureKind::Transient)).is_some());
        }
        retry.failing_since = Instant::now().checked_sub(Duration::from_secs(11));
        assert_eq!(retry.after(&failure(FailureKind::Transient)), None);
    }

    #[test]
    fn an_answer_begins_the_window_anew() {
        let mut retry = retry(RetryLimit::Endless);
        retry.failing_since = Instant::now().checked_sub(Duration::from_secs(11));
        retry.answered();
        assert!(retry.after(&failure(FailureKind::Transient)).is_some());
    }

    #[test]
    fn the_first_broken_connection_is_replaced_even_after_the_deadline() {
        let mut retry = retry(RetryLimit::Deadline(Instant::now()));
        assert_eq!(retry.after(&failure(FailureKind::Disconnected)), Some(Duration::ZERO));
        assert_eq!(retry.after(&failure(FailureKind::Disconnected)), None);
    }

    #[test]
    fn a_deadline_long_past_leaves_the_time_for_one_try() {
        let past = Instant::now().checked_sub(Duration::from_secs(60)).expect("a minute of uptime");
        let end = retry(RetryLimit::Deadline(past)).request_end();
        assert!(end > Instant::now() + Duration::from_millis(900));
    }

    #[test]
    fn no_request_outlasts_its_bound_by_more_than_one_io_timeout() {
        let now = Instant::now();
        assert!(retry(RetryLimit::End(now)).request_end() <= now);
        let mut late = retry(RetryLimit::Deadline(now));
        late.bounds.bound = RetryLimit::Deadline(now);
        assert!(late.request_end() <= now + Duration::from_secs(1));
    }
}
