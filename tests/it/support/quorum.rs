//! Several independent servers, and clients of all of them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Error, Guard};

use super::server::Server;
use super::{SOON, eventually, ms, opened, take};

pub(crate) struct Quorum {
    pub(crate) servers: Vec<Server>,
}

impl Quorum {
    pub(crate) fn of(servers: usize) -> Quorum {
        Quorum { servers: (0..servers).map(|_| Server::redis()).collect() }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// Opens a client while enough servers are up.
    pub(crate) fn open(&self, builder: Builder) -> Client {
        opened(|| open_redlock(builder.clone(), &self.urls()))
    }

    /// The last server, which no test takes down first.
    pub(crate) fn last(&self) -> &Server {
        self.servers.last().expect("there are some")
    }

    /// Returns how many of the answering servers have the lock.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.servers.iter().filter(|server| server.exists(name)).count()
    }
}

pub(crate) fn open_redlock(builder: Builder, urls: &[String]) -> Result<Client, Error> {
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    builder.open_redlock(&urls)
}

/// Much longer than a call may take here, for a busy machine.
pub(crate) const BOUND: Duration = ms(5000);

/// Like [`hasty`](super::hasty), for calls that wait.
pub(crate) fn hasty() -> Builder {
    super::hasty().wait(SOON).backoff(ms(1), ms(50))
}

/// Waits until all servers grant the lock "a", which is free. Until then a connection may be
/// missing.
pub(crate) fn settle(quorum: &Quorum, client: &Client) {
    eventually(SOON, || {
        let guard = client.lock("a").unwrap();
        let everywhere = quorum.count("a") == quorum.servers.len();
        guard.unlock().unwrap();
        everywhere
    });
    eventually(SOON, || quorum.count("a") == 0);
}

/// Takes the lock "a", which is free, on all servers.
pub(crate) fn take_everywhere(quorum: &Quorum, client: &Client) -> Guard {
    on_all_servers(quorum, client, &["a"], || take(client, "a"))
}

/// Takes locks of these names, which are free, on all servers. A server that is slow for a moment
/// may not have granted them in time, so this may take several attempts.
pub(crate) fn on_all_servers<T>(
    quorum: &Quorum,
    client: &Client,
    names: &[&str],
    acquire: impl Fn() -> T,
) -> T {
    let all_have = |count| names.iter().all(|name| quorum.count(name) == count);
    for _ in 0..5 {
        settle(quorum, client);
        let guards = acquire();
        let end = Instant::now() + SOON / 4;
        while Instant::now() < end {
            if all_have(quorum.servers.len()) {
                return guards;
            }
        }
        drop(guards);
        eventually(SOON, || all_have(0));
    }
    panic!("never on all servers");
}

pub(crate) fn no_quorum<T: Debug>(result: Result<T, Error>) -> (u32, u32, BTreeSet<String>) {
    match result {
        Err(Error::NoQuorum { ok, required, failures, .. }) => {
            (ok, required, failures.into_iter().map(|failure| failure.server).collect())
        }
        other => panic!("{other:?} instead of no quorum"),
    }
}

pub(crate) fn addresses<'a>(servers: impl IntoIterator<Item = &'a Server>) -> BTreeSet<String> {
    servers.into_iter().map(|server| format!("127.0.0.1:{}", server.port())).collect()
}
