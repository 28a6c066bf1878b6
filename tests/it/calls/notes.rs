//! Notes: texts that are shown with holds, for people.

use std::thread;

use leasehold::{Client, Error, HeldAs, Ticket};

use crate::support::kinds::Kind;
use crate::support::{
    LEASE, SHORT, Server, Store, elsewhere, eventually, is_busy, ms, patient, stores, take,
};

const NOTE: &str = "deploy 4711, https://ci/4711";

stores! {
    every store:
        a_note_is_shown_while_its_hold_lasts_and_for_no_other,
        every_kind_of_hold_has_the_note_of_its_client,
        threads_with_other_notes_have_holds_of_their_own,
        a_wait_that_times_out_says_why_the_lock_is_held,
        a_note_that_cannot_be_shown_is_refused,
        a_note_survives_detach_and_adopt,
        readers_with_other_notes_do_not_share_a_hold,
        a_writer_that_becomes_a_reader_keeps_its_note;
    every server:
        a_note_is_kept_beside_its_lock_and_ends_with_it,
        the_request_that_begins_a_hold_stores_its_note,
        a_hold_without_a_note_leaves_no_trace_of_one,
        a_note_that_a_crash_leaves_is_shown_for_no_other_hold,
        a_note_that_cannot_be_stored_does_not_cost_the_hold;
    one server:
        notes_of_expired_permits_do_not_accumulate;
}

fn two(store: &Store) -> (Client, Client) {
    (store.open_for(LEASE, patient()), store.open_for(LEASE, patient()))
}

/// The note of a lock's holder, as another client sees it.
fn shown(client: &Client, name: &str) -> Option<String> {
    client.mutex(name).holder().unwrap().and_then(|holder| holder.note)
}

/// The notes of all holds of a name, in order.
fn notes(client: &Client, name: &str) -> Vec<Option<String>> {
    let holds = client.survey().report(name).unwrap().holds;
    let mut notes: Vec<_> = holds.into_iter().map(|(_, holder)| holder.note).collect();
    notes.sort();
    notes
}

fn key(name: &str) -> String {
    format!("leasehold:note:{{lock:{name}}}")
}

fn a_note_is_shown_while_its_hold_lasts_and_for_no_other(store: &Store) {
    let (client, other) = two(store);
    let guard = client.mutex("a").note(NOTE).lock().unwrap();
    let holder = other.mutex("a").holder().unwrap().unwrap();
    assert_eq!(holder.note.as_deref(), Some(NOTE));
    assert!(format!("{holder:?}").contains(NOTE), "{holder:?}");
    assert_eq!(notes(&other, "a"), [Some(NOTE.to_owned())]);
    let nested = client.mutex("a").note("another").lock().unwrap();
    assert_eq!(
        shown(&other, "a").as_deref(),
        Some(NOTE),
        "it is the one with which the hold began"
    );
    nested.unlock().unwrap();
    guard.unlock().unwrap();
    let guard = take(&other, "a");
    assert_eq!(shown(&client, "a"), None);
    guard.unlock().unwrap();
    let _guard = other.mutex("a").note("why, ü").lock().unwrap();
    assert_eq!(shown(&client, "a").as_deref(), Some("why, ü"));
}

fn every_kind_of_hold_has_the_note_of_its_client(store: &Store) {
    let client = store.open_for(LEASE, patient().note(NOTE));
    let other = store.open_for(LEASE, patient());
    for (number, kind) in store.kinds().iter().enumerate() {
        let name = format!("name {number}");
        let hold = kind.acquire(&client, &name).unwrap();
        assert_eq!(notes(&other, &name), [Some(NOTE.to_owned())], "{kind:?}");
        hold.renew().unwrap();
        assert_eq!(notes(&other, &name), [Some(NOTE.to_owned())], "{kind:?}");
        if *kind == Kind::Set {
            assert_eq!(shown(&other, &format!("{name}'")).as_deref(), Some(NOTE));
        }
        if *kind == Kind::Term {
            let leader = other.election(&name).leader().unwrap().unwrap();
            assert_eq!(leader.note.as_deref(), Some(NOTE));
        }
        hold.unlock().unwrap();
        assert_eq!(notes(&other, &name), [], "{kind:?}");
    }
    let _own = client.mutex("a").note("of its own").lock().unwrap();
    assert_eq!(shown(&other, "a").as_deref(), Some("of its own"));
    let _none = client.election("b").note("").campaign().unwrap();
    assert_eq!(shown(&other, "b"), None);
}

