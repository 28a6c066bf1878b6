//! The beginnings and ends of calls and holds, for the user and within the client: contention,
//! calls that end without a lock, and holds that begin and end.
//!
//! Decides which events and log lines report that, what is counted, renewed and cleaned up, and
//! that the next waiter of this process may try. Any thread may learn how a hold has ended; the
//! first reports it.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::base::clock::{self, Moment};
use crate::base::event_thread::Events;
use crate::base::failure::Failure;
use crate::config::Config;
use crate::error::{Error, Loss};
use crate::event::Event;
use crate::local::deadlock::{Circle, Deadlocks};
use crate::local::names::Names;
use crate::local::outage_log::OutageLog;
use crate::local::parker::{Parker, Signal, perform_each};
use crate::local::renewer::Renewer;
use crate::protocol::call::{CallSite, Caller, Wait};
use crate::protocol::hold::{Hold, HoldFailure};
use crate::protocol::steps::{Action, Actions, HoldEvent, HoldReport, NameInput, Policy};
use crate::protocol::tenure::{HoldInput, ReleasedBy, Tenure};
use crate::stats::Counters;
use crate::store::Store;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{HoldReply, Look};

/// Reports to the user, and begins and ends holds in the wait queues, the counters and the renewer.
#[derive(Clone)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Reporter {
    pub(super) events: Events,
    pub(super) counters: Arc<Counters>,
    pub(super) outages: Arc<OutageLog>,
    pub(super) names: Arc<Names>,
    pub(super) deadlocks: Arc<Deadlocks>,
    pub(super) renewer: Renewer,
    /// The store has threads that report here, so this must not keep it alive.
    pub(super) store: Option<Weak<dyn Store>>,
    /// Whether this is the renewer's own. It logs all losses of a turn together.
    pub(super) in_turns: bool,
}

impl Reporter {
    pub(super) fn new(
        events: &Events,
        renewer: Renewer,
        store: &Arc<dyn Store>,
        config: &Config,
    ) -> Self {
        let counters = Arc::<Counters>::default();
        let policy = Policy {
            withdraws: store.withdraws(),
            keeps_order: store.keeps_order(),
            backoff: config.backoff,
            retry_window: config.retry_window,
            warn_held: config.warn_held,
        };
        Self {
            events: events.clone(),
            counters: counters.clone(),
            outages: Arc::new(OutageLog::new(events.clone(), counters, store)),
            names: Arc::new(Names::new(policy)),
            deadlocks: Arc::default(),
            renewer,
            store: Some(Arc::downgrade(store)),
            in_turns: false,
        }
    }

    /// Records that a server has replied to a request about a name.
    pub(super) fn record_reply(&self, name: &str) {
        // This matters only during an outage.
        if self.outages.lasts.load(Ordering::Relaxed) {
            self.outages.record_reply(name);
        }
    }

    /// Gives the machine of a name an input about a hold, and performs what follows. Returns
    /// `false` if the input came too late.
    pub(super) fn step(&self, hold: &Arc<Hold>, input: HoldInput<'_>) -> bool {
        let (is_in_time, actions) = self.begin_step(hold, input);
        self.perform_all(actions);
        is_in_time
    }

    /// Like `step`, but leaves the actions to the caller. Other threads may give the name inputs
    /// meanwhile.
    pub(super) fn begin_step(
        &self,
        hold: &Arc<Hold>,
        input: HoldInput<'_>,
    ) -> (bool, Actions<Arc<Parker>>) {
        self.names.with(&hold.id, |name| {
            let mut turn = self.names.turn();
            let is_in_time = name.step_hold(hold, input, &mut turn);
            self.report(&turn.reports);
            (is_in_time, turn.actions)
        })
    }

    fn perform_all(&self, actions: Actions<Arc<Parker>>) {
        perform_each(actions, |action| {
            let left = self.perform(action);
            // Only inputs whose caller performs the actions itself lead to requests.
            debug_assert!(left.is_none());
        });
    }

