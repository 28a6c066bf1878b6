//! Holds with several owners: the sides of a read-write lock and the permits of a semaphore.

use super::process::Server;
use super::*;
use crate::store::keys::{FENCE, Keys, QUEUE, companions};

use HoldKind::{Permit, Read, Write};

const SHORT: Duration = Duration::from_millis(600);

/// Makes a test module per store, from tests that need no second client, tests that do, and tests
/// that look into Redis or need clients without a listener.
macro_rules! stores {
    ($($alone:ident),+; $($several:ident),+; $($together:ident),+ $(,)?) => {
        mod in_memory {
            $(#[test] fn $alone() {
                super::in_virtual_time(|| super::$alone(&super::Memory::default()));
            })+
            $(#[test] fn $several() {
                super::in_virtual_time(|| super::$several(&super::MemoryServer::default()));
            })+
        }
        mod on_redis {
            $(#[test] fn $alone() { super::$alone(&super::single(&super::Server::redis())); })+
            $(#[test] fn $several() { super::$several(&super::Server::redis()); })+
            $(#[test] fn $together() { super::$together(&super::Server::redis()); })+
        }
        mod on_valkey {
            $(#[test] fn $alone() { super::$alone(&super::single(&super::Server::valkey())); })+
            $(#[test] fn $several() { super::$several(&super::Server::valkey()); })+
            $(#[test] fn $together() { super::$together(&super::Server::valkey()); })+
        }
    };
}

stores!(
    readers_are_together_and_a_writer_is_alone,
    no_more_permits_are_held_than_there_are,
    each_caller_judges_by_its_own_number_of_permits,
    a_hold_whose_time_is_over_holds_nothing,
    a_renewal_never_revives_a_hold,
    a_late_renewal_shortens_no_lease,
    a_repeat_finds_its_hold,
    one_request_brings_as_many_permits_as_there_are,
    a_repeat_finds_all_its_holds_and_begins_no_others,
    a_name_is_of_one_kind_while_it_is_held,
    readers_have_the_fence_of_the_last_writer;
    a_newcomer_waits_behind_a_writer,
    a_client_that_is_waited_behind_gets_one_permit_at_a_time,
    a_writer_that_leaves_lets_readers_in,
    neighbouring_readers_are_woken_together,
    a_release_wakes_as_many_clients_as_there_are_permits,
    a_client_that_has_stopped_costs_one_offer,
    an_unneeded_wake_up_is_passed_on,
    an_offer_is_left_to_the_thread_that_waits,
    a_client_whose_turn_it_is_finds_that_by_itself,
    a_try_leaves_the_offer_to_another_thread_of_its_client,
    an_offer_that_is_taken_back_adds_no_permit,
    a_permit_that_a_client_must_decline_is_offered_to_the_next,
    a_permit_is_offered_whatever_the_client_goes_by_that_leaves_it;
    a_writer_that_nobody_can_wake_goes_before_later_readers,
    a_client_that_is_gone_is_skipped,
    clients_without_a_listener_keep_their_places_for_two_seconds,
    a_place_that_no_client_has_given_itself_is_lost_after_two_seconds,
    a_place_of_a_clock_that_was_set_back_is_lost_at_once,
    a_client_behind_one_that_may_be_dead_is_told_when_to_look_again,
    a_client_behind_a_hundred_that_are_dead_has_its_turn,
    a_newcomer_goes_behind_a_writer_that_hundreds_of_readers_are_before,
    a_full_server_refuses_holds_and_renews_and_releases_them,
    a_refused_limit_leaves_no_key_without_a_time_to_live,
    the_data_of_others_stays_as_it_is,
    only_holds_are_removed_when_their_time_is_over,
    no_key_lives_longer_than_its_last_hold,
    a_server_that_refuses_to_publish_serves_those_who_ask,
);

fn of(kind: HoldKind, nonce: u64) -> HoldId {
    by("client", kind, nonce)
}

fn by(client: &str, kind: HoldKind, nonce: u64) -> HoldId {
    HoldId { kind, client: Arc::from(id(client)), ..hold(nonce) }
}

/// The id of the client with this label.
fn id(label: &str) -> String {
    format!("{label}{NUMBER}")
}

/// The end of every client's id.
const NUMBER: &str = ":0123456789abcdef0123456789abcdef";

fn ask(store: &dyn Store, hold: &HoldId, registration: Registration) -> AcquireReply {
    acquire(store, hold, registration).expect("a reply")
}

fn tries(store: &dyn Store, hold: &HoldId) -> bool {
    matches!(ask(store, hold, Registration::None), AcquireReply::Acquired { .. })
}

fn waits(store: &dyn Store, hold: &HoldId) {
    let reply = ask(store, hold, Registration::IfHeld);
    assert!(matches!(reply, AcquireReply::Held { .. }), "{reply:?}");
}

fn takes_its_turn(store: &dyn Store, hold: &HoldId) -> bool {
    matches!(ask(store, hold, Registration::Registered), AcquireReply::Acquired { .. })
}

fn release(store: &dyn Store, hold: &HoldId) {
    assert_eq!(super::release(store, hold).ok(), Some(HoldReply::Done));
}

fn briefly(store: &dyn Store, hold: &HoldId) {
    let deadline = soon();
    let request = Acquire {
        holds: std::slice::from_ref(hold),
        lease: SHORT,
        note: None,
        registration: Registration::None,
        echo: false,
        deadline,
    };
    let reply = store.acquire(request).expect("a reply");
    assert!(matches!(reply, AcquireReply::Acquired { .. }), "{reply:?}");
}

fn renew(store: &dyn Store, hold: &HoldId, lease: Duration) -> HoldReply {
    let outcomes =
        run_jobs(&mut *store.jobs(), &[(hold.clone(), Change::Renew { lease: lease.into() })]);
    *outcomes[0].as_ref().expect("an outcome")
}

fn keys() -> [String; 3] {
    let keys = Keys::new(&Config::default().prefix);
    let lock = keys.lock("lock").into_owned();
    let [fence, queue] = companions(&lock, [FENCE, QUEUE]);
    [lock, fence, queue]
}

/// Returns the kinds and labels of the clients in the queue.
fn queue(process: &impl Host) -> Vec<String> {
    process.waiting().into_iter().map(|client| client.replace(NUMBER, "")).collect()
}

fn listen(store: &dyn Store, client: &str) -> Box<dyn Wakeups> {
    let mut wakeups = messages(store, &id(client));
    assert_eq!(wakeups.next(soon()).expect("in time").expect("a message"), Wake::Ready);
    wakeups
}

fn is_woken(wakeups: &mut dyn Wakeups) -> bool {
    let wake = wakeups.next(soon());
    wake.is_some_and(|wake| matches!(wake, Ok(Wake::Lock(name)) if name == "lock"))
}

/// Returns `true` if the client is notified of an offer to the client in front of it, which may
/// have stopped.
fn is_told(wakeups: &mut dyn Wakeups) -> bool {
    is_woken(wakeups)
}

fn nothing_comes(wakeups: &mut dyn Wakeups) -> bool {
    wakeups.next(end_of(Duration::from_millis(20))).is_none()
}

fn readers_are_together_and_a_writer_is_alone(store: &dyn Store) {
    assert!(tries(store, &of(Read, 1)) && tries(store, &of(Read, 2)));
    assert!(!tries(store, &of(Write, 3)));
    release(store, &of(Read, 1));
    assert!(!tries(store, &of(Write, 3)));
    release(store, &of(Read, 2));
    assert!(tries(store, &of(Write, 3)));
    assert!(!tries(store, &of(Write, 4)) && !tries(store, &of(Read, 5)));
    release(store, &of(Write, 3));
    assert!(tries(store, &of(Read, 5)));
    assert_eq!(super::release(store, &of(Write, 3)).ok(), Some(HoldReply::Gone));
}

fn no_more_permits_are_held_than_there_are(store: &dyn Store) {
    let kind = Permit { of: 3 };
    assert_eq!(permits(store), Some(0));
    assert!((1..=3).all(|nonce| tries(store, &of(kind, nonce))));
    assert!(!tries(store, &of(kind, 4)));
    assert_eq!(permits(store), Some(3));
    release(store, &of(kind, 2));
    assert!(tries(store, &of(kind, 4)) && !tries(store, &of(kind, 5)));
}

fn each_caller_judges_by_its_own_number_of_permits(store: &dyn Store) {
    assert!((1..=4).all(|nonce| tries(store, &of(Permit { of: 5 }, nonce))));
    let fewer = Permit { of: 2 };
    for nonce in 1..=3 {
        assert!(!tries(store, &of(fewer, 9)));
        release(store, &of(fewer, nonce));
    }
    assert!(tries(store, &of(fewer, 9)));
    let three = of(Permit { of: 3 }, 10);
    assert!(tries(store, &three));
    let owner = three.owner();
    let owner = OwnerOf { kind: fewer, name: "lock", owner: owner.as_bytes() };
    assert_eq!(store.force_release(owner, soon()).ok(), Some(true));
}

fn a_hold_whose_time_is_over_holds_nothing(store: &dyn Store) {
    for (first, then) in [(Write, Read), (Read, Write)] {
        briefly(store, &of(first, 1));
        assert!(!tries(store, &of(Write, 2)));
        eventually(|| tries(store, &of(then, 2)));
        assert_eq!(super::release(store, &of(first, 1)).ok(), Some(HoldReply::Gone));
        release(store, &of(then, 2));
    }
    let kind = Permit { of: 1 };
    briefly(store, &of(kind, 1));
    eventually(|| tries(store, &of(kind, 2)));
    assert_eq!(permits(store), Some(1));
}

fn a_renewal_never_revives_a_hold(store: &dyn Store) {
    for kind in [Read, Write, Permit { of: 2 }] {
        briefly(store, &of(kind, 1));
        assert_eq!(renew(store, &of(kind, 1), SHORT * 2), HoldReply::Done);
        sleep(SHORT);
        assert_eq!(renew(store, &of(kind, 1), SHORT), HoldReply::Done);
        sleep(SHORT * 2);
        assert_eq!(renew(store, &of(kind, 1), LEASE), HoldReply::Gone);
        assert!(tries(store, &of(kind, 2)));
        release(store, &of(kind, 2));
        assert_eq!(renew(store, &of(kind, 2), LEASE), HoldReply::Gone);
    }
}

fn a_late_renewal_shortens_no_lease(store: &dyn Store) {
    for kind in [Read, Write, Permit { of: 2 }] {
        let holds = [of(kind, 1), of(kind, 2)];
        let several = matches!(kind, Permit { .. });
        let holds = if several { &holds[..] } else { &holds[..1] };
        acquire_each(store, holds, Registration::None);
        let rest = NextLease { duration: SHORT, whole: LEASE };
        let late = change(store, &holds[0], Change::Renew { lease: rest });
        assert_eq!(late.ok(), Some(HoldReply::Done));
        let (lease, registration, deadline) = (SHORT, Registration::None, soon());
        let again = store.acquire(Acquire {
            holds,
            lease,
            note: None,
            registration,
            echo: false,
            deadline,
        });
        assert!(matches!(again, Ok(AcquireReply::Acquired { .. })), "{again:?}");
        if kind == Write {
            for _ in 0..2 {
                let reader = of(Read, 1);
                let reply = change(store, &reader, Change::Downgrade { lease: rest, unused: None });
                assert_eq!(reply.ok(), Some(HoldReply::Done));
            }
        }
        let report = store.report("lock", Look::All, soon()).expect("a reply");
        assert_eq!(report.holds.len(), holds.len());
        for (_, holder) in report.holds {
            assert!(holder.remaining > LEASE / 2, "{kind:?}: {holder:?}");
        }
        for hold in holds {
            let kind = if kind == Write { Read } else { kind };
            release(store, &HoldId { kind, ..hold.clone() });
        }
    }
}

fn a_repeat_finds_its_hold(store: &dyn Store) {
    for kind in [Write, Read, Permit { of: 1 }] {
        let reply = ask(store, &of(kind, 1), Registration::None);
        assert!(matches!(reply, AcquireReply::Acquired { .. }));
        assert_eq!(ask(store, &of(kind, 1), Registration::Registered), reply);
        release(store, &of(kind, 1));
    }
}

/// Returns how many of these holds one request gets.
fn granted(store: &dyn Store, holds: &[HoldId], registration: Registration) -> usize {
    match store.acquire(Acquire {
        holds,
        lease: LEASE,
        note: None,
        registration,
        echo: false,
        deadline: soon(),
    }) {
        Ok(AcquireReply::Acquired { others, .. }) => 1 + others.len(),
        Ok(AcquireReply::Held { .. }) => 0,
        Err(failure) => panic!("{failure:?}"),
    }
}

fn some(client: &str, kind: HoldKind, nonces: &[u64]) -> Vec<HoldId> {
    nonces.iter().map(|nonce| by(client, kind, *nonce)).collect()
}

fn one_request_brings_as_many_permits_as_there_are(store: &dyn Store) {
    let ask =
        |kind, nonces: &[u64]| granted(store, &some("client", kind, nonces), Registration::IfHeld);
    let kind = Permit { of: 3 };
    assert!(tries(store, &of(kind, 9)));
    assert_eq!(ask(kind, &[1, 2, 3, 4]), 2);
    release(store, &of(kind, 1));
    assert_eq!(ask(Permit { of: 5 }, &[3, 4, 5, 6]), 3, "it goes by its own number of permits");
    assert_eq!(permits(store), Some(5));
    assert_eq!(ask(kind, &[7, 8, 10, 11]), 0);
    for nonce in [9, 2, 3, 4, 5] {
        release(store, &of(kind, nonce));
    }
}

fn acquire_each(store: &dyn Store, holds: &[HoldId], registration: Registration) -> AcquireReply {
    let request =
        Acquire { holds, lease: LEASE, note: None, registration, echo: false, deadline: soon() };
    store.acquire(request).expect("a reply")
}

fn a_repeat_finds_all_its_holds_and_begins_no_others(store: &dyn Store) {
    let ask = |nonces: &[u64]| {
        granted(store, &some("client", Permit { of: 3 }, nonces), Registration::IfHeld)
    };
    assert_eq!(ask(&[1, 2]), 2);
    assert_eq!(ask(&[1, 2]), 2);
    assert_eq!(ask(&[1, 2, 3]), 2, "there is room, but a later client asks again");
    assert_eq!(ask(&[1, 3, 2]), 1, "in their order");
    assert_eq!(ask(&[4, 1, 2]), 3);
}

fn a_client_that_is_waited_behind_gets_one_permit_at_a_time(process: &impl Host) {
    let (store, kind) = (single(process), Permit { of: 3 });
    let [mut many, mut other] = ["many", "other"].map(|client| listen(&store, client));
    let ask =
        |nonces: &[u64]| granted(&store, &some("many", kind, nonces), Registration::Registered);
    for nonce in 1..=3 {
        assert!(tries(&store, &of(kind, nonce)));
    }
    waits(&store, &by("many", kind, 1));
    waits(&store, &by("other", kind, 1));
    release(&store, &of(kind, 1));
    assert!(is_woken(&mut *many) && is_told(&mut *other));
    assert_eq!(ask(&[1, 2]), 1, "an offer is one permit");
    assert_eq!(ask(&[2, 3]), 0);
    assert_eq!(queue(process), ["p:other", "p:many"]);
    release(&store, &of(kind, 2));
    assert!(is_woken(&mut *other) && takes_its_turn(&store, &by("other", kind, 1)));
    release(&store, &of(kind, 3));
    assert!(is_woken(&mut *many));
    release(&store, &by("many", kind, 1));
    assert_eq!(ask(&[2, 3]), 2, "no thread waits behind it");
    assert_eq!(queue(process), [""; 0]);
}

fn a_name_is_of_one_kind_while_it_is_held(store: &dyn Store) {
    let kinds = [HoldKind::Lock, Read, Permit { of: 2 }];
    for (one, kind) in kinds.into_iter().enumerate() {
        assert!(tries(store, &of(kind, 1)));
        for (_, other) in kinds.into_iter().enumerate().filter(|(other, _)| *other != one) {
            for registration in [Registration::None, Registration::IfHeld] {
                let reply = acquire(store, &of(other, 2), registration);
                let failure = reply.expect_err("another kind");
                assert_eq!(failure.kind, FailureKind::WrongType, "{kind:?}, {other:?}");
            }
        }
        release(store, &of(kind, 1));
    }
}

fn readers_have_the_fence_of_the_last_writer(store: &dyn Store) {
    let fence = |kind, nonce| match ask(store, &of(kind, nonce), Registration::None) {
        AcquireReply::Acquired { fence, .. } => fence,
        reply @ AcquireReply::Held { .. } => panic!("{reply:?}"),
    };
    let first = fence(Read, 1);
    assert_eq!(fence(Read, 2), first);
    release(store, &of(Read, 1));
    release(store, &of(Read, 2));
    let written = fence(Write, 3);
    assert!(written > first);
    release(store, &of(Write, 3));
    assert_eq!(fence(Read, 4), written);
    release(store, &of(Read, 4));
    assert!(fence(Write, 5) > written);
}

fn a_newcomer_waits_behind_a_writer(process: &impl Host) {
    let store = single(process);
    let _listeners = ["writer", "c"].map(|client| listen(&store, client));
    assert!(tries(&store, &by("a", Read, 1)));
    waits(&store, &by("writer", Write, 1));
    assert!(!tries(&store, &by("b", Read, 1)), "a writer waits");
    waits(&store, &by("c", Read, 1));
    assert_eq!(queue(process), ["w:writer", "r:c"]);
    release(&store, &by("a", Read, 1));
    assert!(!tries(&store, &by("b", Read, 1)), "it is offered to the writer");
    assert!(takes_its_turn(&store, &by("writer", Write, 1)));
    assert_eq!(queue(process), ["r:c"]);
}

/// Its listener has only just started, or it cannot have one. A dead one does not block readers for
/// long.
fn a_writer_that_nobody_can_wake_goes_before_later_readers(process: &Server) {
    let store = single(process);
    assert!(tries(&store, &by("a", Read, 1)));
    waits(&store, &by("writer", Write, 1));
    let came = |millis_later| {
        process.command(&["ZINCRBY", &keys()[2], millis_later, &id("w:writer")]);
    };
    let is_kept = || {
        assert!(!takes_its_turn(&store, &by("writer", Write, 1)));
        assert_eq!(queue(process), ["w:writer"]);
    };
    // However slow this test is.
    came("60000");
    is_kept();
    assert!(!tries(&store, &by("b", Read, 1)));
    came("-120000");
    is_kept();
    assert!(tries(&store, &by("b", Read, 1)));
    assert_eq!(queue(process), [""; 0]);
}

fn a_writer_that_leaves_lets_readers_in(process: &impl Host) {
    let store = single(process);
    let (_writer, mut reader) = (listen(&store, "writer"), listen(&store, "reader"));
    assert!(tries(&store, &by("a", Read, 1)));
    waits(&store, &by("writer", Write, 1));
    waits(&store, &by("reader", Read, 1));
    leaves(&store, "writer");
    assert!(is_woken(&mut *reader));
    assert!(takes_its_turn(&store, &by("reader", Read, 1)));
    assert!(tries(&store, &by("b", Read, 1)));
}

fn neighbouring_readers_are_woken_together(process: &impl Host) {
    let store = single(process);
    let [mut a, mut b, mut c, mut d] = ["a", "b", "c", "d"].map(|client| listen(&store, client));
    assert!(tries(&store, &of(Write, 1)));
    for (client, kind) in [("a", Read), ("b", Read), ("c", Write), ("d", Read)] {
        waits(&store, &by(client, kind, 1));
    }
    release(&store, &of(Write, 1));
    assert!(is_woken(&mut *a) && takes_its_turn(&store, &by("a", Read, 1)));
    assert!(is_woken(&mut *b) && takes_its_turn(&store, &by("b", Read, 1)));
    assert!(is_told(&mut *c) && nothing_comes(&mut *c) && nothing_comes(&mut *d));
    release(&store, &by("a", Read, 1));
    assert!(nothing_comes(&mut *c), "another reader holds it");
    release(&store, &by("b", Read, 1));
    assert!(is_woken(&mut *c) && takes_its_turn(&store, &by("c", Write, 1)));
    assert!(is_told(&mut *d) && nothing_comes(&mut *d));
    release(&store, &by("c", Write, 1));
    assert!(is_woken(&mut *d) && takes_its_turn(&store, &by("d", Read, 1)));
    assert!(nothing_comes(&mut *a));
}

fn a_release_wakes_as_many_clients_as_there_are_permits(process: &impl Host) {
    let (store, kind) = (single(process), Permit { of: 2 });
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|client| listen(&store, client));
    assert!(tries(&store, &of(kind, 1)) && tries(&store, &of(kind, 2)));
    for client in ["a", "b", "c"] {
        waits(&store, &by(client, kind, 1));
    }
    release(&store, &of(kind, 1));
    assert!(!tries(&store, &of(kind, 3)), "it is offered");
    assert!(is_woken(&mut *a) && takes_its_turn(&store, &by("a", kind, 1)));
    assert!(is_told(&mut *b) && nothing_comes(&mut *b) && nothing_comes(&mut *c));
    release(&store, &of(kind, 2));
    assert!(is_woken(&mut *b) && takes_its_turn(&store, &by("b", kind, 1)));
    assert!(is_told(&mut *c) && !takes_its_turn(&store, &by("c", kind, 1)));
    assert!(nothing_comes(&mut *c));
}

fn a_client_that_is_gone_is_skipped(process: &Server) {
    let store = single(process);
    for (mine, wanted) in [(Write, Read), (Read, Write), (Permit { of: 1 }, Permit { of: 1 })] {
        let mut alive = listen(&store, "alive");
        assert!(tries(&store, &of(mine, 1)));
        waits(&store, &by("dead", if mine == Read { Write } else { wanted }, 1));
        waits(&store, &by("alive", wanted, 1));
        release(&store, &of(mine, 1));
        assert!(is_woken(&mut *alive), "{mine:?}");
        assert!(takes_its_turn(&store, &by("alive", wanted, 1)));
        release(&store, &by("alive", wanted, 1));
        // Without a release in between, a newcomer finds this out.
        assert!(tries(&store, &of(mine, 2)));
        waits(&store, &by("dead", if mine == Read { Write } else { wanted }, 1));
        process.command(&["DEL", &keys()[0]]);
        assert!(!tries(&store, &of(wanted, 3)), "{mine:?}: it may be about to listen");
        eventually(|| tries(&store, &of(wanted, 3)));
        assert_eq!(queue(process), [""; 0]);
        release(&store, &of(wanted, 3));
    }
}

fn a_client_that_has_stopped_costs_one_offer(process: &impl Host) {
    let store = single(process);
    let _stopped = listen(&store, "stopped");
    let mut alive = listen(&store, "alive");
    assert!(tries(&store, &of(Read, 1)));
    waits(&store, &by("stopped", Write, 1));
    waits(&store, &by("alive", Write, 1));
    release(&store, &of(Read, 1));
    assert!(is_told(&mut *alive));
    let reply = ask(&store, &by("alive", Write, 1), Registration::Registered);
    let AcquireReply::Held { remaining: Some(left), .. } = reply else { panic!("{reply:?}") };
    assert!(left <= Duration::from_millis(200), "it learns when the offer is over: {left:?}");
    sleep(left);
    eventually(|| takes_its_turn(&store, &by("alive", Write, 1)));
    assert_eq!(queue(process), [""; 0]);
    release(&store, &by("alive", Write, 1));
    assert!(nothing_comes(&mut *alive));
    assert!(takes_its_turn(&store, &by("alive", Write, 2)));
}

/// As after a restart, none of them listens yet.
fn clients_without_a_listener_keep_their_places_for_two_seconds(process: &Server) {
    let (store, permit) = (single(process), Permit { of: 1 });
    let places = ["a", "b", "c", "d"];
    for (held, wanted, prefix) in [(Read, Write, "w:"), (Write, Read, "r:"), (permit, permit, "p:")]
    {
        let clients = places.map(|client| format!("{prefix}{client}"));
        assert!(tries(&store, &of(held, 1)));
        for (number, client) in clients.iter().enumerate() {
            process.command(&["ZADD", &keys()[2], &(number + 1).to_string(), &id(client)]);
        }
        process.command(&["PEXPIRE", &keys()[2], "60000"]);
        release(&store, &of(held, 1));
        assert_eq!(queue(process), clients);
        let reply = ask(&store, &by("d", wanted, 1), Registration::Registered);
        let AcquireReply::Held { remaining: Some(left), .. } = reply else { panic!("{reply:?}") };
        assert!(left <= Duration::from_millis(2100), "{left:?}");
        assert!(!tries(&store, &of(held, 2)) && !tries(&store, &of(wanted, 2)));
        assert_eq!(queue(process), clients, "requests and new clients do not change that");
        assert_eq!(process.ask::<i64>(&["EXISTS", &keys()[0]]), 0, "no client has an offer");

        assert!(takes_its_turn(&store, &by("a", wanted, 1)), "{wanted:?}");
        // Another client listens, but goes behind those that were found without a listener.
        let mut wakeups = listen(&store, "c");
        release(&store, &by("a", wanted, 1));
        assert!(is_told(&mut *wakeups));
        let reply = ask(&store, &by("c", wanted, 1), Registration::Registered);
        assert!(matches!(reply, AcquireReply::Held { remaining: Some(_), .. }), "{reply:?}");
        assert_eq!(queue(process), clients[1..]);
        eventually(|| takes_its_turn(&store, &by("c", wanted, 1)));
        assert_eq!(queue(process), [""; 0], "two seconds later");
        release(&store, &by("c", wanted, 1));
        drop(wakeups);
        let channel = Keys::channel(&id("c"));
        eventually(|| process.ask::<i64>(&["PUBLISH", &channel, "x"]) == 0);
    }
}

fn a_place_of_a_clock_that_was_set_back_is_lost_at_once(process: &Server) {
    let (store, permit) = (single(process), Permit { of: 1 });
    let [seconds, _]: [f64; 2] = process.ask(&["TIME"]);
    let ahead = (seconds + 3600.0) * 1000.0;
    for (dead, wanted) in [("w:dead", Read), ("r:dead", Write), ("p:dead", permit)] {
        // It was found without a listener at that time.
        process.command(&["ZADD", &keys()[2], &(ahead - 1e13).to_string(), &id(dead)]);
        process.command(&["PEXPIRE", &keys()[2], "60000"]);
        assert!(tries(&store, &of(wanted, 1)), "{dead}");
        assert_eq!(queue(process), [""; 0]);
        release(&store, &of(wanted, 1));
    }
    // It came at that time.
    assert!(tries(&store, &of(Read, 1)));
    process.command(&["ZADD", &keys()[2], &ahead.to_string(), &id("w:dead")]);
    eventually(|| tries(&store, &of(Read, 2)));
}

fn a_client_behind_one_that_may_be_dead_is_told_when_to_look_again(process: &Server) {
    let store = single(process);
    for (held, dead, wanted) in
        [(Read, Write, Read), (Permit { of: 1 }, Permit { of: 1 }, Permit { of: 1 })]
    {
        assert!(tries(&store, &of(held, 1)));
        waits(&store, &by("dead", dead, 1));
        let reply = ask(&store, &by("alive", wanted, 1), Registration::IfHeld);
        let AcquireReply::Held { remaining: Some(left), .. } = reply else { panic!("{reply:?}") };
        assert!(left <= Duration::from_secs(2), "{held:?}: {left:?}");
        if held == Read {
            eventually(|| takes_its_turn(&store, &by("alive", wanted, 1)));
            release(&store, &by("alive", wanted, 1));
        }
        release(&store, &of(held, 1));
        process.command(&["DEL", &keys()[2]]);
    }
}

fn a_client_behind_a_hundred_that_are_dead_has_its_turn(process: &Server) {
    let (store, permit) = (single(process), Permit { of: 1 });
    let mut wakeups = listen(&store, "alive");
    for (held, wanted, prefix) in
        [(Write, Write, "w:"), (Write, Read, "r:"), (permit, permit, "p:")]
    {
        assert!(tries(&store, &of(held, 1)));
        let mut dead = redis::cmd("ZADD");
        dead.arg(&keys()[2]);
        for number in 1..300 {
            dead.arg(number).arg(id(&format!("{prefix}{number}")));
        }
        dead.exec(&mut process.connect()).expect("a reply");
        let [seconds, _]: [u64; 2] = process.ask(&["TIME"]);
        let now = (seconds * 1000).to_string();
        process.command(&["ZADD", &keys()[2], &now, &id(&format!("{prefix}alive"))]);
        process.command(&["PEXPIRE", &keys()[2], "60000"]);
        release(&store, &of(held, 1));
        assert!(is_woken(&mut *wakeups), "{wanted:?}");
        assert!(takes_its_turn(&store, &by("alive", wanted, 1)), "{wanted:?}");
        release(&store, &by("alive", wanted, 1));
        assert_eq!(queue(process), [""; 0]);
    }
}

/// A script serves a hundred of them at most.
fn a_newcomer_goes_behind_a_writer_that_hundreds_of_readers_are_before(process: &Server) {
    let store = single(process);
    let mut connection = process.connect();
    let mut listening = connection.as_pubsub();
    let readers: Vec<_> = (0..350).map(|number| id(&format!("{number}"))).collect();
    let channels: Vec<_> = readers.iter().map(|client| Keys::channel(client)).collect();
    listening.subscribe(&channels).expect("it is accepted");
    let _writer = listen(&store, "writer");
    assert!(tries(&store, &by("holder", Write, 1)));
    let mut join = redis::cmd("ZADD");
    join.arg(&keys()[2]);
    for (number, client) in readers.iter().enumerate() {
        join.arg(number + 1).arg(format!("r:{client}"));
    }
    join.exec(&mut process.connect()).expect("a reply");
    waits(&store, &by("writer", Write, 1));
    release(&store, &by("holder", Write, 1));
    for _ in 0..4 {
        assert!(!tries(&store, &by("newcomer", Read, 1)));
    }
    assert_eq!(queue(process), ["w:writer"]);
}

fn a_place_that_no_client_has_given_itself_is_lost_after_two_seconds(process: &Server) {
    let (store, permit) = (single(process), Permit { of: 1 });
    for (odd, wanted) in [("w:odd", Read), ("r:odd", Write), ("p:odd", permit)] {
        process.command(&["ZADD", &keys()[2], "-5", &id(odd)]);
        process.command(&["PEXPIRE", &keys()[2], "60000"]);
        assert!(!tries(&store, &of(wanted, 1)), "{odd}");
        eventually(|| tries(&store, &of(wanted, 1)));
        assert_eq!(queue(process), [""; 0]);
        release(&store, &of(wanted, 1));
    }
}

/// The client stops waiting, whatever the kind.
fn leaves(store: &dyn Store, client: &str) {
    change(store, &by(client, HoldKind::Lock, 0), Change::Unregister).expect("a reply");
}

fn an_unneeded_wake_up_is_passed_on(process: &impl Host) {
    let store = single(process);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|client| listen(&store, client));
    let permit = Permit { of: 1 };
    let rounds = [
        (Write, [Read, Write, Read]),
        (Read, [Write, Write, Read]),
        (permit, [permit, permit, permit]),
    ];
    for (held, wanted) in rounds {
        assert!(tries(&store, &of(held, 1)));
        for (client, kind) in ["a", "b", "c"].into_iter().zip(wanted) {
            waits(&store, &by(client, kind, 1));
        }
        release(&store, &of(held, 1));
        assert!(is_woken(&mut *a), "{held:?}");
        assert!(is_told(&mut *b), "{held:?}");
        leaves(&store, "a");
        assert!(is_woken(&mut *b) && is_told(&mut *c), "{held:?}");
        let (second, third) = (by("b", wanted[1], 1), by("c", wanted[2], 1));
        assert!(takes_its_turn(&store, &second));
        // A client keeps what it holds, but loses its place in the queue.
        leaves(&store, "b");
        leaves(&store, "c");
        assert_eq!(queue(process), [""; 0]);
        waits(&store, &third);
        release(&store, &second);
        assert!(is_woken(&mut *c), "{held:?}");
        assert!(takes_its_turn(&store, &third));
        release(&store, &third);
        assert!([&mut a, &mut b, &mut c].into_iter().all(|client| nothing_comes(&mut **client)));
    }
}

/// Such a thread may first have to be notified, because its turn came without a message.
fn an_offer_is_left_to_the_thread_that_waits(process: &impl Host) {
    let store = single(process);
    let permit = Permit { of: 1 };
    for (held, wanted, last) in
        [(Write, Read, Write), (Read, Write, Write), (permit, permit, permit)]
    {
        let [mut waiting, mut behind] = ["a", "b"].map(|client| listen(&store, client));
        for told in [true, false] {
            assert!(tries(&store, &of(held, 1)));
            waits(&store, &by("a", wanted, 1));
            waits(&store, &by("b", last, 1));
            if told {
                release(&store, &of(held, 1));
                assert!(is_woken(&mut *waiting), "{held:?}");
            } else {
                process.clear();
            }
            assert!(!tries(&store, &by("a", wanted, 2)), "{held:?}");
            assert!(!tries(&store, &of(wanted, 2)), "{held:?}");
            assert!(told || is_woken(&mut *waiting), "{held:?}");
            assert!(takes_its_turn(&store, &by("a", wanted, 1)), "{held:?}");
            assert_eq!(queue(process).len(), 1);
            release(&store, &by("a", wanted, 1));
            assert!(is_woken(&mut *behind) && takes_its_turn(&store, &by("b", last, 1)));
            release(&store, &by("b", last, 1));
        }
    }
}

fn a_client_whose_turn_it_is_finds_that_by_itself(process: &impl Host) {
    let store = single(process);
    let permit = Permit { of: 1 };
    for (held, wanted) in [(Write, Write), (permit, permit)] {
        let _listening = ["a", "b"].map(|client| listen(&store, client));
        assert!(tries(&store, &of(held, 1)));
        waits(&store, &by("a", wanted, 1));
        waits(&store, &by("b", wanted, 1));
        process.clear();
        assert!(takes_its_turn(&store, &by("a", wanted, 1)), "{held:?}");
        assert_eq!(queue(process).len(), 1);
        leaves(&store, "b");
        release(&store, &by("a", wanted, 1));
    }
}

fn a_try_leaves_the_offer_to_another_thread_of_its_client(process: &impl Host) {
    let (store, two) = (single(process), Permit { of: 2 });
    let mut waiting = listen(&store, "a");
    assert!((1..=2).all(|nonce| tries(&store, &of(two, nonce))));
    waits(&store, &by("a", two, 1));
    release(&store, &of(two, 1));
    assert!(is_woken(&mut *waiting) && tries(&store, &by("a", Permit { of: 3 }, 2)));
    assert_eq!(permits(&store), Some(3));
}

fn an_offer_that_is_taken_back_adds_no_permit(process: &impl Host) {
    let (store, kind) = (single(process), Permit { of: 2 });
    let names = ["a", "b", "c", "d", "e"];
    let mut clients = names.map(|client| listen(&store, client));
    assert!(tries(&store, &of(kind, 1)) && tries(&store, &of(kind, 2)));
    for client in names {
        waits(&store, &by(client, kind, 1));
    }
    release(&store, &of(kind, 1));
    assert!(is_woken(&mut *clients[0]) && is_told(&mut *clients[1]));
    leaves(&store, "a");
    assert!(is_woken(&mut *clients[1]) && is_told(&mut *clients[2]));
    assert!(nothing_comes(&mut *clients[2]));
    // When this offer is over, the client can no longer give the place away.
    eventually(|| permits(&store) == Some(1));
    release(&store, &of(kind, 2));
    assert!(is_woken(&mut *clients[2]) && is_woken(&mut *clients[3]));
    assert!(is_told(&mut *clients[4]));
    leaves(&store, "b");
    assert!(nothing_comes(&mut *clients[4]));
}

/// Clients that assume fewer permits than the one that has released must decline what they are
/// offered.
fn a_permit_that_a_client_must_decline_is_offered_to_the_next(process: &impl Host) {
    let store = single(process);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|client| listen(&store, client));
    let (one, three) = (Permit { of: 1 }, Permit { of: 3 });
    assert!((1..=3).all(|nonce| tries(&store, &of(three, nonce))));
    for (client, kind) in [("a", one), ("b", one), ("c", three)] {
        waits(&store, &by(client, kind, 1));
    }
    release(&store, &of(three, 1));
    let declines = |wakeups: &mut dyn Wakeups, client| {
        is_woken(wakeups) && !takes_its_turn(&store, &by(client, one, 1))
    };
    assert!(declines(&mut *a, "a") && is_told(&mut *b) && declines(&mut *b, "b"));
    assert!(is_told(&mut *c) && is_woken(&mut *c));
    assert!(takes_its_turn(&store, &by("c", three, 1)));

    // Those that must decline do not keep offering a place to each other.
    release(&store, &by("c", three, 1));
    for client in ["a", "b"] {
        assert!(!takes_its_turn(&store, &by(client, one, 1)));
    }
    assert_eq!(queue(process), ["p:a", "p:b"]);
    release(&store, &of(three, 2));
    assert!(declines(&mut *a, "a") && declines(&mut *b, "b") && declines(&mut *a, "a"));
    assert!(nothing_comes(&mut *a) && nothing_comes(&mut *b));
    assert_eq!(permits(&store), Some(1));

    release(&store, &of(three, 3));
    assert!(is_woken(&mut *a) && takes_its_turn(&store, &by("a", one, 1)));
    assert!(!takes_its_turn(&store, &by("b", one, 1)));
    release(&store, &by("a", one, 1));
    assert!(is_woken(&mut *b) && takes_its_turn(&store, &by("b", one, 1)));
}

/// Others may already hold as many as it assumes, or more.
fn a_permit_is_offered_whatever_the_client_goes_by_that_leaves_it(process: &impl Host) {
    let store = single(process);
    let [mut few, mut many] = ["few", "many"].map(|client| listen(&store, client));
    let (one, three) = (Permit { of: 1 }, Permit { of: 3 });
    assert!(tries(&store, &of(one, 1)));
    assert!((2..=3).all(|nonce| tries(&store, &of(three, nonce))));
    waits(&store, &by("many", three, 1));
    release(&store, &of(one, 1));
    assert!(is_woken(&mut *many) && takes_its_turn(&store, &by("many", three, 1)));

    waits(&store, &by("few", one, 2));
    waits(&store, &by("many", three, 3));
    release(&store, &of(three, 2));
    assert!(is_woken(&mut *few) && is_told(&mut *many));
    leaves(&store, "few");
    assert!(is_woken(&mut *many) && takes_its_turn(&store, &by("many", three, 3)));
    // A place that was not offered is not given away.
    waits(&store, &by("few", one, 4));
    waits(&store, &by("many", three, 5));
    leaves(&store, "few");
    assert!(nothing_comes(&mut *many));
}

fn a_full_server_refuses_holds_and_renews_and_releases_them(process: &Server) {
    let store = single(process);
    for kind in [Read, Write, Permit { of: 9 }] {
        process.command(&["CONFIG", "SET", "maxmemory", "0"]);
        assert!(tries(&store, &of(kind, 1)));
        process.command(&["CONFIG", "SET", "maxmemory", "1"]);
        if kind != Write {
            let failure = acquire(&store, &of(kind, 2), Registration::None).expect_err("no memory");
            assert_eq!(failure.code, "OOM");
        }
        assert_eq!(renew(&store, &of(kind, 1), LEASE), HoldReply::Done);
        release(&store, &of(kind, 1));
        let failure = acquire(&store, &of(kind, 2), Registration::IfHeld).expect_err("no memory");
        assert_eq!(failure.code, "OOM");
        assert_eq!(process.ask::<i64>(&["EXISTS", &keys()[0]]), 0);
    }
}

fn a_refused_limit_leaves_no_key_without_a_time_to_live(process: &Server) {
    let rules = ["on", ">pw", "~*", "&*", "+@all", "-pexpireat"];
    process.command(&[&["ACL", "SETUSER", "limited"], &rules[..]].concat());
    let url = process.url().replace("redis://", "redis://limited:pw@");
    let store = single_at(&url, &Config::default());
    for kind in [Read, Write, Permit { of: 1 }] {
        let failure = acquire(&store, &of(kind, 1), Registration::IfHeld).expect_err("no right");
        assert_eq!(failure.kind, FailureKind::Rejected);
        assert_eq!(process.ask::<i64>(&["EXISTS", &keys()[0]]), 0);
    }
}

fn the_data_of_others_stays_as_it_is(process: &Server) {
    let store = single(process);
    let [key, ..] = keys();
    let hold = format!("{}:1", id("r:client"));
    let others: [&[&str]; 9] = [
        &["SET", &key, "x"],
        &["HSET", &key, "client:1", "1"],
        &["ZADD", &key, "1", &hold],
        &["ZADD", &key, "1", "score of a player"],
        &["ZADD", &key, "1", "p:post:42"],
        &["ZADD", &key, "1", "r:ab:1", "2", "hello"],
        &["ZADD", &key, "1", &hold, "2", "hello"],
        &["ZADD", &key, "1", &hold["r:".len()..]],
        &["SADD", &key, &hold],
    ];
    for (round, command) in others.iter().enumerate() {
        process.command(command);
        if round != 2 {
            process.command(&["PEXPIRE", &key, "60000"]);
        }
        let dump: Vec<u8> = process.ask(&["DUMP", &key]);
        for kind in [Read, Write, Permit { of: 1 }] {
            let failure = acquire(&store, &of(kind, 1), Registration::IfHeld).expect_err("others'");
            assert_eq!(failure.kind, FailureKind::WrongType, "{command:?}");
            drop(change(&store, &by("client", kind, 0), Change::Unregister));
            assert!(matches!(super::release(&store, &of(kind, 7)), Ok(HoldReply::Gone)));
        }
        assert!(store.report("lock", Look::Permits, soon()).is_err());
        assert_eq!(process.ask::<Vec<u8>>(&["DUMP", &key]), dump, "{command:?}");
        process.command(&["DEL", &key]);
    }
}

/// Another program has put other members among them.
fn only_holds_are_removed_when_their_time_is_over(process: &Server) {
    let (store, kind) = (single(process), Permit { of: 2 });
    let [key, ..] = keys();
    let [first, last] = ["a", "b"].map(|label| format!("{}:1", id(&format!("p:{label}"))));
    process.command(&["ZADD", &key, "1", &first, "1", &format!("{last}!"), "2", &last]);
    process.command(&["PEXPIRE", &key, "60000"]);
    assert!(tries(&store, &of(kind, 1)));
    let members: Vec<String> = process.ask(&["ZRANGE", &key, "0", "-1"]);
    assert_eq!(members, [format!("{last}!"), format!("{}:1", id("p:client"))]);
}

fn no_key_lives_longer_than_its_last_hold(process: &Server) {
    let store = single(process);
    let life = || process.ask::<i64>(&["PTTL", &keys()[0]]);
    let lease = i64::try_from(LEASE.as_millis()).expect("a short lease");
    for kind in [Read, Permit { of: 2 }] {
        assert!(tries(&store, &of(kind, 1)));
        briefly(&store, &of(kind, 2));
        assert!((lease / 2..=lease).contains(&life()), "{}", life());
        release(&store, &of(kind, 1));
        renew(&store, &of(kind, 2), SHORT);
        assert!(life() > 0);
        process.set_back(LEASE);
        renew(&store, &of(kind, 2), SHORT);
        assert!((1..=600).contains(&life()), "{}", life());
        release(&store, &of(kind, 2));
        assert_eq!(life(), -2);
    }
}

fn a_server_that_refuses_to_publish_serves_those_who_ask(process: &Server) {
    let rules = ["on", ">pw", "~*", "&*", "+@all", "-publish"];
    process.command(&[&["ACL", "SETUSER", "quiet"], &rules[..]].concat());
    let url = process.url().replace("redis://", "redis://quiet:pw@");
    let store = single_at(&url, &Config::default());
    let _listeners = ["b", "c"].map(|client| listen(&store, client));
    assert!(tries(&store, &by("a", Write, 1)));
    waits(&store, &by("b", Write, 1));
    waits(&store, &by("c", Read, 1));
    release(&store, &by("a", Write, 1));
    assert!(!takes_its_turn(&store, &by("c", Read, 1)));
    assert!(takes_its_turn(&store, &by("b", Write, 1)));
}
