use super::*;
use crate::base::failure::FailureKind;
use crate::config::LockOptions;
use crate::protocol::call::tests::caller;
use crate::protocol::hold::NextStep;
use crate::protocol::name::tests::turn;
use crate::store::hold_id::HoldKind;
use crate::store::request::HoldReply;
use crossbeam_channel::TryRecvError;
use std::sync::Arc;

/// When the holds are acquired: some time after the first moment.
const NOW: Moment = Moment(1 << 50);
const LEASE: Duration = Duration::from_millis(200);
const KEEP: Duration = Duration::from_secs(5);

fn options() -> LockOptions {
    LockOptions { lease: LEASE, ..LockOptions::default() }
}

fn id() -> HoldId {
    HoldId { kind: HoldKind::Lock, name: Arc::from("x"), client: Arc::from("c"), nonce: 1 }
}

/// A reply with tokens for this many more holds.
fn grant(room: u32, sent: Moment) -> Grant {
    Grant { fence: 7, room, may_begin: false, sent, replied: NOW }
}

fn acquired(options: &LockOptions, sent: Moment) -> Tenure {
    Tenure::new(id(), &grant(0, sent), &caller(options))
}

fn next_step(tenure: &Tenure) -> NextStep {
    tenure.hold.next_step(tenure.is_renewed()).expect("not over")
}

/// Lets the deadline pass.
fn expire(tenure: &mut Tenure, now: Moment) -> bool {
    let cause = tenure.hold.cause_at_deadline(now);
    cause.is_some_and(|cause| tenure.lose(cause))
}

impl Tenure {
    pub(in crate::protocol) fn use_up_tokens(&mut self) {
        self.room = 0;
    }
}

fn at(now: Moment) -> Turn<()> {
    Turn { now, ..turn() }
}

/// Keeps the lock. Returns when the renewer handles it, if it would not have done so before.
fn keep(tenure: &mut Tenure) -> Option<Moment> {
    tenure.end_use(&mut at(NOW));
    let mut turn = at(NOW);
    tenure.keep(&mut turn);
    match turn.actions[..] {
        [] => None,
        [Action::Due { at, .. }] => Some(at),
        ref others => panic!("{others:?}"),
    }
}

fn held(tenure: &Tenure) -> Option<Duration> {
    let TenurePhase::Ending = tenure.phase else { return None };
    tenure.last.as_ref().map(|last| tenure.since.since(last.since))
}

#[test]
fn the_deadline_counts_from_the_request_and_leaves_room_for_drift() {
    let hold = acquired(&options(), NOW.before(LEASE / 4)).hold;
    let drift = LEASE / 100 + Duration::from_millis(2);
    assert_eq!(hold.remaining(NOW) + drift, LEASE * 3 / 4);
    assert_eq!(hold.remaining(NOW.after(LEASE / 4)) + drift, LEASE / 2);
}

#[test]
fn a_hold_is_held_from_the_reply_on_until_it_ends() {
    let mut tenure = acquired(&options(), NOW.before(LEASE / 4));
    assert!(tenure.end(NOW.after(LEASE / 4)));
    assert_eq!(held(&tenure), Some(LEASE / 4));
    assert!(!tenure.end(NOW.after(LEASE / 3)), "only once");
    assert_eq!(held(&tenure), Some(LEASE / 4));
}

#[test]
fn a_hold_that_ends_at_its_deadline_is_lost() {
    let tenure = || acquired(&options(), NOW);
    let deadline = NOW.after(tenure().hold.remaining(NOW));
    let mut late = tenure();
    assert!(!late.end(deadline) && !late.hold.is_ended());
    let mut in_time = tenure();
    assert!(in_time.end(deadline.before(Duration::from_nanos(1))) && in_time.hold.is_ended());
}

