//! What begins and ends with a call or a hold, for the user and within the client: that a lock is
//! held, how a call has ended without it, that a hold has begun, and how it has ended.
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
use crate::base::flaws::{Flaw, flawed};
use crate::error::Error;
use crate::event::Event;
use crate::local::deadlock::{Circle, Deadlocks};
use crate::local::outage_log::OutageLog;
use crate::local::parker::Parker;
use crate::local::renewer::Renewer;
use crate::local::wait_queues::WaitQueues;
use crate::protocol::call::{Caller, Wait};
use crate::protocol::current_hold::CurrentHold;
use crate::protocol::hold::{HandedOff, Hold};
use crate::protocol::lease::HoldFailure;
use crate::protocol::name::{Action, Ending};
use crate::stats::Counters;
use crate::store::Store;
use crate::store::hold_id::HoldKind;
use crate::store::request::{HoldReply, Look};

/// Reports to the user, and begins and ends holds in the wait queues, the counters and the renewer.
#[derive(Clone)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Reporter {
    pub(super) events: Events,
    pub(super) counters: Arc<Counters>,
    pub(super) outages: Arc<OutageLog>,
    pub(super) wait_queues: Arc<WaitQueues>,
    pub(super) deadlocks: Arc<Deadlocks>,
    pub(super) renewer: Renewer,
    /// It has threads that report to here, so it must not be kept alive.
    pub(super) store: Option<Weak<dyn Store>>,
    /// Whether this is the renewer's own. It logs all losses of a turn together.
    pub(super) in_turns: bool,
    /// After how long a hold is reported, if at all.
    pub(super) warn_held: Option<Duration>,
}

impl Reporter {
    pub(super) fn new(
        events: &Events,
        renewer: Renewer,
        store: &Arc<dyn Store>,
        warn_held: Option<Duration>,
    ) -> Self {
        let counters = Arc::<Counters>::default();
        Self {
            events: events.clone(),
            counters: counters.clone(),
            outages: Arc::new(OutageLog::new(events.clone(), counters, store)),
            wait_queues: Arc::default(),
            deadlocks: Arc::default(),
            renewer,
            store: Some(Arc::downgrade(store)),
            in_turns: false,
            warn_held,
        }
    }

    /// Records that a server has replied to a request about a name.
    pub(super) fn record_reply(&self, name: &str) {
        // Only during an outage does it matter.
        if self.outages.lasts.load(Ordering::Relaxed) {
            self.outages.record_reply(name);
        }
    }

    /// Begins a new hold of a thread of this process. The report comes before the renewer may find
    /// the hold lost, and after the ends of the holds before it: a lock has one hold at a time.
    pub(super) fn begin(&self, hold: &Arc<Hold>, caller: &Caller) {
        // What the name was used as before has ended, too.
        drop(
            self.wait_queues.with_other_kind(&hold.id, |name| self.report_ended(name.take_debts())),
        );
        if !caller.in_set {
            self.report_acquired(hold, caller);
        }
        self.begin_renewal(hold);
    }

    /// Begins a hold that came by no conversation about its name, with a request sent at `sent`.
    /// Returns `false` if a later hold shows that it is over: between the reply and now, the thread
    /// may have paused.
    pub(super) fn begin_beside(&self, hold: &Arc<Hold>, sent: Moment, caller: &Caller) -> bool {
        let lost = self.wait_queues.with(&hold.id, |name| {
            if name.is_followed(hold, sent) {
                // A later hold has begun since, which Redis grants only when this one has ended.
                return None;
            }
            Some(self.report_ended(name.begin_beside(hold)))
        });
        let Some(lost) = lost else { return false };
        self.clean_up(&lost);
        self.begin(hold, caller);
        true
    }

    /// Reports the ends of holds while their name is locked: so no later hold is reported before.
    /// What is left to do for them stays in the list: those that were not released are lost, and
    /// are cleaned up once the name is unlocked.
    pub(super) fn report_ends(&self, actions: &mut Vec<Action<Arc<Parker>>>) {
        actions.retain_mut(|action| match action {
            Action::End(hold) => self.report_over(hold),
            Action::ReportHandoff(ended) => {
                self.report_handoff(ended);
                // A span is closed later: its subscriber is code of the program.
                ended.span.is_some()
            }
            _ => true,
        });
    }

    /// Like `report_ends`, for holds. Returns those that are lost.
    pub(super) fn report_ended(&self, mut ended: Vec<Arc<Hold>>) -> Vec<Arc<Hold>> {
        ended.retain(|hold| self.report_over(hold));
        ended
    }