    /// Performs an action, or returns it if performing it takes more than this has.
    pub(super) fn perform(&self, action: Action<Arc<Parker>>) -> Option<Action<Arc<Parker>>> {
        let Self { counters, renewer, .. } = self;
        match action {
            Action::Begin { hold, due } => {
                // Before the renewer has the hold, because it may at once find it lost, and count
                // its end.
                counters.held.fetch_add(1, Ordering::Relaxed);
                counters.unfinished.fetch_add(1, Ordering::SeqCst);
                renewer.schedule(hold, due);
            }
            Action::CloseSpan(span) => span.close(false),
            Action::CountEnd => drop(counters.held.fetch_sub(1, Ordering::Relaxed)),
            Action::CountHold => drop(counters.held.fetch_add(1, Ordering::Relaxed)),
            Action::CountMissedWakeup => {
                counters.missed_wakeups.fetch_add(1, Ordering::Relaxed);
            }
            Action::Due { hold, at } => renewer.schedule(hold, at),
            Action::Finish => drop(counters.unfinished.fetch_sub(1, Ordering::SeqCst)),
            Action::Owe(debt) => renewer.pay(debt),
            Action::Tell(parker, next) => parker.send(Signal::Next(next)),
            other => return Some(other),
        }
        None
    }

    /// Begins a new hold of a thread of this process. Reported after the ends of earlier holds,
    /// because a lock has one hold at a time.
    pub(super) fn begin(&self, hold: &Arc<Hold>, caller: &Caller) {
        // Holds of another kind that the name had before have ended, too.
        let ended = self.names.with_other_kind(&hold.id, |name| {
            let mut turn = self.names.turn();
            name.step_name(NameInput::IsOthers, &mut turn);
            self.report(&turn.reports);
            turn.actions
        });
        self.perform_all(ended.unwrap_or_default());
        if !caller.in_set {
            self.report_acquired(hold, caller);
        }
    }

    /// Begins a tenure that was acquired outside the conversation about its name, with a request
    /// sent at `sent`. `None` if a later hold shows that it is over: between the reply and now, the
    /// thread may have paused.
    pub(super) fn begin_beside(
        &self,
        tenure: Tenure,
        sent: Moment,
        caller: &Caller,
    ) -> Option<Arc<Hold>> {
        let hold = tenure.hold.clone();
        if !self.step(&hold, HoldInput::Begin { tenure, sent }) {
            return None;
        }
        self.begin(&hold, caller);
        Some(hold)
    }

    /// Begins the next hold of a tenure, which another thread of this process has handed off, or
    /// which was kept. Returns `false` if it was lost on the way: no call gets it then.
    pub(super) fn begin_next(&self, hold: &Arc<Hold>, caller: &Caller) -> bool {
        let begin = if caller.in_set { None } else { Some(caller.begin) };
        self.step(hold, HoldInput::Accept { begin })
    }

    /// Reports that a hold has begun. If it is lost already, neither its beginning nor its end is
    /// reported.
    pub(super) fn report_acquired(&self, hold: &Arc<Hold>, caller: &Caller) {
        self.step(hold, HoldInput::Acquired { begin: caller.begin });
    }

    /// Reports to the program while the name is locked, so that no later hold is reported first.
    pub(super) fn report(&self, reports: &[HoldReport]) {
        for report in reports {
            self.report_one(report);
        }
    }

