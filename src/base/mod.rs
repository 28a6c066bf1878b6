//! What every storey uses, and what uses none of them.

pub(crate) mod clock;
pub(crate) mod counter;
pub(crate) mod failure;
pub(crate) mod report;
pub(crate) mod shrink;
#[cfg_attr(not(feature = "tracing"), path = "no_spans.rs")]
pub(crate) mod spans;
pub(crate) mod sync;
