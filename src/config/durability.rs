//! What a lock must have survived before it is held.

use std::time::Duration;

use crate::error::{Error, Result};

/// What a lock must have survived before the call that acquires it returns.
///
/// With each request that acquires, nests or hands off a lock, the server is also asked to wait. If
/// too few replicas or disks have acknowledged a lock when the `timeout` is over, it is released
/// again, and the call fails at once with [`NotReplicated`](Error::NotReplicated). The timeout must
/// be shorter than [`io_timeout`](crate::Builder::io_timeout), which is longer by that much by
/// default, and it is cut short so that a call with a deadline ends in time.
///
/// Renewals wait as well, all that are due together with one request. One that too few acknowledge
/// does not prolong the hold: it is [retried](crate::Event::RenewalFailing) until the lease ends,
/// and the lock is lost then. So a hold on a master that is cut off from its replicas ends within a
/// lease, though that master still answers. The `unlock` of an inner level waits too, but does not
/// fail if too few acknowledge it; other releases do not wait.
///
/// With several independent servers, a majority must meet the demand, each by itself: with its own
/// disk, or with that many replicas of its own. The others cost no time.
///
/// A failover can still lose a lock, because a replica that does not have it may be elected unless
/// all replicas have acknowledged it. Fencing tokens keep resources safe even then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The lock is on disk (`WAITAOF`). Requires Redis 7.2 or newer, or Valkey, with `appendonly
    /// yes` on each server that counts, and `appendfsync` other than `no`.
    Fsync {
        /// Whether the server itself must have it on disk.
        local: bool,
        /// How many replicas must have it on disk. May be 0 if `local` is `true`.
        replicas: u32,
        /// The longest time to wait for that.
        timeout: Duration,
    },
    /// The server has the lock in memory. It may be forgotten in a restart without persistence or
    /// in a failover to a replica that lags behind.
    #[default]
    Memory,
    /// Replicas have the lock in memory as well (`WAIT`).
    Replicas {
        /// How many replicas must have it. At least 1.
        acks: u32,
        /// The longest time to wait for that.
        timeout: Duration,
    },
}

impl Durability {
    pub(crate) fn timeout(self) -> Duration {
        match self {
            Self::Fsync { timeout, .. } | Self::Replicas { timeout, .. } => timeout,
            Self::Memory => Duration::ZERO,
        }
    }

    pub(crate) fn check(self) -> Result<()> {
        let demands = match self {
            Self::Fsync { local, replicas, .. } => local || replicas > 0,
            Self::Memory => return Ok(()),
            Self::Replicas { acks, .. } => acks > 0,
        };
        if !demands || self.timeout().is_zero() {
            return Err(Error::invalid("durability", "must ask for something, and wait for it"));
        }
        Ok(())
    }
}