fn threads_with_other_notes_have_holds_of_their_own(store: &Store) {
    let client = store.open_for(LEASE, patient().tenure(LEASE / 4));
    let other = store.open_for(LEASE, patient());
    let first = client.mutex("a").note("first").lock_owned().unwrap();
    let wait = |note: &str| {
        let guard = client.mutex("a").note(note).lock().unwrap();
        assert_eq!(shown(&other, "a").as_deref(), Some(note));
        drop(guard);
    };
    thread::scope(|scope| {
        // The second gets tokens for the third, but does not hand the lock off.
        for (number, note) in (1..).zip(["second", "third"]) {
            scope.spawn(move || wait(note));
            eventually(LEASE, || client.stats().waiting == number);
        }
        assert_eq!(shown(&other, "a").as_deref(), Some("first"));
        drop(first);
    });
    assert_eq!(client.stats().handoffs, 0);
}

fn a_wait_that_times_out_says_why_the_lock_is_held(store: &Store) {
    let (client, other) = two(store);
    let _guard = client.mutex("a").note(NOTE).lock().unwrap();
    for waits in [&client, &other] {
        let error = elsewhere(|| waits.mutex("a").wait(ms(100)).lock().map(drop)).unwrap_err();
        assert!(error.to_string().contains(&format!(" ({NOTE}) held lock \"a\"")), "{error}");
        if let Error::Timeout { holder: Some(holder), .. } = &error {
            assert_eq!(holder.note.as_deref(), Some(NOTE));
        }
    }
}

fn a_note_that_cannot_be_shown_is_refused(store: &Store) {
    let client = store.open(patient());
    let longest = "ü".repeat(128);
    drop(client.mutex("a").note(&longest).lock().unwrap());
    for bad in [&*format!("{longest}."), "two\nlines", "\u{1b}[2J", "\u{85}"] {
        let errors = [
            client.mutex("a").note(bad).lock().map(drop),
            client.rw_lock("a").note(bad).read().map(drop),
            client.rw_lock("a").note(bad).write().map(drop),
            client.semaphore("a", 2).note(bad).acquire().map(drop),
            client.election("a").note(bad).campaign().map(drop),
            client.multi_mutex(["a", "b"]).note(bad).lock().map(drop),
            Client::builder().note(bad).in_memory().map(drop),
        ];
        for error in errors {
            let quorum = "independent servers";
            let is_refused = matches!(&error, Err(Error::InvalidInput(why))
                if why.starts_with("note: ") || why.starts_with(quorum));
            assert!(is_refused, "{bad:?}: {error:?}");
        }
    }
}

fn a_note_survives_detach_and_adopt(store: &Store) {
    let (client, other) = two(store);
    let ticket = client.mutex("a").note(NOTE).lock_owned().unwrap().detach().unwrap();
    assert_eq!(shown(&other, "a").as_deref(), Some(NOTE));
    let ticket: Ticket = ticket.to_string().parse().unwrap();
    other.renew_ticket(&ticket).unwrap();
    assert_eq!(shown(&client, "a").as_deref(), Some(NOTE));
    let guard = other.adopt(&ticket).unwrap();
    guard.renew().unwrap();
    assert_eq!(shown(&client, "a").as_deref(), Some(NOTE));
    let again = guard.detach().unwrap();
    assert_eq!(again.to_string(), ticket.to_string());
    client.release_ticket(&again).unwrap();
    assert!(!is_busy(&client, "a") && shown(&client, "a").is_none());
}

fn readers_with_other_notes_do_not_share_a_hold(store: &Store) {
    if !store.kinds().contains(&Kind::Read) {
        return;
    }
    let (client, other) = two(store);
    let lock = client.rw_lock("a");
    let readers = [
        lock.clone().note("one").read().unwrap(),
        lock.clone().note("two").read().unwrap(),
        lock.clone().read().unwrap(),
    ];
    let some = |note: &str| Some(note.to_owned());
    assert_eq!(notes(&other, "a"), [None, some("one"), some("two")]);
    let [one, ..] = readers;
    one.unlock().unwrap();
    assert_eq!(notes(&other, "a").iter().flatten().filter(|note| *note == "one").count(), 0);
}

fn a_writer_that_becomes_a_reader_keeps_its_note(store: &Store) {
    if !store.kinds().contains(&Kind::Read) {
        return;
    }
    let (client, other) = two(store);
    let reader = client.rw_lock("a").note(NOTE).write().unwrap().downgrade().unwrap();
    let report = other.survey().report("a").unwrap();
    let [(HeldAs::Reader, holder)] = &report.holds[..] else { panic!("{report:?}") };
    assert_eq!(holder.note.as_deref(), Some(NOTE));
    reader.unlock().unwrap();
}