    /// Reports the end of a hold that is known to be over. Returns `true` if it is to be cleaned
    /// up, because it was not released.
    fn report_over(&self, hold: &Arc<Hold>) -> bool {
        if hold.lease.is_ended() {
            self.report_end(hold, &Ok(()), true);
            return false;
        }
        // A thread that has marked it may still look up why.
        hold.lose();
        self.report_loss_first(hold)
    }

    /// Cleans up after holds whose losses were reported.
    pub(super) fn clean_up(&self, lost: &[Arc<Hold>]) {
        for hold in lost {
            self.clean_up_lost(hold, hold.may_begin());
        }
    }

    /// Has a new hold renewed.
    pub(super) fn begin_renewal(&self, hold: &Arc<Hold>) {
        self.counters.held.fetch_add(1, Ordering::Relaxed);
        self.counters.unfinished.fetch_add(1, Ordering::SeqCst);
        self.renewer.add_lease(hold);
        if let Some(after) = self.warn_held {
            self.renewer.watch_long(hold, after);
        }
    }

    /// Begins the hold that another thread of this process has handed off. Returns `false` if it
    /// was lost on the way: no call gets it then.
    pub(super) fn begin_handed_off(&self, hold: &Hold, caller: &Caller) -> bool {
        // The renewer may find it lost just now, or has already: then it counts and reports that.
        if self.expire(hold) || !hold.lease.is_valid(Moment::now()) {
            return false;
        }
        self.counters.handoffs.fetch_add(1, Ordering::Relaxed);
        if !caller.in_set {
            self.report_acquired(hold, caller);
        }
        true
    }

    /// Begins the next hold of a tenure that was kept. Returns `false` if that was lost or ended
    /// meanwhile: no call gets it then.
    pub(super) fn begin_kept(&self, hold: &Hold, caller: &Caller) -> bool {
        // Counted first: a thread that finds it lost counts its end.
        self.counters.held.fetch_add(1, Ordering::Relaxed);
        let begins = hold.begin_kept(caller, Moment::now());
        if begins {
            self.counters.relocks.fetch_add(1, Ordering::Relaxed);
            if !caller.in_set {
                self.report_acquired(hold, caller);
            }
        } else {
            self.counters.held.fetch_sub(1, Ordering::Relaxed);
            self.expire(hold);
        }
        begins
    }

