//! What an operator sees of all clients' holds, and can do about them.

use std::sync::Arc;
use std::time::Duration;

use crate::base::report::{HeldAs, NameReport, ServerReplies, ServerReport};
use crate::error::Result;
use crate::guards::holder::Holder;
use crate::local::shared::Shared;
use crate::local::survey;

/// What the program `leasehold` shows and does. Created by
/// [`Client::survey`](crate::Client::survey). Not for other programs: it may change at any time.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Survey {
    shared: Arc<Shared>,
}

impl Survey {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone() }
    }

    /// Returns who holds a name, of whatever kind it is, and which clients wait for it.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::is_locked`](crate::Mutex::is_locked).
    pub fn report(&self, name: &str) -> Result<NameReport> {
        survey::report(&self.shared, name)
    }

    /// Returns the names that begin with `start` and may be held, as each server has them: in no
    /// order, and some perhaps twice. Looks at all keys of all servers, some at a time. A server
    /// that does not answer has an error of its own.
    ///
    /// # Errors
    ///
    /// The same as for [`servers`](Survey::servers).
    pub fn names(&self, start: &str) -> Result<ServerReplies<Vec<String>>> {
        survey::names(&self.shared, start)
    }

    /// Ends the holds that a name has when this looks, and no others. Returns how many these were.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::force_unlock`](crate::Mutex::force_unlock).
    pub fn end_holds(&self, name: &str) -> Result<usize> {
        let mut ended = Vec::new();
        self.end_holds_if(name, |_, _| true, &mut ended)?;
        Ok(ended.len())
    }

    /// As [`end_holds`](Survey::end_holds), but only those that are meant. Adds them to `ended`,
    /// also if it fails before it has ended all of them.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn end_holds_if(
        &self,
        name: &str,
        is_meant: impl Fn(HeldAs, &Holder) -> bool,
        ended: &mut Vec<(HeldAs, Holder)>,
    ) -> Result<()> {
        survey::end_holds(&self.shared, name, is_meant, ended)
    }

    /// As [`end_holds`](Survey::end_holds), but only the holds of this client, including locks that
    /// stay taken.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn end_own_holds(&self, name: &str) -> Result<usize> {
        let client = self.shared.identity.client();
        let mut ended = Vec::new();
        self.end_holds_if(name, |_, holder| holder.client == client, &mut ended)?;
        Ok(ended.len())
    }

    /// Returns how long a request of this client may take.
    #[must_use]
    pub fn io_timeout(&self) -> Duration {
        let config = &self.shared.config;
        config.io_timeout(config.options.lease)
    }

    /// Asks each server about itself. One that does not answer has an error of its own.
    ///
    /// # Errors
    ///
    /// The same as [`Client::ping`](crate::Client::ping), if it is not known which servers there
    /// are.
    pub fn servers(&self) -> Result<ServerReplies<ServerReport>> {
        survey::servers(&self.shared)
    }
}
