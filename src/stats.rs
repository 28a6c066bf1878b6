//! What a client holds and uses at one moment.

/// What a client holds and uses at one moment. Returned by
/// [`Client::stats`](crate::Client::stats).
///
/// The numbers are read one after the other, while others change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The holds that have guards, of every kind. A nested lock is one hold.
    pub held: u64,
    /// The threads that wait for a lock.
    pub waiting: u64,
    /// The connections of all pools, in use or idle. One that was closed is counted until it is
    /// used again.
    pub connections: u64,
    /// Those of them that no request uses.
    pub idle_connections: u64,
}