    /// Reports that a hold has begun. If it is lost already, neither its beginning nor its end is
    /// reported.
    pub(super) fn report_acquired(&self, hold: &Hold, caller: &Caller) {
        // A thread that finds it lost while this is locked comes after the report.
        let mut current = hold.current.lock();
        if current.reported || hold.lease.is_settled() {
            return;
        }
        current.reported = true;
        let name = &hold.id.name;
        let fence = hold.fence();
        self.counters.acquired.fetch_add(1, Ordering::Relaxed);
        self.events.report(
            || {
                let waited = clock::elapsed(caller.begin);
                Event::Acquired { name: name.to_string(), fence, waited }
            },
            || {
                let waited = clock::elapsed(caller.begin);
                format!("acquired lock {name:?} (fence {fence}) after {waited:?}")
            },
        );
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
    /// least one of them is a thread of this client. If the call that is to fail is one of this
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

    /// Reports the end of a hold whose tenure goes on, unless its beginning was not reported.
    fn report_handoff(&self, ended: &HandedOff) {
        if ended.is_reported {
            self.report_release(&ended.tenure.id.name, ended.fence, || ended.held);
        }
    }

    /// Reports that a hold was released, or handed off. For how long it was `held` is only asked if
    /// a listener or the log wants it: that reads a clock.
    fn report_release(&self, name: &str, fence: u64, held: impl Fn() -> Duration) {
        self.counters.released.fetch_add(1, Ordering::Relaxed);
        self.events.report(
            || Event::Released { name: name.to_string(), fence, held: held() },
            || format!("released lock {name:?} after {:?}", held()),
        );
    }

    /// Logs that a level was not released. There are no events of inner levels.
    pub(super) fn log_failed_release(&self, hold: &Hold, current: &CurrentHold, failure: &Failure) {
        let name = &hold.id.name;
        let source = &failure.source;
        self.events.warn(|| format!("releasing lock {name:?} {} failed: {source}", current.site()));
    }

    /// Reports a hold that lasts for long, once.
    pub(super) fn report_long(&self, hold: &Hold) {
        let current = &mut *hold.current.lock();
        let now = Moment::now();
        let number = hold.number();
        let held = current.held(now);
        let is_long = self.warn_held.is_some_and(|after| held >= after);
        let is_held = current.reported && !current.kept && hold.lease.is_valid(now);
        if !is_held || !is_long || current.is_reported_long(number) {
            return;
        }
        current.rare.get_or_insert_default().reported_long = Some(number);
        self.counters.long_holds.fetch_add(1, Ordering::Relaxed);
        let name = &hold.id.name;
        let fence = hold.fence();
        let thread = current.thread.as_ref().and_then(|thread| thread.name.as_deref());
        self.events.emit(|| Event::HeldLong {
            name: name.to_string(),
            fence,
            held,
            place: current.place,
            thread: thread.map(str::to_owned),
            note: current.note().map(ToString::to_string),
        });
        self.events.warn(|| {
            let note = current.note().map(|note| format!(" ({note})")).unwrap_or_default();
            let site = current.site();
            format!("lock {name:?} (fence {fence}) {site}{note} has been held for {held:?}")
        });
    }

    /// Reports that a hold could not be released, unless its beginning was not reported.
    fn report_failed_release(&self, hold: &Hold, current: &mut CurrentHold, failure: &Failure) {
        if mem::take(&mut current.reported) {
            self.counters.failed_releases.fetch_add(1, Ordering::Relaxed);
            self.events.emit(|| Event::ReleaseFailed {
                name: hold.id.name.to_string(),
                fence: hold.fence(),
                reason: failure.source.to_string(),
            });
            self.log_failed_release(hold, current, failure);
        }
    }

    /// Reports a loss. That of a tenure that was kept is silent: it has no hold that was reported.
    fn report_loss(&self, hold: &Hold, current: &mut CurrentHold) {
        self.events.end_span(&hold.span);
        if !mem::take(&mut current.reported) {
            return;
        }
        let name = &hold.id.name;
        let fence = hold.fence();
        let loss = hold.loss_of(current, Moment::now());
        self.counters.lost.fetch_add(1, Ordering::Relaxed);
        let event = || Event::Lost { name: name.to_string(), fence, cause: loss.cause.clone() };
        self.events.emit(event);
        if flawed(Flaw::LossIsReportedTwice) {
            self.events.emit(event);
        }
        if self.in_turns {
            // An outage may lose thousands at once, which are one line of the log.
            self.outages.record_loss(hold, current, &loss);
        } else {
            self.events.warn(|| {
                let site = current.site();
                format!("the lease of lock {name:?} (fence {fence}) {site} is lost: {loss}")
            });
        }
    }

    /// Records whether messages of other clients arrive. If not, they cannot ask for what is kept:
    /// it is released.
    pub(super) fn set_listening(&self, listening: bool) {
        self.wait_queues.set_listening(listening);
        if !listening {
            self.wait_queues.end_all_kept().into_iter().for_each(|kept| self.renewer.pay(kept));
        }
    }

    /// Notes that another client waits for a lock, and has it released if it is only kept.
    pub(super) fn set_wanted(&self, hold: &Arc<Hold>) {
        hold.set_wanted();
        if let Some(kept) = self.wait_queues.end_kept(&hold.id.name, |kept| kept.id == hold.id) {
            self.renewer.pay(kept);
        }
    }

    /// Ends a hold that its thread no longer needs: it is not renewed from here on, or it is the
    /// next call's. If its tenure goes on, its end is reported. Returns what is left to do.
    pub(super) fn end_here(
        &self,
        hold: &Arc<Hold>,
        hands_off: bool,
    ) -> (Ending, Vec<Action<Arc<Parker>>>) {
        let mut actions = Vec::new();
        let ending = self.wait_queues.with(&hold.id, |name| {
            let may_keep = self.wait_queues.can_keep();
            // Reported while the name is locked, because the next call may begin its hold at once.
            let ending = name.end(hold, hands_off, may_keep, Moment::now(), &mut actions);
            self.report_ends(&mut actions);
            ending
        });
        (ending, actions)
    }

    /// Ends a hold without its holder. Returns `false` if it has ended or is lost already.
    pub(super) fn end(&self, hold: &Hold) -> bool {
        let ended = hold.end(Moment::now());
        if ended {
            self.count_end(&hold.current.lock());
            self.wait_queues.end_hold(hold);
        }
        ended
    }

    /// Ends a hold that goes on without its guard. Returns `false` if it has ended or is lost
    /// already.
    pub(super) fn leave(&self, hold: &Arc<Hold>) -> bool {
        let ended = hold.end(Moment::now());
        if ended {
            self.count_end(&hold.current.lock());
            // An in-doubt hold is cleaned up where it is released. First the report: the next
            // holder has its own.
            self.report_end(hold, &Ok(()), false);
            self.wait_queues.end_hold(hold);
        }
        ended
    }

    /// Counts the end of a hold. One after which the lock was kept was counted before.
    pub(super) fn count_end(&self, current: &CurrentHold) {
        if !current.kept {
            self.counters.held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reports how a hold has ended that was released, unless that is known already: then this
    /// returns after the report. Before it counts as settled, the renewer gets it if it may exist
    /// in the store and this `pays`.
    pub(super) fn report_end(
        &self,
        hold: &Arc<Hold>,
        outcome: &Result<(), HoldFailure>,
        pays: bool,
    ) {
        let may_exist = {
            let current = &mut *hold.current.lock();
            // A reply and a deadline may come at the same time. Only the first one is reported.
            let is_first = hold.settle(current, matches!(outcome, Err(HoldFailure::Lost)));
            current.disconnect();
            if !is_first {
                return;
            }
            match outcome {
                Err(HoldFailure::Lost) => self.report_loss(hold, current),
                Err(HoldFailure::Failed(failure)) => {
                    self.report_failed_release(hold, current, failure);
                }
                Ok(()) if mem::take(&mut current.reported) => {
                    let fence = hold.fence();
                    let current = &*current;
                    self.report_release(&hold.id.name, fence, || current.held(Moment::now()));
                }
                Ok(()) | Err(HoldFailure::Ended) => {}
            }
            current.may_begin || matches!(outcome, Err(HoldFailure::Failed(_)))
        };
        if pays && may_exist && !flawed(Flaw::ReleaseIsNotRepeated) {
            self.renewer.pay(hold.clone());
        }
        // Last: a shutdown that finds nothing unfinished looks for payments next.
        self.counters.unfinished.fetch_sub(1, Ordering::SeqCst);
    }

    /// Marks a hold as lost if its deadline has passed. Returns `true` for the one call that does.
    pub(super) fn expire(&self, hold: &Hold) -> bool {
        let lost = hold.expire(Moment::now());
        if lost {
            self.end_lost(hold, true);
        }
        lost
    }

    /// Like `lose`, and looks until the deadline which client has the lock now. The hold counts as
    /// lost at once; those that watch it are told after the look, so that they can learn the cause.
    pub(super) fn lose_and_look(&self, hold: &Hold, deadline: Instant) {
        if hold.lose() {
            self.look(hold, deadline);
            self.end_gone(hold);
        }
    }

    /// Asks the server which client holds the lock after a hold of this client has disappeared.
    pub(super) fn look(&self, hold: &Hold, deadline: Instant) {
        let Some(store) = self.store.as_ref().and_then(Weak::upgrade) else { return };
        // Without a reply, all that is known is that the hold is gone.
        let Ok(report) = store.report(&hold.id.name, Look::All, deadline) else { return };
        let mut holders = report.holds.into_iter().filter(|(held_as, holder)| {
            let kind = HoldKind::reported_as(*held_as, 0);
            holder.depth > 0 && !kind.shares_with(hold.id.kind)
        });
        let by = holders.next().map(|(_, holder)| holder.into_holder().client);
        if let Some(by) = by.filter(|by| **by != *hold.id.client) {
            hold.set_taken(by);
        }
    }

    /// Marks a hold as lost because the store does not have it any more.
    pub(super) fn lose(&self, hold: &Hold) {
        if hold.lose() {
            self.end_gone(hold);
        }
    }

    /// Ends a hold that was marked as lost because it is gone, unless a new one has shown that.
    pub(super) fn end_gone(&self, hold: &Hold) {
        self.end_lost(hold, hold.may_begin());
    }

    fn end_lost(&self, hold: &Hold, may_exist: bool) {
        if self.report_loss_first(hold) {
            self.clean_up_lost(hold, may_exist);
        }
    }

    /// Reports the loss of a hold that is marked as lost. Returns `false` if another thread has.
    fn report_loss_first(&self, hold: &Hold) -> bool {
        let current = &mut *hold.current.lock();
        let is_first = hold.lease.tell_loss();
        if is_first {
            if !flawed(Flaw::LossIsNotTold) {
                current.disconnect();
            }
            self.count_end(current);
            self.report_loss(hold, current);
        }
        is_first
    }

    /// Cleans up after a lost hold. Only now the next call may try: it has its own reports.
    fn clean_up_lost(&self, hold: &Hold, may_exist: bool) {
        if may_exist {
            // Its lease may not be over in Redis yet, where it would hold up the next call.
            self.owe(Arc::new(hold.to_debt(Moment::now())));
        }
        self.counters.unfinished.fetch_sub(1, Ordering::SeqCst);
        if !flawed(Flaw::LossHoldsUpCalls) {
            self.wait_queues.end_hold(hold);
        }
    }

    /// Has a debt paid, and remembers it until then.
    pub(super) fn owe(&self, debt: Arc<Hold>) {
        self.wait_queues.owe(debt.clone());
        self.renewer.pay(debt);
    }

    /// Reports what the reply to a posted release says.
    pub(super) fn report_reply(&self, hold: &Arc<Hold>, reply: Result<HoldReply, Failure>) {
        if reply.is_ok() {
            self.record_reply(&hold.id.name);
        }
        let is_redirected = reply.as_ref().is_err_and(Failure::is_redirection);
        let outcome = hold.release_outcome(reply, Moment::now());
        if is_redirected && !flawed(Flaw::ReleaseIsNotRepeated) {
            // The renewer repeats it where the lock is, and reports the end then.
            return self.renewer.pay(hold.clone());
        }
        self.settle(hold, &outcome);
    }

    /// Reports how a hold has ended whose release was not confirmed, before the next holder reports
    /// its own.
    pub(super) fn settle(&self, hold: &Arc<Hold>, outcome: &Result<(), HoldFailure>) {
        if flawed(Flaw::EndIsReportedLate) {
            self.wait_queues.settle(hold, || true);
        }
        self.wait_queues.settle(hold, || {
            self.report_end(hold, outcome, true);
            !matches!(outcome, Err(HoldFailure::Failed(_)))
        });
        if matches!(outcome, Err(HoldFailure::Lost)) {
            // Where the hold was gone, the servers of a quorum took the client off those that wait.
            self.wait_queues.wake(hold.id.kind, &hold.id.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LockOptions;
    use crate::protocol::call::tests::caller;
    use crate::store::hold_id::HoldId;
    use crossbeam_channel::TryRecvError;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::Duration;

    const LEASE: Duration = Duration::from_secs(20);

    fn options() -> LockOptions {
        LockOptions { lease: LEASE, ..LockOptions::default() }
    }

    fn acquired(options: &LockOptions) -> Arc<Hold> {
        let (kind, client) = (HoldKind::Lock, Arc::from("c"));
        let id = HoldId { kind, name: Arc::from("x"), client, nonce: 1 };
        let (id, now) = (id.that_may_be_kept(), Moment::now());
        Arc::new(Hold::new(id, 7, 2, &caller(options), now, now))
    }

    #[test]
    fn an_ended_lease_is_not_lost() {
        let hold = acquired(&options());
        let over = hold.over();
        assert!(hold.end(Moment::now()));
        Reporter::default().lose(&hold);
        assert_eq!(over.try_recv(), Err(TryRecvError::Empty), "its release is under way");
        Reporter::default().report_end(&hold, &Ok(()), false);
        let settles = hold.settle(&mut hold.current.lock(), true);
        assert!(!settles, "only the first says how it has ended");
        assert_eq!(over.try_recv(), Err(TryRecvError::Disconnected));
        assert!(!hold.lease.is_lost(Moment::now()));
        assert!(!hold.end(Moment::now()), "only once");
        assert_eq!(hold.over().try_recv(), Err(TryRecvError::Disconnected), "made later");
    }

    #[test]
    fn a_release_that_finds_the_hold_gone_makes_it_lost() {
        let hold = acquired(&options());
        let over = hold.over();
        assert!(hold.end(Moment::now()) && !hold.lease.is_lost(Moment::now()));
        Reporter::default().report_end(&hold, &Err(HoldFailure::Lost), false);
        assert_eq!(over.try_recv(), Err(TryRecvError::Disconnected));
        assert!(!hold.lease.settle(false));
        assert!(hold.lease.is_lost(Moment::now()));
    }

    #[test]
    fn every_receiver_learns_of_a_loss_before_and_after_it() {
        let hold = acquired(&options());
        let wanted = || hold.wanted().receiver().clone();
        let early = [hold.over(), hold.over(), wanted()];
        Reporter::default().lose(&hold);
        assert!(hold.lease.is_lost(Moment::now()));
        for over in early.iter().chain([&hold.over(), &wanted()]) {
            assert_eq!(over.try_recv(), Err(TryRecvError::Disconnected));
        }
    }

    #[test]
    fn a_hold_that_was_found_lost_is_not_reported_to_begin() {
        let (reporter, caller) = (Reporter::default(), caller(&options()));
        let lost = acquired(&options());
        reporter.lose(&lost);
        reporter.report_acquired(&lost, &caller);
        assert!(!lost.current.lock().reported, "a loss would have to be told too");
        let held = acquired(&options());
        assert!(!held.current.lock().reported);
        reporter.report_acquired(&held, &caller);
        assert!(held.current.lock().reported);
    }

    /// How many holds were reported to begin, to be released and to be lost.
    fn reported(reporter: &Reporter) -> [u64; 3] {
        let counters = &reporter.counters;
        [&counters.acquired, &counters.released, &counters.lost]
            .map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Ends a hold whose tenure goes on. Returns `false` if that was lost before.
    fn hands_off(reporter: &Reporter, hold: &Arc<Hold>) -> bool {
        let ended = hold.hand_off(Moment::now());
        if let Some(ended) = &ended {
            reporter.report_handoff(ended);
        }
        ended.is_some()
    }

    #[test]
    fn a_hold_that_is_handed_off_while_it_is_lost_is_reported_to_end_once() {
        let caller = caller(&options());
        for lost_first in [false, true] {
            let (reporter, hold) = (Reporter::default(), acquired(&options()));
            reporter.report_acquired(&hold, &caller);
            if lost_first {
                reporter.lose(&hold);
                assert!(!hands_off(&reporter, &hold));
            } else {
                assert!(hands_off(&reporter, &hold));
                reporter.lose(&hold);
            }
            let [acquired, released, lost] = reported(&reporter);
            assert_eq!((acquired, lost), (1, u64::from(lost_first)));
            assert_eq!(released, 1 - lost);
        }
    }

    #[test]
    fn whoever_reports_an_end_comes_after_the_report() {
        let caller = caller(&options());
        for nonce in 0..5000 {
            let (kind, client, now) = (HoldKind::Lock, Arc::from("c"), Moment::now());
            let id = HoldId { kind, name: Arc::from("x"), client, nonce };
            let (reporter, hold) =
                (Reporter::default(), Arc::new(Hold::new(id, 7, 0, &caller, now, now)));
            reporter.report_acquired(&hold, &caller);
            assert!(hold.end(Moment::now()));
            let (barrier, ready) = (Barrier::new(2), AtomicUsize::new(0));
            let end = || {
                barrier.wait();
                // A barrier wakes one thread after the other.
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                reporter.report_end(&hold, &Ok(()), false);
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
            let (reporter, caller) = (Reporter::default(), caller(&options()));
            let (ended, lost) = (acquired(&options()), acquired(&options()));
            for hold in [&ended, &lost] {
                reporter.report_acquired(hold, &caller);
                reporter.begin_renewal(hold);
            }
            assert!(ended.end(Moment::now()) && (!looks || lost.lose()));
            let over = reporter.report_ended(vec![ended, lost.clone()]);
            assert_eq!(reported(&reporter), [2, 1, 1]);
            assert!(over.len() == 1 && lost.lease.is_lost(Moment::now()));
            reporter.clean_up(&over);
            reporter.end_gone(&lost);
            assert_eq!(reporter.counters.to_stats().held, 1, "that of the released one is counted");
            assert_eq!(reporter.counters.unfinished.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn the_end_of_a_hold_that_was_not_reported_to_begin_is_not_reported() {
        let hold = acquired(&options());
        let reporter = Reporter::default();
        assert!(hands_off(&reporter, &hold));
        assert!(hold.end(Moment::now()));
        reporter.report_end(&hold, &Ok(()), false);
        assert_eq!(reported(&reporter), [0, 0, 0]);
    }

    #[test]
    fn a_set_that_takes_a_kept_lock_reports_it_once() {
        let keeping = LockOptions { keep: LEASE, ..options() };
        let (reporter, hold) = (Reporter::default(), acquired(&keeping));
        let caller = Caller { in_set: true, ..caller(&keeping) };
        assert!(hold.keep(Moment::now()) && reporter.begin_kept(&hold, &caller));
        assert_eq!(reported(&reporter), [0, 0, 0], "not before the set is complete");
        reporter.report_acquired(&hold, &caller);
        reporter.report_acquired(&hold, &caller);
        assert_eq!(reported(&reporter), [1, 0, 0]);
    }
}