    fn report_one(&self, report: &HoldReport) {
        let HoldReport { hold, fence, what } = report;
        let name = &*hold.id.name;
        let fence = *fence;
        match what {
            HoldEvent::Acquired { begin } => {
                self.counters.acquired.fetch_add(1, Ordering::Relaxed);
                self.events.report(
                    || {
                        let waited = clock::elapsed(*begin);
                        Event::Acquired { name: name.to_owned(), fence, waited }
                    },
                    || {
                        let waited = clock::elapsed(*begin);
                        format!("acquired lock {name:?} (fence {fence}) after {waited:?}")
                    },
                );
            }
            HoldEvent::Released { held } => {
                self.counters.released.fetch_add(1, Ordering::Relaxed);
                self.events.report(
                    || Event::Released { name: name.to_owned(), fence, held: *held },
                    || format!("released lock {name:?} after {held:?}"),
                );
            }
            HoldEvent::Lost { site, loss } => {
                self.events.end_span(&hold.span);
                // The loss of a kept tenure is not reported.
                if let Some(site) = site {
                    self.report_loss(name, fence, site, loss);
                }
            }
            HoldEvent::ReleaseFailed { site, failure } => {
                self.counters.failed_releases.fetch_add(1, Ordering::Relaxed);
                self.events.emit(|| Event::ReleaseFailed {
                    name: name.to_owned(),
                    fence,
                    reason: failure.source.to_string(),
                });
                self.log_failed_release(name, site, failure);
            }
            HoldEvent::RenewalFailing { remaining, failure } => {
                self.counters.failed_renewals.fetch_add(1, Ordering::Relaxed);
                self.events.emit(|| Event::RenewalFailing {
                    name: name.to_owned(),
                    fence,
                    remaining: *remaining,
                    reason: failure.source.to_string(),
                });
            }
            HoldEvent::HeldLong { site, held } => self.report_long(hold, fence, site, *held),
        }
    }

    /// Reports that a call has found a lock held, unless it was `reported` of this call already.
    pub(super) fn report_contended(&self, name: &str, reported: &mut bool) {
        if !mem::replace(reported, true) {
            self.counters.contended.fetch_add(1, Ordering::Relaxed);
            self.events.report(
                || Event::Contended { name: name.to_string() },
                || format!("lock {name:?} is held by another owner"),
            );
        }
    }

    /// Reports a circle of threads that wait for each other, unless it was reported before. At
    /// least one of them is a thread of this client. If the call that must fail is one of this
    /// client's, ends it.
    pub(super) fn report_deadlock(&self, circle: &Circle, client: &str) {
        // Before its call may fail.
        let here = self.deadlocks.sites(circle, client);
        if self.deadlocks.resolve(circle, client) {
            self.counters.deadlocks.fetch_add(1, Ordering::Relaxed);
            self.events
                .emit(|| Event::Deadlock { names: circle.names(), clients: circle.clients() });
            self.events.warn(|| format!("{}{here}", circle.to_line()));
        }
    }

    /// Reports that a call has ended without a hold, with an error or because the lock was held.
    pub(super) fn report_failure(&self, name: &str, caller: &Caller, error: Option<&Error>) {
        let (Self { counters, events, .. }, waited) = (self, clock::elapsed(caller.begin));
        match error {
            // The only attempt has already reported that the lock is held.
            None if caller.wait == Wait::No => {
                counters.busy.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                counters.timed_out.fetch_add(1, Ordering::Relaxed);
                events.report(
                    || Event::TimedOut { name: name.to_string(), waited },
                    || format!("did not get lock {name:?} within {waited:?}"),
                );
            }
            Some(error) if error.is_failure() => {
                counters.failed.fetch_add(1, Ordering::Relaxed);
                events.report(
                    || Event::Failed {
                        name: name.to_string(),
                        waited,
                        reason: error.with_causes(),
                    },
                    || format!("lock {name:?} failed after {waited:?}: {}", error.with_causes()),
                );
            }
            Some(_) => {}
        }
    }

    fn log_failed_release(&self, name: &str, site: &CallSite, failure: &Failure) {
        let source = &failure.source;
        self.events.warn(|| format!("releasing lock {name:?} {site} failed: {source}"));
    }

