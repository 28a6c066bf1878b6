//! The machine, one input at a time: what each state makes of it.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::config::LockOptions;
use crate::protocol::call::tests::caller;
use crate::protocol::steps::{Actions, HoldEvent, HoldReport, Policy, Reports};

const SOON: Duration = Duration::from_secs(10);

const PERMIT: HoldKind = HoldKind::Permit { of: 1 };

/// The signals to a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told(Rc<RefCell<VecDeque<Next>>>);

impl Told {
    fn take(&self) -> Option<Next> {
        self.0.borrow_mut().pop_front()
    }

    fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    fn is_turn(&self) -> bool {
        let turn = self.take();
        matches!(turn, Some(Next::Turn)) && self.is_empty()
    }

    fn outcome(&self) -> Option<Outcome> {
        match self.take()? {
            Next::Done(outcome) => Some(outcome),
            other => panic!("{other:?}"),
        }
    }
}

/// How a hold ends in this process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    GoesOn,
    Lost,
    Released { calls_wait: bool },
}

impl Ending {
    /// Takes it from the answer to `HoldInput::End`, and from what follows.
    pub(crate) fn take<P>(is_in_time: bool, actions: &mut Actions<P>) -> Self {
        let mut ending = if is_in_time { Self::GoesOn } else { Self::Lost };
        actions.retain(|action| {
            if let Action::Release { calls_wait, .. } = action {
                ending = Self::Released { calls_wait: *calls_wait };
            }
            !matches!(action, Action::Release { .. })
        });
        if ending != Self::GoesOn {
            actions.retain(|action| !matches!(action, Action::CountEnd));
        }
        ending
    }
}

