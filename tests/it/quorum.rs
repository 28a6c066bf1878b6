//! Locks on several independent servers: a majority decides, whatever the others do.

mod contention;
mod durability;
mod fences;
mod foreign_keys;
mod grants;
mod lost_replies;
mod open;
mod outages;

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::{Builder, Client, Error};

use crate::support::server::Server;
use crate::support::{Quorum, SOON, eventually, ms};

/// How long one attempt may take here.
const IO: Duration = ms(300);

/// Much more than what a call may take here, for a busy machine.
const BOUND: Duration = ms(2500);

fn hasty() -> Builder {
    Client::builder().connect_timeout(IO).io_timeout(IO).wait(SOON).backoff(ms(1), ms(50))
}

/// Waits until the lock "a", which is free, is granted by all servers: until then a connection may
/// be missing.
fn settle(quorum: &Quorum, client: &Client) {
    eventually(SOON, || {
        let guard = client.lock("a").unwrap();
        let everywhere = quorum.count("a") == quorum.servers.len();
        guard.unlock().unwrap();
        everywhere
    });
    eventually(SOON, || quorum.count("a") == 0);
}

fn no_quorum<T: std::fmt::Debug>(result: Result<T, Error>) -> (u32, u32, BTreeSet<String>) {
    match result {
        Err(Error::NoQuorum { ok, required, failures, .. }) => {
            (ok, required, failures.into_iter().map(|failure| failure.server).collect())
        }
        other => panic!("{other:?} instead of no quorum"),
    }
}

fn addresses<'a>(servers: impl IntoIterator<Item = &'a Server>) -> BTreeSet<String> {
    servers.into_iter().map(|server| format!("127.0.0.1:{}", server.port())).collect()
}
