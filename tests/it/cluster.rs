//! Locks on a Redis Cluster: on the right node, whatever moves, fails or hangs.

use leasehold::Client;

use crate::support::{Cluster, is_busy, patient, take};

fn names() -> Vec<String> {
    (0..60).map(|number| format!("lock {number}")).collect()
}

#[test]
fn locks_are_where_their_slots_are() {
    let cluster = Cluster::of_three();
    let client = cluster.open(patient());
    let other = cluster.open(patient());
    let guards: Vec<_> = names().iter().map(|name| take(&client, name)).collect();
    for name in names() {
        assert!(cluster.home(&name).exists(&name), "{name}");
        assert!(is_busy(&other, &name), "{name}");
    }
    assert!(cluster.nodes().iter().all(|node| node.hashes().len() >= 10));
    drop(guards);
    assert!(cluster.nodes().iter().all(|node| node.hashes().is_empty()));
}

#[test]
fn one_seed_that_answers_is_enough() {
    let cluster = Cluster::of_three();
    let seeds = ["redis://127.0.0.1:1/".to_owned(), cluster.urls()[1].clone()];
    let client = Client::builder().open_cluster(&[&seeds[0], &seeds[1]]).unwrap();
    for name in names() {
        take(&client, &name).unlock().unwrap();
    }
}