#[test]
fn a_lock_stays_taken_for_its_time_from_the_reply_on_unless_it_is_lost_or_no_caller_had_it() {
    let at_least = LockOptions { hold_at_least: Some(LEASE), ..options() };
    let held = || acquired(&at_least, NOW.before(LEASE / 4));
    let mut lost = held();
    assert_eq!(lost.hold.taken_until(), NOW.after(LEASE));
    assert!(lost.lose(LossCause::Gone));
    assert_eq!(lost.hold.taken_until(), Moment::FIRST);

    let mut unused = held();
    unused.hold.set_unused();
    assert_eq!(unused.hold.taken_until(), NOW.after(LEASE), "it may still pass to a caller");
    assert!(unused.end(NOW));
    assert_eq!(unused.hold.taken_until(), NOW.after(LEASE));
    unused.hold.set_unused();
    assert_eq!(unused.hold.taken_until(), Moment::FIRST);
    assert!(unused.hold.is_ended() && !unused.hold.is_open());
    assert!(!unused.hold.is_lost(NOW.after(LEASE * 2)));
}

#[test]
fn a_renewal_counts_from_its_request_and_never_shortens() {
    let long = LEASE * 50;
    let hold = acquired(&LockOptions { lease: long, ..options() }, NOW).hold;
    let later = NOW.after(LEASE / 4);
    let before = hold.remaining(NOW);
    hold.extend(NOW, long / 2, later);
    assert_eq!(hold.remaining(NOW), before, "not shortened");
    hold.extend(later, long, later);
    assert_eq!(hold.remaining(later), before);
}

#[test]
fn a_lost_lease_stays_lost() {
    let mut tenure = acquired(&options(), NOW);
    let hold = tenure.hold.clone();
    let later = NOW.after(LEASE);
    assert!(hold.is_valid(NOW) && !hold.is_valid(later));
    assert!(hold.is_lost(later), "by itself");
    hold.extend(later, LEASE, later);
    assert!(hold.remaining(later).is_zero(), "renewed too late");
    assert!(expire(&mut tenure, later), "it is the first to notice it");
    assert!(!expire(&mut tenure, later), "and no other");
    assert!(!tenure.end(later), "too late to end it");
    assert_eq!(hold.next_step(true), None);
}

#[test]
fn a_loss_has_its_cause_and_the_last_failure_of_a_renewal() {
    use LossCause::{Expired, Forced, Gone};
    let failure = Failure::late();
    let caller = caller(&options());
    let lost = |happen: fn(&mut Tenure, &Failure)| {
        let mut tenure = Tenure::new(id(), &grant(1, NOW), &caller);
        happen(&mut tenure, &failure);
        if tenure.hold.is_open() {
            tenure.begin_next(&caller, NOW);
        }
        expire(&mut tenure, NOW.after(LEASE));
        let Loss { cause, last_failure } = tenure.set_loss();
        assert_eq!(tenure.hold.loss(NOW.after(LEASE)).cause, cause, "its guards know it");
        (cause, last_failure.is_some())
    };
    assert_eq!(lost(|_, _| ()), (Expired, false));
    assert_eq!(lost(|tenure, failure| tenure.set_last_failure(Some(failure))), (Expired, true));
    let renewed = |tenure: &mut Tenure, failure: &Failure| {
        tenure.set_last_failure(Some(failure));
        tenure.set_last_failure(None);
    };
    assert_eq!(lost(renewed), (Expired, false));
    assert_eq!(lost(|tenure, _| assert!(tenure.lose(Gone))), (Gone, false));
    let forced = |tenure: &mut Tenure, _: &Failure| {
        tenure.set_forced();
        assert!(tenure.lose(Gone));
        tenure.set_taken("b".into());
    };
    assert_eq!(lost(forced), (Forced, false));
    let taken = |tenure: &mut Tenure, _: &Failure| {
        assert!(tenure.lose(Gone));
        tenure.set_taken("b".into());
    };
    assert_eq!(lost(taken), (LossCause::Taken { by: "b".into() }, false));
}

#[test]
fn a_lease_is_nearly_over_in_its_last_third() {
    let options = LockOptions { lease: LEASE * 100, ..options() };
    let acquired_ago = |part: u32| {
        acquired(&options, NOW.before(options.lease * part / 100)).hold.is_nearly_over(NOW)
    };
    assert_eq!([0, 60, 70, 98, 100].map(acquired_ago), [false, false, true, true, false]);
}

#[test]
fn a_lease_is_renewed_after_a_third() {
    let NextStep { due, renews: true } = next_step(&acquired(&options(), NOW)) else {
        panic!("not renewed")
    };
    assert!(due.since(NOW) <= LEASE / 3 && due.since(NOW) > LEASE / 4);
}

