//! Code shared with leasehold's own benchmarks.
#![allow(dead_code, reason = "each of the two uses a part of it")]

#[path = "../../support/meter.rs"]
pub(crate) mod meter;
#[path = "../../support/plot.rs"]
pub(crate) mod plot;
#[path = "../../support/raw.rs"]
pub(crate) mod raw;
#[path = "../../support/regime.rs"]
pub(crate) mod regime;
#[path = "../../../tests/it/support/server.rs"]
pub(crate) mod server;
#[path = "../../support/setting.rs"]
pub(crate) mod setting;
#[path = "../../support/slow_link.rs"]
pub(crate) mod slow_link;
#[path = "../../support/table.rs"]
pub(crate) mod table;
#[path = "../../support/turns.rs"]
pub(crate) mod turns;
