use super::*;
use crate::config::LockOptions;
use crate::protocol::call::tests::caller;
use crate::store::hold_id::HoldKind;
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

fn acquired(options: &LockOptions, sent: Moment) -> Hold {
    Hold::new(id(), 7, 0, &caller(options), sent, NOW)
}

fn next_step(hold: &Hold) -> NextStep {
    hold.next_step().expect("not over")
}

#[test]
fn the_deadline_counts_from_the_request_and_leaves_room_for_drift() {
    let hold = acquired(&options(), NOW.before(LEASE / 4));
    let drift = LEASE / 100 + Duration::from_millis(2);
    assert_eq!(hold.lease.remaining(NOW) + drift, LEASE * 3 / 4);
    assert_eq!(hold.lease.remaining(NOW.after(LEASE / 4)) + drift, LEASE / 2);
}

#[test]
fn a_hold_is_held_from_the_reply_on() {
    let hold = acquired(&options(), NOW.before(LEASE / 4));
    assert!(hold.end(NOW.after(LEASE / 4)));
    assert_eq!(hold.current.lock().held(NOW.after(LEASE)), LEASE / 4);
}

#[test]
fn a_lock_stays_taken_for_its_time_from_the_reply_on() {
    let at_least = LockOptions { hold_at_least: Some(LEASE), ..options() };
    assert_eq!(acquired(&at_least, NOW.before(LEASE / 4)).taken_until, NOW.after(LEASE));
}

#[test]
fn a_renewal_counts_from_its_request_and_never_shortens() {
    let long = LEASE * 50;
    let hold = acquired(&LockOptions { lease: long, ..options() }, NOW);
    let (later, before) = (NOW.after(LEASE / 4), hold.lease.remaining(NOW));
    hold.lease.extend(NOW, long / 2, later);
    assert_eq!(hold.lease.remaining(NOW), before, "not shortened");
    hold.lease.extend(later, long, later);
    assert_eq!(hold.lease.remaining(later), before);
}

#[test]
fn a_lost_lease_stays_lost() {
    let (hold, later) = (acquired(&options(), NOW), NOW.after(LEASE));
    assert!(hold.lease.is_valid(NOW) && !hold.lease.is_valid(later));
    hold.lease.extend(later, LEASE, later);
    assert!(hold.lease.remaining(later).is_zero(), "renewed too late");
    assert!(hold.expire(later), "the first to see it");
    assert!(!hold.expire(later), "and no other");
    assert!(!hold.end(later), "too late to end it");
    assert_eq!(hold.next_step(), None);
}

#[test]
fn a_loss_has_its_cause_and_the_last_failure_of_a_renewal() {
    use LossCause::{Expired, Forced, Gone};
    let (failure, caller) = (Failure::late(), caller(&options()));
    let lost = |happen: fn(&Hold, &Failure)| {
        let hold = Hold::new(id(), 7, 1, &caller, NOW, NOW);
        happen(&hold, &failure);
        hold.begin_next(&caller, NOW);
        hold.expire(NOW.after(LEASE));
        let Loss { cause, last_failure } = hold.loss(NOW.after(LEASE));
        (cause, last_failure.is_some())
    };
    assert_eq!(lost(|_, _| ()), (Expired, false));
    assert_eq!(lost(|hold, failure| hold.set_last_failure(Some(failure))), (Expired, true));
    let renewed = |hold: &Hold, failure: &Failure| {
        hold.set_last_failure(Some(failure));
        hold.set_last_failure(None);
    };
    assert_eq!(lost(renewed), (Expired, false));
    assert_eq!(lost(|hold, _| assert!(hold.lose())), (Gone, false));
    let forced = |hold: &Hold, _: &Failure| {
        hold.set_forced();
        assert!(hold.lose());
    };
    assert_eq!(lost(forced), (Forced, false));
}

#[test]
fn a_lease_is_nearly_over_in_its_last_third() {
    let options = LockOptions { lease: LEASE * 100, ..options() };
    let acquired_ago = |part: u32| {
        acquired(&options, NOW.before(options.lease * part / 100)).lease.is_nearly_over(NOW)
    };
    assert_eq!([0, 60, 70, 98, 100].map(acquired_ago), [false, false, true, true, false]);
}

#[test]
fn a_lease_is_lost_at_its_deadline_by_itself() {
    assert!(acquired(&options(), NOW).lease.is_lost(NOW.after(LEASE)));
}

#[test]
fn a_lease_is_renewed_after_a_third() {
    let hold = acquired(&options(), NOW);
    let NextStep { due, renews: true } = next_step(&hold) else { panic!("not renewed") };
    assert!(due.since(NOW) <= LEASE / 3 && due.since(NOW) > LEASE / 4);
}

