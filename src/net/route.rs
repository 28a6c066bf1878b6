//! The way to a server that may move.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::failure::Failure;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Knows where a master is now. Nothing but [`confirm`](Route::confirm) does I/O.
pub(crate) trait Route: fmt::Debug + Send + Sync {
    /// What users are shown as the server's address.
    fn label(&self) -> Arc<str>;

    /// Where the master is, as far as is known.
    fn address(&self) -> Result<Address, Failure>;

    /// How often the master has moved so far: connections from before lead to the wrong server.
    fn moves(&self) -> u64;

    /// Tells whether it was found out lately where the master is.
    fn is_confirmed(&self) -> bool;

    /// Finds out where the master is, unless that was done lately. What is known stands if it
    /// cannot be found out.
    fn confirm(&self, deadline: Instant);

    /// Takes in that the server has failed, and has perhaps been replaced.
    fn doubt(&self);

    /// Takes in that the server at the address is not the master.
    fn disprove(&self);
}
