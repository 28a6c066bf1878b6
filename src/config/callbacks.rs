//! Callbacks through which a client asks the program for credentials and for the addresses of
//! servers.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// A user and a password, with an optional expiry. Returned by the callback of
/// [`Builder::credentials`](crate::Builder::credentials).
///
/// ```
/// use leasehold::Credentials;
/// use std::time::{Duration, Instant};
///
/// let token = "..."; // signed just now
/// let credentials = Credentials::new("app", token)
///     .valid_until(Instant::now() + Duration::from_secs(15 * 60));
/// assert!(!format!("{credentials:?}").contains(token));
/// ```
#[derive(Clone, Default)]
#[must_use = "credentials do nothing unless a callback returns them"]
pub struct Credentials {
    /// Empty for the default user.
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) valid_until: Option<Instant>,
}

impl Credentials {
    /// Creates credentials that do not expire. An empty `user` is the server's default user.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: user.into(), password: password.into(), valid_until: None }
    }

    /// Sets when the credentials expire. When 80 % of the time until then has passed, calls no
    /// longer use a connection that was opened with them, and it is replaced.
    ///
    /// Defaults to no limit.
    pub fn valid_until(mut self, end: Instant) -> Self {
        self.valid_until = Some(end);
        self
    }
}

/// Shows neither the user nor the password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("valid_until", &self.valid_until)
            .finish_non_exhaustive()
    }
}

/// The result of the callback, in a form that several callers can share.
pub(crate) type CredentialsAnswer = Result<Credentials, Arc<dyn StdError + Send + Sync>>;

#[derive(Clone)]
pub(crate) struct CredentialsCallback(Arc<dyn Fn() -> CredentialsAnswer + Send + Sync>);

impl CredentialsCallback {
    pub(crate) fn new<F>(ask: F) -> Self
    where
        F: Fn() -> Result<Credentials, Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
    {
        Self(Arc::new(move || ask().map_err(Arc::from)))
    }

    pub(crate) fn call(&self) -> CredentialsAnswer {
        (self.0)()
    }
}

impl fmt::Debug for CredentialsCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialsCallback").finish_non_exhaustive()
    }
}

type MapAddress = dyn Fn(&str, u16) -> (String, u16) + Send + Sync;

/// The program's callback that translates addresses that sentinels and cluster nodes announce.
#[derive(Clone)]
pub(crate) struct AddressMap(Arc<MapAddress>);

impl Default for AddressMap {
    /// Returns every address unchanged.
    fn default() -> Self {
        Self::new(|host, port| (host.into(), port))
    }
}

impl AddressMap {
    pub(crate) fn new(map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static) -> Self {
        Self(Arc::new(map))
    }

    /// Returns the address at which the server can be reached: the announced one if the callback
    /// panics.
    pub(crate) fn reachable(&self, host: &str, port: u16) -> (String, u16) {
        let mapped = catch_unwind(AssertUnwindSafe(|| (self.0)(host, port)));
        mapped.unwrap_or_else(|_| (host.into(), port))
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AddressMap").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_panics_changes_nothing() {
        let map = AddressMap::new(|_, port| {
            assert_ne!(port, 1, "a panic that the test wants");
            ("mapped".into(), port + 1)
        });
        assert_eq!(map.reachable("a", 1), ("a".into(), 1));
        assert_eq!(map.reachable("a", 2), ("mapped".into(), 3));
        assert_eq!(AddressMap::default().reachable("a", 2), ("a".into(), 2));
    }
}