#[test]
fn a_lease_that_is_not_renewed_expires() {
    let hold = acquired(&LockOptions { renew: false, ..options() }, NOW);
    assert!(!next_step(&hold).renews);
}

#[test]
fn the_age_limit_cuts_the_first_lease_and_the_last() {
    let sent = NOW;
    let short = acquired(&LockOptions { max_hold: Some(LEASE / 2), ..options() }, sent);
    assert!(short.lease.remaining(NOW) < LEASE / 2);
    assert!(!next_step(&short).renews);

    let longer = acquired(&LockOptions { max_hold: Some(LEASE * 5 / 4), ..options() }, sent);
    assert!(next_step(&longer).renews);
    let later = sent.after(LEASE / 2);
    let next = longer.lease.next(later);
    assert!(next.duration <= LEASE * 3 / 4 && next.whole == LEASE);
    longer.lease.extend(later, next.duration, later);
    let last = next_step(&longer);
    assert!(!last.renews && last.due <= sent.after(LEASE * 5 / 4));
}

fn keeping() -> LockOptions {
    LockOptions { keep: KEEP, lease: LEASE * 100, ..options() }
}

/// A hold after which the lock may be kept, with tokens for two more.
fn keepable(options: &LockOptions) -> Hold {
    Hold::new(id().that_may_be_kept(), 7, 2, &caller(options), NOW, NOW)
}

#[test]
fn a_lock_is_kept_unless_something_speaks_against_it() {
    assert!(keepable(&keeping()).can_be_kept(NOW));
    let not_kept = LockOptions { keep: Duration::ZERO, ..keeping() };
    assert!(!keepable(&not_kept).can_be_kept(NOW));
    assert!(!acquired(&keeping(), NOW).can_be_kept(NOW), "its id says so to servers");
    let against: [fn(&Hold); 4] = [
        |hold| assert!(!hold.set_failing(true)),
        Hold::set_wanted,
        |hold| hold.set_may_begin(true),
        |hold| assert!(hold.lease.lose()),
    ];
    for (number, happen) in against.iter().enumerate() {
        let hold = keepable(&keeping());
        assert!(!hold.is_wanted());
        happen(&hold);
        assert!(!hold.can_be_kept(NOW), "{number}");
    }
}

#[test]
fn a_kept_lock_is_used_again_with_the_next_token() {
    let hold = keepable(&keeping());
    let over = hold.over();
    hold.current.lock().reported = true;
    assert!(!hold.is_unused(NOW) && hold.keep(NOW));
    assert_eq!(over.try_recv(), Err(TryRecvError::Disconnected));
    assert!(!hold.current.lock().reported && !hold.was_reused());
    assert!(hold.begin_kept(&caller(&keeping()), NOW));
    assert!(hold.was_reused() && !hold.current.lock().kept);
    assert_eq!((hold.fence(), hold.current.lock().room), (8, 1));
    assert!(hold.lease.lose());
    assert!(!hold.keep(NOW) && !hold.begin_kept(&caller(&keeping()), NOW));
    assert_eq!(hold.fence(), 8);
}

#[test]
fn a_kept_lock_is_released_when_it_was_not_used_for_long() {
    let hold = keepable(&LockOptions { keep: LEASE / 2, ..keeping() });
    assert!(hold.keep(NOW) && !hold.is_unused(NOW));
    let later = NOW.after(LEASE / 2);
    assert!(hold.next_look().is_some_and(|look| look == later));
    assert!(hold.is_unused(later));
    assert!(hold.begin_kept(&caller(&keeping()), later) && !hold.is_unused(later), "it is used");
}

#[test]
fn only_a_lock_that_is_kept_is_looked_at_and_once_in_the_time_of_keeping() {
    let hold = keepable(&keeping());
    assert!(next_step(&hold).renews);
    assert_eq!((hold.begin_looks(), hold.next_look()), (None, None), "it is in use");
    assert!(hold.keep(NOW) && hold.begin_looks().is_some());
    for _ in 0..3 {
        assert!(hold.begin_kept(&caller(&keeping()), NOW) && hold.keep(NOW));
        assert_eq!(hold.begin_looks(), None, "it is looked at already");
    }
    assert!(hold.next_look().is_some() && next_step(&hold).renews);
    assert!(hold.begin_kept(&caller(&keeping()), NOW));
    assert_eq!(hold.next_look(), None, "it is in use");
    assert!(hold.keep(NOW) && hold.begin_looks().is_some());
    assert!(hold.lease.lose());
    assert_eq!(hold.next_look(), None);
}