#[test]
fn a_lease_that_is_not_renewed_expires() {
    assert!(!next_step(&acquired(&LockOptions { renew: false, ..options() }, NOW)).renews);
}

#[test]
fn the_age_limit_cuts_the_first_lease_and_the_last() {
    let sent = NOW;
    let short = acquired(&LockOptions { max_hold: Some(LEASE / 2), ..options() }, sent);
    assert!(short.hold.remaining(NOW) < LEASE / 2);
    assert!(!next_step(&short).renews);

    let longer = acquired(&LockOptions { max_hold: Some(LEASE * 5 / 4), ..options() }, sent);
    assert!(next_step(&longer).renews);
    let later = sent.after(LEASE / 2);
    let next = longer.hold.next_lease(later);
    assert!(next.duration <= LEASE * 3 / 4 && next.whole == LEASE);
    longer.hold.extend(later, next.duration, later);
    let last = next_step(&longer);
    assert!(!last.renews && last.due <= sent.after(LEASE * 5 / 4));
}

#[test]
fn the_age_limit_counts_from_the_first_request() {
    let whole = Duration::from_secs(30);
    let limited = LockOptions { lease: whole, max_hold: Some(whole * 2), ..options() };
    let hold = acquired(&limited, NOW).hold;
    let later = NOW.after(whole / 2);
    assert_eq!((hold.age_left(NOW), hold.age_left(later)), (whole * 2, whole * 3 / 2));
}

fn keeping() -> LockOptions {
    LockOptions { keep: KEEP, lease: LEASE * 100, ..options() }
}

/// A tenure after whose holds the lock may be kept, with tokens for two more.
fn keepable(options: &LockOptions) -> Tenure {
    Tenure::new(id().that_may_be_kept(), &grant(2, NOW), &caller(options))
}

#[test]
fn a_lock_is_kept_unless_something_speaks_against_it() {
    assert!(keepable(&keeping()).can_be_kept(NOW));
    let not_kept = LockOptions { keep: Duration::ZERO, ..keeping() };
    assert!(!keepable(&not_kept).can_be_kept(NOW));
    assert!(!acquired(&keeping(), NOW).can_be_kept(NOW), "its id says so to servers");
    let grant = Grant { may_begin: true, ..grant(2, NOW) };
    let in_doubt = Tenure::new(id().that_may_be_kept(), &grant, &caller(&keeping()));
    assert!(!in_doubt.can_be_kept(NOW));
    let against: [fn(&mut Tenure); 3] = [
        |tenure| tenure.failing = true,
        Tenure::set_wanted,
        |tenure| assert!(tenure.lose(LossCause::Gone)),
    ];
    for (number, happen) in against.iter().enumerate() {
        let mut tenure = keepable(&keeping());
        assert!(!tenure.is_wanted());
        happen(&mut tenure);
        assert!(!tenure.can_be_kept(NOW), "{number}");
    }
}

#[test]
fn a_kept_lock_is_used_again_with_the_next_token() {
    let mut tenure = keepable(&keeping());
    let over = tenure.end_signal(None);
    keep(&mut tenure);
    assert_eq!(over.receiver().try_recv(), Err(TryRecvError::Disconnected));
    assert_eq!(over.was_lost(), Some(false));
    assert!(tenure.current().is_none() && !tenure.was_reused());
    tenure.begin_next(&caller(&keeping()), NOW);
    assert!(tenure.was_reused() && tenure.current().is_some());
    assert_eq!((tenure.hold.fence(), tenure.room), (8, 1));
}

#[test]
fn a_kept_lock_is_released_when_it_was_not_used_for_long() {
    let mut tenure = keepable(&LockOptions { keep: LEASE / 2, ..keeping() });
    keep(&mut tenure);
    let later = NOW.after(LEASE / 2);
    assert_eq!(tenure.kept_end(), Some(later));
    tenure.begin_next(&caller(&keeping()), later);
    assert_eq!(tenure.kept_end(), None, "it is used");
}