pub(crate) fn turn<P>() -> Turn<P> {
    Turn {
        now: Moment::now(),
        instant: Instant::now(),
        is_closed: false,
        listens: true,
        missed_messages: false,
        policy: Policy {
            withdraws: false,
            keeps_order: true,
            backoff: (SOON, SOON),
            retry_window: SOON,
            warn_held: None,
        },
        reports: Reports::new(),
        actions: Actions::new(),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is what a store says")]
pub(crate) fn held() -> Result<AcquireReply, Failure> {
    let (index, remaining, in_doubt, recalled, echoed) = (0, None, false, false, None);
    Ok(AcquireReply::Held { index, remaining, in_doubt, recalled, echoed })
}

/// The same from a server that has sent an echo.
#[expect(clippy::unnecessary_wraps, reason = "it is what a store says")]
fn echoed(remaining: Option<Duration>) -> Result<AcquireReply, Failure> {
    let (index, in_doubt, recalled, echoed) = (0, false, false, Some(String::new()));
    Ok(AcquireReply::Held { index, remaining, in_doubt, recalled, echoed })
}

#[expect(clippy::unnecessary_wraps, reason = "it is what a store says")]
pub(crate) fn granted(others: &[u64]) -> Result<AcquireReply, Failure> {
    Ok(AcquireReply::Acquired { fence: 1, others: others.to_vec(), room: 2, wanted: false })
}

fn failure(kind: FailureKind) -> Failure {
    Failure::io(kind, &Arc::from("here"), std::io::Error::other("test"))
}

fn options() -> LockOptions {
    LockOptions { tenure: Some(SOON), ..LockOptions::default() }
}

fn keeping() -> LockOptions {
    LockOptions { keep: SOON, ..options() }
}

impl<P: Clone> Name<P> {
    /// Leaves a tenure without tokens for more holds.
    pub(crate) fn use_up_tokens(&mut self, hold: &Hold) {
        self.tenure_mut(hold).expect("it is not over").use_up_tokens();
    }
}

/// A name, and the time.
struct World {
    name: Name<Told>,
    turn: Turn<Told>,
    last: u64,
}

/// A call, its signals, and its first step.
struct Begun {
    number: u64,
    told: Told,
    next: Next,
}

impl World {
    fn new() -> Self {
        Self { name: Name::NEW, turn: turn(), last: 0 }
    }

    fn id(&mut self, kind: HoldKind) -> HoldId {
        self.last += 1;
        HoldId { kind, name: Arc::from("x"), client: Arc::from("c"), nonce: self.last }
    }

    fn call_as(&mut self, kind: HoldKind, options: &LockOptions, wait: Wait) -> Begun {
        self.call_again(kind, options, wait, false)
    }

    fn call_again(
        &mut self,
        kind: HoldKind,
        options: &LockOptions,
        wait: Wait,
        rejoins: bool,
    ) -> Begun {
        // Each call begins a little later than the one before.
        self.turn.instant += Duration::from_millis(1);
        let mut hold = self.id(kind);
        let caller = Caller { wait, begin: self.turn.instant, ..caller(options) };
        if !options.keep.is_zero() {
            hold = hold.that_may_be_kept();
        }
        let told = Told::default();
        let call = Call::new(hold, &caller, told.clone());
        let number = call.number;
        let next = self.name.step(Input::Call { call, rejoins }, &mut self.turn);
        self.tell();
        Begun { number, told, next }
    }

    fn call(&mut self, wait: Wait) -> Begun {
        self.call_as(HoldKind::Lock, &options(), wait)
    }

    /// Calls that begin to wait one after the other.
    fn calls<const N: usize>(&mut self) -> [Begun; N] {
        [(); N].map(|()| self.call(Wait::Endless))
    }

    fn reply(&mut self, reply: Result<AcquireReply, Failure>) -> Next {
        self.turn.instant += Duration::from_millis(1);
        let next = if self.turn.policy.withdraws { Some(self.id(HoldKind::Lock)) } else { None };
        let input = Input::Reply { sent: Moment::now(), reply, next };
        let next = self.name.step(input, &mut self.turn);
        self.tell();
        next
    }

    fn changed(&mut self, outcome: Result<(), Failure>) -> Next {
        let next = self.name.step(Input::Changed(outcome), &mut self.turn);
        self.tell();
        next
    }

    fn fails(&mut self, kind: FailureKind) -> Next {
        self.reply(Err(failure(kind)))
    }

    fn due(&mut self, call: &Begun) -> Next {
        self.turn.instant += Duration::from_millis(1);
        let next = self.name.step(Input::Due(call.number), &mut self.turn);
        self.tell();
        next
    }

    /// Cancels the wait of a call. Returns `false` if that does not end it.
    fn cancel(&mut self, call: &Begun) -> bool {
        let next = self.name.step(Input::Cancelled(call.number), &mut self.turn);
        self.tell();
        matches!(next, Next::Done(Outcome::Left))
    }

    /// Removes a call whose thread panics. Returns `false` if it was told how it ends.
    fn leave(&mut self, call: &Begun) -> bool {
        let next = self.name.step(Input::Panicked(call.number), &mut self.turn);
        self.tell();
        matches!(next, Next::Done(Outcome::Left))
    }

    fn step_hold(&mut self, hold: &Arc<Hold>, input: HoldInput<'_>) -> bool {
        let is_in_time = self.name.step_hold(hold, input, &mut self.turn);
        self.tell();
        is_in_time
    }

    /// Has the first call, which asks, get the lock.
    fn acquire(&mut self) -> Arc<Hold> {
        match self.reply(granted(&[])) {
            Next::Done(Outcome::Acquired(hold)) => hold,
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, hold: &Arc<Hold>) -> Ending {
        let is_in_time = self.step_hold(hold, HoldInput::End { hands_off: true });
        Ending::take(is_in_time, &mut self.turn.actions)
    }

    fn end_hold(&mut self, hold: &Arc<Hold>) {
        self.step_hold(hold, HoldInput::ReleaseSent);
    }

    /// Wakes the first call. Returns `false` if there is none.
    fn wake(&mut self) -> bool {
        self.name.step_name(NameInput::Woken, &mut self.turn);
        self.tell();
        self.name.has_first_call()
    }

    fn interrupt(&mut self) {
        self.name.step_name(NameInput::Interrupted, &mut self.turn);
        self.tell();
    }

    /// Tells calls what actions say. What is due of tenures is not of interest here.
    fn tell(&mut self) {
        for action in mem::take(&mut self.turn.actions) {
            match action {
                Action::Begin { .. } | Action::Due { .. } => {}
                Action::Tell(told, next) => told.0.borrow_mut().push_back(next),
                other => self.turn.actions.push(other),
            }
        }
    }

    fn end_without_handoff(&mut self, hold: &Arc<Hold>) {
        let mut turn = turn();
        let is_in_time = self.name.step_hold(hold, HoldInput::End { hands_off: false }, &mut turn);
        let ending = Ending::take(is_in_time, &mut turn.actions);
        assert_eq!(ending, Ending::Released { calls_wait: true });
        assert!(turn.actions.is_empty(), "it hands nothing off");
    }

    fn settle(&mut self, hold: &Arc<Hold>) {
        self.step_hold(hold, HoldInput::Released { outcome: &Ok(()), by: ReleasedBy::Call });
    }

    fn mark_lost(&mut self, hold: &Arc<Hold>) {
        assert!(self.step_hold(hold, HoldInput::FoundGone));
    }

    fn tell_lost(&mut self, hold: &Arc<Hold>) {
        self.step_hold(hold, HoldInput::LookedUp);
    }

    /// Begins a tenure with this id that came by no conversation, and reports that it has begun.
    fn begin_beside(&mut self, id: HoldId, fence: u64) -> Option<Arc<Hold>> {
        let now = Moment::now();
        let grant = Grant { fence, room: 0, may_begin: false, sent: now, replied: now };
        let tenure = Tenure::new(id, &grant, &caller(&options()));
        let hold = tenure.hold.clone();
        if !self.step_hold(&hold, HoldInput::Begin { tenure, sent: now }) {
            return None;
        }
        self.report_begin(&hold);
        Some(hold)
    }

    fn report_begin(&mut self, hold: &Arc<Hold>) {
        self.step_hold(hold, HoldInput::Acquired { begin: self.turn.instant });
        let reports = &mut self.turn.reports;
        reports.retain(|it| !matches!(it.what, HoldEvent::Acquired { .. }));
    }

    /// Returns the actions since the last time.
    fn actions(&mut self) -> Actions<Told> {
        mem::take(&mut self.turn.actions)
    }

    /// Returns the new debts among the actions since the last time.
    fn owed(&mut self) -> Vec<Arc<Hold>> {
        let owed = |action| if let Action::Owe(debt) = action { Some(debt) } else { None };
        self.actions().into_iter().filter_map(owed).collect()
    }

    /// Returns the holds that were reported to be over since the last time.
    fn ended(&mut self) -> Vec<Arc<Hold>> {
        self.turn.actions.clear();
        let mut reports = mem::take(&mut self.turn.reports);
        reports.retain(|it| matches!(it.what, HoldEvent::Released { .. } | HoldEvent::Lost { .. }));
        reports.into_iter().map(|report| report.hold).collect()
    }

    fn unregisters(&mut self) -> bool {
        self.actions().iter().any(|action| matches!(action, Action::Unregister(_)))
    }

    fn releases(&mut self, tenure: &Arc<Hold>) -> bool {
        let released =
            |action| if let Action::Release { hold, .. } = action { Some(hold) } else { None };
        self.actions().into_iter().filter_map(released).any(|hold| Arc::ptr_eq(&hold, tenure))
    }
}

fn asks(next: &Next) -> &Ask {
    match next {
        Next::Ask(ask) => ask,
        other => panic!("{other:?}"),
    }
}

fn is_parked(next: &Next) -> bool {
    matches!(next, Next::Park { .. })
}

fn is_busy(next: &Next) -> bool {
    matches!(next, Next::Done(Outcome::Busy))
}

fn is_failed(next: &Next) -> bool {
    matches!(next, Next::Done(Outcome::Failed(_)))
}

#[test]
fn calls_come_first_in_the_order_in_which_they_began() {
    let mut world = World::new();
    let [first, second, third] = world.calls();
    assert_eq!(asks(&first.next).registration, Registration::IfHeld);
    assert!(is_parked(&second.next) && is_parked(&third.next));
    world.reply(held());
    assert!(world.leave(&first) && second.told.is_turn() && third.told.is_empty());
    let asked = world.due(&second);
    assert_eq!(asks(&asked).registration, Registration::Followed);
    world.reply(held());
    assert!(world.leave(&second) && third.told.is_turn());
    assert_eq!(asks(&world.due(&third)).registration, Registration::Registered);
    world.reply(held());
    assert!(world.leave(&third) && world.name.is_over());
}

/// A request may have been sent ahead of its thread. Its reply must find the call.
#[test]
fn a_call_that_is_told_to_end_waits_for_the_reply_to_its_request() {
    let mut world = World::new();
    let [first, second] = world.calls();
    assert!(!world.cancel(&first));
    assert!(world.cancel(&second));
    world.acquire();
    assert!(!world.cancel(&first), "it has its hold");
}

#[test]
fn a_call_that_has_lost_its_hold_on_the_way_goes_before_later_ones() {
    let mut world = World::new();
    let [first, later] = world.calls();
    let again = world.call_again(HoldKind::Lock, &options(), Wait::Endless, true);
    assert!(world.leave(&first) && again.told.is_turn() && later.told.is_empty());
}

#[test]
fn a_request_for_a_permit_asks_for_the_neighbours_that_want_the_same() {
    use HoldKind::{Lock, Permit, Read, Write};
    let asked = |kinds: &[HoldKind]| {
        let mut world = World::new();
        let calls = kinds.iter().map(|kind| world.call_as(*kind, &options(), Wait::Endless));
        let [first, second, ..] = &calls.collect::<Vec<_>>()[..] else { panic!("two at least") };
        assert!(asks(&first.next).holds.len() == 1, "when it tries first, it looks at no other");
        assert!(world.leave(first));
        asks(&world.due(second)).holds.len() - 1
    };
    let (two, three) = (Permit { of: 2 }, Permit { of: 3 });
    assert_eq!(asked(&[two, two]), 0);
    assert_eq!(asked(&[two, two, two, two, three, two]), 2, "another bound comes first");
    assert_eq!(asked(&[two, two, Write, two]), 0);
    assert_eq!(asked(&[Write, Write, Write]), 0);
    assert_eq!(asked(&[Read, Read, Read]), 0);
    assert_eq!(asked(&[Lock, Lock, Lock]), 0);
    assert_eq!(asked(&[two; 100]), SHARERS_MAX);
}

/// Readers that wait behind the first.
fn readers<const N: usize>(world: &mut World) -> (Arc<Hold>, [Begun; N]) {
    world.call_as(HoldKind::Read, &options(), Wait::Endless);
    let behind = [(); N].map(|()| world.call_as(HoldKind::Read, &options(), Wait::Endless));
    (world.acquire(), behind)
}

fn shares(outcome: Option<Outcome>, hold: &Arc<Hold>) -> bool {
    matches!(outcome, Some(Outcome::Shared(shared)) if Arc::ptr_eq(&shared, hold))
}

#[test]
fn readers_share_a_hold_which_ends_with_the_last() {
    let mut world = World::new();
    let (hold, behind) = readers::<2>(&mut world);
    assert!(behind.iter().all(|reader| shares(reader.told.outcome(), &hold)));
    let Next::Done(outcome) = world.call_as(HoldKind::Read, &options(), Wait::No).next else {
        panic!("without a request")
    };
    assert!(shares(Some(outcome), &hold));
    for _ in 0..3 {
        assert_eq!(world.end(&hold), Ending::GoesOn);
    }
    assert_eq!(world.end(&hold), Ending::Released { calls_wait: false });
    asks(&world.call_as(HoldKind::Read, &options(), Wait::No).next);
}

#[test]
fn a_reader_that_leaves_when_the_lease_is_over_finds_it_lost_though_no_call_has_marked_it() {
    let mut world = World::new();
    let (hold, _) = readers::<1>(&mut world);
    let now = Moment::now();
    let over = now.after(hold.remaining(now));
    assert!(hold.is_open());
    let mut late = Turn { now: over, ..turn::<Told>() };
    assert!(!world.name.step_hold(&hold, HoldInput::End { hands_off: false }, &mut late));
}

#[test]
fn no_reader_joins_after_a_writer_or_the_tenure_or_with_other_terms() {
    let mut world = World::new();
    let (hold, _) = readers::<0>(&mut world);
    let writer = world.call_as(HoldKind::Write, &options(), Wait::Endless);
    asks(&writer.next);
    world.reply(held());
    let late = world.call_as(HoldKind::Read, &options(), Wait::Endless);
    assert!(is_parked(&late.next));
    assert_eq!(world.end(&hold), Ending::Released { calls_wait: true });
    // Nor those that wait behind one.
    let mut world = World::new();
    world.call_as(HoldKind::Read, &options(), Wait::Endless);
    let [writer, reader] = [HoldKind::Write, HoldKind::Read]
        .map(|kind| world.call_as(kind, &options(), Wait::Endless));
    world.acquire();
    assert!(writer.told.is_turn() && reader.told.is_empty());
    for other in [
        LockOptions { tenure: Some(Duration::ZERO), ..options() },
        LockOptions { lease: SOON, ..options() },
    ] {
        let mut world = World::new();
        readers::<0>(&mut world);
        asks(&world.call_as(HoldKind::Read, &other, Wait::Endless).next);
    }
    let mut world = World::new();
    let (hold, _) = readers::<1>(&mut world);
    world.mark_lost(&hold);
    assert_eq!(world.end(&hold), Ending::Lost);
    asks(&world.call_as(HoldKind::Read, &options(), Wait::Endless).next);
}

#[test]
fn calls_get_what_was_asked_for_them_unless_they_have_left() {
    let mut world = World::new();
    let [first, second, third, fourth, fifth] =
        [(); 5].map(|()| world.call_as(PERMIT, &options(), Wait::Endless));
    world.reply(held());
    assert!(world.leave(&first));
    let asked = world.due(&second);
    assert_eq!(asks(&asked).holds.len(), 1 + 3);
    assert!(world.leave(&third));
    let owed = world.owed();
    let [debt] = &owed[..] else { panic!("its hold may come") };
    assert_eq!(debt.id.nonce, third.number);
    let got = world.reply(granted(&[2, 3]));
    assert!(matches!(got, Next::Done(Outcome::Acquired(_))));
    let got = fourth.told.outcome();
    assert!(matches!(got, Some(Outcome::Acquired(hold)) if hold.number() == 3));
    assert!(!world.leave(&fourth), "it has its hold");
    assert!(fifth.told.is_turn());
}

#[test]
fn a_hold_in_doubt_is_a_debt_when_its_call_ends_without_it() {
    let mut world = World::new();
    let [first, second, third] = [(); 3].map(|()| world.call_as(PERMIT, &options(), Wait::Endless));
    world.reply(held());
    assert!(world.leave(&first));
    world.due(&second);
    assert!(is_parked(&world.fails(FailureKind::Timeout)));
    assert!(world.owed().is_empty(), "it is asked for again");
    for call in [&third, &second] {
        assert!(world.leave(call));
        let debt = world.owed().pop().expect("it may exist");
        assert_eq!(debt.id.nonce, call.number);
    }
    assert_eq!(world.name.debts().len(), 2, "what is in the way may be one of these");
}

#[test]
fn a_reply_begins_the_retry_window_anew_also_if_the_next_request_pays_a_debt() {
    let mut world = World::new();
    let debt = Arc::new(Hold::debt(world.id(HoldKind::Lock), SOON, false));
    world.step_hold(&debt, HoldInput::Owed);
    let [first] = world.calls();
    assert!(is_parked(&world.fails(FailureKind::Transient)));
    world.turn.instant += SOON * 2 / 3;
    asks(&world.due(&first));
    assert!(matches!(world.reply(held()), Next::Pay(_)), "its own hold may be in the way");
    asks(&world.changed(Ok(())));
    world.turn.instant += SOON * 2 / 3;
    assert!(is_parked(&world.fails(FailureKind::Transient)), "the servers have answered since");
}

#[test]
fn a_lock_is_handed_off_to_the_first_call() {
    let mut world = World::new();
    let [_, second, third] = world.calls();
    let mine = world.acquire();
    world.report_begin(&mine);
    let turn = &mut world.turn;
    assert!(world.name.step_hold(&mine, HoldInput::End { hands_off: true }, turn));
    let Turn { reports, actions, .. } = &world.turn;
    assert!(matches!(reports[..], [HoldReport { what: HoldEvent::Released { .. }, .. }]));
    assert!(matches!(actions[..], [Action::Tell(..)]), "{actions:?}");
    world.tell();
    let got = second.told.outcome();
    assert!(matches!(got, Some(Outcome::HandedOff(hold)) if Arc::ptr_eq(&hold, &mine)));
    assert!(mine.fence() == 2 && third.told.is_empty());
    world.end_without_handoff(&mine);
    assert!(third.told.is_empty(), "the release was not sent");
    world.end_hold(&mine);
    assert!(third.told.is_turn());
    world.settle(&mine);
    assert!(world.leave(&third) && world.name.is_over());
}

#[test]
fn a_lost_hold_lets_the_next_call_try() {
    let mut world = World::new();
    let [_, second] = world.calls();
    let mine = world.acquire();
    world.mark_lost(&mine);
    assert_eq!(world.end(&mine), Ending::Lost);
    assert!(second.told.is_empty(), "the loss was not reported");
    world.tell_lost(&mine);
    world.tell_lost(&mine);
    assert!(second.told.is_turn());
}

#[test]
fn no_call_goes_before_the_report_of_a_loss() {
    let mut world = World::new();
    let short = LockOptions { lease: Duration::from_millis(10), ..options() };
    world.call_as(HoldKind::Lock, &short, Wait::Endless);
    let mine = world.acquire();
    world.turn.now = world.turn.now.after(Duration::from_millis(20));
    let second = world.call(Wait::Endless);
    assert!(is_parked(&second.next));
    assert!(world.step_hold(&mine, HoldInput::Deadline));
    world.tell();
    assert!(second.told.is_turn());
}

#[test]
fn a_call_begins_behind_a_hold_that_has_ended_if_no_other_waits() {
    let mut world = World::new();
    let [_, second] = world.calls();
    let mine = world.acquire();
    world.end_without_handoff(&mine);
    assert!(world.leave(&second));
    asks(&world.call(Wait::Endless).next);
}

#[test]
fn a_hold_whose_release_is_not_confirmed_is_remembered() {
    let mut world = World::new();
    world.call(Wait::Endless);
    let mine = world.acquire();
    assert_eq!(world.end(&mine), Ending::Released { calls_wait: false });
    let next = world.call(Wait::Endless);
    asks(&next.next);
    // It may be what is in the way.
    let Next::Pay(debts) = world.reply(held()) else { panic!("it is not confirmed") };
    assert!(debts.len() == 1 && Arc::ptr_eq(&debts[0], &mine));
    let again = world.changed(Ok(()));
    asks(&again);
    assert!(is_parked(&world.reply(held())), "it was another owner");
    assert!(next.told.is_empty() && world.name.debts().is_empty());
}

#[test]
fn a_new_hold_shows_that_the_earlier_ones_have_ended() {
    let mut world = World::new();
    world.call(Wait::Endless);
    let mine = world.acquire();
    world.report_begin(&mine);
    world.end(&mine);
    world.call(Wait::Endless);
    world.acquire();
    assert!(Arc::ptr_eq(&world.ended()[0], &mine) && world.name.debts().is_empty());
}

#[test]
fn a_new_hold_shows_that_those_beside_it_and_before_it_are_over() {
    let mut world = World::new();
    let [id, other, last] = [(); 3].map(|()| world.id(HoldKind::Lock));
    let earlier = world.begin_beside(id, 0).expect("it is the first");
    assert!(world.ended().is_empty() && !world.name.is_over());
    let ended = world.begin_beside(other, 0).expect("it is later");
    let over = world.ended();
    assert!(Arc::ptr_eq(&over[0], &earlier) && over.len() == 1);
    assert_eq!(world.end(&ended), Ending::Released { calls_wait: false });
    asks(&world.call(Wait::Endless).next);
    let hold = world.acquire();
    world.report_begin(&hold);
    let over = world.ended();
    assert!(Arc::ptr_eq(&over[0], &ended) && over.len() == 1);
    let later = world.begin_beside(last, 2).expect("it is later");
    let over = world.ended();
    assert!(Arc::ptr_eq(&over[0], &hold) && over.len() == 1);
    let before = Moment::FIRST;
    let after = Moment::now().after(Duration::from_secs(1));
    assert!(world.name.is_followed(&earlier, before) && !world.name.is_followed(&earlier, after));
    world.mark_lost(&later);
    world.tell_lost(&later);
    assert!(world.name.is_over());
}

#[test]
fn a_release_by_one_guard_leaves_the_end_of_another_to_be_reported() {
    let mut world = World::new();
    let id = world.id(HoldKind::Lock);
    let guards = [(); 2].map(|()| world.begin_beside(id.clone(), 0).expect("the same hold"));
    assert!(world.ended().is_empty());
    for guard in &guards {
        world.end(guard);
    }
    world.settle(&guards[0]);
    assert!(Arc::ptr_eq(&world.ended()[0], &guards[0]));
    let next = world.id(HoldKind::Lock);
    world.begin_beside(next, 1).expect("it is later");
    let over = world.ended();
    assert!(Arc::ptr_eq(&over[0], &guards[1]) && over.len() == 1);
}

#[test]
fn a_writer_shows_that_readers_of_its_client_are_over() {
    let mut world = World::new();
    world.call_as(HoldKind::Read, &options(), Wait::Endless);
    let waits = world.call_as(HoldKind::Write, &options(), Wait::Endless);
    let Next::Done(Outcome::Acquired(before)) = world.reply(Ok(AcquireReply::Acquired {
        fence: 0,
        others: vec![],
        room: 0,
        wanted: false,
    })) else {
        panic!("a hold")
    };
    world.report_begin(&before);
    asks(&world.due(&waits));
    world.acquire();
    let ended = world.ended();
    assert!(Arc::ptr_eq(&ended[0], &before) && ended.len() == 1);
}

/// Lets a call ask while the release of a hold, which is returned, has had no reply.
fn call_during_a_release(keeps_order: bool) -> (World, Arc<Hold>) {
    let mut world = World::new();
    world.turn.policy.keeps_order = keeps_order;
    world.call(Wait::Endless);
    let mine = world.acquire();
    world.end(&mine);
    world.call(Wait::Endless);
    (world, mine)
}

#[test]
fn a_store_without_order_is_asked_again_though_the_release_was_confirmed() {
    let (mut world, mine) = call_during_a_release(false);
    world.settle(&mine);
    asks(&world.reply(held()));
    assert!(is_parked(&world.reply(held())));
}

/// The first call may need several requests, each with its own time.
#[test]
fn a_call_that_does_not_wait_has_time_for_a_reply_while_servers_answer_the_first() {
    let (mut world, _mine) = call_during_a_release(false);
    let second = world.call(Wait::No);
    let half = caller(&options()).times.io_timeout / 2 + Duration::from_millis(1);
    world.turn.instant += half;
    assert!(matches!(world.reply(held()), Next::Pay(_)));
    world.turn.instant += half;
    assert!(is_parked(&world.due(&second)));
    world.turn.instant += half;
    assert!(is_failed(&world.due(&second)));
}

/// The renewer has connections of its own.
#[test]
fn a_reply_may_be_older_than_what_the_renewer_has_released() {
    let (mut world, mine) = call_during_a_release(true);
    let by = ReleasedBy::Renewer;
    world.step_hold(&mine, HoldInput::Released { outcome: &Ok(()), by });
    asks(&world.reply(held()));
    assert!(is_parked(&world.reply(held())));
}

/// The table in the head of `name.rs`, line by line.
#[test]
fn a_call_that_times_out_is_told_what_is_known_since_it_began() {
    let timed_out = |learn: fn(&mut World)| {
        let mut world = World::new();
        world.call(Wait::Endless);
        let second = world.call(Wait::Until(world.turn.instant));
        learn(&mut world);
        let next = world.due(&second);
        (world, second, next)
    };
    let (_, _, held_here) = timed_out(|world| drop(world.acquire()));
    assert!(is_busy(&held_here));
    let (_, _, held_there) = timed_out(|world| drop(world.reply(held())));
    assert!(is_busy(&held_there));
    let (_, _, failed) = timed_out(|world| drop(world.fails(FailureKind::Transient)));
    assert!(is_failed(&failed));
    // Nothing: the reply on its way decides.
    let (mut world, second, nothing) = timed_out(|_| ());
    assert!(is_parked(&nothing) && second.told.is_empty());
    world.reply(held());
    assert!(matches!(second.told.outcome(), Some(Outcome::Busy)));
    let (mut world, second, _) = timed_out(|_| ());
    world.fails(FailureKind::Transient);
    assert!(matches!(second.told.outcome(), Some(Outcome::Failed(_))));
    let (mut world, second, _) = timed_out(|_| ());
    world.acquire();
    assert!(matches!(second.told.outcome(), Some(Outcome::Busy)));
    // Without a reply in time, too.
    let (mut world, second, _) = timed_out(|_| ());
    assert!(is_parked(&world.due(&second)));
    world.turn.instant += caller(&options()).times.io_timeout;
    assert!(is_failed(&world.due(&second)));
    // The hold in front has ended, and the next reply decides.
    let (mut world, second, next) = timed_out(|world| {
        let mine = world.acquire();
        world.end_without_handoff(&mine);
    });
    assert!(is_parked(&next));
    let mine = world.name.holder().cloned().expect("its release was not sent");
    world.end_hold(&mine);
    assert!(second.told.is_turn());
}

#[test]
fn knowledge_from_before_a_call_decides_nothing() {
    let mut world = World::new();
    let first = world.call(Wait::Endless);
    world.reply(held());
    let second = world.call(Wait::Until(world.turn.instant));
    assert!(is_parked(&world.due(&second)));
    assert!(first.told.is_turn(), "it asks now");
    world.due(&first);
    world.reply(held());
    assert!(matches!(second.told.outcome(), Some(Outcome::Busy)));
}

#[test]
fn a_call_that_does_not_wait_takes_the_last_reply() {
    let mut world = World::new();
    let first = world.call(Wait::Endless);
    let tried = world.call(Wait::No);
    assert!(is_parked(&tried.next), "there is no reply yet");
    world.reply(held());
    assert!(matches!(tried.told.outcome(), Some(Outcome::Busy)));
    assert!(is_busy(&world.call(Wait::No).next), "another owner holds it");
    world.due(&first);
    let tried = world.call(Wait::No);
    assert!(is_parked(&tried.next), "it asks again");
    world.fails(FailureKind::Transient);
    assert!(matches!(tried.told.outcome(), Some(Outcome::Failed(_))));
    assert!(is_parked(&world.call(Wait::No).next), "the server may be back");
    assert!(first.told.is_turn());
    world.due(&first);
    let mine = world.acquire();
    assert!(is_busy(&world.call(Wait::No).next), "a call has it");
    world.end(&mine);
    asks(&world.call(Wait::No).next);
}

#[test]
fn a_shared_request_is_repeated_alone_after_its_timeout() {
    let mut world = World::new();
    world.call_as(HoldKind::Read, &options(), Wait::Endless);
    let alone = |next: Next| matches!(next, Next::Done(Outcome::Alone));
    assert!(alone(world.call_as(HoldKind::Write, &options(), Wait::No).next));
    let wait = Wait::Until(world.turn.instant);
    let second = world.call_as(HoldKind::Write, &options(), wait);
    assert!(alone(world.due(&second)));
    world.reply(held());
    let tried = world.call_as(HoldKind::Write, &options(), Wait::No);
    assert!(alone(tried.next), "the reply was to what another call wants");
}

#[test]
fn an_outage_ends_the_waits_without_a_limit() {
    let mut world = World::new();
    let [_, endless] = world.calls();
    let limited = world.call(Wait::Until(world.turn.instant + SOON));
    world.turn.policy.retry_window = Duration::ZERO;
    assert!(is_failed(&world.fails(FailureKind::Unreachable)));
    assert!(matches!(endless.told.outcome(), Some(Outcome::Failed(_))));
    assert!(limited.told.is_turn());
    // It is told of the failure too, if it times out before there is a reply.
    let late = world.call(Wait::Endless);
    assert!(is_parked(&world.due(&late)), "that was before this call began");
}

#[test]
fn a_wake_up_lets_the_first_call_try_once() {
    let mut world = World::new();
    assert!(!world.wake());
    let [first, second] = world.calls();
    assert!(world.wake(), "its request may have been executed before");
    let Next::Park { until: Some(until), .. } = world.reply(held()) else { panic!("it parks") };
    assert!(until <= world.turn.instant);
    asks(&world.due(&first));
    world.reply(held());
    assert!(world.wake() && world.wake());
    assert!(first.told.is_turn() && second.told.is_empty(), "one is as good as many");
    world.due(&first);
    world.acquire();
    assert!(!world.wake());
}

/// Makes the first call wait until it relies on messages. Returns how long it then parks.
fn wait_until_it_relies(world: &mut World, first: &Begun, remaining: Option<Duration>) -> Duration {
    world.name.step_name(NameInput::Echo, &mut world.turn);
    assert!(asks(&world.due(first)).echo);
    let Next::Park { until: Some(until), .. } = world.reply(echoed(remaining)) else {
        panic!("it parks")
    };
    until - world.turn.instant
}

#[test]
fn a_call_relies_on_being_told_only_where_an_echo_shows_that_it_hears() {
    let brief = Duration::from_millis(20);
    let is_silent = |pause: Duration| pause >= Duration::from_secs(9) && pause <= SOON;
    let mut world = World::new();
    world.turn.policy.backoff = (brief, brief);
    let first = world.call(Wait::Endless);
    assert!(!asks(&first.next).echo, "it may not have to wait");
    let parks = |next: Next, world: &World| match next {
        Next::Park { until: Some(until), .. } => until - world.turn.instant,
        other => panic!("{other:?}"),
    };
    let next = world.reply(held());
    assert_eq!(parks(next, &world), brief);
    assert!(asks(&world.due(&first)).echo);
    let next = world.reply(echoed(None));
    assert_eq!(parks(next, &world), brief, "the echo has not come");
    assert!(is_silent(wait_until_it_relies(&mut world, &first, None)));
    let lease = Duration::from_secs(2);
    let pause = wait_until_it_relies(&mut world, &first, Some(lease));
    assert_eq!(pause, lease + Duration::from_millis(1), "until the lease is over");
    world.turn.instant += pause;
    assert!(is_silent(wait_until_it_relies(&mut world, &first, Some(SOON * 2))), "it was renewed");
    world.turn.instant += lease;
    // One that was told asks at once, and without an echo.
    assert!(world.wake() && first.told.is_turn());
    assert!(!asks(&world.due(&first)).echo);
    let next = world.reply(held());
    assert_eq!(parks(next, &world), brief, "this server tells it nothing");
    assert!(is_silent(wait_until_it_relies(&mut world, &first, None)));
    // Messages may be missed from now on.
    world.interrupt();
    let Some(Next::Park { until: Some(until), .. }) = first.told.take() else { panic!("it parks") };
    assert_eq!(until - world.turn.instant, brief);
    world.interrupt();
    assert!(first.told.is_empty(), "it relies on nothing");
    asks(&world.due(&first));
    let next = world.reply(echoed(None));
    assert_eq!(parks(next, &world), brief);
    world.name.step_name(NameInput::Echo, &mut world.turn);
    world.turn.listens = false;
    assert!(!asks(&world.due(&first)).echo);
    let next = world.reply(echoed(None));
    assert_eq!(parks(next, &world), brief);
}

#[test]
fn an_interruption_does_not_keep_a_call_beyond_its_deadline() {
    let mut world = World::new();
    world.turn.policy.backoff = (SOON, SOON);
    let time = Duration::from_secs(1);
    let first = world.call(Wait::Until(world.turn.instant + time));
    world.reply(held());
    let pause = wait_until_it_relies(&mut world, &first, None);
    assert!(pause < time);
    let end = world.turn.instant + pause;
    world.interrupt();
    let Some(Next::Park { until, .. }) = first.told.take() else { panic!("it parks") };
    assert_eq!(until, Some(end));
}

#[test]
fn the_next_request_of_a_parked_call_may_be_sent_ahead_of_its_thread() {
    let mut world = World::new();
    let first = world.call(Wait::Endless);
    assert!(world.name.ask_ahead(&mut world.turn).is_none(), "it asks already");
    world.reply(held());
    let (port, ask) = world.name.ask_ahead(&mut world.turn).expect("it parks");
    assert!(ask.holds[0].nonce == first.number && Rc::ptr_eq(&port.0, &first.told.0));
    assert!(first.told.is_empty() && world.name.asks(first.number));
    assert!(is_parked(&world.due(&first)), "its pause is over, and the reply is still to come");
    world.reply(held());
    assert!(world.wake() && !world.name.asks(first.number));
    assert!(world.name.ask_ahead(&mut world.turn).is_none(), "it was told to ask");
}

/// Else a call that does not wait would be told that a distant server has not answered in time.
#[test]
fn a_client_that_keeps_a_lock_has_no_more_than_half_of_the_time_to_release_it() {
    let mut world = World::new();
    let brief = LockOptions { lease: Duration::from_millis(90), ..options() };
    let call = world.call_as(HoldKind::Lock, &brief, Wait::No);
    let left = asks(&call.next).deadline - world.turn.instant;
    assert!(left < RECALL_TIME * 2, "{left:?}");
    let (index, remaining, in_doubt, recalled, echoed) = (0, None, false, true, None);
    let kept = AcquireReply::Held { index, remaining, in_doubt, recalled, echoed };
    let Next::Park { until: Some(until), .. } = world.reply(Ok(kept)) else { panic!("it parks") };
    assert_eq!(until - world.turn.instant, left / 2);
}

#[test]
fn a_wish_that_overtakes_the_reply_is_kept_whatever_comes_late() {
    let mut world = World::new();
    let first = world.call(Wait::Endless);
    for nonce in [first.number, first.number + 7] {
        world.name.step_name(NameInput::Wanted(nonce), &mut world.turn);
    }
    let hold = world.acquire();
    assert!(world.name.tenure(&hold).is_some_and(Tenure::is_wanted));
}

#[test]
fn a_hold_that_falls_short_is_released_before_the_call_fails() {
    let mut world = World::new();
    let first = world.call(Wait::Endless);
    let fell = world.fails(FailureKind::NotReplicated { acked: 0, required: 1 });
    assert!(matches!(fell, Next::Change(hold, Change::RELEASE) if hold.nonce == first.number));
    let failed = world.changed(Ok(()));
    assert!(is_failed(&failed) && world.owed().is_empty() && world.name.is_over());
    world.call(Wait::Endless);
    world.fails(FailureKind::NotReplicated { acked: 0, required: 1 });
    world.changed(Err(failure(FailureKind::Timeout)));
    assert_eq!(world.owed().len(), 1, "the release may not have been executed");
}

#[test]
fn a_hold_that_a_store_has_withdrawn_is_not_asked_for_again() {
    let mut world = World::new();
    world.turn.policy.withdraws = true;
    let first = world.call(Wait::Endless);
    let withdrawn = asks(&first.next).holds[0].nonce;
    world.reply(held());
    assert!(asks(&world.due(&first)).holds[0].nonce > withdrawn);
    world.fails(FailureKind::Timeout);
    assert_eq!(world.owed().len(), 1, "it is cleaned up at once");
}

/// A lock that is only kept is of another kind than what the call wants.
#[test]
fn a_kept_lock_of_another_client_makes_room_for_other_kinds() {
    let recalled = || {
        Ok(AcquireReply::Held {
            index: 0,
            remaining: Some(SOON),
            in_doubt: false,
            recalled: true,
            echoed: None,
        })
    };
    let mut world = World::new();
    let first = world.call_as(HoldKind::Read, &options(), Wait::No);
    let asked = world.fails(FailureKind::WrongType);
    let ask = asks(&asked);
    assert!((ask.registration, ask.holds[0].kind) == (Registration::Recall, HoldKind::Lock));
    assert!(is_parked(&world.reply(recalled())));
    assert!(matches!(&world.actions()[..], [.., Action::Listen(lock)] if lock.kind.is_lock()));
    assert!(world.wake() && first.told.is_turn());
    assert_eq!(asks(&world.due(&first)).registration, Registration::Recall);
    assert!(matches!(world.reply(held()), Next::Change(_, Change::Unregister)));
    let again = world.changed(Ok(()));
    assert_eq!(asks(&again).holds[0].kind, HoldKind::Read);
    assert!(is_failed(&world.fails(FailureKind::WrongType)), "once is enough");
    // One that is used does not make room.
    world.call_as(HoldKind::Read, &options(), Wait::No);
    world.fails(FailureKind::WrongType);
    let in_use = AcquireReply::Held {
        index: 0,
        remaining: Some(SOON),
        in_doubt: false,
        recalled: false,
        echoed: None,
    };
    assert!(is_failed(&world.reply(Ok(in_use))));
}

/// A name that is kept after this hold, which one more may follow.
fn kept(world: &mut World) -> Arc<Hold> {
    world.call_as(HoldKind::Lock, &keeping(), Wait::Endless);
    let hold = world.acquire();
    assert_eq!(world.end(&hold), Ending::GoesOn);
    hold
}

fn keep_call(world: &mut World) -> Next {
    world.call_as(HoldKind::Lock, &keeping(), Wait::Endless).next
}

#[test]
fn a_kept_lock_is_the_next_calls() {
    let mut world = World::new();
    let hold = kept(&mut world);
    let got = keep_call(&mut world);
    assert!(matches!(got, Next::Done(Outcome::Kept(kept))
        if Arc::ptr_eq(&kept, &hold)));
    assert!(world.name.kept().is_none() && world.name.holder().is_some());
}

/// A kept lock without a token for the next hold.
fn kept_without_tokens(world: &mut World) -> Arc<Hold> {
    let hold = kept(world);
    world.name.use_up_tokens(&hold);
    hold
}

#[test]
fn a_kept_lock_without_tokens_is_asked_for_more() {
    let mut world = World::new();
    let hold = kept_without_tokens(&mut world);
    let asked = keep_call(&mut world);
    assert_eq!((asks(&asked).registration, &asks(&asked).holds[0]), (Registration::Kept, &hold.id));
    let more = AcquireReply::Acquired { fence: 8, others: Vec::new(), room: 2, wanted: true };
    let got = world.reply(Ok(more));
    assert!(matches!(got, Next::Done(Outcome::Kept(_))));
    let is_wanted = world.name.tenure(&hold).is_some_and(Tenure::is_wanted);
    assert!(is_wanted && hold.fence() == 8);
}

#[test]
fn a_kept_lock_that_is_lost_or_in_doubt_is_given_up_for_a_new_one() {
    let mut world = World::new();
    let hold = kept_without_tokens(&mut world);
    keep_call(&mut world);
    let asked = world.reply(held());
    assert_eq!(asks(&asked).registration, Registration::IfHeld);
    let over = world.ended();
    assert!(Arc::ptr_eq(&over[0], &hold) && over.len() == 1);
    let mut world = World::new();
    let hold = kept_without_tokens(&mut world);
    keep_call(&mut world);
    assert!(is_parked(&world.fails(FailureKind::Timeout)), "it was the first attempt");
    assert!(world.releases(&hold));
    let mut world = World::new();
    let hold = kept(&mut world);
    asks(&world.call(Wait::Endless).next);
    assert!(world.releases(&hold), "it does not suit");
}

#[test]
fn a_call_that_ends_takes_its_client_off_those_that_wait() {
    let mut world = World::new();
    let [first, second] = world.calls();
    world.reply(held());
    assert!(world.leave(&first) && !world.unregisters(), "the next one waits");
    let reader = world.call_as(HoldKind::Read, &options(), Wait::Endless);
    assert!(world.leave(&second) && world.unregisters(), "for another kind");
    assert!(world.leave(&reader) && world.unregisters());
    world.call(Wait::No);
    assert!(is_busy(&world.reply(held())) && !world.unregisters());
}

#[test]
fn a_writer_hands_the_lock_to_the_next_writer_but_not_past_a_reader() {
    let mut world = World::new();
    let [first, second, reader, last] =
        [HoldKind::Write, HoldKind::Write, HoldKind::Read, HoldKind::Write]
            .map(|kind| world.call_as(kind, &options(), Wait::Endless));
    let hold = world.acquire();
    assert!(is_busy(&world.call_as(HoldKind::Read, &options(), Wait::No).next));
    assert_eq!((hold.id.nonce, hold.fence()), (first.number, 1));
    assert_eq!(world.end(&hold), Ending::GoesOn);
    let got = second.told.outcome();
    assert!(matches!(got, Some(Outcome::HandedOff(next)) if Arc::ptr_eq(&next, &hold)));
    assert_eq!(hold.fence(), 2);
    assert!(reader.told.is_empty(), "it asks once the release was sent");
    assert_eq!(world.end(&hold), Ending::Released { calls_wait: true });
    world.end_hold(&hold);
    assert!(reader.told.is_turn() && last.told.is_empty());
    asks(&world.due(&reader));
}

#[test]
fn a_request_asks_for_more_tokens_if_the_next_call_can_have_the_tenure() {
    use HoldKind::{Lock, Read, Write};
    for (kind, next, expected) in [
        (Lock, Lock, Registration::Followed),
        (Write, Write, Registration::Followed),
        (Write, Read, Registration::Registered),
    ] {
        let mut world = World::new();
        let [before, first, _] =
            [kind, kind, next].map(|kind| world.call_as(kind, &options(), Wait::Endless));
        assert!(world.leave(&before));
        assert_eq!(asks(&world.due(&first)).registration, expected, "{kind:?}, then {next:?}");
    }
}

/// Schedules made up by shuttle found the first two of these.
#[test]
fn a_call_behind_whose_hold_may_exist_is_cleaned_up_however_it_ends() {
    let in_doubt = || {
        let mut world = World::new();
        let wait = Wait::Until(world.turn.instant + SOON);
        let [first, second] = [(); 2].map(|()| world.call_as(PERMIT, &options(), Wait::Endless));
        let limited = world.call_as(PERMIT, &options(), wait);
        let endless = world.call_as(PERMIT, &options(), Wait::Endless);
        assert!(world.leave(&first));
        world.due(&second);
        (world, limited, endless)
    };
    let cleaned = |world: &World, call: &Begun| {
        let actions = world.turn.actions.iter();
        let mut debts =
            actions.filter_map(|it| if let Action::Owe(debt) = it { Some(debt) } else { None });
        debts.any(|debt| debt.id.nonce == call.number)
    };
    // It times out while its hold is asked for.
    let (mut world, limited, _) = in_doubt();
    world.turn.instant += SOON;
    assert!(matches!(world.due(&limited), Next::Done(Outcome::Alone)));
    assert!(cleaned(&world, &limited));
    // An outage ends it, after a request without a reply.
    let (mut world, limited, endless) = in_doubt();
    world.turn.policy.retry_window = Duration::ZERO;
    assert!(is_failed(&world.fails(FailureKind::Timeout)));
    assert!(cleaned(&world, &endless) && !cleaned(&world, &limited), "that one tries again");
    assert!(limited.told.is_turn() && world.leave(&limited) && cleaned(&world, &limited));
}

/// Its request may have been executed, and no thread reads the reply.
#[test]
fn a_call_that_panics_while_it_asks_leaves_no_hold() {
    let mut world = World::new();
    let [first, second] = [(); 2].map(|()| world.call_as(PERMIT, &options(), Wait::Endless));
    let third = world.call_as(PERMIT, &options(), Wait::Endless);
    assert!(world.leave(&first));
    assert_eq!(world.owed()[0].id.nonce, first.number);
    assert_eq!(asks(&world.due(&second)).holds.len(), 2, "it asks for the third as well");
    assert!(world.leave(&second));
    assert_eq!(world.owed()[0].id.nonce, second.number);
    assert!(world.leave(&third));
    assert_eq!(world.owed()[0].id.nonce, third.number);
}

/// A permit, the call that waits for it, and the calls behind that.
fn permits<const N: usize>(world: &mut World) -> (Arc<Hold>, Begun, [Begun; N]) {
    world.call_as(PERMIT, &options(), Wait::Endless);
    let permit = world.acquire();
    let waits = world.call_as(PERMIT, &options(), Wait::Endless);
    let behind = [(); N].map(|()| world.call_as(PERMIT, &options(), Wait::Endless));
    (permit, waits, behind)
}

/// Checks that a call was told that it has the permit.
fn got(call: &Begun, permit: &Arc<Hold>) {
    let outcome = call.told.outcome();
    let has_it = matches!(&outcome, Some(Outcome::HandedOff(hold)) if Arc::ptr_eq(hold, permit));
    assert!(has_it, "{outcome:?}");
}

#[test]
fn a_permit_goes_to_the_first_call_that_waits_and_the_next_goes_on_there() {
    let mut world = World::new();
    let (permit, first, [second, writer]) = permits::<2>(&mut world);
    world.reply(held());
    assert_eq!(world.end(&permit), Ending::GoesOn);
    got(&first, &permit);
    assert!(!world.unregisters(), "the next one waits");
    assert!(second.told.is_empty(), "it finds out when it would ask again");
    asks(&world.due(&second));
    world.reply(held());
    assert!(world.leave(&writer));
    assert_eq!(world.end(&permit), Ending::GoesOn);
    got(&second, &permit);
    assert!(world.unregisters(), "no call waits any more");
    assert!(matches!(world.end(&permit), Ending::Released { .. }));
}

#[test]
fn a_call_that_goes_on_in_the_place_of_another_does_not_share_its_failures() {
    let mut world = World::new();
    let (permit, first, [second]) = permits::<1>(&mut world);
    assert!(is_parked(&world.fails(FailureKind::Unreachable)), "it tries again");
    world.turn.instant += SOON * 2;
    assert_eq!(world.end(&permit), Ending::GoesOn);
    got(&first, &permit);
    asks(&world.due(&second));
    assert!(is_parked(&world.fails(FailureKind::Unreachable)), "its retry window begins now");
}

#[test]
fn a_call_behind_one_that_does_not_wait_is_registered_as_waiting() {
    let mut world = World::new();
    world.call_as(PERMIT, &options(), Wait::Endless);
    let permit = world.acquire();
    let brief = world.call_as(PERMIT, &options(), Wait::No);
    let other = LockOptions { lease: SOON, ..options() };
    let second = world.call_as(PERMIT, &other, Wait::Endless);
    assert_eq!(world.end(&permit), Ending::GoesOn);
    world.reply(held());
    got(&brief, &permit);
    assert!(second.told.is_turn());
    assert_eq!(asks(&world.due(&second)).registration, Registration::Registered);
}

#[test]
fn a_wake_up_is_not_lost_with_the_call_that_it_was_for() {
    let mut world = World::new();
    let (permit, first, [second]) = permits::<1>(&mut world);
    world.reply(held());
    assert!(world.wake() && first.told.is_turn());
    world.end(&permit);
    got(&first, &permit);
    assert!(second.told.is_turn());
    asks(&world.due(&second));
    assert!(is_parked(&world.due(&first)), "it was told before that it has one");
}

#[test]
fn a_permit_goes_to_the_next_call_while_a_request_of_the_first_is_on_its_way() {
    let mut world = World::new();
    let (permit, first, [second, third]) = permits::<2>(&mut world);
    assert_eq!(world.end(&permit), Ending::GoesOn);
    got(&second, &permit);
    assert_eq!(world.end(&permit), Ending::GoesOn);
    got(&third, &permit);
    // The first one is served next, once its thread can go on.
    let fourth = world.call_as(PERMIT, &options(), Wait::Endless);
    world.reply(held());
    assert_eq!(world.end(&permit), Ending::GoesOn);
    got(&first, &permit);
    assert!(fourth.told.is_empty());
}

/// A request for the first call and those behind it is on its way.
fn asking_for_others<const N: usize>(world: &mut World) -> (Arc<Hold>, Begun, [Begun; N]) {
    let (permit, first, behind) = permits::<N>(world);
    world.reply(held());
    assert_eq!(asks(&world.due(&first)).holds.len(), 1 + N);
    (permit, first, behind)
}

#[test]
fn a_permit_for_a_call_that_was_served_goes_to_the_next() {
    let mut world = World::new();
    let (permit, _, [second, third]) = asking_for_others(&mut world);
    world.end(&permit);
    got(&second, &permit);
    let [fourth, fifth] = [(); 2].map(|()| world.call_as(PERMIT, &options(), Wait::Endless));
    assert!(matches!(world.reply(granted(&[2, 3])), Next::Done(Outcome::Acquired(_))));
    let nonce = |call: &Begun| match call.told.outcome() {
        Some(Outcome::Acquired(hold)) => hold.id.nonce,
        other => panic!("{other:?}"),
    };
    assert_eq!(nonce(&third), third.number);
    assert_eq!(nonce(&fourth), second.number);
    assert!(fifth.told.is_turn());
}

#[test]
fn a_permit_for_no_call_is_given_back() {
    let owed = |reply: &dyn Fn() -> Result<AcquireReply, Failure>| {
        let mut world = World::new();
        let (permit, _, [second]) = asking_for_others(&mut world);
        world.end(&permit);
        got(&second, &permit);
        world.reply(reply());
        let actions = world.actions();
        actions.iter().filter(|action| matches!(action, Action::Owe(_))).count()
    };
    assert_eq!(owed(&|| granted(&[2])), 1);
    assert_eq!(owed(&|| granted(&[])), 0, "it does not exist");
    assert_eq!(owed(&|| Err(failure(FailureKind::Timeout))), 1, "it may exist");
    assert_eq!(owed(&|| Err(failure(FailureKind::Rejected))), 0);
}

#[test]
fn a_permit_that_no_other_call_wants_waits_for_the_reply_to_the_first() {
    let mut world = World::new();
    let (permit, first, []) = permits(&mut world);
    assert_eq!(world.end(&permit), Ending::GoesOn);
    assert!(first.told.is_empty());
    assert!(is_parked(&world.fails(FailureKind::Timeout)));
    got(&first, &permit);
    let actions = world.actions();
    let owed = actions.iter().filter(|action| matches!(action, Action::Owe(_))).count();
    assert_eq!(owed, 1, "what it had asked for");
    // Another call can have it before.
    let mut world = World::new();
    let (permit, first, []) = permits(&mut world);
    world.end(&permit);
    let brief = world.call_as(PERMIT, &options(), Wait::No).next;
    assert!(!matches!(brief, Next::Done(Outcome::HandedOff(_))), "it does not wait: {brief:?}");
    let next = world.call_as(PERMIT, &options(), Wait::Endless).next;
    let has_it =
        matches!(&next, Next::Done(Outcome::HandedOff(hold)) if Arc::ptr_eq(hold, &permit));
    assert!(has_it && first.told.is_empty(), "{next:?}");
    // The reply may bring the first one a permit of its own.
    let mut world = World::new();
    let (permit, _, []) = permits(&mut world);
    world.end(&permit);
    assert!(!Arc::ptr_eq(&world.acquire(), &permit));
    assert!(world.releases(&permit), "no call wants it");
}

#[test]
fn a_permit_is_released_where_no_call_can_have_it() {
    let mut world = World::new();
    let (permit, first, []) = permits::<0>(&mut world);
    world.reply(held());
    world.mark_lost(&permit);
    assert_eq!(world.end(&permit), Ending::Lost);
    assert!(first.told.is_empty());
    let mut world = World::new();
    world.call_as(PERMIT, &options(), Wait::Endless);
    let permit = world.acquire();
    let other = LockOptions { lease: SOON, ..options() };
    world.call_as(PERMIT, &other, Wait::Endless);
    world.reply(held());
    assert_eq!(world.end(&permit), Ending::Released { calls_wait: true });
}
