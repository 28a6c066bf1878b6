//! The holds and waits of a client, and the lines of the program where they began.

use std::panic::Location;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use leasehold::{Client, Error, Event, HeldAs, HeldLock, MemoryServer, WaitingCall};
use parking_lot::Mutex;

use crate::support::kinds::Kind;
use crate::support::{LEASE, SOON, Server, Store, eventually, ms, patient, stores};

stores! {
    every store:
        a_client_lists_what_it_holds_and_no_other_client_does,
        a_client_lists_its_calls_that_wait,
        a_lock_that_is_handed_off_is_listed_for_its_new_thread,
        a_hold_that_is_over_or_only_kept_is_not_listed;
    every server:
        no_server_is_asked_for_what_a_client_holds_and_waits_for;
}

#[track_caller]
fn here() -> &'static Location<'static> {
    Location::caller()
}

/// The line before the caller's.
#[track_caller]
fn assert_above(place: &Location<'_>) {
    let here = Location::caller();
    assert_eq!((place.file(), place.line()), (here.file(), here.line() - 1));
}

fn held(client: &Client) -> HeldLock {
    let holds = client.holds();
    let [held] = &holds[..] else { panic!("{holds:?}") };
    held.clone()
}

fn named<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let named = thread::Builder::new().name(name.into());
        named.spawn_scoped(scope, work).unwrap().join().unwrap()
    })
}

fn a_client_lists_what_it_holds_and_no_other_client_does(store: &Store) {
    let client = store.open_for(LEASE, patient().note("why"));
    let other = store.open_for(LEASE, patient());
    assert!(client.holds().is_empty());
    for (number, kind) in store.kinds().iter().enumerate() {
        let name = format!("name {number}");
        let hold = named("worker-3", || kind.acquire(&client, &name)).unwrap();
        let holds = client.holds();
        assert_eq!(holds.len(), if *kind == Kind::Set { 2 } else { 1 }, "{kind:?}");
        for held in holds {
            assert!(held.name.starts_with(&name) && held.since < SOON, "{held:?}");
            let kinds = match kind {
                Kind::Permit => HeldAs::Permit,
                Kind::Read => HeldAs::Reader,
                Kind::Write => HeldAs::Writer,
                Kind::Owned | Kind::Set | Kind::Term => HeldAs::Lock,
            };
            assert_eq!(held.kind, kinds);
            assert_eq!(held.thread.as_deref(), Some("worker-3"), "its thread has ended");
            assert_eq!(held.note.as_deref(), Some("why"));
            assert!(held.place.file().ends_with("kinds.rs"), "{held:?}");
        }
        assert!(other.holds().is_empty());
        hold.unlock().unwrap();
    }
    assert!(client.holds().is_empty());
}

fn a_client_lists_its_calls_that_wait(store: &Store) {
    let (client, other) = (store.open_for(LEASE, patient()), store.open_for(LEASE, patient()));
    assert!(client.waits().is_empty());
    let first = other.lock_owned("a").unwrap();
    let wait = |number: u64| {
        let mutex = client.mutex("a").note("waits");
        let place = here();
        let guard = mutex.lock().unwrap();
        assert_above(client.holds()[0].place);
        drop(guard);
        (number, place)
    };
    thread::scope(|scope| {
        for number in [1, 2] {
            let named = thread::Builder::new().name(format!("worker-{number}"));
            named.spawn_scoped(scope, move || wait(number)).unwrap();
            eventually(SOON, || client.waits().len() as u64 == number);
        }
        let waits = client.waits();
        let [one, two] = &waits[..] else { panic!("{waits:?}") };
        assert!(one.since >= two.since && two.since < SOON, "{waits:?}");
        for (number, waiting) in [(1, one), (2, two)] {
            let WaitingCall { name, kind, thread, place, note, .. } = waiting;
            assert_eq!((&**name, *kind, note.as_deref()), ("a", HeldAs::Lock, Some("waits")));
            assert_eq!(thread.as_deref(), Some(&*format!("worker-{number}")));
            assert!(place.file().ends_with("overview.rs"), "{place}");
        }
        assert!(other.waits().is_empty() && client.holds().is_empty());
        drop(first);
    });
    assert!(client.waits().is_empty());
}

fn a_lock_that_is_handed_off_is_listed_for_its_new_thread(store: &Store) {
    let client = store.open_for(LEASE, patient());
    let first = named("first", || client.lock_owned("a")).unwrap();
    let (one, begun) = (held(&client), here());
    assert!(one.place.line() < begun.line() && one.thread.as_deref() == Some("first"));
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            named("second", || {
                let guard = client.lock("a").unwrap();
                assert_above(held(&client).place);
                assert_eq!(held(&client).thread.as_deref(), Some("second"));
                guard.unlock().unwrap();
            });
        });
        eventually(SOON, || !client.waits().is_empty());
        thread::sleep(ms(5));
        let before = held(&client).since;
        assert!(before >= ms(5), "{before:?}");
        drop(first);
        second.join().unwrap();
    });
}

fn a_hold_that_is_over_or_only_kept_is_not_listed(store: &Store) {
    let client = store.open_for(LEASE, patient().keep(LEASE));
    client.listen();
    eventually(SOON, || {
        drop(client.lock("a").unwrap());
        client.stats().kept == 1
    });
    assert!(client.holds().is_empty());
    let guard = client.lock("a").unwrap();
    assert_above(held(&client).place);
    drop(guard);
    let brief = client.mutex("b").lease(LEASE).keep(ms(0)).renew(false);
    let _lost = brief.lock().unwrap();
    eventually(SOON, || client.holds().is_empty());
    client.shutdown(SOON).unwrap();
    assert!(client.holds().is_empty() && client.waits().is_empty());
}

