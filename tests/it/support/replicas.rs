//! Locks that count only when replicas have them.

use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Durability, Error, Guard, HoldEnd};

use super::sentinel::replicated;
use super::server::Server;
use super::{SOON, eventually, ms, patient};

/// Short, for tests that wait for a missing replica.
pub(crate) const TIMEOUT: Duration = ms(500);

/// Starts a master with two replicas, which come after it in the list.
pub(crate) fn two_replicas(binary: &Path) -> Vec<Server> {
    replicated(2, binary, &[])
}

pub(crate) fn replicas(acks: u32, timeout: Duration) -> Builder {
    patient().durability(Durability::Replicas { acks, timeout })
}

/// Takes a lock once all replicas are there.
#[track_caller]
pub(crate) fn take_in_time(client: &Client) -> Guard {
    let mut guard = None;
    eventually(SOON, || {
        guard = client.try_lock("a").unwrap_or_default();
        guard.is_some()
    });
    guard.expect("there is one now")
}

/// Checks that at most this many of the required servers have acknowledged a lock.
#[track_caller]
pub(crate) fn assert_shortfall<T>(result: Result<T, Error>, numbers: (u32, u32)) {
    match result.map(drop) {
        // A replica may be late on a busy machine.
        Err(Error::NotReplicated { name, server, acked, required, .. }) => {
            assert!(acked <= numbers.0 && required == numbers.1, "{acked} of {required}");
            assert!(name == "a" && server.contains(':'), "{name:?} at {server}");
        }
        other => panic!("{other:?}"),
    }
}

/// Checks that a hold is lost no later than one lease after its replicas were gone.
#[track_caller]
pub(crate) fn assert_lost_within(lease: Duration, guard: &Guard, since: Instant) {
    loop {
        // Taken before the check, because the machine may pause after it.
        let age = since.elapsed();
        if !guard.is_held() {
            break;
        }
        assert!(age < lease, "held after {age:?}");
        std::thread::sleep(ms(1));
    }
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
}
