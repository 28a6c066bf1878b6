//! Where servers are reached that announce other addresses.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Maps a host and a port to others.
type MapAddress = dyn Fn(&str, u16) -> (String, u16) + Send + Sync;

/// The program's callback that maps the addresses which sentinels and nodes of a cluster name.
#[derive(Clone)]
pub(crate) struct AddressMap(Arc<MapAddress>);

impl Default for AddressMap {
    /// Changes nothing.
    fn default() -> Self {
        Self::new(|host, port| (host.into(), port))
    }
}

impl AddressMap {
    pub(crate) fn new(map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static) -> Self {
        Self(Arc::new(map))
    }

    /// Returns where the server is reached. If the callback panics, this is the address that the
    /// server announces.
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
