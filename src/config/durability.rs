//! Where a lock must be stored before it is held.

use std::time::Duration;

use crate::error::{Error, Result};

/// Where a lock must be stored before the call that acquires it returns.
///
/// Each request that acquires or nests a lock also asks the server to wait. If too few replicas or
/// disks have acknowledged the lock by the end of `timeout`, it is released again, and the call
/// fails at once with [`NotReplicated`](Error::NotReplicated). The timeout must be shorter than
/// [`io_timeout`](crate::Builder::io_timeout), whose default includes it. It is cut short so that a
/// call with a deadline ends in time.
///
/// Renewals wait as well, with one request for all that are due together. A renewal that too few
/// acknowledge does not prolong the hold: it is [retried](crate::Event::RenewalFailing) until the
/// lease ends, and then the lock is lost. So a hold on a master that is cut off from its replicas
/// ends within a lease, even if that master still answers. The `unlock` of a nested level waits
/// too, but does not fail if too few acknowledge it. Other releases do not wait.
///
/// With several independent servers, a majority must meet the requirement, each on its own: with
/// its own disk, or with that many replicas of its own. The other servers cost no time.
///
/// A failover can still lose a lock: unless all replicas have acknowledged it, the next master may
/// be one that has not. Fencing tokens keep resources safe even then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
    /// The server has the lock in memory. It may be lost in a restart without persistence, or in a
    /// failover to a replica that lags behind.
    #[default]
    Memory,
    /// Replicas have the lock in memory, too (`WAIT`).
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
        let why = "must require a disk or a replica, with a timeout longer than zero";
        Error::require(demands && !self.timeout().is_zero(), "durability", why)
    }
}
