//! Code that the benchmarks share: the baseline, turns, meters, counts, the setting, and a slow
//! link to the server.

#![allow(dead_code, reason = "each benchmark uses a part of this")]

pub(crate) mod bare;
pub(crate) mod counts;
pub(crate) mod crowd;
pub(crate) mod kept;
pub(crate) mod meter;
pub(crate) mod partner;
pub(crate) mod raw;
pub(crate) mod regime;
pub(crate) mod scale;
pub(crate) mod setting;
pub(crate) mod slow_link;
pub(crate) mod table;
pub(crate) mod turns;

#[path = "../../tests/it/support/cluster.rs"]
pub(crate) mod cluster;

#[path = "../../tests/it/support/sentinel.rs"]
pub(crate) mod sentinel;

#[path = "../../tests/it/support/server.rs"]
pub(crate) mod server;
