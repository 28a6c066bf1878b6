//! Fencing tokens grow whichever servers have granted a lock.

use crate::support::quorum::hasty;
use crate::support::{Quorum, patient, take};

#[test]
fn fences_grow_whichever_majority_grants() {
    let quorum = Quorum::of(5);
    let client = quorum.open(hasty());
    let mut last = 0;
    // Each time, a different minority is down, and a counter that is far ahead moves about.
    for round in 0..20 {
        let out = [round % 5, (round * 3 + 1) % 5];
        for number in &out {
            quorum.servers[*number].stop();
        }
        let ahead = &quorum.servers[(0..5).find(|number| !out.contains(number)).unwrap()];
        let counter = (last + 5_000_000_000).max(3_000_000_000_000_000).to_string();
        ahead.command(&["SET", "leasehold:fence:{lock:a}", &counter]);
        let guard = client.lock("a").unwrap();
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        let confirmed =
            quorum.servers.iter().enumerate().filter(|(number, _)| !out.contains(number));
        let confirmed = confirmed.filter(|(_, server)| {
            server.ask::<Option<u64>>(&["GET", "leasehold:fence:{lock:a}"]) >= Some(last)
        });
        assert!(confirmed.count() >= 3, "round {round}");
        guard.unlock().unwrap();
        for number in &out {
            quorum.servers[*number].cont();
        }
    }
}

#[test]
fn a_clock_that_is_behind_does_not_stop_tokens_from_growing() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    let ahead = 4_000_000_000_000_000_u64;
    for server in &quorum.servers {
        server.command(&["SET", "leasehold:fence:{lock:a}", &ahead.to_string()]);
    }
    for round in 1..=5 {
        let guard = take(&client, "a");
        assert_eq!(guard.fence(), ahead + round);
        guard.unlock().unwrap();
    }
}
