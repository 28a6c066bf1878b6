//! Where a server is that may be replaced by another.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::base::failure::Failure;
use crate::base::report::printable;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", printable(&self.host), self.port)
    }
}

/// Knows where a master is. Only [`refresh`](Route::refresh) does I/O.
pub(crate) trait Route: fmt::Debug + Send + Sync {
    /// The server's address, as users are shown it.
    fn label(&self) -> Arc<str>;

    /// Where the master is, as far as is known.
    fn address(&self) -> Result<Address, Failure>;

    /// How often the master has moved so far. Connections from before lead to the wrong server.
    fn moves(&self) -> u64;

    /// Returns `true` if the address was found out lately.
    fn is_current(&self) -> bool;

    /// Finds out where the master is, unless that was done lately. If it cannot be found out, what
    /// was known stands.
    fn refresh(&self, deadline: Instant);

    /// Makes the address out of date: the server has failed, and may have been replaced.
    fn suspect_move(&self);

    /// Makes the address out of date: no connection to a master could be opened there. Has no
    /// effect if the master is known to have moved since then.
    fn reject_address(&self, moves: u64);
}
