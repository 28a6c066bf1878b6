//! A user and a password, and the callback that provides them.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A user and a password that are valid for a time. Returned by the callback of
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
    /// Creates credentials that are valid for an unlimited time. An empty `user` is the server's
    /// default one.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: user.into(), password: password.into(), valid_until: None }
    }

    /// Sets when the credentials expire. When 80 % of the time until then has passed, a connection
    /// is no longer used by calls, and is replaced in the background.
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

/// What the callback returns, as several callers share it.
pub(crate) type CredentialsAnswer = Result<Credentials, Arc<dyn StdError + Send + Sync>>;

/// The program's callback.
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
