//! A server's clock that was set back, so that everything stored with a time lasts longer.

use super::process::Server;
use super::*;

const KINDS: [HoldKind; 4] =
    [HoldKind::Lock, HoldKind::Read, HoldKind::Write, HoldKind::Permit { of: 1 }];

/// How far the clock is set back.
const BACK: Duration = Duration::from_secs(60 * 60);

/// Makes a test module per store.
macro_rules! stores {
    ($($behaviour:ident),+ $(,)?) => {
        mod in_memory {
            $(#[test] fn $behaviour() {
                super::in_virtual_time(|| super::$behaviour(&super::MemoryServer::default()));
            })+
        }
        mod on_redis {
            $(#[test] fn $behaviour() { super::$behaviour(&super::Server::redis()); })+
        }
        mod on_valkey {
            $(#[test] fn $behaviour() { super::$behaviour(&super::Server::valkey()); })+
        }
    };
}

stores!(
    a_renewal_leaves_a_whole_lease,
    a_request_for_more_tokens_leaves_a_whole_lease,
    a_released_lock_stays_taken_for_no_longer_than_its_owner_says,
    a_lock_that_stays_taken_is_freed_by_force,
    an_offer_lasts_for_no_longer_than_a_second,
);

fn of(kind: HoldKind, client: &str) -> HoldId {
    let client = format!("{client}:0123456789abcdef0123456789abcdef").into();
    HoldId { kind, client, ..hold(1) }
}

/// Returns for how long a client that asks for the lock has to wait.
fn left(store: &dyn Store, kind: HoldKind) -> Duration {
    let reply = acquire(store, &of(kind, "other"), Registration::None).expect("a reply");
    let AcquireReply::Held { remaining: Some(left), .. } = reply else { panic!("{reply:?}") };
    left
}

fn a_renewal_leaves_a_whole_lease(host: &impl Host) {
    let store = host.store();
    let whole = NextLease::from(LEASE);
    let rest = NextLease { duration: LEASE / 10, ..whole };
    for kind in KINDS {
        let (hold, other) = (of(kind, "client"), of(kind, "second"));
        let writes = if kind == HoldKind::Read { HoldKind::Write } else { kind };
        let mut changes = vec![Change::Renew { lease: whole }, Change::Renew { lease: rest }];
        if kind.is_lock() {
            changes.push(Change::Watch { lease: Some(whole) });
            changes.push(Change::SetDepth { depth: 2, lease: Some(rest), durable: true });
        }
        for renewal in changes {
            acquire(&store, &hold, Registration::None).expect("a reply");
            if kind == HoldKind::Read {
                acquire(&store, &other, Registration::None).expect("a reply");
            }
            host.set_back(BACK);
            assert!(left(&store, writes) > LEASE);
            assert_eq!(change(&store, &hold, renewal).ok(), Some(HoldReply::Done));
            if kind == HoldKind::Read {
                assert_eq!(change(&store, &other, renewal).ok(), Some(HoldReply::Done));
            }
            let left = left(&store, writes);
            assert!(left <= LEASE && left > LEASE / 2, "{renewal:?} of {kind:?}: {left:?}");
            release(&store, &hold).expect("a reply");
            release(&store, &other).expect("a reply");
        }
    }
    let (writer, reader) = (of(HoldKind::Write, "client"), of(HoldKind::Read, "client"));
    acquire(&store, &writer, Registration::None).expect("a reply");
    host.set_back(BACK);
    let downgrade = Change::Downgrade { lease: rest, unused: None };
    assert_eq!(change(&store, &reader, downgrade).ok(), Some(HoldReply::Done));
    let left = left(&store, HoldKind::Write);
    assert!(left <= LEASE && left > LEASE / 2, "{left:?}");
}

fn a_request_for_more_tokens_leaves_a_whole_lease(host: &impl Host) {
    let store = host.store();
    let hold = of(HoldKind::Lock, "client").that_may_be_kept();
    acquire(&store, &hold, Registration::Followed).expect("a reply");
    host.set_back(BACK);
    acquire(&store, &hold, Registration::Kept).expect("a reply");
    assert!(left(&store, HoldKind::Lock) <= LEASE);
}

fn a_released_lock_stays_taken_for_no_longer_than_its_owner_says(host: &impl Host) {
    let (store, time) = (host.store(), Duration::from_millis(500));
    let hold = of(HoldKind::Lock, "client").that_stays_taken(time);
    for hold in [hold.clone(), hold.that_is_not_renewed()] {
        must_acquire(&store, &hold);
        assert_eq!(keep(&store, &hold, time).ok(), Some(HoldReply::Done));
        host.set_back(BACK);
        let holder = store.inspect("lock", soon()).expect("a reply").expect("it is taken");
        assert!(holder.remaining <= time * 2 && holder.depth == 0, "{holder:?}");
        let begin = now();
        assert!(left(&store, HoldKind::Lock) <= time * 2);
        eventually(|| {
            let next = of(HoldKind::Lock, "next");
            let reply = acquire(&store, &next, Registration::None).expect("a reply");
            matches!(reply, AcquireReply::Acquired { .. })
        });
        assert!(elapsed(begin) >= time);
        release(&store, &of(HoldKind::Lock, "next")).expect("a reply");
    }
}

fn an_offer_lasts_for_no_longer_than_a_second(host: &impl Host) {
    let store = host.store();
    let mut listener = messages(&store, &of(HoldKind::Lock, "waiting").client);
    assert_eq!(listener.next(soon()).expect("in time").ok(), Some(Wake::Ready));
    for kind in KINDS {
        let writes = if kind == HoldKind::Read { HoldKind::Write } else { kind };
        let (first, waiting) = (of(writes, "client"), of(kind, "waiting"));
        must_acquire(&store, &first);
        assert!(is_held(&acquire(&store, &waiting, Registration::IfHeld)));
        release(&store, &first).expect("a reply");
        host.set_back(BACK);
        let left = left(&store, writes);
        assert!(left <= Duration::from_secs(1), "{kind:?}: {left:?}");
        let taken = acquire(&store, &waiting, Registration::IfHeld).expect("a reply");
        assert!(matches!(taken, AcquireReply::Acquired { .. }), "{kind:?}: {taken:?}");
        release(&store, &waiting).expect("a reply");
    }
}

fn a_lock_that_stays_taken_is_freed_by_force(host: &impl Host) {
    let (store, time) = (host.store(), Duration::from_secs(60));
    let hold = of(HoldKind::Lock, "client").that_stays_taken(time);
    must_acquire(&store, &hold);
    assert_eq!(keep(&store, &hold, time).ok(), Some(HoldReply::Done));
    host.set_back(BACK);
    let holder = store.inspect("lock", soon()).expect("a reply").expect("it is taken");
    assert_eq!(store.force_release(lock_of(&holder.owner), soon()).ok(), Some(true));
    must_acquire(&store, &of(HoldKind::Lock, "next"));
}
