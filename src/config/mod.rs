//! The settings of clients and locks, and the checks that they are valid before anything is sent.

pub(crate) mod callbacks;
#[cfg(feature = "tls")]
pub(crate) mod certificates;
pub(crate) mod durability;
pub(crate) mod url;

use std::sync::Arc;
use std::time::Duration;
use std::{process, ptr};

use crate::base::canceller::Canceller;
use crate::base::random;
use crate::config::callbacks::{AddressMap, Credentials, CredentialsCallback};
#[cfg(feature = "tls")]
use crate::config::certificates::Tls;
use crate::config::durability::Durability;
use crate::error::{Error, Result};
use crate::event::EventListener;

pub(crate) const LEASE_MIN: Duration = Duration::from_millis(10);
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(24 * 365 * 60 * 60);
/// The maximum length of a name, and of a prefix, in bytes.
pub(crate) const NAME_MAX: usize = 64 * 1024;
/// The prefix of the keys and channels that leasehold creates for its own use.
pub(crate) const RESERVED: &str = "leasehold:";
const IO_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
const LABEL_MAX: usize = 256;
/// The maximum length of a note, in bytes.
const NOTE_MAX: usize = 256;
/// The maximum length of the host name in a label, in characters.
const HOST_MAX: usize = 64;
const POOL_MAX: u32 = 10_000;

/// A mechanism that makes locks faster, which a benchmark can switch off to show its effect.
/// Spinning has a setting of its own, [`Builder::spin`](crate::Builder::spin).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// A dropped guard does not wait for the reply to its release.
    PostedRelease,
    /// A wake-up in a cluster uses a sharded channel, without messages to other nodes.
    ShardedWakeups,
    /// Requests of several threads go over one connection in one write.
    SharedWrites,
}

/// How a deadlock of threads that wait for each other is handled. Set by
/// [`Builder::deadlock`](crate::Builder::deadlock).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Deadlock {
    /// One call in the circle ends with [`Error::Deadlock`]: the one that began to wait last, among
    /// clients with this setting. Its thread keeps its other locks until it drops them.
    Fail,
    /// The deadlock is reported, and the threads go on waiting.
    #[default]
    Report,
}