fn a_note_is_kept_beside_its_lock_and_ends_with_it(server: &Server) {
    let client = server.open_for(SHORT, patient().note(NOTE));
    let guard = client.lock_owned("a").unwrap();
    let (owner, _) = server.hold("a");
    let stored: Vec<String> = server.ask(&["HGETALL", &key("a")]);
    assert_eq!(stored, [&*owner, NOTE]);
    thread::sleep(SHORT);
    let (lock, note) = (server.raw_pttl("a"), server.key_pttl(&key("a")));
    assert!(note > 0 && (lock - note).abs() < 100, "{lock}, {note}: it is renewed");
    guard.unlock().unwrap();
    assert_eq!(server.keys(), ["leasehold:fence:{lock:a}"]);
    // The notes of all permits share one key.
    let permit = client.semaphore("b", 2).acquire().unwrap();
    let longer = client.semaphore("b", 2).lease(SHORT * 20).acquire().unwrap();
    assert!(server.key_pttl(&key("b")) > 10_000);
    permit.unlock().unwrap();
    assert_eq!(server.ask::<u64>(&["HLEN", &key("b")]), 1);
    longer.unlock().unwrap();
    let fences = ["leasehold:fence:{lock:a}"];
    assert_eq!(server.keys(), fences);
    // The survey of an operator ends the hold of another client.
    let guard = client.lock_owned("a").unwrap();
    server.open(patient()).survey().end_holds("a").unwrap();
    assert_eq!(server.keys(), fences);
    drop(guard);
}

fn the_request_that_begins_a_hold_stores_its_note(server: &Server) {
    let client = server.open(patient());
    let mutex = client.mutex("a").note(NOTE);
    mutex.lock().unwrap().unlock().unwrap();
    let before = server.settled_evals();
    mutex.lock().unwrap().unlock().unwrap();
    assert_eq!(server.settled_evals() - before, 2);
}

fn a_hold_without_a_note_leaves_no_trace_of_one(server: &Server) {
    let client = server.open(patient());
    let _guards = (take(&client, "a"), client.rw_lock("b").write().unwrap());
    let both = client.lock_all(["c", "d"]).unwrap();
    both.renew().unwrap();
    let notes = server.keys().into_iter().filter(|key| key.contains("note"));
    assert_eq!(notes.count(), 0);
    let (owner, _) = server.hold("a");
    let (_, number) = owner.rsplit_once(':').unwrap();
    assert!(number.len() < 10, "{owner}");
}

fn a_note_that_a_crash_leaves_is_shown_for_no_other_hold(server: &Server) {
    let (client, other) = (server.open(patient()), server.open(patient().note("later")));
    let guard = client.mutex("a").note(NOTE).lock_owned().unwrap();
    assert!(server.key_pttl(&key("a")) > 0, "it expires by itself");
    // The lock ends without a release, as if its server had forgotten it.
    server.command(&["DEL", "lock:a"]);
    let plain = client.mutex("a").note("").lock_owned().unwrap();
    assert_eq!(shown(&other, "a"), None);
    plain.unlock().unwrap();
    let _later = other.lock_owned("a").unwrap();
    assert_eq!(shown(&client, "a").as_deref(), Some("later"));
    assert_eq!(server.ask::<u64>(&["HLEN", &key("a")]), 1);
    drop(guard);
    assert_eq!(shown(&client, "a").as_deref(), Some("later"), "it has another owner");
}

fn notes_of_expired_permits_do_not_accumulate(server: &Server) {
    let client = server.open(patient());
    let permits = client.semaphore("a", 10).note(NOTE);
    let _stays = permits.acquire().unwrap();
    for _ in 0..3 {
        let brief = permits.clone().lease(ms(50)).renew(false).acquire().unwrap();
        // As if its process had died.
        std::mem::forget(brief);
        thread::sleep(ms(60));
    }
    let _last = permits.acquire().unwrap();
    assert_eq!(server.ask::<u64>(&["HLEN", &key("a")]), 2);
}

fn a_note_that_cannot_be_stored_does_not_cost_the_hold(server: &Server) {
    let client = server.open(patient().note(NOTE));
    server.command(&["SET", &key("a"), "of another program", "EX", "100"]);
    server.command(&["SET", &key("b"), "of another program", "EX", "100"]);
    let permit = client.semaphore("b", 1).acquire().unwrap();
    permit.renew().unwrap();
    permit.unlock().unwrap();
    let guard = take(&client, "a");
    guard.renew().unwrap();
    guard.unlock().unwrap();
    // A program may write anything there.
    let guard = take(&client, "c");
    let (owner, _) = server.hold("c");
    server.command(&["HSET", &key("c"), &owner, "two\nlines"]);
    assert_eq!(shown(&client, "c"), None);
    drop(guard);
}
