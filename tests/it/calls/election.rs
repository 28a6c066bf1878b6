//! The election of a leader.

use std::thread;

use leasehold::{Election, Error, Term};

use crate::support::child::{self, Child};
use crate::support::{
    LEASE, SOON, Server, Store, eventually, ms, patient, sleepy, stores, take, throughout, timed,
};

stores! {
    every store:
        one_candidate_leads_at_a_time,
        the_leader_is_known_to_all,
        a_term_that_is_lost_stays_lost;
    every server:
        a_leader_that_resigns_hands_over_at_once,
        a_leader_that_dies_is_replaced_after_its_lease;
}

const fn is_shared_between_threads<T: Send + Sync + 'static>() {}
const _: () = is_shared_between_threads::<(Election, Term)>();

fn one_candidate_leads_at_a_time(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    let election = client.election("a");
    assert_eq!(election.name(), "a");
    let term = election.campaign().unwrap();
    assert!(election.try_campaign().unwrap().is_none());
    assert!(election.try_campaign_for(ms(20)).unwrap().is_none());
    assert!(matches!(election.clone().wait(ms(20)).campaign(), Err(Error::Timeout { .. })));
    throughout(LEASE * 2, || term.is_held() && election.try_campaign().unwrap().is_none());
    term.verify().unwrap();
    let fence = term.fence();
    term.resign().unwrap();
    let next = election.try_campaign_for(SOON).unwrap().unwrap();
    assert!(next.fence() > fence);
    assert_eq!(next.depth(), 1);
    thread::spawn(move || next.resign().unwrap()).join().unwrap();
    election.try_campaign().unwrap().unwrap().unlock().unwrap();
    assert!(election.leader().unwrap().is_none());
}

fn the_leader_is_known_to_all(store: &Store) {
    let client = store.open(patient().label("web"));
    let election = client.election("a");
    assert!(election.leader().unwrap().is_none());
    let term = election.campaign().unwrap();
    let leader = election.leader().unwrap().unwrap();
    assert_eq!(leader.client, client.id());
    assert_eq!((leader.label.as_str(), leader.fence), ("web", term.fence()));
    term.resign().unwrap();
    assert!(election.leader().unwrap().is_none());
    // Whoever has locked the name leads.
    let guard = take(&client, "a");
    assert_eq!(election.leader().unwrap().map(|leader| leader.fence), Some(guard.fence()));
}

fn a_term_that_is_lost_stays_lost(store: &Store) {
    let client = store.open(patient());
    let election = client.election("a");
    let term = election.campaign().unwrap();
    assert!(client.mutex("a").force_unlock().unwrap());
    assert!(matches!(term.verify(), Err(Error::Lost { .. })));
    assert!(term.lost().is_lost() && !term.is_held());
    let next = election.campaign().unwrap();
    assert!(matches!(term.resign(), Err(Error::Lost { .. })));
    assert!(next.is_held());
    next.verify().unwrap();
}

fn a_leader_that_resigns_hands_over_at_once(server: &Server) {
    let (leader, candidate) = (server.open(patient()), server.open(sleepy()));
    let term = leader.election("a").campaign().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| candidate.election("a").campaign().unwrap());
        eventually(SOON, || server.queue("a").len() == 1 && server.listeners(&candidate) > 0);
        term.resign().unwrap();
        let next = waiting.join().unwrap();
        assert_eq!(leader.election("a").leader().unwrap().unwrap().client, candidate.id());
        drop(next);
    });
}

#[test]
#[ignore = "a child of a_leader_that_dies_is_replaced_after_its_lease"]
fn lead_in_a_child() {
    let Some(address) = child::address() else { return };
    let term = address.open(patient().lease(LEASE)).election("a").campaign().unwrap();
    child::report(term.fence());
    child::wait_for_parent();
}

fn a_leader_that_dies_is_replaced_after_its_lease(server: &Server) {
    let client = server.open(patient());
    let mut child = Child::start(lead_in_a_child, &server.address());
    let fence: u64 = child.next().parse().unwrap();
    assert_eq!(client.election("a").leader().unwrap().map(|leader| leader.fence), Some(fence));
    child.kill();
    let (term, took) = timed(|| client.election("a").campaign().unwrap());
    assert!(took < LEASE + SOON / 2, "{took:?}");
    assert!(term.fence() > fence);
}
