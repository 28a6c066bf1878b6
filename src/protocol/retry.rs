//! When a call tries again after a failure or while a lock is held, and when it gives up.
//!
//! Decides from the kinds of the failures, the limit of the call and the retry window.

use std::time::{Duration, Instant};

use crate::base::SplitMix;
use crate::base::clock::{end_after, nanos};
use crate::base::failure::{Failure, FailureKind};
use crate::protocol::call::{CallTimes, Wait};

/// The pauses after failures. They do not follow the backoff of waiters, which is meant for a held
/// lock: a server may be back soon, and no wake-up announces it.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// How long a thread yields to clients that have waited longer, after the lock became free by
/// itself and was therefore offered to no client. The time is enough for a distant client.
const YIELD_TIME: Duration = Duration::from_millis(200);

/// How long a call that relies on messages waits before it asks again, because a key may be deleted
/// by hand. Clients that were interrupted together do not stay together.
const RELIANCE: (Duration, Duration) = (Duration::from_secs(9), Duration::from_secs(10));

/// Returns `true` if a failure says something about the server rather than about the request or
/// this client.
pub(crate) fn is_outage(failure: &Failure) -> bool {
    let about_the_request = matches!(
        failure.kind,
        FailureKind::NoneFree
            | FailureKind::NotReplicated { .. }
            | FailureKind::Rejected
            | FailureKind::WrongType
    );
    !about_the_request
}

/// Decides after each failure of a call whether and when to try again.
pub(crate) struct RetryPolicy {
    wait: Wait,
    times: CallTimes,
    window: Duration,
    /// When failures began after the last reply that counts.
    failing_since: Option<Instant>,
    disconnects: u32,
    silences: u32,
    /// Whether a failed attempt may have been executed.
    in_doubt: bool,
    backoff: Backoff,
}

impl RetryPolicy {
    pub(crate) fn new(wait: Wait, window: Duration, times: CallTimes, seed: u64) -> Self {
        Self {
            wait,
            times,
            window,
            failing_since: None,
            disconnects: 0,
            silences: 0,
            in_doubt: false,
            backoff: Backoff::new(PAUSES, seed),
        }
    }

    /// Returns when a request that begins now must have ended.
    pub(crate) fn request_deadline(&self, now: Instant) -> Instant {
        self.times.request_deadline(self.wait, now)
    }

    /// Ends an outage: the next failure begins a new retry window.
    pub(crate) fn record_reply(&mut self) {
        self.failing_since = None;
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failing_since.is_some()
    }

    /// Returns how long to pause before the next attempt; `None` if there should be none. Records
    /// in the failure whether an earlier attempt may have been executed.
    pub(crate) fn pause_after(&mut self, failure: &mut Failure, now: Instant) -> Option<Duration> {
        let is_first = self.failing_since.is_none();
        let since = *self.failing_since.get_or_insert(now);
        // A clear failure now says nothing about an attempt before it.
        failure.after_doubt |= self.in_doubt;
        self.in_doubt |= failure.is_ambiguous();
        let mut silent = false;
        match failure.kind {
            FailureKind::Foreign
            | FailureKind::Misfit
            | FailureKind::NotReplicated { .. }
            | FailureKind::Rejected
            | FailureKind::WrongType => return None,
            FailureKind::Disconnected => self.disconnects += 1,
            FailureKind::NoneFree
            | FailureKind::Timeout
            | FailureKind::Unclear
            | FailureKind::Unreachable => {
                silent = true;
                self.silences += 1;
            }
            FailureKind::Transient => {}
        }
        // A closed idle connection is noticed only when it is used.
        let at_once = failure.kind == FailureKind::Disconnected && self.disconnects == 1;
        if at_once {
            return Some(Duration::ZERO);
        }
        let rest = match self.wait {
            // The first may have met a connection that was broken, or a master that has moved.
            Wait::No if silent => {
                return if self.silences == 1 { Some(Duration::ZERO) } else { None };
            }
            Wait::Endless | Wait::No => self.window.saturating_sub(now - since),
            // The last request may end later than that. If it fails early, the next one may find
            // the master elsewhere, as after a sentinel's wrong answer.
            Wait::Until(end) if now >= end => {
                let left = self.request_deadline(now).saturating_duration_since(now);
                let has_time = is_first && left >= self.times.slack / 2;
                return if has_time { Some(Duration::ZERO) } else { None };
            }
            Wait::Until(end) => end - now,
        };
        let pause = self.backoff.next().unwrap_or_default();
        if rest.is_zero() { None } else { Some(pause.min(rest)) }
    }
}