/// The settings of a client, described where [`Builder`](crate::Builder) sets them. Holds only
/// values, since several clients may be opened with the same settings.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(crate) struct Config {
    /// Shared with the handles to locks. A handle copies them to change one of them.
    pub(crate) options: Arc<LockOptions>,
    pub(crate) pool_size: u32,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) max_lifetime: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    /// As set by the user. The method of this name applies the default.
    pub(crate) io_timeout: Option<Duration>,
    pub(crate) retry_window: Duration,
    pub(crate) backoff: (Duration, Duration),
    pub(crate) prefix: String,
    /// As set by the user. The method of this name applies the default.
    pub(crate) label: Option<String>,
    pub(crate) durability: Durability,
    pub(crate) fence_life: Duration,
    /// Taken when a client is opened.
    pub(crate) on_event: Option<Arc<dyn EventListener>>,
    pub(crate) metrics: bool,
    pub(crate) master_login: Option<Credentials>,
    pub(crate) address_map: AddressMap,
    pub(crate) credentials: Option<CredentialsCallback>,
    pub(crate) spin: Duration,
    pub(crate) lazy: bool,
    pub(crate) redisson: bool,
    pub(crate) pollers: bool,
    pub(crate) deadlock_after: Option<Duration>,
    pub(crate) deadlock: Deadlock,
    pub(crate) warn_held: Option<Duration>,
    /// The mechanisms that a benchmark has switched off.
    pub(crate) without: Vec<Mechanism>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            options: Arc::default(),
            pool_size: 4,
            idle_timeout: Some(Duration::from_secs(60)),
            max_lifetime: Some(Duration::from_secs(30 * 60)),
            connect_timeout: Duration::from_secs(1),
            io_timeout: None,
            retry_window: Duration::from_secs(10),
            backoff: (Duration::from_millis(5), Duration::from_millis(500)),
            prefix: "lock:".into(),
            label: None,
            durability: Durability::Memory,
            fence_life: Duration::from_secs(24 * 60 * 60),
            on_event: None,
            metrics: false,
            master_login: None,
            address_map: AddressMap::default(),
            credentials: None,
            spin: Duration::from_micros(50),
            lazy: false,
            redisson: false,
            pollers: false,
            deadlock_after: Some(Duration::from_secs(1)),
            deadlock: Deadlock::Report,
            warn_held: None,
            without: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl Config {
    /// Returns an error if no client can work with these settings.
    pub(crate) fn check(&self) -> Result<()> {
        self.durability.check()?;
        self.options.check(self)?;
        let has_pool = (1..=POOL_MAX).contains(&self.pool_size);
        Error::require(has_pool, "pool_size", format_args!("must be 1 to {POOL_MAX}"))?;
        for (argument, value) in [
            ("connect_timeout", self.connect_timeout),
            ("retry_window", self.retry_window),
            ("backoff min", self.backoff.0),
            ("idle_timeout", self.idle_timeout.unwrap_or(Duration::MAX)),
            ("max_lifetime", self.max_lifetime.unwrap_or(Duration::MAX)),
            ("warn_held", self.warn_held.unwrap_or(Duration::MAX)),
            ("deadlock_after", self.deadlock_after.unwrap_or(Duration::MAX)),
        ] {
            Error::require(!value.is_zero(), argument, "must be longer than zero")?;
        }
        let (min, max) = self.backoff;
        Error::require(min <= max, "backoff", "min must not be longer than max")?;
        let is_prefix = self.prefix.len() <= NAME_MAX && !self.prefix.starts_with(RESERVED);
        let why = format!("must be at most {NAME_MAX} bytes and not begin with {RESERVED:?}");
        Error::require(is_prefix, "prefix", why)?;
        let has_one_login = self.master_login.is_none() || self.credentials.is_none();
        Error::require(has_one_login, "master_login", "must not be set along with `credentials`")?;
        check_label(self.label.as_deref().unwrap_or_default())
    }

    /// Returns the start of client ids: by default the host and the process. In a container, where
    /// many processes have the id 1, four random digits follow.
    pub(crate) fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| match process::id() {
            1 => format!("{}:1-{:04}", host(), random() % 10_000),
            id => format!("{}:{id}", host()),
        })
    }

    pub(crate) fn options_mut(&mut self) -> &mut LockOptions {
        Arc::make_mut(&mut self.options)
    }

    /// Returns `true` unless a benchmark has switched the mechanism off.
    pub(crate) fn uses(&self, mechanism: Mechanism) -> bool {
        !self.without.contains(&mechanism)
    }

    /// Returns how long one request for a lock with this lease may take, connecting included. The
    /// default is one second, or the `connect_timeout` if that is longer, plus the timeout of the
    /// durability. It is never more than a third of the lease: an explicit value was checked
    /// against the client's lease, but not against one that `max_hold` cuts short.
    pub(crate) fn io_timeout(&self, lease: Duration) -> Duration {
        let default = IO_TIMEOUT_DEFAULT.max(self.connect_timeout);
        let default = default.saturating_add(self.durability.timeout());
        self.io_timeout.unwrap_or(default).min(lease / 3)
    }
}

/// Returns the name of this host, without characters that a label must not have.
fn host() -> String {
    #[cfg(unix)]
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(windows)]
    let host = std::env::var("COMPUTERNAME").unwrap_or_default();
    host.chars().filter(|char| !is_bad_in_label(*char)).take(HOST_MAX).collect()
}

/// Returns `true` for a character that a label must not have. A label is part of channel names,
/// where braces would determine the hash slot.
fn is_bad_in_label(char: char) -> bool {
    matches!(char, '{' | '}') || char.is_control()
}

/// Returns an error if no client can have this label.
pub(crate) fn check_label(label: &str) -> Result<()> {
    let is_short = label.len() <= LABEL_MAX;
    Error::require(is_short, "label", format_args!("must be at most {LABEL_MAX} bytes"))?;
    let why = "must have neither braces nor control characters";
    Error::require(!label.contains(is_bad_in_label), "label", why)
}

/// Returns an error if no hold can have this note.
pub(crate) fn check_note(note: &str) -> Result<()> {
    let is_short = note.len() <= NOTE_MAX;
    Error::require(is_short, "note", format_args!("must be at most {NOTE_MAX} bytes"))?;
    let is_printable = !note.contains(char::is_control);
    Error::require(is_printable, "note", "must not have control characters")
}