#[test]
fn a_hold_that_is_over_does_not_become_wanted() {
    let hold = keepable(&keeping());
    let first = hold.wanted();
    hold.begin_next(&caller(&keeping()), NOW);
    let second = hold.wanted();
    assert!(hold.keep(NOW));
    assert!(hold.begin_kept(&caller(&keeping()), NOW));
    let third = hold.wanted();
    hold.set_wanted();
    let is_wanted = [first, second, third, hold.wanted()].map(|watch| watch.is_wanted());
    assert_eq!(is_wanted, [false, false, true, true]);
}

#[test]
fn new_tokens_are_those_of_the_next_holds() {
    let (hold, caller) = (keepable(&keeping()), caller(&keeping()));
    hold.add_fences(20, 1);
    for fence in [20, 21] {
        assert!(hold.may_be_followed_by(&caller, true, NOW));
        hold.begin_next(&caller, NOW);
        assert_eq!(hold.fence(), fence);
    }
    assert!(!hold.may_be_followed_by(&caller, true, NOW), "it has no token for one");
}

#[test]
fn a_tenure_lasts_from_the_reply_that_has_brought_it() {
    let (lease, tenure) = (LEASE * 100, Some(LEASE * 30));
    let caller = caller(&LockOptions { lease, tenure, ..options() });
    let far = Hold::new(id(), 7, 2, &caller, NOW.before(LEASE * 40), NOW);
    assert!(far.may_be_followed_by(&caller, true, NOW));
}

#[test]
fn a_tenure_ends_with_its_time_unless_the_lock_may_be_kept() {
    let over = LockOptions { tenure: Some(Duration::ZERO), ..keeping() };
    let hold = keepable(&over);
    assert!(hold.may_be_followed_by(&caller(&over), true, NOW));
    assert!(!hold.may_be_followed_by(&caller(&over), false, NOW), "none can ask for it");
    hold.set_wanted();
    assert!(!hold.may_be_followed_by(&caller(&over), true, NOW), "another client waits");
    let goes_on = LockOptions { tenure: Some(LEASE * 20), ..keeping() };
    assert!(hold.may_be_followed_by(&caller(&goes_on), true, NOW));
    let not_kept = LockOptions { keep: Duration::ZERO, ..over };
    assert!(!keepable(&not_kept).may_be_followed_by(&caller(&not_kept), true, NOW));
}

#[test]
fn holds_of_a_tenure_have_the_same_terms() {
    let (keeps, hold) = (keeping(), keepable(&keeping()));
    assert!(hold.suits(&caller(&keeps), NOW));
    let others = [
        LockOptions { lease: LEASE, ..keeping() },
        LockOptions { renew: false, ..keeping() },
        LockOptions { max_hold: Some(LEASE), ..keeping() },
        LockOptions { hold_at_least: Some(LEASE), ..keeping() },
        LockOptions { keep: KEEP * 2, ..keeping() },
        LockOptions { note: Some("why".into()), ..keeping() },
    ];
    for other in &others {
        assert!(!hold.suits(&caller(other), NOW), "{other:?}");
    }
    let not_kept = LockOptions { keep: Duration::ZERO, ..keeping() };
    assert!(keepable(&not_kept).suits(&caller(&keeps), NOW), "a thread that keeps it comes later");
    let not_renewed = LockOptions { renew: false, ..not_kept.clone() };
    assert!(!keepable(&not_kept).suits(&caller(&not_renewed), NOW));
    assert!(!keepable(&not_renewed).suits(&caller(&not_kept), NOW));
    let at_least = LockOptions { hold_at_least: Some(LEASE), ..not_kept };
    assert!(!keepable(&at_least).suits(&caller(&at_least), NOW), "each hold has its own");
    hold.set_may_begin(true);
    assert!(!hold.suits(&caller(&keeps), NOW));
}

#[test]
fn holds_share_a_channel_that_the_first_to_end_disconnects() {
    let channel = OverChannel::default();
    let [one, other] = [(); 2].map(|()| acquired(&options(), NOW));
    one.share_over(&channel);
    other.share_over(&channel);
    assert_eq!(channel.receiver.try_recv(), Err(TryRecvError::Empty));
    other.current.lock().disconnect();
    assert_eq!(channel.receiver.try_recv(), Err(TryRecvError::Disconnected));
    let later = OverChannel::default();
    assert!(one.lease.lose());
    one.share_over(&later);
    assert_eq!(later.receiver.try_recv(), Err(TryRecvError::Disconnected));
}

#[test]
fn a_hold_that_has_ended_was_held_for_as_long_as_it_lasted() {
    let hold = acquired(&options(), NOW);
    let [later, end, after] = [10, 5, 2].map(|part| NOW.after(LEASE / part));
    assert_eq!(hold.current.lock().held(later), LEASE / 10);
    assert!(hold.end(end));
    assert_eq!(hold.current.lock().held(after), LEASE / 5);
}
