//! What every storey uses, and what uses none of them.

pub(crate) mod clock;
pub(crate) mod counter;
pub(crate) mod event_thread;
pub(crate) mod failure;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod report;
pub(crate) mod shrink;
#[cfg_attr(not(feature = "tracing"), path = "no_spans.rs")]
pub(crate) mod spans;
pub(crate) mod sync;