fn no_server_is_asked_for_what_a_client_holds_and_waits_for(server: &Server) {
    let client = server.open(patient());
    let _guards = (client.lock_owned("a").unwrap(), client.semaphore("b", 1).acquire().unwrap());
    let before = server.settled_evals();
    for _ in 0..100 {
        assert_eq!((client.holds().len(), client.waits().len()), (2, 0));
    }
    assert_eq!(server.settled_evals(), before);
}

/// Each way to get a hold must report the calling line of the program, and not one of this library.
#[test]
fn every_call_for_a_lock_knows_its_line() {
    macro_rules! each {
        ($client:ident: $($call:expr),+ $(,)?) => {
            $({
                let begun = here().line();
                let guard = $call;
                let place = $client.holds()[0].place;
                assert_eq!(place.file(), here().file(), stringify!($call));
                assert!(place.line() >= begun, "{}: {place}", stringify!($call));
                drop(guard);
            })+
        };
    }
    let server = MemoryServer::new();
    let client = patient().open_memory(&server).unwrap();
    let (mutex, both) = (client.mutex("a"), client.multi_mutex(["a", "b"]));
    let (lock, permits) = (client.rw_lock("rw"), client.semaphore("s", 1));
    let (election, soon) = (client.election("e"), std::time::Instant::now() + SOON);
    let ticket = || client.lock_owned("t").unwrap().detach().unwrap();
    each!(
        client: client.lock("a").unwrap(),
        client.try_lock("a").unwrap(),
        client.try_lock_for("a", SOON).unwrap(),
        client.try_lock_until("a", soon).unwrap(),
        client.lock_owned("a").unwrap(),
        client.try_lock_owned("a").unwrap(),
        client.try_lock_owned_for("a", SOON).unwrap(),
        client.lock_all(["a", "b"]).unwrap(),
        client.try_lock_all(["a", "b"]).unwrap(),
        client.try_lock_all_for(["a", "b"], SOON).unwrap(),
        client.adopt(&ticket()).unwrap(),
        mutex.lock().unwrap(),
        mutex.try_lock().unwrap(),
        mutex.try_lock_for(SOON).unwrap(),
        mutex.try_lock_until(soon).unwrap(),
        mutex.lock_owned().unwrap(),
        mutex.try_lock_owned().unwrap(),
        mutex.try_lock_owned_for(SOON).unwrap(),
        both.lock().unwrap(),
        both.try_lock().unwrap(),
        both.try_lock_for(SOON).unwrap(),
        lock.read().unwrap(),
        lock.try_read().unwrap(),
        lock.try_read_for(SOON).unwrap(),
        lock.write().unwrap(),
        lock.try_write().unwrap(),
        lock.try_write_for(SOON).unwrap(),
        lock.write().unwrap().downgrade().unwrap(),
        permits.acquire().unwrap(),
        permits.try_acquire().unwrap(),
        permits.try_acquire_for(SOON).unwrap(),
        election.campaign().unwrap(),
        election.try_campaign().unwrap(),
        election.try_campaign_for(SOON).unwrap(),
    );
    let place = || client.holds()[0].place;
    let begun = here().line();
    let places = [
        client.with_lock("a", |_| place()).unwrap(),
        client.try_with_lock("a", |_| place()).unwrap().unwrap(),
        mutex.with(|_| place()).unwrap(),
        mutex.try_with(|_| place()).unwrap().unwrap(),
    ];
    for place in places {
        assert!(place.file() == here().file() && place.line() > begun, "{place}");
    }
}

#[test]
fn a_hold_that_lasts_too_long_is_reported_once_by_its_line() {
    const LONG: Duration = ms(200);
    let events = Arc::<Mutex<Vec<_>>>::default();
    let reported = events.clone();
    let builder = patient().warn_held(LONG).on_event(move |event| {
        if let Event::HeldLong { name, fence, held, place, note, .. } = event {
            reported.lock().push((name.clone(), *fence, *held, *place, note.clone()));
        }
    });
    let client = builder.open_memory(&MemoryServer::new()).unwrap();
    let reports = || events.lock().clone();
    let brief = client.lock("brief").unwrap();
    drop(brief);
    let begun = here();
    let long = client.mutex("long").note("why").lock_owned().unwrap();
    let permit = client.semaphore("permit", 1).acquire().unwrap();
    eventually(SOON, || reports().len() == 2);
    thread::sleep(LONG * 2);
    let told = reports();
    let (name, fence, held, place, note) = &told[0];
    assert_eq!((&**name, *fence, note.as_deref()), ("long", long.fence(), Some("why")));
    assert!(*held >= LONG && *held < SOON, "{held:?}");
    assert_eq!((place.file(), place.line()), (begun.file(), begun.line() + 1));
    assert_eq!((&*told[1].0, told[1].1, told.len()), ("permit", 0, 2));
    assert_eq!(client.stats().long_holds, 2);
    drop((long, permit));

    // The holds of a tenure are reported one by one.
    let first = client.lock_owned("passed on").unwrap();
    thread::scope(|scope| {
        let next = scope.spawn(|| {
            let guard = client.lock("passed on").unwrap();
            eventually(SOON, || reports().len() == 3);
            assert_eq!(reports()[2].1, guard.fence());
        });
        eventually(SOON, || !client.waits().is_empty());
        drop(first);
        next.join().unwrap();
    });
    let zero = Client::builder().warn_held(ms(0)).in_memory();
    assert!(matches!(zero, Err(Error::InvalidInput(_))), "{zero:?}");
}