    /// Logs that a level was not released. There are no events of inner levels.
    pub(super) fn log_failed_level(&self, hold: &Hold, failure: &Failure) {
        let current = self.names.with(&hold.id, |name| {
            name.tenure(hold).and_then(Tenure::current).map(|current| current.site.clone())
        });
        if let Some(site) = current {
            self.log_failed_release(&hold.id.name, &site, failure);
        }
    }

    /// Reports a hold that has lasted for too long.
    fn report_long(&self, hold: &Hold, fence: u64, site: &CallSite, held: Duration) {
        self.counters.long_holds.fetch_add(1, Ordering::Relaxed);
        let name = &hold.id.name;
        self.events.emit(|| Event::HeldLong {
            name: name.to_string(),
            fence,
            held,
            place: site.place,
            thread: site.thread.name.as_deref().map(str::to_owned),
            note: hold.note().map(ToString::to_string),
        });
        self.events.warn(|| {
            let note = hold.note().map(|note| format!(" ({note})")).unwrap_or_default();
            format!("lock {name:?} (fence {fence}) {site}{note} has been held for {held:?}")
        });
    }

    fn report_loss(&self, name: &str, fence: u64, site: &CallSite, loss: &Loss) {
        self.counters.lost.fetch_add(1, Ordering::Relaxed);
        self.events.emit(|| Event::Lost {
            name: name.to_owned(),
            fence,
            cause: loss.cause.clone(),
        });
        if self.in_turns {
            // An outage may lose thousands at once, which are one line of the log.
            self.outages.record_loss(name, fence, site, loss);
        } else {
            self.events.warn(|| {
                format!("the lease of lock {name:?} (fence {fence}) {site} is lost: {loss}")
            });
        }
    }

    /// Records whether messages of other clients arrive. If not, they cannot ask for what is kept:
    /// it is released.
    pub(super) fn set_listening(&self, listening: bool) {
        self.names.set_listening(listening);
        if !listening {
            self.names.end_all_kept().into_iter().for_each(|kept| self.renewer.pay(kept));
        }
    }

    /// Finds a hold lost if its deadline has passed. Returns `true` for the one call that does.
    pub(super) fn expire(&self, hold: &Arc<Hold>) -> bool {
        // Most have not, which is known without the lock of the name.
        hold.cause_at_deadline(Moment::now()).is_some() && self.step(hold, HoldInput::Deadline)
    }

    /// Notes that a hold, whatever its kind, is ended by force. Returns it as the guards of this
    /// client have it: several may have adopted it.
    pub(super) fn force(&self, id: &HoldId) -> Vec<Arc<Hold>> {
        let holds = self.names.find(id);
        for hold in &holds {
            self.step(hold, HoldInput::Forced);
        }
        holds
    }

    /// Finds a hold lost because the store does not have it any more, and looks until the deadline
    /// which client has the lock now. The hold counts as lost at once. Its watches are notified
    /// after the look-up, so that they can report the cause.
    pub(super) fn lose_and_look(&self, hold: &Arc<Hold>, deadline: Instant) {
        if self.step(hold, HoldInput::FoundGone) {
            self.look(hold, deadline);
            self.step(hold, HoldInput::LookedUp);
        }
    }

    /// Asks the server which client holds the lock after a hold of this client has disappeared.
    pub(super) fn look(&self, hold: &Arc<Hold>, deadline: Instant) {
        let Some(store) = self.store.as_ref().and_then(Weak::upgrade) else { return };
        // Without a reply, all that is known is that the hold is gone.
        let Ok(report) = store.report(&hold.id.name, Look::All, deadline) else { return };
        let mut holders = report.holds.into_iter().filter(|(held_as, holder)| {
            let kind = HoldKind::reported_as(*held_as, 0);
            holder.depth > 0 && !kind.shares_with(hold.id.kind)
        });
        let by = holders.next().map(|(_, holder)| holder.into_holder().client);
        // Another thread of this client may have it by now, which explains nothing.
        if let Some(by) = by.filter(|by| **by != *hold.id.client) {
            self.step(hold, HoldInput::TakenBy(by));
        }
    }