/// The pauses between attempts, with decorrelated jitter: each is random between the minimum and
/// three times the previous one, and capped, so that waiters that met once do not meet again
/// (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).
#[derive(Clone)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    last: Duration,
    random: SplitMix,
}

impl Backoff {
    /// Creates the pauses for a seed. No two waiters should have the same one.
    pub(crate) fn new((min, max): (Duration, Duration), seed: u64) -> Self {
        Self { min, max, last: min, random: SplitMix(seed) }
    }

    fn random_in(&mut self, (least, most): (Duration, Duration)) -> Duration {
        let width = nanos(most.saturating_sub(least));
        let more = self.random.next() % width.saturating_add(1);
        least.saturating_add(Duration::from_nanos(more))
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let widest = self.last.saturating_mul(3).min(self.max);
        self.last = self.random_in((self.min, widest));
        Some(self.last)
    }
}

/// The pauses of the first call for a name while another owner holds the lock.
pub(crate) struct HeldPauses {
    /// The backoff since the last wake-up.
    pub(crate) backoff: Option<Backoff>,
    /// When the thread stops yielding to waiting clients.
    pub(crate) yields_until: Instant,
}

impl HeldPauses {
    /// Returns the pause of a call that can no longer rely on messages.
    pub(crate) fn next_backoff(&mut self) -> Duration {
        self.backoff.as_mut().and_then(Backoff::next).unwrap_or_default()
    }

