//! Looks up the addresses of hosts.
//!
//! The system's look-up cannot be cut short, and may take far longer than a caller has, so it is a
//! [`SharedCalls`]. Hosts move, so an answer serves only the calls that were waiting for it.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use crate::net::shared_call::SharedCalls;

/// The look-ups of one client. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    look_ups: SharedCalls<String, Result<Vec<SocketAddr>, Arc<io::Error>>>,
}

impl Default for Resolver {
    /// Asks the system.
    fn default() -> Self {
        // The port is each caller's own.
        Self::new(|host| Ok((host, 0).to_socket_addrs()?.collect()))
    }
}

impl Resolver {
    pub(super) fn new(
        look_up: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        let look_up = move |host: &String| look_up(host).map_err(Arc::new);
        Self { look_ups: SharedCalls::new("leasehold-lookup", "looking up the host", look_up) }
    }

    /// Returns the addresses of a host, which may be an IP address itself.
    pub(crate) fn resolve(
        &self,
        host: &str,
        port: u16,
        deadline: Instant,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let answer = self.look_ups.call(&host.to_owned(), deadline)?;
        // Every caller gets an error of its own, whose source is the one that there is.
        let mut addresses = answer.map_err(|error| io::Error::new(error.kind(), error))?;
        for address in &mut addresses {
            address.set_port(port);
        }
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::base::clock::end_of;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn the_answer_of_a_look_up_has_the_port_of_the_caller() {
        let resolver = Resolver::new(|host| match host {
            "a" => Ok(vec![SocketAddr::from(([10, 0, 0, 1], 0))]),
            _ => Err(io::ErrorKind::NotFound.into()),
        });
        for port in [1, 2] {
            let found = resolver.resolve("a", port, end_of(SOON)).expect("known");
            assert_eq!(found, [SocketAddr::from(([10, 0, 0, 1], port))]);
        }
        let failed = resolver.resolve("b", 1, end_of(SOON)).expect_err("not known");
        assert_eq!(failed.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_look_up_that_panics_fails() {
        let resolver = Resolver::new(|_| panic!("a test"));
        let failed = resolver.resolve("a", 1, end_of(SOON)).expect_err("a failure");
        assert_eq!(failed.kind(), io::ErrorKind::Other);
    }

    #[test]
    fn an_address_is_not_looked_up() {
        let resolver = Resolver::new(|_| panic!("asked"));
        for address in ["10.0.0.1", "::1"] {
            let found = resolver.resolve(address, 7, Instant::now()).expect("an address");
            assert_eq!(found, [SocketAddr::new(address.parse().expect("an address"), 7)]);
        }
    }

    #[test]
    fn the_system_knows_localhost() {
        let found = Resolver::default().resolve("localhost", 7, end_of(SOON)).expect("known");
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
    }
}
