//! The behaviour of leasehold against real servers, one file per group of behaviours.
//!
//! `./tests/run` gets the servers and runs everything; a test's name is what it shows.
#![allow(
    clippy::unwrap_used,
    reason = "in a test, a panic at the line that went wrong is the wanted report"
)]
#![allow(
    clippy::needless_pass_by_value,
    reason = "what checks a result uses it up, so that a guard in it goes at once"
)]

mod arguments;
mod cluster;
mod cluster_faults;
mod cluster_moves;
mod conditions;
mod cost;
mod duplicates;
mod durability;
mod ending;
mod events;
mod exclusion;
mod foreign;
mod garbled;
mod hang;
mod inspection;
mod layout;
mod lease;
mod lifecycle;
mod loss;
mod messages;
mod nesting;
mod open;
mod outage;
mod pipelining;
mod quorum;
mod refusals;
mod replies;
mod resources;
mod secrets;
mod sentinel;
mod support;
mod table;
#[cfg(feature = "tls")]
mod tls;
mod waiting;
mod woken;
