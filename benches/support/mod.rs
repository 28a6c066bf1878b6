//! What the benchmarks share: the raw rival, turns, meters, counts, and a slow way to the server.

pub(crate) mod counts;
pub(crate) mod meter;
pub(crate) mod raw;
pub(crate) mod slow_link;
pub(crate) mod turns;

#[path = "../../tests/it/support/cluster.rs"]
pub(crate) mod cluster;

#[path = "../../tests/it/support/server.rs"]
pub(crate) mod server;
