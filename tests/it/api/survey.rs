//! What an operator can learn about names and servers, and which holds it can end.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use crossbeam_channel::unbounded;
use leasehold::{Client, Error, HeldAs, Survey};

use crate::support::{
    SOON, Server, Store, assert_lost, eventually, ms, patient, stores, throughout, timed,
};

stores! {
    every store:
        the_hold_of_a_lock_is_reported_and_ended,
        holds_of_other_kinds_are_reported_and_ended,
        the_holds_of_a_client_are_ended_and_no_others,
        names_are_found_wherever_they_are,
        enough_servers_report_on_themselves;
    several clients:
        clients_that_wait_are_reported,
        one_permit_that_is_ended_lets_one_client_in;
    every server:
        ended_holds_and_offers_are_not_reported;
}

/// Starts a server that answers like a proxy which forwards little but scripts: with its own
/// errors, or by closing the connection. It ends with the process.
fn start_proxy_that_knows_no_question() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut request = [0; 1000];
                while let Ok(1..) = client.read(&mut request) {
                    if String::from_utf8_lossy(&request).contains("INFO") {
                        return;
                    }
                    client.write_all(b"-ERR not here\r\n").ok();
                    request.fill(0);
                }
            });
        }
    });
    format!("redis://{address}/")
}

#[test]
fn a_proxy_that_answers_no_question_is_reported_without_the_answers() {
    let url = start_proxy_that_knows_no_question();
    let client = Client::builder().lazy(true).open(&url).unwrap();
    let (servers, took) = timed(|| client.survey().servers().unwrap());
    let report = servers.each[0].1.as_ref().unwrap();
    assert_eq!((&report.info, report.clock_ahead, &report.cluster_info), (&None, None, &None));
    assert!(took < SOON / 2, "{took:?}");
}

fn kinds(survey: &Survey, name: &str) -> Vec<HeldAs> {
    survey.report(name).unwrap().holds.into_iter().map(|(held_as, _)| held_as).collect()
}

fn the_hold_of_a_lock_is_reported_and_ended(store: &Store) {
    let client = store.open(patient().label("web"));
    let survey = client.survey();
    assert!(survey.report("a").unwrap().holds.is_empty());
    let guard = client.lock("a").unwrap();
    let report = survey.report("a").unwrap();
    let [(HeldAs::Lock, holder)] = &report.holds[..] else { panic!("{report:?}") };
    assert_eq!((&*holder.client, &*holder.label, holder.depth), (client.id(), "web", 1));
    assert_eq!(report.fence, Some(guard.fence()));
    assert_eq!(survey.end_holds("a").unwrap(), 1);
    assert_lost(guard.verify(), "a");
    assert_eq!(survey.end_holds("a").unwrap(), 0);
}

fn holds_of_other_kinds_are_reported_and_ended(store: &Store) {
    // A quorum has no other kinds. Holds in memory are ended in `topologies/memory.rs`.
    if matches!(store, Store::Memory(_) | Store::Quorum(_)) {
        return;
    }
    let client = store.open(patient().tenure(SOON));
    let (survey, lock, permits) = (client.survey(), client.rw_lock("a"), client.semaphore("b", 3));
    // Readers of one client share a hold for its tenure.
    let other = store.open(patient()).rw_lock("a");
    let readers = [&lock, &lock, &other].map(|lock| lock.read().unwrap());
    assert_eq!(kinds(&survey, "a"), [HeldAs::Reader, HeldAs::Reader]);
    assert_eq!(survey.end_holds("a").unwrap(), 2);
    for reader in readers {
        assert_lost(reader.verify(), "a");
    }
    let writer = lock.write().unwrap();
    assert_eq!(kinds(&survey, "a"), [HeldAs::Writer]);
    assert_eq!(survey.report("a").unwrap().fence, Some(writer.fence()));
    assert_eq!(survey.end_holds("a").unwrap(), 1);
    assert_lost(writer.verify(), "a");
    let permit = permits.acquire().unwrap();
    assert_eq!(kinds(&survey, "b"), [HeldAs::Permit]);
    assert_eq!(survey.end_holds("b").unwrap(), 1);
    assert_lost(permit.verify(), "b");
}

fn the_holds_of_a_client_are_ended_and_no_others(store: &Store) {
    // No names are listed in memory.
    if matches!(store, Store::Memory(_)) {
        return;
    }
    let [first, second, third] = ["web", "web", "web 2"].map(|label| {
        let client = store.open(patient().label(label));
        let names = [format!("a-{}", client.id()), format!("b-{}", client.id())];
        let guards = names.map(|name| client.lock_owned(&name).unwrap());
        // This lock is released, but stays taken.
        let kept = format!("kept-{}", client.id());
        client.mutex(&kept).hold_at_least(SOON).lock().unwrap().unlock().unwrap();
        (client, guards, kept)
    });
    let survey = third.0.survey();
    let empty = survey.end_holds_of("");
    assert!(matches!(empty, Err(Error::InvalidInput(_))), "{empty:?}");
    assert_eq!(survey.end_holds_of("nobody").unwrap(), 0);
    assert_eq!(survey.end_holds_of(first.0.id()).unwrap(), 3);
    assert!(first.1.iter().all(|guard| guard.verify().is_err()));
    assert!(!first.0.mutex(&first.2).is_locked().unwrap());
    assert!(second.1.iter().all(|guard| guard.verify().is_ok()));
    assert_eq!(survey.end_holds_of("web").unwrap(), 3);
    assert!(second.1.iter().all(|guard| guard.verify().is_err()));
    assert!(third.1.iter().all(|guard| guard.verify().is_ok()));
    assert!(third.0.mutex(&third.2).is_locked().unwrap());
}

