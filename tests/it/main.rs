//! The behaviour of leasehold against real servers, one file per component. `./tests/run` gets the
//! servers and runs everything; arguments filter, as in `./tests/run --test it renewal`.
//!
//! `tests/FAULTS.md` is the index: it lists what can go wrong and names the tests that show what
//! comes of it. `table.rs` checks that these tests exist, and `guides.rs` what the guides refer to.
//!
//! A new test goes into the file of the component that it is about. Its name is a sentence that
//! says what it shows. A test that applies to several stores is a function of a `&Store` or a
//! `&Server`, listed in the `stores!` block at the top of its file. The macro, in
//! `support/store.rs`, makes a test of it for every store: `renewal::on_redis::…`,
//! `renewal::on_a_cluster::…` and so on. What needs servers of its own is a plain `#[test]`. A test
//! that belongs to a row of the index is added there.
#![allow(
    clippy::unwrap_used,
    reason = "in a test, a panic at the line that went wrong is the wanted report"
)]
#![allow(
    clippy::needless_pass_by_value,
    reason = "a check takes its result by value, so that a guard in it is dropped at once"
)]

mod acl;
mod acquire;
mod arguments;
mod cancelling;
mod cluster;
#[cfg(feature = "serde")]
mod configuration_files;
mod cost;
mod credentials;
mod duplicate_requests;
mod durability;
mod durable_renewals;
mod early_requests;
mod election;
mod errors;
mod events;
mod events_of_kinds;
mod fences;
mod foreign_keys;
mod garbled_replies;
mod guides;
mod hold_at_least;
mod inspection;
mod layout;
mod lease;
mod lifecycle;
mod logging;
mod loss;
mod lost_replies;
mod moving;
mod notifications;
mod open;
mod outages;
mod owned_guards;
mod processes;
mod queue_outages;
mod quorum;
mod redisson;
mod reentrancy;
mod release;
mod renewal;
mod resources;
mod restarts;
mod rw_lock;
mod secrets;
mod semaphore;
mod sentinel;
mod several_locks;
mod several_owners;
mod shutdown;
mod slow_links;
mod stats;
mod support;
mod survey;
mod table;
mod tenures;
mod threads;
mod timeouts;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tracing")]
mod tracing;
mod turns;
mod url;
mod wait_queue;
mod waiting_clients;