#[test]
fn one_time_is_scheduled_for_all_that_is_due() {
    let mut tenure = keepable(&keeping());
    let lease = tenure.hold.lease();
    let brief = tenure.schedule_first(&at(NOW));
    assert!(NOW < brief && brief < NOW.after(lease / 10));
    let mut turn = at(brief);
    assert!(tenure.is_due(brief));
    tenure.due(&mut turn);
    let renewal = next_step(&tenure).due;
    let [Action::Prepare, Action::Due { at: next, .. }] = turn.actions[..] else {
        panic!("{:?}", turn.actions)
    };
    assert_eq!(next, renewal);
    let kept_end = keep(&mut tenure).expect("it comes before the renewal");
    for _ in 0..3 {
        tenure.begin_next(&caller(&keeping()), NOW);
        assert_eq!(keep(&mut tenure), None, "in the time of keeping, it is handled once");
    }
    assert!(!tenure.is_due(renewal), "it is due before");
    assert!(tenure.is_due(kept_end) && !tenure.is_due(kept_end));
    assert!(tenure.lose(LossCause::Gone));
    let mut turn = at(kept_end);
    tenure.due(&mut turn);
    assert!(turn.actions.is_empty(), "it is over");
}

#[test]
fn a_renewal_is_repeated_before_the_deadline_until_it_succeeds() {
    let mut tenure = keepable(&keeping());
    let lease = tenure.hold.lease();
    let renewal = next_step(&tenure).due;
    let mut turn = at(renewal);
    tenure.due(&mut turn);
    assert!(matches!(turn.actions[..], [Action::Renew(_)]), "its reply schedules the next time");
    let failure = Failure::late();
    let mut turn = at(renewal);
    tenure.renewal_failed(&failure, &mut turn);
    assert!(
        matches!(turn.actions[..], [Action::Due { at, .. }] if at == renewal.after(lease / 20))
    );
    assert_eq!(turn.reports.len(), 1);
    let mut turn = at(renewal);
    tenure.renewal_failed(&failure, &mut turn);
    assert!(turn.actions.is_empty() && turn.reports.is_empty(), "both are known");
    tenure.scheduled = Moment::NEVER;
    let mut turn = at(renewal);
    tenure.renewed(renewal, lease, &mut turn);
    let next = next_step(&tenure).due;
    assert!(matches!(turn.actions[..], [Action::Due { at, .. }] if at == next));
}

#[test]
fn a_hold_that_is_over_does_not_become_wanted() {
    let mut tenure = keepable(&keeping());
    let first = tenure.wanted_signal();
    tenure.end_use(&mut at(NOW));
    tenure.begin_next(&caller(&keeping()), NOW);
    let second = tenure.wanted_signal();
    keep(&mut tenure);
    tenure.begin_next(&caller(&keeping()), NOW);
    let third = tenure.wanted_signal();
    tenure.set_wanted();
    let signals = [first, second, third, tenure.wanted_signal()];
    let is_wanted = signals.map(|signal| signal.is_wanted());
    assert_eq!(is_wanted, [false, false, true, true]);
}

#[test]
fn new_tokens_are_those_of_the_next_holds() {
    let mut tenure = keepable(&keeping());
    let caller = caller(&keeping());
    tenure.add_fences(20, 1);
    for fence in [20, 21] {
        assert!(tenure.may_be_followed_by(&caller, true, NOW));
        tenure.begin_next(&caller, NOW);
        assert_eq!(tenure.hold.fence(), fence);
    }
    assert!(!tenure.may_be_followed_by(&caller, true, NOW), "it has no token for one");
}

#[test]
fn a_tenure_lasts_from_the_reply_that_has_brought_it() {
    let options = LockOptions { lease: LEASE * 100, tenure: Some(LEASE * 30), ..options() };
    let caller = caller(&options);
    let far = Tenure::new(id(), &grant(2, NOW.before(LEASE * 40)), &caller);
    assert!(far.may_be_followed_by(&caller, true, NOW));
}