fn names_are_found_wherever_they_are(store: &Store) {
    if matches!(store, Store::Memory(_)) {
        return;
    }
    let client = store.open(patient());
    let names: Vec<_> = (0..20).map(|number| format!("a{number:02}")).collect();
    let _guards: Vec<_> = names.iter().map(|name| client.lock(name).unwrap()).collect();
    let _other = client.lock("b").unwrap();
    let found = |start| {
        let replies = client.survey().names(start).unwrap();
        assert!(replies.too_few().is_none(), "{replies:?}");
        let names = replies.each.into_iter().filter_map(|(_, names)| names.ok());
        names.flatten().collect::<BTreeSet<_>>()
    };
    assert_eq!(found("a"), names.into_iter().collect());
    assert_eq!(found("").len(), 21);
    assert_eq!(found("*").len(), 0);
}

fn enough_servers_report_on_themselves(store: &Store) {
    let client = store.open(patient());
    let replies = client.survey().servers().unwrap();
    assert!(replies.too_few().is_none(), "{replies:?}");
    let (addresses, reports): (Vec<_>, Vec<_>) = replies.each.into_iter().unzip();
    assert!(addresses.iter().all(|address| !address.is_empty()));
    let (expected, down) = match store {
        Store::Cluster(cluster, _) => (cluster.nodes().len(), 0),
        Store::Memory(_) => (0, 0),
        Store::Quorum(quorum) if quorum.servers.len() == 5 => (5, 2),
        Store::Quorum(quorum) => (quorum.servers.len(), 0),
        Store::Server(_) => (1, 0),
    };
    assert_eq!(reports.len(), expected);
    assert_eq!(reports.iter().filter(|report| report.is_err()).count(), down);
    for report in reports.into_iter().flatten() {
        assert!(
            report.info.as_deref().is_some_and(|info| info.contains("role:master")),
            "{report:?}"
        );
        let ahead = report.clock_ahead.unwrap();
        assert!(ahead.abs() < SOON.as_secs_f64(), "{ahead}");
    }
}

fn clients_that_wait_are_reported(store: &Store) {
    let (holder, waiter) = (store.open(patient()), store.open(patient()));
    let (survey, id) = (holder.survey(), waiter.id().to_owned());
    let guard = holder.rw_lock("a").write().unwrap();
    let waiting = thread::spawn(move || waiter.rw_lock("a").read().map(drop));
    // The waiter leaves the queue again if it asks again before it listens.
    eventually(SOON, || survey.report("a").unwrap().waiting == [&*id]);
    drop(guard);
    waiting.join().unwrap().unwrap();
}

fn one_permit_that_is_ended_lets_one_client_in(store: &Store) {
    let holder = store.open(patient());
    let _permit = holder.semaphore("a", 1).acquire().unwrap();
    let (sender, acquired) = unbounded();
    let waiting = [store.open(patient()), store.open(patient())].map(|client| {
        let sender = sender.clone();
        thread::spawn(move || sender.send(client.semaphore("a", 1).acquire()).unwrap())
    });
    eventually(SOON, || holder.survey().report("a").unwrap().waiting.len() == 2);
    assert_eq!(holder.survey().end_holds("a").unwrap(), 1);
    let first = acquired.recv_timeout(SOON).unwrap().unwrap();
    throughout(ms(500), || acquired.is_empty());
    first.unlock().unwrap();
    acquired.recv_timeout(SOON).unwrap().unwrap().unlock().unwrap();
    for waiter in waiting {
        waiter.join().unwrap();
    }
}

fn ended_holds_and_offers_are_not_reported(server: &Server) {
    let client = server.open(patient());
    let guard = client.rw_lock("a").write().unwrap();
    // An offer to a client is no hold, and an expired hold does not count.
    let other = "w:0123456789abcdef0123456789abcdef";
    let (over, offer) = (format!("{other}:5"), format!("{other}:0"));
    server.command(&["ZADD", "lock:a", "1", &over, "99999999999999", &offer]);
    assert_eq!(kinds(&client.survey(), "a"), [HeldAs::Writer]);
    assert_eq!(client.survey().end_holds("a").unwrap(), 1);
    assert_lost(guard.verify(), "a");
    assert_eq!(client.survey().end_holds("a").unwrap(), 0);
}