    /// Reports the result of a posted release.
    pub(super) fn report_reply(&self, hold: &Arc<Hold>, reply: Result<HoldReply, Failure>) {
        if reply.is_ok() {
            self.record_reply(&hold.id.name);
        }
        let is_redirected = reply.as_ref().is_err_and(Failure::is_redirection);
        let outcome = hold.release_outcome(reply);
        if is_redirected {
            // The renewer repeats it where the lock is, and reports the end then.
            return self.renewer.pay(hold.clone());
        }
        self.settle(hold, &outcome);
    }

    /// Reports how a hold has ended whose release was not confirmed, before the next holder reports
    /// its own.
    pub(super) fn settle(&self, hold: &Arc<Hold>, outcome: &Result<(), HoldFailure>) {
        self.step(hold, HoldInput::Released { outcome, by: ReleasedBy::Call });
        if matches!(outcome, Err(HoldFailure::Lost)) {
            // The servers of a quorum that found the hold gone took the client off the queue.
            self.names.wake(hold.id.kind, &hold.id.name);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::LockOptions;
    use crate::protocol::call::tests::caller;
    use crate::protocol::hold::Grant;
    use crate::protocol::name::tests::Ending;
    use crate::protocol::signals::EndSignal;
    use crate::store::hold_id::HoldId;
    use crossbeam_channel::TryRecvError;
    use std::convert::Infallible;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    const LEASE: Duration = Duration::from_secs(20);

    fn options() -> LockOptions {
        LockOptions { lease: LEASE, ..LockOptions::default() }
    }

    /// A tenure with tokens for two more holds, which has just begun.
    pub(in crate::local) fn tenure(id: HoldId, options: &LockOptions) -> Tenure {
        let now = Moment::now();
        let grant = Grant { fence: 7, room: 2, may_begin: false, sent: now, replied: now };
        Tenure::new(id, &grant, &caller(options))
    }

    impl Reporter {
        /// Adds a tenure to its name.
        pub(in crate::local) fn add(&self, tenure: Tenure) -> Arc<Hold> {
            let hold = tenure.hold.clone();
            let begins = self.step(&hold, HoldInput::Begin { tenure, sent: Moment::now() });
            assert!(begins, "there is no later hold");
            hold
        }

        pub(in crate::local) fn end_signal(&self, hold: &Hold) -> EndSignal {
            self.names.with(&hold.id, |name| name.end_signal(hold, None))
        }

        /// Ends a hold as a shutdown does.
        pub(in crate::local) fn end(&self, hold: &Arc<Hold>) -> bool {
            self.step(hold, HoldInput::ShutDown)
        }

        /// Ends a hold that goes on without its guard.
        pub(in crate::local) fn leave(&self, hold: &Arc<Hold>) -> bool {
            self.step(hold, HoldInput::Leave)
        }

        /// Finds that the store does not have a hold any more.
        pub(in crate::local) fn lose(&self, hold: &Arc<Hold>) -> bool {
            self.step(hold, HoldInput::Gone)
        }

        /// Ends a hold whose thread no longer needs it.
        fn end_here(&self, hold: &Arc<Hold>) -> Ending {
            let (is_in_time, mut actions) =
                self.begin_step(hold, HoldInput::End { hands_off: true });
            let ending = Ending::take(is_in_time, &mut actions);
            self.perform_all(actions);
            ending
        }

        /// Reports how the release of a hold has gone.
        fn end_release(&self, hold: &Arc<Hold>, outcome: &Result<(), HoldFailure>) {
            self.step(hold, HoldInput::Released { outcome, by: ReleasedBy::Renewer });
        }
    }

    fn id(name: &str) -> HoldId {
        let client = Arc::from("c");
        let id = HoldId { kind: HoldKind::Lock, name: Arc::from(name), client, nonce: 1 };
        id.that_may_be_kept()
    }

    /// A reporter, and a hold that has just begun.
    fn acquired() -> (Reporter, Arc<Hold>) {
        let reporter = Reporter::default();
        let hold = reporter.add(tenure(id("x"), &options()));
        (reporter, hold)
    }

    fn told(signal: &EndSignal) -> Result<Infallible, TryRecvError> {
        signal.receiver().try_recv()
    }

    #[test]
    fn an_ended_lease_is_not_lost() {
        let (reporter, hold) = acquired();
        let over = reporter.end_signal(&hold);
        assert!(reporter.end(&hold));
        reporter.lose(&hold);
        assert_eq!(told(&over), Err(TryRecvError::Empty), "its release is under way");
        reporter.end_release(&hold, &Ok(()));
        reporter.end_release(&hold, &Err(HoldFailure::Lost));
        assert_eq!(over.was_lost(), Some(false), "only the first says how it has ended");
        assert_eq!(told(&over), Err(TryRecvError::Disconnected));
        assert!(!hold.is_lost(Moment::now()));
        assert!(!reporter.end(&hold), "only once");
        let late = reporter.end_signal(&hold);
        assert_eq!(told(&late), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn a_release_that_finds_the_hold_gone_makes_it_lost() {
        let (reporter, hold) = acquired();
        let over = reporter.end_signal(&hold);
        assert!(reporter.end(&hold) && !hold.is_lost(Moment::now()));
        reporter.end_release(&hold, &Err(HoldFailure::Lost));
        assert_eq!(told(&over), Err(TryRecvError::Disconnected));
        assert_eq!(over.was_lost(), Some(true));
        assert!(hold.is_lost(Moment::now()));
    }

    #[test]
    fn every_receiver_learns_of_a_loss_before_and_after_it() {
        let (reporter, hold) = acquired();
        let wanted = || reporter.names.with(&hold.id, |name| name.wanted_signal(&hold));
        let early = [reporter.end_signal(&hold), reporter.end_signal(&hold)];
        let early_wanted = wanted();
        reporter.lose(&hold);
        assert!(hold.is_lost(Moment::now()));
        for over in early.iter().chain([&reporter.end_signal(&hold)]) {
            assert_eq!(told(over), Err(TryRecvError::Disconnected));
            assert_eq!(over.was_lost(), Some(true));
        }
        for wanted in [early_wanted, wanted()] {
            assert_eq!(wanted.receiver().try_recv(), Err(TryRecvError::Disconnected));
        }
    }

    /// How many holds were reported to begin, to be released and to be lost.
    fn reported(reporter: &Reporter) -> [u64; 3] {
        let counters = &reporter.counters;
        [&counters.acquired, &counters.released, &counters.lost]
            .map(|counter| counter.load(Ordering::Relaxed))
    }

    #[test]
    fn a_hold_that_was_found_lost_is_not_reported_to_begin() {
        let caller = caller(&options());
        let (reporter, lost) = acquired();
        reporter.lose(&lost);
        reporter.report_acquired(&lost, &caller);
        assert_eq!(reported(&reporter), [0, 0, 0], "a loss would have to be reported, too");
        let (reporter, held) = acquired();
        reporter.report_acquired(&held, &caller);
        assert_eq!(reported(&reporter), [1, 0, 0]);
    }

    #[test]
    fn a_hold_after_which_the_lock_is_kept_while_it_is_lost_is_reported_to_end_once() {
        let keeping = LockOptions { keep: LEASE, ..options() };
        for lost_first in [false, true] {
            let reporter = Reporter::default();
            reporter.names.set_listening(true);
            let hold = reporter.names.held(&id("x"), &keeping);
            reporter.report_acquired(&hold, &caller(&keeping));
            if lost_first {
                reporter.lose(&hold);
                assert_eq!(reporter.end_here(&hold), Ending::Lost);
            } else {
                assert_eq!(reporter.end_here(&hold), Ending::GoesOn);
                reporter.lose(&hold);
            }
            let [acquired, released, lost] = reported(&reporter);
            assert_eq!((acquired, lost), (1, u64::from(lost_first)));
            assert_eq!(released, 1 - lost);
        }
    }

    #[test]
    fn a_thread_that_finds_an_end_reported_comes_after_the_report() {
        let caller = caller(&options());
        for _ in 0..5000 {
            let (reporter, hold) = acquired();
            reporter.report_acquired(&hold, &caller);
            assert!(reporter.end(&hold));
            let barrier = Barrier::new(2);
            let ready = AtomicUsize::new(0);
            let end = || {
                barrier.wait();
                // A barrier wakes one thread after the other.
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                reporter.end_release(&hold, &Ok(()));
                assert_eq!(reported(&reporter), [1, 1, 0]);
            };
            thread::scope(|scope| {
                scope.spawn(end);
                end();
            });
        }
    }

    #[test]
    fn a_hold_that_a_new_one_shows_to_be_over_is_lost_once_even_while_another_thread_looks() {
        for looks in [false, true] {
            let reporter = Reporter::default();
            let caller = caller(&options());
            // Readers of two guards, which a writer excludes.
            let [ended, lost, new] = [HoldKind::Read, HoldKind::Read, HoldKind::Write];
            let [ended, lost, new] = [(ended, 1), (lost, 2), (new, 3)]
                .map(|(kind, nonce)| tenure(HoldId { kind, nonce, ..id("x") }, &options()));
            let [ended, lost] = [ended, lost].map(|tenure| {
                let hold = reporter.add(tenure);
                reporter.report_acquired(&hold, &caller);
                hold
            });
            assert!(reporter.end(&ended) && (!looks || reporter.step(&lost, HoldInput::FoundGone)));
            reporter.add(new);
            assert_eq!(reported(&reporter), [2, 1, 1]);
            assert!(lost.is_lost(Moment::now()));
            reporter.step(&lost, HoldInput::LookedUp);
            assert_eq!(reported(&reporter), [2, 1, 1]);
            assert_eq!(reporter.counters.to_stats().held, 1);
            assert_eq!(reporter.counters.unfinished.load(Ordering::SeqCst), 1);
        }
    }

    #[test]
    fn the_end_of_a_hold_that_was_not_reported_to_begin_is_not_reported() {
        let (reporter, hold) = acquired();
        assert!(reporter.end(&hold));
        reporter.end_release(&hold, &Ok(()));
        assert_eq!(reported(&reporter), [0, 0, 0]);
    }

    #[test]
    fn a_set_that_takes_a_kept_lock_reports_it_once() {
        let (reporter, hold) = acquired();
        let caller = Caller { in_set: true, ..caller(&options()) };
        assert!(reporter.begin_next(&hold, &caller));
        assert_eq!(reported(&reporter), [0, 0, 0], "not before the set is complete");
        reporter.report_acquired(&hold, &caller);
        reporter.report_acquired(&hold, &caller);
        assert_eq!(reported(&reporter), [1, 0, 0]);
    }

    #[test]
    fn a_renewal_that_goes_on_failing_is_reported_when_it_begins_to() {
        let (reporter, hold) = acquired();
        let reported = || reporter.counters.failed_renewals.load(Ordering::Relaxed);
        for _ in 0..3 {
            reporter.step(&hold, HoldInput::RenewalFailed(&Failure::late()));
        }
        assert_eq!(reported(), 1);
        reporter.step(&hold, HoldInput::Renewed { sent: Moment::now(), lease: LEASE });
        reporter.step(&hold, HoldInput::RenewalFailed(&Failure::late()));
        assert_eq!(reported(), 2);
    }
}