#[test]
fn a_tenure_ends_with_its_time_unless_the_lock_may_be_kept() {
    let over = LockOptions { tenure: Some(Duration::ZERO), ..keeping() };
    let mut tenure = keepable(&over);
    assert!(tenure.may_be_followed_by(&caller(&over), true, NOW));
    assert!(!tenure.may_be_followed_by(&caller(&over), false, NOW), "no client can ask for it");
    tenure.set_wanted();
    assert!(!tenure.may_be_followed_by(&caller(&over), true, NOW), "another client waits");
    let goes_on = LockOptions { tenure: Some(LEASE * 20), ..keeping() };
    assert!(tenure.may_be_followed_by(&caller(&goes_on), true, NOW));
    let not_kept = LockOptions { keep: Duration::ZERO, ..over };
    assert!(!keepable(&not_kept).may_be_followed_by(&caller(&not_kept), true, NOW));
}

#[test]
fn holds_of_a_tenure_have_the_same_terms() {
    let keeps = keeping();
    let tenure = keepable(&keeps);
    assert!(tenure.suits(&caller(&keeps), NOW));
    let others = [
        LockOptions { lease: LEASE, ..keeping() },
        LockOptions { renew: false, ..keeping() },
        LockOptions { max_hold: Some(LEASE), ..keeping() },
        LockOptions { hold_at_least: Some(LEASE), ..keeping() },
        LockOptions { keep: KEEP * 2, ..keeping() },
        LockOptions { note: Some("why".into()), ..keeping() },
    ];
    for other in &others {
        assert!(!tenure.suits(&caller(other), NOW), "{other:?}");
    }
    let not_kept = LockOptions { keep: Duration::ZERO, ..keeping() };
    assert!(keepable(&not_kept).suits(&caller(&keeps), NOW), "a thread that keeps it comes later");
    let not_renewed = LockOptions { renew: false, ..not_kept.clone() };
    assert!(!keepable(&not_kept).suits(&caller(&not_renewed), NOW));
    assert!(!keepable(&not_renewed).suits(&caller(&not_kept), NOW));
    let at_least = LockOptions { hold_at_least: Some(LEASE), ..not_kept };
    assert!(!keepable(&at_least).suits(&caller(&at_least), NOW), "each hold has its own");
    let in_doubt = Grant { may_begin: true, ..grant(2, NOW) };
    assert!(!Tenure::new(id(), &in_doubt, &caller(&keeps)).suits(&caller(&keeps), NOW));
}

#[test]
fn holds_share_a_signal_that_the_first_to_end_gives() {
    let signal = EndSignal::default();
    let [mut one, mut other] = [(); 2].map(|()| acquired(&options(), NOW));
    for tenure in [&mut one, &mut other] {
        tenure.end_signal(Some(&signal));
    }
    assert_eq!(signal.receiver().try_recv(), Err(TryRecvError::Empty));
    other.tell_watches(false);
    assert_eq!(signal.receiver().try_recv(), Err(TryRecvError::Disconnected));
    let later = EndSignal::default();
    assert!(one.lose(LossCause::Gone));
    one.end_signal(Some(&later));
    assert_eq!(later.was_lost(), Some(true));
}

#[test]
fn those_who_watch_an_ended_hold_learn_of_its_loss_after_they_were_told_that_it_is_over() {
    let mut tenure = acquired(&options(), NOW);
    let early = tenure.end_signal(None);
    assert!(tenure.end(NOW));
    assert_eq!(early.was_lost(), None, "its release is under way");
    tenure.tell_over();
    let late = tenure.end_signal(None);
    assert_eq!([early.was_lost(), late.was_lost()], [Some(false); 2]);
    tenure.tell_watches(true);
    assert_eq!([early.was_lost(), late.was_lost()], [Some(true); 2]);
}

#[test]
fn releases_are_counted_unless_they_had_no_effect() {
    let mut tenure = acquired(&options(), NOW);
    let hold = tenure.hold.clone();
    assert!(tenure.end(NOW));
    let failure = |kind| Failure::io(kind, &Arc::from("there"), std::io::Error::other("test"));
    hold.begin_release(None);
    drop(hold.release_outcome(Err(failure(FailureKind::Unreachable))));
    hold.begin_release(None);
    assert!(hold.release_outcome(Ok(HoldReply::Gone)).is_err(), "it was the only one");
    drop(hold.release_outcome(Err(failure(FailureKind::Timeout))));
    hold.begin_release(None);
    assert!(hold.release_outcome(Ok(HoldReply::Gone)).is_ok(), "an earlier one may have ended it");
}
