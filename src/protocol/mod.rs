//! The behaviour of a client towards one name: a machine without I/O or threads. The runtime in
//! `local` feeds it calls, replies and messages, and does what it says.

pub(crate) mod call;
pub(crate) mod hold;
pub(crate) mod name;
pub(crate) mod retry;
pub(crate) mod signals;
pub(crate) mod steps;
pub(crate) mod tenure;
