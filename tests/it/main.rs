//! The behaviour of leasehold against real servers: a folder for each question that a reader may
//! have, a file for each component. `./tests/run` installs the servers and runs everything;
//! arguments filter, as in `./tests/run --test it renewal::`.
//!
//! `tests/FAULTS.md` is the index: it lists what can go wrong, and names the tests that show the
//! outcome. `api/table.rs` checks that these tests exist, `api/links.rs` follows the links of all
//! pages, `api/guides.rs` checks what else the guides refer to, and `api/layers.rs` which file of
//! the source imports from which.
//!
//! A new test goes into the file of the component that it is about. Its name is a sentence that
//! says what it shows. Helpers for several files are in `support`: no test module uses another.
//!
//! A test that applies to several stores is a function of a `&Store` or a `&Server`, listed in the
//! `stores!` block at the top of its file. The macro, in `support/store.rs`, makes a test of it for
//! every store: `renewal::lease::on_redis::…`, `renewal::lease::on_a_cluster::…` and so on. A test
//! that needs servers of its own is a plain `#[test]`. A new row of the index names the test that
//! shows it.
#![allow(
    clippy::unwrap_used,
    reason = "in a test, a panic at the line that went wrong is the wanted report"
)]
#![allow(
    clippy::needless_pass_by_value,
    reason = "a check takes its result by value, so that a guard in it is dropped at once"
)]

/// The interface apart from the locks: options, events, logs, numbers, keys, documentation.
mod api {
    mod arguments;
    #[cfg(feature = "serde")]
    mod configuration_files;
    mod events;
    mod guides;
    mod inspection;
    mod layers;
    mod layout;
    mod links;
    mod logging;
    #[cfg(feature = "metrics")]
    mod metrics;
    mod monitoring;
    mod moving;
    mod overview;
    mod secrets;
    mod stats;
    mod survey;
    mod table;
    #[cfg(feature = "tracing")]
    mod tracing;
    mod url;
}

/// The behaviour of calls on any topology: every kind of lock and guard.
mod calls {
    mod acquire;
    mod cost;
    mod election;
    mod fences;
    mod hold_at_least;
    mod kept;
    mod kinds;
    mod lifecycle;
    mod notes;
    mod reentrancy;
    mod release;
    mod rw_lock;
    mod semaphore;
    mod several_locks;
    mod several_owners;
    mod shutdown;
    mod threads;
    mod tickets;
    mod wanted;
}

/// Failures between a program, the network and a server.
mod faults {
    mod duplicate_requests;
    mod errors;
    mod foreign_keys;
    mod garbled_replies;
    mod lost_replies;
    mod outages;
    mod processes;
    mod queue_outages;
    mod resources;
    mod restarts;
    #[cfg(unix)]
    mod slow_links;
    mod timeouts;
}

/// The duration of a hold, and its end.
mod renewal {
    mod durable_renewals;
    mod lease;
    mod loss;
    mod renewals;
}

mod support;

/// Topologies, and how a client connects to them.
mod topologies {
    mod acl;
    mod cluster;
    mod credentials;
    mod durability;
    mod memory;
    mod open;

    /// Locks on several independent servers: a majority decides, whatever the others do.
    mod quorum {
        mod contention;
        mod durability;
        mod fences;
        mod foreign_keys;
        mod grants;
        mod lost_replies;
        mod open;
        mod outages;
    }

    mod sentinel;
    #[cfg(feature = "tls")]
    mod tls;
}

/// The waiting threads and clients, and their order.
mod waiting {
    mod absent_waiters;
    mod cancelling;
    mod deadlocks;
    mod notifications;
    mod pollers;
    mod redisson;
    mod silence;
    mod tenures;
    mod turns;
    mod wait_queue;
    mod waiting_clients;
    mod wake_ups;
}