    /// Returns the pause before the next attempt: at most until the lock becomes free by itself,
    /// and a little more, because Redis counts whole milliseconds. While this thread yields, the
    /// pause lasts at most until it stops yielding. A call that `is_told` when the lock is free
    /// does not follow the backoff.
    pub(crate) fn next(
        &mut self,
        backoff: (Duration, Duration),
        remaining: Option<Duration>,
        is_told: bool,
        now: Instant,
        seed: u64,
    ) -> Duration {
        let backoff = self.backoff.get_or_insert_with(|| Backoff::new(backoff, seed));
        // Also drawn if the call `is_told`, so that the backoff has advanced if it later is not.
        let pause = backoff.next().unwrap_or_default();
        let pause = if is_told { backoff.random_in(RELIANCE) } else { pause };
        match remaining.map(|remaining| remaining.saturating_add(Duration::from_millis(1))) {
            Some(free) if free <= pause => {
                // Not twice in a row: two distant clients would keep causing offers to each other
                // that both miss.
                if now >= self.yields_until {
                    self.yields_until = end_after(now, free.saturating_add(YIELD_TIME));
                }
                free
            }
            None if now < self.yields_until => pause.min(self.yields_until - now),
            Some(_) | None => pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::store::hold_id::{HoldId, HoldKind};
    use std::sync::Arc;

    const MIN: Duration = Duration::from_millis(5);
    const MAX: Duration = Duration::from_millis(500);

    fn failure(kind: FailureKind) -> Failure {
        Failure::io(kind, &Arc::from("here"), std::io::Error::other("test"))
    }

    fn retry(wait: Wait) -> RetryPolicy {
        let config = Config::default();
        RetryPolicy::new(
            wait,
            config.retry_window,
            CallTimes::new(&config, Duration::from_secs(30)),
            1,
        )
    }

    #[test]
    fn a_refusal_is_final() {
        for limit in [Wait::No, Wait::Endless] {
            assert_eq!(
                retry(limit).pause_after(&mut failure(FailureKind::Rejected), Instant::now()),
                None
            );
            let shortfall = FailureKind::NotReplicated { acked: 0, required: 1 };
            assert_eq!(retry(limit).pause_after(&mut failure(shortfall), Instant::now()), None);
            assert_eq!(
                retry(limit).pause_after(&mut failure(FailureKind::WrongType), Instant::now()),
                None
            );
            assert_eq!(
                retry(limit).pause_after(&mut failure(FailureKind::Foreign), Instant::now()),
                None
            );
            assert_eq!(
                retry(limit).pause_after(&mut failure(FailureKind::Misfit), Instant::now()),
                None
            );
        }
    }

    #[test]
    fn a_brief_call_tries_a_silent_server_and_a_busy_pool_twice() {
        use FailureKind::{NoneFree, Timeout, Unclear, Unreachable};
        for kind in [NoneFree, Timeout, Unclear, Unreachable] {
            let mut retry = retry(Wait::No);
            assert_eq!(retry.pause_after(&mut failure(kind), Instant::now()), Some(Duration::ZERO));
            assert_eq!(retry.pause_after(&mut failure(kind), Instant::now()), None);
        }
    }

    #[test]
    fn transient_failures_are_waited_out_within_the_window() {
        let mut retry = retry(Wait::No);
        for _ in 0..20 {
            assert!(
                retry.pause_after(&mut failure(FailureKind::Transient), Instant::now()).is_some()
            );
        }
        retry.failing_since = Instant::now().checked_sub(Duration::from_secs(11));
        assert_eq!(retry.pause_after(&mut failure(FailureKind::Transient), Instant::now()), None);
    }

    #[test]
    fn a_failure_says_that_an_earlier_attempt_may_have_been_executed() {
        let mut retry = retry(Wait::Endless);
        let mut after = |kind| {
            let mut failure = failure(kind);
            retry.pause_after(&mut failure, Instant::now());
            failure.into_error("acquire", "x").may_have_executed()
        };
        assert!(!after(FailureKind::Unreachable));
        assert!(after(FailureKind::Timeout));
        assert!(after(FailureKind::Unreachable));
    }

    #[test]
    fn an_answer_begins_the_window_anew() {
        let mut retry = retry(Wait::Endless);
        retry.failing_since = Instant::now().checked_sub(Duration::from_secs(11));
        retry.record_reply();
        assert!(retry.pause_after(&mut failure(FailureKind::Transient), Instant::now()).is_some());
    }

    #[test]
    fn the_first_broken_connection_is_replaced_even_after_the_deadline() {
        let mut retry = retry(Wait::Until(Instant::now()));
        assert_eq!(
            retry.pause_after(&mut failure(FailureKind::Disconnected), Instant::now()),
            Some(Duration::ZERO)
        );
        assert_eq!(
            retry.pause_after(&mut failure(FailureKind::Disconnected), Instant::now()),
            None
        );
    }

    #[test]
    fn a_call_that_no_longer_waits_has_a_second_attempt_if_the_first_fails_early() {
        use FailureKind::{Transient, Unreachable};
        let now = Instant::now();
        for kind in [Transient, Unreachable] {
            let mut after = retry(Wait::Until(now));
            assert_eq!(after.pause_after(&mut failure(kind), now), Some(Duration::ZERO));
            assert_eq!(after.pause_after(&mut failure(kind), now), None, "and no third");
            let (mut late, over) = (retry(Wait::Until(now)), now + Duration::from_secs(1));
            assert_eq!(late.pause_after(&mut failure(kind), over), None);
        }
    }

    #[test]
    fn pauses_stay_between_the_limits() {
        for pause in Backoff::new((MIN, MAX), 1).take(10_000) {
            assert!((MIN..=MAX).contains(&pause), "{pause:?}");
        }
    }

    #[test]
    fn pauses_grow_to_the_cap_and_spread() {
        let late: Vec<_> = Backoff::new((MIN, MAX), 1).skip(20).take(1_000).collect();
        assert!(late.iter().any(|pause| *pause > MAX * 4 / 5));
        assert!(late.iter().any(|pause| *pause < MAX / 5));
    }

    /// The other call of a client, and the same one of another.
    #[test]
    fn two_waiters_do_not_pause_alike() {
        let call = |client: &str, nonce| {
            let (kind, name) = (HoldKind::Lock, "x".into());
            HoldId { kind, name, client: client.into(), nonce }
        };
        let seeds = [call("a", 1), call("a", 2), call("b", 1)].map(|hold| hold.seed());
        let pauses = seeds.map(|seed| Backoff::new((MIN, MAX), seed).take(10).collect::<Vec<_>>());
        for place in 0..10 {
            let at = pauses.each_ref().map(|pauses| pauses[place]);
            assert!(at[0] != at[1] && at[0] != at[2] && at[1] != at[2], "{at:?}");
        }
    }

    #[test]
    fn one_possible_pause_and_the_longest_possible_are_fine() {
        assert_eq!(Backoff::new((MIN, MIN), 1).nth(3), Some(MIN));
        let mut longest = Backoff { last: Duration::MAX, ..Backoff::new((MIN, Duration::MAX), 1) };
        assert!(longest.next().is_some_and(|pause| pause >= MIN));
    }

    #[test]
    fn a_server_that_refuses_a_request_has_no_outage() {
        use FailureKind::{
            Disconnected, NoneFree, NotReplicated, Rejected, Timeout, Transient, Unreachable,
            WrongType,
        };
        for kind in [NoneFree, NotReplicated { acked: 0, required: 1 }, Rejected, WrongType] {
            assert!(!is_outage(&failure(kind)), "{kind:?}");
        }
        for kind in [Disconnected, Timeout, Transient, Unreachable] {
            assert!(is_outage(&failure(kind)), "{kind:?}");
        }
    }

    #[test]
    fn a_call_fails_from_a_failure_to_the_next_reply() {
        let mut retry = retry(Wait::Endless);
        assert!(!retry.is_failing());
        retry.pause_after(&mut failure(FailureKind::Transient), Instant::now());
        assert!(retry.is_failing());
        retry.record_reply();
        assert!(!retry.is_failing());
    }

    const HOUR: Duration = Duration::from_secs(3600);

    fn held_pauses(yields_until: Instant) -> HeldPauses {
        HeldPauses { backoff: Some(Backoff::new((HOUR, HOUR), 1)), yields_until }
    }

    fn pause_of_held(pauses: &mut HeldPauses, remaining: Option<Duration>) -> Duration {
        pauses.next((MIN, MIN), remaining, false, Instant::now(), 1)
    }

    #[test]
    fn a_call_that_is_told_asks_when_the_lease_is_over_or_after_some_seconds() {
        let now = Instant::now();
        let next = |backoff, remaining| {
            let mut pauses = HeldPauses { backoff: None, yields_until: now };
            pauses.next(backoff, remaining, true, now, 1)
        };
        for backoff in [(MIN, MAX), (HOUR, HOUR)] {
            for remaining in [None, Some(HOUR)] {
                let pause = next(backoff, remaining);
                assert!((RELIANCE.0..=RELIANCE.1).contains(&pause), "{pause:?}");
            }
            assert_eq!(next(backoff, Some(MAX)), MAX + Duration::from_millis(1));
        }
    }

    #[test]
    fn a_lock_is_tried_when_its_lease_is_over_if_that_is_before_the_pause() {
        let begin = Instant::now();
        let mut pauses = held_pauses(begin);
        assert_eq!(pause_of_held(&mut pauses, None), HOUR);
        assert_eq!(pause_of_held(&mut pauses, Some(HOUR)), HOUR, "it ends a little later");
        assert_eq!(pauses.yields_until, begin);
        let free = MAX + Duration::from_millis(1);
        assert_eq!(pause_of_held(&mut pauses, Some(MAX)), free);
        let others_go_first = begin + free + YIELD_TIME..=Instant::now() + free + YIELD_TIME;
        assert!(others_go_first.contains(&pauses.yields_until));
        // Not twice in a row.
        let until = begin + HOUR;
        let mut pauses = held_pauses(until);
        assert_eq!(pause_of_held(&mut pauses, Some(MAX)), free);
        assert_eq!(pauses.yields_until, until);
        let mut first = HeldPauses { backoff: None, ..pauses };
        assert_eq!(pause_of_held(&mut first, Some(HOUR)), MIN, "as its client was told to");
    }

    #[test]
    fn a_thread_yields_for_a_while_to_clients_that_have_waited_longer() {
        let begin = Instant::now();
        let pause = pause_of_held(&mut held_pauses(begin + HOUR / 2), None);
        assert!(pause <= HOUR / 2 && pause + begin.elapsed() >= HOUR / 2, "{pause:?}");
        let over = begin.checked_sub(MIN).expect("the machine is up for longer");
        assert_eq!(pause_of_held(&mut held_pauses(over), None), HOUR);
    }
}