/// The options of a lock: the client's, or those of one `Mutex`, whose methods describe them.
#[derive(Clone, Debug)]
pub(crate) struct LockOptions {
    pub(crate) lease: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) hold_at_least: Option<Duration>,
    /// As set by the user; 10 ms by default.
    pub(crate) tenure: Option<Duration>,
    /// As set by the user. Other options can still prevent the client from keeping the lock.
    pub(crate) keep: Duration,
    /// Whether a handle has set `keep` itself. The client's `keep` is cut to the lease of the
    /// handle.
    pub(crate) has_own_keep: bool,
    pub(crate) reentrant: bool,
    pub(crate) cancelled_by: Option<Canceller>,
    /// The text that is shown with each hold.
    pub(crate) note: Option<Arc<str>>,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            wait: None,
            renew: true,
            max_hold: None,
            hold_at_least: None,
            tenure: None,
            keep: Duration::ZERO,
            has_own_keep: false,
            reentrant: true,
            cancelled_by: None,
            note: None,
        }
    }
}

impl LockOptions {
    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        let Self { lease, keep, .. } = *self;
        self.note.as_deref().map_or(Ok(()), check_note)?;
        let is_lease = (LEASE_MIN..=LEASE_MAX).contains(&lease);
        Error::require(is_lease, "lease", "must be 10 ms to 365 days")?;
        let max_hold = self.max_hold.unwrap_or(LEASE_MAX);
        Error::require(max_hold >= LEASE_MIN, "max_hold", "must be at least 10 ms")?;
        // Options that a handle has from the client are cut to the lease of the handle, but a
        // `keep` that it has set itself is not.
        let is_client = ptr::eq(self, &raw const *config.options);
        let fits = !is_client || self.tenure.unwrap_or_default() <= lease / 3;
        Error::require(fits, "tenure", "must be at most a third of the lease")?;
        let fits = !(is_client || self.has_own_keep) || keep <= lease;
        Error::require(fits, "keep", "must be at most the lease")?;
        let is_alone = keep.is_zero() || !config.redisson && !config.pollers;
        Error::require(is_alone, "keep", "must not be set along with `redisson` or `pollers`")?;
        let least = self.hold_at_least.unwrap_or_default();
        let why = "must be at most 365 days, and not longer than max_hold";
        Error::require(least <= max_hold.min(LEASE_MAX), "hold_at_least", why)?;
        let fits = config.io_timeout.is_none_or(|io| !io.is_zero() && io <= lease / 3);
        let why = "must be longer than zero and at most a third of the lease";
        Error::require(fits, "io_timeout", why)?;
        let fits = matches!(config.durability, Durability::Memory)
            || config.durability.timeout() < config.io_timeout(self.first_lease());
        let why = "must have a timeout shorter than the io_timeout and a third of the lease";
        Error::require(fits, "durability", why)
    }

    /// Sets the note; an empty text removes it.
    pub(crate) fn set_note(&mut self, note: &str) {
        self.note = Some(note).filter(|note| !note.is_empty()).map(Arc::from);
    }

    /// Returns the duration of a hold's first lease, which `max_hold` limits too.
    pub(crate) fn first_lease(&self) -> Duration {
        self.max_hold.map_or(self.lease, |hold| hold.min(self.lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_may_take_as_long_as_replicas_may_but_at_most_a_third_of_a_lease() {
        const WAIT: Duration = Duration::from_secs(2);
        let config = Config::default();
        assert_eq!(config.io_timeout(Duration::MAX), IO_TIMEOUT_DEFAULT);
        assert_eq!(config.io_timeout(IO_TIMEOUT_DEFAULT), IO_TIMEOUT_DEFAULT / 3);
        let durability = Durability::Replicas { acks: 1, timeout: WAIT };
        let durable = Config { durability, ..Config::default() };
        assert_eq!(durable.io_timeout(Duration::MAX), IO_TIMEOUT_DEFAULT + WAIT);
        let own = Config { io_timeout: Some(WAIT), ..Config::default() };
        assert_eq!((own.io_timeout(Duration::MAX), own.io_timeout(WAIT)), (WAIT, WAIT / 3));
    }
}
