//! The election of a leader.

use std::thread;

use crate::support::{SOON, Store, assert_lost, eventually, patient, sleepy, stores, take};

stores! {
    every store:
        the_leader_is_known_to_all;
    several clients:
        the_next_candidate_leads_as_soon_as_a_leader_resigns,
        the_fence_of_a_leader_is_known_while_other_threads_campaign;
}

fn the_leader_is_known_to_all(store: &Store) {
    let client = store.open(patient().label("web"));
    let election = client.election("a");
    assert_eq!(election.name(), "a");
    assert!(election.leader().unwrap().is_none());
    let term = election.campaign().unwrap();
    let leader = election.leader().unwrap().unwrap();
    assert_eq!(leader.client, client.id());
    assert_eq!((leader.label.as_str(), leader.fence), ("web", term.fence()));
    assert_eq!(term.depth(), 1);
    term.resign().unwrap();
    assert!(election.leader().unwrap().is_none());
    let deposed = election.campaign().unwrap();
    assert!(client.mutex("a").force_unlock().unwrap());
    assert!(election.leader().unwrap().is_none());
    let next = election.campaign().unwrap();
    assert_lost(deposed.resign(), "a");
    next.resign().unwrap();
    // The owner of the lock of that name leads.
    let guard = take(&client, "a");
    assert_eq!(election.leader().unwrap().map(|leader| leader.fence), Some(guard.fence()));
}

fn the_next_candidate_leads_as_soon_as_a_leader_resigns(store: &Store) {
    let (leader, candidate) = (store.open(patient()), store.open(sleepy()));
    let term = leader.election("a").campaign().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| candidate.election("a").campaign().unwrap());
        eventually(SOON, || store.queue("a").len() == 1 && store.listens(&candidate));
        term.resign().unwrap();
        let next = waiting.join().unwrap();
        assert_eq!(leader.election("a").leader().unwrap().unwrap().client, candidate.id());
        drop(next);
    });
}

fn the_fence_of_a_leader_is_known_while_other_threads_campaign(store: &Store) {
    let (former, client) = (store.open(patient()), store.open(patient()));
    let term = former.election("a").campaign().unwrap();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let term = client.election("a").campaign().unwrap();
                let leader = former.election("a").leader().unwrap().unwrap();
                assert_eq!(leader.fence, term.fence());
            });
        }
        eventually(SOON, || client.stats().waiting == 2);
        term.resign().unwrap();
    });
}
