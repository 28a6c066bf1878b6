//! The credentials of new connections, where a callback of the program provides them.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::callbacks::{Credentials, CredentialsAnswer, CredentialsCallback};
use crate::net::shared_call::SharedCalls;

/// Asks the program's callback, whose answer serves all connections that wait for one. Clones share
/// it too.
#[derive(Clone, Debug)]
pub(crate) struct CredentialsSource {
    calls: SharedCalls<(), CredentialsAnswer>,
}

/// For how long a connection may be used whose credentials expire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    /// When to start replacing it: while it is still good, so that there is time.
    pub(crate) retire_at: Instant,
    pub(crate) end: Instant,
}

impl CredentialsSource {
    pub(super) fn new(callback: CredentialsCallback) -> Self {
        let what = "the credentials callback";
        Self { calls: SharedCalls::new("leasehold-login", what, move |()| callback.call()) }
    }

    /// Asks for credentials that have not expired.
    pub(super) fn ask(
        &self,
        deadline: Instant,
    ) -> Result<Credentials, Arc<dyn StdError + Send + Sync>> {
        let is_valid =
            |answer: &Credentials| answer.valid_until.is_none_or(|end| end > Instant::now());
        let first = self.ask_once(deadline)?;
        if is_valid(&first) {
            return Ok(first);
        }
        // The answer may have been kept because it came too late for every thread that had waited
        // for it.
        let second = self.ask_once(deadline)?;
        if is_valid(&second) {
            return Ok(second);
        }
        let why = "the credentials callback returned credentials that had expired";
        Err(Arc::new(io::Error::new(io::ErrorKind::InvalidData, why)))
    }

    fn ask_once(&self, deadline: Instant) -> CredentialsAnswer {
        self.calls.call(&(), deadline).unwrap_or_else(|error| Err(Arc::new(error)))
    }
}

impl Validity {
    /// Of a connection that is opened now.
    pub(super) fn until(end: Instant) -> Self {
        let spare = end.saturating_duration_since(Instant::now()) / 5;
        Self { retire_at: end.checked_sub(spare).unwrap_or(end), end }
    }

    /// How much time there is to replace the connection.
    pub(crate) fn spare(&self) -> Duration {
        self.end.saturating_duration_since(self.retire_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::base::clock::end_of;

    const SOON: Duration = Duration::from_secs(5);

    /// A source whose first answers have expired, and how often it was asked.
    fn source(expired: usize) -> (CredentialsSource, Arc<AtomicUsize>) {
        let asked = Arc::<AtomicUsize>::default();
        let count = asked.clone();
        let callback = CredentialsCallback::new(move || {
            let credentials = Credentials::new("", "sesame");
            let is_over = count.fetch_add(1, Ordering::SeqCst) < expired;
            Ok(if is_over { credentials.valid_until(Instant::now()) } else { credentials })
        });
        (CredentialsSource::new(callback), asked)
    }

    #[test]
    fn an_answer_that_has_expired_is_asked_for_anew() {
        let (good, asked) = source(1);
        assert_eq!(good.ask(end_of(SOON)).expect("the second is good").password, "sesame");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        let (bad, asked) = source(9);
        let error = bad.ask(end_of(SOON)).expect_err("not for ever");
        assert!(error.to_string().contains("had expired"), "{error}");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_fifth_of_the_time_is_left_to_replace_a_connection() {
        let now = Instant::now();
        let validity = Validity::until(now + Duration::from_secs(900));
        let age = validity.retire_at - now;
        assert!(age >= Duration::from_secs(720) && age < Duration::from_secs(725), "{age:?}");
        assert!(Validity::until(now).retire_at <= now, "at once");
    }
}
